//! The trees of one session whose owners were changed in place, because their file system cannot translate owners.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, Stat, fstat};

use crate::launcher::owners::{self, OwnerRecord};
use crate::workspace::ownership::{self, Owner};

/// A tree that is the sandbox user's for now.
#[derive(Debug)]
struct Lent {
    record: OwnerRecord,
    file: PathBuf,
    /// Wherever it is moved meanwhile.
    tree: OwnedFd,
    /// Its owners were changed; else the file system translates them, and the code may change some.
    changed: bool,
}

/// Dropped, everything is given back.
#[derive(Debug)]
pub(super) struct Owners {
    records: PathBuf,
    session: String,
    borrower: Owner,
    lent: Mutex<Vec<Lent>>,
    untranslated: AtomicBool,
}

impl Owners {
    /// `directory` is the session's own, in that of the engine.
    pub(super) fn new(directory: &Path, user: u32) -> Self {
        Self {
            records: owners::records_in(directory.parent().unwrap_or(directory)),
            session: directory
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            borrower: Owner {
                uid: user,
                gid: user,
            },
            lent: Mutex::default(),
            untranslated: AtomicBool::new(false),
        }
    }

    fn lent(&self) -> MutexGuard<'_, Vec<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tree that the code sees shows owners as they are.
    pub(super) fn note_untranslated(&self) {
        self.untranslated.store(true, Ordering::Relaxed);
    }

    /// What results say about it.
    pub(super) fn described(&self) -> Option<&'static str> {
        if self.lent().iter().any(|lent| lent.changed) {
            Some("owners: changed in place and given back at close")
        } else if self.untranslated.load(Ordering::Relaxed) {
            None
        } else {
            Some("owners: mapped")
        }
    }

    /// Makes the sandbox's user the owner of a tree, the clone of `path`. Blocks as long as the tree is large.
    pub(super) fn borrow(&self, path: &Path, tree: &OwnedFd) -> io::Result<()> {
        let stat = fstat(tree)?;
        let mut lent = self.lent();
        let covered = stat.st_uid == self.borrower.uid;
        if covered && !lent.is_empty() {
            return Ok(());
        }
        let record = self.record(path, &stat);
        let tree = tree.try_clone()?;
        let name = format!("{}-{}", self.session, lent.len());
        let file = record.write(&self.records, &name)?;
        // Looked for after the own record was written: of two that begin at once, one sees the other.
        if self.is_lent_elsewhere(&record) {
            fs::remove_file(file)?;
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another session has it, and this file system cannot show it to two (no idmapped mounts)",
            ));
        }
        let (lender, borrower) = (record.lender, record.borrower);
        // Before the first change: whatever fails from here on is given back.
        lent.push(Lent {
            record,
            file,
            tree,
            changed: true,
        });
        let tree = lent.last().map(|lent| lent.tree.as_fd());
        tree.map_or(Ok(()), |tree| ownership::lend(tree, lender, borrower))
            .map_err(io::Error::other)
    }

    fn record(&self, path: &Path, stat: &Stat) -> OwnerRecord {
        OwnerRecord {
            path: path.to_owned(),
            identity: (stat.st_dev, stat.st_ino),
            lender: Owner {
                uid: stat.st_uid,
                gid: stat.st_gid,
            },
            borrower: self.borrower,
        }
    }

    /// Remembers a tree, the clone of `path`, in which code may change owners though nothing else does.
    pub(super) fn remember(&self, path: &Path, tree: &OwnedFd) -> io::Result<()> {
        // By the path: the clone shows translated owners.
        let stat = rustix::fs::lstat(path)?;
        let record = self.record(path, &stat);
        let mut lent = self.lent();
        let known = |lent: &Lent| lent.record.identity == record.identity;
        if lent.iter().any(known) || fstat(tree)?.st_ino != stat.st_ino {
            return Ok(());
        }
        let name = format!("{}-{}", self.session, lent.len());
        let file = record.write(&self.records, &name)?;
        // Not the clone, through which owners are others than on disk.
        let tree = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        lent.push(Lent {
            record,
            file,
            tree,
            changed: false,
        });
        Ok(())
    }

    /// Whether a session of this or another engine has the tree, a part of it, or one that it is in.
    fn is_lent_elsewhere(&self, record: &OwnerRecord) -> bool {
        let engines = self.records.parent().and_then(Path::parent);
        let own = |file: &Path| {
            file.parent() == Some(&self.records)
                && file
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(&self.session))
        };
        engines
            .and_then(|engines| fs::read_dir(engines).ok())
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|engine| owners::list(&owners::records_in(&engine.path())))
            .filter(|(file, _)| !own(file))
            .filter_map(|(_, other)| other)
            .any(|other| other.overlaps(record))
    }

    /// Gives everything back. To be called when no code of the session runs any more; blocks as long as the trees are
    /// large. What cannot be given back is left to the sweep, by its record.
    pub(super) fn give_back(&self) {
        let mut lent = std::mem::take(&mut *self.lent());
        // What only the keeper could give back it has.
        lent.retain(|lent| !lent.record.is_callers() || fs::remove_file(&lent.file).is_err());
        if lent.is_empty() {
            return;
        }
        owners::wait_for_end_of(self.borrower.uid);
        // A tree inside another may have been another's.
        lent.sort_by_key(|lent| std::cmp::Reverse(lent.record.path.components().count()));
        for Lent {
            record, file, tree, ..
        } in lent
        {
            let given = record.give_back_in(tree.as_fd());
            if let Err(error) = given {
                tracing::warn!(reason = ?error.reason, "a tree could not be given back to its owner");
            } else if let Err(error) = fs::remove_file(file) {
                tracing::warn!(%error, "the record of a tree that was given back could not be removed");
            }
        }
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        self.give_back();
    }
}
