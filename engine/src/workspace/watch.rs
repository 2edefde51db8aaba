//! What tells that nothing was touched: a watch on every directory of a tree. While its queue is empty no entry was made,
//! removed, renamed, written to or closed after it was open for writing, nor had its attributes set, and no look is needed.
//!
//! It says nothing of what was touched: that is for a look at all. What is written through a mapping is told when the file
//! that was mapped is closed, which is before the last process that had it is gone.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::snapshot::Snapshot;
use super::{FileError, Tree, beneath, rights};
use crate::outcome::FileKind;

/// Watches are memory of the kernel's, and a user has a limited number.
const MOST_DIRECTORIES: usize = 8192;

const TOUCHED: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The watches on one tree.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    /// Directories by inode and birth time.
    watched: HashSet<(u64, i64)>,
    root: bool,
}

impl Watch {
    /// None: the kernel gives no more of them, and each step ends with a look.
    #[must_use]
    pub fn new() -> Option<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Self {
            queue,
            watched: HashSet::new(),
            root: false,
        })
    }

    /// Can be read as soon as something was touched.
    #[must_use]
    pub fn queue(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Forgets what was touched so far: to be called before the look that will see it.
    pub fn forget(&self) {
        let mut room = [MaybeUninit::uninit(); 16 * 1024];
        loop {
            match rustix::io::read(&self.queue, &mut room) {
                Ok((read, _)) if !read.is_empty() => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Watches the directories that a look has seen. Whether it watched all of them when the look began: only then an empty
    /// queue means that the snapshot is what there is.
    pub fn extend(&mut self, tree: &Tree, snapshot: &Snapshot) -> bool {
        let mut complete = !snapshot.truncated && snapshot.unreadable == 0;
        let mut seen = HashSet::new();
        let extended = rights::with_override(|| {
            if !self.root {
                complete = false;
                self.add(tree.root())
                    .map_err(|errno| FileError::from_errno(b"", "watch", errno))?;
                self.root = true;
            }
            for entry in snapshot.entries() {
                if entry.kind != FileKind::Dir {
                    continue;
                }
                let identity = entry.identity();
                seen.insert(identity);
                if self.watched.contains(&identity) && entry.has_identity() {
                    continue;
                }
                complete = false;
                if seen.len() > MOST_DIRECTORIES {
                    break;
                }
                let path = snapshot.path(entry);
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                beneath::open(tree.root(), path, flags)
                    .and_then(|directory| self.add(directory.as_fd()))
                    .map_err(|errno| FileError::from_errno(path, "watch", errno))?;
                self.watched.insert(identity);
            }
            Ok(())
        });
        self.watched.retain(|identity| seen.contains(identity));
        complete && extended.is_ok()
    }

    fn add(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        let by_descriptor = format!("/proc/self/fd/{}", directory.as_raw_fd());
        inotify::add_watch(&self.queue, by_descriptor, TOUCHED).map(drop)
    }
}
