//! A limit that is watched from outside the sandbox, for all sandboxes of a session at once.

use tokio::sync::watch::Receiver;

use crate::outcome::WorkspaceFull;

/// Rings when the session is past its limit.
#[derive(Debug)]
pub struct Alarm(Receiver<Option<WorkspaceFull>>);

impl Alarm {
    #[must_use]
    pub const fn new(receiver: Receiver<Option<WorkspaceFull>>) -> Self {
        Self(receiver)
    }
}

/// Waits until it rings.
pub(crate) async fn rings(alarm: Option<Alarm>) -> WorkspaceFull {
    let Some(Alarm(mut receiver)) = alarm else {
        return std::future::pending().await;
    };
    let rung = receiver.wait_for(Option::is_some).await.ok();
    match rung.and_then(|full| *full) {
        Some(full) => full,
        // The session ends, and with it the sandbox.
        None => std::future::pending().await,
    }
}
