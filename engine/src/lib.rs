//! The stepbox engine: Linux sandboxes for code that an agent wrote, served over gRPC.
//!
//! The rooms, and which may know which, are in this crate's `README.md`; `tests/rooms.rs` keeps them apart.

pub mod api;
pub mod bytecode;
pub mod cli;
pub mod config;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod kernel;
pub mod launcher;
pub mod outcome;
pub mod pool;
pub mod sandbox;
pub mod session;
pub mod spec;
pub mod supervise;
pub mod sys;
pub mod telemetry;
pub mod volume;
pub mod workspace;

/// The version that engine, protocol and client carry together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
