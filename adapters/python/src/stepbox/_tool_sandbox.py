"""The sandbox behind a tool: made at the first call, shared by every thread and event loop, or lent by the caller."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from stepbox._errors import EngineError, SandboxError, SessionLost
from stepbox._loop_thread import LoopThread
from stepbox.text.untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from typing_extensions import Self

    from stepbox._results import ExecutionResult

T = TypeVar("T")


class BlockingCalls(Protocol):
    """What the tool needs of a `Sandbox`."""

    def run_code(self, code: str, language: str = ...) -> ExecutionResult: ...

    def read_file(self, path: str, *, max_bytes: int | None = ...) -> bytes: ...


class AsyncCalls(Protocol):
    """What the tool needs of an `AsyncSandbox`."""

    async def run_code(self, code: str, language: str = ...) -> ExecutionResult: ...

    async def read_file(self, path: str, *, max_bytes: int | None = ...) -> bytes: ...


class Openable(AsyncCalls, Protocol):
    """What the tool needs of an `AsyncSandbox` that it opens itself."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: None, error: None, trace: None, /) -> object: ...


#: A sandbox that the caller lends, or a function that makes one.
SandboxSource: TypeAlias = "BlockingCalls | AsyncCalls | Callable[[], Openable]"
Step: TypeAlias = "Callable[[AsyncCalls], Coroutine[Any, Any, T]]"


class Refusal(Exception):
    """Nothing ran, for a reason that a model can act on."""


class Owner(Protocol):
    """Who holds the sandbox, and brings steps to it."""

    def run(self, step: Step[T]) -> T: ...

    async def arun(self, step: Step[T]) -> T: ...

    def close(self) -> None: ...


def owner_of(sandbox: SandboxSource | None, options: Mapping[str, Any]) -> Owner:
    """The owner that fits what was given: nothing but options, a function that makes a sandbox, or a sandbox."""
    if sandbox is None:
        from stepbox import AsyncSandbox, Sandbox

        # All mistakes are told now, and nothing is made; kept, so that the engine stays for the first call.
        checked = Sandbox(**options)
        return OwnSandbox(lambda: AsyncSandbox(**options), checked.close)
    if isinstance(sandbox, type) or not hasattr(sandbox, "run_code"):
        if callable(sandbox):
            return OwnSandbox(sandbox)
    elif inspect.iscoroutinefunction(sandbox.run_code):
        return LentAsyncSandbox(cast("AsyncCalls", sandbox))
    else:
        return LentSandbox(cast("BlockingCalls", sandbox))
    raise TypeError(f"sandbox must be a Sandbox, an AsyncSandbox or a function that makes one, not {sandbox!r}")


class OwnSandbox:
    """One `AsyncSandbox` on a loop of its own, so that sync and async callers meet the same workspace."""

    def __init__(self, make: Callable[[], Openable], release: Callable[[], object] = lambda: None) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._closed = False
        self._release = weakref.finalize(self, _in_process(os.getpid(), release))

    def run(self, step: Step[T]) -> T:
        """Blocks until the step has ended."""
        held = self._hold()
        return held.loop.run(held.call(step))

    async def arun(self, step: Step[T]) -> T:
        """Waits for the step on any event loop."""
        held = self._hold()
        return await held.loop.arun(held.call(step))

    def close(self) -> None:
        """Closes the sandbox and ends its loop."""
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if held is not None:
            held.finalizer()
        self._release()

    def _hold(self) -> _Held:
        with self._lock:
            if self._closed:
                raise SandboxError("the tool is closed")
            # A forked child has neither the thread nor its parent's session: it has a sandbox of its own.
            if self._held is None or self._held.pid != os.getpid():
                held = _Held(self._make)
                held.finalizer = weakref.finalize(self, held.close)
                self._held = held
            return self._held


def _in_process(pid: int, release: Callable[[], object]) -> Callable[[], object]:
    # A forked child has a copy of the finalizer, and no business with what its parent holds.
    return lambda: release() if os.getpid() == pid else None


class _Held:
    finalizer: Callable[[], object]

    def __init__(self, make: Callable[[], Openable]) -> None:
        self.pid = os.getpid()
        self.loop = LoopThread("stepbox-tool")
        self._make = make
        self._opening = asyncio.Lock()
        self._sandbox: Openable | None = None

    async def call(self, step: Step[T]) -> T:
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await self._make().__aenter__()
            sandbox = self._sandbox
        try:
            return await answered(step(sandbox))
        except SessionLost as lost:
            # The next call has a new one, and the model is told so: nothing is replaced in silence.
            if self._sandbox is sandbox:
                self._sandbox = None
            raise Refusal(_lost(lost)) from lost

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        if not self.loop.is_current:
            self.loop.run(self._close(), timeout_s=30)
        self.loop.stop()

    async def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.__aexit__(None, None, None)


class LentSandbox:
    """The caller's `Sandbox`: calls go straight to it, those of an event loop through a thread."""

    def __init__(self, sandbox: BlockingCalls) -> None:
        self._sandbox = _Awaitable(sandbox)

    def run(self, step: Step[T]) -> T:
        """Runs the step on the caller's thread."""
        try:
            answered(step(self._sandbox)).send(None)
        except StopIteration as stop:
            value: T = stop.value
            return value
        raise AssertionError("a blocking sandbox has nothing to wait for")

    async def arun(self, step: Step[T]) -> T:
        """Runs the step on a worker thread; a blocking call cannot be cancelled, so its end is waited for."""
        return await asyncio.to_thread(self.run, step)

    def close(self) -> None:
        """Nothing: the sandbox is the caller's."""


class LentAsyncSandbox:
    """The caller's `AsyncSandbox`, which lives on the caller's event loop."""

    def __init__(self, sandbox: AsyncCalls) -> None:
        self._sandbox = sandbox

    def run(self, step: Step[T]) -> T:  # noqa: ARG002 - an `Owner` takes one
        """Refused: the sandbox's event loop cannot be waited for from here."""
        raise SandboxError("an AsyncSandbox was given: call the tool asynchronously, or give a Sandbox")

    async def arun(self, step: Step[T]) -> T:
        """Awaits the step."""
        return await answered(step(self._sandbox))

    def close(self) -> None:
        """Nothing: the sandbox is the caller's."""


class _Awaitable:
    def __init__(self, sandbox: BlockingCalls) -> None:
        self._sandbox = sandbox

    async def run_code(self, code: str, language: str = "python") -> ExecutionResult:
        return self._sandbox.run_code(code, language)

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        return self._sandbox.read_file(path, max_bytes=max_bytes)


async def answered(step: Coroutine[Any, Any, T]) -> T:
    """The step's outcome; an error that a model can do something about becomes a `Refusal`."""
    try:
        return await step
    except SandboxError as error:
        raise Refusal(f"[sandbox] Nothing ran: {one_line(str(error), 1000)}") from error
    except EngineError as error:
        if error.retry_after_s is None:
            raise
        wait = f" Try again in {error.retry_after_s:g} s."
        raise Refusal(f"[sandbox] Nothing ran, the machine is busy: {one_line(str(error), 1000)}.{wait}") from error


def _lost(lost: SessionLost) -> str:
    files = {True: "Its files are still there.", False: "Its files are gone.", None: "Its files may be gone."}
    what = files[lost.workspace_survived]
    return f"[sandbox] The sandbox was lost, and how the code ended is not known. {what} The next call has a new one."
