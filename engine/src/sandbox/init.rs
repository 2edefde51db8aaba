//! Pid 1 of a sandbox. Made ahead of any step, it waits for one; then it clones the code's process, reaps whatever
//! dies, and tells the engine how the code ended. It never decides anything: the engine ends it, and with it the sandbox.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use super::child::{self, Failure, Prepared};
use super::kernel;
use super::landlock::Fence;
use super::plan::{Context, Step, StepError};
use super::resident;
use super::seccomp;
use super::skeleton::{Built, CODE_DIRECTORY, SkeletonSpec, build};
use super::template::SCRIPT;
use crate::sys::clone::{Stack, vfork};
use crate::sys::datagram;
use crate::sys::exec::{StringTable, exit_now};
use crate::sys::rusage::children_peak;

/// A message to an init. The first one says what it is for; beside that: stdin, stdout, stderr.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToInit {
    Go(Box<Request>),
    /// The request is too long for a datagram: it is in a memfd beside the streams.
    GoLong,
    /// The code's process will be this one, which was forked into the sandbox: only its end is to be told. Where it has
    /// ended without code another message may follow. `holder`: a process that holds its memory, and can do nothing else.
    Adopt {
        main: i32,
        holder: Option<i32>,
    },
    /// A kernel is to be started. Beside the streams: the request in a memfd, the library for its interpreter, the script,
    /// and memory for what its cells show.
    Kernel,
    /// A kernel's next cell; without a source that is in a memfd beside it.
    Cell {
        number: u64,
        source: Option<Vec<u8>>,
    },
    /// What the kernel runs now is to be interrupted; nothing, where it runs nothing.
    Interrupt,
    /// A step is to enter the sandbox, which stays: a resident. Beside the streams: the request in a memfd and, where the
    /// step has a cgroup of its own, the `cgroup.procs` of that.
    Enter {
        number: u64,
    },
}

/// What to execute. No bound but memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// A name with no slash is looked for on the PATH of `environment`.
    pub arguments: Vec<Vec<u8>>,
    pub environment: Vec<(String, String)>,
    pub directory: PathBuf,
    pub code: Option<Code>,
    /// Processor numbers; empty: those of init.
    pub processors: Vec<u32>,
    /// It is a script of Python that can show results: beside all else are what starts it, its library, and the memory for
    /// them.
    pub shows: bool,
}

/// Source code, and the name of its file below [`CODE_DIRECTORY`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Code {
    pub file: String,
    pub source: Vec<u8>,
}

/// What an init tells the engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromInit {
    /// Beside it: what the sandbox's memory is measured by, in one or several of these.
    Windows,
    /// Beside it: the ways into the sandbox, in the order of `show_namespaces`.
    Joinable,
    /// The skeleton stands; its seccomp listener is beside it.
    Ready,
    /// A step of the plan failed: the code did not run.
    Failed(StepError),
    /// The program could not be executed.
    ExecFailed { errno: i32, looked_in: Vec<String> },
    /// The code runs.
    Started,
    /// The code's main process ended with this wait status. `alone`: no other process of the sandbox was left.
    /// `largest`: bytes that the largest process that has ended had in memory at once, where it is asked for.
    Exited {
        status: i32,
        alone: bool,
        largest: Option<u64>,
    },
    /// What became of a step of a resident.
    Step { number: u64, word: StepWord },
    /// A kernel's cell ended, by the interpreter's own word.
    Answered { number: u64, exit_code: u8 },
}

/// What an init tells of one step of a resident.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StepWord {
    /// A step of the plan failed: its code did not run.
    Failed(StepError),
    ExecFailed {
        errno: i32,
        looked_in: Vec<String>,
    },
    Started,
    /// Its main process ended with this wait status. What that left runs on.
    Exited {
        status: i32,
    },
}

/// The life of an init; `engine` is its only descriptor that matters.
pub fn main(engine: &OwnedFd, spec: &SkeletonSpec) -> ! {
    let code = match live(engine.as_fd(), spec) {
        Ok(()) => 0,
        Err(error) => {
            // A peer that is gone needs no telling.
            let _ = datagram::send(engine.as_fd(), &FromInit::Failed(error), &[]);
            1
        }
    };
    exit_now(code)
}

fn live(engine: BorrowedFd<'_>, spec: &SkeletonSpec) -> Result<(), StepError> {
    rehearse(spec)?;
    let Built { code, rules } = build(spec, engine)?;
    let mut stack = Stack::new();
    let (mut request, streams, beside) = loop {
        let Some((go, descriptors)) = datagram::receive(engine).at(Step::ReadRequest, "go")? else {
            return Ok(());
        };
        match go {
            // It may end without having run anything: then the sandbox is as it was before.
            ToInit::Adopt { main, holder } => {
                reap(engine, main, holder, spec.watched)?;
                // It had made the file, and did not come to use it.
                let _ = unlinkat(&code, SCRIPT, AtFlags::empty());
            }
            ToInit::Go(request) => {
                let (streams, rest) = split(descriptors)?;
                break (*request, streams, rest);
            }
            ToInit::GoLong => {
                let (streams, mut rest) = split(descriptors)?;
                let request = read_request(&rest)?;
                rest.remove(0);
                break (request, streams, rest);
            }
            ToInit::Kernel => {
                let (streams, rest) = split(descriptors)?;
                let request = read_request(&rest)?;
                let mut parts = rest.into_iter().skip(1);
                let (Some(library), Some(script), Some(board)) =
                    (parts.next(), parts.next(), parts.next())
                else {
                    return Err(invalid("library"));
                };
                drop(code);
                let parts = kernel::Parts {
                    library,
                    script,
                    board,
                    rules,
                };
                return kernel::live(engine, spec, &mut stack, request, streams, parts);
            }
            ToInit::Enter { number } => {
                let parts = resident::Parts { code, rules };
                return resident::live(engine, spec, &mut stack, parts, (number, descriptors));
            }
            ToInit::Cell { .. } | ToInit::Interrupt => return Err(invalid("order")),
        }
    };
    if let Some(source) = &request.code {
        write_code(&code, source)?;
    }
    // By its number it could be asked for as the working directory.
    drop(code);
    let mut own = Kept {
        rules,
        cgroup: None,
        descriptors: Vec::new(),
    };
    if request.shows {
        own.descriptors = show(&mut request.arguments, beside)?;
    }
    match start(engine, spec, &mut stack, request, streams, own)? {
        Some(main) => reap(engine, main, None, spec.watched)?,
        None => return Ok(()),
    }
    await_end(engine);
    Ok(())
}

/// Has a script of Python begin with another one, whose descriptor and those that it needs follow each other. It is named so
/// that it takes as much room among the arguments, and can put the script's name in its place.
fn show(arguments: &mut [Vec<u8>], beside: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, StepError> {
    let place = |(index, fd)| {
        let number = FIRST_SHOWN + index;
        let moved = rustix::io::fcntl_dupfd_cloexec(fd, number).at(Step::ReadRequest, "script")?;
        if moved.as_raw_fd() == number {
            Ok(moved)
        } else {
            Err(invalid("script"))
        }
    };
    let numbers = 0_i32..;
    let placed = numbers.zip(&beside).map(place).collect::<Result<_, _>>()?;
    let script = arguments.get_mut(1).ok_or_else(|| invalid("script"))?;
    let number = FIRST_SHOWN.to_string();
    let width = script.len().saturating_sub(number.len());
    *script = format!("{:/<width$}{number}", "/proc/self/fd/").into_bytes();
    Ok(placed)
}

/// Nothing else of a process has this number, nor those that follow; and its table need not grow for them.
const FIRST_SHOWN: i32 = 40;

/// No child is left: nothing can happen any more but the end of the sandbox, which is the engine's to bring.
pub(super) fn await_end(engine: BorrowedFd<'_>) {
    let _ = datagram::receive::<ToInit>(engine);
}

fn invalid(what: &str) -> StepError {
    StepError::new(Step::ReadRequest, what, &io::ErrorKind::InvalidData.into())
}

/// What the code's process is given besides its request.
#[derive(Debug)]
pub(super) struct Kept {
    /// Those of the fence.
    pub(super) rules: Option<OwnedFd>,
    /// Where it enters the step's own cgroup.
    pub(super) cgroup: Option<OwnedFd>,
    /// What its program is to have open beside its streams.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What became of a start.
#[derive(Debug)]
pub(super) enum Launched {
    /// The pid of the code's process.
    Main(i32),
    NotExecuted {
        errno: i32,
        looked_in: Vec<String>,
    },
}

/// Starts the code, tells the engine, and gives its pid. None: the program could not be executed.
pub(super) fn start(
    engine: BorrowedFd<'_>,
    spec: &SkeletonSpec,
    stack: &mut Stack,
    request: Request,
    streams: [OwnedFd; 3],
    kept: Kept,
) -> Result<Option<i32>, StepError> {
    match launch(spec, stack, request, streams, kept)? {
        Launched::Main(main) => {
            tell(engine, &FromInit::Started)?;
            Ok(Some(main))
        }
        Launched::NotExecuted { errno, looked_in } => {
            tell(engine, &FromInit::ExecFailed { errno, looked_in })?;
            Ok(None)
        }
    }
}

/// Starts the code, with the streams and what is kept as its only descriptors.
pub(super) fn launch(
    spec: &SkeletonSpec,
    stack: &mut Stack,
    request: Request,
    streams: [OwnedFd; 3],
    kept: Kept,
) -> Result<Launched, StepError> {
    rustix::process::chdir(&request.directory).at(
        Step::WorkingDirectory,
        request.directory.display().to_string(),
    )?;
    let (mut prepared, looked_in) = prepare(request, spec)?;
    prepared.cgroup = kept.cgroup;
    prepared.kept = kept.descriptors;
    let flags = spec.fence.as_ref().map_or(0, Fence::flags);
    prepared.fence = kept.rules.map(|rules| (rules, flags));
    let mut failure: Option<Failure> = None;
    let main = vfork(stack, || {
        failure = Some(child::run(&prepared, &streams));
        1
    })
    .at(Step::CloneChild, "the code's process")?;
    drop((prepared, streams));
    if let Some(Failure { step, errno }) = failure {
        if step == Step::Execute {
            return Ok(Launched::NotExecuted { errno, looked_in });
        }
        let error = io::Error::from_raw_os_error(errno);
        return Err(StepError::new(step, "the code's process", &error));
    }
    Ok(Launched::Main(main))
}

/// Goes the way of a request once. Each page that is written to for the first time since the fork is copied, which takes
/// longer than all else that a request takes here: better now than on the call.
fn rehearse(spec: &SkeletonSpec) -> Result<(), StepError> {
    let usual = Request {
        arguments: vec![vec![b'a'; 64]; 2],
        environment: vec![("NAME_OF_A_VARIABLE".to_owned(), "value".repeat(8)); 24],
        directory: PathBuf::from("/workspace"),
        code: Some(Code {
            file: "main.py".to_owned(),
            source: vec![b'a'; 2048],
        }),
        processors: vec![0],
        shows: false,
    };
    let request = postcard::to_stdvec(&usual)
        .and_then(|bytes| postcard::from_bytes(&bytes))
        .map_err(io::Error::other)
        .at(Step::ReadRequest, "rehearsal")?;
    // No child has this number, which none but init has.
    is_all_that_is_left(0);
    prepare(request, spec).map(drop)
}

pub(super) fn tell(engine: BorrowedFd<'_>, message: &FromInit) -> Result<(), StepError> {
    datagram::send(engine, message, &[]).at(Step::ReadRequest, "the engine")
}

pub(super) fn split(descriptors: Vec<OwnedFd>) -> Result<([OwnedFd; 3], Vec<OwnedFd>), StepError> {
    let mut all = descriptors.into_iter();
    let (Some(stdin), Some(stdout), Some(stderr)) = (all.next(), all.next(), all.next()) else {
        return Err(invalid("descriptors"));
    };
    Ok(([stdin, stdout, stderr], all.collect()))
}

pub(super) fn read_request(descriptors: &[OwnedFd]) -> Result<Request, StepError> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    descriptors
        .first()
        .ok_or_else(invalid)
        .and_then(datagram::read_data)
        .and_then(|bytes| postcard::from_bytes(&bytes).map_err(|_| invalid()))
        .at(Step::ReadRequest, "request")
}

/// `directory`, which only init has, is the one way to write there: the code cannot change what a traceback shows.
pub(super) fn write_code(directory: &OwnedFd, code: &Code) -> Result<(), StepError> {
    let path = format!("{CODE_DIRECTORY}/{}", code.file);
    let make = || {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(directory, &code.file, flags, Mode::from_raw_mode(0o644))
    };
    let made = match make() {
        // A process that was forked ahead has made it, and ended before anybody heard of it.
        Err(rustix::io::Errno::EXIST) => {
            unlinkat(directory, &code.file, AtFlags::empty()).and_then(|()| make())
        }
        made => made,
    };
    let file = made.at(Step::WriteCode, path.clone())?;
    let mut rest = code.source.as_slice();
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))
            .at(Step::WriteCode, path.clone())?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Makes everything that the child uses, and the places where the program is looked for.
fn prepare(request: Request, spec: &SkeletonSpec) -> Result<(Prepared, Vec<String>), StepError> {
    let text = |bytes: Vec<u8>| CString::new(bytes).at(Step::ReadRequest, "a NUL byte");
    let arguments = request
        .arguments
        .into_iter()
        .map(text)
        .collect::<Result<Vec<_>, _>>()?;
    let program = arguments.first().map(|name| name.to_bytes().to_vec());
    let program = program.unwrap_or_default();
    let mut looked_in = Vec::new();
    let candidates = if program.contains(&b'/') {
        vec![text(program)?]
    } else {
        let path = request
            .environment
            .iter()
            .find(|(name, _)| name == "PATH")
            .map_or("/usr/bin:/bin", |(_, value)| value.as_str());
        let mut candidates = Vec::new();
        for directory in path.split(':').filter(|directory| !directory.is_empty()) {
            looked_in.push(directory.to_string());
            let candidate = PathBuf::from(directory).join(OsString::from_vec(program.clone()));
            candidates.push(text(candidate.into_os_string().into_vec())?);
        }
        candidates
    };
    let environment = request
        .environment
        .into_iter()
        .map(|(name, value)| text(format!("{name}={value}").into_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut affinity = None;
    for processor in request.processors {
        affinity
            .get_or_insert_with(CpuSet::new)
            .set(processor as usize);
    }
    Ok((
        Prepared {
            affinity,
            cgroup: None,
            tasks: spec.tasks.map(|tasks| tasks.saturating_add(OWN_TASKS)),
            pin: match spec.alone {
                Some(_) => Some(seccomp::alone_filter(spec.pinned)),
                None => spec.pinned.then(seccomp::pin_filter),
            },
            fence: None,
            kept: Vec::new(),
            candidates,
            arguments: StringTable::new(arguments),
            environment: StringTable::new(environment),
        },
        looked_in,
    ))
}

/// Init itself.
const OWN_TASKS: u64 = 1;

/// How many of the dead are taken at most between the end of the main process and telling it.
pub(super) const REAPED_SINCE: u32 = 4096;

/// Reaps all children; tells how `main` ended. Nobody waits for `holder`, who takes the memory of the main process apart.
fn reap(
    engine: BorrowedFd<'_>,
    main: i32,
    mut holder: Option<i32>,
    measured: bool,
) -> Result<(), StepError> {
    let finish = |ended, alone| finish(engine, ended, alone, measured);
    let mut ended = None;
    let mut since = 0;
    loop {
        // Once the main process has ended, those that are dead already are taken before the end is told.
        let options = if ended.is_some() {
            WaitOptions::NOHANG
        } else {
            WaitOptions::empty()
        };
        match wait(options) {
            Ok(Some((pid, status))) if ended.is_none() && pid.as_raw_nonzero().get() == main => {
                ended = Some(status.as_raw());
            }
            Ok(Some((pid, _))) if holder == Some(pid.as_raw_nonzero().get()) => holder = None,
            // Code that goes on making orphans must not put off the news.
            Ok(Some(_)) if since >= REAPED_SINCE => return finish(ended, false),
            Ok(Some(_)) if ended.is_some() => since += 1,
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return finish(ended, holder.is_some_and(is_all_that_is_left)),
            Err(_) => return finish(ended, true),
        }
    }
}

/// Whether no process but init is left and this one, a child that was not reaped, which then runs no instruction any more.
fn is_all_that_is_left(holder: i32) -> bool {
    let mut children = [0; 32];
    let listed = rustix::fs::open(CHILDREN, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut children));
    let Some(listed) = listed.ok().and_then(|length| children.get(..length)) else {
        return false;
    };
    // Whoever is not init's child has an ancestor who is, and the holder can have no child.
    let alone = listed
        .trim_ascii_end()
        .iter()
        .try_fold(0_i32, |number, digit| {
            let digit = digit.is_ascii_digit().then(|| i32::from(digit - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        })
        == Some(holder);
    let killed = Pid::from_raw(holder).map(|pid| kill_process(pid, Signal::KILL));
    alone && killed == Some(Ok(()))
}

/// Those that init has not reaped; no other process reaps them.
const CHILDREN: &str = "/proc/thread-self/children";

/// Tells the end, then reaps on until no child is left.
pub(super) fn finish(
    engine: BorrowedFd<'_>,
    ended: Option<i32>,
    alone: bool,
    measured: bool,
) -> Result<(), StepError> {
    if let Some(status) = ended {
        let exited = FromInit::Exited {
            status,
            alone,
            largest: measured.then(children_peak).flatten(),
        };
        tell(engine, &exited)?;
    }
    while wait(WaitOptions::empty()).is_ok() {}
    Ok(())
}
