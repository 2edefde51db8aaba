"""The text that a model reads after a step: the one renderer that every adapter uses."""

from __future__ import annotations

import re
import signal as signals
from typing import TYPE_CHECKING, Final

from stepbox.text.clip import clip_untrusted
from stepbox.text.untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepbox import ExecutionResult, FileChange

MAX_CHARS: Final = 16_000
MAX_FILES: Final = 20
#: Below this a reply could not hold a verdict and its advice.
MIN_CHARS: Final = 500

_ADVICE: Final = {
    "startup_failed": "The sandbox could not be started and the code did not run. This is not a mistake in the code.",
    "exec_failed": "The program is not in the sandbox or cannot be executed: nothing ran. Use another one.",
    "escape_blocked": "The sandbox forbids this operation. Do not try it again: find a way without it.",
    "oom": "The code used more memory than it may. Work in smaller pieces, or keep less in memory at once.",
    "workspace_full": "The workspace is full. Remove files that are not needed, or write less.",
    "timeout": "The code ran longer than it may. Do less in one call, or split the work. Written files are kept.",
    "cancelled": "The call was cancelled before the code had ended.",
    "killed": "The code was killed from outside, or killed itself. Written files are kept.",
}
_MISSING_MODULE: Final = re.compile(
    r"^(?:ModuleNotFoundError|ImportError): No module named '([A-Za-z0-9_.]{1,100})'", re.MULTILINE
)


def render(
    result: ExecutionResult,
    *,
    max_chars: int = MAX_CHARS,
    images: Sequence[str] = (),
    packages: Sequence[str] = (),
    network: bool = False,
) -> str:
    """What a model is told about a step, in at most `max_chars` characters (500 or more).

    The verdict comes first and is never clipped away; then standard output, standard error and the changed files. Each
    line that begins with a bracketed word such as `[exit` is ours: one that the code printed is labelled as such.

    `images` names the pictures that go to the model beside the text; `packages` what the code can import, told when it
    tried something that is not there; `network` whether the code could have installed it.
    """
    if max_chars < MIN_CHARS:
        raise ValueError(f"max_chars must be {MIN_CHARS} or more, not {max_chars}")
    verdict = "\n".join(_verdict(result, packages, network, room=max_chars // 2))
    footer = _fit(_footer(result, images), max_chars // 4)
    room = max_chars - len(verdict) - len(footer) - len("\n[stdout]\n\n[stderr]\n\n")
    output = "\n".join(_output(result, room))
    return "\n".join(part for part in (verdict, output, footer) if part)


def _verdict(result: ExecutionResult, packages: Sequence[str], network: bool, *, room: int) -> Iterable[str]:
    if (fault := result.fault) is not None:
        kind = fault.type
        yield f"[fault {kind}] {one_line(fault.message, 200)}"
        if (advice := _ADVICE.get(kind)) is not None:
            yield f"[hint] {advice}"
    yield f"[exit {result.exit_code}{_signal(result.signal)}]"
    if (missing := _MISSING_MODULE.search(result.code_stderr[-4000:])) is not None and result.exit_code != 0:
        yield _missing_module(missing.group(1), packages, network, room - 360)


def _signal(number: int | None) -> str:
    if number is None:
        return ""
    try:
        return f", {signals.Signals(number).name}"
    except ValueError:
        return f", signal {number}"


def _missing_module(module: str, packages: Sequence[str], network: bool, room: int) -> str:
    hint = f"[hint] {module} is not installed in the sandbox"
    hint += "." if network else ", and the network is off: it cannot be installed."
    if packages and len(hint) < room:
        hint = one_line(f"{hint} Available: {', '.join(packages)}.", room)
    return hint


def _output(result: ExecutionResult, room: int) -> Iterable[str]:
    stdout, stderr = result.stdout, result.code_stderr
    if not stdout and not stderr:
        yield "[no output]"
        return
    # The shorter stream has at most half of the room, and leaves the rest of it to the longer.
    texts: dict[str, str] = {}
    for name, text in sorted((("stdout", stdout), ("stderr", stderr)), key=lambda stream: len(stream[1])):
        if text:
            texts[name] = clip_untrusted(text, room if texts or not (stdout and stderr) else room // 2, name).text
            room -= len(texts[name])
    for name in ("stdout", "stderr"):
        if name in texts:
            yield f"[{name}]"
            yield texts[name].removesuffix("\n")


def _footer(result: ExecutionResult, images: Sequence[str]) -> list[str]:
    lines = []
    for name, truncated, total in (
        ("stdout", result.truncated_stdout, result.stdout_total_bytes),
        ("stderr", result.truncated_stderr, result.stderr_total_bytes),
    ):
        if truncated:
            lines.append(f"[clipped: the code wrote {total:,} bytes to {name}; the sandbox kept the start and the end]")
    if result.files:
        lines.append("[files]")
        lines += [_change(change) for change in result.files[:MAX_FILES]]
        if len(result.files) > MAX_FILES:
            lines.append(f"and {len(result.files) - MAX_FILES:,} more")
    if images:
        lines.append(f"[images] {', '.join(one_line(name, 80) for name in images)}")
    lines += [f"[note] {one_line(note, 300)}" for note in result.runtime_notes[:5]]
    return lines


def _change(change: FileChange) -> str:
    name = one_line(change.path, 160)
    line = (
        f"{change.change} {name}" if change.old_path is None else f"renamed {one_line(change.old_path, 160)} to {name}"
    )
    if change.kind != "file":
        line += f" ({change.kind})"
    elif change.change != "deleted":
        line += f" ({change.size:,} bytes)"
    if change.host_risk is not None:
        line += f" (not to be trusted outside the sandbox: {one_line(change.host_risk, 100)})"
    return line


def _fit(lines: list[str], room: int) -> str:
    text = "\n".join(lines)
    if len(text) <= room:
        return text
    gone = "[clipped: more files changed than fit here]"
    kept: list[str] = []
    used = len(gone)
    for line in lines:
        used += len(line) + 1
        if used > room:
            break
        kept.append(line)
    return "\n".join([*kept, gone])
