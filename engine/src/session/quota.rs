//! What keeps the limit of a session's workspace, homes and caches: a file system of that size where the host gives one,
//! else somebody who looks.
//!
//! A look costs as long as the tree is large, so looks are rare far from the limit, and beside them the free space of the
//! disk is read, which costs nothing: what has not been taken from the disk has not been taken by this session. Between
//! two looks code gets past its limit by what it can write in that time. It cannot do so again and again: a session past
//! its limit may run code that makes room, but only while it is not past that by [`SLACK_BYTES`] or [`SLACK_FILES`].

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{fstat, fstatvfs, statvfs};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{SessionError, unlinked};
use crate::outcome::{AppliedLimit, EnforcedBy, Resource, WorkspaceFull};
use crate::pool::Keeper;
use crate::sandbox::identity::Mode;
use crate::spec::request::Cap;
use crate::spec::{SandboxSpec, WorkspaceSource, mebibytes};
use crate::supervise::Alarm;
use crate::volume::{self, Volume};
use crate::workspace::{FileError, FileReason, Held, display};

/// What a private workspace may hold unless the caller says else, or a tenth of what is free.
const DEFAULT_BYTES: u64 = 10 << 30;
const DEFAULT_STEP: u64 = 256 << 20;
/// How far past its limit a session still runs code, which may make room.
const SLACK_BYTES: u64 = 1 << 30;
const SLACK_FILES: u64 = 100_000;
/// How often the free space is read while code runs.
const TICK: Duration = Duration::from_millis(20);
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);
/// A pause is this many times as long as the look before it.
const SHARE: u32 = 2;
/// What no code writes faster than, nearly: bytes and entries in a second.
const FASTEST_BYTES: u64 = 4 << 30;
const FASTEST_FILES: u64 = 200_000;
/// How long after the last step the look is that tells what it left.
const QUIET: Duration = Duration::from_millis(50);

/// The limits of one session. None: uncapped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Limits {
    pub(super) bytes: Option<u64>,
    pub(super) files: Option<u64>,
}

impl Limits {
    /// `scratch`: where a private workspace is made.
    pub(super) fn of(spec: &SandboxSpec, scratch: &Path) -> Self {
        let bytes = match (spec.quota.bytes, &spec.workspace) {
            (Cap::Max(max), _) => Some(max),
            (Cap::Default, WorkspaceSource::Private) => Some(default_bytes(scratch)),
            (Cap::Default | Cap::Uncapped, _) => None,
        };
        Self {
            bytes,
            files: spec.quota.files,
        }
    }

    pub(super) const fn any(self) -> bool {
        self.bytes.is_some() || self.files.is_some()
    }

    pub(super) fn applied(self, enforced_by: EnforcedBy) -> [AppliedLimit; 2] {
        [
            (Resource::Workspace, self.bytes),
            (Resource::WorkspaceFiles, self.files),
        ]
        .map(|(resource, max)| AppliedLimit {
            resource,
            max,
            enforced_by: match max {
                Some(_) => enforced_by,
                None => EnforcedBy::None,
            },
        })
    }
}

fn default_bytes(scratch: &Path) -> u64 {
    let free = statvfs(scratch).map_or(u64::MAX, |facts| facts.f_bavail * facts.f_frsize);
    let tenth = (free / 10).clamp(1 << 20, DEFAULT_BYTES);
    // In steps, so that one of the same size serves the next session.
    if tenth < DEFAULT_STEP {
        tenth
    } else {
        tenth - tenth % DEFAULT_STEP
    }
}

/// What would keep a limit: a file system of its own cannot be made of a directory of the caller's.
pub(super) fn mechanism(mode: Mode, given: bool) -> EnforcedBy {
    if mode == Mode::Root && !given && volume::offered().is_ok() {
        EnforcedBy::SizedFilesystem
    } else {
        EnforcedBy::Watchdog
    }
}

/// What keeps the limits of one session.
#[derive(Debug)]
pub(super) enum Quota {
    /// There is none.
    Open,
    Sized(Arc<Volume>),
    Watched(Arc<Watched>),
}

impl Quota {
    /// For as long as a sandbox runs, whose first process this is.
    pub(super) async fn enter(
        &self,
        init: BorrowedFd<'_>,
    ) -> Result<Option<Watching>, SessionError> {
        match self {
            Self::Open | Self::Sized(_) => Ok(None),
            Self::Watched(watched) => watched.enter(init).await.map(Some),
        }
    }

    /// Refuses what a caller wants to write, if there is no room for it. The kernel does where there is a volume.
    pub(super) async fn admit(
        &self,
        path: &[u8],
        bytes: u64,
        files: u64,
    ) -> Result<(), SessionError> {
        match self {
            Self::Open | Self::Sized(_) => Ok(()),
            Self::Watched(watched) => watched.admit(path, bytes, files).await,
        }
    }

    /// Something was written by a caller.
    pub(super) fn wrote(&self, bytes: u64, files: u64) {
        if let Self::Watched(watched) = self {
            let mut known = watched.known();
            known.held.bytes += bytes;
            known.held.files += files;
        }
    }

    /// What a result says of it.
    pub(super) fn note(&self) -> Option<String> {
        let Self::Sized(volume) = self else {
            return None;
        };
        let room = volume.room().ok()?;
        room.is_full().then(|| {
            let rest = if room.files == 0 {
                "no file more can be made".to_owned()
            } else {
                format!("{} bytes are left", room.bytes)
            };
            format!("the workspace, with the home and the caches, is at its limit: {rest}")
        })
    }

    pub(super) fn volume(&self) -> Option<&Arc<Volume>> {
        match self {
            Self::Sized(volume) => Some(volume),
            Self::Open | Self::Watched(_) => None,
        }
    }
}

/// A session's limits, and what is known of how far it is from them.
#[derive(Debug)]
pub(super) struct Watched {
    keeper: Keeper,
    /// Where the session's files are.
    disks: Vec<OwnedFd>,
    limits: Limits,
    /// What was there from the beginning, and is the engine's.
    base: Held,
    known: Mutex<Known>,
    alarm: watch::Sender<Option<WorkspaceFull>>,
    running: AtomicUsize,
    /// The pid namespaces of those that run.
    sandboxes: Mutex<HashSet<String>>,
    woken: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    held: Held,
    /// Code has run since the look.
    stale: bool,
    /// What code may hold now: the limits, or what a session past them holds.
    bytes: Option<u64>,
    files: Option<u64>,
}

/// A sandbox of the session runs.
#[derive(Debug)]
pub(super) struct Watching {
    watched: Arc<Watched>,
    /// Its pid namespace.
    namespace: Option<String>,
}

impl Watching {
    pub(super) fn alarm(&self) -> Alarm {
        Alarm::new(self.watched.alarm.subscribe())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(namespace) = &self.namespace {
            self.watched.sandboxes().remove(namespace);
        }
        self.watched.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watched {
    /// Begins to watch, before any code has run.
    pub(super) async fn begin(
        keeper: Keeper,
        disks: Vec<OwnedFd>,
        limits: Limits,
        given: bool,
        closing: CancellationToken,
    ) -> Result<Arc<Self>, SessionError> {
        let found = keeper.measure().await?;
        // The caller's own files count, the engine's do not.
        let base = if given {
            Held {
                hidden: found.hidden,
                ..Held::default()
            }
        } else {
            found
        };
        let watched = Arc::new(Self {
            keeper,
            disks,
            limits,
            base,
            known: Mutex::new(Known {
                bytes: limits.bytes,
                files: limits.files,
                ..Known::default()
            }),
            alarm: watch::Sender::new(None),
            running: AtomicUsize::new(0),
            sandboxes: Mutex::default(),
            woken: Notify::new(),
        });
        watched.take_in(found);
        tokio::spawn(Arc::clone(&watched).patrol(closing));
        Ok(watched)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn enter(self: &Arc<Self>, init: BorrowedFd<'_>) -> Result<Watching, SessionError> {
        if self.alarm.borrow().is_some() {
            // Whoever ran last may have been stopped for it, or a caller may have made room.
            self.look(None).await?;
            self.allow_what_is_there();
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        self.known().stale = true;
        let namespace = unlinked::namespace_of(init);
        self.sandboxes().extend(namespace.clone());
        let watching = Watching {
            watched: Arc::clone(self),
            namespace,
        };
        self.woken.notify_one();
        Ok(watching)
    }

    /// Nothing but what makes room may run in a session that is past its limit, and that has to be able to run.
    fn allow_what_is_there(&self) {
        let mut known = self.known();
        let allow = |limit: Option<u64>, held: u64, slack: u64| {
            limit.map(|limit| held.clamp(limit, limit.saturating_add(slack)))
        };
        known.bytes = allow(self.limits.bytes, known.held.bytes, SLACK_BYTES);
        known.files = allow(self.limits.files, known.held.files, SLACK_FILES);
        let full = self.judge(&known);
        drop(known);
        self.alarm.send_replace(full);
    }

    fn judge(&self, known: &Known) -> Option<WorkspaceFull> {
        let Held {
            bytes,
            files,
            hidden,
        } = known.held;
        let past = |allowed: Option<u64>, held| allowed.is_some_and(|allowed| held > allowed);
        match self.limits {
            Limits {
                bytes: Some(max), ..
            } if past(known.bytes, bytes) => Some(WorkspaceFull::Bytes { held: bytes, max }),
            Limits {
                files: Some(max), ..
            } if past(known.files, files) => Some(WorkspaceFull::Files { held: files, max }),
            _ => hidden.then_some(WorkspaceFull::Hidden),
        }
    }

    fn take_in(&self, found: Held) {
        let mut known = self.known();
        known.held = Held {
            bytes: found.bytes.saturating_sub(self.base.bytes),
            files: found.files.saturating_sub(self.base.files),
            hidden: found.hidden && !self.base.hidden,
        };
        // Room that was made stays free.
        let lower = |allowed: Option<u64>, limit: Option<u64>, held: u64| {
            Some(allowed?.min(held.max(limit?)))
        };
        known.bytes = lower(known.bytes, self.limits.bytes, known.held.bytes.max(1));
        known.files = lower(known.files, self.limits.files, known.held.files.max(1));
        known.stale = self.running.load(Ordering::Acquire) > 0;
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashSet<String>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What sandboxes that run keep without a name.
    async fn unlinked(&self) -> u64 {
        let namespaces = self.sandboxes().clone();
        let devices: HashSet<_> = self
            .disks
            .iter()
            .filter_map(|disk| fstat(disk).ok())
            .map(|facts| facts.st_dev)
            .collect();
        let found = tokio::task::spawn_blocking(move || unlinked::bytes(&namespaces, &devices));
        found.await.unwrap_or(0)
    }

    /// Looks, and rings if code holds more than it may. `lost`: what the disk has lost since the session held so much.
    async fn look(&self, lost: Option<(u64, u64)>) -> Result<(), SessionError> {
        let mut found = self.keeper.measure().await?;
        let (left, _) = self.left();
        let now = found.bytes.saturating_sub(self.base.bytes);
        if lost.is_some_and(|(lost, then)| lost.saturating_sub(now.saturating_sub(then)) > left / 2)
        {
            found.bytes = found.bytes.saturating_add(self.unlinked().await);
        }
        let before = *self.known();
        self.take_in(found);
        let now = Known {
            bytes: before.bytes,
            files: before.files,
            ..*self.known()
        };
        let full = self.judge(&now);
        self.alarm.send_if_modified(|rung| {
            let other = *rung != full;
            *rung = full;
            other
        });
        Ok(())
    }

    /// What is free where the session's files are.
    fn free(&self) -> u64 {
        let disks = self.disks.iter();
        disks
            .filter_map(|disk| fstatvfs(disk.as_fd()).ok())
            .map(|facts| facts.f_bfree * facts.f_frsize)
            .sum()
    }

    /// How much code may still take.
    fn left(&self) -> (u64, u64) {
        let known = self.known();
        let left = |allowed: Option<u64>, held| {
            allowed.map_or(u64::MAX, |allowed| allowed.saturating_sub(held))
        };
        (
            left(known.bytes, known.held.bytes),
            left(known.files, known.held.files),
        )
    }

    /// Looks while code runs, until the session ends.
    async fn patrol(self: Arc<Self>, closing: CancellationToken) {
        let ended = async {
            loop {
                while self.running.load(Ordering::Acquire) == 0 {
                    self.woken.notified().await;
                }
                if self.round().await.is_err() {
                    // The keeper is gone: there is nobody who could look, so nobody may write.
                    self.alarm.send_replace(Some(WorkspaceFull::Hidden));
                    return;
                }
            }
        };
        tokio::select! {
            () = ended => {}
            () = closing.cancelled() => {}
        }
    }

    /// From the beginning of a step until none has run for a while.
    async fn round(&self) -> Result<(), SessionError> {
        let mut looked = Instant::now();
        let mut took = Duration::ZERO;
        let mut free = self.free();
        // What is kept without a name is taken once, and found at any look of the round.
        let (free_first, held_first) = (free, self.known().held.bytes);
        let mut quiet_since = None;
        loop {
            tokio::time::sleep(TICK).await;
            if self.running.load(Ordering::Acquire) == 0 {
                let since = *quiet_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= QUIET {
                    return self.look(None).await;
                }
                continue;
            }
            quiet_since = None;
            let (bytes, files) = self.left();
            let taken = free.saturating_sub(self.free());
            let waited = looked.elapsed();
            let due = waited >= pause(bytes, files, took);
            if due || (taken > bytes / 2 && waited >= took) {
                free = self.free();
                let begun = Instant::now();
                let lost = free_first.saturating_sub(free);
                self.look(Some((lost, held_first))).await?;
                looked = Instant::now();
                took = begun.elapsed();
            }
        }
    }

    async fn admit(&self, path: &[u8], bytes: u64, files: u64) -> Result<(), SessionError> {
        if self.known().stale || !self.fits(bytes, files) {
            // What was known may be more than there is, or less.
            self.look(None).await?;
        }
        if self.fits(bytes, files) {
            return Ok(());
        }
        Err(FileError {
            path: display(path),
            reason: FileReason::NoSpace,
            message: self.described(),
        }
        .into())
    }

    fn fits(&self, bytes: u64, files: u64) -> bool {
        let held = self.known().held;
        let fits = |limit: Option<u64>, held: u64, more: u64| {
            limit.is_none_or(|limit| held.saturating_add(more) <= limit)
        };
        fits(self.limits.bytes, held.bytes, bytes) && fits(self.limits.files, held.files, files)
    }

    fn described(&self) -> String {
        let bytes = self
            .limits
            .bytes
            .map(|max| format!("workspace_max_bytes={max} ({})", mebibytes(max)));
        let files = self
            .limits
            .files
            .map(|max| format!("workspace_max_files={max}"));
        let limits: Vec<_> = bytes.into_iter().chain(files).collect();
        format!("there is no room for it: {}", limits.join(", "))
    }
}

fn pause(bytes: u64, files: u64, took: Duration) -> Duration {
    let by_bytes = Duration::from_micros(bytes / (FASTEST_BYTES / 1_000_000));
    let by_files = Duration::from_micros(files.saturating_mul(1_000_000) / FASTEST_FILES);
    by_bytes
        .min(by_files)
        .clamp(SHORTEST, LONGEST)
        .max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_far_from_the_limits_and_frequent_near_one() {
        assert_eq!(pause(u64::MAX, u64::MAX, Duration::ZERO), LONGEST);
        assert_eq!(pause(u64::MAX, 10, Duration::ZERO), SHORTEST);
        assert_eq!(pause(4096, u64::MAX, Duration::ZERO), SHORTEST);
        let took = Duration::from_millis(300);
        assert_eq!(pause(0, 0, took), took * SHARE);
    }

    #[test]
    fn an_uncapped_limit_is_kept_by_nothing() {
        let limits = Limits {
            bytes: Some(5),
            files: None,
        };
        let [bytes, files] = limits.applied(EnforcedBy::Watchdog);
        assert_eq!(
            (bytes.max, bytes.enforced_by),
            (Some(5), EnforcedBy::Watchdog)
        );
        assert_eq!((files.max, files.enforced_by), (None, EnforcedBy::None));
        assert!(limits.any() && !Limits::default().any());
    }
}
