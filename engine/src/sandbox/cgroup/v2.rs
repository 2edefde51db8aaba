//! cgroup v2: one subtree per slot, in it a place for the spawner and a fresh leaf for every step.
//!
//! ```text
//! <own cgroup>/stepbox-<id>/engine      the engine, where it had to leave the own cgroup
//!                          /launcher    the launcher
//!                          /<slot>/spawner
//!                          /<slot>/step-<n>
//! ```
//!
//! A spawner clones into a leaf with the rights that it has itself: it needs `cgroup.procs` of the leaf and of the
//! nearest common ancestor, so each slot has an ancestor of its own that can be given to the slot's host id alone.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Access, OFlags};
use rustix::io::Errno;

use super::counters::Counters;
use super::directory::Directory;
use super::error::{CgroupError, Obstacle};
use super::probe::LIMITED;
use super::slot::Part;
use super::values::{Bandwidth, keyed, number, or_max, pids_max};
use super::watch::OomWatch;
use crate::outcome::{EnforcedBy, Resource};
use crate::spec::Limits;

const SUBTREE: &str = "cgroup.subtree_control";
const PROCS: &str = "cgroup.procs";

/// The share of the engine's and launcher's own cgroups against the slots' 100: code at full load must not keep the
/// engine from its deadlines.
const OWN_WEIGHT: &str = "1000";

/// The processes of the engine's, the only ones that are ever moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) engine: u32,
    pub(super) launcher: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Tree {
    base: Directory,
    top: Directory,
    controllers: Vec<&'static str>,
    /// Those that the own cgroup did not hand down before.
    enabled: Vec<&'static str>,
    engine_moved: bool,
}

impl Tree {
    /// Makes the engine's subtree `name` below `base`, hands as many of `wanted` down as there are, and moves the
    /// launcher in. A refusal is told before anything is moved.
    pub(super) fn create(
        base: &Path,
        name: &str,
        wanted: &[&'static str],
        own: Own,
    ) -> Result<Self, CgroupError> {
        let base = Directory::open(base)?;
        let (controllers, enabled) = handed_down(&base, wanted)?;
        if !enabled.is_empty() {
            refuse_base(&base, own)?;
        }
        let top = base.make(name)?;
        let mut tree = Self {
            base,
            top,
            controllers,
            enabled,
            engine_moved: false,
        };
        match tree.populate(own) {
            Ok(()) => Ok(tree),
            Err(error) => {
                tree.undo(own);
                Err(error)
            }
        }
    }

    /// Puts everything back, as far as it goes: the error that led here is the one that says why.
    fn undo(&self, own: Own) {
        if let Some(launcher) = own.launcher {
            let _ = self.base.write(SUBTREE, &signed('-', &self.enabled));
            let _ = self.base.write(PROCS, &launcher.to_string());
        }
        let _ = self.remove();
    }

    fn populate(&mut self, own: Own) -> Result<(), CgroupError> {
        if let Some(launcher) = own.launcher {
            self.top
                .make("launcher")?
                .write(PROCS, &launcher.to_string())?;
        }
        if !self.enabled.is_empty() {
            // Only the root of all cgroups may hold processes and hand controllers down at once.
            if !is_root(&self.base) && self.base.pids()?.contains(&own.engine) {
                self.top
                    .make("engine")?
                    .write(PROCS, &own.engine.to_string())?;
                self.engine_moved = true;
            }
            self.base.write(SUBTREE, &signed('+', &self.enabled))?;
        }
        self.top.write(SUBTREE, &signed('+', &self.controllers))?;
        if self.controllers.contains(&"cpu") {
            for name in ["launcher", "engine"] {
                if let Ok(leaf) = Directory::open(&self.top.path().join(name)) {
                    leaf.write_optional("cpu.weight", OWN_WEIGHT)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn keeps(&self, resource: Resource) -> bool {
        keeps(&self.controllers, resource)
    }

    pub(super) fn base(&self) -> &Directory {
        &self.base
    }

    pub(super) fn top(&self) -> &Directory {
        &self.top
    }

    pub(super) fn slot(&self, name: &str) -> Result<Slot, CgroupError> {
        let directory = self.top.make(name)?;
        let built = (|| {
            directory.write(SUBTREE, &signed('+', &self.controllers))?;
            let spawner = directory.make("spawner")?;
            let leaf = Leaf::make(&directory, &self.controllers, 0)?;
            Ok((spawner, leaf))
        })();
        match built {
            Ok((spawner, leaf)) => Ok(Slot {
                directory,
                spawner,
                controllers: self.controllers.clone(),
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

    pub(super) fn remove(&self) -> Result<(), CgroupError> {
        for name in self.top.children()? {
            if name != "engine" {
                Directory::open(&self.top.path().join(name))?.remove_tree()?;
            }
        }
        if self.engine_moved {
            // The way back: a cgroup takes processes again once it hands nothing down.
            self.top.write(SUBTREE, &signed('-', &self.controllers))?;
            self.base.write(SUBTREE, &signed('-', &self.enabled))?;
            self.base.write(PROCS, "0")?;
        }
        self.top.remove_tree()
    }
}

/// The controllers of `wanted` that `base` has, and those of them that it does not hand down yet.
pub(super) fn handed_down(
    base: &Directory,
    wanted: &[&'static str],
) -> Result<(Vec<&'static str>, Vec<&'static str>), CgroupError> {
    let available = base.read("cgroup.controllers")?;
    let controllers: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|name| available.split_whitespace().any(|known| known == *name))
        .collect();
    if controllers.is_empty() {
        return Err(CgroupError::Unusable(Obstacle::NotDelegated {
            directory: base.path().to_owned(),
        }));
    }
    let below = base.read(SUBTREE)?;
    let missing = controllers
        .iter()
        .copied()
        .filter(|name| !below.split_whitespace().any(|known| known == *name))
        .collect();
    Ok((controllers, missing))
}

/// Refuses a cgroup that cannot hand controllers down: it is another's, or holds processes that would have to be moved
/// though they are not ours.
pub(super) fn refuse_base(base: &Directory, own: Own) -> Result<(), CgroupError> {
    rustix::fs::access(base.path().join(SUBTREE), Access::WRITE_OK).map_err(|errno| {
        CgroupError::Unusable(Obstacle::Denied {
            directory: base.path().to_owned(),
            errno: errno.raw_os_error(),
        })
    })?;
    if is_root(base) {
        return Ok(());
    }
    let mut foreign = base.pids()?;
    foreign.retain(|pid| *pid != own.engine && Some(*pid) != own.launcher);
    if foreign.is_empty() {
        return Ok(());
    }
    Err(CgroupError::Unusable(Obstacle::Foreign {
        directory: base.path().to_owned(),
        count: foreign.len(),
    }))
}

/// Whether this is the root of all cgroups, not just of a namespace: it alone has no type.
fn is_root(directory: &Directory) -> bool {
    matches!(directory.read_optional("cgroup.type"), Ok(None))
}

fn keeps(controllers: &[&str], resource: Resource) -> bool {
    LIMITED
        .iter()
        .any(|(limited, name)| *limited == resource && controllers.contains(name))
}

fn signed(sign: char, controllers: &[&str]) -> String {
    controllers
        .iter()
        .map(|name| format!("{sign}{name}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The cgroup of one step.
#[derive(Debug)]
struct Leaf {
    directory: Directory,
    /// What it holds now; a new cgroup is uncapped.
    applied: Limits,
    pids_max: Option<u64>,
}

impl Leaf {
    fn make(parent: &Directory, controllers: &[&str], number: u64) -> Result<Self, CgroupError> {
        let directory = parent.make(&format!("step-{number}"))?;
        if controllers.contains(&"memory") {
            // The whole sandbox goes, not the one task that happened to be biggest.
            directory.write_optional("memory.oom.group", "1")?;
        }
        Ok(Self {
            directory,
            applied: Limits::default(),
            pids_max: None,
        })
    }

    fn apply(
        &mut self,
        controllers: &[&str],
        limits: &Limits,
        own_tasks: u64,
    ) -> Result<(), CgroupError> {
        if controllers.contains(&"memory") && self.applied.memory != limits.memory {
            let swap = if limits.memory.is_some() { "0" } else { "max" };
            self.directory.write_optional("memory.swap.max", swap)?;
            self.directory.write("memory.max", &or_max(limits.memory))?;
            self.applied.memory = limits.memory;
        }
        let max = pids_max(limits.pids, own_tasks);
        if controllers.contains(&"pids") && self.pids_max != max {
            self.directory.write("pids.max", &or_max(max))?;
            self.pids_max = max;
        }
        if controllers.contains(&"cpu") && self.applied.cpu != limits.cpu {
            let value = match limits.cpu.map(Bandwidth::of) {
                Some(Bandwidth { quota, period }) => format!("{quota} {period}"),
                None => "max 100000".into(),
            };
            self.directory.write("cpu.max", &value)?;
            self.applied.cpu = limits.cpu;
        }
        Ok(())
    }

    fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        let Some(events) = self.directory.read_optional("memory.events")? else {
            return Ok(None);
        };
        // A group's kill counts each of its tasks in `oom_kill` too; the larger number is never twice the truth.
        Ok(keyed(&events, "oom_kill").max(keyed(&events, "oom_group_kill")))
    }

    fn counters(&self, own_tasks: u64) -> Result<Counters, CgroupError> {
        let read = |name| self.directory.read_optional(name);
        Ok(Counters {
            oom_kills: self.oom_kills()?,
            peak_memory: read("memory.peak")?.and_then(|text| number(&text)),
            cpu_us: read("cpu.stat")?.and_then(|text| keyed(&text, "usage_usec")),
            pids_peak: read("pids.peak")?
                .and_then(|text| number(&text))
                .map(|peak| peak.saturating_sub(own_tasks)),
            pids_denied: read("pids.events")?.and_then(|text| keyed(&text, "max")),
        })
    }
}

#[derive(Debug)]
pub(super) struct Slot {
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
    fn mechanism(&self, resource: Resource) -> EnforcedBy {
        if keeps(&self.controllers, resource) {
            EnforcedBy::Cgroup2
        } else {
            EnforcedBy::None
        }
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

    fn seal(&mut self) -> Result<(), CgroupError> {
        // A leaf starts empty and is used once: there is nothing to tell apart.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory of plain files that reads like a cgroup.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Directory) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let opened = Directory::open(dir.path()).expect("the directory");
        (dir, opened)
    }

    const OWN: Own = Own {
        engine: 10,
        launcher: Some(11),
    };

    #[test]
    fn only_what_the_own_cgroup_has_is_handed_down_and_only_once() {
        let (_dir, base) = fake(&[
            ("cgroup.controllers", "cpu io memory\n"),
            (SUBTREE, "memory\n"),
        ]);
        let (controllers, missing) =
            handed_down(&base, &["memory", "pids", "cpu"]).expect("controllers");
        assert_eq!(controllers, ["memory", "cpu"]);
        assert_eq!(missing, ["cpu"]);
    }

    #[test]
    fn a_cgroup_without_controllers_is_not_delegated_and_left_alone() {
        let (dir, _base) = fake(&[("cgroup.controllers", "\n"), (SUBTREE, "\n")]);
        let error = Tree::create(dir.path(), "stepbox-a", &["memory"], OWN).expect_err("refused");
        assert!(error.is_about_delegation(), "{error}");
        assert!(!dir.path().join("stepbox-a").exists());
    }

    #[test]
    fn foreign_processes_are_never_moved() {
        let (dir, _base) = fake(&[
            ("cgroup.controllers", "memory pids cpu\n"),
            (SUBTREE, "\n"),
            ("cgroup.type", "domain\n"),
            (PROCS, "10\n11\n12\n"),
        ]);
        let error = Tree::create(dir.path(), "stepbox-a", &["memory"], OWN).expect_err("refused");
        assert!(
            matches!(
                &error,
                CgroupError::Unusable(Obstacle::Foreign { count: 1, .. })
            ),
            "{error}"
        );
        assert!(!dir.path().join("stepbox-a").exists());
    }

    #[test]
    fn the_root_of_all_cgroups_may_hold_processes() {
        let (_dir, base) = fake(&[(SUBTREE, ""), (PROCS, "1\n2\n")]);
        refuse_base(&base, OWN).expect("no refusal");
    }

    #[test]
    fn a_cgroup_with_none_but_our_processes_can_be_used() {
        let (_dir, base) = fake(&[
            (SUBTREE, ""),
            ("cgroup.type", "domain\n"),
            (PROCS, "10\n11\n"),
        ]);
        refuse_base(&base, OWN).expect("no refusal");
    }

    fn leaf(directory: Directory) -> Leaf {
        Leaf {
            directory,
            applied: Limits::default(),
            pids_max: None,
        }
    }

    const ALL: [&str; 3] = ["memory", "pids", "cpu"];

    #[test]
    fn limits_are_written_as_v2_spells_them_and_only_when_they_change() {
        let (dir, opened) = fake(&[
            ("memory.max", ""),
            ("memory.swap.max", ""),
            ("pids.max", ""),
            ("cpu.max", ""),
        ]);
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("a file");
        let mut leaf = leaf(opened);
        let limits = Limits {
            memory: Some(1 << 20),
            pids: Some(64),
            cpu: Some(500),
        };
        leaf.apply(&ALL, &limits, 1).expect("applied");
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("pids.max"), "65");
        assert_eq!(read("cpu.max"), "50000 100000");

        for name in ["memory.max", "pids.max", "cpu.max"] {
            fs::write(dir.path().join(name), "untouched").expect("a file");
        }
        leaf.apply(&ALL, &limits, 1).expect("applied again");
        assert_eq!(read("memory.max"), "untouched");
        assert_eq!(read("pids.max"), "untouched");
        assert_eq!(read("cpu.max"), "untouched");

        // Plain files keep what was longer, so only the beginning tells.
        leaf.apply(&ALL, &Limits::default(), 1).expect("uncapped");
        assert!(read("memory.max").starts_with("max"));
        assert!(read("memory.swap.max").starts_with("max"));
        assert!(read("pids.max").starts_with("max"));
        assert!(read("cpu.max").starts_with("max 100000"));
    }

    #[test]
    fn counters_are_read_from_v2_files() {
        let (_dir, opened) = fake(&[
            (
                "memory.events",
                "low 0\nhigh 0\nmax 9\noom 1\noom_kill 4\noom_group_kill 1\n",
            ),
            ("memory.peak", "4194304\n"),
            (
                "cpu.stat",
                "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n",
            ),
            ("pids.peak", "7\n"),
            ("pids.events", "max 3\n"),
        ]);
        assert_eq!(
            leaf(opened).counters(1).expect("counters"),
            Counters {
                oom_kills: Some(4),
                peak_memory: Some(4_194_304),
                cpu_us: Some(1234),
                pids_peak: Some(6),
                pids_denied: Some(3),
            }
        );
    }

    #[test]
    fn what_an_older_kernel_does_not_count_is_unknown_and_not_zero() {
        let (_dir, opened) = fake(&[("cpu.stat", "usage_usec 5\n")]);
        assert_eq!(
            leaf(opened).counters(1).expect("counters"),
            Counters {
                cpu_us: Some(5),
                ..Counters::default()
            }
        );
    }
}
