//! Writing a file as a whole: it has its old content or its new one, never a part.
//!
//! The new content is written to a file without a name, which takes its place at the commit. What is not committed
//! leaves nothing behind, even after a kill. Only where the filesystem has no such files, or `/proc` is missing to
//! name them by, a hidden name is used.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, accessat, fchmod, linkat, readlinkat, renameat, statx,
    unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::files::{POSITION, make_directories, named};
use super::path::split;
use super::{FileError, FileReason, MAX_PATH_BYTES, Tree, WorkspacePath, beneath, rights};
use crate::outcome::{FileKind, FileStat};

/// Permission bits alone: no set-id bit is ever made for a file.
const MODE_BITS: u32 = 0o777;
/// Until the content is complete only its writer may see it.
const HIDDEN_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file being written. Dropped without [`PendingWrite::commit`] it never was.
#[derive(Debug)]
pub struct PendingWrite {
    path: Vec<u8>,
    place: Place,
    file: OwnedFd,
    /// The name that the file has in the directory meanwhile, if it has one.
    temporary: Option<Vec<u8>>,
    mode: u32,
    /// What must have the name at the commit.
    expected: Option<Expected>,
}

/// A file as it was read.
#[derive(Debug, Eq, PartialEq)]
struct Expected {
    identity: (u32, u32, u64),
    times: (i64, u32, i64, u32),
    size: u64,
}

impl Expected {
    fn of(facts: &rustix::fs::Statx) -> Self {
        let (changed, modified) = (facts.stx_ctime, facts.stx_mtime);
        Self {
            identity: beneath::identity(facts),
            times: (
                changed.tv_sec,
                changed.tv_nsec,
                modified.tv_sec,
                modified.tv_nsec,
            ),
            size: beneath::size(facts),
        }
    }
}

/// Where the file belongs, after the links in its path.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    name: Vec<u8>,
}

impl Tree {
    /// Starts a write. Directories above are made; a link inside is followed, and what it names is replaced. `mode` is
    /// of a new file: one that exists keeps its own. Other hard links of a replaced file keep the old content.
    ///
    /// # Errors
    /// [`FileReason::IsDirectory`](super::FileReason::IsDirectory) or [`FileReason::NotAFile`](super::FileReason::NotAFile)
    /// when something else has the name; permission as for opening the file to write, and to add a name beside it.
    pub fn begin_write(&self, path: &WorkspacePath, mode: u32) -> Result<PendingWrite, FileError> {
        if path.is_root() || path.names_directory() {
            return Err(FileError::not_a_file(path.as_bytes(), FileKind::Dir));
        }
        rights::with_user_rights(|| {
            let place = self.place(path)?;
            let (file, temporary) = place
                .open_hidden()
                .map_err(|errno| FileError::from_errno(path.as_bytes(), "create", errno))?;
            Ok(PendingWrite {
                path: path.as_bytes().to_vec(),
                place,
                file,
                temporary,
                mode,
                expected: None,
            })
        })
    }

    fn place(&self, path: &WorkspacePath) -> Result<Place, FileError> {
        let fail = |errno| FileError::from_errno(path.as_bytes(), "write", errno);
        let (directory, name) = named(path, "be written")?;
        let mut place = Place {
            directory: make_directories(self.root(), directory).map_err(fail)?,
            name: name.to_vec(),
        };
        let mut resolved = path.as_bytes().to_vec();
        for _ in 0..beneath::MAX_LINKS {
            match place.kind().map_err(fail)? {
                None => return Ok(place),
                Some(FileKind::File) => {
                    place.check_writable().map_err(fail)?;
                    return Ok(place);
                }
                Some(FileKind::Symlink) => {
                    let target = readlinkat(&place.directory, place.name.as_slice(), Vec::new())
                        .map_err(fail)?
                        .into_bytes();
                    resolved = self.follow(&resolved, &target).map_err(fail)?;
                    let (directory, name) = split(&resolved);
                    place = Place {
                        directory: beneath::open(self.root(), directory, POSITION).map_err(fail)?,
                        name: name.to_vec(),
                    };
                }
                Some(other) => return Err(FileError::not_a_file(path.as_bytes(), other)),
            }
        }
        Err(fail(Errno::LOOP))
    }

    /// The path that a link at `link` names. It may hold `..`, which the kernel resolves beneath the root.
    fn follow(&self, link: &[u8], target: &[u8]) -> Result<Vec<u8>, Errno> {
        let path = beneath::linked_path(link, target)?;
        if path.len() > MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        if matches!(split(&path).1, b"" | b"." | b"..") {
            // It can only name a directory: inside, or one that the kernel refuses.
            beneath::open(self.root(), &path, OFlags::PATH)?;
            return Err(Errno::ISDIR);
        }
        Ok(path)
    }
}

impl Place {
    /// The kind of what has the name now, a link itself.
    fn kind(&self) -> Result<Option<FileKind>, Errno> {
        Ok(self.facts()?.map(|facts| beneath::kind(&facts)))
    }

    fn facts(&self) -> Result<Option<rustix::fs::Statx>, Errno> {
        match beneath::facts(self.directory.as_fd(), &self.name) {
            Ok(facts) => Ok(Some(facts)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// To replace a file takes only rights to its directory; a caller who writes needs those to the file.
    fn check_writable(&self) -> Result<(), Errno> {
        accessat(
            &self.directory,
            self.name.as_slice(),
            Access::WRITE_OK,
            AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    fn open_hidden(&self) -> Result<(OwnedFd, Option<Vec<u8>>), Errno> {
        match beneath::open_nameless(self.directory.as_fd(), HIDDEN_MODE) {
            Ok(file) if has_proc_name(file.as_fd()) => return Ok((file, None)),
            // open(2): what kernels and filesystems without O_TMPFILE answer.
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        self.open_named().map(|(file, name)| (file, Some(name)))
    }

    fn open_named(&self) -> Result<(OwnedFd, Vec<u8>), Errno> {
        let name = temporary_name()?;
        let file = beneath::open_new(self.directory.as_fd(), &name, HIDDEN_MODE)?;
        Ok((file, name))
    }
}

impl PendingWrite {
    /// Where the content goes.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Lets the commit fail unless it replaces this very file, as it is now.
    pub(super) fn expect(&mut self, file: BorrowedFd<'_>) -> Result<(), FileError> {
        let facts = beneath::facts(file, b"")
            .map_err(|errno| FileError::from_errno(&self.path, "stat", errno))?;
        self.expected = Some(Expected::of(&facts));
        Ok(())
    }

    /// Gives the file its name, in one step.
    ///
    /// # Errors
    /// As [`Tree::begin_write`], for what has the name by now. Nothing is left behind.
    pub fn commit(mut self) -> Result<FileStat, FileError> {
        rights::with_user_rights(|| {
            let before = self.replaceable()?;
            let mode = before.unwrap_or(self.mode) & MODE_BITS;
            self.attempt("chmod", |write| {
                fchmod(&write.file, Mode::from_raw_mode(mode))
            })?;
            if before.is_some() || !self.link_new()? {
                self.replaceable()?;
                self.replace()?;
            }
            beneath::file_stat(self.file.as_fd(), self.path.clone())
                .map_err(|errno| FileError::from_errno(&self.path, "stat", errno))
        })
    }

    /// The mode of the file that has the name, none when nothing has; an error when it is not a file.
    fn replaceable(&self) -> Result<Option<u32>, FileError> {
        let facts = self
            .place
            .facts()
            .map_err(|errno| FileError::from_errno(&self.path, "commit", errno))?;
        if let Some(expected) = &self.expected
            && facts.as_ref().map(Expected::of).as_ref() != Some(expected)
        {
            return Err(FileError::new(
                &self.path,
                FileReason::Changed,
                "was changed by somebody else meanwhile",
            ));
        }
        match facts {
            None => Ok(None),
            Some(facts) if beneath::kind(&facts) == FileKind::File => {
                Ok(Some(beneath::permissions(&facts)))
            }
            Some(facts) => Err(FileError::not_a_file(&self.path, beneath::kind(&facts))),
        }
    }

    /// Links a file without a name to its own; false when the name is taken, or the file has a hidden one to rename.
    fn link_new(&self) -> Result<bool, FileError> {
        if self.temporary.is_some() {
            return Ok(false);
        }
        match link_to(self.file.as_fd(), &self.place, &self.place.name) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(FileError::from_errno(&self.path, "link", errno)),
        }
    }

    fn replace(&mut self) -> Result<(), FileError> {
        if self.temporary.is_none() {
            let name = self.attempt("name", |_| temporary_name())?;
            self.attempt("link", |write| {
                link_to(write.file.as_fd(), &write.place, &name)
            })?;
            self.temporary = Some(name);
        }
        self.attempt("rename", |write| {
            let directory = &write.place.directory;
            let temporary = write.temporary.as_deref().unwrap_or_default();
            renameat(directory, temporary, directory, write.place.name.as_slice())
        })?;
        self.temporary = None;
        Ok(())
    }

    fn attempt<T>(
        &self,
        doing: &str,
        act: impl FnOnce(&Self) -> Result<T, Errno>,
    ) -> Result<T, FileError> {
        act(self).map_err(|errno| FileError::from_errno(&self.path, doing, errno))
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        if let Some(name) = self.temporary.take() {
            // Nobody is left to tell; the code may have removed it itself.
            let _ = rights::with_user_rights(|| {
                let _ = unlinkat(&self.place.directory, name.as_slice(), AtFlags::empty());
                Ok(())
            });
        }
    }
}

fn proc_name(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether `/proc` shows our own descriptors. `AT_EMPTY_PATH` would need no `/proc`, but before Linux 6.10 it needs
/// CAP_DAC_READ_SEARCH in the initial user namespace.
fn has_proc_name(file: BorrowedFd<'_>) -> bool {
    let mask = rustix::fs::StatxFlags::BASIC_STATS;
    let named = statx(CWD, proc_name(file), AtFlags::empty(), mask);
    let opened = beneath::facts(file, b"");
    matches!((named, opened), (Ok(a), Ok(b)) if beneath::identity(&a) == beneath::identity(&b))
}

fn link_to(file: BorrowedFd<'_>, place: &Place, name: &[u8]) -> Result<(), Errno> {
    let flags = AtFlags::SYMLINK_FOLLOW;
    linkat(CWD, proc_name(file), &place.directory, name, flags)
}

/// A name that the code cannot guess and put a link at beforehand; creation is exclusive besides.
fn temporary_name() -> Result<Vec<u8>, Errno> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(format!(".stepbox-{:016x}", u64::from_ne_bytes(random)).into_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;

    use super::*;

    /// As on a filesystem without nameless files.
    fn begin(directory: &std::path::Path) -> PendingWrite {
        let place = Place {
            directory: fs::File::open(directory).unwrap().into(),
            name: b"f".to_vec(),
        };
        let (file, temporary) = place.open_named().unwrap();
        rustix::io::write(&file, b"new").unwrap();
        PendingWrite {
            path: b"f".to_vec(),
            place,
            file,
            temporary: Some(temporary),
            mode: 0o640,
            expected: None,
        }
    }

    fn names(directory: &std::path::Path) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_hidden_name_becomes_the_file_whether_or_not_one_exists() {
        let directory = tempfile::tempdir().unwrap();
        let pending = begin(directory.path());
        let hidden = names(directory.path());
        assert!(hidden[0].as_encoded_bytes().starts_with(b".stepbox-"));
        assert_eq!(pending.commit().unwrap().mode, 0o640);
        begin(directory.path()).commit().unwrap();
        assert_eq!(names(directory.path()), ["f"]);
        assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"new");
    }

    #[test]
    fn a_hidden_name_is_removed_when_the_write_is_dropped_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(begin(directory.path()));
        assert!(names(directory.path()).is_empty());
        let pending = begin(directory.path());
        fs::create_dir(directory.path().join("f")).unwrap();
        pending.commit().unwrap_err();
        assert_eq!(names(directory.path()), ["f"]);
    }
}
