"""Large imports: in a cold interpreter, and in one that has them already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contenders import Stepbox
from interpreter import NoInterpreterError, running_in, venv_with_pandas
from sampling import loop_for
from setting import task
from stepbox import Sandbox, StepboxError
from work import PANDAS, TABLE

if TYPE_CHECKING:
    from setting import Setting

_MODULES = ("numpy", "pandas")
_APART_S = 0.05


def preloads(setting: Setting) -> None:
    """The import alone, and a small job, beside the others who import each time."""
    try:
        venv = venv_with_pandas()
    except NoInterpreterError as why:
        for work in (PANDAS, TABLE):
            setting.report.skip(work.title, str(why))
        return
    with running_in(venv), Sandbox(prewarm=0) as cold, setting.others_at(cold) as others:
        for work in (PANDAS, TABLE):
            setting.calls(work, 0, [Stepbox(cold, "stepbox cold"), *others], title=f"{work.title}, cold", headline=True)
        _preloaded(setting)


def _preloaded(setting: Setting) -> None:
    try:
        sandbox = Sandbox(preload=_MODULES)
    except StepboxError as why:
        for work in (PANDAS, TABLE):
            setting.report.skip(f"{work.title}, preloaded", str(why))
        return
    with sandbox:
        ready = Stepbox(sandbox)
        for work in (PANDAS, TABLE):
            ready.warm(work)
            setting.calls(work, _APART_S, [ready], title=f"{work.title}, preloaded", headline=True)
        # What was forked ahead may be used up: the shares in the row tell.
        row = task(f"{PANDAS.title}, preloaded, tight loop", ready, PANDAS)
        loop_for(row, setting.scale.others_loop_s)
        setting.report.add([row.series], against=setting.medians.get(PANDAS.title))
