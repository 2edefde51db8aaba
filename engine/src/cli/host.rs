//! What this host gives and lacks: isolation and limits by trying, and the programs that steps are written in.

use std::path::{Path, PathBuf};

use crate::sandbox::identity::Mode;
use crate::sandbox::probe::{self, Place, Probe, REDUCED};
use crate::session::scratch_parent;
use crate::volume::{Capacity, Volume};

/// Where programs are looked for in a sandbox.
const DIRECTORIES: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"];

/// To be called before any thread exists: the trials are forked.
pub(super) fn probes() -> Vec<Probe> {
    let (directory, in_memory) = scratch_parent();
    let quota = quota(&directory);
    let mut probes = probe::host(&Place {
        directory,
        in_memory,
    });
    probes.push(quota);
    probes.extend(programs());
    probes
}

/// Only what no sandbox can be made without, and is not there, and whether there is reduced isolation instead. `reduced`:
/// what that is without.
pub(super) fn obstacles(reduced: bool) -> Vec<Probe> {
    let mut probes = probes();
    probes.retain(|probe| match (reduced, probe.name) {
        (true, name) => name == REDUCED && !probe.available,
        // Told as what there is instead.
        (false, REDUCED) => probe.available,
        (false, _) => probe.is_obstacle(),
    });
    probes
}

/// What keeps the limits of private workspaces, by trying. Given ones are watched everywhere.
fn quota(scratch: &Path) -> Probe {
    const WATCHED: &str = "the watchdog looks at workspaces and stops what fills them";
    let probe = |available, detail, mend: Option<&str>| Probe {
        name: "workspace_quota",
        available,
        needed: false,
        detail,
        mend: mend.map(str::to_owned),
    };
    if !matches!(Mode::of_this_process(), Ok(Mode::Root)) {
        let why = "watchdog: a file system of its own for each workspace takes root";
        return probe(false, format!("{why}; {WATCHED}"), None);
    }
    let image = scratch.join(format!("stepbox-doctor-{}.image", std::process::id()));
    let capacity = Capacity {
        bytes: 1 << 20,
        files: Some(1),
    };
    match Volume::make(&image, capacity) {
        Ok(_) => probe(
            true,
            "sized_filesystem: an ext4 image of its own for each private workspace; given ones are watched".to_owned(),
            None,
        ),
        Err(error) => probe(false, format!("{error}; {WATCHED}"), error.mend()),
    }
}

fn programs() -> [Probe; 3] {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A step's Python is the first of the engine's own PATH.
    let python = find("python3", std::env::split_paths(&path));
    let system = |name| find(name, DIRECTORIES.map(PathBuf::from).into_iter());
    [
        program("python", python, "install python3, or put it on PATH"),
        program("bash", system("bash"), "install bash"),
        program("javascript", system("node"), "install node below /usr"),
    ]
}

fn find(name: &str, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    directories
        .map(|directory| directory.join(name))
        .find(|path| {
            path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
        })
}

fn program(name: &'static str, found: Option<PathBuf>, mend: &str) -> Probe {
    Probe {
        name,
        available: found.is_some(),
        needed: false,
        mend: found.is_none().then(|| mend.to_owned()),
        detail: found.as_deref().map_or_else(
            || "not found: steps in it end as exec_failed".to_owned(),
            |path: &Path| path.display().to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_is_no_obstacle_and_comes_with_a_command() {
        let nowhere = find("no-such-program", [PathBuf::from("/usr/bin")].into_iter());
        let probe = program("bash", nowhere, "install bash");
        assert!(!probe.available && !probe.is_obstacle());
        assert_eq!(probe.mend.as_deref(), Some("install bash"));
    }

    #[test]
    fn a_directory_of_that_name_is_no_program() {
        assert_eq!(find("bin", [PathBuf::from("/usr")].into_iter()), None);
    }
}
