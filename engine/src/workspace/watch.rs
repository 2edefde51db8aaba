//! What tells that nothing was touched: a watch on every directory of a tree. While it tells nothing no entry was made,
//! removed, renamed, opened or written to, nor had its attributes set, and no look is needed.
//!
//! It says nothing of what was touched: that is for a look at all. What is written through a mapping is told by nobody, and
//! code can put off the close of what it mapped until long after its end (a descriptor on its way through a ring of
//! sockets). So a file that was opened counts as one that may have been written to, by whoever lived at the time, for as
//! long as they live. Directories are opened to be listed, by each look too, and through one nothing can be written.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
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
    .union(WatchFlags::OPEN)
    .union(WatchFlags::ONLYDIR);

/// What a watch told, the least first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Told {
    /// At most that directories were listed.
    Nothing,
    /// That files were opened.
    Opened,
    /// Changes, or that it lost count.
    Touched,
}

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

    /// Can be read as soon as there is something to tell, which may be nothing but that a directory was listed.
    #[must_use]
    pub fn queue(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// What was told since the last call.
    #[must_use]
    pub fn hear(&self) -> Told {
        let mut room = [MaybeUninit::uninit(); 16 * 1024];
        let mut events = Reader::new(&self.queue, &mut room);
        let mut told = Told::Nothing;
        loop {
            let what = match events.next() {
                Ok(event) => event.events(),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return told,
                Err(_) => return Told::Touched,
            };
            told = told.max(if what == ReadFlags::OPEN | ReadFlags::ISDIR {
                Told::Nothing
            } else if what == ReadFlags::OPEN {
                Told::Opened
            } else {
                Told::Touched
            });
        }
    }

    /// Watches the directories that a look has seen. Whether it watched all of them when the look began: only then that
    /// nothing is told means that the snapshot is what there is.
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
