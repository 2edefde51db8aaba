"""What an engine, what it keeps ready and its steps hold in memory, from `/proc`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from sampling import at_once
from setting import task
from work import PRINT, TRUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from contenders import Stepbox
    from setting import Setting

# engine, launcher, realm, spawner or keeper, init, the code
_SPAWNER_DEPTH = 3
_INIT_DEPTH = 4
_AT_ONCE = 100
# A step that is looked at gives itself this name, and waits until it has been.
_NAME = "bench-live-step"
_LIVE_S = 60
_LIVE = f"""
import os, time
open("/proc/self/comm", "w").write("{_NAME}")
end = time.monotonic() + {_LIVE_S}
while not os.path.exists("seen") and time.monotonic() < end:
    time.sleep(0.05)
print("seen")
"""


@dataclass(frozen=True)
class Process:
    """One process below an engine; sizes in KiB, as far as this user may know them."""

    pid: int
    parent: int
    depth: int
    name: str
    program: str
    rss: int
    pss: int | None

    @property
    def is_python(self) -> bool:
        """Whether it is an interpreter, also one that a step has renamed."""
        return "python" in self.program


@dataclass(frozen=True)
class Holding:
    """All processes of an engine at one instant."""

    processes: tuple[Process, ...]

    @property
    def pss(self) -> int | None:
        """KiB of all, shared pages counted once."""
        known = _known(self.processes)
        return sum(known) if len(known) == len(self.processes) else None

    @property
    def pids(self) -> tuple[int, ...]:
        """The engine, its launcher, and all below."""
        return tuple(process.pid for process in self.processes)

    @property
    def top(self) -> list[Process]:
        """Engine and launcher, which are there whether or not a session is."""
        return [process for process in self.processes if process.depth < _SPAWNER_DEPTH - 1]

    @property
    def slots(self) -> int:
        """Slots, and one keeper a session: a difference of two holdings is one of slots."""
        return sum(process.depth == _SPAWNER_DEPTH and not process.is_python for process in self.processes)

    @property
    def inits(self) -> list[Process]:
        """The first process of each sandbox."""
        return [process for process in self.processes if process.depth == _INIT_DEPTH and not process.is_python]

    @property
    def skeletons(self) -> list[Process]:
        """Inits of sandboxes that wait for a step with nothing in them yet."""
        parents = {process.parent for process in self.processes}
        return [process for process in self.inits if process.pid not in parents]

    @property
    def templates(self) -> list[Process]:
        """Interpreters that are no child of another and in no sandbox: from these the others are forked."""
        return [process for process in self.processes if process.is_python and process.depth == _SPAWNER_DEPTH]

    @property
    def forks(self) -> list[Process]:
        """What templates have forked outside of a sandbox: one for each slot."""
        templates = {process.pid for process in self.templates}
        return [process for process in self.processes if process.is_python and process.parent in templates]

    @property
    def ahead(self) -> list[Process]:
        """Interpreters in sandboxes that no step of ours runs in: forked ahead of the next."""
        inits = {process.pid for process in self.inits}
        return [
            process
            for process in self.processes
            if process.is_python and process.parent in inits and process.name != _NAME
        ]

    @property
    def live(self) -> list[Process]:
        """Steps that were started to be looked at."""
        return [process for process in self.processes if process.name == _NAME]


def holding() -> Holding:
    """What the engine that this process started holds now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold anything.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[Process] = []
    level = [(pid, os.getpid()) for pid in children.get(os.getpid(), []) if b"serve" in _arguments(pid)]
    depth = 0
    while level:
        for pid, parent in level:
            with contextlib.suppress(OSError):
                found.append(_process(pid, parent, depth))
        level = [(child, pid) for pid, _ in level for child in children.get(pid, [])]
        depth += 1
    return Holding(tuple(found))


def memory(setting: Setting) -> None:
    """Rows of sizes; to be taken first, while the engine has but one session."""
    report, stepbox = setting.report, setting.stepbox
    idle = holding()
    for process, name in zip(idle.top, ("engine", "launcher"), strict=False):
        report.value(f"memory: {name}, one session", "stepbox", "KiB", process.rss, "resident")
    stepbox.warm(PRINT)
    time.sleep(1)
    warm = holding()
    _each(setting, "an idle skeleton (init)", warm.skeletons)
    _each(setting, "an idle template", warm.templates)
    _each(setting, "a slot's fork of it", warm.forks)
    _each(setting, "a process forked ahead", warm.ahead)
    _each(setting, "a live step", _live(stepbox, setting.scale.live_steps))
    at_once(task("", stepbox, TRUE), _AT_ONCE)
    after = holding()
    more = after.slots - warm.slots
    if more > 0 and warm.pss is not None and after.pss is not None:
        each = (after.pss - warm.pss) / more
        report.value("memory: an idle slot", "stepbox", "KiB", each, f"what each of {more} more adds to the PSS of all")


def _each(setting: Setting, name: str, found: list[Process]) -> None:
    title = f"memory: {name}"
    known = _known(found)
    if not known:
        why = "unreadable for this user" if found else "no such process was found"
        setting.report.skip(title, f"unknown: {why}")
        return
    note = f"PSS, median of {len(known)}; {min(known)} to {max(known)}"
    setting.report.value(title, "stepbox", "KiB", median(known), note)


def _known(processes: Iterable[Process]) -> list[int]:
    return [process.pss for process in processes if process.pss is not None]


def _live(stepbox: Stepbox, count: int) -> list[Process]:
    """Steps that wait, all of them at once."""
    sandbox = stepbox.sandbox
    threads = [threading.Thread(target=sandbox.run_code, args=(_LIVE,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: len(holding().live) == count)
        return holding().live
    finally:
        sandbox.write_file("seen", "")
        for thread in threads:
            thread.join()
        sandbox.run(["rm", "seen"])


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _LIVE_S / 4
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _process(pid: int, parent: int, depth: int) -> Process:
    place = Path(f"/proc/{pid}")
    name = (place / "comm").read_text().strip()
    program, pss = name, None
    # Closed to others, also of the same user, where a process is not dumpable.
    with contextlib.suppress(OSError):
        program = os.fspath((place / "exe").readlink())
    with contextlib.suppress(OSError):
        pss = _field(place / "smaps_rollup", "Pss")
    return Process(pid, parent, depth, name, program, rss=_field(place / "status", "VmRSS") or 0, pss=pss)


def _field(file: Path, name: str) -> int | None:
    """A size in KiB; there is none of a process that has just ended."""
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    return None
