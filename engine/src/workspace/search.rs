//! Finding files by name and lines by what is in them, with the rights of the sandbox user and within bounds.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use memchr::{memchr, memrchr};
use regex::bytes::Regex;
use rustix::fs::OFlags;
use rustix::io::{Errno, read, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::files::POSITION;
use super::path::join;
use super::walk::{Budget, Walk};
use super::{FileError, FileReason, Listing, Tree, WorkspacePath, beneath, rights};
use crate::outcome::FileKind;
use crate::spec::{Grep, PathPattern, PatternError};

/// What one search may read, and how long it may take.
const MOST_READ: u64 = 1 << 30;
const MOST_TIME: Duration = Duration::from_secs(5);
/// Of the lines that are found together, and of one.
const MOST_FOUND: usize = 16 << 20;
const MOST_LINE: usize = 4 << 10;
/// A longer line is searched in pieces.
const MOST_BUFFERED: usize = 1 << 20;
const CHUNK: usize = 128 << 10;

/// A line that was looked for.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Match {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    /// From 1.
    pub line_number: u64,
    /// Without its end; the first 4 KiB of it.
    pub line: Vec<u8>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Matches {
    /// By path, then by line.
    pub found: Vec<Match>,
    /// There may be more: one of the bounds was met.
    pub truncated: bool,
    /// Files that were passed over because they hold a NUL.
    pub binary: u64,
}

impl Tree {
    /// The entries below a directory whose path from there matches, sorted by path. Links are found and not followed.
    ///
    /// # Errors
    /// When the path is not a directory, or the user may not read it.
    pub fn glob(
        &self,
        path: &WorkspacePath,
        pattern: &PathPattern,
        files_only: bool,
        budget: Budget,
    ) -> Result<Listing, FileError> {
        let wanted = |path: &[u8], kind| {
            (!files_only || kind == FileKind::File) && pattern.matches(path, kind == FileKind::Dir)
        };
        self.find(path, wanted, budget)
    }

    /// The lines of a file, or of the files below a directory, that match. Links are not followed; what the user may not
    /// read is passed over, as is what holds a NUL.
    ///
    /// # Errors
    /// When there is nothing at the path, or the pattern is none.
    pub fn grep(
        &self,
        path: &WorkspacePath,
        grep: &Grep,
        budget: Budget,
    ) -> Result<Matches, FileError> {
        let wrong = |error: PatternError| {
            FileError::new(path.as_bytes(), FileReason::Other, error.to_string())
        };
        let (regex, filter) = (grep.regex().map_err(wrong)?, grep.filter().map_err(wrong)?);
        let mut search = Search {
            regex,
            max_count: grep.max_count as usize,
            matches: Matches::default(),
            left: MOST_READ,
            until: Instant::now() + MOST_TIME,
            room: MOST_FOUND,
        };
        match self.find(path, |_, kind| kind == FileKind::File, budget) {
            Err(error) if error.reason == FileReason::NotADirectory => {
                let (file, _) = self.open_read(path, u64::MAX)?;
                search.file(path.as_bytes(), &file);
            }
            Err(error) => return Err(error),
            Ok(listing) => {
                search.matches.truncated |= listing.truncated;
                let below = match path.as_bytes().len() {
                    0 => 0,
                    length => length + 1,
                };
                let chosen = |path: &[u8]| {
                    filter
                        .as_ref()
                        .is_none_or(|filter| filter.matches(&path[below..], false))
                };
                rights::with_user_rights(|| {
                    for entry in listing.entries {
                        if !chosen(&entry.path) {
                            continue;
                        }
                        let flags = OFlags::RDONLY;
                        let Ok(file) = beneath::open_exactly(self.root(), &entry.path, flags)
                        else {
                            continue;
                        };
                        if !is_file(&file) {
                            continue;
                        }
                        if !search.file(&entry.path, &file) {
                            search.matches.truncated = true;
                            break;
                        }
                    }
                    Ok(())
                })?;
            }
        }
        Ok(search.matches)
    }

    fn find(
        &self,
        path: &WorkspacePath,
        wanted: impl Fn(&[u8], FileKind) -> bool,
        budget: Budget,
    ) -> Result<Listing, FileError> {
        let fail = |errno| FileError::from_errno(path.as_bytes(), "search", errno);
        rights::with_user_rights(|| {
            let start = beneath::open(self.root(), path.as_bytes(), POSITION).map_err(fail)?;
            let walk = Walk {
                start: start.as_fd(),
                recursive: true,
                excluded: None,
                horizon: usize::MAX,
                budget,
            };
            let mut entries = Vec::new();
            let missed = walk
                .run(|visit| {
                    if wanted(visit.path, beneath::kind(visit.facts)) {
                        let path = join(path.as_bytes(), visit.path);
                        entries.push(beneath::stat_of(visit.facts, path, None));
                    }
                })
                .map_err(fail)?;
            entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            Ok(Listing {
                entries,
                truncated: missed.truncated,
                unreadable: missed.unreadable,
            })
        })
    }
}

fn is_file(file: &OwnedFd) -> bool {
    beneath::facts(file.as_fd(), b"").is_ok_and(|facts| beneath::kind(&facts) == FileKind::File)
}

struct Search {
    regex: Regex,
    max_count: usize,
    matches: Matches,
    left: u64,
    until: Instant,
    room: usize,
}

impl Search {
    /// False: a bound was met, and the search is over.
    fn file(&mut self, path: &[u8], file: &OwnedFd) -> bool {
        let begun = (self.matches.found.len(), self.room);
        let searched = self.lines(path, file);
        if let Ok(End::Binary) = searched {
            self.matches.binary += 1;
            self.matches.found.truncate(begun.0);
            self.room = begun.1;
        }
        let over = matches!(searched, Ok(End::Bound));
        self.matches.truncated |= over;
        !over
    }

    fn lines(&mut self, path: &[u8], file: &OwnedFd) -> Result<End, Errno> {
        let mut buffer: Vec<u8> = Vec::new();
        let mut line = Line {
            number: 1,
            told: false,
        };
        loop {
            let held = buffer.len();
            buffer.resize(held + CHUNK, 0);
            let count = retry_on_intr(|| read(file, &mut buffer[held..]))?;
            buffer.truncate(held + count);
            if memchr(0, &buffer[held..]).is_some() {
                return Ok(End::Binary);
            }
            if count == 0 {
                let rest = std::mem::take(&mut buffer);
                let whole = rest.is_empty() || self.piece(path, &rest, &mut line);
                return Ok(if whole { End::Whole } else { End::Bound });
            }
            let Some(left) = self.left.checked_sub(count as u64) else {
                return Ok(End::Bound);
            };
            self.left = left;
            if Instant::now() >= self.until {
                return Ok(End::Bound);
            }
            let end = match memrchr(b'\n', &buffer) {
                Some(at) => at + 1,
                None if buffer.len() >= MOST_BUFFERED => buffer.len(),
                None => continue,
            };
            for piece in buffer[..end].split_inclusive(|byte| *byte == b'\n') {
                if !self.piece(path, piece, &mut line) {
                    return Ok(End::Bound);
                }
            }
            buffer.drain(..end);
        }
    }

    /// A line, or a part of one that is long.
    fn piece(&mut self, path: &[u8], piece: &[u8], line: &mut Line) -> bool {
        let text = piece.strip_suffix(b"\n").unwrap_or(piece);
        let text = match text.strip_suffix(b"\r") {
            Some(text) if text.len() + 2 == piece.len() => text,
            _ => text,
        };
        if !line.told && self.regex.is_match(text) {
            if self.matches.found.len() >= self.max_count {
                return false;
            }
            let text = &text[..text.len().min(MOST_LINE)];
            let Some(room) = self.room.checked_sub(path.len() + text.len()) else {
                return false;
            };
            self.room = room;
            line.told = true;
            self.matches.found.push(Match {
                path: path.to_vec(),
                line_number: line.number,
                line: text.to_vec(),
            });
        }
        if piece.ends_with(b"\n") {
            line.number += 1;
            line.told = false;
        }
        true
    }
}

struct Line {
    number: u64,
    /// An earlier part of it matched.
    told: bool,
}

enum End {
    Whole,
    Binary,
    Bound,
}
