//! The engine's handle of the keeper of one session's workspace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, MutexGuard};

use super::{Channel, Launcher, PoolError};
use crate::launcher::message::{
    Changes, Edited, FromKeeper, Listing, Look, RealmId, Role, ToKeeper,
};
use crate::outcome::FileStat;
use crate::sandbox::rootfs::RootSpec;
use crate::spec::Grep;
use crate::sys::datagram;
use crate::workspace::{FileError, Held, Matches};

/// Why a keeper could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

#[derive(Debug)]
pub struct Keeper {
    /// One request at a time: answers come in order.
    channel: Mutex<Channel>,
    /// Can be read when something in the workspace may have been touched since the latest look.
    touched: Option<OwnedFd>,
    /// The number of the latest snapshot, while that nothing is told means that it is what there is; else 0.
    settled: AtomicU64,
    /// Somebody who may live yet opened a file, and can write to it through a mapping, of which nothing is told.
    opened: AtomicBool,
    /// There is text that the keeper has not read.
    unread: AtomicBool,
}

const PROTOCOL: PoolError = PoolError::Gone("the keeper's protocol");

impl Keeper {
    /// Makes a keeper for the trees of a workspace and of the session's own directory. `texts`: what it may hold of the
    /// text of files, in bytes, to tell what changes in it; 0: it tells nothing of that.
    pub async fn make(
        launcher: &Launcher,
        realm: RealmId,
        root: &RootSpec,
        trees: &[BorrowedFd<'_>],
        given: bool,
        texts: u64,
    ) -> Result<Self, KeeperError> {
        let channel = launcher
            .make_process(realm, Role::Keeper, root, &[])
            .await?;
        let mut keeper = Self {
            channel: Mutex::new(channel),
            touched: None,
            settled: AtomicU64::new(0),
            opened: AtomicBool::new(false),
            unread: AtomicBool::new(false),
        };
        match keeper
            .ask(&ToKeeper::Attach { given, texts }, trees)
            .await?
        {
            (FromKeeper::Done, beside) => keeper.touched = beside.into_iter().next(),
            _ => return Err(PROTOCOL.into()),
        }
        Ok(keeper)
    }

    async fn ask(
        &self,
        request: &ToKeeper,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(FromKeeper, Vec<OwnedFd>), KeeperError> {
        let channel = self.channel.lock().await;
        Self::ask_by(&channel, request, descriptors).await
    }

    async fn ask_by(
        channel: &MutexGuard<'_, Channel>,
        request: &ToKeeper,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(FromKeeper, Vec<OwnedFd>), KeeperError> {
        channel
            .send(request, descriptors)
            .await
            .map_err(|_| PoolError::Gone("the keeper"))?;
        let answer = channel
            .receive()
            .await
            .map_err(PoolError::io("keeper"))?
            .ok_or(PoolError::Gone("the keeper"))?;
        match answer {
            (FromKeeper::Failed(error), _) => Err(error.into()),
            (FromKeeper::Broken(error), _) => Err(PoolError::Step(error).into()),
            answer => Ok(answer),
        }
    }

    async fn done(
        &self,
        request: &ToKeeper,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), KeeperError> {
        match self.ask(request, descriptors).await? {
            (FromKeeper::Done, _) => Ok(()),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// Makes everything that code which keeps capabilities gave away its user's again.
    pub async fn take_back(&self) -> Result<(), KeeperError> {
        self.done(&ToKeeper::TakeBack, &[]).await
    }

    /// Remembers the workspace as it is; gives the number to ask [`Self::changes`] with, once.
    /// A snapshot that nobody will ask for, `instead`, is let go of. `alone`: asked when the keeper has answered, whether
    /// no code but the asking step's has lived since before it was asked.
    pub async fn begin(
        &self,
        rescan: bool,
        instead: Option<u64>,
        alone: impl Fn() -> bool,
    ) -> Result<u64, KeeperError> {
        // Answers are heeded in the order in which they are given.
        let channel = self.channel.lock().await;
        let request = ToKeeper::Begin { rescan, instead };
        match Self::ask_by(&channel, &request, &[]).await? {
            (FromKeeper::Begun { since, look }, _) => {
                self.settle(since, look, alone());
                Ok(since)
            }
            _ => Err(PROTOCOL.into()),
        }
    }

    /// What was opened while nobody lives but a step that is over or not yet begun, the dead had opened, or the keeper.
    fn settle(&self, number: u64, look: Look, alone: bool) {
        self.unread.store(look.unread, Ordering::Release);
        let opened = !alone && (look.opened || self.opened.load(Ordering::Acquire));
        self.opened.store(opened, Ordering::Release);
        let settled = look.complete && !opened;
        let number = if settled { number } else { 0 };
        self.settled.store(number, Ordering::Release);
    }

    /// Whether nothing at all was told since a snapshot: then there are no changes to ask for, and it still serves.
    #[must_use]
    pub fn is_untouched(&self, since: u64) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(touched) = &self.touched else {
            return false;
        };
        let mut polled = [PollFd::new(touched, PollFlags::IN)];
        let at_once = Timespec::default();
        // A number is given to one snapshot, so nobody has looked since: a look empties the queue.
        self.settled.load(Ordering::Acquire) == since
            && poll(&mut polled, Some(&at_once)) == Ok(0)
            && self.settled.load(Ordering::Acquire) == since
    }

    /// What changed since a snapshot, which is let go of, and the number of the snapshot that was made for it. That one
    /// is held in the place of `instead`. `alone`: as in [`Self::begin`].
    pub async fn changes(
        &self,
        since: u64,
        instead: Option<u64>,
        alone: impl Fn() -> bool,
    ) -> Result<(Changes, u64), KeeperError> {
        let channel = self.channel.lock().await;
        let request = ToKeeper::Changes {
            since,
            settled: self.settled.load(Ordering::Acquire) == since,
            instead,
        };
        match Self::ask_by(&channel, &request, &[]).await? {
            (
                FromKeeper::Changes {
                    changes: Some(changes),
                    next,
                    look,
                },
                _,
            ) => {
                self.settle(next, look, alone());
                Ok((changes, next))
            }
            (
                FromKeeper::Changes {
                    changes: None,
                    next,
                    look,
                },
                descriptors,
            ) => {
                self.settle(next, look, alone());
                Ok((decode(&descriptors)?, next))
            }
            _ => Err(PROTOCOL.into()),
        }
    }

    /// Whether nothing has to be looked at as long as nothing is told.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) != 0
    }

    /// Whether there is something for [`Self::learn`] to do.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Acquire)
    }

    /// Has the keeper read a little of what is in the workspace, where that spoils nothing: what it opens is told as if
    /// code had. `quiet`: whether no code lives, nor has since this was called. Whether it was asked at all.
    pub async fn learn(&self, quiet: impl Fn() -> bool) -> Result<bool, KeeperError> {
        let channel = self.channel.lock().await;
        let settled = self.settled.load(Ordering::Acquire);
        if settled != 0 && !quiet() {
            return Ok(false);
        }
        match Self::ask_by(&channel, &ToKeeper::Learn, &[]).await? {
            (FromKeeper::Learned { look }, _) => {
                self.settle(settled, look, quiet());
                Ok(true)
            }
            _ => Err(PROTOCOL.into()),
        }
    }

    /// The entries below a directory whose path from there matches.
    pub async fn glob(
        &self,
        path: Vec<u8>,
        pattern: String,
        files_only: bool,
    ) -> Result<Listing, KeeperError> {
        let request = ToKeeper::Glob {
            path,
            pattern,
            files_only,
        };
        match self.ask(&request, &[]).await? {
            (FromKeeper::Listing, descriptors) => decode(&descriptors),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// The lines that match, of a file or of those below a directory.
    pub async fn grep(&self, path: Vec<u8>, grep: Grep) -> Result<Matches, KeeperError> {
        match self.ask(&ToKeeper::Grep { path, grep }, &[]).await? {
            (FromKeeper::Matches, descriptors) => decode(&descriptors),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// An edited file, which appears at [`Self::commit_write`].
    pub async fn edit(
        &self,
        path: Vec<u8>,
        texts: &(Vec<u8>, Vec<u8>),
        all: bool,
    ) -> Result<(Edited, u64), KeeperError> {
        let texts = postcard::to_stdvec(texts)
            .map_err(std::io::Error::other)
            .and_then(|texts| datagram::data("texts", &texts))
            .map_err(PoolError::io("texts of an edit"))?;
        let request = ToKeeper::Edit { path, all };
        match self.ask(&request, &[texts.as_fd()]).await? {
            (FromKeeper::Edited { write }, descriptors) => Ok((decode(&descriptors)?, write)),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// A regular file, opened for reading.
    pub async fn open_read(
        &self,
        path: Vec<u8>,
        max: u64,
    ) -> Result<(OwnedFd, FileStat), KeeperError> {
        match self.ask(&ToKeeper::OpenRead { path, max }, &[]).await? {
            (FromKeeper::Opened(stat), descriptors) => Ok((first(descriptors)?, stat)),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// A file to be written, which appears at [`Self::commit_write`].
    pub async fn begin_write(
        &self,
        path: Vec<u8>,
        mode: Option<u32>,
    ) -> Result<(OwnedFd, u64), KeeperError> {
        match self.ask(&ToKeeper::BeginWrite { path, mode }, &[]).await? {
            (FromKeeper::Writing { write }, descriptors) => Ok((first(descriptors)?, write)),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// Gives the file's size in bytes.
    pub async fn commit_write(&self, write: u64) -> Result<u64, KeeperError> {
        match self.ask(&ToKeeper::CommitWrite { write }, &[]).await? {
            (FromKeeper::Written { size }, _) => Ok(size),
            _ => Err(PROTOCOL.into()),
        }
    }

    pub async fn abort_write(&self, write: u64) -> Result<(), KeeperError> {
        self.done(&ToKeeper::AbortWrite { write }, &[]).await
    }

    pub async fn list(
        &self,
        path: Vec<u8>,
        recursive: bool,
        files_only: bool,
    ) -> Result<Listing, KeeperError> {
        let request = ToKeeper::List {
            path,
            recursive,
            files_only,
        };
        match self.ask(&request, &[]).await? {
            (FromKeeper::Listing, descriptors) => decode(&descriptors),
            _ => Err(PROTOCOL.into()),
        }
    }

    pub async fn stat(&self, path: Vec<u8>) -> Result<FileStat, KeeperError> {
        match self.ask(&ToKeeper::Stat { path }, &[]).await? {
            (FromKeeper::Stat(stat), _) => Ok(stat),
            _ => Err(PROTOCOL.into()),
        }
    }

    pub async fn make_dir(&self, path: Vec<u8>) -> Result<(), KeeperError> {
        self.done(&ToKeeper::MakeDir { path }, &[]).await
    }

    pub async fn remove(&self, path: Vec<u8>, recursive: bool) -> Result<(), KeeperError> {
        self.done(&ToKeeper::Remove { path, recursive }, &[]).await
    }

    pub async fn rename(
        &self,
        source: Vec<u8>,
        target: Vec<u8>,
        replace: bool,
    ) -> Result<(), KeeperError> {
        let request = ToKeeper::Rename {
            source,
            target,
            replace,
        };
        self.done(&request, &[]).await
    }

    /// How much the session holds.
    pub async fn measure(&self) -> Result<Held, KeeperError> {
        match self.ask(&ToKeeper::Measure, &[]).await? {
            (FromKeeper::Measured(held), _) => Ok(held),
            _ => Err(PROTOCOL.into()),
        }
    }

    /// Removes everything in the session's own directory.
    pub async fn clear(&self) -> Result<(), KeeperError> {
        self.done(&ToKeeper::Clear, &[]).await
    }
}

fn first(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, PoolError> {
    descriptors.into_iter().next().ok_or(PROTOCOL)
}

fn decode<T: DeserializeOwned>(descriptors: &[OwnedFd]) -> Result<T, KeeperError> {
    let bytes = descriptors
        .first()
        .ok_or(PROTOCOL)
        .and_then(|fd| datagram::read_data(fd).map_err(PoolError::io("keeper")))?;
    Ok(postcard::from_bytes(&bytes).map_err(|_| PROTOCOL)?)
}
