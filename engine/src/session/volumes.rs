//! The file systems of private workspaces: one of the default size is made ahead of the session that will want it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::statvfs;

use super::quota::Limits;
use crate::volume::{Capacity, Volume};

/// The first steps of the session that took the last one come first.
const LATER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Volumes {
    /// Where images are made.
    scratch: PathBuf,
    ready: Mutex<Option<Volume>>,
    made: AtomicU64,
}

impl Volumes {
    pub(super) fn new(scratch: &Path) -> Arc<Self> {
        Arc::new(Self {
            scratch: scratch.to_owned(),
            ready: Mutex::default(),
            made: AtomicU64::new(0),
        })
    }

    fn ready(&self) -> MutexGuard<'_, Option<Volume>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capacity(&self, limits: Limits) -> Capacity {
        // Only files are limited: there may be as many bytes as the disk has.
        let all = || {
            statvfs(&self.scratch).map_or(1 << 40, |facts| {
                facts.f_blocks.saturating_mul(facts.f_frsize)
            })
        };
        Capacity {
            bytes: limits.bytes.unwrap_or_else(all),
            files: limits.files,
        }
    }

    /// Takes the one that is ready, if it is of that size, or makes one. None: it could not be made, and why is logged.
    /// Blocks.
    pub(super) fn take(&self, limits: Limits) -> Option<Volume> {
        let capacity = self.capacity(limits);
        let ready = self.ready().take_if(|ready| ready.capacity() == capacity);
        if ready.is_some() {
            return ready;
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let image = self.scratch.join(format!("volume-{number}.image"));
        Volume::make(&image, capacity)
            .inspect_err(|error| {
                tracing::warn!(%error, "a workspace gets no file system of its own and is watched");
            })
            .ok()
    }

    /// Makes another one of this size ready, in a while.
    pub(super) fn prepare(self: &Arc<Self>, limits: Limits) {
        // Nobody waits for it: an engine that ends meanwhile has none.
        let volumes = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            let Some(volumes) = volumes.upgrade() else {
                return;
            };
            let made = tokio::task::spawn_blocking(move || {
                let capacity = volumes.capacity(limits);
                let there = volumes
                    .ready()
                    .as_ref()
                    .is_some_and(|ready| ready.capacity() == capacity);
                if !there && let Some(volume) = volumes.take(limits) {
                    *volumes.ready() = Some(volume);
                }
            });
            if made.await.is_err() {
                tracing::debug!("making a file system ahead was interrupted");
            }
        });
    }

    pub(super) fn close(&self) {
        self.ready().take();
    }
}
