//! A session whose limits no file system keeps: somebody looks at its files, and rings when they are too many.
//!
//! A look costs as long as the tree is large, so looks are rare far from the limit, and beside them the free space of the
//! disk is read, which costs nothing: what has not been taken from the disk has not been taken by this session. Between
//! two looks code gets past its limit by what it can write in that time. It cannot do so again and again: a session past
//! its limit may run code that makes room, but only while it is not past that by [`SLACK_BYTES`] or [`SLACK_FILES`].

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{fstat, fstatvfs};
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::sync::CancellationToken;

use super::place::Seen;
use super::quota::Limits;
use super::slots::Slots;
use super::{SessionError, unlinked};
use crate::outcome::WorkspaceFull;
use crate::pool::Keeper;
use crate::spec::mebibytes;
use crate::supervise::Alarm;
use crate::workspace::{FileError, FileReason, Held, display};

/// How far past its limit a session still runs code, which may make room.
const SLACK_BYTES: u64 = 1 << 30;
const SLACK_FILES: u64 = 100_000;
/// What a session past its limit may grow by while it makes room: a file's own map of blocks is written late, and what
/// removes files may make one.
const GROWTH_BYTES: u64 = 1 << 20;
const GROWTH_FILES: u64 = 16;
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

/// Who looks: a keeper beside the one that serves files, which a look must not keep waiting. It is made for the first look.
#[derive(Debug)]
pub(super) struct Looker {
    slots: Arc<Slots>,
    seen: Seen,
    keeper: OnceCell<Keeper>,
}

impl Looker {
    pub(super) const fn new(slots: Arc<Slots>, seen: Seen) -> Self {
        Self {
            slots,
            seen,
            keeper: OnceCell::const_new(),
        }
    }

    async fn look(&self) -> Result<Held, SessionError> {
        let make = || self.slots.keeper(&self.seen, 0);
        Ok(self.keeper.get_or_try_init(make).await?.measure().await?)
    }
}

/// A session's limits, and what is known of how far it is from them.
#[derive(Debug)]
pub(super) struct Watched {
    looker: Looker,
    /// Where the session's files are.
    disks: Vec<OwnedFd>,
    limits: Limits,
    /// What was there from the beginning, and is the engine's.
    base: Held,
    known: Mutex<Known>,
    alarm: watch::Sender<Option<WorkspaceFull>>,
    running: AtomicUsize,
    /// The first processes of those that run.
    sandboxes: Mutex<Vec<Arc<OwnedFd>>>,
    woken: Notify,
}

/// What is free on the disks.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    bytes: u64,
    files: u64,
}

impl Free {
    fn less(self, now: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(now.bytes),
            files: self.files.saturating_sub(now.files),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    held: Held,
    /// Code has run since the look.
    stale: bool,
    /// What was free then.
    free: Free,
    /// What code may hold now: the limits, or what a session past them holds.
    bytes: Option<u64>,
    files: Option<u64>,
}

/// A sandbox of the session runs.
#[derive(Debug)]
pub(super) struct Watching {
    watched: Arc<Watched>,
    /// Of the sandbox; none: there was no descriptor left for it.
    init: Option<Arc<OwnedFd>>,
}

impl Watching {
    pub(super) fn alarm(&self) -> Alarm {
        Alarm::new(self.watched.alarm.subscribe())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(init) = &self.init {
            let mut sandboxes = self.watched.sandboxes();
            sandboxes.retain(|other| !Arc::ptr_eq(other, init));
        }
        self.watched.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watched {
    /// Begins to watch, before any code has run. `found`: what is there.
    pub(super) fn begin(
        looker: Looker,
        found: Held,
        disks: Vec<OwnedFd>,
        limits: Limits,
        closing: CancellationToken,
    ) -> Arc<Self> {
        // The caller's own files count, the engine's do not.
        let base = if looker.seen.given {
            Held {
                hidden: found.hidden,
                ..Held::default()
            }
        } else {
            found
        };
        let watched = Arc::new(Self {
            looker,
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
        watched.known().free = watched.free();
        tokio::spawn(Arc::clone(&watched).patrol(closing));
        watched
    }

    /// Something was written by a caller.
    pub(super) fn wrote(&self, bytes: u64, files: u64) {
        let mut known = self.known();
        known.held.bytes += bytes;
        known.held.files += files;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn enter(
        self: &Arc<Self>,
        init: BorrowedFd<'_>,
    ) -> Result<Watching, SessionError> {
        if self.alarm.borrow().is_some() {
            // Whoever ran last may have been stopped for it, or a caller may have made room.
            self.look(None).await?;
            self.allow_what_is_there();
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        self.known().stale = true;
        let init = init.try_clone_to_owned().ok().map(Arc::new);
        self.sandboxes().extend(init.clone());
        let watching = Watching {
            watched: Arc::clone(self),
            init,
        };
        self.woken.notify_one();
        Ok(watching)
    }

    /// Nothing but what makes room may run in a session that is past its limit, and that has to be able to run.
    fn allow_what_is_there(&self) {
        let mut known = self.known();
        let allow = |limit: Option<u64>, held: u64, growth: u64, slack: u64| {
            limit.map(|limit| allowed(limit, held, growth).min(limit.saturating_add(slack)))
        };
        known.bytes = allow(
            self.limits.bytes,
            known.held.bytes,
            GROWTH_BYTES,
            SLACK_BYTES,
        );
        known.files = allow(
            self.limits.files,
            known.held.files,
            GROWTH_FILES,
            SLACK_FILES,
        );
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
        let lower = |now: Option<u64>, limit: Option<u64>, held: u64, growth: u64| {
            Some(now?.min(allowed(limit?, held, growth)))
        };
        known.bytes = lower(
            known.bytes,
            self.limits.bytes,
            known.held.bytes,
            GROWTH_BYTES,
        );
        known.files = lower(
            known.files,
            self.limits.files,
            known.held.files,
            GROWTH_FILES,
        );
        known.stale = self.running.load(Ordering::Acquire) > 0;
    }

    fn sandboxes(&self) -> MutexGuard<'_, Vec<Arc<OwnedFd>>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What sandboxes that run keep without a name.
    async fn unlinked(&self) -> u64 {
        let sandboxes = self.sandboxes().clone();
        let devices: HashSet<_> = self
            .disks
            .iter()
            .filter_map(|disk| fstat(disk).ok())
            .map(|facts| facts.st_dev)
            .collect();
        let found = tokio::task::spawn_blocking(move || {
            let inits = sandboxes.iter();
            let namespaces = inits.filter_map(|init| unlinked::namespace_of(init.as_fd()));
            unlinked::bytes(&namespaces.collect(), &devices)
        });
        found.await.unwrap_or(0)
    }

    /// Looks, and rings if code holds more than it may. `first`: how much was free when the session held so much.
    async fn look(&self, first: Option<(u64, u64)>) -> Result<(), SessionError> {
        let free = self.free();
        let mut found = self.looker.look().await?;
        let (left, _) = self.left();
        let now = found.bytes.saturating_sub(self.base.bytes);
        let unseen = first.map_or(0, |(then_free, then_held)| {
            let lost = then_free.saturating_sub(free.bytes);
            lost.saturating_sub(now.saturating_sub(then_held))
        });
        if unseen > left / 2 {
            found.bytes = found.bytes.saturating_add(self.unlinked().await);
        }
        let before = *self.known();
        self.take_in(found);
        self.known().free = free;
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
    fn free(&self) -> Free {
        let mut free = Free::default();
        for facts in self.disks.iter().filter_map(|disk| fstatvfs(disk).ok()) {
            free.bytes += facts.f_bfree * facts.f_frsize;
            free.files += facts.f_ffree;
        }
        free
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
        let mut quiet_since = None;
        // What is kept without a name is taken once, and found at any look of the round.
        let first = (self.free().bytes, self.known().held.bytes);
        loop {
            tokio::time::sleep(TICK).await;
            let (bytes, files) = self.left();
            let taken = self.known().free.less(self.free());
            if self.running.load(Ordering::Acquire) == 0 {
                let since = *quiet_since.get_or_insert_with(Instant::now);
                if since.elapsed() < QUIET {
                    continue;
                }
                let little = taken.bytes <= bytes / 4 && taken.files <= files / 4;
                // What so little adds up to is seen: it is counted from the last look.
                return if little && self.alarm.borrow().is_none() {
                    Ok(())
                } else {
                    self.look(None).await
                };
            }
            quiet_since = None;
            let waited = looked.elapsed();
            let much = taken.bytes > bytes / 2 || taken.files > files / 2;
            if waited >= pause(bytes, files, took) || (much && waited >= took) {
                let begun = Instant::now();
                self.look(Some(first)).await?;
                looked = Instant::now();
                took = begun.elapsed();
            }
        }
    }

    pub(super) async fn admit(
        &self,
        path: &[u8],
        bytes: u64,
        files: u64,
    ) -> Result<(), SessionError> {
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

/// What may be held where so much is.
const fn allowed(limit: u64, held: u64, growth: u64) -> u64 {
    if held > limit {
        held.saturating_add(growth)
    } else {
        limit
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
    fn what_is_past_its_limit_may_be_as_it_is_and_no_more() {
        assert_eq!(allowed(10, 10, 4), 10);
        assert_eq!(allowed(10, 11, 4), 15);
    }

    #[test]
    fn looks_are_rare_far_from_the_limits_and_frequent_near_one() {
        assert_eq!(pause(u64::MAX, u64::MAX, Duration::ZERO), LONGEST);
        assert_eq!(pause(u64::MAX, 10, Duration::ZERO), SHORTEST);
        assert_eq!(pause(4096, u64::MAX, Duration::ZERO), SHORTEST);
        let took = Duration::from_millis(300);
        assert_eq!(pause(0, 0, took), took * SHARE);
    }
}
