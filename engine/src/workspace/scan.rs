//! The full look at a tree, from which changes are told.
//!
//! A write that leaves size and mtime as they were still moves ctime, which no call sets. But before Linux 6.13 ctime
//! only moves with the timer tick, so a write in the tick of the scan leaves no trace. Such files are read and
//! hashed: by this scan because the write may come after it, and by the next to compare (git calls these racy).

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs::{OFlags, StatxFlags};
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
        rights::with_override(|| {
            let mut scan = Scan::new(previous);
            let walk = Walk {
                start: self.root(),
                recursive: true,
                excluded: Some(EXCLUDED),
                budget,
            };
            let missed = walk
                .run(|visit| scan.visit(&visit))
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
    previous: Option<&'a Snapshot>,
    /// A file that changed from then on may change again without a new ctime.
    racy_from_ns: i64,
    hashed: u64,
    content: Vec<u8>,
}

impl<'a> Scan<'a> {
    fn new(previous: Option<&'a Snapshot>) -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let now_ns = now
            .tv_sec
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec);
        Self {
            snapshot: Snapshot::taken_at(now_ns),
            previous,
            racy_from_ns: now_ns.saturating_sub(TICK_NS),
            hashed: 0,
            content: Vec::new(),
        }
    }

    fn visit(&mut self, visit: &Visit<'_>) {
        let facts = facts_of(visit);
        let digest = self.digest(visit, &facts);
        self.snapshot.push(visit.path, facts, digest);
    }

    fn digest(&mut self, visit: &Visit<'_>, facts: &Facts) -> Option<Digest> {
        if facts.kind != FileKind::File || facts.size > MAX_HASHED_FILE {
            return None;
        }
        let racy = facts.changed_ns >= self.racy_from_ns;
        let affordable =
            self.hashed + facts.size <= MAX_HASHED_TOTAL && Instant::now() < visit.deadline;
        if !(racy || self.was_racy(visit.path, facts)) || !affordable {
            return None;
        }
        self.hashed += facts.size;
        let sha256 = hash(visit, &mut self.content)?;
        Some(Digest { sha256, racy })
    }

    /// Whether the previous scan could not exclude a later write with these very times.
    fn was_racy(&self, path: &[u8], facts: &Facts) -> bool {
        let Some(previous) = self.previous else {
            return false;
        };
        previous
            .find(path)
            .filter(|entry| {
                (entry.inode, entry.changed_ns, entry.size)
                    == (facts.inode, facts.changed_ns, facts.size)
            })
            .and_then(|entry| previous.digest(entry))
            .is_some_and(|digest| digest.racy)
    }
}

fn facts_of(visit: &Visit<'_>) -> Facts {
    let facts = visit.facts;
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
