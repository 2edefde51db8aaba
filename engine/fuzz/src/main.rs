//! One target of the engine under libFuzzer: the one that `STEPBOX_FUZZ_TARGET` names.
#![no_main]

use std::cell::Cell;
use std::sync::OnceLock;

use stepbox_engine::fuzzing::{TARGETS, Target};

/// What a target may keep for its next run: a runtime, a mapping.
const RUNS_UNTIL_SETTLED: u32 = 100;

thread_local! {
    static RUNS: Cell<u32> = const { Cell::new(0) };
    static LOWEST: Cell<Option<i32>> = const { Cell::new(None) };
}

fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let wanted = std::env::var("STEPBOX_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        found.unwrap_or_else(|| panic!("no target {wanted:?}")).1
    })
}

/// The number that the next descriptor gets: a leak makes it grow.
fn lowest_free() -> Option<i32> {
    use std::os::fd::AsRawFd;
    let copy = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).ok()?;
    Some(copy.as_raw_fd())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    target()(bytes);
    RUNS.set(RUNS.get().saturating_add(1));
    if RUNS.get() == RUNS_UNTIL_SETTLED {
        LOWEST.set(lowest_free());
    } else if RUNS.get() > RUNS_UNTIL_SETTLED {
        assert_eq!(LOWEST.get(), lowest_free(), "a descriptor was left open");
    }
});
