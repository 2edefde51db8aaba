//! The read-only root of a sandbox from the `host` image: the host's programs and libraries, a built `/etc`, the
//! caller's interpreter, six devices. Nothing else of the host is in it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, makedev, mkdirat, mknodat, openat, openat2,
    statat,
};
use rustix::mount::MountAttrFlags;
use serde::{Deserialize, Serialize};

use super::cgroup::Hierarchy;
use super::identity::{home, temporary};
use super::plan::{Context, ROOT, Step, StepError};
use super::tree;
use crate::spec::{ACCOUNTS, Device, GROUPS, Interpreter, Profile, User};
use crate::sys::mount::{Attributes, set_attributes};

/// What distinguishes one root, and what lives in it, from another. Equal specs share one root, and slots that no session
/// has yet.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct RootSpec {
    pub interpreter: Option<Interpreter>,
    pub mount_points: Vec<MountPoint>,
    /// Whose home is the home.
    pub user: User,
    /// Which filter what lives there is born with.
    pub profile: Profile,
    /// Beside those that every root has.
    pub devices: Vec<Device>,
}

/// A place for a mount of the session.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct MountPoint {
    /// Absolute in the sandbox.
    pub path: PathBuf,
    pub directory: bool,
}

/// What of `/usr` and `/usr/local` is for programs; the rest is covered.
const USR_KEPT: &[&str] = &["bin", "sbin", "libexec", "include", "share", "local"];
/// Top-level names that are links into `/usr` on a merged system, and directories elsewhere.
const USR_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What of an interpreter's prefix is the interpreter: a virtual environment often lies in a project.
const PREFIX_KEPT: &[&str] = &["bin", "lib", "lib64", "include", "share", "pyvenv.cfg"];
/// Directories of the host's `/etc` that programs need; what not everybody may read in them is left out.
const ETC_DIRECTORIES: &[&str] = &[
    "ssl/certs",
    "pki",
    "ca-certificates",
    "alternatives",
    "fonts",
    "ld.so.conf.d",
    "terminfo",
    "perl",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "R",
];
/// Files of the host's `/etc` that are copied when everybody may read them.
const ETC_FILES: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "timezone",
    "mime.types",
    "services",
    "protocols",
    "gai.conf",
    "inputrc",
    "magic",
    "debian_version",
    "os-release",
    "ssl/openssl.cnf",
];
/// Files of the host's `/etc` that a root has its own ones of.
const ETC_BUILT: &[&str] = &["group", "hosts", "nsswitch.conf", "passwd"];

/// What a root is made of, as places of the host's: for code that has no root of its own. Some may not be there.
#[must_use]
pub fn readable(interpreter: Option<&Interpreter>) -> Vec<PathBuf> {
    let system = USR_LINKS
        .iter()
        .chain(&["usr"])
        .map(|name| Path::new("/").join(name));
    let etc = [ETC_DIRECTORIES, ETC_FILES, ETC_BUILT].concat();
    let etc = etc.into_iter().map(|name| Path::new("/etc").join(name));
    let prefixes = interpreter.iter().flat_map(|found| &found.prefixes);
    let own = prefixes.flat_map(|prefix| PREFIX_KEPT.iter().map(|name| prefix.join(name)));
    system.chain(etc).chain(own).collect()
}

const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("opt/stepbox", 0o755),
    ("opt/stepbox/bytecode", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("run/stepbox", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("sys/devices", 0o555),
    ("sys/fs", 0o555),
    ("sys/fs/cgroup", 0o555),
    ("tmp", 0o777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/cache/user", 0o755),
    ("var/empty", 0o755),
    ("var/tmp", 0o755),
    ("workspace", 0o755),
];
const DEVICES: &[(&str, u32, u32)] = &[
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
const SEALED: Attributes<'static> = Attributes {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: false,
    id_map: None,
    private: true,
};
const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Builds the root below `place`, a directory of this mount namespace that is not in the host's, and gives it by
/// descriptor. It stays mounted there as the source of clones. `hierarchies`: those of cgroup v1 that slots are shown.
pub fn build(
    spec: &RootSpec,
    hierarchies: &[Hierarchy],
    place: &Path,
) -> Result<OwnedFd, StepError> {
    let mut builder = Builder {
        place,
        spec,
        hierarchies,
    };
    for step in ROOT {
        builder.run(*step)?;
    }
    open_directory(place).at(Step::RootReadOnly, "the finished root")
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

struct Builder<'a> {
    place: &'a Path,
    spec: &'a RootSpec,
    hierarchies: &'a [Hierarchy],
}

impl Builder<'_> {
    fn run(&mut self, step: Step) -> Result<(), StepError> {
        match step {
            Step::RootTmpfs => self.tmpfs(),
            Step::RootDirectories => self.directories(),
            Step::RootSystem => self.system(),
            Step::RootInterpreter => self.interpreter(),
            Step::RootEtc => self.etc(),
            Step::RootDevices => self.devices(),
            Step::RootReadOnly => self.read_only(),
            other => Err(StepError::new(
                other,
                "not a step of building a root",
                &io::ErrorKind::InvalidInput.into(),
            )),
        }
    }

    fn tmpfs(&self) -> Result<(), StepError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let tree = tree::tmpfs(
            &[("mode", "755"), ("size", "16m"), ("nr_inodes", "16384")],
            attributes,
        )
        .at(Step::RootTmpfs, "tmpfs")?;
        tree::attach(tree, self.place).at(Step::RootTmpfs, "/")
    }

    fn directories(&self) -> Result<(), StepError> {
        for (name, mode) in DIRECTORIES {
            self.directory(name, *mode)?;
        }
        let home = home(self.spec.interpreter.as_ref());
        let temporary = temporary(self.spec.interpreter.as_ref());
        for path in [home, temporary] {
            self.directory(path.trim_start_matches('/'), 0o755)?;
        }
        for hierarchy in self.hierarchies {
            let name = hierarchy.name();
            self.directory(&format!("sys/fs/cgroup/{name}"), 0o555)?;
            // As hosts have it that mount several controllers together.
            for controller in hierarchy.0.iter().filter(|controller| **controller != name) {
                let link = self.place.join("sys/fs/cgroup").join(controller);
                symlink(&name, link).at(Step::RootDirectories, controller.clone())?;
            }
        }
        for point in &self.spec.mount_points {
            let named = |error| {
                StepError::new(
                    Step::RootDirectories,
                    point.path.display().to_string(),
                    &error,
                )
            };
            let root = open_directory(self.place).map_err(named)?;
            make_point(&root, point).map_err(named)?;
        }
        Ok(())
    }

    fn directory(&self, name: &str, mode: u32) -> Result<(), StepError> {
        let path = self.place.join(name);
        fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .at(Step::RootDirectories, format!("/{name}"))
    }

    fn system(&self) -> Result<(), StepError> {
        self.bind(Step::RootSystem, Path::new("/usr"))?;
        for parent in ["usr", "usr/local"] {
            self.cover_rest(parent)?;
        }
        for name in USR_LINKS {
            self.same_as_host(Step::RootSystem, &Path::new("/").join(name))?;
        }
        Ok(())
    }

    /// Covers what is not for programs with an empty directory.
    fn cover_rest(&self, parent: &str) -> Result<(), StepError> {
        let Ok(entries) = fs::read_dir(self.place.join(parent)) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let kept = name
                .to_str()
                .is_some_and(|name| USR_KEPT.contains(&name) || name.starts_with("lib"));
            let empty = || fs::read_dir(entry.path()).is_ok_and(|mut below| below.next().is_none());
            if kept || !entry.file_type().is_ok_and(|kind| kind.is_dir()) || empty() {
                continue;
            }
            let operand = format!("/{parent}/{}", name.display());
            // Read-only of itself: what is made read-only later is the tree that it is a copy of.
            let empty = open_directory(&self.place.join("var/empty"))
                .and_then(|fd| tree::clone_at(fd, false))
                .and_then(|empty| {
                    set_attributes(empty.as_fd(), SEALED, false)?;
                    Ok(empty)
                })
                .at(Step::RootSystem, operand.clone())?;
            tree::attach(empty, &entry.path()).at(Step::RootSystem, operand)?;
        }
        Ok(())
    }

    fn interpreter(&self) -> Result<(), StepError> {
        let Some(interpreter) = &self.spec.interpreter else {
            return Ok(());
        };
        let mut seen = Vec::new();
        for prefix in &interpreter.prefixes {
            if prefix.starts_with("/usr") || seen.contains(&prefix) {
                continue;
            }
            seen.push(prefix);
            for name in PREFIX_KEPT {
                self.same_as_host(Step::RootInterpreter, &prefix.join(name))?;
            }
        }
        Ok(())
    }

    fn etc(&self) -> Result<(), StepError> {
        let home = home(self.spec.interpreter.as_ref());
        let (passwd, group) = accounts(&self.spec.user, home);
        let built = [
            ("passwd", passwd.as_str()),
            ("group", group.as_str()),
            ("hosts", "127.0.0.1\tlocalhost stepbox\n::1\tlocalhost\n"),
            ("hostname", "stepbox\n"),
            ("resolv.conf", ""),
            (
                "nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
            ),
            ("shells", "/bin/sh\n/bin/bash\n"),
        ];
        for (name, text) in built {
            fs::write(self.place.join("etc").join(name), text)
                .at(Step::RootEtc, format!("/etc/{name}"))?;
        }
        for name in ETC_FILES {
            self.copy_public(&Path::new("/etc").join(name))?;
        }
        for name in ETC_DIRECTORIES {
            self.copy_public(&Path::new("/etc").join(name))?;
        }
        let java = fs::read_dir("/etc")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("java-"));
        for entry in java {
            self.copy_public(&entry.path())?;
        }
        Ok(())
    }

    /// Copies what everybody may read of a small file, a link or a directory of the host, if it is there: each mount
    /// instead would cost every sandbox.
    fn copy_public(&self, path: &Path) -> Result<(), StepError> {
        const MAX: u64 = 1 << 20;
        const EVERYBODY: u32 = 0o004;
        // A file of `/etc` itself may be a link to where the host keeps it; what it names is meant.
        let top = path.parent() == Some(Path::new("/etc"));
        let look = if top {
            fs::metadata
        } else {
            fs::symlink_metadata
        };
        let Ok(metadata) = look(path) else {
            return Ok(());
        };
        let operand = path.display().to_string();
        let target = self.below(path);
        if metadata.is_symlink() {
            let link = fs::read_link(path).at(Step::RootEtc, operand.clone())?;
            self.parents(Step::RootEtc, &target)?;
            return symlink(link, target).at(Step::RootEtc, operand);
        }
        if metadata.permissions().mode() & EVERYBODY == 0 {
            return Ok(());
        }
        if metadata.is_dir() {
            fs::create_dir_all(&target).at(Step::RootEtc, operand.clone())?;
            let entries = fs::read_dir(path).at(Step::RootEtc, operand)?;
            return entries
                .flatten()
                .try_for_each(|entry| self.copy_public(&entry.path()));
        }
        if !metadata.is_file() || metadata.len() > MAX {
            return Ok(());
        }
        self.parents(Step::RootEtc, &target)?;
        let text = fs::read(path).at(Step::RootEtc, operand.clone())?;
        fs::write(&target, text).at(Step::RootEtc, operand)
    }

    fn devices(&self) -> Result<(), StepError> {
        let dev = self.place.join("dev");
        // A tmpfs of its own: the only one of the tree where device nodes work.
        let tree = tree::tmpfs(
            &[("mode", "755"), ("size", "64k"), ("nr_inodes", "64")],
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        )
        .at(Step::RootDevices, "/dev")?;
        tree::attach(tree, &dev).at(Step::RootDevices, "/dev")?;
        for (name, major, minor) in DEVICES {
            self.device(
                &dev.join(name),
                &Path::new("/dev").join(name),
                *major,
                *minor,
            )
            .at(Step::RootDevices, format!("/dev/{name}"))?;
        }
        for device in &self.spec.devices {
            let operand = device.path.display().to_string();
            let node = self.below(&device.path);
            self.parents(Step::RootDevices, &node)?;
            self.device(&node, &device.path, device.major, device.minor)
                .at(Step::RootDevices, operand)?;
        }
        for (name, target) in DEVICE_LINKS {
            symlink(target, dev.join(name)).at(Step::RootDevices, format!("/dev/{name}"))?;
        }
        for name in ["pts", "shm"] {
            fs::create_dir(dev.join(name)).at(Step::RootDevices, format!("/dev/{name}"))?;
        }
        Ok(())
    }

    /// A node of our own where that is allowed, else the host's node, bound.
    fn device(&self, path: &Path, host: &Path, major: u32, minor: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o666);
        let made = mknodat(
            CWD,
            path,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        );
        match made {
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o666)),
            Err(rustix::io::Errno::PERM) => {
                fs::write(path, "")?;
                let node = openat(
                    CWD,
                    host,
                    OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                let stat = rustix::fs::fstat(&node)?;
                if stat.st_rdev != makedev(major, minor) {
                    // Another one than was judged.
                    return Err(io::Error::from_raw_os_error(libc::ESTALE));
                }
                tree::attach(tree::clone_at(node, false)?, path)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn read_only(&self) -> Result<(), StepError> {
        // All that lies below goes with it: code that runs under the owner's id writes wherever a mount lets it.
        for (path, no_dev, recursive) in [("", false, true), ("", true, false)] {
            let operand = format!("/{path}");
            let fd = openat(
                CWD,
                self.place.join(path),
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .at(Step::RootReadOnly, operand.clone())?;
            let attributes = Attributes { no_dev, ..SEALED };
            set_attributes(fd.as_fd(), attributes, recursive).at(Step::RootReadOnly, operand)?;
        }
        Ok(())
    }

    /// Makes a link, or a read-only bind of a directory or file, as it is on the host; nothing when it is not there.
    fn same_as_host(&self, step: Step, path: &Path) -> Result<(), StepError> {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return Ok(());
        };
        if !metadata.is_symlink() {
            return self.bind(step, path);
        }
        let operand = path.display().to_string();
        let target = self.below(path);
        self.parents(step, &target)?;
        let link = fs::read_link(path).at(step, operand.clone())?;
        match symlink(link, target) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(StepError::new(step, operand, &error))
            }
            _ => Ok(()),
        }
    }

    fn bind(&self, step: Step, path: &Path) -> Result<(), StepError> {
        let operand = path.display().to_string();
        let target = self.below(path);
        self.parents(step, &target)?;
        let made = if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            fs::create_dir_all(&target)
        } else {
            fs::write(&target, "")
        };
        made.at(step, operand.clone())?;
        let tree = tree::clone_read_only(path).at(step, operand.clone())?;
        tree::attach(tree, &target).at(step, operand)
    }

    fn below(&self, path: &Path) -> PathBuf {
        self.place.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Parents of a host path are empty directories: what lies beside it does not show.
    fn parents(&self, step: Step, target: &Path) -> Result<(), StepError> {
        target
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .at(step, target.display().to_string())
    }
}

/// The files of the accounts and groups. The sandbox's user has an entry, whatever its numbers are.
fn accounts(user: &User, home: &str) -> (String, String) {
    let User { uid, gid, name } = user;
    let mut passwd = String::new();
    for (other, number, group) in ACCOUNTS {
        if other == name {
            passwd += &format!("{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n");
        } else if number != *uid {
            let shell = if number == 0 { "/bin/sh" } else { "/bin/false" };
            passwd += &format!("{other}:x:{number}:{group}:{other}:/nonexistent:{shell}\n");
        }
    }
    let known = GROUPS.iter().any(|(_, number)| number == gid);
    let mut groups = String::new();
    for (other, number) in GROUPS {
        // A number without a group takes the place of the default one's.
        let number = if !known && other == User::default().name {
            *gid
        } else {
            number
        };
        groups += &format!("{other}:x:{number}:\n");
    }
    (passwd, groups)
}

/// Makes a mount point beneath `root`, whatever links the image holds on the way.
fn make_point(root: &OwnedFd, point: &MountPoint) -> io::Result<()> {
    let mut names: Vec<_> = point
        .path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let last = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
    let mut directory = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    let mut path = PathBuf::new();
    for name in names {
        make_directory(&directory, name)?;
        path.push(name);
        directory = openat2(
            root,
            &path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            RESOLVE,
        )?;
    }
    if statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(());
    }
    if point.directory {
        return make_directory(&directory, last);
    }
    openat(
        &directory,
        last,
        OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::WRONLY,
        Mode::from_raw_mode(0o644),
    )?;
    Ok(())
}

fn make_directory(parent: &OwnedFd, name: &std::ffi::OsStr) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
