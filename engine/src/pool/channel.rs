//! A datagram socket in the runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::{datagram, readiness};

/// One end of a [`datagram::pair`]. Waiting for a message can be cancelled without losing one.
#[derive(Debug)]
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket: readiness::watch(socket, Interest::READABLE)?,
        })
    }

    /// Whether the other end is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(self.socket.get_ref(), PollFlags::empty())];
        let at_once = Timespec::default();
        // A hang-up is told whether it was asked for or not.
        poll(&mut polled, Some(&at_once)).is_ok_and(|found| found > 0)
    }

    pub async fn send<M: Serialize>(
        &self,
        message: &M,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        match datagram::send(self.socket.get_ref().as_fd(), message, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        // Watched for room only while there is none: each message that the other end takes would wake the runtime.
        let full = readiness::watch(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        full.async_io(Interest::WRITABLE, |socket| {
            datagram::send(socket.as_fd(), message, descriptors)
        })
        .await
    }

    /// `None`: the other end is gone.
    pub async fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        self.socket
            .async_io(Interest::READABLE, |socket| {
                datagram::receive(socket.as_fd())
            })
            .await
    }

    /// Says that nothing more will be sent: the other end receives `None`, and can still answer.
    pub fn finish(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(
            self.socket.get_ref(),
            rustix::net::Shutdown::Write,
        )?)
    }

    /// A message that is there already.
    pub fn receive_now<M: DeserializeOwned>(&self) -> Option<(M, Vec<OwnedFd>)> {
        datagram::receive(self.socket.as_fd()).ok().flatten()
    }
}
