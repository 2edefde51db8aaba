"""Taking times: in turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What a call leaves behind for the background must not be billed to the next contender.
_SETTLE_S = 0.015
# Calls in a row of one turn without gaps. One more goes ahead of them, uncounted: each counted call follows one of its
# own kind.
_RUN = 5


@dataclass
class Series:
    """Times of one contender at one kind of work, in seconds."""

    work: str
    contender: str
    samples: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """The value that `share` of the samples do not exceed."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def take_turns(tasks: Sequence[tuple[Series, Callable[[], object]]], count: int, gap_s: float) -> None:
    """Calls each task at least `count` times, in turns; each round begins with another.

    Args:
        tasks: What to call, and where its times go.
        count: Samples of each.
        gap_s: Seconds between calls; with none, a turn is several calls in a row.
    """
    turn = _RUN if gap_s == 0 else 1
    for number in range(-(-count // turn)):
        first = number % len(tasks)
        for series, call in [*tasks[first:], *tasks[:first]]:
            time.sleep(gap_s or _SETTLE_S)
            if gap_s == 0:
                call()
            series.samples += [timed(call) for _ in range(turn)]


def at_once(call: Callable[[], object], count: int) -> float:
    """Seconds until the last of `count` calls is back that begin together, a thread each."""
    gate = threading.Barrier(count + 1)
    failures: list[BaseException] = []

    def one() -> None:
        gate.wait()
        try:
            call()
        except Exception as failure:  # told below, by the thread that can stop the run
            failures.append(failure)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - begun
    if failures:
        raise failures[0]
    return wall
