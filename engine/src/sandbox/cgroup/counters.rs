//! What the kernel counted for one step.

/// Measured over one step; what the kernel does not tell, or not for this step alone, is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Tasks of this cgroup that the OOM killer took.
    pub oom_kills: Option<u64>,
    /// Bytes, the engine's own tasks in the cgroup included.
    pub peak_memory: Option<u64>,
    /// Microseconds of all tasks together.
    pub cpu_us: Option<u64>,
    /// Most tasks at once, without the engine's own.
    pub pids_peak: Option<u64>,
    /// Forks that the task limit refused.
    pub pids_denied: Option<u64>,
}

impl Counters {
    /// Fills what is unknown here from `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.or(other.oom_kills),
            peak_memory: self.peak_memory.or(other.peak_memory),
            cpu_us: self.cpu_us.or(other.cpu_us),
            pids_peak: self.pids_peak.or(other.pids_peak),
            pids_denied: self.pids_denied.or(other.pids_denied),
        }
    }
}
