//! Changing the owner of a whole tree, for file systems that cannot translate owners: it is lent to a sandbox's user, and
//! given back.
//!
//! Every entry is opened as it is, judged by that descriptor and changed through it: no link is followed, no mount
//! crossed, and an entry that is swapped meanwhile is another descriptor. Uid and gid are exchanged only in entries whose
//! uid is the lender's; all others stay as they are, so that giving back restores what was.
//!
//! Not lent, because giving back could not restore it or because it is more than the tree:
//! - a regular file with several names: its other names may lie outside, where the change would reach too;
//! - a set-id file: a change of owner clears the bits, and file capabilities;
//! - a device.
//!
//! The code reads those as far as their modes let others, and cannot write them. The directory that is named itself, or
//! the file, is lent whatever it is. Everything is given back, with the bits cleared of whatever has them by then.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{AtFlags, Gid, OFlags, Statx, Uid, chownat};
use rustix::io::Errno;

use super::walk::{Budget, Walk};
use super::{FileError, MAX_PATH_BYTES, beneath, rights};
use crate::outcome::FileKind;

const SET_ID: u32 = 0o6000;
/// Directories with a path from here on are where another pass starts: their entries may have paths too long for one.
const HORIZON: usize = MAX_PATH_BYTES - 257;
/// Passes at most until one finds nothing to give back: somebody may still be moving directories about.
const PASSES: usize = 8;
/// The pass is not bounded: what is left out would stay with an owner who is gone.
const WHOLE: Budget = Budget {
    max_entries: usize::MAX,
    max_time: Duration::from_secs(24 * 60 * 60),
    max_path_bytes: usize::MAX,
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Makes `borrower` the owner of what `lender` owns at and below `root`, which may be a file.
///
/// # Errors
/// The first failure, after which everything else is lent all the same.
pub fn lend(root: BorrowedFd<'_>, lender: Owner, borrower: Owner) -> Result<(), FileError> {
    let exchange = Exchange {
        from: From::One(lender),
        to: borrower,
        lending: true,
        since: None,
    };
    exchange.pass(root).map(drop)
}

/// Makes `lender` the owner of what `borrower` owns at and below `root`: what was lent, and what was made since.
///
/// # Errors
/// As [`lend`].
pub fn give_back(root: BorrowedFd<'_>, borrower: Owner, lender: Owner) -> Result<(), FileError> {
    let exchange = Exchange {
        from: From::One(borrower),
        to: lender,
        lending: false,
        since: None,
    };
    for _ in 1..PASSES {
        if exchange.pass(root)? == 0 {
            return Ok(());
        }
    }
    exchange.pass(root).map(drop)
}

/// Makes `owner` the owner of what belongs to ids from `first` up to `end`, at and below `root`: what code that may change
/// owners has given to ids of its range. `since`, in seconds of the epoch: files that were touched since then lose their
/// capabilities, which would count for whoever executes them.
///
/// # Errors
/// As [`lend`].
pub fn take_back(
    root: BorrowedFd<'_>,
    (first, end): (u32, u32),
    owner: Owner,
    since: Option<i64>,
) -> Result<(), FileError> {
    let exchange = Exchange {
        from: From::Range(first, end),
        to: owner,
        lending: false,
        since,
    };
    rights::with_ownership(|| exchange.pass(root).map(drop))
}

/// Whose entries change.
#[derive(Clone, Copy)]
enum From {
    One(Owner),
    /// Of each id from the first up to the second, the uid and the gid for itself.
    Range(u32, u32),
}

#[derive(Clone, Copy)]
struct Exchange {
    from: From,
    to: Owner,
    lending: bool,
    since: Option<i64>,
}

#[derive(Default)]
struct Tally {
    changed: usize,
    failure: Option<(Vec<u8>, Errno)>,
}

impl Tally {
    fn count(&mut self, path: &[u8], done: Result<bool, Errno>) {
        match done {
            Ok(changed) => self.changed += usize::from(changed),
            Err(errno) => {
                self.failure.get_or_insert_with(|| (path.to_vec(), errno));
            }
        }
    }
}

/// Where a pass starts: a path from the start of the pass before it.
struct Start {
    above: Option<Rc<Start>>,
    path: Vec<u8>,
}

impl Start {
    fn open(&self, root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let mut paths = vec![&self.path];
        let mut above = &self.above;
        while let Some(start) = above {
            paths.push(&start.path);
            above = &start.above;
        }
        let mut at = root.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        for path in paths.into_iter().rev() {
            at = beneath::open_exactly(at.as_fd(), path, OFlags::PATH)?;
        }
        Ok(at)
    }
}

impl Drop for Start {
    /// Not by recursion: the chain is as long as the code made the tree deep.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut start) = above.and_then(Rc::into_inner) {
            above = start.above.take();
        }
    }
}

impl Exchange {
    /// How many owners were changed.
    fn pass(self, root: BorrowedFd<'_>) -> Result<usize, FileError> {
        let fail = |path: &[u8], errno| FileError::from_errno(path, "change owner", errno);
        let facts = beneath::facts(root, b"").map_err(|errno| fail(b"", errno))?;
        let mut tally = Tally::default();
        tally.count(b"", self.change(root, &facts));
        if beneath::kind(&facts) == FileKind::Dir {
            self.below(root, &mut tally);
        }
        match tally.failure {
            None => Ok(tally.changed),
            Some((path, errno)) => Err(fail(&path, errno)),
        }
    }

    fn below(self, root: BorrowedFd<'_>, tally: &mut Tally) {
        let mut starts = vec![Rc::new(Start {
            above: None,
            path: Vec::new(),
        })];
        while let Some(start) = starts.pop() {
            let walked = start.open(root).and_then(|opened| {
                let walk = Walk {
                    start: opened.as_fd(),
                    recursive: true,
                    excluded: None,
                    horizon: HORIZON,
                    budget: WHOLE,
                };
                walk.run(|visit| {
                    tally.count(
                        visit.path,
                        self.entry(visit.directory, visit.name, visit.facts),
                    );
                    if visit.path.len() >= HORIZON && beneath::kind(visit.facts) == FileKind::Dir {
                        starts.push(Rc::new(Start {
                            above: Some(Rc::clone(&start)),
                            path: visit.path.to_vec(),
                        }));
                    }
                })
            });
            let whole = match walked {
                Ok(missed) if missed.truncated || missed.unreadable > 0 => Err(Errno::IO),
                Ok(_) => Ok(false),
                Err(errno) => unless_elsewhere(errno),
            };
            tally.count(&start.path, whole);
        }
    }

    /// Whether the owner of the entry was changed; `seen` is only a hint that saves opening what is not theirs.
    fn entry(self, directory: BorrowedFd<'_>, name: &[u8], seen: &Statx) -> Result<bool, Errno> {
        let touched = self.since.is_some_and(|since| {
            seen.stx_ctime.tv_sec >= since && beneath::kind(seen) == FileKind::File
        });
        if !touched && !self.concerns(seen) {
            return Ok(false);
        }
        let entry = match beneath::open_exactly(directory, name, OFlags::PATH) {
            Ok(entry) => entry,
            Err(errno) => return unless_elsewhere(errno),
        };
        let facts = beneath::facts(entry.as_fd(), b"")?;
        if touched {
            strip_capabilities(entry.as_fd());
        }
        if !self.concerns(&facts) {
            return Ok(false);
        }
        match self.change(entry.as_fd(), &facts) {
            // Of root: the file is immutable, and stays the lender's.
            Err(Errno::PERM) if self.lending => Ok(false),
            done => done,
        }
    }

    fn concerns(self, facts: &Statx) -> bool {
        let lendable = || match beneath::kind(facts) {
            FileKind::File => facts.stx_nlink == 1 && beneath::permissions(facts) & SET_ID == 0,
            FileKind::Device => false,
            _ => true,
        };
        let owned = match self.from {
            From::One(owner) => facts.stx_uid == owner.uid,
            From::Range(first, end) => {
                let range = first..end;
                range.contains(&facts.stx_uid) || range.contains(&facts.stx_gid)
            }
        };
        owned && (!self.lending || lendable())
    }

    fn change(self, entry: BorrowedFd<'_>, facts: &Statx) -> Result<bool, Errno> {
        let (uid, gid) = match self.from {
            From::One(owner) => {
                let uid = facts.stx_uid == owner.uid;
                (uid, uid && facts.stx_gid == owner.gid)
            }
            From::Range(first, end) => {
                let range = first..end;
                (
                    range.contains(&facts.stx_uid),
                    range.contains(&facts.stx_gid),
                )
            }
        };
        if !uid && !gid {
            return Ok(false);
        }
        chownat(
            entry,
            c"",
            uid.then(|| Uid::from_raw(self.to.uid)),
            gid.then(|| Gid::from_raw(self.to.gid)),
            AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(true)
    }
}

/// What has none, or lies where there are none, needs nothing.
fn strip_capabilities(file: BorrowedFd<'_>) {
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let _ = rustix::fs::removexattr(by_descriptor, c"security.capability");
}

/// An entry that is gone, was swapped, or is a mount is not of this tree.
fn unless_elsewhere(errno: Errno) -> Result<bool, Errno> {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Ok(false),
        errno => Err(errno),
    }
}
