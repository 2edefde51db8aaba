//! What can go wrong with cgroups, and why a controller cannot be used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::Version;
use super::delegate::ScopeError;

/// One failed act on a cgroup, with what it acted on.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{name:?} cannot be part of a cgroup's name")]
    Name { name: String },
    #[error("open {}: {source}", path.display())]
    Open { path: PathBuf, source: Errno },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: Errno },
    #[error("write {value:?} to {}: {source}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        source: Errno,
    },
    #[error("make cgroup {}: {source}", path.display())]
    Make { path: PathBuf, source: Errno },
    #[error("remove cgroup {}: {source}", path.display())]
    Remove { path: PathBuf, source: Errno },
    #[error("give {} to {uid}:{gid}: {source}", path.display())]
    Grant {
        path: PathBuf,
        uid: u32,
        gid: u32,
        source: Errno,
    },
    #[error("watch {} for an OOM kill: {source}", path.display())]
    Watch { path: PathBuf, source: Errno },
    #[error("cgroup {} still holds the processes {pids:?}", path.display())]
    Occupied { path: PathBuf, pids: Vec<u32> },
    #[error("{0}")]
    Unusable(Obstacle),
    #[error("get a cgroup of its own from systemd")]
    Scope(#[from] ScopeError),
    /// One cause for several limits.
    #[error(transparent)]
    Shared(Arc<CgroupError>),
}

impl CgroupError {
    /// What mends it, where the place is at fault.
    pub(super) fn remedy(&self, version: Version) -> Option<String> {
        match self {
            Self::Unusable(obstacle) => Some(obstacle.remedy(version)),
            Self::Make { path, source } => {
                let denied = Obstacle::Denied {
                    directory: path.parent().unwrap_or(path).to_owned(),
                    errno: source.raw_os_error(),
                };
                Some(denied.remedy(version))
            }
            Self::Shared(cause) => cause.remedy(version),
            // The manager was asked and could not: the user may see more by asking it himself.
            Self::Scope(_) => Some(format!("{} stepbox serve", scope())),
            Self::Name { .. }
            | Self::Open { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Remove { .. }
            | Self::Grant { .. }
            | Self::Watch { .. }
            | Self::Occupied { .. } => None,
        }
    }

    /// Whether a delegated scope would end the trouble: the place is wrong, not the request.
    pub(super) fn is_about_delegation(&self) -> bool {
        match self {
            Self::Unusable(obstacle) => obstacle.is_about_delegation(),
            Self::Make { source, .. } | Self::Write { source, .. } => {
                matches!(*source, Errno::ACCESS | Errno::PERM | Errno::BUSY)
            }
            Self::Name { .. }
            | Self::Open { .. }
            | Self::Read { .. }
            | Self::Remove { .. }
            | Self::Grant { .. }
            | Self::Watch { .. }
            | Self::Occupied { .. }
            | Self::Scope(_) => false,
            Self::Shared(cause) => cause.is_about_delegation(),
        }
    }
}

/// Why a controller cannot be used from where this process is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Obstacle {
    /// No hierarchy with this controller is mounted, or the kernel lacks it.
    NotMounted,
    /// The own cgroup is not below what the mount shows.
    OutOfSight { cgroup: String, root: String },
    /// No child cgroup can be made in the own one.
    Denied { directory: PathBuf, errno: i32 },
    /// v2: the controller was not handed down to the own cgroup.
    NotDelegated { directory: PathBuf },
    /// v2: processes that are not the engine's sit in the own cgroup, so no controller can be handed down from it.
    Foreign { directory: PathBuf, count: usize },
}

impl Obstacle {
    pub(super) fn is_about_delegation(&self) -> bool {
        match self {
            Self::Denied { errno, .. } => *errno != Errno::ROFS.raw_os_error(),
            Self::NotDelegated { .. } | Self::Foreign { .. } => true,
            Self::NotMounted | Self::OutOfSight { .. } => false,
        }
    }

    /// The command that mends it, for the user's shell where one is enough.
    pub(super) fn remedy(&self, version: Version) -> String {
        match self {
            Self::NotMounted => {
                "boot with the controller enabled (for memory: cgroup_enable=memory), or in a \
                container mount it: docker run -v /sys/fs/cgroup:/sys/fs/cgroup:rw --cgroupns=host"
                    .into()
            }
            Self::OutOfSight { .. } => {
                "docker run --cgroupns=private, or mount the hierarchy inside the container: \
                mount -t cgroup2 cgroup2 /sys/fs/cgroup"
                    .into()
            }
            Self::Denied { errno, .. } if *errno == Errno::ROFS.raw_os_error() => {
                "mount -o remount,rw /sys/fs/cgroup, or start the container with --privileged or \
                 --security-opt writable-cgroups=true"
                    .into()
            }
            Self::Denied { .. } | Self::NotDelegated { .. }
                if version == Version::V2 && !Path::new("/run/systemd/system").exists() =>
            {
                "in a container, give its root a cgroup that can be written to: \
                 docker run --user 0 --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
                    .into()
            }
            Self::Denied { .. } | Self::NotDelegated { .. } if version == Version::V2 => {
                format!("{} stepbox serve", scope())
            }
            Self::Denied { directory, .. } | Self::NotDelegated { directory } => {
                let child = directory.join("stepbox");
                format!(
                    "sudo mkdir -p {0} && sudo chown -R $(id -u):$(id -g) {0} && echo $$ | sudo tee {0}/cgroup.procs",
                    child.display()
                )
            }
            Self::Foreign { directory, .. } => {
                let directory = directory.display();
                format!(
                    "{} stepbox serve; without systemd: mkdir {directory}/init && for p in \
                     $(cat {directory}/cgroup.procs); do echo $p > {directory}/init/cgroup.procs; done",
                    scope()
                )
            }
        }
    }
}

/// Starts what follows in a delegated scope, of the manager that this user has.
fn scope() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "systemd-run --scope -p Delegate=yes"
    } else {
        "systemd-run --user --scope -p Delegate=yes"
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted => write!(f, "the controller is in no mounted cgroup hierarchy"),
            Self::OutOfSight { cgroup, root } => {
                write!(
                    f,
                    "the own cgroup {cgroup} is not below the mounted root {root}"
                )
            }
            Self::Denied { directory, errno } => write!(
                f,
                "no cgroup can be made in {}: {}",
                directory.display(),
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::NotDelegated { directory } => {
                write!(
                    f,
                    "the controller is not handed down to {}",
                    directory.display()
                )
            }
            Self::Foreign { directory, count } => write!(
                f,
                "{count} processes that are not the engine's are in {}, so it cannot hand the controller down",
                directory.display()
            ),
        }
    }
}
