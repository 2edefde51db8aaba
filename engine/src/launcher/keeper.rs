//! A keeper sees one session's workspace and nothing else of the host. It looks for changes and serves files, with the
//! rights of the sandbox's user for files and with an override only for looking and for deleting.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use super::message::{Changes, Edited, FromKeeper, Listing, Look, ToKeeper};
use super::realm::Inherited;
use super::spawner;
use crate::sandbox::identity::{BOX_ID, RANGE_FIRST};
use crate::sandbox::plan::{Context, KEEPER, KEEPER_ALONE, Step, StepError};
use crate::sandbox::{landlock, tree};
use crate::spec::{Grep, PathPattern, PatternError, Profile};
use crate::sys::datagram;
use crate::sys::exec::exit_now;
use crate::workspace::ownership::{Owner, take_back};
use crate::workspace::{
    Budget, FileError, FileReason, Known, PendingWrite, Snapshot, Told, Tree, Watch, WorkspacePath,
    display,
};

const WORKSPACE: &str = "/workspace";
/// Where the session's own directory is for its keeper; no sandbox has it.
const SCRATCH: &str = "/srv";
/// Mode of a new file when the caller names none.
const NEW_FILE: u32 = 0o644;
/// Changes that fit a datagram: so many, with paths so long.
const FEW: usize = 32;
const SHORT: usize = 512;
/// And with diffs of so many bytes together.
const SHORT_DIFFS: usize = 8 << 10;
/// Writes under way at once; a client that opens more has lost some.
const MAX_WRITES: usize = 256;

/// The life of a keeper.
pub fn main(inherited: Inherited) -> ! {
    let Inherited {
        root,
        engine,
        alone,
        ..
    } = inherited;
    let code = match live(&engine, root, alone) {
        Ok(()) => 0,
        Err(error) => {
            // A peer that is gone needs no telling.
            let _ = datagram::send(engine.as_fd(), &FromKeeper::Broken(error), &[]);
            1
        }
    };
    exit_now(code)
}

fn live(engine: &OwnedFd, root: OwnedFd, alone: bool) -> Result<(), StepError> {
    let mut root = Some(root);
    for step in if alone { KEEPER_ALONE } else { KEEPER } {
        spawner::one(*step, &mut root, &[], Profile::Default)?;
    }
    let attach = datagram::receive::<ToKeeper>(engine.as_fd()).at(Step::AttachMount, "engine")?;
    let Some((ToKeeper::Attach { given, texts }, descriptors)) = attach else {
        return Ok(());
    };
    let mut descriptors = descriptors.into_iter();
    let mut keeper = Keeper {
        tree: attach_tree(descriptors.next(), WORKSPACE, alone)?,
        scratch: attach_tree(descriptors.next(), SCRATCH, alone)?,
        others: descriptors.collect(),
        since: rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec,
        given,
        latest: None,
        held: HashMap::new(),
        writes: HashMap::new(),
        numbers: 0,
        stale: true,
        watch: Watch::new(),
        complete: false,
        opened: false,
        known: Known::new(usize::try_from(texts).unwrap_or(usize::MAX)),
    };
    if alone {
        landlock::confine(&[keeper.tree.root(), keeper.scratch.root()])
            .at(Step::Enclose, "the keeper")?;
    }
    let queue = keeper
        .watch
        .as_ref()
        .map(|watch| watch.queue().try_clone_to_owned());
    let queue = queue.transpose().at(Step::AttachMount, "a watch")?;
    send(engine, &FromKeeper::Done, queue.as_ref())?;
    while let Ok(Some((request, beside))) = datagram::receive::<ToKeeper>(engine.as_fd()) {
        match keeper.answer(request, beside) {
            Ok((answer, beside)) => send(engine, &answer, beside.as_ref())?,
            Err(error) => send(engine, &FromKeeper::Failed(error), None)?,
        }
    }
    Ok(())
}

fn attach_tree(clone: Option<OwnedFd>, target: &str, alone: bool) -> Result<Tree, StepError> {
    let clone = clone
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .at(Step::AttachMount, target)?;
    if !alone {
        tree::attach(&clone, Path::new(target)).at(Step::AttachMount, target)?;
    }
    Tree::open(clone).map_err(|error| {
        StepError::new(
            Step::AttachMount,
            error.to_string(),
            &io::ErrorKind::InvalidInput.into(),
        )
    })
}

fn send(engine: &OwnedFd, answer: &FromKeeper, beside: Option<&OwnedFd>) -> Result<(), StepError> {
    let beside: Vec<_> = beside.iter().map(|fd| fd.as_fd()).collect();
    datagram::send(engine.as_fd(), answer, &beside).at(Step::AttachMount, "the engine")
}

struct Keeper {
    tree: Tree,
    scratch: Tree,
    /// Of the caller's mounts those that code which keeps capabilities can write to.
    others: Vec<OwnedFd>,
    /// When the session began, in seconds of the epoch.
    since: i64,
    /// The workspace is the caller's own: changes there may be a risk to the caller's tools.
    given: bool,
    latest: Option<Rc<Snapshot>>,
    /// Snapshots that steps under way will be compared with.
    held: HashMap<u64, Rc<Snapshot>>,
    writes: HashMap<u64, PendingWrite>,
    numbers: u64,
    /// Somebody but a step has written since the latest snapshot.
    stale: bool,
    watch: Option<Watch>,
    /// Of the latest look: see [`Look`].
    complete: bool,
    opened: bool,
    /// The text of files, for diffs.
    known: Known,
}

type Answer = Result<(FromKeeper, Option<OwnedFd>), FileError>;

impl Keeper {
    fn answer(&mut self, request: ToKeeper, beside: Vec<OwnedFd>) -> Answer {
        let done = |()| (FromKeeper::Done, None);
        self.tree.keep_usable()?;
        match request {
            ToKeeper::Attach { .. } => Err(broken("attached already")),
            ToKeeper::TakeBack => self.take_back().map(done),
            ToKeeper::Begin { rescan, instead } => self.begin(rescan, instead),
            ToKeeper::Changes {
                since,
                settled,
                instead,
            } => self.changes(since, settled, instead),
            ToKeeper::OpenRead { path, max } => {
                let (file, stat) = self.tree.open_read(&WorkspacePath::parse(&path)?, max)?;
                Ok((FromKeeper::Opened(stat), Some(file)))
            }
            ToKeeper::BeginWrite { path, mode } => self.begin_write(&path, mode),
            ToKeeper::CommitWrite { write } => {
                let pending = self.write(write)?;
                self.stale = true;
                let file = pending.file().try_clone_to_owned();
                let stat = pending.commit()?;
                if let Ok(file) = file {
                    self.known.written(file.as_fd());
                }
                Ok((FromKeeper::Written { size: stat.size }, None))
            }
            ToKeeper::AbortWrite { write } => self.write(write).map(drop).map(done),
            ToKeeper::List {
                path,
                recursive,
                files_only,
            } => self.list(&path, recursive, files_only),
            ToKeeper::Stat { path } => {
                let stat = self.tree.stat(&WorkspacePath::parse_directory(&path)?)?;
                Ok((FromKeeper::Stat(stat), None))
            }
            ToKeeper::MakeDir { path } => {
                self.stale = true;
                self.tree.make_dir(&WorkspacePath::parse(&path)?).map(done)
            }
            ToKeeper::Remove { path, recursive } => {
                self.stale = true;
                self.tree
                    .remove(&WorkspacePath::parse(&path)?, recursive)
                    .map(done)
            }
            ToKeeper::Rename {
                source,
                target,
                replace,
            } => {
                self.stale = true;
                self.tree
                    .rename(
                        &WorkspacePath::parse(&source)?,
                        &WorkspacePath::parse(&target)?,
                        replace,
                    )
                    .map(done)
            }
            ToKeeper::Learn => Ok(self.learn()),
            ToKeeper::Glob {
                path,
                pattern,
                files_only,
            } => self.glob(&path, &pattern, files_only),
            ToKeeper::Grep { path, grep } => self.grep(&path, &grep),
            ToKeeper::Edit { path, all } => self.edit(&path, all, beside),
            ToKeeper::Measure => self.measure(),
            ToKeeper::Clear => {
                self.stale = true;
                self.scratch.clear().map(done)
            }
        }
    }

    /// All of it, whatever fails.
    fn take_back(&self) -> Result<(), FileError> {
        let user = Owner {
            uid: BOX_ID,
            gid: BOX_ID,
        };
        let range = (RANGE_FIRST, 2 * RANGE_FIRST);
        let trees = [&self.tree, &self.scratch].map(|tree| tree.take_back(range, user, self.since));
        let others = self
            .others
            .iter()
            .map(|tree| take_back(tree.as_fd(), range, user, Some(self.since)));
        trees.into_iter().chain(others).fold(Ok(()), Result::and)
    }

    fn measure(&self) -> Answer {
        let mut held = self.scratch.measure(is_ours)?;
        if self.given {
            held = held + self.tree.measure(|_| false)?;
        }
        Ok((FromKeeper::Measured(held), None))
    }

    fn next(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn begin(&mut self, rescan: bool, instead: Option<u64>) -> Answer {
        if let Some(instead) = instead {
            self.held.remove(&instead);
        }
        let snapshot = match &self.latest {
            Some(latest) if !rescan && !self.stale => Rc::clone(latest),
            _ => {
                if rescan && (self.hear() >= Told::Touched || !self.complete) {
                    self.known.doubt();
                }
                let snapshot = self.scan()?;
                if rescan {
                    // What others left, as far as it is little: the step that comes may change it.
                    self.known.learn(&self.tree, &snapshot, true);
                    self.hear_own();
                }
                snapshot
            }
        };
        let since = self.next();
        self.held.insert(since, snapshot);
        let look = self.look();
        Ok((FromKeeper::Begun { since, look }, None))
    }

    fn look(&mut self) -> Look {
        Look {
            complete: self.complete,
            opened: std::mem::take(&mut self.opened),
            unread: self.known.is_unread(),
        }
    }

    fn learn(&mut self) -> (FromKeeper, Option<OwnedFd>) {
        if let Some(latest) = self.latest.clone().filter(|_| !self.stale) {
            self.known.learn(&self.tree, &latest, false);
            self.hear_own();
        }
        let look = self.look();
        (FromKeeper::Learned { look }, None)
    }

    /// Takes in what was told while the keeper read: what it opened itself, and perhaps more.
    fn hear_own(&mut self) {
        if self.hear() >= Told::Touched {
            self.complete = false;
        }
    }

    fn hear(&mut self) -> Told {
        let told = self.watch.as_ref().map_or(Told::Touched, Watch::hear);
        self.opened |= told >= Told::Opened;
        told
    }

    fn scan(&mut self) -> Result<Rc<Snapshot>, FileError> {
        self.complete = false;
        self.hear();
        let snapshot = Rc::new(self.known.scan(
            &self.tree,
            Budget::default(),
            self.latest.as_deref(),
        )?);
        if let Some(watch) = &mut self.watch {
            let watched = watch.extend(&self.tree, &snapshot);
            // What the look itself opened is not to be told of the step that comes.
            self.complete = self.hear() < Told::Touched && watched;
        }
        self.latest = Some(Rc::clone(&snapshot));
        self.stale = false;
        Ok(snapshot)
    }

    /// The latest snapshot, as long as it is what there is.
    fn unchanged(&mut self) -> Option<Rc<Snapshot>> {
        let latest = self.latest.clone().filter(|_| !self.stale)?;
        (self.hear() == Told::Nothing).then_some(latest)
    }

    fn changes(&mut self, since: u64, settled: bool, instead: Option<u64>) -> Answer {
        let before = self
            .held
            .remove(&since)
            .ok_or_else(|| broken("no such snapshot"))?;
        let unchanged = if settled { self.unchanged() } else { None };
        let after = match unchanged {
            Some(latest) => latest,
            None => self.scan()?,
        };
        let mut files = if Rc::ptr_eq(&before, &after) {
            Vec::new()
        } else {
            let files = self.known.changes(&self.tree, &before, &after);
            self.hear_own();
            files
        };
        if self.given {
            self.tree.mark_host_risks(&mut files)?;
        }
        let changes = Changes {
            files,
            truncated: [&before, &after]
                .iter()
                .any(|snapshot| snapshot.truncated || snapshot.unreadable > 0),
        };
        if let Some(instead) = instead {
            self.held.remove(&instead);
        }
        let next = self.next();
        self.held.insert(next, after);
        let look = self.look();
        let few = changes.files.len() <= FEW
            && changes
                .files
                .iter()
                .all(|change| change.path.len() <= SHORT && change.old_path.is_none())
            && changes
                .files
                .iter()
                .map(|change| change.diff.as_ref().map_or(0, String::len))
                .sum::<usize>()
                <= SHORT_DIFFS;
        if few {
            let changes = Some(changes);
            let answer = FromKeeper::Changes {
                changes,
                next,
                look,
            };
            return Ok((answer, None));
        }
        let beside = long("changes", &changes)?;
        let answer = FromKeeper::Changes {
            changes: None,
            next,
            look,
        };
        Ok((answer, Some(beside)))
    }

    fn begin_write(&mut self, path: &[u8], mode: Option<u32>) -> Answer {
        if self.writes.len() >= MAX_WRITES {
            return Err(broken("too many files are being written at once"));
        }
        let pending = self
            .tree
            .begin_write(&WorkspacePath::parse(path)?, mode.unwrap_or(NEW_FILE))?;
        let file = pending
            .file()
            .try_clone_to_owned()
            .map_err(|error| broken(&error.to_string()))?;
        let write = self.next();
        self.writes.insert(write, pending);
        Ok((FromKeeper::Writing { write }, Some(file)))
    }

    fn write(&mut self, write: u64) -> Result<PendingWrite, FileError> {
        self.writes
            .remove(&write)
            .ok_or_else(|| broken("no such write"))
    }

    fn glob(&self, path: &[u8], pattern: &str, files_only: bool) -> Answer {
        let path = WorkspacePath::parse_directory(path)?;
        let pattern = PathPattern::parse(pattern).map_err(|error| unlike(&error))?;
        let listing = self
            .tree
            .glob(&path, &pattern, files_only, Budget::default())?;
        let listing = Listing {
            files: listing.entries,
            truncated: listing.truncated,
        };
        Ok((FromKeeper::Listing, Some(long("listing", &listing)?)))
    }

    fn grep(&self, path: &[u8], grep: &Grep) -> Answer {
        let path = WorkspacePath::parse_directory(path)?;
        let matches = self.tree.grep(&path, grep, Budget::default())?;
        Ok((FromKeeper::Matches, Some(long("matches", &matches)?)))
    }

    fn edit(&mut self, path: &[u8], all: bool, beside: Vec<OwnedFd>) -> Answer {
        if self.writes.len() >= MAX_WRITES {
            return Err(broken("too many files are being written at once"));
        }
        let texts = beside
            .first()
            .and_then(|fd| datagram::read_data(fd).ok())
            .ok_or_else(|| broken("an edit without its texts"))?;
        let (old, new): (Vec<u8>, Vec<u8>) =
            postcard::from_bytes(&texts).map_err(|error| broken(&error.to_string()))?;
        let edit = self
            .tree
            .edit(&WorkspacePath::parse(path)?, (&old, &new), all)?;
        let edited = Edited {
            size: edit.size,
            replacements: edit.replacements,
            diff: edit.diff,
            truncated: edit.truncated,
        };
        let beside = long("edited", &edited)?;
        let write = self.next();
        self.writes.insert(write, edit.write);
        Ok((FromKeeper::Edited { write }, Some(beside)))
    }

    fn list(&self, path: &[u8], recursive: bool, files_only: bool) -> Answer {
        let path = WorkspacePath::parse_directory(path)?;
        let listing = self
            .tree
            .list(&path, recursive, files_only, Budget::default())?;
        let listing = Listing {
            files: listing.entries,
            // What the user may not read is not there for it, as in a shell.
            truncated: listing.truncated,
        };
        Ok((FromKeeper::Listing, Some(long("listing", &listing)?)))
    }
}

/// Directories of a slot, which come and go with it. Those that are there from the beginning are counted, and taken off.
fn is_ours(path: &[u8]) -> bool {
    path == b"slots"
        || path.starts_with(b"slots/") && path.iter().filter(|b| **b == b'/').count() < 3
}

fn long<T: serde::Serialize>(name: &str, value: &T) -> Result<OwnedFd, FileError> {
    postcard::to_stdvec(value)
        .map_err(io::Error::other)
        .and_then(|bytes| datagram::data(name, &bytes))
        .map_err(|error| broken(&error.to_string()))
}

/// The engine has parsed it before.
fn unlike(error: &PatternError) -> FileError {
    broken(&error.to_string())
}

fn broken(message: &str) -> FileError {
    FileError {
        path: display(b""),
        reason: FileReason::Other,
        message: message.into(),
    }
}
