//! How much a tree holds, for a limit that no file system keeps.
//!
//! What counts is what is allocated: a hole is nothing, and a file with several names is one. A file without a name is
//! not met: it ends with the last process that has it open.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::walk::{Budget, Walk};
use super::{FileError, Tree, beneath, rights};
use crate::outcome::FileKind;

/// What the kernel counts allocated space in, whatever the file system.
const SECTOR: u64 = 512;
/// Past so many entries a look says what it has: it is past every limit that can be meant.
const MOST_ENTRIES: usize = 1 << 24;
const LONGEST: Duration = Duration::from_secs(60);

/// What was found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub bytes: u64,
    /// Entries of all kinds.
    pub files: u64,
    /// Some of it is too deep to be looked at: there is more.
    pub hidden: bool,
}

impl std::ops::Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            files: self.files + other.files,
            hidden: self.hidden || other.hidden,
        }
    }
}

impl Tree {
    /// Looks at every entry below the root. Entries for which `is_ours` holds are the engine's and do not count.
    ///
    /// # Errors
    /// When the root itself cannot be read.
    pub fn measure(&self, is_ours: impl Fn(&[u8]) -> bool) -> Result<Held, FileError> {
        rights::with_override(|| {
            let mut held = Held::default();
            let mut linked = HashSet::new();
            let walk = Walk {
                start: self.root(),
                recursive: true,
                excluded: None,
                horizon: usize::MAX,
                budget: Budget {
                    max_entries: MOST_ENTRIES,
                    max_time: LONGEST,
                    max_path_bytes: usize::MAX,
                },
            };
            let missed = walk
                .run(|visit| {
                    let facts = visit.facts;
                    let several = facts.stx_nlink > 1 && beneath::kind(facts) != FileKind::Dir;
                    let known = several && !linked.insert(facts.stx_ino);
                    if known || is_ours(visit.path) {
                        return;
                    }
                    held.bytes = held.bytes.saturating_add(facts.stx_blocks * SECTOR);
                    held.files += 1;
                })
                .map_err(|errno| FileError::from_errno(b"", "measure", errno))?;
            // A directory that the override does not open is one that code cannot write to either.
            held.hidden = missed.truncated;
            Ok(held)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;

    fn measured(directory: &std::path::Path) -> Held {
        let tree = Tree::open(fs::File::open(directory).unwrap().into()).unwrap();
        tree.measure(|path| path == b"ours").unwrap()
    }

    #[test]
    fn what_is_allocated_counts_once_and_holes_and_our_own_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("ours")).unwrap();
        assert_eq!(measured(directory.path()), Held::default());
        fs::write(at("ours/a"), vec![1; 100_000]).unwrap();
        fs::File::open(at("ours/a")).unwrap().sync_all().unwrap();
        let one = measured(directory.path());
        assert_eq!(one.files, 1);
        assert!(one.bytes >= 100_000 && one.bytes < 200_000, "{one:?}");
        fs::hard_link(at("ours/a"), at("b")).unwrap();
        fs::File::create(at("hole"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let more = measured(directory.path());
        assert_eq!(more.files, 2);
        assert!(more.bytes < 300_000, "{more:?}");
    }

    #[test]
    fn what_is_too_deep_to_be_reached_is_said_to_be_hidden() {
        let directory = tempfile::tempdir().unwrap();
        let mut at = rustix::fs::open(
            directory.path(),
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        for _ in 0..30 {
            let name = "d".repeat(200);
            rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
            at = rustix::fs::openat(
                &at,
                &name,
                rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            )
            .unwrap();
        }
        assert!(measured(directory.path()).hidden);
    }
}
