"""stepbox: run code written by a language model in Linux sandboxes.

    from stepbox import Sandbox

    with Sandbox(memory_mb=256) as sandbox:
        result = sandbox.run_code("print(sum(range(100)))")
        print(result.stdout, result.fault, result.files)

A *sandbox object* is a session: a workspace, limits and an image that outlive steps. Each call is a *step*: a fresh
sandbox on that workspace. Files persist, processes do not, but for a `kernel()` that is asked for. What happens to the
code is returned as a result; an error is raised only when the code did not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepbox._errors import EngineError, MountRefused, SandboxError, SessionLost, StepboxError
from stepbox._results import (
    Edit,
    ExecutionResult,
    FileChange,
    FileInfo,
    FileStat,
    GrepMatch,
    Limit,
    RichResult,
    SandboxFault,
    SessionInfo,
    Usage,
)
from stepbox._version import __version__ as __version__

if TYPE_CHECKING:
    from stepbox._async_sandbox import AsyncSandbox, sessions_async
    from stepbox._kernel import AsyncKernel, Kernel
    from stepbox._sandbox import Sandbox, run_code, sessions

__all__ = [
    "AsyncKernel",
    "AsyncSandbox",
    "Edit",
    "EngineError",
    "ExecutionResult",
    "FileChange",
    "FileInfo",
    "FileStat",
    "GrepMatch",
    "Kernel",
    "Limit",
    "MountRefused",
    "RichResult",
    "Sandbox",
    "SandboxError",
    "SandboxFault",
    "SessionInfo",
    "SessionLost",
    "StepboxError",
    "Usage",
    "run_code",
    "sessions",
    "sessions_async",
]

# gRPC takes longer to import than all the rest together: it waits for the first use of a name that needs it.
_LATE = {
    "AsyncKernel": "_kernel",
    "AsyncSandbox": "_async_sandbox",
    "Kernel": "_kernel",
    "Sandbox": "_sandbox",
    "run_code": "_sandbox",
    "sessions": "_sandbox",
    "sessions_async": "_async_sandbox",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
