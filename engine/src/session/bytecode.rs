//! Which sessions get bytecode from the store, and the compile in a sandbox that puts it there.
//!
//! With the variable set Python reads no bytecode beside sources any more. So it is set only where the entry has all of
//! the interpreter's, by links to what lies beside, and where nothing else that the session brings has any of its own.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::SessionError;
use super::engine::Engine;
use super::environment::{CACHE, WORKSPACE};
use super::slots::Slots;
use crate::bytecode::{
    Building, COMPILER, DEPS, Library, PLACE, Store, UnpackError, VARIABLE, has_own_bytecode,
    lacks_bytecode,
};
use crate::launcher::message::{RealmId, TreeRequest};
use crate::pool::{Attachment, PoolError, Seed, Slot};
use crate::sandbox::identity::{home, temporary};
use crate::sandbox::init::Request;
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::SkeletonSpec;
use crate::spec::{Interpreter, Limits, Mount, SandboxSpec, Tmpfs, WorkspaceSource};
use crate::supervise::{Observed, Orders, watch};

/// How long a compile waits after the session that wants it: the first steps have the processors.
const STEPS_FIRST: Duration = Duration::from_secs(1);
/// How often a compile that another engine does is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How long a compile that is stopped may take to end.
const END: Duration = Duration::from_secs(5);
/// Seconds and bytes after which a round ends by itself: what it made is safe then.
const ROUND: (u64, u64) = (1, 16 << 20);
/// How long a round may take that does not end by itself.
const ROUND_DEADLINE: Duration = Duration::from_secs(60);
const MEMORY: u64 = 512 << 20;
const TASKS: u64 = 8;
const OUTPUT: u64 = 64 << 20;
const SCRATCH: u64 = 32 << 20;
/// Where code can write: Python's own compile of what is there must find a place for the result.
const WRITABLE: &[&str] = &[
    WORKSPACE, CACHE, "/data", "/dev/shm", "/media", "/mnt", "/srv", "/tmp", "/var/tmp",
];
/// Below the cache, for bytecode that code makes itself.
const OWN: &str = "python";

/// What the engine knows of bytecode.
#[derive(Debug)]
pub(super) struct Bytecode {
    places: Vec<PathBuf>,
    store: OnceLock<Option<Store>>,
    compiles: AtomicBool,
    /// Interpreters that have all of theirs.
    whole: Mutex<Vec<Interpreter>>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    one_at_a_time: tokio::sync::Mutex<()>,
    ending: CancellationToken,
    tasks: TaskTracker,
}

/// One entry of the store.
#[derive(Debug)]
struct Entry {
    digest: String,
    /// Where it is, once it is complete.
    path: OnceLock<PathBuf>,
    compiling: AtomicBool,
}

/// What a session mounts when it is there.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    library: Library,
    /// Of the interpreter; with links for what code can write.
    entry: Arc<Entry>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Of the session's packages.
    packages: Option<(Arc<Entry>, Mount)>,
}

/// Why there is no bytecode.
#[derive(Debug, thiserror::Error)]
enum CompileError {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bytecode {
    /// `cache` is the user's; `scratch` stands in where there is none that can be written to.
    pub(super) fn new(cache: Option<&Path>, scratch: Option<&Path>) -> Self {
        let places = cache.into_iter().chain(scratch);
        Self {
            places: places.map(|place| place.join("bytecode")).collect(),
            store: OnceLock::new(),
            compiles: AtomicBool::new(false),
            whole: Mutex::default(),
            entries: Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::default(),
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Opened when it is first wanted: a host whose interpreters have their bytecode has no store.
    fn store(&self) -> Option<&Store> {
        let open = || {
            Store::open(&self.places)
                .inspect_err(|error| tracing::warn!(%error, "no place for bytecode"))
                .ok()
        };
        self.store.get_or_init(open).as_ref()
    }

    fn is_whole(&self, interpreter: &Interpreter) -> bool {
        locked(&self.whole).contains(interpreter)
    }

    /// The entry of this digest. Blocks.
    fn entry(&self, digest: String) -> Option<Arc<Entry>> {
        let entry = {
            let mut entries = locked(&self.entries);
            let entry = entries.entry(digest.clone()).or_insert_with(|| {
                Arc::new(Entry {
                    digest,
                    path: OnceLock::new(),
                    compiling: AtomicBool::new(false),
                })
            });
            Arc::clone(entry)
        };
        if let Some(path) = self.store()?.find(&entry.digest) {
            let _ = entry.path.set(path);
        }
        Some(entry)
    }

    /// Looks at the files of an interpreter and a session. Blocks.
    fn look(&self, spec: &SandboxSpec, interpreter: &Interpreter) -> Option<Wanted> {
        let library = Library::of(interpreter)?;
        let packages = packages(spec);
        let bare = library.lacks_bytecode();
        if !bare {
            let mut whole = locked(&self.whole);
            if !whole.contains(interpreter) {
                whole.push(interpreter.clone());
            }
        }
        let bare_packages =
            packages.is_some_and(|mount| lacks_bytecode(&mount.source, library.tag()));
        if !(bare || bare_packages) || !may_move(spec, &library) {
            return None;
        }
        let entry = self.entry(library.digest())?;
        let packages = match packages {
            Some(mount) => {
                let digest = library.digest_of_packages(&mount.source);
                Some((self.entry(digest)?, mount.clone()))
            }
            None => None,
        };
        let own = [home(Some(interpreter)), temporary(Some(interpreter))];
        let links = WRITABLE.iter().copied().chain(own).map(|path| {
            let target = format!("{CACHE}/{OWN}{path}");
            (PathBuf::from(path), PathBuf::from(target))
        });
        Some(Wanted {
            library,
            entry,
            links: links.collect(),
            packages,
        })
    }

    /// Stops what compiles, and waits for it.
    pub(super) async fn end(&self) {
        self.ending.cancel();
        self.tasks.close();
        if tokio::time::timeout(END, self.tasks.wait()).await.is_err() {
            tracing::warn!("a compile is still ending");
        }
    }
}

/// The session's directory of packages, as it cannot change.
fn packages(spec: &SandboxSpec) -> Option<&Mount> {
    spec.mounts
        .iter()
        .find(|mount| mount.target == Path::new(DEPS) && mount.read_only && mount.source.is_dir())
}

/// Whether nothing of the session gets slower or stops working when Python looks for bytecode in the store alone.
fn may_move(spec: &SandboxSpec, library: &Library) -> bool {
    let known = packages(spec);
    let others = spec.mounts.iter().filter(|mount| Some(*mount) != known);
    // Packages that were installed there have theirs. Nobody here looks further into a workspace.
    let installed = match &spec.workspace {
        WorkspaceSource::Private => false,
        WorkspaceSource::Given { path, .. } => path.join(".deps").symlink_metadata().is_ok(),
    };
    let has_own = others
        .clone()
        .any(|mount| has_own_bytecode(&mount.source, library.tag()));
    let writable = others
        .filter(|mount| !mount.read_only)
        .map(|mount| &mount.target)
        .chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target));
    let linked = |path: &PathBuf| WRITABLE.iter().any(|known| path.starts_with(known));
    let settled = spec.env.contains_key(VARIABLE);
    !settled && !installed && !has_own && writable.into_iter().all(linked)
}

impl Wanted {
    /// Makes the places that the links of the entry lead to.
    pub(super) fn make_writable_places(&self, session: &Path) -> Result<(), SessionError> {
        let cache = session.join("cache");
        for (_, target) in &self.links {
            let path = cache.join(target.strip_prefix(CACHE).unwrap_or(target));
            std::fs::create_dir_all(&path).map_err(|error| {
                SessionError::Setup(format!("make directory {}: {error}", path.display()))
            })?;
        }
        Ok(())
    }

    fn entries(&self) -> impl Iterator<Item = (&Arc<Entry>, Option<&Mount>)> {
        let packages = self
            .packages
            .iter()
            .map(|(entry, mount)| (entry, Some(mount)));
        std::iter::once((&self.entry, None)).chain(packages)
    }

    /// What is mounted where, when all of it is there.
    fn ready(&self) -> Option<Vec<(PathBuf, PathBuf)>> {
        self.entries()
            .map(|(entry, packages)| {
                let path = entry.path.get()?;
                Some(match packages {
                    None => (path.clone(), PathBuf::from(PLACE)),
                    // Its own part over the empty directory of the interpreter's.
                    Some(_) => (below(path, DEPS), below(Path::new(PLACE), DEPS)),
                })
            })
            .collect()
    }
}

fn below(directory: &Path, absolute: &str) -> PathBuf {
    directory.join(absolute.trim_start_matches('/'))
}

impl Slots {
    /// Lets the sandboxes that this slot makes from now on see the bytecode, if it is there. One that cannot be given it
    /// is as good as before.
    pub(super) async fn give_bytecode(&self, slot: &mut Slot) {
        let ready = self.bytecode.get().and_then(Wanted::ready);
        let (Some(trees), None) = (ready, slot.bytecode) else {
            return;
        };
        let mut given = Ok(());
        for (source, target) in trees {
            given = self.attach_bytecode(slot, &source, target).await;
            if given.is_err() {
                break;
            }
        }
        if let Err(error) = &given {
            tracing::debug!(%error, "a slot goes without bytecode");
        }
        slot.bytecode = Some(given.is_ok());
    }

    async fn attach_bytecode(
        &self,
        slot: &Slot,
        source: &Path,
        target: PathBuf,
    ) -> Result<(), PoolError> {
        let request = TreeRequest {
            realm: self.realm.0,
            source: source.to_owned(),
            identity: None,
            read_only: true,
            // It is the engine's, and everybody may read it.
            map_owner: false,
        };
        let (tree, _, _) = self.launcher.clone_tree(request).await?;
        let attachment = Attachment {
            tree,
            target,
            scratch: false,
        };
        slot.attach(&attachment).await
    }
}

impl Engine {
    /// Has bytecode that is missing compiled. Without it an engine uses what is there: one that lives for one step would
    /// take the processors from it for nothing.
    pub fn compile_bytecode(&self) {
        self.inner.bytecode.compiles.store(true, Ordering::Relaxed);
    }

    pub(super) async fn wanted_bytecode(
        &self,
        spec: &SandboxSpec,
        interpreter: Option<&Interpreter>,
    ) -> Option<Wanted> {
        let interpreter = interpreter?.clone();
        if packages(spec).is_none() && self.inner.bytecode.is_whole(&interpreter) {
            return None;
        }
        let (inner, spec) = (Arc::clone(&self.inner), spec.clone());
        tokio::task::spawn_blocking(move || inner.bytecode.look(&spec, &interpreter))
            .await
            .ok()
            .flatten()
    }

    /// Compiles what the slots of a session want and nobody has compiled, in the background.
    pub(super) fn compile_missing(&self, slots: &Slots) {
        let bytecode = &self.inner.bytecode;
        let Some(wanted) = slots.bytecode.get() else {
            return;
        };
        if !bytecode.compiles.load(Ordering::Relaxed) {
            return;
        }
        for (entry, packages) in wanted.entries() {
            if entry.path.get().is_some() || entry.compiling.swap(true, Ordering::Relaxed) {
                continue;
            }
            let compile = Compile {
                engine: self.clone(),
                entry: Arc::clone(entry),
                wanted: wanted.clone(),
                root: slots.root.clone(),
                packages: packages.cloned(),
            };
            bytecode.tasks.spawn(async move {
                match compile.run().await {
                    Ok(()) => {}
                    Err(CompileError::Ending) => tracing::debug!("a compile is left for later"),
                    Err(error) => tracing::warn!(%error, "no bytecode could be made"),
                }
            });
        }
    }
}

/// One entry on its way.
struct Compile {
    engine: Engine,
    entry: Arc<Entry>,
    wanted: Wanted,
    root: RootSpec,
    packages: Option<Mount>,
}

impl Compile {
    async fn run(self) -> Result<(), CompileError> {
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
        let Some(mount) = &self.packages else {
            return Ok(slot);
        };
        let attached = async {
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
        slot.apply(&limits)?;
        let orders = Orders {
            request: self.request(next),
            stdin: Vec::new(),
            max_output: OUTPUT,
            deadline: ROUND_DEADLINE,
            memory: Some(MEMORY),
            events: None,
            cancel: self.engine.inner.bytecode.ending.clone(),
        };
        watch(skeleton, slot, orders)
            .await
            .map_err(CompileError::io("watch a compile"))
    }

    fn skeleton(&self) -> SkeletonSpec {
        use crate::outcome::{EnforcedBy, Resource};
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
            watched: cgroups.mechanism(Resource::Memory, None) == EnforcedBy::Watchdog,
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
