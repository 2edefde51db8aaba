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
    dropped: u64,
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
            Err(mpsc::error::TrySendError::Full(_)) => self.dropped += data.len() as u64,
            Err(mpsc::error::TrySendError::Closed(_)) => listeners.events = None,
        }
    }

    pub(super) fn finish(self) -> Output {
        self.capture.finish()
    }
}
