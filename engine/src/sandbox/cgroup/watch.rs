//! A descriptor that polls as ready when the kernel looks for a task to kill for memory.
//!
//! It is a wake-up, not evidence: on v1 it fires before the victim is chosen, for an ancestor's shortage too, and once
//! more when the cgroup is removed. The evidence is [`super::SlotCgroup::oom_kills`]. Whoever kills the sandbox at the
//! wake-up must first see that count rise (or a few milliseconds pass): a task that is already dying when the OOM killer comes is
//! taken without being counted, and the step would look killed by nobody.
//!
//! v2 polls `memory.events` itself: an inotify descriptor would be one of the 128 that a user has by default.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::Directory;
use super::error::CgroupError;

#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    EventCounter,
    EventsFile,
}

impl OomWatch {
    pub(super) fn v1(memory: &Directory) -> Result<Self, CgroupError> {
        let register = || {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let watched = memory.open_file("memory.oom_control", OFlags::RDONLY)?;
            let control = memory.open_file("cgroup.event_control", OFlags::WRONLY)?;
            let line = format!("{} {}", raw(&fd), raw(&watched));
            rustix::io::write(&control, line.as_bytes())?;
            Ok(Self {
                fd,
                source: Source::EventCounter,
            })
        };
        register().map_err(|source| CgroupError::Watch {
            path: memory.path().to_owned(),
            source,
        })
    }

    pub(super) fn v2(leaf: &Directory) -> Result<Self, CgroupError> {
        leaf.open_file("memory.events", OFlags::RDONLY)
            .and_then(|fd| {
                let watch = Self {
                    fd,
                    source: Source::EventsFile,
                };
                // The file polls as changed until it was read once.
                watch.read_all()?;
                Ok(watch)
            })
            .map_err(|source| CgroupError::Watch {
                path: leaf.path().to_owned(),
                source,
            })
    }

    /// What to poll for: `POLLIN` on v1, `POLLPRI` on v2.
    #[must_use]
    pub fn events(&self) -> PollFlags {
        match self.source {
            Source::EventCounter => PollFlags::IN,
            Source::EventsFile => PollFlags::PRI,
        }
    }

    /// Arms the watch again after it was seen ready.
    pub fn clear(&self) {
        // Nothing to read is what is wanted, and a removed cgroup has nothing more to tell.
        let _ = self.read_all();
    }

    fn read_all(&self) -> Result<(), Errno> {
        let mut block = [0; 4096];
        match self.source {
            Source::EventCounter => rustix::io::read(&self.fd, &mut block),
            Source::EventsFile => rustix::io::pread(&self.fd, &mut block, 0),
        }
        .map(drop)
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}
