//! The one opener: nothing in this room reaches an entry of the tree by any other way, but for the way back up in
//! `removal`.
//!
//! The kernel resolves the whole path beneath the root in one call, so that no rename between two steps can lead out.
//! Links inside are followed where the caller asks for it; links out of the root, and magic links, are refused.

use std::borrow::Cow;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, readlinkat, statx,
};
use rustix::io::Errno;

use super::MAX_PATH_BYTES;
use super::path::{MOUNT, join, split};
use crate::outcome::{FileKind, FileStat};

/// openat2(2): EAGAIN says that a rename raced with a `..` in a link, and that a retry may succeed. Code that renames
/// in a loop must not hold the keeper for ever.
const ATTEMPTS: usize = 64;

/// As many links as the kernel follows in one path.
pub(super) const MAX_LINKS: usize = 40;

/// Opens for a caller: links inside are followed, except a last one when `flags` has `NOFOLLOW`.
///
/// To the code `/workspace` is the root of the tree, and it makes absolute links there. The kernel refuses every
/// absolute link; those are replaced in the path by what they name, and the whole is resolved again, beneath as before.
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = Cow::Borrowed(path);
    for _ in 0..MAX_LINKS {
        match open_as_host(root, &path, flags) {
            Err(Errno::XDEV) => path = Cow::Owned(replace_link(root, &path, flags)?),
            done => return done,
        }
    }
    Err(Errno::LOOP)
}

/// Opens as the host sees the tree, where an absolute link leads out whatever it names.
pub(super) fn open_as_host(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    resolve(root, path, flags, Mode::empty(), ResolveFlags::empty())
}

/// The path with the first link that the kernel does not follow beneath the root replaced by its target.
fn replace_link(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<Vec<u8>, Errno> {
    let slashes = path.iter().enumerate().filter(|&(_, &b)| b == b'/');
    let ends = slashes.map(|(at, _)| at).chain([path.len()]);
    for end in ends.filter(|&end| end > 0) {
        let (link, rest) = path.split_at(end);
        if rest.is_empty() && flags.contains(OFlags::NOFOLLOW) {
            break;
        }
        if open_as_host(root, link, OFlags::PATH).err() == Some(Errno::XDEV) {
            // Fails for a `..` above the root.
            let entry = open_as_host(root, link, OFlags::PATH | OFlags::NOFOLLOW)?;
            let target = readlinkat(&entry, c"", Vec::new()).map_err(|_| Errno::XDEV)?;
            let path = [linked_path(link, target.to_bytes())?.as_slice(), rest].concat();
            let start = path.iter().position(|&b| b != b'/').unwrap_or(path.len());
            return if path.len() > MAX_PATH_BYTES {
                Err(Errno::NAMETOOLONG)
            } else {
                Ok(path[start..].to_vec())
            };
        }
    }
    Err(Errno::XDEV)
}

/// The path beneath the root that a link names. It may hold `..`, which the kernel resolves.
pub(super) fn linked_path(link: &[u8], target: &[u8]) -> Result<Vec<u8>, Errno> {
    if !target.starts_with(b"/") {
        return Ok(join(split(link).0, target));
    }
    match target.strip_prefix(MOUNT) {
        Some([]) => Ok(Vec::new()),
        Some([b'/', below @ ..]) => Ok(below.to_vec()),
        _ => Err(Errno::XDEV),
    }
}

/// Opens one entry as it is: no link is followed, no mount crossed.
pub(super) fn open_exactly(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    resolve(
        root,
        path,
        flags | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )
}

/// Makes a file without a name in `directory`.
pub(super) fn open_nameless(directory: BorrowedFd<'_>, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    resolve(directory, b".", flags, mode, ResolveFlags::NO_SYMLINKS)
}

/// Makes a file under a name that must not exist in `directory`.
pub(super) fn open_new(
    directory: BorrowedFd<'_>,
    name: &[u8],
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW;
    resolve(directory, name, flags, mode, ResolveFlags::NO_SYMLINKS)
}

fn resolve(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    // O_PATH allows no flag beside these two; with it nothing is opened, so nothing can block.
    let flags = if flags.contains(OFlags::PATH) {
        flags | OFlags::CLOEXEC
    } else {
        flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
    };
    let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..ATTEMPTS {
        match openat2(root, path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    openat2(root, path, flags, mode, resolve)
}

/// The facts of an entry of `directory`, of a last link itself; of `directory` when `name` is empty.
pub(super) fn facts(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(
        directory,
        name,
        flags,
        StatxFlags::BASIC_STATS | StatxFlags::BTIME,
    )
}

/// The facts that a caller sees, and the target of a link. `entry` is a descriptor of the entry itself.
pub(super) fn file_stat(entry: BorrowedFd<'_>, path: Vec<u8>) -> Result<FileStat, Errno> {
    let facts = facts(entry, b"")?;
    let link_target = match kind(&facts) {
        FileKind::Symlink => Some(readlinkat(entry, c"", Vec::new())?.into_bytes()),
        _ => None,
    };
    Ok(stat_of(&facts, path, link_target))
}

pub(super) fn stat_of(facts: &Statx, path: Vec<u8>, link_target: Option<Vec<u8>>) -> FileStat {
    FileStat {
        path,
        kind: kind(facts),
        size: size(facts),
        mode: permissions(facts),
        modified_ns: nanoseconds(facts.stx_mtime.tv_sec, facts.stx_mtime.tv_nsec),
        link_target,
    }
}

/// Device and inode: what an open descriptor of an entry is compared by.
pub(super) fn identity(facts: &Statx) -> (u32, u32, u64) {
    (facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino)
}

pub(super) fn kind(facts: &Statx) -> FileKind {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(facts.stx_mode.into()) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => FileKind::Device,
    }
}

/// 0 for a directory: what the filesystem says there is about itself, not about the content.
pub(super) fn size(facts: &Statx) -> u64 {
    match kind(facts) {
        FileKind::Dir => 0,
        _ => facts.stx_size,
    }
}

pub(super) fn permissions(facts: &Statx) -> u32 {
    u32::from(facts.stx_mode) & 0o7777
}

/// A time of a file as one number; a time before 1677 or after 2262 is clamped, as files may claim any.
pub(super) fn nanoseconds(seconds: i64, nanoseconds: u32) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(nanoseconds))
}
