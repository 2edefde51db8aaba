//! One output stream of a step: a pipe that is read as fast as the code writes, whoever listens.

use std::io;
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::capture::Capture;
use crate::outcome::{Output, StepEvent};

/// Bytes read at once: a pipe's whole buffer.
const CHUNK: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Stream {
    stdout: bool,
    /// None at end of file.
    pipe: Option<Receiver>,
    capture: Capture,
    /// Bytes that no listener was told of, since the last that was.
    dropped: u64,
    /// All bytes that no listener was told of.
    lost: u64,
}

/// Where live output goes.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) events: Option<mpsc::Sender<StepEvent>>,
    pub(super) sequence: u64,
}

impl Stream {
    pub(super) fn new(stdout: bool, pipe: OwnedFd, cap: u64) -> io::Result<Self> {
        Ok(Self {
            stdout,
            pipe: Some(Receiver::from_owned_fd(pipe)?),
            capture: Capture::new(cap),
            dropped: 0,
            lost: 0,
        })
    }

    /// Waits until there is something to read. Can be cancelled.
    pub(super) async fn readable(&self) {
        match &self.pipe {
            Some(pipe) => {
                // An error shows at the read that follows.
                let _ = pipe.readable().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Reads what is there, at most one chunk. False: nothing is there.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>, listeners: &mut Listeners) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };
        buffer.resize(CHUNK, 0);
        match pipe.try_read(buffer) {
            Ok(0) => {
                self.pipe = None;
                false
            }
            Ok(read) => {
                self.capture.push(&buffer[..read]);
                self.publish(&buffer[..read], listeners);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.pipe = None;
                false
            }
        }
    }

    /// Takes what the pipe holds once the code is gone. The runtime may not know yet that there is something, so the
    /// kernel is asked. No more than a pipe's capacity is taken: another sandbox of the session may have been handed
    /// the other end, and may write for ever.
    pub(super) fn drain(&mut self, buffer: &mut Vec<u8>, listeners: &mut Listeners) {
        let Some(pipe) = self.pipe.take() else {
            return;
        };
        let mut rest = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(CHUNK);
        while rest > 0 {
            buffer.resize(CHUNK.min(rest), 0);
            match rustix::io::retry_on_intr(|| rustix::io::read(&pipe, buffer.as_mut_slice())) {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    self.capture.push(&buffer[..read]);
                    self.publish(&buffer[..read], listeners);
                    rest -= read;
                }
            }
        }
    }

    /// A listener that is slower than the code loses chunks and is told how many bytes; the code is never slowed down.
    fn publish(&mut self, data: &[u8], listeners: &mut Listeners) {
        let Some(events) = &listeners.events else {
            return;
        };
        let event = StepEvent::Output {
            stdout: self.stdout,
            sequence: listeners.sequence,
            data: data.to_vec(),
            dropped: self.dropped,
        };
        match events.try_send(event) {
            Ok(()) => {
                listeners.sequence += 1;
                self.dropped = 0;
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.dropped += data.len() as u64;
                self.lost += data.len() as u64;
            }
            Err(mpsc::error::TrySendError::Closed(_)) => listeners.events = None,
        }
    }

    /// Bytes that a listener that was slower than the code did not get.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn finish(self) -> Output {
        self.capture.finish()
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn nobody() -> Listeners {
        Listeners {
            events: None,
            sequence: 0,
        }
    }

    #[tokio::test]
    async fn what_was_written_is_taken_though_the_runtime_has_not_heard_of_it() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let mut stream = Stream::new(true, read, 100).expect("a stream");
        // The runtime learns of it at the next await, and there is none.
        rustix::io::write(&write, b"last words").expect("written");
        stream.drain(&mut Vec::new(), &mut nobody());
        assert_eq!(stream.finish().kept, b"last words");
    }

    #[tokio::test]
    async fn a_writer_that_outlives_the_step_cannot_hold_it_up() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let mut stream = Stream::new(true, read, 100).expect("a stream");
        let flood = std::thread::spawn(move || {
            let block = [b'F'; CHUNK];
            let mut written = 0;
            while let Ok(more) = rustix::io::write(&write, &block) {
                written += more;
            }
            written
        });
        stream.drain(&mut Vec::new(), &mut nobody());
        let total = stream.finish().total;
        let written = flood.join().expect("the pipe's other end closed");
        assert!(total <= written as u64);
    }
}
