//! One cgroup directory held open: its files are read, written and removed through the descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Uid, flock};
use rustix::io::Errno;

use super::error::CgroupError;

/// How often, and how far apart, an rmdir is tried while the kernel still lets the last task go.
const REMOVE_TRIES: u32 = 40;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

const BLOCK: usize = 4096;

#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, CgroupError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|source| CgroupError::Open {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Makes the child cgroup `name`. One that is there already is an error: names are never shared.
    pub(super) fn make(&self, name: &str) -> Result<Self, CgroupError> {
        let path = self.path.join(name);
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)).map_err(|source| {
            CgroupError::Make {
                path: path.clone(),
                source,
            }
        })?;
        Self::open(&path)
    }

    /// As [`Self::make`], locked for as long as the value lives: by that another engine knows that this one lives,
    /// wherever its directories are.
    pub(super) fn make_locked(&self, name: &str) -> Result<Self, CgroupError> {
        let mut lost = false;
        for _ in 0..REMOVE_TRIES {
            match self.make(name) {
                Ok(made) if made.try_lock() && made.is_linked() => return Ok(made),
                // A sweep that came between the two calls has the lock, and removes what it sees as nobody's.
                Ok(_) => lost = true,
                Err(CgroupError::Make {
                    source: Errno::EXIST,
                    ..
                }) if lost => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
        Err(CgroupError::Make {
            path: self.path.join(name),
            source: Errno::BUSY,
        })
    }

    /// Takes the lock that its engine holds while it lives; released with the value.
    pub(super) fn try_lock(&self) -> bool {
        flock(&self.fd, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    fn is_linked(&self) -> bool {
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let held = rustix::fs::fstat(&self.fd).map(identity);
        held.is_ok() && held == rustix::fs::lstat(&self.path).map(identity)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.fd, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    pub(super) fn read(&self, name: &str) -> Result<String, CgroupError> {
        self.try_read(name).map_err(|source| CgroupError::Read {
            path: self.path.join(name),
            source,
        })
    }

    fn try_read(&self, name: &str) -> Result<String, Errno> {
        let file = self.open_file(name, OFlags::RDONLY)?;
        let mut text = Vec::new();
        let mut block = [0; BLOCK];
        loop {
            let read = rustix::io::read(&file, &mut block)?;
            text.extend_from_slice(&block[..read]);
            // Counters come in one piece, far smaller than a block; only a full one can have more behind it. Lists of
            // processes are longer, and the kernel cuts them at whole lines.
            if read == 0 || text.len() < BLOCK / 2 {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// What a counter's file holds; none when the kernel has no such file.
    pub(super) fn read_optional(&self, name: &str) -> Result<Option<String>, CgroupError> {
        match self.try_read(name) {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT | Errno::OPNOTSUPP) => Ok(None),
            Err(source) => Err(CgroupError::Read {
                path: self.path.join(name),
                source,
            }),
        }
    }

    /// Writes `value` in one call, as the cgroup file systems want it.
    pub(super) fn write(&self, name: &str, value: &str) -> Result<(), CgroupError> {
        self.open_file(name, OFlags::WRONLY)
            .and_then(|file| rustix::io::write(&file, value.as_bytes()))
            .map(drop)
            .map_err(|source| CgroupError::Write {
                path: self.path.join(name),
                value: value.to_owned(),
                source,
            })
    }

    /// As [`Self::write`]; says whether the kernel has such a file.
    pub(super) fn write_optional(&self, name: &str, value: &str) -> Result<bool, CgroupError> {
        match self.write(name, value) {
            Ok(()) => Ok(true),
            Err(CgroupError::Write {
                source: Errno::NOENT,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The processes in this cgroup, 0 for each that this process' pid namespace does not show.
    pub(super) fn pids(&self) -> Result<Vec<u32>, CgroupError> {
        let text = self.read("cgroup.procs")?;
        let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Gives the file `name` to `uid` and `gid`.
    pub(super) fn grant(&self, name: &str, uid: u32, gid: u32) -> Result<(), CgroupError> {
        let (owner, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(
            &self.fd,
            name,
            Some(owner),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(|source| CgroupError::Grant {
            path: self.path.join(name),
            uid,
            gid,
            source,
        })
    }

    /// Removes this cgroup, waiting a bounded time for tasks that are about to be gone.
    pub(super) fn remove(&self) -> Result<(), CgroupError> {
        remove(&self.path)
    }

    /// The names of the child cgroups.
    pub(super) fn children(&self) -> Result<Vec<String>, CgroupError> {
        let failed = |source: Errno| CgroupError::Read {
            path: self.path.clone(),
            source,
        };
        let mut names = Vec::new();
        let entries = match rustix::fs::Dir::read_from(&self.fd) {
            // Removed by another, systemd for one: nothing is below it any more.
            Err(Errno::NOENT | Errno::NODEV) => return Ok(names),
            other => other.map_err(failed)?,
        };
        for entry in entries {
            let entry = match entry {
                Err(Errno::NOENT | Errno::NODEV) => break,
                other => other.map_err(failed)?,
            };
            if !entry.file_type().is_dir() {
                continue;
            }
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    /// Removes this cgroup and all below it.
    pub(super) fn remove_tree(&self) -> Result<(), CgroupError> {
        for name in self.children()? {
            self.remove_child(&name)?;
        }
        self.remove()
    }

    /// Removes a child and all below it. A manager that ends a scope removes what is in it at the same time.
    pub(super) fn remove_child(&self, name: &str) -> Result<(), CgroupError> {
        match Self::open(&self.path.join(name)) {
            Ok(child) => child.remove_tree(),
            Err(CgroupError::Open {
                source: Errno::NOENT | Errno::NODEV,
                ..
            }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn remove(path: &Path) -> Result<(), CgroupError> {
    let mut tries = 0;
    loop {
        match rustix::fs::rmdir(path) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if tries < REMOVE_TRIES => {
                tries += 1;
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(source) => {
                return Err(CgroupError::Remove {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
}
