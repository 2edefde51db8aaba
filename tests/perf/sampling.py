"""Taking times: in turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What a call leaves behind for the background must not be billed to the next contender.
_SETTLE_S = 0.015
# Calls in a row of one turn, so that the pause between two calls of one contender is the pause that was asked for.
# Without a pause one more goes ahead of them, uncounted: each counted call follows one of its own kind.
_RUN = 5


class UnsuitedError(Exception):
    """Why a contender cannot take part, which is no failure of it."""


@dataclass(frozen=True)
class Sample:
    """One call: seconds, and how the step was started, where the contender says so."""

    seconds: float
    start: str | None = None


@dataclass
class Series:
    """Times of one contender at one kind of work, in seconds."""

    work: str
    contender: str
    samples: list[float] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    unsuited: bool = False
    slow: bool = False

    @property
    def failure(self) -> str | None:
        """What went wrong first: a series in which anything did has no times to show."""
        return self.failures[0] if self.failures else None

    def take(self, sample: Sample) -> None:
        """Adds one call."""
        self.samples.append(sample.seconds)
        if sample.start is not None:
            self.starts[sample.start] += 1

    def quantile(self, share: float) -> float:
        """The value that `share` of the samples do not exceed."""
        return quantile(self.samples, share)


@dataclass(frozen=True)
class Task:
    """What is called, and where its times go."""

    series: Series
    call: Callable[[], Sample]


@dataclass(frozen=True)
class Count:
    """How many samples: fewer, and no less than `least`, of what would take longer than `budget_s`."""

    full: int
    least: int
    budget_s: float

    def stride(self, seconds: float) -> int:
        """Each how many-th round a call of that length takes part in."""
        most = max(min(self.least, self.full), min(self.full, int(self.budget_s / max(seconds, 1e-6))))
        return max(1, self.full // most)


def quantile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(call: Callable[[], str | None]) -> Sample:
    """How long a call takes that may tell how it was started."""
    begun = time.perf_counter()
    start = call()
    return Sample(time.perf_counter() - begun, start)


def attempt(series: Series, call: Callable[[], Sample]) -> Sample | None:
    """One call that may fail: then its row says so, shows no times, and the others go on."""
    try:
        return call()
    except Exception as failure:  # a peer may raise anything
        series.failures.append(" ".join(f"{failure}".split())[:160] or type(failure).__name__)
        series.unsuited = isinstance(failure, UnsuitedError)
        series.samples.clear()
        return None


def take_turns(tasks: Sequence[Task], count: Count, gap_s: float) -> None:
    """Calls the tasks in turns; each round begins with another. A task that fails takes no further part.

    Args:
        tasks: What to call; each is called twice before, uncounted.
        count: Samples of each.
        gap_s: Seconds before each call.
    """
    strided = [(task, _stride(task, count)) for task in tasks]
    for number in range(-(-count.full // _RUN)):
        first = number % len(tasks)
        for task, stride in [*strided[first:], *strided[:first]]:
            if task.series.failure is None and number % stride == 0:
                _turn(task, min(_RUN, count.full - number * _RUN), gap_s)


def _stride(task: Task, count: Count) -> int:
    seconds = []
    for _ in range(2):
        sample = attempt(task.series, task.call)
        if sample is None:
            return 1
        seconds.append(sample.seconds)
    stride = count.stride(min(seconds))
    task.series.slow = stride > 1
    return stride


def _turn(task: Task, calls: int, gap_s: float) -> None:
    time.sleep(_SETTLE_S)
    if gap_s == 0 and attempt(task.series, task.call) is None:
        return
    for _ in range(calls):
        time.sleep(gap_s)
        sample = attempt(task.series, task.call)
        if sample is None:
            return
        task.series.take(sample)


def every(tasks: Sequence[Task], count: int, period_s: float) -> None:
    """Calls each task once a period, all of them spread over it evenly."""
    for task in tasks:
        attempt(task.series, task.call)
        task.series.slow = True
    begun = time.perf_counter()
    for number in range(count):
        for place, task in enumerate(tasks):
            due = begun + (number + 1 + place / len(tasks)) * period_s
            time.sleep(max(0.0, due - time.perf_counter()))
            if task.series.failure is None:
                sample = attempt(task.series, task.call)
                if sample is not None:
                    task.series.take(sample)


@dataclass(frozen=True)
class Loop:
    """Calls in a row by one caller: when each ended, from the beginning, and how long all took."""

    ends: list[float]
    wall: float


def loop_for(task: Task, seconds: float) -> Loop:
    """Calls without a pause until the time is over."""
    ends: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        sample = attempt(task.series, task.call)
        if sample is None:
            break
        task.series.take(sample)
        ends.append(time.perf_counter() - begun)
    return Loop(ends, time.perf_counter() - begun)


def in_flight(task: Task, callers: int, seconds: float) -> float:
    """Seconds that so many callers were at it, each without a pause; their times go to the one series."""
    gate = threading.Barrier(callers + 1)

    def one() -> None:
        gate.wait()
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds and task.series.failure is None:
            sample = attempt(task.series, task.call)
            if sample is not None:
                task.series.take(sample)

    return _together(gate, [threading.Thread(target=one) for _ in range(callers)])


def at_once(task: Task, count: int) -> float:
    """Seconds until the last of `count` calls is back that begin together, a thread each."""
    gate = threading.Barrier(count + 1)

    def one() -> None:
        gate.wait()
        sample = attempt(task.series, task.call)
        if sample is not None:
            task.series.take(sample)

    return _together(gate, [threading.Thread(target=one) for _ in range(count)])


def _together(gate: threading.Barrier, threads: Sequence[threading.Thread]) -> float:
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun
