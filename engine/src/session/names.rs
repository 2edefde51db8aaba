//! Sessions that others find: by a name, of which each is made once, until they have been idle for too long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::engine::Engine;
use super::record::Session;
use super::{SessionError, SessionView};
use crate::spec::SandboxSpec;

type Turn = tokio::sync::Mutex<()>;

/// Whose turn it is to make a session of a name, or to find it made.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<String, Arc<Turn>>>);

impl Names {
    /// Waits for the turn.
    pub(super) async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(name.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

/// The session that lives under a name, if it is what is asked for.
pub(super) fn attached(
    session: &Session,
    spec: &SandboxSpec,
    attach: bool,
) -> Result<SessionView, SessionError> {
    let refused = |reason| SessionError::Refused {
        field: "name".to_owned(),
        reason,
        mount: false,
    };
    let name = spec.name.as_deref().unwrap_or_default();
    if !attach {
        return Err(refused(format!(
            "a session {name:?} lives already; attach to it, close it, or take another name"
        )));
    }
    let differing = session.spec.differences(spec);
    if differing.is_empty() {
        session.touch();
        return Ok(session.view());
    }
    Err(refused(format!(
        "the session {name:?} was made with another {}; ask for the same, close it, or take another name",
        differing.join(", ")
    )))
}

impl Engine {
    pub(super) fn named(&self, name: &str) -> Option<Arc<Session>> {
        self.sessions_table()
            .values()
            .find(|session| session.spec.name.as_deref() == Some(name))
            .cloned()
    }

    /// Has a session close once nothing has used it for as long as it says.
    pub(super) fn close_when_idle(&self, session: &Arc<Session>) {
        let Some(ttl) = session.spec.ttl else {
            return;
        };
        let id = session.id.clone();
        let closing = session.closing.clone();
        let session = Arc::downgrade(session);
        let engine = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            loop {
                let idle = match session.upgrade() {
                    Some(session) => session.idle_for(),
                    None => return,
                };
                let left = ttl.saturating_sub(idle.unwrap_or_default());
                if left.is_zero() {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = closing.cancelled() => return,
                }
            }
            if let Some(inner) = engine.upgrade() {
                tracing::info!(session = id, "closed, because nothing used it");
                let _ = Self { inner }.close_session(&id).await;
            }
        });
    }
}
