#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::super::snapshot::{Digest, Facts};
use super::*;

const FILE: Facts = Facts {
    kind: FileKind::File,
    mode: 0o644,
    inode: 0,
    born_ns: 0,
    changed_ns: 10,
    modified_ns: 10,
    size: 1,
};

fn file(inode: u64) -> Facts {
    Facts {
        inode,
        born_ns: 1000,
        ..FILE
    }
}

fn dir(inode: u64) -> Facts {
    Facts {
        kind: FileKind::Dir,
        mode: 0o755,
        size: 0,
        ..file(inode)
    }
}

fn snapshot(entries: &[(&str, Facts)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (path, facts) in entries {
        snapshot.push(path.as_bytes(), *facts, None);
    }
    snapshot.sort();
    snapshot
}

/// One line for each change.
fn changes(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    diff(before, after)
        .into_iter()
        .map(|change| {
            let path = String::from_utf8(change.path).unwrap();
            match change.old_path {
                Some(old) => format!(
                    "{:?} {path} from {}",
                    change.change,
                    String::from_utf8(old).unwrap()
                ),
                None => format!("{:?} {path}", change.change),
            }
        })
        .collect()
}

fn between(before: &[(&str, Facts)], after: &[(&str, Facts)]) -> Vec<String> {
    changes(&snapshot(before), &snapshot(after))
}

#[test]
fn equal_snapshots_have_no_changes() {
    let tree = [("a", file(1)), ("d", dir(2)), ("d/b", file(3))];
    assert!(between(&tree, &tree).is_empty());
}

#[test]
fn entries_that_came_and_went_are_created_and_deleted_in_order_of_path() {
    assert_eq!(
        between(
            &[("b", file(1)), ("d", dir(2)), ("d/x", file(3))],
            &[("a", file(4)), ("e", file(5))]
        ),
        [
            "Created a",
            "Deleted b",
            "Deleted d",
            "Deleted d/x",
            "Created e"
        ]
    );
}

#[test]
fn each_fact_of_a_file_alone_is_a_modification() {
    let old = file(1);
    for new in [
        Facts {
            changed_ns: 11,
            ..old
        },
        Facts {
            modified_ns: 11,
            ..old
        },
        Facts { size: 2, ..old },
        Facts { mode: 0o755, ..old },
        Facts { inode: 9, ..old },
        Facts { born_ns: 9, ..old },
    ] {
        assert_eq!(between(&[("a", old)], &[("a", new)]), ["Modified a"]);
    }
}

#[test]
fn a_directory_is_modified_by_its_mode_and_not_by_its_times() {
    let old = dir(1);
    let touched = Facts {
        changed_ns: 11,
        modified_ns: 11,
        ..old
    };
    assert!(between(&[("d", old)], &[("d", touched)]).is_empty());
    let closed = Facts { mode: 0, ..touched };
    assert_eq!(between(&[("d", old)], &[("d", closed)]), ["Modified d"]);
}

#[test]
fn content_that_both_scans_read_decides_where_times_cannot() {
    let with = |byte: u8| {
        let mut snapshot = Snapshot::default();
        let digest = Digest {
            sha256: [byte; 32],
            racy: true,
        };
        snapshot.push(b"a", file(1), Some(digest));
        snapshot
    };
    assert!(changes(&with(1), &with(1)).is_empty());
    assert_eq!(changes(&with(1), &with(2)), ["Modified a"]);
    assert!(changes(&with(1), &snapshot(&[("a", file(1))])).is_empty());
}

#[test]
fn the_same_inode_and_birth_at_another_path_is_a_rename() {
    assert_eq!(
        between(
            &[("a", file(1))],
            &[(
                "b",
                Facts {
                    changed_ns: 99,
                    ..file(1)
                }
            )]
        ),
        ["Renamed b from a"]
    );
}

#[test]
fn an_inode_number_that_was_given_out_again_is_not_a_rename() {
    assert_eq!(
        between(
            &[("a", file(1))],
            &[(
                "b",
                Facts {
                    born_ns: 2000,
                    ..file(1)
                }
            )]
        ),
        ["Deleted a", "Created b"]
    );
}

#[test]
fn without_birth_times_nothing_is_called_renamed() {
    let old = Facts {
        born_ns: 0,
        ..file(1)
    };
    assert_eq!(
        between(&[("a", old)], &[("b", old)]),
        ["Deleted a", "Created b"]
    );
    assert!(between(&[("a", old)], &[("a", old)]).is_empty());
}

#[test]
fn a_renamed_directory_is_one_change_and_below_it_only_what_changed_is_listed() {
    let before = [
        ("d", dir(1)),
        ("d/gone", file(2)),
        ("d/moved", file(3)),
        ("d/out", file(4)),
        ("d/same", file(5)),
        ("d/sub", dir(6)),
        ("d/sub/deep", file(7)),
        ("d/written", file(8)),
    ];
    let after = [
        ("e", dir(1)),
        ("e/inside", file(3)),
        ("e/new", file(9)),
        ("e/same", file(5)),
        ("e/sub", dir(6)),
        ("e/sub/deep", file(7)),
        ("e/written", Facts { size: 5, ..file(8) }),
        ("out", file(4)),
    ];
    assert_eq!(
        between(&before, &after),
        [
            "Deleted d/gone",
            "Renamed e from d",
            "Renamed e/inside from d/moved",
            "Created e/new",
            "Modified e/written",
            "Renamed out from d/out",
        ]
    );
}

#[test]
fn a_directory_renamed_inside_a_renamed_one_is_a_change_of_its_own() {
    assert_eq!(
        between(
            &[("d", dir(1)), ("d/s", dir(2)), ("d/s/f", file(3))],
            &[("e", dir(1)), ("e/t", dir(2)), ("e/t/f", file(3))]
        ),
        ["Renamed e from d", "Renamed e/t from d/s"]
    );
}

#[test]
fn two_directories_that_swapped_names_are_two_renames() {
    assert_eq!(
        between(
            &[
                ("a", dir(1)),
                ("a/x", file(3)),
                ("b", dir(2)),
                ("b/x", file(4))
            ],
            &[
                ("a", dir(2)),
                ("a/x", file(4)),
                ("b", dir(1)),
                ("b/x", file(3))
            ]
        ),
        ["Renamed a from b", "Renamed b from a"]
    );
}

#[test]
fn a_file_renamed_onto_another_is_one_rename() {
    assert_eq!(
        between(&[("a", file(1)), ("b", file(2))], &[("b", file(1))]),
        ["Renamed b from a"]
    );
}

#[test]
fn a_path_that_moved_with_its_directory_onto_a_known_one_is_modified() {
    assert_eq!(
        between(
            &[
                ("a", dir(1)),
                ("a/x", file(3)),
                ("b", dir(2)),
                ("b/x", file(4))
            ],
            &[("b", dir(1)), ("b/x", file(3))]
        ),
        ["Renamed b from a", "Modified b/x"]
    );
}

#[test]
fn a_file_whose_place_was_taken_is_renamed_and_the_new_one_is_created() {
    assert_eq!(
        between(&[("log", file(1))], &[("log", file(2)), ("log.1", file(1))]),
        ["Created log", "Renamed log.1 from log"]
    );
}

#[test]
fn another_kind_at_the_same_path_is_a_deletion_and_a_creation() {
    assert_eq!(
        between(&[("a", file(1))], &[("a", dir(2))]),
        ["Deleted a", "Created a"]
    );
}

#[test]
fn a_new_hard_link_is_created_and_the_old_name_stays() {
    let linked = Facts {
        changed_ns: 11,
        ..file(1)
    };
    assert_eq!(
        between(&[("a", file(1))], &[("a", linked), ("b", linked)]),
        ["Modified a", "Created b"]
    );
}

#[test]
fn names_of_one_file_are_paired_when_one_of_them_moves() {
    assert_eq!(
        between(
            &[("a", file(1)), ("b", file(1))],
            &[("b", file(1)), ("c", file(1))]
        ),
        ["Renamed c from a"]
    );
}

#[test]
fn what_a_truncated_scan_did_not_see_is_not_called_deleted() {
    let before = snapshot(&[("a", file(1)), ("b", file(2))]);
    let mut after = snapshot(&[("b", file(2))]);
    after.truncated = true;
    assert!(changes(&before, &after).is_empty());
}

#[test]
fn after_a_truncated_scan_only_what_is_younger_is_called_created() {
    let mut before = snapshot(&[]);
    before.truncated = true;
    before.taken_ns = 5000;
    let young = Facts {
        born_ns: 6000,
        ..file(2)
    };
    let after = snapshot(&[("old", file(1)), ("young", young)]);
    assert_eq!(changes(&before, &after), ["Created young"]);
}

/// Directories a, b and c, each there or not and with any of three identities, and two files in each, whose few
/// identities make renames and hard links likely.
fn any_tree() -> impl Strategy<Value = Snapshot> {
    let files = || proptest::collection::vec(proptest::option::of(10u64..14), 2);
    let directory = || proptest::option::of(files());
    (
        Just(vec![1u64, 2, 3]).prop_shuffle(),
        proptest::collection::vec(directory(), 3),
    )
        .prop_map(|(inodes, directories)| {
            let mut snapshot = Snapshot::default();
            for ((name, inode), files) in ["a", "b", "c"].iter().zip(inodes).zip(directories) {
                let Some(files) = files else { continue };
                snapshot.push(name.as_bytes(), dir(inode), None);
                for (file_name, inode) in ["x", "y"].iter().zip(files) {
                    let path = format!("{name}/{file_name}");
                    if let Some(inode) = inode {
                        snapshot.push(path.as_bytes(), file(inode), None);
                    }
                }
            }
            snapshot.sort();
            snapshot
        })
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with(b"/"))
}

proptest! {
    #[test]
    fn every_difference_of_paths_is_told_and_nothing_else(
        before in any_tree(), after in any_tree(),
    ) {
        let changes = diff(&before, &after);
        let renames: Vec<_> = changes
            .iter()
            .filter_map(|change| Some((change.old_path.as_deref()?, change.path.as_slice())))
            .collect();
        let told = |path: &[u8]| changes.iter().any(|change| change.path == path);

        for entry in before.entries() {
            let path = before.path(entry);
            if after.find(path).is_none() {
                let moved = renames.iter().any(|(from, _)| *from == path || is_below(path, from));
                prop_assert!(told(path) || moved, "{} vanished unseen", path.escape_ascii());
            }
        }
        for entry in after.entries() {
            let path = after.path(entry);
            if before.find(path).is_none_or(|old| !old.is(entry)) {
                let moved = renames.iter().any(|(_, to)| is_below(path, to));
                prop_assert!(told(path) || moved, "{} came unseen", path.escape_ascii());
            }
        }
        for change in &changes {
            let (old, new) = (before.find(&change.path), after.find(&change.path));
            match change.change {
                ChangeKind::Deleted => prop_assert!(old.is_some()),
                ChangeKind::Created | ChangeKind::Modified => prop_assert!(new.is_some()),
                ChangeKind::Renamed => {
                    let from = before.find(change.old_path.as_deref().unwrap()).unwrap();
                    prop_assert!(from.is(new.unwrap()));
                }
            }
        }
        prop_assert!(changes.is_sorted_by(|a, b| a.path <= b.path));
        prop_assert!(diff(&after, &after).is_empty());
    }
}
