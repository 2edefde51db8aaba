"""Carrying calls out over gRPC: one synchronous channel, and one asynchronous channel a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import traceback
import weakref
from collections.abc import Iterator
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
            stream = self._stub("unary_stream", call.method)(
                call.request, timeout=call.deadline_s, metadata=self._metadata
            )
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
        pushing = self.start_push(call)
        with _cancelled_on_error(pushing.future):
            return pushing.outcome()

    def start_push(self, call: Push) -> _Pushing:
        """Begins to send; the requests are made by a thread of gRPC's own."""
        source = _Source(call.requests)
        future = self._stub("stream_unary", call.method).future(
            source, timeout=call.deadline_s, metadata=self._metadata
        )
        source.bind(future)
        return _Pushing(future, source)

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
                    outcome = call.take(message)
                    if inspect.isawaitable(outcome):
                        await outcome
            return None
        return await self._push(call)

    async def _push(self, call: Push) -> Any:
        # By the synchronous channel. An asynchronous stream that the engine answers before it took all of it loses the
        # answer for an error of its own; and a file of the host is read without holding up the loop.
        loop = asyncio.get_running_loop()
        settled = asyncio.Event()

        def settle(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(settled.set)

        pushing = self._sync.start_push(call)
        pushing.future.add_done_callback(settle)
        with _cancelled_on_error(pushing.future):
            await settled.wait()
        return pushing.outcome()

    def _stub(self, kind: str, method: Method[Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None:
            channel = self._channels[loop] = grpc.aio.insecure_channel(self._target, options=OPTIONS)
        return _stub(channel, kind, method)


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


class _Pushing:
    """A stream of requests on its way."""

    def __init__(self, future: Any, source: _Source) -> None:
        self.future = future
        self._source = source

    def outcome(self) -> Any:
        """The reply, or what went wrong first: the making of the requests or the call."""
        try:
            return self.future.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._source.error is not None:
                raise self._source.error from None
            raise
