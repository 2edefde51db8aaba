//! The way of a template from the realm to its interpreter: it lives in a root as a spawner does, without a network, and
//! keeps the two capabilities by which what is forked from it enters a sandbox.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::system::sethostname;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    set_capabilities,
};

use super::realm::Inherited;
use super::spawner::one;
use crate::sandbox::child::resource_limits;
use crate::sandbox::identity::BOX_ID;
use crate::sandbox::plan::{Context, Step, StepError, TEMPLATE};
use crate::sandbox::skeleton::{CODE_DIRECTORY, HOST_NAME, put_back, take_aside};
use crate::sandbox::template::{BOOT, FromTemplate, LIBRARY, Program, SCRIPT, START};
use crate::sandbox::tree;
use crate::spec::Profile;
use crate::sys::datagram;
use crate::sys::exec::{StringTable, close_range, duplicate_to, execve, exit_now};
use crate::sys::signal;

/// Where `start.py` and `boot.py` look for the engine's socket, the library, and each other.
const SOCKET: u32 = 3;
const LIBRARY_AT: u32 = 4;
const SCRIPT_AT: u32 = 5;
const BOOT_AT: u32 = 6;

/// What a library may write to while it is imported.
const TEMPORARY: &str = "/tmp";

/// Becomes an interpreter, or ends.
pub(super) fn main(inherited: Inherited) -> ! {
    let Inherited {
        root,
        engine,
        profile,
        ..
    } = inherited;
    signal::reset_dispositions();
    if let Err(error) = live(&engine, root, profile) {
        let refused = FromTemplate::Refused(format!("\0{error}"));
        // A peer that is gone needs no telling.
        let _ = datagram::send(engine.as_fd(), &refused, &[]);
    }
    exit_now(1)
}

fn live(engine: &OwnedFd, root: OwnedFd, profile: Profile) -> Result<(), StepError> {
    let Some((program, deps)) =
        datagram::receive::<Program>(engine.as_fd()).at(Step::ReadRequest, "the engine")?
    else {
        return Ok(());
    };
    let mut root = Some(root);
    for step in TEMPLATE {
        match step {
            Step::TemplateScratch => {
                // An interpreter may lie below what is covered.
                let covered = |path: &&PathBuf| path.starts_with(TEMPORARY);
                let aside = take_aside(program.prefixes.iter().filter(covered), *step)?;
                scratch().at(*step, CODE_DIRECTORY)?;
                put_back(aside, *step)?;
                for (tree, target) in deps.iter().zip(&program.deps) {
                    let operand = target.display().to_string();
                    tree::attach(tree, target).at(*step, operand)?;
                }
            }
            // What a library learns of these when it is imported it tells every step.
            Step::Hostname => sethostname(HOST_NAME.as_bytes()).at(*step, HOST_NAME)?,
            Step::ResourceLimits => resource_limits(None).at(*step, "limits of a step")?,
            Step::KeepToEnter => keep_capabilities().at(*step, "capabilities")?,
            Step::Execute => {
                let operand = program.executable.display().to_string();
                let error = execute(engine, &program).unwrap_or_else(|error| error);
                return Err(StepError::new(*step, operand, &error));
            }
            other => one(*other, &mut root, &[], profile)?,
        }
    }
    Ok(())
}

/// What a library may write while it is imported, and the script under the name that a step's own has.
fn scratch() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new(format!("size=64m,mode=1777,uid={BOX_ID},gid={BOX_ID}"))?;
    mount("tmpfs", TEMPORARY, "tmpfs", flags, Some(options.as_c_str()))?;
    mount(
        "tmpfs",
        CODE_DIRECTORY,
        "tmpfs",
        flags,
        Some(options.as_c_str()),
    )?;
    symlink(
        format!("/proc/self/fd/{SCRIPT_AT}"),
        Path::new(CODE_DIRECTORY).join(SCRIPT),
    )
}

/// The capabilities that `setns` asks for; a user that is not root keeps only ambient ones over an execution.
fn keep_capabilities() -> io::Result<()> {
    let kept = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT;
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            inheritable: kept,
            ..held
        },
    )?;
    for capability in kept.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Comes back only with the error.
fn execute(engine: &OwnedFd, program: &Program) -> io::Result<io::Error> {
    let library = datagram::data("stepbox", LIBRARY)?;
    let script = datagram::data(SCRIPT, START.as_bytes())?;
    let boot = datagram::data(SCRIPT, BOOT.as_bytes())?;
    streams()?;
    // Numbers that are in use are no obstacle: all of these are above them.
    let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 16);
    let (socket, library) = (high(engine.as_fd())?, high(library.as_fd())?);
    let (script, boot) = (high(script.as_fd())?, high(boot.as_fd())?);
    close_range(SOCKET, 15)?;
    for (fd, number) in [
        (socket, SOCKET),
        (library, LIBRARY_AT),
        (script, SCRIPT_AT),
        (boot, BOOT_AT),
    ] {
        duplicate_to(fd.as_fd(), number)?;
    }
    signal::unblock_all()?;
    let text = |text: &[u8]| CString::new(text).map_err(io::Error::from);
    let executable = text(program.executable.as_os_str().as_bytes())?;
    let arguments = vec![
        executable.clone(),
        text(format!("{CODE_DIRECTORY}/{SCRIPT}").as_bytes())?,
    ];
    let environment = program
        .environment
        .iter()
        .map(|(name, value)| text(format!("{name}={value}").as_bytes()))
        .collect::<io::Result<Vec<_>>>()?;
    Ok(execve(
        &executable,
        &StringTable::new(arguments),
        &StringTable::new(environment),
    ))
}

/// Standard streams of the kind that a step has, with nobody at their other ends: an interpreter looks once at what they
/// are.
fn streams() -> io::Result<()> {
    let (stdin, _) = pipe_with(PipeFlags::CLOEXEC)?;
    let (_, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::stdio::dup2_stdin(&stdin)?;
    rustix::stdio::dup2_stdout(&stdout)?;
    rustix::stdio::dup2_stderr(&stdout)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_knows_where_its_descriptors_are() {
        assert!(BOOT.contains(&format!("SOCKET = {SOCKET}\n")));
        assert!(BOOT.contains(&format!("\"/proc/self/fd/{LIBRARY_AT}\"")));
        assert!(START.contains(&format!("\"/proc/self/fd/{BOOT_AT}\"")));
        assert!(BOOT.contains(&format!("SCRIPT = \"{CODE_DIRECTORY}/{SCRIPT}\"")));
    }
}
