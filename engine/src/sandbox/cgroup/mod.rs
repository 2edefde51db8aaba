//! Limits and usage of sandboxes by cgroups, v1 and v2, with what the host lacks said by name.
//!
//! The engine makes `stepbox-<id>` below its own cgroup and a cgroup for each slot in it. Writing a pid to
//! `cgroup.procs` takes milliseconds on an idle machine, so no step is ever moved: on v1 the slot's spawner joins once
//! and its sandboxes inherit, on v2 a step is cloned straight into a fresh leaf. Processes that are not the engine's
//! are never moved.
//!
//! A resource that no controller keeps has something weaker of its own, if anything (`fallback`).
//!
//! All of this runs in the engine, never in a sandbox, and blocks for milliseconds: not for an asynchronous thread.

mod ancestor;
mod branch;
mod counters;
mod delegate;
mod directory;
mod error;
mod fallback;
mod membership;
mod probe;
mod slot;
mod sweep;
mod v1;
mod v2;
mod values;
mod watch;

pub use ancestor::AncestorLimit;
pub use branch::Branch;
pub use counters::Counters;
pub use delegate::ScopeError;
pub use error::{CgroupError, Obstacle};
pub use probe::{ControllerProbe, Probe};
pub use slot::SlotCgroup;
pub use watch::OomWatch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use directory::Directory;
use fallback::Fallback;
use membership::Place;
use serde::{Deserialize, Serialize};
use slot::Part;

use crate::outcome::{EnforcedBy, Resource};

/// A hierarchy of cgroup v1, by the controllers of it that are used here.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Hierarchy(pub Vec<String>);

impl Hierarchy {
    fn of<'a>(controllers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names: Vec<_> = controllers.into_iter().map(str::to_owned).collect();
        names.sort();
        Self(names)
    }

    /// What its directory is called where several are mounted side by side.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.join(",")
    }
}

const PREFIX: &str = "stepbox-";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    V1,
    V2,
}

/// The cgroups of one engine.
#[derive(Debug)]
pub struct Cgroups {
    engine_id: String,
    v1: Option<v1::Tree>,
    v2: Option<v2::Tree>,
    refusals: Vec<Refusal>,
    fallback: Fallback,
    /// What the cgroups above allow, as they stood when the engine started.
    ceilings: Vec<AncestorLimit>,
}

/// A limit that no cgroup keeps here, and why.
#[derive(Debug)]
pub struct Refusal {
    pub resource: Resource,
    pub cause: CgroupError,
    /// The command that mends it, where one is known.
    pub remedy: Option<String>,
}

impl Refusal {
    fn new(resource: Resource, cause: CgroupError, version: Version) -> Self {
        Self {
            resource,
            remedy: cause.remedy(version),
            cause,
        }
    }
}

impl Cgroups {
    /// Reads what the host offers; changes nothing.
    #[must_use]
    pub fn probe() -> Probe {
        Probe::read()
    }

    /// Makes the engine's cgroups for every controller that can be had, and puts the launcher, a process of ours that
    /// has no child yet, where its spawners may clone into leaves. Where v2 is not delegated, systemd is asked for a
    /// scope for it: that may take 3 s.
    ///
    /// What cannot be had is in [`Self::refusals`]; only a bad name is an error.
    pub fn create(engine_id: &str, launcher: Option<u32>) -> Result<Self, CgroupError> {
        check_name(engine_id)?;
        let group = format!("{PREFIX}{engine_id}");
        let (memberships, mounts) = probe::own_view();
        let mut v1 = v1::Tree::default();
        let mut wanted = Vec::new();
        let mut v2_place: Option<Place> = None;
        let mut refusals = Vec::new();
        let mut ceilings = Vec::new();
        for (resource, controller) in probe::LIMITED {
            match membership::locate(&memberships, &mounts, controller) {
                Ok(place) if place.version == Version::V1 => {
                    ceilings.extend(ancestor::lowest(resource, &place));
                    if let Err(cause) = v1.add(controller, &place.directory, &group) {
                        refusals.push(Refusal::new(resource, cause, Version::V1));
                    }
                }
                Ok(place) => {
                    wanted.push((resource, controller));
                    v2_place = Some(place);
                }
                Err(obstacle) => refusals.push(Refusal::new(
                    resource,
                    CgroupError::Unusable(obstacle),
                    Version::V1,
                )),
            }
        }
        if let Ok(place) = membership::locate(&memberships, &mounts, "cpuacct")
            && place.version == Version::V1
        {
            // Only a measurement: without it the time that a step used is unknown.
            let _ = v1.add("cpuacct", &place.directory, &group);
        }
        if !v1.is_empty()
            && let Some(launcher) = launcher
            && let Ok(place) = membership::locate(&memberships, &mounts, v1::PROCESSORS)
            && place.version == Version::V1
        {
            // Only shown: without it Java does not look at the others.
            let _ = v1.add_processors(&place.directory, &group, launcher);
        }
        let own = v2::Own {
            engine: std::process::id(),
            launcher,
        };
        let v2 = v2_place.and_then(|mut place| {
            let (tree, refused) = v2_or_refusals(&place, engine_id, &wanted, own);
            refusals.extend(refused);
            if let Some(tree) = &tree {
                // It may be a scope of its own.
                tree.base().path().clone_into(&mut place.directory);
            }
            let lowest = |(resource, _): &(Resource, _)| ancestor::lowest(*resource, &place);
            ceilings.extend(wanted.iter().filter_map(lowest));
            tree
        });
        Ok(Self {
            engine_id: engine_id.to_owned(),
            v1: (!v1.is_empty()).then_some(v1),
            v2,
            refusals,
            fallback: Fallback::of_this_process(),
            ceilings,
        })
    }

    /// What a cgroup above the sandboxes' own allows them all together, where that is less than `max`.
    #[must_use]
    pub fn ceiling(&self, resource: Resource, max: u64) -> Option<&AncestorLimit> {
        self.ceilings
            .iter()
            .find(|limit| limit.resource == resource && limit.max < max)
    }

    /// The same for sandboxes without namespaces: less stands in for what no cgroup keeps.
    #[must_use]
    pub fn for_reduced(mut self) -> Self {
        self.fallback = Fallback::ALONE;
        self
    }

    /// The limits that no cgroup keeps here.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Makes the cgroups of the slot `name`, which no other slot of this engine may have at the same time.
    pub fn slot(&self, name: &str) -> Result<SlotCgroup, CgroupError> {
        check_name(name)?;
        let name = format!("slot-{name}");
        let mut parts: Vec<Box<dyn Part>> = Vec::new();
        if let Some(tree) = &self.v1 {
            parts.push(Box::new(tree.slot(&name)?));
        }
        if let Some(tree) = &self.v2 {
            match tree.slot(&name) {
                Ok(slot) => parts.push(Box::new(slot)),
                Err(error) => {
                    for part in &mut parts {
                        // Best effort: what stays is removed with the engine's cgroup.
                        let _ = part.remove();
                    }
                    return Err(error);
                }
            }
        }
        // Last: it keeps what no cgroup does.
        parts.push(Box::new(self.fallback));
        Ok(SlotCgroup::new(parts))
    }

    /// Removes all that this engine made. Nothing is killed: processes that are left in there make it fail.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let v1 = self.v1.as_ref().map_or(Ok(()), v1::Tree::remove);
        let v2 = self.v2.as_ref().map_or(Ok(()), v2::Tree::remove);
        v1.and(v2)
    }

    /// Kills and removes what dead engines left beside this one's cgroups. One that lives holds a lock on its own,
    /// whatever `is_dead` says of it.
    pub fn sweep(&self, is_dead: impl Fn(&str) -> bool) -> Result<(), CgroupError> {
        let v1 = self.v1.iter().flat_map(|tree| tree.bases());
        let v2 = self.v2.iter().map(v2::Tree::base);
        v1.chain(v2)
            .map(|base| sweep::sweep(base, &self.engine_id, &is_dead))
            .fold(Ok(()), Result::and)
    }

    /// The directories that this engine made its cgroups in.
    #[must_use]
    pub fn directories(&self) -> Vec<&Path> {
        let v1 = self.v1.iter().flat_map(v1::Tree::groups);
        v1.chain(self.v2.iter().map(v2::Tree::top))
            .map(Directory::path)
            .collect()
    }

    /// The hierarchies of cgroup v1 that each slot has a cgroup in.
    #[must_use]
    pub fn hierarchies(&self) -> Vec<Hierarchy> {
        let trees = self.v1.iter();
        trees.flat_map(v1::Tree::hierarchies).collect()
    }

    /// The `cgroup.procs` by which the launcher leaves cgroups that it is to remove itself, where it is in one (v1).
    #[must_use]
    pub fn way_out(&self) -> Option<PathBuf> {
        self.v1.as_ref().and_then(v1::Tree::way_out)
    }

    /// Whether each sandbox is born in a cgroup of its own (v2).
    #[must_use]
    pub const fn has_leaves(&self) -> bool {
        self.v2.is_some()
    }

    /// What keeps a limit of `resource` to `max` here; `max` none: to whatever may be asked for.
    #[must_use]
    pub fn mechanism(&self, resource: Resource, max: Option<u64>) -> EnforcedBy {
        if self
            .refusals
            .iter()
            .any(|refusal| refusal.resource == resource)
        {
            return self.fallback.mechanism(resource, max);
        }
        match (resource, &self.v2) {
            (Resource::Workspace | Resource::WorkspaceFiles, _) => EnforcedBy::None,
            (_, Some(tree)) if tree.keeps(resource) => EnforcedBy::Cgroup2,
            _ => EnforcedBy::Cgroup1,
        }
    }
}

/// The v2 subtree, and the limits of `wanted` that it does not keep.
fn v2_or_refusals(
    place: &Place,
    engine_id: &str,
    wanted: &[(Resource, &'static str)],
    own: v2::Own,
) -> (Option<v2::Tree>, Vec<Refusal>) {
    match create_v2(place, engine_id, wanted, own) {
        Ok(tree) => {
            let refused = wanted
                .iter()
                .filter(|(resource, _)| !tree.keeps(*resource))
                .map(|(resource, _)| {
                    let obstacle = Obstacle::NotDelegated {
                        directory: tree.base().path().to_owned(),
                    };
                    Refusal::new(*resource, CgroupError::Unusable(obstacle), Version::V2)
                })
                .collect();
            (Some(tree), refused)
        }
        Err(cause) => {
            let cause = Arc::new(cause);
            let refused = wanted
                .iter()
                .map(|(resource, _)| {
                    Refusal::new(*resource, CgroupError::Shared(cause.clone()), Version::V2)
                })
                .collect();
            (None, refused)
        }
    }
}

/// The v2 subtree at `place`, else in a scope of its own for the launcher.
fn create_v2(
    place: &Place,
    engine_id: &str,
    wanted: &[(Resource, &'static str)],
    own: v2::Own,
) -> Result<v2::Tree, CgroupError> {
    let group = &format!("{PREFIX}{engine_id}");
    let controllers: Vec<_> = wanted.iter().map(|(_, controller)| *controller).collect();
    let here = v2::Tree::create(&place.directory, group, &controllers, own);
    let error = match here {
        Err(error) if error.is_about_delegation() => error,
        other => return other,
    };
    if delegate::possible().is_err() {
        // Without systemd the first cause is the one to mend.
        return Err(error);
    }
    let moved = own.launcher.unwrap_or(own.engine);
    delegate::request_scope(engine_id, moved)?;
    let (memberships, mounts) = probe::view(&moved.to_string());
    let scope =
        membership::locate(&memberships, &mounts, controllers[0]).map_err(CgroupError::Unusable)?;
    v2::Tree::create(&scope.directory, group, &controllers, own)
}

/// Whether `name` can be part of a cgroup's name: no path, no unit of systemd's.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    if is_name(name) {
        return Ok(());
    }
    Err(CgroupError::Name {
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a.scope",
            "a b",
            "\0",
            &"x".repeat(65),
        ] {
            assert!(
                matches!(check_name(name), Err(CgroupError::Name { .. })),
                "{name:?}"
            );
        }
        check_name("0af3-1_b").expect("a plain name");
    }

    #[test]
    fn a_probe_tells_of_each_limit_either_a_mechanism_or_why_not() {
        let probe = Cgroups::probe();
        assert_eq!(probe.controllers.len(), 3);
        for controller in &probe.controllers {
            if controller.mechanism == EnforcedBy::None {
                assert!(controller.obstacle.is_some(), "{controller:?}");
                assert!(controller.remedy.is_some(), "{controller:?}");
            } else {
                assert!(controller.directory.is_some(), "{controller:?}");
                assert!(controller.writable || controller.by_scope, "{controller:?}");
            }
        }
    }
}
