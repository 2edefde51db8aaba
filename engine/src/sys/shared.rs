//! Memory that this process shares with one that it does not trust: words to wait on, and an area for bytes. Whatever is
//! read here may have been written by the other side, and may change while it is read: it is copied, never borrowed.
#![expect(unsafe_code, reason = "a shared mapping has no safe wrapper")]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::Timespec;

const WORD: usize = size_of::<u64>();

/// A mapping that lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    start: NonNull<u8>,
    size: usize,
}

impl Shared {
    /// Makes and maps `size` bytes of zeros, which is a multiple of a page. The descriptor is for the other side, which
    /// cannot make the memory smaller under our feet.
    pub fn make(name: &str, size: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = super::datagram::memory_file(name)?;
        rustix::fs::ftruncate(&fd, size as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?;
        // SAFETY: the kernel chooses the address, and the mapping is never undone.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((Self { start, size }, fd))
    }

    /// The word of four bytes at `offset`.
    #[must_use]
    pub fn half(&self, offset: usize) -> &'static AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.size);
        // SAFETY: within the mapping by the check above.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: aligned by the check above, mapped for ever, and both sides use it as an atomic.
        unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) }
    }

    /// The word of eight bytes at `offset`.
    #[must_use]
    pub fn word(&self, offset: usize) -> &'static AtomicU64 {
        assert!(offset.is_multiple_of(WORD) && offset + WORD <= self.size);
        // SAFETY: within the mapping by the check above.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: aligned by the check above, mapped for ever, and both sides use it as an atomic.
        unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }
    }

    /// Copies `bytes` to `offset`, a multiple of eight; what they do not fill of the last word is zeros.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(offset + index * WORD)
                .store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Copies `length` bytes from `offset`, a multiple of eight.
    #[must_use]
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length.next_multiple_of(WORD));
        for index in 0..length.div_ceil(WORD) {
            let word = self.word(offset + index * WORD).load(Ordering::Relaxed);
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Gives the memory of `length` bytes from `offset` back to the system, both multiples of a page: they are zeros.
    pub fn forget(&self, offset: usize, length: usize) -> io::Result<()> {
        assert!(offset + length <= self.size);
        // SAFETY: within the mapping by the check above.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: the pages stay mapped, and whoever reads them reads atomics, of which zero is a value.
        Ok(unsafe { rustix::mm::madvise(start.as_ptr().cast(), length, Advice::LinuxRemove) }?)
    }
}

/// Waits until `word` is woken, if it still has the value `seen`; at most `timeout`. A signal ends the wait too.
pub fn wait(word: &AtomicU32, seen: u32, timeout: std::time::Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Whatever ends the wait, the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Changes `word`, and wakes whoever waits on it.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_read_as_they_were_written() {
        let (shared, fd) = Shared::make("test", 4096).expect("memory");
        for length in [0, 1, 7, 8, 9, 100] {
            let bytes: Vec<u8> = (0..length).collect();
            shared.write(64, &bytes);
            assert_eq!(shared.read(64, bytes.len()), bytes);
        }
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        shared.forget(0, 4096).expect("forgotten");
        assert_eq!(shared.read(64, 100), [0; 100]);
    }

    #[test]
    fn a_wait_for_what_has_changed_already_ends_at_once() {
        let (shared, _fd) = Shared::make("test", 4096).expect("memory");
        let word = shared.half(0);
        let seen = word.load(Ordering::Acquire);
        wake(word);
        wait(word, seen, std::time::Duration::from_secs(600));
        assert_eq!(word.load(Ordering::Acquire), seen + 1);
    }
}
