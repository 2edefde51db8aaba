//! System calls by their numbers: the library that the interpreter is linked with may be any, or too old for them.

use core::arch::asm;

use super::Errno;

#[cfg(target_arch = "x86_64")]
pub(super) mod number {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const PREAD64: usize = 17;
    pub(crate) const SCHED_YIELD: usize = 24;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const GETPPID: usize = 110;
    pub(crate) const UMASK: usize = 95;
    pub(crate) const SETSID: usize = 112;
    pub(crate) const CAPGET: usize = 125;
    pub(crate) const CAPSET: usize = 126;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const FUTEX: usize = 202;
    pub(crate) const SCHED_SETAFFINITY: usize = 203;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const KEYCTL: usize = 250;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const SETNS: usize = 308;
    pub(crate) const RESTART_SYSCALL: usize = 219;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const RSEQ: usize = 334;
}

#[cfg(target_arch = "aarch64")]
pub(super) mod number {
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const LSEEK: usize = 62;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const MUNMAP: usize = 215;
    pub(crate) const RT_SIGPROCMASK: usize = 135;
    pub(crate) const PREAD64: usize = 67;
    pub(crate) const SCHED_YIELD: usize = 124;
    pub(crate) const MADVISE: usize = 233;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const GETPPID: usize = 173;
    pub(crate) const SENDMSG: usize = 211;
    pub(crate) const RECVMSG: usize = 212;
    pub(crate) const FUTEX: usize = 98;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const CHDIR: usize = 49;
    pub(crate) const UMASK: usize = 166;
    pub(crate) const SETSID: usize = 157;
    pub(crate) const CAPGET: usize = 90;
    pub(crate) const CAPSET: usize = 91;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const SCHED_SETAFFINITY: usize = 122;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const KEYCTL: usize = 219;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const SIGNALFD4: usize = 74;
    pub(crate) const DUP3: usize = 24;
    pub(crate) const PRLIMIT64: usize = 261;
    pub(crate) const SETNS: usize = 268;
    pub(crate) const RESTART_SYSCALL: usize = 128;
    pub(crate) const SECCOMP: usize = 277;
    pub(crate) const RSEQ: usize = 293;
}

/// The same on every architecture.
pub(super) const LANDLOCK_RESTRICT_SELF: usize = 446;
pub(super) const CLOSE_RANGE: usize = 436;

/// # Safety
/// As the system call `number` with these arguments: pointers among them must be what it expects.
#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer;
    // SAFETY: the registers are those of the kernel's convention, and what the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// # Safety
/// As the system call `number` with these arguments: pointers among them must be what it expects.
#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer;
    // SAFETY: the registers are those of the kernel's convention, and what the call does is the caller's promise.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// # Safety
/// As for [`raw`].
pub(super) unsafe fn call<const N: usize>(
    number: usize,
    given: [usize; N],
) -> Result<usize, Errno> {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&given);
    // SAFETY: the caller's promise.
    match unsafe { raw(number, arguments) } {
        error if error < 0 => Err(Errno(error.unsigned_abs() as u32)),
        answer => Ok(answer.unsigned_abs()),
    }
}
