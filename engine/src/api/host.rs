//! What `GetInfo` tells about the host: probed once at start by whoever starts the server.

use crate::outcome::AppliedLimit;

/// The host as the engine found it.
#[derive(Clone, Debug, Default)]
pub struct HostInfo {
    /// The kernel's release.
    pub kernel: String,
    /// Whether the engine runs as root.
    pub root: bool,
    pub probes: Vec<Probe>,
    /// By what each limit would be enforced; `max` is none.
    pub limit_mechanisms: Vec<AppliedLimit>,
}

/// One thing that the host gives or lacks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Probe {
    pub name: String,
    pub available: bool,
    pub detail: String,
    /// The command that mends it; none: nothing is to be mended.
    pub mend: Option<String>,
}
