//! What a template is made from, and what is said to it and to what is forked from it. The other side of these messages is
//! `template/src/message.rs`, which is compiled by itself and put into this program.

use std::io;
use std::path::PathBuf;

use libc::sock_filter;
use serde::{Deserialize, Serialize};

use super::plan::{Step, StepError};
use super::seccomp;
use crate::spec::Profile;

/// The library that an interpreter loads.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));
/// The script that it is started with, and what that executes.
pub const START: &str = include_str!("../../template/src/start.py");
pub const BOOT: &str = include_str!("../../template/src/boot.py");
/// The script of a kernel.
pub const KERNEL: &str = include_str!("../../template/src/kernel.py");
/// The script that a step of Python is started with where nothing is forked, which goes on as the step's own.
pub const COLD: &str = include_str!("../../template/src/cold.py");

/// The name of the script of a template, and of that of each step of Python.
pub const SCRIPT: &str = "main.py";

/// How to start a template's interpreter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub executable: PathBuf,
    /// Where it and its library are. None lies below another.
    pub prefixes: Vec<PathBuf>,
    /// What it starts with. The engine's defaults: nothing of a session's.
    pub environment: Vec<(String, String)>,
    /// The variables of a step of a session that adds none.
    pub usual: Vec<(String, String)>,
    /// Where the tree beside it is mounted, if there is one: a session's packages.
    pub deps: Option<PathBuf>,
}

/// What an interpreter is told first.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    step_filter: Vec<u8>,
    pin_filter: Vec<u8>,
    /// Names of modules to import.
    preload: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Setup {
    /// `environment`: the variables of most steps.
    #[must_use]
    pub fn new(profile: Profile, preload: Vec<String>, environment: Vec<(String, String)>) -> Self {
        Self {
            step_filter: instructions(seccomp::step_filter(profile)),
            pin_filter: instructions(seccomp::pin_filter()),
            preload,
            environment,
        }
    }
}

/// As the kernel reads them.
fn instructions(filter: &[sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(filter));
    for instruction in filter {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

/// A request to a template, or to a sub-template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToTemplate {
    /// Beside it: the socket of the sub-template to be, then descriptors of `cgroup.procs` to join.
    Branch,
    /// Beside it: the socket of the process to be, memory for what its code shows, then what [`super::init::FromInit::Joinable`] brought, then, where
    /// there is one, the cgroup v2 leaf.
    Fork(Fork),
}

/// A process to be forked into a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fork {
    /// The sandbox has a user namespace of its own.
    pub users: bool,
    /// The rules of a fence are beside it, to be put up with these flags.
    pub fence: Option<u32>,
    pub leaf: bool,
    /// As in [`super::skeleton::SkeletonSpec`].
    pub tasks: Option<u64>,
    pub pinned: bool,
    /// A second process may hold the memory, so that the end of the first does not wait until it is taken apart: not where
    /// memory is measured by looking at processes.
    pub held: bool,
    /// Capabilities of the code.
    pub kept: u64,
    /// What the code's environment will most likely be.
    pub environment: Vec<(String, String)>,
}

/// What a template, a sub-template or a forked process says.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum FromTemplate {
    /// A template serves, and holds so many KiB; a sub-template is in its cgroups.
    Ready(u32),
    /// The code runs.
    Started,
    Failed {
        place: u32,
        errno: u32,
    },
    /// There is no template: the name of a module, a NUL, and why it was not imported.
    Refused(String),
    /// A forked process waits, and the listener of its filter is beside it. Numbers in the sandbox: its own, and that of the
    /// process that holds its memory, or 0.
    Waits {
        number: u32,
        holder: u32,
    },
}

/// The step of the plan that a forked process failed at.
#[must_use]
pub fn failure(place: u32, errno: u32) -> StepError {
    const STEPS: &[Step] = &[
        Step::ReadRequest,
        Step::JoinCgroups,
        Step::ForkTemplate,
        Step::EnterSandbox,
        Step::NewSession,
        Step::ResourceLimits,
        Step::DropCapabilities,
        Step::StepFilter,
        Step::WriteCode,
        Step::WorkingDirectory,
        Step::StandardStreams,
        Step::Affinity,
        Step::Fence,
    ];
    let step = usize::try_from(place)
        .ok()
        .and_then(|place| STEPS.get(place).copied())
        .unwrap_or(Step::ForkTemplate);
    let error = io::Error::from_raw_os_error(errno.cast_signed());
    StepError::new(step, "a forked interpreter", &error)
}

/// The library's side.
#[cfg(test)]
#[path = "../../template/src/message.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::all,
    clippy::cast_possible_truncation,
    reason = "a test reads a part of it"
)]
mod native;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::sandbox::init::{Code, Request, ToInit};

    fn encode(message: &impl Serialize) -> Vec<u8> {
        postcard::to_stdvec(message).unwrap()
    }

    #[test]
    fn what_the_engine_says_is_what_the_library_reads() {
        let setup = encode(&Setup::new(
            Profile::Untrusted,
            vec!["json".into(), "numpy.random".into()],
            vec![("A".into(), "1".into())],
        ));
        let read = native::Setup::read(&setup).unwrap();
        let filter = seccomp::step_filter(Profile::Untrusted);
        assert_eq!(read.filters.step, instructions(filter));
        assert_eq!(read.filters.pin, instructions(seccomp::pin_filter()));
        let names: Vec<_> = read.preload.iter().collect();
        assert_eq!(names, [b"json".as_slice(), b"numpy.random"]);
        let variables: Vec<_> = read.environment.iter().collect();
        assert_eq!(variables, [b"A".as_slice(), b"1"]);

        let fork = encode(&ToTemplate::Fork(Fork {
            users: true,
            fence: Some(5),
            leaf: false,
            tasks: Some(300),
            pinned: true,
            held: true,
            kept: 1 << 40 | 3,
            environment: vec![("A".into(), "x".repeat(200))],
        }));
        let Some(native::Order::Fork(read)) = native::Order::read(&fork) else {
            panic!("{fork:?}");
        };
        assert!(read.users && !read.leaf && read.pinned && read.held);
        assert_eq!(read.fence, Some(5));
        assert_eq!(read.tasks, Some(300));
        assert_eq!(read.kept, 1 << 40 | 3);
        let strings: Vec<_> = read.environment.iter().collect();
        assert_eq!(strings, [b"A".as_slice(), "x".repeat(200).as_bytes()]);
        assert!(matches!(
            native::Order::read(&encode(&ToTemplate::Branch)),
            Some(native::Order::Branch)
        ));

        let go = encode(&ToInit::Go(Box::new(Request {
            arguments: vec![b"python".to_vec(), b"\xff".to_vec()],
            environment: vec![("B".into(), "1".into())],
            directory: PathBuf::from("/workspace"),
            code: Some(Code {
                file: "main.py".into(),
                source: b"print(1)".to_vec(),
            }),
            processors: vec![1, 64],
            shows: false,
        })));
        let Some(native::Go::Request(read)) = native::Go::read(&go) else {
            panic!("{go:?}");
        };
        let arguments: Vec<_> = read.arguments.iter().collect();
        assert_eq!(arguments, [b"python".as_slice(), b"\xff"]);
        assert_eq!(read.directory, b"/workspace");
        assert_eq!(
            read.code,
            Some((b"main.py".as_slice(), b"print(1)".as_slice()))
        );
        let mask = read.affinity().unwrap();
        assert_eq!(mask[..2], [2, 1]);
        assert!(matches!(
            native::Go::read(&encode(&ToInit::GoLong)),
            Some(native::Go::Long)
        ));
    }

    #[test]
    fn what_the_library_says_is_what_the_engine_reads() {
        let words = [
            (native::Word::Ready(70_000), FromTemplate::Ready(70_000)),
            (native::Word::Started, FromTemplate::Started),
            (
                native::Word::Waits {
                    number: u32::MAX,
                    holder: 300,
                },
                FromTemplate::Waits {
                    number: u32::MAX,
                    holder: 300,
                },
            ),
            (
                native::Word::Failed {
                    place: native::Place::Directory,
                    errno: 300,
                },
                FromTemplate::Failed {
                    place: 9,
                    errno: 300,
                },
            ),
        ];
        for (word, expected) in words {
            let (bytes, length) = word.encode();
            assert_eq!(
                postcard::from_bytes::<FromTemplate>(&bytes[..length]),
                Ok(expected)
            );
        }
        assert_eq!(failure(9, 2).step, Step::WorkingDirectory);
        assert_eq!(failure(11, 2).step, Step::Affinity);
        assert_eq!(failure(12, 2).step, Step::Fence);
    }
}
