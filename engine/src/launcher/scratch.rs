//! Removing what an engine leaves on disk and in the cgroup tree. Run by the engine at its end, by the launcher when the
//! engine died, and by the next engine when both did.

use std::fs;
use std::path::Path;

use super::message::Setup;
use crate::sandbox::cgroup::Cgroups;
use crate::workspace::Tree;

/// Removes everything that belongs to an engine whose sandboxes are dead.
pub fn remove_all(setup: &Setup) {
    Cgroups::sweep(|engine_id| engine_id == setup.engine_id);
    remove_directory(&setup.scratch);
    remove_directory(&setup.state);
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
    if let Ok(tree) = opened.map_err(|_| ()).and_then(|fd| Tree::open(fd).map_err(|_| ())) {
        let _ = tree.clear();
    }
    let _ = fs::remove_dir(path);
}
