//! The cgroups of one slot, whatever mixture of versions the host has.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::Hierarchy;
use super::branch::Branch;
use super::counters::Counters;
use super::directory::Directory;
use super::error::CgroupError;
use super::watch::OomWatch;
use crate::outcome::{AppliedLimit, EnforcedBy, Resource};
use crate::spec::Limits;

/// What one version of cgroups, or what stands in for them, does for a slot. What is not said is not done.
pub(super) trait Part: fmt::Debug + Send + Sync {
    /// Makes the cgroup of one step of a sandbox that stays; none: this part has no place for it.
    fn branch(&self, _name: &str) -> Result<Option<Branch>, CgroupError> {
        Ok(None)
    }

    /// What keeps a limit of `resource` to `max`; none: to whatever may be asked for.
    fn mechanism(&self, resource: Resource, max: Option<u64>) -> EnforcedBy;
    fn join_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        Ok(Vec::new())
    }
    fn shown(&self) -> Vec<(Hierarchy, PathBuf)> {
        Vec::new()
    }
    fn leaf(&self) -> Option<&Directory> {
        None
    }
    fn grant(&mut self, _uid: u32, _gid: u32) -> Result<(), CgroupError> {
        Ok(())
    }
    fn seal(&mut self) -> Result<(), CgroupError> {
        Ok(())
    }
    fn apply(&mut self, _limits: &Limits, _own_tasks: u64) -> Result<(), CgroupError> {
        Ok(())
    }
    fn oom_watch(&self) -> Result<Option<OomWatch>, CgroupError> {
        Ok(None)
    }
    fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        Ok(None)
    }
    fn counters(&self) -> Result<Counters, CgroupError> {
        Ok(Counters::default())
    }
    fn reset(&mut self) -> Result<(), CgroupError> {
        Ok(())
    }
    fn remove(&mut self) -> Result<(), CgroupError> {
        Ok(())
    }
}

/// The cgroups of one slot: it runs one step at a time. After any error but [`CgroupError::Name`] the slot is to be
/// thrown away, for what its cgroups hold is not known any more.
///
/// The order of calls: `grant`, the spawner joins, `seal`, then for each step `apply`, the step, `counters`, `reset`.
#[derive(Debug)]
pub struct SlotCgroup {
    parts: Vec<Box<dyn Part>>,
}

impl SlotCgroup {
    pub(super) fn new(parts: Vec<Box<dyn Part>>) -> Self {
        Self { parts }
    }

    /// Descriptors of `cgroup.procs`, one a hierarchy, to each of which the spawner writes `0` once, off the call path: it
    /// takes milliseconds. They carry the engine's rights, so they must be closed before code runs.
    pub fn join_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let mut fds = Vec::new();
        for part in &self.parts {
            fds.extend(part.join_fds()?);
        }
        Ok(fds)
    }

    /// The directory of the coming step's leaf, for `CLONE_INTO_CGROUP`; none where sandboxes inherit their cgroups (v1).
    /// It is another one after each [`Self::reset`].
    pub fn leaf(&self) -> Result<Option<OwnedFd>, CgroupError> {
        let Some(leaf) = self.parts.iter().find_map(|part| part.leaf()) else {
            return Ok(None);
        };
        rustix::io::fcntl_dupfd_cloexec(leaf.fd(), 0)
            .map(Some)
            .map_err(|source| CgroupError::Open {
                path: leaf.path().to_owned(),
                source,
            })
    }

    /// Makes the cgroup of one step of a sandbox that stays. None: nothing here can have one.
    pub fn branch(&self, name: &str) -> Result<Option<Branch>, CgroupError> {
        for part in &self.parts {
            if let Some(branch) = part.branch(name)? {
                return Ok(Some(branch));
            }
        }
        Ok(None)
    }

    /// The directories of the slot's cgroups that all its sandboxes are in (v1).
    #[must_use]
    pub fn shown(&self) -> Vec<(Hierarchy, PathBuf)> {
        self.parts.iter().flat_map(|part| part.shown()).collect()
    }

    /// Lets a spawner that runs as `uid` clone into this slot's leaves (v2). No other slot opens to it.
    pub fn grant(&mut self, uid: u32, gid: u32) -> Result<(), CgroupError> {
        self.parts
            .iter_mut()
            .try_for_each(|part| part.grant(uid, gid))
    }

    /// Takes the processes that are in the cgroups now, the spawner, as those that stay between steps.
    pub fn seal(&mut self) -> Result<(), CgroupError> {
        self.parts.iter_mut().try_for_each(|part| part.seal())
    }

    /// Writes the limits that differ from the last ones. `own_tasks` is how many tasks of the engine's each step has beside
    /// the code's, its init for one; what was sealed in is added where it counts too (v1).
    ///
    /// A limit that was asked for and that nothing can keep comes back as [`EnforcedBy::None`].
    pub fn apply(
        &mut self,
        limits: &Limits,
        own_tasks: u64,
    ) -> Result<Vec<AppliedLimit>, CgroupError> {
        for part in &mut self.parts {
            part.apply(limits, own_tasks)?;
        }
        Ok([
            (Resource::Memory, limits.memory),
            (Resource::Pids, limits.pids),
            (Resource::Cpu, limits.cpu),
        ]
        .map(|(resource, max)| AppliedLimit {
            resource,
            max,
            enforced_by: match max {
                Some(_) => self.mechanism(resource, max),
                None => EnforcedBy::None,
            },
        })
        .into())
    }

    /// What can keep a limit of `resource` to `max` here: the strongest comes first.
    #[must_use]
    pub fn mechanism(&self, resource: Resource, max: Option<u64>) -> EnforcedBy {
        self.parts
            .iter()
            .map(|part| part.mechanism(resource, max))
            .find(|mechanism| *mechanism != EnforcedBy::None)
            .unwrap_or(EnforcedBy::None)
    }

    /// A wake-up for OOM kills; none where memory is in no cgroup. On v1 one serves all steps of the slot, on v2 each
    /// leaf needs its own: taken anew after each [`Self::reset`], both work.
    pub fn oom_watch(&self) -> Result<Option<OomWatch>, CgroupError> {
        for part in &self.parts {
            if let Some(watch) = part.oom_watch()? {
                return Ok(Some(watch));
            }
        }
        Ok(None)
    }

    /// OOM kills of this step so far: the evidence behind an [`OomWatch`].
    pub fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        for part in &self.parts {
            if let Some(kills) = part.oom_kills()? {
                return Ok(Some(kills));
            }
        }
        Ok(None)
    }

    /// What the kernel counted since the last [`Self::reset`].
    pub fn counters(&self) -> Result<Counters, CgroupError> {
        let mut counters = Counters::default();
        for part in &self.parts {
            counters = counters.or(part.counters()?);
        }
        Ok(counters)
    }

    /// Makes the slot ready for another step, off the call path, and proves that nothing of the last one is left in it:
    /// [`CgroupError::Occupied`] names what is.
    pub fn reset(&mut self) -> Result<(), CgroupError> {
        self.parts.iter_mut().try_for_each(|part| part.reset())
    }

    /// Removes the slot's cgroups; the spawner must be gone. What cannot be removed goes with the engine's cgroup.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.parts
            .iter_mut()
            .map(|part| part.remove())
            .fold(Ok(()), Result::and)
    }
}
