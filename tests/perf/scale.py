"""How much of everything: a whole run, and a quick one for people who wait."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sampling import Count


@dataclass(frozen=True)
class Scale:
    """Numbers of calls, and seconds."""

    rounds: int = 200
    least: int = 30
    # What one contender may take for one row before it gets fewer calls.
    budget_s: float = 20
    loop_s: float = 30
    others_loop_s: float = 6
    periods: int = 30
    period_s: float = 2
    pauses: int = 25
    bursts: int = 5
    deadlines: int = 10
    opens: int = 200
    live_steps: int = 8
    many_files: int = 50_000

    @property
    def calls(self) -> Count:
        """Of a single call."""
        return Count(self.rounds, self.least, self.budget_s)

    def with_rounds(self, rounds: int) -> Scale:
        """The same with another number of single calls."""
        more = rounds / self.rounds
        return replace(self, rounds=rounds, least=min(self.least, rounds), budget_s=self.budget_s * more, opens=rounds)


WHOLE = Scale()
QUICK = Scale(
    rounds=20,
    least=5,
    budget_s=1.5,
    loop_s=4,
    others_loop_s=1,
    periods=3,
    period_s=1,
    pauses=3,
    bursts=1,
    deadlines=3,
    opens=15,
    live_steps=4,
    many_files=10_000,
)
