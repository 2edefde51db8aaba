"""What a kernel can do, as generators of calls: the logic once, for the synchronous and the asynchronous face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepbox import _calls as calls
from stepbox import _convert, _shapes
from stepbox._calls import Operation, Pull, Unary
from stepbox._errors import EngineError, SandboxError, Violation, refused
from stepbox._operations import (
    GRACE_S,
    QUEUE_S,
    REQUEST_MOST,
    SHORT_S,
    OnOutput,
    SessionFacts,
    checked_source,
    complete,
)
from stepbox._pb import sandbox_pb2 as pb
from stepbox._results import ExecutionResult


@dataclass(frozen=True)
class KernelFacts:
    """What an operation has to know of a kernel."""

    id: str
    start: str | None


def start(session: SessionFacts, memory_mb: Any, env: Any, cwd: Any) -> Operation[KernelFacts]:
    """Starts a kernel."""
    options = pb.KernelOptions()
    violations: list[Violation] = []
    shapes: Mapping[str, tuple[Any, Any]] = {
        "memory_mb": (memory_mb, lambda value: options.memory_mb.CopyFrom(_shapes.cap(value))),
        "env": (env, lambda value: options.env.update(_shapes.text_map(value))),
        "cwd": (cwd, lambda value: setattr(options, "cwd", _shapes.path_bytes(value))),
    }
    for name, (value, put) in shapes.items():
        if value is not None:
            try:
                put(value)
            except _shapes.ShapeError as wrong:
                violations.append(Violation(name, str(wrong)))
    if violations:
        raise refused(violations)
    request = pb.StartKernelRequest(session_id=session.id, options=options)
    reply = yield Unary(calls.START_KERNEL, request, QUEUE_S + SHORT_S)
    return KernelFacts(id=reply.kernel_id, start=_convert.start(reply.start))


def run(
    session: SessionFacts, kernel_id: str, code: Any, timeout_s: Any, on_stdout: OnOutput, on_stderr: OnOutput
) -> Operation[ExecutionResult]:
    """Runs a cell, with its output as it comes when somebody listens."""
    request = _request(session, kernel_id, code, timeout_s, on_stdout, on_stderr)
    if on_stdout is not None or on_stderr is not None:
        return (yield from _streamed(session, request, on_stdout, on_stderr))
    seconds = request.timeout_s if request.HasField("timeout_s") else session.timeout_s
    # What is no sensible time is the engine's to refuse: the call itself must have one all the same.
    deadline = QUEUE_S + GRACE_S + (seconds if 0 < seconds < 1e9 else 0)
    reply = yield Unary(calls.RUN_CELL, request, deadline)
    return (yield from _whole(session, reply))


def _request(
    session: SessionFacts, kernel_id: str, code: Any, timeout_s: Any, on_stdout: Any, on_stderr: Any
) -> pb.RunCellRequest:
    request = pb.RunCellRequest(session_id=session.id, kernel_id=kernel_id)
    violations: list[Violation] = []
    shapes: Mapping[str, tuple[Any, Any]] = {
        "code": (code, lambda value: setattr(request, "code", checked_source(value))),
        "timeout_s": (timeout_s, lambda value: setattr(request, "timeout_s", _shapes.number(value))),
        "on_stdout": (on_stdout, _shapes.listener),
        "on_stderr": (on_stderr, _shapes.listener),
    }
    for name, (value, put) in shapes.items():
        if value is None and name != "code":
            continue
        try:
            put(value)
        except _shapes.ShapeError as wrong:
            violations.append(Violation(name, str(wrong)))
    size = request.ByteSize()
    if size > REQUEST_MOST:
        violations.append(
            Violation(
                "code", f"{size} bytes do not fit into a call of at most {REQUEST_MOST}; use write_file and import it"
            )
        )
    if violations:
        raise refused(violations)
    return request


def _streamed(
    session: SessionFacts, request: pb.RunCellRequest, on_stdout: OnOutput, on_stderr: OnOutput
) -> Operation[ExecutionResult]:
    listeners = {pb.STREAM_STDOUT: on_stdout, pb.STREAM_STDERR: on_stderr}
    replies: list[pb.RunCellResponse] = []

    def take(message: pb.RunCellStreamResponse) -> object:
        event = message.WhichOneof("event")
        if event == "output":
            listener = listeners.get(message.output.stream)
            if listener is not None and message.output.data:
                return listener(message.output.data)
        elif event == "result":
            replies.append(message.result)
        return None

    # No deadline: it would count the listeners' own time.
    yield Pull(calls.RUN_CELL_STREAM, request, take, None)
    if not replies:
        raise EngineError("the engine ended the stream of a cell without a result")
    return (yield from _whole(session, replies[-1]))


def _whole(session: SessionFacts, reply: pb.RunCellResponse) -> Operation[ExecutionResult]:
    return (yield from complete(session, reply.result))


def interrupt(session: SessionFacts, kernel_id: str) -> Operation[None]:
    """Interrupts the cell that runs."""
    request = pb.InterruptKernelRequest(session_id=session.id, kernel_id=kernel_id)
    yield Unary(calls.INTERRUPT_KERNEL, request, SHORT_S)


def restart(session: SessionFacts, kernel_id: str) -> Operation[str | None]:
    """Gives the kernel a fresh interpreter; tells how that came to be."""
    request = pb.RestartKernelRequest(session_id=session.id, kernel_id=kernel_id)
    reply = yield Unary(calls.RESTART_KERNEL, request, QUEUE_S + SHORT_S)
    return _convert.start(reply.start)


def close(session: SessionFacts, kernel_id: str) -> Operation[None]:
    """Ends the kernel; one that is gone already is no trouble."""
    request = pb.CloseKernelRequest(session_id=session.id, kernel_id=kernel_id)
    try:
        yield Unary(calls.CLOSE_KERNEL, request, SHORT_S)
    except SandboxError as error:
        if error.reason != "NO_KERNEL":
            raise
