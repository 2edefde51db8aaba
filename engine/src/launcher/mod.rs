//! The processes that make sandboxes. The *launcher* is executed from this same binary before any thread exists, and
//! never has one. It sees the host's mounts; what it forks does not:
//!
//! ```text
//! engine ── launcher ── realm (pid 1 of a pid namespace) ─┬─ spawner ── init of a sandbox ── the code
//!                                                         └─ keeper (the workspace of one session)
//! ```
//!
//! Whichever of engine and launcher survives the other removes what both made.

pub mod host;
pub mod keeper;
pub mod message;
pub mod owners;
pub mod realm;
pub mod scratch;
pub mod spawner;

pub use host::main;

/// The life of a launcher whose socket is stdin. To be called before any thread exists.
pub fn main_on_stdin() -> ! {
    // Only what process lists show.
    let _ = rustix::thread::set_name(c"stepbox");
    match take_stdin() {
        Ok(engine) => main(&engine),
        Err(_) => crate::sys::exec::exit_now(1),
    }
}

/// Stdin becomes `/dev/null`, as the other streams are: what is forked from here inherits three streams to nowhere.
fn take_stdin() -> std::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let engine = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(engine)
}
