"""Keeps the head and the tail of a text within a budget of characters."""

from __future__ import annotations

from dataclasses import dataclass

from stepbox.text.untrusted import LABEL, clean, label_forgeries

#: Room for the line that stands where the middle was.
_GAP = 96
#: How many raw characters may melt into one cleaned character before an end is cut short of its budget.
_RAW_PER_CLEAN = 4


@dataclass(frozen=True, slots=True)
class Clipped:
    """What is left of a text, and how much of it is not there."""

    text: str
    left_out: int


def clip_untrusted(raw: str, budget: int, name: str) -> Clipped:
    """The cleaned text of one stream in at most `budget` characters: two thirds from its start, one third from its end.

    Only the ends are cleaned, so that 64 MiB of output cost no more than a few screens.
    """
    reach = max(budget, 1) * _RAW_PER_CLEAN
    if len(raw) <= 2 * reach:
        start = end = clean(raw)
        between = 0
    else:
        start, end = clean(raw[:reach]), clean(raw[-reach:])
        between = len(raw) - 2 * reach
    whole = between == 0
    if whole:
        labelled = label_forgeries(start)
        if len(labelled) <= budget:
            return Clipped(labelled, 0)
    room = max(budget - _GAP, 0)
    head = _first(start, room * 2 // 3)
    tail = _last(end if not whole else end[len(head.raw) :], room - room * 2 // 3)
    left_out = len(start) + (0 if whole else between + len(end)) - len(head.raw) - len(tail.raw)
    gap = f"[clipped: {left_out:,} characters of {name} left out here]"
    return Clipped("\n".join(part for part in (head.text, gap, tail.text) if part)[:budget], left_out)


@dataclass(frozen=True, slots=True)
class _End:
    raw: str
    text: str


def _first(text: str, room: int) -> _End:
    raw = text[:room]
    labelled = label_forgeries(raw)
    while len(labelled) > room:
        raw = raw[: max(len(raw) - (len(labelled) - room), 0)]
        labelled = label_forgeries(raw)
    return _End(raw, labelled)


def _last(text: str, room: int) -> _End:
    # A cut in mid-line makes a line start that the code did not write: it is judged like any other.
    raw = text[len(text) - room :] if 0 < room < len(text) else text if room else ""
    labelled = label_forgeries(raw)
    while len(labelled) > room:
        raw = raw[min(max(len(labelled) - room, 1), len(raw)) :]
        labelled = label_forgeries(raw) if len(raw) > len(LABEL) else ""
        if not labelled:
            raw = ""
    return _End(raw, labelled)
