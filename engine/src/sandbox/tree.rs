//! Detached mount trees: clones of a part of what this mount namespace sees, handed on by descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::sys::mount::{Attributes, set_attributes};

/// Clones the tree at an open directory or file. `recursive` takes the mounts below it too.
pub fn clone_at(fd: impl AsFd, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(fd, "", flags)?)
}

/// Clones a tree of the host, read-only, with nothing setuid and no devices in it.
pub fn clone_read_only(path: &Path) -> io::Result<OwnedFd> {
    let tree = open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE,
    )?;
    set_attributes(
        tree.as_fd(),
        Attributes {
            read_only: true,
            no_suid: true,
            no_dev: true,
            private: true,
            ..Attributes::default()
        },
        true,
    )?;
    Ok(tree)
}

/// Mounts a detached tree at a path of this mount namespace.
pub fn attach(tree: impl AsFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(
        tree,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Mounts a detached tree over an open directory or file.
pub fn attach_at(tree: impl AsFd, target: impl AsFd) -> io::Result<()> {
    Ok(move_mount(
        tree,
        "",
        target,
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )?)
}

/// A fresh tmpfs, detached.
pub fn tmpfs(options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "tmpfs")?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}
