//! The launcher itself: it sees the host's tree, builds roots, clones trees, makes realms, and cleans up after a dead
//! engine. Requests are short; it never waits for anything but the next one.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode as FileMode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_change};
use rustix::thread::set_no_new_privs;

use super::message::{
    FromLauncher, LauncherReply, LauncherRequest, Ready, RealmId, Role, Setup, ToLauncher, ToRealm,
    TreeRequest,
};
use super::volumes::Volumes;
use super::{realm, scratch, subordinate};
use crate::sandbox::cgroup::Hierarchy;
use crate::sandbox::identity::{BOX_ID, HostIds, Mode};
use crate::sandbox::numbers::{self, Numbers};
use crate::sandbox::plan::{Context, Step, StepError};
use crate::sandbox::rootfs::{self, RootSpec};
use crate::sandbox::{capabilities, landlock, seccomp, tree};
use crate::spec::{Capabilities, Profile};
use crate::sys::clone::{Child, Namespaces, fork};
use crate::sys::exec::exit_now;
use crate::sys::mount::{Attributes, set_attributes};
use crate::sys::{datagram, namespace, schedule, signal};

/// Roots kept for later slots; past it the oldest is let go.
const MAX_ROOTS: usize = 32;
/// Numbers that one file system holds; past it a new one is begun, and the old one goes with the last sandbox that has it.
const MAX_NUMBERS: usize = 64;

/// The second life of a launcher, in its own namespaces; `engine` is its socket.
pub(super) fn live(engine: &OwnedFd, mode: Mode, alone: bool) -> Result<(), StepError> {
    super::itself::settle_capabilities()?;
    let Some((setup, _)) =
        datagram::receive::<Setup>(engine.as_fd()).at(Step::Realm, "the engine")?
    else {
        return Ok(());
    };
    signal::block_all().at(Step::Realm, "signals")?;
    if alone {
        set_no_new_privs(true).at(Step::NoNewPrivileges, "launcher")?;
        signal::adopt_orphans().at(Step::AdoptOrphans, "launcher")?;
        landlock::enclose().at(Step::Enclose, "launcher")?;
    }
    // Compiled here once, so that what is forked from here has them.
    for profile in [Profile::Default, Profile::Untrusted] {
        seccomp::base_filter(profile);
        seccomp::step_filter(profile);
    }
    seccomp::pin_filter();
    for pinned in [false, true] {
        seccomp::alone_filter(pinned);
    }
    let mut launcher = Launcher {
        mode,
        alone,
        roots_at: setup.state.join("roots"),
        roots: Vec::new(),
        roots_made: 0,
        realms: HashMap::new(),
        owner_maps: HashMap::new(),
        cgroups: Vec::new(),
        way_out: None,
        hierarchies: Vec::new(),
        numbers: Vec::new(),
        numbers_mounted: false,
        numbers_at: setup.state.join("numbers"),
        volumes: Volumes::default(),
    };
    for directory in [&launcher.roots_at, &launcher.numbers_at] {
        fs::create_dir_all(directory).at(Step::RootTmpfs, "the engine's directory")?;
    }
    let ready: Result<Ready, StepError> = Ok(Ready {
        mode,
        range: if alone {
            Err("there is no user namespace to have ids in".to_owned())
        } else {
            subordinate::available(mode)
        },
    });
    datagram::send(engine.as_fd(), &ready, &[]).at(Step::Realm, "the engine")?;
    retire_stale(&setup, mode).at(Step::Realm, "a cleaner")?;
    while let Ok(Some((request, descriptors))) = datagram::receive::<ToLauncher>(engine.as_fd()) {
        if launcher
            .answer(engine.as_fd(), request, descriptors)
            .is_err()
        {
            // It died while it waited for this answer.
            break;
        }
    }
    // The engine is gone: nothing that it made may stay.
    launcher.realms.clear();
    if alone {
        // No pid namespace went with them. What writes there must be gone before the directories are removed.
        signal::end_all_others();
    }
    launcher.forget_numbers();
    for (_, _, place) in launcher.roots.drain(..) {
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
    }
    if let Some(way_out) = &launcher.way_out {
        // Where it fails a cgroup is left to the next sweep.
        let _ = fs::write(way_out, "0");
    }
    scratch::remove_groups(&launcher.cgroups);
    scratch::retire_directory(&setup.scratch, mode);
    scratch::remove_directory(&setup.state);
    Ok(())
}

/// Gives back what dead engines borrowed, before a session of this engine can want it. What they left is removed in a
/// process of its own: a large tree must not keep the first session waiting. It is reaped with this process's children.
fn retire_stale(setup: &Setup, mode: Mode) -> io::Result<()> {
    let settled: Vec<_> = setup
        .stale
        .iter()
        .filter(|directory| scratch::settle(directory, mode))
        .collect();
    if settled.is_empty() || fork(Namespaces::default(), None)?.is_some() {
        return Ok(());
    }
    // The cleaner ends with the launcher: what it did not get to is the next engine's.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    for directory in settled {
        scratch::remove_directory(directory);
    }
    exit_now(0)
}

/// Reaps a cleaner that has ended. A realm that is reaped here is dead, which is all that its end waits for.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Leaves the host's user namespace when there is no right to mount in it, and in any case its mounts.
pub(super) fn enter_namespaces() -> Result<Mode, StepError> {
    let mode = Mode::of_this_process().at(Step::UserNamespace, "capabilities")?;
    if let Mode::Rootless { uid, gid } = mode {
        let mapper = subordinate::mapper(uid, gid).at(Step::UserNamespace, "ids")?;
        namespace::unshare(Namespaces::USER).at(Step::UserNamespace, "unshare")?;
        let mapped = mapper.map_or(Ok(false), subordinate::Mapper::map);
        if !mapped.at(Step::UserNamespace, "ids")? {
            map_one_id(uid, gid)?;
        }
    }
    namespace::unshare(Namespaces::MOUNT).at(Step::MountNamespace, "unshare")?;
    // Mounts that the host makes later still arrive; ours never leave.
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM,
    )
    .at(Step::MountNamespace, "propagation")?;
    schedule::leave_realtime().at(Step::OrdinaryProcesses, "scheduler")?;
    Ok(mode)
}

/// Stays in the host's namespaces, with the caller's ids and no other rights.
pub(super) fn stay() -> Result<Mode, StepError> {
    schedule::leave_realtime().at(Step::OrdinaryProcesses, "scheduler")?;
    capabilities::drop_others(Capabilities::NONE).at(Step::DropCapabilities, "launcher")?;
    landlock::alone_or_why().at(Step::Enclose, "Landlock")?;
    Ok(Mode::Rootless {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    })
}

/// The one id that needs nobody's leave. Of two maps one may have been written already.
fn map_one_id(uid: u32, gid: u32) -> Result<(), StepError> {
    let is_empty = |map: &str| fs::read_to_string(map).is_ok_and(|text| text.trim().is_empty());
    if is_empty("/proc/self/uid_map") {
        write_proc("/proc/self/uid_map", &format!("{BOX_ID} {uid} 1"))
            .at(Step::UserNamespace, "uid_map")?;
    }
    if is_empty("/proc/self/gid_map") {
        write_proc("/proc/self/setgroups", "deny").at(Step::UserNamespace, "setgroups")?;
        write_proc("/proc/self/gid_map", &format!("{BOX_ID} {gid} 1"))
            .at(Step::UserNamespace, "gid_map")?;
    }
    Ok(())
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

/// A realm as the launcher holds it; dropping it kills all that is in it.
#[derive(Debug)]
struct Realm {
    socket: OwnedFd,
    child: Child,
    ids: Option<HostIds>,
    namespace: OwnedFd,
}

impl Realm {
    /// Where a file system of the tree cannot translate owners they show as nobody's, and nothing else changes.
    fn show_owners(&self, tree: &OwnedFd) {
        if self.ids.is_some_and(|ids| ids.first == 0) {
            let map = Attributes {
                id_map: Some(self.namespace.as_fd()),
                ..Attributes::default()
            };
            let _ = set_attributes(tree.as_fd(), map, true);
        }
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(
            self.child.pidfd.as_fd(),
            rustix::process::Signal::KILL,
        );
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.child.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED,
        );
    }
}

#[derive(Debug)]
struct Launcher {
    mode: Mode,
    /// There are no namespaces: nothing is mounted, and each tree is used where it is.
    alone: bool,
    roots_at: PathBuf,
    roots: Vec<(RootSpec, OwnedFd, PathBuf)>,
    roots_made: u64,
    realms: HashMap<RealmId, Realm>,
    /// User namespaces that translate one owner to a realm's user.
    owner_maps: HashMap<(RealmId, u32, u32), OwnedFd>,
    /// Directories of the engine's cgroups.
    cgroups: Vec<PathBuf>,
    way_out: Option<PathBuf>,
    hierarchies: Vec<Hierarchy>,
    /// Those whose files are below `numbers_at`, each in a directory that its place names.
    numbers: Vec<Numbers>,
    numbers_at: PathBuf,
    numbers_mounted: bool,
    volumes: Volumes,
}

impl Launcher {
    fn answer(
        &mut self,
        engine: BorrowedFd<'_>,
        request: ToLauncher,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        reap();
        let done = match request.request {
            LauncherRequest::Own {
                directories,
                way_out,
                hierarchies,
            } => {
                self.cgroups = directories;
                self.way_out = way_out;
                self.hierarchies = hierarchies;
                Ok((LauncherReply::Done, None))
            }
            LauncherRequest::MakeRealm(id) => self
                .make_realm(id)
                .map(|user| (LauncherReply::Realm { user }, None)),
            LauncherRequest::DropRealm(id) => {
                self.drop_realm(id);
                Ok((LauncherReply::Done, None))
            }
            LauncherRequest::MakeProcess { realm, role, root } => self
                .make_process(realm, role, &root, descriptors)
                .map(|()| (LauncherReply::Done, None)),
            LauncherRequest::CloneTree(request) => self
                .clone_tree(&request)
                .map(|(reply, fd)| (reply, Some(fd))),
            LauncherRequest::Numbers { realm, numbers } => self
                .numbers(realm, numbers)
                .map(|fd| (LauncherReply::Done, Some(fd))),
            LauncherRequest::HoldVolume(place) => self
                .hold_volume(place, &descriptors)
                .map(|()| (LauncherReply::Done, None)),
            LauncherRequest::DropVolume(place) => self
                .volumes
                .release(&place)
                .at(Step::MountVolume, place.display().to_string())
                .map(|()| (LauncherReply::Done, None)),
        };
        let (result, tree) = match done {
            Ok((reply, tree)) => (Ok(reply), tree),
            Err(error) => (Err(error), None),
        };
        let reply = FromLauncher {
            number: request.number,
            result,
        };
        let beside: Vec<_> = tree.iter().map(AsFd::as_fd).collect();
        datagram::send(engine, &reply, &beside).at(Step::Realm, "the engine")
    }

    fn make_realm(&mut self, id: RealmId) -> Result<u32, StepError> {
        let operand = format!("realm {id}");
        let (ours, theirs) = datagram::pair().at(Step::Realm, operand.clone())?;
        let ids = match self.mode {
            Mode::Root => Some(HostIds::nth(id).at(Step::Realm, "id maps")?),
            Mode::Rootless { .. } => None,
        };
        let mut namespaces = Namespaces::PID.and(Namespaces::MOUNT).and(Namespaces::IPC);
        if self.alone {
            namespaces = Namespaces::default();
        }
        if ids.is_some() {
            namespaces = namespaces.and(Namespaces::USER);
        }
        // The realm takes its ids when they are mapped: it waits for one byte.
        let (go_read, go_write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(Step::Realm, "pipe")?;
        let child = fork(namespaces, None).at(Step::Realm, operand.clone())?;
        let Some(child) = child else {
            drop(go_write);
            let mut byte = [0];
            if rustix::io::read(&go_read, &mut byte) != Ok(1) {
                exit_now(1);
            }
            keep_only(&theirs);
            realm::main(&theirs, ids.is_some());
        };
        let realm = Realm {
            namespace: open_namespace(ids.map(|_| child.pid)).at(Step::Realm, operand.clone())?,
            socket: ours,
            child,
            ids,
        };
        if let Some(ids) = ids {
            let line = ids.map_line();
            for map in ["uid_map", "gid_map"] {
                write_proc(&format!("/proc/{}/{map}", realm.child.pid), &line)
                    .at(Step::Realm, map)?;
            }
        }
        rustix::io::write(&go_write, b"x").at(Step::Realm, operand)?;
        self.realms.insert(id, realm);
        Ok(match (self.mode, ids) {
            (_, Some(ids)) => ids.user(),
            (Mode::Rootless { uid, .. }, None) => uid,
            (Mode::Root, None) => BOX_ID,
        })
    }

    fn drop_realm(&mut self, id: RealmId) {
        self.realms.remove(&id);
        self.owner_maps.retain(|(realm, _, _), _| *realm != id);
    }

    fn realm(&self, id: RealmId) -> Result<&Realm, StepError> {
        self.realms
            .get(&id)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
            .at(Step::Realm, format!("realm {id}"))
    }

    fn make_process(
        &mut self,
        id: RealmId,
        role: Role,
        root: &RootSpec,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        let clone = if self.alone {
            open_source(Path::new("/")).at(Step::CloneTree, "/")?
        } else {
            let index = self.root(root)?;
            let clone = tree::clone_at(&self.roots[index].1, true).at(Step::CloneTree, "/")?;
            self.realm(id)?.show_owners(&clone);
            clone
        };
        let realm = self.realm(id)?;
        let request = ToRealm {
            role,
            profile: root.profile,
            alone: self.alone,
        };
        let mut beside = vec![clone.as_fd()];
        beside.extend(descriptors.iter().map(AsFd::as_fd));
        datagram::send(realm.socket.as_fd(), &request, &beside)
            .at(Step::Realm, format!("realm {id}"))
    }

    /// The index of the root for this spec, built when there is none.
    fn root(&mut self, spec: &RootSpec) -> Result<usize, StepError> {
        if let Some(index) = self.roots.iter().position(|(known, _, _)| known == spec) {
            return Ok(index);
        }
        if self.roots.len() >= MAX_ROOTS {
            let (_, _, place) = self.roots.remove(0);
            let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
            let _ = fs::remove_dir(&place);
        }
        self.roots_made += 1;
        let place = self.roots_at.join(self.roots_made.to_string());
        fs::create_dir(&place).at(Step::RootTmpfs, "the engine's directory")?;
        match rootfs::build(spec, &self.hierarchies, &place) {
            Ok(root) => {
                self.roots.push((spec.clone(), root, place));
                Ok(self.roots.len() - 1)
            }
            Err(error) => {
                let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
                let _ = fs::remove_dir(&place);
                Err(error)
            }
        }
    }

    /// A read-only tree of the files that tell of `numbers`, which are written when there are none.
    fn numbers(&mut self, realm: RealmId, numbers: Numbers) -> Result<OwnedFd, StepError> {
        let step = Step::RootNumbers;
        let known = self.numbers.iter().position(|known| *known == numbers);
        let index = match known {
            Some(index) => index,
            None => self.write_numbers(numbers)?,
        };
        let place = self.numbers_at.join(index.to_string());
        let operand = numbers::DEVICES;
        let directory = openat(
            CWD,
            &place,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            FileMode::empty(),
        )
        .at(step, operand)?;
        let clone = tree::clone_at(&directory, false).at(step, operand)?;
        let attributes = Attributes {
            read_only: true,
            no_suid: true,
            no_dev: true,
            no_exec: true,
            private: true,
            ..Attributes::default()
        };
        set_attributes(clone.as_fd(), attributes, false).at(step, operand)?;
        self.realm(realm)?.show_owners(&clone);
        Ok(clone)
    }

    fn write_numbers(&mut self, numbers: Numbers) -> Result<usize, StepError> {
        let step = Step::RootNumbers;
        if self.numbers.len() >= MAX_NUMBERS {
            self.forget_numbers();
        }
        if !self.numbers_mounted {
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            let options = [("mode", "755"), ("size", "64m"), ("nr_inodes", "0")];
            let tree = tree::tmpfs(&options, attributes).at(step, "tmpfs")?;
            tree::attach(&tree, &self.numbers_at).at(step, "tmpfs")?;
            self.numbers_mounted = true;
        }
        let index = self.numbers.len();
        let place = self.numbers_at.join(index.to_string());
        // A directory of a time that failed is written anew.
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).at(step, numbers::DEVICES)?;
        numbers::write(&numbers, &place)?;
        self.numbers.push(numbers);
        Ok(index)
    }

    fn forget_numbers(&mut self) {
        if std::mem::take(&mut self.numbers_mounted) {
            let _ = rustix::mount::unmount(&self.numbers_at, rustix::mount::UnmountFlags::DETACH);
            self.numbers.clear();
        }
    }

    fn hold_volume(&mut self, place: PathBuf, mount: &[OwnedFd]) -> Result<(), StepError> {
        let operand = place.display().to_string();
        let held = match mount.first() {
            Some(mount) => self.volumes.hold(place, mount),
            None => Err(io::ErrorKind::InvalidData.into()),
        };
        held.at(Step::MountVolume, operand)
    }

    fn clone_tree(&mut self, request: &TreeRequest) -> Result<(LauncherReply, OwnedFd), StepError> {
        let operand = request.source.display().to_string();
        let alone = self.alone;
        let (source, clone) = self
            .volumes
            .at(&request.source, || {
                let source = open_source(&request.source)?;
                let clone = if alone {
                    source.try_clone()?
                } else {
                    tree::clone_at(&source, false)?
                };
                Ok((source, clone))
            })
            .at(Step::CloneTree, operand.clone())?;
        let stat = fstat(&source).at(Step::CloneTree, operand.clone())?;
        if request
            .identity
            .is_some_and(|identity| identity != (stat.st_dev, stat.st_ino))
        {
            let replaced = io::Error::from_raw_os_error(libc::ESTALE);
            return Err(StepError::new(Step::CloneTree, operand, &replaced));
        }
        let attributes = Attributes {
            read_only: request.read_only,
            no_exec: request.no_exec,
            no_suid: true,
            no_dev: true,
            private: true,
            ..Attributes::default()
        };
        if !self.alone {
            set_attributes(clone.as_fd(), attributes, false).at(Step::CloneTree, operand)?;
        }
        let mapped = match self.realm(request.realm)?.ids {
            Some(ids) if request.map_owner => {
                self.map_owner(request.realm, ids, stat.st_uid, stat.st_gid, clone.as_fd())?
            }
            _ => true,
        };
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Ok((LauncherReply::Tree { mapped, directory }, clone))
    }

    /// Whether the file system could translate the owner.
    fn map_owner(
        &mut self,
        id: RealmId,
        ids: HostIds,
        uid: u32,
        gid: u32,
        clone: BorrowedFd<'_>,
    ) -> Result<bool, StepError> {
        if let std::collections::hash_map::Entry::Vacant(entry) =
            self.owner_maps.entry((id, uid, gid))
        {
            let namespace = user_namespace(&ids.owner_map(uid), &ids.owner_map(gid))
                .at(Step::MapOwners, format!("owner {uid}:{gid}"))?;
            entry.insert(namespace);
        }
        let map = Attributes {
            id_map: self.owner_maps.get(&(id, uid, gid)).map(AsFd::as_fd),
            ..Attributes::default()
        };
        Ok(set_attributes(clone, map, false).is_ok())
    }
}

/// Opens what is to be mounted, by its resolved name: no link may have come into it since it was judged.
fn open_source(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?)
}

/// The user namespace of a child, or the own one, where a child that has no other is in too: a security module may let
/// nobody look into another process.
fn open_namespace(child: Option<i32>) -> io::Result<OwnedFd> {
    let process = child.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    Ok(openat(
        CWD,
        format!("/proc/{process}/ns/user"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        FileMode::empty(),
    )?)
}

/// A user namespace with these maps and nobody in it: only its translation is used.
fn user_namespace(uid_map: &str, gid_map: &str) -> io::Result<OwnedFd> {
    let (hold_read, hold_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let Some(child) = fork(Namespaces::USER, None)? else {
        drop(hold_write);
        let _ = rustix::io::read(&hold_read, &mut [0]);
        exit_now(0)
    };
    let namespace = write_proc(&format!("/proc/{}/uid_map", child.pid), uid_map)
        .and_then(|()| write_proc(&format!("/proc/{}/gid_map", child.pid), gid_map))
        .and_then(|()| open_namespace(Some(child.pid)));
    drop(hold_write);
    rustix::process::waitid(
        rustix::process::WaitId::PidFd(child.pidfd.as_fd()),
        rustix::process::WaitIdOptions::EXITED,
    )?;
    namespace
}

/// Closes everything but standard streams (which are `/dev/null`) and `kept`.
fn keep_only(kept: &OwnedFd) {
    if let Ok(number) = u32::try_from(kept.as_raw_fd()) {
        let _ = crate::sys::exec::close_range(3, number.saturating_sub(1));
        let _ = crate::sys::exec::close_range(number + 1, u32::MAX);
    }
}
