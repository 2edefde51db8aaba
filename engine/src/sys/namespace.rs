//! Leaving namespaces for fresh ones.
#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;

use super::clone::Namespaces;

/// Moves the calling process into fresh namespaces. It must be single-threaded: the kernel refuses a new user namespace
/// else, and other threads would stay behind in the others.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    let flags = libc::c_int::try_from(namespaces.bits()).map_err(io::Error::other)?;
    // SAFETY: only namespace flags can be in `flags`; the file descriptor table and memory stay shared as they were.
    if unsafe { libc::unshare(flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
