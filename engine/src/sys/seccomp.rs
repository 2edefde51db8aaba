//! Loads seccomp filters and answers their notifications (`seccomp(2)`, `seccomp_unotify(2)`).
//!
//! The functions that load run between `clone` and `execve`: they allocate nothing and take no lock.
#![expect(unsafe_code, reason = "seccomp(2) and its ioctls have no safe wrapper")]

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{sock_filter, sock_fprog};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
};

/// A syscall that waits for its listener's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Names the waiting call to the kernel, for the reply.
    pub id: u64,
    /// The calling thread, as the *reader's* pid namespace numbers it; 0 if it is not in there.
    pub pid: u32,
    /// The number in the syscall register, which means what `arch` says.
    pub nr: u32,
    /// The audit word of the ABI that the call came by.
    pub arch: u32,
    /// The argument registers. Pointers among them point into memory that the caller may be changing.
    pub args: [u64; 6],
}

/// Stacks `filter` on those of the calling thread; children inherit it.
///
/// # Errors
/// EACCES without no_new_privs and without CAP_SYS_ADMIN in the user namespace, EINVAL for a malformed program.
pub fn load(filter: &[sock_filter]) -> io::Result<()> {
    set_mode_filter(filter, 0).map(drop)
}

/// Stacks `filter` as [`load`] does and returns the descriptor, close-on-exec, that its notifications are read from.
///
/// # Errors
/// As for [`load`], and EBUSY when a filter of this thread has a listener already.
pub fn load_with_listener(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    let listener = set_mode_filter(filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel made this descriptor for the call above, so it is open and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

fn set_mode_filter(filter: &[sock_filter], flags: libc::c_ulong) -> io::Result<RawFd> {
    let len = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = sock_fprog {
        len,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: `program` and the `len` instructions that it points to live until the call returns, and the kernel only
    // reads them. No memory of the process changes.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match RawFd::try_from(answer) {
        Ok(descriptor) if descriptor >= 0 => Ok(descriptor),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the next notification, or `None` if no call waits. Never blocks, as long as `listener` has one reader.
///
/// When the last process under the filter is gone there is nothing to take for ever, and `listener` polls as
/// `POLLHUP`: whoever polls it must then stop.
///
/// # Errors
/// What `poll(2)` and the ioctl return for a descriptor that is no listener.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    retry_on_intr(|| poll(&mut waiting, Some(&at_once)))?;
    if !waiting[0].revents().contains(PollFlags::IN) {
        return Ok(None);
    }
    // SAFETY: every field is an integer, for which zero is a value; the kernel refuses a request that is not zeroed.
    let mut request: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the ioctl's number holds the size of `seccomp_notif`, which is what the kernel writes to `request`.
    let answer = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut request,
        )
    };
    if answer < 0 {
        let error = io::Error::last_os_error();
        // The caller died, or a signal took it out of the call, after the poll.
        return if error.raw_os_error() == Some(libc::ENOENT) {
            Ok(None)
        } else {
            Err(error)
        };
    }
    Ok(Some(Notification {
        id: request.id,
        pid: request.pid,
        nr: request.data.nr.cast_unsigned(),
        arch: request.data.arch,
        args: request.data.args,
    }))
}

/// Lets the call that notified as `id` return `errno`. False: nobody waits for it any more, because the caller died or a
/// signal took it out of the call.
///
/// # Errors
/// EINVAL for an `errno` that is not positive, EINPROGRESS for an `id` that was replied to.
pub fn reply_errno(listener: BorrowedFd<'_>, id: u64, errno: i32) -> io::Result<bool> {
    if errno <= 0 {
        return Err(Errno::INVAL.into());
    }
    let mut response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: -errno,
        flags: 0,
    };
    // SAFETY: the ioctl's number holds the size of `seccomp_notif_resp`, and `response` lives until it returns.
    let answer = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw mut response,
        )
    };
    if answer < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) {
            Ok(false)
        } else {
            Err(error)
        };
    }
    Ok(true)
}
