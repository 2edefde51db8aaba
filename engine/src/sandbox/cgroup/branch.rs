//! The cgroup of one step of a resident, below that of the slot: by it what the step started is told from what others did,
//! whatever it forked, detached or stopped, and is ended as one. It limits nothing.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::directory::Directory;
use super::error::CgroupError;
use super::values::keyed;

const PROCS: &str = "cgroup.procs";
/// How long processes that were killed may take to be gone.
const END: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Branch(Directory);

impl Branch {
    /// `owner`: whose processes enter it, where they need the right to.
    pub(super) fn make(
        parent: &Directory,
        name: &str,
        owner: Option<(u32, u32)>,
    ) -> Result<Self, CgroupError> {
        let directory = parent.make(name)?;
        if let Some((uid, gid)) = owner {
            directory.grant(PROCS, uid, gid)?;
        }
        Ok(Self(directory))
    }

    /// Where a process enters it, by writing 0.
    pub fn entrance(&self) -> Result<OwnedFd, CgroupError> {
        self.0
            .open_file(PROCS, OFlags::WRONLY)
            .map_err(|source| CgroupError::Open {
                path: self.0.path().join(PROCS),
                source,
            })
    }

    /// Whether a thread is of one of its processes. One that is stopped stays so until it is killed.
    #[must_use]
    pub fn holds(&self, thread: u32) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else {
            return false;
        };
        let process = status
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:"))
            .and_then(|number| number.trim().parse().ok());
        process.is_some_and(|process: u32| self.0.pids().is_ok_and(|pids| pids.contains(&process)))
    }

    /// Whether none of its processes is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.pids().is_ok_and(|pids| pids.is_empty())
    }

    /// Microseconds of processor time; none: not counted here.
    #[must_use]
    pub fn cpu_us(&self) -> Option<u64> {
        let text = self.0.read_optional("cpu.stat").ok().flatten()?;
        keyed(&text, "usage_usec")
    }

    /// Kills all that is in it, and waits until none is left. Takes milliseconds, and with much memory longer.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let until = Instant::now() + END;
        // v2 ends it as one.
        if !self.0.write_optional("cgroup.kill", "1")? {
            // Nobody forks any more: what is killed is not followed by another.
            self.0.write_optional("pids.max", "0")?;
        }
        loop {
            let pids = self.0.pids()?;
            if pids.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(CgroupError::Occupied {
                    path: self.0.path().to_owned(),
                    pids,
                });
            }
            // A number may be another's by now: what is held must still be in here.
            let held: Vec<_> = pids
                .iter()
                .filter_map(|pid| {
                    let number = Pid::from_raw(i32::try_from(*pid).ok()?)?;
                    Some((*pid, pidfd_open(number, PidfdFlags::empty()).ok()?))
                })
                .collect();
            let still = self.0.pids()?;
            for (pid, process) in held {
                if still.contains(&pid) {
                    let _ = pidfd_send_signal(process.as_fd(), Signal::KILL);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub fn remove(&self) -> Result<(), CgroupError> {
        self.0.remove()
    }
}
