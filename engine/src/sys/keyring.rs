//! Session keyrings.
#![expect(unsafe_code, reason = "keyctl has no safe wrapper")]

use std::io;

const JOIN_SESSION_KEYRING: libc::c_long = 1;

/// Gives this process, and what it forks, an anonymous session keyring of its own. A kernel without keyrings is fine.
pub fn join_fresh() -> io::Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; no memory is handed over.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0, 0, 0, 0) };
    if done < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSYS) {
            return Err(error);
        }
    }
    Ok(())
}
