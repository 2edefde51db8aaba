//! A caller's workspace beside what is outside it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use stepbox_engine::workspace::ownership::Owner;

pub(crate) const CALLER: Owner = Owner {
    uid: 1234,
    gid: 4321,
};
pub(crate) const OTHER: Owner = Owner { uid: 77, gid: 78 };

/// `ws` and `outside` on one file system. Dropped, all of it is gone.
pub(crate) struct Place {
    base: tempfile::TempDir,
    tree: PathBuf,
    mounted: bool,
}

impl Place {
    pub(crate) fn on_disk() -> Self {
        let base = tempfile::tempdir().unwrap();
        let tree = base.path().join("tree");
        fill(&tree);
        Self::with(base, tree, false)
    }

    /// On overlayfs, with all files in the lower layer. Needs mounts of its own.
    pub(crate) fn on_overlay() -> Self {
        let base = tempfile::tempdir().unwrap();
        let tree = base.path().join("tree");
        let layers = base.path().join("layers");
        let flags = rustix::mount::MountFlags::empty();
        fs::create_dir(&layers).unwrap();
        // Overlayfs takes no upper layer on overlayfs, where temporary files may be.
        rustix::mount::mount("layers", &layers, "tmpfs", flags, None).unwrap();
        fill(&layers.join("lower"));
        for directory in [&layers.join("upper"), &layers.join("work"), &tree] {
            fs::create_dir(directory).unwrap();
        }
        let options = format!(
            "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work",
            layers.display()
        );
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("overlay", &tree, "overlay", flags, options.as_c_str()).unwrap();
        Self::with(base, tree, true)
    }

    fn with(base: tempfile::TempDir, tree: PathBuf, mounted: bool) -> Self {
        fs::create_dir(base.path().join("tmp")).unwrap();
        Self {
            base,
            tree,
            mounted,
        }
    }

    /// Where engines have their directories.
    pub(crate) fn engines(&self) -> PathBuf {
        self.base.path().join("tmp")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.tree.join("ws")
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.workspace().join(below)
    }

    pub(crate) fn outside(&self, below: &str) -> PathBuf {
        self.tree.join("outside").join(below)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mounted {
            for mounted in [&self.tree, &self.base.path().join("layers")] {
                let _ = rustix::mount::unmount(mounted, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

fn fill(tree: &Path) {
    let ws = tree.join("ws");
    fs::create_dir_all(ws.join("below/deep")).unwrap();
    fs::create_dir_all(tree.join("outside")).unwrap();
    for name in [
        "read",
        "written",
        "deleted",
        "below/deep/kept",
        "set-id",
        "their-own",
    ] {
        fs::write(ws.join(name), name).unwrap();
    }
    for name in ["canary", "two-names"] {
        fs::write(tree.join("outside").join(name), name).unwrap();
    }
    fs::hard_link(tree.join("outside/two-names"), ws.join("two-names")).unwrap();
    symlink("../outside/canary", ws.join("link")).unwrap();
    symlink("../outside", ws.join("link-to-directory")).unwrap();
    fs::set_permissions(ws.join("read"), fs::Permissions::from_mode(0o600)).unwrap();
    make_fifo(&ws.join("go"));
    give(tree, CALLER);
    set(&ws.join("their-own"), OTHER);
    fs::set_permissions(ws.join("set-id"), fs::Permissions::from_mode(0o4755)).unwrap();
}

pub(crate) fn give(path: &Path, owner: Owner) {
    set(path, owner);
    if fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), owner);
        }
    }
}

pub(crate) fn set(path: &Path, owner: Owner) {
    lchown(path, Some(owner.uid), Some(owner.gid)).unwrap();
}

pub(crate) fn owner(path: &Path) -> Owner {
    let facts = fs::symlink_metadata(path).unwrap();
    Owner {
        uid: facts.uid(),
        gid: facts.gid(),
    }
}

/// What any change of owner, mode or content would change.
pub(crate) fn trace(path: &Path) -> (u64, u32, u32, u32, i64, i64) {
    let facts = fs::symlink_metadata(path).unwrap();
    (
        facts.ino(),
        facts.uid(),
        facts.gid(),
        facts.mode(),
        facts.ctime(),
        facts.ctime_nsec(),
    )
}

/// Paths below `path`, itself included, with another owner than this.
pub(crate) fn not_owned_by(path: &Path, expected: Owner) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if owner(path) != expected {
        found.push(path.to_owned());
    }
    if fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(not_owned_by(&entry.unwrap().path(), expected));
        }
    }
    found
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
}
