//! What changed in the text of files, from what was seen of it before.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stepbox_engine::outcome::{ChangeKind, FileChange, NoDiff};
use stepbox_engine::workspace::{Known, Snapshot};

use super::{Place, patient, set_mode};

const MIB: usize = 1 << 20;

/// A workspace whose keeper looked once, when `first` was in it, and learned all of it.
struct Seen {
    place: Place,
    known: Known,
    latest: Rc<Snapshot>,
}

impl Seen {
    fn new(first: impl FnOnce(&Place)) -> Self {
        Self::with(16 * MIB, first)
    }

    fn with(most: usize, first: impl FnOnce(&Place)) -> Self {
        let place = Place::new();
        first(&place);
        let mut known = Known::new(most);
        let latest = Rc::new(known.scan(&place.tree, patient(), None).unwrap());
        while known.is_unread() {
            known.learn(&place.tree, &latest, false);
        }
        Self {
            place,
            known,
            latest,
        }
    }

    /// What a step changed that did `act`.
    fn step(&mut self, act: impl FnOnce(&Place)) -> Vec<FileChange> {
        act(&self.place);
        let tree = &self.place.tree;
        let after = self
            .known
            .scan(tree, patient(), Some(&self.latest))
            .unwrap();
        let changes = self.known.changes(tree, &self.latest, &after);
        self.latest = Rc::new(after);
        changes
    }

    fn one(&mut self, act: impl FnOnce(&Place)) -> FileChange {
        let mut changes = self.step(act);
        assert_eq!(changes.len(), 1, "{changes:?}");
        changes.remove(0)
    }
}

fn put(place: &Place, path: &str, content: impl AsRef<[u8]>) {
    fs::write(place.path(path), content).unwrap();
}

type Act = fn(&Place);

#[test]
fn text_is_shown_as_it_changed_and_where_it_is_not_the_reason_is() {
    let table: &[(&str, Act, Act, Result<&str, NoDiff>)] = &[
        (
            "modified",
            |place| put(place, "f", "a\nb\n"),
            |place| put(place, "f", "a\nc\n"),
            Ok("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
        ),
        (
            "created",
            |_| {},
            |place| put(place, "f", "a\n"),
            Ok("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"),
        ),
        (
            "deleted",
            |place| put(place, "f", "a\n"),
            |place| fs::remove_file(place.path("f")).unwrap(),
            Ok("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
        ),
        (
            "no newline at the end",
            |place| put(place, "f", "a"),
            |place| put(place, "f", "a\nb"),
            Ok(concat!(
                "--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n",
                "\\ No newline at end of file\n"
            )),
        ),
        (
            "CRLF",
            |place| put(place, "f", "a\r\nb\r\n"),
            |place| put(place, "f", "a\r\nc\r\n"),
            Ok("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"),
        ),
        (
            "replaced by another file",
            |place| put(place, "f", "a\n"),
            |place| {
                put(place, "new", "b\n");
                fs::rename(place.path("new"), place.path("f")).unwrap();
            },
            Ok("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"),
        ),
        (
            "renamed and changed",
            |place| put(place, "f", "a\nb\n"),
            |place| {
                fs::rename(place.path("f"), place.path("g h")).unwrap();
                put(place, "g h", "a\nc\n");
            },
            Ok("--- a/f\n+++ b/g h\t\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
        ),
        (
            "renamed",
            |place| put(place, "f", "a\n"),
            |place| fs::rename(place.path("f"), place.path("g")).unwrap(),
            Err(NoDiff::SameContent),
        ),
        (
            "another mode",
            |place| put(place, "f", "a\n"),
            |place| set_mode(&place.path("f"), 0o600),
            Err(NoDiff::SameContent),
        ),
        (
            "empty and created",
            |_| {},
            |place| put(place, "f", ""),
            Err(NoDiff::SameContent),
        ),
        (
            "a NUL",
            |place| put(place, "f", "a\n"),
            |place| put(place, "f", "a\0\n"),
            Err(NoDiff::Binary),
        ),
        (
            "binary before",
            |place| put(place, "f", b"\xff\n"),
            |place| put(place, "f", "a\n"),
            Err(NoDiff::Binary),
        ),
        (
            "binary and deleted",
            |place| put(place, "f", b"\xff\n"),
            |place| fs::remove_file(place.path("f")).unwrap(),
            Err(NoDiff::Binary),
        ),
        (
            "too large",
            |place| put(place, "f", "a\n"),
            |place| put(place, "f", "a\n".repeat(40_000)),
            Err(NoDiff::TooLarge),
        ),
        (
            "too large before",
            |place| put(place, "f", "a\n".repeat(40_000)),
            |place| put(place, "f", "a\n"),
            Err(NoDiff::TooLarge),
        ),
    ];
    for (name, first, act, expected) in table {
        let change = Seen::new(*first).one(*act);
        let made = match (&change.diff, change.diff_reason) {
            (Some(diff), None) => Ok(diff.as_str()),
            (None, Some(reason)) => Err(reason),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(made, *expected, "{name}");
    }
}

#[test]
fn names_that_are_no_utf8_or_hold_line_ends_are_escaped() {
    let name = std::ffi::OsStr::from_bytes(b"bad\xff\nname");
    let change =
        Seen::new(|_| {}).one(|place| fs::write(place.path("").join(name), "a\n").unwrap());
    assert_eq!(change.path, name.as_bytes());
    let diff = change.diff.unwrap();
    assert!(
        diff.starts_with("--- /dev/null\n+++ \"b/bad\\377\\012name\"\n@@"),
        "{diff}"
    );
}

#[test]
fn what_is_no_regular_file_has_neither_a_diff_nor_a_reason() {
    let changes = Seen::new(|_| {}).step(|place| {
        fs::create_dir(place.path("d")).unwrap();
        symlink("nowhere", place.path("l")).unwrap();
    });
    assert_eq!(changes.len(), 2);
    assert!(
        changes
            .iter()
            .all(|change| change.diff.is_none() && change.diff_reason.is_none())
    );
}

#[test]
fn a_text_that_nobody_saw_is_unknown_and_the_next_change_is_known() {
    let place = Place::new();
    put(&place, "f", "a\n");
    let mut known = Known::new(MIB);
    let latest = Rc::new(known.scan(&place.tree, patient(), None).unwrap());
    let mut seen = Seen {
        place,
        known,
        latest,
    };
    let change = seen.one(|place| put(place, "f", "b\n"));
    assert_eq!(change.diff_reason, Some(NoDiff::UnknownBefore));
    let change = seen.one(|place| put(place, "f", "c\n"));
    assert!(change.diff.unwrap().ends_with("-b\n+c\n"));
}

#[test]
fn a_file_that_a_caller_wrote_is_known_although_it_was_written_just_before() {
    let mut seen = Seen::new(|_| {});
    for _ in 0..20 {
        let pending = seen
            .place
            .tree
            .begin_write(&super::parse("f"), 0o644)
            .unwrap();
        super::fill(&pending, b"a\n");
        let file = pending.file().try_clone_to_owned().unwrap();
        pending.commit().unwrap();
        seen.known.written(file.as_fd());
        seen.step(|_| {});
        let change = seen.one(|place| put(place, "f", "b\n"));
        assert_eq!(change.change, ChangeKind::Modified);
        assert!(change.diff.is_some(), "{change:?}");
        seen.step(|place| fs::remove_file(place.path("f")).unwrap());
    }
}

/// A file's size and mtime may be what they were, and the look may come in the tick of the write.
#[test]
fn changes_in_a_row_without_a_pause_are_each_told_right() {
    let mut seen = Seen::new(|place| put(place, "f", "0\n"));
    for nth in 1..200_u32 {
        let change = seen.one(|place| put(place, "f", format!("{nth}\n")));
        let expected = format!("@@ -1 +1 @@\n-{}\n+{nth}\n", nth - 1);
        assert!(
            change.diff.as_ref().unwrap().ends_with(&expected),
            "{change:?}"
        );
    }
}

#[test]
fn without_diffs_nothing_is_read_and_nothing_kept() {
    let mut seen = Seen::with(0, |place| put(place, "f", "a\n"));
    assert!(!seen.known.is_unread());
    let change = seen.one(|place| put(place, "f", "b\n"));
    assert_eq!((change.diff, change.diff_reason), (None, None));
}

#[test]
fn what_does_not_fit_is_forgotten_and_said_to_be_unknown() {
    let text = |nth: usize| format!("{nth}\n").repeat(2_000);
    let mut seen = Seen::with(64 << 10, |place| {
        for nth in 0..100 {
            put(place, &format!("f{nth}"), text(nth));
        }
    });
    let changes = seen.step(|place| {
        for nth in 0..100 {
            put(place, &format!("f{nth}"), text(nth) + "more\n");
        }
    });
    let unknown = changes
        .iter()
        .filter(|change| change.diff_reason == Some(NoDiff::UnknownBefore))
        .count();
    assert!((80..100).contains(&unknown), "{unknown}");
}

#[test]
fn a_step_that_changes_very_much_has_bounded_diffs_and_takes_bounded_time() {
    let mut seen = Seen::new(|_| {});
    for directory in 0..100 {
        fs::create_dir(seen.place.path(&format!("d{directory}"))).unwrap();
    }
    seen.step(|place| {
        for nth in 0..3_000 {
            put(place, &format!("d{}/f{nth}", nth % 100), "x\n");
        }
    });
    let before = Rc::clone(&seen.latest);
    for nth in 0..3_000 {
        put(&seen.place, &format!("d{}/f{nth}", nth % 100), "y\n");
    }
    let tree = &seen.place.tree;
    let after = seen.known.scan(tree, patient(), Some(&before)).unwrap();
    let begun = Instant::now();
    let changes = seen.known.changes(tree, &before, &after);
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(changes.len(), 3_000);
    let reason = |reason| {
        changes
            .iter()
            .filter(|change| change.diff_reason == Some(reason))
            .count()
    };
    assert!(reason(NoDiff::TooMany) >= 2_500);
    assert!(seen.known.is_unread());

    let text: usize = Seen::new(|_| {})
        .step(|place| {
            for nth in 0..100 {
                put(place, &format!("f{nth}"), "x\n".repeat(30_000));
            }
        })
        .iter()
        .filter_map(|change| change.diff.as_ref().map(String::len))
        .sum();
    assert!(text <= MIB && text > 0, "{text}");
}

#[test]
fn a_diff_that_is_too_long_ends_early_and_says_so() {
    let change = Seen::new(|_| {}).one(|place| put(place, "f", "x\n".repeat(30_000)));
    assert_eq!(change.diff_reason, Some(NoDiff::Truncated));
    let diff = change.diff.unwrap();
    assert!(diff.len() <= 64 << 10 && diff.ends_with("+x\n"));
}

/// The keeper reads what it saw: neither what a link leads to, nor a FIFO, nor another file.
#[test]
fn a_file_that_is_swapped_between_the_look_and_the_reading_is_not_read() {
    let mut seen = Seen::new(|_| {});
    let outside = seen.place.outside().join("canary");
    type Swap<'a> = Box<dyn Fn(&Place) + 'a>;
    let swaps: Vec<Swap<'_>> = vec![
        Box::new(|place| symlink(&outside, place.path("f")).unwrap()),
        Box::new(|place| {
            let path = place.path("f");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RWXU,
                0,
            )
            .unwrap();
        }),
        Box::new(|place| put(place, "f", "b\n")),
        Box::new(|place| fs::create_dir(place.path("f")).unwrap()),
        Box::new(|_| {}),
    ];
    for swap in swaps {
        put(&seen.place, "f", "a\n");
        let tree = &seen.place.tree;
        let after = seen
            .known
            .scan(tree, patient(), Some(&seen.latest))
            .unwrap();
        fs::remove_file(seen.place.path("f")).unwrap();
        swap(&seen.place);
        let changes = seen.known.changes(tree, &seen.latest, &after);
        assert_eq!(changes[0].diff_reason, Some(NoDiff::ChangedSince));
        let path = seen.place.path("f");
        if path.is_dir() {
            fs::remove_dir(path).unwrap();
        } else {
            let _ = fs::remove_file(path);
        }
    }
    seen.place.assert_outside_is_untouched();
}

/// Whatever races with the keeper, a diff that is told leads from a text that was there to a text that was there.
#[test]
fn a_file_that_is_written_all_the_time_never_yields_a_wrong_diff() {
    let mut seen = Seen::new(|place| put(place, "f", "0\n"));
    let path = seen.place.path("f");
    let stop = AtomicBool::new(false);
    let mut shown = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 1_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let other = path.with_extension("new");
                fs::write(&other, format!("{nth}\n{nth}\n")).unwrap();
                fs::rename(&other, &path).unwrap();
                std::thread::sleep(Duration::from_micros(u64::from(nth % 7) * 300));
            }
        });
        let mut last: Option<String> = None;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            for change in seen.step(|_| {}) {
                let Some(diff) = change.diff.filter(|_| change.path == b"f") else {
                    last = None;
                    continue;
                };
                let side = |mark: char| -> Vec<&str> {
                    let lines = diff.lines().skip(3).filter(|line| line.starts_with(mark));
                    lines.map(|line| &line[1..]).collect()
                };
                let (old, new) = (side('-'), side('+'));
                assert!(new.len() == 2 && new[0] == new[1], "{diff}");
                if let Some(last) = &last {
                    assert_eq!(old[0], last, "{diff}");
                }
                last = Some(new[0].to_owned());
                shown += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(shown > 0);
}

#[test]
fn little_is_learned_at_once_and_what_changed_last_first() {
    let place = Place::new();
    for nth in 0..300 {
        put(&place, &format!("f{nth:03}"), "a\n");
    }
    std::thread::sleep(Duration::from_millis(30));
    put(&place, "young", "a\n");
    std::thread::sleep(Duration::from_millis(30));
    let mut known = Known::new(16 * MIB);
    let latest = Rc::new(known.scan(&place.tree, patient(), None).unwrap());
    known.learn(&place.tree, &latest, true);
    assert!(known.is_unread());
    let mut seen = Seen {
        place,
        known,
        latest,
    };
    let change = seen.one(|place| put(place, "young", "b\n"));
    assert!(change.diff.is_some(), "{change:?}");
}
