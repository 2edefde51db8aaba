//! A session that is opened before anybody asks for it: the like of one that was asked for twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use super::engine::Engine;
use super::record::Session;
use super::slots::Kind;
use crate::spec::{SandboxSpec, WorkspaceSource};

/// How long the session that was opened last is left to itself, unless its first step ends sooner.
const FIRST_STEP: Duration = Duration::from_millis(50);
/// And how long from then: the answer goes out first.
const ANSWER_FIRST: Duration = Duration::from_millis(1);
/// How long one waits before it gets an interpreter to fork: booting costs more than a session that is closed at once
/// saves.
const CALM: Duration = Duration::from_millis(50);
/// How long one that nobody asks for is kept.
const IDLE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
struct State {
    /// What was asked for last, but for its names.
    spec: Option<SandboxSpec>,
    /// It was asked for before.
    repeated: bool,
    ready: Option<Session>,
    /// Steps of its kind are forked.
    forkable: bool,
    closed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
    /// Held while one is being opened.
    opening: tokio::sync::Mutex<()>,
    forkable: Notify,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots that wait for a session.
    pub(super) fn count(&self) -> usize {
        let state = self.state();
        state
            .ready
            .as_ref()
            .map_or(0, |session| session.slots.count())
    }

    /// A step of this kind is asked for: the first of the next session may be one too.
    pub(super) fn note(&self, kind: Kind) {
        if kind == Kind::Forkable && !std::mem::replace(&mut self.state().forkable, true) {
            self.forkable.notify_waiters();
        }
    }

    async fn until_forkable(&self) {
        loop {
            let noted = self.forkable.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            if self.state().forkable {
                return;
            }
            noted.await;
        }
    }

    /// Does `act` on the session with this id, if it is still here.
    fn with<T>(&self, id: &str, act: impl FnOnce(&Session) -> T) -> Option<T> {
        let state = self.state();
        let session = state.ready.as_ref().filter(|session| session.id == id)?;
        Some(act(session))
    }

    fn expire(&self, id: &str) -> Option<Session> {
        let mut state = self.state();
        state.ready.take_if(|session| session.id == id)
    }
}

/// Whether a session of this spec can be opened ahead: it takes nothing of the caller's, and no more than any other.
fn is_plain(spec: &SandboxSpec) -> bool {
    spec.workspace == WorkspaceSource::Private
        && spec.mounts.is_empty()
        && spec.preload.is_empty()
        && spec.prewarm.is_none()
        && spec.kept.is_empty()
        && spec.devices.is_empty()
}

/// What of a spec makes two sessions alike.
fn nameless(spec: &SandboxSpec) -> SandboxSpec {
    SandboxSpec {
        name: None,
        labels: BTreeMap::new(),
        ..spec.clone()
    }
}

impl Engine {
    /// A session of this spec, if one was opened ahead.
    pub(super) fn take_ahead(&self, spec: &SandboxSpec) -> Option<Session> {
        let alike = nameless(spec);
        let (found, stale) = {
            let mut state = self.inner.ahead.state();
            let ready = state.ready.take();
            state.repeated = state.spec.as_ref() == Some(&alike);
            if state.repeated {
                ready.map_or((None, None), |session| {
                    if session.slots.are_alive() {
                        (Some(session), None)
                    } else {
                        (None, Some(session))
                    }
                })
            } else {
                state.forkable = false;
                state.spec = Some(alike);
                (None, ready)
            }
        };
        if let Some(stale) = stale {
            let engine = self.clone();
            tokio::spawn(async move { engine.end(&Arc::new(stale)).await });
        }
        let mut session = found?;
        session.spec = spec.clone();
        session.created = SystemTime::now();
        Some(session)
    }

    /// Opens the next one of the kind once the first step of this one is answered.
    pub(super) fn follow(&self, session: &Arc<Session>) {
        if !is_plain(&session.spec) || !self.inner.ahead.state().repeated {
            return;
        }
        let engine = self.clone();
        let session = Arc::clone(session);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(FIRST_STEP, session.first_step()).await;
            drop(session);
            tokio::time::sleep(ANSWER_FIRST).await;
            if let Some(id) = engine.open_ahead().await {
                engine.look_after(&id).await;
            }
        });
    }

    /// Opens one of what was asked for last, unless there is one; gives its id.
    async fn open_ahead(&self) -> Option<String> {
        let ahead = &self.inner.ahead;
        let _one_at_a_time = ahead.opening.try_lock().ok()?;
        let spec = {
            let state = ahead.state();
            let wanted = !state.closed && state.ready.is_none();
            wanted.then(|| state.spec.clone()).flatten()?
        };
        let session = match self.open(spec.clone()).await {
            Ok(session) => session,
            Err(error) => {
                tracing::debug!(%error, "a session could not be opened ahead");
                return None;
            }
        };
        if spec.track_files
            && let Ok(number) = session.keeper.begin(false, None, session.alone()).await
        {
            session.leave_snapshot(number);
        }
        let id = session.id.clone();
        let stale = {
            let mut state = ahead.state();
            if !state.closed && state.spec.as_ref() == Some(&spec) {
                state.ready.replace(session)
            } else {
                Some(session)
            }
        };
        if let Some(stale) = stale {
            self.end(&Arc::new(stale)).await;
        }
        Some(id)
    }

    /// Gives a session that waits an interpreter to fork, if it is to have one, and lets go of it when nobody comes.
    async fn look_after(&self, id: &str) {
        let ahead = &self.inner.ahead;
        tokio::time::sleep(CALM).await;
        let waiting = tokio::time::timeout(IDLE, ahead.until_forkable());
        if waiting.await.is_ok() {
            ahead.with(id, |session| session.slots.warm_up());
            tokio::time::sleep(IDLE).await;
        }
        if let Some(unused) = ahead.expire(id) {
            self.end(&Arc::new(unused)).await;
        }
    }

    /// Opens none any more, and lets go of the one that waits.
    pub(super) async fn end_ahead(&self) {
        let ahead = &self.inner.ahead;
        ahead.state().closed = true;
        let _opened = ahead.opening.lock().await;
        let waiting = ahead.state().ready.take();
        if let Some(session) = waiting {
            self.end(&Arc::new(session)).await;
        }
    }
}
