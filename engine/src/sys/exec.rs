//! Executing a program, and leaving a process without running anything of the library's.
#![expect(unsafe_code, reason = "execve and _exit have no safe wrapper")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Argument or environment strings in the form that `execve` takes, made before the clone.
#[derive(Debug)]
pub struct StringTable {
    pointers: Vec<*const libc::c_char>,
    /// Owns what the pointers name.
    _strings: Vec<CString>,
}

impl StringTable {
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        Self {
            pointers,
            _strings: strings,
        }
    }
}

/// Replaces this process; comes back only with the error.
pub fn execve(path: &CStr, arguments: &StringTable, environment: &StringTable) -> io::Error {
    // SAFETY: `path` is a C string, and both tables are null-terminated arrays of C strings that they own.
    unsafe {
        libc::execve(
            path.as_ptr(),
            arguments.pointers.as_ptr(),
            environment.pointers.as_ptr(),
        )
    };
    io::Error::last_os_error()
}

/// Replaces this process by the program that a descriptor names; comes back only with the error.
pub fn execute_descriptor(
    program: BorrowedFd<'_>,
    arguments: &StringTable,
    environment: &StringTable,
) -> io::Error {
    // SAFETY: the path is an empty C string, both tables are null-terminated arrays of C strings that they own, and the
    // descriptor is open.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.pointers.as_ptr(),
            environment.pointers.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Ends this process at once: no destructor, no handler, no flush.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Makes `number` another name of `fd`, one that an execution leaves open. A descriptor of that number that a value of this
/// process owns is gone afterwards: only for a process that is about to execute a program.
pub fn duplicate_to(fd: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    // SAFETY: the callers are freshly forked processes that never drop an owner of the number.
    let done = unsafe { libc::dup2(fd.as_raw_fd(), number.cast_signed()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Marks every descriptor from `first` up to be closed when a program is executed.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: close_range with CLOEXEC only sets flags of this process's descriptors.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes every descriptor from `first` to `last`, both included. Descriptors in that range that a value of this
/// process owns are gone afterwards: only for a process that has just been forked and has listed what it keeps.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: the callers are freshly forked processes that never drop an owner of the closed numbers.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
