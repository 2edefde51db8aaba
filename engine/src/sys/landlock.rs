//! Landlock, as far as asking for its version goes.
#![expect(unsafe_code, reason = "landlock has no safe wrapper")]

const CREATE_RULESET_VERSION: u32 = 1;

/// The ABI that the kernel offers; none when it is not built in or not enabled at boot.
#[must_use]
pub fn abi() -> Option<u32> {
    // SAFETY: with the version flag the attribute must be null and its size 0; nothing is made.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}
