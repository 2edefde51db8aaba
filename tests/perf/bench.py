"""Measures stepbox beside bwrap and plain subprocess, in one run and one table. It asserts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import Command, Contender, Stepbox, bwrap, inner_environment, make_workspace, peers
from memory import holding
from overshoot import deadline_overshoot
from report import Report, Target, host
from sampling import Series, at_once, take_turns, timed
from stepbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Sequence

WORK = ("true", "print", "burst", "deadline", "open", "memory")
_AT_ONCE = 100
_BURSTS = 5
_DEADLINES = 10
_OPENS = 30
_GAPS_S = (0.0, 0.02)

TRUE_TARGET = Target(of_bwrap=0.35)
PRINT_TARGET = Target(of_plain=1.12)
BURST_TARGET = Target(seconds=0.25, of_bwrap=0.2)


def main() -> int:
    """Runs what was asked for and prints the table."""
    options = _options()
    before = host()
    print("\n".join(f"{name}: {value}" for name, value in before.items()), end="\n\n", flush=True)
    report = Report()
    with make_workspace() as workspace, Sandbox() as sandbox:
        stepbox = Stepbox(sandbox)
        environment = inner_environment(sandbox)
        others: list[Command] = [Command("plain", (), environment), *peers(options.peer, environment)]
        boxed = bwrap(sandbox, environment, Path(workspace))
        if boxed is None:
            print("bwrap is not installed: nothing is compared with it", file=sys.stderr)
        else:
            others.insert(0, boxed)
        contenders: list[Contender] = [stepbox, *others]
        idle = holding()
        for gap in options.gap or _GAPS_S:
            _calls(report, contenders, gap, options)
        if "open" in options.only:
            _opens(report, min(options.rounds, _OPENS))
        if "burst" in options.only:
            _bursts(report, contenders, min(options.rounds, _BURSTS))
        if "memory" in options.only:
            _memory(report, idle.engine_and_launcher_rss, stepbox)
        if "deadline" in options.only:
            series, complete = deadline_overshoot(sandbox, min(options.rounds, _DEADLINES))
            report.add([series])
            report.note("deadline", f"{complete} of {len(series.samples)} trees stood complete before their end")
    report.note("load", f"{before['load']:.2f} before, {host()['load']:.2f} after")
    print(report.text())
    if options.json is not None:
        Path(options.json).write_text(json.dumps(report.data(), indent=2) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="samples of each single call (default: 200)")
    parser.add_argument("--gap", type=float, action="append", help="seconds between calls (default: 0 and 0.02)")
    parser.add_argument("--only", type=_work, default=WORK, help=f"some of {','.join(WORK)}")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND: one more contender")
    parser.add_argument("--json", help="a file for the same as JSON")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def _work(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    unknown = [name for name in chosen if name not in WORK]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(WORK)}")
    return chosen


def _calls(report: Report, contenders: Sequence[Contender], gap_s: float, options: argparse.Namespace) -> None:
    suffix = "back to back" if gap_s == 0 else f"{gap_s * 1000:g} ms apart"
    groups = []
    if "true" in options.only:
        one = [(Series(f'run(["true"]), {suffix}', each.name), each.true) for each in contenders]
        groups.append((one, TRUE_TARGET))
    if "print" in options.only:
        one = [(Series(f'run_code("print(1)"), {suffix}', each.name), each.print_one) for each in contenders]
        groups.append((one, PRINT_TARGET))
    tasks = [task for group, _ in groups for task in group]
    if not tasks:
        return
    for _, call in tasks:
        call()
    take_turns(tasks, options.rounds, gap_s)
    for group, target in groups:
        report.add([series for series, _ in group], target)


def _opens(report: Report, count: int) -> None:
    series = Series("open a session, first result", "stepbox")
    for _ in range(count):
        sandbox = Sandbox()
        series.samples.append(timed(lambda: Stepbox(sandbox.open()).true()))  # noqa: B023 - called at once
        sandbox.close()
    report.add([series])


def _bursts(report: Report, contenders: Sequence[Contender], count: int) -> None:
    work = f"{_AT_ONCE} true at once"
    again = Series(f"{work}, again in that session", "stepbox")
    rows = [Series(work, each.name) for each in contenders]
    for _ in range(count):
        for series, contender in zip(rows, contenders, strict=True):
            if not isinstance(contender, Stepbox):
                series.samples.append(at_once(contender.true, _AT_ONCE))
                continue
            # A session of its own: one that has seen a burst has slots for the next.
            with Sandbox() as sandbox:
                fresh = Stepbox(sandbox)
                fresh.true()
                series.samples.append(at_once(fresh.true, _AT_ONCE))
                again.samples.append(at_once(fresh.true, _AT_ONCE))
    report.add(rows, BURST_TARGET)
    report.add([again])


def _memory(report: Report, engine_and_launcher_kib: int, stepbox: Stepbox) -> None:
    before = holding()
    at_once(stepbox.true, _AT_ONCE)
    after = holding()
    more = after.slots - before.slots
    report.note("engine + launcher", f"{engine_and_launcher_kib / 1024:.1f} MiB resident with one session")
    if more > 0:
        report.note("an idle slot", f"{(after.pss - before.pss) / more:.0f} KiB of its own (over {more} slots)")


if __name__ == "__main__":
    raise SystemExit(main())
