"""An event loop on a thread of its own, for one asynchronous client that many threads and many loops call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from stepbox._errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_CLOSED = "the tool was closed before the code had ended"

# How long a cancelled caller waits for its step to be gone. The engine kills it at once; this bounds a broken engine.
_CANCEL_S = 10.0


class LoopThread:
    """Runs coroutines for callers that are elsewhere: blocking with `run`, from any event loop with `arun`.

    A caller that is cancelled or interrupted cancels its coroutine, and goes on only when that one has ended. Whoever
    still waits when the loop is stopped gets a `SandboxError`.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Between a start and a stop: what was queued before the stop becomes a task, and what comes later is refused.
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Blocks until the coroutine ends. Must not be called on the loop's own thread."""
        outcome, cancel = self._start(coroutine)
        try:
            return outcome.result(timeout_s)
        except BaseException:
            if not outcome.done():
                cancel()
                concurrent.futures.wait([outcome], timeout=_CANCEL_S)
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits, without blocking the caller's loop, until the coroutine ends."""
        outcome, cancel = self._start(coroutine)
        waiter = asyncio.wrap_future(outcome)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if not waiter.done():
                cancel()
                await asyncio.wait({waiter}, timeout=_CANCEL_S)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # an exception that nobody asks for would be logged
            raise

    def stop(self) -> None:
        """Ends the loop and its thread; does nothing the second time."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CANCEL_S)

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop's own thread."""
        return threading.current_thread() is self._thread

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> tuple[concurrent.futures.Future[T], Callable[[], None]]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda task: _hand_over(task, outcome))

        def cancel() -> None:
            # `start` was queued before, so the task is there by then.
            with self._lock:
                if not self._stopping:
                    self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())

        with self._lock:
            if self._stopping:
                coroutine.close()
                raise SandboxError(_CLOSED)
            self._loop.call_soon_threadsafe(start)
        return outcome, cancel

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


def _hand_over(task: asyncio.Task[T], outcome: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(SandboxError(_CLOSED))
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
