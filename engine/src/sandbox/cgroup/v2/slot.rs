//! The cgroups of one slot: the spawner's, and the leaf of the step that comes next or runs.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::super::branch::Branch;
use super::super::counters::Counters;
use super::super::directory::Directory;
use super::super::error::CgroupError;
use super::super::slot::Part;
use super::super::watch::OomWatch;
use super::leaf::Leaf;
use super::{PROCS, SUBTREE, keeps, signed};
use crate::outcome::{EnforcedBy, Resource};
use crate::spec::Limits;

#[derive(Debug)]
pub(in super::super) struct Slot {
    directory: Directory,
    spawner: Directory,
    controllers: Vec<&'static str>,
    /// None only after a reset that failed: the slot is of no more use then.
    leaf: Option<Leaf>,
    made: u64,
    limits: Limits,
    own_tasks: u64,
    granted: Option<(u32, u32)>,
}

impl Slot {
    /// Makes what a slot needs in its own new cgroup `directory`, and removes that when it cannot.
    pub(super) fn make(
        directory: Directory,
        controllers: &[&'static str],
    ) -> Result<Self, CgroupError> {
        let built = (|| {
            directory.write(SUBTREE, &signed('+', controllers))?;
            let spawner = directory.make("spawner")?;
            let leaf = Leaf::make(&directory, controllers, 0)?;
            Ok((spawner, leaf))
        })();
        match built {
            Ok((spawner, leaf)) => Ok(Self {
                directory,
                spawner,
                controllers: controllers.to_vec(),
                leaf: Some(leaf),
                made: 1,
                limits: Limits::default(),
                own_tasks: 0,
                granted: None,
            }),
            Err(error) => {
                // Best effort: what stays is removed with the engine's subtree.
                let _ = directory.remove_tree();
                Err(error)
            }
        }
    }

    fn current(&self) -> Result<&Leaf, CgroupError> {
        self.leaf.as_ref().ok_or_else(|| self.no_leaf())
    }

    fn no_leaf(&self) -> CgroupError {
        CgroupError::Open {
            path: self.directory.path().join(format!("step-{}", self.made)),
            source: Errno::NOENT,
        }
    }

    fn next(&mut self) -> Result<(), CgroupError> {
        let mut leaf = Leaf::make(&self.directory, &self.controllers, self.made)?;
        self.made += 1;
        if let Some((uid, gid)) = self.granted {
            leaf.directory.grant(PROCS, uid, gid)?;
        }
        // The next step most likely has the last one's limits: written here, off the call path.
        leaf.apply(&self.controllers, &self.limits, self.own_tasks)?;
        self.leaf = Some(leaf);
        Ok(())
    }
}

impl Part for Slot {
    fn mechanism(&self, resource: Resource, _max: Option<u64>) -> EnforcedBy {
        if keeps(&self.controllers, resource) {
            EnforcedBy::Cgroup2
        } else {
            EnforcedBy::None
        }
    }

    fn branch(&self, name: &str) -> Result<Option<Branch>, CgroupError> {
        Branch::make(&self.current()?.directory, name, self.granted).map(Some)
    }

    fn join_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let fd = self
            .spawner
            .open_file(PROCS, OFlags::WRONLY)
            .map_err(|source| CgroupError::Open {
                path: self.spawner.path().join(PROCS),
                source,
            })?;
        Ok(vec![fd])
    }

    fn leaf(&self) -> Option<&Directory> {
        self.leaf.as_ref().map(|leaf| &leaf.directory)
    }

    fn grant(&mut self, uid: u32, gid: u32) -> Result<(), CgroupError> {
        self.directory.grant(PROCS, uid, gid)?;
        self.current()?.directory.grant(PROCS, uid, gid)?;
        self.granted = Some((uid, gid));
        Ok(())
    }

    fn apply(&mut self, limits: &Limits, own_tasks: u64) -> Result<(), CgroupError> {
        self.limits = *limits;
        self.own_tasks = own_tasks;
        let missing = self.no_leaf();
        let leaf = self.leaf.as_mut().ok_or(missing)?;
        leaf.apply(&self.controllers, limits, own_tasks)
    }

    fn oom_watch(&self) -> Result<Option<OomWatch>, CgroupError> {
        if !self.controllers.contains(&"memory") {
            return Ok(None);
        }
        OomWatch::v2(&self.current()?.directory).map(Some)
    }

    fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        self.current()?.oom_kills()
    }

    fn counters(&self) -> Result<Counters, CgroupError> {
        self.current()?.counters(self.own_tasks)
    }

    fn reset(&mut self) -> Result<(), CgroupError> {
        if let Some(used) = &self.leaf {
            let pids = used.directory.pids()?;
            if !pids.is_empty() {
                return Err(CgroupError::Occupied {
                    path: used.directory.path().to_owned(),
                    pids,
                });
            }
            used.directory.remove()?;
            self.leaf = None;
        }
        self.next()
    }

    fn remove(&mut self) -> Result<(), CgroupError> {
        self.directory.remove_tree()
    }
}
