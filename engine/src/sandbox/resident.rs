//! Init of a sandbox that stays: step after step enters it, and what one leaves running is there for the next. Init
//! starts each, reaps, and tells how the main process of each ended. The engine ends what is to be ended.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use rustix::process::{WaitOptions, wait};

use super::init::{
    FromInit, Kept, Launched, REAPED_SINCE, StepWord, ToInit, launch, read_request, split, tell,
    write_code,
};
use super::plan::{Context, Step, StepError};
use super::skeleton::SkeletonSpec;
use crate::sys::clone::Stack;
use crate::sys::{datagram, signal};

/// What an init keeps of the building.
#[derive(Debug)]
pub(super) struct Parts {
    /// The directory for the steps' files.
    pub(super) code: OwnedFd,
    /// The rules of the fence that each step is put behind.
    pub(super) rules: Option<OwnedFd>,
}

/// The directory of a step's file below that of all, which no other step of this sandbox has.
#[must_use]
pub fn code_directory(number: u64) -> String {
    format!("step-{number}")
}

/// Starts steps until the engine is gone. `first`: the one that made it a resident.
pub(super) fn live(
    engine: BorrowedFd<'_>,
    spec: &SkeletonSpec,
    stack: &mut Stack,
    parts: Parts,
    first: (u64, Vec<OwnedFd>),
) -> Result<(), StepError> {
    let children = signal::child_descriptor().at(Step::ReadRequest, "signalfd")?;
    let mut resident = Resident {
        engine,
        parts,
        mains: HashMap::new(),
    };
    let mut order = Some(first);
    loop {
        if let Some((number, descriptors)) = order.take() {
            resident.enter(spec, stack, number, descriptors)?;
        }
        if !resident.reap()? {
            let mut polled = [
                PollFd::new(&engine, PollFlags::IN),
                PollFd::new(&children, PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut polled, None)).at(Step::ReadRequest, "poll")?;
            if !polled[1].revents().is_empty() {
                // Only that it was readable matters.
                let _ = rustix::io::read(&children, &mut [0_u8; 128]);
            }
            if polled[0].revents().is_empty() {
                continue;
            }
        } else if !has_word(engine)? {
            continue;
        }
        order = match datagram::receive(engine).at(Step::ReadRequest, "step")? {
            Some((ToInit::Enter { number }, descriptors)) => Some((number, descriptors)),
            Some(_) => None,
            None => return Ok(()),
        };
    }
}

fn has_word(engine: BorrowedFd<'_>) -> Result<bool, StepError> {
    let mut polled = [PollFd::new(&engine, PollFlags::IN)];
    let at_once = rustix::event::Timespec::default();
    let found = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once)))
        .at(Step::ReadRequest, "poll")?;
    Ok(found > 0)
}

struct Resident<'a> {
    engine: BorrowedFd<'a>,
    parts: Parts,
    /// Main processes that run, each with the number of its step and the name of its file.
    mains: HashMap<i32, (u64, Option<String>)>,
}

impl Resident<'_> {
    /// What fails is the step's failure, and the sandbox stays as it is. Errors are those of the way to the engine.
    fn enter(
        &mut self,
        spec: &SkeletonSpec,
        stack: &mut Stack,
        number: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepError> {
        let word = match self.start(spec, stack, number, descriptors) {
            Ok(Launched::Main(_)) => StepWord::Started,
            Ok(Launched::NotExecuted { errno, looked_in }) => {
                StepWord::ExecFailed { errno, looked_in }
            }
            Err(error) => StepWord::Failed(error),
        };
        tell(self.engine, &FromInit::Step { number, word })
    }

    fn start(
        &mut self,
        spec: &SkeletonSpec,
        stack: &mut Stack,
        number: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Launched, StepError> {
        let (streams, rest) = split(descriptors)?;
        let mut request = read_request(&rest)?;
        let rules = self.parts.rules.as_ref().map(OwnedFd::try_clone);
        let kept = Kept {
            rules: rules.transpose().at(Step::Fence, "the rules")?,
            cgroup: rest.into_iter().nth(1),
            descriptors: Vec::new(),
        };
        let mut file = None;
        if let Some(mut code) = request.code.take() {
            let directory = code_directory(number);
            mkdirat(&self.parts.code, &directory, Mode::from_raw_mode(0o755))
                .at(Step::WriteCode, directory.clone())?;
            code.file = format!("{directory}/{}", code.file);
            file = Some(code.file.clone());
            if let Err(error) = write_code(&self.parts.code, &code) {
                self.remove(number, file);
                return Err(error);
            }
        }
        let launched = launch(spec, stack, request, streams, kept);
        match &launched {
            Ok(Launched::Main(main)) => drop(self.mains.insert(*main, (number, file))),
            Ok(Launched::NotExecuted { .. }) | Err(_) => self.remove(number, file),
        }
        launched
    }

    /// What holds the file open goes on reading it.
    fn remove(&self, number: u64, file: Option<String>) {
        if let Some(file) = file {
            let _ = unlinkat(&self.parts.code, file, AtFlags::empty());
            let _ = unlinkat(&self.parts.code, code_directory(number), AtFlags::REMOVEDIR);
        }
    }

    /// Takes those that are dead. True: there may be more, and steps must not wait for code that goes on making them.
    fn reap(&mut self) -> Result<bool, StepError> {
        for _ in 0..REAPED_SINCE {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    // The number of a process is another's once it is reaped.
                    let ended = self.mains.remove(&pid.as_raw_nonzero().get());
                    if let Some((number, file)) = ended {
                        self.remove(number, file);
                        let status = status.as_raw();
                        let word = StepWord::Exited { status };
                        tell(self.engine, &FromInit::Step { number, word })?;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}
