//! The engine: one launcher, one set of cgroups, a table of sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ahead::Ahead;
use super::bytecode::Bytecode;
use super::kept::KEPT_FOR;
use super::record::Session;
use super::texts::Texts;
use super::volumes::Volumes;
use super::{Live, RuntimeDir, SessionError, SessionView, check, quota};
use crate::outcome::{AppliedLimit, StepResult};
use crate::pool::{Launcher, PoolError, Spares, Started, Templates};
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::Mode;
use crate::spec::{Interpreter, SandboxSpec, WorkspaceSource};

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) launcher: Launcher,
    pub(super) cgroups: Arc<Cgroups>,
    pub(super) spares: Spares,
    pub(super) ahead: Ahead,
    pub(super) texts: Texts,
    pub(super) templates: Templates,
    pub(super) directories: RuntimeDir,
    pub(super) bytecode: Bytecode,
    pub(super) volumes: Arc<Volumes>,
    pub(super) interpreter: tokio::sync::OnceCell<Option<Interpreter>>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    pub(super) names: super::names::Names,
    pub(super) steps_done: AtomicU64,
    pub(super) turn: AtomicU64,
}

/// The engine as the transport and the command line see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

impl Engine {
    /// To be called in the runtime, with a launcher that was started before it. `cache`: the user's directory for what
    /// engines keep.
    pub async fn new(
        started: Started,
        cgroups: Cgroups,
        directories: RuntimeDir,
        cache: Option<&std::path::Path>,
    ) -> Result<Self, PoolError> {
        let launcher = Launcher::new(started).map_err(|source| PoolError::Io {
            what: "the launcher's socket",
            source,
        })?;
        launcher.own(&cgroups).await?;
        if let Err(error) = cgroups.sweep(|id| directories.is_dead(id)) {
            tracing::warn!(%error, "cgroups of a dead engine could not be removed");
        }
        let cgroups = Arc::new(cgroups);
        let bytecode = Bytecode::new(cache, directories.scratch.parent());
        Ok(Self {
            inner: Arc::new(Inner {
                spares: Spares::new(launcher.clone(), Arc::clone(&cgroups)),
                ahead: Ahead::default(),
                texts: Texts::default(),
                templates: Templates::new(launcher.clone()),
                volumes: Volumes::new(&directories.scratch),
                launcher,
                cgroups,
                directories,
                bytecode,
                interpreter: tokio::sync::OnceCell::new(),
                sessions: Mutex::default(),
                names: super::names::Names::default(),
                steps_done: AtomicU64::new(0),
                turn: AtomicU64::new(0),
            }),
        })
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.launcher.mode
    }

    /// The directory for this engine's socket and token; 0700.
    #[must_use]
    pub fn state_directory(&self) -> &std::path::Path {
        &self.inner.directories.state
    }

    /// All directories of this engine, and those of its kind: no sandbox may have a part of them.
    #[must_use]
    pub fn directories(&self) -> Vec<std::path::PathBuf> {
        let own = &self.inner.directories;
        [&own.state, &own.scratch]
            .into_iter()
            .filter_map(|path| path.parent())
            .map(std::path::Path::to_owned)
            .collect()
    }

    /// Fires when the launcher is gone: nothing can be run any more.
    #[must_use]
    pub fn launcher_lost(&self) -> &tokio_util::sync::CancellationToken {
        self.inner.launcher.lost()
    }

    pub(super) fn sessions_table(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.inner
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of this id or name, which is used by that.
    pub(super) fn find(&self, id: &str) -> Result<Arc<Session>, SessionError> {
        let session = self.look_up(id)?;
        session.touch();
        Ok(session)
    }

    /// The same, and nothing is used.
    pub(super) fn look_up(&self, id: &str) -> Result<Arc<Session>, SessionError> {
        let table = self.sessions_table();
        let named = || {
            let name = Some(id);
            table
                .values()
                .find(|session| session.spec.name.as_deref() == name)
        };
        table
            .get(id)
            .or_else(named)
            .map(Arc::clone)
            .ok_or_else(|| SessionError::NoSession(id.to_owned()))
    }

    /// 128 random bits: a session's name is not to be guessed.
    pub(super) fn new_id(&self) -> String {
        let mut bytes = [0; 16];
        // The kernel gives up to 256 bytes whole once it is seeded, which a running system is.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        bytes.iter().fold(String::with_capacity(32), |text, byte| {
            format!("{text}{byte:02x}")
        })
    }

    /// Why code cannot keep capabilities on this host, and the command that mends it; none: it can.
    #[must_use]
    pub fn why_no_range(&self) -> Option<(String, Option<String>)> {
        let launcher = &self.inner.launcher;
        let why = launcher.range.as_ref().err()?;
        Some((why.to_string(), check::mend_range(launcher.mode)))
    }

    /// Says what would be enforced and which layers would be in force; errors when the host cannot give them.
    pub fn check(
        &self,
        spec: &SandboxSpec,
    ) -> Result<(Vec<AppliedLimit>, Vec<String>), SessionError> {
        check::kind(&self.inner.launcher, spec)?;
        check::capabilities(&self.inner.launcher, spec)?;
        Ok((
            check::limits(&self.inner.cgroups, spec, self.quota_of(spec).1)?,
            check::isolation(self.mode(), spec),
        ))
    }

    /// The limits of a session's workspace, and what would keep them.
    pub(super) fn quota_of(&self, spec: &SandboxSpec) -> (quota::Limits, [AppliedLimit; 2]) {
        let limits = quota::Limits::of(spec, &self.inner.directories.scratch);
        let given = spec.workspace != WorkspaceSource::Private;
        (limits, limits.applied(quota::mechanism(self.mode(), given)))
    }

    pub fn session(&self, id: &str) -> Result<SessionView, SessionError> {
        Ok(self.look_up(id)?.view())
    }

    #[must_use]
    pub fn sessions(&self) -> Vec<SessionView> {
        let mut views: Vec<_> = self
            .sessions_table()
            .values()
            .map(|session| session.view())
            .collect();
        views.sort_by_key(|view| view.created);
        views
    }

    /// Keeps output and changes that a reply could not carry, until release, the session's end or 60 s.
    pub fn keep(&self, id: &str, result: Arc<StepResult>) {
        let Ok(session) = self.find(id) else {
            return;
        };
        session.kept.put(result);
        let session = Arc::downgrade(&session);
        tokio::spawn(async move {
            // Each read starts the wait anew, so one look is not always enough.
            loop {
                tokio::time::sleep(KEPT_FOR).await;
                match session.upgrade() {
                    Some(session) if session.kept.expire() => {}
                    _ => return,
                }
            }
        });
    }

    /// What was kept of a step.
    pub fn kept(&self, id: &str, step_id: &str) -> Result<Arc<StepResult>, SessionError> {
        self.find(id)?
            .kept
            .get(step_id)
            .ok_or_else(|| SessionError::NoStep(step_id.to_owned()))
    }

    pub fn release(&self, id: &str, step_id: &str) -> Result<(), SessionError> {
        if self.find(id)?.kept.remove(step_id) {
            Ok(())
        } else {
            Err(SessionError::NoStep(step_id.to_owned()))
        }
    }

    /// By what each limit would be kept, whatever a session asks for.
    #[must_use]
    pub fn limit_mechanisms(&self) -> Vec<AppliedLimit> {
        use crate::outcome::Resource;
        let mechanism = |resource| AppliedLimit {
            resource,
            max: None,
            enforced_by: match resource {
                Resource::Workspace | Resource::WorkspaceFiles => {
                    quota::mechanism(self.mode(), false)
                }
                other => self.inner.cgroups.mechanism(other, None),
            },
        };
        [
            Resource::Memory,
            Resource::Pids,
            Resource::Cpu,
            Resource::Workspace,
            Resource::WorkspaceFiles,
        ]
        .map(mechanism)
        .into()
    }

    #[must_use]
    pub fn live(&self) -> Live {
        let sessions = self.sessions_table();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Live {
            sessions: count(sessions.len()),
            steps: sessions
                .values()
                .map(|session| session.steps_running())
                .sum(),
            slots: count(
                self.inner.spares.count()
                    + self.inner.ahead.count()
                    + sessions
                        .values()
                        .map(|session| session.slots.count())
                        .sum::<usize>(),
            ),
            steps_done: self.inner.steps_done.load(Ordering::Relaxed),
            templates: self.inner.templates.views(),
        }
    }
}
