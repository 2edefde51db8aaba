//! A realm: one user namespace and, owned by it, one pid namespace, whose pid 1 is this process. It forks spawners and
//! keepers, which share both, and reaps them. When it dies, the kernel kills all of them and all their sandboxes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Gid, Signal, Uid, WaitOptions, set_parent_process_death_signal, wait};
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use super::message::{Role, ToRealm};
use super::{keeper, spawner, template};
use crate::sandbox::identity::BOX_ID;
use crate::spec::Profile;
use crate::sys::clone::{Namespaces, fork};
use crate::sys::datagram;
use crate::sys::exec::exit_now;
use crate::sys::signal;

/// What a realm hands to a process that it forks.
#[derive(Debug)]
pub struct Inherited {
    pub root: OwnedFd,
    pub engine: OwnedFd,
    pub cgroups: Vec<OwnedFd>,
    pub profile: Profile,
    /// There are no namespaces.
    pub alone: bool,
}

/// The life of a realm; `launcher` is its socket. `become_user`: the ids inside are mapped by now and are to be taken.
pub fn main(launcher: &OwnedFd, become_user: bool) -> ! {
    let code = i32::from(live(launcher, become_user).is_err());
    exit_now(code)
}

fn live(launcher: &OwnedFd, become_user: bool) -> io::Result<()> {
    if become_user {
        take_user()?;
    }
    // After the last change of credentials: that clears it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let children = signal::child_descriptor()?;
    loop {
        let mut wanted = [
            PollFd::new(launcher, PollFlags::IN),
            PollFd::new(&children, PollFlags::IN),
        ];
        match poll(&mut wanted, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [asked, died] = wanted.map(|fd| !fd.revents().is_empty());
        if died {
            reap(&children);
        }
        if asked {
            let Some((request, descriptors)) = datagram::receive::<ToRealm>(launcher.as_fd())?
            else {
                return Ok(());
            };
            make(request, descriptors, launcher)?;
        }
    }
}

/// Becomes the sandbox's user, and keeps the capabilities: no uid of this user namespace gives or takes any.
fn take_user() -> io::Result<()> {
    set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_SETUID_FIXUP,
    )?;
    set_thread_groups(&[])?;
    let gid = Gid::from_raw(BOX_ID);
    set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(BOX_ID);
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn make(request: ToRealm, descriptors: Vec<OwnedFd>, launcher: &OwnedFd) -> io::Result<()> {
    let ToRealm {
        role,
        profile,
        alone,
    } = request;
    let mut all = descriptors.into_iter();
    let (Some(root), Some(engine)) = (all.next(), all.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let inherited = Inherited {
        root,
        engine,
        cgroups: all.collect(),
        profile,
        alone,
    };
    let namespaces = match role {
        _ if alone => Namespaces::default(),
        Role::Spawner | Role::Template => Namespaces::MOUNT
            .and(Namespaces::NET)
            .and(Namespaces::IPC)
            .and(Namespaces::UTS),
        Role::Keeper => Namespaces::MOUNT.and(Namespaces::NET).and(Namespaces::IPC),
    };
    match fork(namespaces, None) {
        Ok(None) => {
            close(launcher.as_fd());
            match role {
                Role::Spawner => spawner::main(inherited),
                Role::Keeper => keeper::main(inherited),
                Role::Template => template::main(inherited),
            }
        }
        // The socket of a process that could not be made closes here: the engine sees its end.
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Closes the forked process's copy of a descriptor that its parent keeps using.
fn close(fd: BorrowedFd<'_>) {
    use std::os::fd::AsRawFd;
    if let Ok(number) = u32::try_from(fd.as_raw_fd()) {
        let _ = crate::sys::exec::close_range(number, number);
    }
}

/// Reaps every child that has ended, and says whether there was one.
pub fn reap(children: &OwnedFd) -> bool {
    let mut record = [0; 128];
    while rustix::io::read(children, &mut record).is_ok_and(|read| read > 0) {}
    let mut any = false;
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {
        any = true;
    }
    any
}
