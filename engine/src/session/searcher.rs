//! Who searches in a session's files: a keeper beside the one that looks at them after steps, which a search must not keep
//! waiting. It is made for the first search.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::SessionError;
use super::engine::Engine;
use super::place::Seen;
use super::slots::Slots;
use crate::outcome::FileStat;
use crate::pool::Keeper;
use crate::spec::Grep;
use crate::workspace::Matches;

#[derive(Debug)]
pub(super) struct Searcher {
    slots: Arc<Slots>,
    seen: Seen,
    keeper: OnceCell<Keeper>,
}

impl Searcher {
    pub(super) const fn new(slots: Arc<Slots>, seen: Seen) -> Self {
        Self {
            slots,
            seen,
            keeper: OnceCell::const_new(),
        }
    }

    async fn keeper(&self) -> Result<&Keeper, SessionError> {
        let make = || self.slots.keeper(&self.seen, 0);
        self.keeper.get_or_try_init(make).await
    }
}

impl Engine {
    /// The entries below a directory that match, sorted by path, and whether the walk ended at its budget. `pattern` was
    /// parsed before.
    pub async fn glob_files(
        &self,
        id: &str,
        path: Vec<u8>,
        pattern: String,
        files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        let session = self.find(id)?;
        let keeper = session.searcher.keeper().await?;
        let listing = keeper.glob(path, pattern, files_only).await?;
        Ok((listing.files, listing.truncated))
    }

    /// The lines that match. `grep` was parsed before.
    pub async fn grep_files(
        &self,
        id: &str,
        path: Vec<u8>,
        grep: Grep,
    ) -> Result<Matches, SessionError> {
        let session = self.find(id)?;
        Ok(session.searcher.keeper().await?.grep(path, grep).await?)
    }
}
