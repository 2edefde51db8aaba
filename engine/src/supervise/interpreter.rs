//! What an interpreter is started with that shows results, as files that nobody can change. They are made anew for each:
//! code that gets hold of one before they are closed could change a mode that they have in common.

use std::io;
use std::os::fd::OwnedFd;

use crate::sandbox::template::{COLD, KERNEL, LIBRARY};
use crate::sys::datagram;

/// For a kernel: the library that it loads, and the script that it runs. It starts cold. One that was forked from a template
/// would come in here.
pub(crate) fn kernel() -> io::Result<[OwnedFd; 2]> {
    Ok([
        datagram::data("library", LIBRARY)?,
        datagram::data("kernel", KERNEL.as_bytes())?,
    ])
}

/// For a step: the script that goes before its own, which is at `path`, and the library that it loads.
pub(super) fn cold(path: &[u8]) -> io::Result<[OwnedFd; 2]> {
    let name: String = path.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let script = format!("SCRIPT = b'{name}'\n{COLD}");
    Ok([
        datagram::data("start", script.as_bytes())?,
        datagram::data("library", LIBRARY)?,
    ])
}
