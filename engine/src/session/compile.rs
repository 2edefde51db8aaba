//! The compile of one entry of bytecode: round after round in sandboxes of its own, behind the steps.
//!
//! What runs there is the session's interpreter over files that it would import; the engine takes nothing from it but
//! what it prints.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::bytecode::{Entry, Wanted};
use super::engine::Engine;
use super::environment::numbers;
use crate::bytecode::{Building, COMPILER, DEPS, UnpackError};
use crate::launcher::message::{RealmId, TreeRequest};
use crate::outcome::{EnforcedBy, Resource};
use crate::pool::{Attachment, PoolError, Seed, Slot};
use crate::sandbox::identity::Identity;
use crate::sandbox::init::Request;
use crate::sandbox::landlock::Fence;
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::SkeletonSpec;
use crate::spec::{Capabilities, Limits, Mount, Tmpfs};
use crate::supervise::{Observed, Orders, watch};

/// How long a compile waits after the session that wants it: the first steps have the processors.
const STEPS_FIRST: Duration = Duration::from_secs(1);
/// How often a compile that another engine does is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds and bytes after which a round ends by itself: what it made is safe then.
const ROUND: (u64, u64) = (1, 16 << 20);
/// How long a round may take that does not end by itself.
const ROUND_DEADLINE: Duration = Duration::from_secs(60);
const MEMORY: u64 = 512 << 20;
const TASKS: u64 = 8;
const OUTPUT: u64 = 64 << 20;
const SCRATCH: u64 = 32 << 20;

/// Why there is no bytecode.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompileError {
    #[error("the engine ends")]
    Ending,
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    #[error("what the compile handed back: {0}")]
    Unpack(#[from] UnpackError),
    #[error("a worker thread was interrupted")]
    Interrupted,
}

impl CompileError {
    fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// One entry on its way.
#[derive(Debug)]
pub(super) struct Compile {
    pub(super) engine: Engine,
    pub(super) entry: Arc<Entry>,
    pub(super) wanted: Wanted,
    pub(super) root: RootSpec,
    pub(super) packages: Option<Mount>,
}

impl Compile {
    pub(super) async fn run(self) -> Result<(), CompileError> {
        let bytecode = &self.engine.inner.bytecode;
        self.sleep(STEPS_FIRST).await?;
        let _one_at_a_time = tokio::select! {
            guard = bytecode.one_at_a_time.lock() => guard,
            () = bytecode.ending.cancelled() => return Err(CompileError::Ending),
        };
        let Some(building) = self.begin().await? else {
            return Ok(());
        };
        let Seed { slot } = self.engine.inner.spares.take(&self.root).await?;
        let realm = (slot.realm, slot.user);
        let mut spare = None;
        let compiled = match self.equip(slot).await {
            Ok(slot) => {
                spare = Some(slot);
                self.rounds(realm, &mut spare, building).await
            }
            Err(error) => Err(error),
        };
        if let Some(slot) = spare {
            discard(slot).await;
        }
        self.engine.inner.spares.release_realm(realm.0).await;
        let building = compiled?;
        let links = match &self.packages {
            None => self.wanted.links.clone(),
            Some(_) => Vec::new(),
        };
        let published = blocking(move || building.publish(&[Path::new(DEPS)], &links));
        let path = published
            .await?
            .map_err(CompileError::io("publish bytecode"))?;
        let _ = self.entry.path.set(path);
        tracing::info!(digest = %self.entry.digest, "bytecode was compiled");
        Ok(())
    }

    async fn sleep(&self, time: Duration) -> Result<(), CompileError> {
        let ending = self.engine.inner.bytecode.ending.cancelled();
        match tokio::time::timeout(time, ending).await {
            Ok(()) => Err(CompileError::Ending),
            Err(_) => Ok(()),
        }
    }

    /// The right to build it; none when another engine has built it meanwhile.
    async fn begin(&self) -> Result<Option<Building>, CompileError> {
        let Some(store) = self.engine.inner.bytecode.store().cloned() else {
            return Ok(None);
        };
        loop {
            let (store, entry) = (store.clone(), Arc::clone(&self.entry));
            let begun = blocking(move || {
                let building = store.begin(&entry.digest)?;
                // Looked at under the lock: until then another may have been about to publish it.
                let found = store.find(&entry.digest);
                let is_there = found.is_some();
                if let Some(path) = found {
                    let _ = entry.path.set(path);
                }
                Ok((building, is_there))
            });
            match begun.await?.map_err(CompileError::io("open the store"))? {
                (Some(building), true) => {
                    building.give_up();
                    return Ok(None);
                }
                (None, true) => return Ok(None),
                (Some(building), false) => return Ok(Some(building)),
                (None, false) => self.sleep(LOOK).await?,
            }
        }
    }

    /// Round after round, each in a sandbox of its own, until all is compiled.
    async fn rounds(
        &self,
        realm: (RealmId, u32),
        spare: &mut Option<Slot>,
        mut building: Building,
    ) -> Result<Building, CompileError> {
        while !building.part.complete {
            let slot = match spare.take() {
                Some(slot) => slot,
                None => {
                    let made = self.engine.inner.spares.another(realm, &self.root);
                    self.equip(made.await?).await?
                }
            };
            let output = self.round(slot, spare, building.part.next).await?;
            let ending = self.engine.inner.bytecode.ending.is_cancelled();
            let taken = blocking(move || {
                if ending {
                    building.take_interrupted(&output);
                    return Err(CompileError::Ending);
                }
                match building.take(&output) {
                    Ok(()) => Ok(building),
                    Err(error) => {
                        building.give_up();
                        Err(error.into())
                    }
                }
            });
            building = taken.await??;
        }
        Ok(building)
    }

    async fn equip(&self, slot: Slot) -> Result<Slot, CompileError> {
        let attached = async {
            let limits = Limits {
                memory: Some(MEMORY),
                ..Limits::default()
            };
            let launcher = &self.engine.inner.launcher;
            slot.show_numbers(launcher, numbers(&limits)).await?;
            let Some(mount) = &self.packages else {
                return Ok::<_, CompileError>(());
            };
            let attachment = Attachment {
                tree: self.tree(&slot, mount).await?,
                target: mount.target.clone(),
                scratch: false,
            };
            Ok(slot.attach(&attachment).await?)
        };
        match attached.await {
            Ok(()) => Ok(slot),
            Err(error) => {
                discard(slot).await;
                Err(error)
            }
        }
    }

    async fn tree(&self, slot: &Slot, mount: &Mount) -> Result<OwnedFd, CompileError> {
        let request = TreeRequest {
            realm: slot.realm,
            source: mount.source.clone(),
            identity: Some(mount.identity),
            read_only: true,
            no_exec: false,
            map_owner: true,
        };
        let (tree, _, _) = self.engine.inner.launcher.clone_tree(request).await?;
        Ok(tree)
    }

    /// What one run of the compiler printed. A slot that is fit for another is put back.
    async fn round(
        &self,
        mut slot: Slot,
        spare: &mut Option<Slot>,
        next: u64,
    ) -> Result<Vec<u8>, CompileError> {
        let observed = match self.observe(&mut slot, next).await {
            Ok(observed) => observed,
            Err(error) => {
                discard(slot).await;
                return Err(error);
            }
        };
        let fit = match observed.skeleton {
            // A module may need more memory than there is; what is killed for it leaves no slot to be used again.
            Some(skeleton) if observed.evidence.oom_kills == 0 => {
                skeleton.end().await.is_ok() && slot.reset().await.is_ok()
            }
            _ => false,
        };
        if fit {
            *spare = Some(slot);
        } else {
            discard(slot).await;
        }
        Ok(observed.stdout.kept)
    }

    async fn observe(&self, slot: &mut Slot, next: u64) -> Result<Observed, CompileError> {
        let skeleton = slot.prepare(&self.skeleton()).await?;
        let limits = Limits {
            memory: Some(MEMORY),
            pids: Some(TASKS),
            cpu: None,
        };
        slot.apply(&limits, false)?;
        let orders = Orders {
            request: self.request(next),
            stdin: Vec::new(),
            max_output: OUTPUT,
            deadline: ROUND_DEADLINE,
            memory: Some(MEMORY),
            // It writes to nothing that outlives it.
            alarm: None,
            events: None,
            cancel: self.engine.inner.bytecode.ending.clone(),
        };
        watch(skeleton, slot, orders)
            .await
            .map_err(CompileError::io("watch a compile"))
    }

    fn skeleton(&self) -> SkeletonSpec {
        let cgroups = &self.engine.inner.cgroups;
        SkeletonSpec {
            tmpfs: vec![Tmpfs {
                target: "/tmp".into(),
                size: SCRATCH,
            }],
            shm: SCRATCH,
            shown: self.shown(),
            tasks: Some(TASKS)
                .filter(|_| cgroups.mechanism(Resource::Pids, Some(TASKS)) == EnforcedBy::Rlimit),
            pinned: false,
            own_cgroup: cgroups.has_leaves(),
            identity: Identity::default(),
            kept: Capabilities::NONE,
            profile: self.root.profile,
            watched: cgroups.mechanism(Resource::Memory, None) == EnforcedBy::Watchdog,
            joinable: false,
            // What it makes it prints.
            fence: Fence::around(vec!["/tmp".into(), "/dev/shm".into()]),
            alone: None,
        }
    }

    /// An interpreter below `/tmp` is to be seen in it.
    fn shown(&self) -> Vec<PathBuf> {
        let interpreter = self.root.interpreter.iter();
        let mut shown: Vec<_> = interpreter
            .flat_map(|interpreter| &interpreter.prefixes)
            .filter(|prefix| prefix.starts_with("/tmp"))
            .cloned()
            .collect();
        shown.sort();
        shown.dedup_by(|later, earlier| later.starts_with(&*earlier));
        shown
    }

    fn request(&self, next: u64) -> Request {
        let library = &self.wanted.library;
        let (seconds, bytes) = ROUND;
        let mut arguments: Vec<std::ffi::OsString> = vec![library.executable().into()];
        // Nothing of the directories that are compiled is run: not even what `site` would.
        arguments.extend(["-I", "-S", "-B", "-W", "ignore", "-c", COMPILER].map(Into::into));
        arguments.extend([next, seconds, bytes].map(|number| number.to_string().into()));
        let marked = |mark: &str, path: &Path| {
            let mut text = std::ffi::OsString::from(mark);
            text.push(path);
            text
        };
        if self.packages.is_some() {
            arguments.push(DEPS.into());
        } else {
            arguments.push(marked("=", &library.standard));
            arguments.extend(library.sites.iter().map(|site| site.clone().into()));
            let others = library.others();
            arguments.extend(others.iter().map(|other| marked("-", other)));
        }
        Request {
            arguments: arguments
                .into_iter()
                .map(std::ffi::OsString::into_encoded_bytes)
                .collect(),
            environment: vec![("LANG".to_owned(), "C.UTF-8".to_owned())],
            directory: "/".into(),
            code: None,
            processors: Vec::new(),
            shows: false,
        }
    }
}

async fn discard(slot: Slot) {
    if let Err(error) = slot.close().await {
        tracing::warn!(%error, "the slot of a compile could not be removed");
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CompileError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| CompileError::Interrupted)
}
