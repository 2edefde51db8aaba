//! An engine that makes no sandboxes: what a program's name says, happens.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use stepbox_engine::api::backend::{Backend, ReadFile, WriteFile};
use stepbox_engine::outcome::{
    AppliedLimit, ChangeKind, EnforcedBy, Fault, FaultDetail, FaultKind, FileChange, FileKind,
    FileStat, Output, Resource, RichResult, Start, StepResult, Usage, Verdict,
};
use stepbox_engine::session::{Edited, KernelView, Live, SessionError, SessionView, StepEvent};
use stepbox_engine::spec::{Grep, Program, SandboxSpec, StepSpec};
use stepbox_engine::workspace::{FileError, FileReason, Match, Matches};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) const LARGE: usize = (5 << 20) + 3;
pub(crate) const MANY: usize = 6_001;

#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<State>);

#[derive(Debug)]
struct State {
    directory: tempfile::TempDir,
    table: Mutex<Table>,
    /// Steps that wait, and steps that were cancelled.
    waiting: watch::Sender<u32>,
    cancelled: watch::Sender<u32>,
    begun_writes: watch::Sender<u32>,
    dropped_writes: watch::Sender<u32>,
    down: CancellationToken,
    lost: CancellationToken,
}

impl Default for State {
    fn default() -> Self {
        Self {
            directory: tempfile::Builder::new()
                .permissions(std::fs::Permissions::from_mode(0o700))
                .tempdir()
                .expect("tempdir"),
            table: Mutex::default(),
            waiting: watch::Sender::new(0),
            cancelled: watch::Sender::new(0),
            begun_writes: watch::Sender::new(0),
            dropped_writes: watch::Sender::new(0),
            down: CancellationToken::new(),
            lost: CancellationToken::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    sessions: BTreeSet<String>,
    kept: BTreeMap<String, Arc<StepResult>>,
    files: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Fake {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().expect("no panic holds it")
    }

    pub(crate) async fn until_waiting(&self, count: u32) {
        let mut seen = self.0.waiting.subscribe();
        seen.wait_for(|now| *now >= count)
            .await
            .expect("the sender lives");
    }

    pub(crate) async fn until_cancelled(&self, count: u32) {
        let mut seen = self.0.cancelled.subscribe();
        seen.wait_for(|now| *now >= count)
            .await
            .expect("the sender lives");
    }

    pub(crate) async fn until_write_begun(&self) {
        let mut seen = self.0.begun_writes.subscribe();
        seen.wait_for(|now| *now >= 1)
            .await
            .expect("the sender lives");
    }

    pub(crate) async fn until_write_dropped(&self) {
        let mut seen = self.0.dropped_writes.subscribe();
        seen.wait_for(|now| *now >= 1)
            .await
            .expect("the sender lives");
    }

    /// No sandbox can be made any more.
    pub(crate) fn lose(&self) {
        self.0.lost.cancel();
    }
    pub(crate) fn is_down(&self) -> bool {
        self.0.down.is_cancelled()
    }

    pub(crate) fn files(&self) -> Vec<Vec<u8>> {
        self.table().files.keys().cloned().collect()
    }

    fn known(&self, id: &str) -> Result<(), SessionError> {
        if self.table().sessions.contains(id) {
            Ok(())
        } else {
            Err(SessionError::NoSession(id.into()))
        }
    }

    async fn wait(&self, cancel: CancellationToken) -> StepResult {
        self.0.waiting.send_modify(|count| *count += 1);
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.0.down.cancelled() => {}
        }
        self.0.cancelled.send_modify(|count| *count += 1);
        let mut result = plain();
        result.verdict = Verdict {
            exit_code: 137,
            signal: Some(9),
            fault: Some(Fault {
                kind: FaultKind::Cancelled,
                message: "cancelled".into(),
                detail: FaultDetail::default(),
            }),
        };
        result
    }
}

fn plain() -> StepResult {
    StepResult {
        step_id: "t1".into(),
        stdout: Output::default(),
        stderr: Output::default(),
        notes: vec![],
        verdict: Verdict {
            exit_code: 0,
            signal: None,
            fault: None,
        },
        duration_us: 1_500,
        files: vec![],
        files_truncated: false,
        files_shared: false,
        files_tracked: true,
        usage: Usage::default(),
        limits: limits(),
        isolation: vec!["none".into()],
        image_digest: String::new(),
        start: None,
        results: vec![],
        results_truncated: false,
    }
}

fn limits() -> Vec<AppliedLimit> {
    vec![AppliedLimit {
        resource: Resource::Memory,
        max: Some(512 << 20),
        enforced_by: EnforcedBy::Cgroup1,
    }]
}

fn output(kept: Vec<u8>) -> Output {
    Output {
        total: kept.len() as u64,
        head: 0,
        kept,
    }
}

fn view(id: &str) -> SessionView {
    SessionView {
        id: id.into(),
        name: None,
        labels: BTreeMap::new(),
        workspace: None,
        steps_running: 0,
        steps_done: 0,
        created: SystemTime::UNIX_EPOCH,
        image: "host".into(),
        image_digest: String::new(),
        limits: limits(),
        isolation: vec![],
        timeout: std::time::Duration::from_secs(30),
        resident: false,
        ttl: None,
        idle: None,
    }
}

fn missing(path: &[u8]) -> SessionError {
    SessionError::File(FileError {
        path: String::from_utf8_lossy(path).into_owned(),
        reason: FileReason::NotFound,
        message: "no such file".into(),
    })
}

#[derive(Debug)]
pub(crate) struct Writer {
    fake: Fake,
    path: Vec<u8>,
    data: Vec<u8>,
    committed: bool,
}

impl WriteFile for Writer {
    async fn write(&mut self, data: &[u8]) -> Result<(), SessionError> {
        self.data.extend_from_slice(data);
        self.fake.0.begun_writes.send_modify(|count| *count += 1);
        Ok(())
    }
    async fn commit(mut self) -> Result<u64, SessionError> {
        self.committed = true;
        let data = std::mem::take(&mut self.data);
        let size = data.len() as u64;
        self.fake.table().files.insert(self.path.clone(), data);
        Ok(size)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.committed {
            self.fake.0.dropped_writes.send_modify(|count| *count += 1);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reader {
    size: u64,
    left: Vec<u8>,
}

impl ReadFile for Reader {
    fn size(&self) -> u64 {
        self.size
    }
    async fn read(&mut self, max: usize) -> Result<Vec<u8>, SessionError> {
        let rest = self.left.split_off(self.left.len().min(max));
        Ok(std::mem::replace(&mut self.left, rest))
    }
}

impl Backend for Fake {
    type Writer = Writer;
    type Reader = Reader;

    fn state_directory(&self) -> &Path {
        self.0.directory.path()
    }
    fn directories(&self) -> Vec<PathBuf> {
        vec![self.0.directory.path().to_owned()]
    }
    fn check(&self, _spec: &SandboxSpec) -> Result<(Vec<AppliedLimit>, Vec<String>), SessionError> {
        Ok((limits(), vec!["none".into()]))
    }
    async fn create_session(
        &self,
        _spec: SandboxSpec,
        _attach: bool,
    ) -> Result<(SessionView, bool), SessionError> {
        let mut table = self.table();
        let id = format!("s{}", table.sessions.len() + 1);
        table.sessions.insert(id.clone());
        Ok((view(&id), false))
    }
    async fn close_session(&self, id: &str) -> Result<(), SessionError> {
        self.known(id)?;
        self.table().sessions.remove(id);
        Ok(())
    }
    fn session(&self, id: &str) -> Result<SessionView, SessionError> {
        self.known(id)?;
        Ok(view(id))
    }
    fn sessions(&self) -> Vec<SessionView> {
        self.table().sessions.iter().map(|id| view(id)).collect()
    }
    async fn run(
        &self,
        id: &str,
        step: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        self.known(id)?;
        let argv = match step.program {
            Program::Argv(argv) => argv,
            Program::Code { source, .. } => vec![b"echo".to_vec(), source],
        };
        if let Some(events) = &events {
            let started = StepEvent::Started {
                step_id: "t1".into(),
            };
            events.send(started).await.expect("the stream lives");
        }
        let mut result = plain();
        match argv[0].as_slice() {
            b"wait" => return Ok(self.wait(cancel).await),
            b"busy" => {
                return Err(SessionError::Busy {
                    what: "all in use".into(),
                });
            }
            b"large" => {
                result.stdout = output(vec![b'o'; LARGE]);
                result.files = (0..MANY).map(change).collect();
            }
            b"count" => {
                for sequence in 0..100 {
                    let chunk = StepEvent::Output {
                        stdout: sequence % 2 == 0,
                        sequence,
                        data: sequence.to_string().into_bytes(),
                        dropped: 0,
                    };
                    if let Some(events) = &events {
                        events.send(chunk).await.expect("the stream lives");
                    }
                }
            }
            _ => result.stdout = output(argv[1..].join(&b' ')),
        }
        Ok(result)
    }
    async fn start_kernel(&self, id: &str, _spec: StepSpec) -> Result<KernelView, SessionError> {
        self.known(id)?;
        Ok(KernelView {
            id: "k1".into(),
            start: Start::Cold,
        })
    }
    async fn run_cell(
        &self,
        id: &str,
        kernel_id: &str,
        spec: StepSpec,
        events: Option<mpsc::Sender<StepEvent>>,
        cancel: CancellationToken,
    ) -> Result<StepResult, SessionError> {
        match kernel_id {
            "k1" => Ok(StepResult {
                results: vec![RichResult {
                    main: true,
                    data: BTreeMap::from([("text/plain".into(), b"42".to_vec())]),
                }],
                ..self.run(id, spec, events, cancel).await?
            }),
            "dead" => Err(SessionError::KernelEnded("timeout: it was slow".into())),
            other => Err(SessionError::NoKernel(other.into())),
        }
    }
    fn interrupt_kernel(&self, id: &str, _kernel_id: &str) -> Result<(), SessionError> {
        self.known(id)
    }
    async fn restart_kernel(&self, id: &str, kernel_id: &str) -> Result<KernelView, SessionError> {
        self.known(id)?;
        Err(SessionError::NoKernel(kernel_id.into()))
    }
    async fn close_kernel(&self, id: &str, _kernel_id: &str) -> Result<(), SessionError> {
        self.known(id)
    }
    fn keep(&self, _id: &str, result: Arc<StepResult>) {
        self.table().kept.insert(result.step_id.clone(), result);
    }
    fn kept(&self, id: &str, step_id: &str) -> Result<Arc<StepResult>, SessionError> {
        self.known(id)?;
        let kept = self.table().kept.get(step_id).cloned();
        kept.ok_or_else(|| SessionError::NoStep(step_id.into()))
    }
    fn release(&self, id: &str, step_id: &str) -> Result<(), SessionError> {
        self.known(id)?;
        let released = self.table().kept.remove(step_id);
        released
            .map(drop)
            .ok_or_else(|| SessionError::NoStep(step_id.into()))
    }
    async fn write_file(
        &self,
        id: &str,
        path: Vec<u8>,
        _mode: Option<u32>,
    ) -> Result<Writer, SessionError> {
        self.known(id)?;
        Ok(Writer {
            fake: self.clone(),
            path,
            data: vec![],
            committed: false,
        })
    }
    async fn read_file(
        &self,
        id: &str,
        path: Vec<u8>,
        _offset: u64,
        _length: Option<u64>,
        _max: u64,
    ) -> Result<Reader, SessionError> {
        self.known(id)?;
        let file = self.table().files.get(&path).cloned();
        let left = file.ok_or_else(|| missing(&path))?;
        Ok(Reader {
            size: left.len() as u64,
            left,
        })
    }
    async fn list_files(
        &self,
        id: &str,
        _path: Vec<u8>,
        _recursive: bool,
        _files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        self.known(id)?;
        let entries = (0..MANY).map(|nth| stat(format!("f{nth}").as_bytes()));
        Ok((entries.collect(), true))
    }
    async fn stat_file(&self, id: &str, path: Vec<u8>) -> Result<FileStat, SessionError> {
        self.known(id)?;
        if self.table().files.contains_key(&path) {
            Ok(stat(&path))
        } else {
            Err(missing(&path))
        }
    }
    async fn make_dir(&self, id: &str, _path: Vec<u8>) -> Result<(), SessionError> {
        self.known(id)
    }
    async fn remove(&self, id: &str, path: Vec<u8>, _recursive: bool) -> Result<(), SessionError> {
        self.known(id)?;
        let removed = self.table().files.remove(&path);
        removed.map(drop).ok_or_else(|| missing(&path))
    }
    async fn rename(
        &self,
        id: &str,
        source: Vec<u8>,
        target: Vec<u8>,
        _replace: bool,
    ) -> Result<(), SessionError> {
        self.known(id)?;
        let mut table = self.table();
        let data = table
            .files
            .remove(&source)
            .ok_or_else(|| missing(&source))?;
        table.files.insert(target, data);
        Ok(())
    }
    async fn glob_files(
        &self,
        id: &str,
        _path: Vec<u8>,
        _pattern: String,
        _files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        self.known(id)?;
        let files = self.files();
        Ok((files.iter().map(|path| stat(path)).collect(), true))
    }
    async fn grep_files(
        &self,
        id: &str,
        _path: Vec<u8>,
        grep: Grep,
    ) -> Result<Matches, SessionError> {
        self.known(id)?;
        let line = |nth| Match {
            path: b"bad\xff".to_vec(),
            line_number: nth,
            line: grep.pattern.clone().into_bytes(),
        };
        Ok(Matches {
            found: (1..=MANY as u64).map(line).collect(),
            truncated: true,
            binary: 2,
        })
    }
    async fn edit_file(
        &self,
        id: &str,
        path: Vec<u8>,
        (old, _new): (Vec<u8>, Vec<u8>),
        all: bool,
    ) -> Result<Edited, SessionError> {
        self.known(id)?;
        if !all {
            return Err(SessionError::File(FileError {
                path: String::from_utf8_lossy(&path).into_owned(),
                reason: FileReason::SeveralMatches { count: 3 },
                message: String::from_utf8_lossy(&old).into_owned(),
            }));
        }
        Ok(Edited {
            size: 1,
            replacements: 3,
            diff: None,
            truncated: false,
        })
    }
    fn live(&self) -> Live {
        Live {
            sessions: u32::try_from(self.table().sessions.len()).expect("few"),
            ..Live::default()
        }
    }
    fn lost(&self) -> CancellationToken {
        self.0.lost.clone()
    }
    async fn shutdown(&self) {
        self.0.down.cancel();
    }
}

fn change(nth: usize) -> FileChange {
    FileChange {
        path: format!("f{nth}").into_bytes(),
        change: ChangeKind::Created,
        kind: FileKind::File,
        size: 1,
        mode: 0o644,
        old_path: None,
        host_risk: None,
        diff: None,
        diff_reason: None,
    }
}

fn stat(path: &[u8]) -> FileStat {
    FileStat {
        path: path.to_vec(),
        kind: FileKind::File,
        size: 1,
        mode: 0o644,
        modified_ns: 0,
        link_target: None,
    }
}
