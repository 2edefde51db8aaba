//! The cgroup of one step: made ahead, entered by its first process, removed after it.

use super::super::counters::Counters;
use super::super::directory::Directory;
use super::super::error::CgroupError;
use super::super::values::{Bandwidth, keyed, number, or_max, pids_max};
use crate::spec::Limits;

/// The cgroup of one step.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) directory: Directory,
    /// What it holds now; a new cgroup is uncapped.
    applied: Limits,
    pids_max: Option<u64>,
}

impl Leaf {
    pub(super) fn make(
        parent: &Directory,
        controllers: &[&str],
        number: u64,
    ) -> Result<Self, CgroupError> {
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

    pub(super) fn apply(
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

    pub(super) fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        let Some(events) = self.directory.read_optional("memory.events")? else {
            return Ok(None);
        };
        // A group's kill counts each of its tasks in `oom_kill` too; the larger number is never twice the truth.
        Ok(keyed(&events, "oom_kill").max(keyed(&events, "oom_group_kill")))
    }

    pub(super) fn counters(&self, own_tasks: u64) -> Result<Counters, CgroupError> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::fake;
    use super::*;

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
