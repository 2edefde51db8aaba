use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use stepbox_engine::outcome::{ChangeKind, FileKind};
use stepbox_engine::workspace::{Budget, Tree, diff, rights};

use super::{Place, brief, make_fifo, mode, names_in, parse, patient, set_mode};

#[test]
fn an_edit_of_equal_size_whose_mtime_was_put_back_is_seen() {
    let place = Place::new();
    let path = place.path("cfg.txt");
    fs::write(&path, "timeout=30\n").unwrap();
    let changes = place.changes(|| {
        let facts = fs::metadata(&path).unwrap();
        fs::write(&path, "timeout=90\n").unwrap();
        let time = Timespec {
            tv_sec: facts.mtime(),
            tv_nsec: facts.mtime_nsec(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    });
    assert_eq!(brief(&changes), [(ChangeKind::Modified, "cfg.txt".into())]);
}

#[test]
fn writes_at_once_after_a_scan_are_all_seen() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, "0").unwrap();
    let mut before = place.scan(None);
    for round in 1..200 {
        fs::write(&path, (round % 10).to_string()).unwrap();
        let after = place.scan(Some(&before));
        let changes = brief(&diff(&before, &after));
        assert_eq!(
            changes,
            [(ChangeKind::Modified, "f".into())],
            "round {round}"
        );
        before = after;
    }
}

#[test]
fn a_file_written_just_before_a_scan_is_hashed_and_a_large_or_old_one_is_not() {
    let place = Place::new();
    fs::write(place.path("small"), "x").unwrap();
    let large = fs::File::create(place.path("large")).unwrap();
    large.set_len((1 << 20) + 1).unwrap();
    let snapshot = place.scan(None);
    let digest = |name: &str| snapshot.digest(snapshot.find(name.as_bytes()).unwrap());
    // The scan may come later than a tick after the write on a machine under load; then no digest is due.
    if let Some(small) = digest("small") {
        assert!(small.racy);
    }
    assert!(digest("large").is_none());
}

#[test]
fn a_touch_is_a_modification_and_an_idle_step_is_none() {
    let place = Place::new();
    fs::write(place.path("f"), "x").unwrap();
    assert!(place.changes(|| {}).is_empty());
    let changes = place.changes(|| {
        let now = Timespec {
            tv_sec: 7,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        utimensat(CWD, place.path("f"), &times, AtFlags::empty()).unwrap();
    });
    assert_eq!(brief(&changes), [(ChangeKind::Modified, "f".into())]);
}

#[test]
fn every_kind_of_entry_and_every_name_is_created_losslessly_and_nothing_is_opened() {
    let place = Place::new();
    let odd: &[&[u8]] = &[
        b"new\nline",
        b"-rf",
        b"sp ace",
        b"q'\"`$x",
        b".hidden",
        &[b'x'; 255],
        b"bad\xff\xfe",
    ];
    let changes = place.changes(|| {
        fs::write(place.path("a"), "1").unwrap();
        fs::hard_link(place.path("a"), place.path("b")).unwrap();
        symlink("a", place.path("s")).unwrap();
        symlink("/nonexistent/x", place.path("dangling")).unwrap();
        make_fifo(&place.path("pipe"));
        drop(UnixListener::bind(place.path("sock")).unwrap());
        fs::File::create(place.path("sparse"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        for name in odd {
            fs::write(place.path("").join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
    });
    assert_eq!(changes.len(), 14);
    let kind = |name: &[u8]| {
        let change = changes.iter().find(|change| change.path == name).unwrap();
        assert_eq!(change.change, ChangeKind::Created);
        (change.kind, change.size)
    };
    for name in odd {
        assert_eq!(kind(name), (FileKind::File, 0));
    }
    assert_eq!(kind(b"a"), (FileKind::File, 1));
    assert_eq!(kind(b"b"), (FileKind::File, 1));
    assert_eq!(kind(b"sparse"), (FileKind::File, 1 << 40));
    assert_eq!(kind(b"s").0, FileKind::Symlink);
    assert_eq!(kind(b"dangling").0, FileKind::Symlink);
    assert_eq!(kind(b"pipe").0, FileKind::Fifo);
    assert_eq!(kind(b"sock").0, FileKind::Socket);
}

#[test]
fn renames_are_told_from_deletion_and_creation_on_a_real_filesystem() {
    let place = Place::new();
    fs::create_dir_all(place.path("d/sub")).unwrap();
    fs::write(place.path("d/sub/f"), "x").unwrap();
    fs::write(place.path("old"), "x").unwrap();
    fs::write(place.path("again"), "x").unwrap();
    let changes = place.changes(|| {
        fs::rename(place.path("d"), place.path("e")).unwrap();
        fs::rename(place.path("old"), place.path("new")).unwrap();
        fs::remove_file(place.path("again")).unwrap();
        fs::write(place.path("another"), "x").unwrap();
    });
    let born = rustix::fs::statx(
        CWD,
        place.path("new"),
        AtFlags::empty(),
        rustix::fs::StatxFlags::BTIME,
    )
    .unwrap()
    .stx_mask
        & rustix::fs::StatxFlags::BTIME.bits();
    assert_ne!(born, 0, "the filesystem of TMPDIR keeps birth times");
    assert_eq!(
        brief(&changes),
        [
            (ChangeKind::Deleted, "again".into()),
            (ChangeKind::Created, "another".into()),
            (ChangeKind::Renamed, "e".into()),
            (ChangeKind::Renamed, "new".into()),
        ]
    );
    assert_eq!(changes[2].old_path.as_deref(), Some(&b"d"[..]));
}

#[test]
fn links_are_not_followed_and_only_the_very_deps_directory_is_left_out() {
    let place = Place::new();
    let changes = place.changes(|| {
        symlink(place.outside(), place.path("out")).unwrap();
        fs::create_dir_all(place.path(".deps/pkg")).unwrap();
        fs::create_dir_all(place.path("sub/.deps")).unwrap();
        fs::write(place.path(".deps2"), "").unwrap();
    });
    let created = |path: &str| (ChangeKind::Created, path.to_owned());
    assert_eq!(
        brief(&changes),
        [
            created(".deps2"),
            created("out"),
            created("sub"),
            created("sub/.deps")
        ]
    );
}

#[test]
fn a_directory_that_the_code_closed_is_still_scanned_by_a_keeper_with_capabilities() {
    let place = Place::new();
    fs::create_dir(place.path("closed")).unwrap();
    fs::write(place.path("closed/f"), "x").unwrap();
    set_mode(&place.path("closed"), 0);
    let snapshot = place.scan(None);
    assert!(snapshot.find(b"closed").is_some());
    if rights::may_override() {
        assert!(snapshot.find(b"closed/f").is_some());
        assert_eq!(snapshot.unreadable, 0);
    } else {
        // Without them nothing could look inside; the snapshot says so.
        assert!(snapshot.find(b"closed/f").is_none());
        assert_eq!(snapshot.unreadable, 1);
    }
    assert_eq!(mode(&place.path("closed")), 0);
    set_mode(&place.path("closed"), 0o700);
}

#[test]
fn past_each_budget_a_scan_stops_and_says_so() {
    let place = Place::new();
    for name in 0..20 {
        fs::write(place.path(&format!("file-{name:02}")), "").unwrap();
    }
    let exact = Budget {
        max_entries: 20,
        ..patient()
    };
    let snapshot = place.tree.scan(exact, None).unwrap();
    assert!(!snapshot.truncated);
    for budget in [
        Budget {
            max_entries: 7,
            ..patient()
        },
        Budget {
            max_path_bytes: 7 * 7,
            ..patient()
        },
    ] {
        let snapshot = place.tree.scan(budget, None).unwrap();
        assert!(snapshot.truncated);
        assert_eq!(snapshot.entries().len(), 7);
    }
    let no_time = Budget {
        max_time: Duration::ZERO,
        ..patient()
    };
    assert!(place.tree.scan(no_time, None).unwrap().truncated);
}

#[test]
fn fifty_thousand_files_are_seen_once_each_and_an_idle_step_changes_none() {
    let place = Place::new();
    for file in 0..50_000 {
        fs::File::create(place.path(&format!("f{file}"))).unwrap();
    }
    let before = place.scan(None);
    assert_eq!(before.entries().len(), 50_000);
    assert!(!before.truncated);
    assert!(
        before
            .entries()
            .is_sorted_by(|a, b| before.path(a) < before.path(b))
    );
    assert!(diff(&before, &place.scan(Some(&before))).is_empty());
}

#[test]
fn changes_that_are_a_risk_to_the_host_are_marked() {
    let place = Place::new();
    let mut changes = place.changes(|| {
        fs::create_dir_all(place.path(".git/hooks")).unwrap();
        fs::write(place.path(".git/hooks/pre-commit"), "#!/bin/sh\n").unwrap();
        fs::write(place.path("plain"), "").unwrap();
        fs::create_dir_all(place.path("x/y")).unwrap();
        symlink("..", place.path("x/y/up")).unwrap();
        // By its text it stays inside; through `up` it is above the root.
        symlink("x/y/up/../../outside/canary", place.path("sly")).unwrap();
        symlink("/etc/passwd", place.path("out")).unwrap();
    });
    place.tree.mark_host_risks(&mut changes).unwrap();
    let risk = |path: &str| {
        let change = changes
            .iter()
            .find(|change| change.path == path.as_bytes())
            .unwrap();
        change.host_risk.as_deref()
    };
    assert!(risk(".git/hooks/pre-commit").unwrap().contains("git runs"));
    assert!(risk("sly").unwrap().contains("leaves the workspace"));
    assert!(risk("out").unwrap().contains("/etc/passwd"));
    assert_eq!(risk("plain"), None);
    assert_eq!(risk("x/y/up"), None);
}

/// In a mount namespace of a thread's own, which ends with it. Needs the right to make one.
#[test]
fn a_mount_in_the_tree_is_neither_scanned_nor_listed_nor_cleared() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("f"), "").unwrap();
    let mounted = std::thread::scope(|scope| {
        let mounting = scope.spawn(|| {
            mount_private(&place)?;
            assert!(place.path("mnt/inside").exists());
            // Through a root of this namespace.
            let root = fs::File::open(place.path("")).unwrap().into();
            let tree = Tree::open(root).unwrap();
            let snapshot = tree.scan(patient(), None).unwrap();
            let listing = tree.list(&parse("."), true, false, patient()).unwrap();
            let error = tree.clear().unwrap_err();
            assert!(error.message.contains("is a mount"), "{error}");
            assert!(place.path("mnt/inside").exists());
            Ok::<_, rustix::io::Errno>((snapshot, listing))
        });
        mounting.join().unwrap()
    });
    match mounted {
        Ok((snapshot, listing)) => {
            let paths: Vec<_> = snapshot
                .entries()
                .iter()
                .map(|entry| snapshot.path(entry))
                .collect();
            assert_eq!(paths, [&b"f"[..], b"mnt"]);
            assert_eq!(listing.entries.len(), 2);
            assert_eq!(names_in(&place.path("")), [b"mnt"]);
        }
        Err(errno) => eprintln!("skipped: no mount namespace for this user: {errno}"),
    }
}

#[expect(
    deprecated,
    reason = "the safe form; it unshares no descriptors, which is what the other guards against"
)]
fn mount_private(place: &Place) -> Result<(), rustix::io::Errno> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    mount(
        "none",
        place.path("mnt"),
        "tmpfs",
        MountFlags::empty(),
        None,
    )?;
    fs::write(place.path("mnt/inside"), "").unwrap();
    Ok(())
}
