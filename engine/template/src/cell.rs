//! The interpreter of a kernel: it takes one cell after the other from the init of its sandbox, and says how each ended.
//! Nothing that code writes to a descriptor comes near this.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::layout;
use crate::python::{self, Object};
use crate::sys::shared::{self, Shared};
use crate::sys::{Answer, Fd};

static MEMORY: Shared = Shared::new(layout::SIZE);
/// The process that cells are for: what it forks has no part in them.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The cell that runs; 0: none does.
static CELL: AtomicU64 = AtomicU64::new(0);
/// The last that was seen of the word that changes with each cell.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Maps the memory that `fd` names.
pub fn attach(fd: u32) -> Object {
    match MEMORY.attach(Fd(fd)) {
        Ok(()) => {
            OWNER.store(shared::process(), Ordering::Relaxed);
            python::none()
        }
        Err(_) => python::fail(c"the kernel's memory could not be mapped"),
    }
}

fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == shared::process()
}

/// Waits for a cell, and gives its source. Other threads run meanwhile, and signals are told to the interpreter.
pub fn next() -> Object {
    if !is_owner() {
        return python::fail(c"another process has the cells");
    }
    loop {
        let Ok(asked) = MEMORY.half(layout::ASKED) else {
            return python::fail(c"there are no cells");
        };
        let seen = asked.load(Ordering::Acquire);
        if seen == ASKED.load(Ordering::Relaxed) {
            python::unlocked(|| shared::wait(asked, seen));
        }
        // What arrived before the cell was taken is not the cell's.
        if python::signals_raise() {
            return core::ptr::null_mut();
        }
        let now = asked.load(Ordering::Acquire);
        if now != ASKED.load(Ordering::Relaxed) {
            ASKED.store(now, Ordering::Relaxed);
            return match take() {
                Ok(source) => python::bytes(source),
                Err(_) => python::fail(c"a cell could not be read"),
            };
        }
    }
}

fn take() -> Answer<&'static [u8]> {
    let cell = MEMORY.word(layout::CELL)?.load(Ordering::Acquire);
    let length = MEMORY.word(layout::SOURCE_LENGTH)?.load(Ordering::Relaxed) as usize;
    CELL.store(cell, Ordering::Relaxed);
    MEMORY.bytes(layout::AREA, length.min(layout::AREA_SIZE))
}

/// Says that the cell has begun: from here on an interrupt is its own.
pub fn begin() -> Object {
    if is_owner()
        && let Ok(taken) = MEMORY.word(layout::TAKEN)
    {
        taken.store(CELL.load(Ordering::Relaxed), Ordering::Release);
    }
    python::none()
}

/// Says that an interrupt has reached the interpreter.
pub fn hear() -> Object {
    if is_owner()
        && let Ok(heard) = MEMORY.word(layout::HEARD)
    {
        heard.fetch_add(1, Ordering::Release);
    }
    python::none()
}

/// Says how the cell ended: an exit code of one byte.
pub fn finish(answer: &[u8]) -> Object {
    let cell = CELL.swap(0, Ordering::Relaxed);
    if cell == 0 || !is_owner() {
        return python::fail(c"no cell runs here");
    }
    python::flush_library();
    let code = answer.first().copied().unwrap_or(1);
    let done = || {
        MEMORY
            .word(layout::EXIT_CODE)?
            .store(code.into(), Ordering::Relaxed);
        MEMORY.word(layout::ENDED)?.store(cell, Ordering::Release);
        shared::wake(MEMORY.half(layout::ANSWERED)?);
        Answer::Ok(())
    };
    match done() {
        Ok(()) => python::none(),
        Err(_) => python::fail(c"the cell's end could not be told"),
    }
}
