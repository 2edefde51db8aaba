//! A path of a request, which exists only in parsed form.
//!
//! The parse refuses what can never name an entry of the workspace. It does not decide where the path leads: links
//! are the kernel's to resolve, beneath the root (see `beneath`).

use super::{FileError, FileReason};

/// The longest path that is accepted, in bytes.
pub const MAX_PATH_BYTES: usize = 4096;
/// The longest name that Linux filesystems hold, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Where the sandboxed code sees the workspace; absolute paths below it are accepted.
pub(super) const MOUNT: &[u8] = b"/workspace";

/// A path relative to the workspace: no `..`, no `.`, no empty component, no NUL. The root is the empty path.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WorkspacePath {
    bytes: Vec<u8>,
    names_directory: bool,
}

impl WorkspacePath {
    /// Parses a path, relative to the workspace or absolute below `/workspace`. `.` and `/workspace` are the root.
    ///
    /// # Errors
    /// [`FileReason::InvalidPath`] for an empty path, NUL, a `..` component, another absolute path, a component of more
    /// than 255 bytes, and a path of more than 4096.
    pub fn parse(path: &[u8]) -> Result<Self, FileError> {
        let refuse = |message: &str| Err(FileError::new(path, FileReason::InvalidPath, message));
        if path.is_empty() {
            return refuse("empty path");
        }
        if path.len() > MAX_PATH_BYTES {
            // The path itself is not repeated: it is as long as the caller likes.
            return Err(FileError::new(
                path.get(..64).unwrap_or(path),
                FileReason::InvalidPath,
                format!("path of {} bytes; at most {MAX_PATH_BYTES}", path.len()),
            ));
        }
        if path.contains(&0) {
            return refuse("NUL in the path");
        }
        let relative = match path.strip_prefix(MOUNT) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ if path.starts_with(b"/") => return refuse("escapes the workspace"),
            _ => path,
        };
        let mut bytes = Vec::with_capacity(relative.len());
        let mut names_directory = true;
        for component in relative.split(|&b| b == b'/') {
            // An empty last component is a trailing slash; in between it is a doubled one.
            names_directory = matches!(component, b"" | b".");
            if names_directory {
                continue;
            }
            if component == b".." {
                return refuse("escapes the workspace: `..` is not allowed in a path");
            }
            if component.len() > MAX_NAME_BYTES {
                return Err(FileError::new(
                    path,
                    FileReason::InvalidPath,
                    format!(
                        "name of {} bytes; at most {MAX_NAME_BYTES}",
                        component.len()
                    ),
                ));
            }
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(component);
        }
        Ok(Self {
            bytes,
            names_directory,
        })
    }

    /// As [`WorkspacePath::parse`], for a directory to list: the empty path is the root.
    ///
    /// # Errors
    /// As [`WorkspacePath::parse`].
    pub fn parse_directory(path: &[u8]) -> Result<Self, FileError> {
        if path.is_empty() {
            return Ok(Self {
                bytes: Vec::new(),
                names_directory: true,
            });
        }
        Self::parse(path)
    }

    /// The normalised bytes; empty for the root.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[must_use]
    pub fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the path was spelt as one of a directory: the root, or with a trailing slash.
    #[must_use]
    pub fn names_directory(&self) -> bool {
        self.names_directory
    }

    /// The directory part (empty for the root) and the last name; none for the root itself.
    #[must_use]
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        (!self.is_root()).then(|| split(&self.bytes))
    }
}

/// The directory part (empty when there is none) and the last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// `directory/name`, where an empty directory is the root.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(path: &[u8]) -> Vec<u8> {
        WorkspacePath::parse(path).unwrap().as_bytes().to_vec()
    }

    #[test]
    fn relative_and_workspace_absolute_paths_name_the_same_entry() {
        assert_eq!(bytes(b"a/b"), b"a/b");
        assert_eq!(bytes(b"/workspace/a/b"), b"a/b");
        assert_eq!(bytes(b"./a//b/."), b"a/b");
        assert_eq!(bytes(b"workspace/a"), b"workspace/a");
        assert_eq!(bytes(b"\\..\\x"), b"\\..\\x");
        assert_eq!(bytes(b"..."), b"...");
        assert_eq!(bytes(b"bad\xff"), b"bad\xff");
    }

    #[test]
    fn the_root_has_a_spelling_but_no_name() {
        for path in [&b"."[..], b"/workspace", b"/workspace/", b"./"] {
            assert!(WorkspacePath::parse(path).unwrap().is_root());
        }
        assert!(WorkspacePath::parse_directory(b"").unwrap().is_root());
        assert_eq!(WorkspacePath::parse(b".").unwrap().split(), None);
    }

    #[test]
    fn a_trailing_slash_names_a_directory() {
        assert!(WorkspacePath::parse(b"d/").unwrap().names_directory());
        assert!(WorkspacePath::parse(b"d/.").unwrap().names_directory());
        assert!(!WorkspacePath::parse(b"d").unwrap().names_directory());
        assert!(!WorkspacePath::parse(b"d//x").unwrap().names_directory());
    }

    #[test]
    fn paths_that_cannot_name_an_entry_are_refused() {
        let long_name = vec![b'a'; 256];
        let long_path = b"ab/".repeat(1400);
        for path in [
            &b""[..],
            b"..",
            b"../x",
            b"d/../../x",
            b"/",
            b"/etc/passwd",
            b"//etc/passwd",
            b"//workspace/x",
            b"/workspacex",
            b"/workspace/../etc",
            b"a\0b",
            &long_name,
            &long_path,
        ] {
            let error = WorkspacePath::parse(path).unwrap_err();
            assert_eq!(error.reason, FileReason::InvalidPath, "{}", error);
        }
        assert!(WorkspacePath::parse(&[b'a'; 255]).is_ok());
    }

    proptest! {
        #[test]
        fn no_parsed_path_climbs_or_is_absolute(
            path in proptest::collection::vec(prop_oneof![
                Just(b'/'), Just(b'.'), Just(0u8), Just(b'a'), Just(b'\\'), any::<u8>()
            ], 0..64),
            absolute in any::<bool>(),
        ) {
            let path = if absolute { [b"/workspace/".as_slice(), &path].concat() } else { path };
            if let Ok(parsed) = WorkspacePath::parse(&path) {
                prop_assert!(!parsed.as_bytes().contains(&0));
                if !parsed.is_root() {
                    for component in parsed.as_bytes().split(|&b| b == b'/') {
                        prop_assert!(!matches!(component, b"" | b"." | b".."));
                        prop_assert!(component.len() <= MAX_NAME_BYTES);
                    }
                }
                let again = WorkspacePath::parse_directory(parsed.as_bytes()).unwrap();
                prop_assert_eq!(again.as_bytes(), parsed.as_bytes());
            }
        }

        #[test]
        fn a_path_with_a_climbing_component_is_always_refused(
            before in "[a-z./]{0,12}", after in "[a-z./]{0,12}",
        ) {
            let path = format!("{before}/../{after}");
            prop_assert!(WorkspacePath::parse(path.as_bytes()).is_err());
        }
    }
}
