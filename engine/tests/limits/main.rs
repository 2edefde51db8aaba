//! The promise that a limit binds and that usage is a step's own, against the kernel that is running.
//!
//! A host where the own cgroup takes no children fails here: that is what the suite's set-up is for.

#![expect(
    clippy::disallowed_methods,
    reason = "limits are tested on programs of the host"
)]

mod host;

use rustix::event::{PollFd, Timespec, poll};
use stepbox_engine::outcome::{EnforcedBy, Resource};
use stepbox_engine::sandbox::cgroup::{CgroupError, OomWatch, SlotCgroup};
use stepbox_engine::spec::Limits;

use host::Host;

const MIB: u64 = 1 << 20;

/// The member of a slot that the tests start: the interpreter is one task of "the engine's own".
const OWN_TASKS: u64 = 1;

fn ready(watch: &OomWatch, seconds: i64) -> bool {
    let mut fds = [PollFd::new(watch, watch.events())];
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

fn cap_memory(slot: &mut SlotCgroup, memory: u64) {
    let limits = Limits {
        memory: Some(memory),
        ..Limits::default()
    };
    slot.apply(&limits, OWN_TASKS).expect("limits");
}

#[test]
fn every_limit_has_a_mechanism_and_says_which() {
    let host = Host::new();
    let mut slot = host.slot("a");
    let limits = Limits {
        memory: Some(64 * MIB),
        pids: Some(8),
        cpu: Some(500),
    };
    let applied = slot.apply(&limits, OWN_TASKS).expect("limits");
    assert_eq!(
        applied
            .iter()
            .map(|limit| limit.resource)
            .collect::<Vec<_>>(),
        [Resource::Memory, Resource::Pids, Resource::Cpu]
    );
    for limit in &applied {
        assert_ne!(limit.enforced_by, EnforcedBy::None, "{limit:?}");
        assert_eq!(
            limit.enforced_by,
            host.cgroups().mechanism(limit.resource, limit.max)
        );
    }
    let uncapped = slot.apply(&Limits::default(), OWN_TASKS).expect("limits");
    assert!(
        uncapped
            .iter()
            .all(|limit| (limit.max, limit.enforced_by) == (None, EnforcedBy::None))
    );
    slot.remove().expect("removed");
}

#[test]
fn a_step_past_its_memory_is_killed_and_the_kill_is_counted() {
    let host = Host::new();
    let mut slot = host.slot("a");
    cap_memory(&mut slot, 64 * MIB);
    let watch = slot
        .oom_watch()
        .expect("a watch")
        .expect("memory is watched");
    assert!(!ready(&watch, 0), "nothing has happened");

    let status = host.run(&slot, "b'x' * (256 << 20)");
    assert_eq!(status.signal, Some(9), "{status:?}");
    assert!(ready(&watch, 10), "the kill wakes the watch");
    assert_eq!(slot.oom_kills().expect("kills"), Some(1));
    let counters = slot.counters().expect("counters");
    assert_eq!(counters.oom_kills, Some(1));
    assert!(counters.peak_memory.is_some_and(|peak| peak <= 64 * MIB));

    watch.clear();
    assert!(!ready(&watch, 0), "a watch that was cleared is armed again");
    slot.remove().expect("removed");
}

#[test]
fn a_step_within_its_memory_ends_by_itself_and_no_kill_is_counted() {
    let host = Host::new();
    let mut slot = host.slot("a");
    cap_memory(&mut slot, 128 * MIB);
    let watch = slot
        .oom_watch()
        .expect("a watch")
        .expect("memory is watched");
    let status = host.run(&slot, "b'x' * (32 << 20)");
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(!ready(&watch, 0));
    let counters = slot.counters().expect("counters");
    assert_eq!(counters.oom_kills, Some(0));
    assert!(
        counters
            .peak_memory
            .is_some_and(|peak| (32 * MIB..128 * MIB).contains(&peak)),
        "{counters:?}"
    );
    assert!(counters.cpu_us.is_some_and(|us| us > 0), "{counters:?}");
    slot.remove().expect("removed");
}

#[test]
fn a_memory_limit_can_be_raised_and_lowered_and_lifted_between_steps() {
    let host = Host::new();
    let mut slot = host.slot("a");
    for (memory, survives) in [
        (Some(64 * MIB), false),
        (Some(256 * MIB), true),
        (Some(48 * MIB), false),
        (None, true),
        (Some(64 * MIB), false),
    ] {
        let limits = Limits {
            memory,
            ..Limits::default()
        };
        slot.apply(&limits, OWN_TASKS).expect("limits");
        let status = host.run(&slot, "b'x' * (96 << 20)");
        assert_eq!(status.code == Some(0), survives, "{memory:?}: {status:?}");
        let kills = slot.oom_kills().expect("kills");
        assert_eq!(kills, Some(u64::from(!survives)), "{memory:?}");
        slot.reset().expect("clean");
    }
    slot.remove().expect("removed");
}

#[test]
fn forks_past_the_task_limit_are_refused_and_counted() {
    let host = Host::new();
    let mut slot = host.slot("a");
    let limits = Limits {
        pids: Some(5),
        ..Limits::default()
    };
    slot.apply(&limits, OWN_TASKS).expect("limits");
    let forks = "
import os, signal
made = []
try:
    while len(made) < 100:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
except BlockingIOError:
    pass
for pid in made:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
os._exit(len(made))";
    let status = host.run(&slot, forks);
    assert_eq!(status.code, Some(5), "{status:?}");
    let counters = slot.counters().expect("counters");
    assert_eq!(counters.pids_denied, Some(1));
    assert!(
        counters.pids_peak.is_none_or(|peak| peak == 5),
        "{counters:?}"
    );

    slot.reset().expect("clean");
    assert_eq!(host.run(&slot, "pass").code, Some(0));
    let counters = slot.counters().expect("counters");
    assert_eq!(
        counters.pids_denied,
        Some(0),
        "the last step's are not this one's"
    );
    assert_ne!(counters.pids_peak, Some(5), "nor is its peak");
    slot.remove().expect("removed");
}

#[test]
fn any_share_of_a_core_is_taken_by_the_kernel() {
    let host = Host::new();
    let mut slot = host.slot("a");
    for cpu in [
        Some(1),
        Some(9),
        Some(500),
        Some(64_000),
        Some(u64::MAX),
        None,
        Some(100),
    ] {
        let limits = Limits {
            cpu,
            ..Limits::default()
        };
        slot.apply(&limits, OWN_TASKS)
            .unwrap_or_else(|error| panic!("{cpu:?}: {error:?}"));
    }
    // A tenth of a core is in force: a step that wants more is made to wait.
    let status = host.run(
        &slot,
        "
import time
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass",
    );
    assert_eq!(status.code, Some(0));
    assert!(host.throttled("a"), "the scheduler held the step back");
    slot.remove().expect("removed");
}

#[test]
fn a_reset_slot_shows_nothing_of_the_last_step() {
    let host = Host::new();
    let mut slot = host.slot("a");
    cap_memory(&mut slot, 512 * MIB);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let touch = format!(
        "x = b'x' * (60 << 20)\nopen({:?}, 'wb').write(x)",
        file.path().display().to_string()
    );
    assert_eq!(host.run(&slot, &touch).code, Some(0));
    let used = slot.counters().expect("counters");
    assert!(
        used.peak_memory.is_some_and(|peak| peak > 60 * MIB),
        "{used:?}"
    );

    slot.reset().expect("clean");
    assert_eq!(host.run(&slot, "pass").code, Some(0));
    let fresh = slot.counters().expect("counters");
    assert!(
        fresh.peak_memory.is_some_and(|peak| peak < 50 * MIB),
        "{fresh:?}"
    );
    assert!(
        fresh.cpu_us < used.cpu_us.map(|us| us + 1_000_000),
        "{fresh:?}"
    );
    slot.remove().expect("removed");
}

#[test]
fn a_slot_that_still_holds_a_process_is_not_reset() {
    let host = Host::new();
    let mut slot = host.slot("a");
    let mut left = host.start(&slot, "input()");
    let pid = left.pid();
    match slot.reset() {
        Err(CgroupError::Occupied { pids, .. }) => assert_eq!(pids, [pid]),
        other => panic!("{other:?}"),
    }
    left.end();
    slot.reset().expect("clean once it is gone");
    slot.remove().expect("removed");
}

#[test]
fn what_joined_before_the_seal_stays() {
    let host = Host::new();
    let mut slot = host.slot("a");
    let mut spawner = host.start_spawner(&slot);
    slot.seal().expect("sealed");
    assert_eq!(host.run(&slot, "pass").code, Some(0));
    slot.reset().expect("only the spawner is left");

    // It does not count against the step's tasks either: two forks fit beside the interpreter, a third does not.
    let limits = Limits {
        pids: Some(2),
        ..Limits::default()
    };
    slot.apply(&limits, OWN_TASKS).expect("limits");
    let forks = "
import os
made = 0
try:
    while os.fork():
        made += 1
    os.read(0, 1)
except BlockingIOError:
    pass
os._exit(made)";
    assert_eq!(host.run(&slot, forks).code, Some(2));
    spawner.end();
    slot.remove().expect("removed");
}

#[test]
fn a_leaf_is_another_one_after_each_reset() {
    let host = Host::new();
    let mut slot = host.slot("a");
    let Some(first) = slot.leaf().expect("a leaf") else {
        // v1: sandboxes inherit, there is none to enter.
        slot.reset().expect("clean");
        assert!(slot.leaf().expect("no leaf").is_none());
        slot.remove().expect("removed");
        return;
    };
    slot.reset().expect("clean");
    let second = slot.leaf().expect("a leaf").expect("a leaf");
    let inode = |fd| rustix::fs::fstat(fd).expect("stat").st_ino;
    assert_ne!(inode(&first), inode(&second));
    slot.remove().expect("removed");
}

#[test]
fn removal_leaves_no_directory() {
    let host = Host::new();
    let slot = host.slot("a");
    let _kept = host.slot("b");
    slot.remove().expect("removed");
    let directories = host.directories();
    assert!(!directories.is_empty());
    assert!(directories.iter().all(|directory| directory.is_dir()));
    host.cgroups().remove().expect("removed");
    for directory in directories {
        assert!(!directory.exists(), "{}", directory.display());
    }
}

#[test]
fn removal_kills_nothing() {
    let host = Host::new();
    let slot = host.slot("a");
    let mut left = host.start(&slot, "input()");
    assert!(matches!(
        host.cgroups().remove(),
        Err(CgroupError::Remove { .. })
    ));
    assert!(left.lives());
    left.end();
}

#[test]
fn a_dead_engines_cgroups_are_swept_with_what_runs_in_them_and_a_living_ones_are_kept() {
    let mut dead = Host::new();
    let mut left = dead.start(&dead.slot("a"), "input()");
    dead.die();
    let living = dead.beside();
    let mut other = living.start(&living.slot("a"), "input()");
    let sweeper = living.beside();

    let gone = dead.id().to_owned();
    sweeper.cgroups().sweep(|id| id == gone).expect("swept");

    assert_eq!(left.wait().signal, Some(9));
    assert!(
        dead.directories()
            .iter()
            .all(|directory| !directory.exists())
    );
    assert!(other.lives());
    assert!(
        living
            .directories()
            .iter()
            .all(|directory| directory.exists())
    );
    other.end();
}

#[test]
fn an_engine_that_lives_is_not_swept_whatever_another_takes_it_for() {
    let living = Host::new();
    let mut process = living.start(&living.slot("a"), "input()");
    let sweeper = living.beside();
    let mistaken = living.id().to_owned();
    sweeper
        .cgroups()
        .sweep(|id| id == mistaken)
        .expect("nothing to sweep");
    assert!(process.lives());
    let directories = living.directories();
    assert!(directories.iter().all(|directory| directory.exists()));
    process.end();
}

#[test]
fn two_engines_cannot_share_a_name() {
    let host = Host::new();
    let again = stepbox_engine::sandbox::cgroup::Cgroups::create(host.id(), None).expect("created");
    assert_eq!(again.refusals().len(), 3, "{again:?}");
    again
        .remove()
        .expect("nothing of the first one's is touched");
    assert!(
        host.directories()
            .iter()
            .all(|directory| directory.exists())
    );
}
