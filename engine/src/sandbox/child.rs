//! The code's process between clone and execve. It shares init's memory, and init sleeps: no allocation, no lock, no
//! panic, no environment. All that it needs was made before; what fails is left in [`Failure`] for init to read.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use libc::sock_filter;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};
use rustix::thread::CpuSet;

use super::landlock;
use super::plan::{CHILD, Step};
use crate::sys;
use crate::sys::exec::StringTable;

/// Everything that the child uses, made by init.
#[derive(Debug)]
pub struct Prepared {
    pub affinity: Option<CpuSet>,
    /// `cgroup.procs` of the step's own cgroup, in a resident.
    pub cgroup: Option<OwnedFd>,
    /// How many tasks the sandbox's own user namespace may have, init among them; none: others count them.
    pub tasks: Option<u64>,
    /// Keeps the code from changing its affinity.
    pub pin: Option<&'static [sock_filter]>,
    /// The fence's rules, and how it is put up.
    pub fence: Option<(OwnedFd, u32)>,
    /// Descriptors that the program gets beside its streams, under the numbers that they have.
    pub kept: Vec<OwnedFd>,
    /// Where the program may be, in the order of PATH.
    pub candidates: Vec<CString>,
    pub arguments: StringTable,
    pub environment: StringTable,
}

/// What init finds when the child did not become the code.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub step: Step,
    pub errno: i32,
}

/// Walks the list; comes back only with what failed.
pub fn run(prepared: &Prepared, streams: &[OwnedFd; 3]) -> Failure {
    for step in CHILD {
        if let Err(errno) = one(*step, prepared, streams) {
            return Failure { step: *step, errno };
        }
    }
    Failure {
        step: Step::Execute,
        errno: libc::EIO,
    }
}

fn one(step: Step, prepared: &Prepared, streams: &[OwnedFd; 3]) -> Result<(), i32> {
    match step {
        Step::EnterCgroup => prepared.cgroup.as_ref().map_or(Ok(()), |procs| {
            // 0 is whoever writes it.
            rustix::io::write(procs, b"0").map(drop).map_err(code)
        }),
        Step::NewSession => rustix::process::setsid().map(drop).map_err(code),
        Step::StandardStreams => {
            rustix::stdio::dup2_stdin(&streams[0]).map_err(code)?;
            rustix::stdio::dup2_stdout(&streams[1]).map_err(code)?;
            rustix::stdio::dup2_stderr(&streams[2]).map_err(code)
        }
        Step::Umask => {
            umask(Mode::from_raw_mode(0o022));
            Ok(())
        }
        Step::ResourceLimits => resource_limits(prepared.tasks).map_err(code),
        Step::Affinity => prepared
            .affinity
            .as_ref()
            .map_or(Ok(()), |set| rustix::thread::sched_setaffinity(None, set))
            .map_err(code),
        Step::PinAffinity => prepared
            .pin
            .map_or(Ok(()), sys::seccomp::load)
            .map_err(|error| raw(&error)),
        Step::CloseDescriptors => {
            sys::exec::close_on_exec_from(3).map_err(|error| raw(&error))?;
            let none = rustix::io::FdFlags::empty();
            let mut kept = prepared.kept.iter();
            kept.try_for_each(|fd| rustix::io::fcntl_setfd(fd, none))
                .map_err(code)
        }
        Step::SignalMask => sys::signal::unblock_all().map_err(|error| raw(&error)),
        Step::Fence => prepared
            .fence
            .as_ref()
            .map_or(Ok(()), |(rules, flags)| {
                landlock::enter(rules.as_fd(), *flags)
            })
            .map_err(|error| raw(&error)),
        Step::Execute => Err(execute(prepared)),
        _ => Err(libc::EINVAL),
    }
}

fn code(errno: rustix::io::Errno) -> i32 {
    errno.raw_os_error()
}

fn raw(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Lowers the limits of this process to those of code.
pub fn resource_limits(tasks: Option<u64>) -> rustix::io::Result<()> {
    if let Some(tasks) = tasks {
        // To raise it again takes a capability of the host's own user namespace.
        let hard = rustix::process::getrlimit(Resource::Nproc).maximum;
        let most = Some(hard.map_or(tasks, |hard| hard.min(tasks)));
        setrlimit(
            Resource::Nproc,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let soft = hard.map_or(4096, |hard| hard.min(4096));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(soft),
            maximum: Some(hard.map_or(1 << 16, |hard| hard.min(1 << 16))),
        },
    )
}

/// Tries each candidate as `execvp` does: a missing one is passed over, a forbidden one is remembered.
fn execute(prepared: &Prepared) -> i32 {
    let mut worst = libc::ENOENT;
    for candidate in &prepared.candidates {
        let error = sys::exec::execve(candidate, &prepared.arguments, &prepared.environment);
        match raw(&error) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            other => return other,
        }
    }
    worst
}
