//! A result as JSON, in the words of the protocol.

use serde_json::{Value, json};

use crate::outcome::{FileChange, NoDiff, Output, Start, StepResult};

pub(super) fn result(result: &StepResult) -> Value {
    let StepResult {
        step_id,
        stdout,
        stderr,
        notes,
        verdict,
        duration_us,
        files,
        files_truncated,
        files_shared,
        files_tracked,
        usage,
        limits,
        isolation,
        image_digest,
        start,
        // Code at a terminal shows text.
        results: _,
        results_truncated: _,
    } = result;
    let fault = verdict.fault.as_ref().map(|fault| {
        json!({
            "type": fault.kind.name(),
            "message": fault.message,
            "syscall": fault.detail.syscall,
            "syscall_args": fault.detail.syscall_args,
            "pid": fault.detail.pid,
            "program": fault.detail.program,
            "step": fault.detail.step,
            "errno": fault.detail.errno,
            "path": fault.detail.path.as_deref().map(text),
        })
    });
    json!({
        "step_id": step_id,
        "exit_code": verdict.exit_code,
        "signal": verdict.signal,
        "fault": fault,
        "stdout": text(&stdout.kept),
        "code_stderr": text(&stderr.kept),
        "stdout_total_bytes": stdout.total,
        "stderr_total_bytes": stderr.total,
        "truncated_stdout": Output::truncated(stdout),
        "truncated_stderr": Output::truncated(stderr),
        "runtime_notes": notes,
        "duration_ms": duration_us / 1000,
        "files": files.iter().map(change).collect::<Vec<_>>(),
        "files_truncated": files_truncated,
        "files_shared": files_shared,
        "files_tracked": files_tracked,
        "usage": {
            "cpu_ms": usage.cpu_us.map(|us| us / 1000),
            "peak_memory_bytes": usage.peak_memory,
            "startup_us": usage.startup_us,
            "queue_us": usage.queue_us,
            "pids_peak": usage.pids_peak,
            "oom_kills": usage.oom_kills,
            "pids_denied": usage.pids_denied,
            "denied_syscalls": usage.denied_syscalls,
        },
        "limits": limits.iter().map(|limit| json!({
            "resource": limit.resource.name(),
            "max": limit.max,
            "enforced_by": limit.enforced_by.name(),
        })).collect::<Vec<_>>(),
        "isolation": isolation,
        "image_digest": image_digest,
        "start": start.map(Start::name),
    })
}

fn change(change: &FileChange) -> Value {
    json!({
        "path": text(&change.path),
        "change": change.change.name(),
        "kind": change.kind.name(),
        "size": change.size,
        "mode": change.mode,
        "old_path": change.old_path.as_deref().map(text),
        "host_risk": change.host_risk,
        "diff": change.diff,
        "diff_reason": change.diff_reason.map(NoDiff::name),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
