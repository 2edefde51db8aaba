//! The directory that outlives a step: what changed in it, and reading and writing beneath it.
//!
//! Everything here runs in a keeper (see `launcher`), which sees the tree and nothing else; the engine touches no
//! workspace path. The tree is hostile: any name, link, mode or race that the code can make is met here.
//!
//! File operations are methods of [`Tree`] and run with the rights of the sandbox user; looking at everything
//! ([`Tree::scan`]) and deleting everything ([`Tree::clear`]) run with the keeper's override (see [`rights`]).
//! Ruled out: following the tree by path strings of the host (a rename between check and use leads out), and
//! inotify as the source of changes (it overflows, and tells names that others have by now). It tells that there were
//! none: see [`Watch`].

use serde::{Deserialize, Serialize};

mod beneath;
mod contents;
mod diff;
mod edit;
mod error;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod known;
mod measure;
pub mod ownership;
mod path;
mod removal;
pub mod rights;
pub mod risk;
mod scan;
mod search;
mod snapshot;
pub mod source;
mod tree;
mod unified;
mod walk;
mod watch;
mod write;

pub use diff::diff;
pub use edit::Edit;
pub use error::display;
pub use files::Listing;
pub use known::Known;
pub use measure::Held;
pub use path::{MAX_PATH_BYTES, WorkspacePath};
pub use risk::{PROTECTED, host_risk};
pub use search::{Match, Matches};
pub use snapshot::{Digest, Entry, Snapshot};
pub use tree::Tree;
pub use walk::Budget;
pub use watch::{Told, Watch};
pub use write::PendingWrite;

/// Why a path could not be served. The reason is a fixed word that crosses the wire.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FileError {
    /// The path as text, escaped.
    pub path: String,
    pub reason: FileReason,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum FileReason {
    NotFound,
    IsDirectory,
    NotADirectory,
    PermissionDenied,
    InvalidPath,
    TooLarge,
    NotAFile,
    Exists,
    NoSpace,
    /// The text to be replaced is not in the file.
    NoMatch,
    /// It is there so many times, where it should be there once.
    SeveralMatches {
        count: u64,
    },
    /// The file is not what was read any more.
    Changed,
    Other,
}
