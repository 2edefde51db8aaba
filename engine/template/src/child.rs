//! From the fork to the code's first instruction, in a sandbox that was made ahead.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::message::{Fork, Go, Place, Request, Strings, Word};
use crate::python::{self, Object};
use crate::results;
use crate::serve::{OWN_PROCESSES, filters, give_up, receive, tell};
use crate::sys::holder::hold;
use crate::sys::process::{self, Forked, Limit, exit};
use crate::sys::socket::Descriptors;
use crate::sys::{
    Answer, EINVAL, Errno, Fd, O_CREAT, O_EXCL, O_WRONLY, chdir, close, close_range, duplicate,
    map, open, size, unmap, write_all,
};

/// Where the socket to the engine and the code's file are while the process waits. At first there is the directory for
/// that file.
const CONTROL: Fd = Fd(3);
const CODE: Fd = Fd(4);
/// The rules of the fence, until it is put up.
const RULES: Fd = Fd(5);

/// The name of the code's file.
const SCRIPT: &CStr = c"main.py";

/// What comes beside an order to fork, in this order; then, where there are some, the user namespace, the rules of the
/// fence and the leaf.
struct Beside {
    control: Fd,
    /// Memory for what the code shows.
    board: Fd,
    code: Fd,
    processes: Fd,
    network: Fd,
    mounts: Fd,
    ipc: Fd,
    names: Fd,
    cgroups: Fd,
    users: Option<Fd>,
    rules: Option<Fd>,
    leaf: Option<Fd>,
}

impl Beside {
    fn take(fork: &Fork<'_>, descriptors: &Descriptors) -> Option<Self> {
        let mut all = descriptors.iter();
        let mut next = || all.next();
        Some(Self {
            control: next()?,
            board: next()?,
            code: next()?,
            processes: next()?,
            network: next()?,
            mounts: next()?,
            ipc: next()?,
            names: next()?,
            cgroups: next()?,
            users: if fork.users { Some(next()?) } else { None },
            rules: match fork.fence {
                Some(_) => Some(next()?),
                None => None,
            },
            leaf: if fork.leaf { Some(next()?) } else { None },
        })
    }

    /// The network first: it is owned by the user namespace that is left after it.
    fn enter(&self) -> Answer<()> {
        process::enter(self.network)?;
        if let Some(users) = self.users {
            process::enter(users)?;
        }
        for namespace in [self.ipc, self.names, self.cgroups, self.mounts] {
            process::enter(namespace)?;
        }
        Ok(())
    }
}

/// Forks into the sandbox. The child is a child of the sandbox's init.
pub fn fork(fork: &Fork<'_>, descriptors: &Descriptors) -> Answer<Forked> {
    let beside = Beside::take(fork, descriptors).ok_or(EINVAL)?;
    process::enter(beside.processes)?;
    let forked = process::fork_as_orphan(beside.leaf, || beside.enter());
    match forked {
        Ok(Forked::Child) => {
            let placed = place(&beside);
            if let Err(errno) = placed {
                give_up(beside.control, Place::Enter, errno);
            }
            forked
        }
        _ => {
            process::enter(OWN_PROCESSES)?;
            forked
        }
    }
}

/// Whether the code may not change its affinity.
static PINNED: AtomicBool = AtomicBool::new(false);

/// Leaves this process two or three descriptors and three streams to nowhere.
fn place(beside: &Beside) -> Answer<()> {
    results::attach(beside.board)?;
    // Each number may be in use by another. These are in use by nobody, and the table need not grow for them.
    let (control, code) = (
        duplicate(beside.control, 32, true)?,
        duplicate(beside.code, 33, true)?,
    );
    let rules = match beside.rules {
        Some(rules) => Some(duplicate(rules, 34, true)?),
        None => None,
    };
    duplicate(control, CONTROL.0, true)?;
    duplicate(code, CODE.0, true)?;
    let mut last = CODE;
    if let Some(rules) = rules {
        last = duplicate(rules, RULES.0, true)?;
    }
    close_range(last.0 + 1, u32::MAX)
}

/// Gives up what code must not have. Gives the interpreter's side the environment to expect.
pub fn settle(fork: &Fork<'_>) -> Object {
    PINNED.store(fork.pinned, Ordering::Relaxed);
    if let Err((place, errno)) = fall(fork) {
        give_up(CONTROL, place, errno)
    }
    pairs(fork.environment)
}

fn fall(fork: &Fork<'_>) -> Result<(), (Place, Errno)> {
    let at = |place| move |errno| (place, errno);
    process::restart_sequences();
    process::set_dumpable(true).map_err(at(Place::Session))?;
    raise_oom_score().map_err(at(Place::Session))?;
    process::unblock_signals().map_err(at(Place::Session))?;
    process::new_session().map_err(at(Place::Session))?;
    process::new_keyring();
    process::umask(0o022);
    limits(fork).map_err(at(Place::Limits))?;
    process::drop_capabilities(fork.users, fork.kept).map_err(at(Place::Capabilities))?;
    make_code().map_err(at(Place::Code))?;
    if let Some(flags) = fork.fence {
        process::put_up_fence(RULES, flags).map_err(at(Place::Fence))?;
        close(RULES);
    }
    let filters = filters().ok_or((Place::Filter, EINVAL))?;
    let listener = process::load_filter(filters.step, true).map_err(at(Place::Filter))?;
    // Init can be told of this process only when it is its child.
    process::await_adoption();
    let holder = if fork.held { hold() } else { None };
    let waits = Word::Waits {
        number: process::number(),
        holder: holder.unwrap_or(0),
    };
    tell(CONTROL, waits, Some(listener)).map_err(at(Place::Filter))?;
    close(listener);
    Ok(())
}

/// Makes the file for the code while that can be done: behind the fence nothing can be made there.
fn make_code() -> Answer<()> {
    let file = open(Some(CODE), SCRIPT, O_CREAT | O_EXCL | O_WRONLY, 0o644)?;
    duplicate(file, CODE.0, true)?;
    close(file);
    Ok(())
}

fn raise_oom_score() -> Answer<()> {
    let file = open(None, c"/proc/self/oom_score_adj", O_WRONLY, 0)?;
    let written = write_all(file, b"1000");
    close(file);
    written
}

fn limits(fork: &Fork<'_>) -> Answer<()> {
    if let Some(tasks) = fork.tasks {
        // Init is one of them, and so is who holds the memory.
        let tasks = tasks.saturating_add(1 + u64::from(fork.held));
        process::lower_limit(Limit::Tasks, tasks, tasks)?;
    }
    process::lower_limit(Limit::Core, 0, 0)?;
    process::lower_limit(Limit::Descriptors, 4096, 1 << 16)
}

/// A list of names and values in turn.
pub fn pairs(strings: Strings<'_>) -> Object {
    python::list(strings.count * 2, strings.iter().map(python::bytes))
}

/// Waits for the step, and does what the code must not be able to do. Gives the interpreter's side the arguments
/// and the environment.
pub fn wait() -> Object {
    let Ok((bytes, beside)) = receive(CONTROL) else {
        exit(1);
    };
    if bytes.is_empty() {
        // No step will come.
        exit(0);
    }
    match Go::read(bytes) {
        Some(Go::Request(request)) => go(&request, &beside),
        Some(Go::Long) => long(&beside),
        None => give_up(CONTROL, Place::Read, EINVAL),
    }
}

fn long(beside: &Descriptors) -> Object {
    let found = beside
        .iter()
        .nth(3)
        .ok_or(EINVAL)
        .and_then(|fd| size(fd).and_then(|length| map(fd, length)));
    let bytes = match found {
        Ok(bytes) => bytes,
        Err(errno) => give_up(CONTROL, Place::Read, errno),
    };
    let Some(request) = Request::read(bytes) else {
        give_up(CONTROL, Place::Read, EINVAL)
    };
    let object = go(&request, beside);
    unmap(bytes);
    object
}

fn go(request: &Request<'_>, beside: &Descriptors) -> Object {
    let Some((file, source)) = request.code else {
        give_up(CONTROL, Place::Read, EINVAL)
    };
    if let Err((place, errno)) = begin(request, beside, file, source) {
        give_up(CONTROL, place, errno)
    }
    python::tuple([
        python::list(
            request.arguments.count,
            request.arguments.iter().map(python::bytes),
        ),
        pairs(request.environment),
    ])
}

fn begin(
    request: &Request<'_>,
    beside: &Descriptors,
    file: &[u8],
    source: &[u8],
) -> Result<(), (Place, Errno)> {
    let at = |place| move |errno| (place, errno);
    if file != SCRIPT.to_bytes() {
        return Err((Place::Read, EINVAL));
    }
    write_all(CODE, source).map_err(at(Place::Code))?;
    close(CODE);
    with_c_string(request.directory, chdir).map_err(at(Place::Directory))?;
    let mut streams = beside.iter();
    for target in 0..3 {
        let stream = streams.next().ok_or((Place::Streams, EINVAL))?;
        duplicate(stream, target, false).map_err(at(Place::Streams))?;
    }
    if let Some(mask) = request.affinity() {
        process::set_affinity(&mask).map_err(at(Place::Affinity))?;
    }
    if PINNED.load(Ordering::Relaxed) {
        let filters = filters().ok_or((Place::Affinity, EINVAL))?;
        process::load_filter(filters.pin, false).map_err(at(Place::Affinity))?;
    }
    tell(CONTROL, Word::Started, None).map_err(at(Place::Streams))?;
    close_range(3, u32::MAX).map_err(at(Place::Streams))
}

/// A path of at most the kernel's length.
fn with_c_string<T>(text: &[u8], body: impl FnOnce(&CStr) -> Answer<T>) -> Answer<T> {
    let mut room = [0; 4097];
    let place = room.get_mut(..text.len()).ok_or(EINVAL)?;
    place.copy_from_slice(text);
    let path = CStr::from_bytes_with_nul(&room[..=text.len()]).map_err(|_| EINVAL)?;
    body(path)
}
