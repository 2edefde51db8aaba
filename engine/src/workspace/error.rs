//! From errno and kind to the fixed words of [`FileError`], and bytes of a name to text.

use rustix::io::Errno;

use super::{FileError, FileReason};
use crate::outcome::FileKind;

impl FileError {
    pub(super) fn new(path: &[u8], reason: FileReason, message: impl Into<String>) -> Self {
        Self {
            path: display(path),
            reason,
            message: message.into(),
        }
    }

    /// What a failed call beneath the tree means. `doing` names the act, for the errnos that have no word of their own.
    pub(super) fn from_errno(path: &[u8], doing: &str, errno: Errno) -> Self {
        let (reason, message) = match errno {
            Errno::NOENT => (FileReason::NotFound, "no such file or directory"),
            Errno::ISDIR => (FileReason::IsDirectory, "is a directory"),
            Errno::NOTDIR => (
                FileReason::NotADirectory,
                "a part of the path is not a directory",
            ),
            Errno::ACCESS | Errno::PERM => (FileReason::PermissionDenied, "permission denied"),
            Errno::ROFS => (FileReason::PermissionDenied, "read-only filesystem"),
            // Of RESOLVE_BENEATH: `..` above the root, or a link that is absolute.
            Errno::XDEV => (FileReason::InvalidPath, "escapes the workspace"),
            Errno::LOOP => (FileReason::InvalidPath, "too many links, or a magic link"),
            Errno::NAMETOOLONG => (FileReason::InvalidPath, "name or path too long"),
            Errno::EXIST => (FileReason::Exists, "exists"),
            Errno::NOTEMPTY => (FileReason::Exists, "directory not empty"),
            Errno::NOSPC | Errno::DQUOT => (FileReason::NoSpace, "no space left"),
            Errno::FBIG => (FileReason::TooLarge, "larger than the filesystem allows"),
            // Opening a socket, or a device that has no driver.
            Errno::NXIO | Errno::NODEV => (FileReason::NotAFile, "is a socket or a device"),
            other => {
                return Self::new(path, FileReason::Other, format!("{doing}: {other}"));
            }
        };
        Self::new(path, reason, message)
    }

    /// For an entry that is not the regular file that the act needs.
    pub(super) fn not_a_file(path: &[u8], kind: FileKind) -> Self {
        let (reason, message) = match kind {
            FileKind::Dir => (FileReason::IsDirectory, "is a directory"),
            FileKind::Fifo => (FileReason::NotAFile, "is a FIFO"),
            FileKind::Socket => (FileReason::NotAFile, "is a socket"),
            FileKind::Device => (FileReason::NotAFile, "is a device"),
            FileKind::Symlink => (FileReason::NotAFile, "is a symbolic link"),
            FileKind::File => (FileReason::NotAFile, "is not the file that it was"),
        };
        Self::new(path, reason, message)
    }
}

/// A name as text for people: control characters, backslashes and bytes that are not UTF-8 are escaped, so that two
/// names never look the same and no name can drive a terminal.
#[must_use]
pub fn display(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' || is_invisible(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Characters that reorder or hide the text around them, and those that only a program sees.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_without_control_characters_and_without_loss() {
        assert_eq!(display(b"a\nb"), "a\\nb");
        assert_eq!(display(b"bad\xff\xfe"), "bad\\xff\\xfe");
        assert_eq!(display(b"back\\slash"), "back\\\\slash");
        assert_eq!(display("é 漢".as_bytes()), "é 漢");
        assert_eq!(display("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(display("a\u{61c}b".as_bytes()), "a\\u{61c}b");
        assert_eq!(display("a\u{e0072}".as_bytes()), "a\\u{e0072}");
    }
}
