//! A result as JSON, in the words of the protocol.

use serde_json::{Value, json};

use crate::outcome::{FileChange, NoDiff, Output, RichResult, Start, StepResult};

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
        results,
        results_truncated,
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
        "results": results.iter().map(shown).collect::<Vec<_>>(),
        "results_truncated": results_truncated,
    })
}

/// Text as it is, all else in base64.
fn shown(result: &RichResult) -> Value {
    let data = result.data.iter().map(|(kind, data)| {
        let is_text = kind.starts_with("text/") || kind.ends_with("json") || kind.ends_with("+xml");
        let value = if is_text { text(data) } else { base64(data) };
        (kind.clone(), Value::String(value))
    });
    json!({ "main": result.main, "data": data.collect::<serde_json::Map<_, _>>() })
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = (bits >> (18 - 6 * place)) & 63;
            encoded.push(if place <= three.len() {
                char::from(LETTERS[letter as usize])
            } else {
                '='
            });
        }
    }
    encoded
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_each_length_are_encoded_as_everywhere() {
        let encoded = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
        assert_eq!(base64(b"\xff\xfe\x00"), "//4A");
    }
}
