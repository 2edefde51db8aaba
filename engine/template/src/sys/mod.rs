//! The only `unsafe` of this library but the interpreter's own interface: typed system calls.
#![allow(unsafe_code, reason = "system calls and a process that shares memory")]

pub mod arguments;
mod call;
pub mod holder;
pub mod memory;
pub mod process;
pub mod shared;
pub mod socket;

use core::ffi::CStr;

use call::{CLOSE_RANGE, call, number};

/// What a system call failed with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Errno(pub u32);

pub const EINTR: Errno = Errno(4);
pub const EINVAL: Errno = Errno(22);

pub type Answer<T> = Result<T, Errno>;

/// A descriptor of this process. Not closed when dropped: what is open is closed by ranges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fd(pub u32);

const CLOEXEC: usize = 0o2_000_000;

pub fn close(fd: Fd) {
    // SAFETY: no pointer; nothing owns descriptors here.
    let _ = unsafe { call(number::CLOSE, [fd.0 as usize]) };
}

/// Closes every descriptor from `first` to `last`, both included.
pub fn close_range(first: u32, last: u32) -> Answer<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: no pointer; nothing owns descriptors here.
    unsafe { call(CLOSE_RANGE, [first as usize, last as usize, 0]) }.map(drop)
}

/// Makes `target` another name of `fd`, to be closed when a program is executed if `close_on_exec`.
pub fn duplicate(fd: Fd, target: u32, close_on_exec: bool) -> Answer<Fd> {
    if fd.0 == target {
        return Ok(fd);
    }
    let flags = if close_on_exec { CLOEXEC } else { 0 };
    // SAFETY: no pointer.
    unsafe { call(number::DUP3, [fd.0 as usize, target as usize, flags]) }?;
    Ok(Fd(target))
}

/// Opens `path` for reading and writing, or as `open(2)` says of `flags`.
pub fn open(directory: Option<Fd>, path: &CStr, flags: u32, mode: u32) -> Answer<Fd> {
    const AT_FDCWD: usize = -100_isize as usize;
    let directory = directory.map_or(AT_FDCWD, |fd| fd.0 as usize);
    // SAFETY: the path is a C string.
    let fd = unsafe {
        call(
            number::OPENAT,
            [
                directory,
                path.as_ptr() as usize,
                flags as usize | CLOEXEC,
                mode as usize,
            ],
        )
    }?;
    Ok(Fd(fd as u32))
}

pub const O_WRONLY: u32 = 1;
pub const O_CREAT: u32 = 0o100;
pub const O_EXCL: u32 = 0o200;

pub fn write_all(fd: Fd, bytes: &[u8]) -> Answer<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the pointer and the length are those of one slice.
        let written = unsafe {
            call(
                number::WRITE,
                [fd.0 as usize, rest.as_ptr() as usize, rest.len()],
            )
        };
        match written {
            Ok(written) => rest = &rest[written..],
            Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads and forgets what is there, up to a small buffer's length.
pub fn discard(fd: Fd) -> Answer<usize> {
    let mut buffer = [0_u8; 128];
    // SAFETY: the pointer and the length are those of one buffer.
    unsafe {
        call(
            number::READ,
            [fd.0 as usize, buffer.as_mut_ptr() as usize, buffer.len()],
        )
    }
}

/// How many bytes a file has.
pub fn size(fd: Fd) -> Answer<usize> {
    const FROM_ITS_END: usize = 2;
    // SAFETY: no pointer.
    unsafe { call(number::LSEEK, [fd.0 as usize, 0, FROM_ITS_END]) }
}

/// Reads the end of a file, as much as there is room for.
pub fn tail<'a>(path: &CStr, room: &'a mut [u8]) -> Answer<&'a [u8]> {
    let file = open(None, path, 0, 0)?;
    let read = size(file).and_then(|length| {
        let start = length.saturating_sub(room.len());
        // SAFETY: the pointer and the length are those of one buffer.
        unsafe {
            call(
                number::PREAD64,
                [
                    file.0 as usize,
                    room.as_mut_ptr() as usize,
                    room.len(),
                    start,
                ],
            )
        }
    });
    close(file);
    Ok(&room[..read?.min(room.len())])
}

/// Maps all of a sealed memfd for reading, for ever.
pub fn map(fd: Fd, length: usize) -> Answer<&'static [u8]> {
    const READ: usize = 1;
    const PRIVATE: usize = 2;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the kernel chooses the address.
    let address = unsafe { call(number::MMAP, [0, length, READ, PRIVATE, fd.0 as usize, 0]) }?;
    // SAFETY: mapped by the line above with this length, and what is in it is sealed.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
}

/// Undoes [`map`]: the slice must not be used after it, which nothing here does.
pub fn unmap(mapped: &'static [u8]) {
    if !mapped.is_empty() {
        // SAFETY: a whole mapping of `map`, whose users are done.
        let _ = unsafe { call(number::MUNMAP, [mapped.as_ptr() as usize, mapped.len()]) };
    }
}

pub fn chdir(path: &CStr) -> Answer<()> {
    // SAFETY: the path is a C string.
    unsafe { call(number::CHDIR, [path.as_ptr() as usize]) }.map(drop)
}

/// Waits until one of `wanted` can be read, or its other end is gone, and says which.
pub fn wait_readable<const N: usize>(wanted: [Fd; N]) -> Answer<[bool; N]> {
    #[repr(C)]
    struct PollFd {
        fd: u32,
        events: u16,
        found: u16,
    }
    const IN: u16 = 1;
    let mut polled = wanted.map(|fd| PollFd {
        fd: fd.0,
        events: IN,
        found: 0,
    });
    loop {
        // SAFETY: an array of the kernel's structure and its length; neither a time limit nor a mask.
        let done = unsafe { call(number::PPOLL, [polled.as_mut_ptr() as usize, N, 0, 0, 0]) };
        match done {
            Ok(_) => return Ok(polled.map(|fd| fd.found != 0)),
            Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
