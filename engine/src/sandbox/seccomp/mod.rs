//! The syscall filters of a sandbox: a policy kept as data, and an assembler that turns it into BPF.
//!
//! `rows` says what and why, `policy` what each filter makes of it, `rules` what is asked of arguments, `syscalls` names the numbers, `assembler` compiles.
//! Nothing here makes a syscall: [`crate::sys::seccomp`] loads the filters and reads the notifications.
//!
//! Kills are never the kernel's: every escape is a notification, whose reader stops the step and knows why. A SIGSYS
//! status would prove nothing, since any process can send itself that signal. Refusals that are counted are notifications
//! too, which the reader answers: [`refusal`] tells the two apart.

mod action;
mod assembler;
mod policy;
mod rows;
mod rules;
mod syscalls;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use libc::sock_filter;

use crate::spec::Profile;

pub use action::Action;

/// The filter that the process that sets sandboxes up loads once, and every sandbox inherits.
///
/// Compiled at the first call, which allocates: make it before the process first forks a child that loads it.
pub fn base_filter(profile: Profile) -> &'static [sock_filter] {
    static FILTERS: [OnceLock<Vec<sock_filter>>; 2] = [const { OnceLock::new() }; 2];
    let filter = &FILTERS[profile as usize];
    filter.get_or_init(|| assembler::assemble(&policy::base(syscalls::NATIVE, profile)))
}

/// The filter that a sandbox's init loads, with a listener, when it has set everything up.
///
/// Compiled at the first call, as [`base_filter`] is. It allows what init still does: receiving a request, writing the
/// code's file, cloning, reaping. It guards nothing without the base filter below it.
pub fn step_filter(profile: Profile) -> &'static [sock_filter] {
    static FILTERS: [OnceLock<Vec<sock_filter>>; 2] = [const { OnceLock::new() }; 2];
    let filter = &FILTERS[profile as usize];
    filter.get_or_init(|| assembler::assemble(&policy::step(syscalls::NATIVE, profile)))
}

fn step_verdicts() -> &'static assembler::Verdicts {
    static VERDICTS: OnceLock<assembler::Verdicts> = OnceLock::new();
    VERDICTS.get_or_init(|| policy::step(syscalls::NATIVE, Profile::Default))
}

/// The errno that a call of which the step filter notified must return, or `None` if it is an escape. The arguments are
/// the registers that the kernel judged, and no memory behind them: code cannot change them any more. Refusals are the
/// same in every profile.
pub fn refusal(arch: u32, nr: u32, arguments: &[u64; 6]) -> Option<i32> {
    match step_verdicts().answer(arch, nr, arguments) {
        Action::Count(errno) => Some(errno.into()),
        Action::KillProcess | Action::Errno(_) | Action::Notify | Action::Allow => None,
    }
}

/// The filter that the child of a step loads on top where the code's limit of processors is its affinity: it refuses to
/// change that, and nothing else.
///
/// Compiled at the first call, as the others are.
pub fn pin_filter() -> &'static [sock_filter] {
    static FILTER: OnceLock<Vec<sock_filter>> = OnceLock::new();
    FILTER.get_or_init(|| assembler::assemble(&policy::pin(syscalls::NATIVE)))
}

/// The filter that the child of a step loads on top where no namespace is around the code. `pinned`: with what
/// [`pin_filter`] refuses.
///
/// Compiled at the first call, as the others are.
pub fn alone_filter(pinned: bool) -> &'static [sock_filter] {
    static FILTERS: [OnceLock<Vec<sock_filter>>; 2] = [const { OnceLock::new() }; 2];
    let filter = &FILTERS[usize::from(pinned)];
    filter.get_or_init(|| assembler::assemble(&policy::alone(syscalls::NATIVE, pinned)))
}

/// The name of the native syscall `nr`. A number that a notification reports may be of another
/// architecture: see [`describe`].
pub fn name(nr: u32) -> Option<&'static str> {
    syscalls::NATIVE.name(nr)
}

/// Names the syscall `nr` that came by the ABI with the audit word `arch`: `mount`, `x32 syscall 39`, `i386 syscall 21`.
pub fn describe(arch: u32, nr: u32) -> String {
    if arch != syscalls::NATIVE.audit {
        return match arch {
            AUDIT_ARCH_I386 => format!("i386 syscall {nr}"),
            AUDIT_ARCH_ARM => format!("arm syscall {nr}"),
            _ => format!("syscall {nr} of architecture {arch:#x}"),
        };
    }
    match (name(nr), syscalls::NATIVE.other_abi) {
        (Some(name), _) => name.to_owned(),
        (None, Some((first, _))) if syscalls::NATIVE.is_other_abi(nr) => {
            format!("x32 syscall {}", nr - first)
        }
        (None, _) => format!("syscall {nr}"),
    }
}

const AUDIT_ARCH_I386: u32 = 0x4000_0003;
const AUDIT_ARCH_ARM: u32 = 0x4000_0028;
