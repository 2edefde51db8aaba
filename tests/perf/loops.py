"""Calls for a while: in a tight loop, now and then, after a pause, and many callers."""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING

from sampling import Series, attempt, every, in_flight, loop_for, quantile
from setting import task
from work import PRINT

if TYPE_CHECKING:
    from sampling import Loop, Task
    from setting import Setting

_IN_FLIGHT = 8
_AFTER_PAUSE = 16
_PAUSE_S = 2.0


def tight(setting: Setting) -> None:
    """One caller without a pause: does it slow down when what was made ahead is used up?"""
    scale = setting.scale
    setting.stepbox.warm(PRINT)
    title = f"{PRINT.title}, tight loop"
    rates: dict[str, list[float]] = {}
    rows: list[Task] = []
    drift = None
    # The others before and after, half each: a machine that changes meanwhile hits both.
    for seconds, group in (
        (scale.others_loop_s / 2, setting.others),
        (scale.loop_s, [setting.stepbox]),
        (scale.others_loop_s / 2, setting.others),
    ):
        for contender in group:
            row = next((row for row in rows if row.series.contender == contender.name), None)
            if row is None:
                row = task(title, contender, PRINT)
                rows.append(row)
            if row.series.failure is None:
                loop = loop_for(row, seconds)
                rates.setdefault(contender.name, []).append(len(loop.ends) / loop.wall)
                if contender is setting.stepbox:
                    drift = _drift(loop, row.series)
    rows.sort(key=lambda row: row.series.contender != setting.stepbox.name)
    bases = setting.report.add([row.series for row in rows], headline=True)
    setting.medians.setdefault(PRINT.title, bases)
    if drift is not None:
        setting.report.value(
            f"{title}: last sixth / first sixth", "stepbox", "x", drift, f"medians, {scale.loop_s:g} s"
        )
    for series in (row.series for row in rows):
        if series.failure is None:
            name = series.contender
            setting.report.value(f"{PRINT.title}, one caller", name, "calls/s", fmean(rates[name]))


def now_and_then(setting: Setting) -> None:
    """One call every two seconds, as from an agent that thinks in between."""
    scale = setting.scale
    setting.stepbox.warm(PRINT)
    title = f"{PRINT.title}, one every {scale.period_s:g} s"
    rows = [task(title, each, PRINT) for each in (setting.stepbox, *setting.others)]
    every(rows, scale.periods, scale.period_s)
    setting.report.add([row.series for row in rows])


def after_pause(setting: Setting) -> None:
    """A burst of calls in a row after a pause: the first find things made ahead, the next may not."""
    early = Series(f"{PRINT.title}, after {_PAUSE_S:g} s of rest: calls 1 to 8", "stepbox")
    late = Series(f"{PRINT.title}, after {_PAUSE_S:g} s of rest: calls 9 to 16", "stepbox")
    one = task("", setting.stepbox, PRINT)
    setting.stepbox.warm(PRINT)
    for _ in range(setting.scale.pauses):
        time.sleep(_PAUSE_S)
        for number in range(_AFTER_PAUSE):
            series = early if number < _AFTER_PAUSE // 2 else late
            sample = attempt(series, one.call)
            if sample is None:
                break
            series.take(sample)
    known = setting.medians.get(PRINT.title)
    setting.report.add([early], against=known)
    setting.report.add([late], against=known)


def sustained(setting: Setting) -> None:
    """Several callers without a pause."""
    scale = setting.scale
    title = f"{PRINT.title}, {_IN_FLIGHT} in flight"
    rates = {}
    rows = []
    for contender in (setting.stepbox, *setting.others):
        row = task(title, contender, PRINT)
        seconds = scale.loop_s if contender is setting.stepbox else scale.others_loop_s
        wall = in_flight(row, _IN_FLIGHT, seconds)
        rows.append(row.series)
        if row.series.failure is None:
            rates[contender.name] = len(row.series.samples) / wall
    setting.report.add(rows)
    for name, rate in rates.items():
        setting.report.value(f"{title}: calls a second", name, "calls/s", rate)


def _drift(loop: Loop, series: Series) -> float | None:
    """The median of the last sixth of the time by that of the first."""
    sixth = loop.wall / 6
    pairs = list(zip(loop.ends, series.samples, strict=False))
    first = [seconds for end, seconds in pairs if end <= sixth]
    last = [seconds for end, seconds in pairs if end > loop.wall - sixth]
    return quantile(last, 0.5) / quantile(first, 0.5) if first and last else None
