//! The directories of one engine, and the list of those that dead engines left.
//!
//! An engine holds a lock on its directory as long as it lives; what is not locked belongs to nobody.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};

use crate::launcher::message::Setup;
use crate::launcher::owners::give_back_all;
use crate::launcher::scratch::remove_directory;
use crate::sandbox::identity::Mode;

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Why an engine has no place to be.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{} is not a directory of this user's alone; set TMPDIR to a directory that is",
        .0.display()
    )]
    NotOurs(PathBuf),
}

/// The directories of this engine.
#[derive(Debug)]
pub struct RuntimeDir {
    /// Names the engine, its directories and its cgroups.
    pub id: String,
    /// Sockets, tokens, mount points; 0700.
    pub state: PathBuf,
    /// Private workspaces and homes; 0700, on disk where there is one.
    pub scratch: PathBuf,
    /// Whether `scratch` is in memory, because the host has nothing else.
    pub scratch_in_memory: bool,
    /// What dead engines left.
    stale: Vec<PathBuf>,
    _lock: File,
    /// On `scratch` itself: an engine that was given another place for its state knows this one by it.
    _scratch_lock: File,
}

impl RuntimeDir {
    /// Makes the directories, below `$XDG_RUNTIME_DIR` or the temporary directory, and lists those of dead engines for the launcher to remove: it
    /// has the rights for whatever modes code left there.
    pub fn create() -> Result<Self, RuntimeDirError> {
        let uid = rustix::process::geteuid().as_raw();
        let state_base = match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(path) if Path::new(&path).is_absolute() && Path::new(&path).is_dir() => {
                PathBuf::from(path).join("stepbox")
            }
            _ => std::env::temp_dir().join(format!("stepbox-{uid}")),
        };
        own_directory(&state_base)?;
        let (scratch_parent, scratch_in_memory) = scratch_parent();
        let scratch_base = scratch_parent.join(format!("stepbox-{uid}"));
        own_directory(&scratch_base)?;
        let stale = stale(&state_base, &scratch_base);
        let random: [u8; 6] = random_bytes();
        let id = random
            .iter()
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let state = state_base.join(format!("engine-{id}"));
        let scratch = scratch_base.join(format!("data-{id}"));
        make_directory(&state)?;
        let lock_path = state.join("lock");
        let lock = File::create(&lock_path).map_err(|source| RuntimeDirError::Io {
            path: lock_path.clone(),
            source,
        })?;
        flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            RuntimeDirError::Io {
                path: lock_path,
                source: errno.into(),
            }
        })?;
        make_directory(&scratch)?;
        let failed = |source| RuntimeDirError::Io {
            path: scratch.clone(),
            source,
        };
        let scratch_lock = File::open(&scratch).map_err(failed)?;
        flock(
            scratch_lock.as_fd(),
            FlockOperation::NonBlockingLockExclusive,
        )
        .map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            id,
            state,
            scratch,
            scratch_in_memory,
            stale,
            _lock: lock,
            _scratch_lock: scratch_lock,
        })
    }

    /// What a launcher must know.
    #[must_use]
    pub fn setup(&self) -> Setup {
        Setup {
            engine_id: self.id.clone(),
            state: self.state.clone(),
            scratch: self.scratch.clone(),
            stale: self.stale.clone(),
        }
    }

    /// Whether the engine of this name is dead, by its lock.
    #[must_use]
    pub fn is_dead(&self, id: &str) -> bool {
        id != self.id
            && self
                .state
                .parent()
                .is_none_or(|base| !is_locked(&base.join(format!("engine-{id}"))))
    }

    /// Gives back what engines had that died since this one began, so that it can be used again. What is theirs else is
    /// left to the sweep.
    pub(super) fn give_back_for_the_dead(&self) {
        let Some(base) = self.scratch.parent() else {
            return;
        };
        for id in names(base, "data-") {
            if self.is_dead(&id) && !is_held(&base.join(format!("data-{id}"))) {
                give_back_all(&base.join(format!("data-{id}")), Mode::Root);
            }
        }
    }

    /// Removes the directories, once what is recorded there has been given back.
    pub fn remove(&self) {
        if give_back_all(&self.scratch, Mode::Root) {
            remove_directory(&self.scratch);
        }
        remove_directory(&self.state);
    }
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel gives up to 256 bytes whole once it is seeded, which a running system is.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

/// Where private workspaces go, and whether that is in memory: `$TMPDIR` on disk, else `/var/tmp`. Memory would be
/// charged to the step that writes.
#[must_use]
pub fn scratch_parent() -> (PathBuf, bool) {
    let candidates = [std::env::temp_dir(), PathBuf::from("/var/tmp")];
    for candidate in &candidates {
        if candidate.is_dir() && !in_memory(candidate) {
            return (candidate.clone(), false);
        }
    }
    let [first, _] = candidates;
    (first, true)
}

fn in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC)
}

fn make_directory(path: &Path) -> Result<(), RuntimeDirError> {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(|source| RuntimeDirError::Io {
            path: path.to_owned(),
            source,
        })
}

/// A directory in a place that others may write to: it must be ours and closed to them, whoever made it.
fn own_directory(path: &Path) -> Result<(), RuntimeDirError> {
    match make_directory(path) {
        Err(RuntimeDirError::Io { source, .. })
            if source.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let metadata = fs::symlink_metadata(path).map_err(|source| RuntimeDirError::Io {
        path: path.to_owned(),
        source,
    })?;
    let ours = metadata.is_dir()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o077 == 0;
    if ours {
        Ok(())
    } else {
        Err(RuntimeDirError::NotOurs(path.to_owned()))
    }
}

fn is_locked(state: &Path) -> bool {
    File::open(state.join("lock"))
        .is_ok_and(|lock| flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Whether an engine that lives has this directory for its data.
fn is_held(data: &Path) -> bool {
    File::open(data)
        .is_ok_and(|data| flock(data.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err())
}

/// The engines with a directory in `base`.
fn names(base: &Path, prefix: &str) -> Vec<String> {
    fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix(prefix)?.to_owned())
        })
        .collect()
}

/// The directories of engines that are dead.
fn stale(state_base: &Path, scratch_base: &Path) -> Vec<PathBuf> {
    let mut stale = Vec::new();
    for id in names(state_base, "engine-") {
        let state = state_base.join(format!("engine-{id}"));
        if !is_locked(&state) && is_settled(&state) {
            stale.push(state);
        }
    }
    for id in names(scratch_base, "data-") {
        let state = state_base.join(format!("engine-{id}"));
        let data = scratch_base.join(format!("data-{id}"));
        // One whose state is elsewhere is a moment away from its lock.
        let abandoned = stale.contains(&state) || (!state.exists() && is_old(&data));
        if abandoned && !is_held(&data) {
            stale.push(data);
        }
    }
    stale
}

/// An engine that has made its directory and not yet its lock is a second away from it.
fn is_settled(state: &Path) -> bool {
    state.join("lock").exists() || is_old(state)
}

fn is_old(path: &Path) -> bool {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|made| made.elapsed().is_ok_and(|age| age.as_secs() > 60))
}
