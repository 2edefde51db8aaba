//! The sandbox of a resident session: made at its first step, entered by all, made anew when it is lost.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::SessionError;
use super::environment;
use super::error::ending;
use super::record::{Running, Session};
use super::slots::Kind;
use super::step::{Run, program};
use super::watched::Watching;
use crate::outcome::{AppliedLimit, Start, StepResult, classify};
use crate::pool::Slot;
use crate::sandbox::cgroup::Counters;
use crate::sandbox::init::Request;
use crate::sandbox::resident::code_directory;
use crate::sandbox::skeleton::CODE_DIRECTORY;
use crate::spec::StepSpec;
use crate::supervise::{
    Events, Orders, Resident, ResidentEnd, ResidentOrders, live_resident, resident,
};

/// How often a step that finds its sandbox ended gets another one.
const TRIES: u32 = 3;

/// The resident sandbox of a session, if it is one.
#[derive(Debug, Default)]
pub(super) struct Place {
    living: tokio::sync::Mutex<Option<Living>>,
    /// Steps so far: each has a number of its own.
    entered: AtomicU64,
}

#[derive(Clone, Debug)]
struct Living {
    handle: Resident,
    /// What ended it.
    ended: watch::Receiver<Option<String>>,
    applied: Vec<AppliedLimit>,
    bytecode: bool,
}

impl Run<'_> {
    /// The life of a step of a resident session, from its count on.
    pub(super) async fn run_in_resident(
        &mut self,
        running: Running<'_>,
        step: StepSpec,
        events: Option<Events>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        if step.memory.is_some() {
            return Err(SessionError::Refused {
                field: "memory_mb".to_owned(),
                reason: "the steps of a resident session share one sandbox, and its memory; give memory_mb to the session"
                    .to_owned(),
                mount: false,
            });
        }
        let number = self
            .session
            .resident
            .entered
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        let Some((mut living, note)) = self.find(&cancel).await? else {
            return Ok(self.cancelled());
        };
        self.queue = Some(self.asked.elapsed());
        let mut notes: Vec<_> = note.into_iter().collect();
        let since = self.begin_tracking().await?;
        let mut orders = self.entering(&living, number, step, events, cancel.clone());
        let ran = async {
            for _ in 0..TRIES {
                let ran = living.handle.run(number, &mut orders).await;
                let streams = |error| SessionError::Setup(format!("streams of the step: {error}"));
                if let Some(observed) = ran.map_err(streams)? {
                    return Ok(Some(observed));
                }
                // It ended as the step was about to enter it.
                let Some((another, note)) = self.find(&cancel).await? else {
                    return Ok(None);
                };
                living = another;
                notes.extend(note);
            }
            Err(SessionError::Busy {
                what: "the resident sandbox of this session ends as soon as it is made".to_owned(),
            })
        };
        let ran = ran.await;
        let changes = self.changes(since).await;
        let Some((observed, cpu_us)) = ran? else {
            return Ok(self.cancelled());
        };
        self.start = observed.evidence.started.then_some(Start::Resident);
        self.check_launcher(&observed.evidence).await?;
        let changes = changes?;
        let overlapped = running.overlapped() && since.is_some();
        drop(running);
        self.engine.inner.steps_done.fetch_add(1, Ordering::Relaxed);
        let counters = Counters {
            cpu_us,
            ..Counters::default()
        };
        let usage = self.usage(counters, &observed);
        let mut result = self.result(observed, living.applied, usage, changes, overlapped);
        result.notes.extend(notes);
        result.notes.extend(living.handle.notes());
        result.notes.extend(self.session.quota.note());
        Ok(result)
    }

    /// The sandbox as it is; where it was lost, another one, and a note that says so. None: the step was cancelled.
    async fn find(
        &self,
        cancel: &CancellationToken,
    ) -> Result<Option<(Living, Option<String>)>, SessionError> {
        tokio::select! {
            found = self.find_or_make() => found.map(Some),
            () = cancel.cancelled() => Ok(None),
            () = self.session.closing.cancelled() => {
                Err(SessionError::Closed(self.session.id.clone()))
            }
        }
    }

    async fn find_or_make(&self) -> Result<(Living, Option<String>), SessionError> {
        let mut held = self.session.resident.living.lock().await;
        let mut note = None;
        if let Some(living) = &mut *held {
            if !living.handle.has_ended() {
                return Ok((living.clone(), None));
            }
            let why = living.ended.wait_for(Option::is_some).await;
            let why = why.ok().and_then(|why| why.clone()).unwrap_or_default();
            note = Some(format!(
                "the resident sandbox was lost, and this step has a new one: /tmp is empty, and no process of before runs \
                 ({why})"
            ));
        }
        // A caller that leaves meanwhile does not take the slot with it.
        let begun = tokio::spawn(begin(Arc::clone(self.session))).await;
        let living = begun.map_err(|_| {
            SessionError::Setup("making the resident sandbox was interrupted".to_owned())
        })??;
        *held = Some(living.clone());
        Ok((living, note))
    }

    fn entering(
        &self,
        living: &Living,
        number: u64,
        step: StepSpec,
        events: Option<Events>,
        cancel: CancellationToken,
    ) -> Orders {
        let spec = &self.session.spec;
        let environment = environment::build(
            self.session.interpreter.as_ref(),
            &self.limits,
            (&spec.user, spec.profile),
            environment::Python {
                bytecode: living.bytecode,
                deps: spec.deps().is_some(),
            },
            &step.cwd,
            &spec.env,
            &step.env,
        );
        let code = Path::new(CODE_DIRECTORY).join(code_directory(number));
        let (arguments, code) = program(step.program, self.session, &code);
        let turn = self.engine.inner.turn.fetch_add(1, Ordering::Relaxed);
        Orders {
            request: Request {
                arguments,
                environment,
                directory: step.cwd,
                code,
                processors: environment::processors(&self.limits, turn),
                shows: false,
            },
            stdin: step.stdin,
            max_output: spec.max_output,
            deadline: step.timeout.unwrap_or(spec.timeout),
            memory: self.limits.memory,
            alarm: None,
            events,
            cancel,
        }
    }
}

/// Makes the sandbox, with no step in it.
async fn begin(session: Arc<Session>) -> Result<Living, SessionError> {
    let closed = || SessionError::Closed(session.id.clone());
    let lease = session.slots.take(Kind::Program).await;
    let lease = lease.map_err(|error| match error {
        SessionError::Closed(_) => closed(),
        other => other,
    })?;
    let (mut slot, mut skeleton) = lease.into_parts().ok_or_else(closed)?;
    skeleton.clear().await;
    let prepared = async {
        let applied = slot.apply(&session.spec.limits, false)?;
        let watching = session.quota.enter(skeleton.init.as_fd()).await?;
        Ok::<_, SessionError>((applied, watching))
    };
    let (applied, watching) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => {
            session.slots.throw_away(slot);
            return Err(error);
        }
    };
    // Its own streams are nobody's: each step brings some.
    skeleton.streams = None;
    session.slots.lend();
    session.begin_kernel();
    let (handle, commands) = resident(slot.user);
    let (tell, ended) = watch::channel(None);
    let orders = ResidentOrders {
        memory: session.spec.limits.memory,
        alarm: watching.as_ref().map(Watching::alarm),
        closing: session.closing.clone(),
    };
    let bytecode = slot.bytecode == Some(true);
    let owner = Arc::clone(&session);
    tokio::spawn(async move {
        let end = live_resident(skeleton, &slot, orders, commands).await;
        drop(watching);
        let why = give_up(&owner, slot, end);
        // A step that it ended with may still be counted.
        owner.take_back(1).await;
        // Nobody may be left to hear it.
        let _ = tell.send(Some(why));
    });
    Ok(Living {
        handle,
        ended,
        applied,
        bytecode,
    })
}

/// Lets go of the slot of a resident that has ended, and says what ended it. Steps of any kind have been in it.
fn give_up(session: &Arc<Session>, slot: Slot, end: std::io::Result<ResidentEnd>) -> String {
    session.slots.end_loan();
    session.end_kernel();
    session.slots.throw_away(slot);
    match end {
        Ok(end) => {
            drop(end.skeleton);
            end.why.unwrap_or_else(|| ending(&classify(&end.evidence)))
        }
        Err(error) => format!("the engine could not watch it: {error}"),
    }
}
