//! Messages between processes: one datagram each on a `SOCK_SEQPACKET` socket, with descriptors beside it. What has no
//! bound travels in a memfd.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest datagram; a path, a few names, an error text.
pub const MAX_MESSAGE: usize = 32 * 1024;
/// The most descriptors that one message carries.
pub const MAX_DESCRIPTORS: usize = 16;

thread_local! {
    /// Kept between messages: room zeroed for each would cost more than the message does, most of all after a fork,
    /// when each page that is touched is a page to be copied.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A pair of connected sockets that keep message borders and tell when the other end is gone.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one message. A peer that is gone is `EPIPE`, without a signal.
pub fn send<M: Serialize>(
    socket: BorrowedFd<'_>,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    send_bytes(socket, &bytes, descriptors)
}

/// Sends bytes that are a message already. Does not allocate.
pub fn send_bytes(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives one message and the descriptors beside it. `None`: the other end is gone.
pub fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    ROOM.with_borrow_mut(|room| {
        room.resize(MAX_MESSAGE, 0);
        receive_into(socket, room)
    })
}

fn receive_into<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let message = postcard::from_bytes(&bytes[..received.bytes]).map_err(io::Error::other)?;
    Ok(Some((message, descriptors)))
}

/// A memfd that can be sealed and, where the kernel knows the word, never executed: a filter may allow no other.
pub fn memory_file(name: &str) -> io::Result<OwnedFd> {
    make_memory(name, rustix::fs::MemfdFlags::NOEXEC_SEAL)
}

/// A program as a sealed memfd: what is executed from it can no longer change.
pub fn program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    sealed(make_memory(name, rustix::fs::MemfdFlags::EXEC)?, bytes)
}

/// `word`: what only later kernels know.
fn make_memory(name: &str, word: rustix::fs::MemfdFlags) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let usual = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, usual | word) {
        Err(rustix::io::Errno::INVAL) => Ok(memfd_create(name, usual)?),
        made => Ok(made?),
    }
}

/// Data of any size as a sealed memfd: what is in it can no longer change.
pub fn data(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    sealed(memory_file(name)?, bytes)
}

fn sealed(fd: OwnedFd, bytes: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::SealFlags;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest))?;
        rest = &rest[written..];
    }
    rustix::fs::fcntl_add_seals(
        &fd,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(fd)
}

/// Reads all of a memfd of [`data`], from its start.
pub fn read_data(fd: impl AsFd) -> io::Result<Vec<u8>> {
    let size = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(io::Error::other)?;
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < size {
        let read =
            rustix::io::retry_on_intr(|| rustix::io::pread(&fd, &mut bytes[at..], at as u64))?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += read;
    }
    Ok(bytes)
}
