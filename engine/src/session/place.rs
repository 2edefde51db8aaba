//! Where a session's own directory is, and what keeps the limits of what is in it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::SessionError;
use super::engine::Engine;
use super::environment::WORKSPACE;
use super::quota::{self, Quota};
use super::slots::{Place, SessionMount, Slots};
use super::watched::{Looker, Watched};
use crate::outcome::EnforcedBy;
use crate::pool::Keeper;
use crate::spec::{SandboxSpec, WorkspaceSource};

impl Engine {
    /// The session's own directory, of its own size where the host gives that.
    pub(super) async fn make_place(
        &self,
        directory: &Path,
        spec: &SandboxSpec,
        limits: quota::Limits,
    ) -> Result<Place, SessionError> {
        fs::create_dir_all(directory).map_err(|error| {
            let path = directory.display();
            SessionError::Setup(format!("make directory {path}: {error}"))
        })?;
        let mut place = Place {
            directory: directory.to_owned(),
            volume: None,
        };
        let given = spec.workspace != WorkspaceSource::Private;
        let sized = quota::mechanism(self.mode(), given) == EnforcedBy::SizedFilesystem;
        if !limits.any() || !sized {
            return Ok(place);
        }
        let volumes = Arc::clone(&self.inner.volumes);
        let made = tokio::task::spawn_blocking(move || volumes.take(limits));
        if let Some(volume) = made.await.ok().flatten() {
            self.inner
                .launcher
                .hold_volume(directory.to_owned(), volume.mount())
                .await?;
            place.volume = Some(Arc::new(volume));
            if spec.quota == crate::spec::Quota::default() {
                self.inner.volumes.prepare(limits);
            }
        }
        Ok(place)
    }

    /// Lets go of the file system that a session's directory is on, if it has one of its own.
    pub(super) async fn drop_volume(&self, directory: &Path) {
        let dropped = self.inner.launcher.drop_volume(directory.to_owned()).await;
        if let Err(error) = dropped {
            tracing::debug!(%error, "a session's file system could not be let go of");
        }
    }
}

/// What a keeper sees of a session.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) workspace: PathBuf,
    /// The session's own directory.
    pub(super) directory: PathBuf,
    /// The workspace is the caller's.
    pub(super) given: bool,
}

impl Slots {
    /// Makes a keeper for the session. `texts`: as in [`Keeper::make`].
    pub(super) async fn keeper(&self, seen: &Seen, texts: u64) -> Result<Keeper, SessionError> {
        let tree = |source: &Path, ours| SessionMount {
            source: source.to_owned(),
            identity: None,
            target: PathBuf::from(WORKSPACE),
            read_only: false,
            ours,
        };
        let workspace = self.tree(&tree(&seen.workspace, !seen.given)).await?;
        let scratch = self.tree(&tree(&seen.directory, true)).await?;
        let mut trees = vec![workspace, scratch];
        if !self.skeleton.kept.is_empty() {
            for mount in self.mounts.iter().filter(|mount| is_given_up(mount)) {
                trees.push(self.tree(mount).await?);
            }
        }
        let trees: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
        let (launcher, realm) = (&self.launcher, self.realm.0);
        Ok(Keeper::make(launcher, realm, &self.root, &trees, seen.given, texts).await?)
    }
}

/// Whether code can give away what is in a mount of the caller's.
fn is_given_up(mount: &SessionMount) -> bool {
    !mount.read_only && !mount.ours && mount.target != Path::new(WORKSPACE)
}

/// Begins to keep a session's limits. No code has run yet.
pub(super) async fn keep_quota(
    slots: &Arc<Slots>,
    keeper: &Keeper,
    seen: Seen,
    limits: quota::Limits,
    closing: &CancellationToken,
) -> Result<Quota, SessionError> {
    if let Some(volume) = &slots.place.volume {
        return Ok(Quota::Sized(Arc::clone(volume)));
    }
    if !limits.any() {
        return Ok(Quota::Open);
    }
    let mut disks: Vec<(u64, OwnedFd)> = Vec::new();
    for path in [&seen.workspace, &seen.directory] {
        let (device, disk) = open_disk(path)?;
        if disks.iter().all(|(other, _)| *other != device) {
            disks.push((device, disk));
        }
    }
    let disks = disks.into_iter().map(|(_, disk)| disk).collect();
    let found = keeper.measure().await?;
    let looker = Looker::new(Arc::clone(slots), seen);
    let watched = Watched::begin(looker, found, disks, limits, closing.clone());
    Ok(Quota::Watched(watched))
}

/// What the free space of its disk is read from.
fn open_disk(path: &Path) -> Result<(u64, OwnedFd), SessionError> {
    use rustix::fs::{Mode, OFlags, fstat, open};
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .and_then(|disk| Ok((fstat(&disk)?.st_dev, disk)))
        .map_err(|errno| SessionError::Setup(format!("open {}: {errno}", path.display())))
}
