use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use stepbox_engine::workspace::Budget;

use super::{Place, names_in, parse, patient, set_mode};

/// More levels than a process has descriptors, and a path longer than any call takes.
const DEEP: usize = 3000;

fn dig(place: &Place, levels: usize) {
    let mut at: OwnedFd = fs::File::open(place.path("")).unwrap().into();
    for _ in 0..levels {
        mkdirat(&at, "deeper", Mode::RWXU).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = openat(at.as_fd(), "deeper", flags, Mode::empty()).unwrap();
    }
    mkdirat(&at, "bottom", Mode::RWXU).unwrap();
}

#[test]
fn clearing_deletes_whatever_the_modes_are_and_follows_no_link() {
    let place = Place::new();
    fs::create_dir_all(place.path("a/b/c")).unwrap();
    fs::write(place.path("a/b/c/f"), "x").unwrap();
    fs::create_dir(place.path("ro")).unwrap();
    fs::write(place.path("ro/x"), "x").unwrap();
    fs::create_dir(place.path("only-read")).unwrap();
    fs::create_dir(place.path("only-read/d")).unwrap();
    fs::write(place.path("only-read/d/x"), "x").unwrap();
    symlink("/", place.path("up")).unwrap();
    symlink(place.outside(), place.path("a/b/c/out")).unwrap();
    set_mode(&place.path("a/b/c"), 0);
    set_mode(&place.path("a/b"), 0o100);
    set_mode(&place.path("a"), 0o500);
    set_mode(&place.path("ro"), 0o444);
    set_mode(&place.path("only-read/d"), 0);
    set_mode(&place.path("only-read"), 0o400);
    place.tree.clear().unwrap();
    assert!(names_in(&place.path("")).is_empty());
    place.assert_outside_is_untouched();
    place.tree.clear().unwrap();
}

#[test]
fn a_tree_deeper_than_any_path_is_cleared_and_removed() {
    let place = Place::new();
    dig(&place, DEEP);
    place.tree.clear().unwrap();
    assert!(names_in(&place.path("")).is_empty());
    dig(&place, DEEP);
    place.tree.remove(&parse("deeper"), true).unwrap();
    assert!(names_in(&place.path("")).is_empty());
}

#[test]
fn a_tree_deeper_than_any_path_is_scanned_as_far_as_paths_reach() {
    let place = Place::new();
    dig(&place, DEEP);
    let snapshot = place.scan(None);
    assert!(snapshot.truncated);
    assert_eq!(snapshot.entries().len(), 4096 / "deeper/".len());
    place.tree.clear().unwrap();
}

#[test]
fn a_directory_with_more_directories_than_wait_at_a_time_is_cleared() {
    let place = Place::new();
    for name in 0..9000 {
        fs::create_dir(place.path(&format!("d{name}"))).unwrap();
    }
    fs::write(place.path("d0/f"), "").unwrap();
    place.tree.clear().unwrap();
    assert!(names_in(&place.path("")).is_empty());
}

#[test]
fn a_removal_without_the_rights_ends_and_says_why() {
    let place = Place::new();
    fs::create_dir(place.path("fixed")).unwrap();
    for name in 0..5000 {
        fs::create_dir(place.path(&format!("fixed/d{name}"))).unwrap();
    }
    set_mode(&place.path("fixed"), 0o500);
    let error = place.tree.remove(&parse("fixed"), true).unwrap_err();
    assert_eq!(
        error.reason,
        stepbox_engine::workspace::FileReason::PermissionDenied
    );
    let budget = Budget {
        max_entries: 10_000,
        ..patient()
    };
    let listing = place
        .tree
        .list(&parse("fixed"), false, false, budget)
        .unwrap();
    assert_eq!(listing.entries.len(), 5000);
    set_mode(&place.path("fixed"), 0o700);
}
