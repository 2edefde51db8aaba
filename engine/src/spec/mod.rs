//! Parsed request words: a name, size or path exists only in parsed form here. No I/O, no protobuf.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use request::Cap;

mod absent;
mod capability;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod mount;
mod name;
mod pattern;
mod profile;
pub mod request;
mod session;
mod size;
mod step;
mod text;
mod tmpfs;
mod user;
mod violations;

pub use capability::Capabilities;
pub use name::is_id;
pub use pattern::{Grep, PathPattern, PatternError};
pub use profile::{Device, DeviceRefusal, ProfileFile, ProfileFileError};
pub use session::parse_spec;
pub use size::{mebibytes, parse_size};
pub use step::{parse_language, parse_step};
pub use text::{shown, shown_path};
pub use tmpfs::shm_size;
pub use user::{ACCOUNTS, DEFAULT_ID, GROUPS, User};
pub use violations::Violations;

/// Files of the caller's own tools that run or steer them: read-only in a given workspace unless `protect` says else.
pub const PROTECTED: [&str; 8] = [
    ".git/hooks",
    ".git/config",
    ".envrc",
    ".vscode",
    ".idea",
    ".husky",
    ".mcp.json",
    ".claude",
];

/// One mistake in a request: which field, and what would be right.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The option's name as the user writes it, with an index or key where there is one: `mounts["/etc"]`.
    pub field: String,
    /// One sentence: what is wrong, and the right spelling.
    pub description: String,
    /// Whether a mount rule refused it (Python: `MountRefused`).
    pub mount_refused: bool,
}

/// The posture of a session, parsed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SandboxSpec {
    pub image: Image,
    pub interpreter: Option<Interpreter>,
    pub workspace: WorkspaceSource,
    pub limits: Limits,
    pub quota: Quota,
    /// Devices of the host, as exact nodes.
    pub devices: Vec<Device>,
    pub timeout: Duration,
    pub network: Network,
    pub mounts: Vec<Mount>,
    pub tmpfs: Vec<Tmpfs>,
    pub env: BTreeMap<String, String>,
    /// Bytes kept of each stream.
    pub max_output: u64,
    /// Refuse to start when a limit that was asked for cannot be enforced.
    pub enforce_limits: bool,
    pub profile: Profile,
    pub isolation: Isolation,
    pub user: User,
    /// What the code may do beside what its user may, in its own user namespace.
    pub kept: Capabilities,
    pub track_files: bool,
    /// Tell what changed in the text of files, too.
    pub file_diffs: bool,
    /// Names at the top of a given workspace that are read-only for the code.
    pub protect: Vec<String>,
    /// None: by use; 0: no step is forked.
    pub prewarm: Option<u32>,
    /// Names of modules that a template imports.
    pub preload: Vec<String>,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Its steps share one sandbox, which stays.
    pub resident: bool,
    /// How long it may be idle; none: as long as the engine lives.
    pub ttl: Option<Duration>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Image {
    Host,
}

/// The caller's own interpreter, as it describes itself.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Interpreter {
    pub executable: PathBuf,
    pub prefixes: Vec<PathBuf>,
    pub version: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WorkspaceSource {
    /// A directory of the engine's, removed at close.
    Private,
    /// The caller's directory, resolved; kept. Made at session creation when it is missing.
    Given { path: PathBuf, allow_sockets: bool },
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes; none: uncapped.
    pub memory: Option<u64>,
    /// Tasks; none: uncapped.
    pub pids: Option<u64>,
    /// Thousandths of a core; none: uncapped.
    pub cpu: Option<u64>,
}

/// How much a session may hold: workspace, homes and caches together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Quota {
    /// Bytes. By default it depends on the workspace and on the disk.
    pub bytes: Cap,
    /// Files, directories and links; none: uncapped.
    pub files: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Network {
    None,
    Host,
}

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Isolation {
    #[default]
    Full,
    /// What is left on a host without namespaces.
    Reduced,
}

/// How much of what ordinary programs use is given up for a smaller way out.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub enum Profile {
    #[default]
    Default,
    /// For code that means harm.
    Untrusted,
}

/// Where a session's packages are, when something is mounted there.
pub const DEPS: &str = "/opt/stepbox/deps";

impl SandboxSpec {
    /// The options in which this posture and another one differ, as callers write them. Labels are no posture.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            image,
            interpreter,
            workspace,
            limits,
            quota,
            devices,
            timeout,
            network,
            mounts,
            tmpfs,
            env,
            max_output,
            enforce_limits,
            profile,
            isolation,
            user,
            kept,
            track_files,
            file_diffs,
            protect,
            prewarm,
            preload,
            name,
            labels: _,
            resident,
            ttl,
        } = self;
        let fields = [
            ("image", *image != other.image),
            ("interpreter", *interpreter != other.interpreter),
            ("workspace", *workspace != other.workspace),
            ("memory_mb", limits.memory != other.limits.memory),
            ("pids", limits.pids != other.limits.pids),
            ("cpus", limits.cpu != other.limits.cpu),
            ("workspace_max_bytes", quota.bytes != other.quota.bytes),
            ("workspace_max_files", quota.files != other.quota.files),
            ("devices", *devices != other.devices),
            ("timeout_s", *timeout != other.timeout),
            ("network", *network != other.network),
            ("mounts", *mounts != other.mounts),
            ("tmpfs", *tmpfs != other.tmpfs),
            ("env", *env != other.env),
            ("max_output_bytes", *max_output != other.max_output),
            ("enforce_limits", *enforce_limits != other.enforce_limits),
            ("security_profile", *profile != other.profile),
            ("isolation_mode", *isolation != other.isolation),
            ("user", *user != other.user),
            ("cap_drop", *kept != other.kept),
            ("track_files", *track_files != other.track_files),
            ("file_diffs", *file_diffs != other.file_diffs),
            ("protect", *protect != other.protect),
            ("prewarm", *prewarm != other.prewarm),
            ("preload", *preload != other.preload),
            ("name", *name != other.name),
            ("resident", *resident != other.resident),
            ("ttl_s", *ttl != other.ttl),
        ];
        fields
            .into_iter()
            .filter_map(|(name, differs)| differs.then_some(name))
            .collect()
    }

    /// The packages that the caller made for the session.
    #[must_use]
    pub fn deps(&self) -> Option<&Mount> {
        self.mounts
            .iter()
            .find(|mount| mount.target == std::path::Path::new(DEPS))
    }
}

/// A directory or file of the host in the sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount {
    /// Resolved: no link is left in it.
    pub source: PathBuf,
    /// Device and inode of what was judged; the mount is refused when they are another's by then.
    pub identity: (u64, u64),
    pub target: PathBuf,
    pub read_only: bool,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Tmpfs {
    pub target: PathBuf,
    /// Bytes.
    pub size: u64,
}

/// One execution, parsed.
#[derive(Clone, Debug)]
pub struct StepSpec {
    pub program: Program,
    /// From the start of the sandbox; none: the session's.
    pub timeout: Option<Duration>,
    /// Outer none: the session's; inner none: uncapped.
    pub memory: Option<Option<u64>>,
    pub env: BTreeMap<String, String>,
    /// In the sandbox, absolute.
    pub cwd: PathBuf,
    pub stdin: Vec<u8>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Program {
    Argv(Vec<Vec<u8>>),
    Code {
        language: Language,
        source: Vec<u8>,
        args: Vec<Vec<u8>>,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Language {
    Python,
    Bash,
    Sh,
    Javascript,
}

impl Language {
    pub const ALL: [Self; 4] = [Self::Python, Self::Bash, Self::Sh, Self::Javascript];

    /// The name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Javascript => "javascript",
        }
    }

    /// The interpreter's file name, looked for on the sandbox's PATH.
    #[must_use]
    pub const fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Javascript => "node",
        }
    }

    /// The ending of the file that holds the code.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Python => "py",
            Self::Bash | Self::Sh => "sh",
            Self::Javascript => "js",
        }
    }
}
