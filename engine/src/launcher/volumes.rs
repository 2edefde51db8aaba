//! The file systems of sessions' own, as the launcher holds them: mounted in a mount namespace that no process lives in.
//! What is forked from the launcher gets a copy of its mounts, which would keep a file system alive after its session.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode as FileMode, OFlags, openat};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sandbox::tree;
use crate::sys::clone::Namespaces;
use crate::sys::namespace;

#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// The launcher's own namespace, and the one with the volumes. None: there was no volume yet.
    namespaces: Option<[OwnedFd; 2]>,
    held: Vec<PathBuf>,
}

impl Volumes {
    /// Mounts a volume over its session's directory.
    pub(super) fn hold(&mut self, place: PathBuf, mount: &OwnedFd) -> io::Result<()> {
        if self.namespaces.is_none() {
            self.namespaces = Some(divide()?);
        }
        self.inside(|| tree::attach(mount, &place))?;
        self.held.push(place);
        Ok(())
    }

    pub(super) fn release(&mut self, place: &Path) -> io::Result<()> {
        if !self.held.iter().any(|held| held == place) {
            return Ok(());
        }
        self.held.retain(|held| held != place);
        self.inside(|| Ok(unmount(place, UnmountFlags::DETACH)?))
    }

    /// Runs `act` where the volume that a path lies in is mounted, if one is.
    pub(super) fn at<T>(&self, path: &Path, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.held.iter().any(|held| path.starts_with(held)) {
            self.inside(act)
        } else {
            act()
        }
    }

    fn inside<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some([own, volumes]) = &self.namespaces else {
            return act();
        };
        let enter = |namespace: &OwnedFd| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        };
        enter(volumes)?;
        let done = act();
        enter(own)?;
        done
    }
}

/// Makes a copy of the mount namespace, and comes back.
fn divide() -> io::Result<[OwnedFd; 2]> {
    let here = || {
        openat(
            CWD,
            "/proc/self/ns/mnt",
            OFlags::RDONLY | OFlags::CLOEXEC,
            FileMode::empty(),
        )
    };
    let own = here()?;
    namespace::unshare(Namespaces::MOUNT)?;
    let volumes = here();
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok([own, volumes?])
}
