//! What of `/proc` code must not write to and need not read: a list for review, and the mounts that follow it.
//!
//! The covers are opened once and looked at, and are mounted by those descriptors: a name that leads elsewhere covers
//! nothing. No code of anybody lives in the sandbox yet, and nothing in it can be written to that a cover is taken from.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, major, minor, openat};
use rustix::mount::{MountFlags, mount_bind, mount_remount};

use super::plan::{Context, Step, StepError};
use super::skeleton::CODE_DIRECTORY;

/// What becomes of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mask {
    /// It is shown, and never written to.
    ReadOnly,
    /// The device of that name in its place.
    Null,
    /// An empty directory in its place.
    Empty,
}

/// Below `/proc`: what, how, and why. A kernel that has none of that name has nothing to cover.
///
/// Not here: what only the host's root may open, because no id of a sandbox is that (`kmsg`, `kpage*`, `slabinfo`,
/// `vmallocinfo`, `pagetypeinfo`); what belongs to a namespace of the sandbox's own (`net`, `sysvipc`, `locks`, `mounts`);
/// what tells how busy the machine is, which time tells too (`loadavg`, `vmstat`, `zoneinfo`, `buddyinfo`, `uptime`); and
/// what is the same for every machine of its kind (`crypto`, `devices`, `dma`, `filesystems`, `misc`, `iomem`, `ioports`
/// without their addresses).
const MASKS: &[(&str, Mask, &str)] = &[
    (
        "sys",
        Mask::ReadOnly,
        "switches of the kernel, the program for core dumps among them; programs read limits and random numbers there",
    ),
    ("sysrq-trigger", Mask::Null, "restarts and stops the host"),
    (
        "bus",
        Mask::Empty,
        "devices of the host, and their registers",
    ),
    (
        "fs",
        Mask::Empty,
        "the host's file systems, and their switches",
    ),
    ("irq", Mask::Empty, "which processor serves which device"),
    (
        "pressure",
        Mask::Empty,
        "everybody may write there: has the kernel watch the whole host's load",
    ),
    (
        "acpi",
        Mask::Empty,
        "the machine's power, and wake-up switches",
    ),
    ("asound", Mask::Empty, "the host's sound devices"),
    ("driver", Mask::Empty, "the host's devices"),
    ("scsi", Mask::Empty, "takes orders to add and remove disks"),
    (
        "tty",
        Mask::Empty,
        "when which terminal of the host was used",
    ),
    (
        "dynamic_debug",
        Mask::Empty,
        "turns on messages of the kernel",
    ),
    ("kcore", Mask::Null, "the memory of the host"),
    ("kallsyms", Mask::Null, "where in memory the kernel is"),
    (
        "modules",
        Mask::Null,
        "what of the kernel is loaded, and where",
    ),
    ("config.gz", Mask::Null, "how the kernel was built"),
    (
        "cmdline",
        Mask::Null,
        "how the host was started: disks, and often secrets",
    ),
    ("keys", Mask::Null, "keys of everybody with the same id"),
    ("key-users", Mask::Null, "who on the host has how many keys"),
    ("timer_list", Mask::Null, "processes of the host, by name"),
    ("timer_stats", Mask::Null, "processes of the host, by name"),
    ("sched_debug", Mask::Null, "processes of the host, by name"),
    (
        "latency_stats",
        Mask::Null,
        "where in the kernel processes of the host wait",
    ),
    (
        "interrupts",
        Mask::Null,
        "counts keystrokes and packets of the host, one by one",
    ),
    ("softirqs", Mask::Null, "as interrupts do"),
    (
        "diskstats",
        Mask::Null,
        "each read and write of every disk, and so what others do",
    ),
    ("partitions", Mask::Null, "the host's disks"),
    ("swaps", Mask::Null, "paths of the host"),
    ("mdstat", Mask::Null, "the host's disks"),
];

const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Covers what the list says of a fresh `/proc`.
pub(super) fn proc() -> Result<(), StepError> {
    let step = Step::MaskProc;
    let null = cover("/dev/null", is_null).at(step, "/dev/null")?;
    // Empty as long as no code is mounted there, and never the place of a mount of the caller's.
    let empty = cover(CODE_DIRECTORY, is_directory).at(step, CODE_DIRECTORY)?;
    for (name, mask, _) in MASKS {
        let path = Path::new("/proc").join(name);
        let done = match mask {
            Mask::ReadOnly => read_only(&path),
            Mask::Null => bind(&null, &path),
            Mask::Empty => bind(&empty, &path),
        };
        done.at(step, path.display().to_string())?;
    }
    Ok(())
}

fn read_only(path: &Path) -> io::Result<()> {
    if skip_missing(mount_bind(path, path))? {
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | FLAGS, "")?;
    }
    Ok(())
}

fn bind(cover: &OwnedFd, path: &Path) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", cover.as_raw_fd());
    skip_missing(mount_bind(source.as_str(), path)).map(drop)
}

/// Whether it was done; a kernel without that file has nothing to mask.
fn skip_missing(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn cover(path: &str, is_right: impl Fn(&rustix::fs::Stat) -> bool) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(CWD, path, flags, Mode::empty())?;
    if is_right(&fstat(&found)?) {
        Ok(found)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn is_null(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_a_cover_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(cover("/dev/null", is_null).is_ok());
        assert!(cover(link.to_str().unwrap(), is_null).is_err());
        assert!(cover("/dev/zero", is_null).is_err());
        assert!(cover("/dev/null", is_directory).is_err());
    }

    #[test]
    fn each_path_is_named_once_with_a_reason() {
        let mut names: Vec<_> = MASKS.iter().map(|(name, ..)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), MASKS.len());
        assert!(MASKS.iter().all(|(_, _, why)| why.len() > 10));
    }
}
