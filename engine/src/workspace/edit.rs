//! Replacing text in a file: exact bytes, the whole file or nothing of it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use memchr::memmem;
use rustix::io::{Errno, read, retry_on_intr, write};

use super::unified::{Side, Unified, unified};
use super::write::PendingWrite;
use super::{FileError, FileReason, Tree, WorkspacePath, rights};

/// Of the file, before and after.
const MOST_BYTES: u64 = 16 << 20;
const MOST_DIFF: usize = 64 << 10;
const COMPARE_TIME: Duration = Duration::from_millis(50);

/// A file that was edited, as it will be once the write is committed.
#[derive(Debug)]
pub struct Edit {
    pub write: PendingWrite,
    pub size: u64,
    pub replacements: u64,
    /// None: the file is not text.
    pub diff: Option<String>,
    /// The diff ends early.
    pub truncated: bool,
}

impl Tree {
    /// Replaces `old` by `new`, once or, with `all`, everywhere. The file keeps its mode. The commit fails if the file
    /// is not any more what was edited.
    ///
    /// # Errors
    /// As for reading and for writing the file; [`FileReason::NoMatch`], and [`FileReason::SeveralMatches`] unless
    /// `all`; [`FileReason::TooLarge`] for more than 16 MiB.
    pub fn edit(
        &self,
        path: &WorkspacePath,
        (old, new): (&[u8], &[u8]),
        all: bool,
    ) -> Result<Edit, FileError> {
        let fail = |reason, message: &str| FileError::new(path.as_bytes(), reason, message);
        let (file, stat) = self.open_read(path, MOST_BYTES)?;
        let mut pending = self.begin_write(path, stat.mode)?;
        pending.expect(file.as_fd())?;
        let before = read_all(&file)
            .map_err(|errno| FileError::from_errno(path.as_bytes(), "read", errno))?;
        let finder = memmem::Finder::new(old);
        let count = finder.find_iter(&before).count();
        if count == 0 {
            return Err(fail(FileReason::NoMatch, &no_match(&before, old)));
        }
        if count > 1 && !all {
            let message = format!(
                "the text is there {count} times; name more of what is around it, or replace all"
            );
            let count = count as u64;
            return Err(fail(FileReason::SeveralMatches { count }, &message));
        }
        let size = (before.len() - count * old.len()) as u64
            + (count as u64).saturating_mul(new.len() as u64);
        if size > MOST_BYTES {
            let message = format!("the file would have {size} bytes; at most {MOST_BYTES}");
            return Err(fail(FileReason::TooLarge, &message));
        }
        let mut after = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        let mut at = 0;
        for start in finder.find_iter(&before) {
            after.extend_from_slice(&before[at..start]);
            after.extend_from_slice(new);
            at = start + old.len();
        }
        after.extend_from_slice(&before[at..]);
        rights::with_user_rights(|| {
            write_all(&pending, &after)
                .map_err(|errno| FileError::from_errno(path.as_bytes(), "write", errno))
        })?;
        let diff = difference(path.as_bytes(), &before, &after);
        Ok(Edit {
            write: pending,
            size,
            replacements: count as u64,
            truncated: diff.as_ref().is_some_and(|diff| diff.truncated),
            diff: diff.map(|diff| diff.text),
        })
    }
}

fn no_match(before: &[u8], old: &[u8]) -> String {
    let crlf = memmem::find(before, b"\r\n").is_some();
    let hint = if crlf && old.contains(&b'\n') && memmem::find(old, b"\r\n").is_none() {
        "; the lines of this file end in CRLF"
    } else {
        ""
    };
    format!("the text is not in the file{hint}")
}

fn difference(path: &[u8], before: &[u8], after: &[u8]) -> Option<Unified> {
    let text = |bytes| {
        std::str::from_utf8(bytes)
            .ok()
            .filter(|text| !text.contains('\0'))
    };
    let side = |text| Side {
        path: Some(path),
        text,
    };
    let deadline = Instant::now() + COMPARE_TIME;
    unified(side(text(before)?), side(text(after)?), MOST_DIFF, deadline)
}

fn read_all(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    const CHUNK: usize = 128 << 10;
    let mut bytes = Vec::new();
    loop {
        let held = bytes.len();
        bytes.resize(held + CHUNK, 0);
        let count = retry_on_intr(|| read(file, &mut bytes[held..]))?;
        bytes.truncate(held + count);
        if bytes.len() as u64 > MOST_BYTES {
            return Err(Errno::FBIG);
        }
        if count == 0 {
            return Ok(bytes);
        }
    }
}

fn write_all(pending: &PendingWrite, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = retry_on_intr(|| write(pending.file(), rest))?;
        rest = &rest[count..];
    }
    Ok(())
}
