//! The text of small files, as a keeper saw it: what a later change is compared with. It has a bound, past which what was
//! not needed for longest is forgotten.
//!
//! A text is that of a file at certain times (ctime, mtime, size), and of no other: a file that was written to since has
//! other times. But for a write in the same tick of the clock: see `scan`. A text that was read so soon after the file
//! changed is *unsure*, and serves only where a scan has read the same.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use sha2::{Digest as _, Sha256};

use super::snapshot::{Digest, Entry, Facts, Snapshot};

/// Larger files have no difference shown, and are not kept.
pub(super) const MOST_FILE: u64 = 64 << 10;
/// What a kept file costs beside its text.
const OVERHEAD: usize = 256;

/// What is in a small file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Content {
    Text(Rc<str>),
    /// It holds a NUL, or is not UTF-8.
    Binary,
}

impl Content {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text.into()),
            _ => Self::Binary,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len() + OVERHEAD,
            Self::Binary => OVERHEAD,
        }
    }
}

/// Inode and birth time.
type Identity = (u64, i64);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Times {
    changed_ns: i64,
    modified_ns: i64,
    size: u64,
}

#[derive(Debug)]
struct Kept {
    times: Times,
    content: Content,
    /// Of what was read, while that is unsure.
    unsure: Option<[u8; 32]>,
    turn: u64,
}

#[derive(Debug)]
pub(super) struct Contents {
    most: usize,
    held: usize,
    files: HashMap<Identity, Kept>,
    /// What was needed last comes last.
    turns: BTreeMap<u64, Identity>,
    turn: u64,
    unsure: usize,
}

impl Contents {
    /// `most`: bytes of memory.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            held: 0,
            files: HashMap::new(),
            turns: BTreeMap::new(),
            turn: 0,
            unsure: 0,
        }
    }

    /// Whether a file of so many bytes fits without that another is forgotten.
    pub(super) fn has_room(&self, size: u64) -> bool {
        usize::try_from(size).is_ok_and(|size| self.held + size + OVERHEAD <= self.most)
    }

    pub(super) fn has(&self, entry: &Entry) -> bool {
        self.files
            .get(&entry.identity())
            .is_some_and(|kept| kept.times == times_of(entry))
    }

    /// `sha256`: of the bytes, where they were read so soon after a change that another may have followed unseen.
    pub(super) fn keep(&mut self, facts: &Facts, content: Content, sha256: Option<[u8; 32]>) {
        let identity = (facts.inode, facts.born_ns);
        self.forget(identity);
        self.turn += 1;
        self.turns.insert(self.turn, identity);
        self.held += content.size();
        self.unsure += usize::from(sha256.is_some());
        let kept = Kept {
            times: Times {
                changed_ns: facts.changed_ns,
                modified_ns: facts.modified_ns,
                size: facts.size,
            },
            content,
            unsure: sha256,
            turn: self.turn,
        };
        self.files.insert(identity, kept);
        while self.held > self.most {
            let Some((_, oldest)) = self.turns.first_key_value() else {
                return;
            };
            self.forget(*oldest);
        }
    }

    fn forget(&mut self, identity: Identity) {
        if let Some(kept) = self.files.remove(&identity) {
            self.turns.remove(&kept.turn);
            self.held -= kept.content.size();
            self.unsure -= usize::from(kept.unsure.is_some());
        }
    }

    /// What was in a file when a snapshot was taken.
    pub(super) fn find(&mut self, snapshot: &Snapshot, entry: &Entry) -> Option<Content> {
        let kept = self.files.get_mut(&entry.identity())?;
        let same = kept.times == times_of(entry)
            && match (kept.unsure, snapshot.digest(entry)) {
                (None, None) => true,
                (Some(read), Some(seen)) => read == seen.sha256,
                (Some(_), None) => false,
                // What was read later and for certain may be a later write in the same tick.
                (None, Some(seen)) => !seen.racy || is_of(&kept.content, seen),
            };
        if !same {
            return None;
        }
        self.turn += 1;
        self.turns.remove(&kept.turn);
        kept.turn = self.turn;
        self.turns.insert(self.turn, entry.identity());
        Some(kept.content.clone())
    }

    /// Whether a scan has to read a file, for what is kept of it to serve.
    pub(super) fn is_unsure(&self, facts: &Facts) -> bool {
        self.unsure > 0
            && self
                .files
                .get(&(facts.inode, facts.born_ns))
                .is_some_and(|kept| kept.unsure.is_some() && kept.times == times(facts))
    }

    /// Makes sure of what a scan has read again.
    pub(super) fn settle(&mut self, snapshot: &Snapshot) {
        if self.unsure == 0 {
            return;
        }
        for entry in snapshot.entries() {
            let Some(Digest {
                sha256,
                racy: false,
            }) = snapshot.digest(entry)
            else {
                continue;
            };
            let Some(kept) = self.files.get_mut(&entry.identity()) else {
                continue;
            };
            if kept.times != times_of(entry) {
                continue;
            }
            match kept.unsure {
                Some(read) if read == *sha256 => {
                    kept.unsure = None;
                    self.unsure -= 1;
                }
                Some(_) => self.forget(entry.identity()),
                None => {}
            }
        }
    }
}

/// Of a binary file the bytes are not kept: nobody can say.
fn is_of(content: &Content, seen: &Digest) -> bool {
    match content {
        Content::Text(text) => seen.sha256 == hash(text.as_bytes()),
        Content::Binary => false,
    }
}

pub(super) fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn times(facts: &Facts) -> Times {
    Times {
        changed_ns: facts.changed_ns,
        modified_ns: facts.modified_ns,
        size: facts.size,
    }
}

fn times_of(entry: &Entry) -> Times {
    Times {
        changed_ns: entry.changed_ns,
        modified_ns: entry.modified_ns,
        size: entry.size,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::outcome::FileKind;

    fn facts(inode: u64, changed_ns: i64) -> Facts {
        Facts {
            kind: FileKind::File,
            mode: 0o644,
            inode,
            born_ns: 1,
            changed_ns,
            modified_ns: changed_ns,
            size: 4,
        }
    }

    fn text(text: &str) -> Content {
        Content::of(text.into())
    }

    fn seen(facts: Facts, digest: Option<Digest>) -> Snapshot {
        let mut snapshot = Snapshot::taken_at(0);
        snapshot.push(b"f", facts, digest);
        snapshot.sort();
        snapshot
    }

    fn found(contents: &mut Contents, snapshot: &Snapshot) -> Option<Content> {
        contents.find(snapshot, &snapshot.entries()[0])
    }

    #[test]
    fn a_text_is_found_for_the_times_it_was_read_at_and_no_others() {
        let mut contents = Contents::new(1 << 20);
        contents.keep(&facts(1, 5), text("text"), None);
        assert_eq!(
            found(&mut contents, &seen(facts(1, 5), None)),
            Some(text("text"))
        );
        assert_eq!(found(&mut contents, &seen(facts(1, 6), None)), None);
        assert_eq!(found(&mut contents, &seen(facts(2, 5), None)), None);
    }

    #[test]
    fn an_unsure_text_serves_only_where_a_scan_read_the_same() {
        let digest = |text: &str, racy| {
            let sha256 = hash(text.as_bytes());
            Some(Digest { sha256, racy })
        };
        let unsure = || {
            let mut contents = Contents::new(1 << 20);
            contents.keep(&facts(1, 5), text("text"), Some(hash(b"text")));
            contents
        };
        assert!(unsure().is_unsure(&facts(1, 5)));
        assert!(!unsure().is_unsure(&facts(1, 6)));
        assert_eq!(found(&mut unsure(), &seen(facts(1, 5), None)), None);
        let other = seen(facts(1, 5), digest("else", true));
        assert_eq!(found(&mut unsure(), &other), None);
        let same = seen(facts(1, 5), digest("text", true));
        assert_eq!(found(&mut unsure(), &same), Some(text("text")));

        let mut settled = unsure();
        settled.settle(&same);
        assert!(settled.is_unsure(&facts(1, 5)));
        settled.settle(&seen(facts(1, 5), digest("text", false)));
        assert!(!settled.is_unsure(&facts(1, 5)));
        assert!(found(&mut settled, &seen(facts(1, 5), None)).is_some());

        let mut wrong = unsure();
        wrong.settle(&seen(facts(1, 5), digest("else", false)));
        assert_eq!(found(&mut wrong, &seen(facts(1, 5), None)), None);
    }

    #[test]
    fn past_its_bound_what_was_not_needed_for_longest_is_forgotten() {
        let mut contents = Contents::new(3 * (OVERHEAD + 4));
        for inode in 1..=3 {
            contents.keep(&facts(inode, 5), text("text"), None);
        }
        assert!(!contents.has_room(1));
        assert!(found(&mut contents, &seen(facts(1, 5), None)).is_some());
        contents.keep(&facts(4, 5), text("text"), None);
        assert_eq!(found(&mut contents, &seen(facts(2, 5), None)), None);
        for inode in [1, 3, 4] {
            assert!(found(&mut contents, &seen(facts(inode, 5), None)).is_some());
        }
        contents.keep(&facts(1, 6), text("other"), Some([0; 32]));
        assert!(contents.held <= contents.most);
        assert_eq!((contents.files.len(), contents.turns.len()), (2, 2));
        Contents::new(0).keep(&facts(1, 5), text("text"), Some([0; 32]));
    }

    #[test]
    fn what_is_no_text_is_binary() {
        assert_eq!(Content::of(b"a\0b".to_vec()), Content::Binary);
        assert_eq!(Content::of(b"a\xff".to_vec()), Content::Binary);
        assert_eq!(Content::of("é\r\n".into()), text("é\r\n"));
    }
}
