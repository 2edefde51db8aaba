//! Processes, and what one of them gives up.

use core::arch::global_asm;

use super::call::{LANDLOCK_RESTRICT_SELF, call, number};
use super::{Answer, EINVAL, Errno, Fd};

unsafe extern "C" {
    /// The library's own, with what was registered to run around it.
    fn fork() -> i32;

    /// Clones a process that shares this memory and this stack, and runs `body(argument)` in it while the caller sleeps.
    /// `body` ends its process, except in a process that it forked: there it returns, and this gives 0. To the caller it
    /// gives the number of the clone, or a negative error.
    fn stepbox_borrow(
        arguments: *const CloneArguments,
        body: extern "C" fn(*mut core::ffi::c_void),
        argument: *mut core::ffi::c_void,
    ) -> isize;
}

// The clone runs on the caller's stack, below the frame of this function. What it writes there is not looked at by the
// caller, whose frame begins above; and the process that `body` forks has a copy of all of it, so it can return.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl stepbox_borrow",
    ".hidden stepbox_borrow",
    ".type stepbox_borrow, @function",
    "stepbox_borrow:",
    "push rbx",
    "push r12",
    "sub rsp, 8",
    "mov rbx, rsi",
    "mov r12, rdx",
    "mov esi, 88",
    "mov eax, 435",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "mov rdi, r12",
    "call rbx",
    "xor eax, eax",
    "2:",
    "add rsp, 8",
    "pop r12",
    "pop rbx",
    "ret",
    ".size stepbox_borrow, . - stepbox_borrow",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl stepbox_borrow",
    ".hidden stepbox_borrow",
    ".type stepbox_borrow, %function",
    "stepbox_borrow:",
    "stp x29, x30, [sp, -32]!",
    "stp x19, x20, [sp, 16]",
    "mov x29, sp",
    "mov x19, x1",
    "mov x20, x2",
    "mov x1, 88",
    "mov x8, 435",
    "svc 0",
    "cbnz x0, 2f",
    "mov x0, x20",
    "blr x19",
    "mov x0, 0",
    "2:",
    "ldp x19, x20, [sp, 16]",
    "ldp x29, x30, [sp], 32",
    "ret",
    ".size stepbox_borrow, . - stepbox_borrow",
);

unsafe extern "C" {
    /// Where the library's word for the offset of its restartable sequences is; null where it has none.
    fn stepbox_sequences() -> *const isize;
    /// What that offset counts from.
    fn stepbox_thread() -> usize;
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".weak __rseq_offset",
    ".globl stepbox_sequences",
    ".hidden stepbox_sequences",
    "stepbox_sequences:",
    "mov rax, qword ptr [rip + __rseq_offset@GOTPCREL]",
    "ret",
    ".globl stepbox_thread",
    ".hidden stepbox_thread",
    "stepbox_thread:",
    "mov rax, qword ptr fs:[0]",
    "ret",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".weak __rseq_offset",
    ".globl stepbox_sequences",
    ".hidden stepbox_sequences",
    "stepbox_sequences:",
    "adrp x0, :got:__rseq_offset",
    "ldr x0, [x0, :got_lo12:__rseq_offset]",
    "ret",
    ".globl stepbox_thread",
    ".hidden stepbox_thread",
    "stepbox_thread:",
    "mrs x0, tpidr_el0",
    "ret",
);

/// Tells the kernel again where the library keeps the number of the processor that it runs on: a process that borrowed its
/// parent's memory lost that, and so did what it forked.
pub fn restart_sequences() {
    #[cfg(target_arch = "x86_64")]
    const SIGNATURE: usize = 0x5305_3053;
    #[cfg(target_arch = "aarch64")]
    const SIGNATURE: usize = 0xd428_bc00;
    const LENGTH: usize = 32;
    // SAFETY: it only loads an address.
    let offset = unsafe { stepbox_sequences() };
    if offset.is_null() {
        return;
    }
    // SAFETY: the library's own constant, of that type; and a read of the thread's own register.
    let address = unsafe { stepbox_thread().wrapping_add_signed(*offset) };
    // A kernel, or a library, without them refuses.
    // SAFETY: the place that the library set aside for this thread.
    let _ = unsafe { call(number::RSEQ, [address, LENGTH, 0, SIGNATURE]) };
}

/// `struct clone_args`, version 2.
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const SHARED_MEMORY: u64 = 0x100;
const CALLER_SLEEPS: u64 = 0x4000;
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// A fork, from the side that is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forked {
    Parent,
    Child,
}

/// Forks this process as a grandchild whose parent is gone: in a pid namespace that this process only looks into, it is
/// at once the child of that namespace's pid 1. `enter` is run before the fork, in a process that has this memory but
/// namespaces of its own; `cgroup` is the directory of a cgroup2 for both.
pub fn fork_as_orphan<F: FnMut() -> Answer<()>>(cgroup: Option<Fd>, enter: F) -> Answer<Forked> {
    struct Body<F> {
        enter: F,
        failure: Option<Errno>,
        borrowed: u32,
    }

    extern "C" fn body<F: FnMut() -> Answer<()>>(argument: *mut core::ffi::c_void) {
        // SAFETY: the `Body` of the caller below, which sleeps while this runs.
        let body = unsafe { &mut *argument.cast::<Body<F>>() };
        if let Err(errno) = (body.enter)() {
            body.failure = Some(errno);
            exit(1);
        }
        // SAFETY: the process has one thread.
        match unsafe { fork() } {
            0 => {}
            pid if pid > 0 => exit(0),
            _ => {
                body.failure = Some(Errno(12));
                exit(1);
            }
        }
    }

    let arguments = CloneArguments {
        flags: SHARED_MEMORY | CALLER_SLEEPS | if cgroup.is_some() { INTO_CGROUP } else { 0 },
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: SIGCHLD,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.0.into()),
    };
    let mut given = Body {
        enter,
        failure: None,
        borrowed: 0,
    };
    // SAFETY: the arguments are a whole structure of that size; `body` has the type that is called and follows what
    // `stepbox_borrow` asks of it; `given` outlives the call, because the caller sleeps until the clone is gone.
    let pid = unsafe { stepbox_borrow(&raw const arguments, body::<F>, (&raw mut given).cast()) };
    if pid == 0 {
        return Ok(Forked::Child);
    }
    if pid < 0 {
        return Err(Errno(pid.unsigned_abs() as u32));
    }
    given.borrowed = pid.unsigned_abs() as u32;
    reap_one(given.borrowed);
    // SAFETY: a read of what the clone, which shares this memory, may have written while this process slept.
    match unsafe { core::ptr::read_volatile(&raw const given.failure) } {
        Some(errno) => Err(errno),
        None => Ok(Forked::Parent),
    }
}

/// Forks this process as a child.
pub fn fork_child() -> Answer<Forked> {
    // SAFETY: the process has one thread.
    match unsafe { fork() } {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent),
        _ => Err(Errno(12)),
    }
}

const SIGCHLD: u64 = 17;

fn reap_one(pid: u32) {
    const NO_STATUS: usize = 0;
    // SAFETY: no pointer but null.
    while unsafe { call(number::WAIT4, [pid as usize, NO_STATUS, 0, 0]) } == Err(super::EINTR) {}
}

/// Reaps every child that has ended.
pub fn reap() {
    const ANY: usize = -1_isize as usize;
    const NO_HANG: usize = 1;
    // SAFETY: no pointer but null.
    while matches!(unsafe { call(number::WAIT4, [ANY, 0, NO_HANG, 0]) }, Ok(pid) if pid > 0) {}
}

pub fn exit(code: u32) -> ! {
    loop {
        // SAFETY: no pointer; it does not return.
        let _ = unsafe { call(number::EXIT_GROUP, [code as usize]) };
    }
}

/// Blocks `SIGCHLD`, and gives a descriptor that can be read when a child changes state.
pub fn child_descriptor() -> Answer<Fd> {
    const BLOCK: usize = 0;
    const NONBLOCK_CLOEXEC: usize = 0o2_004_000;
    const NEW: usize = -1_isize as usize;
    let set: u64 = 1 << (SIGCHLD - 1);
    // SAFETY: a set of the kernel's size; the old one is not asked for.
    unsafe {
        call(
            number::RT_SIGPROCMASK,
            [BLOCK, &raw const set as usize, 0, size_of::<u64>()],
        )
    }?;
    // SAFETY: a set of the kernel's size.
    let fd = unsafe {
        call(
            number::SIGNALFD4,
            [
                NEW,
                &raw const set as usize,
                size_of::<u64>(),
                NONBLOCK_CLOEXEC,
            ],
        )
    }?;
    Ok(Fd(fd as u32))
}

/// Unblocks every signal.
pub fn unblock_signals() -> Answer<()> {
    const SET: usize = 2;
    let none: u64 = 0;
    // SAFETY: a set of the kernel's size; the old one is not asked for.
    unsafe {
        call(
            number::RT_SIGPROCMASK,
            [SET, &raw const none as usize, 0, size_of::<u64>()],
        )
    }
    .map(drop)
}

/// Enters the namespace that a descriptor names.
pub fn enter(namespace: Fd) -> Answer<()> {
    // SAFETY: no pointer.
    unsafe { call(number::SETNS, [namespace.0 as usize, 0]) }.map(drop)
}

/// Waits until the process that forked this one, which has nothing else to do, is gone, and pid 1 is the parent.
pub fn await_adoption() {
    // SAFETY: no argument.
    while unsafe { call(number::GETPPID, []) } != Ok(1) {
        // SAFETY: no argument.
        let _ = unsafe { call(number::SCHED_YIELD, []) };
    }
}

/// The number of this process in its own pid namespace.
pub fn number() -> u32 {
    // SAFETY: no argument; it cannot fail.
    let number = unsafe { call(number::GETPID, []) };
    number.map_or(0, |number| number as u32)
}

pub fn new_session() -> Answer<()> {
    // SAFETY: no argument.
    unsafe { call(number::SETSID, []) }.map(drop)
}

pub fn umask(mode: u32) {
    // SAFETY: no pointer; it cannot fail.
    let _ = unsafe { call(number::UMASK, [mode as usize]) };
}

/// A session keyring that nobody else has. A kernel without keys has none to share.
pub fn new_keyring() {
    const JOIN_SESSION_KEYRING: usize = 1;
    // SAFETY: no name is given.
    let _ = unsafe { call(number::KEYCTL, [JOIN_SESSION_KEYRING, 0]) };
}

pub fn set_dumpable(dumpable: bool) -> Answer<()> {
    const SET_DUMPABLE: usize = 4;
    prctl([SET_DUMPABLE, usize::from(dumpable), 0])
}

fn prctl(arguments: [usize; 3]) -> Answer<()> {
    let [option, first, second] = arguments;
    // SAFETY: the options used here take numbers.
    unsafe { call(number::PRCTL, [option, first, second, 0, 0]) }.map(drop)
}

/// What is executed from here has no capability.
pub fn keep_capabilities_here() -> Answer<()> {
    drop_ambient()?;
    let mut sets = [0_u32; 6];
    let header = [VERSION_3, 0];
    // SAFETY: the header of version 3, and room for two sets of three words.
    unsafe {
        call(
            number::CAPGET,
            [header.as_ptr() as usize, sets.as_mut_ptr() as usize],
        )
    }?;
    let [effective, permitted, _, high_effective, high_permitted, _] = sets;
    set_capabilities([effective, permitted, 0, high_effective, high_permitted, 0])
}

const AMBIENT: usize = 47;

fn drop_ambient() -> Answer<()> {
    const CLEAR_ALL: usize = 4;
    prctl([AMBIENT, CLEAR_ALL, 0])
}

const VERSION_3: u32 = 0x2008_0522;

/// Effective, permitted and inheritable: the low words, then the high ones.
fn set_capabilities(sets: [u32; 6]) -> Answer<()> {
    let header = [VERSION_3, 0];
    // SAFETY: the header of version 3, and two sets of three words.
    unsafe {
        call(
            number::CAPSET,
            [header.as_ptr() as usize, sets.as_ptr() as usize],
        )
    }
    .map(drop)
}

/// Leaves this process no capability but `kept`, which what it executes has too. `bounding`: nor one to gain, which a new
/// user namespace has given back.
pub fn drop_capabilities(bounding: bool, kept: u64) -> Answer<()> {
    const SET_SECUREBITS: usize = 28;
    /// `NOROOT`, `NO_SETUID_FIXUP`, `NO_CAP_AMBIENT_RAISE`, and the lock of each.
    const LOCKED: usize = 0b1100_1111;
    const DROP_FROM_BOUNDING_SET: usize = 24;
    const RAISE: usize = 2;
    let is_kept = |capability: &usize| kept >> *capability & 1 == 1;
    if bounding {
        if kept == 0 {
            prctl([SET_SECUREBITS, LOCKED, 0])?;
        }
        for capability in (0..64).filter(|capability| !is_kept(capability)) {
            match prctl([DROP_FROM_BOUNDING_SET, capability, 0]) {
                Ok(()) => {}
                // Past the last one of this kernel.
                Err(EINVAL) => break,
                Err(errno) => return Err(errno),
            }
        }
    }
    drop_ambient()?;
    let (low, high) = (kept as u32, (kept >> 32) as u32);
    set_capabilities([low, low, low, high, high, high])?;
    for capability in (0..64).filter(is_kept) {
        prctl([AMBIENT, RAISE, capability])?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Core = 4,
    Tasks = 6,
    Descriptors = 7,
}

/// Lowers a resource limit of this process: the soft one to `soft`, the hard one to `hard`, and neither above the hard
/// one that it has.
pub fn lower_limit(limit: Limit, soft: u64, hard: u64) -> Answer<()> {
    let mut old = [0_u64; 2];
    // SAFETY: a place for one limit of two words.
    unsafe {
        call(
            number::PRLIMIT64,
            [0, limit as usize, 0, old.as_mut_ptr() as usize],
        )
    }?;
    let new = [soft.min(old[1]), hard.min(old[1])];
    // SAFETY: one limit of two words; the old one is not asked for.
    unsafe {
        call(
            number::PRLIMIT64,
            [0, limit as usize, new.as_ptr() as usize, 0],
        )
    }
    .map(drop)
}

/// Keeps this process to the processors of a mask.
pub fn set_affinity(mask: &[u64]) -> Answer<()> {
    // SAFETY: the pointer and the length are those of one slice.
    unsafe {
        call(
            number::SCHED_SETAFFINITY,
            [0, size_of_val(mask), mask.as_ptr() as usize],
        )
    }
    .map(drop)
}

/// Puts this process behind a fence of Landlock's, for ever.
pub fn put_up_fence(rules: Fd, flags: u32) -> Answer<()> {
    // SAFETY: no pointer.
    unsafe { call(LANDLOCK_RESTRICT_SELF, [rules.0 as usize, flags as usize]) }.map(drop)
}

/// Loads a filter; with `listener` it gives the descriptor that its notifications are read from.
pub fn load_filter(instructions: &[u8], listener: bool) -> Answer<Fd> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const u8,
    }
    const SET_MODE_FILTER: usize = 1;
    const NEW_LISTENER: usize = 8;
    const INSTRUCTION: usize = 8;
    let program = Program {
        length: u16::try_from(instructions.len() / INSTRUCTION).map_err(|_| EINVAL)?,
        filter: instructions.as_ptr(),
    };
    let flags = if listener { NEW_LISTENER } else { 0 };
    // SAFETY: the program's pointer and length are those of one slice; the kernel only reads them.
    let fd = unsafe {
        call(
            number::SECCOMP,
            [SET_MODE_FILTER, flags, &raw const program as usize],
        )
    }?;
    Ok(Fd(fd as u32))
}
