//! cgroup v1: one cgroup per slot and hierarchy, joined once by the slot's spawner and inherited by every sandbox.
//!
//! Its counters only grow and its page cache stays charged, so a step is told from the last one by differences and by
//! emptying the cgroup in between.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::Hierarchy;
use super::branch::Branch;
use super::counters::Counters;
use super::directory::Directory;
use super::error::CgroupError;
use super::slot::Part;
use super::values::{Bandwidth, keyed, number, or_max, or_minus_one, pids_max};
use super::watch::OomWatch;
use crate::outcome::{EnforcedBy, Resource};
use crate::spec::Limits;

/// What a step may leave charged without the cgroup being emptied for it. Emptying waits for every core, which costs more
/// than a small step; the kernel's own per-core reserves blur each peak by this order anyhow.
const RESIDUE: u64 = 1 << 20;

/// The engine's cgroup in each hierarchy, all slots below it. Controllers mounted together share one.
#[derive(Debug, Default)]
pub(super) struct Tree {
    groups: Vec<(Vec<&'static str>, Directory)>,
    /// Where the engine's cgroups were made: what a sweep looks through.
    bases: Vec<Directory>,
    processors: Option<Processors>,
}

/// The engine's cgroup of `cpuset`, with all processors of the one that it is in. The launcher lives in it, and with it every
/// sandbox. It limits nothing: Java believes its cgroups only where it finds this one too, and the engine's own would show
/// what else the host has.
#[derive(Debug)]
struct Processors {
    base: Directory,
    group: Directory,
}

/// The controller of [`Processors`].
pub(super) const PROCESSORS: &str = "cpuset";
const PROCS: &str = "cgroup.procs";

impl Tree {
    /// Makes the cgroup `name` for `controller` below `base`, unless one for a controller mounted with it is there.
    pub(super) fn add(
        &mut self,
        controller: &'static str,
        base: &Path,
        name: &str,
    ) -> Result<(), CgroupError> {
        let shared = self.bases.iter().position(|known| known.path() == base);
        if let Some(at) = shared {
            self.groups[at].0.push(controller);
            return Ok(());
        }
        let base = Directory::open(base)?;
        let group = base.make_locked(name)?;
        self.groups.push((vec![controller], group));
        self.bases.push(base);
        Ok(())
    }

    /// Makes the cgroup `name` of `cpuset` below `base`, and moves the launcher into it.
    pub(super) fn add_processors(
        &mut self,
        base: &Path,
        name: &str,
        launcher: u32,
    ) -> Result<(), CgroupError> {
        let base = Directory::open(base)?;
        let group = base.make_locked(name)?;
        let moved = (|| {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                group.write(file, base.read(file)?.trim_end())?;
            }
            let pid = i32::try_from(launcher).ok().and_then(Pid::from_raw);
            let before = sched_getaffinity(pid);
            group.write(PROCS, &launcher.to_string())?;
            if let Ok(before) = before {
                // Older kernels forget which processors a process was given when they move it.
                let _ = sched_setaffinity(pid, &before);
            }
            Ok(())
        })();
        match moved {
            Ok(()) => {
                self.processors = Some(Processors { base, group });
                Ok(())
            }
            Err(error) => {
                let _ = group.remove();
                Err(error)
            }
        }
    }

    /// Where the launcher goes when it is to remove what the engine made.
    pub(super) fn way_out(&self) -> Option<PathBuf> {
        let processors = self.processors.as_ref()?;
        Some(processors.base.path().join(PROCS))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Directory> {
        let processors = self.processors.iter().map(|made| &made.group);
        self.groups.iter().map(|(_, group)| group).chain(processors)
    }

    pub(super) fn hierarchies(&self) -> impl Iterator<Item = Hierarchy> {
        let groups = self.groups.iter();
        let processors = self.processors.iter();
        groups
            .map(|(controllers, _)| Hierarchy::of(controllers.iter().copied()))
            .chain(processors.map(|_| Hierarchy::of([PROCESSORS])))
    }

    pub(super) fn bases(&self) -> impl Iterator<Item = &Directory> {
        let processors = self.processors.iter().map(|made| &made.base);
        self.bases.iter().chain(processors)
    }

    pub(super) fn slot(&self, name: &str) -> Result<Slot, CgroupError> {
        let mut slot = Slot::default();
        for (controllers, group) in &self.groups {
            let made = match group.make(name) {
                Ok(made) => Arc::new(made),
                Err(error) => {
                    // Best effort: what stays is removed with the engine's cgroup.
                    let _ = slot.remove();
                    return Err(error);
                }
            };
            slot.all.push(made.clone());
            slot.hierarchies
                .push(Hierarchy::of(controllers.iter().copied()));
            for controller in controllers {
                match *controller {
                    "memory" => slot.memory = Some(made.clone()),
                    "pids" => slot.pids = Some(made.clone()),
                    "cpu" => slot.cpu = Some(made.clone()),
                    _ => slot.cpuacct = Some(made.clone()),
                }
            }
        }
        slot.processors = self
            .processors
            .as_ref()
            .map(|made| made.group.path().to_owned());
        if let Some(memory) = &slot.memory {
            // Where swap is not accounted this alone keeps a sandbox from growing past its cap into swap.
            memory.write_optional("memory.swappiness", "0")?;
        }
        slot.baseline = slot.totals()?;
        Ok(slot)
    }

    pub(super) fn remove(&self) -> Result<(), CgroupError> {
        self.groups()
            .map(Directory::remove_tree)
            .fold(Ok(()), Result::and)
    }
}

/// What the kernel counts up over the life of a cgroup.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    oom_kills: Option<u64>,
    cpu_ns: Option<u64>,
    pids_denied: Option<u64>,
    pids_peak: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    memory: Option<Arc<Directory>>,
    pids: Option<Arc<Directory>>,
    cpu: Option<Arc<Directory>>,
    cpuacct: Option<Arc<Directory>>,
    all: Vec<Arc<Directory>>,
    /// Of which each of `all` is.
    hierarchies: Vec<Hierarchy>,
    /// The one that all slots share.
    processors: Option<PathBuf>,
    /// What the cgroups hold now; a new cgroup is uncapped.
    applied: Limits,
    pids_max: Option<u64>,
    /// Tasks in the cgroups that are not the code's.
    own_tasks: u64,
    /// The processes that stay between steps, their tasks and what they use.
    residents: Vec<u32>,
    resident_tasks: u64,
    resident_bytes: u64,
    baseline: Totals,
}

impl Slot {
    fn totals(&self) -> Result<Totals, CgroupError> {
        let read = |directory: &Option<Arc<Directory>>, name| match directory {
            Some(directory) => directory.read_optional(name),
            None => Ok(None),
        };
        Ok(Totals {
            oom_kills: self.read_oom_kills()?,
            cpu_ns: read(&self.cpuacct, "cpuacct.usage")?.and_then(|text| number(&text)),
            pids_denied: read(&self.pids, "pids.events")?.and_then(|text| keyed(&text, "max")),
            pids_peak: read(&self.pids, "pids.peak")?.and_then(|text| number(&text)),
        })
    }

    fn read_oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let text = memory.read_optional("memory.oom_control")?;
        Ok(text.and_then(|text| keyed(&text, "oom_kill")))
    }

    fn apply_memory(&self, memory: &Directory, max: Option<u64>) -> Result<(), CgroupError> {
        let value = or_minus_one(max);
        let raises = match (self.applied.memory, max) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(old), Some(new)) => new > old,
        };
        // The kernel keeps memory + swap at or above memory at every moment.
        if raises {
            memory.write_optional("memory.memsw.limit_in_bytes", &value)?;
            memory.write("memory.limit_in_bytes", &value)
        } else {
            memory.write("memory.limit_in_bytes", &value)?;
            memory
                .write_optional("memory.memsw.limit_in_bytes", &value)
                .map(drop)
        }
    }
}

fn usage(memory: &Directory) -> Result<u64, CgroupError> {
    let text = memory.read("memory.usage_in_bytes")?;
    // What cannot be read as a number is as good as full.
    Ok(number(&text).unwrap_or(u64::MAX))
}

fn apply_cpu(cpu: &Directory, millicores: Option<u64>) -> Result<(), CgroupError> {
    // Uncapped in between: each single write is checked against the parent's share.
    cpu.write("cpu.cfs_quota_us", "-1")?;
    let Some(bandwidth) = millicores.map(Bandwidth::of) else {
        return Ok(());
    };
    cpu.write("cpu.cfs_period_us", &bandwidth.period.to_string())?;
    match cpu.write("cpu.cfs_quota_us", &bandwidth.quota.to_string()) {
        // An ancestor gives less than was asked for: its own quota is the stricter one and binds.
        Err(CgroupError::Write {
            source: Errno::INVAL,
            ..
        }) => Ok(()),
        other => other,
    }
}

impl Part for Slot {
    fn shown(&self) -> Vec<(Hierarchy, PathBuf)> {
        let paths = self.all.iter().map(|made| made.path().to_owned());
        let shared = self.processors.iter();
        let shared = shared.map(|path| (Hierarchy::of([PROCESSORS]), path.clone()));
        self.hierarchies
            .iter()
            .cloned()
            .zip(paths)
            .chain(shared)
            .collect()
    }

    fn mechanism(&self, resource: Resource, _max: Option<u64>) -> EnforcedBy {
        let directory = match resource {
            Resource::Memory => &self.memory,
            Resource::Pids => &self.pids,
            Resource::Cpu => &self.cpu,
            Resource::Workspace | Resource::WorkspaceFiles => &None,
        };
        match directory {
            Some(_) => EnforcedBy::Cgroup1,
            None => EnforcedBy::None,
        }
    }

    fn branch(&self, name: &str) -> Result<Option<Branch>, CgroupError> {
        // Where tasks are counted none can be added to what is to end.
        let parent = self.pids.as_ref().or(self.all.first());
        parent
            .map(|parent| Branch::make(parent, name, None))
            .transpose()
    }

    fn join_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.all
            .iter()
            .map(|directory| {
                directory
                    .open_file("cgroup.procs", OFlags::WRONLY)
                    .map_err(|source| CgroupError::Open {
                        path: directory.path().join("cgroup.procs"),
                        source,
                    })
            })
            .collect()
    }

    fn seal(&mut self) -> Result<(), CgroupError> {
        if let Some(first) = self.all.first() {
            self.residents = first.pids()?;
        }
        self.resident_tasks = match &self.pids {
            Some(pids) => number(&pids.read("pids.current")?),
            None => None,
        }
        .unwrap_or(self.residents.len() as u64);
        if let Some(memory) = &self.memory {
            memory.write("memory.force_empty", "0")?;
            self.resident_bytes = usage(memory)?;
        }
        self.reset()
    }

    fn apply(&mut self, limits: &Limits, own_tasks: u64) -> Result<(), CgroupError> {
        if let Some(memory) = &self.memory
            && self.applied.memory != limits.memory
        {
            self.apply_memory(memory, limits.memory)?;
            self.applied.memory = limits.memory;
        }
        self.own_tasks = own_tasks + self.resident_tasks;
        let max = pids_max(limits.pids, self.own_tasks);
        if let Some(pids) = &self.pids
            && self.pids_max != max
        {
            pids.write("pids.max", &or_max(max))?;
            self.pids_max = max;
        }
        if let Some(cpu) = &self.cpu
            && self.applied.cpu != limits.cpu
        {
            apply_cpu(cpu, limits.cpu)?;
            self.applied.cpu = limits.cpu;
        }
        Ok(())
    }

    fn oom_watch(&self) -> Result<Option<OomWatch>, CgroupError> {
        self.memory.as_deref().map(OomWatch::v1).transpose()
    }

    fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        Ok(since(self.read_oom_kills()?, self.baseline.oom_kills))
    }

    fn counters(&self) -> Result<Counters, CgroupError> {
        let now = self.totals()?;
        let peak_memory = match &self.memory {
            Some(memory) => memory.read_optional("memory.max_usage_in_bytes")?,
            None => None,
        };
        Ok(Counters {
            oom_kills: since(now.oom_kills, self.baseline.oom_kills),
            peak_memory: peak_memory.and_then(|text| number(&text)),
            cpu_us: since(now.cpu_ns, self.baseline.cpu_ns).map(|ns| ns / 1000),
            // The kernel never lowers this peak: one that did not move is an earlier step's.
            pids_peak: now
                .pids_peak
                .filter(|peak| Some(*peak) > self.baseline.pids_peak)
                .map(|peak| peak.saturating_sub(self.own_tasks)),
            pids_denied: since(now.pids_denied, self.baseline.pids_denied),
        })
    }

    fn reset(&mut self) -> Result<(), CgroupError> {
        for directory in &self.all {
            let mut pids = directory.pids()?;
            pids.retain(|pid| !self.residents.contains(pid));
            if !pids.is_empty() {
                return Err(CgroupError::Occupied {
                    path: directory.path().to_owned(),
                    pids,
                });
            }
        }
        if let Some(memory) = &self.memory {
            if usage(memory)? > self.resident_bytes.saturating_add(RESIDUE) {
                memory.write("memory.force_empty", "0")?;
            }
            memory.write("memory.max_usage_in_bytes", "0")?;
        }
        self.baseline = self.totals()?;
        Ok(())
    }

    fn remove(&mut self) -> Result<(), CgroupError> {
        self.all
            .iter()
            .map(|directory| directory.remove())
            .fold(Ok(()), Result::and)
    }
}

fn since(now: Option<u64>, then: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(then?))
}
