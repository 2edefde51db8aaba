//! What watches over a sandbox whatever runs in it: refused and forbidden system calls, memory, the way to end it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::listener::{Attempt, Listener};
use super::watchdog::{Peak, Watchdog};
use crate::outcome::{Evidence, ExecFailure, Notification, StartupFailure};
use crate::pool::{Skeleton, Slot};
use crate::sandbox::cgroup::OomWatch;
use crate::sandbox::plan::StepError;
use crate::sys::readiness;

/// How long an out-of-memory wake-up waits for the kernel's count to rise: a task that is killed by us before that is
/// not counted, and the step would look killed by nobody.
const OOM_COUNT_WAIT: Duration = Duration::from_millis(20);
/// Refusals that are answered before all else is looked at again.
const ANSWERS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(crate) struct Guard<'a> {
    pub(crate) skeleton: Skeleton,
    pub(crate) slot: &'a Slot,
    pub(crate) evidence: Evidence,
    /// System calls that were refused.
    pub(crate) denied: u64,
    pub(crate) peak: Peak,
    pub(crate) killed: bool,
    listener: Option<Listener>,
}

impl<'a> Guard<'a> {
    /// `memory`: bytes that a watchdog, which comes beside it, holds the sandbox to where no cgroup does.
    pub(crate) fn new(
        mut skeleton: Skeleton,
        slot: &'a Slot,
        memory: Option<u64>,
    ) -> io::Result<(Self, Option<Watchdog>)> {
        let peak = Peak::default();
        let windows = std::mem::take(&mut skeleton.windows);
        let watchdog = match memory {
            Some(max) if !windows.is_empty() => Some(Watchdog::new(windows, max, peak.clone())?),
            _ => None,
        };
        let guard = Self {
            listener: skeleton.listener.take().map(Listener::new).transpose()?,
            skeleton,
            slot,
            evidence: Evidence {
                memory_max: memory,
                ..Evidence::default()
            },
            denied: 0,
            peak,
            killed: false,
        };
        Ok((guard, watchdog))
    }

    /// Takes over the listener of a filter that a process in the sandbox has of its own.
    pub(crate) fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        self.listener = Some(Listener::new(listener)?);
        Ok(())
    }

    /// Init, or what was forked into the sandbox, did not get to the code.
    pub(crate) fn not_started(&mut self, error: &StepError) {
        self.evidence.startup = Some(StartupFailure {
            step: error.step.name().into(),
            errno: Some(error.errno),
            message: error.to_string(),
        });
        self.kill();
    }

    pub(crate) fn not_executed(&mut self, program: Vec<u8>, errno: i32, looked_in: Vec<String>) {
        self.evidence.exec = Some(ExecFailure {
            path: program,
            errno,
            looked_in,
        });
        self.kill();
    }

    /// The main process has ended. What it left is ended too, if it is not `alone`.
    pub(crate) fn exited(&mut self, status: i32, alone: bool, largest: Option<u64>) {
        self.evidence.wait_status = Some(status);
        if let Some(bytes) = largest {
            self.peak.raise(bytes);
        }
        if !alone {
            self.kill();
        }
    }

    /// A pidfd of init, for [`ended`].
    pub(crate) fn init(&self) -> io::Result<AsyncFd<OwnedFd>> {
        readiness::watch(self.skeleton.init.try_clone()?, Interest::READABLE)
    }

    /// Waits until a system call waits for an answer. False: there will be none any more.
    pub(crate) async fn asked(&self) -> bool {
        match &self.listener {
            Some(listener) => listener.readable().await,
            None => std::future::pending().await,
        }
    }

    /// Answers calls that wait for it. Those that are left are waited for no longer than the next turn. `open`: what
    /// [`Self::asked`] gave.
    pub(crate) fn answer(&mut self, open: bool) {
        for _ in 0..ANSWERS_AT_ONCE {
            match self.listener.as_ref().and_then(Listener::answer) {
                None => break,
                Some(Attempt::Withdrawn) => {}
                Some(Attempt::Refused) => self.denied += 1,
                Some(Attempt::Escape(escape, _)) => {
                    self.evidence.notification = Some(escape);
                    self.kill();
                    break;
                }
            }
        }
        if !open {
            self.listener = None;
        }
    }

    /// Answers calls that wait for it, and gives those that were tries to break out, each with the number of its thread
    /// as the engine knows it: in a sandbox of several steps it may be the end of one of them only.
    pub(crate) fn attempts(&mut self) -> Vec<(Notification, u32)> {
        let mut escapes = Vec::new();
        for _ in 0..ANSWERS_AT_ONCE {
            match self.listener.as_ref().and_then(Listener::answer) {
                None => break,
                Some(Attempt::Withdrawn) => {}
                Some(Attempt::Refused) => self.denied += 1,
                Some(Attempt::Escape(escape, pid)) => escapes.push((escape, pid)),
            }
        }
        escapes
    }

    /// Ends the sandbox if the kernel counts a kill for memory in it.
    pub(crate) async fn out_of_memory(&mut self) {
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
    pub(crate) fn kill(&mut self) {
        self.killed = true;
        // A try that is still in the listener is told before the sandbox is gone.
        if self.evidence.notification.is_none() {
            self.evidence.notification = self.listener.as_ref().and_then(Listener::left);
        }
        self.skeleton.kill();
    }
}

/// Kills for memory in a slot, as the runtime watches them.
#[derive(Debug)]
pub(crate) struct OomBell {
    watch: OomWatch,
    ready: AsyncFd<OwnedFd>,
}

impl OomBell {
    /// None where nothing tells of them.
    pub(crate) fn of(slot: &Slot) -> Option<Self> {
        let watch = slot.oom_watch().ok().flatten()?;
        let interest = if watch.events().contains(rustix::event::PollFlags::PRI) {
            Interest::PRIORITY
        } else {
            Interest::READABLE
        };
        let fd = watch.as_fd().try_clone_to_owned().ok()?;
        let ready = readiness::watch(fd, interest).ok()?;
        Some(Self { watch, ready })
    }

    /// Waits until there was one, or may have been.
    pub(crate) async fn rings(bell: Option<&Self>) {
        let Some(bell) = bell else {
            return std::future::pending().await;
        };
        match bell
            .ready
            .ready(Interest::READABLE | Interest::PRIORITY)
            .await
        {
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => std::future::pending().await,
        }
        bell.watch.clear();
    }
}

/// A pidfd is readable when its process has ended.
pub(crate) async fn ended(init: &AsyncFd<OwnedFd>) {
    // The readiness is kept: an ended process stays ended.
    let _ = init.readable().await;
}

/// Waits until the watchdog finds more memory than the limit, and gives how much.
pub(crate) async fn bite(watchdog: Option<Watchdog>) -> u64 {
    match watchdog {
        Some(watchdog) => watchdog.bites().await,
        None => std::future::pending().await,
    }
}
