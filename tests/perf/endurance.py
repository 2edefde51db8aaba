"""Ten thousand calls in a row: whether they slow down, and what is left of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memory import holding
from sampling import attempt, quantile
from setting import task
from work import PRINT

if TYPE_CHECKING:
    from memory import Process
    from setting import Setting

_CALLS = 10_000
_COMPARED = 1_000
# Uncounted ones, until the pools have the size that a tight loop gives them.
_SETTLING = 300
# What a step leaves to the background has been done by then, and pools have shrunk to what an idle engine keeps.
_REST_S = 3.0


@dataclass(frozen=True)
class Trace:
    """What could leak."""

    descriptors: int | None
    processes: int
    cgroups: int
    kib: int


def endurance(setting: Setting) -> None:
    """`print(1)` again and again, before and after which the engine is counted."""
    row = task(f"{PRINT.title}, {_CALLS:,} in a row", setting.stepbox, PRINT)
    setting.stepbox.warm(PRINT)
    for _ in range(_SETTLING):
        setting.stepbox.perform(PRINT)
    time.sleep(_REST_S)
    before = trace()
    for _ in range(_CALLS):
        sample = attempt(row.series, row.call)
        if sample is None:
            break
        row.series.take(sample)
    time.sleep(_REST_S)
    after = trace()
    report, title = setting.report, row.series.work
    report.add([row.series], against=setting.medians.get(PRINT.title))
    if row.series.failure is not None:
        return
    samples = row.series.samples
    drift = quantile(samples[-_COMPARED:], 0.5) / quantile(samples[:_COMPARED], 0.5)
    report.value(f"{title}: last 1,000 / first 1,000", "stepbox", "x", drift, "medians")
    for name, then, now, unit in (
        ("descriptors of engine and launcher", before.descriptors, after.descriptors, ""),
        ("processes", before.processes, after.processes, ""),
        ("cgroups", before.cgroups, after.cgroups, ""),
        ("resident, engine and launcher", before.kib, after.kib, "KiB"),
    ):
        counted = f"after {_CALLS:,} calls: {name}"
        if then is None or now is None:
            report.skip(counted, "unknown: unreadable for this user")
        else:
            report.value(counted, "stepbox", unit, now, f"{then:,} before, {now - then:+,}")


def trace() -> Trace:
    """What the engine of this process has now."""
    held = holding()
    return Trace(
        descriptors=_descriptors(held.top),
        processes=len(held.processes),
        cgroups=sum(1 + sum(path.is_dir() for path in root.rglob("*")) for root in _cgroups(held.pids)),
        kib=sum(process.rss for process in held.top),
    )


def _descriptors(processes: list[Process]) -> int | None:
    try:
        return sum(len(list(Path(f"/proc/{process.pid}/fd").iterdir())) for process in processes)
    except OSError:
        return None


def _cgroups(pids: tuple[int, ...]) -> set[Path]:
    """The cgroups that the engine made for all its slots, one in each hierarchy."""
    found = set()
    mounts = _mounts()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            _, controllers, path = line.split(":", 2)
            parts = path.split("/")
            own = next((number for number, part in enumerate(parts) if part.startswith("stepbox-")), None)
            if own is not None and controllers in mounts:
                found.add(mounts[controllers].joinpath(*parts[1 : own + 1]))
    return {path for path in found if path.is_dir()}


def _mounts() -> dict[str, Path]:
    """Where each hierarchy is mounted, by its controllers as `/proc/PID/cgroup` names them."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found[""] = Path(place)
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, Path(place))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for controllers in (line.split(":", 2)[1] for line in lines):
        first = controllers.split(",")[0]
        if controllers not in found and first in found:
            found[controllers] = found[first]
    return found
