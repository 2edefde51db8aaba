"""Carrying calls out over gRPC: one synchronous channel, and one asynchronous channel a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
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
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Metadata = tuple[tuple[str, str], ...]


def metadata_of(token: str | None) -> Metadata:
    """What goes with each call."""
    return (("authorization", f"Bearer {token}"),) if token else ()


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
        return self._stub("unary_stream", call.method)(call.request, timeout=call.deadline_s, metadata=self._metadata)

    def _stub(self, kind: str, method: Method[Any, Any]) -> Any:
        key = (kind, method.name)
        stub = self._stubs.get(key)
        if stub is None:
            stub = self._stubs[key] = _stub(self._channel, kind, method)
        return stub

    def close(self) -> None:
        """Closes the channel; calls that run are cancelled."""
        self._channel.close()


class AsyncTransport:
    """A channel for each event loop that calls: a channel belongs to the loop that made it."""

    def __init__(self, target: str, token: str | None, sync: SyncTransport) -> None:
        self._target = target
        self._sync = sync
        self._metadata = metadata_of(token)
        self._channels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, grpc.aio.Channel] = (
            weakref.WeakKeyDictionary()
        )

    async def perform(self, call: Call) -> Any:
        """Carries a call out; raises `grpc.RpcError`. Cancelling the task cancels the call."""
        if not _asynchronous_grpc_is_sound():
            return await (self._pull_in_thread(call) if isinstance(call, Pull) else self._by_future(call))
        if isinstance(call, Unary):
            return await self._stub("unary_unary", call.method)(
                call.request, timeout=call.deadline_s, metadata=self._metadata
            )
        if isinstance(call, Pull):
            stream = self._stub("unary_stream", call.method)(
                call.request, timeout=call.deadline_s, metadata=self._metadata
            )
            with _cancelled_on_error(stream):
                async for message in stream:
                    await _taken(call, message)
            return None
        # An asynchronous stream that the engine answers before it took all of it loses the answer for an error of its
        # own; and so a file of the host is read without holding up the loop.
        return await self._by_future(call)

    async def _by_future(self, call: Unary | Push) -> Any:
        loop = asyncio.get_running_loop()
        settled = asyncio.Event()

        def settle(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(settled.set)

        started = self._sync.start(call)
        started.future.add_done_callback(settle)
        with _cancelled_on_error(started.future):
            await settled.wait()
        return started.outcome()

    async def _pull_in_thread(self, call: Pull) -> None:
        loop = asyncio.get_running_loop()
        stream = self._sync.start_pull(call)

        def read() -> None:
            for message in stream:
                # Waited for: a slow listener slows the engine down, and nothing piles up in between.
                asyncio.run_coroutine_threadsafe(_taken(call, message), loop).result()

        # Not the loop's own threads: streams that stand still would keep them from all others.
        own = ThreadPoolExecutor(1, "stepbox-stream")
        try:
            with _cancelled_on_error(stream):
                await loop.run_in_executor(own, read)
        finally:
            own.shutdown(wait=False)

    def _stub(self, kind: str, method: Method[Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None:
            channel = self._channels[loop] = grpc.aio.insecure_channel(self._target, options=OPTIONS)
        return _stub(channel, kind, method)


async def _taken(call: Pull, message: Message) -> None:
    outcome = call.take(message)
    if inspect.isawaitable(outcome):
        await outcome


# Asynchronous gRPC has one poller for a process, which does not survive a fork: a child of a process that had used it
# would crash at its first call.
_poller_pid: int | None = None


def _asynchronous_grpc_is_sound() -> bool:
    global _poller_pid
    if _poller_pid is None:
        _poller_pid = os.getpid()
    return _poller_pid == os.getpid()


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
