//! The text that keepers hold, for diffs: how much each session's may, and when it is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::record::Session;
use crate::spec::SandboxSpec;

/// Of one session, and of all together.
const MOST_OF_ONE: u64 = 16 << 20;
const MOST_OF_ALL: u64 = 256 << 20;
/// How much of what is left the next session gets: none gets nothing.
const SHARE: u64 = 16;
/// Without a step for so long, before a keeper reads what makes the next look necessary if a step comes meanwhile.
const CALM: Duration = Duration::from_millis(100);
/// Between two requests to read on.
const PAUSE: Duration = Duration::from_millis(5);

/// What the sessions of an engine may hold.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    left: Arc<AtomicU64>,
}

/// What one session may, as long as it lives.
#[derive(Debug)]
pub(super) struct Granted {
    texts: Texts,
    bytes: u64,
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            left: Arc::new(AtomicU64::new(MOST_OF_ALL)),
        }
    }
}

impl Texts {
    /// Nothing where diffs are not wanted, or nobody looks for changes.
    pub(super) fn grant(&self, spec: &SandboxSpec) -> Granted {
        let share = |left: u64| (left / SHARE).min(MOST_OF_ONE);
        let bytes = if spec.track_files && spec.file_diffs {
            let order = Ordering::AcqRel;
            let take = |left| Some(left - share(left));
            let before = self.left.fetch_update(order, Ordering::Acquire, take);
            before.map_or(0, share)
        } else {
            0
        };
        Granted {
            texts: self.clone(),
            bytes,
        }
    }
}

impl Granted {
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.texts.left.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

impl Session {
    /// Has the keeper read what it has not, if there is anything: bit by bit, and not while a step waits for it.
    pub(super) fn learn_later(self: &Arc<Self>) {
        if !self.keeper.has_unread() || self.learning.swap(true, Ordering::AcqRel) {
            return;
        }
        let session = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = session.learn() => {}
                () = session.closing.cancelled() => {}
            }
            session.learning.store(false, Ordering::Release);
        });
    }

    async fn learn(&self) {
        while self.keeper.has_unread() {
            // The step that asked for it is still ending.
            tokio::time::sleep(PAUSE).await;
            let quiet = self.quiet();
            if self.keeper.is_settled() {
                tokio::time::sleep(CALM).await;
            }
            let mut asked = true;
            while asked && self.keeper.has_unread() {
                let Ok(done) = self.keeper.learn(&quiet).await else {
                    return;
                };
                asked = done;
                tokio::time::sleep(PAUSE).await;
            }
            // It would have spoilt something. While a kernel lives it always does; the end of each cell asks again.
            if self.has_kernels() {
                return;
            }
            self.idle().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sessions_together_have_a_bound_and_none_has_nothing() {
        let texts = Texts::default();
        let share = |texts: &Texts| {
            let left = texts.left.load(Ordering::Acquire);
            let bytes = (left / SHARE).min(MOST_OF_ONE);
            texts.left.fetch_sub(bytes, Ordering::AcqRel);
            Granted {
                texts: texts.clone(),
                bytes,
            }
        };
        let granted: Vec<_> = (0..200).map(|_| share(&texts)).collect();
        assert_eq!(granted[0].bytes(), MOST_OF_ONE);
        assert!(granted.iter().all(|granted| granted.bytes() > 0));
        assert!(granted.iter().map(Granted::bytes).sum::<u64>() <= MOST_OF_ALL);
        drop(granted);
        assert_eq!(texts.left.load(Ordering::Acquire), MOST_OF_ALL);
    }
}
