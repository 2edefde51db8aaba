//! Memory that this process shares with the init of its sandbox, and waiting for a change of it.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::call::{call, number};
use super::{Answer, EINVAL, Errno, Fd};

const WORD: usize = size_of::<u64>();
const ENOENT: Errno = Errno(2);

/// A mapping of one size that is made once.
pub struct Shared {
    start: AtomicPtr<u8>,
    size: usize,
}

impl Shared {
    pub const fn new(size: usize) -> Self {
        Self {
            start: AtomicPtr::new(core::ptr::null_mut()),
            size,
        }
    }

    /// Maps it from the start of `fd`. What is forked from this process does not have it.
    pub fn attach(&self, fd: Fd) -> Answer<()> {
        const READ_WRITE: usize = 3;
        const SHARED: usize = 1;
        const NOT_IN_CHILDREN: usize = 10;
        // SAFETY: the kernel chooses the address.
        let start = unsafe {
            call(
                number::MMAP,
                [0, self.size, READ_WRITE, SHARED, fd.0 as usize, 0],
            )
        }?;
        // SAFETY: the mapping of the line above.
        unsafe { call(number::MADVISE, [start, self.size, NOT_IN_CHILDREN]) }?;
        self.start.store(start as *mut u8, Ordering::Release);
        Ok(())
    }

    /// The place of `length` bytes at `offset`, both multiples of `unit`.
    fn place(&self, offset: usize, length: usize, unit: usize) -> Answer<*mut u8> {
        let start = self.start.load(Ordering::Acquire);
        let end = offset.checked_add(length).ok_or(EINVAL)?;
        if start.is_null() || end > self.size || !offset.is_multiple_of(unit) {
            return Err(if start.is_null() { ENOENT } else { EINVAL });
        }
        // SAFETY: within the mapping by the check above.
        Ok(unsafe { start.add(offset) })
    }

    pub fn half(&self, offset: usize) -> Answer<&'static AtomicU32> {
        let place = self.place(offset, size_of::<u32>(), size_of::<u32>())?;
        // SAFETY: aligned and mapped for ever, and both sides use it as an atomic.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) })
    }

    pub fn word(&self, offset: usize) -> Answer<&'static AtomicU64> {
        let place = self.place(offset, WORD, WORD)?;
        // SAFETY: aligned and mapped for ever, and both sides use it as an atomic.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) })
    }

    /// Bytes that init wrote and does not change before it is answered.
    pub fn bytes(&self, offset: usize, length: usize) -> Answer<&'static [u8]> {
        let place = self.place(offset, length, 1)?;
        // SAFETY: within the mapping, which is for ever; init leaves them alone until it has an answer.
        Ok(unsafe { core::slice::from_raw_parts(place, length) })
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) -> Answer<()> {
        let place = self.place(offset, bytes.len(), 1)?;
        // SAFETY: within the mapping, which nothing of this process's own lies in.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }
}

const WAIT: usize = 0;
const WAKE: usize = 1;

/// Waits until `word` is woken, if it still is `seen`. A signal ends the wait too.
pub fn wait(word: &AtomicU32, seen: u32) {
    // SAFETY: the word is an atomic's; no time limit.
    let _ = unsafe {
        call(
            number::FUTEX,
            [word.as_ptr() as usize, WAIT, seen as usize, 0],
        )
    };
}

/// Changes `word`, and wakes whoever waits on it.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    // SAFETY: the word is an atomic's.
    let _ = unsafe { call(number::FUTEX, [word.as_ptr() as usize, WAKE, 1]) };
}

/// The number of this process.
pub fn process() -> u32 {
    // SAFETY: no argument.
    unsafe { call(number::GETPID, []) }.map_or(0, |pid| pid as u32)
}
