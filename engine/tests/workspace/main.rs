//! The workspace on a real filesystem: what is seen, what is served, and that nothing leads out.
//!
//! Runs as root and as any other user. File operations drop the capabilities that would make root's permission checks
//! vacuous, so those tests mean the same for both; where only a keeper with capabilities can see, the test asserts
//! what each of the two gets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clearing;
mod edits;
mod files;
mod known;
mod races;
mod scans;
mod search;
mod watching;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepbox_engine::outcome::{ChangeKind, FileChange};
use stepbox_engine::workspace::{
    Budget, FileError, PendingWrite, Snapshot, Tree, WorkspacePath, diff,
};

/// A workspace beside a canary that nothing may touch. Dropped, both are gone.
struct Place {
    base: tempfile::TempDir,
    tree: Tree,
}

const CANARY: &[u8] = b"outside";

impl Place {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("ws")).unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        fs::write(base.path().join("outside/canary"), CANARY).unwrap();
        let root: OwnedFd = fs::File::open(base.path().join("ws")).unwrap().into();
        let tree = Tree::open(root).unwrap();
        Self { base, tree }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.base.path().join("ws").join(below)
    }

    fn outside(&self) -> PathBuf {
        self.base.path().join("outside")
    }

    fn scan(&self, previous: Option<&Snapshot>) -> Snapshot {
        self.tree.scan(patient(), previous).unwrap()
    }

    /// Runs the act between two scans.
    fn changes(&self, act: impl FnOnce()) -> Vec<FileChange> {
        let before = self.scan(None);
        act();
        diff(&before, &self.scan(Some(&before)))
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError> {
        let pending = self.tree.begin_write(&parse(path), 0o644)?;
        fill(&pending, content);
        pending.commit().map(drop)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, FileError> {
        let (file, _) = self.tree.open_read(&parse(path), 1 << 20)?;
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut fs::File::from(file), &mut content).unwrap();
        Ok(content)
    }

    fn assert_outside_is_untouched(&self) {
        let names: Vec<_> = fs::read_dir(self.outside())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["canary"]);
        assert_eq!(fs::read(self.outside().join("canary")).unwrap(), CANARY);
    }
}

fn parse(path: &str) -> WorkspacePath {
    WorkspacePath::parse(path.as_bytes()).unwrap()
}

fn fill(pending: &PendingWrite, mut content: &[u8]) {
    while !content.is_empty() {
        let written = rustix::io::write(pending.file(), content).unwrap();
        content = &content[written..];
    }
}

/// A budget that a loaded machine does not exhaust.
fn patient() -> Budget {
    Budget {
        max_time: Duration::from_secs(600),
        ..Budget::default()
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn names_in(directory: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    names
}

/// Path and change, for comparison.
fn brief(changes: &[FileChange]) -> Vec<(ChangeKind, String)> {
    changes
        .iter()
        .map(|change| {
            (
                change.change,
                String::from_utf8_lossy(&change.path).into_owned(),
            )
        })
        .collect()
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
}
