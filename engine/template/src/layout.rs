//! The memory through which a kernel's interpreter and its init speak, as both sides know it: offsets and sizes. The
//! first page holds words, the rest is one area for a cell's source.

/// Changes, and is woken, when there is a cell. Four bytes.
pub(crate) const ASKED: usize = 0;
/// Changes, and is woken, when a cell has ended. Four bytes.
pub(crate) const ANSWERED: usize = 4;
/// The cell's number, which nobody can guess. Eight bytes, as all that follow.
pub(crate) const CELL: usize = 8;
pub(crate) const SOURCE_LENGTH: usize = 16;
/// The cell that the interpreter has taken.
pub(crate) const TAKEN: usize = 24;
/// The cell that the interpreter has ended, and how.
pub(crate) const ENDED: usize = 32;
pub(crate) const EXIT_CODE: usize = 40;
/// Changes when the interpreter's handler of interrupts has run.
pub(crate) const HEARD: usize = 48;

pub(crate) const AREA: usize = 4096;
pub(crate) const AREA_SIZE: usize = 16 << 20;
pub(crate) const SIZE: usize = AREA + AREA_SIZE;
