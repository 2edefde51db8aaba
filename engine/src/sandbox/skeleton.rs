//! What a sandbox's init does ahead of any step: its own `/proc`, scratch in memory, a name.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use serde::{Deserialize, Serialize};

use super::capabilities;
use super::identity::Identity;
use super::init::FromInit;
use super::landlock::{self, Fence};
use super::plan::{Context, SKELETON, SKELETON_ALONE, Step, StepError};
use super::{mask, numbers, seccomp, tree};
use crate::spec::{Capabilities, Profile, Tmpfs};
use crate::sys::clone::Namespaces;
use crate::sys::{datagram, namespace, signal};

/// Where the code's file is.
pub const CODE_DIRECTORY: &str = "/run/stepbox";

/// What of a skeleton depends on the session.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SkeletonSpec {
    pub tmpfs: Vec<Tmpfs>,
    /// Bytes of `/dev/shm`; 0: the session brings its own.
    pub shm: u64,
    /// Mounts and interpreters below a tmpfs: they are to be seen in it. None lies below another.
    pub shown: Vec<PathBuf>,
    /// Tasks of the code, where a user namespace of the sandbox's own counts them.
    pub tasks: Option<u64>,
    /// The code may not widen its affinity, which is its limit of processors.
    pub pinned: bool,
    /// The sandbox was born in a cgroup of its own (v2), which is to be the root of those that it sees.
    pub own_cgroup: bool,
    /// The engine is given what it measures the sandbox's memory by.
    pub watched: bool,
    pub identity: Identity,
    pub kept: Capabilities,
    pub profile: Profile,
    /// A process may be forked into the sandbox: the engine is given the ways in.
    pub joinable: bool,
    /// None: the kernel has no Landlock to use.
    pub fence: Option<Fence>,
    /// Without namespaces, where nothing can be mounted: the directory for the code's file.
    pub alone: Option<PathBuf>,
}

impl SkeletonSpec {
    /// Whether the sandbox has a user namespace of its own below the realm's.
    #[must_use]
    pub fn own_users(&self) -> bool {
        self.tasks.is_some()
            || self.profile == Profile::Untrusted
            || self.identity != Identity::default()
            || !self.kept.is_empty()
    }

    /// How scratch in memory is mounted.
    fn scratch(&self) -> MountFlags {
        match self.profile {
            Profile::Default => SCRATCH,
            Profile::Untrusted => SCRATCH | MountFlags::NOEXEC,
        }
    }
}

/// The name of every sandbox.
pub const HOST_NAME: &str = "stepbox";

const SCRATCH: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// What init keeps of the building.
#[derive(Debug)]
pub struct Built {
    /// The directory for the code's file, which is read-only by its path.
    pub code: OwnedFd,
    /// The rules of the fence that the code is put behind.
    pub rules: Option<OwnedFd>,
}

/// Walks the list. The process is pid 1 of its pid namespace, in a copy of the spawner's mounts.
pub fn build(spec: &SkeletonSpec, engine: BorrowedFd<'_>) -> Result<Built, StepError> {
    let mut code = None;
    let mut rules = None;
    let mut listener = None;
    let mut segments = None;
    let steps = match spec.alone {
        None => SKELETON,
        Some(_) => SKELETON_ALONE,
    };
    for step in steps {
        match step {
            Step::CodeDirectory => code = Some(open_code(spec).at(*step, "code")?),
            Step::MountCode => code = Some(mount_code(spec).at(*step, CODE_DIRECTORY)?),
            // Nothing else is around the code.
            Step::FenceRules if spec.alone.is_some() && spec.fence.is_none() => {
                return Err(StepError::new(*step, "Landlock", &missing()));
            }
            Step::FenceRules => {
                let under = spec.alone.is_none().then_some(Path::new(CODE_DIRECTORY));
                let made = spec.fence.as_ref().map(|fence| fence.rules(under));
                let made = made.transpose();
                rules = made.map_err(|(path, error)| {
                    StepError::new(*step, path.display().to_string(), &error)
                })?;
            }
            // The new /proc may not have it.
            Step::MountProc if spec.watched => {
                segments = Some(open_segments().at(*step, "/proc/sysvipc")?);
                run(*step, spec)?;
            }
            Step::StepFilter => {
                listener = Some(
                    crate::sys::seccomp::load_with_listener(seccomp::step_filter(spec.profile))
                        .at(*step, "init")?,
                );
            }
            Step::PassListener => {
                let listener = listener.take().ok_or_else(missing).at(*step, "listener")?;
                datagram::send(engine, &FromInit::Ready, &[listener.as_fd()])
                    .at(*step, "the engine")?;
            }
            Step::ShowMemory if spec.watched => {
                let segments = segments.take().ok_or_else(missing);
                segments
                    .and_then(|segments| show_memory(spec, segments, engine))
                    .at(*step, "/proc")?;
            }
            Step::ShowNamespaces if spec.joinable => {
                let code = code.as_ref().ok_or_else(missing);
                code.and_then(|code| show_namespaces(spec, code, rules.as_ref(), engine))
                    .at(*step, "/proc/self/ns")?;
            }
            other => run(*other, spec)?,
        }
    }
    let code = code
        .ok_or_else(missing)
        .at(Step::MountCode, CODE_DIRECTORY)?;
    Ok(Built { code, rules })
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn run(step: Step, spec: &SkeletonSpec) -> Result<(), StepError> {
    match step {
        Step::DieWithParent if spec.alone.is_some() => end_all_with_parent().at(step, "init"),
        Step::DieWithParent => set_parent_process_death_signal(Some(Signal::KILL)).at(step, "init"),
        Step::AdoptOrphans => signal::adopt_orphans().at(step, "init"),
        Step::Enclose => landlock::enclose().at(step, "init"),
        // The spawner did both for its own user namespace.
        Step::LockSecurebits | Step::DropBoundingSet if !spec.own_users() => Ok(()),
        // Who gives up uid 0 is to lose what that had, as everywhere.
        Step::LockSecurebits if !spec.kept.is_empty() => Ok(()),
        Step::LockSecurebits => capabilities::lock_securebits().at(step, "securebits"),
        Step::DropBoundingSet => {
            capabilities::drop_bounding_set(spec.kept).at(step, "bounding set")
        }
        Step::OomScore => oom_score().at(step, "1000"),
        Step::MountProc => {
            let options = match spec.profile {
                Profile::Default => None,
                // Processes alone, and of those the ones that the code could look into anyway.
                Profile::Untrusted => Some(c"hidepid=ptraceable,subset=pid"),
            };
            mount(
                "proc",
                "/proc",
                "proc",
                SCRATCH | MountFlags::NOEXEC,
                options,
            )
            .at(step, "/proc")
        }
        Step::MaskProc => mask::proc(),
        Step::ShowNumbers => show_numbers(),
        Step::OwnCgroup if !spec.own_cgroup => Ok(()),
        Step::OwnCgroup => own_cgroup().at(step, CGROUPS),
        Step::MountTmpfs => mount_all_tmpfs(spec),
        Step::MountShm if spec.shm == 0 => Ok(()),
        Step::MountShm => {
            mount_tmpfs(spec, Path::new("/dev/shm"), spec.shm, "1777").at(step, "/dev/shm")
        }
        Step::MountPts => mount(
            "devpts",
            "/dev/pts",
            "devpts",
            MountFlags::NOSUID | MountFlags::NOEXEC,
            Some(c"newinstance,ptmxmode=0666,mode=0620"),
        )
        .at(step, "/dev/pts"),
        Step::Hostname => rustix::system::sethostname(HOST_NAME.as_bytes()).at(step, HOST_NAME),
        Step::DropCapabilities => capabilities::drop_others(spec.kept).at(step, "init"),
        Step::ShowMemory | Step::ShowNamespaces => Ok(()),
        Step::Undumpable => set_dumpable_behavior(DumpableBehavior::NotDumpable).at(step, "init"),
        other => Err(StepError::new(
            other,
            "not a step of a skeleton",
            &io::ErrorKind::InvalidInput.into(),
        )),
    }
}

/// What the sandbox's memory is measured by: its `/proc`, its System V segments, and each file system in memory that the
/// code can write to.
fn show_memory(spec: &SkeletonSpec, segments: OwnedFd, engine: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let read = OFlags::RDONLY | OFlags::CLOEXEC;
    let proc = openat(CWD, "/proc", read | OFlags::DIRECTORY, Mode::empty())?;
    let mut windows = vec![proc, segments];
    if spec.shm > 0 {
        windows.push(open(Path::new("/dev/shm"))?);
    }
    for tmpfs in &spec.tmpfs {
        windows.push(open(&tmpfs.target)?);
    }
    for some in windows.chunks(datagram::MAX_DESCRIPTORS) {
        let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        datagram::send(engine, &FromInit::Windows, &some)?;
    }
    Ok(())
}

/// The list of System V segments of this process's IPC namespace.
fn open_segments() -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let read = OFlags::RDONLY | OFlags::CLOEXEC;
    // A kernel without System V has no segments, as this file has none.
    let opened = openat(CWD, "/proc/sysvipc/shm", read, Mode::empty())
        .or_else(|_| openat(CWD, "/dev/null", read, Mode::empty()));
    Ok(opened?)
}

/// The directory for the code's file, the namespaces, and the rules of the fence, in the order in which `child.rs` of the
/// template takes them.
fn show_namespaces(
    spec: &SkeletonSpec,
    code: &OwnedFd,
    rules: Option<&OwnedFd>,
    engine: BorrowedFd<'_>,
) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let mut ways = vec![rustix::io::fcntl_dupfd_cloexec(code, 3)?];
    let names = ["pid", "net", "mnt", "ipc", "uts", "cgroup"];
    let users = spec.own_users().then_some("user");
    for name in names.into_iter().chain(users) {
        let path = Path::new("/proc/self/ns").join(name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        ways.push(openat(CWD, path, flags, Mode::empty())?);
    }
    let ways: Vec<_> = ways.iter().chain(rules).map(AsFd::as_fd).collect();
    datagram::send(engine, &FromInit::Joinable, &ways)
}

/// The score is inherited by the code; the kernel takes the write only from a dumpable process's owner.
fn oom_score() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let fd = rustix::fs::open(
        "/proc/self/oom_score_adj",
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::io::write(fd, b"1000")?;
    Ok(())
}

/// Mounts the outer ones first; what is to be seen in them is taken aside and put back.
fn mount_all_tmpfs(spec: &SkeletonSpec) -> Result<(), StepError> {
    let step = Step::MountTmpfs;
    let aside = take_aside(&spec.shown, step)?;
    let mut all: Vec<_> = spec.tmpfs.iter().collect();
    all.sort_by_key(|tmpfs| tmpfs.target.components().count());
    for tmpfs in all {
        let operand = tmpfs.target.display().to_string();
        // One below another needs its mount point made there.
        fs::create_dir_all(&tmpfs.target).at(step, operand.clone())?;
        mount_tmpfs(spec, &tmpfs.target, tmpfs.size, "1777").at(step, operand)?;
    }
    put_back(aside, step)
}

/// Trees that are about to be covered, and where each is to be seen again.
pub type Aside<'a> = Vec<(&'a Path, OwnedFd)>;

/// Takes hold of what a mount is about to cover.
///
/// # Errors
///
/// The path that cannot be opened or cloned.
pub fn take_aside<'a>(
    paths: impl IntoIterator<Item = &'a PathBuf>,
    step: Step,
) -> Result<Aside<'a>, StepError> {
    let taken = paths.into_iter().map(|path| {
        let tree = open(path)
            .and_then(|fd| tree::clone_at(fd, true))
            .at(step, path.display().to_string())?;
        Ok((path.as_path(), tree))
    });
    taken.collect()
}

/// Shows what was taken aside at its place in the mount that covers it.
///
/// # Errors
///
/// The path that nothing can be mounted at.
pub fn put_back(aside: Aside<'_>, step: Step) -> Result<(), StepError> {
    for (path, tree) in aside {
        make_point(path, &tree)
            .and_then(|()| tree::attach(tree, path))
            .at(step, path.display().to_string())?;
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    Ok(openat(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn make_point(path: &Path, tree: &OwnedFd) -> io::Result<()> {
    let mode = rustix::fs::fstat(tree)?.st_mode;
    if rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory {
        return fs::create_dir_all(path);
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, "")
}

fn mount_tmpfs(spec: &SkeletonSpec, target: &Path, size: u64, mode: &str) -> io::Result<()> {
    // One inode for each 4 KiB: a file system full of empty files ends as one full of bytes does.
    let inodes = (size / 4096).max(64);
    let options = std::ffi::CString::new(format!(
        "size={size},nr_inodes={inodes},mode={mode},uid={},gid={}",
        spec.identity.uid, spec.identity.gid
    ))?;
    Ok(mount(
        "tmpfs",
        target,
        "tmpfs",
        spec.scratch(),
        Some(options.as_c_str()),
    )?)
}

/// A small file system that is read-only by its path: the mount that can be written to is covered. A mount that is not in
/// the tree would do too, but the end of each costs a grace period of the kernel's.
fn mount_code(spec: &SkeletonSpec) -> io::Result<OwnedFd> {
    let path = Path::new(CODE_DIRECTORY);
    mount_tmpfs(spec, path, 64 << 20, "755")?;
    let writable = open(path)?;
    mount_bind(path, path)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | spec.scratch();
    mount_remount(path, flags, "")?;
    Ok(writable)
}

/// Only a process of this sandbox's dies with init where a pid namespace holds them all.
fn end_all_with_parent() -> io::Result<()> {
    signal::end_all_on_term()?;
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

fn open_code(spec: &SkeletonSpec) -> io::Result<OwnedFd> {
    spec.alone.as_deref().map_or_else(|| Err(missing()), open)
}

/// The same on each path to a sandbox: what its slot was given decides what there is to show.
fn show_numbers() -> Result<(), StepError> {
    for (cover, path) in numbers::covers() {
        skip_missing(mount_bind(&cover, &path))
            .at(Step::ShowNumbers, path.display().to_string())?;
    }
    Ok(())
}

/// Where cgroups are seen.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// A process that is born in a cgroup gets a namespace whose root is its parent's: only a later one has its own.
fn own_cgroup() -> io::Result<()> {
    namespace::unshare(Namespaces::CGROUP)?;
    let flags = SCRATCH | MountFlags::NOEXEC | MountFlags::RDONLY;
    Ok(mount("cgroup2", CGROUPS, "cgroup2", flags, None)?)
}

/// Whether it was done; a kernel without that file has nothing to mask.
fn skip_missing(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
