//! The templates of an engine: found by what distinguishes them, booted in the background, rotated, bounded.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::template::{Template, TemplateError};
use super::{Launcher, PoolError};
use crate::launcher::message::{RealmId, TreeRequest};
use crate::sandbox::plan::{Step, StepError};
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::template::Program;
use crate::spec::Interpreter;

/// What is the same in every fork of a template, the layout of memory and the seed of string hashes, is so no longer than
/// this, and for no more forks.
const LONGEST: Duration = Duration::from_secs(600);
const MOST_FORKS: u64 = 1000;
/// How long one that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(300);
/// How often that is looked at.
const ROUNDS: Duration = Duration::from_secs(30);
/// How long a boot with its imports may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a boot is begun anew that ended without a word, and after what time.
const ENDED_AT_MOST: u32 = 2;
const AGAIN: Duration = Duration::from_millis(100);
/// Templates of an engine at most.
const MOST: usize = 16;
/// Bytes that the templates of an engine hold at most, beside the part of the machine's memory below. The one that was
/// booted last may exceed both.
const MOST_MEMORY: u64 = 256 << 20;
const MEMORY_PART: u64 = 20;

/// What distinguishes one template from another.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct TemplateKey {
    pub realm: RealmId,
    pub root: RootSpec,
    /// The only session that has it; none: all that agree in the rest.
    pub session: Option<String>,
    pub preload: Vec<String>,
    /// A session's packages, where some of the above are imported from: device and inode of the directory too.
    pub deps: Option<(PathBuf, (u64, u64))>,
}

/// What became of a boot.
#[derive(Clone, Debug, Default)]
pub enum Booted {
    #[default]
    Booting,
    /// With what is to be told of modules that are not in it.
    Ready(Arc<Template>, Arc<[String]>),
    /// There is none, and why.
    Never(Arc<str>),
}

#[derive(Debug)]
struct Entry {
    booted: watch::Receiver<Booted>,
    used: Instant,
    /// Another is being booted to take its place.
    replacing: bool,
}

/// What is known of one, for people.
#[derive(Clone, Debug)]
pub struct TemplateView {
    pub executable: PathBuf,
    pub preload: Vec<String>,
    /// Bytes.
    pub memory: u64,
    pub forks: u64,
    pub age: Duration,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Templates {
    launcher: Launcher,
    entries: Arc<Mutex<HashMap<TemplateKey, Entry>>>,
    /// Directories of the host that code of a session of this engine could write to.
    exposed: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Templates {
    #[must_use]
    pub fn new(launcher: Launcher) -> Self {
        Self {
            launcher,
            entries: Arc::default(),
            exposed: Arc::default(),
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<TemplateKey, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code may write to these from now on: no interpreter that lies there is booted with a template's rights, in whichever
    /// session. The paths are resolved.
    pub fn expose(&self, directories: impl IntoIterator<Item = PathBuf>) {
        self.exposed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(directories);
    }

    /// Whether code could have changed what an interpreter is.
    fn is_exposed(&self, interpreter: &Interpreter) -> bool {
        let exposed = self.exposed.lock().unwrap_or_else(PoisonError::into_inner);
        let executable = interpreter.executable.parent().map(PathBuf::from);
        let mut places = interpreter.prefixes.iter().cloned().chain(executable);
        !exposed.is_empty()
            && places.any(|place| {
                // One that cannot be resolved is not there to be written to.
                let place = place.canonicalize().unwrap_or(place);
                exposed
                    .iter()
                    .any(|known| place.starts_with(known) || known.starts_with(&place))
            })
    }

    /// The template for `key`, as far as it is now. One that is wanted for the first time is booted in the background, and
    /// so is what takes the place of one that has served its time.
    pub fn get(&self, key: &TemplateKey, program: &Program) -> Booted {
        let interpreter = key.root.interpreter.as_ref();
        if interpreter.is_some_and(|interpreter| self.is_exposed(interpreter)) {
            return Booted::Never("code of a session can write to its interpreter".into());
        }
        let mut entries = self.entries();
        let found = entries.get_mut(key).map(|entry| {
            entry.used = Instant::now();
            let booted = entry.booted.borrow().clone();
            (booted, entry.replacing)
        });
        match found {
            Some((Booted::Ready(template, notes), replacing)) if template.is_alive() => {
                if !replacing && has_served(&template) {
                    self.boot(&mut entries, key, program, true);
                }
                Booted::Ready(template, notes)
            }
            Some((Booted::Ready(..), _)) | None => {
                self.boot(&mut entries, key, program, false);
                Booted::Booting
            }
            Some((booted, _)) => booted,
        }
    }

    /// Waits for the boot that [`Self::get`] began.
    pub async fn wait(&self, key: &TemplateKey) -> Booted {
        let Some(mut booted) = self.entries().get(key).map(|entry| entry.booted.clone()) else {
            return Booted::Booting;
        };
        booted
            .wait_for(|booted| !matches!(booted, Booted::Booting))
            .await
            .map(|booted| booted.clone())
            .unwrap_or_default()
    }

    fn boot(
        &self,
        entries: &mut HashMap<TemplateKey, Entry>,
        key: &TemplateKey,
        program: &Program,
        replace: bool,
    ) {
        let (sender, receiver) = watch::channel(Booted::Booting);
        if replace {
            if let Some(entry) = entries.get_mut(key) {
                entry.replacing = true;
            }
        } else {
            if entries.is_empty() {
                self.look_after();
            }
            entries.insert(
                key.clone(),
                Entry {
                    booted: receiver.clone(),
                    used: Instant::now(),
                    replacing: false,
                },
            );
        }
        let templates = self.clone();
        let (key, program) = (key.clone(), program.clone());
        tokio::spawn(async move {
            let booted = templates.booted(&key, &program).await;
            let failed = matches!(booted, Booted::Never(_));
            // Whoever waited may have gone.
            let _ = sender.send(booted);
            let mut entries = templates.entries();
            if let Some(entry) = entries.get_mut(&key) {
                entry.replacing = false;
                // A place is not given up for one that could not be booted.
                if replace && !failed {
                    entry.booted = receiver;
                }
            }
            make_room(&mut entries, &key);
        });
    }

    async fn booted(&self, key: &TemplateKey, program: &Program) -> Booted {
        let mut preload = key.preload.clone();
        let mut notes = Vec::new();
        let mut ended = 0;
        loop {
            let boot = self.boot_once(key, program, preload.clone());
            let error = match tokio::time::timeout(PATIENCE, boot).await {
                Ok(Ok(template)) => return Booted::Ready(Arc::new(template), notes.into()),
                Ok(Err(error)) => error,
                Err(_) => TemplateError::Refused(format!(
                    "the interpreter and its preload took more than {} s to start",
                    PATIENCE.as_secs()
                )),
            };
            match error {
                TemplateError::Module { module, reason } if preload.contains(&module) => {
                    notes.push(format!("preload: {module} {reason}"));
                    preload.retain(|name| *name != module);
                }
                // It may have been killed, as by a machine without memory.
                TemplateError::Pool(PoolError::Gone(_)) if ended < ENDED_AT_MOST => {
                    ended += 1;
                    tokio::time::sleep(AGAIN).await;
                }
                // The session, or the engine, is over; or a module ends the interpreter.
                TemplateError::Pool(
                    PoolError::Gone(_)
                    | PoolError::Step(StepError {
                        step: Step::Realm,
                        errno: libc::ESRCH,
                        ..
                    }),
                ) => {
                    tracing::debug!("a template ended before it stood");
                    return Booted::Never("it ended".into());
                }
                error => {
                    tracing::warn!(%error, "an interpreter cannot be started ahead; each step starts its own");
                    return Booted::Never(error.to_string().into());
                }
            }
        }
    }

    async fn boot_once(
        &self,
        key: &TemplateKey,
        program: &Program,
        preload: Vec<String>,
    ) -> Result<Template, TemplateError> {
        let deps = match &key.deps {
            Some((source, identity)) => {
                let request = TreeRequest {
                    realm: key.realm,
                    source: source.clone(),
                    identity: Some(*identity),
                    read_only: true,
                    no_exec: false,
                    map_owner: true,
                };
                Some(self.launcher.clone_tree(request).await?.0)
            }
            None => None,
        };
        let place = (key.realm, &key.root);
        Template::boot(&self.launcher, place, program, deps, preload).await
    }

    /// Lets go of those that nobody uses, as long as there are any.
    fn look_after(&self) {
        let templates = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ROUNDS).await;
                let mut entries = templates.entries();
                entries.retain(|_, entry| entry.used.elapsed() < IDLE);
                if entries.is_empty() {
                    return;
                }
            }
        });
    }

    /// A realm is over.
    pub fn forget(&self, realm: RealmId) {
        self.entries().retain(|key, _| key.realm != realm);
    }

    /// A session is over: what only that had is of no use to anybody.
    pub fn forget_session(&self, session: &str) {
        self.entries()
            .retain(|key, _| key.session.as_deref() != Some(session));
    }

    /// Those that stand.
    #[must_use]
    pub fn views(&self) -> Vec<TemplateView> {
        let entries = self.entries();
        let views = entries.iter().filter_map(|(key, entry)| {
            let Booted::Ready(template, _) = &*entry.booted.borrow() else {
                return None;
            };
            Some(TemplateView {
                executable: key.root.interpreter.as_ref()?.executable.clone(),
                preload: key.preload.clone(),
                memory: template.memory,
                forks: template.forks.load(Ordering::Relaxed),
                age: template.booted.elapsed(),
            })
        });
        views.collect()
    }

    /// Boots no more, and lets go of all.
    pub fn close(&self) {
        self.entries().clear();
    }
}

fn has_served(template: &Template) -> bool {
    template.booted.elapsed() > LONGEST || template.forks.load(Ordering::Relaxed) > MOST_FORKS
}

/// Lets go of those that were not used for longest, until the others are within bounds. `kept` stays.
fn make_room(entries: &mut HashMap<TemplateKey, Entry>, kept: &TemplateKey) {
    let most = MOST_MEMORY.max(machine_memory() / MEMORY_PART);
    while entries.len() > MOST || held(entries) > most {
        let oldest = entries
            .iter()
            .filter(|(key, _)| *key != kept)
            .min_by_key(|(_, entry)| entry.used)
            .map(|(key, _)| key.clone());
        match oldest {
            Some(key) => entries.remove(&key),
            None => return,
        };
    }
}

fn held(entries: &HashMap<TemplateKey, Entry>) -> u64 {
    let held = entries.values().map(|entry| match &*entry.booted.borrow() {
        Booted::Ready(template, _) => template.memory,
        _ => 0,
    });
    held.sum()
}

/// Bytes.
fn machine_memory() -> u64 {
    rustix::system::sysinfo().totalram
}
