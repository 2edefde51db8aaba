//! Why a request about a session could not be carried out.

use crate::outcome::Verdict;
use crate::pool::{KeeperError, PoolError};
use crate::sandbox::probe::explain;
use crate::workspace::FileError;

/// What happens to the code is never an error.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("no session {0:?}")]
    NoSession(String),
    #[error("session {0:?} is closed")]
    Closed(String),
    #[error("no kernel {0:?}")]
    NoKernel(String),
    /// What ended it, in a sentence.
    #[error("kernel ended: {0}")]
    KernelEnded(String),
    #[error("the kernel could not start: {}", ending(.0))]
    KernelNotStarted(Box<Verdict>),
    #[error("no kept output for step {0:?}: it was released, has expired or never was")]
    NoStep(String),
    /// A mount or workspace was judged at creation and refused.
    #[error("{field}: {reason}")]
    Refused {
        field: String,
        reason: String,
        mount: bool,
    },
    /// The host cannot give what was asked for: a layer or a limit that cannot bind.
    #[error("{what}")]
    Unavailable { what: String, mend: Option<String> },
    /// All sandboxes are in use and the wait for one was too long.
    #[error("{what}")]
    Busy { what: String },
    #[error("sandbox setup: {0}")]
    Setup(String),
    #[error(transparent)]
    File(#[from] FileError),
    /// The launcher died: no sandbox can be made any more.
    #[error("the launcher of this engine ended: no sandbox can be made any more")]
    LauncherLost,
}

/// How a kernel ended, in a sentence.
pub(super) fn ending(verdict: &Verdict) -> String {
    match (&verdict.fault, verdict.signal) {
        (Some(fault), _) => format!("{}: {}", fault.kind.name(), fault.message),
        (None, Some(signal)) => format!(
            "the interpreter was killed by signal {signal} (exit code {})",
            verdict.exit_code
        ),
        (None, None) => format!("the interpreter ended with exit code {}", verdict.exit_code),
    }
}

impl From<PoolError> for SessionError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Gone("the launcher") => Self::LauncherLost,
            PoolError::Step(step) => match explain(&step) {
                Some(found) => Self::Unavailable {
                    what: format!(
                        "sandboxes cannot be made on this host: {step}: {}",
                        found.cause
                    ),
                    mend: found.mend,
                },
                None => Self::Setup(step.to_string()),
            },
            error @ (PoolError::Cgroup(_) | PoolError::Io { .. } | PoolError::Gone(_)) => {
                Self::Setup(error.to_string())
            }
        }
    }
}

impl From<KeeperError> for SessionError {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::File(error) => Self::File(error),
            KeeperError::Pool(error) => error.into(),
        }
    }
}
