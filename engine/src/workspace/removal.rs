//! Deleting an entry with all below it, however deep and whatever its modes.
//!
//! The way down is a list, not the call stack, and only its last part holds descriptors: each level costs one, and
//! the code can make a tree deeper than any limit of them. A level whose descriptor was let go is opened again as
//! `..` of the one below and must still be the directory that it was: the code may have moved it.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, chmodat, fchmod, flistxattr, fremovexattr, openat, seek,
    unlinkat,
};
use rustix::io::Errno;

use super::files::{POSITION, named};
use super::{FileError, FileReason, Tree, WorkspacePath, beneath, display, rights};
use crate::outcome::FileKind;

const DIRENT_BUFFER: usize = 64 * 1024;
/// Levels whose descriptors stay open.
const OPEN_LEVELS: usize = 64;
/// Directories of one level that wait at a time, so that a level with millions costs no memory.
const WAITING_PER_LEVEL: usize = 4096;
/// Fresh starts, when the code moves directories away below us.
const ATTEMPTS: usize = 16;

/// The kernel gives no longer list.
const ATTRIBUTE_NAMES: usize = 64 * 1024;

const READ_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl Tree {
    /// Removes an entry: a link itself, an empty directory, or a directory with all below it when `recursive`.
    ///
    /// # Errors
    /// [`FileReason::IsDirectory`] for a directory with content when not `recursive`. What the user may not remove is
    /// left, the rest is removed, and the first failure is told.
    pub fn remove(&self, path: &WorkspacePath, recursive: bool) -> Result<(), FileError> {
        let (directory, name) = named(path, "be removed")?;
        let fail = |errno| FileError::from_errno(path.as_bytes(), "remove", errno);
        rights::with_user_rights(|| {
            let directory = beneath::open(self.root(), directory, POSITION).map_err(fail)?;
            let facts = beneath::facts(directory.as_fd(), name).map_err(fail)?;
            if beneath::kind(&facts) != FileKind::Dir {
                if path.names_directory() {
                    return Err(fail(Errno::NOTDIR));
                }
                return unlinkat(&directory, name, AtFlags::empty()).map_err(fail);
            }
            match unlinkat(&directory, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    return Err(FileError::new(
                        path.as_bytes(),
                        FileReason::IsDirectory,
                        "is a directory with content, and `recursive` is not set",
                    ));
                }
                done => return done.map_err(fail),
            }
            let entered =
                beneath::open_exactly(directory.as_fd(), name, READ_DIRECTORY).map_err(fail)?;
            empty(&entered, Modes::Respect).map_err(|failure| failure.tell(path.as_bytes()))?;
            unlinkat(&directory, name, AtFlags::REMOVEDIR).map_err(fail)
        })
    }

    /// Deletes everything below the root, whatever its modes; mounts are left alone and told.
    ///
    /// # Errors
    /// When something is left; everything else is deleted all the same.
    pub fn clear(&self) -> Result<(), FileError> {
        rights::with_override(|| {
            let root = open_forced(self.root(), b"", Modes::Override)
                .map_err(|errno| FileError::from_errno(b"", "clear", errno))?;
            empty(&root, Modes::Override).map_err(|failure| failure.tell(b""))
        })
    }

    /// Makes the root a directory as it was made: of the usual mode, and without attributes that its user gave it.
    ///
    /// # Errors
    /// When its mode cannot be changed.
    pub fn restore(&self) -> Result<(), FileError> {
        rights::with_override(|| {
            let root = open_forced(self.root(), b"", Modes::Override)
                .map_err(|errno| FileError::from_errno(b"", "restore", errno))?;
            forget_attributes(&root);
            fchmod(&root, Mode::from_raw_mode(0o755))
                .map_err(|errno| FileError::from_errno(b"", "restore", errno))
        })
    }
}

/// An access list would give what is made next other modes; another may hold data. What cannot be removed was not the
/// user's to give, and a file system may have none.
fn forget_attributes(root: &OwnedFd) {
    let mut names = vec![0; ATTRIBUTE_NAMES];
    let Ok(length) = flistxattr(root, &mut names[..]) else {
        return;
    };
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        if let Ok(name) = CStr::from_bytes_with_nul(name) {
            let _ = fremovexattr(root, name);
        }
    }
}

/// Whether modes that are in the way are changed.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Modes {
    Respect,
    /// A keeper without capabilities over the tree still owns what is in it.
    Override,
}

/// The first entry that could not be removed.
struct Failure {
    name: Vec<u8>,
    errno: Errno,
}

impl Failure {
    fn tell(self, path: &[u8]) -> FileError {
        let reason = match self.errno {
            Errno::XDEV | Errno::BUSY => FileError::new(path, FileReason::Other, "is a mount"),
            errno => FileError::from_errno(path, "remove", errno),
        };
        FileError {
            message: format!("`{}` in it: {}", display(&self.name), reason.message),
            ..reason
        }
    }
}

/// A directory on the way down.
struct Level {
    /// None while it is far above the one that is worked on.
    directory: Option<OwnedFd>,
    identity: (u32, u32, u64),
    /// In the level above.
    name: CString,
    waiting: Vec<CString>,
    /// All of it was seen; else it is read again after those that wait.
    complete: bool,
    /// How much was removed in all when it was last read: without progress it is not read again.
    removed_before: Option<u64>,
}

impl Level {
    fn new(directory: OwnedFd, name: CString) -> Result<Self, Errno> {
        let identity = beneath::identity(&beneath::facts(directory.as_fd(), b"")?);
        Ok(Self {
            directory: Some(directory),
            identity,
            name,
            waiting: Vec::new(),
            complete: false,
            removed_before: None,
        })
    }
}

/// Why a descent ended early.
enum Lost {
    /// The way up no longer leads where it came from.
    Moved,
    Failed(Errno),
}

fn empty(root: &OwnedFd, modes: Modes) -> Result<(), Failure> {
    let mut removal = Removal {
        modes,
        buffer: vec![MaybeUninit::uninit(); DIRENT_BUFFER],
        failure: None,
        removed: 0,
    };
    for _ in 0..ATTEMPTS {
        removal.failure = None;
        let errno = match removal.descend(root) {
            Ok(()) => match removal.failure.take() {
                None => return Ok(()),
                // Something was added while we looked elsewhere.
                Some(failure) if matches!(failure.errno, Errno::NOTEMPTY | Errno::EXIST) => {
                    failure.errno
                }
                Some(failure) => return Err(failure),
            },
            Err(Lost::Moved) => Errno::NOTEMPTY,
            Err(Lost::Failed(errno)) => errno,
        };
        removal.failure = Some(Failure {
            name: Vec::new(),
            errno,
        });
    }
    Err(removal.failure.unwrap_or(Failure {
        name: Vec::new(),
        errno: Errno::NOTEMPTY,
    }))
}

struct Removal {
    modes: Modes,
    buffer: Vec<MaybeUninit<u8>>,
    failure: Option<Failure>,
    removed: u64,
}

impl Removal {
    fn descend(&mut self, root: &OwnedFd) -> Result<(), Lost> {
        let start = root
            .try_clone()
            .map_err(|error| Lost::Failed(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        let mut levels = vec![Level::new(start, CString::default()).map_err(Lost::Failed)?];
        while let Some(level) = levels.last_mut() {
            let Some(directory) = level.directory.take() else {
                return Err(Lost::Moved);
            };
            if level.waiting.is_empty() && !level.complete {
                let stuck = level.removed_before.replace(self.removed) == Some(self.removed);
                level.complete = stuck || self.unlink_files(&directory, &mut level.waiting);
            }
            if let Some(name) = level.waiting.pop() {
                let entered = self.enter(directory.as_fd(), &name);
                level.directory = Some(directory);
                if let Some(entered) = entered {
                    levels.push(entered);
                    let_go(&mut levels);
                }
            } else if level.complete {
                let name = std::mem::take(&mut level.name);
                levels.pop();
                let Some(above) = levels.last_mut() else {
                    return Ok(());
                };
                let parent = reopen(above, &directory)?;
                drop(directory);
                if let Err(errno) = self.unlink(parent.as_fd(), &name, AtFlags::REMOVEDIR) {
                    self.fail(&name, errno);
                }
                above.directory = Some(parent);
            } else {
                level.directory = Some(directory);
            }
        }
        Ok(())
    }

    /// Removes what is no directory and collects what is; false when there may be more.
    fn unlink_files(&mut self, directory: &OwnedFd, waiting: &mut Vec<CString>) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let complete = self.unlink_listed(directory, waiting, &mut buffer);
        self.buffer = buffer;
        complete.unwrap_or_else(|errno| {
            self.fail(c"", errno);
            true
        })
    }

    fn unlink_listed(
        &mut self,
        directory: &OwnedFd,
        waiting: &mut Vec<CString>,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<bool, Errno> {
        seek(directory, rustix::fs::SeekFrom::Start(0))?;
        let mut entries = RawDir::new(directory, buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match self.unlink(directory.as_fd(), name, AtFlags::empty()) {
                Ok(()) => {}
                // Linux says EISDIR, POSIX and some filesystems EPERM.
                Err(Errno::ISDIR | Errno::PERM | Errno::ACCESS)
                    if is_directory(directory, name) =>
                {
                    waiting.push(name.to_owned());
                    if waiting.len() >= WAITING_PER_LEVEL {
                        return Ok(false);
                    }
                }
                Err(errno) => self.fail(name, errno),
            }
        }
        Ok(true)
    }

    fn unlink(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        let mut done = unlinkat(directory, name, flags);
        if self.modes == Modes::Override
            && matches!(done, Err(Errno::ACCESS | Errno::PERM))
            && fchmod(directory, Mode::RWXU).is_ok()
        {
            done = unlinkat(directory, name, flags);
        }
        match done {
            Err(Errno::NOENT) => Ok(()),
            Ok(()) => {
                self.removed += 1;
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// A directory to empty, or none when it is gone, was swapped for a link, or may not be entered.
    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Option<Level> {
        let opened = open_forced(parent, name.to_bytes(), self.modes)
            .and_then(|directory| Level::new(directory, name.to_owned()));
        match opened {
            Ok(level) => Some(level),
            Err(Errno::NOENT) => None,
            // Not a directory any more: the link or file itself goes.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                if let Err(errno) = self.unlink(parent, name, AtFlags::empty()) {
                    self.fail(name, errno);
                }
                None
            }
            // An empty directory needs no reading to be removed.
            Err(errno) => {
                if unlinkat(parent, name, AtFlags::REMOVEDIR).is_err() {
                    self.fail(name, errno);
                }
                None
            }
        }
    }

    fn fail(&mut self, name: &CStr, errno: Errno) {
        self.failure.get_or_insert_with(|| Failure {
            name: name.to_bytes().to_vec(),
            errno,
        });
    }
}

fn is_directory(directory: &OwnedFd, name: &CStr) -> bool {
    beneath::facts(directory.as_fd(), name.to_bytes())
        .is_ok_and(|facts| beneath::kind(&facts) == FileKind::Dir)
}

/// Closes the descriptor of the level that is now far above.
fn let_go(levels: &mut [Level]) {
    if let Some(far) = levels.len().checked_sub(OPEN_LEVELS + 1) {
        // The first is the caller's, and what everything starts from again.
        if far > 0 {
            levels[far].directory = None;
        }
    }
}

/// The directory above, again by `..` when it was let go.
fn reopen(above: &mut Level, below: &OwnedFd) -> Result<OwnedFd, Lost> {
    if let Some(directory) = above.directory.take() {
        return Ok(directory);
    }
    let flags = READ_DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = openat(below, c"..", flags, Mode::empty()).map_err(Lost::Failed)?;
    let facts = beneath::facts(parent.as_fd(), b"").map_err(Lost::Failed)?;
    if beneath::identity(&facts) == above.identity {
        Ok(parent)
    } else {
        Err(Lost::Moved)
    }
}

/// Opens a directory to read it; one whose mode forbids it is opened up first, if its modes are ours to override.
fn open_forced(parent: BorrowedFd<'_>, name: &[u8], modes: Modes) -> Result<OwnedFd, Errno> {
    let refused = match beneath::open_exactly(parent, name, READ_DIRECTORY) {
        Err(errno @ Errno::ACCESS) if modes == Modes::Override => errno,
        done => return done,
    };
    let seen = beneath::open_exactly(parent, name, POSITION).or_else(|errno| {
        // The parent may be one that can be read and not searched.
        fchmod(parent, Mode::RWXU).map_err(|_| errno)?;
        beneath::open_exactly(parent, name, POSITION)
    })?;
    let by_descriptor = format!("/proc/self/fd/{}", seen.as_raw_fd());
    chmodat(rustix::fs::CWD, by_descriptor, Mode::RWXU, AtFlags::empty()).map_err(|_| refused)?;
    beneath::open_exactly(parent, name, READ_DIRECTORY)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn a_directory_that_became_a_link_since_it_was_listed_is_removed_and_not_entered() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("ws/real")).unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        fs::write(base.path().join("outside/canary"), "outside").unwrap();
        symlink("../outside", base.path().join("ws/out")).unwrap();
        symlink("real", base.path().join("ws/in")).unwrap();
        for modes in [Modes::Respect, Modes::Override] {
            let mut removal = Removal {
                modes,
                buffer: Vec::new(),
                failure: None,
                removed: 0,
            };
            let parent = open(&base.path().join("ws"));
            assert!(removal.enter(parent.as_fd(), c"out").is_none());
            assert!(removal.enter(parent.as_fd(), c"in").is_none());
            assert!(removal.enter(parent.as_fd(), c"real").is_some());
            assert!(removal.failure.is_none());
        }
        assert!(!base.path().join("ws/out").is_symlink());
        assert!(base.path().join("outside/canary").exists());
    }

    #[test]
    fn the_way_up_is_refused_when_the_directory_below_was_moved() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("ws/a/b")).unwrap();
        let mut above = Level::new(open(&base.path().join("ws/a")), c"a".to_owned()).unwrap();
        let below = open(&base.path().join("ws/a/b"));
        above.directory = None;
        assert!(reopen(&mut above, &below).is_ok());
        fs::rename(base.path().join("ws/a/b"), base.path().join("b")).unwrap();
        assert!(matches!(reopen(&mut above, &below), Err(Lost::Moved)));
    }
}
