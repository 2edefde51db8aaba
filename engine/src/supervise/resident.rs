//! A sandbox that stays, and the steps that enter it. One task watches the sandbox; each step watches its own streams,
//! deadline and caller, and asks that task for its start and, if need be, its end.
//!
//! What belongs to which step is told by the step's cgroup, which code cannot leave. A step that is stopped is ended with
//! all that it started and with nothing else. Where there is no such cgroup the whole sandbox is ended instead: a name, a
//! session or a parent would be the code's to choose.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::alarm::{Alarm, rings};
use super::guard::{Guard, OomBell, bite, ended};
use super::results::Results;
use super::step::{self, Observed, feed};
use super::stream::{Listeners, Stream, either};
use crate::outcome::{Evidence, ExecFailure, Notification, StartupFailure};
use crate::pool::{Skeleton, Slot, Streams};
use crate::sandbox::cgroup::Branch;
use crate::sandbox::init::{FromInit, Request, StepWord, ToInit};
use crate::sandbox::plan::StepError;
use crate::sys::datagram;

/// How long the end of a step waits for listeners to take output that they had no room for.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pipes that are read on for what ended steps left running, at most: code can keep any number of them open.
const READ_ON_MOST: usize = 64;
const READ_ON_BYTES: usize = 16 << 10;
/// Between two reads: what nobody is shown is to cost next to nothing.
const READ_ON_PAUSE: Duration = Duration::from_millis(5);
const NOTES_MOST: usize = 16;

/// What the sandbox is to be watched for.
#[derive(Debug)]
pub struct Orders {
    /// Bytes.
    pub memory: Option<u64>,
    /// Rings when the session has filled its workspace, where no file system refuses.
    pub alarm: Option<Alarm>,
    /// Ends the sandbox.
    pub closing: CancellationToken,
}

/// What is left of a sandbox that has ended.
#[derive(Debug)]
pub struct End {
    pub skeleton: Skeleton,
    pub evidence: Evidence,
    /// What ended it, where the evidence does not say.
    pub why: Option<String>,
}

/// A resident from outside. When the last one is dropped it ends.
#[derive(Clone, Debug)]
pub struct Resident {
    commands: mpsc::UnboundedSender<Command>,
    /// The host id of its user.
    user: u32,
    read_on: Arc<ReadOn>,
    notes: Arc<Mutex<Vec<String>>>,
}

/// What the handles of a resident ask of it.
#[derive(Debug)]
pub struct Commands {
    receiver: mpsc::UnboundedReceiver<Command>,
    notes: Arc<Mutex<Vec<String>>>,
    /// It does not keep the sandbox.
    own: mpsc::WeakUnboundedSender<Command>,
}

/// `user`: the host id of the slot's user.
#[must_use]
pub fn resident(user: u32) -> (Resident, Commands) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let own = sender.downgrade();
    let resident = Resident {
        commands: sender,
        user,
        read_on: Arc::default(),
        notes: Arc::clone(&notes),
    };
    let commands = Commands {
        receiver,
        notes,
        own,
    };
    (resident, commands)
}

#[derive(Debug)]
enum Command {
    Enter {
        number: u64,
        request: Request,
        streams: [OwnedFd; 3],
        tell: mpsc::UnboundedSender<Word>,
    },
    /// The step is to be ended with all that it started.
    Kill(u64),
    /// That is done; false: something is left.
    Killed(u64, bool),
    /// The step has its result.
    Leave(u64),
}

/// What a step hears of itself.
#[derive(Debug)]
enum Word {
    Started,
    Failed(StepError),
    NotExecuted {
        errno: i32,
        looked_in: Vec<String>,
    },
    Exited {
        status: i32,
        cpu_us: Option<u64>,
    },
    /// One of its processes tried to break out: all of them are being ended.
    Escaped(Notification),
    /// None of its processes is left.
    Gone {
        cpu_us: Option<u64>,
    },
    /// The sandbox has ended.
    Lost(Box<Evidence>),
}

impl Resident {
    /// Runs a step to the end of its main process, or, where it is stopped, of all that it started. `number`: no other
    /// step of this sandbox has it. None: the sandbox had ended before, and the orders are as they were. With it the
    /// processor time, where it is known.
    pub async fn run(
        &self,
        number: u64,
        orders: &mut step::Orders,
    ) -> io::Result<Option<(Observed, Option<u64>)>> {
        let begun = Instant::now();
        let Streams {
            stdin: (stdin_read, stdin_write),
            stdout: (stdout_read, stdout_write),
            stderr: (stderr_read, stderr_write),
        } = Slot::streams(self.user)?;
        let mut watch = Watch {
            stdout: Stream::new(true, stdout_read, orders.max_output)?,
            stderr: Stream::new(false, stderr_read, orders.max_output)?,
            listeners: Listeners::new(orders.events.take()),
            evidence: Evidence {
                memory_max: orders.memory,
                resident: true,
                ..Evidence::default()
            },
            begun,
            startup: None,
            stopping: false,
            cpu_us: None,
            program: orders
                .request
                .arguments
                .first()
                .cloned()
                .unwrap_or_default(),
        };
        let (tell, words) = mpsc::unbounded_channel();
        let enter = Command::Enter {
            number,
            request: orders.request.clone(),
            streams: [stdin_read, stdout_write, stderr_write],
            tell,
        };
        if self.commands.send(enter).is_err() {
            orders.events = watch.listeners.give_back();
            return Ok(None);
        }
        let mut member = Membership {
            commands: &self.commands,
            number,
            kill: true,
        };
        let mut input = Input {
            waiting: Some((stdin_write, std::mem::take(&mut orders.stdin))),
            feeder: None,
        };
        let heard = watch
            .run(
                orders.deadline,
                &orders.cancel,
                words,
                (&member, &mut input),
            )
            .await;
        member.kill = false;
        drop(member);
        if !heard {
            orders.events = watch.listeners.give_back();
            orders.stdin = input.take();
            return Ok(None);
        }
        let pipes = [watch.stdout.take_pipe(), watch.stderr.take_pipe()];
        for pipe in pipes.into_iter().flatten() {
            self.read_on.add(pipe);
        }
        Ok(Some(watch.finish()))
    }

    /// Whether it takes no more steps.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    /// What happened to what ended steps had left running, since the last time.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the step reads, once it runs.
struct Input {
    waiting: Option<(OwnedFd, Vec<u8>)>,
    feeder: Option<JoinHandle<()>>,
}

impl Input {
    /// A pipe that cannot be watched is at its end.
    fn feed(&mut self) {
        if let Some((pipe, bytes)) = self.waiting.take() {
            self.feeder = feed(pipe, bytes).ok().flatten();
        }
    }

    fn take(&mut self) -> Vec<u8> {
        self.waiting
            .take()
            .map(|(_, bytes)| bytes)
            .unwrap_or_default()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(feeder) = self.feeder.take() {
            feeder.abort();
        }
    }
}

/// A step of a resident: dropped before it has its result, it is ended.
struct Membership<'a> {
    commands: &'a mpsc::UnboundedSender<Command>,
    number: u64,
    kill: bool,
}

impl Membership<'_> {
    fn kill(&self) {
        let _ = self.commands.send(Command::Kill(self.number));
    }
}

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        if self.kill {
            self.kill();
        }
        let _ = self.commands.send(Command::Leave(self.number));
    }
}

/// Reads on what ended steps left running: a pipe that nobody reads would end it.
#[derive(Debug, Default)]
struct ReadOn(Mutex<VecDeque<AbortHandle>>);

impl ReadOn {
    fn add(&self, pipe: Receiver) {
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; READ_ON_BYTES];
            while pipe.readable().await.is_ok() {
                match pipe.try_read(&mut buffer) {
                    Ok(0) => return,
                    Ok(_) => tokio::time::sleep(READ_ON_PAUSE).await,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|task| !task.is_finished());
        while all.len() >= READ_ON_MOST {
            if let Some(oldest) = all.pop_front() {
                oldest.abort();
            }
        }
        all.push_back(task.abort_handle());
    }
}

impl Drop for ReadOn {
    fn drop(&mut self) {
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        all.drain(..).for_each(|task| task.abort());
    }
}

struct Watch {
    stdout: Stream,
    stderr: Stream,
    listeners: Listeners,
    evidence: Evidence,
    begun: Instant,
    startup: Option<Duration>,
    /// It is being ended, for what the evidence says.
    stopping: bool,
    cpu_us: Option<u64>,
    program: Vec<u8>,
}

impl Watch {
    /// False: the sandbox had ended before it heard of this step.
    async fn run(
        &mut self,
        deadline: Duration,
        cancel: &CancellationToken,
        mut words: mpsc::UnboundedReceiver<Word>,
        (member, input): (&Membership<'_>, &mut Input),
    ) -> bool {
        let timer = tokio::time::sleep_until((self.begun + deadline).into());
        tokio::pin!(timer);
        let mut buffer = Vec::new();
        loop {
            tokio::select! {
                biased;
                word = words.recv() => match word {
                    Some(word) => {
                        if matches!(word, Word::Started) {
                            input.feed();
                        }
                        if self.hear(word) {
                            break;
                        }
                    }
                    None if self.evidence.started || self.stopping => break,
                    None => return false,
                },
                () = cancel.cancelled(), if !self.stopping => {
                    self.evidence.cancelled = true;
                    self.stopping = true;
                    member.kill();
                }
                () = &mut timer, if !self.stopping => {
                    self.evidence.deadline_ms =
                        Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
                    self.stopping = true;
                    member.kill();
                }
                () = self.listeners.room(), if self.stdout.waits() || self.stderr.waits() => {
                    self.stdout.flush(&mut self.listeners);
                    self.stderr.flush(&mut self.listeners);
                }
                () = either(&self.stdout, &self.stderr, &self.listeners) => {
                    for stream in [&mut self.stdout, &mut self.stderr] {
                        if !stream.is_held(&self.listeners) {
                            stream.read(&mut buffer, &mut self.listeners);
                        }
                    }
                }
            }
        }
        // What the main process wrote is in the pipes. What others write from now on is no part of the step.
        for stream in [&mut self.stdout, &mut self.stderr] {
            stream.catch_up(&mut buffer, &mut self.listeners);
        }
        let paced = self.listeners.paced;
        let patience = async {
            if paced {
                cancel.cancelled().await;
            }
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.tell_the_rest() => {}
            // A listener that does not take the rest in this time has left it.
            () = patience => {}
        }
        true
    }

    async fn tell_the_rest(&mut self) {
        while self.listeners.events.is_some() && (self.stdout.waits() || self.stderr.waits()) {
            self.listeners.room().await;
            self.stdout.flush(&mut self.listeners);
            self.stderr.flush(&mut self.listeners);
        }
    }

    /// Whether the step is over.
    fn hear(&mut self, word: Word) -> bool {
        let stopping = self.stopping;
        match word {
            Word::Started => {
                self.startup = Some(self.begun.elapsed());
                self.evidence.started = true;
                false
            }
            Word::Failed(error) => {
                self.evidence.startup = Some(StartupFailure {
                    step: error.step.name().into(),
                    errno: Some(error.errno),
                    message: error.to_string(),
                });
                true
            }
            Word::NotExecuted { errno, looked_in } => {
                self.evidence.exec = Some(ExecFailure {
                    path: std::mem::take(&mut self.program),
                    errno,
                    looked_in,
                });
                true
            }
            Word::Exited { status, cpu_us } => {
                self.cpu_us = cpu_us;
                // While it is being killed a death by that signal is ours. Any other end came before it.
                if !stopping || status & 0x7f != libc::SIGKILL {
                    self.evidence.wait_status = Some(status);
                }
                !stopping
            }
            Word::Escaped(notification) => {
                self.evidence.notification = Some(notification);
                self.stopping = true;
                false
            }
            Word::Gone { cpu_us } => {
                self.cpu_us = cpu_us.or(self.cpu_us);
                true
            }
            Word::Lost(end) => {
                let own = &mut self.evidence;
                own.resident = false;
                own.notification = own.notification.take().or(end.notification);
                own.oom_kills = end.oom_kills;
                own.watchdog_memory = end.watchdog_memory;
                own.workspace_full = end.workspace_full;
                own.cancelled |= end.cancelled;
                if own.startup.is_none() && !own.started {
                    own.startup = end.startup;
                }
                true
            }
        }
    }

    fn finish(self) -> (Observed, Option<u64>) {
        let lost_live = self.stdout.lost() + self.stderr.lost();
        let observed = Observed {
            skeleton: None,
            duration: self.begun.elapsed(),
            lost_live,
            all_told: self.listeners.paced && self.listeners.events.is_some() && lost_live == 0,
            // The listener is that of all steps.
            denied_syscalls: None,
            startup: self.startup,
            peak_memory: None,
            evidence: self.evidence,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            results: Results::default(),
        };
        (observed, self.cpu_us)
    }
}

/// Lives to the death of the sandbox. Errors are those of the host.
pub async fn live(
    skeleton: Skeleton,
    slot: &Slot,
    orders: Orders,
    mut commands: Commands,
) -> io::Result<End> {
    let (guard, watchdog) = Guard::new(skeleton, slot, orders.memory)?;
    let mut life = Life {
        init: guard.init()?,
        guard,
        members: HashMap::new(),
        own: commands.own.clone(),
        notes: Arc::clone(&commands.notes),
        why: None,
        control_open: true,
    };
    let (bite, full) = (bite(watchdog), rings(orders.alarm));
    tokio::pin!(bite, full);
    let oom = OomBell::of(slot);
    loop {
        tokio::select! {
            biased;
            message = life.guard.skeleton.control.receive(), if life.control_open => match message {
                Ok(Some((message, _))) => life.hear(message),
                Ok(None) | Err(_) => life.control_open = false,
            },
            () = ended(&life.init) => break,
            () = OomBell::rings(oom.as_ref()), if !life.guard.killed => {
                life.guard.out_of_memory().await;
            }
            bytes = &mut bite, if !life.guard.killed => {
                life.guard.evidence.watchdog_memory = Some(bytes);
                life.guard.kill();
            }
            full = &mut full, if !life.guard.killed => {
                life.guard.evidence.workspace_full = Some(full);
                life.guard.kill();
            }
            () = orders.closing.cancelled(), if !life.guard.killed => {
                life.guard.evidence.cancelled = true;
                life.guard.kill();
            }
            command = commands.receiver.recv(), if !life.guard.killed => match command {
                Some(command) => life.obey(command).await,
                None => life.guard.kill(),
            },
            open = life.guard.asked(), if !life.guard.killed => {
                life.look_for_escapes();
                if !open {
                    // Nothing runs under the filter now. What comes is.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
    while let Some((message, _)) = life.guard.skeleton.control.receive_now() {
        life.hear(message);
    }
    // What waits in there gets no answer, by which it is known.
    commands.receiver.close();
    Ok(life.finish().await)
}

/// A step, and what it left.
#[derive(Debug)]
struct Member {
    /// None: it has its result.
    tell: Option<mpsc::UnboundedSender<Word>>,
    branch: Option<Arc<Branch>>,
    /// Init has said whether it runs: until then it may still be on its way into its cgroup.
    entered: bool,
    /// Its main process runs.
    runs: bool,
    /// It is to be ended.
    doomed: bool,
    killing: bool,
}

impl Member {
    fn tell(&self, word: Word) {
        if let Some(tell) = &self.tell {
            // A step that is gone needs no telling.
            let _ = tell.send(word);
        }
    }

    fn cpu_us(&self) -> Option<u64> {
        self.branch.as_ref()?.cpu_us()
    }
}

struct Life<'a> {
    guard: Guard<'a>,
    init: AsyncFd<OwnedFd>,
    members: HashMap<u64, Member>,
    own: mpsc::WeakUnboundedSender<Command>,
    notes: Arc<Mutex<Vec<String>>>,
    why: Option<String>,
    control_open: bool,
}

impl Life<'_> {
    async fn obey(&mut self, command: Command) {
        match command {
            Command::Enter {
                number,
                request,
                streams,
                tell,
            } => {
                self.forget_the_ended();
                self.enter(number, &request, &streams, tell).await;
            }
            Command::Kill(number) => self.kill(number),
            Command::Killed(number, true) => {
                if let Some(member) = self.members.remove(&number) {
                    member.tell(Word::Gone {
                        cpu_us: member.cpu_us(),
                    });
                    remove(member.branch);
                }
            }
            Command::Killed(_, false) => {
                self.end("processes of a step that was stopped could not be ended alone");
            }
            Command::Leave(number) => {
                if let Some(member) = self.members.get_mut(&number) {
                    member.tell = None;
                }
                self.forget_the_ended();
            }
        }
    }

    async fn enter(
        &mut self,
        number: u64,
        request: &Request,
        streams: &[OwnedFd; 3],
        tell: mpsc::UnboundedSender<Word>,
    ) {
        let branch = match self.guard.slot.branch_off(number) {
            Ok(branch) => branch,
            Err(error) => {
                // Nothing ran: the caller hears that the host could not.
                tracing::warn!(%error, "a step of a resident has no cgroup of its own");
                None
            }
        };
        let handed = async {
            let bytes = postcard::to_stdvec(request).map_err(io::Error::other)?;
            let request = datagram::data("request", &bytes)?;
            let entrance = branch.as_ref().map(Branch::entrance).transpose();
            let entrance = entrance.map_err(io::Error::other)?;
            let mut beside: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
            beside.push(request.as_fd());
            beside.extend(entrance.iter().map(AsFd::as_fd));
            let control = &self.guard.skeleton.control;
            // An init that is gone shows as the death of the sandbox.
            let _ = control.send(&ToInit::Enter { number }, &beside).await;
            Ok::<_, io::Error>(())
        };
        if let Err(error) = handed.await {
            tracing::warn!(%error, "a step of a resident could not be handed on");
            return remove(branch.map(Arc::new));
        }
        let member = Member {
            tell: Some(tell),
            branch: branch.map(Arc::new),
            entered: false,
            runs: true,
            doomed: false,
            killing: false,
        };
        self.members.insert(number, member);
    }

    /// Ends a step with all that it started; where that cannot be told from the rest, the sandbox.
    fn kill(&mut self, number: u64) {
        // A try that waits is told before its process is gone.
        self.look_for_escapes();
        let Some(member) = self.members.get_mut(&number) else {
            return;
        };
        member.doomed = true;
        if !member.entered || std::mem::replace(&mut member.killing, true) {
            return;
        }
        let Some(branch) = member.branch.clone() else {
            return self.end(
                "a step was stopped, and without a cgroup of its own what it started cannot be told from what others did",
            );
        };
        let Some(own) = self.own.upgrade() else {
            return self.guard.kill();
        };
        spawn_blocking(move || {
            let killed = branch.kill();
            if let Err(error) = &killed {
                tracing::warn!(%error, "a step of a resident could not be ended");
            }
            let _ = own.send(Command::Killed(number, killed.is_ok()));
        });
    }

    fn end(&mut self, why: &str) {
        self.why.get_or_insert_with(|| why.to_owned());
        self.guard.kill();
    }

    fn look_for_escapes(&mut self) {
        for (notification, thread) in self.guard.attempts() {
            let holds = |member: &Member| {
                let branch = member.branch.as_ref();
                branch.is_some_and(|branch| branch.holds(thread))
            };
            let found = self.members.iter().find(|(_, member)| holds(member));
            let Some((&number, member)) = found else {
                self.guard.evidence.notification.get_or_insert(notification);
                return self.guard.kill();
            };
            if member.tell.is_some() && member.runs {
                member.tell(Word::Escaped(notification));
            } else {
                let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
                if notes.len() < NOTES_MOST {
                    notes.push(format!(
                        "a process that an earlier step had left running tried {}, which is not allowed in a sandbox; all \
                         that step had left was stopped",
                        notification.syscall
                    ));
                }
            }
            self.kill(number);
        }
    }

    fn hear(&mut self, message: FromInit) {
        match message {
            FromInit::Failed(error) => self.guard.not_started(&error),
            FromInit::Step { number, word } => self.hear_step(number, word),
            _ => {}
        }
    }

    fn hear_step(&mut self, number: u64, word: StepWord) {
        if matches!(word, StepWord::Exited { .. }) {
            // One of its processes may have tried something just before.
            self.look_for_escapes();
        }
        let Some(member) = self.members.get_mut(&number) else {
            return;
        };
        member.entered = true;
        let doomed = member.doomed;
        match word {
            StepWord::Started => member.tell(Word::Started),
            StepWord::Exited { status } => {
                member.runs = false;
                member.tell(Word::Exited {
                    status,
                    cpu_us: member.cpu_us(),
                });
            }
            StepWord::Failed(error) => {
                member.runs = false;
                member.tell(Word::Failed(error));
            }
            StepWord::ExecFailed { errno, looked_in } => {
                member.runs = false;
                member.tell(Word::NotExecuted { errno, looked_in });
            }
        }
        if doomed {
            self.kill(number);
        }
    }

    /// Lets go of the steps that have their result and left nothing.
    fn forget_the_ended(&mut self) {
        let over = |member: &Member| {
            let empty = member
                .branch
                .as_ref()
                .is_none_or(|branch| branch.is_empty());
            member.tell.is_none() && !member.runs && !member.doomed && empty
        };
        for (_, member) in self.members.extract_if(|_, member| over(member)) {
            remove(member.branch);
        }
    }

    /// The sandbox is gone.
    async fn finish(mut self) -> End {
        self.guard.evidence.oom_kills = self.guard.slot.oom_kills();
        let mut branches = Vec::new();
        for (_, member) in self.members.drain() {
            member.tell(Word::Lost(Box::new(self.guard.evidence.clone())));
            branches.extend(member.branch);
        }
        // The slot's own cgroup can go only after them.
        let removed = spawn_blocking(move || {
            for branch in branches {
                if let Err(error) = branch.remove() {
                    tracing::warn!(%error, "the cgroup of a step of a resident could not be removed");
                }
            }
        });
        let _ = removed.await;
        End {
            skeleton: self.guard.skeleton,
            evidence: self.guard.evidence,
            why: self.why,
        }
    }
}

fn remove(branch: Option<Arc<Branch>>) {
    if let Some(branch) = branch {
        spawn_blocking(move || {
            if let Err(error) = branch.remove() {
                tracing::debug!(%error, "the cgroup of a step of a resident could not be removed");
            }
        });
    }
}
