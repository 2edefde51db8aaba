//! The watch over one step.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe::Sender;
use tokio_util::sync::CancellationToken;

use super::listener::{Attempt, Listener};
use super::stream::{Events, Listeners, Stream};
use super::watchdog::{Peak, Watchdog};
use crate::outcome::{Evidence, ExecFailure, Output, StartupFailure};
use crate::pool::{Forked, Skeleton, Slot, Streams};
use crate::sandbox::cgroup::OomWatch;
use crate::sandbox::init::{FromInit, Request, ToInit};
use crate::sandbox::plan::{Context, Step, StepError};
use crate::sandbox::template::FromTemplate;
use crate::sys::{datagram, readiness};

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
/// How long an out-of-memory wake-up waits for the kernel's count to rise: a task that is killed by us before that is
/// not counted, and the step would look killed by nobody.
const OOM_COUNT_WAIT: Duration = Duration::from_millis(20);
/// Refusals that are answered before all else is looked at again.
const ANSWERS_AT_ONCE: usize = 64;

/// Runs the step to the death of its sandbox. Errors are those of the host: a pipe or descriptor that cannot be made.
pub async fn watch(mut skeleton: Skeleton, slot: &Slot, orders: Orders) -> io::Result<Observed> {
    let started = Instant::now();
    let peak = Peak::default();
    let windows = std::mem::take(&mut skeleton.windows);
    let watchdog = match orders.memory {
        Some(max) if !windows.is_empty() => Some(Watchdog::new(windows, max, peak.clone())?),
        _ => None,
    };
    let Streams {
        stdin: (stdin_read, stdin_write),
        stdout: (stdout_read, stdout_write),
        stderr: (stderr_read, stderr_write),
    } = skeleton.streams.take().ok_or(io::ErrorKind::NotFound)?;
    let mut watch = Watch {
        init: readiness::watch(skeleton.init.try_clone()?, Interest::READABLE)?,
        stdout: Stream::new(true, stdout_read, orders.max_output)?,
        stderr: Stream::new(false, stderr_read, orders.max_output)?,
        listeners: Listeners::new(orders.events),
        listener: match skeleton.forked {
            // What is forked is under a filter of its own.
            Some(_) => None,
            None => skeleton.listener.take().map(Listener::new).transpose()?,
        },
        forked: skeleton.forked.take(),
        denied: 0,
        evidence: Evidence {
            memory_max: orders.memory,
            ..Evidence::default()
        },
        slot,
        skeleton,
        begun: started,
        startup: None,
        peak,
        killed: false,
        quiet: false,
        control_open: true,
        directory: orders.request.directory.display().to_string(),
        program: orders
            .request
            .arguments
            .first()
            .cloned()
            .unwrap_or_default(),
    };
    let (go, long) = go(orders.request)?;
    let mut beside = vec![
        stdin_read.as_fd(),
        stdout_write.as_fd(),
        stderr_write.as_fd(),
    ];
    beside.extend(long.iter().map(AsFd::as_fd));
    let told = watch
        .forked
        .as_ref()
        .map_or(&watch.skeleton.control, |forked| &forked.control);
    // One that is gone shows as the death of the sandbox.
    let _ = told.send(&go, &beside).await;
    drop((stdin_read, stdout_write, stderr_write, long));
    watch.adopt().await?;
    let feeder = feed(stdin_write, orders.stdin)?;
    watch.run(orders.deadline, &orders.cancel, watchdog).await;
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
fn feed(pipe: OwnedFd, bytes: Vec<u8>) -> io::Result<Option<tokio::task::JoinHandle<()>>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut sender = Sender::from_owned_fd(pipe)?;
    Ok(Some(tokio::spawn(async move {
        let _ = sender.write_all(&bytes).await;
    })))
}

struct Watch<'a> {
    skeleton: Skeleton,
    slot: &'a Slot,
    init: AsyncFd<OwnedFd>,
    stdout: Stream,
    stderr: Stream,
    listeners: Listeners,
    listener: Option<Listener>,
    /// The process that waited for the code, until it runs it.
    forked: Option<Forked>,
    denied: u64,
    evidence: Evidence,
    begun: Instant,
    startup: Option<Duration>,
    peak: Peak,
    killed: bool,
    /// No process of the code is left: init's own end need not be waited for.
    quiet: bool,
    control_open: bool,
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
    ) {
        let timer = tokio::time::sleep_until((self.begun + deadline).into());
        let bite = bite(watchdog);
        tokio::pin!(timer, bite);
        let oom = self.slot.oom_watch().ok().flatten();
        let oom_ready = oom.as_ref().and_then(oom_descriptor);
        let mut buffer = Vec::new();
        while !self.quiet {
            tokio::select! {
                biased;
                word = from_forked(self.forked.as_ref()) => self.hear_forked(word).await,
                message = self.skeleton.control.receive(), if self.control_open => {
                    match message {
                        Ok(Some((message, _))) => self.hear(message),
                        Ok(None) | Err(_) => self.control_open = false,
                    }
                }
                () = ready(&self.init) => break,
                () = wake(oom_ready.as_ref()), if !self.killed => {
                    if let Some(oom) = &oom {
                        oom.clear();
                    }
                    self.out_of_memory().await;
                }
                bytes = &mut bite, if !self.killed => {
                    self.evidence.watchdog_memory = Some(bytes);
                    self.kill();
                }
                () = cancel.cancelled(), if !self.killed => {
                    self.evidence.cancelled = true;
                    self.kill();
                }
                () = &mut timer, if !self.killed => {
                    self.evidence.deadline_ms =
                        Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
                    self.kill();
                }
                () = self.listeners.room(), if self.stdout.waits() || self.stderr.waits() => {
                    self.stdout.flush(&mut self.listeners);
                    self.stderr.flush(&mut self.listeners);
                }
                // Floods come last, so that they delay nothing above; all are served in each, so that none starves the others.
                open = listen(self.listener.as_ref()), if !self.killed => {
                    self.answer();
                    if !open {
                        self.listener = None;
                    }
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
        while let Some((message, _)) = self.skeleton.control.receive_now() {
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
            FromInit::Windows | FromInit::Joinable | FromInit::Ready => {}
            FromInit::Started => self.started(),
            FromInit::Failed(error) => self.not_started(&error),
            FromInit::ExecFailed { errno, looked_in } => {
                self.evidence.exec = Some(ExecFailure {
                    path: std::mem::take(&mut self.program),
                    errno,
                    looked_in,
                });
                self.kill();
            }
            FromInit::Exited {
                status,
                alone,
                largest,
            } => {
                self.evidence.wait_status = Some(status);
                if let Some(bytes) = largest {
                    self.peak.raise(bytes);
                }
                self.quiet = alone;
                if !alone {
                    self.kill();
                }
            }
        }
    }

    fn started(&mut self) {
        self.startup = Some(self.begun.elapsed());
        self.evidence.started = true;
    }

    fn not_started(&mut self, error: &StepError) {
        self.evidence.startup = Some(StartupFailure {
            step: error.step.name().into(),
            errno: Some(error.errno),
            message: error.to_string(),
        });
        self.kill();
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
                let adopted = match heard {
                    Ok(()) => self.adopt().await.at(Step::ForkTemplate, "listener"),
                    Err(error) => Err(error),
                };
                if let Err(mut error) = adopted {
                    // Its end, which follows, says less.
                    self.forked = None;
                    if error.step == Step::WorkingDirectory {
                        error.operand.clone_from(&self.directory);
                    }
                    self.not_started(&error);
                }
            }
            None => {
                self.forked = None;
                self.not_started(&Forked::silent());
            }
        }
    }

    /// Takes over the filter's listener of a process that is ready, and has init tell of its end.
    async fn adopt(&mut self) -> io::Result<()> {
        let Some((main, listener)) = self.forked.as_mut().and_then(|forked| forked.ready.take())
        else {
            return Ok(());
        };
        self.listener = Some(Listener::new(listener)?);
        // An init that is gone shows as the death of the sandbox.
        let _ = self.skeleton.control.send(&ToInit::Adopt(main), &[]).await;
        Ok(())
    }

    /// Answers calls that wait for it. Those that are left are waited for no longer than the next turn.
    fn answer(&mut self) {
        for _ in 0..ANSWERS_AT_ONCE {
            match self.listener.as_ref().and_then(Listener::answer) {
                None => return,
                Some(Attempt::Withdrawn) => {}
                Some(Attempt::Refused) => self.denied += 1,
                Some(Attempt::Escape(escape)) => {
                    self.evidence.notification = Some(escape);
                    return self.kill();
                }
            }
        }
    }

    async fn out_of_memory(&mut self) {
        let until = Instant::now() + OOM_COUNT_WAIT;
        while self.slot.oom_kills() == 0 {
            if Instant::now() >= until {
                // A wake-up for a shortage that is not this sandbox's.
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.kill();
    }

    /// Kills pid 1 of the sandbox, and with it the kernel kills everything in it. The death of pid 1 comes after theirs.
    fn kill(&mut self) {
        self.killed = true;
        // A try that is still in the listener is told before the sandbox is gone.
        if self.evidence.notification.is_none() {
            self.evidence.notification = self.listener.as_ref().and_then(Listener::left);
        }
        // One that has ended already cannot be killed again.
        let _ = rustix::process::pidfd_send_signal(
            self.skeleton.init.as_fd(),
            rustix::process::Signal::KILL,
        );
    }

    fn finish(mut self) -> Observed {
        self.evidence.oom_kills = self.slot.oom_kills();
        let lost_live = self.stdout.lost() + self.stderr.lost();
        Observed {
            skeleton: Some(self.skeleton),
            duration: self.begun.elapsed(),
            lost_live,
            all_told: self.listeners.paced && self.listeners.events.is_some() && lost_live == 0,
            denied_syscalls: self.evidence.started.then_some(self.denied),
            startup: self.startup,
            peak_memory: self.peak.bytes(),
            evidence: self.evidence,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        }
    }
}

fn oom_descriptor(watch: &OomWatch) -> Option<AsyncFd<OwnedFd>> {
    let interest = if watch.events().contains(rustix::event::PollFlags::PRI) {
        Interest::PRIORITY
    } else {
        Interest::READABLE
    };
    let fd = watch.as_fd().try_clone_to_owned().ok()?;
    readiness::watch(fd, interest).ok()
}

/// A pidfd is readable when its process has ended.
async fn ready(fd: &AsyncFd<OwnedFd>) {
    // The readiness is kept: an ended process stays ended.
    let _ = fd.readable().await;
}

/// Waits until one of the streams can be read, and may be.
async fn either(one: &Stream, other: &Stream, listeners: &Listeners) {
    tokio::select! {
        () = one.readable(), if !one.is_held(listeners) => {}
        () = other.readable(), if !other.is_held(listeners) => {}
        else => std::future::pending().await,
    }
}

async fn bite(watchdog: Option<Watchdog>) -> u64 {
    match watchdog {
        Some(watchdog) => watchdog.bites().await,
        None => std::future::pending().await,
    }
}

/// What a process says that waits for the code; none: it is gone.
async fn from_forked(forked: Option<&Forked>) -> Option<(FromTemplate, Vec<OwnedFd>)> {
    match forked {
        Some(forked) => forked.control.receive().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

async fn listen(listener: Option<&Listener>) -> bool {
    match listener {
        Some(listener) => listener.readable().await,
        None => std::future::pending().await,
    }
}

async fn wake(fd: Option<&AsyncFd<OwnedFd>>) {
    let Some(fd) = fd else {
        return std::future::pending().await;
    };
    let interest = fd.ready(Interest::READABLE | Interest::PRIORITY).await;
    match interest {
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => std::future::pending().await,
    }
}
