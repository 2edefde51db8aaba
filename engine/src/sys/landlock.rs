//! Landlock: a set of rules, and the fence that a process puts up around itself and all that it starts.
#![expect(unsafe_code, reason = "landlock has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// What can be done with a file: bits of the kernel's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access(u64);

impl Access {
    pub const NONE: Self = Self(0);
    pub const EXECUTE: Self = Self(1);
    pub const READ_FILE: Self = Self(1 << 2);
    pub const READ_DIRECTORY: Self = Self(1 << 3);
    pub const WRITE_FILE: Self = Self(1 << 1);
    pub const REMOVE_DIRECTORY: Self = Self(1 << 4);
    pub const REMOVE_FILE: Self = Self(1 << 5);
    pub const MAKE_CHARACTER_DEVICE: Self = Self(1 << 6);
    pub const MAKE_DIRECTORY: Self = Self(1 << 7);
    pub const MAKE_FILE: Self = Self(1 << 8);
    pub const MAKE_SOCKET: Self = Self(1 << 9);
    pub const MAKE_PIPE: Self = Self(1 << 10);
    pub const MAKE_BLOCK_DEVICE: Self = Self(1 << 11);
    pub const MAKE_LINK: Self = Self(1 << 12);
    /// Moving and hard links from one directory to another; ABI 2.
    pub const REFER: Self = Self(1 << 13);
    /// ABI 3.
    pub const TRUNCATE: Self = Self(1 << 14);
    /// Requests to a device; ABI 5.
    pub const IOCTL_DEVICE: Self = Self(1 << 15);

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub const fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What is kept from crossing the fence outwards; ABI 6.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scope(u64);

impl Scope {
    pub const NONE: Self = Self(0);
    pub const ABSTRACT_SOCKETS: Self = Self(1);
    pub const SIGNALS: Self = Self(1 << 1);

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The ABI that the kernel offers; none when it is not built in or not enabled at boot.
#[must_use]
pub fn abi() -> Option<u32> {
    // SAFETY: with the version flag the attribute must be null and its size 0; nothing is made.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<libc::c_void>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// A set of rules that allows nothing of `handled` yet. Everything else stays as it is.
///
/// # Errors
///
/// EINVAL for what this kernel's ABI does not know, EOPNOTSUPP and ENOSYS without Landlock.
pub fn ruleset(handled: Access, scoped: Scope) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        handled_access_fs: u64,
        handled_access_net: u64,
        scoped: u64,
    }
    let attributes = Attributes {
        handled_access_fs: handled.0,
        handled_access_net: 0,
        scoped: scoped.0,
    };
    // SAFETY: the pointer and the length are those of one structure, which the kernel only reads. An older one takes a
    // longer structure as long as what it does not know is zero.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<Attributes>(),
            0,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel made this descriptor for the call above, so it is open and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Allows `access` to an open file, or to a directory and all that is below it.
///
/// # Errors
///
/// EINVAL for what only a directory can be given, or what the set does not handle.
pub fn allow(ruleset: BorrowedFd<'_>, place: BorrowedFd<'_>, access: Access) -> io::Result<()> {
    #[repr(C, packed)]
    struct Beneath {
        allowed_access: u64,
        parent: i32,
    }
    let beneath = Beneath {
        allowed_access: access.0,
        parent: place.as_raw_fd(),
    };
    // SAFETY: the structure is that of this kind of rule, and the kernel only reads it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const beneath,
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// From here on this process, and all that it starts, is held by the rules, for ever. Allocates nothing.
///
/// # Errors
///
/// EPERM without `no_new_privs`.
pub fn restrict(ruleset: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: no pointer.
    let done =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), flags) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
