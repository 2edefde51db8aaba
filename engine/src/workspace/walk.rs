//! One pass over a directory and what is below it, in no order, within a budget.
//!
//! Directories wait in a list and are opened one at a time by their path from the start: the depth of the tree costs
//! neither stack nor descriptors. No link is followed, no mount crossed, and only directories are opened.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, RawDir, Statx};
use rustix::io::Errno;

use super::MAX_PATH_BYTES;
use super::beneath;
use crate::outcome::FileKind;

/// One getdents call returns about 2,000 short names with it.
const DIRENT_BUFFER: usize = 64 * 1024;
/// How many entries may pass between two looks at the clock.
const CLOCK_EVERY: usize = 256;

/// What a pass may cost. Past it the pass stops and says so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Budget {
    pub max_entries: usize,
    pub max_time: Duration,
    /// The paths of all entries together: deep and long names make few entries large.
    pub max_path_bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            max_entries: 200_000,
            max_time: Duration::from_secs(2),
            max_path_bytes: 32 << 20,
        }
    }
}

/// An entry as the pass meets it.
pub(super) struct Visit<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a [u8],
    /// From the start of the pass.
    pub(super) path: &'a [u8],
    pub(super) facts: &'a Statx,
    /// From when on a visitor does nothing slow.
    pub(super) deadline: Instant,
}

/// What a pass did not see.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Missed {
    /// The budget ended, or a path was longer than any request may name.
    pub(super) truncated: bool,
    /// Directories whose content could not be read.
    pub(super) unreadable: usize,
}

/// What to walk.
pub(super) struct Walk<'a> {
    pub(super) start: BorrowedFd<'a>,
    pub(super) recursive: bool,
    /// A path that is passed over with all below it.
    pub(super) excluded: Option<&'a [u8]>,
    /// Directories with a path of so many bytes are met and not entered.
    pub(super) horizon: usize,
    pub(super) budget: Budget,
}

impl Walk<'_> {
    /// # Errors
    /// When the start itself cannot be read. What fails below is counted in [`Missed`].
    pub(super) fn run(&self, mut visit: impl FnMut(Visit<'_>)) -> Result<Missed, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); DIRENT_BUFFER];
        let mut pass = Pass {
            walk: self,
            deadline: Instant::now() + self.budget.max_time,
            entries: 0,
            path_bytes: 0,
            missed: Missed::default(),
            stopped: false,
            waiting: Vec::new(),
        };
        pass.directory(b"", &mut buffer, &mut visit)?;
        while let Some(path) = pass.waiting.pop() {
            if pass.stopped {
                break;
            }
            match pass.directory(&path, &mut buffer, &mut visit) {
                // Gone, or swapped for something else since it was met; a mount is not ours to look into.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(_) => pass.missed.unreadable += 1,
            }
        }
        Ok(pass.missed)
    }
}

struct Pass<'a> {
    walk: &'a Walk<'a>,
    deadline: Instant,
    entries: usize,
    path_bytes: usize,
    missed: Missed,
    /// The budget ended.
    stopped: bool,
    waiting: Vec<Vec<u8>>,
}

impl Pass<'_> {
    fn spent(&self) -> bool {
        let budget = &self.walk.budget;
        self.entries >= budget.max_entries
            || self.path_bytes >= budget.max_path_bytes
            || (self.entries.is_multiple_of(CLOCK_EVERY) && Instant::now() >= self.deadline)
    }

    fn directory(
        &mut self,
        path: &[u8],
        buffer: &mut [MaybeUninit<u8>],
        visit: &mut impl FnMut(Visit<'_>),
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = beneath::open_exactly(self.walk.start, path, flags)?;
        let mut path = path.to_vec();
        let prefix = path.len();
        let mut entries = RawDir::new(&directory, buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            path.truncate(prefix);
            if prefix > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            if self.walk.excluded == Some(path.as_slice()) {
                continue;
            }
            if self.spent() {
                self.missed.truncated = true;
                self.stopped = true;
                return Ok(());
            }
            if path.len() >= MAX_PATH_BYTES {
                self.missed.truncated = true;
                continue;
            }
            let facts = match beneath::facts(directory.as_fd(), name) {
                Ok(facts) => facts,
                Err(Errno::NOENT) => continue,
                Err(_) => {
                    self.missed.unreadable += 1;
                    continue;
                }
            };
            self.entries += 1;
            self.path_bytes += path.len();
            visit(Visit {
                directory: directory.as_fd(),
                name,
                path: &path,
                facts: &facts,
                deadline: self.deadline,
            });
            let enter = self.walk.recursive && path.len() < self.walk.horizon;
            if enter && beneath::kind(&facts) == FileKind::Dir {
                self.waiting.push(path.clone());
            }
        }
        Ok(())
    }
}
