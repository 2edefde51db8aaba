//! Calls of the syscalls whose arguments are checked, and what becomes of them. Written as numbers, not as the
//! constants that the rules use, so that a wrong constant shows.

use libc::{EAFNOSUPPORT, EBUSY, EPERM, EPROTONOSUPPORT};

use crate::sandbox::seccomp::{
    Action::{self, Allow, Notify},
    rules::{count, errno},
};

const REFUSED: Action = errno(EPERM);
const COUNTED: Action = count(EPERM);
const NO_FAMILY: Action = errno(EAFNOSUPPORT);
const NO_PROTOCOL: Action = errno(EPROTONOSUPPORT);

const fn case(
    name: &'static str,
    first: [u64; 4],
    answer: Action,
) -> (&'static str, [u64; 6], Action) {
    (
        name,
        [first[0], first[1], first[2], first[3], 0x55, 0x55],
        answer,
    )
}

pub(super) static CASES: &[(&str, [u64; 6], Action)] = &[
    // fork by glibc; a thread; posix_spawn; each namespace; SIGCHLD beside the bit that is NEWTIME elsewhere.
    case("clone", [0x0120_0011, 0, 0, 0], Allow),
    case("clone", [0x003d_0f00, 0, 0, 0], Allow),
    case("clone", [0x0000_4111, 0, 0, 0], Allow),
    case("clone", [0x0000_0080, 0, 0, 0], Allow),
    case("clone", [0x1000_0011, 0, 0, 0], COUNTED),
    case("clone", [0x7e02_0011, 0, 0, 0], COUNTED),
    case("clone", [0x0002_0011, 0, 0, 0], Notify),
    case("clone", [0x0200_0011, 0, 0, 0], Notify),
    case("clone", [0x0400_0011, 0, 0, 0], Notify),
    case("clone", [0x0800_0011, 0, 0, 0], Notify),
    case("clone", [0x2000_0011, 0, 0, 0], Notify),
    case("clone", [0x4000_0011, 0, 0, 0], Notify),
    case("unshare", [0x0000_0400, 0, 0, 0], Allow),
    case("unshare", [0x0000_0200, 0, 0, 0], Allow),
    case("unshare", [0x1000_0000, 0, 0, 0], COUNTED),
    case("unshare", [0x1002_0000, 0, 0, 0], COUNTED),
    case("unshare", [0x0002_0000, 0, 0, 0], Notify),
    case("unshare", [0x4000_0000, 0, 0, 0], Notify),
    case("unshare", [0x0000_0080, 0, 0, 0], Notify),
    // Reading, with garbage for a mode; creating; O_TMPFILE.
    case("open", [1, 0o0, 0o6777, 0], Allow),
    case("open", [1, 0o101, 0o644, 0], Allow),
    case("open", [1, 0o101, 0o4755, 0], REFUSED),
    case("open", [1, 0o101, 0o2755, 0], REFUSED),
    case("open", [1, 0o2020_0002, 0o4700, 0], REFUSED),
    case("openat", [3, 1, 0o0, 0o6777], Allow),
    case("openat", [3, 1, 0o20_0000, 0o6777], Allow),
    case("openat", [3, 1, 0o101, 0o1666], Allow),
    case("openat", [3, 1, 0o101, 0o4755], REFUSED),
    case("openat", [3, 1, 0o101, 0o2755], REFUSED),
    case("openat", [3, 1, 0o2020_0002, 0o4700], REFUSED),
    case("creat", [1, 0o644, 0, 0], Allow),
    case("creat", [1, 0o4644, 0, 0], REFUSED),
    case("chmod", [1, 0o755, 0o6000, 0], Allow),
    case("chmod", [1, 0o1777, 0, 0], Allow),
    case("chmod", [1, 0o4755, 0, 0], REFUSED),
    case("chmod", [1, 0o2755, 0, 0], REFUSED),
    case("fchmod", [3, 0o755, 0, 0], Allow),
    case("fchmod", [3, 0o6755, 0, 0], REFUSED),
    case("fchmodat", [3, 0o6000, 0o755, 0], Allow),
    case("fchmodat", [3, 1, 0o4755, 0], REFUSED),
    case("mkdir", [1, 0o777, 0, 0], Allow),
    case("mkdir", [1, 0o2777, 0, 0], REFUSED),
    case("mkdirat", [3, 1, 0o777, 0], Allow),
    case("mkdirat", [3, 1, 0o2777, 0], REFUSED),
    // FIFO, plain file, socket; character device, block device; set-id file.
    case("mknod", [1, 0o10_644, 0, 0], Allow),
    case("mknod", [1, 0o100_644, 0, 0], Allow),
    case("mknod", [1, 0o140_644, 0, 0], Allow),
    case("mknod", [1, 0o20_666, 0x103, 0], REFUSED),
    case("mknod", [1, 0o60_666, 0x800, 0], REFUSED),
    case("mknod", [1, 0o104_755, 0, 0], REFUSED),
    case("mknodat", [3, 1, 0o10_644, 0], Allow),
    case("mknodat", [3, 1, 0o644, 0], Allow),
    case("mknodat", [3, 1, 0o20_666, 0x103], REFUSED),
    case("mknodat", [3, 1, 0o60_666, 0x800], REFUSED),
    case("mknodat", [3, 1, 0o102_755, 0], REFUSED),
    // Unix stream; TCP and UDP, cloexec and non-blocking; ping; MPTCP; UDP-Lite; routing; then what is refused.
    case("socket", [1, 0x8_0001, 0, 0], Allow),
    case("socket", [2, 0x8_0801, 0, 0], Allow),
    case("socket", [2, 1, 6, 0], Allow),
    case("socket", [10, 2, 17, 0], Allow),
    case("socket", [2, 2, 1, 0], Allow),
    case("socket", [10, 2, 58, 0], Allow),
    case("socket", [10, 1, 262, 0], Allow),
    case("socket", [2, 2, 136, 0], Allow),
    case("socket", [16, 0x8_0003, 0, 0], Allow),
    case("socket", [16, 3, 12, 0], NO_FAMILY),
    case("socket", [16, 3, 9, 0], NO_FAMILY),
    case("socket", [2, 3, 1, 0], REFUSED),
    case("socket", [10, 0x8_0003, 58, 0], REFUSED),
    case("socket", [2, 10, 0x300, 0], REFUSED),
    case("socket", [2, 1, 132, 0], NO_PROTOCOL),
    case("socket", [10, 6, 33, 0], NO_PROTOCOL),
    case("socket", [17, 3, 0, 0], NO_FAMILY),
    case("socket", [38, 5, 0, 0], NO_FAMILY),
    case("socket", [40, 1, 0, 0], NO_FAMILY),
    case("socket", [0, 1, 0, 0], NO_FAMILY),
    case("socketpair", [1, 0x8_0001, 0, 0], Allow),
    case("socketpair", [30, 1, 0, 0], NO_FAMILY),
    // TCGETS, FIONREAD, TIOCSCTTY, TIOCSWINSZ; TIOCSTI, TIOCLINUX, TIOCSETD.
    case("ioctl", [0, 0x5401, 0, 0], Allow),
    case("ioctl", [0, 0x541b, 0, 0], Allow),
    case("ioctl", [0, 0x540e, 0, 0], Allow),
    case("ioctl", [0, 0x5414, 0, 0], Allow),
    case("ioctl", [0, 0x5412, 0, 0], REFUSED),
    case("ioctl", [0, 0x541c, 0, 0], REFUSED),
    case("ioctl", [0, 0x5423, 0, 0], REFUSED),
    case("personality", [0xffff_ffff, 0, 0, 0], Allow),
    case("personality", [0, 0, 0, 0], Allow),
    case("personality", [0x8, 0, 0, 0], Allow),
    case("personality", [0x2_0000, 0, 0, 0], Allow),
    case("personality", [0x4_0000, 0, 0, 0], Allow),
    case("personality", [0x40_0000, 0, 0, 0], REFUSED),
    case("personality", [0x10_0000, 0, 0, 0], REFUSED),
    // PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP; PR_SET_MM.
    case("prctl", [15, 0, 0, 0], Allow),
    case("prctl", [38, 1, 0, 0], Allow),
    case("prctl", [1, 9, 0, 0], Allow),
    case("prctl", [4, 0, 0, 0], Allow),
    case("prctl", [22, 2, 0, 0], Allow),
    case("prctl", [35, 1, 0, 0], REFUSED),
    // A filter; a filter for all threads; which actions there are; a listener.
    case("seccomp", [1, 0, 0, 0], Allow),
    case("seccomp", [1, 1, 0, 0], Allow),
    case("seccomp", [2, 0, 0, 0], Allow),
    case("seccomp", [1, 1 << 3, 0, 0], errno(EBUSY)),
    case("seccomp", [1, 1 << 3 | 1 << 5, 0, 0], errno(EBUSY)),
];
