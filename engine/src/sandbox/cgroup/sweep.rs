//! Cgroups that a dead engine left behind: their tasks are killed, then they are removed.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::PREFIX;
use super::directory::Directory;
use super::error::CgroupError;

const ROUNDS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// Removes the cgroups below `base` of every engine that `is_dead`. Of one that the caller does not know (none), because
/// it has another runtime directory, they are removed when no living engine claims them. The others are tried even when one fails; the first error is
/// returned.
pub(super) fn sweep(
    base: &Directory,
    own_id: &str,
    is_dead: &dyn Fn(&str) -> Option<bool>,
) -> Result<(), CgroupError> {
    let mut outcome = Ok(());
    for name in base.children()? {
        let id = name.strip_prefix(PREFIX);
        let Some(id) = id.filter(|id| *id != own_id && super::is_name(id)) else {
            continue;
        };
        let verdict = is_dead(id);
        if verdict != Some(false) {
            outcome = outcome.and(bury(&base.path().join(&name), verdict.is_some()));
        }
    }
    outcome
}

fn bury(path: &std::path::Path, known_dead: bool) -> Result<(), CgroupError> {
    let directory = match Directory::open(path) {
        // The engine's other survivor was quicker.
        Err(CgroupError::Open {
            source: rustix::io::Errno::NOENT,
            ..
        }) => return Ok(()),
        other => other?,
    };
    if !known_dead && !directory.is_abandoned() {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        if !kill_all(&directory)? {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    directory.remove_tree()
}

/// Kills everything at and below `directory`; says whether there was anything.
fn kill_all(directory: &Directory) -> Result<bool, CgroupError> {
    let mut found = false;
    // One write ends a whole v2 subtree, and no fork escapes it.
    let killed_at_once = directory.write_optional("cgroup.kill", "1")?;
    for name in directory.children()? {
        if let Ok(child) = Directory::open(&directory.path().join(name)) {
            found |= kill_all(&child)?;
        }
    }
    let pids = directory.pids()?;
    found |= !pids.is_empty();
    if !killed_at_once {
        kill(directory, &pids)?;
    }
    Ok(found)
}

/// Kills those of `pids` that are in the cgroup still when their pidfd is held: a number that was used again in
/// between is not.
fn kill(directory: &Directory, pids: &[u32]) -> Result<(), CgroupError> {
    let held: Vec<_> = pids
        .iter()
        .filter_map(|pid| {
            let number = Pid::from_raw(i32::try_from(*pid).ok()?)?;
            let fd = (number != getpid())
                .then(|| pidfd_open(number, PidfdFlags::empty()))?
                .ok()?;
            Some((*pid, fd))
        })
        .collect();
    let still = directory.pids()?;
    for (pid, fd) in &held {
        if still.contains(pid) {
            // Dead already is as good.
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
    }
    Ok(())
}
