//! Files by name, and lines by what is in them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use stepbox_engine::spec::{Grep, PathPattern};
use stepbox_engine::workspace::{Budget, FileReason, Matches};

use super::{Place, parse, patient, set_mode};

fn tree() -> Place {
    let place = Place::new();
    for directory in ["d/e", ".git"] {
        fs::create_dir_all(place.path(directory)).unwrap();
    }
    for (path, content) in [
        ("a.py", &b"import os\nprint(1)\n"[..]),
        ("d/b.py", b"import sys\r\nprint(2)\r\n"),
        ("d/e/c.txt", b"Import\nlast without an end: import"),
        (".git/config", b"[import]\n"),
        ("binary", b"import\0\n"),
    ] {
        fs::write(place.path(path), content).unwrap();
    }
    symlink(place.outside(), place.path("out")).unwrap();
    symlink("a.py", place.path("link.py")).unwrap();
    place
}

fn glob(place: &Place, path: &str, pattern: &str) -> Vec<String> {
    let path = stepbox_engine::workspace::WorkspacePath::parse_directory(path.as_bytes()).unwrap();
    let pattern = PathPattern::parse(pattern).unwrap();
    let listing = place.tree.glob(&path, &pattern, false, patient()).unwrap();
    let paths = listing.entries.into_iter().map(|entry| entry.path);
    paths
        .map(|path| String::from_utf8_lossy(&path).into_owned())
        .collect()
}

fn grep(place: &Place, path: &str, grep: Grep) -> Matches {
    let path = stepbox_engine::workspace::WorkspacePath::parse_directory(path.as_bytes()).unwrap();
    place.tree.grep(&path, &grep, patient()).unwrap()
}

fn pattern(pattern: &str) -> Grep {
    Grep {
        pattern: pattern.into(),
        max_count: 100,
        ..Grep::default()
    }
}

fn lines(matches: &Matches) -> Vec<String> {
    let line = |found: &stepbox_engine::workspace::Match| {
        format!(
            "{}:{}:{}",
            String::from_utf8_lossy(&found.path),
            found.line_number,
            String::from_utf8_lossy(&found.line)
        )
    };
    matches.found.iter().map(line).collect()
}

#[test]
fn names_are_found_below_a_directory_and_no_link_is_followed() {
    let place = tree();
    assert_eq!(glob(&place, "", "*.py"), ["a.py", "link.py"]);
    assert_eq!(glob(&place, "", "**/*.py"), ["a.py", "d/b.py", "link.py"]);
    assert_eq!(glob(&place, "d", "**"), ["d/b.py", "d/e", "d/e/c.txt"]);
    assert_eq!(glob(&place, "d", "*/"), ["d/e"]);
    assert_eq!(glob(&place, "", ".git/*"), [".git/config"]);
    assert_eq!(glob(&place, "", "out/**"), Vec::<String>::new());
    fs::write(
        place.path("").join(std::ffi::OsStr::from_bytes(b"bad\xff")),
        "",
    )
    .unwrap();
    let all = place.tree.glob(
        &stepbox_engine::workspace::WorkspacePath::parse_directory(b"").unwrap(),
        &PathPattern::parse("bad*").unwrap(),
        true,
        patient(),
    );
    assert_eq!(all.unwrap().entries[0].path, b"bad\xff");
    place.assert_outside_is_untouched();
}

#[test]
fn lines_are_found_in_files_as_they_are() {
    let place = tree();
    let found = grep(&place, "", pattern("^import"));
    assert_eq!(lines(&found), ["a.py:1:import os", "d/b.py:1:import sys"]);
    assert_eq!((found.binary, found.truncated), (1, false));
    let all = grep(
        &place,
        "",
        Grep {
            ignore_case: true,
            ..pattern("IMPORT$")
        },
    );
    assert_eq!(
        lines(&all),
        [
            "d/e/c.txt:1:Import",
            "d/e/c.txt:2:last without an end: import"
        ]
    );
    let filtered = |glob: &str| {
        let found = grep(
            &place,
            "d",
            Grep {
                glob: Some(glob.into()),
                ..pattern(".")
            },
        );
        found
            .found
            .iter()
            .map(|found| found.path.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(filtered("*.txt"), [b"d/e/c.txt".to_vec()].into());
    assert_eq!(filtered("e/*"), [b"d/e/c.txt".to_vec()].into());
    assert_eq!(filtered("c.txt/*"), [].into());
    let one = grep(&place, "d/b.py", pattern("print"));
    assert_eq!(lines(&one), ["d/b.py:2:print(2)"]);
    let literal = grep(
        &place,
        "",
        Grep {
            literal: true,
            ..pattern("print(")
        },
    );
    assert_eq!(literal.found.len(), 2);
    let some = grep(
        &place,
        "",
        Grep {
            max_count: 1,
            ..pattern("import")
        },
    );
    assert_eq!((some.found.len(), some.truncated), (1, true));
    place.assert_outside_is_untouched();
}

#[test]
fn what_the_user_may_not_read_is_passed_over_and_what_blocks_is_not_opened() {
    let place = tree();
    set_mode(&place.path("a.py"), 0);
    set_mode(&place.path("d"), 0);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let found = grep(&place, "", pattern("import"));
    assert_eq!(lines(&found), [".git/config:1:[import]"]);
    let error = place
        .tree
        .grep(&parse("fifo"), &pattern("x"), patient())
        .unwrap_err();
    assert_eq!(error.reason, FileReason::NotAFile);
    let error = place
        .tree
        .grep(&parse("none"), &pattern("x"), patient())
        .unwrap_err();
    assert_eq!(error.reason, FileReason::NotFound);
    let error = place
        .tree
        .grep(&parse("out/canary"), &pattern("x"), patient())
        .unwrap_err();
    assert_eq!(error.reason, FileReason::InvalidPath);
    set_mode(&place.path("d"), 0o755);
}

#[test]
fn huge_lines_and_holes_are_searched_in_bounded_memory() {
    let place = Place::new();
    let hole = fs::File::create(place.path("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    let long = "x".repeat(5 << 20) + "needle" + &"x".repeat(3 << 20) + "\nneedle\n";
    fs::write(place.path("long"), long).unwrap();
    let found = grep(&place, "", pattern("needle"));
    assert_eq!(found.binary, 1);
    let numbers: Vec<_> = found.found.iter().map(|found| found.line_number).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(found.found[0].line.len() <= 4096);
    let cut = Budget {
        max_entries: 1,
        ..patient()
    };
    let path = stepbox_engine::workspace::WorkspacePath::parse_directory(b"").unwrap();
    assert!(
        place
            .tree
            .grep(&path, &pattern("x"), cut)
            .unwrap()
            .truncated
    );
}
