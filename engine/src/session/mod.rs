//! Sessions and their steps: the table, the life of a step, deadlines, cancellation, the step queue.
//!
//! [`Engine`] is the whole surface that the transport and the command line see; they know nothing below it.

mod ahead;
mod bytecode;
mod check;
mod close;
mod compile;
mod engine;
mod environment;
mod equipment;
mod error;
mod file;
mod interpreter;
mod kept;
mod kernel;
mod names;
mod open;
mod owners;
mod place;
mod quota;
mod record;
mod resident;
mod runtime_dir;
mod searcher;
mod slots;
mod step;
mod texts;
mod unlinked;
mod volumes;
mod warm;
mod watched;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub use engine::Engine;
pub use error::SessionError;
pub use file::{FileRead, FileWrite};
pub use kernel::KernelView;
pub use runtime_dir::{RuntimeDir, RuntimeDirError, scratch_parent};

pub use crate::launcher::message::Edited;
pub use crate::outcome::StepEvent;
use crate::outcome::{AppliedLimit, FileChange, StepResult};
pub use crate::pool::TemplateView;
pub use crate::supervise::Events;

/// What can be known about a session.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub id: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Host path of a given workspace.
    pub workspace: Option<PathBuf>,
    pub steps_running: u32,
    pub steps_done: u64,
    pub created: SystemTime,
    pub image: String,
    pub image_digest: String,
    pub limits: Vec<AppliedLimit>,
    pub isolation: Vec<String>,
    pub timeout: Duration,
    pub resident: bool,
    /// How long it may be idle; none: as long as the engine lives.
    pub ttl: Option<Duration>,
    /// How long it is by now; none: something runs.
    pub idle: Option<Duration>,
}

/// Live counts of an engine.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub sessions: u32,
    pub steps: u32,
    pub slots: u32,
    pub steps_done: u64,
    pub templates: Vec<TemplateView>,
}

/// Changes of a step from `offset`, for streams.
#[must_use]
pub fn changes_page(result: &StepResult, offset: usize, count: usize) -> &[FileChange] {
    let start = offset.min(result.files.len());
    let end = (start + count).min(result.files.len());
    &result.files[start..end]
}
