//! What makes a booted interpreter fork itself into sandboxes, loaded into it as the module `_stepbox`.
//!
//! A *template* is an interpreter that has imported what steps will want, and has seen no session. Each slot has a
//! *sub-template*, a fork of it in the slot's cgroups. A step's process is forked from that into a sandbox that was made
//! ahead, gives up everything there, and waits for the code: `serve` holds the first two, `child` the third.
//!
//! It is linked with nothing: it makes system calls itself, and takes `fork` and the interpreter's functions from whatever
//! process it is loaded into.

#![no_std]

mod board;
mod cell;
mod child;
mod layout;
mod message;
mod python;
mod results;
mod serve;
mod sys;

pub use python::PyInit__stepbox;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::process::exit(134)
}
