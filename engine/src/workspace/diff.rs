//! From two snapshots to the changes between them: pure, no file is touched.
//!
//! The rules:
//! - A file, link or other non-directory is *modified* when its inode, birth time, ctime, mtime, size or mode differs,
//!   or its content where both scans read it. So `touch`, `chown` and a new or removed hard link are modifications:
//!   each moves ctime, and a write whose mtime was put back leaves just the same trace.
//! - A directory is *modified* only when its mode differs; its times move with every name in it.
//! - The same inode and birth time at another path is *renamed*. A renamed directory is one change; below it only
//!   what itself changed is listed. Without birth times a rename is a deletion and a creation.
//! - A path that holds another kind of entry than before is *deleted* and *created*.
//! - A path onto which another entry was renamed is *renamed*; what was there before is not listed besides.
//! - What a truncated snapshot does not show is neither deleted nor, if it may be older, created.

use std::collections::{HashMap, HashSet};

use super::path::split;
use super::snapshot::{Entry, Snapshot};
use crate::outcome::{ChangeKind, FileChange, FileKind};

/// A change, and the entries that it is between.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub(super) change: FileChange,
    /// Of the earlier snapshot; none of what was created.
    pub(super) before: Option<&'a Entry>,
    /// Of the later one; none of what was deleted.
    pub(super) after: Option<&'a Entry>,
}

/// The changes from `before` to `after`, sorted by path.
#[must_use]
pub fn diff(before: &Snapshot, after: &Snapshot) -> Vec<FileChange> {
    let found = find(before, after).into_iter();
    found.map(|found| found.change).collect()
}

/// The same, with the entries.
pub(super) fn find<'a>(before: &'a Snapshot, after: &'a Snapshot) -> Vec<Found<'a>> {
    let mut changes = Changes {
        before,
        after,
        found: Vec::new(),
        gone: Vec::new(),
        new: Vec::new(),
    };
    changes.compare_by_path();
    let moves = changes.match_moves();
    changes.report_moves(&moves);
    changes.report_rest(&moves);
    // Stable: a deletion stays before the creation at the same path.
    changes
        .found
        .sort_by(|a, b| a.change.path.cmp(&b.change.path));
    changes.found
}

struct Changes<'a> {
    before: &'a Snapshot,
    after: &'a Snapshot,
    found: Vec<Found<'a>>,
    /// Entries whose path now holds nothing, or another entry.
    gone: Vec<&'a Entry>,
    /// Entries whose path held nothing, or another entry.
    new: Vec<&'a Entry>,
}

/// Entries that are at another path than before.
#[derive(Default)]
struct Moves<'a> {
    /// (before, after)
    pairs: Vec<(&'a Entry, &'a Entry)>,
    /// Paths before, of what moved away.
    left: HashSet<&'a [u8]>,
    /// Path after to path before.
    origin: HashMap<&'a [u8], &'a [u8]>,
}

impl<'a> Changes<'a> {
    /// Merges the two sorted lists; in an unchanged tree this is all the work there is.
    fn compare_by_path(&mut self) {
        let mut old = self.before.entries().iter().peekable();
        let mut new = self.after.entries().iter().peekable();
        loop {
            match (old.peek().copied(), new.peek().copied()) {
                (Some(a), Some(b)) => match self.before.path(a).cmp(self.after.path(b)) {
                    std::cmp::Ordering::Less => self.gone.extend(old.next()),
                    std::cmp::Ordering::Greater => self.new.extend(new.next()),
                    std::cmp::Ordering::Equal => {
                        self.compare_in_place(a, b);
                        old.next();
                        new.next();
                    }
                },
                (Some(_), None) => self.gone.extend(old.next()),
                (None, Some(_)) => self.new.extend(new.next()),
                (None, None) => break,
            }
        }
    }

    fn compare_in_place(&mut self, old: &'a Entry, new: &'a Entry) {
        if !old.is(new) {
            self.gone.push(old);
            self.new.push(new);
        } else if self.changed(old, new) {
            self.report(ChangeKind::Modified, Some(old), new, None);
        }
    }

    /// Whether one entry differs from what it was.
    fn changed(&self, old: &Entry, new: &Entry) -> bool {
        if old.kind == FileKind::Dir {
            return old.mode != new.mode;
        }
        if !old.has_times_of(new) {
            return true;
        }
        match (self.before.digest(old), self.after.digest(new)) {
            (Some(a), Some(b)) => a.sha256 != b.sha256,
            _ => false,
        }
    }

    /// Pairs what left one path with what came to another. Several names of one file are paired in order.
    fn match_moves(&self) -> Moves<'a> {
        let mut moves = Moves::default();
        // Unless both are complete, a name that is not seen may still be there.
        if self.before.truncated || self.after.truncated {
            return moves;
        }
        let mut by_identity: HashMap<(u64, i64), Vec<&Entry>> = HashMap::new();
        for entry in self.gone.iter().rev().filter(|entry| entry.has_identity()) {
            by_identity.entry(entry.identity()).or_default().push(entry);
        }
        for new in &self.new {
            let Some(names) = by_identity.get_mut(&new.identity()) else {
                continue;
            };
            let Some(old) = names.pop_if(|old| old.is(new)) else {
                continue;
            };
            moves.pairs.push((old, new));
            moves.left.insert(self.before.path(old));
            moves
                .origin
                .insert(self.after.path(new), self.before.path(old));
        }
        moves
    }

    fn report_moves(&mut self, moves: &Moves<'a>) {
        for &(old, new) in &moves.pairs {
            let (from, to) = (self.before.path(old), self.after.path(new));
            let (from_parent, from_name) = split(from);
            let (to_parent, to_name) = split(to);
            let moved_with_parent = from_name == to_name
                && !to_parent.is_empty()
                && moves.origin.get(to_parent) == Some(&from_parent);
            if !moved_with_parent {
                self.report(ChangeKind::Renamed, Some(old), new, Some(from));
            } else if self.changed(old, new) {
                self.report(ChangeKind::Modified, Some(old), new, None);
            } else if self.covers(to, moves) {
                self.report(ChangeKind::Modified, self.before.find(to), new, None);
            }
        }
    }

    /// Whether a path held an entry that is in the tree no more: then it changed for whoever knew it.
    fn covers(&self, path: &[u8], moves: &Moves<'_>) -> bool {
        self.before.find(path).is_some() && !moves.left.contains(path)
    }

    fn report_rest(&mut self, moves: &Moves<'a>) {
        for old in std::mem::take(&mut self.gone) {
            let path = self.before.path(old);
            if moves.left.contains(path) || self.after.truncated {
                continue;
            }
            let replaced = self
                .after
                .find(path)
                .is_some_and(|new| new.kind == old.kind);
            if !replaced {
                self.found.push(Found {
                    change: change(ChangeKind::Deleted, old, path, None),
                    before: Some(old),
                    after: None,
                });
            }
        }
        for new in std::mem::take(&mut self.new) {
            let path = self.after.path(new);
            if moves.origin.contains_key(path) {
                continue;
            }
            let replaced = self
                .before
                .find(path)
                .filter(|old| old.kind == new.kind && !moves.left.contains(path));
            if replaced.is_some() {
                self.report(ChangeKind::Modified, replaced, new, None);
            } else if !self.before.truncated || self.is_younger(new) {
                self.report(ChangeKind::Created, None, new, None);
            }
        }
    }

    /// Whether an entry was made after everything that the earlier scan saw.
    fn is_younger(&self, entry: &Entry) -> bool {
        entry.born_ns >= self.before.taken_ns
    }

    fn report(
        &mut self,
        kind: ChangeKind,
        before: Option<&'a Entry>,
        entry: &'a Entry,
        old_path: Option<&[u8]>,
    ) {
        let path = self.after.path(entry);
        self.found.push(Found {
            change: change(kind, entry, path, old_path),
            before,
            after: Some(entry),
        });
    }
}

fn change(change: ChangeKind, entry: &Entry, path: &[u8], old_path: Option<&[u8]>) -> FileChange {
    FileChange {
        path: path.to_vec(),
        change,
        kind: entry.kind,
        size: entry.size,
        mode: entry.mode.into(),
        old_path: old_path.map(<[u8]>::to_vec),
        host_risk: None,
        diff: None,
        diff_reason: None,
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
