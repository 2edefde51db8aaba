//! The end of a session, and of the engine.

use std::sync::Arc;
use std::time::Duration;

use super::SessionError;
use super::engine::Engine;
use super::record::Session;
use crate::sandbox::identity::Mode;

/// How long the steps of a closing session may take to end: they are being killed.
const STEPS_END: Duration = Duration::from_secs(5);

impl Engine {
    /// Stops the steps, and removes what the session owns. A session that is gone already is
    /// [`SessionError::NoSession`].
    pub async fn close_session(&self, id: &str) -> Result<(), SessionError> {
        let id = self.look_up(id)?.id.clone();
        let session = self
            .sessions_table()
            .remove(&id)
            .ok_or(SessionError::NoSession(id))?;
        // Closing goes on when the caller hangs up.
        let engine = self.clone();
        let closing = tokio::spawn(async move { engine.end(&session).await });
        closing
            .await
            .map_err(|_| SessionError::Setup("closing the session was interrupted".to_owned()))
    }

    pub(super) async fn end(&self, session: &Arc<Session>) {
        session.closing.cancel();
        if tokio::time::timeout(STEPS_END, session.idle())
            .await
            .is_err()
        {
            tracing::warn!("steps of a closed session are still ending");
        }
        session.slots.close().await;
        session.take_back(u32::MAX).await;
        // The keeper has the rights for whatever modes code left; it must go before its realm does.
        let sized = session.quota.volume().is_some();
        // A file system of its own ends whole.
        if !sized && let Err(error) = session.keeper.clear().await {
            tracing::warn!(%error, "a session's files could not be removed by its keeper");
        }
        if self.mode() == Mode::Root {
            self.inner.templates.forget(session.realm);
        }
        self.inner.templates.forget_session(&session.id);
        self.inner.spares.release_realm(session.realm).await;
        if sized {
            self.drop_volume(&session.directory).await;
        }
        let directory = session.directory.clone();
        let slots = Arc::clone(&session.slots);
        let removed = tokio::task::spawn_blocking(move || {
            slots.owners.give_back();
            crate::launcher::scratch::remove_directory(&directory);
        });
        if removed.await.is_err() {
            tracing::warn!("a session's directory could not be removed");
        }
    }

    /// Stops every step, closes every session, and removes what the engine made.
    pub async fn shutdown(&self) {
        self.inner.bytecode.end().await;
        self.end_ahead().await;
        let sessions: Vec<_> = self
            .sessions_table()
            .drain()
            .map(|(_, session)| session)
            .collect();
        let mut ends = tokio::task::JoinSet::new();
        for session in sessions {
            let engine = self.clone();
            ends.spawn(async move { engine.end(&session).await });
        }
        ends.join_all().await;
        self.inner.volumes.close();
        self.inner.templates.close();
        self.inner.spares.close().await;
        self.inner.launcher.close().await;
        let inner = Arc::clone(&self.inner);
        let removed = tokio::task::spawn_blocking(move || {
            if let Err(error) = inner.cgroups.remove() {
                tracing::warn!(%error, "the engine's cgroups could not be removed");
            }
            inner.directories.remove();
        });
        if removed.await.is_err() {
            tracing::warn!("the engine's directories could not be removed");
        }
    }
}
