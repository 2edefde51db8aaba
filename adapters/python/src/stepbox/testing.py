"""Sandboxes that run nothing and answer from a script: for the tests of programs and adapters that use stepbox."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from stepbox._errors import SandboxError
from stepbox._results import ExecutionResult, FileChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


class Call(NamedTuple):
    """What a scripted sandbox was asked to run."""

    code: str
    language: str


def result(stdout: str = "", stderr: str = "", **words: Any) -> ExecutionResult:
    """A result with the given output; the rest of its words by keyword."""
    out, err = stdout.encode(), stderr.encode()
    totals = {"stdout_total_bytes": len(out), "stderr_total_bytes": len(err)}
    return ExecutionResult(stdout_bytes=out, code_stderr_bytes=err, **{**totals, **words})


def created(path: str, size: int, change: str = "created") -> FileChange:
    """A regular file that a step created."""
    return FileChange(path=path, change=change, size=size, path_bytes=path.encode("utf-8", "surrogateescape"))


class _Script:
    def __init__(self, *answers: ExecutionResult | Exception, files: Mapping[str, bytes] | None = None) -> None:
        self.answers = deque(answers)
        self.files = dict(files or {})
        self.calls: list[Call] = []
        self.called = threading.Event()
        self.times_opened = 0
        self.times_closed = 0

    def _answer(self, code: str, language: str) -> ExecutionResult:
        self.calls.append(Call(code, language))
        self.called.set()
        answer = self.answers.popleft() if self.answers else result()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _content(self, path: str, max_bytes: int | None) -> bytes:
        data = self.files.get(path)
        if data is None:
            raise SandboxError(f"no such file: {path}", reason="not_found")
        if max_bytes is not None and len(data) > max_bytes:
            raise SandboxError(f"larger than {max_bytes} bytes: {path}", reason="too_large")
        return data


class ScriptedSandbox(_Script):
    """Answers each call with the next result, or raises the next exception; an empty script gives empty results."""

    def run_code(self, code: str, language: str = "python") -> ExecutionResult:
        """The next answer."""
        return self._answer(code, language)

    def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """One of the files given."""
        return self._content(path, max_bytes)

    def __enter__(self) -> Self:
        self.times_opened += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.times_closed += 1


class AsyncScriptedSandbox(_Script):
    """The same for `AsyncSandbox`. While `hangs` is true a call waits until it is cancelled."""

    hangs = False
    times_cancelled = 0

    async def run_code(self, code: str, language: str = "python") -> ExecutionResult:
        """The next answer."""
        if self.hangs:
            self.calls.append(Call(code, language))
            self.called.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.times_cancelled += 1
                raise
        return self._answer(code, language)

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """One of the files given."""
        return self._content(path, max_bytes)

    async def __aenter__(self) -> Self:
        self.times_opened += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.times_closed += 1
