//! The life of a kernel, which is one task: it watches the sandbox also while no cell runs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::outcome::Evidence;
use crate::pool::{Board, Skeleton, Slot, Streams};
use crate::sandbox::cgroup::Counters;
use crate::sandbox::init::{FromInit, Request, ToInit};
use crate::supervise::{
    self, Alarm, Events, Guard, Listeners, OomBell, Results, Stream, Watchdog, bite, either, ended,
    interpreter, rings,
};
use crate::sys::datagram;

/// How long a listener may take for what it had no room for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What to start.
#[derive(Debug)]
pub struct Orders {
    /// The interpreter is its only argument.
    pub request: Request,
    /// Bytes kept of each stream, for each cell.
    pub max_output: u64,
    /// Bytes.
    pub memory: Option<u64>,
    /// Rings when the session has filled its workspace, where no file system refuses.
    pub alarm: Option<Alarm>,
    /// Ends the kernel.
    pub closing: CancellationToken,
}

/// What to run, and when to stop it: to stop a cell is to end its kernel.
#[derive(Debug)]
pub struct Cell {
    pub source: Vec<u8>,
    pub deadline: Duration,
    pub events: Option<Events>,
    pub cancel: CancellationToken,
}

/// What was seen of a cell that is over.
#[derive(Debug)]
pub struct Observed {
    pub step: supervise::Observed,
    /// What the sandbox used since the cell before; the peaks are those of the kernel so far.
    pub counters: Counters,
}

#[derive(Debug)]
enum Command {
    Cell(Cell, oneshot::Sender<Observed>),
    Interrupt,
    End,
}

/// A kernel from outside. When the last one is dropped the kernel ends.
#[derive(Clone, Debug)]
pub struct Handle(mpsc::UnboundedSender<Command>);

/// What the handles of a kernel ask of it.
#[derive(Debug)]
pub struct Commands(mpsc::UnboundedReceiver<Command>);

#[must_use]
pub fn handle() -> (Handle, Commands) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Handle(sender), Commands(receiver))
}

impl Handle {
    /// Runs a cell, after those that run or wait already. None: the kernel has ended before.
    pub async fn run(&self, cell: Cell) -> Option<Observed> {
        let (reply, observed) = oneshot::channel();
        self.0.send(Command::Cell(cell, reply)).ok()?;
        observed.await.ok()
    }

    /// Interrupts the cell that runs, if one does.
    pub fn interrupt(&self) {
        let _ = self.0.send(Command::Interrupt);
    }

    /// Ends the kernel. A cell that runs is cancelled.
    pub fn end(&self) {
        let _ = self.0.send(Command::End);
    }
}

/// Lives to the death of the sandbox, and gives what is left of it with what ended it. Errors are those of the host.
pub async fn live(
    mut skeleton: Skeleton,
    slot: &Slot,
    orders: Orders,
    commands: Commands,
) -> io::Result<(Skeleton, Evidence)> {
    let Streams {
        stdin: (stdin_read, stdin_write),
        stdout: (stdout_read, stdout_write),
        stderr: (stderr_read, stderr_write),
    } = skeleton.streams.take().ok_or(io::ErrorKind::NotFound)?;
    // Whoever reads the input is at its end.
    drop(stdin_write);
    let (guard, watchdog) = Guard::new(skeleton, slot, orders.memory)?;
    let mut life = Life {
        init: guard.init()?,
        stdout: Stream::new(true, stdout_read, orders.max_output)?,
        stderr: Stream::new(false, stderr_read, orders.max_output)?,
        listeners: Listeners::new(None),
        max_output: orders.max_output,
        program: orders
            .request
            .arguments
            .first()
            .cloned()
            .unwrap_or_default(),
        guard,
        cell: None,
        waiting: VecDeque::new(),
        before: Counters::default(),
        denied_before: 0,
        quiet: false,
        control_open: true,
        buffer: Vec::new(),
        board: Board::make()?,
    };
    let request = postcard::to_stdvec(&orders.request).map_err(io::Error::other)?;
    let request = datagram::data("request", &request)?;
    let [library, script] = interpreter::kernel()?;
    let board = life.board.as_fd().try_clone_to_owned()?;
    let beside = [
        &stdin_read,
        &stdout_write,
        &stderr_write,
        &request,
        &library,
        &script,
        &board,
    ]
    .map(AsFd::as_fd);
    life.tell(&ToInit::Kernel, &beside).await;
    drop((stdin_read, stdout_write, stderr_write));
    life.run(commands, watchdog, orders.alarm, &orders.closing)
        .await;
    Ok(life.finish())
}

struct Life<'a> {
    guard: Guard<'a>,
    init: AsyncFd<OwnedFd>,
    stdout: Stream,
    stderr: Stream,
    listeners: Listeners,
    max_output: u64,
    program: Vec<u8>,
    cell: Option<Running>,
    waiting: VecDeque<(Cell, oneshot::Sender<Observed>)>,
    /// What was counted up to the end of the last cell.
    before: Counters,
    denied_before: u64,
    /// No process of the code is left: init's own end need not be waited for.
    quiet: bool,
    control_open: bool,
    buffer: Vec<u8>,
    /// Where cells leave what they show.
    board: Board,
}

/// The cell that runs.
struct Running {
    /// Nobody can guess it.
    number: u64,
    begun: Instant,
    deadline: Duration,
    cancel: CancellationToken,
    reply: oneshot::Sender<Observed>,
}

impl Life<'_> {
    async fn run(
        &mut self,
        mut commands: Commands,
        watchdog: Option<Watchdog>,
        alarm: Option<Alarm>,
        closing: &CancellationToken,
    ) {
        let (bite, full) = (bite(watchdog), rings(alarm));
        tokio::pin!(bite, full);
        let oom = OomBell::of(self.guard.slot);
        while !self.quiet {
            while self.cell.is_none()
                && !self.guard.killed
                && let Some((cell, reply)) = self.waiting.pop_front()
            {
                self.begin(cell, reply).await;
            }
            let cancel = self.cell.as_ref().map(|cell| cell.cancel.clone());
            let until = self.cell.as_ref().map(|cell| cell.begun + cell.deadline);
            tokio::select! {
                biased;
                message = self.guard.skeleton.control.receive(), if self.control_open => {
                    match message {
                        Ok(Some((message, _))) => self.hear(message),
                        Ok(None) | Err(_) => self.control_open = false,
                    }
                }
                () = ended(&self.init) => break,
                () = OomBell::rings(oom.as_ref()), if !self.guard.killed => {
                    self.guard.out_of_memory().await;
                }
                bytes = &mut bite, if !self.guard.killed => {
                    self.guard.evidence.watchdog_memory = Some(bytes);
                    self.guard.kill();
                }
                full = &mut full, if !self.guard.killed => {
                    self.guard.evidence.workspace_full = Some(full);
                    self.guard.kill();
                }
                () = closing.cancelled(), if !self.guard.killed => {
                    self.guard.evidence.cancelled = true;
                    self.guard.kill();
                }
                () = cancelled(cancel.as_ref()), if !self.guard.killed => {
                    self.guard.evidence.cancelled = true;
                    self.guard.kill();
                }
                () = passed(until), if !self.guard.killed => {
                    let deadline = self.cell.as_ref().map_or(Duration::ZERO, |cell| cell.deadline);
                    self.guard.evidence.deadline_ms =
                        Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
                    self.guard.kill();
                }
                command = commands.0.recv(), if !self.guard.killed => self.obey(command).await,
                () = self.listeners.room(), if self.stdout.waits() || self.stderr.waits() => {
                    self.stdout.flush(&mut self.listeners);
                    self.stderr.flush(&mut self.listeners);
                }
                // Floods come last, so that they delay nothing above; all are served in each, so that none starves the others.
                open = self.guard.asked(), if !self.guard.killed => {
                    self.guard.answer(open);
                    self.read();
                }
                () = either(&self.stdout, &self.stderr, &self.listeners), if self.cell.is_some() => {
                    self.read();
                }
            }
        }
        while let Some((message, _)) = self.guard.skeleton.control.receive_now() {
            self.hear(message);
        }
    }

    async fn obey(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Cell(cell, reply)) => self.waiting.push_back((cell, reply)),
            Some(Command::Interrupt) if self.cell.is_some() => {
                self.tell(&ToInit::Interrupt, &[]).await;
                // Init may wait for the interpreter alone: this makes it look. One that is gone shows elsewhere.
                let _ = rustix::process::pidfd_send_signal(
                    self.guard.skeleton.init.as_fd(),
                    rustix::process::Signal::CHILD,
                );
            }
            Some(Command::Interrupt) => {}
            Some(Command::End) | None => {
                self.guard.evidence.cancelled = true;
                self.guard.kill();
            }
        }
    }

    async fn begin(&mut self, cell: Cell, reply: oneshot::Sender<Observed>) {
        let Cell {
            source,
            deadline,
            events,
            cancel,
        } = cell;
        if cancel.is_cancelled() {
            // Its caller has left before it ran.
            return;
        }
        self.listeners = Listeners::new(events);
        // What was shown while no cell ran is none's.
        if let Err(error) = self.board.clear() {
            tracing::warn!(%error, "what a kernel shows could not be put away");
            return self.guard.kill();
        }
        let number = unguessable();
        self.cell = Some(Running {
            number,
            begun: Instant::now(),
            deadline,
            cancel,
            reply,
        });
        // A name, a number and lengths are beside it in the message.
        let long = if source.len() < datagram::MAX_MESSAGE - 64 {
            None
        } else {
            match datagram::data("source", &source) {
                Ok(long) => Some(long),
                Err(error) => {
                    tracing::warn!(%error, "a cell could not be handed on");
                    return self.guard.kill();
                }
            }
        };
        let source = long.is_none().then_some(source);
        let beside: Vec<_> = long.iter().map(AsFd::as_fd).collect();
        self.tell(&ToInit::Cell { number, source }, &beside).await;
    }

    /// An init that is gone shows as the death of the sandbox.
    async fn tell(&self, message: &ToInit, beside: &[BorrowedFd<'_>]) {
        let _ = self.guard.skeleton.control.send(message, beside).await;
    }

    fn read(&mut self) {
        if self.cell.is_none() {
            return;
        }
        for stream in [&mut self.stdout, &mut self.stderr] {
            if !stream.is_held(&self.listeners) {
                stream.read(&mut self.buffer, &mut self.listeners);
            }
        }
    }

    fn hear(&mut self, message: FromInit) {
        match message {
            FromInit::Windows | FromInit::Joinable | FromInit::Ready | FromInit::Step { .. } => {}
            FromInit::Started => self.guard.evidence.started = true,
            FromInit::Failed(error) => self.guard.not_started(&error),
            FromInit::ExecFailed { errno, looked_in } => {
                let program = std::mem::take(&mut self.program);
                self.guard.not_executed(program, errno, looked_in);
            }
            FromInit::Exited {
                status,
                alone,
                largest,
            } => {
                self.quiet = alone;
                self.guard.exited(status, alone, largest);
            }
            FromInit::Answered { number, exit_code } => {
                let current = self.cell.as_ref().is_some_and(|cell| cell.number == number);
                if !current || self.guard.killed {
                    // The end of the kernel has been decided, and is the end of this cell too.
                } else if self.guard.slot.oom_kills() > 0 {
                    self.guard.kill();
                } else {
                    self.answered(exit_code);
                }
            }
        }
    }

    /// A cell has ended by itself.
    fn answered(&mut self, exit_code: u8) {
        // What the interpreter wrote before it said so is in the pipes.
        for stream in [&mut self.stdout, &mut self.stderr] {
            stream.catch_up(&mut self.buffer, &mut self.listeners);
        }
        let evidence = Evidence {
            started: true,
            memory_max: self.guard.evidence.memory_max,
            wait_status: Some(i32::from(exit_code) << 8),
            ..Evidence::default()
        };
        self.reply(evidence);
    }

    /// Ends the cell, if one runs.
    fn reply(&mut self, evidence: Evidence) {
        let Some(cell) = self.cell.take() else {
            return;
        };
        self.tell_the_rest();
        let lost_live = self.stdout.lost() + self.stderr.lost();
        let all_told = self.listeners.paced && self.listeners.events.is_some() && lost_live == 0;
        self.listeners = Listeners::new(None);
        let counters = self.guard.slot.counters();
        let since = std::mem::replace(&mut self.before, counters);
        let denied =
            self.guard.denied - std::mem::replace(&mut self.denied_before, self.guard.denied);
        let observed = Observed {
            counters: difference(counters, since),
            step: supervise::Observed {
                skeleton: None,
                denied_syscalls: evidence.started.then_some(denied),
                evidence,
                results: Results::read(&self.board),
                stdout: self.stdout.cut(self.max_output),
                stderr: self.stderr.cut(self.max_output),
                lost_live,
                all_told,
                startup: None,
                duration: cell.begun.elapsed(),
                peak_memory: self.guard.peak.bytes(),
            },
        };
        // A caller that is gone needs no answer.
        let _ = cell.reply.send(observed);
    }

    /// What the cell's listener had no room for so far is told while the kernel goes on.
    fn tell_the_rest(&mut self) {
        let rest: Vec<_> = [&mut self.stdout, &mut self.stderr]
            .into_iter()
            .filter_map(|stream| stream.last_event(&mut self.listeners))
            .collect();
        if let Some(sender) = self.listeners.events.clone()
            && !rest.is_empty()
        {
            tokio::spawn(async move {
                for event in rest {
                    // One that does not take it in this time has left it.
                    let _ = sender.send_timeout(event, LAST_WORDS).await;
                }
            });
        }
    }

    /// The sandbox is gone: nothing will be written any more.
    fn finish(mut self) -> (Skeleton, Evidence) {
        self.guard.evidence.oom_kills = self.guard.slot.oom_kills();
        for stream in [&mut self.stdout, &mut self.stderr] {
            stream.drain(&mut self.buffer, &mut self.listeners);
        }
        let evidence = self.guard.evidence.clone();
        self.reply(evidence);
        (self.guard.skeleton, self.guard.evidence)
    }
}

fn difference(now: Counters, before: Counters) -> Counters {
    let since = |now: Option<u64>, before: Option<u64>| {
        now.map(|now| now.saturating_sub(before.unwrap_or(0)))
    };
    Counters {
        oom_kills: since(now.oom_kills, before.oom_kills),
        peak_memory: now.peak_memory,
        cpu_us: since(now.cpu_us, before.cpu_us),
        pids_peak: now.pids_peak,
        pids_denied: since(now.pids_denied, before.pids_denied),
    }
}

/// A number that is not 0.
fn unguessable() -> u64 {
    let mut bytes = [0; 8];
    loop {
        // The kernel gives up to 256 bytes whole once it is seeded, which a running system is.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match u64::from_ne_bytes(bytes) {
            0 => {}
            number => return number,
        }
    }
}

async fn cancelled(cancel: Option<&CancellationToken>) {
    match cancel {
        Some(cancel) => cancel.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
