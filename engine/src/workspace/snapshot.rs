//! What a scan saw: every entry with its facts, sorted by path, in two flat buffers.

use crate::outcome::FileKind;

/// The facts of an entry that change when it does.
///
/// Who it is, is (inode, birth time): a deleted file's inode number is given to the next file at once, and its birth
/// time is not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    path_start: u32,
    path_len: u16,
    pub kind: FileKind,
    /// Permission bits, with the set-id and sticky ones.
    pub mode: u16,
    pub inode: u64,
    /// 0 where the filesystem keeps none.
    pub born_ns: i64,
    pub changed_ns: i64,
    pub modified_ns: i64,
    /// 0 for a directory.
    pub size: u64,
    digest: u32,
}

/// `Entry::digest` of an entry that was not read.
const NO_DIGEST: u32 = u32::MAX;

/// The content of a file that was written too close to a scan to be told apart by its times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Digest {
    pub sha256: [u8; 32],
    /// The times could still stay the same over a write after this scan, so the next scan must read the file again.
    pub racy: bool,
}

/// One look at a whole tree.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    entries: Vec<Entry>,
    paths: Vec<u8>,
    digests: Vec<Digest>,
    /// When the scan began; 0 if it never ran.
    pub taken_ns: i64,
    /// The budget ended before the tree did: what is not here may still exist.
    pub truncated: bool,
    /// Directories and entries whose content or facts could not be read. What is below them looks deleted.
    pub unreadable: usize,
}

/// The facts of an entry before it has a place in a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) inode: u64,
    pub(super) born_ns: i64,
    pub(super) changed_ns: i64,
    pub(super) modified_ns: i64,
    pub(super) size: u64,
}

impl Snapshot {
    pub(super) fn taken_at(taken_ns: i64) -> Self {
        Self {
            taken_ns,
            ..Self::default()
        }
    }

    /// Adds an entry in any order; [`Snapshot::sort`] must follow.
    pub(super) fn push(&mut self, path: &[u8], facts: Facts, digest: Option<Digest>) {
        // Past these a snapshot would be beyond every budget; the scan's own bounds are far below.
        let (Ok(path_start), Ok(path_len)) =
            (u32::try_from(self.paths.len()), u16::try_from(path.len()))
        else {
            self.truncated = true;
            return;
        };
        self.paths.extend_from_slice(path);
        let digest = digest.map_or(NO_DIGEST, |digest| {
            let index = u32::try_from(self.digests.len()).unwrap_or(NO_DIGEST);
            self.digests.push(digest);
            index
        });
        self.entries.push(Entry {
            path_start,
            path_len,
            kind: facts.kind,
            mode: facts.mode,
            inode: facts.inode,
            born_ns: facts.born_ns,
            changed_ns: facts.changed_ns,
            modified_ns: facts.modified_ns,
            size: facts.size,
            digest,
        });
    }

    /// Sorts by the bytes of the path. A name that a filesystem returned twice while it changed is kept once.
    pub(super) fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|a, b| self.path(a).cmp(self.path(b)));
        entries.dedup_by(|a, b| self.path(a) == self.path(b));
        entries.shrink_to_fit();
        self.entries = entries;
        self.paths.shrink_to_fit();
    }

    /// The entries, sorted by path.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The path of an entry of this snapshot, relative to the workspace.
    #[must_use]
    pub fn path(&self, entry: &Entry) -> &[u8] {
        let start = entry.path_start as usize;
        &self.paths[start..start + usize::from(entry.path_len)]
    }

    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<&Entry> {
        self.entries
            .binary_search_by(|entry| self.path(entry).cmp(path))
            .ok()
            .map(|index| &self.entries[index])
    }

    pub(super) fn has_digests(&self) -> bool {
        !self.digests.is_empty()
    }

    #[must_use]
    pub fn digest(&self, entry: &Entry) -> Option<&Digest> {
        self.digests.get(entry.digest as usize)
    }
}

impl Entry {
    /// Whether both are the same entry of the filesystem, wherever it is named. Without a birth time nothing can say
    /// that of two paths, only of one and the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.kind == other.kind
    }

    pub(super) fn identity(&self) -> (u64, i64) {
        (self.inode, self.born_ns)
    }

    /// Whether the identity holds over different paths.
    pub(super) fn has_identity(&self) -> bool {
        self.born_ns != 0
    }

    /// Whether the times and sizes say that nothing was written or set.
    pub(super) fn has_times_of(&self, other: &Self) -> bool {
        (self.changed_ns, self.modified_ns, self.size, self.mode)
            == (other.changed_ns, other.modified_ns, other.size, other.mode)
    }
}
