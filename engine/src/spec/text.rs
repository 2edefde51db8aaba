//! How a caller's own words are shown back: short, on one line, without control bytes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is shown of a word that is longer.
const SHOWN: usize = 120;

/// A word in quotes, escaped and clipped.
#[must_use]
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((at, _)) => format!("{:?}…", &text[..at]),
    }
}

/// A path in quotes, escaped and clipped.
#[must_use]
pub fn shown_path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

/// Whether a path holds a NUL byte, which no system call can carry.
#[must_use]
pub(super) fn holds_nul(path: &Path) -> bool {
    path.as_os_str().as_bytes().contains(&0)
}
