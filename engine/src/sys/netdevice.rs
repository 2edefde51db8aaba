//! Network devices of the current network namespace.
#![expect(unsafe_code, reason = "interface ioctls have no safe wrapper")]

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Sets the loopback device up.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: ifreq is plain data, for which all zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = libc::c_char::from_ne_bytes(*b"l");
    request.ifr_name[1] = libc::c_char::from_ne_bytes(*b"o");
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives until the call returns.
    let done = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            std::ptr::from_ref(&request),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
