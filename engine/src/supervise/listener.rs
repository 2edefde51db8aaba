//! The seccomp listener of a step: the kernel's own word that somebody in the sandbox tried what is refused and counted,
//! or what is on the kill list.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::outcome::Notification;
use crate::sandbox::seccomp;
use crate::sys;

/// Calls that are looked through for an escape when the sandbox is about to end: more than can wait in a sandbox whose
/// tasks are capped. Code without a cap, that makes them faster than they are read, must not hold up its end.
const LEFT_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Listener(AsyncFd<OwnedFd>);

/// What a process in the sandbox tried.
#[derive(Debug)]
pub(super) enum Attempt {
    /// It got the errno that the policy has for it, and goes on.
    Refused,
    /// It was gone, or a signal took it out of the call, before it had an answer.
    Withdrawn,
    /// The call is on the kill list. Its process stays stopped in the kernel: the sandbox ends with it there.
    /// With the process's number as the engine knows it.
    Escape(Notification, u32),
}

impl Listener {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(sys::readiness::watch(fd, Interest::READABLE)?))
    }

    /// Waits until the kernel has something to tell, which [`Self::answer`] then takes to the last. False: every process
    /// under the filter has ended, and there will be nothing more.
    pub(super) async fn readable(&self) -> bool {
        match self.0.readable().await {
            Ok(ready) => !ready.ready().is_read_closed(),
            Err(_) => false,
        }
    }

    /// Takes one call that waits, and answers it if it is one of those that are refused. None: no call waits, and the
    /// runtime watches for the next.
    pub(super) fn answer(&self) -> Option<Attempt> {
        let taken = self.0.try_io(Interest::READABLE, |listener| {
            // Any failure is as good as nothing there: readiness that stayed would be reported again and again.
            sys::seccomp::receive(listener.as_fd())
                .ok()
                .flatten()
                .ok_or(io::ErrorKind::WouldBlock.into())
        });
        let call = taken.ok()?;
        let Some(errno) = seccomp::refusal(call.arch, call.nr, &call.args) else {
            return Some(Attempt::Escape(escape(&call), call.pid));
        };
        match sys::seccomp::reply_errno(self.0.as_fd(), call.id, errno) {
            Ok(true) => Some(Attempt::Refused),
            Ok(false) | Err(_) => Some(Attempt::Withdrawn),
        }
    }

    /// The first escape among the calls that wait now. None of them is answered, so none is followed by another: what the
    /// kernel holds is looked through to the end.
    pub(super) fn left(&self) -> Option<Notification> {
        (0..LEFT_MAX)
            .map_while(|_| sys::seccomp::receive(self.0.as_fd()).ok().flatten())
            .find(|call| seccomp::refusal(call.arch, call.nr, &call.args).is_none())
            .map(|call| escape(&call))
    }
}

fn escape(call: &sys::seccomp::Notification) -> Notification {
    Notification {
        syscall: seccomp::describe(call.arch, call.nr),
        args: call.args.to_vec(),
        pid: pid_in_sandbox(call.pid),
        program: program_of(call.pid),
    }
}

/// The pid as the code knows it: the innermost namespace's number. 0 when the process is gone already.
fn pid_in_sandbox(pid: u32) -> i32 {
    fs::read(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| innermost(&status))
        .unwrap_or(0)
}

/// The last number of `NSpid` in a `status`, in which the name may be any bytes.
pub(super) fn innermost(status: &[u8]) -> Option<i32> {
    let numbers = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = std::str::from_utf8(numbers)
        .ok()?
        .split_whitespace()
        .next_back()?;
    last.parse().ok().filter(|pid| *pid > 0)
}

/// The name that the process bears. The code can choose it, so it is escaped and never part of a sentence.
fn program_of(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/comm"))
        .map(|name| shown(&name))
        .unwrap_or_default()
}

pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name.trim_ascii_end())
        .escape_debug()
        .to_string()
}
