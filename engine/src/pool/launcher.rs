//! The engine's handle of its launcher.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Channel, PoolError};
use crate::launcher::ALONE;
use crate::launcher::message::{
    FromLauncher, LauncherReply, LauncherRequest, Ready, RealmId, Role, Setup, ToLauncher,
    TreeRequest,
};
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::Mode;
use crate::sandbox::numbers::Numbers;
use crate::sandbox::plan::StepError;
use crate::sandbox::rootfs::RootSpec;
use crate::sys::datagram;

/// How long a launcher may take to end its realms and to remove what it made.
const LAUNCHER_END: Duration = Duration::from_secs(2);

/// A launcher that was started, before the runtime exists.
#[derive(Debug)]
pub struct Started {
    socket: OwnedFd,
    pub pid: u32,
    pub mode: Mode,
    /// Without namespaces.
    pub alone: bool,
    range: Result<(), String>,
}

/// Executes the launcher from this same binary and waits until it stands. To be called before any thread exists.
/// `alone`: without namespaces.
pub fn start(setup: &Setup, alone: bool) -> Result<Started, PoolError> {
    use std::os::unix::process::CommandExt;
    let (ours, theirs) = datagram::pair().map_err(PoolError::io("socket pair"))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the launcher is the one process that the engine executes"
    )]
    let mut command = Command::new("/proc/self/exe");
    let child = command
        .arg0("stepbox")
        .arg("launcher")
        .args(alone.then_some(ALONE))
        .env_clear()
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .map_err(PoolError::io("execute the launcher"))?;
    datagram::send(ours.as_fd(), setup, &[]).map_err(PoolError::io("launcher"))?;
    let answer: Option<(Result<Ready, StepError>, _)> =
        datagram::receive(ours.as_fd()).map_err(PoolError::io("launcher"))?;
    let (ready, _) = answer.ok_or(PoolError::Gone("the launcher"))?;
    let Ready { mode, range } = ready?;
    Ok(Started {
        socket: ours,
        pid: child.id(),
        mode,
        alone,
        range,
    })
}

type Answer = Result<(LauncherReply, Vec<OwnedFd>), StepError>;

#[derive(Debug)]
struct Inner {
    channel: Channel,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    numbers: AtomicU64,
    realms: AtomicU32,
    lost: CancellationToken,
    closing: AtomicBool,
}

/// Requests to the launcher, from any task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Launcher {
    inner: Arc<Inner>,
    pub mode: Mode,
    /// Without namespaces.
    pub alone: bool,
    /// Whether code that keeps capabilities has ids to use them on, and if not, why.
    pub range: Result<(), Arc<str>>,
}

impl Launcher {
    /// To be called in the runtime.
    pub fn new(started: Started) -> io::Result<Self> {
        // Realms of engines that run at once take different host ids.
        let first = started.pid.wrapping_mul(257) % (1 << 20);
        let inner = Arc::new(Inner {
            channel: Channel::new(started.socket)?,
            waiting: Mutex::default(),
            numbers: AtomicU64::new(0),
            realms: AtomicU32::new(first),
            lost: CancellationToken::new(),
            closing: AtomicBool::new(false),
        });
        tokio::spawn(read_answers(Arc::clone(&inner)));
        Ok(Self {
            inner,
            mode: started.mode,
            alone: started.alone,
            range: started.range.map_err(Arc::from),
        })
    }

    /// Fires when the launcher is gone: every sandbox is dead by then.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.inner.lost
    }

    async fn ask(
        &self,
        request: LauncherRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(LauncherReply, Vec<OwnedFd>), PoolError> {
        let number = self.inner.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.inner
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, sender);
        self.inner
            .channel
            .send(&ToLauncher { number, request }, descriptors)
            .await
            .map_err(|_| PoolError::Gone("the launcher"))?;
        let answer = receiver
            .await
            .map_err(|_| PoolError::Gone("the launcher"))?;
        Ok(answer?)
    }

    /// Makes a realm; gives its number and the host id of the sandbox's user.
    pub async fn make_realm(&self) -> Result<(RealmId, u32), PoolError> {
        let id = self.inner.realms.fetch_add(1, Ordering::Relaxed);
        match self.ask(LauncherRequest::MakeRealm(id), &[]).await? {
            (LauncherReply::Realm { user }, _) => Ok((id, user)),
            _ => Err(PoolError::Gone("the launcher's protocol")),
        }
    }

    /// Tells what to remove when this engine dies first, and what slots are shown of it.
    pub async fn own(&self, cgroups: &Cgroups) -> Result<(), PoolError> {
        let directories = cgroups.directories().into_iter();
        let own = LauncherRequest::Own {
            directories: directories.map(Path::to_owned).collect(),
            way_out: cgroups.way_out(),
            hierarchies: cgroups.hierarchies(),
        };
        self.ask(own, &[]).await.map(drop)
    }

    /// A detached tree of files that tell of `numbers`.
    pub async fn numbers(&self, realm: RealmId, numbers: Numbers) -> Result<OwnedFd, PoolError> {
        let request = LauncherRequest::Numbers { realm, numbers };
        let (_, descriptors) = self.ask(request, &[]).await?;
        descriptors
            .into_iter()
            .next()
            .ok_or(PoolError::Gone("the launcher's protocol"))
    }

    pub async fn drop_realm(&self, id: RealmId) -> Result<(), PoolError> {
        self.ask(LauncherRequest::DropRealm(id), &[])
            .await
            .map(drop)
    }

    /// Makes a spawner or keeper; gives our end of its socket. It answers there when it stands.
    pub async fn make_process(
        &self,
        realm: RealmId,
        role: Role,
        root: &RootSpec,
        cgroups: &[OwnedFd],
    ) -> Result<Channel, PoolError> {
        let (ours, theirs) = datagram::pair().map_err(PoolError::io("socket pair"))?;
        let mut beside = vec![theirs.as_fd()];
        beside.extend(cgroups.iter().map(AsFd::as_fd));
        let request = LauncherRequest::MakeProcess {
            realm,
            role,
            root: root.clone(),
        };
        self.ask(request, &beside).await?;
        drop(theirs);
        Channel::new(ours).map_err(PoolError::io("socket"))
    }

    /// A detached clone of a part of the host's tree: (tree, owners are translated, it is a directory).
    pub async fn clone_tree(
        &self,
        request: TreeRequest,
    ) -> Result<(OwnedFd, bool, bool), PoolError> {
        match self.ask(LauncherRequest::CloneTree(request), &[]).await? {
            (LauncherReply::Tree { mapped, directory }, descriptors) => {
                let tree = descriptors
                    .into_iter()
                    .next()
                    .ok_or(PoolError::Gone("the launcher's protocol"))?;
                Ok((tree, mapped, directory))
            }
            _ => Err(PoolError::Gone("the launcher's protocol")),
        }
    }

    /// Has a file system of a session's own be what is at `place`, for the trees that are cloned from there.
    pub async fn hold_volume(
        &self,
        place: std::path::PathBuf,
        mount: BorrowedFd<'_>,
    ) -> Result<(), PoolError> {
        self.ask(LauncherRequest::HoldVolume(place), &[mount])
            .await
            .map(drop)
    }

    pub async fn drop_volume(&self, place: std::path::PathBuf) -> Result<(), PoolError> {
        self.ask(LauncherRequest::DropVolume(place), &[])
            .await
            .map(drop)
    }

    /// Has the launcher end, and waits until it is gone: on cgroup v2 it lives in one of the cgroups that are to be
    /// removed then. One that hangs is left to its fate.
    pub async fn close(&self) {
        self.inner.closing.store(true, Ordering::Relaxed);
        // A launcher that is gone already has no more to be told.
        let _ = self.inner.channel.finish();
        let _ = tokio::time::timeout(LAUNCHER_END, self.inner.lost.cancelled()).await;
    }
}

async fn read_answers(inner: Arc<Inner>) {
    while let Ok(Some((answer, descriptors))) = inner.channel.receive::<FromLauncher>().await {
        let waiting = inner
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&answer.number);
        if let Some(waiting) = waiting {
            // A request whose maker has gone away needs no answer.
            let _ = waiting.send(answer.result.map(|reply| (reply, descriptors)));
        }
    }
    inner
        .waiting
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    inner.lost.cancel();
    if !inner.closing.load(Ordering::Relaxed) {
        tracing::error!("the launcher ended");
    }
}
