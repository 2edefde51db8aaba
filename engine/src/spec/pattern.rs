//! Patterns of a search: of names, and of what is in files. A mistake is told with its position.

use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Bytes of a pattern.
const MOST_BYTES: usize = 4096;
/// Memory of a compiled one.
const MOST_COMPILED: usize = 10 << 20;
const MOUNT: &str = "/workspace";

/// Why a pattern cannot be one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}{}", position.map_or_else(String::new, |at| format!(", at character {at}")))]
pub struct PatternError {
    /// From 1, in characters.
    pub position: Option<usize>,
    pub message: String,
}

/// A pattern of paths: `*` and `?` and `[…]` stand for what is between two slashes, `**` for any number of directories,
/// `{a,b}` for one of several. Names that begin with a dot are names as others.
#[derive(Clone, Debug)]
pub struct PathPattern {
    matcher: GlobMatcher,
    directories: bool,
    /// It is of the last name alone.
    names: bool,
}

/// What to look for in files.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Grep {
    pub pattern: String,
    /// The pattern is text, not a regular expression.
    pub literal: bool,
    pub ignore_case: bool,
    /// Which files, as [`PathPattern::filter`] reads it.
    pub glob: Option<String>,
    /// Lines at most.
    pub max_count: u32,
}

impl PathPattern {
    /// A pattern of whole paths, relative to where the search begins. With a slash at its end it is one of directories.
    ///
    /// # Errors
    /// When it is none, or names what is not in a workspace.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        check_size(text)?;
        let relative = match text.strip_prefix(MOUNT) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
            _ => text,
        };
        if relative.starts_with('/') {
            return Err(refused(
                "must be relative to the directory that is searched",
                Some(1),
            ));
        }
        if let Some(at) = climbs(relative) {
            let before = text.len() - relative.len();
            return Err(refused(
                "`..` is not allowed in a pattern",
                Some(character(text, before + at)),
            ));
        }
        let relative = relative.trim_start_matches("./");
        let plain = relative.trim_end_matches('/');
        Ok(Self {
            matcher: matcher(if plain.is_empty() { "**" } else { plain })
                .map_err(|error| shifted(error, text, relative))?,
            directories: relative.ends_with('/'),
            names: false,
        })
    }

    /// A pattern that chooses files as a line of an ignore file does: without a slash it is one of names, at any depth.
    ///
    /// # Errors
    /// As [`PathPattern::parse`].
    pub fn filter(text: &str) -> Result<Self, PatternError> {
        if text.contains('/') {
            let anchored = text.strip_prefix('/').filter(|_| !text.starts_with(MOUNT));
            return Self::parse(anchored.unwrap_or(text));
        }
        check_size(text)?;
        Ok(Self {
            matcher: matcher(text)?,
            directories: false,
            names: true,
        })
    }

    /// Whether an entry is meant. `path`: from where the search begins.
    #[must_use]
    pub fn matches(&self, path: &[u8], directory: bool) -> bool {
        use std::os::unix::ffi::OsStrExt;
        if self.directories && !directory {
            return false;
        }
        let part = if self.names {
            path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
        } else {
            path
        };
        self.matcher.is_match(std::ffi::OsStr::from_bytes(part))
    }
}

impl Grep {
    /// # Errors
    /// When the pattern is no regular expression, or one that takes too much memory.
    pub fn regex(&self) -> Result<Regex, PatternError> {
        check_size(&self.pattern)?;
        let pattern = if self.literal {
            regex::escape(&self.pattern)
        } else {
            check_syntax(&self.pattern)?;
            self.pattern.clone()
        };
        RegexBuilder::new(&pattern)
            .case_insensitive(self.ignore_case)
            .size_limit(MOST_COMPILED)
            .dfa_size_limit(MOST_COMPILED)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => refused("takes too much memory", None),
                other => refused(&one_line(&other.to_string()), None),
            })
    }

    /// # Errors
    /// As [`PathPattern::filter`].
    pub fn filter(&self) -> Result<Option<PathPattern>, PatternError> {
        self.glob.as_deref().map(PathPattern::filter).transpose()
    }
}

fn refused(message: &str, position: Option<usize>) -> PatternError {
    PatternError {
        position,
        message: message.to_owned(),
    }
}

fn check_size(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(refused("is empty", None));
    }
    if text.len() > MOST_BYTES {
        let message = format!("has {} bytes; at most {MOST_BYTES}", text.len());
        return Err(refused(&message, None));
    }
    Ok(())
}

/// The regular expression alone: the crate that compiles it tells positions in a drawing of several lines.
fn check_syntax(pattern: &str) -> Result<(), PatternError> {
    use regex_syntax::Error;
    let parsed = regex_syntax::ParserBuilder::new()
        .utf8(false)
        .build()
        .parse(pattern);
    let (message, at) = match parsed {
        Ok(_) => return Ok(()),
        Err(Error::Parse(error)) => (error.kind().to_string(), error.span().start.offset),
        Err(Error::Translate(error)) => (error.kind().to_string(), error.span().start.offset),
        Err(other) => return Err(refused(&one_line(&other.to_string()), None)),
    };
    Err(refused(&one_line(&message), Some(character(pattern, at))))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where the byte at `at` is, in characters from 1.
fn character(text: &str, at: usize) -> usize {
    text.char_indices()
        .take_while(|(start, _)| *start < at)
        .count()
        + 1
}

fn climbs(pattern: &str) -> Option<usize> {
    let mut at = 0;
    for part in pattern.split('/') {
        if part == ".." {
            return Some(at);
        }
        at += part.len() + 1;
    }
    None
}

fn shifted(error: PatternError, text: &str, relative: &str) -> PatternError {
    let before = text[..text.len() - relative.len()].chars().count();
    PatternError {
        position: error.position.map(|at| at + before),
        ..error
    }
}

fn matcher(pattern: &str) -> Result<GlobMatcher, PatternError> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .empty_alternates(true)
        .build();
    let glob = glob.map_err(|error| {
        use globset::ErrorKind;
        let wrong = match error.kind() {
            ErrorKind::UnclosedClass => Some(Wrong::OpenClass),
            ErrorKind::InvalidRange(..) => Some(Wrong::Range),
            ErrorKind::UnopenedAlternates => Some(Wrong::Closing),
            ErrorKind::UnclosedAlternates => Some(Wrong::Opening),
            ErrorKind::DanglingEscape => Some(Wrong::Escape),
            _ => None,
        };
        let at = wrong.map(|wrong| character(pattern, find(pattern, wrong)));
        refused(&one_line(&error.kind().to_string()), at)
    })?;
    Ok(glob.compile_matcher())
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Wrong {
    OpenClass,
    Range,
    Closing,
    Opening,
    Escape,
}

/// Where in a pattern the mistake is that was found in it.
fn find(pattern: &str, wrong: Wrong) -> usize {
    let mut open = Vec::new();
    let mut chars = pattern.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                let escaped = chars.next();
                if escaped.is_none() {
                    return at;
                }
            }
            '{' => open.push(at),
            '}' if open.pop().is_none() => return at,
            '[' => {
                // A bracket that comes first is one of the class.
                chars.next_if(|(_, c)| matches!(c, '!' | '^'));
                let mut last = chars.next().map(|(_, c)| c);
                let mut closed = false;
                while let Some((_, c)) = chars.next() {
                    if c == ']' {
                        closed = true;
                        break;
                    }
                    if c == '-'
                        && let Some(&(_, end)) = chars.peek()
                        && end != ']'
                    {
                        if wrong == Wrong::Range && last.is_some_and(|start| start > end) {
                            return at;
                        }
                        chars.next();
                    }
                    last = Some(c);
                }
                if !closed {
                    return at;
                }
            }
            _ => {}
        }
    }
    open.last().copied().unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn paths_match_as_in_a_shell_with_any_number_of_directories() {
        for (pattern, path, expected) in [
            ("*.py", "a.py", true),
            ("*.py", "d/a.py", false),
            ("**/*.py", "a.py", true),
            ("**/*.py", "d/e/a.py", true),
            ("d/**", "d/e/a.py", true),
            ("d/**", "d", false),
            ("**", ".git/config", true),
            ("*", ".hidden", true),
            ("d/*/a", "d/e/a", true),
            ("d/*/a", "d/e/f/a", false),
            ("d/**/a", "d/a", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[!a]b", "cb", true),
            ("[a-c]b", "bb", true),
            ("*.{py,rs}", "x.rs", true),
            ("a{,.txt}", "a", true),
            ("./a", "a", true),
            ("/workspace/*.py", "a.py", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
        ] {
            let parsed = PathPattern::parse(pattern).unwrap();
            assert_eq!(
                parsed.matches(path.as_bytes(), false),
                expected,
                "{pattern} {path}"
            );
        }
        assert!(PathPattern::parse("*").unwrap().matches(b"bad\xff", false));
        let directories = PathPattern::parse("*/").unwrap();
        assert!(directories.matches(b"d", true) && !directories.matches(b"f", false));
    }

    #[test]
    fn a_filter_without_a_slash_is_of_names() {
        let names = PathPattern::filter("*.py").unwrap();
        assert!(names.matches(b"d/e/a.py", false) && !names.matches(b"a.pyc", false));
        for pattern in ["d/*.py", "/d/*.py", "/workspace/d/*.py"] {
            let paths = PathPattern::filter(pattern).unwrap();
            assert!(paths.matches(b"d/a.py", false) && !paths.matches(b"e/d/a.py", false));
        }
    }

    #[test]
    fn a_wrong_pattern_is_refused_with_the_position() {
        for (pattern, position) in [
            ("ab[c", Some(3)),
            ("é[", Some(2)),
            ("a{b", Some(2)),
            ("a}b", Some(2)),
            ("x[b-a]", Some(2)),
            ("ab\\", Some(3)),
            ("/etc/*", Some(1)),
            ("a/../b", Some(3)),
            ("/workspace/../b", Some(12)),
            ("/workspace/a{", Some(13)),
            ("", None),
        ] {
            let error = PathPattern::parse(pattern).unwrap_err();
            assert_eq!(error.position, position, "{pattern}: {error}");
        }
        for (pattern, position) in [
            ("a(b", Some(2)),
            ("é)", Some(2)),
            ("[z-a]", Some(2)),
            ("\\q", Some(1)),
        ] {
            let grep = Grep {
                pattern: pattern.into(),
                ..Grep::default()
            };
            let error = grep.regex().unwrap_err();
            assert_eq!(error.position, position, "{pattern}: {error}");
            assert!(!error.to_string().contains('\n'));
        }
        let huge = Grep {
            pattern: "(\\w{500}){500}".into(),
            ..Grep::default()
        };
        assert!(huge.regex().is_err());
        assert!(PathPattern::parse(&"{".repeat(4000)).is_err());
        assert!(PathPattern::parse(&"a".repeat(5000)).is_err());
    }

    #[test]
    fn text_is_looked_for_as_it_is() {
        let grep = Grep {
            pattern: "a.(b".into(),
            literal: true,
            ignore_case: true,
            ..Grep::default()
        };
        let regex = grep.regex().unwrap();
        assert!(regex.is_match(b"xA.(Bx\xff") && !regex.is_match(b"axb"));
    }
}
