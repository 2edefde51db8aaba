//! An interpreter of the tests' own, whose library has no bytecode.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stepbox_engine::api::pb;

/// Large, and loaded by none of the tests.
const LEFT_OUT: &[&str] = &[
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
    "turtledemo",
];
const QUESTION: &str = "import os, sys\n\
    print(os.path.realpath(sys.executable), os.path.dirname(os.__file__), sys.base_prefix, sys.version.split()[0], sep='\\n')";

pub(crate) struct Prefix {
    place: tempfile::TempDir,
    /// The standard library.
    pub(crate) library: PathBuf,
    /// Where a shared part of the program may be.
    base: PathBuf,
    version: String,
}

impl Prefix {
    /// A copy of the host's; none when there is none that can be copied.
    pub(crate) fn copied() -> Option<Self> {
        let found = ["/usr/bin/python3", "python3"].into_iter().find_map(copy);
        if found.is_none() {
            eprintln!("skipped: no python3 from 3.8 on that can be copied");
        }
        found
    }

    fn executable(&self) -> PathBuf {
        self.place.path().join("bin/python3")
    }

    pub(crate) fn spec(&self) -> pb::SandboxSpec {
        let bytes = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec().into();
        pb::SandboxSpec {
            interpreter: Some(pb::Interpreter {
                executable: bytes(&self.executable()),
                prefixes: vec![bytes(self.place.path()), bytes(&self.base)],
                version: self.version.clone(),
            }),
            ..pb::SandboxSpec::default()
        }
    }

    /// Gives the library the bytecode that it lacks.
    pub(crate) fn compile(&self) {
        self.compile_in(&self.library);
    }

    pub(crate) fn compile_in(&self, directory: &Path) {
        let compiled = Command::new(self.executable())
            .args(["-m", "compileall", "-q"])
            .arg(directory)
            .env_remove("PYTHONPYCACHEPREFIX")
            .stdout(Stdio::null())
            .status();
        assert!(compiled.unwrap().success());
    }
}

fn copy(python: &str) -> Option<Prefix> {
    let answer = Command::new(python)
        .args(["-I", "-c", QUESTION])
        .output()
        .ok()?;
    let answer = String::from_utf8(answer.stdout).ok()?;
    let [executable, library, base, version] = answer.lines().collect::<Vec<_>>()[..] else {
        return None;
    };
    let minor: u32 = version.split('.').nth(1)?.parse().ok()?;
    if minor < 8 {
        return None;
    }
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let name = format!("python3.{minor}");
    fs::create_dir(place.path().join("bin")).unwrap();
    fs::copy(executable, place.path().join("bin").join(&name)).unwrap();
    symlink(&name, place.path().join("bin/python3")).unwrap();
    let own = place.path().join("lib").join(&name);
    copy_tree(Path::new(library), &own);
    fs::create_dir(own.join("site-packages")).unwrap();
    let prefix = Prefix {
        library: own,
        base: base.into(),
        version: version.to_owned(),
        place,
    };
    // A build that insists on its place is of no use.
    let said = Command::new(prefix.executable())
        .args(["-I", "-B", "-c", "import sys; print(sys.prefix)"])
        .output()
        .ok()?;
    (Path::new(String::from_utf8(said.stdout).ok()?.trim()) == prefix.place.path())
        .then_some(prefix)
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let left_out = name
            .to_str()
            .is_some_and(|name| LEFT_OUT.contains(&name) || name.starts_with("config-"));
        if left_out {
            continue;
        }
        let target = to.join(&name);
        // A library may have links into the host's configuration.
        let Ok(found) = fs::metadata(entry.path()) else {
            continue;
        };
        if found.is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
