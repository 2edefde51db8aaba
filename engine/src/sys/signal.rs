//! Signal masks and dispositions of the current process.
#![expect(
    unsafe_code,
    reason = "sigaction, sigprocmask and signalfd have no safe wrapper"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

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

/// Whether a child has changed state since it was last asked.
static CHILD_CHANGED: AtomicBool = AtomicBool::new(false);
/// What a change of a child's state changes too.
static CHANGES_WITH_CHILD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

extern "C" fn child_changed(_signal: libc::c_int) {
    CHILD_CHANGED.store(true, Ordering::Release);
    // SAFETY: null, or the word of `change_with_child`, which lives for ever.
    if let Some(word) = unsafe { CHANGES_WITH_CHILD.load(Ordering::Acquire).as_ref() } {
        word.fetch_add(1, Ordering::Release);
    }
}

/// From now on a `SIGCHLD` that arrives changes `word` and is remembered: whoever waits for a change of the word misses
/// neither the change nor the signal. The signal must be unblocked meanwhile: see [`with_child_signal`].
pub fn change_with_child(word: &'static AtomicU32) -> io::Result<()> {
    CHANGES_WITH_CHILD.store(ptr::from_ref(word).cast_mut(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = child_changed;
    // SAFETY: every field is an integer or a set of bits, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_NOCLDSTOP;
    // SAFETY: the action is whole, its handler touches atomics only, and the old one is not asked for.
    if unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether a `SIGCHLD` arrived since the last time.
pub fn take_child_changed() -> bool {
    CHILD_CHANGED.swap(false, Ordering::AcqRel)
}

/// Lets `SIGCHLD` arrive while `body` runs, in a process that blocks it.
pub fn with_child_signal<T>(body: impl FnOnce() -> T) -> io::Result<T> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above; the number is a signal's.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: initialised above.
    let set = unsafe { set.assume_init() };
    change_mask(libc::SIG_UNBLOCK, &set)?;
    let done = body();
    change_mask(libc::SIG_BLOCK, &set)?;
    Ok(done)
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised, and the old one is not asked for.
    if unsafe { libc::sigprocmask(how, set, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn end_all(_signal: libc::c_int) {
    end_all_others();
    // SAFETY: ends this process at once; no handler of an exit runs.
    unsafe { libc::_exit(0) };
}

/// Kills every process that this one may signal, without exception and at one instant, and reaps its children until none
/// is left. For one whose signals are kept among those that it started.
pub fn end_all_others() {
    loop {
        // SAFETY: no memory is involved. The kernel goes through all processes under the lock that a fork takes, so none
        // is born in between.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        // SAFETY: a null status is allowed; without a child it fails at once.
        let reaped = unsafe { libc::waitpid(-1, ptr::null_mut(), libc::__WALL) };
        if reaped < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// From now on a `SIGTERM`, which is unblocked, ends all that this process may signal, and then this process itself.
pub fn end_all_on_term() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = end_all;
    // SAFETY: every field is an integer or a set of bits, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the action is whole, its handler makes system calls only, and the old one is not asked for.
    if unsafe { libc::sigaction(libc::SIGTERM, &raw const action, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above; the number is a signal's.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM) };
    // SAFETY: initialised above.
    change_mask(libc::SIG_UNBLOCK, &unsafe { set.assume_init() })
}

/// Orphans of all that this process starts become its children.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: sets a flag of this process.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
