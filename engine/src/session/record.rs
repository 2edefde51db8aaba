//! What the engine keeps of one session.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::SessionView;
use super::kept::Kept;
use super::kernel::Kernels;
use super::quota::Quota;
use super::slots::Slots;
use crate::launcher::message::RealmId;
use crate::outcome::AppliedLimit;
use crate::pool::Keeper;
use crate::spec::{Interpreter, SandboxSpec, WorkspaceSource};

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
    pub(super) slots: Arc<Slots>,
    pub(super) limits: Vec<AppliedLimit>,
    pub(super) quota: Quota,
    pub(super) isolation: Vec<String>,
    pub(super) image_digest: String,
    pub(super) kept: Kept,
    pub(super) kernels: Kernels,
    /// The keeper's snapshot from the end of the last step.
    snapshot: Mutex<Option<u64>>,
    /// A file request has written since.
    pub(super) touched: AtomicBool,
    /// Fires when the session is being closed: its steps are cancelled.
    pub(super) closing: CancellationToken,
    running: AtomicU32,
    /// How many steps have begun; two readings tell whether one began in between.
    begun: AtomicU64,
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
            slots,
            limits,
            quota,
            isolation,
            image_digest,
            kept: Kept::default(),
            kernels: Kernels::default(),
            snapshot: Mutex::new(None),
            touched: AtomicBool::new(false),
            closing,
            running: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            idle: tokio::sync::Notify::new(),
        }
    }

    pub(super) const fn given_workspace(&self) -> bool {
        matches!(self.spec.workspace, WorkspaceSource::Given { .. })
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
        }
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

    /// Waits until no step runs.
    pub(super) async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.steps_running() == 0 {
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
        self.session.done.fetch_add(1, Ordering::Relaxed);
        if self.session.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.session.idle.notify_waiters();
        }
    }
}
