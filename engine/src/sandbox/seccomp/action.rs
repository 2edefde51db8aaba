//! What a filter answers to a syscall.

/// The answer of a filter, in the order in which the kernel prefers them when filters are stacked: the least answer
/// of all filters is what happens (`seccomp(2)`), whichever filter is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The process dies with SIGSYS.
    KillProcess,
    /// The call returns this errno and nothing happens.
    Errno(u16),
    /// The call waits while the listener is told of it, which lets it return this errno and counts it.
    Count(u16),
    /// The call waits while the listener is told of it, and never goes on.
    Notify,
    /// The call goes ahead.
    Allow,
}

impl Action {
    /// The word that a filter returns for this action.
    pub(super) const fn word(self) -> u32 {
        match self {
            Self::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
            Self::Count(_) | Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
            Self::Allow => libc::SECCOMP_RET_ALLOW,
        }
    }
}
