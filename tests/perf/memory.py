"""What an engine and its idle slots hold in memory, from `/proc`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

# engine, launcher, realm, spawner or keeper, init
_SPAWNER_DEPTH = 3


@dataclass(frozen=True)
class Process:
    """One process below an engine; sizes in KiB."""

    depth: int
    rss: int
    pss: int


@dataclass(frozen=True)
class Holding:
    """All processes of an engine at one instant."""

    processes: tuple[Process, ...]

    @property
    def pss(self) -> int:
        """KiB of all, shared pages counted once."""
        return sum(process.pss for process in self.processes)

    @property
    def engine_and_launcher_rss(self) -> int:
        """KiB of the two that are there whether or not a session is."""
        return sum(process.rss for process in self.processes if process.depth < _SPAWNER_DEPTH - 1)

    @property
    def slots(self) -> int:
        """Slots, and one keeper a session: a difference of two holdings is one of slots."""
        return sum(process.depth == _SPAWNER_DEPTH for process in self.processes)


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
    engines = [pid for pid in children.get(os.getpid(), []) if b"serve" in _arguments(pid)]
    level = engines
    depth = 0
    while level:
        for pid in level:
            with contextlib.suppress(OSError):
                found.append(_process(pid, depth))
        level = [child for pid in level for child in children.get(pid, [])]
        depth += 1
    return Holding(tuple(found))


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _process(pid: int, depth: int) -> Process:
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0])
    return Process(depth=depth, rss=sizes["Rss"], pss=sizes["Pss"])
