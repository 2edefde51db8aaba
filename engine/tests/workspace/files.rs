use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use stepbox_engine::outcome::FileKind;
use stepbox_engine::workspace::{Budget, FileReason, WorkspacePath};

use super::{CANARY, Place, fill, make_fifo, mode, names_in, parse, patient, set_mode};

#[test]
fn what_is_written_is_read_back_under_every_name() {
    let place = Place::new();
    let long = "a".repeat(255);
    let accents = format!("d/{}", "é".repeat(100));
    let names: &[&[u8]] = &[
        b"a\nb",
        b"-rf",
        b"x';touch pwned;'",
        b"$(touch pwned)",
        long.as_bytes(),
        accents.as_bytes(),
        b" lead",
        b"tab\t",
        b"bad\xff",
        b"\\..\\x",
    ];
    for name in names {
        let path = WorkspacePath::parse(name).unwrap();
        let pending = place.tree.begin_write(&path, 0o644).unwrap();
        fill(&pending, b"1");
        let stat = pending.commit().unwrap();
        assert_eq!(
            (stat.path.as_slice(), stat.size, stat.mode),
            (*name, 1, 0o644)
        );
        let (_, stat) = place.tree.open_read(&path, 1).unwrap();
        assert_eq!(stat.size, 1);
    }
    let all = place.tree.list(
        &WorkspacePath::parse_directory(b"").unwrap(),
        true,
        true,
        patient(),
    );
    let mut listed: Vec<_> = all
        .unwrap()
        .entries
        .into_iter()
        .map(|entry| entry.path)
        .collect();
    listed.sort();
    let mut expected: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(listed, expected);
}

#[test]
fn reading_anything_but_a_file_names_its_kind_and_never_blocks() {
    let place = Place::new();
    make_fifo(&place.path("pipe"));
    let _listener = UnixListener::bind(place.path("sock")).unwrap();
    fs::create_dir(place.path("d")).unwrap();
    fs::File::create(place.path("big"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    symlink("/dev/zero", place.path("zero")).unwrap();
    symlink("/proc/self/mem", place.path("mem")).unwrap();
    symlink("pipe", place.path("to-pipe")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    for (path, reason, words) in [
        ("pipe", FileReason::NotAFile, "FIFO"),
        ("to-pipe", FileReason::NotAFile, "FIFO"),
        ("sock", FileReason::NotAFile, "socket"),
        ("d", FileReason::IsDirectory, "directory"),
        ("d/", FileReason::IsDirectory, "directory"),
        (".", FileReason::IsDirectory, "directory"),
        (
            "big",
            FileReason::TooLarge,
            "1099511627776 bytes; at most 1048576",
        ),
        ("zero", FileReason::InvalidPath, "escapes the workspace"),
        ("mem", FileReason::InvalidPath, "escapes the workspace"),
        ("loop", FileReason::InvalidPath, "links"),
        ("none", FileReason::NotFound, "no such file"),
        ("big/x", FileReason::NotADirectory, "not a directory"),
        ("big/", FileReason::NotADirectory, "not a directory"),
    ] {
        let error = place.read(path).unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn writing_onto_anything_but_a_file_is_refused_and_it_stays() {
    let place = Place::new();
    make_fifo(&place.path("pipe"));
    let _listener = UnixListener::bind(place.path("sock")).unwrap();
    fs::create_dir(place.path("d")).unwrap();
    for (path, reason) in [
        ("pipe", FileReason::NotAFile),
        ("sock", FileReason::NotAFile),
        ("d", FileReason::IsDirectory),
        ("d/", FileReason::IsDirectory),
        ("new/", FileReason::IsDirectory),
        (".", FileReason::IsDirectory),
    ] {
        assert_eq!(
            place.write(path, b"x").unwrap_err().reason,
            reason,
            "{path}"
        );
    }
    assert_eq!(names_in(&place.path("")), [&b"d"[..], b"pipe", b"sock"]);
}

#[test]
fn links_inside_are_followed_and_links_out_are_refused_for_every_operation() {
    let place = Place::new();
    fs::create_dir_all(place.path("real/deep")).unwrap();
    fs::write(place.path("real/f"), "in").unwrap();
    symlink("real", place.path("latest")).unwrap();
    symlink("../../real", place.path("real/deep/up")).unwrap();
    assert_eq!(place.read("latest/f").unwrap(), b"in");
    assert_eq!(place.read("real/deep/up/f").unwrap(), b"in");
    place.write("latest/new/g", b"made").unwrap();
    assert_eq!(fs::read(place.path("real/new/g")).unwrap(), b"made");

    symlink(place.outside(), place.path("abs")).unwrap();
    symlink("../outside", place.path("rel")).unwrap();
    symlink("../outside/canary", place.path("file")).unwrap();
    symlink("../outside/new", place.path("dangling")).unwrap();
    symlink("..", place.path("parent")).unwrap();
    for path in [
        "abs/canary",
        "rel/canary",
        "file",
        "dangling",
        "parent/outside/canary",
        "parent",
    ] {
        let path = parse(path);
        let refused = |reason: FileReason| {
            assert_eq!(reason, FileReason::InvalidPath, "{path:?}");
        };
        refused(place.tree.open_read(&path, 100).unwrap_err().reason);
        refused(place.tree.begin_write(&path, 0o644).unwrap_err().reason);
        refused(
            place
                .tree
                .list(&path, true, false, patient())
                .unwrap_err()
                .reason,
        );
    }
    for path in ["abs/x", "rel/x", "parent/x"] {
        let path = parse(path);
        assert_eq!(
            place.tree.stat(&path).unwrap_err().reason,
            FileReason::InvalidPath
        );
        assert_eq!(
            place.tree.make_dir(&path).unwrap_err().reason,
            FileReason::InvalidPath
        );
        assert_eq!(
            place.tree.remove(&path, true).unwrap_err().reason,
            FileReason::InvalidPath
        );
        let moved = place.tree.rename(&parse("real/f"), &path, true);
        assert_eq!(moved.unwrap_err().reason, FileReason::InvalidPath);
    }
    place.assert_outside_is_untouched();
}

#[test]
fn absolute_links_below_the_mount_point_are_links_inside() {
    let place = Place::new();
    fs::create_dir_all(place.path("data/v2")).unwrap();
    fs::write(place.path("data/v2/f"), "in").unwrap();
    symlink("/workspace/data/v2", place.path("latest")).unwrap();
    symlink("../latest/f", place.path("data/file")).unwrap();
    symlink("/workspace", place.path("data/root")).unwrap();
    symlink("/workspace/data/made", place.path("new")).unwrap();
    for path in [
        "latest/f",
        "data/file",
        "data/root/latest/f",
        "data/root/data/root/data/file",
    ] {
        assert_eq!(place.read(path).unwrap(), b"in", "{path}");
    }
    place.write("data/root/latest/g", b"made").unwrap();
    place.write("data/file", b"replaced").unwrap();
    place.write("new", b"made").unwrap();
    assert_eq!(fs::read(place.path("data/v2/g")).unwrap(), b"made");
    assert_eq!(fs::read(place.path("data/v2/f")).unwrap(), b"replaced");
    assert_eq!(fs::read(place.path("data/made")).unwrap(), b"made");
    assert_eq!(
        place.tree.stat(&parse("latest")).unwrap().kind,
        FileKind::Symlink
    );

    symlink("/workspace/../outside", place.path("sly")).unwrap();
    symlink("/workspacex/../outside", place.path("near")).unwrap();
    symlink("/workspace/spin", place.path("spin")).unwrap();
    for path in ["sly/canary", "near/canary", "spin/x"] {
        let error = place.tree.open_read(&parse(path), 100).unwrap_err();
        assert_eq!(error.reason, FileReason::InvalidPath, "{error}");
        let error = place.tree.begin_write(&parse(path), 0o644).unwrap_err();
        assert_eq!(error.reason, FileReason::InvalidPath, "{error}");
    }
    place.assert_outside_is_untouched();
}

#[test]
fn a_write_through_a_link_replaces_what_it_names_and_keeps_the_link() {
    let place = Place::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    fs::write(place.path("a/target"), "old").unwrap();
    symlink("../target", place.path("a/b/one")).unwrap();
    symlink("a/b/one", place.path("two")).unwrap();
    symlink("a/made", place.path("dangling")).unwrap();
    place.write("two", b"new").unwrap();
    place.write("dangling", b"new").unwrap();
    assert_eq!(fs::read(place.path("a/target")).unwrap(), b"new");
    assert_eq!(fs::read(place.path("a/made")).unwrap(), b"new");
    assert!(place.path("two").is_symlink() && place.path("a/b/one").is_symlink());
    symlink("a/b/..", place.path("to-dir")).unwrap();
    assert_eq!(
        place.write("to-dir", b"x").unwrap_err().reason,
        FileReason::IsDirectory
    );
    symlink("self", place.path("self")).unwrap();
    assert_eq!(
        place.write("self", b"x").unwrap_err().reason,
        FileReason::InvalidPath
    );
}

#[test]
fn a_replaced_file_keeps_its_mode_without_set_id_bits_and_readers_keep_the_old_content() {
    let place = Place::new();
    let path = place.path("tool");
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o4751);
    let (reader, _) = place.tree.open_read(&parse("tool"), 100).unwrap();
    place.write("tool", b"new").unwrap();
    assert_eq!(mode(&path), 0o751);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    let mut old = String::new();
    std::io::Read::read_to_string(&mut fs::File::from(reader), &mut old).unwrap();
    assert_eq!(old, "old");

    let pending = place.tree.begin_write(&parse("fresh"), 0o6755).unwrap();
    assert_eq!(pending.commit().unwrap().mode, 0o755);
    assert_eq!(names_in(&place.path("")), [&b"fresh"[..], b"tool"]);
}

#[test]
fn directories_made_in_a_set_group_id_directory_do_not_carry_the_bit() {
    let place = Place::new();
    set_mode(&place.path(""), 0o2755);
    assert_eq!(mode(&place.path("")), 0o2755);
    place.tree.make_dir(&parse("a/b")).unwrap();
    assert_eq!(mode(&place.path("a")) & 0o6000, 0);
    assert_eq!(mode(&place.path("a/b")) & 0o6000, 0);
}

#[test]
fn a_write_that_is_not_committed_leaves_nothing() {
    let place = Place::new();
    fs::write(place.path("f"), "old").unwrap();
    for path in ["f", "new"] {
        let pending = place.tree.begin_write(&parse(path), 0o644).unwrap();
        fill(&pending, b"half");
        drop(pending);
    }
    assert_eq!(names_in(&place.path("")), [b"f"]);
    assert_eq!(fs::read(place.path("f")).unwrap(), b"old");
}

#[test]
fn what_takes_the_name_during_a_write_decides_at_the_commit() {
    let place = Place::new();
    let begin = |path| {
        let pending = place.tree.begin_write(&parse(path), 0o644).unwrap();
        fill(&pending, b"mine");
        pending
    };
    let (file, dir, link) = (begin("file"), begin("dir"), begin("link"));
    fs::write(place.path("file"), "theirs").unwrap();
    fs::create_dir(place.path("dir")).unwrap();
    symlink(place.outside().join("canary"), place.path("link")).unwrap();
    file.commit().unwrap();
    assert_eq!(fs::read(place.path("file")).unwrap(), b"mine");
    assert_eq!(dir.commit().unwrap_err().reason, FileReason::IsDirectory);
    assert_eq!(link.commit().unwrap_err().reason, FileReason::NotAFile);
    assert_eq!(names_in(&place.path("")), [&b"dir"[..], b"file", b"link"]);
    place.assert_outside_is_untouched();
}

#[test]
fn operations_have_the_rights_of_the_user_and_not_those_of_the_keeper() {
    let place = Place::new();
    fs::write(place.path("secret"), "x").unwrap();
    set_mode(&place.path("secret"), 0);
    fs::write(place.path("readonly"), "x").unwrap();
    set_mode(&place.path("readonly"), 0o444);
    fs::create_dir(place.path("closed")).unwrap();
    fs::write(place.path("closed/f"), "x").unwrap();
    set_mode(&place.path("closed"), 0);
    fs::create_dir(place.path("fixed")).unwrap();
    fs::write(place.path("fixed/f"), "x").unwrap();
    set_mode(&place.path("fixed"), 0o555);

    let denied = |result: Result<(), stepbox_engine::workspace::FileError>| {
        assert_eq!(result.unwrap_err().reason, FileReason::PermissionDenied);
    };
    denied(place.read("secret").map(drop));
    denied(place.write("secret", b"x"));
    denied(place.write("readonly", b"x"));
    denied(place.read("closed/f").map(drop));
    denied(place.tree.stat(&parse("closed/f")).map(drop));
    denied(
        place
            .tree
            .list(&parse("closed"), false, false, patient())
            .map(drop),
    );
    denied(place.tree.remove(&parse("closed"), true));
    denied(place.write("fixed/new", b"x"));
    denied(place.tree.make_dir(&parse("fixed/new")));
    denied(place.tree.remove(&parse("fixed/f"), false));
    denied(place.tree.remove(&parse("fixed"), true));
    denied(place.tree.rename(&parse("fixed/f"), &parse("moved"), false));

    assert_eq!(place.read("readonly").unwrap(), b"x");
    let all = place
        .tree
        .list(&parse("."), true, false, patient())
        .unwrap();
    assert_eq!(all.unreadable, 1);
    assert_eq!(all.entries.len(), 5);
    set_mode(&place.path("closed"), 0o700);
    set_mode(&place.path("fixed"), 0o700);
}

#[test]
fn stat_is_of_the_link_itself_and_tells_its_target() {
    let place = Place::new();
    fs::write(place.path("f"), "four").unwrap();
    symlink(place.outside(), place.path("l")).unwrap();
    let link = place.tree.stat(&parse("l")).unwrap();
    assert_eq!(link.kind, FileKind::Symlink);
    assert_eq!(
        link.link_target.unwrap(),
        place.outside().as_os_str().as_bytes()
    );
    let file = place.tree.stat(&parse("/workspace/f")).unwrap();
    assert_eq!((file.path.as_slice(), file.size), (&b"f"[..], 4));
    let facts = fs::metadata(place.path("f")).unwrap();
    assert_eq!(
        file.modified_ns,
        facts.mtime() * 1_000_000_000 + facts.mtime_nsec()
    );
    assert_eq!(place.tree.stat(&parse(".")).unwrap().kind, FileKind::Dir);
}

#[test]
fn a_listing_is_sorted_bounded_and_does_not_follow_links() {
    let place = Place::new();
    fs::create_dir_all(place.path("d/e")).unwrap();
    fs::write(place.path("d/e/f"), "x").unwrap();
    symlink("../d", place.path("d/again")).unwrap();
    symlink("d", place.path("latest")).unwrap();
    let list = |path: &str, recursive, files_only| -> Vec<String> {
        let listing = place
            .tree
            .list(&parse(path), recursive, files_only, patient())
            .unwrap();
        assert!(!listing.truncated);
        let paths = listing.entries.into_iter().map(|entry| entry.path);
        paths.map(|path| String::from_utf8(path).unwrap()).collect()
    };
    assert_eq!(list(".", false, false), ["d", "latest"]);
    assert_eq!(
        list(".", true, false),
        ["d", "d/again", "d/e", "d/e/f", "latest"]
    );
    assert_eq!(list(".", true, true), ["d/e/f"]);
    assert_eq!(list("latest/e", true, true), ["latest/e/f"]);
    let small = Budget {
        max_entries: 2,
        ..patient()
    };
    let listing = place.tree.list(&parse("."), true, false, small).unwrap();
    assert!(listing.truncated);
    assert_eq!(listing.entries.len(), 2);
    let file = place.tree.list(&parse("d/e/f"), false, false, patient());
    assert_eq!(file.unwrap_err().reason, FileReason::NotADirectory);
}

#[test]
fn making_a_directory_makes_those_above_and_accepts_one_that_exists() {
    let place = Place::new();
    place.tree.make_dir(&parse("a/b/c")).unwrap();
    place.tree.make_dir(&parse("a/b/c/")).unwrap();
    place.tree.make_dir(&parse(".")).unwrap();
    assert!(place.path("a/b/c").is_dir());
    fs::write(place.path("f"), "").unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();
    let reason = |path| place.tree.make_dir(&parse(path)).unwrap_err().reason;
    assert_eq!(reason("f"), FileReason::Exists);
    assert_eq!(reason("dangling"), FileReason::Exists);
    assert_eq!(reason("f/x"), FileReason::NotADirectory);
}

#[test]
fn removal_acts_on_links_themselves_and_asks_before_content_is_lost() {
    let place = Place::new();
    symlink(place.outside(), place.path("out")).unwrap();
    fs::create_dir_all(place.path("d/e")).unwrap();
    fs::write(place.path("d/e/f"), "x").unwrap();
    symlink("../../outside", place.path("d/e/out")).unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    let remove = |path: &str, recursive| {
        place
            .tree
            .remove(&parse(path), recursive)
            .map_err(|error| error.reason)
    };
    assert_eq!(remove("out", true), Ok(()));
    assert_eq!(remove("empty", false), Ok(()));
    assert_eq!(remove("d", false), Err(FileReason::IsDirectory));
    assert_eq!(remove("d", true), Ok(()));
    assert_eq!(remove("d", true), Err(FileReason::NotFound));
    assert_eq!(remove(".", true), Err(FileReason::InvalidPath));
    assert!(names_in(&place.path("")).is_empty());
    place.assert_outside_is_untouched();
}

#[test]
fn a_move_acts_on_links_makes_parents_and_replaces_only_when_asked() {
    let place = Place::new();
    fs::write(place.path("a"), "a").unwrap();
    fs::write(place.path("b"), "b").unwrap();
    symlink(place.outside().join("canary"), place.path("l")).unwrap();
    let rename = |from: &str, to: &str, replace| {
        let moved = place.tree.rename(&parse(from), &parse(to), replace);
        moved.map_err(|error| error.reason)
    };
    assert_eq!(rename("a", "b", false), Err(FileReason::Exists));
    assert_eq!(rename("a", "b", true), Ok(()));
    assert_eq!(fs::read(place.path("b")).unwrap(), b"a");
    assert_eq!(rename("l", "x/y/l", false), Ok(()));
    assert!(place.path("x/y/l").is_symlink());
    assert_eq!(
        rename("none", "made/none", false),
        Err(FileReason::NotFound)
    );
    assert!(!place.path("made").exists());
    assert_eq!(rename("x", "x/y/z", false), Err(FileReason::InvalidPath));
    assert_eq!(rename(".", "z", false), Err(FileReason::InvalidPath));
    place.assert_outside_is_untouched();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever links there are, no path leads out: what is read is never the canary's content, and what is written
    /// is never outside.
    #[test]
    fn no_path_through_any_links_reaches_outside(
        links in proptest::collection::vec(
            ("[abc]", "(/workspace/)?(\\.\\./|[abc]/|\\./){0,4}(\\.\\.|[abc]|outside/canary|outside)"), 0..6),
        paths in proptest::collection::vec("([abc]/){0,4}([abc]|outside|canary|outside/canary)", 1..6),
    ) {
        let place = Place::new();
        fs::create_dir_all(place.path("b/a")).unwrap();
        for (name, target) in &links {
            // A name that is taken keeps what it has.
            let _ = symlink(target, place.path(name));
            let _ = symlink(target, place.path("b").join(name));
        }
        for path in &paths {
            if let Ok(content) = place.read(path) {
                prop_assert_ne!(content.as_slice(), CANARY);
            }
            let _ = place.write(path, b"pwn");
            let _ = place.tree.make_dir(&parse(path));
            let _ = place.tree.list(&parse(path), true, false, patient());
            let _ = place.tree.remove(&parse(path), true);
        }
        place.assert_outside_is_untouched();
        place.tree.clear().unwrap();
        place.assert_outside_is_untouched();
        prop_assert_eq!(names_in(place.base.path()), [&b"outside"[..], b"ws"]);
    }
}
