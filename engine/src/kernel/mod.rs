//! A kernel: one interpreter in one sandbox that runs cell after cell, from its start to its end. Yields evidence for each
//! cell; decides nothing.

mod life;

pub use life::{Cell, Commands, Handle, Observed, Orders, handle, live};
