"""Carrying calls out over gRPC: one channel for all threads and event loops of a process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from stepbox._calls import Call, Method, Pull, Push, Unary

_MAX_RECEIVE_BYTES = 16 * 1024 * 1024
OPTIONS = (
    # A unix socket has no host name; without this its path becomes the authority, which servers may refuse.
    ("grpc.default_authority", "localhost"),
    # A proxy set for the outside world is not for the engine.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    # A step is never run twice unseen.
    ("grpc.enable_retries", 0),
    # An engine that was restarted at the same address is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a pause, whatever its name: it bounds one attempt, and a loaded host takes more than an instant to answer.
    ("grpc.min_reconnect_backoff_ms", 20_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Metadata = tuple[tuple[str, str], ...]


def metadata_of(token: str | None) -> Metadata:
    """What goes with each call."""
    return (("authorization", f"Bearer {token}"),) if token else ()


_CLOSE_S = 1.0


class SyncTransport:
    """One channel for all threads of a process."""

    def __init__(self, target: str, token: str | None) -> None:
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._metadata = metadata_of(token)
        self._stubs: dict[tuple[str, str], Any] = {}

    def perform(self, call: Call) -> Any:
        """Carries a call out; raises `grpc.RpcError`."""
        if isinstance(call, Unary):
            return self._unary(call)
        if isinstance(call, Pull):
            stream = self.start_pull(call)
            with _cancelled_on_error(stream):
                for message in stream:
                    call.take(message)
            return None
        return self._push(call)

    def _unary(self, call: Unary) -> Any:
        try:
            return self._stub("unary_unary", call.method)(
                call.request, timeout=call.deadline_s, metadata=self._metadata
            )
        except grpc.RpcError:
            raise
        except BaseException as interrupt:
            # A future could be cancelled here, and costs a third of a millisecond on every call. This call is cancelled
            # when gRPC's frame lets go of it, which a kept traceback (a notebook keeps the last) would put off.
            # One that is only being begun is lost to gRPC, and runs to its deadline.
            traceback.clear_frames(interrupt.__traceback__)
            raise

    def _push(self, call: Push) -> Any:
        started = self.start(call)
        with _cancelled_on_error(started.future):
            return started.outcome()

    def start(self, call: Unary | Push) -> _Started:
        """Begins a call; what it sends is made by a thread of gRPC's own."""
        if isinstance(call, Unary):
            stub = self._stub("unary_unary", call.method)
            return _Started(stub.future(call.request, timeout=call.deadline_s, metadata=self._metadata), None)
        source = _Source(call.requests)
        stub = self._stub("stream_unary", call.method)
        future = stub.future(source, timeout=call.deadline_s, metadata=self._metadata)
        source.bind(future)
        return _Started(future, source)

    def start_pull(self, call: Pull) -> Any:
        """Begins a call; gives its replies as they come."""
        stub = self._stub("unary_stream", call.method)
        return _begun(lambda: stub(call.request, timeout=call.deadline_s, metadata=self._metadata))

    def _stub(self, kind: str, method: Method[Any, Any]) -> Any:
        key = (kind, method.name)
        stub = self._stubs.get(key)
        if stub is None:
            stub = self._stubs[key] = _stub(self._channel, kind, method)
        return stub

    def close(self) -> None:
        """Closes the channel; calls that run are cancelled."""
        # gRPC waits without end for a call that an interrupt met while it was being begun.
        closing = threading.Thread(target=self._channel.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class AsyncTransport:
    """The same channel for any event loop: a call is begun, and its loop is told when it is done.

    Not `grpc.aio`: the one poller that it has for a process does not survive a fork. A child of a process that had used
    it crashes at its first call, and even synchronous calls fail there.
    """

    def __init__(self, sync: SyncTransport) -> None:
        self._sync = sync

    async def perform(self, call: Call) -> Any:
        """Carries a call out; raises `grpc.RpcError`. Cancelling the task cancels the call."""
        if isinstance(call, Pull):
            return await self._pull(call)
        done = _Done()
        started = self._sync.start(call)
        started.future.add_done_callback(lambda _: done.settle(None))
        with _cancelled_on_error(started.future):
            await done.future
        return started.outcome()

    async def _pull(self, call: Pull) -> None:
        done = _Done()
        stream = self._sync.start_pull(call)

        def read() -> None:
            try:
                for message in stream:
                    # Waited for: a slow listener slows the engine down, and nothing piles up in between.
                    asyncio.run_coroutine_threadsafe(_taken(call, message), done.loop).result()
            except Exception as error:
                done.settle(error)
            else:
                done.settle(None)

        # A thread of its own: streams that stand still would keep the loop's from all others. A daemon, because a
        # program that ends in the midst of a stream does not wait for it.
        threading.Thread(target=read, name="stepbox-stream", daemon=True).start()
        with _cancelled_on_error(stream):
            await done.future


class _Done:
    """The end of a call, told from another thread to the loop that waits for it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def settle(self, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            self.loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


async def _taken(call: Pull, message: Message) -> None:
    outcome = call.take(message)
    if inspect.isawaitable(outcome):
        await outcome


def _begun(begin: Callable[[], Any]) -> Any:
    """Begins a call where no signal handler runs: gRPC loses one that an interrupt meets while it is being begun."""
    if threading.current_thread() is not threading.main_thread():
        return begin()
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(begin())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result()
    except BaseException:
        outcome.add_done_callback(lambda done: done.exception() or done.result().cancel())
        raise


def _stub(channel: Any, kind: str, method: Method[Any, Any]) -> Any:
    return getattr(channel, kind)(
        method.path, request_serializer=method.request.SerializeToString, response_deserializer=method.reply.FromString
    )


@contextlib.contextmanager
def _cancelled_on_error(call: Any) -> Iterator[None]:
    """Whatever ends the waiting ends the call: the engine then stops the step."""
    try:
        yield
    except BaseException:
        call.cancel()
        raise


class _Source:
    """Requests for a thread of gRPC's own, which would log what they raise, and half-close a file cut short."""

    def __init__(self, requests: Iterator[Message]) -> None:
        self._requests = requests
        self._bound = threading.Event()
        self._call: Any = None
        self.error: Exception | None = None

    def bind(self, call: Any) -> None:
        self._call = call
        self._bound.set()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return next(self._requests)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            self._bound.wait()
            self._call.cancel()
            raise StopIteration from None


class _Started:
    """A call on its way."""

    def __init__(self, future: Any, source: _Source | None) -> None:
        self.future = future
        self._source = source

    def outcome(self) -> Any:
        """The reply, or what went wrong first: the making of the requests or the call."""
        try:
            return self.future.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._source is not None and self._source.error is not None:
                raise self._source.error from None
            raise
