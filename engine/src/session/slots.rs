//! The slots of one session: who waits for one, who has one, when another is made.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::SessionError;
use super::bytecode::Wanted;
use super::owners::Owners;
use super::warm::Warm;
use crate::launcher::message::RealmId;
use crate::pool::{Launcher, PoolError, Skeleton, Slot, Spares};
use crate::sandbox::numbers::Numbers;
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::SkeletonSpec;
use crate::volume::Volume;

/// Slots of one session at most: steps beyond that wait.
const MAX_SLOTS: usize = 128;
/// Slots made at once: more would only slow down those that exist.
const MAX_MAKING: usize = 2;
/// While steps end within this time of each other, more slots than processors can feed would only take from them.
const TURN: Duration = Duration::from_millis(20);
/// How long a slot that nobody waits for is left alone: making it ready would take a processor from the answer.
const ANSWER_FIRST: Duration = Duration::from_millis(1);
/// Slots that a session keeps when it is quiet: one is made ready while the other runs.
pub(super) const KEPT: usize = 2;
/// How long a slot beyond those waits for work.
const IDLE: Duration = Duration::from_secs(10);
/// How long the end of a session waits for its slots.
const SLOTS_END: Duration = Duration::from_secs(5);
/// How long a step waits for a slot.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// A tree that each slot of the session gets.
#[derive(Clone, Debug)]
pub(super) struct SessionMount {
    pub(super) source: PathBuf,
    pub(super) identity: Option<(u64, u64)>,
    pub(super) target: PathBuf,
    pub(super) read_only: bool,
    /// The engine made the directory: where owners cannot be translated it may be given to the sandbox's user.
    pub(super) ours: bool,
}

/// What the slots of a session have in common.
#[derive(Debug)]
pub(super) struct Posture {
    pub(super) realm: (RealmId, u32),
    pub(super) root: RootSpec,
    pub(super) skeleton: SkeletonSpec,
    pub(super) mounts: Vec<SessionMount>,
    pub(super) numbers: Numbers,
    /// None: no step is forked.
    pub(super) warm: Option<Warm>,
    /// How many slots are kept when the session is quiet.
    pub(super) kept: usize,
}

/// The session's own directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its path, for the launcher.
    pub(super) directory: PathBuf,
    /// The file system that is mounted there where only the launcher sees it.
    pub(super) volume: Option<Arc<Volume>>,
}

impl Place {
    /// The same directory, or one in it, as a path of this process's.
    pub(super) fn seen(&self, path: &Path) -> PathBuf {
        match (&self.volume, path.strip_prefix(&self.directory)) {
            (Some(volume), Ok(below)) => volume.root().join(below),
            _ => path.to_owned(),
        }
    }

    /// Makes a directory of the engine's own in it.
    pub(super) fn make_directory(&self, path: &Path) -> std::io::Result<()> {
        match &self.volume {
            Some(volume) => volume.make_directory(&self.seen(path)),
            None => std::fs::create_dir(path),
        }
    }
}

/// A slot with a sandbox made ahead.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) slot: Slot,
    pub(super) skeleton: Skeleton,
}

/// What a step is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Kind {
    /// A program that is executed.
    #[default]
    Program,
    /// Code that can be run in a fork of an interpreter.
    Forkable,
}

/// A slot on its way to a step. Dropped on the way, it is thrown away and no longer counted.
#[derive(Debug)]
pub(super) struct Lease {
    ready: Option<Ready>,
    counted: bool,
    slots: Arc<Slots>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) free: Vec<Ready>,
    pub(super) waiting: VecDeque<oneshot::Sender<Lease>>,
    total: usize,
    /// Of these, in the hands of kernels.
    lent: usize,
    making: usize,
    /// How many the session keeps when it is quiet.
    pub(super) kept: usize,
    pub(super) numbers: u64,
    trimming: bool,
    /// What the last step was, and so the next one may be.
    pub(super) last: Kind,
    /// A template is wanted: such a step has run, or the caller has said so.
    pub(super) warming: bool,
    /// Somebody waits for the template to give the free slots their part of it.
    pub(super) outfitting: bool,
    /// When a step last ended and left its slot to the next.
    turned: Option<Instant>,
    /// Somebody will look again whether another slot is needed.
    looking: bool,
    closed: bool,
    /// Why the last slot that was wanted could not be made.
    failure: Option<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            waiting: VecDeque::new(),
            total: 0,
            lent: 0,
            making: 0,
            kept: KEPT,
            numbers: 0,
            trimming: false,
            last: Kind::Program,
            warming: false,
            outfitting: false,
            turned: None,
            looking: false,
            closed: false,
            failure: None,
        }
    }
}

/// Whether another slot is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Growth {
    No,
    Yes,
    /// Perhaps, once the steps that run now have had the time to end.
    Later,
}

impl State {
    /// Another is made when more steps wait than slots are being made. `brisk` is how many the processors can feed.
    fn growth(&self, brisk: usize, now: Instant) -> Growth {
        let total = self.total.saturating_sub(self.lent);
        let wanted = self.waiting.len().max(self.kept.saturating_sub(total));
        if self.closed || self.making >= wanted.min(MAX_MAKING) || self.total >= MAX_SLOTS {
            return Growth::No;
        }
        if total >= brisk && self.turns_over(now) {
            return Growth::Later;
        }
        Growth::Yes
    }

    /// A free slot, best one with what the step is to run in and with nothing else.
    fn pick(&mut self, kind: Kind) -> Option<Ready> {
        let fits = |ready: &Ready| ready.skeleton.forked.is_some() == (kind == Kind::Forkable);
        match self.free.iter().rposition(fits) {
            Some(index) => Some(self.free.remove(index)),
            None => self.free.pop(),
        }
    }

    /// Whether slots come back so quickly that waiting for one is shorter than making one.
    fn turns_over(&self, now: Instant) -> bool {
        self.turned
            .is_some_and(|turned| now.saturating_duration_since(turned) < TURN)
    }
}

/// How many slots the processors can keep busy.
fn brisk_slots() -> usize {
    static SLOTS: OnceLock<usize> = OnceLock::new();
    *SLOTS.get_or_init(|| 2 * std::thread::available_parallelism().map_or(1, usize::from))
}

#[derive(Debug)]
pub(super) struct Slots {
    pub(super) launcher: Launcher,
    pub(super) spares: Spares,
    pub(super) realm: (RealmId, u32),
    pub(super) root: RootSpec,
    pub(super) skeleton: SkeletonSpec,
    pub(super) mounts: Vec<SessionMount>,
    pub(super) numbers: Numbers,
    pub(super) owners: Arc<Owners>,
    pub(super) warm: Option<Warm>,
    /// Set when the session is made, if it wants any.
    pub(super) bytecode: OnceLock<Wanted>,
    pub(super) place: Place,
    state: Mutex<State>,
    retired: tokio::sync::Notify,
}

impl Slots {
    pub(super) fn new(
        launcher: Launcher,
        spares: Spares,
        posture: Posture,
        place: Place,
    ) -> Arc<Self> {
        let Posture {
            realm,
            root,
            skeleton,
            mounts,
            numbers,
            warm,
            kept,
        } = posture;
        let warming = warm.as_ref().is_some_and(|warm| warm.at_once);
        if let Some(warm) = warm.as_ref().filter(|_| warming) {
            warm.get();
        }
        Arc::new(Self {
            launcher,
            spares,
            realm,
            root,
            skeleton,
            mounts,
            numbers,
            owners: Arc::new(Owners::new(&place.directory, realm.1)),
            warm,
            bytecode: OnceLock::new(),
            place,
            state: Mutex::new(State {
                kept,
                warming,
                last: if warming {
                    Kind::Forkable
                } else {
                    Kind::Program
                },
                ..State::default()
            }),
            retired: tokio::sync::Notify::new(),
        })
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, ready: Option<Ready>) -> Lease {
        Lease {
            ready,
            counted: true,
            slots: Arc::clone(self),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.state().total
    }

    /// How many are not coming back soon.
    pub(super) fn lent(&self) -> usize {
        self.state().lent
    }

    /// A slot is not coming back soon: steps are to have others.
    pub(super) fn lend(self: &Arc<Self>) {
        self.state().lent += 1;
        self.grow();
    }

    /// It does come back now.
    pub(super) fn end_loan(&self) {
        self.state().lent -= 1;
    }

    /// Takes a slot that was made for nobody as this session's.
    pub(super) async fn adopt(self: &Arc<Self>, slot: Slot) -> Result<(), PoolError> {
        self.state().total += 1;
        let lease = self.lease(None);
        let ready = self.equip(slot).await?;
        lease.fill(ready).hand_on();
        if self.state().kept > KEPT {
            self.grow();
        }
        Ok(())
    }

    /// Whether those that are free can be used.
    pub(super) fn are_alive(&self) -> bool {
        let state = self.state();
        state.free.iter().all(|ready| ready.slot.is_alive())
    }

    /// Whether steps may be forked at all.
    pub(super) const fn is_warm(&self) -> bool {
        self.warm.is_some()
    }

    /// What the caller should know of its preload.
    pub(super) fn notes(&self) -> Vec<String> {
        self.warm.as_ref().map(Warm::notes).unwrap_or_default()
    }

    /// A slot with a sandbox made ahead, at once or as soon as one is free.
    pub(super) async fn take(self: &Arc<Self>, kind: Kind) -> Result<Lease, SessionError> {
        let receiver = {
            let mut state = self.state();
            if state.closed {
                return Err(SessionError::Closed(String::new()));
            }
            state.last = kind;
            state.warming |= kind == Kind::Forkable;
            if let Some(ready) = state.pick(kind) {
                return Ok(self.lease(Some(ready)));
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.push_back(sender);
            receiver
        };
        self.grow();
        match tokio::time::timeout(QUEUE_TIMEOUT, receiver).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => Err(self.why_none()),
            Err(_) => Err(SessionError::Busy {
                what: format!(
                    "all {} sandboxes of this session were in use for {} s",
                    self.count(),
                    QUEUE_TIMEOUT.as_secs()
                ),
            }),
        }
    }

    fn why_none(&self) -> SessionError {
        if self.launcher.lost().is_cancelled() {
            return SessionError::LauncherLost;
        }
        let state = self.state();
        match &state.failure {
            Some(failure) if !state.closed => SessionError::Setup(failure.clone()),
            _ => SessionError::Closed(String::new()),
        }
    }

    /// Makes another slot in the background if one is wanted.
    fn grow(self: &Arc<Self>) {
        {
            let mut state = self.state();
            match state.growth(brisk_slots(), Instant::now()) {
                Growth::No => return,
                Growth::Later => return self.grow_later(&mut state),
                Growth::Yes => {}
            }
            state.making += 1;
            state.total += 1;
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            let lease = slots.lease(None);
            let made = match slots.spares.another(slots.realm, &slots.root).await {
                Ok(slot) => slots.equip(slot).await,
                Err(error) => Err(error),
            };
            slots.state().making -= 1;
            match made {
                Ok(ready) => {
                    lease.fill(ready).hand_on();
                    slots.grow();
                }
                Err(error) => {
                    slots.complain(&error, "a slot could not be made");
                    drop(lease);
                    slots.give_up_if_alone();
                }
            }
        });
    }

    /// Looks again when the steps that run now have had the time to end.
    fn grow_later(self: &Arc<Self>, state: &mut State) {
        if std::mem::replace(&mut state.looking, true) {
            return;
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(TURN).await;
            slots.state().looking = false;
            slots.grow();
        });
    }

    /// Nobody can be served when there is no slot and none can be made.
    fn give_up_if_alone(&self) {
        let mut state = self.state();
        if state.total == 0 && state.making == 0 {
            state.waiting.clear();
        }
    }

    /// Makes a used slot ready for the next step, in the background, once the last sandbox has ended.
    pub(super) fn put_back(self: &Arc<Self>, slot: Slot, skeleton: Skeleton) {
        if self.state().closed {
            return self.throw_away(slot);
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            if slots.state().waiting.is_empty() {
                tokio::time::sleep(ANSWER_FIRST).await;
            }
            slots.recycle(slot, skeleton).await;
        });
    }

    /// The same, and waits until it is: what a home holds is in the way of the next step.
    pub(super) async fn put_back_now(self: &Arc<Self>, slot: Slot, skeleton: Skeleton) {
        if self.state().closed {
            return self.throw_away(slot);
        }
        // A caller that hangs up does not take the slot with it.
        let slots = Arc::clone(self);
        let put_back = tokio::spawn(async move { slots.recycle(slot, skeleton).await });
        if put_back.await.is_err() {
            tracing::warn!("making a slot ready was interrupted");
        }
    }

    pub(super) async fn recycle(self: &Arc<Self>, mut slot: Slot, skeleton: Skeleton) {
        let made = async {
            skeleton.end().await?;
            slot.reset().await?;
            self.give_bytecode(&mut slot).await;
            self.furnish(&mut slot).await
        };
        match made.await {
            Ok(skeleton) => {
                self.state().turned = Some(Instant::now());
                self.lease(Some(Ready { slot, skeleton })).hand_on();
                self.grow();
                self.trim();
            }
            Err(error) => {
                self.complain(&error, "a slot is thrown away");
                self.throw_away(slot);
            }
        }
    }

    /// A slot that fails while its session ends is no news.
    fn complain(&self, error: &PoolError, what: &str) {
        let mut state = self.state();
        if state.closed {
            tracing::debug!(%error, "{what}");
        } else {
            tracing::warn!(%error, "{what}");
            state.failure = Some(format!("{what}: {error}"));
        }
    }

    /// Throws a used slot away: what its cgroup holds is not known, or was an out-of-memory kill.
    pub(super) fn throw_away(self: &Arc<Self>, slot: Slot) {
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            slots.retire(slot).await;
            slots.grow();
            slots.give_up_if_alone();
        });
    }

    /// Removes a slot; it counts until it is gone.
    async fn retire(&self, mut slot: Slot) {
        let directory = slot.directory.take();
        if let Err(error) = slot.close().await {
            self.complain(&error, "a slot could not be removed");
        }
        if let Some(directory) = directory.filter(|_| !self.state().closed) {
            // What a home holds counts until it is gone.
            let remove = move || crate::launcher::scratch::remove_directory(&directory);
            if tokio::task::spawn_blocking(remove).await.is_err() {
                tracing::warn!("the directories of a slot could not be removed");
            }
        }
        self.state().total -= 1;
        self.retired.notify_waiters();
    }

    /// Lets go of slots that were made for a burst.
    fn trim(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.trimming || state.closed || state.free.len() <= state.kept {
                return;
            }
            state.trimming = true;
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(IDLE).await;
            let surplus: Vec<_> = {
                let mut state = slots.state();
                state.trimming = false;
                let kept = state.kept.min(state.free.len());
                state.free.drain(kept..).collect()
            };
            for Ready { slot, skeleton } in surplus {
                drop(skeleton);
                slots.retire(slot).await;
            }
        });
    }

    /// Refuses new steps and removes the slots; those in use go when their steps end, which is waited for.
    pub(super) async fn close(&self) {
        let free: Vec<_> = {
            let mut state = self.state();
            state.closed = true;
            state.waiting.clear();
            state.free.drain(..).collect()
        };
        for Ready { slot, skeleton } in free {
            drop(skeleton);
            self.retire(slot).await;
        }
        if tokio::time::timeout(SLOTS_END, self.empty()).await.is_err() {
            tracing::warn!("slots of a closed session are still in use");
        }
    }

    async fn empty(&self) {
        loop {
            let retired = self.retired.notified();
            tokio::pin!(retired);
            retired.as_mut().enable();
            if self.state().total == 0 {
                return;
            }
            retired.await;
        }
    }
}

impl Lease {
    fn fill(mut self, ready: Ready) -> Self {
        self.ready = Some(ready);
        self
    }

    /// The slot and the sandbox; the caller puts the slot back or throws it away.
    pub(super) fn into_parts(mut self) -> Option<(Slot, Skeleton)> {
        let Ready { slot, skeleton } = self.ready.take()?;
        self.counted = false;
        Some((slot, skeleton))
    }

    /// Gives the slot to the first that still waits, else to the free ones.
    fn hand_on(mut self) {
        let slots = Arc::clone(&self.slots);
        loop {
            let waiting = {
                let mut state = slots.state();
                match state.waiting.pop_front() {
                    Some(waiting) => waiting,
                    None if state.closed => break,
                    None => {
                        state.free.extend(self.ready.take());
                        self.counted = false;
                        return;
                    }
                }
            };
            match waiting.send(self) {
                Ok(()) => return,
                Err(back) => self = back,
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(Ready { slot, skeleton }) = self.ready.take() {
            drop(skeleton);
            let slots = Arc::clone(&self.slots);
            tokio::spawn(async move { slots.retire(slot).await });
        } else if self.counted {
            self.slots.state().total -= 1;
            self.slots.retired.notify_waiters();
        }
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
