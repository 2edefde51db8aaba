//! `clone3`: processes with their namespaces and pidfd from the first instant.
#![expect(unsafe_code, reason = "clone3 has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `CLONE_INTO_CGROUP`, kernel 5.7.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which namespaces the child gets of its own: `CLONE_NEW*` bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Namespaces(u64);

impl Namespaces {
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    pub const NET: Self = Self(libc::CLONE_NEWNET as u64);
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }
}

/// The child of a [`fork`], as its parent holds it.
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Forks a child with memory of its own into fresh namespaces; `None` is the child. `cgroup`: the directory of a
/// cgroup2 to be born in.
///
/// The caller must be single-threaded: the child sees only the calling thread, and any lock that another thread held
/// would stay held.
pub fn fork(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Child>> {
    let mut pidfd: RawFd = -1;
    let mut flags = namespaces.0 | libc::CLONE_PIDFD as u64;
    if cgroup.is_some() {
        flags |= INTO_CGROUP;
    }
    let args = libc::clone_args {
        flags,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd().unsigned_abs().into()),
    };
    // SAFETY: `args` is a valid clone_args of the size given, `pidfd` outlives the call, and without CLONE_VM the child
    // runs on a copy of this stack, so returning twice is sound in a single-threaded process.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_ref(&args),
            size_of::<libc::clone_args>(),
        )
    };
    if pid == -1 {
        let error = io::Error::last_os_error();
        // Filters of container runtimes take it for missing: they cannot look at its arguments.
        return match (error.raw_os_error(), cgroup) {
            (Some(libc::ENOSYS), None) => fork_by_clone(namespaces),
            _ => Err(error),
        };
    }
    child(pid, pidfd)
}

/// The same by `clone`, which knows no cgroup to be born in.
fn fork_by_clone(namespaces: Namespaces) -> io::Result<Option<Child>> {
    let mut pidfd: RawFd = -1;
    let flags = namespaces.0 | (libc::CLONE_PIDFD | libc::SIGCHLD) as u64;
    // SAFETY: `pidfd` outlives the call, which stores a descriptor there; the stack is as for `clone3` above. What follows
    // the third argument has another order on each architecture, and is 0.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags,
            0_usize,
            std::ptr::from_mut(&mut pidfd),
            0_usize,
            0_usize,
        )
    };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    child(pid, pidfd)
}

/// What a successful call gave: in the child nothing.
fn child(pid: libc::c_long, pidfd: RawFd) -> io::Result<Option<Child>> {
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some(Child {
        pid: i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData)?,
        // SAFETY: the kernel stored a new descriptor here that nobody else owns.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    }))
}

/// A stack for one [`vfork`] child at a time.
#[derive(Debug)]
pub struct Stack(Vec<u128>);

impl Stack {
    #[must_use]
    pub fn new() -> Self {
        // Not zeroed: most of its pages are never touched.
        Self(Vec::with_capacity(64 * 1024 / size_of::<u128>()))
    }
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs `child` in a new process that shares this memory, while the caller sleeps, until it executes a program or
/// exits. What `child` returns is its exit code. It must not allocate, lock, or panic: it borrows the caller's memory.
/// Gives the child's pid.
pub fn vfork<F: FnOnce() -> u8>(stack: &mut Stack, child: F) -> io::Result<i32> {
    struct Call<F>(Option<F>);

    extern "C" fn enter<F: FnOnce() -> u8>(call: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `call` is the `Call` of the caller below, which sleeps until this process is gone or has executed.
        let call = unsafe { &mut *call.cast::<Call<F>>() };
        call.0.take().map_or(1, |child| i32::from(child()))
    }

    let mut call = Call(Some(child));
    // SAFETY: the pointer is one past the end of the vector's buffer, which is 16-byte aligned as u128 is.
    let top = unsafe { stack.0.as_mut_ptr().add(stack.0.capacity()) };
    // SAFETY: with CLONE_VFORK the caller is suspended while the child uses `call` and the stack; `enter` has the type
    // that clone asks for; CLONE_VM without CLONE_THREAD needs no TLS of its own because the child only makes system
    // calls and never returns into this function.
    let pid = unsafe {
        libc::clone(
            enter::<F>,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            std::ptr::from_mut(&mut call).cast(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pid)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate::sys::exec::exit_now;

    #[test]
    fn a_child_by_either_call_is_held_by_its_pidfd() {
        for newer in [true, false] {
            let forked = if newer {
                fork(Namespaces::default(), None)
            } else {
                fork_by_clone(Namespaces::default())
            };
            let Some(child) = forked.expect("forked") else {
                exit_now(7);
            };
            let ended = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
            let status = ended.expect("waited").expect("it ended");
            assert_eq!(status.exit_status(), Some(7));
        }
    }
}
