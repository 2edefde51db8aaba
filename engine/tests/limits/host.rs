//! An engine's cgroups on this host, and processes in them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepbox_engine::sandbox::cgroup::{Cgroups, SlotCgroup};

/// On v2 an engine moves itself: two at once in this one process would find each other's cgroups.
static ALONE: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Host {
    /// None: this engine died.
    cgroups: Option<Cgroups>,
    id: String,
    directories: Vec<PathBuf>,
    /// Held by all that stand beside each other.
    _alone: Rc<MutexGuard<'static, ()>>,
}

impl Host {
    pub(crate) fn new() -> Self {
        // A test that failed has let its guard go: what it left is its own.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self::with(Rc::new(alone))
    }

    /// Another engine at the same time.
    pub(crate) fn beside(&self) -> Self {
        Self::with(self._alone.clone())
    }

    fn with(alone: Rc<MutexGuard<'static, ()>>) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("test-{}-{number}", std::process::id());
        let cgroups = Cgroups::create(&id, None).expect("cgroups");
        assert!(cgroups.refusals().is_empty(), "{:?}", cgroups.refusals());
        let directories = cgroups
            .directories()
            .into_iter()
            .map(PathBuf::from)
            .collect();
        Self {
            cgroups: Some(cgroups),
            id,
            directories,
            _alone: alone,
        }
    }

    pub(crate) fn cgroups(&self) -> &Cgroups {
        self.cgroups.as_ref().expect("an engine that lives")
    }

    /// Ends without having removed anything.
    pub(crate) fn die(&mut self) {
        self.cgroups = None;
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.directories.clone()
    }

    pub(crate) fn slot(&self, name: &str) -> SlotCgroup {
        self.cgroups().slot(name).expect("a slot")
    }

    /// Runs Python code as a step in `slot`, to its end.
    pub(crate) fn run(&self, slot: &SlotCgroup, code: &str) -> Ending {
        self.start(slot, code).wait()
    }

    /// Starts Python code as a step in `slot`; it is in its cgroups when this returns.
    pub(crate) fn start(&self, slot: &SlotCgroup, code: &str) -> Process {
        let doors = match slot.leaf().expect("a leaf or none") {
            None => slot.join_fds().expect("descriptors"),
            Some(leaf) => {
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
                let empty = rustix::fs::Mode::empty();
                vec![rustix::fs::openat(leaf, "cgroup.procs", flags, empty).expect("the leaf")]
            }
        };
        Process::start(&doors, code)
    }

    /// Starts a process that waits where a slot's spawner would.
    pub(crate) fn start_spawner(&self, slot: &SlotCgroup) -> Process {
        Process::start(&slot.join_fds().expect("descriptors"), "input()")
    }

    /// Whether the scheduler held back anything in the slot `name`.
    pub(crate) fn throttled(&self, name: &str) -> bool {
        let slot = format!("slot-{name}");
        self.directories.iter().any(|directory| {
            ["cpu.stat", "step-0/cpu.stat"].iter().any(|file| {
                std::fs::read_to_string(directory.join(&slot).join(file)).is_ok_and(|text| {
                    text.lines()
                        .filter_map(|line| line.strip_prefix("nr_throttled "))
                        .any(|count| count != "0")
                })
            })
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A test that asserts removal did it already, and one that failed must not hide why.
        if let Some(cgroups) = &self.cgroups {
            let _ = cgroups.remove();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// A process that is killed when the test is done with it.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    fn start(doors: &[OwnedFd], code: &str) -> Self {
        // Inheritable copies: other children that start at this instant would hold them too, to no harm.
        let inherited: Vec<OwnedFd> = doors
            .iter()
            .map(|door| {
                let copy = rustix::io::dup(door.as_fd()).expect("a copy");
                rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).expect("inheritable");
                copy
            })
            .collect();
        let numbers: Vec<_> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        let joined = format!(
            "import os\nfor fd in {numbers:?}:\n    os.write(fd, b'0')\n    os.close(fd)\nos.write(1, b'+')\n{code}"
        );
        let mut child = Command::new("python3")
            .args(["-I", "-S", "-c", &joined])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut plus = [0];
        let stdout = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(stdout, &mut plus).expect("the process joined");
        Self { child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    pub(crate) fn wait(&mut self) -> Ending {
        let status = self.child.wait().expect("wait");
        Ending {
            code: status.code(),
            signal: status.signal(),
        }
    }

    pub(crate) fn end(&mut self) {
        self.child.kill().expect("kill");
        self.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
