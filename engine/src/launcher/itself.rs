//! The launcher's second life, executed from a read-only mount of its own program.
//!
//! A script whose interpreter is `/proc/self/exe` makes the kernel execute the program of the process that executes it,
//! which is this one. Rootless, that file is the caller's to write; through this mount it is not.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode as FileMode, OFlags, fstat, openat};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};

use crate::sandbox::identity::Mode;
use crate::sandbox::plan::{Context, Step, StepError};
use crate::sandbox::tree;
use crate::sys::datagram;
use crate::sys::exec::{StringTable, execute_descriptor};
use crate::sys::mount::{Attributes, set_attributes};

/// What a launcher without namespaces is told in its first life.
pub const ALONE: &str = "reduced";

/// The mode that the first life handed on, and whether there are no namespaces; none in the first life.
pub(super) fn mode_of(words: &[OsString]) -> Option<(Mode, bool)> {
    let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
    let rootless = |uid: &str, gid: &str| {
        Some(Mode::Rootless {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    };
    match words.as_slice() {
        ["root"] => Some((Mode::Root, false)),
        ["rootless", uid, gid] => Some((rootless(uid, gid)?, false)),
        [ALONE, uid, gid] => Some((rootless(uid, gid)?, true)),
        _ => None,
    }
}

/// Executes the second life; comes back only with what failed.
pub(super) fn execute(mode: Mode, alone: bool) -> StepError {
    let step = Step::ReadOnlySelf;
    let words = match mode {
        Mode::Root => vec!["root".to_owned()],
        Mode::Rootless { uid, gid } => {
            let word = if alone { ALONE } else { "rootless" };
            vec![word.to_owned(), uid.to_string(), gid.to_string()]
        }
    };
    let executed = || -> io::Result<io::Error> {
        let program = if alone {
            // Nothing can be mounted: a sealed copy.
            sealed_copy()?
        } else {
            unwritable_program()?
        };
        if !alone {
            keep_capabilities()?;
        }
        let arguments = ["stepbox".to_owned(), "launcher".to_owned()]
            .into_iter()
            .chain(words)
            .map(CString::new)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(execute_descriptor(
            program.as_fd(),
            &StringTable::new(arguments),
            &StringTable::new(Vec::new()),
        ))
    };
    let error = executed().unwrap_or_else(|error| error);
    StepError::new(step, "the engine's own program", &error)
}

/// This program on a read-only mount, or a sealed copy of it where it has no name any more.
fn unwritable_program() -> io::Result<OwnedFd> {
    let open = |path: &Path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, FileMode::empty());
    let running = open(Path::new("/proc/self/exe"))?;
    // By its name: what runs is of a mount that this namespace has only a copy of, and that cannot be cloned.
    let named = std::fs::read_link("/proc/self/exe").and_then(|path| Ok(open(&path)?));
    let identity = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    match named {
        Ok(named) if identity(&named)? == identity(&running)? => read_only(&named),
        _ => sealed_copy(),
    }
}

fn sealed_copy() -> io::Result<OwnedFd> {
    datagram::program("stepbox", &std::fs::read("/proc/self/exe")?)
}

fn read_only(program: &OwnedFd) -> io::Result<OwnedFd> {
    let program = tree::clone_at(program, false)?;
    let attributes = Attributes {
        read_only: true,
        no_suid: true,
        no_dev: true,
        private: true,
        ..Attributes::default()
    };
    set_attributes(program.as_fd(), attributes, false)?;
    Ok(program)
}

/// Capabilities of a user that is not root survive an execution only as ambient ones.
fn keep_capabilities() -> io::Result<()> {
    let held = capabilities(None)?.permitted;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held,
            permitted: held,
            inheritable: held,
        },
    )?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if held.contains(capability) {
            configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
}

/// Takes back in the second life what only the execution needed.
pub(super) fn settle_capabilities() -> Result<(), StepError> {
    let settle = || -> io::Result<()> {
        clear_ambient_capability_set()?;
        let held = capabilities(None)?.permitted;
        set_capabilities(
            None,
            CapabilitySets {
                effective: held,
                permitted: held,
                inheritable: CapabilitySet::empty(),
            },
        )?;
        Ok(())
    };
    settle().at(Step::ReadOnlySelf, "capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_life_is_told_by_its_words() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let rootless = Mode::Rootless { uid: 7, gid: 8 };
        assert_eq!(mode_of(&words("root")), Some((Mode::Root, false)));
        assert_eq!(mode_of(&words("rootless 7 8")), Some((rootless, false)));
        assert_eq!(mode_of(&words("reduced 7 8")), Some((rootless, true)));
        for other in ["", "rootless", "rootless x 8", "root 1", "reduced"] {
            assert_eq!(mode_of(&words(other)), None);
        }
    }
}
