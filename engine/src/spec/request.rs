//! Requests as they arrive: every option as the caller wrote it, nothing decided yet.
//!
//! The transport and the command line both fill these; only the parsers of this room read them.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A cap as it was asked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Cap {
    #[default]
    Default,
    Max(u64),
    Uncapped,
}

/// A choice among fixed words.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Choice<T> {
    #[default]
    Default,
    Named(T),
    /// A number that this version has no word for.
    Unknown(i32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkChoice {
    None,
    Host,
    Internet,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProfileChoice {
    Default,
    Untrusted,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IsolationChoice {
    Full,
    Reduced,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MountRequest {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    pub allow_sockets: bool,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TmpfsRequest {
    pub target: PathBuf,
    pub size: String,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InterpreterRequest {
    pub executable: PathBuf,
    pub prefixes: Vec<PathBuf>,
    pub version: String,
}

/// A session as it was asked for. None is "not said".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecRequest {
    pub image: Option<String>,
    pub setup: Option<String>,
    pub workspace: Option<PathBuf>,
    /// MiB.
    pub memory_mb: Cap,
    /// Cores.
    pub cpus: Option<f64>,
    pub pids: Cap,
    /// Seconds.
    pub timeout_s: Option<f64>,
    pub network: Choice<NetworkChoice>,
    pub egress_allow: Option<Vec<String>>,
    pub mounts: Vec<MountRequest>,
    pub tmpfs: Option<Vec<TmpfsRequest>>,
    pub env: BTreeMap<String, String>,
    pub max_output_bytes: Option<u64>,
    pub deps_readonly: Option<bool>,
    pub enforce_limits: Option<bool>,
    pub track_files: Option<bool>,
    pub prewarm: Option<u32>,
    pub preload: Vec<String>,
    pub security_profile: Choice<ProfileChoice>,
    pub cap_drop: Option<Vec<String>>,
    pub user: Option<String>,
    pub workspace_max_bytes: Cap,
    pub workspace_max_files: Cap,
    pub profiles: Vec<String>,
    pub name: Option<String>,
    pub resident: Option<bool>,
    /// Seconds.
    pub ttl_s: Option<f64>,
    pub file_diffs: Option<bool>,
    pub labels: BTreeMap<String, String>,
    pub setup_network: Option<String>,
    pub packages: Vec<String>,
    pub npm_packages: Vec<String>,
    pub egress_credentials: BTreeMap<String, String>,
    pub isolation_mode: Choice<IsolationChoice>,
    pub protect: Option<Vec<String>>,
    pub allow_sockets: bool,
    pub interpreter: Option<InterpreterRequest>,
    pub host_packages: Vec<PathBuf>,
    pub devices: BTreeMap<String, String>,
}

/// What is to run, as it was asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProgramRequest {
    Argv(Vec<Vec<u8>>),
    Code {
        /// Empty: python.
        language: String,
        source: Vec<u8>,
        args: Vec<Vec<u8>>,
    },
}

/// A step as it was asked for. None is "the session's".
#[derive(Clone, Debug, PartialEq)]
pub struct StepRequest {
    pub program: ProgramRequest,
    /// Seconds.
    pub timeout_s: Option<f64>,
    /// MiB.
    pub memory_mb: Cap,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    pub stdin: Option<Vec<u8>>,
    pub user: Option<String>,
}

impl StepRequest {
    /// A step with nothing overridden.
    #[must_use]
    pub fn new(program: ProgramRequest) -> Self {
        Self {
            program,
            timeout_s: None,
            memory_mb: Cap::Default,
            env: BTreeMap::new(),
            cwd: None,
            stdin: None,
            user: None,
        }
    }
}
