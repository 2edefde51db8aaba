//! Signal masks and dispositions of the current process.
#![expect(
    unsafe_code,
    reason = "sigaction, sigprocmask and signalfd have no safe wrapper"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

/// Blocks every signal; `SIGKILL` and `SIGSTOP` cannot be.
pub fn block_all() -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above.
    set_mask(&unsafe { set.assume_init() })
}

/// Unblocks every signal.
pub fn unblock_all() -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above.
    set_mask(&unsafe { set.assume_init() })
}

fn set_mask(set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised, and the old one is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives every signal its default action: an ignored signal would stay ignored in the program that is executed. By the
/// system call itself, because the library keeps two signals to itself.
pub fn reset_dispositions() {
    /// `struct sigaction` as the kernel has it, of all zeros: the default action, no flags, no mask.
    const DEFAULT: [u64; 4] = [0; 4];
    const LAST: libc::c_long = 64;
    for number in 1..=LAST {
        // SAFETY: the kernel reads one sigaction, which is four words at most, and is given no place for the old one;
        // signals that cannot be changed are refused.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                DEFAULT.as_ptr(),
                ptr::null::<u64>(),
                size_of::<u64>(),
            )
        };
    }
}

/// A descriptor that becomes readable when a child changes state. `SIGCHLD` must be blocked.
pub fn child_descriptor() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above; the number is a signal's.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
