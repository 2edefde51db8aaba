"""One table, and the same as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sampling import Series

_HEAD = ("work", "by", "n", "p50", "p95", "min", "x bwrap", "x plain", "")
_NUMBERS = range(2, 8)


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
    """One line. Without a value it says in its note why there is none."""

    work: str
    contender: str
    unit: str = "s"
    count: int | None = None
    p50: float | None = None
    p95: float | None = None
    least: float | None = None
    of_bwrap: float | None = None
    of_plain: float | None = None
    note: str = ""
    failed: bool = False
    target: str = ""
    met: bool | None = None
    starts: dict[str, int] = field(default_factory=dict)
    headline: bool = False


@dataclass
class Report:
    """All that one run found."""

    rows: list[Row] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def add(
        self,
        group: Sequence[Series],
        *,
        against: Mapping[str, float] | None = None,
        targets: Mapping[str, Target] | None = None,
        notes: Mapping[str, str] | None = None,
        headline: bool = False,
    ) -> dict[str, float]:
        """Adds the contenders at one kind of work.

        Args:
            group: Their times.
            against: Medians of the others at the same work elsewhere in this run, for those who are not in the group.
            targets: By contender.
            notes: By contender.
            headline: The chart shows it.

        Returns:
            The medians by contender, for other groups to be set against.
        """
        medians = {series.contender: series.quantile(0.5) for series in group if _measured(series)}
        bases = {**(against or {}), **medians}
        for series in group:
            row = Row(work=series.work, contender=series.contender, headline=headline)
            if series.failure is not None:
                row.failed = not series.unsuited
                times = f", {len(series.failures)} calls" if len(series.failures) > 1 else ""
                row.note = f"{'failed' if row.failed else 'skipped'}{times}: {series.failure}"
            elif series.samples:
                _measure(row, series, bases)
                row.note = (notes or {}).get(series.contender, "")
                if series.slow:
                    row.note = _and("slow: fewer calls", row.note)
                target = (targets or {}).get(series.contender)
                if target is not None:
                    row.target, row.met = target.words(), target.met(row)
            self.rows.append(row)
        return bases

    def value(self, work: str, contender: str, unit: str, value: float, note: str = "") -> None:
        """Adds a line of one number that is no time."""
        self.rows.append(Row(work=work, contender=contender, unit=unit, p50=value, note=note))

    def skip(self, work: str, why: str, contender: str = "stepbox") -> None:
        """Adds a line that says why there are no numbers."""
        self.rows.append(Row(work=work, contender=contender, note=f"skipped: {why}"))

    def note(self, name: str, value: str) -> None:
        """Adds a line below the table."""
        self.facts.append((name, value))

    def failed(self, contender: str) -> bool:
        """Whether a call of that contender went wrong."""
        return any(row.failed for row in self.rows if row.contender.split()[0] == contender)

    def text(self) -> str:
        """The table, and what belongs to no row below it."""
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
                cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
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


def figure(value: float | None, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if unit == "s":
        return f"{value * 1000:.2f} ms" if value < 10 else f"{value:.1f} s"
    return f"{value:.2f}{unit}" if unit == "x" else f"{value:,.0f} {unit}".rstrip()


def shares(starts: Mapping[str, int]) -> str:
    """How steps were started, most frequent first."""
    total = sum(starts.values())
    return ", ".join(
        f"{name} {100 * count / total:.0f} %" for name, count in sorted(starts.items(), key=lambda each: -each[1])
    )


def _measured(series: Series) -> bool:
    return series.failure is None and bool(series.samples)


def _measure(row: Row, series: Series, bases: Mapping[str, float]) -> None:
    median = series.quantile(0.5)
    row.count = len(series.samples)
    row.p50, row.p95, row.least = median, series.quantile(0.95), min(series.samples)
    row.of_bwrap, row.of_plain = _ratio(median, bases.get("bwrap")), _ratio(median, bases.get("plain"))
    row.starts = dict(series.starts)


def _ratio(value: float, base: float | None) -> float | None:
    return value / base if base else None


def _and(first: str, second: str) -> str:
    return "; ".join(part for part in (first, second) if part)


def _cells(row: Row) -> tuple[str, ...]:
    ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (row.of_bwrap, row.of_plain)]
    figures = [figure(value, row.unit) for value in (row.p50, row.p95, row.least)]
    met = {None: "", True: ": met", False: ": missed"}[row.met]
    aim = f"target {row.target}{met}" if row.target else ""
    note = _and(_and(aim, shares(row.starts) if row.starts else ""), row.note)
    return (row.work, row.contender, "" if row.count is None else str(row.count), *figures, *ratios, note)
