//! `mount_setattr`: the attributes of a whole mount tree, kernel 5.12.
#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a mount tree is to be: set together, in one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'fd> {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// A user namespace whose maps translate the owners on disk.
    pub id_map: Option<BorrowedFd<'fd>>,
    /// Detach from the propagation of the place where it was cloned.
    pub private: bool,
}

/// Sets attributes of the tree whose root `tree` is; with `recursive`, of all mounts below it too.
pub fn set_attributes(
    tree: BorrowedFd<'_>,
    attributes: Attributes<'_>,
    recursive: bool,
) -> io::Result<()> {
    let mut set = 0;
    for (wanted, bit) in [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
        (attributes.id_map.is_some(), libc::MOUNT_ATTR_IDMAP),
    ] {
        if wanted {
            set |= bit;
        }
    }
    let value = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: if attributes.private {
            libc::MS_PRIVATE
        } else {
            0
        },
        userns_fd: attributes
            .id_map
            .map_or(0, |fd| fd.as_raw_fd().unsigned_abs().into()),
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: `value` is a mount_attr of the size given, the path is an empty C string, the descriptors are open.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(&value),
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
