//! The kernels of a session: their table, and the life of a cell.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::SessionError;
use super::engine::Engine;
use super::environment;
use super::error::ending;
use super::record::Session;
use super::slots::Kind;
use super::slots::QUEUE_TIMEOUT;
use super::step::{Run, limits};
use super::watched::Watching;
use crate::kernel::{self, Cell, Handle, Observed, Orders};
use crate::outcome::{AppliedLimit, Evidence, Start, StepEvent, StepResult, Verdict, classify};
use crate::pool::{Skeleton, Slot};
use crate::sandbox::init::Request;
use crate::spec::{Isolation, Language, Program, StepSpec};
use crate::supervise::Events;

/// Kernels of one session at most: each has a sandbox, and an interpreter in memory.
const MOST: usize = 16;
/// How long an interpreter may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A kernel that has started.
#[derive(Clone, Debug)]
pub struct KernelView {
    pub id: String,
    /// How its interpreter came to be.
    pub start: Start,
}

#[derive(Debug, Default)]
pub(super) struct Kernels(Mutex<HashMap<String, Arc<Kernel>>>);

/// One name, and the interpreter that has it now.
#[derive(Debug)]
struct Kernel {
    spec: StepSpec,
    /// Whoever has it runs a cell; the others wait in order.
    turn: tokio::sync::Mutex<()>,
    /// Whoever has it gives the kernel another life.
    renewal: tokio::sync::Mutex<()>,
    life: Mutex<Life>,
}

#[derive(Clone, Debug)]
struct Life {
    handle: Handle,
    ended: watch::Receiver<Option<Ending>>,
    applied: Vec<AppliedLimit>,
    start: Start,
}

/// What ended a life.
#[derive(Clone, Debug)]
struct Ending {
    why: String,
    /// None: the host failed it.
    verdict: Option<Verdict>,
}

impl Kernels {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<Kernel>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of them has not ended.
    pub(super) fn any_lives(&self) -> bool {
        self.table()
            .values()
            .any(|kernel| !kernel.life().has_ended())
    }

    fn room(&self) -> Result<(), SessionError> {
        full(self.table().len())
    }

    fn insert(&self, id: String, kernel: Arc<Kernel>) -> Result<(), SessionError> {
        let mut table = self.table();
        full(table.len())?;
        table.insert(id, kernel);
        Ok(())
    }

    fn find(&self, id: &str) -> Result<Arc<Kernel>, SessionError> {
        self.table()
            .get(id)
            .map(Arc::clone)
            .ok_or_else(|| SessionError::NoKernel(id.to_owned()))
    }
}

fn full(count: usize) -> Result<(), SessionError> {
    if count < MOST {
        return Ok(());
    }
    Err(SessionError::Busy {
        what: format!("this session has {MOST} kernels, which is the most; close one"),
    })
}

impl Kernel {
    fn life(&self) -> Life {
        self.life
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Life {
    fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Ends it, and waits until its sandbox is gone.
    async fn end(&mut self) {
        self.handle.end();
        // The sender goes with the life.
        let _ = self.ended.wait_for(Option::is_some).await;
    }

    /// What ended it.
    async fn ending(&mut self) -> Ending {
        let ending = self.ended.wait_for(Option::is_some).await;
        let ending = ending.ok().and_then(|ending| ending.clone());
        ending.unwrap_or_else(|| Ending {
            why: "the engine ended it".to_owned(),
            verdict: None,
        })
    }
}

impl Engine {
    /// Starts an interpreter that runs cells. Of `spec` the memory, the environment and the directory count.
    pub async fn start_kernel(&self, id: &str, spec: StepSpec) -> Result<KernelView, SessionError> {
        let session = self.find(id)?;
        if session.spec.isolation == Isolation::Reduced {
            return Err(SessionError::Unavailable {
                what: "kernel() is not there with isolation_mode=\"reduced\"; run steps".to_owned(),
                mend: None,
            });
        }
        session.kernels.room()?;
        let life = self.begin_life(&session, &spec).await?;
        let kernel_id = self.new_id();
        let start = life.start;
        let kernel = Arc::new(Kernel {
            spec,
            turn: tokio::sync::Mutex::default(),
            renewal: tokio::sync::Mutex::default(),
            life: Mutex::new(life),
        });
        // Others may have started meanwhile. One that finds no room ends with its last handle.
        session.kernels.insert(kernel_id.clone(), kernel)?;
        Ok(KernelView {
            id: kernel_id,
            start,
        })
    }

    /// Runs a cell to its end. Of `spec` the source and the deadline count. A cell that is stopped, by `cancel` too, takes
    /// its kernel with it; one that still waits for its turn does not.
    pub async fn run_cell(
        &self,
        id: &str,
        kernel_id: &str,
        spec: StepSpec,
        events: Option<Events>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        let session = self.find(id)?;
        let kernel = session.kernels.find(kernel_id)?;
        let mut run = Run {
            engine: self,
            session: &session,
            step_id: self.new_id(),
            limits: limits(&session, &kernel.spec),
            asked: Instant::now(),
            queue: None,
            start: None,
        };
        if let Some(events) = &events {
            // A receiver that is gone, or full before the first chunk, needs no start.
            let _ = events.sender.try_send(StepEvent::Started {
                step_id: run.step_id.clone(),
            });
        }
        let mut life = kernel.life();
        let _turn = tokio::select! {
            turn = tokio::time::timeout(QUEUE_TIMEOUT, kernel.turn.lock()) => turn.map_err(|_| SessionError::Busy {
                what: format!("the kernel ran other cells for {} s", QUEUE_TIMEOUT.as_secs()),
            })?,
            () = cancel.cancelled() => return Ok(run.cancelled()),
        };
        run.queue = Some(run.asked.elapsed());
        let running = session.begin_step();
        let since = run.begin_tracking().await?;
        // A caller whose future is dropped has left the cell.
        let cancel = cancel.child_token();
        let _left = cancel.clone().drop_guard();
        let cell = Cell {
            source: source(spec.program),
            deadline: spec.timeout.unwrap_or(session.spec.timeout),
            events,
            cancel,
        };
        let Some(observed) = life.handle.run(cell).await else {
            // The keeper's count goes on from here.
            run.changes(since).await?;
            return Err(SessionError::KernelEnded(life.ending().await.why));
        };
        let Observed { step, counters } = observed;
        let changes = run.changes(since).await;
        run.check_launcher(&step.evidence).await?;
        let changes = changes?;
        let overlapped = running.overlapped() && since.is_some();
        drop(running);
        self.inner.steps_done.fetch_add(1, Ordering::Relaxed);
        let usage = run.usage(counters, &step);
        run.start = step.evidence.started.then_some(Start::Kernel);
        let mut step = run.result(step, life.applied.clone(), usage, changes, overlapped);
        step.notes.extend(session.quota.note());
        Ok(step)
    }

    /// Raises `KeyboardInterrupt` in the cell that runs; nothing, where none does.
    pub fn interrupt_kernel(&self, id: &str, kernel_id: &str) -> Result<(), SessionError> {
        let kernel = self.find(id)?.kernels.find(kernel_id)?;
        kernel.life().handle.interrupt();
        Ok(())
    }

    /// Ends the interpreter, and starts another one under the same name. A cell that runs is cancelled, and those that
    /// wait are refused.
    pub async fn restart_kernel(
        &self,
        id: &str,
        kernel_id: &str,
    ) -> Result<KernelView, SessionError> {
        let session = self.find(id)?;
        let kernel = session.kernels.find(kernel_id)?;
        let _renewal = kernel.renewal.lock().await;
        kernel.life().end().await;
        let life = self.begin_life(&session, &kernel.spec).await?;
        let start = life.start;
        *kernel.life.lock().unwrap_or_else(PoisonError::into_inner) = life;
        Ok(KernelView {
            id: kernel_id.to_owned(),
            start,
        })
    }

    /// Ends a kernel, and waits until its sandbox is gone.
    pub async fn close_kernel(&self, id: &str, kernel_id: &str) -> Result<(), SessionError> {
        let session = self.find(id)?;
        let kernel = session.kernels.table().remove(kernel_id);
        let kernel = kernel.ok_or_else(|| SessionError::NoKernel(kernel_id.to_owned()))?;
        kernel.life().end().await;
        Ok(())
    }

    /// Starts an interpreter in a sandbox of the session, and waits until it is ready.
    async fn begin_life(
        &self,
        session: &Arc<Session>,
        spec: &StepSpec,
    ) -> Result<Life, SessionError> {
        let closed = || SessionError::Closed(session.id.clone());
        let lease = tokio::select! {
            lease = session.slots.take(Kind::Program) => lease.map_err(|error| match error {
                SessionError::Closed(_) => closed(),
                other => other,
            })?,
            () = session.closing.cancelled() => return Err(closed()),
        };
        let (mut slot, mut skeleton) = lease.into_parts().ok_or_else(closed)?;
        skeleton.clear().await;
        let applied = match slot.apply(&limits(session, spec), false) {
            Ok(applied) => applied,
            Err(error) => {
                session.slots.throw_away(slot);
                return Err(error.into());
            }
        };
        let watching = match session.quota.enter(skeleton.init.as_fd()).await {
            Ok(watching) => watching,
            Err(error) => {
                session.slots.throw_away(slot);
                return Err(error);
            }
        };
        session.slots.lend();
        session.begin_kernel();
        let (handle, commands) = kernel::handle();
        let (tell, ended) = watch::channel(None);
        let mut orders = self.kernel_orders(session, &slot, spec);
        orders.alarm = watching.as_ref().map(Watching::alarm);
        let owner = Arc::clone(session);
        tokio::spawn(async move {
            let end = kernel::live(skeleton, &slot, orders, commands).await;
            drop(watching);
            let ending = give_back(&owner, slot, end).await;
            // The cell that it ended with may still be counted.
            owner.take_back(1).await;
            // Nobody may be left to hear it.
            let _ = tell.send(Some(ending));
        });
        let mut life = Life {
            handle,
            ended,
            applied,
            start: Start::Cold,
        };
        let ready = Cell {
            source: Vec::new(),
            deadline: START_TIMEOUT,
            events: None,
            cancel: session.closing.clone(),
        };
        if let Some(observed) = life.handle.run(ready).await
            && classify(&observed.step.evidence).exit_code == 0
            && !life.has_ended()
        {
            return Ok(life);
        }
        life.handle.end();
        let Ending { why, verdict } = life.ending().await;
        if session.closing.is_cancelled() {
            return Err(closed());
        }
        match verdict {
            Some(verdict) => Err(SessionError::KernelNotStarted(Box::new(verdict))),
            None => Err(SessionError::Setup(why)),
        }
    }

    fn kernel_orders(&self, session: &Session, slot: &Slot, spec: &StepSpec) -> Orders {
        let limits = limits(session, spec);
        let interpreter = session.interpreter.as_ref().map_or_else(
            || Language::Python.interpreter().into(),
            |python| python.executable.clone(),
        );
        let environment = environment::build(
            session.interpreter.as_ref(),
            &limits,
            (&session.spec.user, session.spec.profile),
            environment::Python {
                bytecode: slot.bytecode == Some(true),
                deps: session.spec.deps().is_some(),
            },
            &spec.cwd,
            &session.spec.env,
            &spec.env,
        );
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        Orders {
            request: Request {
                arguments: vec![interpreter.into_os_string().into_encoded_bytes()],
                environment,
                directory: spec.cwd.clone(),
                code: None,
                processors: environment::processors(&limits, turn),
                shows: false,
            },
            max_output: session.spec.max_output,
            memory: limits.memory,
            alarm: None,
            closing: session.closing.clone(),
        }
    }
}

/// Gives the slot of a kernel back, and says what ended the kernel.
async fn give_back(
    session: &Arc<Session>,
    slot: Slot,
    end: std::io::Result<(Skeleton, Evidence)>,
) -> Ending {
    session.slots.end_loan();
    session.end_kernel();
    match end {
        Ok((skeleton, evidence)) => {
            let reusable = evidence.oom_kills == 0 && evidence.notification.is_none();
            if reusable && session.quota.note().is_some() {
                session.slots.put_back_now(slot, skeleton).await;
            } else if reusable {
                session.slots.put_back(slot, skeleton);
            } else {
                session.slots.throw_away(slot);
            }
            let verdict = classify(&evidence);
            Ending {
                why: if evidence.cancelled {
                    "it was closed, restarted, or its cell was cancelled".to_owned()
                } else {
                    ending(&verdict)
                },
                verdict: Some(verdict),
            }
        }
        Err(error) => {
            session.slots.throw_away(slot);
            Ending {
                why: format!("the engine could not make its streams: {error}"),
                verdict: None,
            }
        }
    }
}

/// The source of a cell.
fn source(program: Program) -> Vec<u8> {
    match program {
        Program::Code { source, .. } => source,
        Program::Argv(_) => Vec::new(),
    }
}
