//! Messages with descriptors beside them.

use super::call::{call, number};
use super::{Answer, EINTR, Fd};

/// The most descriptors that a message brings.
pub const MAX_DESCRIPTORS: usize = 16;
/// The longest message; what is longer comes in a memfd beside it.
pub const MAX_MESSAGE: usize = 32 * 1024;

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const NOSIGNAL: usize = 0x4000;
const CMSG_CLOEXEC: usize = 0x4000_0000;
const HEADER: usize = size_of::<usize>() + 2 * size_of::<u32>();

#[repr(C)]
struct Vector {
    base: *mut u8,
    length: usize,
}

#[repr(C)]
struct Header {
    name: *mut u8,
    name_length: u32,
    vectors: *mut Vector,
    vector_count: usize,
    control: *mut Control,
    control_length: usize,
    flags: u32,
}

#[repr(C)]
struct Control {
    length: usize,
    level: u32,
    kind: u32,
    descriptors: [u32; MAX_DESCRIPTORS],
}

impl Control {
    const EMPTY: Self = Self {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [0; MAX_DESCRIPTORS],
    };
}

/// Descriptors that came beside a message.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    numbers: [u32; MAX_DESCRIPTORS],
    count: usize,
}

impl Descriptors {
    pub fn iter(&self) -> impl Iterator<Item = Fd> + '_ {
        self.numbers[..self.count].iter().map(|number| Fd(*number))
    }
}

/// Receives one message into `room`; gives its length and what came beside it. 0: the other end is gone.
pub fn receive(socket: Fd, room: &mut [u8]) -> Answer<(usize, Descriptors)> {
    let mut control = Control::EMPTY;
    let mut vector = Vector {
        base: room.as_mut_ptr(),
        length: room.len(),
    };
    let mut header = Header {
        name: core::ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        vector_count: 1,
        control: &raw mut control,
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let received = loop {
        // SAFETY: the header names one vector and one control buffer, both live and of the lengths told.
        let received = unsafe {
            call(
                number::RECVMSG,
                [socket.0 as usize, &raw mut header as usize, CMSG_CLOEXEC],
            )
        };
        match received {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Descriptors {
        numbers: [0; MAX_DESCRIPTORS],
        count: 0,
    };
    if header.control_length >= HEADER && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS)
    {
        let bytes = control.length.saturating_sub(HEADER);
        descriptors.count = (bytes / size_of::<u32>()).min(MAX_DESCRIPTORS);
        descriptors.numbers = control.descriptors;
    }
    Ok((received, descriptors))
}

/// Sends one message, with `beside` if it is given.
pub fn send(socket: Fd, bytes: &[u8], beside: Option<Fd>) -> Answer<()> {
    let mut control = Control::EMPTY;
    let mut control_length = 0;
    if let Some(fd) = beside {
        control.length = HEADER + size_of::<u32>();
        (control.level, control.kind) = (SOL_SOCKET, SCM_RIGHTS);
        control.descriptors[0] = fd.0;
        control_length = HEADER + size_of::<usize>();
    }
    let mut vector = Vector {
        base: bytes.as_ptr().cast_mut(),
        length: bytes.len(),
    };
    let header = Header {
        name: core::ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        vector_count: 1,
        control: &raw mut control,
        control_length,
        flags: 0,
    };
    loop {
        // SAFETY: the header names one vector and one control buffer, both live and of the lengths told; the kernel
        // only reads them.
        let sent = unsafe {
            call(
                number::SENDMSG,
                [socket.0 as usize, &raw const header as usize, NOSIGNAL],
            )
        };
        match sent {
            Err(EINTR) => {}
            other => return other.map(drop),
        }
    }
}
