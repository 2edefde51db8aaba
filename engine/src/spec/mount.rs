//! Which directories of the host may be seen in a sandbox, and where. Pure: the host is observed elsewhere.
//!
//! A source is judged by what it resolved to, never by its spelling. It is refused when it is, lies in or contains a
//! place that holds the host's own state, or is or contains a home; a directory below a home is what people mount.

use std::path::{Component, Path, PathBuf};

use super::profile::{Device, DeviceRefusal, ProfileFile, ProfileFileError};
use super::text::{holds_nul, shown_path};

/// Refused with all that is below them, and with all that contains them.
const HOST_STATE: [&str; 7] = ["/boot", "/dev", "/etc", "/proc", "/sys", "/run", "/var/run"];

/// Refused themselves, and with all that contains them; what is below them is fine.
const SHARED: [&str; 3] = ["/root", "/tmp", "/var/tmp"];

/// A component of these names holds credentials, wherever it is.
const CREDENTIALS: [&str; 17] = [
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".docker",
    ".azure",
    ".oci",
    ".terraform.d",
    ".password-store",
    ".netrc",
    ".git-credentials",
    ".pypirc",
    ".npmrc",
    ".databrickscfg",
    ".boto",
    ".s3cfg",
    ".rclone.conf",
];

/// The same, as two consecutive components.
const CREDENTIAL_PAIRS: [(&str, &str); 4] = [
    (".config", "gcloud"),
    (".config", "gh"),
    (".config", "doctl"),
    (".config", "rclone"),
];

/// Sockets by which a container manager is commanded: who reaches one owns the host.
const CONTAINER_SOCKETS: [&str; 7] = [
    "docker.sock",
    "podman.sock",
    "containerd.sock",
    "crio.sock",
    "buildkitd.sock",
    "dockershim.sock",
    "containerd.sock.ttrpc",
];

/// What the kernel said about a source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Observed {
    /// Where the source is: absolute, no link, no `..`.
    pub path: PathBuf,
    /// Device and inode; none: it does not exist yet, and its nearest existing parent was resolved.
    pub identity: Option<(u64, u64)>,
    pub kind: SourceKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceKind {
    Dir,
    File,
    Socket,
    /// A fifo or a device.
    Other,
}

/// Places of this host that no sandbox may see.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostPlaces {
    /// Resolved home directories of people and services.
    pub homes: Vec<PathBuf>,
    /// Resolved `$XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// The engine's own runtime, cache, configuration and data directories.
    pub engine: Vec<PathBuf>,
}

/// Why a source could not even be judged.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unobservable {
    #[error("there is no such file or directory")]
    Missing,
    #[error("it is removed, or not reachable by a path")]
    Unreachable,
    #[error("it is a link to nothing")]
    DanglingLink,
    #[error("{} is not a directory", shown_path(.0))]
    ParentNotADirectory(PathBuf),
    /// The kernel's error number.
    #[error("it cannot be opened: {}", std::io::Error::from_raw_os_error(*.0))]
    Open(i32),
}

/// The host, as far as parsing needs it.
pub trait Host {
    /// Resolves a source. With `may_be_missing`, one that does not exist is resolved by its nearest existing parent.
    fn observe(&self, source: &Path, may_be_missing: bool) -> Result<Observed, Unobservable>;
    /// The first unix socket in an observed source, if any. Asked only for a source that no other rule refuses: it can
    /// take a while.
    fn find_socket(&self, observed: &Observed) -> Option<PathBuf>;
    fn places(&self) -> &HostPlaces;
    /// The profiles of the engine's user. Asked only when a request names one.
    fn profiles(&self) -> Result<ProfileFile, ProfileFileError> {
        Err(ProfileFileError::NoPlace)
    }
    /// A device node of the host, which a profile names.
    fn device(&self, _path: &Path) -> Result<Device, DeviceRefusal> {
        Err(DeviceRefusal::Missing)
    }
}

/// Which host paths this caller may name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum HostAccess {
    /// Those that the rules of this file allow.
    #[default]
    Own,
    /// Those, when they are also one of these directories or below it.
    Below(Vec<PathBuf>),
}

/// Which rule refused a source or target. Its text is one sentence for the caller, whose paths these are.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("a path cannot hold a NUL byte")]
    Nul,
    #[error("it is relative; write an absolute path")]
    Relative,
    #[error(transparent)]
    Unobservable(#[from] Unobservable),
    #[error("{} is the root of the host; mount a directory below it", shown_path(.0))]
    Root(PathBuf),
    #[error("{} belongs to the host's system ({rule}) and is never mounted", shown_path(.path))]
    HostState { path: PathBuf, rule: &'static str },
    #[error("{} contains {}, which is never mounted; mount a directory below it", shown_path(.path), shown_path(.inner))]
    Contains { path: PathBuf, inner: PathBuf },
    #[error("{} is a home directory; mount a directory below it", shown_path(.0))]
    Home(PathBuf),
    #[error("{} is shared by the whole host; mount a directory below it", shown_path(.0))]
    Shared(PathBuf),
    #[error("{} is a directory of the stepbox engine, or lies in one", shown_path(.0))]
    Engine(PathBuf),
    #[error("{} holds credentials ({name}) and is never mounted", shown_path(.path))]
    Credentials { path: PathBuf, name: String },
    #[error("{} is the socket of a container manager and is never mounted", shown_path(.0))]
    ContainerSocket(PathBuf),
    #[error("{} is a unix socket, by which code reaches out of a sandbox; allow_sockets=True accepts it", shown_path(.0))]
    Socket(PathBuf),
    #[error("{} is a device or a pipe; mount a file or a directory", shown_path(.0))]
    Kind(PathBuf),
    #[error("{} is not a directory", shown_path(.0))]
    NotADirectory(PathBuf),
    #[error("{} is not below a directory that this engine allows by --allow-host-path", shown_path(.0))]
    NotAllowed(PathBuf),
    #[error("the target is relative; write an absolute path such as \"/data\"")]
    TargetRelative,
    #[error("the target holds \"..\"; write the path without it")]
    TargetParent,
    #[error("the target {} is the sandbox's own {rule}; choose another such as \"/data\"", shown_path(.target))]
    TargetTaken { target: PathBuf, rule: &'static str },
}

/// Judges a mount source or a workspace; what it holds is judged by [`judge_socket`].
///
/// # Errors
/// The first rule that refuses it.
pub fn judge(observed: &Observed, places: &HostPlaces, access: &HostAccess) -> Result<(), Refusal> {
    judge_place(&observed.path, places)?;
    judge_access(&observed.path, access)?;
    match observed.kind {
        SourceKind::Dir | SourceKind::File | SourceKind::Socket => Ok(()),
        SourceKind::Other => Err(Refusal::Kind(observed.path.clone())),
    }
}

/// Judges a prefix or executable of an interpreter, of which only known subdirectories are mounted: it may hold a home
/// or a socket below it, but be neither a home nor the host's state.
///
/// # Errors
/// The first rule that refuses it.
pub fn judge_prefix(path: &Path, places: &HostPlaces, access: &HostAccess) -> Result<(), Refusal> {
    match judge_place(path, places) {
        Ok(()) | Err(Refusal::Contains { .. }) => judge_access(path, access),
        Err(refusal) => Err(refusal),
    }
}

fn judge_access(path: &Path, access: &HostAccess) -> Result<(), Refusal> {
    match access {
        HostAccess::Own => Ok(()),
        HostAccess::Below(allowed) if allowed.iter().any(|dir| path.starts_with(dir)) => Ok(()),
        HostAccess::Below(_) => Err(Refusal::NotAllowed(path.to_owned())),
    }
}

/// Judges a unix socket that is, or lies in, a source.
///
/// # Errors
/// The rule that refuses it.
pub fn judge_socket(socket: &Path, allow_sockets: bool) -> Result<(), Refusal> {
    let name = socket.file_name().unwrap_or_default();
    if CONTAINER_SOCKETS.iter().any(|known| name == *known) {
        return Err(Refusal::ContainerSocket(socket.to_owned()));
    }
    if allow_sockets {
        Ok(())
    } else {
        Err(Refusal::Socket(socket.to_owned()))
    }
}

fn judge_place(path: &Path, places: &HostPlaces) -> Result<(), Refusal> {
    let own = || path.to_owned();
    if path == Path::new("/") {
        return Err(Refusal::Root(own()));
    }
    if let Some(rule) = HOST_STATE.into_iter().find(|rule| path.starts_with(rule)) {
        return Err(Refusal::HostState { path: own(), rule });
    }
    if let Some(name) = credentials(path) {
        return Err(Refusal::Credentials { path: own(), name });
    }
    if places.homes.iter().any(|home| path == home) || path == Path::new(SHARED[0]) {
        return Err(Refusal::Home(own()));
    }
    let runtime = places.runtime.as_deref();
    if SHARED[1..].iter().any(|shared| path == Path::new(shared)) || runtime == Some(path) {
        return Err(Refusal::Shared(own()));
    }
    if places.engine.iter().any(|dir| path.starts_with(dir)) {
        return Err(Refusal::Engine(own()));
    }
    let fixed = HOST_STATE.iter().chain(&SHARED).map(Path::new);
    let known = places.homes.iter().chain(&places.engine);
    let mut inner = fixed.chain(known.map(PathBuf::as_path)).chain(runtime);
    match inner.find(|inner| inner.starts_with(path)) {
        Some(inner) => Err(Refusal::Contains {
            path: own(),
            inner: inner.to_owned(),
        }),
        None => Ok(()),
    }
}

fn credentials(path: &Path) -> Option<String> {
    let mut before = None;
    for component in path.components() {
        let name = component.as_os_str();
        if let Some(known) = CREDENTIALS.iter().find(|known| name == **known) {
            return Some((*known).to_owned());
        }
        let pair = CREDENTIAL_PAIRS
            .iter()
            .find(|(first, second)| before.is_some_and(|b| b == *first) && name == *second);
        if let Some((first, second)) = pair {
            return Some(format!("{first}/{second}"));
        }
        before = Some(name);
    }
    None
}

/// Checks the spelling of a source, before the host is asked.
///
/// # Errors
/// The rule that refuses it.
pub fn check_source(source: &Path) -> Result<(), Refusal> {
    if holds_nul(source) {
        return Err(Refusal::Nul);
    }
    if !source.is_absolute() {
        return Err(Refusal::Relative);
    }
    Ok(())
}

/// Where the sandbox's programs are: read-only, so that no mount point can be made there, and needed by every step.
const SYSTEM_TARGETS: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// The place of a mount in the sandbox, spelt plainly.
///
/// # Errors
/// The rule that refuses it.
pub fn parse_target(target: &Path) -> Result<PathBuf, Refusal> {
    let plain = plain_target(target)?;
    let taken = |rule| {
        Err(Refusal::TargetTaken {
            target: plain.clone(),
            rule,
        })
    };
    if plain == Path::new("/") {
        return taken("root");
    }
    if plain == Path::new("/workspace") {
        return taken("workspace (workspace= sets it)");
    }
    if plain == Path::new("/dev/shm") {
        return Ok(plain);
    }
    for rule in [
        "/proc",
        "/sys",
        "/dev",
        "/run/stepbox",
        "/opt/stepbox/bytecode",
    ] {
        if plain.starts_with(rule) {
            return taken(rule);
        }
    }
    for rule in SYSTEM_TARGETS {
        if plain.starts_with(rule) {
            return taken(rule);
        }
    }
    for rule in ["/etc", "/run"] {
        if plain == Path::new(rule) {
            return taken(rule);
        }
    }
    Ok(plain)
}

/// An absolute path without `..`, `.` and doubled slashes.
pub(super) fn plain_target(target: &Path) -> Result<PathBuf, Refusal> {
    if holds_nul(target) {
        return Err(Refusal::Nul);
    }
    if !target.is_absolute() {
        return Err(Refusal::TargetRelative);
    }
    if target.components().any(|part| part == Component::ParentDir) {
        return Err(Refusal::TargetParent);
    }
    Ok(target.components().collect())
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;
