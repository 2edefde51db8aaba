//! What the kernel says about directories of the host that a caller wants in a sandbox.
//!
//! A source is opened once with `O_PATH`, and everything is read from that descriptor: a name that is swapped between
//! two looks cannot be judged as one thing and mounted as another. The rules are `spec::mount`'s.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::config::Environment;
use crate::spec::mount::{Host, HostPlaces, Observed, SourceKind, Unobservable};
use crate::spec::{Device, DeviceRefusal, ProfileFile, ProfileFileError};

/// Entries looked at for a unix socket. A tree with more is taken as it is: the caller vouches for it.
const SCAN_MOST: usize = 50_000;

/// This host, with the places that no sandbox may see.
#[derive(Clone, Debug)]
pub struct HostFiles {
    places: HostPlaces,
    profiles: Option<PathBuf>,
}

impl HostFiles {
    /// Reads the home directories of this host. `engine`: the directories of this engine.
    #[must_use]
    pub fn probe(environment: &Environment, engine: Vec<PathBuf>) -> Self {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let homes = homes(&passwd).chain(environment.home.clone());
        let mut homes: Vec<_> = homes.flat_map(both_spellings).collect();
        homes.retain(|home| home != Path::new("/"));
        homes.sort();
        homes.dedup();
        let runtime = environment.runtime.as_ref();
        Self {
            profiles: environment.profiles(),
            places: HostPlaces {
                homes,
                runtime: runtime.and_then(|dir| dir.canonicalize().ok()),
                engine: engine.into_iter().flat_map(both_spellings).collect(),
            },
        }
    }
}

impl Host for HostFiles {
    fn observe(&self, source: &Path, may_be_missing: bool) -> Result<Observed, Unobservable> {
        match open_path(source) {
            Ok(fd) => observe_open(&fd),
            Err(Errno::NOENT | Errno::NOTDIR) if may_be_missing => observe_missing(source),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Unobservable::Missing),
            Err(errno) => Err(Unobservable::Open(errno.raw_os_error())),
        }
    }

    fn find_socket(&self, observed: &Observed) -> Option<PathBuf> {
        match observed.kind {
            SourceKind::Socket => Some(observed.path.clone()),
            SourceKind::Dir => {
                let top = open_resolved(&observed.path).ok()?;
                let (device, _) = identity(&top).ok()?;
                find_socket(&top, device).map(|inner| observed.path.join(inner))
            }
            SourceKind::File | SourceKind::Other => None,
        }
    }

    fn places(&self) -> &HostPlaces {
        &self.places
    }

    fn profiles(&self) -> Result<ProfileFile, ProfileFileError> {
        let path = self.profiles.clone().ok_or(ProfileFileError::NoPlace)?;
        let text = read_profiles(&path)?;
        Ok(ProfileFile { path, text })
    }

    fn device(&self, path: &Path) -> Result<Device, DeviceRefusal> {
        observe_device(path)
    }
}

/// Reads the file once it is known to be nobody else's: it says what sandboxes get of this machine.
fn read_profiles(path: &Path) -> Result<String, ProfileFileError> {
    const MOST: u64 = 1 << 20;
    let unreadable = |errno: Errno| match errno {
        Errno::NOENT | Errno::NOTDIR => ProfileFileError::Missing(path.to_owned()),
        errno => ProfileFileError::Unreadable {
            path: path.to_owned(),
            errno: errno.raw_os_error(),
        },
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(unreadable)?;
    let stat = rustix::fs::fstat(&file).map_err(unreadable)?;
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    if !ours || stat.st_mode & 0o022 != 0 {
        return Err(ProfileFileError::NotOurs(path.to_owned()));
    }
    let not_text = || ProfileFileError::NotText(path.to_owned());
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_text());
    }
    let mut text = String::new();
    std::fs::File::from(file)
        .take(MOST + 1)
        .read_to_string(&mut text)
        .map_err(|_| not_text())?;
    if text.len() as u64 > MOST {
        return Err(not_text());
    }
    Ok(text)
}

/// Character devices that are the machine's own: its memory (1), terminals (4, 5, 7, 136 to 143), what the kernel is
/// steered by (10: kvm, fuse, loop-control and their like), registers of its processors (202).
const KERNEL_DEVICES: [std::ops::RangeInclusive<u32>; 6] =
    [1..=1, 4..=5, 7..=7, 10..=10, 136..=143, 202..=202];

fn observe_device(path: &Path) -> Result<Device, DeviceRefusal> {
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.starts_with("/dev") || !path.components().all(plain) {
        return Err(DeviceRefusal::Elsewhere);
    }
    let node = open_resolved(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => DeviceRefusal::Link,
        Some(libc::EACCES) => DeviceRefusal::Closed,
        _ => DeviceRefusal::Missing,
    })?;
    let stat = rustix::fs::fstat(&node).map_err(|_| DeviceRefusal::Missing)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {}
        FileType::Symlink => return Err(DeviceRefusal::Link),
        _ => return Err(DeviceRefusal::Kind),
    }
    let major = rustix::fs::major(stat.st_rdev);
    if KERNEL_DEVICES.iter().any(|known| known.contains(&major)) {
        return Err(DeviceRefusal::Kernel);
    }
    let wanted = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    if rustix::fs::access(path, wanted).is_err() {
        return Err(DeviceRefusal::Closed);
    }
    Ok(Device {
        path: path.to_owned(),
        major,
        minor: rustix::fs::minor(stat.st_rdev),
    })
}

/// Opens a resolved path again, `O_PATH` and through no link; compare its identity with what was judged.
///
/// # Errors
/// `ELOOP` when a component became a link, else the kernel's error.
pub fn open_resolved(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// Device and inode of an open source, as in [`Observed::identity`].
///
/// # Errors
/// The kernel's error.
pub fn identity(fd: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Makes a workspace that was missing when it was judged, parents too, and opens it. No link is followed on the way, so
/// what is made is what was judged. One that exists by now is only opened.
///
/// # Errors
/// The kernel's error; `ELOOP` or `ENOTDIR` when a component became a link.
pub fn create_workspace(path: &Path) -> io::Result<OwnedFd> {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::open("/", dir, Mode::empty())?;
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        at = match rustix::fs::openat(&at, name, dir, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                rustix::fs::openat(&at, name, dir, Mode::empty())?
            }
            Err(errno) => return Err(errno.into()),
        };
    }
    Ok(at)
}

fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn observe_open(fd: &OwnedFd) -> Result<Observed, Unobservable> {
    let open = |errno: Errno| Unobservable::Open(errno.raw_os_error());
    let stat = rustix::fs::fstat(fd).map_err(open)?;
    let identity = (stat.st_dev, stat.st_ino);
    let path = resolved(fd).ok_or(Unobservable::Unreachable)?;
    // A removed file, or one of another mount namespace, has a name here that leads elsewhere or nowhere.
    let again = open_resolved(&path).and_then(self::identity);
    if !again.is_ok_and(|again| again == identity) {
        return Err(Unobservable::Unreachable);
    }
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => SourceKind::Dir,
        FileType::RegularFile => SourceKind::File,
        FileType::Socket => SourceKind::Socket,
        FileType::Symlink
        | FileType::Fifo
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => SourceKind::Other,
    };
    Ok(Observed {
        path,
        identity: Some(identity),
        kind,
    })
}

/// Where an open file is, as the kernel names it.
fn resolved(fd: &OwnedFd) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    path.is_absolute().then_some(path)
}

fn observe_missing(source: &Path) -> Result<Observed, Unobservable> {
    for parent in source.ancestors().skip(1) {
        let fd = match open_path(parent) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(errno) => return Err(Unobservable::Open(errno.raw_os_error())),
        };
        let tail = source.strip_prefix(parent).unwrap_or(Path::new(""));
        let plain = tail
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !plain {
            return Err(Unobservable::Missing);
        }
        if let Some(first) = tail.components().next()
            && rustix::fs::statat(&fd, first.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            return Err(Unobservable::DanglingLink);
        }
        let path = resolved(&fd).ok_or(Unobservable::Unreachable)?;
        let stat =
            rustix::fs::fstat(&fd).map_err(|errno| Unobservable::Open(errno.raw_os_error()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Unobservable::ParentNotADirectory(path));
        }
        return Ok(Observed {
            path: path.join(tail),
            identity: None,
            kind: SourceKind::Dir,
        });
    }
    Err(Unobservable::Missing)
}

/// The first unix socket in a tree, relative to it. Other file systems mounted below are not looked into: a source is
/// bound alone, without what is mounted on it.
fn find_socket(top: &OwnedFd, device: u64) -> Option<PathBuf> {
    let mut left = SCAN_MOST;
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let Ok(fd) = open_below(top, &dir) else {
            continue;
        };
        if rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_dev != device) {
            continue;
        }
        let Ok(entries) = rustix::fs::Dir::new(fd) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            left = left.checked_sub(1)?;
            let path =
                dir.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
            match entry_type(top, &path, entry.file_type()) {
                FileType::Socket => return Some(path),
                FileType::Directory => dirs.push(path),
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
        }
    }
    None
}

/// Some file systems do not tell the type in the listing.
fn entry_type(top: &OwnedFd, path: &Path, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    rustix::fs::statat(top, path, AtFlags::SYMLINK_NOFOLLOW).map_or(FileType::Unknown, |stat| {
        FileType::from_raw_mode(stat.st_mode)
    })
}

fn open_below(top: &OwnedFd, dir: &Path) -> Result<OwnedFd, Errno> {
    let name = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(top, name, flags, Mode::empty(), resolve)
}

/// Home directories of a passwd file. Those of services that are part of the system's own tree hold nothing private,
/// and refusing what contains them would refuse `/usr`.
fn homes(passwd: &str) -> impl Iterator<Item = PathBuf> {
    const SYSTEM: [&str; 10] = [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/dev",
        "/proc",
        "/run",
        "/etc",
        "/nonexistent",
        "/var/empty",
    ];
    passwd
        .lines()
        .filter_map(|line| line.split(':').nth(5))
        .map(PathBuf::from)
        .filter(|home| home.is_absolute() && home != Path::new("/"))
        .filter(|home| !SYSTEM.iter().any(|system| home.starts_with(system)))
}

/// A path as it is spelt and as it resolves; for one that does not exist yet, by its nearest existing parent.
fn both_spellings(path: PathBuf) -> Vec<PathBuf> {
    let real = path.ancestors().find_map(|parent| {
        let real = parent.canonicalize().ok()?;
        Some(
            real.join(path.strip_prefix(parent).ok()?)
                .components()
                .collect::<PathBuf>(),
        )
    });
    match real {
        Some(real) if real != path => vec![path, real],
        Some(_) | None => vec![path],
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn host() -> HostFiles {
        HostFiles {
            profiles: None,
            places: HostPlaces::default(),
        }
    }

    fn real(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().canonicalize().expect("exists")
    }

    #[test]
    fn a_source_is_seen_where_it_is_and_not_where_a_link_says() {
        let dir = tempfile::tempdir().expect("tempdir");
        let top = real(&dir);
        std::fs::create_dir(top.join("real")).expect("mkdir");
        symlink("real", top.join("link")).expect("symlink");
        let seen = host()
            .observe(&top.join("link/../link/."), false)
            .expect("seen");
        assert_eq!(seen.path, top.join("real"));
        assert_eq!(seen.kind, SourceKind::Dir);
        let fd = open_resolved(&seen.path).expect("opened");
        assert_eq!(Some(identity(&fd).expect("identity")), seen.identity);
        assert!(open_resolved(&top.join("link")).is_err());
    }

    #[test]
    fn a_magic_link_is_seen_as_what_it_names() {
        let seen = host()
            .observe(Path::new("/proc/self/root"), false)
            .expect("seen");
        assert_eq!(seen.path, Path::new("/"));
    }

    #[test]
    fn missing_sources_are_refused_and_missing_workspaces_are_resolved_by_their_parent() {
        let dir = tempfile::tempdir().expect("tempdir");
        let top = real(&dir);
        symlink(".", top.join("link")).expect("symlink");
        symlink("nowhere", top.join("dangling")).expect("symlink");
        std::fs::write(top.join("file"), "").expect("write");
        let missing = top.join("link/new/deep");
        assert_eq!(host().observe(&missing, false), Err(Unobservable::Missing));
        let seen = host().observe(&missing, true).expect("seen");
        assert_eq!((seen.path, seen.identity), (top.join("new/deep"), None));
        for (path, why) in [
            ("dangling", Unobservable::DanglingLink),
            ("new/../../x", Unobservable::Missing),
            (
                "file/x",
                Unobservable::ParentNotADirectory(top.join("file")),
            ),
        ] {
            assert_eq!(host().observe(&top.join(path), true), Err(why), "{path}");
        }
    }

    #[test]
    fn a_missing_workspace_is_made_through_no_link() {
        let dir = tempfile::tempdir().expect("tempdir");
        let top = real(&dir);
        let fd = create_workspace(&top.join("a/b")).expect("made");
        let stat = std::fs::metadata(top.join("a/b")).expect("exists");
        assert_eq!(
            identity(&fd).expect("identity").1,
            std::os::unix::fs::MetadataExt::ino(&stat)
        );
        assert!(create_workspace(&top.join("a/b")).is_ok());
        symlink("a", top.join("link")).expect("symlink");
        assert!(create_workspace(&top.join("link/c")).is_err());
        assert!(!top.join("a/c").exists());
    }

    #[test]
    fn a_unix_socket_is_found_at_any_depth() {
        let dir = tempfile::tempdir().expect("tempdir");
        let top = real(&dir);
        std::fs::create_dir_all(top.join("a/b")).expect("mkdir");
        let seen = host().observe(&top, false).expect("seen");
        assert_eq!(host().find_socket(&seen), None);
        let _listener = UnixListener::bind(top.join("a/b/s")).expect("bind");
        assert_eq!(host().find_socket(&seen), Some(top.join("a/b/s")));
        let itself = host().observe(&top.join("a/b/s"), false).expect("seen");
        assert_eq!(itself.kind, SourceKind::Socket);
    }

    #[test]
    fn homes_of_the_systems_own_tree_do_not_count() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\ngames:x:5:60:games:/usr/games:/x\nbin:x:2:2::/bin:/x\n\
                      nobody:x:65534:65534::/nonexistent:/x\nada:x:1000:1000::/home/ada:/bin/sh\nx:x:7:7::/:/x\nbad";
        let found: Vec<_> = homes(passwd).collect();
        assert_eq!(found, [Path::new("/root"), Path::new("/home/ada")]);
    }
}
