//! What the children of this process used.
#![expect(unsafe_code, reason = "getrusage has no safe wrapper")]

use std::mem::MaybeUninit;

/// Bytes that the largest of all children and grandchildren that were waited for had in memory at once.
#[must_use]
pub fn children_peak() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has the size that the kernel fills.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: every field is an integer, for which zero is a value, and the kernel has filled it.
    let usage = unsafe { usage.assume_init() };
    Some(u64::try_from(usage.ru_maxrss).ok()? * 1024)
}
