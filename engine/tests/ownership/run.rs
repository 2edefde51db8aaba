//! `stepbox run` in a place, and its processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::place::Place;

pub(crate) fn command(place: &Place, workspace: &Path, code: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepbox"));
    command
        .arg("run")
        .arg("--workspace")
        .arg(workspace)
        .args(["-c", code])
        .env("TMPDIR", place.engines())
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null());
    command
}

/// Runs code to its end, which must be a good one; gives the result as JSON.
pub(crate) fn run(place: &Place, code: &str) -> serde_json::Value {
    let output = command(place, &place.workspace(), code)
        .arg("--json")
        .output()
        .unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", told(&output)));
    assert_eq!(result["exit_code"], 0, "{result}");
    result
}

pub(crate) fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into()
}

pub(crate) fn says(result: &serde_json::Value, layer: &str) -> bool {
    result["isolation"]
        .as_array()
        .unwrap()
        .iter()
        .any(|said| said == layer)
}

/// An engine in whose sandbox code has begun, and waits until the fifo `go` of the workspace is written to.
pub(crate) struct Waiting {
    child: Child,
    engine: OwnedFd,
    launcher: OwnedFd,
    go: PathBuf,
}

impl Waiting {
    /// The code makes a file `made` first.
    pub(crate) fn start(place: &Place) -> Self {
        let code = "open('made', 'w').close()\nprint('ready', flush=True)\nopen('go').read()";
        let mut child = command(place, &place.workspace(), code)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self {
            engine: pidfd(child.id()),
            launcher: pidfd(only_child_of(child.id())),
            child,
            go: place.path("go"),
        }
    }

    /// Kills the engine alone, and waits until the launcher has ended by itself.
    pub(crate) fn kill_engine(self) {
        send(&self.engine, Signal::KILL);
        assert!(has_ended(&self.launcher));
    }

    /// Kills the launcher alone, and waits until the engine has ended by itself.
    pub(crate) fn kill_launcher(mut self) {
        send(&self.launcher, Signal::KILL);
        assert!(has_ended(&self.engine));
        assert!(!self.child.wait().unwrap().success());
    }

    /// Kills both, so that neither sees the other's end.
    pub(crate) fn kill_both(self) {
        send(&self.launcher, Signal::STOP);
        send(&self.engine, Signal::KILL);
        send(&self.launcher, Signal::KILL);
        assert!(has_ended(&self.launcher));
    }

    /// Lets the code end.
    pub(crate) fn finish(mut self) {
        let mut go = fs::OpenOptions::new().write(true).open(&self.go).unwrap();
        go.write_all(b"x").unwrap();
        drop(go);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

fn send(process: &OwnedFd, signal: Signal) {
    pidfd_send_signal(process, signal).unwrap();
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(
        process,
        rustix::event::PollFlags::IN,
    )];
    let patience = Duration::from_secs(30).try_into().unwrap();
    rustix::event::poll(&mut fds, Some(&patience)).unwrap() == 1
}

fn only_child_of(parent: u32) -> u32 {
    let children: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect();
    assert_eq!(children.len(), 1, "the launcher");
    children[0]
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}
