//! The table of rooms in `README.md` against the source: which part of the engine knows which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Edges = BTreeMap<String, BTreeSet<String>>;

fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The words between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// Room to rooms that it may use, by the table.
fn allowed() -> Edges {
    let text = fs::read_to_string(crate_file("README.md")).expect("README.md");
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| room |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        let [_, room, holds, may_use, _] = cells[..] else {
            panic!("not three cells: {row}");
        };
        assert!(!holds.trim().is_empty(), "says nothing: {row}");
        let room = quoted(room).next().expect("a room's name");
        (room, quoted(may_use).collect())
    })
    .collect()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The room that a file is in; none for the root of the library, which only lists the rooms.
fn room_of(file: &Path) -> Option<String> {
    let below = file.strip_prefix(crate_file("src")).expect("a source");
    let first = Path::new(below.components().next().expect("a name").as_os_str());
    let name = first.file_stem().expect("a name").to_str().expect("text");
    (name != "lib").then(|| name.to_owned())
}

/// The first segments of every path into the crate: `crate::a::b`, `use crate::{a, b::c}`, `stepbox_engine::a`.
fn used(source: &str) -> BTreeSet<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    ["crate::", "stepbox_engine::"]
        .iter()
        .flat_map(|root| code.split(root).skip(1))
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(list) => heads(list),
            None => vec![head(rest)],
        })
        // What begins with a capital letter is of the crate itself, not a room.
        .filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase()))
        .collect()
}

fn head(path: &str) -> String {
    path.trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect()
}

/// The heads of `a, b::{c, d}, e}`.
fn heads(list: &str) -> Vec<String> {
    let mut heads = vec![head(list)];
    let mut depth = 0;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(head(&list[at + 1..])),
            _ => {}
        }
    }
    heads
}

/// Room to rooms that it uses, by the source.
fn actual() -> Edges {
    let mut files = Vec::new();
    sources(&crate_file("src"), &mut files);
    let mut edges = Edges::new();
    for file in files {
        let Some(room) = room_of(&file) else { continue };
        let mut used = used(&fs::read_to_string(&file).expect("a source"));
        used.remove(&room);
        edges.entry(room).or_default().extend(used);
    }
    edges
}

#[test]
fn every_room_is_in_the_table_and_every_line_is_a_room() {
    let names = |edges: Edges| edges.into_keys().collect::<BTreeSet<_>>();
    assert_eq!(names(allowed()), names(actual()));
}

#[test]
fn no_room_uses_one_that_its_line_does_not_name() {
    let allowed = allowed();
    for (room, used) in actual() {
        let beyond: Vec<_> = used.difference(&allowed[&room]).collect();
        assert!(beyond.is_empty(), "{room} may not use {beyond:?}");
    }
}

#[test]
fn no_line_names_a_room_that_is_not_used() {
    let actual = actual();
    for (room, allowed) in allowed() {
        let unused: Vec<_> = allowed.difference(&actual[&room]).collect();
        assert!(unused.is_empty(), "{room} does not use {unused:?}");
    }
}

#[test]
fn no_two_rooms_reach_each_other() {
    let allowed = allowed();
    for room in allowed.keys() {
        let mut reached = BTreeSet::new();
        let mut next = vec![room];
        while let Some(at) = next.pop() {
            for below in &allowed[at] {
                if reached.insert(below) {
                    next.push(below);
                }
            }
        }
        assert!(!reached.contains(room), "{room} reaches itself");
    }
}

#[test]
fn paths_are_found_however_they_are_written() {
    let source = "use crate::{a, b::{c, d}, e};\nfn f() { crate::g::h(crate::VERSION) }\n// crate::comment\n";
    let found: Vec<_> = used(source).into_iter().collect();
    assert_eq!(found, ["a", "b", "e", "g"]);
}
