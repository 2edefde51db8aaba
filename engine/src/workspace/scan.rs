//! The full look at a tree, from which changes are told.
//!
//! A write that leaves size and mtime as they were still moves ctime, which no call sets. But before Linux 6.13 ctime
//! only moves with the timer tick, so a write in the tick of the scan leaves no trace. Such files are read and
//! hashed: by this scan because the write may come after it, and by the next to compare (git calls these racy).
//!
//! A store through a shared mapping moves ctime when it first dirties a page, not at each store after that. A resident
//! process that stores on may be seen a scan late.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs::{OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest as _, Sha256};

use super::snapshot::{Digest, Facts, Snapshot};
use super::walk::{Budget, Visit, Walk};
use super::{FileError, Tree, beneath, rights};
use crate::outcome::FileKind;

/// One tick of a kernel with HZ=100, the slowest that is built. Kernels from 6.13 on give a file whose time was
/// looked at a finer one at the next write, and need none of this.
const TICK_NS: i64 = 10_000_000;
/// A larger file within the tick is judged by its times alone: reading it at every step would cost more than the
/// rare wrong answer.
const MAX_HASHED_FILE: u64 = 1 << 20;
/// All files of one scan together.
const MAX_HASHED_TOTAL: u64 = 64 << 20;
/// Packages that are installed for the code, which are not its changes. Only this very path.
const EXCLUDED: &[u8] = b".deps";

impl Tree {
    /// Looks at every entry, also in directories that the code made unreadable. `previous` is the snapshot that the
    /// result will be compared with: it says which files must be read again.
    ///
    /// # Errors
    /// When the root itself cannot be read.
    pub fn scan(&self, budget: Budget, previous: Option<&Snapshot>) -> Result<Snapshot, FileError> {
        self.scan_reading(budget, previous, |_| false)
    }

    /// As [`Tree::scan`]; `wanted` says which files it must read besides.
    pub(super) fn scan_reading(
        &self,
        budget: Budget,
        previous: Option<&Snapshot>,
        wanted: impl Fn(&Facts) -> bool,
    ) -> Result<Snapshot, FileError> {
        rights::with_override(|| {
            let mut scan = Scan::new(previous);
            let walk = Walk {
                start: self.root(),
                recursive: true,
                excluded: Some(EXCLUDED),
                horizon: usize::MAX,
                budget,
            };
            let missed = walk
                .run(|visit| scan.visit(&visit, &wanted))
                .map_err(|errno| FileError::from_errno(b"", "scan", errno))?;
            let mut snapshot = scan.snapshot;
            snapshot.truncated |= missed.truncated;
            snapshot.unreadable = missed.unreadable;
            snapshot.sort();
            Ok(snapshot)
        })
    }
}

struct Scan<'a> {
    snapshot: Snapshot,
    /// Only when a file in it was read.
    previous: Option<&'a Snapshot>,
    /// A file that changed from then on may change again without a new ctime.
    racy_from_ns: i64,
    hashed: u64,
    content: Vec<u8>,
}

/// By the clock that times of files are set by.
pub(super) fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// A file that changed from then on may change again without a new ctime.
pub(super) const fn racy_from(now_ns: i64) -> i64 {
    now_ns.saturating_sub(TICK_NS)
}

impl<'a> Scan<'a> {
    fn new(previous: Option<&'a Snapshot>) -> Self {
        let now_ns = now_ns();
        Self {
            snapshot: Snapshot::taken_at(now_ns),
            previous: previous.filter(|previous| previous.has_digests()),
            racy_from_ns: racy_from(now_ns),
            hashed: 0,
            content: Vec::new(),
        }
    }

    fn visit(&mut self, visit: &Visit<'_>, wanted: impl Fn(&Facts) -> bool) {
        let facts = facts_of(visit.facts);
        let digest = self.digest(visit, &facts, wanted);
        self.snapshot.push(visit.path, facts, digest);
    }

    fn digest(
        &mut self,
        visit: &Visit<'_>,
        facts: &Facts,
        wanted: impl Fn(&Facts) -> bool,
    ) -> Option<Digest> {
        if facts.kind != FileKind::File || facts.size > MAX_HASHED_FILE {
            return None;
        }
        let racy = facts.changed_ns >= self.racy_from_ns;
        let known = self.known(visit.path, facts);
        match known {
            // Settled content with these times is still the content. It is kept for a comparison with a snapshot
            // older than the previous one.
            Some(known) if !racy && !known.racy => return Some(known),
            None if !racy && !wanted(facts) => return None,
            _ => {}
        }
        if self.hashed + facts.size > MAX_HASHED_TOTAL || Instant::now() >= visit.deadline {
            return None;
        }
        self.hashed += facts.size;
        let sha256 = hash(visit, &mut self.content)?;
        Some(Digest { sha256, racy })
    }

    /// What the previous scan read of a file whose times are still the same.
    fn known(&self, path: &[u8], facts: &Facts) -> Option<Digest> {
        let previous = self.previous?;
        let entry = previous.find(path).filter(|entry| {
            (entry.inode, entry.born_ns, entry.size) == (facts.inode, facts.born_ns, facts.size)
                && (entry.changed_ns, entry.modified_ns) == (facts.changed_ns, facts.modified_ns)
        })?;
        previous.digest(entry).copied()
    }
}

pub(super) fn facts_of(facts: &Statx) -> Facts {
    let born = facts.stx_mask & StatxFlags::BTIME.bits() != 0;
    Facts {
        kind: beneath::kind(facts),
        mode: facts.stx_mode & 0o7777,
        inode: facts.stx_ino,
        born_ns: if born {
            beneath::nanoseconds(facts.stx_btime.tv_sec, facts.stx_btime.tv_nsec)
        } else {
            0
        },
        changed_ns: beneath::nanoseconds(facts.stx_ctime.tv_sec, facts.stx_ctime.tv_nsec),
        modified_ns: beneath::nanoseconds(facts.stx_mtime.tv_sec, facts.stx_mtime.tv_nsec),
        size: beneath::size(facts),
    }
}

/// The hash of a file that is still the one that was met; none when it was swapped or cannot be read.
fn hash(visit: &Visit<'_>, content: &mut Vec<u8>) -> Option<[u8; 32]> {
    // The kind was seen before: to open a device is to act on it, so only a file is opened, and O_NONBLOCK keeps what
    // is swapped in meanwhile from blocking.
    let file = beneath::open_exactly(visit.directory, visit.name, OFlags::RDONLY).ok()?;
    let opened = beneath::facts(file.as_fd(), b"").ok()?;
    if beneath::identity(&opened) != beneath::identity(visit.facts) {
        return None;
    }
    content.clear();
    let limit = usize::try_from(MAX_HASHED_FILE).ok()?;
    content.reserve(usize::try_from(visit.facts.stx_size).ok()?.min(limit) + 1);
    while content.len() <= limit {
        let room = content.capacity() - content.len();
        if room == 0 {
            // It grew since it was met, which its size will tell.
            break;
        }
        match rustix::io::read(&file, rustix::buffer::spare_capacity(content)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(Sha256::digest(content.as_slice()).into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;
    use crate::outcome::ChangeKind;
    use crate::workspace::diff;

    /// A scan for which no file is racy by its own time.
    fn scan_long_after(tree: &Tree, previous: &Snapshot) -> Snapshot {
        let mut scan = Scan::new(Some(previous));
        scan.racy_from_ns = i64::MAX;
        let walk = Walk {
            start: tree.root(),
            recursive: true,
            excluded: None,
            horizon: usize::MAX,
            budget: Budget::default(),
        };
        walk.run(|visit| scan.visit(&visit, |_| false)).unwrap();
        scan.snapshot.sort();
        scan.snapshot
    }

    /// The tree as a scan would have seen it in the tick of a write, with another content and the same times.
    fn seen_in_the_tick(tree: &Tree, content: &[u8], racy: bool) -> Snapshot {
        let now = tree.scan(Budget::default(), None).unwrap();
        let mut seen = Snapshot::taken_at(now.taken_ns);
        for entry in now.entries() {
            let facts = Facts {
                kind: entry.kind,
                mode: entry.mode,
                inode: entry.inode,
                born_ns: entry.born_ns,
                changed_ns: entry.changed_ns,
                modified_ns: entry.modified_ns,
                size: entry.size,
            };
            let sha256 = Sha256::digest(content).into();
            seen.push(now.path(entry), facts, Some(Digest { sha256, racy }));
        }
        seen
    }

    #[test]
    fn a_file_that_was_racy_is_read_once_more_and_its_content_decides() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("f"), "new").unwrap();
        let tree = Tree::open(fs::File::open(directory.path()).unwrap().into()).unwrap();

        let before = seen_in_the_tick(&tree, b"old", true);
        let after = scan_long_after(&tree, &before);
        let changes = diff(&before, &after);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].change, ChangeKind::Modified);
        assert!(!after.digest(&after.entries()[0]).unwrap().racy);

        let same = seen_in_the_tick(&tree, b"new", true);
        assert!(diff(&same, &scan_long_after(&tree, &same)).is_empty());

        // A step that began before the write and ends after another scan still sees it.
        let later = scan_long_after(&tree, &after);
        assert_eq!(
            later.digest(&later.entries()[0]),
            after.digest(&after.entries()[0])
        );
        assert_eq!(diff(&before, &later).len(), 1);
        assert!(diff(&after, &later).is_empty());
    }
}
