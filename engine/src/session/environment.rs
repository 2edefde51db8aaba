//! The environment that code starts with: built from nothing, never inherited.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::bytecode::{PLACE, VARIABLE};
use crate::sandbox::identity::{home, temporary};
use crate::sandbox::numbers::Numbers;
use crate::spec::{DEPS, Interpreter, Limits, Profile, User};

/// Where a session's caches are, on disk and kept between its steps.
pub(super) const CACHE: &str = "/var/cache/user";
pub(super) const WORKSPACE: &str = "/workspace";

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where packages that a caller installed with `--target` are looked for, after the workspace itself.
const OWN_DEPS: &str = "/workspace/.deps";
/// Pools of numeric libraries, some of which start when they are imported.
const NUMERIC_POOLS: &[&str] = &[
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "RAYON_NUM_THREADS",
];
/// Pools of threads or processes that know of processors and not of a limit on tasks.
const OTHER_POOLS: &[&str] = &[
    "BLIS_NUM_THREADS",
    "GOMAXPROCS",
    "LOKY_MAX_CPU_COUNT",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "TOKIO_WORKER_THREADS",
];

/// What keeps numeric libraries to the thread that imports them: threads are not forked.
pub(super) fn one_thread() -> impl Iterator<Item = (String, String)> {
    NUMERIC_POOLS
        .iter()
        .map(|name| ((*name).to_owned(), "1".to_owned()))
}

/// What a sandbox has for Python beside the interpreter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Python {
    /// Of the store, where the interpreter has none of its own.
    pub(super) bytecode: bool,
    /// Packages of the session's.
    pub(super) deps: bool,
}

/// The variables of a step, sorted by name; the caller's win, the step's over the session's.
pub(super) fn build(
    interpreter: Option<&Interpreter>,
    limits: &Limits,
    (user, profile): (&User, Profile),
    python: Python,
    directory: &Path,
    session: &BTreeMap<String, String>,
    step: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let mut variables: BTreeMap<String, String> = [
        ("ASAN_OPTIONS", "detect_leaks=0"),
        ("HOME", home(interpreter)),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", user.name.as_str()),
        ("MPLBACKEND", "Agg"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONNOUSERSITE", "1"),
        ("SHELL", "/bin/sh"),
        ("TERM", "dumb"),
        ("TMPDIR", temporary(interpreter)),
        ("USER", user.name.as_str()),
        ("NODE_PATH", "/workspace/node_modules"),
        ("XDG_CACHE_HOME", CACHE),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    for (name, below) in [
        ("CARGO_HOME", "cargo"),
        ("GOCACHE", "go-build"),
        ("MPLCONFIGDIR", "matplotlib"),
        ("NPM_CONFIG_CACHE", "npm"),
        ("PIP_CACHE_DIR", "pip"),
    ] {
        variables.insert(name.to_owned(), format!("{CACHE}/{below}"));
    }
    variables.insert("PWD".to_owned(), directory.display().to_string());
    variables.insert("PATH".to_owned(), path(interpreter));
    if profile == Profile::Untrusted {
        // A mere attempt would end the step.
        variables.insert("UV_USE_IO_URING".to_owned(), "0".to_owned());
    }
    if python.bytecode {
        variables.insert(VARIABLE.to_owned(), PLACE.to_owned());
    }
    if let Some(threads) = threads(limits) {
        for name in NUMERIC_POOLS.iter().chain(OTHER_POOLS) {
            variables.insert((*name).to_owned(), threads.to_string());
        }
    }
    for given in [session, step] {
        variables.extend(
            given
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    // The code's file is not in the workspace, so its modules would not be found there.
    let places = [WORKSPACE]
        .into_iter()
        .chain(python.deps.then_some(DEPS))
        .chain([OWN_DEPS])
        .collect::<Vec<_>>()
        .join(":");
    variables
        .entry("PYTHONPATH".to_owned())
        .and_modify(|given| *given = format!("{given}:{places}"))
        .or_insert(places);
    variables.into_iter().collect()
}

/// Where without namespaces is what sandboxes find at places of their own.
#[derive(Clone, Debug)]
pub(super) struct Places(Vec<(&'static str, PathBuf)>);

impl Places {
    /// `workspace` and `directory` are the session's, `slot` is the slot's own directory.
    pub(super) fn new(
        interpreter: Option<&Interpreter>,
        workspace: &Path,
        directory: &Path,
        slot: &Path,
    ) -> Self {
        Self(vec![
            (WORKSPACE, workspace.to_owned()),
            (CACHE, directory.join("cache")),
            (home(interpreter), slot.join("home")),
            (temporary(interpreter), slot.join("tmp")),
        ])
    }

    /// The same place on the host.
    pub(super) fn on_host(&self, path: &Path) -> PathBuf {
        let found = self.0.iter().find_map(|(known, place)| {
            let below = path.strip_prefix(known).ok()?;
            Some(match below.as_os_str().is_empty() {
                true => place.clone(),
                false => place.join(below),
            })
        });
        found.unwrap_or_else(|| path.to_owned())
    }

    /// Changes the variables that name such places; those that are the caller's are not touched.
    pub(super) fn translate(
        &self,
        variables: &mut [(String, String)],
        given: &BTreeMap<String, String>,
    ) {
        for (name, value) in variables {
            if name == "PATH" || (given.contains_key(name) && name != "PYTHONPATH") {
                continue;
            }
            let parts = value.split(':').map(|part| {
                let place = self.on_host(Path::new(part));
                place.to_string_lossy().into_owned()
            });
            *value = parts.collect::<Vec<_>>().join(":");
        }
    }
}

/// The interpreter's own directory comes first, so that `python3` and its scripts are the caller's.
fn path(interpreter: Option<&Interpreter>) -> String {
    let own = interpreter
        .and_then(|interpreter| interpreter.executable.parent())
        .filter(|directory| {
            !SYSTEM_PATH
                .split(':')
                .any(|known| Path::new(known) == *directory)
        });
    own.map_or_else(
        || SYSTEM_PATH.to_owned(),
        |directory| format!("{}:{SYSTEM_PATH}", directory.display()),
    )
}

/// How many threads a pool may have under the caps; none when no cap is below the host's processors.
fn threads(limits: &Limits) -> Option<u64> {
    let host = host_processors();
    let by_cpu = limits.cpu.map_or(u64::MAX, |milli| milli.div_ceil(1000));
    // A pool of a quarter of the task limit leaves room for the program's other threads and children.
    let by_pids = limits.pids.map_or(u64::MAX, |pids| (pids / 4).max(1));
    let threads = by_cpu.min(by_pids);
    (threads < host).then_some(threads)
}

/// Asked once: finding out reads files of the cgroup, which takes longer than all the rest of a step's environment.
fn host_processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT
        .get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
}

/// The processors of the engine's own that a step may use, taken round robin; empty: all.
pub(super) fn processors(limits: &Limits, turn: u64) -> Vec<u32> {
    if limits.cpu.is_none() {
        return Vec::new();
    }
    let all = allowed();
    let wanted = wanted(limits);
    if wanted >= all.len() {
        return Vec::new();
    }
    let start = usize::try_from(turn).unwrap_or(0) % all.len();
    (0..wanted)
        .map(|index| all[(start + index) % all.len()])
        .collect()
}

/// How many processors a limit can keep busy.
fn wanted(limits: &Limits) -> usize {
    limits
        .cpu
        .and_then(|milli| usize::try_from(milli.div_ceil(1000)).ok())
        .unwrap_or(usize::MAX)
}

/// The processors that the engine itself may use, and so its sandboxes.
fn allowed() -> Vec<u32> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|index| allowed.is_set(*index))
        .filter_map(|index| u32::try_from(index).ok())
        .collect()
}

/// What code under these limits is told of processors and memory.
pub(super) fn numbers(limits: &Limits) -> Numbers {
    let shown = wanted(limits).min(allowed().len().max(1));
    Numbers {
        processors: u32::try_from(shown).unwrap_or(u32::MAX),
        memory: limits.memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        built_with(given, false)
    }

    fn built_with(given: &[(&str, &str)], bytecode: bool) -> BTreeMap<String, String> {
        let given = given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let limits = Limits {
            pids: Some(16),
            ..Limits::default()
        };
        build(
            None,
            &limits,
            (&User::default(), Profile::Default),
            Python {
                bytecode,
                deps: false,
            },
            Path::new(WORKSPACE),
            &given,
            &BTreeMap::new(),
        )
        .into_iter()
        .collect()
    }

    #[test]
    fn the_callers_value_wins_and_the_workspace_stays_importable() {
        let variables = built(&[("HOME", "/tmp"), ("PYTHONPATH", "/x")]);
        assert_eq!(variables["HOME"], "/tmp");
        assert_eq!(variables["PYTHONPATH"], "/x:/workspace:/workspace/.deps");
    }

    #[test]
    fn bytecode_is_looked_for_in_the_store_when_it_is_there_and_the_caller_says_nothing() {
        assert!(!built(&[]).contains_key(VARIABLE));
        assert_eq!(built_with(&[], true)[VARIABLE], PLACE);
        assert_eq!(built_with(&[(VARIABLE, "/x")], true)[VARIABLE], "/x");
    }

    #[test]
    fn a_cap_on_tasks_or_processors_is_told_to_each_pool() {
        let capped = |cpu, pids| {
            let limits = Limits {
                cpu,
                pids,
                memory: None,
            };
            threads(&limits)
        };
        assert_eq!(
            capped(Some(500), None),
            (host_processors() > 1).then_some(1)
        );
        assert_eq!(capped(None, Some(2)), (host_processors() > 1).then_some(1));
        assert_eq!(capped(None, None), None);
        assert_eq!(capped(Some(host_processors() * 1000), None), None);
    }

    #[test]
    fn a_part_of_a_processor_is_one_and_no_limit_is_the_engines_own() {
        let shown = |cpu| {
            let limits = Limits {
                cpu,
                ..Limits::default()
            };
            numbers(&limits).processors as usize
        };
        assert_eq!(shown(Some(500)), 1);
        assert_eq!(shown(Some(1500)), 2.min(allowed().len()));
        assert_eq!(shown(None), allowed().len());
        assert_eq!(shown(Some(u64::MAX)), allowed().len());
    }

    #[test]
    fn nothing_of_the_engines_environment_is_in_it() {
        let variables = built(&[]);
        assert!(!variables.contains_key("CARGO_MANIFEST_DIR"));
        assert_eq!(variables["PATH"], SYSTEM_PATH);
    }
}
