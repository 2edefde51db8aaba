//! A spawner lives in the finished root of one slot, with the slot's cgroups, network namespace and base filter already
//! its own. A sandbox is one clone from it, made ahead of the step that will use it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{
    DumpableBehavior, Signal, dumpable_behavior, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::set_no_new_privs;

use super::message::{FromSpawner, ToSpawner};
use super::realm::{Inherited, reap};
use crate::sandbox::identity::Identity;
use crate::sandbox::plan::{Context, SPAWNER, SPAWNER_ALONE, Step, StepError};
use crate::sandbox::skeleton::SkeletonSpec;
use crate::sandbox::{capabilities, init, landlock, seccomp, tree};
use crate::spec::{Capabilities, Profile};
use crate::sys::clone::{Child, Namespaces, fork};
use crate::sys::exec::{close_range, exit_now};
use crate::sys::{datagram, keyring, netdevice, signal};
use crate::workspace::Tree;

/// Where the new root is mounted until it is the root. Any directory of the host's tree serves.
const STAGING: &str = "/proc";

/// The life of a spawner.
pub fn main(inherited: Inherited) -> ! {
    let Inherited {
        root,
        engine,
        cgroups,
        profile,
        alone,
    } = inherited;
    // Inherited by every sandbox.
    signal::reset_dispositions();
    let code = match live(&engine, root, cgroups, (profile, alone)) {
        Ok(()) => 0,
        Err(error) => {
            // A peer that is gone needs no telling.
            let _ = datagram::send(engine.as_fd(), &FromSpawner::Failed(error), &[]);
            1
        }
    };
    exit_now(code)
}

fn live(
    engine: &OwnedFd,
    root: OwnedFd,
    cgroups: Vec<OwnedFd>,
    (profile, alone): (Profile, bool),
) -> Result<(), StepError> {
    let mut root = Some(root);
    for step in if alone { SPAWNER_ALONE } else { SPAWNER } {
        one(*step, &mut root, &cgroups, profile)?;
    }
    drop(cgroups);
    tell(engine, &FromSpawner::Ready, &[])?;
    serve(engine, alone)
}

/// Takes one step of a list of the plan.
pub fn one(
    step: Step,
    root: &mut Option<OwnedFd>,
    cgroups: &[OwnedFd],
    profile: Profile,
) -> Result<(), StepError> {
    match step {
        Step::DieWithParent => {
            set_parent_process_death_signal(Some(Signal::KILL)).at(step, "spawner")
        }
        Step::JoinCgroups => cgroups.iter().enumerate().try_for_each(|(index, procs)| {
            rustix::io::write(procs, b"0")
                .map(drop)
                .at(step, format!("cgroup.procs {index}"))
        }),
        Step::EnterRoot => root
            .take()
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .and_then(enter_root)
            .at(step, "/"),
        Step::TemplateProc => mount(
            "proc",
            "proc",
            "proc",
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            None,
        )
        .at(step, "/proc"),
        Step::PivotRoot => pivot_root().at(step, "/"),
        Step::LoopbackUp => {
            // Nobody's service can be taken the place of: a server listens where it always does. What an older kernel
            // does not have, it does not give.
            let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
            netdevice::loopback_up().at(step, "lo")
        }
        Step::SessionKeyring => keyring::join_fresh().at(step, "session keyring"),
        Step::LockSecurebits => capabilities::lock_securebits().at(step, "securebits"),
        Step::DropBoundingSet => {
            capabilities::drop_bounding_set(Capabilities::NONE).at(step, "bounding set")
        }
        Step::DropCapabilities => capabilities::drop_others(Capabilities::NONE).at(step, "spawner"),
        Step::AdoptOrphans => signal::adopt_orphans().at(step, "spawner"),
        Step::Enclose => landlock::enclose().at(step, "spawner"),
        Step::NoNewPrivileges => set_no_new_privs(true).at(step, "no_new_privs"),
        Step::BaseFilter => {
            crate::sys::seccomp::load(seccomp::base_filter(profile)).at(step, "base filter")
        }
        other => Err(StepError::new(
            other,
            "not a step of a spawner",
            &io::ErrorKind::InvalidInput.into(),
        )),
    }
}

/// Mounts the slot's root and stands in it.
pub fn enter_root(root: OwnedFd) -> io::Result<()> {
    tree::attach(root, Path::new(STAGING))?;
    Ok(rustix::process::chdir(STAGING)?)
}

/// Makes the current directory the root, and lets go of the host's tree.
pub fn pivot_root() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

fn tell(
    engine: &OwnedFd,
    message: &FromSpawner,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<(), StepError> {
    datagram::send(engine.as_fd(), message, descriptors).at(Step::CloneSandbox, "the engine")
}

fn serve(engine: &OwnedFd, alone: bool) -> Result<(), StepError> {
    let children = signal::child_descriptor().at(Step::CloneSandbox, "signalfd")?;
    let mut scratch = Vec::new();
    loop {
        let mut wanted = [
            PollFd::new(engine, PollFlags::IN),
            PollFd::new(&children, PollFlags::IN),
        ];
        match poll(&mut wanted, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).at(Step::CloneSandbox, "poll"),
        }
        let [asked, died] = wanted.map(|fd| !fd.revents().is_empty());
        if died {
            let reaped = reap(&children);
            if alone && reaped {
                // An init that was killed by another than the engine could not end what it started.
                signal::end_all_others();
            }
        }
        if asked {
            let Some((request, descriptors)) =
                datagram::receive(engine.as_fd()).at(Step::CloneSandbox, "the engine")?
            else {
                return Ok(());
            };
            handle(engine, request, descriptors, &mut scratch, alone)?;
        }
    }
}

fn handle(
    engine: &OwnedFd,
    request: ToSpawner,
    descriptors: Vec<OwnedFd>,
    scratch: &mut Vec<Scratch>,
    alone: bool,
) -> Result<(), StepError> {
    let done = match request {
        ToSpawner::Attach {
            target,
            scratch: is_scratch,
        } => attach(target, descriptors, alone).map(|attached| {
            if is_scratch {
                scratch.push(attached);
            }
            None
        }),
        ToSpawner::Prepare(spec) => prepare(&spec, descriptors, scratch).map(Some),
    };
    match done {
        Ok(None) => tell(engine, &FromSpawner::Attached, &[]),
        Ok(Some(pidfd)) => tell(engine, &FromSpawner::Prepared, &[pidfd.as_fd()]),
        Err(error) => tell(engine, &FromSpawner::Failed(error), &[]),
    }
}

/// A directory that is emptied before each sandbox. It is held by descriptor: what a session mounts over its path is
/// somebody else's.
struct Scratch {
    tree: OwnedFd,
    target: PathBuf,
}

/// Without namespaces the tree is where it is.
fn attach(target: PathBuf, descriptors: Vec<OwnedFd>, alone: bool) -> Result<Scratch, StepError> {
    let operand = target.display().to_string();
    let tree = descriptors
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .at(Step::AttachMount, operand.clone())?;
    if !alone {
        tree::attach(&tree, &target).at(Step::AttachMount, operand)?;
    }
    Ok(Scratch { tree, target })
}

/// Clones the init of the next sandbox; it has memory of its own, so that its death by the kernel is not ours.
fn prepare(
    spec: &SkeletonSpec,
    descriptors: Vec<OwnedFd>,
    scratch: &[Scratch],
) -> Result<OwnedFd, StepError> {
    if spec.alone.is_some() {
        // Nothing of the last sandbox may be left to write there.
        signal::end_all_others();
    }
    for directory in scratch {
        empty(directory)?;
    }
    let mut descriptors = descriptors.into_iter();
    let control = descriptors
        .next()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .at(Step::CloneSandbox, "init's socket")?;
    let leaf = descriptors.next();
    let namespaces = Namespaces::PID
        .and(Namespaces::MOUNT)
        .and(Namespaces::IPC)
        .and(Namespaces::UTS);
    // Of a cgroup that it is born in it makes a namespace itself.
    let namespaces = match (&spec.alone, spec.own_cgroup) {
        (Some(_), _) => Namespaces::default(),
        (None, true) => namespaces,
        (None, false) => namespaces.and(Namespaces::CGROUP),
    };
    let leaf = leaf.as_ref().map(AsFd::as_fd);
    let child = if spec.own_users() {
        fork_with_users(namespaces, leaf, spec.identity)?
    } else {
        fork(namespaces, leaf).at(Step::CloneSandbox, "a sandbox's init")?
    };
    match child {
        Some(child) => Ok(child.pidfd),
        None => {
            keep_only(&control);
            init::main(&control, spec)
        }
    }
}

/// Forks into a user namespace of its own as well. The child waits until its ids are mapped.
fn fork_with_users(
    namespaces: Namespaces,
    leaf: Option<BorrowedFd<'_>>,
    identity: Identity,
) -> Result<Option<Child>, StepError> {
    let step = Step::OwnUsers;
    let (go_read, go_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(step, "pipe")?;
    let before = dumpable_behavior().at(step, "dumpable")?;
    // The files of a process that is not dumpable are nobody's here, and the child is born as this one is.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(step, "dumpable")?;
    let child = fork(namespaces.and(Namespaces::USER), leaf);
    if !matches!(child, Ok(None)) && before != DumpableBehavior::Dumpable {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).at(step, "dumpable")?;
    }
    let Some(child) = child.at(step, "a sandbox's init")? else {
        drop(go_write);
        if rustix::io::read(&go_read, &mut [0]) != Ok(1) {
            exit_now(1);
        }
        return Ok(None);
    };
    // A child that is not told to go on ends.
    for (map, seen) in [("uid_map", identity.uid), ("gid_map", identity.gid)] {
        map_ids(child.pid, map, identity, seen).at(step, map)?;
    }
    rustix::io::write(&go_write, b"x").at(step, "a sandbox's init")?;
    Ok(Some(child))
}

fn map_ids(child: i32, map: &str, identity: Identity, seen: u32) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let around = std::fs::read_to_string(format!("/proc/self/{map}"))?;
    let lines = identity.lines(seen, &around);
    let path = format!("/proc/{child}/{map}");
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, lines.as_bytes())?;
    Ok(())
}

fn empty(scratch: &Scratch) -> Result<(), StepError> {
    let operand = scratch.target.display().to_string();
    let tree = rustix::io::fcntl_dupfd_cloexec(&scratch.tree, 3)
        .at(Step::EmptyScratch, operand.clone())?;
    Tree::open(tree)
        .and_then(|tree| {
            tree.clear()?;
            tree.restore()
        })
        .map_err(|error| {
            let kind = io::Error::from(io::ErrorKind::Other);
            StepError::new(Step::EmptyScratch, format!("{operand}: {error}"), &kind)
        })
}

/// Closes everything but standard streams (which are `/dev/null`) and `kept`: an init holds nothing of its spawner.
fn keep_only(kept: &OwnedFd) {
    use std::os::fd::AsRawFd;
    if let Ok(number) = u32::try_from(kept.as_raw_fd()) {
        let _ = close_range(3, number.saturating_sub(1));
        let _ = close_range(number + 1, u32::MAX);
    }
}
