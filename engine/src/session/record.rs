//! What the engine keeps of one session.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio_util::sync::CancellationToken;

use super::SessionView;
use super::check::REDUCED;
use super::environment::Places;
use super::kept::Kept;
use super::kernel::Kernels;
use super::quota::Quota;
use super::searcher::Searcher;
use super::slots::Slots;
use super::texts::Granted;
use crate::launcher::message::RealmId;
use crate::outcome::AppliedLimit;
use crate::pool::{Keeper, Slot};
use crate::spec::{Interpreter, Isolation, SandboxSpec, WorkspaceSource};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) spec: SandboxSpec,
    pub(super) interpreter: Option<Interpreter>,
    pub(super) created: SystemTime,
    pub(super) realm: RealmId,
    /// Scratch of this session: homes, caches, and the workspace when it is private.
    pub(super) directory: PathBuf,
    pub(super) keeper: Keeper,
    pub(super) searcher: Searcher,
    /// What the keeper may hold for diffs.
    _texts: Granted,
    /// Somebody has the keeper read.
    pub(super) learning: AtomicBool,
    pub(super) slots: Arc<Slots>,
    pub(super) limits: Vec<AppliedLimit>,
    pub(super) quota: Quota,
    pub(super) isolation: Vec<String>,
    pub(super) image_digest: String,
    pub(super) kept: Kept,
    pub(super) kernels: Kernels,
    pub(super) resident: super::resident::Place,
    /// When it was last called, or a step of it ended.
    used: Mutex<Instant>,
    /// The keeper's snapshot from the end of the last step.
    snapshot: Mutex<Option<u64>>,
    /// A file request has written since.
    pub(super) touched: AtomicBool,
    /// Fires when the session is being closed: its steps are cancelled.
    pub(super) closing: CancellationToken,
    running: AtomicU32,
    /// How many steps have begun; two readings tell whether one began in between.
    begun: AtomicU64,
    /// Kernels that live, whether a cell of theirs runs or not, and how many have begun to.
    kernels_alive: AtomicU32,
    kernels_begun: AtomicU64,
    done: AtomicU64,
    idle: tokio::sync::Notify,
}

/// What [`Session`] is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) spec: SandboxSpec,
    pub(super) interpreter: Option<Interpreter>,
    pub(super) realm: RealmId,
    pub(super) directory: PathBuf,
    pub(super) keeper: Keeper,
    pub(super) searcher: Searcher,
    pub(super) texts: Granted,
    pub(super) slots: Arc<Slots>,
    pub(super) limits: Vec<AppliedLimit>,
    pub(super) quota: Quota,
    /// Fires when the session is being closed.
    pub(super) closing: CancellationToken,
    pub(super) isolation: Vec<String>,
    pub(super) image_digest: String,
}

/// A step that runs, as its session counts it.
#[derive(Debug)]
pub(super) struct Running<'a> {
    session: &'a Session,
    alone: bool,
    begun: u64,
}

impl Session {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            id,
            spec,
            interpreter,
            realm,
            directory,
            keeper,
            searcher,
            texts,
            slots,
            limits,
            quota,
            closing,
            isolation,
            image_digest,
        } = parts;
        Self {
            id,
            spec,
            interpreter,
            created: SystemTime::now(),
            realm,
            directory,
            keeper,
            searcher,
            _texts: texts,
            learning: AtomicBool::new(false),
            slots,
            limits,
            quota,
            isolation,
            image_digest,
            kept: Kept::default(),
            kernels: Kernels::default(),
            resident: super::resident::Place::default(),
            used: Mutex::new(Instant::now()),
            snapshot: Mutex::new(None),
            touched: AtomicBool::new(false),
            closing,
            running: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            kernels_alive: AtomicU32::new(0),
            kernels_begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            idle: tokio::sync::Notify::new(),
        }
    }

    pub(super) const fn given_workspace(&self) -> bool {
        matches!(self.spec.workspace, WorkspaceSource::Given { .. })
    }

    /// Where in the host's tree the code finds what is its; none: in a tree of its own.
    pub(super) fn places(&self, slot: &Slot) -> Option<Places> {
        if self.spec.isolation == Isolation::Full {
            return None;
        }
        let workspace = match &self.spec.workspace {
            WorkspaceSource::Private => self.directory.join("workspace"),
            WorkspaceSource::Given { path, .. } => path.clone(),
        };
        let interpreter = self.interpreter.as_ref();
        Some(Places::new(
            interpreter,
            &workspace,
            &self.directory,
            slot.directory.as_deref()?,
        ))
    }

    pub(super) fn reduced_note(&self) -> Vec<String> {
        match self.spec.isolation {
            Isolation::Full => Vec::new(),
            Isolation::Reduced => vec![REDUCED.to_owned()],
        }
    }

    pub(super) fn view(&self) -> SessionView {
        SessionView {
            id: self.id.clone(),
            name: self.spec.name.clone(),
            labels: self.spec.labels.clone(),
            workspace: match &self.spec.workspace {
                WorkspaceSource::Private => None,
                WorkspaceSource::Given { path, .. } => Some(path.clone()),
            },
            steps_running: self.running.load(Ordering::Relaxed),
            steps_done: self.done.load(Ordering::Relaxed),
            created: self.created,
            image: "host".to_owned(),
            image_digest: self.image_digest.clone(),
            limits: self.limits.clone(),
            isolation: self.isolation.clone(),
            timeout: self.spec.timeout,
            resident: self.spec.resident,
            ttl: self.spec.ttl,
            idle: self.idle_for(),
        }
    }

    /// Somebody uses it.
    pub(super) fn touch(&self) {
        if self.spec.ttl.is_some() {
            *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    /// How long nothing has used it. None: something does.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        if self.steps_running() > 0 || self.kernels.any_lives() {
            return None;
        }
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Some(used.elapsed())
    }

    /// Takes the snapshot that a step may count its changes from.
    pub(super) fn take_snapshot(&self) -> Option<u64> {
        self.snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Leaves a snapshot for the next step.
    pub(super) fn leave_snapshot(&self, number: u64) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
    }

    /// Leaves a snapshot that still serves, unless another step has left one: the keeper is to let go of one of the two.
    pub(super) fn return_snapshot(&self, number: u64) -> bool {
        let mut place = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let free = place.is_none();
        place.get_or_insert(number);
        free
    }

    /// Makes what code gave away its user's again, where it could give something away and none of it runs any more.
    /// `ending`: how many steps are counted that have ended. A result is not withheld for what cannot be taken back.
    pub(super) async fn take_back(&self, ending: u32) {
        let none = self.spec.kept.is_empty();
        if none || self.steps_running() > ending || self.slots.lent() > 0 {
            return;
        }
        if let Err(error) = self.keeper.take_back().await {
            tracing::warn!(%error, "what a session gave away could not be taken back");
        }
    }

    pub(super) fn steps_running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    pub(super) fn begin_step(&self) -> Running<'_> {
        let alone = self.running.fetch_add(1, Ordering::AcqRel) == 0;
        let begun = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        Running {
            session: self,
            alone,
            begun,
        }
    }

    /// To be called before a kernel's sandbox runs anything, and once it is gone.
    pub(super) fn begin_kernel(&self) {
        self.kernels_alive.fetch_add(1, Ordering::AcqRel);
        self.kernels_begun.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_kernel(&self) {
        self.kernels_alive.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn has_kernels(&self) -> bool {
        self.kernels_alive.load(Ordering::Acquire) > 0
    }

    /// What tells, when it is called, whether at most one step was there since this was called, and no kernel.
    pub(super) fn alone(&self) -> impl Fn() -> bool {
        let begun = || {
            (
                self.begun.load(Ordering::Acquire),
                self.kernels_begun.load(Ordering::Acquire),
            )
        };
        // Before the others are counted: whoever comes is counted first and has begun then.
        let before = begun();
        let alone = self.running.load(Ordering::Acquire) <= 1
            && self.kernels_alive.load(Ordering::Acquire) == 0;
        move || alone && begun() == before
    }

    /// What tells, when it is called, whether no code of the session has lived since this was called.
    pub(super) fn quiet(&self) -> impl Fn() -> bool {
        let none = || self.running.load(Ordering::Acquire) == 0;
        let (alone, before) = (self.alone(), none());
        move || before && alone() && none()
    }

    /// Waits until no step runs.
    pub(super) async fn idle(&self) {
        self.idle_when(|session| session.steps_running() == 0).await;
    }

    /// Waits until a step has ended.
    pub(super) async fn first_step(&self) {
        self.idle_when(|session| session.done.load(Ordering::Acquire) > 0)
            .await;
    }

    async fn idle_when(&self, met: impl Fn(&Self) -> bool) {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if met(self) {
                return;
            }
            notified.await;
        }
    }
}

impl Running<'_> {
    /// Whether another step ran in the same workspace meanwhile.
    pub(super) fn overlapped(&self) -> bool {
        !self.alone || self.session.begun.load(Ordering::Acquire) != self.begun
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.session.touch();
        self.session.done.fetch_add(1, Ordering::Relaxed);
        if self.session.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.session.idle.notify_waiters();
        }
    }
}
