//! When the engine ends: signals, the death of its parent, the end of its stdin, or nobody using it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Why the engine ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// Calls in flight may finish, within a bound.
    Signal,
    /// The parent is gone, and with it whoever waited for an answer.
    Parent,
    Stdin,
    Idle,
    /// No sandbox can be made any more. Calls in flight are told so; a new engine can do what this one cannot.
    Lost,
}

impl End {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::Parent => "parent ended",
            Self::Stdin => "stdin closed",
            Self::Idle => "idle",
            Self::Lost => "the launcher ended",
        }
    }
}

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Takes hold of a process that must be this one's parent right now, by a pidfd: a number alone could be another
/// process's by the time it is looked at. What is received ends when the process does; one that is not the parent has
/// ended already.
pub(super) fn watch_parent(pid: Pid) -> io::Result<oneshot::Receiver<()>> {
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(oneshot::channel().1),
        Err(errno) => return Err(errno.into()),
    };
    // Were the parent dead before the descriptor was opened, this process would have another parent by now.
    if getppid() != Some(pid) {
        return Ok(oneshot::channel().1);
    }
    watch("parent", move || {
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        // A pidfd turns readable at the process's death. Any other error is taken for one: an engine that cannot see
        // its parent must not outlive it.
        while poll(&mut polled, None) == Err(rustix::io::Errno::INTR) {}
    })
}

/// Takes hold of stdin; what is received ends when it does.
pub(super) fn watch_stdin() -> io::Result<oneshot::Receiver<()>> {
    watch("stdin", || {
        let mut ignored = [0; 256];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut ignored) {
                Ok(0) => return,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    })
}

/// Blocks in a thread of its own, which the end of the process does not wait for; the runtime's own blocking threads
/// would hold it up.
fn watch(name: &str, wait: impl FnOnce() + Send + 'static) -> io::Result<oneshot::Receiver<()>> {
    let (ended, received) = oneshot::channel::<()>();
    std::thread::Builder::new()
        .name(format!("watch-{name}"))
        .spawn(move || {
            wait();
            drop(ended);
        })?;
    Ok(received)
}

/// Ends when what is watched did; never where nothing is.
pub(super) async fn ended(watched: &mut Option<oneshot::Receiver<()>>) {
    match watched {
        // Nothing is ever sent: the sender is dropped.
        Some(watched) => drop(watched.await),
        None => std::future::pending().await,
    }
}

/// What the engine is doing for others.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    calls: usize,
    last: Instant,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            calls: 0,
            last: Instant::now(),
        })))
    }

    /// A call in flight, until it is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.change(|calls| calls + 1);
        Busy(self.clone())
    }

    /// Since when nothing is in flight; none: something is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.calls == 0).then_some(state.last)
    }

    fn change(&self, count: impl FnOnce(usize) -> usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.calls = count(state.calls);
        state.last = Instant::now();
    }
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Busy(Activity);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|calls| calls.saturating_sub(1));
    }
}

/// Ends when for `limit` there was no call, and there is no session.
pub(super) async fn idle(activity: &Activity, sessions: impl Fn() -> u32, limit: Duration) {
    let mut since = Instant::now();
    loop {
        match activity.idle_since() {
            Some(last) if sessions() == 0 => {
                since = since.max(last);
                if since.elapsed() >= limit {
                    return;
                }
            }
            Some(_) | None => since = Instant::now(),
        }
        tokio::time::sleep_until((since + limit).into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_real_parent_is_watched_and_another_process_counts_as_ended() {
        let parent = getppid().expect("a parent");
        let mut watched = watch_parent(parent).expect("watched");
        assert_eq!(watched.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let other = watch_parent(rustix::process::getpid()).expect("looked at");
        ended(&mut Some(other)).await;
    }

    #[tokio::test]
    async fn an_engine_in_use_is_not_idle() {
        let activity = Activity::new();
        let busy = activity.busy();
        assert_eq!(activity.idle_since(), None);
        drop(busy);
        assert!(activity.idle_since().is_some());
    }

    #[tokio::test]
    async fn idleness_ends_only_without_sessions() {
        let activity = Activity::new();
        idle(&activity, || 0, Duration::ZERO).await;
        let ended = idle(&activity, || 1, Duration::from_millis(1));
        assert!(
            tokio::time::timeout(Duration::from_millis(20), ended)
                .await
                .is_err()
        );
    }
}
