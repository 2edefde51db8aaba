//! Bytecode for interpreters whose libraries have none: whether it is missing, the words that a compile in a sandbox
//! hands back, and the store that all sandboxes of a user share.
//!
//! Nothing here runs an interpreter: `session` does, in a sandbox. What comes back from there is bytes, which may become
//! files below one directory of the store and nothing else.

mod archive;
mod find;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod store;

pub use archive::{Part, UnpackError};
pub use find::{Library, has_own_bytecode, lacks_bytecode};
pub use store::{Building, Store};

/// Where a sandbox sees it: the value of `PYTHONPYCACHEPREFIX`.
pub const PLACE: &str = "/opt/stepbox/bytecode";
/// Where a session has its installed packages.
pub use crate::spec::DEPS;
/// The names of the variable.
pub const VARIABLE: &str = "PYTHONPYCACHEPREFIX";
/// Prints what it compiled, for [`Part::unpack`].
pub const COMPILER: &str = include_str!("compile.py");
