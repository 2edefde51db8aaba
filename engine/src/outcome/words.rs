//! The words of an outcome, as every surface spells them.

use super::{ChangeKind, EnforcedBy, FaultKind, FileKind, NoDiff, Resource, Start};

impl FaultKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StartupFailed => "startup_failed",
            Self::ExecFailed => "exec_failed",
            Self::EscapeBlocked => "escape_blocked",
            Self::Oom => "oom",
            Self::WorkspaceFull => "workspace_full",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
        }
    }
}

impl Resource {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Workspace => "workspace",
            Self::WorkspaceFiles => "workspace_files",
        }
    }
}

impl EnforcedBy {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cgroup2 => "cgroup2",
            Self::Cgroup1 => "cgroup1",
            Self::Rlimit => "rlimit",
            Self::Watchdog => "watchdog",
            Self::Throttle => "throttle",
            Self::ProjectQuota => "project_quota",
            Self::SizedFilesystem => "sized_filesystem",
        }
    }
}

impl NoDiff {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::TooLarge => "too_large",
            Self::UnknownBefore => "unknown_before",
            Self::SameContent => "same_content",
            Self::ChangedSince => "changed_since",
            Self::TooMany => "too_many",
            Self::Truncated => "truncated",
        }
    }
}

impl ChangeKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::Renamed => "renamed",
        }
    }
}

impl FileKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "dir",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

impl Start {
    /// The word in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Forked => "forked",
            Self::ForkedAhead => "forked_ahead",
            Self::Kernel => "kernel",
            Self::Resident => "resident",
        }
    }
}
