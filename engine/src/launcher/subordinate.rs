//! Subordinate ids: host ids that the administrator has given to a user, for a user namespace of theirs. Only two programs
//! with rights of their own map them, from outside of that namespace.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::sandbox::identity::{BOX_ID, HostIds, Mode, RANGE_FIRST};
use crate::sys::clone::{Child, Namespaces, fork};
use crate::sys::exec::{StringTable, execve, exit_now};

/// A map and who writes it.
const MAPS: [(&str, &str); 2] = [("/etc/subuid", "newuidmap"), ("/etc/subgid", "newgidmap")];
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

/// What the two programs are asked for.
struct Request {
    program: PathBuf,
    /// The caller's own id, then the range.
    words: Vec<String>,
}

/// A process outside that maps the ids of this one once it has left.
pub(super) struct Mapper {
    child: Child,
    go: OwnedFd,
}

/// Starts one where the caller has a range and the programs are there.
pub(super) fn mapper(uid: u32, gid: u32) -> io::Result<Option<Mapper>> {
    let (Ok(users), Ok(groups)) = (request(uid, uid, 0), request(uid, gid, 1)) else {
        return Ok(None);
    };
    let target = std::process::id().to_string();
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let Some(child) = fork(Namespaces::default(), None)? else {
        drop(go);
        if rustix::io::read(&wait, &mut [0]) != Ok(1) {
            exit_now(1);
        }
        let done = [users, groups]
            .iter()
            .all(|request| execute(request, &target).unwrap_or(false));
        exit_now(i32::from(!done))
    };
    Ok(Some(Mapper { child, go }))
}

impl Mapper {
    /// Whether the ids of this process, which is in its new user namespace by now, were mapped.
    pub(super) fn map(self) -> io::Result<bool> {
        rustix::io::write(&self.go, b"x")?;
        ended_well(&self.child)
    }
}

fn ended_well(child: &Child) -> io::Result<bool> {
    use std::os::fd::AsFd;
    let status = rustix::io::retry_on_intr(|| {
        waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)
    })?;
    Ok(status.and_then(|status| status.exit_status()) == Some(0))
}

fn execute(request: &Request, target: &str) -> io::Result<bool> {
    if let Some(child) = fork(Namespaces::default(), None)? {
        return ended_well(&child);
    }
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let program = text(&request.program.to_string_lossy());
    let words = [&*request.program.to_string_lossy(), target]
        .into_iter()
        .chain(request.words.iter().map(String::as_str))
        .map(text)
        .collect();
    execve(
        &program,
        &StringTable::new(words),
        &StringTable::new(Vec::new()),
    );
    exit_now(127)
}

/// What is to be asked for one of the two maps, or why that cannot be.
fn request(uid: u32, own: u32, which: usize) -> Result<Request, String> {
    let (file, program) = MAPS[which];
    let text = fs::read_to_string(file).unwrap_or_default();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let (first, count) =
        range(&text, uid, &passwd).ok_or_else(|| format!("{file} has no range for uid {uid}"))?;
    let program = PLACES
        .iter()
        .map(|place| Path::new(place).join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program}, which maps what {file} gives, is not installed"))?;
    let words = [BOX_ID, own, 1, RANGE_FIRST, first, count.min(RANGE_FIRST)];
    Ok(Request {
        program,
        words: words.map(|word| word.to_string()).into(),
    })
}

/// The longest range that the file gives to the user, by number or name.
fn range(text: &str, uid: u32, passwd: &str) -> Option<(u32, u32)> {
    let number = uid.to_string();
    let name = passwd.lines().find_map(|line| {
        let mut words = line.split(':');
        let name = words.next()?;
        (words.nth(1)? == number).then_some(name)
    });
    let ranges = text.lines().filter_map(|line| {
        let mut words = line.trim().split(':');
        let whose = words.next()?;
        let (first, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (whose == number || Some(whose) == name).then_some((first, count))
    });
    ranges
        .filter(|(first, count): &(u32, u32)| *count > 0 && first.checked_add(*count).is_some())
        .max_by_key(|(_, count)| *count)
}

/// Whether realms have a range of ids, and if not, why. To be asked in the launcher's own namespaces.
pub(super) fn available(mode: Mode) -> Result<(), String> {
    match mode {
        Mode::Root => HostIds::nth(0)
            .ok()
            .and_then(HostIds::range)
            .map(drop)
            .ok_or_else(|| "/proc/self/uid_map leaves the engine too few ids".to_owned()),
        Mode::Rootless { uid, gid } => {
            let mapped = |file| {
                let map = fs::read_to_string(file).unwrap_or_default();
                let beginnings = map
                    .lines()
                    .filter_map(|line| line.split_whitespace().next());
                beginnings
                    .into_iter()
                    .any(|first| first == RANGE_FIRST.to_string())
            };
            if mapped("/proc/self/uid_map") && mapped("/proc/self/gid_map") {
                return Ok(());
            }
            request(uid, uid, 0)?;
            request(uid, gid, 1)?;
            Err(
                "newuidmap or newgidmap refused to map the ranges of /etc/subuid and /etc/subgid"
                    .to_owned(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_callers_by_number_or_name() {
        let passwd = "root:x:0:0::/:\nann:x:500:500::/:\n";
        let file = "ann:100000:65536\n501:1:2\nbob:7:9\nann:300000:70000\n";
        assert_eq!(range(file, 500, passwd), Some((300_000, 70_000)));
        assert_eq!(range(file, 501, passwd), Some((1, 2)));
        assert_eq!(range(file, 502, passwd), None);
        assert_eq!(
            range("ann:100000:0\n500:4294967295:9\nx\n:::\n", 500, passwd),
            None
        );
    }
}
