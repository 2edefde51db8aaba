"""Messages of the wire to the words of a result. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from stepbox._pb import sandbox_pb2 as pb
from stepbox._results import ExecutionResult, FileChange, FileStat, Limit, RichResult, SandboxFault, SessionInfo, Usage
from stepbox._shapes import decoded_path


# The caches of the processor are the code's when an answer comes: what is the same each time is not worked out again.
@lru_cache(maxsize=256)
def _word(enum: Any, value: int, prefix: str) -> str:
    """`FAULT_TYPE_OOM` to `oom`. A value that a newer engine added is told as its number, not hidden."""
    try:
        return str(enum.Name(value)).removeprefix(prefix).lower()
    except ValueError:
        return f"unknown_{value}"


def result(message: pb.StepResult, stdout: bytes, stderr: bytes, files: Iterable[pb.FileChange]) -> ExecutionResult:
    """A step's result; output and files are given apart because the reply may have carried only part of them."""
    return ExecutionResult(
        stdout_bytes=stdout,
        code_stderr_bytes=stderr,
        exit_code=message.exit_code,
        signal=message.signal if message.HasField("signal") else None,
        duration_ms=message.duration_us / 1000 if message.duration_us else float(message.duration_ms),
        fault=fault(message.fault) if message.HasField("fault") else None,
        files=[file_change(item) for item in files],
        runtime_notes=list(message.runtime_notes),
        truncated_stdout=message.stdout.truncated,
        truncated_stderr=message.stderr.truncated,
        results=[rich_result(item) for item in message.results],
        results_truncated=message.results_truncated,
        usage=usage(message.usage),
        limits=limits(message.limits),
        isolation=list(message.isolation),
        image_digest=message.image_digest,
        start=start(message.start),
        step_id=message.step_id,
        files_shared=message.files_shared,
        files_truncated=message.files_truncated,
        files_tracked=message.files_tracked,
        stdout_total_bytes=message.stdout.total_bytes,
        stderr_total_bytes=message.stderr.total_bytes,
        stdout_head_bytes=message.stdout.head_bytes,
        stderr_head_bytes=message.stderr.head_bytes,
    )


def session_info(message: pb.Session) -> SessionInfo:
    """What a list tells of a session."""
    return SessionInfo(
        id=message.session_id,
        name=message.name or None,
        labels=dict(message.labels),
        resident=message.resident,
        workspace=os.fsdecode(message.workspace) or None,
        steps_running=message.steps_running_count,
        steps_done=message.steps_done_count,
        created_s=message.created_unix_ms / 1000,
        ttl_s=message.ttl_ms / 1000 if message.HasField("ttl_ms") else None,
        idle_s=message.idle_ms / 1000 if message.HasField("idle_ms") else None,
    )


def start(value: int) -> str | None:
    """How a process came to be, or None where nothing was started."""
    return None if value == pb.START_UNSPECIFIED else _word(pb.Start, value, "START_")


def rich_result(message: pb.RichResult) -> RichResult:
    """What a cell shows beside its output."""
    return RichResult(data=dict(message.data), main=message.main)


def fault(message: pb.Fault) -> SandboxFault:
    """What the sandbox did to the code."""
    return SandboxFault(
        type=_word(pb.FaultType, message.type, "FAULT_TYPE_"),
        message=message.message,
        syscall=message.syscall if message.HasField("syscall") else None,
        syscall_args=tuple(message.syscall_args),
        pid=message.pid if message.HasField("pid") else None,
        program=message.program if message.HasField("program") else None,
        step=message.step if message.HasField("step") else None,
        errno=message.errno if message.HasField("errno") else None,
        path=decoded_path(message.path) if message.HasField("path") else None,
    )


def file_change(message: pb.FileChange) -> FileChange:
    """One changed entry of the workspace."""
    return FileChange(
        path=decoded_path(message.path),
        change=_word(pb.ChangeKind, message.change, "CHANGE_KIND_"),
        kind=_word(pb.FileKind, message.kind, "FILE_KIND_"),
        size=message.size,
        mode=message.mode,
        old_path=decoded_path(message.old_path) if message.HasField("old_path") else None,
        path_bytes=message.path,
        host_risk=message.host_risk if message.HasField("host_risk") else None,
        diff=message.diff if message.HasField("diff") else None,
        diff_reason=message.diff_reason if message.HasField("diff_reason") else None,
    )


def file_stat(message: pb.FileStat) -> FileStat:
    """What one entry is."""
    return FileStat(
        path=decoded_path(message.path),
        kind=_word(pb.FileKind, message.kind, "FILE_KIND_"),
        size=message.size,
        mode=message.mode,
        modified_unix_ns=message.modified_unix_ns,
        link_target=decoded_path(message.link_target) if message.HasField("link_target") else None,
        path_bytes=message.path,
    )


def usage(message: pb.Usage) -> Usage:
    """What the step used; what the engine left out is not known."""
    return Usage(
        cpu_ms=message.cpu_ms if message.HasField("cpu_ms") else None,
        peak_memory_bytes=message.peak_memory_bytes if message.HasField("peak_memory_bytes") else None,
        startup_ms=message.startup_us / 1000 if message.HasField("startup_us") else None,
        queue_ms=message.queue_us / 1000 if message.HasField("queue_us") else None,
        pids_peak=message.pids_peak if message.HasField("pids_peak") else None,
        oom_kills=message.oom_kills if message.HasField("oom_kills") else None,
        pids_denied=message.pids_denied if message.HasField("pids_denied") else None,
        denied_syscalls=message.denied_syscalls if message.HasField("denied_syscalls") else None,
    )


def limits(messages: Iterable[pb.Limit]) -> dict[str, Limit]:
    """Limits by the name of what they limit."""
    items = (_limit(item.resource, item.max if item.HasField("max") else None, item.enforced_by) for item in messages)
    return {item.resource: item for item in items}


@lru_cache(maxsize=64)
def _limit(resource: int, most: int | None, enforced_by: int) -> Limit:
    return Limit(
        resource=_word(pb.Resource, resource, "RESOURCE_"),
        max=most,
        enforced_by=_word(pb.EnforcedBy, enforced_by, "ENFORCED_BY_"),
    )
