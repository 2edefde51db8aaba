//! All that is judged, as plain data.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode as FileMode, OFlags, ResolveFlags, memfd_create, openat2};

use super::super::cgroup::{Cgroups, Probe as CgroupProbe};
use super::super::identity::Mode;
use super::{Attempt, Attempts, Surroundings};
use crate::sys::landlock;

/// Where private workspaces will be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    pub directory: PathBuf,
    /// It is in memory, because the host has nothing else.
    pub in_memory: bool,
}

/// What was seen of a host.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The kernel's release.
    pub kernel: String,
    pub mode: Mode,
    pub surroundings: Surroundings,
    pub attempts: Attempts,
    pub openat2: Attempt,
    pub memfd: Attempt,
    /// The ABI; none when the kernel has no Landlock.
    pub landlock: Option<u32>,
    pub cgroups: CgroupProbe,
    pub scratch: Place,
}

impl Observation {
    /// To be called before any thread exists.
    pub(super) fn of_this_host(scratch: &Place) -> Self {
        // A process that cannot read its own capabilities is judged by what it may do without any.
        let mode = Mode::of_this_process().unwrap_or(Mode::Rootless {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        });
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            mode,
            surroundings: Surroundings::of_this_process(),
            attempts: Attempts::make(mode, &scratch.directory),
            openat2: answer(open_beneath()),
            memfd: answer(memfd_create("probe", MemfdFlags::CLOEXEC)),
            landlock: landlock::abi(),
            cgroups: Cgroups::probe(),
            scratch: scratch.clone(),
        }
    }
}

fn answer<T>(result: rustix::io::Result<T>) -> Attempt {
    match result {
        Ok(_) => Attempt::Done,
        Err(errno) => Attempt::Refused(errno.raw_os_error()),
    }
}

fn open_beneath() -> rustix::io::Result<()> {
    let root = rustix::fs::open(
        Path::new("/"),
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
    )?;
    openat2(
        root.as_fd(),
        ".",
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::BENEATH,
    )
    .map(drop)
}
