//! What the services call: the engine, or a stand-in that makes no sandboxes.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::outcome::{AppliedLimit, FileStat, StepResult};
use crate::session::{
    Edited, Engine, Events, FileRead, FileWrite, KernelView, Live, SessionError, SessionView,
    StepEvent,
};
use crate::spec::{Grep, SandboxSpec, StepSpec};
use crate::workspace::Matches;

/// A file being written, which appears at the commit and, dropped before it, never.
pub trait WriteFile: Send + 'static {
    fn write(&mut self, data: &[u8]) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn commit(self) -> impl Future<Output = Result<u64, SessionError>> + Send;
}

/// A file being read.
pub trait ReadFile: Send + 'static {
    /// Bytes of the whole file.
    fn size(&self) -> u64;
    /// The next bytes, at most `max`; empty at the end.
    fn read(&mut self, max: usize) -> impl Future<Output = Result<Vec<u8>, SessionError>> + Send;
}

/// The engine's facade. Each method is the one of the same name of [`Engine`], where it is described.
pub trait Backend: Clone + Send + Sync + 'static {
    type Writer: WriteFile;
    type Reader: ReadFile;

    /// Where socket and token are unless the caller says else; 0700, and the engine's to remove.
    fn state_directory(&self) -> &Path;
    /// All directories of the engine's own: no sandbox may have a part of them.
    fn directories(&self) -> Vec<PathBuf>;
    fn check(&self, spec: &SandboxSpec) -> Result<(Vec<AppliedLimit>, Vec<String>), SessionError>;
    fn create_session(
        &self,
        spec: SandboxSpec,
        attach: bool,
    ) -> impl Future<Output = Result<(SessionView, bool), SessionError>> + Send;
    fn close_session(&self, id: &str) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn session(&self, id: &str) -> Result<SessionView, SessionError>;
    fn sessions(&self) -> Vec<SessionView>;
    fn run(
        &self,
        id: &str,
        step: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<StepResult, SessionError>> + Send;
    fn start_kernel(
        &self,
        id: &str,
        spec: StepSpec,
    ) -> impl Future<Output = Result<KernelView, SessionError>> + Send;
    fn run_cell(
        &self,
        id: &str,
        kernel_id: &str,
        spec: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<StepResult, SessionError>> + Send;
    fn interrupt_kernel(&self, id: &str, kernel_id: &str) -> Result<(), SessionError>;
    fn restart_kernel(
        &self,
        id: &str,
        kernel_id: &str,
    ) -> impl Future<Output = Result<KernelView, SessionError>> + Send;
    fn close_kernel(
        &self,
        id: &str,
        kernel_id: &str,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn keep(&self, id: &str, result: Arc<StepResult>);
    fn kept(&self, id: &str, step_id: &str) -> Result<Arc<StepResult>, SessionError>;
    fn release(&self, id: &str, step_id: &str) -> Result<(), SessionError>;
    fn write_file(
        &self,
        id: &str,
        path: Vec<u8>,
        mode: Option<u32>,
    ) -> impl Future<Output = Result<Self::Writer, SessionError>> + Send;
    fn read_file(
        &self,
        id: &str,
        path: Vec<u8>,
        offset: u64,
        length: Option<u64>,
        max: u64,
    ) -> impl Future<Output = Result<Self::Reader, SessionError>> + Send;
    fn list_files(
        &self,
        id: &str,
        path: Vec<u8>,
        recursive: bool,
        files_only: bool,
    ) -> impl Future<Output = Result<(Vec<FileStat>, bool), SessionError>> + Send;
    fn stat_file(
        &self,
        id: &str,
        path: Vec<u8>,
    ) -> impl Future<Output = Result<FileStat, SessionError>> + Send;
    fn make_dir(
        &self,
        id: &str,
        path: Vec<u8>,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn remove(
        &self,
        id: &str,
        path: Vec<u8>,
        recursive: bool,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn rename(
        &self,
        id: &str,
        source: Vec<u8>,
        target: Vec<u8>,
        replace: bool,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;
    fn glob_files(
        &self,
        id: &str,
        path: Vec<u8>,
        pattern: String,
        files_only: bool,
    ) -> impl Future<Output = Result<(Vec<FileStat>, bool), SessionError>> + Send;
    fn grep_files(
        &self,
        id: &str,
        path: Vec<u8>,
        grep: Grep,
    ) -> impl Future<Output = Result<Matches, SessionError>> + Send;
    fn edit_file(
        &self,
        id: &str,
        path: Vec<u8>,
        texts: (Vec<u8>, Vec<u8>),
        all: bool,
    ) -> impl Future<Output = Result<Edited, SessionError>> + Send;
    fn live(&self) -> Live;
    /// Fires when no sandbox can be made any more: there is nothing left to serve.
    fn lost(&self) -> CancellationToken;
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

impl WriteFile for FileWrite {
    async fn write(&mut self, data: &[u8]) -> Result<(), SessionError> {
        Self::write(self, data).await
    }
    async fn commit(self) -> Result<u64, SessionError> {
        Self::commit(self).await
    }
}

impl ReadFile for FileRead {
    fn size(&self) -> u64 {
        self.size
    }
    async fn read(&mut self, max: usize) -> Result<Vec<u8>, SessionError> {
        Self::read(self, max).await
    }
}

/// Over a network a slow listener must not slow the code down.
fn unpaced(sender: mpsc::Sender<StepEvent>) -> Events {
    Events {
        sender,
        paced: false,
    }
}

impl Backend for Engine {
    type Writer = FileWrite;
    type Reader = FileRead;

    fn state_directory(&self) -> &Path {
        Engine::state_directory(self)
    }

    fn directories(&self) -> Vec<PathBuf> {
        Engine::directories(self)
    }

    fn check(&self, spec: &SandboxSpec) -> Result<(Vec<AppliedLimit>, Vec<String>), SessionError> {
        Self::check(self, spec)
    }
    async fn create_session(
        &self,
        spec: SandboxSpec,
        attach: bool,
    ) -> Result<(SessionView, bool), SessionError> {
        Self::create_session(self, spec, attach).await
    }
    async fn close_session(&self, id: &str) -> Result<(), SessionError> {
        Self::close_session(self, id).await
    }
    fn session(&self, id: &str) -> Result<SessionView, SessionError> {
        Self::session(self, id)
    }
    fn sessions(&self) -> Vec<SessionView> {
        Self::sessions(self)
    }
    async fn run(
        &self,
        id: &str,
        step: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        Self::run(self, id, step, events.map(unpaced), cancel).await
    }
    async fn start_kernel(&self, id: &str, spec: StepSpec) -> Result<KernelView, SessionError> {
        Self::start_kernel(self, id, spec).await
    }
    async fn run_cell(
        &self,
        id: &str,
        kernel_id: &str,
        spec: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        Self::run_cell(self, id, kernel_id, spec, events.map(unpaced), cancel).await
    }
    fn interrupt_kernel(&self, id: &str, kernel_id: &str) -> Result<(), SessionError> {
        Self::interrupt_kernel(self, id, kernel_id)
    }
    async fn restart_kernel(&self, id: &str, kernel_id: &str) -> Result<KernelView, SessionError> {
        Self::restart_kernel(self, id, kernel_id).await
    }
    async fn close_kernel(&self, id: &str, kernel_id: &str) -> Result<(), SessionError> {
        Self::close_kernel(self, id, kernel_id).await
    }
    fn keep(&self, id: &str, result: Arc<StepResult>) {
        Self::keep(self, id, result);
    }
    fn kept(&self, id: &str, step_id: &str) -> Result<Arc<StepResult>, SessionError> {
        Self::kept(self, id, step_id)
    }
    fn release(&self, id: &str, step_id: &str) -> Result<(), SessionError> {
        Self::release(self, id, step_id)
    }
    async fn write_file(
        &self,
        id: &str,
        path: Vec<u8>,
        mode: Option<u32>,
    ) -> Result<FileWrite, SessionError> {
        Self::write_file(self, id, path, mode).await
    }
    async fn read_file(
        &self,
        id: &str,
        path: Vec<u8>,
        offset: u64,
        length: Option<u64>,
        max: u64,
    ) -> Result<FileRead, SessionError> {
        Self::read_file(self, id, path, offset, length, max).await
    }
    async fn list_files(
        &self,
        id: &str,
        path: Vec<u8>,
        recursive: bool,
        files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        Self::list_files(self, id, path, recursive, files_only).await
    }
    async fn stat_file(&self, id: &str, path: Vec<u8>) -> Result<FileStat, SessionError> {
        Self::stat_file(self, id, path).await
    }
    async fn make_dir(&self, id: &str, path: Vec<u8>) -> Result<(), SessionError> {
        Self::make_dir(self, id, path).await
    }
    async fn remove(&self, id: &str, path: Vec<u8>, recursive: bool) -> Result<(), SessionError> {
        Self::remove(self, id, path, recursive).await
    }
    async fn rename(
        &self,
        id: &str,
        source: Vec<u8>,
        target: Vec<u8>,
        replace: bool,
    ) -> Result<(), SessionError> {
        Self::rename(self, id, source, target, replace).await
    }
    async fn glob_files(
        &self,
        id: &str,
        path: Vec<u8>,
        pattern: String,
        files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        Self::glob_files(self, id, path, pattern, files_only).await
    }
    async fn grep_files(
        &self,
        id: &str,
        path: Vec<u8>,
        grep: Grep,
    ) -> Result<Matches, SessionError> {
        Self::grep_files(self, id, path, grep).await
    }
    async fn edit_file(
        &self,
        id: &str,
        path: Vec<u8>,
        texts: (Vec<u8>, Vec<u8>),
        all: bool,
    ) -> Result<Edited, SessionError> {
        Self::edit_file(self, id, path, texts, all).await
    }
    fn live(&self) -> Live {
        Self::live(self)
    }
    fn lost(&self) -> CancellationToken {
        self.launcher_lost().clone()
    }
    async fn shutdown(&self) {
        Self::shutdown(self).await;
    }
}
