"""Single calls on sessions that are open."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from contenders import Stepbox, checked
from report import Target
from sampling import Sample, Series, Task, attempt, take_turns, timed
from stepbox import Sandbox
from work import BASH, NODE, PRINT, STANDARD, TRUE

if TYPE_CHECKING:
    from setting import Setting
    from work import Work

_APART_S = 0.05


def bare(setting: Setting) -> None:
    """A program that does nothing: what a sandbox costs."""
    contenders = [setting.stepbox, *setting.others]
    setting.calls(TRUE, 0, contenders, targets={"stepbox": Target(of_bwrap=0.35)})
    setting.calls(TRUE, 0.02, contenders, targets={"stepbox": Target(of_bwrap=0.35)}, headline=True)


def one_line(setting: Setting) -> None:
    """A line of Python, the interpreter cold and warm."""
    setting.stepbox.warm(PRINT)
    contenders = [setting.stepbox, setting.cold, *setting.others]
    setting.calls(PRINT, _APART_S, contenders, targets={"stepbox cold": Target(of_plain=1.12)}, headline=True)


def languages(setting: Setting) -> None:
    """Other interpreters than Python."""
    setting.calls(BASH, _APART_S, [setting.stepbox, *setting.others], headline=True)
    if shutil.which("node") is None:
        setting.report.skip(NODE.title, "node is not installed")
    else:
        setting.calls(NODE, _APART_S, [setting.stepbox, *setting.others], headline=True)


def standard_imports(setting: Setting) -> None:
    """What nearly all code imports."""
    setting.stepbox.warm(STANDARD)
    setting.calls(STANDARD, _APART_S, [setting.stepbox, setting.cold, *setting.others], headline=True)


def cells(setting: Setting) -> None:
    """Cells of one interpreter whose variables carry over."""
    title = f"kernel cell: {PRINT.title}"
    make = getattr(setting.stepbox.sandbox, "kernel", None)
    if make is None:
        setting.report.skip(title, "this client has no kernel()")
        return
    kernel = make()
    try:
        for gap_s, spaced in ((0.0, "back to back"), (_APART_S, f"{_APART_S * 1000:g} ms apart")):
            row = Task(Series(f"{title}, {spaced}", "stepbox"), partial(timed, partial(_cell, kernel)))
            take_turns([row], setting.scale.calls, gap_s)
            setting.report.add([row.series], against=setting.medians.get(PRINT.title), headline=gap_s > 0)
    finally:
        getattr(kernel, "close", lambda: None)()


def sessions(setting: Setting) -> None:
    """A session that is opened for one step, on an engine that runs."""
    for work in (TRUE, PRINT):
        series = Series(f"new session, first {work.title}", "stepbox")
        for _ in range(setting.scale.opens):
            sample = attempt(series, partial(_first, work))
            if sample is None:
                break
            series.take(sample)
        setting.report.add([series], against=setting.medians.get(work.title), headline=work is PRINT)


def _cell(kernel: Any) -> str | None:
    return checked(kernel.run_code(PRINT.code), PRINT)


def _first(work: Work) -> Sample:
    """From `open()` to the result; what closing takes is not in it."""
    sandbox = Sandbox()
    try:
        return timed(lambda: Stepbox(sandbox.open()).perform(work))
    finally:
        sandbox.close()
