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

mod leaf;
mod slot;

use std::path::Path;

use rustix::fs::Access;

use super::delegate;
use super::directory::Directory;
use super::error::{CgroupError, Obstacle};
use super::probe::LIMITED;
use crate::outcome::Resource;

use slot::Slot;

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
        let top = base.make_locked(name)?;
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
        Slot::make(self.top.make(name)?, &self.controllers)
    }

    pub(super) fn remove(&self) -> Result<(), CgroupError> {
        for name in self.top.children()? {
            if name != "engine" {
                self.top.remove_child(&name)?;
            }
        }
        if self.engine_moved {
            // The way back: a cgroup takes processes again once it hands nothing down.
            self.top.write(SUBTREE, &signed('-', &self.controllers))?;
            self.base.write(SUBTREE, &signed('-', &self.enabled))?;
            self.base.write(PROCS, "0")?;
        }
        self.top.remove_tree()?;
        if delegate::is_scope(self.base.path()) {
            // A manager that has ended it already has no such unit any more.
            let _ = delegate::end_scope(self.base.path());
            // One that walks the subtree while it goes gives up half-way, and forgets the scope's own cgroup.
            let _ = self.base.remove();
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory of plain files that reads like a cgroup.
    pub(super) fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Directory) {
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
    fn a_child_that_the_manager_removed_first_is_no_failure() {
        let (dir, base) = fake(&[]);
        fs::create_dir_all(dir.path().join("launcher/below")).expect("children");
        base.remove_child("launcher").expect("removed");
        assert!(!dir.path().join("launcher").exists());
        base.remove_child("launcher").expect("it is gone already");
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
}
