//! The processes that make sandboxes. The *launcher* is executed from this same binary before any thread exists, and
//! never has one. It sees the host's mounts; what it forks does not:
//!
//! ```text
//! engine ── launcher ── realm (pid 1 of a pid namespace) ─┬─ spawner ── init of a sandbox ── the code
//!                                                         ├─ keeper (the workspace of one session)
//!                                                         └─ template ── sub-template of a slot
//! ```
//!
//! Whichever of engine and launcher survives the other removes what both made.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod host;
mod itself;
pub mod keeper;
pub mod message;
pub mod owners;
pub mod realm;
pub mod scratch;
pub mod spawner;
mod subordinate;
mod template;
mod volumes;

pub use itself::ALONE;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use crate::sandbox::plan::StepError;
use crate::sys::datagram;
use crate::sys::exec::exit_now;

/// The life of a launcher whose socket is stdin; `words` are the arguments after the command's name. To be called before
/// any thread exists.
///
/// It runs in two lives: the first leaves the host's namespaces and executes the second from a read-only mount of this
/// program, so that what a sandbox finds at `/proc/self/exe` before its own program runs cannot be written to.
pub fn main(words: &[OsString]) -> ! {
    // Only what process lists show.
    let _ = rustix::thread::set_name(c"stepbox");
    let ended = match itself::mode_of(words) {
        Some((mode, alone)) => {
            take_stdin().map(|engine| (host::live(&engine, mode, alone), engine))
        }
        None => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
            .map_err(std::io::Error::from)
            .map(|engine| (first_life(words.iter().any(|word| word == ALONE)), engine)),
    };
    match ended {
        Ok((Ok(()), _)) => exit_now(0),
        Ok((Err(error), engine)) => {
            let refused: Result<message::Ready, StepError> = Err(error);
            // A peer that is gone needs no telling.
            let _ = datagram::send(engine.as_fd(), &refused, &[]);
            exit_now(1)
        }
        Err(_) => exit_now(1),
    }
}

fn first_life(alone: bool) -> Result<(), StepError> {
    let mode = if alone {
        host::stay()?
    } else {
        host::enter_namespaces()?
    };
    Err(itself::execute(mode, alone))
}

/// Stdin becomes `/dev/null`, as the other streams are: what is forked from here inherits three streams to nowhere.
fn take_stdin() -> std::io::Result<OwnedFd> {
    use rustix::fs::{CWD, OFlags, openat};
    let engine = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(engine)
}
