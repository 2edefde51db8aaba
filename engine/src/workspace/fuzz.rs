//! Names, links and whole trees as code can make them.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use arbitrary::{Arbitrary, Result, Unstructured};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};

use super::path::{join, split};
use super::snapshot::{Digest, Facts, Snapshot};
use super::{Budget, Tree, WorkspacePath, beneath, diff, display, host_risk, rights};
use crate::outcome::{ChangeKind, FileChange, FileKind};

const CANARY: &[u8] = b"what lies outside";

/// A path of a request names one place at or below the root.
pub fn paths(bytes: &[u8]) {
    let refusal = match WorkspacePath::parse(bytes) {
        Err(refusal) => refusal,
        Ok(path) => {
            below(path.as_bytes());
            assert!(path.as_bytes().len() <= bytes.len());
            match path.split() {
                None => assert!(path.is_root() && path.names_directory()),
                Some((directory, name)) => {
                    assert_eq!(join(directory, name), path.as_bytes());
                    assert_eq!(
                        WorkspacePath::parse(path.as_bytes())
                            .expect("parsed")
                            .as_bytes(),
                        path.as_bytes()
                    );
                    let absolute = [b"/workspace/", path.as_bytes()].concat();
                    if absolute.len() <= super::MAX_PATH_BYTES {
                        assert_eq!(
                            WorkspacePath::parse(&absolute).expect("parsed").as_bytes(),
                            path.as_bytes()
                        );
                    }
                }
            }
            return;
        }
    };
    assert!(!refusal.path.chars().any(char::is_control));
    assert!(refusal.path.len() <= 10 * super::MAX_PATH_BYTES);
}

/// A path as it stands in snapshots, changes and listings.
fn below(path: &[u8]) {
    assert!(!path.contains(&0));
    if !path.is_empty() {
        let odd = |part: &[u8]| matches!(part, b"" | b"." | b"..");
        assert!(
            !path.split(|byte| *byte == b'/').any(odd),
            "{}",
            display(path)
        );
    }
}

/// A name as it is shown says which name it is, and has nothing in it that hides or reorders what stands beside it.
pub fn names(bytes: &[u8]) {
    let text = display(bytes);
    assert_eq!(read_back(&text), bytes, "{text}");
    for c in text.chars() {
        let misleads = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
        assert!(!c.is_control() && !misleads, "{:?} in {text:?}", c);
    }
}

fn read_back(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
            continue;
        }
        match rest.next().expect("an escape") {
            '\\' => bytes.push(b'\\'),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).expect("a byte"));
            }
            'u' => {
                let digits: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let number = u32::from_str_radix(&digits, 16).expect("a number");
                let c = char::from_u32(number).expect("a character");
                bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
            }
            other => panic!("an escape of {other:?}"),
        }
    }
    bytes
}

/// Path and target, cut at the first NUL.
pub fn links(bytes: &[u8]) {
    let cut = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    let (path, target) = (&bytes[..cut], bytes.get(cut + 1..).unwrap_or_default());
    let Ok(path) = WorkspacePath::parse(path) else {
        return;
    };
    let path = path.as_bytes();
    if path.is_empty() {
        return;
    }
    let risk = host_risk(path, FileKind::Symlink, Some(target));
    if climbs(path, target) {
        assert!(risk.is_some(), "{} -> {}", display(path), display(target));
    }
    assert!(
        !risk
            .iter()
            .flat_map(|text| text.chars())
            .any(char::is_control)
    );
    let of_file = |path: &[u8]| host_risk(path, FileKind::File, None).is_some();
    assert_eq!(of_file(path), of_file(&path.to_ascii_uppercase()));
    assert!(!of_file(path) || risk.is_some());
    // A path that the kernel is asked for instead is absolute in no way that leads out.
    if let Ok(instead) = beneath::linked_path(path, target)
        && target.starts_with(b"/")
    {
        assert!(target.starts_with(b"/workspace") && target.ends_with(&instead));
    }
}

/// Whether a link's text gets above the root, by counting alone.
fn climbs(path: &[u8], target: &[u8]) -> bool {
    let mut depth = path
        .iter()
        .filter(|byte| **byte == b'/')
        .count()
        .cast_signed();
    target.starts_with(b"/")
        || target.split(|byte| *byte == b'/').any(|part| {
            depth += match part {
                b"" | b"." => 0,
                b".." => -1,
                _ => 1,
            };
            depth < 0
        })
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"d", b".git", b"hooks", b".deps"];

fn some_path(given: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut path = Vec::new();
    for _ in 0..given.int_in_range(1..=3)? {
        let name = if given.ratio(1, 8)? {
            let odd: [u8; 3] = given.arbitrary()?;
            odd.iter()
                .map(|byte| {
                    if matches!(byte, 0 | b'/' | b'.') {
                        b'x'
                    } else {
                        *byte
                    }
                })
                .collect()
        } else {
            given.choose(&NAMES)?.to_vec()
        };
        path = join(&path, &name);
    }
    Ok(path)
}

/// Any two snapshots, also such as no tree gives.
pub fn snapshots(bytes: &[u8]) {
    let given = &mut Unstructured::new(bytes);
    let (Ok(before), Ok(after)) = (some_snapshot(given), some_snapshot(given)) else {
        return;
    };
    compared(&before, &after, &diff(&before, &after));
}

fn some_snapshot(given: &mut Unstructured<'_>) -> Result<Snapshot> {
    let mut snapshot = Snapshot::taken_at(i64::arbitrary(given)?);
    snapshot.truncated = given.ratio(1, 8)?;
    for _ in 0..given.int_in_range(0..=12)? {
        let path = some_path(given)?;
        let facts = Facts {
            kind: *given.choose(&[
                FileKind::File,
                FileKind::Dir,
                FileKind::Symlink,
                FileKind::Fifo,
            ])?,
            mode: *given.choose(&[0, 0o644])?,
            inode: given.int_in_range(1..=9)?,
            born_ns: *given.choose(&[0, 1000, 1001, i64::MAX])?,
            changed_ns: *given.choose(&[10, 11, i64::MIN])?,
            modified_ns: 10,
            size: given.int_in_range(0..=1)?,
        };
        let digest = match given.int_in_range(0..=3)? {
            0 => Some(Digest {
                sha256: [given.int_in_range(0..=1)?; 32],
                racy: given.arbitrary()?,
            }),
            _ => None,
        };
        snapshot.push(&path, facts, digest);
    }
    snapshot.sort();
    Ok(snapshot)
}

/// Whether the changes say what came and went, and nothing that is not so.
fn compared(before: &Snapshot, after: &Snapshot, changes: &[FileChange]) {
    assert!(diff(after, after).is_empty() && diff(before, before).is_empty());
    let paths = |snapshot: &Snapshot| -> HashSet<Vec<u8>> {
        snapshot
            .entries()
            .iter()
            .map(|entry| snapshot.path(entry).to_vec())
            .collect()
    };
    let (old, new) = (paths(before), paths(after));
    assert!(changes.is_sorted_by(|a, b| a.path <= b.path));
    for change in changes {
        below(&change.path);
        match change.change {
            ChangeKind::Deleted => assert!(old.contains(&change.path) && !after.truncated),
            ChangeKind::Created | ChangeKind::Modified => assert!(new.contains(&change.path)),
            ChangeKind::Renamed => {
                assert!(new.contains(&change.path) && !before.truncated && !after.truncated);
                assert!(
                    change
                        .old_path
                        .as_ref()
                        .is_some_and(|path| old.contains(path))
                );
            }
        }
    }
    if before.truncated || after.truncated {
        return;
    }
    let is = |path: &[u8], kinds: &[ChangeKind]| {
        changes
            .iter()
            .any(|change| change.path == path && kinds.contains(&change.change))
    };
    let with_parent = |path: &[u8], moved: &dyn Fn(&FileChange) -> Option<Vec<u8>>| {
        changes
            .iter()
            .filter_map(moved)
            .any(|parent| path == parent || path.starts_with(&join(&parent, b"")))
    };
    for path in new.difference(&old) {
        let came = is(path, &[ChangeKind::Created, ChangeKind::Renamed]);
        let moved = |change: &FileChange| change.old_path.is_some().then(|| change.path.clone());
        assert!(
            came || with_parent(path, &moved),
            "unsaid: {} in {changes:?}",
            display(path)
        );
    }
    for path in old.difference(&new) {
        let moved = |change: &FileChange| change.old_path.clone();
        assert!(
            is(path, &[ChangeKind::Deleted]) || with_parent(path, &moved),
            "unsaid: {} in {changes:?}",
            display(path)
        );
    }
}

/// A real tree, with what code does in it and what the engine then does: nothing outside is read or changed, what
/// changed is told, and all of it can be removed.
pub fn trees(bytes: &[u8]) {
    let place = tempfile::tempdir().expect("a directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("outside")).expect("made");
    fs::write(at("outside/canary"), CANARY).expect("written");
    fs::create_dir(at("root")).expect("made");
    let tree = Tree::open(fs::File::open(at("root")).expect("there").into()).expect("a tree");
    let _ = lived(&tree, place.path(), &mut Unstructured::new(bytes));
    tree.clear().expect("cleared");
    assert_eq!(fs::read_dir(at("root")).expect("there").count(), 0);
    assert_eq!(fs::read(at("outside/canary")).ok().as_deref(), Some(CANARY));
    assert_eq!(fs::read_dir(at("outside")).expect("there").count(), 1);
    assert_eq!(fs::read_dir(place.path()).expect("there").count(), 2);
}

fn lived(tree: &Tree, place: &Path, given: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..given.int_in_range(0..=12)? {
        code_does(tree, place, given)?;
    }
    let before = tree.scan(Budget::default(), None).expect("scanned");
    for _ in 0..given.int_in_range(0..=12)? {
        if given.ratio(2, 3)? {
            code_does(tree, place, given)?;
        } else {
            engine_does(tree, given)?;
        }
    }
    let after = tree
        .scan(Budget::default(), Some(&before))
        .expect("scanned");
    let mut changes = diff(&before, &after);
    compared(&before, &after, &changes);
    tree.mark_host_risks(&mut changes).expect("marked");
    for change in &changes {
        assert!(
            !change
                .host_risk
                .iter()
                .flat_map(|text| text.chars())
                .any(char::is_control)
        );
    }
    let again = tree.scan(Budget::default(), Some(&after)).expect("scanned");
    assert_eq!(diff(&after, &again), Vec::new(), "nothing was done");
    let held = tree.measure(|_| false).expect("measured");
    assert!(held.files <= 200);
    Ok(())
}

/// The directory of a path as code in the sandbox finds it: it has no way out.
fn directory_of<'a>(tree: &Tree, path: &'a [u8]) -> Option<(OwnedFd, &'a [u8])> {
    let (directory, name) = split(path);
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    Some((
        beneath::open_as_host(tree.root(), directory, flags).ok()?,
        name,
    ))
}

fn code_does(tree: &Tree, place: &Path, given: &mut Unstructured<'_>) -> Result<()> {
    let path = some_path(given)?;
    let deed = given.int_in_range(0..=11)?;
    let more = some_path(given)?;
    let number: u32 = given.arbitrary()?;
    let (Some((directory, name)), Some((other, other_name))) =
        (directory_of(tree, &path), directory_of(tree, &more))
    else {
        return Ok(());
    };
    let (directory, other) = (directory.as_fd(), other.as_fd());
    let all = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    // What of this fails, fails: code tries.
    let done = match deed {
        0 | 1 => rustix::fs::mkdirat(directory, name, all),
        2 | 3 => rustix::fs::openat(
            directory,
            name,
            OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
            all,
        )
        .and_then(|file| {
            rustix::io::write(&file, &number.to_le_bytes())?;
            if number.is_multiple_of(7) {
                rustix::fs::ftruncate(&file, u64::from(number) << (number % 10))?;
            }
            rustix::fs::fsetxattr(&file, "user.x", &number.to_le_bytes(), XattrFlags::empty())
        }),
        4 | 5 => {
            let out = place.join("outside/canary");
            let targets: [&[u8]; 12] = [
                b"..",
                b"/",
                b"../outside",
                b"../outside/canary",
                b"../../..",
                b"/workspace",
                b"/workspace/a",
                b"/workspace/../outside",
                out.as_os_str().as_encoded_bytes(),
                b"/proc/self/root",
                b".",
                &more,
            ];
            rustix::fs::symlinkat(targets[number as usize % 12], directory, name)
        }
        6 => rustix::fs::linkat(other, other_name, directory, name, AtFlags::empty()),
        7 => rustix::fs::mknodat(directory, name, rustix::fs::FileType::Fifo, all, 0),
        8 => {
            // Who cannot look past modes must still be able to clean up.
            let least = if rights::may_override() { 0 } else { 0o700 };
            let file = rustix::fs::openat(
                directory,
                name,
                OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
                Mode::empty(),
            );
            file.and_then(|file| {
                rustix::fs::fchmod(file, Mode::from_raw_mode(number & 0o7777 | least))
            })
        }
        9 => rustix::fs::renameat(other, other_name, directory, name),
        10 => rustix::fs::unlinkat(
            directory,
            name,
            if number.is_multiple_of(2) {
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            },
        ),
        _ => {
            let time = rustix::fs::Timespec {
                tv_sec: i64::from(number) << (number % 30),
                tv_nsec: 1,
            };
            let times = rustix::fs::Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
    };
    let _ = done;
    Ok(())
}

fn engine_does(tree: &Tree, given: &mut Unstructured<'_>) -> Result<()> {
    let path = WorkspacePath::parse(&some_path(given)?).expect("a path");
    match given.int_in_range(0..=6)? {
        0 | 1 => {
            if let Ok((file, stat)) = tree.open_read(&path, 1 << 20) {
                assert_eq!(
                    (stat.kind, stat.path.as_slice()),
                    (FileKind::File, path.as_bytes())
                );
                let mut read = Vec::new();
                let _ = fs::File::from(file).take(64).read_to_end(&mut read);
                assert_ne!(read, CANARY, "{}", display(path.as_bytes()));
            }
        }
        2 => {
            if let Ok(listing) = tree.list(
                &path,
                given.arbitrary()?,
                given.arbitrary()?,
                Budget::default(),
            ) {
                for entry in listing.entries {
                    below(&entry.path);
                    assert!(entry.path.starts_with(path.as_bytes()));
                }
            }
        }
        3 => {
            if let Ok(write) = tree.begin_write(&path, given.arbitrary()?) {
                let _ = rustix::io::write(write.file(), b"the caller's");
                if given.arbitrary()? {
                    let _ = write.commit();
                }
            }
        }
        4 => drop(tree.make_dir(&path)),
        5 => drop(tree.remove(&path, given.arbitrary()?)),
        _ => {
            let other = WorkspacePath::parse(&some_path(given)?).expect("a path");
            let _ = tree.rename(&path, &other, given.arbitrary()?);
        }
    }
    Ok(())
}
