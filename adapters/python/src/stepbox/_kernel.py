"""Both faces of a kernel: an interpreter that stays, and runs one cell after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepbox import _cells as cells
from stepbox._errors import SandboxError, SessionLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from stepbox._cells import KernelFacts
    from stepbox._results import ExecutionResult
    from stepbox._session import Session


class _Kernel:
    """What both have in common."""

    def __init__(self, session: Session, facts: KernelFacts) -> None:
        self._session = session
        self._facts = facts
        self._closed = False

    @property
    def id(self) -> str:
        """The kernel's id; a restart keeps it."""
        return self._facts.id

    @property
    def start(self) -> str | None:
        """How its first interpreter came to be: `cold` or `forked`."""
        return self._facts.start

    def _require(self) -> Session:
        if self._closed:
            raise SandboxError("kernel ended: it was closed", reason="KERNEL_ENDED")
        return self._session

    def __repr__(self) -> str:
        return f"<stepbox.{type(self).__name__} {self.id}{' closed' if self._closed else ''}>"


class Kernel(_Kernel):
    """A Python interpreter in a sandbox of its own that runs cell after cell; made by `Sandbox.kernel()`.

        with sandbox.kernel() as kernel:
            kernel.run_code("x = 40")
            print(kernel.run_code("x + 2").results[0].text)

    What a cell leaves in memory is there for the next one. An exception ends a cell, not the kernel; a fault ends
    both, and each call after that raises `SandboxError("kernel ended: ...")` until `restart()`. The object is
    thread-safe: cells of several threads wait for each other in order, and `interrupt()` does not wait.
    """

    def run_code(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> ExecutionResult:
        """Runs a cell. The value of a last expression, unless it is None or a `;` follows, is in `results`.

        Args:
            code: Python, with `await` allowed at the top.
            timeout_s: Seconds from the cell's turn on; None is the session's. A cell that takes longer ends the kernel.
            on_stdout: Called with each piece of standard output as it comes.
            on_stderr: The same of standard error.

        Raises:
            SandboxError: The kernel has ended, or an argument is wrong. The code did not run.
            EngineError: The engine could not serve the call.
            SessionLost: The session is gone.
        """
        session = self._require()
        return session.engine.drive(cells.run(session, self.id, code, timeout_s, on_stdout, on_stderr), session)

    def interrupt(self) -> None:
        """Raises `KeyboardInterrupt` in the cell that runs. Where none does, nothing happens."""
        session = self._require()
        session.engine.drive(cells.interrupt(session, self.id), session)

    def restart(self) -> None:
        """Begins anew with a fresh interpreter. A cell that runs is cancelled."""
        session = self._require()
        session.engine.drive(cells.restart(session, self.id), session)

    def close(self) -> None:
        """Ends the kernel. Closing the sandbox does so too."""
        if not self._closed:
            self._closed = True
            try:
                self._session.engine.drive(cells.close(self._session, self.id), self._session)
            except SessionLost:
                pass  # what was to be closed is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncKernel(_Kernel):
    """`Kernel` for asyncio; made by `await AsyncSandbox.kernel()`.

    Cancelling the task that awaits a cell cancels the cell, and with it the kernel: to stop a cell and keep what is in
    memory there is `interrupt()`.
    """

    async def run_code(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> ExecutionResult:
        """Runs a cell, as `Kernel.run_code` does."""
        session = self._require()
        operation = cells.run(session, self.id, code, timeout_s, on_stdout, on_stderr)
        return await session.engine.adrive(operation, session)

    async def interrupt(self) -> None:
        """Raises `KeyboardInterrupt` in the cell that runs. Where none does, nothing happens."""
        session = self._require()
        await session.engine.adrive(cells.interrupt(session, self.id), session)

    async def restart(self) -> None:
        """Begins anew with a fresh interpreter. A cell that runs is cancelled."""
        session = self._require()
        await session.engine.adrive(cells.restart(session, self.id), session)

    async def close(self) -> None:
        """Ends the kernel. Closing the sandbox does so too."""
        if not self._closed:
            self._closed = True
            try:
                await self._session.engine.adrive(cells.close(self._session, self.id), self._session)
            except SessionLost:
                pass  # what was to be closed is gone

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
