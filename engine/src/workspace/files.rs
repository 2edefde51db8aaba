//! Reading, listing and moving, with the rights of the sandbox user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RenameFlags, fchmod, mkdirat, readlinkat, renameat_with};
use rustix::io::Errno;

use super::path::join;
use super::walk::{Budget, Walk};
use super::{FileError, FileReason, Tree, WorkspacePath, beneath, rights};
use crate::outcome::{FileKind, FileStat};

/// A directory's position: opened for nothing but to name what is in it.
pub(super) const POSITION: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const SET_ID_BITS: u32 = 0o6000;

/// What a directory holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<FileStat>,
    /// The budget ended before the directory did.
    pub truncated: bool,
    /// Directories below that the user may not read.
    pub unreadable: usize,
}

impl Tree {
    /// Opens a regular file for reading, through links inside. Nothing else is ever opened, so nothing blocks.
    ///
    /// # Errors
    /// [`FileReason::NotAFile`] or [`FileReason::IsDirectory`] naming the kind; [`FileReason::TooLarge`] when it has
    /// more than `max` bytes. The size is that of the moment: a reader must still stop at `max`.
    pub fn open_read(
        &self,
        path: &WorkspacePath,
        max: u64,
    ) -> Result<(OwnedFd, FileStat), FileError> {
        let fail = |errno| FileError::from_errno(path.as_bytes(), "open", errno);
        rights::with_user_rights(|| {
            let seen =
                beneath::open(self.root(), path.as_bytes(), position_of(path)).map_err(fail)?;
            let kind = beneath::kind(&beneath::facts(seen.as_fd(), b"").map_err(fail)?);
            if kind != FileKind::File {
                return Err(FileError::not_a_file(path.as_bytes(), kind));
            }
            let file = beneath::open(self.root(), path.as_bytes(), OFlags::RDONLY).map_err(fail)?;
            // Of what was opened, which need not be what was seen.
            let facts = beneath::facts(file.as_fd(), b"").map_err(fail)?;
            let stat = beneath::stat_of(&facts, path.as_bytes().to_vec(), None);
            if stat.kind != FileKind::File {
                return Err(FileError::not_a_file(path.as_bytes(), stat.kind));
            }
            if stat.size > max {
                return Err(FileError::new(
                    path.as_bytes(),
                    FileReason::TooLarge,
                    format!("file of {} bytes; at most {max}", stat.size),
                ));
            }
            Ok((file, stat))
        })
    }

    /// The facts of an entry; of a link itself, with its target.
    ///
    /// # Errors
    /// When the entry does not exist, or may not be reached.
    pub fn stat(&self, path: &WorkspacePath) -> Result<FileStat, FileError> {
        let fail = |errno| FileError::from_errno(path.as_bytes(), "stat", errno);
        rights::with_user_rights(|| {
            let flags = position_of(path) | OFlags::NOFOLLOW;
            let entry = beneath::open(self.root(), path.as_bytes(), flags).map_err(fail)?;
            beneath::file_stat(entry.as_fd(), path.as_bytes().to_vec()).map_err(fail)
        })
    }

    /// What is in a directory, and below it when `recursive`. Links are listed and not followed; directories below
    /// that the user may not read are listed and counted.
    ///
    /// # Errors
    /// When the path is not a directory, or the user may not read it.
    pub fn list(
        &self,
        path: &WorkspacePath,
        recursive: bool,
        files_only: bool,
        budget: Budget,
    ) -> Result<Listing, FileError> {
        let fail = |errno| FileError::from_errno(path.as_bytes(), "list", errno);
        rights::with_user_rights(|| {
            let start = beneath::open(self.root(), path.as_bytes(), POSITION).map_err(fail)?;
            let walk = Walk {
                start: start.as_fd(),
                recursive,
                excluded: None,
                horizon: usize::MAX,
                budget,
            };
            let mut entries = Vec::new();
            let missed = walk
                .run(|visit| {
                    let kind = beneath::kind(visit.facts);
                    if files_only && kind != FileKind::File {
                        return;
                    }
                    let link_target = (kind == FileKind::Symlink)
                        .then(|| readlinkat(visit.directory, visit.name, Vec::new()))
                        .and_then(Result::ok)
                        .map(std::ffi::CString::into_bytes);
                    let path = join(path.as_bytes(), visit.path);
                    entries.push(beneath::stat_of(visit.facts, path, link_target));
                })
                .map_err(fail)?;
            entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            Ok(Listing {
                entries,
                truncated: missed.truncated,
                unreadable: missed.unreadable,
            })
        })
    }

    /// Makes a directory and those above it; one that exists is fine.
    ///
    /// # Errors
    /// [`FileReason::Exists`] when something else has the name.
    pub fn make_dir(&self, path: &WorkspacePath) -> Result<(), FileError> {
        rights::with_user_rights(|| match make_directories(self.root(), path.as_bytes()) {
            Ok(_) => Ok(()),
            Err(errno) => Err(match (errno, self.holds(path)) {
                (Errno::NOTDIR | Errno::NOENT, true) => FileError::new(
                    path.as_bytes(),
                    FileReason::Exists,
                    "exists and is not a directory",
                ),
                _ => FileError::from_errno(path.as_bytes(), "make directory", errno),
            }),
        })
    }

    fn holds(&self, path: &WorkspacePath) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        beneath::open(self.root(), path.as_bytes(), flags).is_ok()
    }

    /// Moves an entry, a link itself; directories above the destination are made.
    ///
    /// # Errors
    /// [`FileReason::Exists`] when the destination exists and `replace` is not set, or is a directory with content.
    pub fn rename(
        &self,
        from: &WorkspacePath,
        to: &WorkspacePath,
        replace: bool,
    ) -> Result<(), FileError> {
        let (from_directory, from_name) = named(from, "move")?;
        let (to_directory, to_name) = named(to, "be moved onto")?;
        let fail_from = |errno| FileError::from_errno(from.as_bytes(), "move", errno);
        let fail_to = |errno| FileError::from_errno(to.as_bytes(), "move to", errno);
        rights::with_user_rights(|| {
            let from_fd =
                beneath::open(self.root(), from_directory, POSITION).map_err(fail_from)?;
            // Before anything is made for it.
            beneath::facts(from_fd.as_fd(), from_name).map_err(fail_from)?;
            let to_fd = make_directories(self.root(), to_directory).map_err(fail_to)?;
            let flags = if replace {
                RenameFlags::empty()
            } else {
                RenameFlags::NOREPLACE
            };
            renameat_with(&from_fd, from_name, &to_fd, to_name, flags).map_err(
                |errno| match errno {
                    Errno::INVAL => FileError::new(
                        to.as_bytes(),
                        FileReason::InvalidPath,
                        "lies in what is moved, or the filesystem cannot move without replacing",
                    ),
                    Errno::XDEV => FileError::new(
                        to.as_bytes(),
                        FileReason::Other,
                        "lies on another filesystem",
                    ),
                    Errno::ISDIR | Errno::NOTDIR | Errno::EXIST | Errno::NOTEMPTY => fail_to(errno),
                    other => fail_from(other),
                },
            )
        })
    }
}

/// The directory and the name of an entry that is acted on itself, which the root cannot be.
pub(super) fn named<'a>(
    path: &'a WorkspacePath,
    act: &str,
) -> Result<(&'a [u8], &'a [u8]), FileError> {
    path.split().ok_or_else(|| {
        FileError::new(
            b".",
            FileReason::InvalidPath,
            format!("the workspace itself cannot {act}"),
        )
    })
}

fn position_of(path: &WorkspacePath) -> OFlags {
    if path.names_directory() {
        POSITION
    } else {
        OFlags::PATH
    }
}

/// Opens a directory, making what is missing of its path. Each part is opened from the root again, so that `..` in a
/// link stays beneath the root and not beneath the part.
pub(super) fn make_directories(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    match beneath::open(root, path, POSITION) {
        Err(Errno::NOENT) => {}
        done => return done,
    }
    let mut parent = beneath::open(root, b"", POSITION)?;
    let mut end = 0;
    for name in path.split(|&b| b == b'/') {
        end += name.len();
        let part = &path[..end];
        parent = match beneath::open(root, part, POSITION) {
            Err(Errno::NOENT) => {
                make_directory(parent.as_fd(), name)?;
                beneath::open(root, part, POSITION)?
            }
            done => done?,
        };
        end += 1;
    }
    Ok(parent)
}

fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        // Someone was faster, or it is a link that leads nowhere: the next open tells.
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    // A directory in a set-group-id directory is made one, too.
    let made = beneath::open_exactly(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mode = beneath::permissions(&beneath::facts(made.as_fd(), b"")?);
    if mode & SET_ID_BITS != 0 {
        fchmod(&made, Mode::from_raw_mode(mode & !SET_ID_BITS))?;
    }
    Ok(())
}
