//! Output and changes that a reply could not carry, until they are read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::StepResult;

/// How long a result waits to be read.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<HashMap<String, (Instant, Arc<StepResult>)>>);

impl Kept {
    fn current(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, Arc<StepResult>)>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (since, _)| since.elapsed() < KEPT_FOR);
        kept
    }

    pub(super) fn put(&self, result: Arc<StepResult>) {
        self.current()
            .insert(result.step_id.clone(), (Instant::now(), result));
    }

    /// A read starts the wait anew.
    pub(super) fn get(&self, step_id: &str) -> Option<Arc<StepResult>> {
        let mut kept = self.current();
        let (since, result) = kept.get_mut(step_id)?;
        *since = Instant::now();
        Some(Arc::clone(result))
    }

    pub(super) fn remove(&self, step_id: &str) -> bool {
        self.current().remove(step_id).is_some()
    }

    /// Lets go of what nobody reads; whether anything is still kept.
    pub(super) fn expire(&self) -> bool {
        !self.current().is_empty()
    }
}
