//! The store: a directory of the user's, in which each entry is named by a digest and is whole or not there.
//!
//! An entry is built beside, under a lock that one engine of the user's holds, and renamed when it is complete. What an
//! engine that was killed had built is gone on with. Only the engine writes here; sandboxes see entries by read-only
//! mounts.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::archive::{Part, open_directories};

/// Entries that are kept.
const MOST_ENTRIES: usize = 16;
/// Bytes of all entries that are kept.
const MOST_BYTES: u64 = 1 << 30;
/// How long an entry is kept that no session asks for, and a part that no engine goes on with.
const OLDEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// In the name of an entry that is not complete.
const PART: &str = ".part";
/// In the name of what tells how far a part is.
const PROGRESS: &str = ".next";
/// In the name of an entry that is being removed.
const GONE: &str = ".gone";

/// The store of this user.
#[derive(Clone, Debug)]
pub struct Store {
    /// Resolved: mounts are made of what is in it.
    directory: PathBuf,
}

impl Store {
    /// Opens the first of these that is or can become a directory of this user's alone.
    ///
    /// # Errors
    /// Why the last one is none.
    pub fn open(candidates: &[PathBuf]) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for candidate in candidates {
            match own_directory(candidate) {
                Ok(directory) => return Ok(Self { directory }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A complete entry. That it was asked for is noted.
    #[must_use]
    pub fn find(&self, digest: &str) -> Option<PathBuf> {
        let entry = self.directory.join(digest);
        let found = entry.symlink_metadata().ok()?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        if let Ok(directory) = File::open(&entry) {
            // One that cannot be noted is removed the sooner.
            let _ = directory.set_modified(SystemTime::now());
        }
        Some(entry)
    }

    /// Begins an entry, or goes on with it. None: another engine is building.
    ///
    /// # Errors
    /// The kernel's.
    pub fn begin(&self, digest: &str) -> io::Result<Option<Building>> {
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.directory.join("lock"))?;
        match flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let place = self.directory.join(format!("{digest}{PART}"));
        let progress = self.directory.join(format!("{digest}{PROGRESS}"));
        let part = match fs::read_to_string(&progress) {
            Ok(text) if place.is_dir() => read_progress(&text),
            _ => None,
        };
        if part.is_none() {
            remove(&place)?;
            open_directories(&place)?;
        }
        Ok(Some(Building {
            store: self.clone(),
            digest: digest.to_owned(),
            place,
            progress,
            part: part.unwrap_or_default(),
            _lock: lock,
        }))
    }

    /// Removes what is old, then what was asked for longest ago until the rest is small enough. To be called under the
    /// lock. A sandbox that still sees an entry which goes compiles again, as it did before.
    fn trim(&self, kept: &str) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let (Ok(name), Ok(found)) = (entry.file_name().into_string(), entry.metadata()) else {
                continue;
            };
            let age = found
                .modified()
                .ok()
                .and_then(|modified| modified.elapsed().ok())
                .unwrap_or_default();
            let unfinished = name.ends_with(PART) || name.ends_with(PROGRESS);
            if name.ends_with(GONE) || (age > OLDEST && name != "lock" && name != kept) {
                remove(&entry.path())?;
            } else if found.is_dir() && !unfinished {
                entries.push((name == kept, age, name));
            }
        }
        // That of this moment first, then by when it was asked for.
        entries.sort_by_key(|(kept, age, _)| (!kept, *age));
        let mut bytes = 0;
        for (nth, (_, _, name)) in entries.iter().enumerate() {
            let entry = self.directory.join(name);
            bytes += size(&entry);
            if nth > 0 && (nth >= MOST_ENTRIES || bytes > MOST_BYTES) {
                let gone = self.directory.join(format!("{name}{GONE}"));
                fs::rename(&entry, &gone)?;
                remove(&gone)?;
            }
        }
        Ok(())
    }
}

/// The right to build one entry: the lock goes with it.
#[derive(Debug)]
pub struct Building {
    store: Store,
    digest: String,
    place: PathBuf,
    progress: PathBuf,
    pub part: Part,
    _lock: File,
}

impl Building {
    /// Takes what a round has made.
    ///
    /// # Errors
    /// What cannot be taken; the part is as far as it was.
    pub fn take(&mut self, records: &[u8]) -> Result<(), super::UnpackError> {
        let mut part = self.part;
        part.unpack(&self.place, records)?;
        self.note(part)
    }

    /// Takes what a round has made that was stopped: the module that it was at is not to blame, and is done again.
    pub fn take_interrupted(mut self, records: &[u8]) {
        let mut part = self.part;
        if part.unpack(&self.place, records).is_ok() && !part.complete {
            part.next -= 1;
            // Without the note the round is done again.
            let _ = self.note(part);
        }
    }

    fn note(&mut self, part: Part) -> Result<(), super::UnpackError> {
        self.part = part;
        let next = self.progress.with_extension("new");
        let noted = fs::write(&next, write_progress(&part))
            .and_then(|()| fs::rename(&next, &self.progress));
        noted.map_err(|source| super::UnpackError::Io {
            path: self.progress.clone(),
            source,
        })
    }

    /// Makes the entry visible. `directories` are made in it to be mounted on, and `links`, from a name to where it
    /// leads, where nothing is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn publish(
        self,
        directories: &[&Path],
        links: &[(PathBuf, PathBuf)],
    ) -> io::Result<PathBuf> {
        let below = |path: &Path| self.place.join(path.strip_prefix("/").unwrap_or(path));
        for directory in directories {
            open_directories(&below(directory))?;
        }
        for (name, target) in links {
            link_shallowest(&self.place, name, target)?;
        }
        // A name on disk whose content is not there yet would be bytecode that Python believes.
        rustix::fs::syncfs(File::open(&self.place)?)?;
        let entry = self.store.directory.join(&self.digest);
        remove(&entry)?;
        fs::rename(&self.place, &entry)?;
        remove(&self.progress)?;
        if let Err(error) = self.store.trim(&self.digest) {
            tracing::debug!(%error, "old bytecode could not be removed");
        }
        Ok(entry)
    }

    /// Forgets what was built: it is not to be gone on with.
    pub fn give_up(self) {
        let _ = remove(&self.progress);
        let _ = remove(&self.place);
    }
}

/// Makes a link for `name` at the first part of it that is not there, to the same part of `target`, which ends with
/// `name`. Nothing is made when all of it is there.
fn link_shallowest(place: &Path, name: &Path, target: &Path) -> io::Result<()> {
    let name = name.strip_prefix("/").unwrap_or(name);
    let Some(base) = target.ancestors().nth(name.components().count()) else {
        return Ok(());
    };
    let mut below = PathBuf::new();
    for part in name.components() {
        below.push(part);
        match place.join(&below).symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(()),
            Err(_) => return symlink(base.join(&below), place.join(&below)),
        }
    }
    Ok(())
}

/// After a power cut what was written may not be there: a part is gone on with in the same boot only.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn write_progress(part: &Part) -> String {
    format!("{} {} {} {}", boot(), part.next, part.files, part.bytes)
}

fn read_progress(text: &str) -> Option<Part> {
    let mut words = text.split(' ');
    let same = words.next()? == boot();
    let mut number = || words.next()?.parse().ok();
    let part = Part {
        next: number()?,
        files: number()?,
        bytes: number()?,
        complete: false,
    };
    same.then_some(part)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes of the files below.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
        .map(|(found, path)| {
            if found.is_dir() {
                size(&path)
            } else {
                found.len()
            }
        })
        .sum()
}

/// Makes a directory that is this user's alone, and resolves it.
fn own_directory(path: &Path) -> io::Result<PathBuf> {
    const OTHERS_WRITE: u32 = 0o022;
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = path.symlink_metadata()?;
    let ours = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & OTHERS_WRITE == 0;
    if !ours {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    path.canonicalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(place: &Path) -> Store {
        Store::open(&[place.join("a/bytecode")]).unwrap()
    }

    fn round(number: u64, name: &str) -> Vec<u8> {
        let mut records = Vec::new();
        for (kind, name) in [(b'N', number.to_string().as_str()), (b'F', name)] {
            records.push(kind);
            records.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
            records.extend(name.as_bytes());
            records.extend(0_u32.to_le_bytes());
        }
        records
    }

    #[test]
    fn an_entry_is_there_when_it_is_complete_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let store = store(place.path());
        let mut building = store.begin("d").unwrap().unwrap();
        building.take(&round(0, "/x/a.pyc")).unwrap();
        assert_eq!(store.find("d"), None);
        assert!(store.begin("d").unwrap().is_none(), "one builds at a time");
        assert!(store.begin("e").unwrap().is_none(), "whatever it is");
        let links = ["/x", "/y/z"].map(|name| {
            let target = PathBuf::from(format!("/cache{name}"));
            (PathBuf::from(name), target)
        });
        let entry = building.publish(&[Path::new("/opt/m")], &links).unwrap();
        assert_eq!(store.find("d"), Some(entry.clone()));
        assert!(entry.join("x/a.pyc").is_file() && entry.join("opt/m").is_dir());
        assert_eq!(
            fs::read_link(entry.join("y")).unwrap(),
            Path::new("/cache/y")
        );
        let directory = entry.parent().unwrap();
        assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700);
        let mut left: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["d", "lock"]);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_no_store() {
        let place = tempfile::tempdir().unwrap();
        let [shared, link, own] = ["shared", "link", "own"].map(|name| place.path().join(name));
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        symlink(&own, &link).unwrap();
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Store::open(&[shared.clone(), link.clone()]).is_err());
        let store = Store::open(&[shared, link, own.clone()]).unwrap();
        assert_eq!(store.directory, own.canonicalize().unwrap());
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_an_engine_that_died_had_built_is_gone_on_with() {
        let place = tempfile::tempdir().unwrap();
        let store = store(place.path());
        let mut building = store.begin("d").unwrap().unwrap();
        building.take(&round(4, "/x/a.pyc")).unwrap();
        drop(building);
        assert_eq!(store.find("d"), None);
        let building = store.begin("d").unwrap().unwrap();
        assert_eq!((building.part.next, building.part.files), (5, 2));
        building.take_interrupted(&round(9, "/x/b.pyc"));
        let building = store.begin("d").unwrap().unwrap();
        assert_eq!((building.part.next, building.part.files), (9, 3));
        building.take_interrupted(b"");
        let building = store.begin("d").unwrap().unwrap();
        assert_eq!((building.part.next, building.part.files), (9, 3));
        drop(building);
        // In another boot nothing is known of what is on disk.
        let progress = store.directory.join("d.next");
        fs::write(&progress, "another 5 1 0").unwrap();
        let building = store.begin("d").unwrap().unwrap();
        assert_eq!(building.part, Part::default());
        assert_eq!(
            fs::read_dir(store.directory.join("d.part"))
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn the_entries_that_nobody_asks_for_make_room() {
        let place = tempfile::tempdir().unwrap();
        let store = store(place.path());
        let publish = |name: &str| {
            let building = store.begin(name).unwrap().unwrap();
            building.publish(&[], &[]).unwrap()
        };
        let age = |path: &Path, seconds| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            File::open(path).unwrap().set_modified(then).unwrap();
        };
        for number in 0..=MOST_ENTRIES {
            let path = publish(&format!("e{number}"));
            age(&path, 1000 - number as u64);
        }
        assert_eq!(store.find("e0"), None);
        let first = store.find("e1").unwrap();
        publish("another");
        assert_eq!(store.find("e2"), None, "asked for longest ago");
        age(&first, OLDEST.as_secs() + 1);
        publish("one more");
        assert!(!first.exists(), "too old");
    }
}
