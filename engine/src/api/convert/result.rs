//! [`StepResult`] to the wire: whole when it fits in one reply, else its beginning.

use bytes::Bytes;
use prost::Message;

use crate::api::pb;
use crate::outcome::{
    AppliedLimit, ChangeKind, EnforcedBy, Fault, FaultDetail, FaultKind, FileChange, FileKind,
    Output, Resource, RichResult, Start, StepResult, Usage, Verdict,
};
use crate::session::StepEvent;

/// Bytes of each stream in a reply.
pub const INLINE_OUTPUT: usize = 1 << 20;
/// Changed files in a reply, by number and by size on the wire: paths are up to 4 KiB long.
pub const INLINE_FILES: usize = 5_000;
const INLINE_FILES_BYTES: usize = 3 << 19;

/// The reply, and whether all of the result is in it.
#[must_use]
pub fn result(result: &StepResult) -> (pb::StepResult, bool) {
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
    let Verdict {
        exit_code,
        signal,
        fault,
    } = verdict;
    let changes = file_page(files, 0, INLINE_FILES, INLINE_FILES_BYTES);
    let whole = stdout.kept.len() <= INLINE_OUTPUT
        && stderr.kept.len() <= INLINE_OUTPUT
        && changes.len() == files.len();
    let reply = pb::StepResult {
        step_id: step_id.clone(),
        stdout: Some(output(stdout)),
        stderr: Some(output(stderr)),
        runtime_notes: notes.clone(),
        exit_code: *exit_code,
        signal: *signal,
        duration_ms: duration_us / 1000,
        duration_us: *duration_us,
        fault: fault.as_ref().map(self::fault),
        files: changes,
        files_count: files.len() as u64,
        files_truncated: *files_truncated,
        files_shared: *files_shared,
        files_tracked: *files_tracked,
        usage: Some(self::usage(usage)),
        limits: limits.iter().map(limit).collect(),
        isolation: isolation.clone(),
        image_digest: image_digest.clone(),
        start: start.map_or(pb::Start::Unspecified, self::start).into(),
        results: results.iter().map(rich).collect(),
        results_truncated: *results_truncated,
    };
    (reply, whole)
}

fn rich(result: &RichResult) -> pb::RichResult {
    let RichResult { main, data } = result;
    pb::RichResult {
        data: data
            .iter()
            .map(|(kind, data)| (kind.clone(), data.clone().into()))
            .collect(),
        main: *main,
    }
}

/// How a process came to be, to the wire.
#[must_use]
pub fn start(start: Start) -> pb::Start {
    match start {
        Start::Cold => pb::Start::Cold,
        Start::Forked => pb::Start::Forked,
        Start::ForkedAhead => pb::Start::ForkedAhead,
        Start::Kernel => pb::Start::Kernel,
        Start::Resident => pb::Start::Resident,
    }
}

/// Changes from `offset` on, at most `count` of them and about `bytes` on the wire; at least one where one is left.
#[must_use]
pub fn file_page(
    files: &[FileChange],
    offset: usize,
    count: usize,
    bytes: usize,
) -> Vec<pb::FileChange> {
    let mut page = Vec::new();
    let mut left = bytes;
    for file in files.iter().skip(offset).take(count) {
        let file = change(file);
        // The tag and length of a list's element.
        let size = file.encoded_len() + 6;
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None if page.is_empty() => left = 0,
            None => break,
        }
        page.push(file);
    }
    page
}

/// A live event to the wire.
#[must_use]
pub fn event(event: StepEvent) -> pb::RunStreamResponse {
    use pb::run_stream_response::Event;
    let event = match event {
        StepEvent::Started { step_id } => Event::Started(pb::StepStarted { step_id }),
        StepEvent::Output {
            stdout,
            sequence,
            data,
            dropped,
        } => Event::Output(pb::OutputChunk {
            stream: if stdout {
                pb::Stream::Stdout
            } else {
                pb::Stream::Stderr
            }
            .into(),
            sequence,
            data: data.into(),
            dropped_bytes: dropped,
        }),
    };
    pb::RunStreamResponse { event: Some(event) }
}

/// A limit to the wire.
#[must_use]
pub fn limit(limit: &AppliedLimit) -> pb::Limit {
    let AppliedLimit {
        resource,
        max,
        enforced_by,
    } = limit;
    let resource = match resource {
        Resource::Memory => pb::Resource::Memory,
        Resource::Pids => pb::Resource::Pids,
        Resource::Cpu => pb::Resource::Cpu,
        Resource::Workspace => pb::Resource::Workspace,
        Resource::WorkspaceFiles => pb::Resource::WorkspaceFiles,
    };
    let enforced_by = match enforced_by {
        EnforcedBy::None => pb::EnforcedBy::None,
        EnforcedBy::Cgroup2 => pb::EnforcedBy::Cgroup2,
        EnforcedBy::Cgroup1 => pb::EnforcedBy::Cgroup1,
        EnforcedBy::Rlimit => pb::EnforcedBy::Rlimit,
        EnforcedBy::Watchdog => pb::EnforcedBy::Watchdog,
        EnforcedBy::Throttle => pb::EnforcedBy::Throttle,
        EnforcedBy::ProjectQuota => pb::EnforcedBy::ProjectQuota,
        EnforcedBy::SizedFilesystem => pb::EnforcedBy::SizedFilesystem,
    };
    pb::Limit {
        resource: resource.into(),
        max: *max,
        enforced_by: enforced_by.into(),
    }
}

/// The kind of an entry to the wire.
pub(super) fn kind(kind: FileKind) -> pb::FileKind {
    match kind {
        FileKind::File => pb::FileKind::File,
        FileKind::Dir => pb::FileKind::Dir,
        FileKind::Symlink => pb::FileKind::Symlink,
        FileKind::Fifo => pb::FileKind::Fifo,
        FileKind::Socket => pb::FileKind::Socket,
        FileKind::Device => pb::FileKind::Device,
    }
}

fn output(output: &Output) -> pb::OutputStream {
    let Output { kept, total, head } = output;
    let inline = &kept[..kept.len().min(INLINE_OUTPUT)];
    pb::OutputStream {
        data: Bytes::copy_from_slice(inline),
        kept_bytes: kept.len() as u64,
        total_bytes: *total,
        head_bytes: *head,
        truncated: output.truncated(),
    }
}

fn fault(fault: &Fault) -> pb::Fault {
    let Fault {
        kind,
        message,
        detail,
    } = fault;
    let FaultDetail {
        syscall,
        syscall_args,
        pid,
        program,
        step,
        errno,
        path,
    } = detail;
    let kind = match kind {
        FaultKind::StartupFailed => pb::FaultType::StartupFailed,
        FaultKind::ExecFailed => pb::FaultType::ExecFailed,
        FaultKind::EscapeBlocked => pb::FaultType::EscapeBlocked,
        FaultKind::Oom => pb::FaultType::Oom,
        FaultKind::WorkspaceFull => pb::FaultType::WorkspaceFull,
        FaultKind::Timeout => pb::FaultType::Timeout,
        FaultKind::Cancelled => pb::FaultType::Cancelled,
        FaultKind::Killed => pb::FaultType::Killed,
    };
    pb::Fault {
        r#type: kind.into(),
        message: message.clone(),
        syscall: syscall.clone(),
        syscall_args: syscall_args.clone(),
        pid: *pid,
        program: program.clone(),
        step: step.clone(),
        errno: *errno,
        path: path.as_deref().map(Bytes::copy_from_slice),
    }
}

fn usage(usage: &Usage) -> pb::Usage {
    let Usage {
        cpu_us,
        peak_memory,
        startup_us,
        queue_us,
        pids_peak,
        oom_kills,
        pids_denied,
        denied_syscalls,
    } = *usage;
    pb::Usage {
        cpu_ms: cpu_us.map(|us| us / 1000),
        peak_memory_bytes: peak_memory,
        startup_us,
        queue_us,
        pids_peak,
        oom_kills,
        pids_denied,
        denied_syscalls,
    }
}

fn change(change: &FileChange) -> pb::FileChange {
    let FileChange {
        path,
        change,
        kind,
        size,
        mode,
        old_path,
        host_risk,
        diff,
        diff_reason,
    } = change;
    let change = match change {
        ChangeKind::Created => pb::ChangeKind::Created,
        ChangeKind::Modified => pb::ChangeKind::Modified,
        ChangeKind::Deleted => pb::ChangeKind::Deleted,
        ChangeKind::Renamed => pb::ChangeKind::Renamed,
    };
    pb::FileChange {
        display_path: String::from_utf8_lossy(path).into_owned(),
        path: Bytes::copy_from_slice(path),
        change: change.into(),
        kind: self::kind(*kind).into(),
        size: *size,
        mode: *mode,
        old_path: old_path.as_deref().map(Bytes::copy_from_slice),
        host_risk: host_risk.clone(),
        diff: diff.clone(),
        diff_reason: diff_reason.map(|reason| reason.name().to_owned()),
    }
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
