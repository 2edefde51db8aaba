//! Sessions and their steps: the table, the life of a step, deadlines, cancellation, the step queue.
//!
//! This is the whole surface that the transport and the command line see; they know nothing below it.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::outcome::{AppliedLimit, FileChange, FileStat, StepResult};
use crate::spec::{SandboxSpec, StepSpec};
use crate::workspace::FileError;

/// Why a request about a session could not be carried out. What happens to the code is never an error.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("no session {0:?}")]
    NoSession(String),
    #[error("session {0:?} is closed")]
    Closed(String),
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

/// What can be known about a session.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub id: String,
    pub name: Option<String>,
    pub labels: std::collections::BTreeMap<String, String>,
    /// Host path of a given workspace.
    pub workspace: Option<std::path::PathBuf>,
    pub steps_running: u32,
    pub steps_done: u64,
    pub created: SystemTime,
    pub image: String,
    pub image_digest: String,
    pub limits: Vec<AppliedLimit>,
    pub isolation: Vec<String>,
}

/// What a running step tells while it runs.
#[derive(Debug)]
pub enum StepEvent {
    Started {
        step_id: String,
    },
    Output {
        stdout: bool,
        sequence: u64,
        data: Vec<u8>,
        dropped: u64,
    },
}

/// Live counts of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    pub sessions: u32,
    pub steps: u32,
    pub slots: u32,
    pub steps_done: u64,
}

/// A page of kept output: (bytes, whether more follows).
pub type OutputPage = (Vec<u8>, bool);

/// The engine as the transport and the command line see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    #[expect(dead_code, reason = "filled in with the launcher")]
    inner: Arc<()>,
}

/// A file being written: it appears whole at [`FileWrite::commit`], or not at all.
#[derive(Debug)]
pub struct FileWrite(());

impl FileWrite {
    /// Adds bytes at the end.
    pub async fn write(&mut self, _data: &[u8]) -> Result<(), SessionError> {
        todo!()
    }
    /// Makes the file appear; gives its size in bytes.
    pub async fn commit(self) -> Result<u64, SessionError> {
        todo!()
    }
}

/// A file being read.
#[derive(Debug)]
pub struct FileRead {
    /// Bytes of the whole file when it was opened.
    pub size: u64,
}

impl FileRead {
    /// The next bytes, at most `max`; empty at the end.
    pub async fn read(&mut self, _max: usize) -> Result<Vec<u8>, SessionError> {
        todo!()
    }
}

impl Engine {
    /// Says what would be enforced and which layers would be in force; errors when the host cannot give them.
    pub fn check(
        &self,
        _spec: &SandboxSpec,
    ) -> Result<(Vec<AppliedLimit>, Vec<String>), SessionError> {
        todo!()
    }
    pub async fn create_session(&self, _spec: SandboxSpec) -> Result<SessionView, SessionError> {
        todo!()
    }
    /// Closing a session that is gone already is an error ([`SessionError::NoSession`]).
    pub async fn close_session(&self, _id: &str) -> Result<(), SessionError> {
        todo!()
    }
    pub fn session(&self, _id: &str) -> Result<SessionView, SessionError> {
        todo!()
    }
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionView> {
        todo!()
    }
    /// Runs a step to its end. When `cancel` fires the step is stopped, and the result bears the fault `cancelled`.
    /// Dropping the future cancels the step too. Events are dropped, and counted, when the receiver is slow.
    pub async fn run(
        &self,
        _id: &str,
        _step: StepSpec,
        _events: Option<mpsc::Sender<StepEvent>>,
        _cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        todo!()
    }
    /// Keeps output and changes that a reply could not carry, until release, the session's end or 60 s.
    pub fn keep(&self, _id: &str, _result: Arc<StepResult>) {
        todo!()
    }
    /// Kept output of a step.
    pub fn kept(&self, _id: &str, _step_id: &str) -> Result<Arc<StepResult>, SessionError> {
        todo!()
    }
    pub fn release(&self, _id: &str, _step_id: &str) -> Result<(), SessionError> {
        todo!()
    }
    pub async fn write_file(
        &self,
        _id: &str,
        _path: Vec<u8>,
        _mode: Option<u32>,
    ) -> Result<FileWrite, SessionError> {
        todo!()
    }
    /// `max`: refuse a larger file. `length`: none reads to the end.
    pub async fn read_file(
        &self,
        _id: &str,
        _path: Vec<u8>,
        _offset: u64,
        _length: Option<u64>,
        _max: u64,
    ) -> Result<FileRead, SessionError> {
        todo!()
    }
    /// The entries, and whether the walk ended at its budget.
    pub async fn list_files(
        &self,
        _id: &str,
        _path: Vec<u8>,
        _recursive: bool,
        _files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        todo!()
    }
    pub async fn stat_file(&self, _id: &str, _path: Vec<u8>) -> Result<FileStat, SessionError> {
        todo!()
    }
    pub async fn make_dir(&self, _id: &str, _path: Vec<u8>) -> Result<(), SessionError> {
        todo!()
    }
    pub async fn remove(
        &self,
        _id: &str,
        _path: Vec<u8>,
        _recursive: bool,
    ) -> Result<(), SessionError> {
        todo!()
    }
    pub async fn rename(
        &self,
        _id: &str,
        _source: Vec<u8>,
        _target: Vec<u8>,
        _replace: bool,
    ) -> Result<(), SessionError> {
        todo!()
    }
    #[must_use]
    pub fn live(&self) -> Live {
        todo!()
    }
    /// Stops every step, closes every session, and removes what the engine made.
    pub async fn shutdown(&self) {
        todo!()
    }
}

/// Changes of a step from `offset`, for streams.
#[must_use]
pub fn changes_page(result: &StepResult, offset: usize, count: usize) -> &[FileChange] {
    let start = offset.min(result.files.len());
    let end = (start + count).min(result.files.len());
    &result.files[start..end]
}
