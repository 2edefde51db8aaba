"""What a failed call raises: the one table from a status to a class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from stepbox._errors import (
    FILE_ERRORS,
    EngineError,
    MountRefused,
    SandboxError,
    SessionLost,
    SeveralMatches,
    StepboxError,
    Violation,
)
from stepbox._pb import status_pb2
from stepbox._results import SandboxFault

_DETAILS_KEY = "grpc-status-details-bin"
# The words of an ErrorInfo that decide the class where the code alone does not.
_MOUNT_REFUSED = "MOUNT_REFUSED"
_NO_STEP = "NO_STEP"
_NO_KERNEL = "NO_KERNEL"

# The request was at fault, or the state that it met; the engine is well.
_SANDBOX_CODES = frozenset({"INVALID_ARGUMENT", "FAILED_PRECONDITION", "ALREADY_EXISTS", "OUT_OF_RANGE", "ABORTED"})
_HINTS = {
    "DEADLINE_EXCEEDED": "the engine did not answer in time",
    "UNAUTHENTICATED": "the engine refused the token",
}


class FailedCall(Protocol):
    """What both of gRPC's error classes offer."""

    def code(self) -> Any: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def error_of(failed: FailedCall) -> StepboxError:
    """The error that a failed call raises."""
    return classify(failed.code().name, failed.details() or "", _details(failed.trailing_metadata()))


def classify(code: str, text: str, status: bytes) -> StepboxError:
    """The same, from the parts: a code's name, the text, and the serialized details."""
    bad_request, info, retry = _decode(status)
    violations = tuple(Violation(item.field, item.description) for item in bad_request.field_violations)
    message = text or "; ".join(map(str, violations)) or code
    mend = info.metadata.get("mend", "")
    if mend and mend not in message:
        message = f"{message}; {mend}"
    reason = info.reason or None

    if reason in FILE_ERRORS:
        error = FILE_ERRORS[reason](message, reason=reason)
        if isinstance(error, SeveralMatches):
            error.count = int(info.metadata.get("count", 0)) or None
        return error
    if code in _SANDBOX_CODES or reason == _NO_KERNEL:
        kind = MountRefused if reason == _MOUNT_REFUSED else SandboxError
        return kind(message, violations=violations, reason=reason, fault=_fault(info))
    if code == "NOT_FOUND" and reason != _NO_STEP:
        return SessionLost(message)
    hint = _HINTS.get(code)
    if hint is not None:
        message = f"{hint}: {message}"
    delay = retry.retry_delay
    retry_after_s = delay.seconds + delay.nanos / 1e9 if retry.HasField("retry_delay") else None
    return EngineError(message, code=code, retry_after_s=retry_after_s)


def _fault(info: status_pb2.ErrorInfo) -> SandboxFault | None:
    kind = info.metadata.get("fault")
    return SandboxFault(type=kind, message=info.metadata.get("fault_message", "")) if kind else None


def _details(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes:
    for key, value in metadata or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return value
    return b""


def _decode(status: bytes) -> tuple[status_pb2.BadRequest, status_pb2.ErrorInfo, status_pb2.RetryInfo]:
    mistakes, info, retry = status_pb2.BadRequest(), status_pb2.ErrorInfo(), status_pb2.RetryInfo()
    known: dict[str, Message] = {
        "google.rpc.BadRequest": mistakes,
        "google.rpc.ErrorInfo": info,
        "google.rpc.RetryInfo": retry,
    }
    try:
        for detail in status_pb2.Status.FromString(status).details:
            message = known.get(detail.type_url.rpartition("/")[2])
            if message is not None:
                message.MergeFromString(detail.value)
    except DecodeError:
        pass  # the code and the text still tell what happened
    return mistakes, info, retry
