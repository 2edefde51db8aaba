//! What the interpreter of a kernel is started with, as files that nobody can change.
//!
//! It starts cold. One that was forked from a template would come in here.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys::datagram;

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));
const SCRIPT: &[u8] = include_bytes!("../../template/src/kernel.py");

/// The library that it loads, and the script that it runs.
pub(super) fn files() -> io::Result<[OwnedFd; 2]> {
    Ok([
        datagram::data("library", LIBRARY)?,
        datagram::data("kernel", SCRIPT)?,
    ])
}
