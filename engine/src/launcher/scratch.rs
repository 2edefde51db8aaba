//! Removing what an engine leaves on disk and in the cgroup tree. Run by the engine at its end, by the launcher when the
//! engine died, and by the next engine when both did.

use std::fs;
use std::path::Path;

use super::owners;
use crate::sandbox::identity::Mode;
use crate::workspace::Tree;

/// Removes cgroups in which every process is dead, with those below them. What cannot be removed is left to the next
/// sweep.
pub fn remove_groups(directories: &[std::path::PathBuf]) {
    for directory in directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_groups(&[entry.path()]);
            }
        }
        let _ = fs::remove_dir(directory);
    }
}

/// Gives back to its owners what the records of a dead or ending engine name; whether its directory may go. Else it is
/// left to the next sweep.
pub fn settle(path: &Path, mode: Mode) -> bool {
    owners::give_back_all(path, mode)
}

/// Removes the directory of a dead or ending engine once it is settled.
pub fn retire_directory(path: &Path, mode: Mode) {
    if settle(path, mode) {
        remove_directory(path);
    }
}

/// Removes a directory of ours with all that code may have done to what is in it. What cannot be removed is left to the
/// next sweep.
pub fn remove_directory(path: &Path) {
    let opened = rustix::fs::open(
        path,
        rustix::fs::OFlags::PATH
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    if let Ok(tree) = opened
        .map_err(|_| ())
        .and_then(|fd| Tree::open(fd).map_err(|_| ()))
    {
        let _ = tree.clear();
    }
    let _ = fs::remove_dir(path);
}
