//! Memory that is there before it is needed: a page that is touched for the first time after a fork is one to be copied.

use core::cell::UnsafeCell;

use super::Answer;
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
