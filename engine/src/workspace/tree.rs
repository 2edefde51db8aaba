//! A workspace as one open directory. Whatever is done in it starts here.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, fstat};

use super::ownership::{self, Owner};
use super::{FileError, FileReason, rights};

/// The root of a workspace. A path of the host is never kept: the descriptor is the workspace, wherever it is moved.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// The root's own mode when it was opened.
    mode: Mode,
}

impl Tree {
    /// Takes a descriptor of the root, which may be an `O_PATH` one.
    ///
    /// # Errors
    /// [`FileReason::NotADirectory`] when it is not a directory.
    pub fn open(root: OwnedFd) -> Result<Self, FileError> {
        let stat = fstat(&root).map_err(|errno| FileError::from_errno(b"", "stat root", errno))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let mode = Mode::from_raw_mode(stat.st_mode);
            Ok(Self { root, mode })
        } else {
            Err(FileError::new(
                b"",
                FileReason::NotADirectory,
                "the workspace is not a directory",
            ))
        }
    }

    /// Gives the root back what code took from its owner: nobody could use the workspace any more, and the owner of a
    /// given one would be locked out.
    ///
    /// # Errors
    /// The mode cannot be read or set.
    pub fn keep_usable(&self) -> Result<(), FileError> {
        let fail = |errno| FileError::from_errno(b"", "restore the mode of", errno);
        let mode = Mode::from_raw_mode(fstat(&self.root).map_err(fail)?.st_mode);
        let lost = self.mode.intersection(Mode::RWXU).difference(mode);
        if lost.is_empty() {
            return Ok(());
        }
        let by_descriptor = format!("/proc/self/fd/{}", self.root.as_raw_fd());
        rights::with_override(|| {
            chmodat(CWD, by_descriptor, mode.union(lost), AtFlags::empty()).map_err(fail)
        })
    }

    /// Makes `owner` the owner of what belongs to a range of ids.
    ///
    /// # Errors
    /// As [`ownership::take_back`].
    pub fn take_back(&self, range: (u32, u32), owner: Owner, since: i64) -> Result<(), FileError> {
        ownership::take_back(self.root(), range, owner, Some(since))
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}
