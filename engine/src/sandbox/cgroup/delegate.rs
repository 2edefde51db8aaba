//! A cgroup of our own on a host where systemd owns the tree: a transient scope with `Delegate=yes`.
//!
//! An SSH or desktop login sits in a cgroup that belongs to root; only the manager can move a process out of it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::PREFIX;

const SCOPE: &str = ".scope";
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);
/// Of the manager's reply; the rest would not help.
const REPLY_BYTES: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    #[error("no systemd manager answers for this user: {} is missing", path.display())]
    NoManager { path: PathBuf },
    #[error("start busctl")]
    Start { source: std::io::Error },
    #[error("wait for busctl")]
    Wait { source: std::io::Error },
    #[error("busctl gave no answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("systemd refused the scope {unit}: {reply}")]
    Refused { unit: String, reply: String },
    #[error("process {pid} is not in {unit} {} s after systemd took the request", PATIENCE.as_secs())]
    NotMoved { unit: String, pid: u32 },
}

/// The socket of the manager that is asked: root's is the system's.
fn bus() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/dbus/system_bus_socket");
    }
    runtime_directory().join("bus")
}

/// An engine started with a bare environment still finds its user's manager.
fn runtime_directory() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(
        || PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw())),
        PathBuf::from,
    )
}

/// Whether there is a manager to ask. It is not asked.
pub(super) fn possible() -> Result<(), ScopeError> {
    let missing = [PathBuf::from("/run/systemd/system"), bus()]
        .into_iter()
        .find(|path| !path.exists());
    match missing {
        Some(path) => Err(ScopeError::NoManager { path }),
        None => Ok(()),
    }
}

/// Has the manager put process `pid` of ours into a new scope `stepbox-<engine_id>.scope`, delegated to us.
/// It ends with its last process.
pub(super) fn request_scope(engine_id: &str, pid: u32) -> Result<(), ScopeError> {
    possible()?;
    let unit = format!("{PREFIX}{engine_id}{SCOPE}");
    let deadline = Instant::now() + PATIENCE;
    let system = rustix::process::geteuid().is_root();
    ask(&arguments(&unit, pid, system), &unit, deadline)?;
    // The reply names a job; the process is moved when that is done.
    while !is_in(pid, &unit) {
        if Instant::now() >= deadline {
            return Err(ScopeError::NotMoved { unit, pid });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Has the manager end a scope of ours, in which no process is left: it does not always notice that by itself when the
/// subtree goes at the same time.
pub(super) fn end_scope(path: &Path) -> Result<(), ScopeError> {
    let unit = path.file_name().unwrap_or_default().to_string_lossy();
    let mut words = manager(rustix::process::geteuid().is_root());
    words.extend(["StopUnit", "ss", &unit, "fail"]);
    let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
    ask(&words, &unit, Instant::now() + PATIENCE)
}

fn ask(words: &[String], unit: &str, deadline: Instant) -> Result<(), ScopeError> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the manager's bus has its own client; no word of it is a session's"
    )]
    let mut busctl = Command::new("busctl");
    let child = busctl
        .args(words)
        .env("XDG_RUNTIME_DIR", runtime_directory())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| ScopeError::Start { source })?;
    finish(child, unit, deadline)
}

/// The call of a method of the manager, up to the method's name.
fn manager(system: bool) -> Vec<&'static str> {
    vec![
        if system { "--system" } else { "--user" },
        "--quiet",
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
    ]
}

fn arguments(unit: &str, pid: u32, system: bool) -> Vec<String> {
    let pid = pid.to_string();
    let mut words: Vec<&str> = manager(system);
    words.extend(["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail"]);
    // Four properties, each a name, a type and a value; a failed scope is forgotten, so that its name is free again.
    words.extend(["4", "PIDs", "au", "1", &pid]);
    words.extend(["Delegate", "b", "true"]);
    words.extend(["Description", "s", "stepbox sandboxes"]);
    words.extend(["CollectMode", "s", "inactive-or-failed"]);
    // No auxiliary units.
    words.push("0");
    words.into_iter().map(str::to_owned).collect()
}

/// Whether a cgroup is a scope that was made here.
pub(super) fn is_scope(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SCOPE))
}

fn finish(mut child: Child, unit: &str, deadline: Instant) -> Result<(), ScopeError> {
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Ok(None) => {
                // Killed and reaped: a late answer could move the launcher at any later time, but the scope is then ours still.
                let _ = child.kill();
                let _ = child.wait();
                return Err(ScopeError::Silent);
            }
            Err(source) => return Err(ScopeError::Wait { source }),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut reply = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // A reply that cannot be read leaves the message without it.
        let _ = stderr.take(REPLY_BYTES).read_to_end(&mut reply);
    }
    Err(ScopeError::Refused {
        unit: unit.to_owned(),
        reply: String::from_utf8_lossy(&reply).trim().to_owned(),
    })
}

fn is_in(pid: u32, unit: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| shows(&text, unit))
}

/// Whether the v2 line of a `/proc/<pid>/cgroup` ends in the unit.
fn shows(text: &str, unit: &str) -> bool {
    text.lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .any(|path| Path::new(path).file_name() == Some(unit.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_names_the_unit_the_process_and_delegation() {
        let words = arguments("stepbox-a.scope", 42, false).join(" ");
        assert_eq!(
            words,
            "--user --quiet call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
             org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv)) stepbox-a.scope fail \
             4 PIDs au 1 42 Delegate b true Description s stepbox sandboxes CollectMode s inactive-or-failed 0"
        );
    }

    #[test]
    fn a_process_is_in_the_scope_when_its_v2_path_ends_there() {
        let scope = "1:name=systemd:/x/stepbox-b.scope\n0::/user.slice/stepbox-a.scope\n";
        assert!(shows(scope, "stepbox-a.scope"));
        assert!(!shows(scope, "stepbox-b.scope"));
        assert!(!shows(
            "0::/user.slice/session-1.scope\n",
            "stepbox-a.scope"
        ));
    }
}
