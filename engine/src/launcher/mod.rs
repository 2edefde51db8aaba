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
pub mod realm;
pub mod scratch;
pub mod spawner;

pub use host::main;
