//! How a step ended: plain words, and the pure decision from evidence to verdict.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod classify;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod words;

pub use classify::{
    Evidence, ExecFailure, Notification, StartupFailure, Verdict, WorkspaceFull, classify,
};

/// What the sandbox did to the code. A program's own end is never a fault.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    pub kind: FaultKind,
    /// A sentence made of facts, never of the code's output.
    pub message: String,
    pub detail: FaultDetail,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    StartupFailed,
    ExecFailed,
    EscapeBlocked,
    Oom,
    WorkspaceFull,
    Timeout,
    Cancelled,
    Killed,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FaultDetail {
    pub syscall: Option<String>,
    pub syscall_args: Vec<u64>,
    pub pid: Option<i32>,
    pub program: Option<String>,
    pub step: Option<String>,
    pub errno: Option<i32>,
    pub path: Option<Vec<u8>>,
}

/// How the process of the code came to be. What it may do, and what is told of it, is the same.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Start {
    /// It executed its program.
    #[default]
    Cold,
    /// It was forked from a booted interpreter when the step was asked for.
    Forked,
    /// It was forked before, and waited.
    ForkedAhead,
    /// It was there: an interpreter that runs one cell after the other.
    Kernel,
    /// It executed its program in a sandbox that was there: a resident.
    Resident,
}

/// Measured; unknown is none, never 0.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    pub cpu_us: Option<u64>,
    pub peak_memory: Option<u64>,
    pub startup_us: Option<u64>,
    pub queue_us: Option<u64>,
    pub pids_peak: Option<u64>,
    pub oom_kills: Option<u64>,
    pub pids_denied: Option<u64>,
    pub denied_syscalls: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Resource {
    Memory,
    Pids,
    Cpu,
    /// Bytes of the workspace, the homes and the caches.
    Workspace,
    /// Files, directories and links of the same.
    WorkspaceFiles,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum EnforcedBy {
    None,
    Cgroup2,
    Cgroup1,
    Rlimit,
    Watchdog,
    Throttle,
    ProjectQuota,
    SizedFilesystem,
}

/// A limit of a step, and what keeps it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct AppliedLimit {
    pub resource: Resource,
    /// None: uncapped.
    pub max: Option<u64>,
    pub enforced_by: EnforcedBy,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    pub change: ChangeKind,
    pub kind: FileKind,
    pub size: u64,
    pub mode: u32,
    pub old_path: Option<Vec<u8>>,
    pub host_risk: Option<String>,
    /// Unified, of a text file.
    pub diff: Option<String>,
    /// Why there is no diff, or not all of one.
    pub diff_reason: Option<NoDiff>,
}

/// Why there is no diff of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum NoDiff {
    /// It is not UTF-8 or holds a NUL, or was so before.
    Binary,
    /// It has more than 64 KiB, or had.
    TooLarge,
    /// What was in it before the step is not known.
    UnknownBefore,
    /// What is in it is what was: it was moved, touched or given another mode.
    SameContent,
    /// It was written to again before it could be read.
    ChangedSince,
    /// The step changed more files than are compared, or more text than is kept.
    TooMany,
    /// The diff is longer than is kept of one, and ends early.
    Truncated,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum ChangeKind {
    Created,
    Modified,
    Deleted,
    Renamed,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Device,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FileStat {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    pub kind: FileKind,
    pub size: u64,
    pub mode: u32,
    pub modified_ns: i64,
    pub link_target: Option<Vec<u8>>,
}

/// What was kept of one stream: past the cap the head and the tail, each half of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    pub kept: Vec<u8>,
    /// What the code wrote.
    pub total: u64,
    /// Where in `kept` the cut is, when `total` is more than was kept.
    pub head: u64,
}

impl Output {
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.total > self.kept.len() as u64
    }
}

/// Everything about one step that ran, or that the sandbox failed to start.
#[derive(Clone, Debug)]
pub struct StepResult {
    pub step_id: String,
    pub stdout: Output,
    pub stderr: Output,
    pub notes: Vec<String>,
    pub verdict: Verdict,
    pub duration_us: u64,
    pub files: Vec<FileChange>,
    pub files_truncated: bool,
    pub files_shared: bool,
    pub files_tracked: bool,
    pub usage: Usage,
    pub limits: Vec<AppliedLimit>,
    pub isolation: Vec<String>,
    pub image_digest: String,
    /// None: the code did not run.
    pub start: Option<Start>,
    /// By the word of the interpreter, which is the code's own.
    pub results: Vec<RichResult>,
    pub results_truncated: bool,
}

/// What code shows beside its output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RichResult {
    /// The value of the last expression.
    pub main: bool,
    /// By media type; never empty.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// What a running step tells while it runs.
#[derive(Debug)]
pub enum StepEvent {
    Started {
        step_id: String,
    },
    Output {
        stdout: bool,
        sequence: u64,
        data: Vec<u8>,
        dropped: u64,
    },
}
