"""Text that came out of a sandbox, made safe to stand beside our own words.

The reply that a model reads is lines of ours (`[exit 0]`, `[fault timeout] ...`) around lines of the code's. Whoever
controls the code controls its lines, so one that looks like ours is labelled as the code's. Looking alike is judged
as a reader would: invisible characters, terminal escapes, full-width brackets and look-alike letters do not help.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import dropwhile, islice

# The words that may follow the bracket in a line of ours, and are not the start of a longer word.
_MARKER = re.compile(
    r"(?:exit|fault|hint|stdout|stderr|output|no output|files?|images?|notes?|clipped|sandbox|stepbox)(?![a-z])"
)

#: What a line of the code's that looks like one of ours begins with.
LABEL = "(printed by the code) "

# CSI, OSC/DCS/APC/PM/SOS strings up to their end, and the remaining two- or three-byte escapes.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Everything that some reader shows as the start of a new line.
_LINE_BREAKS = re.compile(r"\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")
# Control characters but tab and newline; overrides that reorder what is shown; tag characters, which nobody sees.
_DROPPED = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
# Blank on the page without being of a category that says so.
_BLANK_LETTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0\u17b4\u17b5")
_LOOK_ALIKES = str.maketrans(
    "аеіїјорсухѕһԁԛтнոεοιυτκνɑɡıⅼ",
    "aeiijopcyxshdqthneoiutkvagil",
)


def clean(text: str) -> str:
    """The text without terminal escapes and control characters, with one kind of line break."""
    return _DROPPED.sub("", _LINE_BREAKS.sub("\n", _ANSI.sub("", text)))


def label_forgeries(text: str) -> str:
    """The cleaned text with every line that looks like one of ours labelled as the code's."""
    if not _may_hold_brackets(text):
        return text
    return "\n".join(LABEL + line if looks_like_ours(line) else line for line in text.split("\n"))


def looks_like_ours(line: str) -> bool:
    """Whether a reader could take this line for one that we write."""
    # A blank letter is seen as nothing or as a space: as whichever of them makes the line look like ours.
    return any(_begins_like_ours(_visible_start(line, blank)) for blank in ("", " "))


def _begins_like_ours(seen: str) -> bool:
    if not seen or not _is_opening_bracket(seen[0]):
        return False
    return _MARKER.match(seen[1:].lstrip().casefold().translate(_LOOK_ALIKES)) is not None


def one_line(text: str, limit: int = 200) -> str:
    """A name or a sentence that cannot leave its line: breaks and invisible characters are escaped, its middle cut."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    if len(escaped) <= limit:
        return escaped
    head = limit * 2 // 3
    return f"{escaped[:head]}...{escaped[len(escaped) - (limit - head - 3) :]}"


def _visible_start(line: str, blank: str) -> str:
    shown = (blank if c in _BLANK_LETTERS else c for c in line if c in _BLANK_LETTERS or not _is_invisible(c))
    start = "".join(islice(dropwhile(lambda c: not c or c.isspace(), shown), 40))
    return start if start.isascii() else unicodedata.normalize("NFKC", start)


def _may_hold_brackets(text: str) -> bool:
    return "[" in text if text.isascii() else any(_is_opening_bracket(c) for c in text)


def _is_opening_bracket(char: str) -> bool:
    # ASCII has brackets that code prints all the time; any other opening mark is there to be mistaken.
    return char == "[" or (not char.isascii() and unicodedata.category(char) == "Ps")


def _is_invisible(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me", "Mc"}
