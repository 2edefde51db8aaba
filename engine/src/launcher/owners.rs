//! Records of trees whose owners were changed in place. A record is on disk before the first change, so that whoever is
//! left gives the tree back: the engine at a session's end, the launcher when the engine died, the next engine's
//! launcher when both did.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::sandbox::identity::{BOX_ID, HostIds, Mode as IdMode, RANGE_FIRST};
use crate::sandbox::tree;
use crate::workspace::FileError;
use crate::workspace::ownership::{self, Owner};

/// Below an engine's directory on disk.
const RECORDS: &str = "owners";
/// Of a record that is complete.
const ENDING: &str = "record";
const HEADER: &str = "stepbox owners 1";
/// How long killed code may take to be gone, and how often that is looked at.
const CODE_END: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A tree that was lent to a sandbox's user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnerRecord {
    pub path: PathBuf,
    /// Device and inode.
    pub identity: (u64, u64),
    pub lender: Owner,
    pub borrower: Owner,
}

/// The directory of the records of an engine whose directory this is.
#[must_use]
pub fn records_in(engine_directory: &Path) -> PathBuf {
    engine_directory.join(RECORDS)
}

impl OwnerRecord {
    /// Writes the record; it is on disk when this returns. Gives its file.
    pub fn write(&self, records: &Path, name: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(records)?;
        let file = records.join(format!("{name}.{ENDING}"));
        let unfinished = records.join(format!("{name}.new"));
        let mut written = File::create_new(&unfinished)?;
        written.write_all(&self.encode())?;
        written.sync_all()?;
        fs::rename(&unfinished, &file)?;
        File::open(records)?.sync_all()?;
        Ok(file)
    }

    fn encode(&self) -> Vec<u8> {
        let Self {
            path,
            identity: (device, inode),
            lender,
            borrower,
        } = self;
        let mut text = format!(
            "{HEADER}\n{device} {inode} {} {} {} {}\n",
            lender.uid, lender.gid, borrower.uid, borrower.gid
        )
        .into_bytes();
        text.extend_from_slice(path.as_os_str().as_bytes());
        text
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let mut parts = text.splitn(3, |&byte| byte == b'\n');
        if parts.next()? != HEADER.as_bytes() {
            return None;
        }
        let mut numbers = std::str::from_utf8(parts.next()?).ok()?.split(' ');
        let identity = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let mut owner = || {
            Some(Owner {
                uid: numbers.next()?.parse().ok()?,
                gid: numbers.next()?.parse().ok()?,
            })
        };
        Some(Self {
            identity,
            lender: owner()?,
            borrower: owner()?,
            path: OsString::from_vec(parts.next()?.to_vec()).into(),
        })
    }

    /// Whether one tree is the other, or lies in it.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.identity == other.identity
            || self.path.starts_with(&other.path)
            || other.path.starts_with(&self.path)
    }

    /// Gives the tree back by its path. A tree that is not there any more needs nothing.
    fn give_back(&self, mode: IdMode) -> io::Result<()> {
        let Some(tree) = self.open()? else {
            return Ok(());
        };
        let given_back = match mode {
            // The next launcher can.
            IdMode::Root if self.is_callers() => return Err(io::ErrorKind::PermissionDenied.into()),
            IdMode::Root => self.give_back_in(tree.as_fd()),
            // Only what the code gave to whom it could become is not the caller's, and here it shows as in a realm.
            IdMode::Rootless { .. } => {
                let user = Owner {
                    uid: BOX_ID,
                    gid: BOX_ID,
                };
                ownership::take_back(tree.as_fd(), (RANGE_FIRST, 2 * RANGE_FIRST), user, None)
            }
        };
        given_back.map_err(io::Error::other)
    }

    /// Whether the sandbox's user is who owned the tree before: only who can map its range can give back the rest.
    #[must_use]
    pub fn is_callers(&self) -> bool {
        self.lender.uid == self.borrower.uid
    }

    /// Gives back what is in the tree, and what the code there gave to whom it could become.
    pub fn give_back_in(&self, tree: BorrowedFd<'_>) -> Result<(), FileError> {
        ownership::give_back(tree, self.borrower, self.lender)?;
        match HostIds::of_user(self.borrower.uid) {
            Some(range) => ownership::take_back(tree, range, self.lender, None),
            None => Ok(()),
        }
    }

    /// A clone of the tree without what is mounted in it: what the sandbox had.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let opened = openat2(
            CWD,
            &self.path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        );
        let source = match opened {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Ok(None);
            }
            opened => opened?,
        };
        let stat = fstat(&source)?;
        // Some file systems number a directory anew when it was not in use for a while; the sandbox's id owns nothing
        // else.
        let same = (stat.st_dev, stat.st_ino) == self.identity || stat.st_uid == self.borrower.uid;
        if !same {
            return Ok(None);
        }
        tree::clone_at(&source, false).map(Some)
    }
}

/// The records in a directory, with their files; one that cannot be read is none.
pub fn list(records: &Path) -> Vec<(PathBuf, Option<OwnerRecord>)> {
    fs::read_dir(records)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| file.extension().is_some_and(|ending| ending == ENDING))
        .map(|file| {
            let record = fs::read(&file)
                .ok()
                .and_then(|text| OwnerRecord::decode(&text));
            (file, record)
        })
        .collect()
}

/// Gives back all that the records of a dead or ending engine name. Whether nothing is left to be given back: else the
/// records stay for the next sweep.
pub fn give_back_all(engine_directory: &Path, mode: IdMode) -> bool {
    let mut whole = true;
    let mut found = Vec::new();
    for (file, record) in list(&records_in(engine_directory)) {
        match record {
            Some(record) => found.push((file, record)),
            None => whole = false,
        }
    }
    // A tree inside another may have been another's.
    found.sort_by_key(|(_, record)| std::cmp::Reverse(record.path.components().count()));
    for (file, record) in found {
        if !record.is_callers() {
            wait_for_end_of(record.borrower.uid);
        }
        whole &= record.give_back(mode).is_ok() && fs::remove_file(file).is_ok();
    }
    whole
}

/// Waits, within bounds, until nothing runs as `uid`: what is still dying may still write.
pub fn wait_for_end_of(uid: u32) {
    let end = Instant::now() + CODE_END;
    while runs_as(uid) && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
}

fn runs_as(uid: u32) -> bool {
    let line = format!("Uid:\t{uid}\t");
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        // What is dead and not yet reaped writes nothing.
        .any(|status| status.contains(&line) && !status.contains("State:\tZ"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn record(path: &str, inode: u64) -> OwnerRecord {
        OwnerRecord {
            path: path.into(),
            identity: (7, inode),
            lender: Owner { uid: 0, gid: 5 },
            borrower: Owner {
                uid: 4_294_837_224,
                gid: 4_294_837_224,
            },
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_whatever_the_path_holds() {
        let base = tempfile::tempdir().unwrap();
        let mut written = record("/a b\nc", 1);
        written.path = OsString::from_vec(b"/bad\xff\n1 2".to_vec()).into();
        let file = written.write(base.path(), "one").unwrap();
        assert_eq!(list(base.path()), [(file, Some(written))]);
    }

    #[test]
    fn a_record_that_cannot_be_read_keeps_its_engine_s_directory() {
        let base = tempfile::tempdir().unwrap();
        assert!(give_back_all(base.path(), IdMode::Root));
        let records = records_in(base.path());
        fs::create_dir(&records).unwrap();
        fs::write(records.join("torn.new"), "stepbox").unwrap();
        assert!(give_back_all(base.path(), IdMode::Root));
        fs::write(records.join("other.record"), "of another version").unwrap();
        assert!(!give_back_all(base.path(), IdMode::Root));
    }

    #[test]
    fn trees_overlap_when_one_is_in_the_other() {
        assert!(record("/a/b", 1).overlaps(&record("/a", 2)));
        assert!(record("/a", 1).overlaps(&record("/a/b", 2)));
        assert!(record("/a", 1).overlaps(&record("/alias", 1)));
        assert!(!record("/a/b", 1).overlaps(&record("/a/c", 2)));
        assert!(!record("/a/b", 1).overlaps(&record("/a/bc", 2)));
    }
}
