//! The mechanisms, tried one after another in short-lived children of the order in which sandboxes use them. Nothing
//! stays: what a child made ends with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode as FileMode, OFlags, openat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::super::identity::{BOX_ID, Mode};
use super::super::{landlock, tree};
use crate::sys::clone::{Child, Namespaces, fork};
use crate::sys::exec::exit_now;
use crate::sys::mount::{Attributes, set_attributes};
use crate::sys::{namespace, netdevice, seccomp};

/// How the kernel answered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Attempt {
    /// What comes before it failed.
    #[default]
    NotTried,
    Done,
    Refused(i32),
}

/// What was tried, in order.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Attempts {
    /// `clone3` with a pidfd, without any namespace.
    pub process: Attempt,
    pub user_namespace: Attempt,
    /// The id maps of that user namespace.
    pub id_maps: Attempt,
    /// A mount namespace, and a mount in it.
    pub mount_namespace: Attempt,
    pub network_namespace: Attempt,
    /// Pid, ipc, uts and cgroup namespaces.
    pub other_namespaces: Attempt,
    /// A fresh `/proc`.
    pub proc: Attempt,
    pub seccomp_notification: Attempt,
    /// As root: owners translated by a mount of the scratch directory.
    pub idmapped_mount: Attempt,
    /// Without any namespace: signals kept in by Landlock.
    pub enclosure: Attempt,
    /// And a filter with a listener.
    pub plain_notification: Attempt,
}

#[derive(Clone, Copy)]
enum Trial {
    Enclosure,
    PlainNotification,
    UserNamespace,
    IdMaps,
    MountNamespace,
    NetworkNamespace,
    OtherNamespaces,
    Proc,
    SeccompNotification,
    IdmappedMount,
}

impl Attempts {
    /// To be called before any thread exists.
    pub(super) fn make(mode: Mode, scratch: &Path) -> Self {
        let mut attempts = Self::default();
        if let Err(error) = attempts.in_a_child(sandbox_trials) {
            attempts.process = refused(&error);
            return attempts;
        }
        attempts.process = Attempt::Done;
        // A child that could not be forked has tried nothing, as is recorded.
        let _ = attempts.in_a_child(|report| {
            let enclosed = rustix::thread::set_no_new_privs(true)
                .map_err(io::Error::from)
                .and_then(|()| landlock::enclose());
            note(report, Trial::Enclosure, enclosed)?;
            note(report, Trial::PlainNotification, listen())
        });
        if mode == Mode::Root {
            // A child that could not be forked has tried nothing, as is recorded.
            let _ = attempts.in_a_child(|report| {
                let done = idmapped_mount(scratch);
                note(report, Trial::IdmappedMount, done).map(drop)
            });
        }
        attempts
    }

    /// Runs trials in a child, and takes over what it reports.
    fn in_a_child(&mut self, trials: impl FnOnce(&OwnedFd) -> Option<()>) -> io::Result<()> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let Some(child) = fork(Namespaces::default(), None)? else {
            let _ = trials(&write);
            exit_now(0)
        };
        drop(write);
        let mut record = [0; 8];
        while let Ok(8) = rustix::io::read(&read, &mut record) {
            let [trial, _, _, _, errno @ ..] = record;
            self.take(trial, i32::from_ne_bytes(errno));
        }
        reap(&child);
        Ok(())
    }

    fn take(&mut self, trial: u8, errno: i32) {
        let slot = match trial {
            t if t == Trial::UserNamespace as u8 => &mut self.user_namespace,
            t if t == Trial::IdMaps as u8 => &mut self.id_maps,
            t if t == Trial::MountNamespace as u8 => &mut self.mount_namespace,
            t if t == Trial::NetworkNamespace as u8 => &mut self.network_namespace,
            t if t == Trial::OtherNamespaces as u8 => &mut self.other_namespaces,
            t if t == Trial::Proc as u8 => &mut self.proc,
            t if t == Trial::SeccompNotification as u8 => &mut self.seccomp_notification,
            t if t == Trial::IdmappedMount as u8 => &mut self.idmapped_mount,
            t if t == Trial::Enclosure as u8 => &mut self.enclosure,
            t if t == Trial::PlainNotification as u8 => &mut self.plain_notification,
            _ => return,
        };
        *slot = match errno {
            0 => Attempt::Done,
            errno => Attempt::Refused(errno),
        };
    }
}

fn refused(error: &io::Error) -> Attempt {
    Attempt::Refused(error.raw_os_error().unwrap_or(libc::EIO))
}

fn reap(child: &Child) {
    // A child that is gone already needs no waiting for.
    let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
}

/// Reports one answer; none when there is no way on from it.
fn note(report: &OwnedFd, trial: Trial, done: io::Result<()>) -> Option<()> {
    let errno = match &done {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    let mut record = [0; 8];
    record[0] = trial as u8;
    record[4..].copy_from_slice(&errno.to_ne_bytes());
    // Without a reader nobody asks.
    let _ = rustix::io::write(report, &record);
    done.ok()
}

fn sandbox_trials(report: &OwnedFd) -> Option<()> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let entered = namespace::unshare(Namespaces::USER);
    note(report, Trial::UserNamespace, entered)?;
    // Root's realms get their maps from a parent that may write any; the way of the rootless works for both.
    note(report, Trial::IdMaps, map_ids(uid, gid))?;
    note(report, Trial::MountNamespace, mount_something())?;
    let loopback = namespace::unshare(Namespaces::NET).and_then(|()| netdevice::loopback_up());
    // The trials that follow do not build on it.
    let _ = note(report, Trial::NetworkNamespace, loopback);
    let namespaces = Namespaces::PID
        .and(Namespaces::MOUNT)
        .and(Namespaces::IPC)
        .and(Namespaces::UTS)
        .and(Namespaces::CGROUP);
    match fork(namespaces, None) {
        Ok(None) => {
            // A filter that lets the namespaces pass may refuse what a sandbox does in them.
            let named = rustix::system::sethostname(b"stepbox").map_err(io::Error::from);
            let _ = note(report, Trial::OtherNamespaces, named);
            let _ = note(report, Trial::Proc, fresh_proc());
            let _ = note(report, Trial::SeccompNotification, listen());
            exit_now(0)
        }
        Ok(Some(child)) => reap(&child),
        Err(error) => note(report, Trial::OtherNamespaces, Err(error))?,
    }
    Some(())
}

fn map_ids(uid: u32, gid: u32) -> io::Result<()> {
    write_proc("/proc/self/setgroups", "deny")?;
    write_proc("/proc/self/uid_map", &format!("{BOX_ID} {uid} 1"))?;
    write_proc("/proc/self/gid_map", &format!("{BOX_ID} {gid} 1"))
}

fn write_proc(path: &str, text: &str) -> io::Result<()> {
    let fd = openat(
        CWD,
        path,
        OFlags::WRONLY | OFlags::CLOEXEC,
        FileMode::empty(),
    )?;
    rustix::io::write(fd, text.as_bytes())?;
    Ok(())
}

fn mount_something() -> io::Result<()> {
    namespace::unshare(Namespaces::MOUNT)?;
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    // Over a directory that every host has, and that the next trials do not use.
    Ok(mount("tmpfs", "/sys", "tmpfs", MountFlags::NOSUID, None)?)
}

fn fresh_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// A filter that allows everything, with a listener.
fn listen() -> io::Result<()> {
    let allow_all = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    rustix::thread::set_no_new_privs(true)?;
    seccomp::load_with_listener(&allow_all).map(drop)
}

fn idmapped_mount(directory: &Path) -> io::Result<()> {
    let fd = openat(
        CWD,
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        FileMode::empty(),
    )?;
    let clone = tree::clone_at(&fd, false)?;
    let (hold_read, hold_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let Some(holder) = fork(Namespaces::USER, None)? else {
        drop(hold_write);
        let _ = rustix::io::read(&hold_read, &mut [0]);
        exit_now(0)
    };
    let mapped = (|| {
        for map in ["uid_map", "gid_map"] {
            write_proc(&format!("/proc/{}/{map}", holder.pid), "0 0 1")?;
        }
        let namespace = openat(
            CWD,
            format!("/proc/{}/ns/user", holder.pid),
            OFlags::RDONLY | OFlags::CLOEXEC,
            FileMode::empty(),
        )?;
        let attributes = Attributes {
            id_map: Some(namespace.as_fd()),
            ..Attributes::default()
        };
        set_attributes(clone.as_fd(), attributes, false)
    })();
    drop(hold_write);
    reap(&holder);
    mapped
}
