//! What this host gives and lacks: isolation and limits by trying, and the programs that steps are written in.

use std::path::{Path, PathBuf};

use crate::sandbox::probe::{self, Place, Probe};
use crate::session::scratch_parent;

/// Where programs are looked for in a sandbox.
const DIRECTORIES: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"];

/// To be called before any thread exists: the trials are forked.
pub(super) fn probes() -> Vec<Probe> {
    let (directory, in_memory) = scratch_parent();
    let mut probes = probe::host(&Place {
        directory,
        in_memory,
    });
    probes.extend(programs());
    probes
}

/// Only what no sandbox can be made without, and is not there.
pub(super) fn obstacles() -> Vec<Probe> {
    let mut probes = probes();
    probes.retain(Probe::is_obstacle);
    probes
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
