//! The engine's side of templates: an interpreter that is booted once, its fork in the cgroups of a slot, and the fork of
//! that in a sandbox, which waits for a step.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Board, Channel, Launcher, PoolError};
use crate::launcher::message::{RealmId, Role};
use crate::sandbox::init::ToInit;
use crate::sandbox::plan::{Step, StepError};
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::template::{Fork, FromTemplate, Program, Setup, ToTemplate, failure};
use crate::sys::datagram;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Bytes, above which the end of a fork is not to wait for its memory. A plain interpreter has a quarter of that.
const LARGE: u64 = 32 << 20;

/// A booted interpreter. It ends when this is dropped.
#[derive(Debug)]
pub struct Template {
    channel: Channel,
    /// No other template of this process has it.
    pub(super) number: u64,
    pub booted: Instant,
    /// Steps that were forked, through any sub-template.
    pub(super) forks: Arc<AtomicU64>,
    /// Bytes that it held when it stood.
    pub memory: u64,
}

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What was to be imported cannot be, or cannot be forked.
    #[error("{module}: {reason}")]
    Module { module: String, reason: String },
    #[error("{0}")]
    Refused(String),
}

impl Template {
    /// Boots an interpreter in a realm, and has it import. Takes as long as that takes. `deps`: a session's packages.
    pub async fn boot(
        launcher: &Launcher,
        (realm, root): (RealmId, &RootSpec),
        program: &Program,
        deps: Option<OwnedFd>,
        preload: Vec<String>,
    ) -> Result<Self, TemplateError> {
        let channel = launcher
            .make_process(realm, Role::Template, root, &[])
            .await?;
        // One that is gone may have said why.
        let deps: Vec<_> = deps.iter().map(AsFd::as_fd).collect();
        let _ = channel.send(program, &deps).await;
        let _ = channel
            .send(
                &Setup::new(root.profile, preload, program.usual.clone()),
                &[],
            )
            .await;
        match receive(&channel, "a template").await? {
            (FromTemplate::Ready(kib), _) => Ok(Self {
                channel,
                number: NUMBERS.fetch_add(1, Ordering::Relaxed),
                forks: Arc::default(),
                booted: Instant::now(),
                memory: u64::from(kib) << 10,
            }),
            (FromTemplate::Refused(text), _) => Err(refused(&text)),
            _ => Err(PoolError::Gone("a template's protocol").into()),
        }
    }

    /// Forks a sub-template into the cgroups that `procs` open.
    pub(super) async fn branch(&self, procs: &[OwnedFd]) -> Result<SubTemplate, PoolError> {
        let (ours, theirs) = datagram::pair().map_err(PoolError::io("socket pair"))?;
        let mut beside = vec![theirs.as_fd()];
        beside.extend(procs.iter().map(AsFd::as_fd));
        self.channel
            .send(&ToTemplate::Branch, &beside)
            .await
            .map_err(|_| PoolError::Gone("a template"))?;
        drop(theirs);
        let channel = Channel::new(ours).map_err(PoolError::io("socket"))?;
        match receive(&channel, "a sub-template").await? {
            (FromTemplate::Ready(_), _) => Ok(SubTemplate {
                channel,
                large: self.memory > LARGE,
                forks: Arc::clone(&self.forks),
            }),
            (FromTemplate::Failed { place, errno }, _) => Err(failure(place, errno).into()),
            _ => Err(PoolError::Gone("a sub-template's protocol")),
        }
    }

    /// Whether it lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.channel.is_closed()
    }
}

fn refused(text: &str) -> TemplateError {
    match text.split_once('\0') {
        Some(("", reason)) => TemplateError::Refused(reason.to_owned()),
        Some((module, reason)) => TemplateError::Module {
            module: module.to_owned(),
            reason: reason.to_owned(),
        },
        None => TemplateError::Refused(text.to_owned()),
    }
}

/// A fork of a template in the cgroups of one slot. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct SubTemplate {
    channel: Channel,
    /// To take its memory apart takes longer than the rest of a small step.
    pub(super) large: bool,
    /// Those of its template.
    forks: Arc<AtomicU64>,
}

impl SubTemplate {
    /// Has a process forked into the sandbox that `ways` lead to. It is told what to run without waiting for it: if the
    /// fork fails its socket closes.
    pub(super) async fn fork(
        &self,
        fork: Fork,
        ways: &[OwnedFd],
        leaf: Option<&OwnedFd>,
    ) -> Result<Forked, PoolError> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = datagram::pair().map_err(PoolError::io("socket pair"))?;
        let board = Board::make().map_err(PoolError::io("memory for results"))?;
        let mut beside = vec![theirs.as_fd(), board.as_fd()];
        beside.extend(ways.iter().map(AsFd::as_fd));
        beside.extend(leaf.iter().map(|leaf| leaf.as_fd()));
        self.channel
            .send(&ToTemplate::Fork(fork), &beside)
            .await
            .map_err(|_| PoolError::Gone("a sub-template"))?;
        drop(theirs);
        Ok(Forked {
            control: Channel::new(ours).map_err(PoolError::io("socket"))?,
            board: Some(board),
            main: 0,
            holder: None,
            listener: None,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.channel.is_closed()
    }

    /// Ends it, and waits until it has let go of everything.
    pub(super) async fn end(self) {
        drain(&self.channel).await;
    }
}

/// A process that waits in a sandbox for what to run, or is on its way there.
#[derive(Debug)]
pub struct Forked {
    pub control: Channel,
    /// Where the code leaves what it shows; taken by the step.
    pub board: Option<Board>,
    /// Its number in the sandbox; 0: it has not said so yet.
    main: i32,
    /// The process that holds its memory, if there is one.
    holder: Option<i32>,
    /// The listener of its filter; taken by the step.
    pub listener: Option<OwnedFd>,
}

impl Forked {
    /// Waits until it waits.
    pub(super) async fn settle(&mut self) -> Result<(), PoolError> {
        while self.listener.is_none() {
            let (word, descriptors) = receive(&self.control, "a forked interpreter").await?;
            self.hear(&word, descriptors)?;
        }
        Ok(())
    }

    /// Takes in that it waits, or why it does not.
    pub fn hear(
        &mut self,
        word: &FromTemplate,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        let (number, holder) = match word {
            FromTemplate::Waits { number, holder } => (number, holder),
            FromTemplate::Failed { place, errno } => return Err(failure(*place, *errno)),
            FromTemplate::Ready(_) | FromTemplate::Started | FromTemplate::Refused(_) => {
                return Err(Self::silent());
            }
        };
        let pid = |number: &u32| i32::try_from(*number).ok().filter(|pid| *pid > 0);
        match pid(number).zip(descriptors.into_iter().next()) {
            Some((number, listener)) => {
                self.main = number;
                self.holder = pid(holder);
                self.listener = Some(listener);
                Ok(())
            }
            None => Err(Self::silent()),
        }
    }

    /// What the sandbox's init is to be told of it.
    #[must_use]
    pub const fn adoption(&self) -> ToInit {
        ToInit::Adopt {
            main: self.main,
            holder: self.holder,
        }
    }

    /// What is to be said of one that ended without a word.
    #[must_use]
    pub fn silent() -> StepError {
        let error = io::Error::from_raw_os_error(libc::ECHILD);
        StepError::new(Step::ForkTemplate, "a forked interpreter", &error)
    }

    /// Ends it, and waits until it has let go of everything.
    pub(super) async fn end(self) {
        drain(&self.control).await;
    }
}

async fn drain(channel: &Channel) {
    if channel.finish().is_ok() {
        while matches!(channel.receive::<FromTemplate>().await, Ok(Some(_))) {}
    }
}

async fn receive(
    channel: &Channel,
    who: &'static str,
) -> Result<(FromTemplate, Vec<OwnedFd>), PoolError> {
    channel
        .receive()
        .await
        .map_err(PoolError::io(who))?
        .ok_or(PoolError::Gone(who))
}
