//! From changes to what changed in the text: for files whose earlier text was seen.
//!
//! A text is seen when a caller writes the file, when a look after a step finds the file changed, and for what was there
//! from the beginning bit by bit, while nobody waits (see [`Known::learn`]). Nothing is read of a tree in which nothing
//! changed. The tree is hostile: what is read is the file that the look saw, at the times at which it saw it, or it is
//! not believed.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{Errno, pread, retry_on_intr};

use super::contents::{Content, Contents, MOST_FILE, hash};
use super::diff::{Found, find};
use super::scan::{facts_of, now_ns, racy_from};
use super::snapshot::{Entry, Facts, Snapshot};
use super::unified::{Side, Unified, unified};
use super::{Budget, FileError, Tree, beneath, rights};
use crate::outcome::{FileChange, FileKind, NoDiff};

/// Text of the diffs of one file, and of one step.
const MOST_DIFF: usize = 64 << 10;
const MOST_DIFFS: usize = 1 << 20;
/// Files that are read at the end of one step, and how long that may take.
const MOST_READ: usize = 500;
const READ_TIME: Duration = Duration::from_millis(50);
/// How long two texts may be compared before what is left is shown as replaced.
const COMPARE_TIME: Duration = Duration::from_millis(20);
/// How much of a workspace is learned at once.
const LEARN_FILES: usize = 64;
const LEARN_TIME: Duration = Duration::from_millis(1);
/// In a larger workspace nothing is learned while a step waits: to choose what to read takes too long.
const SMALL_WORKSPACE: usize = 5_000;

/// What is known of the text in a workspace.
#[derive(Debug)]
pub struct Known {
    contents: Contents,
    /// None: no diffs are wanted.
    on: bool,
    /// Files to be read, the next one last, as indices into a snapshot.
    waiting: Option<(Rc<Snapshot>, Vec<usize>)>,
    /// There may be small files that nobody has read.
    unread: bool,
}

impl Known {
    /// `most`: bytes of memory for it; 0: there are no diffs, and nothing is read or kept.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            contents: Contents::new(most),
            on: most > 0,
            waiting: None,
            unread: most > 0,
        }
    }

    /// Looks at a tree as [`Tree::scan`] does.
    ///
    /// # Errors
    /// As that.
    pub fn scan(
        &mut self,
        tree: &Tree,
        budget: Budget,
        previous: Option<&Snapshot>,
    ) -> Result<Snapshot, FileError> {
        let contents = &self.contents;
        let snapshot = tree.scan_reading(budget, previous, |facts| contents.is_unsure(facts))?;
        self.contents.settle(&snapshot);
        if previous.is_none() && snapshot.entries().is_empty() {
            self.unread = false;
        }
        Ok(snapshot)
    }

    /// Takes in a file that a caller has written. It may be no more what has the name.
    pub fn written(&mut self, file: BorrowedFd<'_>) {
        if self.on
            && let Ok((facts, read)) = read(file)
        {
            self.take_in(&facts, read);
        }
    }

    fn take_in(&mut self, facts: &Facts, read: Read) -> Content {
        let Read { bytes, unsure } = read;
        let sha256 = unsure.then(|| hash(&bytes));
        let content = Content::of(bytes);
        self.contents.keep(facts, content.clone(), sha256);
        content
    }

    /// Something but a step may have changed the tree: what is in it is to be learned again.
    pub fn doubt(&mut self) {
        self.unread = self.on;
    }

    /// Whether there may be more to learn.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.unread
    }

    /// Reads small files as a snapshot shows them, those that changed last first, as long as there is room and for about a
    /// millisecond. `hurry`: somebody waits.
    pub fn learn(&mut self, tree: &Tree, snapshot: &Rc<Snapshot>, hurry: bool) {
        if !self.unread || (hurry && snapshot.entries().len() > SMALL_WORKSPACE) {
            return;
        }
        let begun = Instant::now();
        let mut waiting = match self.waiting.take() {
            Some((of, waiting)) if Rc::ptr_eq(&of, snapshot) => waiting,
            _ => self.unread_of(snapshot),
        };
        let learned = rights::with_override(|| {
            for _ in 0..LEARN_FILES {
                if begun.elapsed() >= LEARN_TIME {
                    break;
                }
                let Some(entry) = waiting.pop().and_then(|at| snapshot.entries().get(at)) else {
                    break;
                };
                if !self.contents.has_room(entry.size) {
                    waiting.clear();
                } else if let Ok((facts, read)) = self.read(tree, snapshot, entry) {
                    self.take_in(&facts, read);
                }
            }
            Ok(())
        });
        self.unread = !waiting.is_empty() && learned.is_ok();
        if self.unread {
            self.waiting = Some((Rc::clone(snapshot), waiting));
        }
    }

    /// The small files of which nothing is known, what changed last, and of equals the smallest, last.
    fn unread_of(&self, snapshot: &Snapshot) -> Vec<usize> {
        let small = |entry: &Entry| entry.kind == FileKind::File && entry.size <= MOST_FILE;
        let entries = snapshot.entries();
        let mut unread: Vec<_> = (0..entries.len())
            .filter(|at| small(&entries[*at]) && !self.contents.has(&entries[*at]))
            .collect();
        let order = |at: &usize| {
            let entry = &entries[*at];
            (entry.modified_ns, std::cmp::Reverse(entry.size))
        };
        unread.sort_by_key(order);
        unread
    }

    /// The changes from `before` to `after`, with their diffs where they are wanted.
    #[must_use]
    pub fn changes(&mut self, tree: &Tree, before: &Snapshot, after: &Snapshot) -> Vec<FileChange> {
        let mut found = find(before, after);
        if self.on && !found.is_empty() {
            let described = rights::with_override(|| {
                self.describe(tree, before, after, &mut found);
                Ok(())
            });
            // Without the right to look nothing could be read, and that nothing was is said of none.
            debug_assert!(described.is_ok());
        }
        found.into_iter().map(|found| found.change).collect()
    }

    fn describe(
        &mut self,
        tree: &Tree,
        before: &Snapshot,
        after: &Snapshot,
        found: &mut [Found<'_>],
    ) {
        let until = Instant::now() + READ_TIME;
        let mut left = MOST_DIFFS;
        let files = |found: &&mut Found<'_>| found.change.kind == FileKind::File;
        // All that is known of before is asked for first: to keep what is new may be to forget it.
        let known: Vec<_> = found
            .iter_mut()
            .filter(files)
            .take(MOST_READ)
            .map(|found| found.before.map(|entry| self.text_before(before, entry)))
            .collect();
        let mut known = known.into_iter();
        for found in found.iter_mut().filter(files) {
            let described = match known.next() {
                Some(old) if left > 0 && Instant::now() < until => {
                    let deadline = until.min(Instant::now() + COMPARE_TIME);
                    self.compare(tree, old, after, found, left, deadline)
                }
                _ => {
                    self.unread = true;
                    Err(NoDiff::TooMany)
                }
            };
            let change = &mut found.change;
            match described {
                Ok(made) => {
                    left -= made.text.len();
                    change.diff_reason = made.truncated.then_some(NoDiff::Truncated);
                    change.diff = Some(made.text);
                }
                Err(reason) => change.diff_reason = Some(reason),
            }
        }
    }

    fn text_before(&mut self, before: &Snapshot, entry: &Entry) -> Result<Content, NoDiff> {
        if entry.size > MOST_FILE {
            return Err(NoDiff::TooLarge);
        }
        let known = self.contents.find(before, entry);
        known.ok_or(NoDiff::UnknownBefore)
    }

    fn compare(
        &mut self,
        tree: &Tree,
        old: Option<Result<Content, NoDiff>>,
        after: &Snapshot,
        found: &Found<'_>,
        left: usize,
        deadline: Instant,
    ) -> Result<Unified, NoDiff> {
        // It is read even where nothing can be shown of it now: the next change can be.
        let new = found.after.map(|entry| {
            if entry.size > MOST_FILE {
                return Err(NoDiff::TooLarge);
            }
            let read = self.read(tree, after, entry);
            read.map(|(facts, read)| self.take_in(&facts, read))
                .map_err(|_| NoDiff::ChangedSince)
        });
        let (old, new) = match (old, new) {
            (Some(Err(NoDiff::TooLarge)), _) | (_, Some(Err(NoDiff::TooLarge))) => {
                return Err(NoDiff::TooLarge);
            }
            (old, new) => (old.transpose()?, new.transpose()?),
        };
        let text = |content: &Option<Content>| match content {
            None => Ok("".into()),
            Some(Content::Text(text)) => Ok(Rc::clone(text)),
            Some(Content::Binary) => Err(NoDiff::Binary),
        };
        let (old, new) = (text(&old)?, text(&new)?);
        let path = found.change.path.as_slice();
        let from = found.change.old_path.as_deref().unwrap_or(path);
        let old = Side {
            path: found.before.map(|_| from),
            text: &old,
        };
        let new = Side {
            path: found.after.map(|_| path),
            text: &new,
        };
        let made = unified(old, new, left.min(MOST_DIFF), deadline).ok_or(NoDiff::SameContent)?;
        if made.truncated && left < MOST_DIFF {
            return Err(NoDiff::TooMany);
        }
        Ok(made)
    }

    /// What is in a file that is still the one that a snapshot shows, at the times that it shows.
    fn read(
        &self,
        tree: &Tree,
        snapshot: &Snapshot,
        entry: &Entry,
    ) -> Result<(Facts, Read), Errno> {
        let path = snapshot.path(entry);
        // Only a file is opened: to open a device is to act on it. What is swapped in after this does not block.
        let seen = beneath::open_exactly(tree.root(), path, OFlags::PATH)?;
        if !is_of(&facts_of(&beneath::facts(seen.as_fd(), b"")?), entry) {
            return Err(Errno::STALE);
        }
        let file = beneath::open_exactly(tree.root(), path, OFlags::RDONLY)?;
        let (facts, read) = read(file.as_fd())?;
        let other = snapshot
            .digest(entry)
            .is_some_and(|digest| digest.racy && digest.sha256 != hash(&read.bytes));
        if other || !is_of(&facts, entry) {
            return Err(Errno::STALE);
        }
        Ok((facts, read))
    }
}

#[derive(Debug)]
struct Read {
    bytes: Vec<u8>,
    /// The file changed so short a time before that it may change again without a trace.
    unsure: bool,
}

fn is_of(facts: &Facts, entry: &Entry) -> bool {
    facts.kind == entry.kind
        && (facts.inode, facts.born_ns, facts.size) == (entry.inode, entry.born_ns, entry.size)
        && (facts.changed_ns, facts.modified_ns) == (entry.changed_ns, entry.modified_ns)
}

/// The whole of a small file, if it is the same before and after.
fn read(file: BorrowedFd<'_>) -> Result<(Facts, Read), Errno> {
    let racy_from_ns = racy_from(now_ns());
    let facts = facts_of(&beneath::facts(file, b"")?);
    if facts.kind != FileKind::File || facts.size > MOST_FILE {
        return Err(Errno::FBIG);
    }
    let size = usize::try_from(facts.size).map_err(|_| Errno::FBIG)?;
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < size {
        match retry_on_intr(|| pread(file, &mut bytes[at..], at as u64))? {
            0 => return Err(Errno::STALE),
            read => at += read,
        }
    }
    let later = facts_of(&beneath::facts(file, b"")?);
    let same = (later.changed_ns, later.modified_ns, later.size)
        == (facts.changed_ns, facts.modified_ns, facts.size);
    if !same {
        return Err(Errno::STALE);
    }
    let unsure = facts.changed_ns >= racy_from_ns;
    Ok((facts, Read { bytes, unsure }))
}
