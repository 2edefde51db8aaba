"""Measures stepbox beside bwrap, plain subprocess and peers, in one run and one table. It asserts no time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from bursts import bursts
from calls import bare, cells, languages, one_line, sessions, standard_imports
from chart import svg
from endurance import endurance
from loops import after_pause, now_and_then, sustained, tight
from memory import memory
from neighbours import neighbours
from overshoot import deadlines
from peers import parse
from preloads import preloads
from report import Report, Row, host
from scale import QUICK, WHOLE
from setting import Peers, a_setting
from stepbox import Sandbox
from workspaces import workspaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from setting import Setting

# In this order: memory while nothing else has been made yet, single calls before the rows that are set against them.
SECTIONS: dict[str, Callable[[Setting], None]] = {
    "memory": memory,
    "true": bare,
    "print": one_line,
    "loop": tight,
    "every": now_and_then,
    "pause": after_pause,
    "languages": languages,
    "imports": standard_imports,
    "pandas": preloads,
    "kernel": cells,
    "open": sessions,
    "burst": bursts,
    "sustained": sustained,
    "workspace": workspaces,
    "deadline": deadlines,
    "neighbour": neighbours,
    "soak": endurance,
}


def main() -> int:
    """Runs what was asked for and prints the table."""
    options = _options()
    before = host()
    print("\n".join(f"{name}: {value}" for name, value in before.items()), end="\n\n", flush=True)
    scale = QUICK if options.quick else WHOLE
    if options.rounds is not None:
        scale = scale.with_rounds(options.rounds)
    report = Report()
    begun = time.monotonic()
    with Sandbox() as sandbox, a_setting(scale, report, Peers(options.peer, options.peer_module), sandbox) as setting:
        for name in options.only:
            print(f"{time.monotonic() - begun:4.0f} s  {name}", file=sys.stderr, flush=True)
            try:
                _measure(name, SECTIONS[name], setting)
            except KeyboardInterrupt:
                # What has been measured by then is not lost.
                report.note("interrupted", f"in {name}")
                break
    report.note("load", f"{before['load']:.2f} before, {host()['load']:.2f} after")
    report.note("took", f"{time.monotonic() - begun:.0f} s")
    print(report.text())
    if options.json is not None:
        options.json.write_text(json.dumps(report.data(), indent=2) + "\n", encoding="utf-8")
    if options.svg is not None:
        linux = ".".join(str(before["kernel"]).split(".")[:2])
        caption = f"median, whisker to the 95th percentile; Linux {linux}, {before['processors']} processors"
        options.svg.write_text(svg(report.rows, caption), encoding="utf-8")
    return 1 if report.failed("stepbox") else 0


def _measure(name: str, section: Callable[[Setting], None], setting: Setting) -> None:
    """One section: what goes wrong in it is told in the table, and the next ones are still measured."""
    try:
        section(setting)
    except Exception as failure:
        words = " ".join(f"failed: {type(failure).__name__}: {failure}".split())
        setting.report.rows.append(Row(name, "stepbox", note=words[:200], failed=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help=f"samples of each single call (default: {WHOLE.rounds})")
    parser.add_argument("--quick", action="store_true", help="fewer of everything: about a minute")
    parser.add_argument("--only", default="*", help=f"patterns of sections, with commas: {', '.join(SECTIONS)}")
    parser.add_argument("--soak", action="store_true", help="10,000 calls in a row as well")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND with {argv} or {code}: one more")
    parser.add_argument("--peer-module", action="append", default=[], help="a Python file whose open() gives one more")
    parser.add_argument("--json", type=Path, help="a file for the same as JSON")
    parser.add_argument("--svg", type=Path, help="a file for a chart of the headline rows")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    try:
        parse(options.peer)
    except ValueError as wrong:
        parser.error(str(wrong))
    patterns = options.only.split(",")
    options.only = [name for name in SECTIONS if any(fnmatch(name, pattern) for pattern in patterns)]
    if not options.only:
        parser.error(f"--only fits none of {', '.join(SECTIONS)}")
    if "soak" in options.only and "*" in patterns and not options.soak:
        options.only.remove("soak")
    elif options.soak and "soak" not in options.only:
        options.only.append("soak")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
