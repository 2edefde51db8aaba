//! One output stream of a step: a pipe that is read as fast as the code writes, whoever listens.

use std::io;
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::capture::Capture;
use crate::outcome::{Output, StepEvent};

/// Bytes read at once: a pipe's whole buffer.
const CHUNK: usize = 64 * 1024;

/// Bytes of a stream that wait for listeners at most.
const WAITING_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Stream {
    stdout: bool,
    /// None at end of file.
    pipe: Option<Receiver>,
    capture: Capture,
    /// Output that the listeners have no room for yet.
    waiting: Vec<u8>,
    /// Bytes that were left out before what waits, and after it.
    dropped: u64,
    dropped_since: u64,
    /// All bytes that no listener was told of.
    lost: u64,
}

/// Who is told while a step runs.
#[derive(Debug)]
pub struct Events {
    pub sender: mpsc::Sender<StepEvent>,
    /// Slow listeners slow the code down, as a pipe does: nothing is left out. Else the code is never slowed down, and
    /// what they have no room for is counted.
    pub paced: bool,
}

/// Where live output goes.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) events: Option<mpsc::Sender<StepEvent>>,
    pub(crate) paced: bool,
    pub(crate) sequence: u64,
}

impl Listeners {
    pub(crate) fn new(events: Option<Events>) -> Self {
        let paced = events.as_ref().is_some_and(|events| events.paced);
        Self {
            events: events.map(|events| events.sender),
            paced,
            sequence: 0,
        }
    }

    /// As they were given, where nothing was told.
    pub(crate) fn give_back(&mut self) -> Option<Events> {
        let paced = self.paced;
        let sender = self.events.take();
        sender.map(|sender| Events { sender, paced })
    }

    /// Waits until there is room for an event, or nobody listens any more.
    pub(crate) async fn room(&self) {
        match &self.events {
            Some(events) => drop(events.reserve().await),
            None => std::future::pending().await,
        }
    }
}

impl Stream {
    pub(crate) fn new(stdout: bool, pipe: OwnedFd, cap: u64) -> io::Result<Self> {
        Ok(Self {
            stdout,
            pipe: Some(Receiver::from_owned_fd(pipe)?),
            capture: Capture::new(cap),
            waiting: Vec::new(),
            dropped: 0,
            dropped_since: 0,
            lost: 0,
        })
    }

    /// Waits until there is something to read. Can be cancelled.
    pub(crate) async fn readable(&self) {
        match &self.pipe {
            Some(pipe) => {
                // An error shows at the read that follows.
                let _ = pipe.readable().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Reads what is there, at most one chunk. False: nothing is there.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>, listeners: &mut Listeners) -> bool {
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
    pub(crate) fn drain(&mut self, buffer: &mut Vec<u8>, listeners: &mut Listeners) {
        if let Some(pipe) = self.pipe.take() {
            self.take(&pipe, buffer, listeners);
        }
    }

    fn take(&mut self, pipe: &Receiver, buffer: &mut Vec<u8>, listeners: &mut Listeners) {
        let mut rest = rustix::pipe::fcntl_getpipe_size(pipe).unwrap_or(CHUNK);
        while rest > 0 {
            buffer.resize(CHUNK.min(rest), 0);
            match rustix::io::retry_on_intr(|| rustix::io::read(pipe, buffer.as_mut_slice())) {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    self.capture.push(&buffer[..read]);
                    self.publish(&buffer[..read], listeners);
                    rest -= read;
                }
            }
        }
    }

    /// Takes what the pipe holds now, and no more than it can hold, while the code lives on.
    pub(crate) fn catch_up(&mut self, buffer: &mut Vec<u8>, listeners: &mut Listeners) {
        let Some(pipe) = self.pipe.take() else {
            return;
        };
        self.take(&pipe, buffer, listeners);
        self.pipe = Some(pipe);
    }

    /// The pipe, if somebody may still write to it.
    pub(crate) fn take_pipe(&mut self) -> Option<Receiver> {
        self.pipe.take()
    }

    /// Ends what was kept so far, and begins anew.
    pub(crate) fn cut(&mut self, cap: u64) -> Output {
        self.lost = 0;
        self.waiting.clear();
        (self.dropped, self.dropped_since) = (0, 0);
        std::mem::replace(&mut self.capture, Capture::new(cap)).finish()
    }

    /// Whether the code is to wait until its listener has taken what there is.
    pub(crate) const fn is_held(&self, listeners: &Listeners) -> bool {
        listeners.paced && listeners.events.is_some() && self.waits()
    }

    /// Output waits, up to a bound, for listeners that are slower than the code; past it they lose it and are told how many
    /// bytes. Those that pace the code lose nothing: no more is read while something waits.
    fn publish(&mut self, data: &[u8], listeners: &mut Listeners) {
        if listeners.events.is_none() {
            return;
        }
        let room = self.waiting.len() + data.len() <= WAITING_MAX;
        if self.dropped_since == 0 && (room || listeners.paced) {
            self.waiting.extend_from_slice(data);
        } else {
            self.dropped_since += data.len() as u64;
            self.lost += data.len() as u64;
        }
        self.flush(listeners);
    }

    /// Whether output waits for a listener.
    pub(crate) const fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands on what waits, if there is room.
    pub(crate) fn flush(&mut self, listeners: &mut Listeners) {
        let Some(events) = &listeners.events else {
            return;
        };
        if self.waiting.is_empty() {
            return;
        }
        let closed = match events.try_reserve() {
            Ok(room) => {
                room.send(StepEvent::Output {
                    stdout: self.stdout,
                    sequence: listeners.sequence,
                    data: std::mem::take(&mut self.waiting),
                    dropped: self.dropped,
                });
                listeners.sequence += 1;
                self.dropped = std::mem::take(&mut self.dropped_since);
                false
            }
            Err(mpsc::error::TrySendError::Full(())) => false,
            Err(mpsc::error::TrySendError::Closed(())) => true,
        };
        if closed {
            listeners.events = None;
        }
    }

    /// Takes what still waits, as the event that tells of it.
    pub(crate) fn last_event(&mut self, listeners: &mut Listeners) -> Option<StepEvent> {
        if self.waiting.is_empty() {
            return None;
        }
        listeners.sequence += 1;
        Some(StepEvent::Output {
            stdout: self.stdout,
            sequence: listeners.sequence - 1,
            data: std::mem::take(&mut self.waiting),
            dropped: std::mem::replace(&mut self.dropped, std::mem::take(&mut self.dropped_since)),
        })
    }

    /// Bytes that a listener that was slower than the code did not get.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.waiting.len() as u64
    }

    pub(crate) fn finish(self) -> Output {
        self.capture.finish()
    }
}

/// Waits until one of the streams can be read, and may be.
pub(crate) async fn either(one: &Stream, other: &Stream, listeners: &Listeners) {
    tokio::select! {
        () = one.readable(), if !one.is_held(listeners) => {}
        () = other.readable(), if !other.is_held(listeners) => {}
        else => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn nobody() -> Listeners {
        Listeners {
            events: None,
            paced: false,
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
    async fn output_waits_for_a_slow_listener_and_past_the_bound_is_counted() {
        let (read, _write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let mut stream = Stream::new(true, read, 100).expect("a stream");
        let (sender, mut receiver) = mpsc::channel(1);
        let mut listeners = Listeners {
            events: Some(sender),
            paced: false,
            sequence: 0,
        };
        for piece in [b"a", b"b", b"c"] {
            stream.publish(piece, &mut listeners);
        }
        stream.publish(&vec![b'x'; WAITING_MAX], &mut listeners);
        let mut heard = Vec::new();
        while let Ok(StepEvent::Output {
            sequence,
            data,
            dropped,
            ..
        }) = receiver.try_recv()
        {
            heard.push((sequence, data, dropped));
            stream.flush(&mut listeners);
        }
        assert_eq!(heard, [(0, b"a".to_vec(), 0), (1, b"bc".to_vec(), 0)]);
        assert_eq!(stream.lost(), WAITING_MAX as u64);
        stream.publish(b"d", &mut listeners);
        let next = receiver.try_recv().expect("there is room again");
        assert!(matches!(next, StepEvent::Output { dropped, .. } if dropped == WAITING_MAX as u64));
    }

    #[tokio::test]
    async fn a_listener_that_paces_the_code_loses_nothing_and_holds_it() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let mut stream = Stream::new(true, read, 100).expect("a stream");
        let (sender, mut receiver) = mpsc::channel(1);
        let mut listeners = Listeners::new(Some(Events {
            sender,
            paced: true,
        }));
        stream.publish(b"first", &mut listeners);
        assert!(!stream.is_held(&listeners));
        stream.publish(&vec![b'x'; 2 * WAITING_MAX], &mut listeners);
        assert!(stream.is_held(&listeners));
        assert!(
            matches!(receiver.try_recv(), Ok(StepEvent::Output { data, .. }) if data == b"first")
        );
        stream.flush(&mut listeners);
        assert!(!stream.is_held(&listeners));
        assert!(
            matches!(receiver.try_recv(), Ok(StepEvent::Output { data, .. }) if data.len() == 2 * WAITING_MAX)
        );
        assert_eq!(stream.lost(), 0);
        // One that is gone holds nothing.
        stream.publish(b"a", &mut listeners);
        stream.publish(b"b", &mut listeners);
        drop(receiver);
        stream.flush(&mut listeners);
        assert!(!stream.is_held(&listeners));
        drop(write);
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
