//! What this host offers for each limit, found by reading alone.

use std::path::PathBuf;

use rustix::fs::Access;

use super::ancestor::{self, AncestorLimit};
use super::directory::Directory;
use super::error::{CgroupError, Obstacle};
use super::fallback::Fallback;
use super::membership::{Membership, Mount, Place, locate, parse_memberships, parse_mounts};
use super::{Version, delegate, v2};
use crate::outcome::{EnforcedBy, Resource};

/// What there is for memory, pids and cpu.
#[derive(Clone, Debug)]
pub struct Probe {
    pub controllers: Vec<ControllerProbe>,
}

/// What there is for one limit.
#[derive(Clone, Debug)]
pub struct ControllerProbe {
    pub resource: Resource,
    /// What would keep the limit; [`EnforcedBy::None`] when no cgroup can.
    pub mechanism: EnforcedBy,
    /// The cgroup below which the engine would make its own.
    pub directory: Option<PathBuf>,
    /// Whether that can be done there as it is.
    pub writable: bool,
    /// Not writable, but systemd will be asked for a delegated scope when the engine starts.
    pub by_scope: bool,
    /// What keeps it where no cgroup does.
    pub fallback: EnforcedBy,
    /// Why not.
    pub obstacle: Option<Obstacle>,
    /// What mends it.
    pub remedy: Option<String>,
    /// The lowest limit that an ancestor sets already: no sandbox gets more.
    pub ancestor: Option<AncestorLimit>,
}

impl Probe {
    pub(super) fn read() -> Self {
        let (memberships, mounts) = own_view();
        let by_scope = delegate::possible().is_ok();
        let controllers = LIMITED
            .iter()
            .map(|(resource, name)| {
                probe_controller(*resource, name, &memberships, &mounts, by_scope)
            })
            .collect();
        Self { controllers }
    }

    #[must_use]
    pub fn of(&self, resource: Resource) -> Option<&ControllerProbe> {
        self.controllers
            .iter()
            .find(|controller| controller.resource == resource)
    }
}

/// The limits that cgroups keep, and their controllers.
pub(super) const LIMITED: [(Resource, &str); 3] = [
    (Resource::Memory, "memory"),
    (Resource::Pids, "pids"),
    (Resource::Cpu, "cpu"),
];

pub(super) fn own_view() -> (Vec<Membership>, Vec<Mount>) {
    view("self")
}

/// The memberships of a process, and the mounts that this one sees. A host without proc has neither.
pub(super) fn view(process: &str) -> (Vec<Membership>, Vec<Mount>) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    (
        parse_memberships(&read(&format!("/proc/{process}/cgroup"))),
        parse_mounts(&read("/proc/self/mountinfo")),
    )
}

fn probe_controller(
    resource: Resource,
    name: &'static str,
    memberships: &[Membership],
    mounts: &[Mount],
    by_scope: bool,
) -> ControllerProbe {
    let mut probe = ControllerProbe {
        resource,
        mechanism: EnforcedBy::None,
        directory: None,
        writable: false,
        by_scope: false,
        fallback: Fallback::of_this_process().mechanism(resource, None),
        obstacle: None,
        remedy: None,
        ancestor: None,
    };
    let place = match locate(memberships, mounts, name) {
        Ok(place) => place,
        Err(obstacle) => {
            probe.remedy = Some(obstacle.remedy(Version::V1));
            probe.obstacle = Some(obstacle);
            return probe;
        }
    };
    let mechanism = match place.version {
        Version::V1 => EnforcedBy::Cgroup1,
        Version::V2 => EnforcedBy::Cgroup2,
    };
    probe.obstacle = obstacle(&place, name);
    match &probe.obstacle {
        None => {
            probe.mechanism = mechanism;
            probe.writable = true;
        }
        Some(obstacle) => {
            probe.by_scope =
                place.version == Version::V2 && by_scope && obstacle.is_about_delegation();
            if probe.by_scope {
                probe.mechanism = mechanism;
            }
            probe.remedy = Some(obstacle.remedy(place.version));
        }
    }
    probe.ancestor = ancestor::lowest(resource, &place);
    probe.directory = Some(place.directory);
    probe
}

/// What keeps the engine from making its cgroups at `place`.
fn obstacle(place: &Place, controller: &'static str) -> Option<Obstacle> {
    let directory = &place.directory;
    let denied = |errno: rustix::io::Errno| Obstacle::Denied {
        directory: directory.clone(),
        errno: errno.raw_os_error(),
    };
    if let Err(errno) = rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(denied(errno));
    }
    if place.version == Version::V1 {
        return None;
    }
    let own = v2::Own {
        engine: std::process::id(),
        launcher: None,
    };
    let checked = Directory::open(directory).and_then(|base| {
        let (_, missing) = v2::handed_down(&base, &[controller])?;
        if missing.is_empty() {
            return Ok(());
        }
        v2::refuse_base(&base, own)
    });
    match checked {
        Ok(()) => None,
        Err(CgroupError::Unusable(obstacle)) => Some(obstacle),
        // It vanished or cannot be read: no cgroup is made there either.
        Err(CgroupError::Open { source, .. } | CgroupError::Read { source, .. }) => {
            Some(denied(source))
        }
        Err(_) => Some(Obstacle::NotMounted),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_v2_cgroup_that_others_live_in_is_named_as_the_obstacle() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("cgroup.controllers", "memory\n"),
            ("cgroup.subtree_control", "\n"),
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", "1\n"),
        ] {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let place = Place {
            version: Version::V2,
            directory: dir.path().to_owned(),
            mount_point: dir.path().to_owned(),
        };
        assert_eq!(
            obstacle(&place, "memory"),
            Some(Obstacle::Foreign {
                directory: dir.path().to_owned(),
                count: 1
            })
        );
        assert_eq!(
            obstacle(&place, "pids"),
            Some(Obstacle::NotDelegated {
                directory: dir.path().to_owned()
            })
        );
    }
}
