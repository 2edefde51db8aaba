//! A file system of a session's own, of exactly the size that it may have: an ext4 image in a file without a name, as a
//! loop device. What does not fit is refused by the kernel, to whoever writes.
//!
//! The file takes of the host's disk what was written to it, never more than the whole. It has no name once it is
//! mounted, and the device goes with the last mount: nothing is left of either, whichever processes die.
//!
//! Ruled out: project quotas of the host's own file system, which have to be switched on when it is made or mounted and
//! are compiled into few kernels; and one image for all sessions, which cannot give each a number of files.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::sys::loop_device;

const BLOCK: u64 = 4096;
/// Bytes of an inode on disk.
const INODE: u64 = 256;
/// Without a limit of files there is room for one in so many bytes.
const BYTES_PER_FILE: u64 = 8192;
/// The most inodes that are made room for: they cost an image space only when they are used, and counting them costs time.
const MOST_FILES: u64 = 1 << 26;
/// What ext4 has for itself before anything is made.
const OWN_INODES: u64 = 11;
/// Directories of the engine's that a session may come to have; they are not the caller's to pay for.
const RESERVE: u64 = 96;
/// Where the tools of ext4 are: not on the path of every user.
const TOOLS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
const TOOL: &str = "mke2fs";
const BALLAST: &str = "ballast";
/// Below this a file system is full, whatever was asked for last.
const FULL_BYTES: u64 = 16 * BLOCK;

/// How much there is to be room for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity {
    pub bytes: u64,
    /// None: as many as the bytes are likely to need.
    pub files: Option<u64>,
}

/// Why there is no such file system. Each names the layer that the host does not give.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{TOOL} is not in {}", TOOLS.join(", "))]
    NoTool,
    #[error("{TOOL} could not make an ext4 of {bytes} bytes: {said}")]
    Make { bytes: u64, said: String },
    #[error("loop devices: {0}")]
    Loop(#[source] io::Error),
    #[error("this kernel has no ext4")]
    NoExt4,
    #[error("mount ext4: {0}")]
    Mount(#[source] io::Error),
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl VolumeError {
    fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> Option<&'static str> {
        match self {
            Self::NoTool => Some("apt-get install e2fsprogs"),
            Self::Loop(_) => Some(
                "modprobe loop; in a container: --device /dev/loop-control and the loop devices",
            ),
            Self::NoExt4 => Some("modprobe ext4"),
            Self::Make { .. } | Self::Mount(_) | Self::Io { .. } => None,
        }
    }
}

/// Whether a process with all rights of root could make one here. Nothing is made.
pub fn offered() -> Result<(), VolumeError> {
    tool()?;
    loop_device::control().map_err(VolumeError::Loop)?;
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.split_whitespace().any(|word| word == "ext4") {
        Ok(())
    } else {
        Err(VolumeError::NoExt4)
    }
}

fn tool() -> Result<PathBuf, VolumeError> {
    TOOLS
        .iter()
        .map(|directory| Path::new(directory).join(TOOL))
        .find(|path| path.is_file())
        .ok_or(VolumeError::NoTool)
}

/// A file system that is not mounted anywhere yet, or that somebody else has mounted. Dropped, it keeps nothing alive.
#[derive(Debug)]
pub struct Volume {
    mount: OwnedFd,
    capacity: Capacity,
    /// Directories of the ballast that are left.
    reserve: Mutex<u64>,
}

/// What there is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    pub bytes: u64,
    pub files: u64,
}

impl Room {
    /// Whether what comes next is likely to be refused.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.bytes < FULL_BYTES || self.files == 0
    }
}

impl Volume {
    /// Makes one, whose image has this path until it is mounted. It has more room than was asked for until it is loaded.
    /// Takes some milliseconds; blocks.
    pub fn make(path: &Path, capacity: Capacity) -> Result<Self, VolumeError> {
        let tool = tool()?;
        let made = image(path, &tool, capacity).and_then(|image| {
            let block = u32::try_from(BLOCK).unwrap_or(512);
            let device = loop_device::attach(image.as_fd(), block).map_err(VolumeError::Loop)?;
            mount(device.path.as_os_str())
        });
        // From here on the device has it, and it ends with the device.
        let removed = fs::remove_file(path);
        let mount = made?;
        removed.map_err(VolumeError::io("remove the name of an image"))?;
        Ok(Self {
            mount,
            capacity,
            reserve: Mutex::new(0),
        })
    }

    #[must_use]
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The mount, for whoever puts it in its place.
    #[must_use]
    pub fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Its root as a path of this process's, wherever it is mounted.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }

    /// What there is left for code.
    pub fn room(&self) -> io::Result<Room> {
        let facts = fstatvfs(&self.mount)?;
        Ok(Room {
            bytes: facts.f_bavail * facts.f_bsize,
            files: facts.f_favail,
        })
    }

    /// Fills up what is more than was asked for: a file system comes in steps, a limit does not. What is there by then
    /// does not count.
    pub fn load(&self) -> io::Result<()> {
        let capacity = self.capacity;
        let ballast = self.root().join(BALLAST);
        fs::create_dir(&ballast)?;
        rustix::fs::chmod(&ballast, rustix::fs::Mode::empty())?;
        for number in 0..RESERVE {
            fs::create_dir(ballast.join(reserved(number)))?;
        }
        let files = match capacity.files {
            Some(files) => self.room()?.files.saturating_sub(files + 1),
            None => 0,
        };
        for number in 0..files {
            File::create(ballast.join(number.to_string()))?;
        }
        let filler = File::create(ballast.join("bytes"))?;
        let surplus = self.room()?.bytes.saturating_sub(capacity.bytes);
        let mut length = surplus - surplus % BLOCK;
        if length > 0 {
            fallocate(&filler, FallocateFlags::empty(), 0, length)?;
        }
        // The ballast's own map of blocks may have taken one.
        let missing = capacity.bytes.saturating_sub(self.room()?.bytes);
        length = length.saturating_sub(missing.div_ceil(BLOCK) * BLOCK);
        filler.set_len(length)?;
        *self.reserve() = RESERVE;
        Ok(())
    }

    fn reserve(&self) -> MutexGuard<'_, u64> {
        self.reserve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a directory of the engine's own, which is not to cost the caller anything. It was made before there was any
    /// code, and is moved into its place: room that is free in between would be the code's.
    pub fn make_directory(&self, path: &Path) -> io::Result<()> {
        let number = {
            let mut reserve = self.reserve();
            *reserve = reserve.saturating_sub(1);
            *reserve
        };
        match fs::rename(self.root().join(BALLAST).join(reserved(number)), path) {
            // All are in use: what comes now counts.
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(path),
            done => done,
        }
    }
}

fn reserved(number: u64) -> String {
    format!("directory-{number}")
}

/// The image, made and open.
fn image(path: &Path, tool: &Path, capacity: Capacity) -> Result<File, VolumeError> {
    let plan = Plan::of(capacity);
    let image = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(VolumeError::io("make an image"))?;
    image
        .set_len(plan.length)
        .map_err(VolumeError::io("make an image"))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the tool that makes a file system, by its absolute path and on a file of the engine's own"
    )]
    let mut command = Command::new(tool);
    let output = command
        .env_clear()
        .args([
            "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096", "-I", "256",
        ])
        // It lives as long as its session: there is nothing to recover after a crash.
        .args([
            "-O",
            "^has_journal,^resize_inode,^metadata_csum,sparse_super2",
        ])
        .args([
            "-E",
            "lazy_itable_init=1,nodiscard,root_owner=0:0,packed_meta_blocks=1,num_backup_sb=0",
        ])
        .args(["-N", &plan.inodes.to_string()])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(VolumeError::io("execute mke2fs"))?;
    if output.status.success() {
        return Ok(image);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(VolumeError::Make {
        bytes: plan.length,
        said: said.trim().escape_debug().to_string(),
    })
}

/// What is asked of the tool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Plan {
    length: u64,
    inodes: u64,
}

impl Plan {
    fn of(capacity: Capacity) -> Self {
        let asked = capacity
            .files
            .unwrap_or((capacity.bytes / BYTES_PER_FILE).max(1024));
        // Beside the reserve the session's first directories.
        let inodes = asked.min(MOST_FILES) + RESERVE + 64 + OWN_INODES;
        let data = capacity.bytes.div_ceil(BLOCK) * BLOCK + (RESERVE + 64) * BLOCK;
        // For each 128 MiB two bitmaps, and a descriptor of 64 bytes.
        let groups = (data + inodes * INODE).div_ceil(128 << 20) + 1;
        let tables = (inodes + groups * 32) * INODE + groups * (2 * BLOCK + 64);
        // Ext4 keeps a fiftieth, and at most this many blocks, for its own trees, and shows them to nobody.
        let kept = (data / 48).min(4096 * BLOCK);
        Self {
            length: (data + tables + kept + (2 << 20)).div_ceil(BLOCK) * BLOCK,
            inodes,
        }
    }
}

fn mount(device: &OsStr) -> Result<OwnedFd, VolumeError> {
    let mounted = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(context.as_fd(), "source", device)?;
        // Tables that are never used are never written, and nothing has to outlive a loss of power.
        for option in ["noinit_itable", "nobarrier"] {
            fsconfig_set_flag(context.as_fd(), option)?;
        }
        fsconfig_create(context.as_fd())?;
        fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOATIME,
        )
    };
    mounted().map_err(|errno| VolumeError::Mount(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_room_for_what_was_asked_and_its_own_tables() {
        for bytes in [64 << 10, 1 << 20, 100 << 20, 10 << 30, 1 << 40] {
            for files in [None, Some(1), Some(50_000)] {
                let plan = Plan::of(Capacity { bytes, files });
                assert!(plan.length > bytes + plan.inodes * INODE);
                assert_eq!(plan.length % BLOCK, 0);
                assert!(plan.inodes >= files.unwrap_or(1) + RESERVE);
            }
        }
    }

    #[test]
    fn a_volume_has_exactly_the_room_that_was_asked_for() {
        if offered().is_err() || !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        for (bytes, files) in [
            (1 << 20, Some(10)),
            (64 << 20, Some(50_000)),
            (10 << 30, Some(10)),
            (10 << 30, None),
        ] {
            let capacity = Capacity { bytes, files };
            let volume = match Volume::make(&directory.path().join("v"), capacity) {
                // A root without the rights of one.
                Err(VolumeError::Loop(_) | VolumeError::Mount(_)) => return,
                made => made.expect("made"),
            };
            fs::create_dir(volume.root().join("before")).expect("a directory");
            volume.load().expect("loaded");
            for number in 0..6 {
                let path = volume.root().join(format!("d{number}"));
                volume.make_directory(&path).expect("a directory");
            }
            let room = volume.room().expect("counted");
            assert!(
                room.bytes >= bytes && room.bytes <= bytes + 2 * BLOCK,
                "{room:?} of {capacity:?}"
            );
            if let Some(files) = files {
                assert_eq!(room.files, files);
            }
        }
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 0);
    }
}
