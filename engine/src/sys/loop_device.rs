//! Loop devices: a file as a block device (`loop(4)`, `LOOP_CONFIGURE` of kernel 5.8).
#![expect(
    unsafe_code,
    reason = "the ioctls of loop devices have no safe wrapper"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

const CONTROL: &str = "/dev/loop-control";
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
/// The device lets go of its file with the last one that has it open or mounted.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Others take devices too: so often is another one looked for.
const TRIES: usize = 16;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device that has a file. It lasts as long as it is open or mounted.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: PathBuf,
    _open: File,
}

/// Whether this process may ask for devices at all.
pub fn control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

/// Takes a free device for `file`.
pub fn attach(file: BorrowedFd<'_>, block_size: u32) -> io::Result<LoopDevice> {
    let control = control()?;
    let mut refused = io::Error::from_raw_os_error(libc::EBUSY);
    for _ in 0..TRIES {
        let number = free(control.as_fd())?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let open = OpenOptions::new().read(true).write(true).open(&path)?;
        match configure(open.as_fd(), file, block_size) {
            Ok(()) => return Ok(LoopDevice { path, _open: open }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

fn free(control: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: the request takes no argument and gives a number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(number)
}

fn configure(device: BorrowedFd<'_>, file: BorrowedFd<'_>, block_size: u32) -> io::Result<()> {
    let config = Config {
        fd: file.as_raw_fd().unsigned_abs(),
        block_size,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads a loop_config, which lives until the call returns; both descriptors are open.
    let done = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            LOOP_CONFIGURE,
            std::ptr::from_ref(&config),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
