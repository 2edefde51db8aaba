//! A second thread, as code in the sandbox could, exchanges a directory for a link to the outside in a loop.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use stepbox_engine::workspace::diff;

use super::{CANARY, Place, parse, patient};

const ROUNDS: usize = 300;

/// Calls `act` again and again while `d` is a directory or a link to the outside, whichever; then checks the outside.
fn while_swapping(mut act: impl FnMut(&Place)) {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("d/canary"), "inside").unwrap();
    symlink(place.outside(), place.path("l")).unwrap();
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (d, l) = (place.path("d"), place.path("l"));
                // The act under test may have removed either.
                if renameat_with(CWD, &d, CWD, &l, RenameFlags::EXCHANGE).is_err() {
                    // Only into a directory just made: through a link this thread would write outside itself.
                    if fs::create_dir(&d).is_ok() {
                        let _ = fs::write(d.join("canary"), "inside");
                    }
                    let _ = symlink(place.outside(), &l);
                }
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Stops the other thread also when the act panics.
        let stopping = Stop(&stop);
        while swaps.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..ROUNDS {
            act(&place);
            place.assert_outside_is_untouched();
        }
        drop(stopping);
    });
    place.assert_outside_is_untouched();
    place.tree.clear().unwrap();
    place.assert_outside_is_untouched();
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_read_never_returns_what_is_outside() {
    while_swapping(|place| {
        if let Ok(content) = place.read("d/canary") {
            assert_ne!(content, CANARY);
        }
        if let Ok(stat) = place.tree.stat(&parse("d/canary")) {
            assert_eq!(stat.size, "inside".len() as u64);
        }
    });
}

#[test]
fn a_write_never_lands_outside() {
    while_swapping(|place| {
        let _ = place.write("d/new", b"pwn");
        let _ = place.write("d/canary", b"inside");
        let _ = place.tree.make_dir(&parse("d/made/below"));
        let _ = place.tree.rename(&parse("d/new"), &parse("d/moved"), true);
    });
}

#[test]
fn a_removal_never_reaches_outside() {
    while_swapping(|place| {
        let _ = place.tree.remove(&parse("d/canary"), false);
        let _ = place.tree.remove(&parse("d"), true);
    });
}

#[test]
fn clearing_never_reaches_outside() {
    while_swapping(|place| {
        let _ = place.tree.clear();
    });
}

#[test]
fn a_scan_and_a_listing_never_see_what_is_outside() {
    let mut before = None;
    while_swapping(|place| {
        let snapshot = place.scan(before.as_ref());
        for name in ["d/canary", "l/canary"] {
            if let Some(entry) = snapshot.find(name.as_bytes()) {
                assert_eq!(entry.size, "inside".len() as u64);
            }
        }
        if let Some(before) = &before {
            let mut changes = diff(before, &snapshot);
            place.tree.mark_host_risks(&mut changes).unwrap();
        }
        before = Some(snapshot);
        if let Ok(listing) = place.tree.list(&parse("d"), true, true, patient()) {
            assert!(
                listing
                    .entries
                    .iter()
                    .all(|entry| entry.size == "inside".len() as u64)
            );
        }
    });
}
