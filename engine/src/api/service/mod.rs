//! The RPCs: each converts, calls the engine, and converts back.

mod kernel;
mod sandbox;
mod search;
mod step;
mod stream;

pub use sandbox::SandboxService;
