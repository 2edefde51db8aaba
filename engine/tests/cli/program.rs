//! Starting the program in directories of a test's own, and looking at what it left there.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A place for one test: the program's state and private workspaces are in it, and whatever the test makes.
pub(crate) struct Place {
    base: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        for name in ["run", "tmp", "here"] {
            fs::DirBuilder::new()
                .mode(0o700)
                .create(base.path().join(name))
                .unwrap();
        }
        Self { base }
    }

    /// The directory that the program is started in.
    pub(crate) fn here(&self) -> PathBuf {
        self.base.path().join("here")
    }

    /// A file in the directory that the program is started in.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.here().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    pub(crate) fn command(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepbox"));
        command.args(words);
        self.settle(command)
    }

    /// A command that finds its directories here.
    pub(crate) fn settle(&self, mut command: Command) -> Command {
        command
            .current_dir(self.here())
            .env("XDG_RUNTIME_DIR", self.base.path().join("run"))
            .env("TMPDIR", self.base.path().join("tmp"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs the program to its end, and checks that it left nothing.
    pub(crate) fn stepbox(&self, words: &[&str]) -> Ended {
        let output = self.command(words).output().unwrap();
        self.assert_nothing_left();
        output.into()
    }

    pub(crate) fn stepbox_with_stdin(&self, words: &[&str], stdin: &str) -> Ended {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(stdin.as_bytes()).unwrap();
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        self.assert_nothing_left();
        output.into()
    }

    /// The names of the engines that have directories here.
    pub(crate) fn engines(&self) -> Vec<String> {
        self.engine_directories()
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("engine-"))
            .map(str::to_owned)
            .collect()
    }

    fn engine_directories(&self) -> Vec<PathBuf> {
        ["run", "tmp"]
            .iter()
            .flat_map(|name| children(&self.base.path().join(name)))
            .flat_map(|base| children(&base))
            .collect()
    }

    /// No directory of an engine is left, in the runtime directory or in the scratch.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.engine_directories(), Vec::<PathBuf>::new());
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// The cgroups of an engine, wherever they are.
pub(crate) fn cgroups_of(engine: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = next.pop() {
        // A cgroup of somebody else's may go while it is looked at.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name() == format!("stepbox-{engine}").as_str() {
                found.push(entry.path());
            }
            next.push(entry.path());
        }
    }
    found
}

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Stdout, as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
