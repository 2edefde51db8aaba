//! The slots of one session: who waits for one, who has one, when another is made.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::SessionError;
use super::environment::WORKSPACE;
use super::owners::Owners;
use crate::launcher::message::{RealmId, TreeRequest};
use crate::pool::{Attachment, Launcher, PoolError, Skeleton, Slot, Spares};
use crate::sandbox::identity::{home, temporary};
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::SkeletonSpec;

/// Slots of one session at most: steps beyond that wait.
const MAX_SLOTS: usize = 128;
/// Slots made at once: more would only slow down those that exist.
const MAX_MAKING: usize = 2;
/// While steps end within this time of each other, more slots than processors can feed would only take from them.
const TURN: Duration = Duration::from_millis(20);
/// How long a slot that nobody waits for is left alone: making it ready would take a processor from the answer.
const ANSWER_FIRST: Duration = Duration::from_millis(1);
/// Slots that a session keeps when it is quiet: one is made ready while the other runs.
const KEPT: usize = 2;
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

/// A slot with a sandbox made ahead.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) slot: Slot,
    pub(super) skeleton: Skeleton,
}

/// A slot on its way to a step. Dropped on the way, it is thrown away and no longer counted.
#[derive(Debug)]
pub(super) struct Lease {
    ready: Option<Ready>,
    counted: bool,
    slots: Arc<Slots>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Ready>,
    waiting: VecDeque<oneshot::Sender<Lease>>,
    total: usize,
    /// Of these, in the hands of kernels.
    lent: usize,
    making: usize,
    numbers: u64,
    trimming: bool,
    /// When a step last ended and left its slot to the next.
    turned: Option<Instant>,
    /// Somebody will look again whether another slot is needed.
    looking: bool,
    closed: bool,
    /// Why the last slot that was wanted could not be made.
    failure: Option<String>,
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
        let wanted = self.waiting.len().max(KEPT.saturating_sub(total));
        if self.closed || self.making >= wanted.min(MAX_MAKING) || self.total >= MAX_SLOTS {
            return Growth::No;
        }
        if total >= brisk && self.turns_over(now) {
            return Growth::Later;
        }
        Growth::Yes
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
    pub(super) owners: Arc<Owners>,
    directory: PathBuf,
    state: Mutex<State>,
    retired: tokio::sync::Notify,
}

impl Slots {
    /// `directory` is the session's own.
    pub(super) fn new(
        launcher: Launcher,
        spares: Spares,
        realm: (RealmId, u32),
        root: RootSpec,
        skeleton: SkeletonSpec,
        mounts: Vec<SessionMount>,
        directory: &Path,
    ) -> Arc<Self> {
        Arc::new(Self {
            launcher,
            spares,
            realm,
            root,
            skeleton,
            mounts,
            owners: Arc::new(Owners::new(directory, realm.1)),
            directory: directory.join("slots"),
            state: Mutex::default(),
            retired: tokio::sync::Notify::new(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
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
        Ok(())
    }

    /// Gives the slot the session's trees, and makes its first sandbox.
    async fn equip(&self, slot: Slot) -> Result<Ready, PoolError> {
        let number = {
            let mut state = self.state();
            state.numbers += 1;
            state.numbers
        };
        let own = self.directory.join(number.to_string());
        let interpreter = self.root.interpreter.as_ref();
        for (below, target) in [("home", home(interpreter)), ("tmp", temporary(interpreter))] {
            let source = own.join(below);
            std::fs::create_dir_all(&source).map_err(|source| PoolError::Io {
                what: "make a directory of the session",
                source,
            })?;
            let mount = SessionMount {
                source,
                identity: None,
                target: target.into(),
                read_only: false,
                ours: true,
            };
            self.attach(&slot, &mount, true).await?;
        }
        for mount in &self.mounts {
            self.attach(&slot, mount, false).await?;
        }
        let skeleton = slot.prepare(&self.skeleton).await?;
        Ok(Ready { slot, skeleton })
    }

    async fn attach(
        &self,
        slot: &Slot,
        mount: &SessionMount,
        scratch: bool,
    ) -> Result<(), PoolError> {
        let attachment = Attachment {
            tree: self.tree(mount).await?,
            target: mount.target.clone(),
            scratch,
        };
        slot.attach(&attachment).await
    }

    /// A detached tree of a mount of the session, owned by the sandbox's user one way or the other.
    pub(super) async fn tree(&self, mount: &SessionMount) -> Result<OwnedFd, PoolError> {
        let request = TreeRequest {
            realm: self.realm.0,
            source: mount.source.clone(),
            identity: mount.identity,
            read_only: mount.read_only,
            map_owner: true,
        };
        let (tree, mapped, _) = self.launcher.clone_tree(request).await?;
        if mapped {
            return Ok(tree);
        }
        if !mount.ours || mount.target == Path::new(WORKSPACE) {
            self.owners.note_untranslated();
        }
        if mount.ours {
            std::os::unix::fs::chown(&mount.source, Some(self.realm.1), Some(self.realm.1))
                .map_err(|source| PoolError::Io {
                    what: "give a directory to the sandbox's user",
                    source,
                })?;
        } else if !mount.read_only {
            return self.borrow(mount.source.clone(), tree).await;
        }
        Ok(tree)
    }

    async fn borrow(&self, source: PathBuf, tree: OwnedFd) -> Result<OwnedFd, PoolError> {
        let owners = Arc::clone(&self.owners);
        let borrowed = tokio::task::spawn_blocking(move || {
            owners.borrow(&source, &tree)?;
            Ok(tree)
        });
        borrowed
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| PoolError::Io {
                what: "give a workspace or mount to the sandbox's user",
                source,
            })
    }

    /// A slot with a sandbox made ahead, at once or as soon as one is free.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Lease, SessionError> {
        let receiver = {
            let mut state = self.state();
            if state.closed {
                return Err(SessionError::Closed(String::new()));
            }
            if let Some(ready) = state.free.pop() {
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
    pub(super) fn put_back(self: &Arc<Self>, mut slot: Slot, skeleton: Skeleton) {
        if self.state().closed {
            return self.throw_away(slot);
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            if slots.state().waiting.is_empty() {
                tokio::time::sleep(ANSWER_FIRST).await;
            }
            let made = async {
                skeleton.end().await?;
                slot.reset().await?;
                slot.prepare(&slots.skeleton).await
            };
            match made.await {
                Ok(skeleton) => {
                    slots.state().turned = Some(Instant::now());
                    slots.lease(Some(Ready { slot, skeleton })).hand_on();
                    slots.grow();
                    slots.trim();
                }
                Err(error) => {
                    slots.complain(&error, "a slot is thrown away");
                    slots.throw_away(slot);
                }
            }
        });
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
    async fn retire(&self, slot: Slot) {
        if let Err(error) = slot.close().await {
            self.complain(&error, "a slot could not be removed");
        }
        self.state().total -= 1;
        self.retired.notify_waiters();
    }

    /// Lets go of slots that were made for a burst.
    fn trim(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.trimming || state.closed || state.free.len() <= KEPT {
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
                let kept = KEPT.min(state.free.len());
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
