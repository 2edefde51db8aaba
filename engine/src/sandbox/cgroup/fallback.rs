//! What keeps a limit for which no controller can be had. Nothing is done here: the sandbox's own user namespace, its
//! affinity and the watchdog do it, and this says which limits they keep.

use super::slot::Part;
use crate::outcome::{EnforcedBy, Resource};
use crate::sandbox::identity::{Mode, is_hosts_root};

#[derive(Clone, Copy, Debug)]
pub(super) struct Fallback {
    tasks_are_counted: bool,
    /// A sandbox can be told from the rest of the host, so that its memory can be summed up.
    memory_is_seen: bool,
}

impl Fallback {
    /// Without namespaces nothing tells which processes are a sandbox's, and only processors are kept.
    pub(super) const ALONE: Self = Self {
        tasks_are_counted: false,
        memory_is_seen: false,
    };

    pub(super) fn of_this_process() -> Self {
        Self {
            memory_is_seen: true,
            tasks_are_counted: tasks_are_counted(Mode::of_this_process().ok(), is_hosts_root()),
        }
    }

    pub(super) fn mechanism(self, resource: Resource, max: Option<u64>) -> EnforcedBy {
        match resource {
            Resource::Memory if self.memory_is_seen => EnforcedBy::Watchdog,
            Resource::Pids if self.tasks_are_counted => EnforcedBy::Rlimit,
            // A processor is given or not: no part of one.
            Resource::Cpu if max.is_none_or(|milli| milli.is_multiple_of(1000)) => {
                EnforcedBy::Throttle
            }
            Resource::Memory
            | Resource::Pids
            | Resource::Cpu
            | Resource::Workspace
            | Resource::WorkspaceFiles => EnforcedBy::None,
        }
    }
}

/// The kernel holds no task of the host's root to `RLIMIT_NPROC`, and sandboxes of a root that may make no ids are its.
fn tasks_are_counted(mode: Option<Mode>, hosts_root: bool) -> bool {
    matches!(mode, Some(Mode::Root)) || !hosts_root
}

impl Part for Fallback {
    fn mechanism(&self, resource: Resource, max: Option<u64>) -> EnforcedBy {
        Self::mechanism(*self, resource, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_and_a_part_of_a_core_has_none() {
        let fallback = Fallback {
            tasks_are_counted: true,
            memory_is_seen: true,
        };
        let kept = |resource, max| fallback.mechanism(resource, max);
        assert_eq!(kept(Resource::Memory, Some(1)), EnforcedBy::Watchdog);
        assert_eq!(kept(Resource::Pids, Some(2)), EnforcedBy::Rlimit);
        assert_eq!(kept(Resource::Cpu, None), EnforcedBy::Throttle);
        assert_eq!(kept(Resource::Cpu, Some(2000)), EnforcedBy::Throttle);
        assert_eq!(kept(Resource::Cpu, Some(500)), EnforcedBy::None);
        assert_eq!(kept(Resource::Workspace, Some(1)), EnforcedBy::None);
    }

    #[test]
    fn the_hosts_root_without_ids_to_give_has_nothing_that_counts_tasks() {
        let rootless = |uid| Some(Mode::Rootless { uid, gid: uid });
        assert!(tasks_are_counted(Some(Mode::Root), true));
        assert!(tasks_are_counted(rootless(1000), false));
        assert!(!tasks_are_counted(rootless(0), true));
        // Root of a container whose ids are mapped is an ordinary user of the host.
        assert!(tasks_are_counted(rootless(0), false));
    }
}
