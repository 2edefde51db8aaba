//! Which sessions get bytecode from the store, and what of it their slots mount.
//!
//! With the variable set Python reads no bytecode beside sources any more. So it is set only where the entry has all of
//! the interpreter's, by links to what lies beside, and where nothing else that the session brings has any of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::SessionError;
use super::compile::{Compile, CompileError};
use super::engine::Engine;
use super::environment::{CACHE, WORKSPACE};
use super::slots::Slots;
use crate::bytecode::{DEPS, Library, PLACE, Store, VARIABLE, has_own_bytecode, lacks_bytecode};
use crate::launcher::message::TreeRequest;
use crate::pool::{Attachment, PoolError, Slot};
use crate::sandbox::identity::{home, temporary};
use crate::spec::{Interpreter, Mount, SandboxSpec, WorkspaceSource};

/// How long a compile that is stopped may take to end.
const END: Duration = Duration::from_secs(5);
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
    pub(super) one_at_a_time: tokio::sync::Mutex<()>,
    pub(super) ending: CancellationToken,
    tasks: TaskTracker,
}

/// One entry of the store.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) digest: String,
    /// Where it is, once it is complete.
    pub(super) path: OnceLock<PathBuf>,
    compiling: AtomicBool,
}

/// What a session mounts when it is there.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) library: Library,
    /// Of the interpreter; with links for what code can write.
    entry: Arc<Entry>,
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// Of the session's packages.
    packages: Option<(Arc<Entry>, Mount)>,
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
    pub(super) fn store(&self) -> Option<&Store> {
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
            no_exec: false,
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
