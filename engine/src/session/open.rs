//! Making a session: its directories, its slot, its keeper.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::environment::{self, CACHE, WORKSPACE};
use super::equipment::SLOTS;
use super::names::attached;
use super::place::{Seen, keep_quota};
use super::quota::{self, Quota};
use super::record::{Parts, Session};
use super::searcher::Searcher;
use super::slots::{KEPT, Place, Posture, SessionMount, Slots};
use super::warm::Warm;
use super::{SessionError, SessionView, check, interpreter};
use crate::outcome::{AppliedLimit, EnforcedBy, Resource};
use crate::pool::PoolError;
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::{Identity, Mode, Others, home, temporary};
use crate::sandbox::landlock::Fence;
use crate::sandbox::plan::{Step, StepError};
use crate::sandbox::rootfs::{self, MountPoint, RootSpec};
use crate::sandbox::skeleton::SkeletonSpec;
use crate::spec::{
    Interpreter, Isolation, Limits, Profile, SandboxSpec, WorkspaceSource, shm_size,
};
use crate::workspace::source::create_workspace;

/// Directories that programs expect in the cache, as the sandbox's user's own.
const CACHE_PARTS: &[&str] = &["cargo", "go-build", "matplotlib", "npm", "pip"];

impl Engine {
    /// Makes a session; where one of its name lives and `attach` says so, that one is meant. With it whether it lived.
    pub async fn create_session(
        &self,
        spec: SandboxSpec,
        attach: bool,
    ) -> Result<(SessionView, bool), SessionError> {
        let Some(name) = spec.name.clone() else {
            return Ok((self.make_session(spec).await?, false));
        };
        let _alone = self.inner.names.turn(&name).await;
        match self.named(&name) {
            Some(session) => Ok((attached(&session, &spec, attach)?, true)),
            None => Ok((self.make_session(spec).await?, false)),
        }
    }

    async fn make_session(&self, spec: SandboxSpec) -> Result<SessionView, SessionError> {
        let session = Arc::new(match self.take_ahead(&spec) {
            Some(session) => session,
            None => self.open(spec).await?,
        });
        let view = session.view();
        self.sessions_table()
            .insert(session.id.clone(), Arc::clone(&session));
        self.follow(&session);
        self.close_when_idle(&session);
        Ok(view)
    }

    /// Makes a session that is in no table yet.
    pub(super) async fn open(&self, spec: SandboxSpec) -> Result<Session, SessionError> {
        check::kind(&self.inner.launcher, &spec)?;
        check::capabilities(&self.inner.launcher, &spec)?;
        let (quota, applied) = self.quota_of(&spec);
        let limits = check::limits(&self.inner.cgroups, &spec, applied)?;
        let interpreter = match &spec.interpreter {
            Some(interpreter) => Some(interpreter.clone()),
            None => self.default_interpreter().await,
        };
        self.give_back_for_the_dead(&spec).await;
        let id = self.new_id();
        let directory = self.inner.directories.scratch.join(&id);
        let made = self
            .open_in(&directory, id, spec, interpreter, (limits, quota))
            .await;
        if made.is_err() {
            self.drop_volume(&directory).await;
            crate::launcher::scratch::remove_directory(&directory);
        }
        made
    }

    /// What the caller gives may be what an engine that was killed could not give back.
    async fn give_back_for_the_dead(&self, spec: &SandboxSpec) {
        let given = matches!(spec.workspace, WorkspaceSource::Given { .. })
            || spec.mounts.iter().any(|mount| !mount.read_only);
        if self.mode() != Mode::Root || !given {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let given_back =
            tokio::task::spawn_blocking(move || inner.directories.give_back_for_the_dead());
        if given_back.await.is_err() {
            tracing::warn!("giving back what dead engines had was interrupted");
        }
    }

    async fn default_interpreter(&self) -> Option<Interpreter> {
        self.inner
            .interpreter
            .get_or_init(|| async {
                tokio::task::spawn_blocking(interpreter::discover)
                    .await
                    .ok()
                    .flatten()
            })
            .await
            .clone()
    }

    async fn open_in(
        &self,
        directory: &Path,
        id: String,
        spec: SandboxSpec,
        interpreter: Option<Interpreter>,
        (limits, quota): (Vec<AppliedLimit>, quota::Limits),
    ) -> Result<Session, SessionError> {
        let place = self.make_place(directory, &spec, quota).await?;
        let workspace = make_directories(&place, &spec)?;
        let alone = spec.isolation == Isolation::Reduced;
        let bytecode = match alone {
            // It could not be mounted.
            true => None,
            false => self.wanted_bytecode(&spec, interpreter.as_ref()).await,
        };
        if let Some(wanted) = &bytecode {
            wanted.make_writable_places(&place.seen(directory))?;
        }
        if let Some(volume) = &place.volume {
            let volume = Arc::clone(volume);
            let loaded = tokio::task::spawn_blocking(move || volume.load()).await;
            loaded
                .unwrap_or_else(|error| Err(std::io::Error::other(error)))
                .map_err(|error| {
                    SessionError::Setup(format!("fill up a file system to its size: {error}"))
                })?;
        }
        let root = root_spec(&spec, interpreter.clone());
        let image_digest = digest(&root);
        let spares = self.inner.spares.clone();
        let launcher = self.inner.launcher.clone();
        let seed = spares.take(&root).await?;
        let realm = (seed.slot.realm, seed.slot.user);
        self.inner.templates.expose(writable(&spec));
        let posture = Posture {
            realm,
            skeleton: if alone {
                let places = [workspace.clone(), directory.join("cache")];
                skeleton_alone(
                    &spec,
                    interpreter.as_ref(),
                    &self.inner.cgroups,
                    places.into(),
                )
            } else {
                skeleton_spec(&spec, interpreter.as_ref(), &self.inner.cgroups)
            },
            warm: match alone {
                true => None,
                // What stays is entered by programs.
                false if spec.resident => None,
                false => Warm::new(self.inner.templates.clone(), &spec, (realm.0, &id), &root),
            },
            root,
            kept: kept(&spec),
            mounts: mounts(&spec, &workspace, directory),
            numbers: environment::numbers(&spec.limits),
        };
        let closing = CancellationToken::new();
        let slots = Slots::new(launcher.clone(), spares.clone(), posture, place);
        if let Some(wanted) = bytecode {
            let _ = slots.bytecode.set(wanted);
        }
        let texts = self.inner.texts.grant(&spec);
        let opened = async {
            let seen = Seen {
                workspace,
                directory: directory.to_owned(),
                given: spec.workspace != WorkspaceSource::Private,
            };
            let keeper = slots.keeper(&seen, texts.bytes()).await?;
            if !spec.kept.is_empty() {
                // An engine that was killed could not.
                keeper.take_back().await?;
            }
            let searcher = Searcher::new(Arc::clone(&slots), seen.clone());
            let quota = keep_quota(&slots, &keeper, seen, quota, &closing).await?;
            slots.adopt(seed.slot).await.map_err(why_not_attached)?;
            self.compile_missing(&slots);
            Ok::<_, SessionError>((keeper, searcher, quota))
        };
        let (keeper, searcher, quota) = match opened.await {
            Ok(made) => made,
            Err(error) => {
                closing.cancel();
                slots.close().await;
                spares.release_realm(realm.0).await;
                let given_back = tokio::task::spawn_blocking(move || slots.owners.give_back());
                if given_back.await.is_err() {
                    tracing::warn!("giving back the trees of a session was interrupted");
                }
                return Err(error);
            }
        };
        let mut limits = limits;
        if matches!(quota, Quota::Watched(_)) {
            // A file system of its own may have been meant, and could not be made.
            for limit in &mut limits {
                if limit.enforced_by == EnforcedBy::SizedFilesystem {
                    limit.enforced_by = EnforcedBy::Watchdog;
                }
            }
        }
        let mut isolation = check::isolation(launcher.mode, &spec);
        if launcher.mode == Mode::Root {
            isolation.extend(slots.owners.described().map(str::to_owned));
        }
        Ok(Session::new(Parts {
            id,
            isolation,
            spec,
            interpreter,
            realm: realm.0,
            directory: directory.to_owned(),
            keeper,
            searcher,
            texts,
            slots,
            limits,
            quota,
            closing,
            image_digest,
        }))
    }
}

/// A mount point below the workspace is the caller's to make: nothing of ours is ever in there.
fn why_not_attached(error: PoolError) -> SessionError {
    match error {
        PoolError::Step(StepError {
            step: Step::AttachMount,
            errno: libc::ENOENT | libc::ENOTDIR,
            operand,
        }) => SessionError::Refused {
            field: "mounts".to_owned(),
            reason: format!(
                "{operand} is not there to be mounted on; make it in the workspace first, or mount outside {WORKSPACE}"
            ),
            mount: true,
        },
        other => other.into(),
    }
}

/// The session's own directories; gives the workspace.
fn make_directories(place: &Place, spec: &SandboxSpec) -> Result<PathBuf, SessionError> {
    let directory = &place.directory;
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| SessionError::Setup(format!("make directory {path}: {error}"))
    };
    for part in CACHE_PARTS {
        let path = directory.join("cache").join(part);
        fs::create_dir_all(place.seen(&path)).map_err(failed(&path))?;
    }
    let slots = directory.join(SLOTS);
    fs::create_dir_all(place.seen(&slots)).map_err(failed(&slots))?;
    match &spec.workspace {
        WorkspaceSource::Private => {
            let path = directory.join("workspace");
            fs::create_dir_all(place.seen(&path)).map_err(failed(&path))?;
            Ok(path)
        }
        WorkspaceSource::Given { path, .. } => {
            create_workspace(path).map_err(|error| SessionError::Refused {
                field: "workspace".to_owned(),
                reason: format!("{}: {error}", path.display()),
                mount: true,
            })?;
            Ok(path.clone())
        }
    }
}

/// What of the host the session's code can write to.
fn writable(spec: &SandboxSpec) -> Vec<PathBuf> {
    let workspace = match &spec.workspace {
        WorkspaceSource::Given { path, .. } => Some(path.clone()),
        WorkspaceSource::Private => None,
    };
    let mounts = spec.mounts.iter().filter(|mount| !mount.read_only);
    workspace
        .into_iter()
        .chain(mounts.map(|mount| mount.source.clone()))
        .collect()
}

/// How many sandboxes a session keeps ready.
fn kept(spec: &SandboxSpec) -> usize {
    let asked = spec
        .prewarm
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| *count > 0);
    // Beside the one that stays, one that takes its place.
    asked.unwrap_or(if spec.resident { 1 } else { KEPT })
}

fn root_spec(spec: &SandboxSpec, interpreter: Option<Interpreter>) -> RootSpec {
    let mounts = spec.mounts.iter().map(|mount| MountPoint {
        path: mount.target.clone(),
        directory: mount.source.is_dir(),
    });
    let tmpfs = spec.tmpfs.iter().map(|tmpfs| MountPoint {
        path: tmpfs.target.clone(),
        directory: true,
    });
    let mut mount_points: Vec<_> = mounts
        .chain(tmpfs)
        .filter(|point| !BUILT_IN.iter().any(|known| point.path == Path::new(known)))
        .collect();
    mount_points.sort_by(|one, other| one.path.cmp(&other.path));
    RootSpec {
        interpreter,
        mount_points,
        user: spec.user.clone(),
        profile: spec.profile,
        devices: spec.devices.clone(),
    }
}

/// Mount points that every root has.
const BUILT_IN: &[&str] = &["/tmp", "/dev/shm", "/var/tmp", "/workspace"];

fn skeleton_spec(
    spec: &SandboxSpec,
    interpreter: Option<&Interpreter>,
    cgroups: &Cgroups,
) -> SkeletonSpec {
    let kept_by = |resource, max: Option<u64>| max.map(|_| cgroups.mechanism(resource, max));
    let Limits { pids, cpu, .. } = spec.limits;
    let shm = Path::new("/dev/shm");
    let given = spec.mounts.iter().any(|mount| mount.target == shm)
        || spec.tmpfs.iter().any(|tmpfs| tmpfs.target == shm);
    let covered = |path: &PathBuf| {
        spec.tmpfs
            .iter()
            .any(|tmpfs| path.starts_with(&tmpfs.target) && *path != tmpfs.target)
    };
    let prefixes = interpreter
        .iter()
        .flat_map(|interpreter| &interpreter.prefixes);
    let targets = spec.mounts.iter().map(|mount| &mount.target);
    let mut shown: Vec<_> = prefixes
        .chain(targets)
        .filter(|path| covered(path))
        .cloned()
        .collect();
    // What lies below another one comes with it.
    shown.sort();
    shown.dedup_by(|later, earlier| later.starts_with(&*earlier));
    SkeletonSpec {
        tmpfs: spec.tmpfs.clone(),
        shm: if given {
            0
        } else {
            shm_size(spec.limits.memory, &spec.tmpfs)
        },
        shown,
        tasks: pids.filter(|_| kept_by(Resource::Pids, pids) == Some(EnforcedBy::Rlimit)),
        pinned: kept_by(Resource::Cpu, cpu) == Some(EnforcedBy::Throttle),
        own_cgroup: cgroups.has_leaves(),
        identity: identity(spec),
        kept: spec.kept,
        profile: spec.profile,
        // A step may have a limit where its session has none.
        watched: cgroups.mechanism(Resource::Memory, None) == EnforcedBy::Watchdog,
        joinable: interpreter.is_some() && spec.prewarm != Some(0) && !spec.resident,
        fence: Fence::around(places(spec, interpreter, given)).map(|fence| match spec.resident {
            true => fence.shared(),
            false => fence,
        }),
        alone: None,
    }
}

/// Without namespaces. What is each slot's own is added for each.
fn skeleton_alone(
    spec: &SandboxSpec,
    interpreter: Option<&Interpreter>,
    cgroups: &Cgroups,
    writable: Vec<PathBuf>,
) -> SkeletonSpec {
    SkeletonSpec {
        own_cgroup: false,
        joinable: false,
        tasks: None,
        watched: false,
        fence: Fence::alone(rootfs::readable(interpreter), writable),
        alone: Some(PathBuf::new()),
        ..skeleton_spec(spec, interpreter, cgroups)
    }
}

/// Where in the sandbox code may write. What a mount or a tmpfs of the caller's covers is not there, and that decides.
fn places(spec: &SandboxSpec, interpreter: Option<&Interpreter>, has_shm: bool) -> Vec<PathBuf> {
    let own = [WORKSPACE, CACHE, home(interpreter), temporary(interpreter)];
    let shm = (!has_shm).then_some("/dev/shm");
    let targets = spec.mounts.iter().map(|mount| &mount.target);
    let over: Vec<_> = targets
        .chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target))
        .collect();
    let covered = |path: &Path| over.iter().any(|target| path.starts_with(target));
    let own = own.into_iter().chain(shm).map(PathBuf::from);
    let tmpfs = spec.tmpfs.iter().map(|tmpfs| tmpfs.target.clone());
    let mounts = spec.mounts.iter().filter(|mount| !mount.read_only);
    own.filter(|path| !covered(path))
        .chain(tmpfs)
        .chain(mounts.map(|mount| mount.target.clone()))
        .collect()
}

/// Who the code is, and whom it can see beside itself.
fn identity(spec: &SandboxSpec) -> Identity {
    Identity {
        uid: spec.user.uid,
        gid: spec.user.gid,
        others: if spec.profile == Profile::Untrusted {
            Others::None
        } else if spec.kept.is_empty() {
            Others::Image
        } else {
            Others::Range
        },
    }
}

fn mounts(spec: &SandboxSpec, workspace: &Path, directory: &Path) -> Vec<SessionMount> {
    let mut mounts = vec![
        SessionMount {
            source: workspace.to_owned(),
            identity: None,
            target: WORKSPACE.into(),
            read_only: false,
            ours: spec.workspace == WorkspaceSource::Private,
        },
        SessionMount {
            source: directory.join("cache"),
            identity: None,
            target: CACHE.into(),
            read_only: false,
            ours: true,
        },
    ];
    if let WorkspaceSource::Given { path, .. } = &spec.workspace
        && spec.isolation == Isolation::Full
    {
        mounts.extend(protected(path, &spec.protect));
    }
    let mut asked: Vec<_> = spec.mounts.iter().collect();
    // One inside another comes after it.
    asked.sort_by_key(|mount| mount.target.components().count());
    mounts.extend(asked.into_iter().map(|mount| SessionMount {
        source: mount.source.clone(),
        identity: Some(mount.identity),
        target: mount.target.clone(),
        read_only: mount.read_only,
        ours: false,
    }));
    mounts
}

/// Names what the root was built from.
fn digest(root: &RootSpec) -> String {
    let mut hash = Sha256::new();
    hash.update(fs::read("/etc/os-release").unwrap_or_default());
    hash.update(postcard::to_stdvec(root).unwrap_or_default());
    let text = hash
        .finalize()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("sha256:{text}")
}

/// What the caller's own tools run or obey is not for the code to change. The directories that lead there are mounts
/// too, writable ones: a mount cannot be moved away and replaced, and a plain directory can, with the mounts in it.
fn protected(workspace: &Path, names: &[String]) -> Vec<SessionMount> {
    let mut mounts: Vec<SessionMount> = Vec::new();
    for name in names {
        let mut places: Vec<_> = Path::new(name)
            .ancestors()
            .filter(|place| !place.as_os_str().is_empty())
            .collect();
        places.reverse();
        // Of a linked work tree `.git` is a file that says where the rest is: then that is what is protected.
        let file = places.iter().position(|place| {
            let found = workspace.join(place).symlink_metadata();
            found.is_ok_and(|found| found.is_file())
        });
        let name = file.map_or(Path::new(name), |index| places[index]);
        places.truncate(file.map_or(places.len(), |index| index + 1));
        // Nothing can be mounted on a link, nor on what is not there.
        let plain = |place: &&Path| {
            let found = workspace.join(place).symlink_metadata();
            found.is_ok_and(|found| !found.is_symlink())
        };
        if !places.iter().all(plain) {
            continue;
        }
        for place in places {
            let target = Path::new(WORKSPACE).join(place);
            if mounts.iter().any(|mount| mount.target == target) {
                continue;
            }
            mounts.push(SessionMount {
                source: workspace.join(place),
                identity: None,
                target,
                read_only: place == name,
                ours: false,
            });
        }
    }
    mounts
}
