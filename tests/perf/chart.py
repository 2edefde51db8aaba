"""The headline rows as an SVG: a bar to the median, a whisker to the 95th percentile, on a logarithmic scale."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from report import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from report import Row

_WIDTH, _LEFT, _RIGHT, _EDGE = 760, 110, 90, 8
_BAR, _GAP, _GROUP, _TOP, _BOTTOM = 13, 3, 8, 34, 30

# Greys and one colour: each is read on white and on black, and the letters follow the page.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.small { font-size: 10.5px; fill: #57606a }
.grid { stroke: #8b949e; stroke-opacity: .35 }
.whisker { stroke: #57606a; stroke-width: 1.2; fill: none }
.bar { fill: #8b949e } .stepbox { fill: #2f81f7 } .cold { fill: #79b0f5 } .plain { fill: #b1a06a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9da7b3 } .whisker { stroke: #c9d1d9 }
}
"""


def svg(rows: Sequence[Row], caption: str) -> str:
    """The chart of those rows that are headlines, or of all times where none is."""
    timed = [row for row in rows if row.unit == "s" and row.p50]
    chosen = [row for row in timed if row.headline] or timed
    if not chosen:
        return _document(60, [_text(_WIDTH / 2, 34, "nothing was measured", "middle")])
    scale = _Scale([value for row in chosen for value in (row.p50, row.p95) if value])
    bars: list[str] = []
    y = float(_TOP)
    last = None
    for row in chosen:
        if row.work != last:
            y += _GROUP if last is not None else 0
            bars.append(_text(_EDGE, y + _BAR - 2, row.work, "start"))
            y += _BAR + _GAP + 2
            last = row.work
        bars += _bar(row, y, scale)
        y += _BAR + _GAP
    grid = [part for value in scale.ticks for part in _tick(value, scale, y)]
    return _document(y + _BOTTOM, [*grid, *bars, _text(_EDGE, y + _BOTTOM - 10, caption, "start", "small")])


class _Scale:
    """From seconds to the place across, logarithmic between powers of ten and their halves."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low = math.floor(math.log10(min(values)) * 2) / 2
        self._high = max(math.ceil(math.log10(max(values)) * 2) / 2, self._low + 0.5)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        self.ticks = [10.0**power for power in powers if self._low <= power <= self._high]

    def x(self, seconds: float) -> float:
        """Where a time is."""
        return _LEFT + (math.log10(seconds) - self._low) / (self._high - self._low) * (_WIDTH - _LEFT - _RIGHT)


def _bar(row: Row, y: float, scale: _Scale) -> list[str]:
    assert row.p50 is not None
    end = scale.x(row.p50)
    kind = " ".join(name for name in row.contender.split() if name.isalpha())
    parts = [
        f'<rect class="bar {escape(kind)}" x="{_LEFT}" y="{y:.1f}" width="{max(end - _LEFT, 1):.1f}" height="{_BAR}"/>',
        _text(_LEFT - 6, y + _BAR - 3, row.contender, "end", "small"),
    ]
    if row.p95:
        tip, middle = scale.x(row.p95), y + _BAR / 2
        parts.append(f'<path class="whisker" d="M{end:.1f} {middle}H{tip:.1f}M{tip:.1f} {middle - 3}v6"/>')
        end = max(end, tip)
    parts.append(_text(end + 6, y + _BAR - 3, figure(row.p50, row.unit), "start", "small"))
    return parts


def _tick(value: float, scale: _Scale, bottom: float) -> list[str]:
    x = scale.x(value)
    label = f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
    return [
        f'<path class="grid" d="M{x:.1f} {_TOP - 8}V{bottom:.1f}"/>',
        _text(x, _TOP - 14, label, "middle", "small"),
    ]


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def _document(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}"'
    head += f' viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="times of calls">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"
