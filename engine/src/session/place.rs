//! Where a session's own directory is, and what keeps the limits of what is in it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::SessionError;
use super::engine::Engine;
use super::quota::{self, Quota};
use super::slots::{Place, Slots};
use super::watched::Watched;
use crate::outcome::EnforcedBy;
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

    pub(super) async fn keep_quota(
        &self,
        slots: &Arc<Slots>,
        spec: &SandboxSpec,
        workspace: &Path,
        limits: quota::Limits,
        closing: &CancellationToken,
    ) -> Result<Quota, SessionError> {
        if let Some(volume) = &slots.place.volume {
            return Ok(Quota::Sized(Arc::clone(volume)));
        }
        if !limits.any() {
            return Ok(Quota::Open);
        }
        // One that looks beside the one that serves files: a look may take long.
        let directory = slots.place.directory.clone();
        let keeper = self.make_keeper(slots, spec, workspace, &directory).await?;
        let given = spec.workspace != WorkspaceSource::Private;
        let mut disks: Vec<(u64, OwnedFd)> = Vec::new();
        for path in [given.then_some(workspace), Some(&directory)] {
            let Some(path) = path else { continue };
            let (device, disk) = open_disk(path)?;
            if disks.iter().all(|(other, _)| *other != device) {
                disks.push((device, disk));
            }
        }
        let disks = disks.into_iter().map(|(_, disk)| disk).collect();
        let watched = Watched::begin(keeper, disks, limits, given, closing.clone()).await?;
        Ok(Quota::Watched(watched))
    }
}

/// What the free space of its disk is read from.
fn open_disk(path: &Path) -> Result<(u64, OwnedFd), SessionError> {
    use rustix::fs::{Mode, OFlags, fstat, open};
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .and_then(|disk| Ok((fstat(&disk)?.st_dev, disk)))
        .map_err(|errno| SessionError::Setup(format!("open {}: {errno}", path.display())))
}
