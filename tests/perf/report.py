"""One table, and the same as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sampling import Series

_HEAD = ("work", "by", "n", "p50", "p95", "min", "x bwrap", "x plain", "target", "")


@dataclass(frozen=True)
class Target:
    """What a row is to reach: any one of the bounds is enough."""

    of_bwrap: float | None = None
    of_plain: float | None = None
    seconds: float | None = None

    def words(self) -> str:
        """The bounds as the table shows them."""
        parts = []
        if self.seconds is not None:
            parts.append(f"<= {self.seconds:g} s")
        if self.of_bwrap is not None:
            parts.append(f"<= {self.of_bwrap:g}x bwrap")
        if self.of_plain is not None:
            parts.append(f"<= {self.of_plain:g}x plain")
        return " or ".join(parts)

    def met(self, row: Row) -> bool | None:
        """None: there is nothing to compare with."""
        pairs = (
            (self.seconds, row.p50),
            (self.of_bwrap, row.of_bwrap),
            (self.of_plain, row.of_plain),
        )
        known = [value <= bound for bound, value in pairs if bound is not None and value is not None]
        return any(known) if known else None


@dataclass
class Row:
    """One line; times in seconds."""

    work: str
    contender: str
    count: int
    p50: float
    p95: float
    least: float
    of_bwrap: float | None
    of_plain: float | None
    target: str = ""
    met: bool | None = None


@dataclass
class Report:
    """All that one run found."""

    rows: list[Row] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, group: Sequence[Series], target: Target | None = None) -> None:
        """Adds the contenders at one kind of work; the target is that of the first."""
        medians = {series.contender: series.quantile(0.5) for series in group}
        for index, series in enumerate(group):
            median = medians[series.contender]
            row = Row(
                work=series.work,
                contender=series.contender,
                count=len(series.samples),
                p50=median,
                p95=series.quantile(0.95),
                least=min(series.samples),
                of_bwrap=_ratio(median, medians.get("bwrap")),
                of_plain=_ratio(median, medians.get("plain")),
            )
            if index == 0 and target is not None:
                row.target = target.words()
                row.met = target.met(row)
            self.rows.append(row)

    def note(self, name: str, value: str) -> None:
        """Adds a line below the table."""
        self.facts.append((name, value))

    def text(self) -> str:
        """The table, and what is not a time below it."""
        lines = [_HEAD, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
        table = []
        last = ""
        for index, line in enumerate(lines):
            cells = list(line)
            if cells[0] == last:
                cells[0] = ""
            elif index > 0:
                table.append("")
            last = line[0]
            shown = [
                cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            table.append("  ".join(shown).rstrip())
        width = max((len(name) for name, _ in self.facts), default=0)
        table.append("")
        table += [f"{name.ljust(width)}  {value}" for name, value in self.facts]
        return "\n".join(table)

    def data(self) -> dict[str, object]:
        """The same for a program."""
        return {"host": host(), "rows": [asdict(row) for row in self.rows], "facts": dict(self.facts)}


def host() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _ratio(value: float, base: float | None) -> float | None:
    return value / base if base else None


def _cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "missed"}[row.met]
    times = [f"{seconds * 1000:.2f} ms" for seconds in (row.p50, row.p95, row.least)]
    ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (row.of_bwrap, row.of_plain)]
    return (row.work, row.contender, str(row.count), *times, *ratios, row.target, met)
