"""What is raised: the code did not run, or a file call failed. What happens *to* the code is returned, never raised."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepbox._results import ExecutionResult, SandboxFault


class Violation(NamedTuple):
    """One mistake in a request: the option's name, and what is wrong with it and how it is spelt right."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class StepboxError(Exception):
    """The root of everything that stepbox raises."""


class SandboxError(StepboxError):
    """A request was refused, or could not be carried out: bad options, a closed sandbox, a failed file call.

    Attributes:
        violations: All mistakes found in the request, each with a `field` and a `message`.
        reason: A word to branch on: of a file call `not_found`, `is_directory`, `too_large` and so on; or None.
        result: The result that `ExecutionResult.check()` refused, or None.
        fault: What the sandbox did to the interpreter of a kernel that could not start, or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        violations: Iterable[Violation] = (),
        reason: str | None = None,
        result: ExecutionResult | None = None,
        fault: SandboxFault | None = None,
    ) -> None:
        super().__init__(message)
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.reason = reason
        self.result = result
        self.fault = fault


class MountRefused(SandboxError):
    """A mount or the workspace names a place that no sandbox may have. Nothing was made."""


class EngineError(StepboxError):
    """The engine could not be found, started or reached, or could not serve the call now.

    Attributes:
        code: The name of the gRPC status (`UNAVAILABLE`, …), or None when no call was made.
        retry_after_s: When the engine says that trying again makes sense, the seconds to wait; else None.
    """

    def __init__(self, message: str = "", *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class SessionLost(StepboxError):
    """The session is gone: its engine died, it expired, or it belongs to the process that this one was forked from.

    It never silently becomes a new one; `open()` makes a new one when that is wanted.

    Attributes:
        workspace_survived: True: the files are still there (the workspace was given). False: they went with it.
            None: not known.
    """

    def __init__(self, message: str = "", *, workspace_survived: bool | None = None) -> None:
        super().__init__(message)
        self.workspace_survived = workspace_survived


# File calls raise a SandboxError that is also the builtin of the same meaning, so that both `except` idioms work.


class _FileError(SandboxError, OSError):
    """A file call failed."""

    _errno: int | None = None

    def __init__(self, message: str = "", *, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.errno = self._errno


class _NotFound(_FileError, FileNotFoundError):
    _errno = errno.ENOENT


class _IsDirectory(_FileError, IsADirectoryError):
    _errno = errno.EISDIR


class _NotADirectory(_FileError, NotADirectoryError):
    _errno = errno.ENOTDIR


class _PermissionDenied(_FileError, PermissionError):
    _errno = errno.EACCES


class _Exists(_FileError, FileExistsError):
    _errno = errno.EEXIST


class _TooLarge(_FileError):
    _errno = errno.EFBIG


class _NotAFile(_FileError):
    _errno = errno.EINVAL


class _NoSpace(_FileError):
    _errno = errno.ENOSPC


class _Changed(_FileError):
    _errno = errno.EBUSY


class _OtherFileError(_FileError):
    _errno = errno.EIO


class _InvalidPath(SandboxError, ValueError):
    pass


class _NoMatch(SandboxError, ValueError):
    pass


class SeveralMatches(SandboxError, ValueError):
    """The attribute `count` says how many there are."""

    count: int | None = None


FILE_ERRORS: dict[str, type[SandboxError]] = {
    "not_found": _NotFound,
    "is_directory": _IsDirectory,
    "not_a_directory": _NotADirectory,
    "permission_denied": _PermissionDenied,
    "exists": _Exists,
    "too_large": _TooLarge,
    "not_a_file": _NotAFile,
    "no_space": _NoSpace,
    "changed": _Changed,
    "no_match": _NoMatch,
    "several_matches": SeveralMatches,
    "other": _OtherFileError,
    "invalid_path": _InvalidPath,
}


def refused(violations: Iterable[Violation]) -> SandboxError:
    """One error for all mistakes of a request."""
    found = tuple(violations)
    return SandboxError("; ".join(str(violation) for violation in found), violations=found)
