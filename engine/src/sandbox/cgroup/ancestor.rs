//! What the cgroups above the engine's own allow: each sandbox's limit is kept, and theirs are too.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Version;
use super::membership::Place;
use super::values::{keyed, number};
use crate::outcome::Resource;

/// v1 spells "no limit" as the highest page-aligned number; nothing real is near it.
const V1_UNLIMITED: u64 = 1 << 62;

/// The lowest limit of all cgroups from the engine's own upwards. All that is below it shares that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AncestorLimit {
    pub resource: Resource,
    pub directory: PathBuf,
    /// Bytes, tasks or thousandths of a processor.
    pub max: u64,
}

impl fmt::Display for AncestorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.directory.display();
        write!(f, "{place} caps all together at ")?;
        match self.resource {
            Resource::Memory => write!(f, "{} MiB", self.max >> 20),
            Resource::Pids => write!(f, "{} tasks", self.max),
            Resource::Cpu => write!(f, "{}.{:03} processors", self.max / 1000, self.max % 1000),
            Resource::Workspace | Resource::WorkspaceFiles => write!(f, "{}", self.max),
        }
    }
}

/// The lowest limit that can be seen from `place`, which is asked too.
pub(super) fn lowest(resource: Resource, place: &Place) -> Option<AncestorLimit> {
    let limit = |directory: &Path| {
        Some(AncestorLimit {
            resource,
            directory: directory.to_owned(),
            max: own(resource, place.version, directory)?,
        })
    };
    let seen = place
        .directory
        .ancestors()
        .take_while(|directory| directory.starts_with(&place.mount_point))
        .filter_map(limit)
        .min_by_key(|limit| limit.max);
    // v1 tells of memory limits that are above what a container sees.
    let told = hierarchical(resource, place);
    match (seen, told) {
        (Some(seen), Some(told)) if seen.max <= told.max => Some(seen),
        (seen, told) => told.or(seen),
    }
}

fn read(directory: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(directory.join(file)).ok()
}

/// The limit of one cgroup; none: it has none.
fn own(resource: Resource, version: Version, directory: &Path) -> Option<u64> {
    let one = |file| number(&read(directory, file)?);
    match (resource, version) {
        (Resource::Memory, Version::V1) => {
            one("memory.limit_in_bytes").filter(|max| *max < V1_UNLIMITED)
        }
        (Resource::Memory, Version::V2) => one("memory.max"),
        (Resource::Pids, _) => one("pids.max"),
        (Resource::Cpu, Version::V1) => {
            millicores(one("cpu.cfs_quota_us")?, one("cpu.cfs_period_us")?)
        }
        (Resource::Cpu, Version::V2) => {
            let text = read(directory, "cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            millicores(number(quota)?, number(period)?)
        }
        (Resource::Workspace | Resource::WorkspaceFiles, _) => None,
    }
}

/// No quota is written as no number, or as a negative one.
fn millicores(quota: u64, period: u64) -> Option<u64> {
    quota.saturating_mul(1000).checked_div(period)
}

fn hierarchical(resource: Resource, place: &Place) -> Option<AncestorLimit> {
    if (resource, place.version) != (Resource::Memory, Version::V1) {
        return None;
    }
    let max = keyed(
        &read(&place.directory, "memory.stat")?,
        "hierarchical_memory_limit",
    )
    .filter(|max| *max < V1_UNLIMITED)?;
    Some(AncestorLimit {
        resource,
        directory: place.directory.clone(),
        max,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn files(version: Version, all: &[(&str, &str)]) -> (tempfile::TempDir, Place) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let own = dir.path().join("mount/slice/scope");
        fs::create_dir_all(&own).expect("directories");
        for (name, text) in all {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let place = Place {
            version,
            directory: own,
            mount_point: dir.path().join("mount"),
        };
        (dir, place)
    }

    fn found(resource: Resource, place: &Place) -> Option<(String, u64)> {
        let limit = lowest(resource, place)?;
        let name = limit.directory.file_name()?.to_string_lossy().into_owned();
        Some((name, limit.max))
    }

    #[test]
    fn the_lowest_limit_of_all_ancestors_is_found_within_the_mount() {
        let (_dir, place) = files(
            Version::V2,
            &[
                ("memory.max", "5\n"),
                ("cpu.max", "1000 100000\n"),
                ("mount/memory.max", "max\n"),
                ("mount/slice/memory.max", "1000\n"),
                ("mount/slice/scope/memory.max", "2000\n"),
                ("mount/slice/scope/pids.max", "max\n"),
                ("mount/slice/cpu.max", "150000 100000\n"),
                ("mount/slice/scope/cpu.max", "max 100000\n"),
            ],
        );
        assert_eq!(
            found(Resource::Memory, &place),
            Some(("slice".to_owned(), 1000))
        );
        assert_eq!(found(Resource::Pids, &place), None);
        assert_eq!(
            found(Resource::Cpu, &place),
            Some(("slice".to_owned(), 1500))
        );
    }

    #[test]
    fn v1_limits_are_read_in_the_way_that_v1_writes_them() {
        let (_dir, place) = files(
            Version::V1,
            &[
                (
                    "mount/slice/scope/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("mount/slice/pids.max", "40\n"),
                ("mount/slice/scope/cpu.cfs_quota_us", "-1\n"),
                ("mount/slice/scope/cpu.cfs_period_us", "100000\n"),
                ("mount/slice/cpu.cfs_quota_us", "5000\n"),
                ("mount/slice/cpu.cfs_period_us", "10000\n"),
            ],
        );
        assert_eq!(found(Resource::Memory, &place), None);
        assert_eq!(
            found(Resource::Pids, &place),
            Some(("slice".to_owned(), 40))
        );
        assert_eq!(
            found(Resource::Cpu, &place),
            Some(("slice".to_owned(), 500))
        );
    }

    #[test]
    fn a_memory_limit_above_what_is_mounted_is_heard_of_on_v1() {
        let (_dir, place) = files(
            Version::V1,
            &[
                (
                    "mount/slice/scope/memory.stat",
                    "cache 1\nhierarchical_memory_limit 4096\n",
                ),
                ("mount/slice/memory.limit_in_bytes", "8192\n"),
            ],
        );
        assert_eq!(
            found(Resource::Memory, &place),
            Some(("scope".to_owned(), 4096))
        );
    }

    #[test]
    fn a_limit_is_told_in_the_unit_that_it_is_asked_in() {
        let told = |resource, max| {
            let directory = PathBuf::from("/c");
            AncestorLimit {
                resource,
                directory,
                max,
            }
            .to_string()
        };
        assert_eq!(
            told(Resource::Memory, 3 << 20),
            "/c caps all together at 3 MiB"
        );
        assert_eq!(told(Resource::Pids, 7), "/c caps all together at 7 tasks");
        assert_eq!(
            told(Resource::Cpu, 1500),
            "/c caps all together at 1.500 processors"
        );
    }
}
