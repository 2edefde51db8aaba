//! Init as the driver of a kernel: one interpreter that runs cell after cell. It tells the interpreter what to run, and
//! the engine how that ended, through memory that both have mapped and no descriptor leads to.
//!
//! The interpreter is not trusted, and neither is a byte of that memory: what is read is copied within bounds, and says
//! no more than how the cell itself ended. That the interpreter is gone is what `wait` says.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::init::{FromInit, Kept, REAPED_SINCE, Request, ToInit, await_end, finish, start};
use super::plan::{Context, Step, StepError};
use super::skeleton::SkeletonSpec;
use crate::sys::clone::Stack;
use crate::sys::shared::{self, Shared};
use crate::sys::{datagram, signal};

#[path = "../../template/src/layout.rs"]
mod layout;

/// How long a wait for the interpreter is at most: it may have changed the word under the wait.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same while an interrupt waits for the cell to begin.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// An interrupt that finds the interpreter on its way into a system call does not end that call: it is given again, this
/// long after the last time, until it is heard. Not for ever, because code may have a handler of its own.
const GIVEN_AGAIN: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
];
/// Past this what a cell's source took is given back.
const KEPT: usize = 256 << 10;

/// What an interpreter is started with besides its streams.
#[derive(Debug)]
pub(super) struct Parts {
    /// What it loads, and what it runs.
    pub(super) library: OwnedFd,
    pub(super) script: OwnedFd,
    /// Memory for what its cells show.
    pub(super) board: OwnedFd,
    /// Those of the fence that it is put behind.
    pub(super) rules: Option<OwnedFd>,
}

/// Starts the interpreter, and drives it to its end or the engine's.
pub(super) fn live(
    engine: BorrowedFd<'_>,
    spec: &SkeletonSpec,
    stack: &mut Stack,
    mut request: Request,
    streams: [OwnedFd; 3],
    parts: Parts,
) -> Result<(), StepError> {
    let (memory, descriptor) =
        Shared::make("cells", layout::SIZE).at(Step::ShareMemory, "cells")?;
    let children = signal::child_descriptor().at(Step::ShareMemory, "signalfd")?;
    signal::change_with_child(memory.half(layout::ANSWERED)).at(Step::ShareMemory, "SIGCHLD")?;
    let Parts {
        library,
        script,
        board,
        rules,
    } = parts;
    request.arguments.extend([
        format!("/proc/self/fd/{}", script.as_raw_fd()).into_bytes(),
        library.as_raw_fd().to_string().into_bytes(),
        descriptor.as_raw_fd().to_string().into_bytes(),
        board.as_raw_fd().to_string().into_bytes(),
    ]);
    let kept = Kept {
        rules,
        cgroup: None,
        descriptors: vec![library, script, descriptor, board],
    };
    let Some(main) = start(engine, spec, stack, request, streams, kept)? else {
        return Ok(());
    };
    let mut driver = Driver {
        engine,
        memory,
        children,
        main,
        ended: None,
        alone: false,
    };
    match driver.serve()? {
        Some(status) => {
            finish(engine, Some(status), driver.alone, spec.watched)?;
            await_end(engine);
            Ok(())
        }
        None => Ok(()),
    }
}

struct Driver<'a> {
    engine: BorrowedFd<'a>,
    memory: Shared,
    children: OwnedFd,
    main: i32,
    /// The interpreter's wait status.
    ended: Option<i32>,
    /// No other process is left.
    alone: bool,
}

/// An interrupt that the interpreter may not have heard.
struct Given {
    /// What it had heard before.
    heard: u64,
    at: Instant,
    times: usize,
}

/// What is to be done next.
enum Next {
    Cell(u64, Vec<u8>),
    Nothing,
    /// The engine is gone.
    Leave,
}

impl Driver<'_> {
    /// Gives the wait status of the interpreter; none: the engine is gone.
    fn serve(&mut self) -> Result<Option<i32>, StepError> {
        loop {
            // Before all else: the signal may have come while a cell was ending.
            self.reap();
            if self.ended.is_some() {
                return Ok(self.ended);
            }
            self.wait_idle().at(Step::ReadRequest, "poll")?;
            match self.receive()? {
                Next::Cell(cell, source) => {
                    if !self.run(cell, &source)? {
                        return Ok(self.ended);
                    }
                }
                Next::Nothing => {}
                Next::Leave => return Ok(None),
            }
        }
    }

    /// Waits for the engine or for the end of a child.
    fn wait_idle(&self) -> io::Result<()> {
        let mut polled = [
            PollFd::new(&self.engine, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        if !polled[1].revents().is_empty() {
            // Only that it was readable matters.
            let _ = rustix::io::read(&self.children, &mut [0_u8; 128]);
        }
        Ok(())
    }

    /// What the engine says, if it says something.
    fn receive(&self) -> Result<Next, StepError> {
        let at_once = Timespec::default();
        let mut polled = [PollFd::new(&self.engine, PollFlags::IN)];
        let found = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once)))
            .at(Step::ReadRequest, "poll")?;
        if found == 0 {
            return Ok(Next::Nothing);
        }
        match datagram::receive(self.engine).at(Step::ReadRequest, "cell")? {
            Some((ToInit::Cell { number, source }, beside)) => {
                let source = match source {
                    Some(source) => source,
                    None => beside
                        .first()
                        .ok_or_else(|| io::ErrorKind::InvalidData.into())
                        .and_then(datagram::read_data)
                        .at(Step::ReadRequest, "source")?,
                };
                Ok(Next::Cell(number, source))
            }
            Some((ToInit::Interrupt, _)) => Ok(Next::Nothing),
            Some(_) => Ok(Next::Nothing),
            None => Ok(Next::Leave),
        }
    }

    /// Runs one cell, and tells how it ended. False: the interpreter has ended, or the engine.
    fn run(&mut self, cell: u64, source: &[u8]) -> Result<bool, StepError> {
        if source.len() > layout::AREA_SIZE {
            let error = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(StepError::new(Step::ReadRequest, "source", &error));
        }
        self.memory.write(layout::AREA, source);
        self.word(layout::SOURCE_LENGTH)
            .store(source.len() as u64, Ordering::Relaxed);
        self.word(layout::CELL).store(cell, Ordering::Release);
        shared::wake(self.memory.half(layout::ASKED));
        let answered = signal::with_child_signal(|| self.until_answered(cell))
            .at(Step::ReadRequest, "SIGCHLD")??;
        if answered {
            self.tell(cell, source.len())?;
        }
        Ok(answered)
    }

    /// Waits for the end of the cell, or of the interpreter.
    fn until_answered(&mut self, cell: u64) -> Result<bool, StepError> {
        let answered = self.memory.half(layout::ANSWERED);
        let mut interrupted = false;
        let mut given: Option<Given> = None;
        let mut first = true;
        loop {
            // Whatever happens after this changes the word, and the wait below ends.
            let seen = answered.load(Ordering::Acquire);
            if self.word(layout::ENDED).load(Ordering::Acquire) == cell {
                return Ok(true);
            }
            // The first time whether a signal came or not: it may have been taken for one of before the cell.
            if signal::take_child_changed() || first {
                first = false;
                self.reap();
                if self.ended.is_some() {
                    return Ok(false);
                }
            }
            match self.heard()? {
                Some(true) => interrupted = true,
                Some(false) => {}
                None => return Ok(false),
            }
            if interrupted && self.word(layout::TAKEN).load(Ordering::Acquire) == cell {
                interrupted = false;
                given = Some(Given {
                    heard: self.word(layout::HEARD).load(Ordering::Acquire),
                    at: Instant::now(),
                    times: 0,
                });
                self.interrupt();
            }
            let mut timeout = if interrupted { LOOK_SOON } else { LOOK_AGAIN };
            if let Some(last) = &mut given {
                let unheard = self.word(layout::HEARD).load(Ordering::Acquire) == last.heard;
                match GIVEN_AGAIN.get(last.times).filter(|_| unheard) {
                    None => given = None,
                    Some(pause) if last.at.elapsed() >= *pause => {
                        (last.at, last.times) = (Instant::now(), last.times + 1);
                        self.interrupt();
                        continue;
                    }
                    Some(pause) => timeout = timeout.min(*pause),
                }
            }
            shared::wait(answered, seen, timeout);
        }
    }

    fn interrupt(&self) {
        if let Some(main) = Pid::from_raw(self.main) {
            // It is not reaped, so the number is its own.
            let _ = kill_process(main, Signal::INT);
        }
    }

    /// Whether the engine asks for an interrupt; none: it is gone.
    fn heard(&self) -> Result<Option<bool>, StepError> {
        let mut interrupt = false;
        loop {
            let at_once = Timespec::default();
            let mut polled = [PollFd::new(&self.engine, PollFlags::IN)];
            match poll(&mut polled, Some(&at_once)) {
                Ok(0) => return Ok(Some(interrupt)),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno).at(Step::ReadRequest, "poll"),
            }
            match datagram::receive(self.engine).at(Step::ReadRequest, "interrupt")? {
                Some((ToInit::Interrupt, _)) => interrupt = true,
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    fn word(&self, offset: usize) -> &'static std::sync::atomic::AtomicU64 {
        self.memory.word(offset)
    }

    /// Tells the engine what the interpreter says of the cell.
    fn tell(&self, number: u64, source: usize) -> Result<(), StepError> {
        let [exit_code, ..] = self
            .word(layout::EXIT_CODE)
            .load(Ordering::Relaxed)
            .to_le_bytes();
        if source > KEPT {
            // It costs memory, and nothing else, where it cannot be given back.
            let _ = self.memory.forget(layout::AREA, layout::AREA_SIZE);
        }
        let answered = FromInit::Answered { number, exit_code };
        datagram::send(self.engine, &answered, &[]).at(Step::ReadRequest, "the engine")
    }

    /// Takes those that are dead.
    fn reap(&mut self) {
        for _ in 0..REAPED_SINCE {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.main => {
                    self.ended = Some(status.as_raw());
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    self.alone = true;
                    return;
                }
            }
        }
    }
}
