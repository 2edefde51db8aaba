//! Slots made ahead for sessions to come: a session that opens does not wait for a network namespace or a cgroup.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Launcher, PoolError, Slot};
use crate::launcher::message::RealmId;
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::Mode;
use crate::sandbox::plan::{Step, StepError};
use crate::sandbox::rootfs::RootSpec;

/// Spares kept for the root that was asked for last.
const KEPT: usize = 2;

/// A slot that no session has, in a realm of its own where realms are the sessions' own.
#[derive(Debug)]
pub struct Seed {
    pub slot: Slot,
}

#[derive(Debug, Default)]
struct State {
    root: Option<RootSpec>,
    ready: VecDeque<Seed>,
    making: usize,
    closed: bool,
    shared_realm: Option<(RealmId, u32)>,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spares {
    launcher: Launcher,
    cgroups: Arc<Cgroups>,
    names: Arc<AtomicU64>,
    state: Arc<Mutex<State>>,
    realm_made: Arc<tokio::sync::Mutex<()>>,
}

impl Spares {
    #[must_use]
    pub fn new(launcher: Launcher, cgroups: Arc<Cgroups>) -> Self {
        Self {
            launcher,
            cgroups,
            names: Arc::default(),
            state: Arc::default(),
            realm_made: Arc::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots that wait for a session.
    #[must_use]
    pub fn count(&self) -> usize {
        self.state().ready.len()
    }

    /// A slot for a new session, ready or made now. More are made in the background.
    pub async fn take(&self, root: &RootSpec) -> Result<Seed, PoolError> {
        let (found, stale) = {
            let mut state = self.state();
            let mut stale = Vec::new();
            if state.root.as_ref() != Some(root) {
                state.root = Some(root.clone());
                stale.extend(state.ready.drain(..));
            }
            let mut found = None;
            while let Some(seed) = state.ready.pop_front() {
                if seed.slot.is_alive() {
                    found = Some(seed);
                    break;
                }
                stale.push(seed);
            }
            (found, stale)
        };
        for seed in stale {
            self.discard(seed).await;
        }
        let seed = match found {
            Some(seed) => seed,
            None => self.make(root).await?,
        };
        self.refill();
        Ok(seed)
    }

    /// Another slot for a session that has one.
    pub async fn another(&self, realm: (RealmId, u32), root: &RootSpec) -> Result<Slot, PoolError> {
        let name = self.names.fetch_add(1, Ordering::Relaxed).to_string();
        Slot::make(&self.launcher, &self.cgroups, realm, name, root).await
    }

    async fn make(&self, root: &RootSpec) -> Result<Seed, PoolError> {
        let realm = self.realm().await?;
        let slot = match self.another(realm, root).await {
            Err(PoolError::Step(error)) if is_dead_realm(&error) => {
                // Killed from outside: those to come need not suffer for it.
                self.forget(realm.0).await;
                self.another(self.realm().await?, root).await?
            }
            made => made?,
        };
        Ok(Seed { slot })
    }

    async fn forget(&self, realm: RealmId) {
        {
            let mut state = self.state();
            if state
                .shared_realm
                .is_some_and(|(shared, _)| shared == realm)
            {
                state.shared_realm = None;
            }
        }
        if let Err(error) = self.launcher.drop_realm(realm).await {
            tracing::warn!(%error, "a dead realm could not be removed");
        }
    }

    /// As root each session has a realm, and so host ids, of its own; else all share one.
    async fn realm(&self) -> Result<(RealmId, u32), PoolError> {
        if self.launcher.mode == Mode::Root {
            return self.launcher.make_realm().await;
        }
        let _one_at_a_time = self.realm_made.lock().await;
        if let Some(realm) = self.state().shared_realm {
            return Ok(realm);
        }
        let realm = self.launcher.make_realm().await?;
        self.state().shared_realm = Some(realm);
        Ok(realm)
    }

    fn refill(&self) {
        let spares = self.clone();
        tokio::spawn(async move {
            while let Some(root) = spares.wanted() {
                let made = spares.make(&root).await;
                let stale = {
                    let mut state = spares.state();
                    state.making -= 1;
                    match made {
                        Ok(seed) if !state.closed && state.root.as_ref() == Some(&root) => {
                            state.ready.push_back(seed);
                            None
                        }
                        Ok(seed) => Some(seed),
                        Err(error) => {
                            tracing::warn!(%error, "a spare slot could not be made");
                            return;
                        }
                    }
                };
                if let Some(seed) = stale {
                    spares.discard(seed).await;
                }
            }
        });
    }

    /// The root to make a spare for, if one is wanted; it counts as being made from then on.
    fn wanted(&self) -> Option<RootSpec> {
        let mut state = self.state();
        if state.closed || state.ready.len() + state.making >= KEPT {
            return None;
        }
        state.making += 1;
        state.root.clone()
    }

    async fn discard(&self, seed: Seed) {
        let realm = seed.slot.realm;
        self.release_realm(realm).await;
        if let Err(error) = seed.slot.close().await {
            tracing::warn!(%error, "a spare slot could not be removed");
        }
    }

    /// A session is over: its realm goes, unless all share it.
    pub async fn release_realm(&self, realm: RealmId) {
        if self.launcher.mode == Mode::Root
            && let Err(error) = self.launcher.drop_realm(realm).await
        {
            tracing::warn!(%error, "a realm could not be removed");
        }
    }

    /// Makes no more, and lets go of what is ready.
    pub async fn close(&self) {
        let ready: Vec<_> = {
            let mut state = self.state();
            state.closed = true;
            state.ready.drain(..).collect()
        };
        for seed in ready {
            self.discard(seed).await;
        }
    }
}

/// Whether the launcher found nobody at a realm's other end.
fn is_dead_realm(error: &StepError) -> bool {
    error.step == Step::Realm && matches!(error.errno, libc::EPIPE | libc::ECONNRESET)
}
