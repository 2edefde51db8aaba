"""A hundred calls that begin together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contenders import Stepbox
from report import Target
from sampling import Series, at_once, attempt, timed
from setting import task
from stepbox import Sandbox
from work import PRINT, TRUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contenders import Contender
    from setting import Setting
    from work import Work

_AT_ONCE = 100
# One call of a contender that takes longer than this is not made a hundred times.
_TOO_SLOW_S = 0.3


def bursts(setting: Setting) -> None:
    """For each kind of work: until the last is back, and each call."""
    for work in (TRUE, PRINT):
        _burst(setting, work, [setting.stepbox, *setting.others])


def _burst(setting: Setting, work: Work, contenders: Sequence[Contender]) -> None:
    title = f"{_AT_ONCE} {'true' if work is TRUE else work.title} at once"
    rows = [_Row(title, each, work) for each in contenders]
    again = Series(f"{title}, again in that session, wall", "stepbox", slow=True)
    for row in rows:
        row.try_one()
    for _ in range(setting.scale.bursts):
        for row in rows:
            if not row.willing:
                continue
            if not isinstance(row.contender, Stepbox):
                row.burst(row.contender)
                continue
            # A session of its own: one that has seen a burst has slots for the next.
            with Sandbox() as sandbox:
                fresh = Stepbox(sandbox)
                fresh.perform(work)
                row.burst(fresh)
                second = task("", fresh, work)
                again.samples.append(at_once(second, _AT_ONCE))
                again.failures += second.series.failures
    expected = setting.scale.bursts * _AT_ONCE
    right = {row.contender.name: f"{len(row.calls.samples)} of {expected} right" for row in rows}
    target = {"stepbox": Target(seconds=0.25, of_bwrap=0.2)} if work is TRUE else None
    known = setting.report.add([row.wall for row in rows if not row.slow], targets=target, notes=right, headline=True)
    for row in rows:
        if row.slow:
            setting.report.skip(row.wall.work, row.slow, row.contender.name)
    if again.samples:
        setting.report.add([again], against=known)
    setting.report.add([row.calls for row in rows if row.willing])


class _Row:
    """One contender's bursts."""

    def __init__(self, title: str, contender: Contender, work: Work) -> None:
        self.contender = contender
        self.work = work
        self.wall = Series(f"{title}, wall", contender.name, slow=True)
        self.calls = Series(f"{title}, each", contender.name)
        self.slow = ""

    @property
    def willing(self) -> bool:
        """Whether there is a point in one more."""
        return not self.slow and self.wall.failure is None

    def try_one(self) -> None:
        """One call: what is too slow or does not work is left out."""
        sample = attempt(self.wall, lambda: timed(lambda: self.contender.perform(self.work)))
        if sample is not None and sample.seconds > _TOO_SLOW_S:
            self.slow = f"one call takes {sample.seconds:.1f} s"

    def burst(self, contender: Contender) -> None:
        """All at once."""
        one = task("", contender, self.work)
        self.wall.samples.append(at_once(one, _AT_ONCE))
        self.calls.samples += one.series.samples
        self.calls.starts += one.series.starts
        self.wall.failures += one.series.failures
