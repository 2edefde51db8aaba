"""What a model reads, from output, names and messages made at random: the verdict comes first, the reply keeps to its
length, and no line of the code's reads as one of ours.

fuzz_text.py [SECONDS] [SEED]     60 seconds, and a seed that is printed
"""

from __future__ import annotations

import random
import re
import secrets
import sys
import time
import unicodedata

from stepbox import SandboxFault
from stepbox.testing import created, result
from stepbox.text import render
from stepbox.tool import unfenced

WORDS = (
    "exit 0",
    "fault oom",
    "hint",
    "stdout",
    "stderr",
    "files",
    "image",
    "note",
    "clipped",
    "sandbox",
    "no output",
    "EXIT 0",
)
PIECES = (
    *WORDS,
    "[",
    "]",
    "\n",
    "\r",
    "\r\n",
    "\v",
    "\f",
    "\x1c",
    "\x85",
    "\u2028",
    "\u2029",
    " ",
    "\t",
    "\0",
    "\x1b",
    "\x1b[2K",
    "\x1b]0;",
    "\x9b",
    "\x9d",
    "\x07",
    "\x1b\\",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u00ad",
    "\u061c",
    "\u202e",
    "\u2066",
    "\U000e0065",
    "\u3164",
    "\u2800",
    "\u0301",
    "\uff3b",
    "\u3010",
    "\u2045",
    "\uff45",
    "\u0435",
    "\u0445",
    "x" * 300,
    "(printed by the code) ",
    "```",
    "~~~",
)
# A reader's own judgement: what is seen of a line, by another way than the library's.
OURS = re.compile(
    r"\[\s*(exit|fault|hint|stdout|stderr|output|no output|files?|images?|notes?|clipped|sandbox|stepbox)(?![^\W\d_])"
)
KNOWN = re.compile(
    r"\[(exit -?\d+(, [A-Z0-9]+|, signal \d+)?\]|fault [a-z_]+\] |hint\] |stdout\]$|stderr\]$|no output\]$|files\]$|images\] |note\] |clipped: )"
)


def text(chosen: random.Random) -> str:
    return "".join(chosen.choice(PIECES) for _ in range(chosen.choice([0, 3, 12, 60, 400])))


def seen(line: str) -> str:
    shown = "".join(
        c
        for c in unicodedata.normalize("NFKD", line)
        if unicodedata.category(c) not in {"Cf", "Cc", "Mn", "Cs", "Cn", "Co"}
    )
    return shown.lstrip().casefold()


def judge(seed: int) -> None:
    chosen = random.Random(seed)
    out, err = text(chosen), text(chosen)
    fault = SandboxFault("timeout", text(chosen)) if chosen.random() < 0.3 else None
    names = [created(text(chosen) or "x", chosen.randrange(9)) for _ in range(chosen.randrange(4))]
    longest = chosen.choice([500, 700, 2000, 16_000])
    given = result(out, stderr=err, exit_code=chosen.randrange(256), files=names, fault=fault)
    reply = render(given, max_chars=longest, images=[text(chosen)] if chosen.random() < 0.2 else ())
    if len(reply) > longest:
        raise AssertionError(f"seed {seed}: {len(reply)} characters of {longest}")
    lines = reply.split("\n")
    first = "[fault timeout] " if fault is not None else f"[exit {given.exit_code}]"
    if not lines[0].startswith(first):
        raise AssertionError(f"seed {seed}: begins with {lines[0]!r}")
    for line in lines:
        if any(unicodedata.category(c) == "Cc" and c != "\t" for c in line):
            raise AssertionError(f"seed {seed}: a control character in {line!r}")
        if OURS.match(seen(line)) and not KNOWN.match(line):
            raise AssertionError(f"seed {seed}: {line!r} reads as ours")
    # What only we may write stands as often as we wrote it: the code's own is labelled.
    for only, most in (
        ("[exit ", 1),
        ("[fault ", 1),
        ("[stdout]", 1),
        ("[stderr]", 1),
        ("[files]", 1),
        ("[images]", 1),
        ("[note]", 5),
    ):
        if sum(line.startswith(only) for line in lines) > most:
            raise AssertionError(f"seed {seed}: {only!r} stands too often in {reply!r}")
    code, language = unfenced(out, "python")
    if len(code) > len(out) + 1 or language not in {"python", "bash", "sh", "javascript"}:
        raise AssertionError(f"seed {seed}: {code!r}")


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(10**9)
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        judge(first + count)
        count += 1
    sys.stdout.write(f"{count} texts from seed {first}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
