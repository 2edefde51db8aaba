//! Landlock, the second fence around files: where code may write, by a list of its own. What mounts and owners let
//! through by a mistake ends here, and what this lets through ends there.
//!
//! Reading is left to the mounts: a root holds nothing that is not to be read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, openat};
use rustix::mount::{MountFlags, mount};
use rustix::process::test_kill_process;
use serde::{Deserialize, Serialize};

use crate::sys::landlock::{Access, Scope, abi, allow, restrict, ruleset};

/// The first ABI that lets files be moved from one directory to another. One that forbids it breaks every program that
/// writes a file beside and moves it.
const LOWEST: u32 = 2;
/// The first ABI that keeps signals in: where no namespace does, code could end every process of its user's.
pub const LOWEST_ALONE: u32 = 6;

/// What of files the fence decides, and since which ABI. Devices cannot be made anywhere.
const DECIDED: &[(u32, Access)] = &[
    (1, Access::WRITE_FILE),
    (1, Access::REMOVE_DIRECTORY),
    (1, Access::REMOVE_FILE),
    (1, Access::MAKE_CHARACTER_DEVICE),
    (1, Access::MAKE_DIRECTORY),
    (1, Access::MAKE_FILE),
    (1, Access::MAKE_SOCKET),
    (1, Access::MAKE_PIPE),
    (1, Access::MAKE_BLOCK_DEVICE),
    (1, Access::MAKE_LINK),
    (2, Access::REFER),
    (3, Access::TRUNCATE),
    (5, Access::IOCTL_DEVICE),
];
/// What does not get out of the fence, and since which ABI.
const SCOPED: &[(u32, Scope)] = &[(6, Scope::ABSTRACT_SOCKETS), (6, Scope::SIGNALS)];
/// Since this ABI a refusal is written to the host's audit log, unless it is told not to: code could fill that.
const QUIET: (u32, u32) = (7, LOG_SAME_PROGRAM_OFF | LOG_FENCES_BELOW_OFF);
const LOG_SAME_PROGRAM_OFF: u32 = 1;
const LOG_FENCES_BELOW_OFF: u32 = 1 << 2;

/// To a file.
const FILE: Access = Access::WRITE_FILE.and(Access::TRUNCATE);
/// To a directory and all that is below it.
const TREE: Access = FILE
    .and(Access::REMOVE_DIRECTORY)
    .and(Access::REMOVE_FILE)
    .and(Access::MAKE_DIRECTORY)
    .and(Access::MAKE_FILE)
    .and(Access::MAKE_SOCKET)
    .and(Access::MAKE_PIPE)
    .and(Access::MAKE_LINK)
    .and(Access::REFER);

/// Of a file or a directory and all that is below it, without a root of the sandbox's own.
const READ: Access = Access::EXECUTE
    .and(Access::READ_FILE)
    .and(Access::READ_DIRECTORY);
const DEVICE: Access = FILE.and(Access::READ_FILE).and(Access::IOCTL_DEVICE);

/// What every sandbox may write to besides its own list, and why.
const EVERYWHERE: &[(&str, Access, &str)] = &[
    (
        "/dev",
        FILE.and(Access::IOCTL_DEVICE),
        "null, full, tty and pseudo terminals; nothing can be made or removed there",
    ),
    (
        "/proc",
        FILE,
        "names of threads, scores, of this and of every process to come, which no rule can name; the switches of the \
         kernel there are on read-only mounts, and owned by an id that nothing here can have",
    ),
];

/// Where the root is the host's: devices and files of the kernel's that programs ask for. No process is among them.
const ALONE: &[(&str, Access, &str)] = &[
    ("/dev/null", DEVICE, "nothing"),
    ("/dev/zero", DEVICE, "zeros"),
    ("/dev/full", DEVICE, "a full disk"),
    ("/dev/random", DEVICE, "random bytes"),
    ("/dev/urandom", DEVICE, "random bytes"),
    (
        "/proc/cpuinfo",
        Access::READ_FILE,
        "processors, as programs count them",
    ),
    (
        "/proc/meminfo",
        Access::READ_FILE,
        "memory, of the whole machine",
    ),
    (
        "/proc/stat",
        Access::READ_FILE,
        "processors, as programs count them",
    ),
    ("/proc/uptime", Access::READ_FILE, "the machine's"),
    ("/proc/loadavg", Access::READ_FILE, "the machine's"),
    ("/proc/filesystems", Access::READ_FILE, "what libc asks for"),
    ("/sys/devices/system/cpu", READ, "processors and caches"),
];

/// A fence that this kernel can put up.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Fence {
    abi: u32,
    /// Directories and files of the sandbox that code may write to.
    writable: Vec<PathBuf>,
    /// What code may read and execute besides, where the root is the host's; none: a root of the sandbox's own decides.
    readable: Option<Vec<PathBuf>>,
    /// The steps of a sandbox that stays are each behind one, and are to reach each other: the sandbox's own namespaces
    /// alone keep signals and abstract sockets in.
    shared: bool,
}

impl Fence {
    /// None: the kernel has no Landlock that would do.
    #[must_use]
    pub fn around(writable: Vec<PathBuf>) -> Option<Self> {
        abi().filter(|abi| *abi >= LOWEST).map(|abi| Self {
            abi,
            writable,
            readable: None,
            shared: false,
        })
    }

    /// A fence that stands alone: what is not named can be neither read nor executed.
    #[must_use]
    pub fn alone(readable: Vec<PathBuf>, writable: Vec<PathBuf>) -> Option<Self> {
        let usable = abi().filter(|abi| *abi >= LOWEST_ALONE);
        usable.map(|abi| Self {
            abi,
            writable,
            readable: Some(readable),
            shared: false,
        })
    }

    /// The same fence, with places of one slot.
    #[must_use]
    pub fn with(
        mut self,
        readable: impl IntoIterator<Item = PathBuf>,
        writable: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        self.readable.get_or_insert_default().extend(readable);
        self.writable.extend(writable);
        self
    }

    /// The same fence, for steps that share a sandbox.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The flags of [`restrict`] that go with the rules.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        if self.abi >= QUIET.0 { QUIET.1 } else { 0 }
    }

    /// Makes the rules, of the files that are at these paths now. `under`: a directory that is mounted over afterwards, for
    /// what can be named only once it is mounted somewhere; none: that cannot be written to.
    ///
    /// # Errors
    ///
    /// The path that cannot be opened.
    pub fn rules(&self, under: Option<&Path>) -> Result<OwnedFd, (PathBuf, io::Error)> {
        let mut decided = self.known(DECIDED).fold(Access::NONE, Access::and);
        if self.readable.is_some() {
            decided = decided.and(READ);
        }
        let scoped = match self.shared {
            true => Scope::NONE,
            false => self.known(SCOPED).fold(Scope::NONE, Scope::and),
        };
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        let rules = ruleset(decided, scoped).map_err(at(Path::new("rules")))?;
        let everywhere = match self.readable {
            None => EVERYWHERE,
            Some(_) => ALONE,
        };
        for (path, access, _) in everywhere {
            let path = Path::new(path);
            match add(&rules, path, access.only(decided)) {
                // A host may be without what is only to be read.
                Err(error) if self.readable.is_some() && is_nowhere(&error) => {}
                added => added.map_err(at(path))?,
            }
        }
        for path in self.readable.iter().flatten() {
            add_readable(&rules, path).map_err(at(path))?;
        }
        let tree = match self.readable {
            None => TREE,
            Some(_) => TREE.and(READ),
        };
        for path in &self.writable {
            add_writable(&rules, path, tree.only(decided)).map_err(at(path))?;
        }
        if let Some(under) = under {
            queues(&rules, under, decided).map_err(at(under))?;
        }
        Ok(rules)
    }

    fn known<T: Copy>(&self, table: &[(u32, T)]) -> impl Iterator<Item = T> {
        table
            .iter()
            .filter(|(since, _)| *since <= self.abi)
            .map(|(_, what)| *what)
    }
}

/// POSIX message queues are files of a file system that is seen nowhere. To be named by a rule it is mounted where another
/// mount will cover it; one outside the tree would do too, but its end would cost a grace period of the kernel's.
fn queues(rules: &OwnedFd, under: &Path, decided: Access) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount("mqueue", under, "mqueue", flags, None) {
        Ok(()) => add(rules, under, FILE.only(decided)),
        // The kernel was built without them.
        Err(rustix::io::Errno::NODEV) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// A path of the request may lead elsewhere by now, or nowhere, where it lies in what code can write to. Then there is no
/// rule: what is read-only needs none, and is all of the root.
fn add_writable(rules: &OwnedFd, path: &Path, access: Access) -> io::Result<()> {
    let place = match open(path) {
        Err(error) if is_nowhere(&error) => return Ok(()),
        place => place?,
    };
    if fstatvfs(&place)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    add_open(rules, &place, access)
}

/// What is not there, or not the engine's to look at, is not the code's to read.
fn add_readable(rules: &OwnedFd, path: &Path) -> io::Result<()> {
    match add(rules, path, READ) {
        Err(error) if is_nowhere(&error) => Ok(()),
        added => added,
    }
}

fn add(rules: &OwnedFd, path: &Path, access: Access) -> io::Result<()> {
    add_open(rules, &open(path)?, access)
}

fn is_nowhere(error: &io::Error) -> bool {
    let nowhere = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EACCES];
    error
        .raw_os_error()
        .is_some_and(|errno| nowhere.contains(&errno))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn add_open(rules: &OwnedFd, place: &OwnedFd, access: Access) -> io::Result<()> {
    let directory = FileType::from_raw_mode(fstat(place)?.st_mode) == FileType::Directory;
    let access = if directory {
        access
    } else {
        access.only(
            FILE.and(Access::IOCTL_DEVICE)
                .and(Access::READ_FILE)
                .and(Access::EXECUTE),
        )
    };
    allow(rules.as_fd(), place.as_fd(), access)
}

/// Puts the fence up around this process, the last thing that it does before it becomes the code. Allocates nothing.
pub fn enter(rules: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    restrict(rules, flags)
}

/// Whether this kernel's Landlock can stand alone.
///
/// # Errors
///
/// EOPNOTSUPP where it cannot.
pub fn alone_or_why() -> io::Result<()> {
    match abi() {
        Some(abi) if abi >= LOWEST_ALONE => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

/// Keeps this process to what is in these directories, and to its own descriptors: one that has the host's root and follows
/// names that code has made.
///
/// # Errors
///
/// Those of the kernel's Landlock.
pub fn confine(places: &[BorrowedFd<'_>]) -> io::Result<()> {
    alone_or_why()?;
    let everything = TREE.and(READ);
    let rules = ruleset(everything, Scope::SIGNALS)?;
    for place in places {
        allow(rules.as_fd(), *place, everything)?;
    }
    restrict(
        rules.as_fd(),
        if abi() >= Some(QUIET.0) { QUIET.1 } else { 0 },
    )
}

/// Keeps the signals of this process, and of all that it starts, among themselves. Then a signal to everybody reaches
/// those that it started, and nobody else. No new privileges must be set.
///
/// # Errors
///
/// EINVAL on a kernel whose Landlock has no such thing, EOPNOTSUPP and ENOSYS on one without.
pub fn enclose() -> io::Result<()> {
    let rules = ruleset(Access::NONE, Scope::SIGNALS)?;
    restrict(
        rules.as_fd(),
        if abi() >= Some(QUIET.0) { QUIET.1 } else { 0 },
    )?;
    // Whoever relies on it sends a signal to everybody.
    match rustix::process::getppid().map(test_kill_process) {
        Some(Err(rustix::io::Errno::PERM)) => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// What results say of the fence. `shared`: see [`Fence::shared`].
#[must_use]
pub fn described(shared: bool) -> String {
    match abi() {
        Some(abi) if shared && is_used(abi) => format!("landlock: write allowlist (ABI {abi})"),
        abi => describe(abi),
    }
}

fn describe(abi: Option<u32>) -> String {
    match abi {
        Some(abi) if abi >= SCOPED[0].0 => {
            format!("landlock: write allowlist, signals and abstract sockets scoped (ABI {abi})")
        }
        Some(abi) if abi >= LOWEST => format!("landlock: write allowlist (ABI {abi})"),
        Some(abi) => format!("landlock: none (ABI {abi} forbids moving files)"),
        None => "landlock: none".to_owned(),
    }
}

/// Whether the kernel's Landlock is used.
#[must_use]
pub const fn is_used(abi: u32) -> bool {
    abi >= LOWEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_is_asked_for_nothing_that_it_does_not_know() {
        let fence = |abi| Fence {
            abi,
            writable: Vec::new(),
            readable: None,
            shared: false,
        };
        assert_eq!(fence(2).known(DECIDED).count(), 11);
        assert_eq!(fence(7).known(DECIDED).count(), DECIDED.len());
        assert_eq!(fence(5).known(SCOPED).count(), 0);
        assert_eq!(fence(6).known(SCOPED).count(), 2);
        assert_eq!(fence(6).flags(), 0);
        assert_eq!(fence(7).flags(), 5);
    }

    #[test]
    fn a_kernel_without_a_usable_one_is_told() {
        assert_eq!(describe(None), "landlock: none");
        assert!(describe(Some(1)).starts_with("landlock: none"));
        assert!(describe(Some(3)).contains("write allowlist (ABI 3)"));
        assert!(describe(Some(7)).contains("scoped"));
    }
}
