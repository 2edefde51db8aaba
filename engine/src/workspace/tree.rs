//! A workspace as one open directory. Whatever is done in it starts here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat};

use super::{FileError, FileReason};

/// The root of a workspace. A path of the host is never kept: the descriptor is the workspace, wherever it is moved.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
}

impl Tree {
    /// Takes a descriptor of the root, which may be an `O_PATH` one.
    ///
    /// # Errors
    /// [`FileReason::NotADirectory`] when it is not a directory.
    pub fn open(root: OwnedFd) -> Result<Self, FileError> {
        let stat = fstat(&root).map_err(|errno| FileError::from_errno(b"", "stat root", errno))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            Ok(Self { root })
        } else {
            Err(FileError::new(
                b"",
                FileReason::NotADirectory,
                "the workspace is not a directory",
            ))
        }
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}
