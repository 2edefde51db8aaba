//! What engine, launcher, realm, spawner and keeper say to each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::outcome::{FileChange, FileStat};
use crate::sandbox::cgroup::Hierarchy;
use crate::sandbox::identity::Mode;
use crate::sandbox::numbers::Numbers;
use crate::sandbox::plan::StepError;
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::SkeletonSpec;
use crate::spec::{Grep, Profile};
use crate::workspace::{FileError, Held};

/// Names a realm: all processes of one host id.
pub type RealmId = u32;

/// What a realm forks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// Makes the sandboxes of one slot.
    Spawner,
    /// Serves the workspace of one session.
    Keeper,
    /// Becomes an interpreter that is forked into sandboxes.
    Template,
}

/// The first message to a launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Names the engine's cgroups.
    pub engine_id: String,
    /// A directory of the engine's, removed by whoever survives.
    pub state: PathBuf,
    /// The directory of private workspaces and homes, removed likewise.
    pub scratch: PathBuf,
    /// Directories that dead engines left, to be removed.
    pub stale: Vec<PathBuf>,
}

/// The launcher's answer to [`Setup`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    pub mode: Mode,
    /// Whether realms have ids that code can become, and if not, why.
    pub range: Result<(), String>,
}

/// A request to the launcher; the answer bears the same number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToLauncher {
    pub number: u64,
    pub request: LauncherRequest,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LauncherRequest {
    /// The engine's cgroups: to be removed when the engine dies first, which the launcher leaves by `way_out`. And the
    /// hierarchies that slots are shown (v1).
    Own {
        directories: Vec<PathBuf>,
        way_out: Option<PathBuf>,
        hierarchies: Vec<Hierarchy>,
    },
    MakeRealm(RealmId),
    /// Kills all that is in it.
    DropRealm(RealmId),
    /// Beside it: the process's socket to the engine, then descriptors of `cgroup.procs` to join (spawners, cgroup v1).
    MakeProcess {
        realm: RealmId,
        role: Role,
        root: RootSpec,
    },
    /// Answered with the tree beside it.
    CloneTree(TreeRequest),
    /// Answered with a tree beside it, for [`crate::sandbox::numbers::DEVICES`].
    Numbers {
        realm: RealmId,
        numbers: Numbers,
    },
    /// Beside it: the mount of a file system of a session's own, to be what trees below this directory are cloned from.
    HoldVolume(PathBuf),
    /// Lets go of it.
    DropVolume(PathBuf),
}

/// A part of the host's tree for a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeRequest {
    pub realm: RealmId,
    /// Resolved: a link in it is refused.
    pub source: PathBuf,
    /// Device and inode of what was judged.
    pub identity: Option<(u64, u64)>,
    pub read_only: bool,
    pub no_exec: bool,
    /// Map the source's owner to the sandbox's user, so that files come out owned by who owned the directory.
    pub map_owner: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FromLauncher {
    pub number: u64,
    pub result: Result<LauncherReply, StepError>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum LauncherReply {
    Done,
    /// `mapped`: owners are translated; otherwise the caller must make the sandbox's host id the owner.
    Tree {
        mapped: bool,
        directory: bool,
    },
    /// The host id of the sandbox's user.
    Realm {
        user: u32,
    },
}

/// A request of the launcher to a realm; beside it: the root tree, the socket, the cgroups.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ToRealm {
    pub role: Role,
    /// Of what lives in that root.
    pub profile: Profile,
    /// Without namespaces of its own.
    pub alone: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToSpawner {
    /// Beside it: the tree. Kept for all later sandboxes of the slot. `scratch` is emptied before each.
    Attach { target: PathBuf, scratch: bool },
    /// Beside it: the new init's socket, then the cgroup v2 leaf to be born in, if there is one.
    Prepare(SkeletonSpec),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromSpawner {
    Ready,
    Attached,
    /// Beside it: the init's pidfd.
    Prepared,
    Failed(StepError),
}

/// A request to a keeper; answers come in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToKeeper {
    /// Beside it: the workspace's tree, that of the session's own directory, and others that are to be taken back.
    /// `texts`: bytes of memory for the text that later changes are compared with; 0: no diffs.
    Attach {
        given: bool,
        texts: u64,
    },
    /// No code of the session runs: what belongs to ids of its range becomes its user's.
    TakeBack,
    /// Looks at the tree now; what changes later counts from here. `rescan`: others than sandboxes may have written.
    /// `instead`: a snapshot to let go of.
    Begin {
        rescan: bool,
        instead: Option<u64>,
    },
    /// What changed since a snapshot, which is let go of. The snapshot that is made now is held for a later step, in the
    /// place of `instead`. `settled`: that snapshot is what there is, unless the watch tells otherwise.
    Changes {
        since: u64,
        settled: bool,
        instead: Option<u64>,
    },
    OpenRead {
        path: Vec<u8>,
        max: u64,
    },
    BeginWrite {
        path: Vec<u8>,
        mode: Option<u32>,
    },
    CommitWrite {
        write: u64,
    },
    AbortWrite {
        write: u64,
    },
    List {
        path: Vec<u8>,
        recursive: bool,
        files_only: bool,
    },
    Stat {
        path: Vec<u8>,
    },
    MakeDir {
        path: Vec<u8>,
    },
    Remove {
        path: Vec<u8>,
        recursive: bool,
    },
    Rename {
        source: Vec<u8>,
        target: Vec<u8>,
        replace: bool,
    },
    /// Reads a little of what is in files that nobody has read, which takes about a millisecond.
    Learn,
    Glob {
        path: Vec<u8>,
        pattern: String,
        files_only: bool,
    },
    Grep {
        path: Vec<u8>,
        grep: Grep,
    },
    /// Beside it: a memfd of the text to be replaced, and what by. The edited file is to be committed as others.
    Edit {
        path: Vec<u8>,
        all: bool,
    },
    /// How much the session holds, in a given workspace and in its own directory.
    Measure,
    /// Removes everything in the session's own directory, whatever its modes.
    Clear,
}

/// An answer of a keeper: in a memfd beside the datagram when it may be long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromKeeper {
    /// Beside the answer to `Attach`, where the kernel gives one: what can be read when something in the workspace may have
    /// been touched.
    Done,
    /// The number of the snapshot to ask changes since.
    Begun {
        since: u64,
        look: Look,
    },
    /// `changes` none: they are long, and in a memfd beside it. `next`: the snapshot to ask a later step's changes since.
    Changes {
        changes: Option<Changes>,
        next: u64,
        look: Look,
    },
    /// Beside it: the file, opened for reading.
    Opened(FileStat),
    /// Beside it: the file, opened for writing.
    Writing {
        write: u64,
    },
    Written {
        size: u64,
    },
    /// Beside it: a memfd of [`Listing`].
    Listing,
    Stat(FileStat),
    Learned {
        look: Look,
    },
    /// Beside it: a memfd of [`Matches`].
    Matches,
    /// Beside it: a memfd of [`Edited`].
    Edited {
        write: u64,
    },
    Measured(Held),
    Failed(FileError),
    Broken(StepError),
}

/// What a keeper knows of its latest look.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Look {
    /// Every directory was watched, and no change was told while it looked.
    pub complete: bool,
    /// Files were opened since the keeper last said so. The keeper opens some itself when it looks.
    pub opened: bool,
    /// There is text in the workspace that nobody has read: see [`ToKeeper::Learn`].
    pub unread: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    pub files: Vec<FileChange>,
    pub truncated: bool,
}

/// A file that was edited, before the commit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Edited {
    pub size: u64,
    pub replacements: u64,
    /// None: the file is not text.
    pub diff: Option<String>,
    /// The diff ends early.
    pub truncated: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listing {
    pub files: Vec<FileStat>,
    pub truncated: bool,
}
