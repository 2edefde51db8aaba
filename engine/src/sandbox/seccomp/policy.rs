//! What the two filters do with each class of syscalls.
//!
//! Two filters are stacked, and of their answers the most restrictive one happens ([`Action`]).
//!
//! - The **base filter** is loaded once, by the process that sets sandboxes up, and every sandbox inherits it at no
//!   cost. It refuses what neither set-up nor code needs, and whatever is unknown.
//! - The **step filter** is loaded by a sandbox's init when everything is set up. It takes away what only set-up needed and
//!   reports escapes, and refusals that are counted, to its listener.
//!
//! What is reported must therefore be *allowed* by the base filter: an errno there would be more restrictive than the
//! step filter's notification and hide it. The same holds for calls of a foreign architecture. That is safe because the
//! base filter alone never runs foreign code: whoever has only that one is the engine's own set-up, on its own
//! architecture.

use libc::ENOSYS;

use crate::spec::Profile;

use super::{
    action::Action,
    assembler::{Verdict, Verdicts},
    rows::{POLICY, UNTRUSTED},
    rules::{Rule, count, errno},
    syscalls::Architecture,
};

/// How the two filters treat a syscall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Code may call it.
    Allow,
    /// Neither code nor set-up may call it: the base filter answers this errno.
    Refuse(i32),
    /// Set-up calls it, code gets this errno from the step filter.
    SetUp(i32),
    /// Code gets this errno, and the result says how often: the step filter notifies, the listener answers.
    Counted(i32),
    /// Set-up may call it, code that does is trying to get out: the step filter notifies.
    Escape,
    /// Depends on arguments that set-up never passes: the base filter decides.
    Checked(&'static Rule),
    /// Depends on arguments that only set-up may pass: the step filter decides.
    CheckedAtStep(&'static Rule),
}

/// Some syscalls, their class, and why.
#[derive(Debug)]
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "reason and twin are read by reviewers and by the tests"
    )
)]
pub(super) struct Row {
    pub(super) class: Class,
    /// Separated by blanks.
    pub(super) names: &'static str,
    /// For what is allowed: who needs it. For what is not: what it would give away.
    pub(super) reason: &'static str,
    /// For what is not allowed: the allowed syscall that ordinary code does the same errand with. It keeps the
    /// refusal honest: a sandbox that refuses both is broken, not safe.
    pub(super) twin: Option<&'static str>,
}

impl Row {
    /// The names of the syscalls in this row; an architecture may lack some.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.split_ascii_whitespace()
    }

    fn holds(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

/// The row that `name` is in.
pub(super) fn row(name: &str) -> Option<&'static Row> {
    POLICY.iter().find(|row| row.holds(name))
}

/// What a profile makes of `name`, if it is in a row. Where the default answers ENOSYS, so that a probe falls back, the
/// other ends the step: only what every program's libc asks for has a row of its own there.
pub(super) fn class(profile: Profile, name: &str) -> Option<Class> {
    let usual = row(name)?.class;
    if profile == Profile::Default {
        return Some(usual);
    }
    let own = UNTRUSTED.iter().find(|row| row.holds(name));
    Some(match (own, usual) {
        (Some(own), _) => own.class,
        (None, Class::Refuse(ENOSYS) | Class::SetUp(ENOSYS)) => Class::Escape,
        (None, usual) => usual,
    })
}

/// What becomes of a number that no list names.
pub(super) fn unknown(profile: Profile) -> Class {
    match profile {
        Profile::Default => Class::Refuse(ENOSYS),
        Profile::Untrusted => Class::Escape,
    }
}

/// The verdict of the base filter on each syscall of `architecture`.
pub(super) fn base(architecture: &Architecture, profile: Profile) -> Verdicts {
    let judge = |class| match class {
        Class::Allow
        | Class::SetUp(_)
        | Class::Counted(_)
        | Class::Escape
        | Class::CheckedAtStep(_) => Verdict::Always(Action::Allow),
        Class::Refuse(number) => Verdict::Always(errno(number)),
        Class::Checked(rule) => Verdict::ByArguments(rule),
    };
    let mut verdicts = Verdicts::new(architecture.audit, Action::Allow, judge(unknown(profile)));
    if let Some((first, last)) = architecture.other_abi {
        verdicts.set(first, last, Verdict::Always(Action::Allow));
    }
    set_each(&mut verdicts, architecture, profile, judge);
    verdicts
}

/// The verdict of the step filter on each syscall of `architecture`. It allows whatever the base filter has judged
/// already, so that it stays small: each sandbox loads it anew.
pub(super) fn step(architecture: &Architecture, profile: Profile) -> Verdicts {
    let judge = |class| match class {
        Class::Allow | Class::Refuse(_) | Class::Checked(_) => Verdict::Always(Action::Allow),
        Class::SetUp(number) => Verdict::Always(errno(number)),
        Class::Counted(number) => Verdict::Always(count(number)),
        Class::Escape => Verdict::Always(Action::Notify),
        Class::CheckedAtStep(rule) => Verdict::ByArguments(rule),
    };
    let mut verdicts = Verdicts::new(architecture.audit, Action::Notify, judge(unknown(profile)));
    if let Some((first, last)) = architecture.other_abi {
        verdicts.set(first, last, Verdict::Always(Action::Notify));
    }
    set_each(&mut verdicts, architecture, profile, judge);
    verdicts
}

/// What is laid on top for code whose limit of processors is its affinity: where a cgroup keeps that, `sched_setaffinity`
/// gives away nothing.
pub(super) fn pin(architecture: &Architecture) -> Verdicts {
    let allow = Verdict::Always(Action::Allow);
    let mut verdicts = Verdicts::new(architecture.audit, Action::Allow, allow);
    for (nr, name) in architecture.table {
        if *name == "sched_setaffinity" {
            verdicts.set(*nr, *nr, Verdict::Always(errno(libc::EPERM)));
        }
    }
    verdicts
}

/// Why a call is refused where no namespace is around the code, and which calls.
pub(super) const ALONE: &[(Verdict, &str, &str)] = &[
    (
        Verdict::Always(errno(libc::EACCES)),
        "socket",
        "the network is the host's, and sockets by name lead to its services; pairs of sockets can be had",
    ),
    (
        Verdict::Always(errno(ENOSYS)),
        "shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink \
         mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
        "the objects of the caller's other programs are of the same user",
    ),
    (
        Verdict::Always(errno(libc::EPERM)),
        "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr \
         lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr",
        "Landlock does not decide them, and the caller's files are of the same user",
    ),
    (
        Verdict::Always(errno(ENOSYS)),
        "inotify_init inotify_init1",
        "names of files outside could be watched",
    ),
    (
        Verdict::ByArguments(&super::rules::SELF_ONLY),
        "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr",
        "limits and processors of the caller's other programs",
    ),
    (
        Verdict::ByArguments(&super::rules::WHO_SELF),
        "setpriority ioprio_set",
        "priorities of the caller's other programs",
    ),
    (
        Verdict::ByArguments(&super::rules::NO_LEASE),
        "fcntl",
        "a lease on a file of the caller's keeps its other programs from opening it",
    ),
];

/// What is laid on top for code around which there is no namespace.
pub(super) fn alone(architecture: &Architecture, pinned: bool) -> Verdicts {
    let allow = Verdict::Always(Action::Allow);
    let mut verdicts = if pinned {
        pin(architecture)
    } else {
        Verdicts::new(architecture.audit, Action::Allow, allow)
    };
    for (verdict, names, _) in ALONE {
        for (nr, name) in architecture.table {
            let held = pinned && *name == "sched_setaffinity";
            if !held && names.split_ascii_whitespace().any(|known| known == *name) {
                verdicts.set(*nr, *nr, *verdict);
            }
        }
    }
    verdicts
}

fn set_each(
    verdicts: &mut Verdicts,
    architecture: &Architecture,
    profile: Profile,
    judge: impl Fn(Class) -> Verdict,
) {
    for (nr, name) in architecture.table {
        if let Some(class) = class(profile, name) {
            verdicts.set(*nr, *nr, judge(class));
        }
    }
}
