//! The directory that outlives a step: what changed in it, and reading and writing beneath it.
//!
//! Everything here runs in a keeper (see `launcher`), which sees the tree and nothing else; the engine touches no
//! workspace path. The tree is hostile: any name, link, mode or race that the code can make is met here.

use serde::{Deserialize, Serialize};

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
    Other,
}
