//! The seccomp listener of a step: the kernel's own word that somebody in the sandbox tried what is on the kill list.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::outcome::Notification;
use crate::sandbox::seccomp;
use crate::sys;

#[derive(Debug)]
pub(super) struct Listener(AsyncFd<OwnedFd>);

impl Listener {
    pub(super) fn new(fd: OwnedFd) -> std::io::Result<Self> {
        Ok(Self(sys::readiness::watch(fd, Interest::READABLE)?))
    }

    /// Waits until the kernel has something to tell. False: every process under the filter has ended, and there will be
    /// nothing more.
    pub(super) async fn readable(&self) -> bool {
        match self.0.readable().await {
            Ok(mut ready) => {
                let open = !ready.ready().is_read_closed();
                ready.clear_ready();
                open
            }
            Err(_) => false,
        }
    }

    /// What was tried, if anything. The process that tried it stays stopped in the kernel: the sandbox ends with it there.
    pub(super) fn tried(&self) -> Option<Notification> {
        let notification = sys::seccomp::receive(self.0.as_fd()).ok().flatten()?;
        Some(Notification {
            syscall: seccomp::describe(notification.arch, notification.nr),
            args: notification.args.to_vec(),
            pid: pid_in_sandbox(notification.pid),
            program: program_of(notification.pid),
        })
    }
}

/// The pid as the code knows it: the innermost namespace's number. 0 when the process is gone already.
fn pid_in_sandbox(pid: u32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))?
                .split_whitespace()
                .next_back()?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// The name that the process bears. The code can choose it, so it is escaped and never part of a sentence.
fn program_of(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/comm"))
        .map(|name| {
            String::from_utf8_lossy(name.trim_ascii_end())
                .escape_debug()
                .to_string()
        })
        .unwrap_or_default()
}
