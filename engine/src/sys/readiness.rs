//! Descriptors that the runtime watches.
#![expect(
    unsafe_code,
    reason = "the runtime cannot know that a descriptor is owned"
)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Puts a descriptor under the runtime's watch. To be called in the runtime.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` always gives the same descriptor and keeps it open until the `AsyncFd` drops it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(watched?)
}
