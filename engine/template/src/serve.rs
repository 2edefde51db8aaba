//! The life of a template and of its sub-templates: they fork, and never run what is not theirs.

use crate::child;
use crate::message::{Filters, Order, Place, Setup, Word};
use crate::python::{self, Object};
use crate::sys::memory::{Access, Room, Wanted};
use crate::sys::process::{self, Forked, exit};
use crate::sys::socket::{self, Descriptors};
use crate::sys::{
    Answer, EINVAL, Errno, Fd, close, close_range, discard, duplicate, open, wait_readable,
    write_all,
};

/// Where the socket of a template or a sub-template is.
const SOCKET: Fd = Fd(3);

/// The pid namespace that the template is in.
pub const OWN_PROCESSES: Fd = Fd(5);

/// Memory for one message at a time.
static ROOM: Room = Room::new();
/// What the template was told first.
static SETUP: Room = Room::new();

/// The pages that a step writes to, and those that it reads, as a trial has shown.
pub static WRITTEN: Wanted = Wanted::new();
pub static READ: Wanted = Wanted::new();

/// The filters that the template was told.
pub fn filters() -> Option<Filters<'static>> {
    Some(Setup::read(SETUP.kept())?.filters)
}

/// The next message; what was received before is gone.
pub fn receive(socket: Fd) -> Answer<(&'static [u8], Descriptors)> {
    ROOM.fill(|room| socket::receive(socket, room))
}

pub fn tell(socket: Fd, word: Word, beside: Option<Fd>) -> Answer<()> {
    let (bytes, length) = word.encode();
    socket::send(socket, &bytes[..length], beside)
}

/// Says why there is no template, and ends it. The text is for people.
pub fn refuse(text: &[u8]) -> ! {
    let mut room = [0; 1024];
    let length = text.len().min(1000);
    // A `Refused` of a string of below 16384 bytes.
    room[0] = 3;
    room[1] = (length as u8) | 0x80;
    room[2] = (length >> 7) as u8;
    room[3..3 + length].copy_from_slice(&text[..length]);
    let _ = socket::send(SOCKET, &room[..3 + length], None);
    exit(1);
}

/// Takes the socket to its place, closes all else, and hears what to import and the variables of most steps.
pub fn begin(socket: u32) -> Object {
    match prepare(Fd(socket)) {
        Ok(setup) => python::tuple([
            python::list(setup.preload.count, setup.preload.iter().map(python::bytes)),
            child::pairs(setup.environment),
        ]),
        Err(_) => python::fail(c"the template could not be set up"),
    }
}

fn prepare(socket: Fd) -> Answer<Setup<'static>> {
    duplicate(socket, SOCKET.0, true)?;
    process::set_dumpable(false)?;
    // What a library executes while it is imported has no right to enter sandboxes.
    process::keep_capabilities_here()?;
    SETUP.fill(|room| socket::receive(SOCKET, room))?;
    settle()?;
    Setup::read(SETUP.kept()).ok_or(EINVAL)
}

/// Leaves a template, or a sub-template, its socket and what it waits with.
fn settle() -> Answer<()> {
    close_range(SOCKET.0 + 1, u32::MAX)?;
    let children = process::child_descriptor()?;
    duplicate(children, CHILDREN.0, true)?;
    let own = open(None, c"/proc/self/ns/pid", 0, 0)?;
    duplicate(own, OWN_PROCESSES.0, true)?;
    close_range(OWN_PROCESSES.0 + 1, u32::MAX)
}

/// Serves the engine, which is told how many KiB this process holds. Comes back in a process that was forked into a sandbox, which then owns nothing of the template's;
/// everything else ends here.
pub fn serve(memory: u32) -> Object {
    if tell(SOCKET, Word::Ready(memory), None).is_err() {
        exit(1);
    }
    loop {
        let (order, beside) = match next() {
            Ok(Some(found)) => found,
            Ok(None) => exit(0),
            Err(_) => exit(1),
        };
        match obey(order, &beside) {
            Ok(Served::Parent) => {}
            // What was beside the order is closed.
            Ok(Served::Branch) => continue,
            Ok(Served::Sandbox(object)) => return object,
            Err((place, errno)) => {
                let failed = Word::Failed {
                    place,
                    errno: errno.0,
                };
                if tell(SOCKET, failed, None).is_err() {
                    exit(1);
                }
            }
        }
        for fd in beside.iter() {
            close(fd);
        }
    }
}

/// The next order; nobody's death waits for it.
fn next() -> Answer<Option<(&'static [u8], Descriptors)>> {
    loop {
        let [asked, died] = wait_readable([SOCKET, CHILDREN])?;
        if died {
            let _ = discard(CHILDREN);
            process::reap();
        }
        if asked {
            let (bytes, beside) = receive(SOCKET)?;
            return Ok((!bytes.is_empty()).then_some((bytes, beside)));
        }
    }
}

/// Where the descriptor is that tells of the end of children.
const CHILDREN: Fd = Fd(4);

enum Served {
    Parent,
    /// This is the new sub-template.
    Branch,
    /// This is the forked process, and this is what its code in the interpreter is given.
    Sandbox(Object),
}

fn obey(order: &[u8], beside: &Descriptors) -> Result<Served, (Place, Errno)> {
    match Order::read(order).ok_or((Place::Read, EINVAL))? {
        Order::Branch => branch(beside),
        Order::Fork(fork) => {
            python::before_fork();
            match child::fork(&fork, beside) {
                Ok(Forked::Parent) => {
                    python::after_fork_in_parent();
                    Ok(Served::Parent)
                }
                Ok(Forked::Child) => {
                    WRITTEN.fetch(Access::Write);
                    READ.fetch(Access::Read);
                    python::after_fork_in_child();
                    Ok(Served::Sandbox(child::settle(&fork)))
                }
                Err(errno) => {
                    python::after_fork_in_parent();
                    Err((Place::Enter, errno))
                }
            }
        }
    }
}

/// Forks a sub-template, which joins the cgroups of its slot.
fn branch(beside: &Descriptors) -> Result<Served, (Place, Errno)> {
    let socket = beside.iter().next().ok_or((Place::Read, EINVAL))?;
    python::before_fork();
    let forked = process::fork_child();
    match forked {
        Ok(Forked::Parent) => {
            python::after_fork_in_parent();
            Ok(Served::Parent)
        }
        Ok(Forked::Child) => {
            python::after_fork_in_child();
            if let Err((place, errno)) = settle_branch(socket, beside) {
                let failed = Word::Failed {
                    place,
                    errno: errno.0,
                };
                let _ = tell(socket, failed, None);
                exit(1);
            }
            Ok(Served::Branch)
        }
        Err(errno) => {
            python::after_fork_in_parent();
            Err((Place::Fork, errno))
        }
    }
}

fn settle_branch(socket: Fd, beside: &Descriptors) -> Result<(), (Place, Errno)> {
    for procs in beside.iter().skip(1) {
        write_all(procs, b"0").map_err(|errno| (Place::Join, errno))?;
    }
    process::new_keyring();
    let settled = duplicate(socket, SOCKET.0, true).and_then(|_| settle());
    settled.map_err(|errno| (Place::Fork, errno))?;
    tell(SOCKET, Word::Ready(0), None).map_err(|errno| (Place::Fork, errno))
}

/// Ends the way into a sandbox.
pub fn give_up(control: Fd, place: Place, errno: Errno) -> ! {
    let failed = Word::Failed {
        place,
        errno: errno.0,
    };
    let _ = tell(control, failed, None);
    exit(1);
}
