//! The watch over one step.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Sender;
use tokio_util::sync::CancellationToken;

use super::alarm::{Alarm, rings};
use super::guard::{Guard, OomBell, bite, ended};
use super::interpreter;
use super::results::Results;
use super::stream::{Events, Listeners, Stream, either};
use super::watchdog::Watchdog;
use crate::outcome::{Evidence, Output};
use crate::pool::{Board, Forked, Skeleton, Slot, Streams};
use crate::sandbox::init::{FromInit, Request, ToInit};
use crate::sandbox::plan::{Context, Step};
use crate::sandbox::template::FromTemplate;
use crate::sys::datagram;

/// What to execute, and when to stop it.
#[derive(Debug)]
pub struct Orders {
    pub request: Request,
    pub stdin: Vec<u8>,
    /// Bytes kept of each stream.
    pub max_output: u64,
    pub deadline: Duration,
    /// Bytes: held to by a watchdog where the skeleton has windows for it, and for texts.
    pub memory: Option<u64>,
    /// Rings when the session has filled its workspace, where no file system refuses.
    pub alarm: Option<Alarm>,
    pub events: Option<Events>,
    pub cancel: CancellationToken,
}

/// What was seen of a step that is over: no process of the code is left.
#[derive(Debug)]
pub struct Observed {
    /// What is left of the sandbox: its init, which may still be ending, or has nothing more to do.
    pub skeleton: Option<Skeleton>,
    pub evidence: Evidence,
    pub stdout: Output,
    pub stderr: Output,
    /// What the code showed beside that.
    pub results: Results,
    /// Bytes of output that a live listener, slower than the code, did not get.
    pub lost_live: u64,
    /// A listener that paced the code got all of its output.
    pub all_told: bool,
    /// System calls that the filter's listener refused. None: the code did not run.
    pub denied_syscalls: Option<u64>,
    /// From go to the code's exec.
    pub startup: Option<Duration>,
    pub duration: Duration,
    /// The most memory that was seen in use, where a watchdog looked.
    pub peak_memory: Option<u64>,
}

/// How long the end of a step waits for listeners to take output that they had no room for.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Runs the step to the death of its sandbox. Errors are those of the host: a pipe or descriptor that cannot be made.
pub async fn watch(mut skeleton: Skeleton, slot: &Slot, orders: Orders) -> io::Result<Observed> {
    let started = Instant::now();
    let Streams {
        stdin: (stdin_read, stdin_write),
        stdout: (stdout_read, stdout_write),
        stderr: (stderr_read, stderr_write),
    } = skeleton.streams.take().ok_or(io::ErrorKind::NotFound)?;
    let mut forked = skeleton.forked.take();
    let mut request = orders.request;
    let (board, starting) = match &mut forked {
        Some(forked) => {
            // What is forked is under a filter of its own.
            skeleton.listener = None;
            request.shows = false;
            (forked.board.take(), Vec::new())
        }
        None if request.shows => {
            let script = request.arguments.get(1).map_or(&[][..], Vec::as_slice);
            (Some(Board::make()?), interpreter::cold(script)?.into())
        }
        None => (None, Vec::new()),
    };
    let (guard, watchdog) = Guard::new(skeleton, slot, orders.memory)?;
    let mut watch = Watch {
        init: guard.init()?,
        stdout: Stream::new(true, stdout_read, orders.max_output)?,
        stderr: Stream::new(false, stderr_read, orders.max_output)?,
        listeners: Listeners::new(orders.events),
        guard,
        forked,
        begun: started,
        startup: None,
        quiet: false,
        control_open: true,
        directory: request.directory.display().to_string(),
        program: request.arguments.first().cloned().unwrap_or_default(),
        board,
    };
    let shows = request.shows;
    let (go, long) = go(request)?;
    let mut beside = vec![
        stdin_read.as_fd(),
        stdout_write.as_fd(),
        stderr_write.as_fd(),
    ];
    beside.extend(long.iter().chain(&starting).map(AsFd::as_fd));
    beside.extend(watch.board.iter().filter(|_| shows).map(AsFd::as_fd));
    let told = watch
        .forked
        .as_ref()
        .map_or(&watch.guard.skeleton.control, |forked| &forked.control);
    // One that is gone shows as the death of the sandbox.
    let _ = told.send(&go, &beside).await;
    drop((stdin_read, stdout_write, stderr_write, long, starting));
    watch.take_listener()?;
    let feeder = feed(stdin_write, orders.stdin)?;
    watch
        .run(orders.deadline, &orders.cancel, watchdog, orders.alarm)
        .await;
    if let Some(feeder) = feeder {
        feeder.abort();
    }
    Ok(watch.finish())
}

/// The message that starts the step; a long request is in a memfd beside it.
fn go(request: Request) -> io::Result<(ToInit, Option<OwnedFd>)> {
    let bytes = postcard::to_stdvec(&request).map_err(io::Error::other)?;
    if bytes.len() < datagram::MAX_MESSAGE - 16 {
        return Ok((ToInit::Go(Box::new(request)), None));
    }
    Ok((ToInit::GoLong, Some(datagram::data("request", &bytes)?)))
}

/// Writes the step's input; the pipe closes behind it. A reader that is gone ends it.
pub(super) fn feed(
    pipe: OwnedFd,
    bytes: Vec<u8>,
) -> io::Result<Option<tokio::task::JoinHandle<()>>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut sender = Sender::from_owned_fd(pipe)?;
    Ok(Some(tokio::spawn(async move {
        let _ = sender.write_all(&bytes).await;
    })))
}

struct Watch<'a> {
    guard: Guard<'a>,
    init: AsyncFd<OwnedFd>,
    stdout: Stream,
    stderr: Stream,
    listeners: Listeners,
    /// The process that waited for the code, until it runs it.
    forked: Option<Forked>,
    begun: Instant,
    startup: Option<Duration>,
    /// No process of the code is left: init's own end need not be waited for.
    quiet: bool,
    control_open: bool,
    /// Where the code leaves what it shows.
    board: Option<Board>,
    /// Where the code is to start, for a failure there.
    directory: String,
    program: Vec<u8>,
}

impl Watch<'_> {
    async fn run(
        &mut self,
        deadline: Duration,
        cancel: &CancellationToken,
        watchdog: Option<Watchdog>,
        alarm: Option<Alarm>,
    ) {
        let timer = tokio::time::sleep_until((self.begun + deadline).into());
        let (bite, full) = (bite(watchdog), rings(alarm));
        tokio::pin!(timer, bite, full);
        let oom = OomBell::of(self.guard.slot);
        let mut buffer = Vec::new();
        while !self.quiet {
            tokio::select! {
                biased;
                word = from_forked(self.forked.as_ref()) => self.hear_forked(word).await,
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
                () = cancel.cancelled(), if !self.guard.killed => {
                    self.guard.evidence.cancelled = true;
                    self.guard.kill();
                }
                () = &mut timer, if !self.guard.killed => {
                    self.guard.evidence.deadline_ms =
                        Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
                    self.guard.kill();
                }
                () = self.listeners.room(), if self.stdout.waits() || self.stderr.waits() => {
                    self.stdout.flush(&mut self.listeners);
                    self.stderr.flush(&mut self.listeners);
                }
                // Floods come last, so that they delay nothing above; all are served in each, so that none starves the others.
                open = self.guard.asked(), if !self.guard.killed => {
                    self.guard.answer(open);
                    self.read(&mut buffer);
                }
                () = either(&self.stdout, &self.stderr, &self.listeners) => self.read(&mut buffer),
            }
        }
        while let Some(word) = self
            .forked
            .as_ref()
            .and_then(|forked| forked.control.receive_now())
        {
            self.hear_forked(Some(word)).await;
        }
        // None of the step's own processes is left to write: what is in the pipes is all.
        while let Some((message, _)) = self.guard.skeleton.control.receive_now() {
            self.hear(message);
        }
        for stream in [&mut self.stdout, &mut self.stderr] {
            stream.drain(&mut buffer, &mut self.listeners);
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
    }

    fn read(&mut self, buffer: &mut Vec<u8>) {
        for stream in [&mut self.stdout, &mut self.stderr] {
            if !stream.is_held(&self.listeners) {
                stream.read(buffer, &mut self.listeners);
            }
        }
    }

    async fn tell_the_rest(&mut self) {
        while self.listeners.events.is_some() && (self.stdout.waits() || self.stderr.waits()) {
            self.listeners.room().await;
            self.stdout.flush(&mut self.listeners);
            self.stderr.flush(&mut self.listeners);
        }
    }

    fn hear(&mut self, message: FromInit) {
        match message {
            // The last two are a kernel's and a resident's.
            FromInit::Windows
            | FromInit::Joinable
            | FromInit::Ready
            | FromInit::Answered { .. }
            | FromInit::Step { .. } => {}
            FromInit::Started => self.started(),
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
        }
    }

    fn started(&mut self) {
        self.startup = Some(self.begun.elapsed());
        self.guard.evidence.started = true;
    }

    /// Takes in what the process says that waits for the code; none: it says no more.
    async fn hear_forked(&mut self, word: Option<(FromTemplate, Vec<OwnedFd>)>) {
        let Some(forked) = &mut self.forked else {
            return;
        };
        match word {
            Some((FromTemplate::Started, _)) => {
                self.forked = None;
                self.started();
            }
            Some((word, descriptors)) => {
                let heard = forked.hear(&word, descriptors);
                let adoption = forked.adoption();
                let taken = match heard {
                    Ok(()) => self.take_listener().at(Step::ForkTemplate, "listener"),
                    Err(error) => Err(error),
                };
                let control = &self.guard.skeleton.control;
                match taken {
                    // An init that is gone shows as the death of the sandbox.
                    Ok(()) => drop(control.send(&adoption, &[]).await),
                    Err(mut error) => {
                        // Its end, which follows, says less.
                        self.forked = None;
                        if error.step == Step::WorkingDirectory {
                            error.operand.clone_from(&self.directory);
                        }
                        self.guard.not_started(&error);
                    }
                }
            }
            None => {
                self.forked = None;
                self.guard.not_started(&Forked::silent());
            }
        }
    }

    /// Takes over the filter's listener of a process that waits.
    fn take_listener(&mut self) -> io::Result<()> {
        let listener = self
            .forked
            .as_mut()
            .and_then(|forked| forked.listener.take());
        listener.map_or(Ok(()), |listener| self.guard.listen(listener))
    }

    fn finish(mut self) -> Observed {
        self.guard.evidence.oom_kills = self.guard.slot.oom_kills();
        let lost_live = self.stdout.lost() + self.stderr.lost();
        Observed {
            skeleton: Some(self.guard.skeleton),
            duration: self.begun.elapsed(),
            lost_live,
            all_told: self.listeners.paced && self.listeners.events.is_some() && lost_live == 0,
            denied_syscalls: self.guard.evidence.started.then_some(self.guard.denied),
            startup: self.startup,
            peak_memory: self.guard.peak.bytes(),
            evidence: self.guard.evidence,
            results: self.board.as_ref().map(Results::read).unwrap_or_default(),
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        }
    }
}

/// What a process says that waits for the code; none: it is gone.
async fn from_forked(forked: Option<&Forked>) -> Option<(FromTemplate, Vec<OwnedFd>)> {
    match forked {
        Some(forked) => forked.control.receive().await.ok().flatten(),
        None => std::future::pending().await,
    }
}
