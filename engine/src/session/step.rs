//! The life of a step, on one page: a slot, a snapshot, the watch, the changes, the verdict.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::SessionError;
use super::engine::Engine;
use super::environment;
use super::equipment::CODE;
use super::record::Session;
use super::slots::Kind;
use super::warm::is_forkable;
use super::watched::Watching;
use crate::launcher::message::Changes;
use crate::outcome::{
    AppliedLimit, EnforcedBy, Evidence, Output, Resource, Start, StartupFailure, StepEvent,
    StepResult, Usage, classify,
};
use crate::pool::{Forked, PoolError, Skeleton, Slot};
use crate::sandbox::cgroup::Counters;
use crate::sandbox::init::{Code, Request};
use crate::sandbox::skeleton::CODE_DIRECTORY;
use crate::spec::{Language, Limits, Program, StepSpec};
use crate::supervise::{Events, Observed, Orders, Results, watch};

/// How long the end of the launcher may take to show after the end of a sandbox.
const LAUNCHER_END: Duration = Duration::from_millis(200);

impl Engine {
    /// Runs a step to its end. When `cancel` fires the step is stopped, and the result bears the fault `cancelled`.
    /// Dropping the future kills the sandbox too. Events whose listener
    /// does not pace the code are dropped, and counted, when it is slow.
    pub async fn run(
        &self,
        id: &str,
        step: StepSpec,
        events: Option<Events>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        let session = self.find(id)?;
        let step_id = self.new_id();
        if let Some(events) = &events {
            // A receiver that is gone, or full before the first chunk, needs no start.
            let _ = events.sender.try_send(StepEvent::Started {
                step_id: step_id.clone(),
            });
        }
        let limits = limits(&session, &step);
        let mut run = Run {
            engine: self,
            session: &session,
            step_id,
            limits,
            asked: Instant::now(),
            queue: None,
            start: None,
        };
        run.run(step, events, cancel).await
    }
}

pub(super) fn limits(session: &Session, step: &StepSpec) -> Limits {
    Limits {
        memory: step.memory.unwrap_or(session.spec.limits.memory),
        ..session.spec.limits
    }
}

pub(super) struct Run<'a> {
    pub(super) engine: &'a Engine,
    pub(super) session: &'a Arc<Session>,
    pub(super) step_id: String,
    pub(super) limits: Limits,
    pub(super) asked: Instant,
    pub(super) queue: Option<Duration>,
    pub(super) start: Option<Start>,
}

impl Run<'_> {
    async fn run(
        &mut self,
        step: StepSpec,
        events: Option<Events>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        let running = self.session.begin_step();
        if self.session.spec.resident {
            return self.run_in_resident(running, step, events, cancel).await;
        }
        let kind = self.kind(&step);
        self.engine.inner.ahead.note(kind);
        let lease = tokio::select! {
            lease = self.session.slots.take(kind) => lease.map_err(|error| self.named(error))?,
            () = cancel.cancelled() => return Ok(self.cancelled()),
            () = self.session.closing.cancelled() => {
                return Err(SessionError::Closed(self.session.id.clone()));
            }
        };
        self.queue = Some(self.asked.elapsed());
        let (mut slot, mut skeleton) = lease
            .into_parts()
            .ok_or_else(|| SessionError::Closed(self.session.id.clone()))?;
        let held = kind == Kind::Forkable && slot.holds(&self.session.slots.skeleton);
        let applied = match slot.apply(&self.limits, held) {
            Ok(applied) => applied,
            Err(error) => {
                self.session.slots.throw_away(slot);
                return Ok(self.not_started(error));
            }
        };
        let since = match self.begin_tracking().await {
            Ok(since) => since,
            Err(error) => {
                self.session.slots.throw_away(slot);
                return Err(error);
            }
        };
        let start = self.choose(kind, &slot, &mut skeleton).await;
        let watching = match self.session.quota.enter(skeleton.init.as_fd()).await {
            Ok(watching) => watching,
            Err(error) => {
                self.session.slots.throw_away(slot);
                return Err(error);
            }
        };
        let spent_us = skeleton.spent_us;
        let mut orders = self.orders(step, &slot, events, &cancel);
        orders.alarm = watching.as_ref().map(Watching::alarm);
        let observed = self.watch(skeleton, &slot, orders, &cancel).await;
        let mut observed = match observed {
            Ok(observed) => observed,
            Err(source) => {
                self.session.slots.throw_away(slot);
                return Ok(self.not_started(PoolError::Io {
                    what: "streams of the step",
                    source,
                }));
            }
        };
        drop(watching);
        self.start = observed.evidence.started.then_some(start);
        // The keeper looks at the files while the counters are read.
        let (changes, usage) = tokio::join!(self.changes(since), async {
            let counters = slot.counters();
            let cpu_us = counters.cpu_us.map(|spent| spent.saturating_sub(spent_us));
            self.usage(Counters { cpu_us, ..counters }, &observed)
        });
        let full = self.session.quota.note();
        self.release(
            slot,
            observed.skeleton.take(),
            &observed.evidence,
            full.is_some(),
        )
        .await;
        self.check_launcher(&observed.evidence).await?;
        let changes = changes?;
        let overlapped = running.overlapped() && since.is_some();
        drop(running);
        self.engine.inner.steps_done.fetch_add(1, Ordering::Relaxed);
        let mut result = self.result(observed, applied, usage, changes, overlapped);
        result.notes.extend(full);
        Ok(result)
    }

    fn named(&self, error: SessionError) -> SessionError {
        match error {
            SessionError::Closed(_) => SessionError::Closed(self.session.id.clone()),
            other => other,
        }
    }

    pub(super) async fn begin_tracking(&self) -> Result<Option<u64>, SessionError> {
        if !self.session.spec.track_files {
            return Ok(None);
        }
        // In a workspace of the caller's others write too, and in a resident what earlier steps left running.
        let given = self.session.given_workspace() || self.session.spec.resident;
        let touched = self.session.touched.swap(false, Ordering::AcqRel);
        match self.session.take_snapshot() {
            Some(last) if !given && !touched => Ok(Some(last)),
            last => {
                let alone = self.session.alone();
                let since = self.session.keeper.begin(given, last, alone).await?;
                self.session.learn_later();
                Ok(Some(since))
            }
        }
    }

    pub(super) async fn changes(&self, since: Option<u64>) -> Result<Changes, SessionError> {
        self.session.take_back(1).await;
        let Some(since) = since else {
            return Ok(Changes::default());
        };
        if self.session.keeper.is_untouched(since) && self.session.return_snapshot(since) {
            self.session.learn_later();
            return Ok(Changes::default());
        }
        let instead = self.session.take_snapshot();
        let alone = self.session.alone();
        let (changes, next) = self.session.keeper.changes(since, instead, alone).await?;
        self.session.leave_snapshot(next);
        self.session.learn_later();
        Ok(changes)
    }

    fn orders(
        &self,
        step: StepSpec,
        slot: &Slot,
        events: Option<Events>,
        cancel: &CancellationToken,
    ) -> Orders {
        let spec = &self.session.spec;
        let places = self.session.places(slot);
        let mut environment = environment::build(
            self.session.interpreter.as_ref(),
            &self.limits,
            (&spec.user, spec.profile),
            environment::Python {
                bytecode: slot.bytecode == Some(true),
                deps: spec.deps().is_some(),
            },
            &step.cwd,
            &spec.env,
            &step.env,
        );
        let mut directory = step.cwd;
        let mut code_directory = PathBuf::from(CODE_DIRECTORY);
        if let (Some(places), Some(own)) = (places, &slot.directory) {
            let mut given = spec.env.clone();
            given.extend(step.env);
            places.translate(&mut environment, &given);
            directory = places.on_host(&directory);
            code_directory = own.join(CODE);
        }
        let shows = shows(&step.program, &environment);
        let (arguments, code) = program(step.program, self.session, &code_directory);
        let turn = self.engine.inner.turn.fetch_add(1, Ordering::Relaxed);
        Orders {
            request: Request {
                arguments,
                environment,
                directory,
                code,
                processors: environment::processors(&self.limits, turn),
                shows,
            },
            stdin: step.stdin,
            max_output: spec.max_output,
            deadline: step.timeout.unwrap_or(spec.timeout),
            memory: self.limits.memory,
            alarm: None,
            events,
            cancel: cancel.clone(),
        }
    }

    /// A session that is closed cancels its steps.
    async fn watch(
        &self,
        skeleton: Skeleton,
        slot: &Slot,
        orders: Orders,
        cancel: &CancellationToken,
    ) -> std::io::Result<Observed> {
        let watched = watch(skeleton, slot, orders);
        tokio::pin!(watched);
        tokio::select! {
            observed = &mut watched => return observed,
            () = self.session.closing.cancelled() => cancel.cancel(),
        }
        watched.await
    }

    /// After an out-of-memory kill or a blocked call the slot is not used again.
    async fn release(
        &self,
        slot: Slot,
        skeleton: Option<Skeleton>,
        evidence: &Evidence,
        full: bool,
    ) {
        match skeleton {
            Some(skeleton) if evidence.oom_kills == 0 && evidence.notification.is_none() => {
                if full {
                    self.session.slots.put_back_now(slot, skeleton).await;
                } else {
                    self.session.slots.put_back(slot, skeleton);
                }
            }
            _ => self.session.slots.throw_away(slot),
        }
    }

    /// A sandbox that nobody here killed may have died with the launcher: that is no verdict on the code.
    pub(super) async fn check_launcher(&self, evidence: &Evidence) -> Result<(), SessionError> {
        let unexplained = evidence.wait_status.is_none()
            && evidence.deadline_ms.is_none()
            && !evidence.cancelled
            && evidence.startup.is_none()
            && evidence.exec.is_none()
            && evidence.notification.is_none()
            && evidence.oom_kills == 0
            && evidence.workspace_full.is_none()
            && evidence.watchdog_memory.is_none();
        let lost = self.engine.launcher_lost();
        if unexplained
            && tokio::time::timeout(LAUNCHER_END, lost.cancelled())
                .await
                .is_ok()
        {
            return Err(SessionError::LauncherLost);
        }
        Ok(())
    }

    /// Whether a fork of an interpreter is what the step's own would be.
    fn kind(&self, step: &StepSpec) -> Kind {
        let python = matches!(
            step.program,
            Program::Code {
                language: Language::Python,
                ..
            }
        );
        if python && self.session.slots.is_warm() && is_forkable(&step.env) {
            Kind::Forkable
        } else {
            Kind::Program
        }
    }

    /// Leaves in the sandbox what the step is to run in, and nothing else.
    async fn choose(&self, kind: Kind, slot: &Slot, skeleton: &mut Skeleton) -> Start {
        // What waits is the first that a machine without memory kills. Nothing of the step has been near it.
        let dead = |forked: &Forked| forked.control.is_closed();
        if skeleton.forked.as_ref().is_some_and(dead) {
            skeleton.clear().await;
        }
        match (kind, &skeleton.forked) {
            (Kind::Forkable, Some(_)) => Start::ForkedAhead,
            (Kind::Forkable, None) => {
                self.session.slots.fork(slot, skeleton).await;
                match skeleton.forked {
                    Some(_) => Start::Forked,
                    None => Start::Cold,
                }
            }
            (Kind::Program, _) => {
                skeleton.clear().await;
                Start::Cold
            }
        }
    }

    pub(super) fn usage(&self, counters: Counters, observed: &Observed) -> Usage {
        let microseconds =
            |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Usage {
            cpu_us: counters.cpu_us,
            peak_memory: counters.peak_memory.or(observed.peak_memory),
            startup_us: observed.startup.map(microseconds),
            queue_us: self.queue.map(microseconds),
            pids_peak: counters.pids_peak,
            oom_kills: counters.oom_kills,
            pids_denied: counters.pids_denied,
            denied_syscalls: observed.denied_syscalls,
        }
    }

    pub(super) fn result(
        &self,
        observed: Observed,
        applied: Vec<AppliedLimit>,
        usage: Usage,
        changes: Changes,
        overlapped: bool,
    ) -> StepResult {
        let Observed {
            skeleton: _,
            evidence,
            stdout,
            stderr,
            results: Results { results, note },
            lost_live,
            all_told,
            denied_syscalls: _,
            startup: _,
            duration,
            peak_memory: _,
        } = observed;
        let mut limits = applied;
        for limit in &mut limits {
            let unkept = |known: &AppliedLimit| {
                known.resource == limit.resource && known.enforced_by == EnforcedBy::None
            };
            // What counts for others does not for code that can become others.
            if limit.enforced_by == EnforcedBy::Rlimit && self.session.limits.iter().any(unkept) {
                limit.enforced_by = EnforcedBy::None;
            }
        }
        limits.extend(
            self.session
                .limits
                .iter()
                .filter(|limit| is_quota(limit.resource)),
        );
        StepResult {
            step_id: self.step_id.clone(),
            notes: [
                notes(
                    &stdout,
                    &stderr,
                    (lost_live, all_told),
                    &usage,
                    self.limits.pids,
                ),
                self.session.slots.notes(),
                self.ceilings(&limits),
                self.session.reduced_note(),
                note.map(str::to_owned).into_iter().collect(),
            ]
            .concat(),
            stdout,
            stderr,
            verdict: classify(&evidence),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            files: changes.files,
            files_truncated: changes.truncated,
            files_shared: overlapped,
            files_tracked: self.session.spec.track_files,
            usage,
            limits,
            isolation: self.session.isolation.clone(),
            image_digest: self.session.image_digest.clone(),
            start: self.start,
            results,
            results_truncated: note.is_some(),
        }
    }

    /// The limits that bind later than one above them does.
    fn ceilings(&self, limits: &[AppliedLimit]) -> Vec<String> {
        let told = |limit: &AppliedLimit| {
            let cgroups = &self.engine.inner.cgroups;
            let above = cgroups.ceiling(limit.resource, limit.max?)?;
            let name = limit.resource.name();
            Some(format!(
                "{name}: {above}, sandboxes and the engine's own processes alike; that is less than this step's limit and \
                 binds first"
            ))
        };
        limits.iter().filter_map(told).collect()
    }

    /// The step was cancelled while it waited for a slot: nothing ran.
    pub(super) fn cancelled(&self) -> StepResult {
        self.without_run(Evidence {
            cancelled: true,
            ..Evidence::default()
        })
    }

    fn not_started(&self, error: PoolError) -> StepResult {
        let startup = match error {
            PoolError::Step(error) => StartupFailure {
                step: error.step.name().to_owned(),
                errno: Some(error.errno),
                message: error.to_string(),
            },
            other => StartupFailure {
                step: "slot".to_owned(),
                errno: None,
                message: other.to_string(),
            },
        };
        self.without_run(Evidence {
            startup: Some(startup),
            ..Evidence::default()
        })
    }

    fn without_run(&self, evidence: Evidence) -> StepResult {
        let observed = Observed {
            skeleton: None,
            evidence,
            stdout: Output::default(),
            stderr: Output::default(),
            results: Results::default(),
            lost_live: 0,
            all_told: false,
            denied_syscalls: None,
            startup: None,
            duration: self.asked.elapsed(),
            peak_memory: None,
        };
        let usage = Usage::default();
        self.result(observed, Vec::new(), usage, Changes::default(), false)
    }
}

const fn is_quota(resource: Resource) -> bool {
    matches!(resource, Resource::Workspace | Resource::WorkspaceFiles)
}

/// Whether what the step shows can be had: of Python, unless its interpreter is to go on when the script has ended.
fn shows(program: &Program, environment: &[(String, String)]) -> bool {
    let python = matches!(
        program,
        Program::Code {
            language: Language::Python,
            ..
        }
    );
    python && !environment.iter().any(|(name, _)| name == "PYTHONINSPECT")
}

/// The arguments, and for source code its file.
pub(super) fn program(
    program: Program,
    session: &Session,
    directory: &Path,
) -> (Vec<Vec<u8>>, Option<Code>) {
    match program {
        Program::Argv(arguments) => (arguments, None),
        Program::Code {
            language,
            source,
            args,
        } => {
            let interpreter = match (&session.interpreter, language) {
                (Some(python), Language::Python) => python.executable.clone(),
                _ => PathBuf::from(language.interpreter()),
            };
            let name = format!("main.{}", language.extension());
            let mut arguments = vec![
                interpreter.into_os_string().into_encoded_bytes(),
                directory.join(&name).into_os_string().into_encoded_bytes(),
            ];
            arguments.extend(args);
            (arguments, Some(Code { file: name, source }))
        }
    }
}

/// What the caller should know and the code did not say.
fn notes(
    stdout: &Output,
    stderr: &Output,
    (lost_live, all_told): (u64, bool),
    usage: &Usage,
    pids: Option<u64>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if lost_live > 0 {
        notes.push(format!(
            "{lost_live} bytes of live output were left out, because the listener was slower than the code; the result \
             has what was kept"
        ));
    }
    for (name, output) in [("stdout", stdout), ("stderr", stderr)] {
        // What was told as it came is not missed.
        if output.truncated() && !all_told {
            notes.push(format!(
                "{name} was cut: {} of {} bytes were kept, the first {} and the last {}",
                output.kept.len(),
                output.total,
                output.head,
                output.kept.len() as u64 - output.head
            ));
        }
    }
    if let (Some(denied), Some(pids)) = (usage.pids_denied.filter(|denied| *denied > 0), pids) {
        notes.push(format!(
            "{denied} new processes or threads were refused: the limit is {pids} tasks"
        ));
    }
    notes
}
