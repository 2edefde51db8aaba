//! What keeps the limit of a session's workspace, homes and caches: a file system of that size where the host gives one,
//! else somebody who looks.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::statvfs;

use super::SessionError;
use super::watched::{Watched, Watching};
use crate::outcome::{AppliedLimit, EnforcedBy, Resource};
use crate::sandbox::identity::Mode;
use crate::spec::request::Cap;
use crate::spec::{SandboxSpec, WorkspaceSource};
use crate::volume::{self, Volume};

/// What a private workspace may hold unless the caller says else, or a tenth of what is free.
const DEFAULT_BYTES: u64 = 10 << 30;
const DEFAULT_STEP: u64 = 256 << 20;
/// The limits of one session. None: uncapped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Limits {
    pub(super) bytes: Option<u64>,
    pub(super) files: Option<u64>,
}

impl Limits {
    /// `scratch`: where a private workspace is made.
    pub(super) fn of(spec: &SandboxSpec, scratch: &Path) -> Self {
        let bytes = match (spec.quota.bytes, &spec.workspace) {
            (Cap::Max(max), _) => Some(max),
            (Cap::Default, WorkspaceSource::Private) => Some(default_bytes(scratch)),
            (Cap::Default | Cap::Uncapped, _) => None,
        };
        Self {
            bytes,
            files: spec.quota.files,
        }
    }

    pub(super) const fn any(self) -> bool {
        self.bytes.is_some() || self.files.is_some()
    }

    pub(super) fn applied(self, enforced_by: EnforcedBy) -> [AppliedLimit; 2] {
        [
            (Resource::Workspace, self.bytes),
            (Resource::WorkspaceFiles, self.files),
        ]
        .map(|(resource, max)| AppliedLimit {
            resource,
            max,
            enforced_by: match max {
                Some(_) => enforced_by,
                None => EnforcedBy::None,
            },
        })
    }
}

fn default_bytes(scratch: &Path) -> u64 {
    let free = statvfs(scratch).map_or(u64::MAX, |facts| facts.f_bavail * facts.f_frsize);
    let tenth = (free / 10).clamp(1 << 20, DEFAULT_BYTES);
    // In steps, so that one of the same size serves the next session.
    if tenth < DEFAULT_STEP {
        tenth
    } else {
        tenth - tenth % DEFAULT_STEP
    }
}

/// What would keep a limit: a file system of its own cannot be made of a directory of the caller's.
pub(super) fn mechanism(mode: Mode, given: bool) -> EnforcedBy {
    if mode == Mode::Root && !given && volume::offered().is_ok() {
        EnforcedBy::SizedFilesystem
    } else {
        EnforcedBy::Watchdog
    }
}

/// What keeps the limits of one session.
#[derive(Debug)]
pub(super) enum Quota {
    /// There is none.
    Open,
    Sized(Arc<Volume>),
    Watched(Arc<Watched>),
}

impl Quota {
    /// For as long as a sandbox runs, whose first process this is.
    pub(super) async fn enter(
        &self,
        init: BorrowedFd<'_>,
    ) -> Result<Option<Watching>, SessionError> {
        match self {
            Self::Open | Self::Sized(_) => Ok(None),
            Self::Watched(watched) => watched.enter(init).await.map(Some),
        }
    }

    /// Refuses what a caller wants to write, if there is no room for it. The kernel does where there is a volume.
    pub(super) async fn admit(
        &self,
        path: &[u8],
        bytes: u64,
        files: u64,
    ) -> Result<(), SessionError> {
        match self {
            Self::Open | Self::Sized(_) => Ok(()),
            Self::Watched(watched) => watched.admit(path, bytes, files).await,
        }
    }

    /// Something was written by a caller.
    pub(super) fn wrote(&self, bytes: u64, files: u64) {
        if let Self::Watched(watched) = self {
            watched.wrote(bytes, files);
        }
    }

    /// What a result says of it.
    pub(super) fn note(&self) -> Option<String> {
        let Self::Sized(volume) = self else {
            return None;
        };
        let room = volume.room().ok()?;
        room.is_full().then(|| {
            let rest = if room.files == 0 {
                "no file more can be made".to_owned()
            } else {
                format!("{} bytes are left", room.bytes)
            };
            format!("the workspace, with the home and the caches, is at its limit: {rest}")
        })
    }

    pub(super) fn volume(&self) -> Option<&Arc<Volume>> {
        match self {
            Self::Sized(volume) => Some(volume),
            Self::Open | Self::Watched(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncapped_limit_is_kept_by_nothing() {
        let limits = Limits {
            bytes: Some(5),
            files: None,
        };
        let [bytes, files] = limits.applied(EnforcedBy::Watchdog);
        assert_eq!(
            (bytes.max, bytes.enforced_by),
            (Some(5), EnforcedBy::Watchdog)
        );
        assert_eq!((files.max, files.enforced_by), (None, EnforcedBy::None));
        assert!(limits.any() && !Limits::default().any());
    }
}
