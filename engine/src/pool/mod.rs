//! How many sandboxes are kept ready, and their hand-out: the engine's side of launcher, slots and keepers.

mod board;
mod channel;
mod keeper;
mod launcher;
mod slot;
mod spares;
mod template;
mod templates;

pub use board::{Board, MOST_RESULTS, Shown};
pub use channel::Channel;
pub use keeper::{Keeper, KeeperError};
pub use launcher::{Launcher, Started, start};
pub use slot::{Attachment, Skeleton, Slot, Streams};
pub use spares::{Seed, Spares};
pub use template::{Forked, Template, TemplateError};
pub use templates::{Booted, TemplateKey, TemplateView, Templates};

use crate::sandbox::cgroup::CgroupError;
use crate::sandbox::plan::StepError;

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: std::io::Error,
    },
    /// The launcher or a process that it made is gone.
    #[error("{0} ended")]
    Gone(&'static str),
}

impl PoolError {
    fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
