"""What all sections share: who is measured, how much, and where the numbers go."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from contenders import Stepbox, ground_of, plain
from peers import find
from sampling import Series, Task, take_turns, timed
from stepbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from contenders import Contender
    from report import Report, Target
    from scale import Scale
    from work import Work


@dataclass(frozen=True)
class Peers:
    """What the command line says of peers."""

    lines: Sequence[str] = ()
    modules: Sequence[str] = ()


@dataclass
class Setting:
    """One run. The session has every option at its default; `cold` has nothing made ahead."""

    scale: Scale
    report: Report
    peers: Peers
    stepbox: Stepbox
    cold: Stepbox
    others: Sequence[Contender]
    # Medians of this run by title of the work, for rows that are measured without the others.
    medians: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def others_at(self, sandbox: Sandbox) -> Iterator[Sequence[Contender]]:
        """The others, with what another session shows."""
        with others_on(sandbox, self.peers) as (others, _):
            yield others

    def calls(
        self,
        work: Work,
        gap_s: float,
        contenders: Sequence[Contender],
        *,
        title: str | None = None,
        targets: Mapping[str, Target] | None = None,
        headline: bool = False,
    ) -> None:
        """Rows of single calls, in turns."""
        spaced = "back to back" if gap_s == 0 else f"{gap_s * 1000:g} ms apart"
        rows = [task(f"{title or work.title}, {spaced}", each, work) for each in contenders]
        take_turns(rows, self.scale.calls, gap_s)
        known = self.medians.get(work.title, {})
        found = self.report.add([row.series for row in rows], against=known, targets=targets, headline=headline)
        self.medians[work.title] = {**found, **known}


def task(title: str, contender: Contender, work: Work) -> Task:
    """A row of its own for a contender at some work."""
    return Task(Series(title, contender.name), partial(timed, partial(contender.perform, work)))


@contextlib.contextmanager
def others_on(sandbox: Sandbox, peers: Peers) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Plain subprocess and all peers that work with what a session shows; and why the rest of them does not."""
    with contextlib.ExitStack() as stack, ground_of(sandbox) as ground:
        found, refused = find(ground, peers.lines, peers.modules, stack)
        yield [plain(ground), *found], refused


@contextlib.contextmanager
def a_setting(scale: Scale, report: Report, peers: Peers, sandbox: Sandbox) -> Iterator[Setting]:
    """A setting on an open session."""
    with others_on(sandbox, peers) as (others, refused), Sandbox(prewarm=0) as cold:
        for name, why in refused.items():
            report.note(f"without {name}", why)
        yield Setting(scale, report, peers, Stepbox(sandbox), Stepbox(cold, "stepbox cold"), others)
