//! By what rules processes get processors.
#![expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]

use std::io;

/// Takes a realtime policy off the calling thread and what it will fork, which would go before everything else.
pub fn leave_realtime() -> io::Result<()> {
    // SAFETY: no pointer.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    if !matches!(
        policy,
        libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
    ) {
        return Ok(());
    }
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: one parameter, which the kernel only reads.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const no_priority) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
