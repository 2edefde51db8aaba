//! Memory that is there before it is needed: a page that is touched for the first time after a fork is one to be copied.

use core::cell::UnsafeCell;

use super::Answer;
use super::call::{call, number};
use super::socket::{Descriptors, MAX_MESSAGE};

/// Room for one message.
pub struct Room {
    bytes: UnsafeCell<[u8; MAX_MESSAGE]>,
    length: UnsafeCell<usize>,
}

// SAFETY: a process that uses this library has one thread.
unsafe impl Sync for Room {}

impl Room {
    pub const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; MAX_MESSAGE]),
            length: UnsafeCell::new(0),
        }
    }

    /// Receives a message into it. What was in it before must not be in use any more.
    pub fn fill(
        &'static self,
        receive: impl FnOnce(&mut [u8]) -> Answer<(usize, Descriptors)>,
    ) -> Answer<(&'static [u8], Descriptors)> {
        // SAFETY: the process has one thread, and the callers are done with what was here.
        let (bytes, length) = unsafe { (&mut *self.bytes.get(), &mut *self.length.get()) };
        let (received, beside) = receive(bytes)?;
        *length = received.min(MAX_MESSAGE);
        Ok((self.kept(), beside))
    }

    /// What was received last.
    pub fn kept(&'static self) -> &'static [u8] {
        // SAFETY: the process has one thread, and what is here changes only by `fill`.
        let (bytes, length) = unsafe { (&*self.bytes.get(), *self.length.get()) };
        &bytes[..length]
    }
}

/// Ranges of pages that a forked process is known to want.
pub struct Wanted {
    ranges: UnsafeCell<[(usize, usize); MOST_RANGES]>,
    count: UnsafeCell<usize>,
}

const MOST_RANGES: usize = 1024;

// SAFETY: a process that uses this library has one thread.
unsafe impl Sync for Wanted {}

/// What is wanted of a page.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Read = 22,
    Write = 23,
}

impl Wanted {
    pub const fn new() -> Self {
        Self {
            ranges: UnsafeCell::new([(0, 0); MOST_RANGES]),
            count: UnsafeCell::new(0),
        }
    }

    /// Keeps addresses and lengths, eight bytes each. Those beyond the room are left out.
    pub fn keep(&self, encoded: &[u8]) {
        // SAFETY: the process has one thread, and nothing refers to the ranges outside of this type.
        let (ranges, count) = unsafe { (&mut *self.ranges.get(), &mut *self.count.get()) };
        *count = 0;
        for (place, pair) in ranges.iter_mut().zip(encoded.chunks_exact(16)) {
            let word = |half: &[u8]| half.try_into().map_or(0, usize::from_ne_bytes);
            *place = (word(&pair[..8]), word(&pair[8..]));
            *count += 1;
        }
    }

    /// Makes the pages present: for each of them a call costs less than the fault that it spares.
    pub fn fetch(&self, access: Access) {
        // SAFETY: the process has one thread, and nothing changes the ranges meanwhile.
        let (ranges, count) = unsafe { (&*self.ranges.get(), *self.count.get()) };
        for (address, length) in &ranges[..count] {
            // SAFETY: the advice changes no contents, and refuses addresses that are not mapped.
            let done = unsafe { call(number::MADVISE, [*address, *length, access as usize]) };
            // Linux 5.14; before it each page comes when it is touched.
            if done == Err(super::EINVAL) {
                return;
            }
        }
    }
}
