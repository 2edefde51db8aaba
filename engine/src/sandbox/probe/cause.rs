//! From a refusal to its cause on this host, and the command that mends it.

use std::io;

use super::Surroundings;
use crate::sandbox::plan::{Step, StepError};

/// Why something is refused here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    pub cause: String,
    pub mend: Option<String>,
}

impl Explanation {
    fn new(cause: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            mend: Some(mend.into()),
        }
    }
}

/// What is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refused {
    Process,
    UserNamespace,
    NetworkNamespace,
    /// Any other namespace, or a mount that needs one.
    Namespace,
    Proc,
}

/// The cause of a step that failed in a running engine, when the host is to blame. Reads a few small files.
#[must_use]
pub fn explain(error: &StepError) -> Option<Explanation> {
    let refused = match error.step {
        Step::UserNamespace | Step::Realm | Step::OwnUsers => Refused::UserNamespace,
        Step::MountNamespace
        | Step::EnterRoot
        | Step::RootTmpfs
        | Step::CloneSandbox
        | Step::Hostname => Refused::Namespace,
        Step::LoopbackUp => Refused::NetworkNamespace,
        Step::TemplateProc | Step::MountProc => Refused::Proc,
        _ => return None,
    };
    matches!(
        error.errno,
        libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::ENOSYS | libc::EINVAL
    )
    .then(|| cause(refused, error.errno, &Surroundings::of_this_process()))
}

pub(super) fn cause(refused: Refused, errno: i32, around: &Surroundings) -> Explanation {
    match refused {
        Refused::UserNamespace => switch(errno, around),
        Refused::NetworkNamespace => full("net", around.max_net_namespaces, errno),
        Refused::Namespace => fewest(errno, around),
        Refused::Process | Refused::Proc => None,
    }
    .or_else(|| chroot(refused, errno, around))
    .or_else(|| apparmor(errno, around))
    .or_else(|| mask(refused, errno, around))
    .or_else(|| container(errno, around))
    .unwrap_or_else(|| plain(refused, errno, around))
}

/// A switch of the kernel's that is off.
fn switch(errno: i32, around: &Surroundings) -> Option<Explanation> {
    if errno == libc::EPERM && around.userns_clone == Some(0) {
        return Some(Explanation::new(
            "kernel.unprivileged_userns_clone is 0: only root may make user namespaces",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ));
    }
    full("user", around.max_user_namespaces, errno).map(|found| {
        if around.nested {
            // The count of the inner namespace is set by whoever made it, not by this host's administrator.
            Explanation::new(
                "whoever made the user namespace around this process lets no further one be made in it \
                 (user.max_user_namespaces)",
                "start stepbox outside of that sandbox, or start that without --disable-userns",
            )
        } else {
            found
        }
    })
}

/// The kernel does not say which kind is used up: the one of which fewest may be made.
fn fewest(errno: i32, around: &Surroundings) -> Option<Explanation> {
    let (kind, max) = around
        .max_other_namespaces
        .iter()
        .min_by_key(|(_, max)| max)?;
    full(kind, Some(*max), errno)
}

/// In a chroot nobody may make a user namespace, or the way out would be open.
fn chroot(refused: Refused, errno: i32, around: &Surroundings) -> Option<Explanation> {
    (refused == Refused::UserNamespace && errno == libc::EPERM && around.chrooted).then(|| {
        Explanation::new(
            "this process is in a chroot, and the kernel makes no user namespace there",
            "start stepbox outside of the chroot, or enter its directory as a root of its own: bwrap --bind DIR / \
             --dev /dev --proc /proc stepbox ..., systemd-nspawn -D DIR",
        )
    })
}

fn full(kind: &str, max: Option<u64>, errno: i32) -> Option<Explanation> {
    if !matches!(errno, libc::ENOSPC | libc::EUSERS) {
        return None;
    }
    let name = format!("user.max_{kind}_namespaces");
    let cause = match max {
        Some(0) => format!("{name} is 0: none may be made"),
        Some(max) => format!("{name} is {max}, and all of them are in use or nested too deep"),
        None => format!("{name} is used up"),
    };
    let wanted = max.map_or(0, |max| max.saturating_mul(2)).max(15_000);
    Some(Explanation::new(
        cause,
        format!("sudo sysctl -w {name}={wanted}"),
    ))
}

/// Ubuntu's restriction lets the namespace be made, and then denies every capability in it.
fn apparmor(errno: i32, around: &Surroundings) -> Option<Explanation> {
    let denied = matches!(errno, libc::EPERM | libc::EACCES);
    if !denied || around.apparmor_restricts.is_none_or(|value| value == 0) {
        return None;
    }
    let mend = around.program.as_deref().map_or_else(
        || "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0".to_owned(),
        |program| {
            format!(
                "printf '%s\\n' 'abi <abi/4.0>,' 'include <tunables/global>' 'profile stepbox \"{}\" \
                 flags=(unconfined) {{ userns, }}' | sudo tee /etc/apparmor.d/stepbox && sudo apparmor_parser -r \
                 /etc/apparmor.d/stepbox",
                program.display()
            )
        },
    );
    Some(Explanation::new(
        "AppArmor gives programs without a profile no rights in user namespaces \
         (kernel.apparmor_restrict_unprivileged_userns is 1)",
        mend,
    ))
}

/// Mounts over parts of `/proc` forbid a fresh one.
fn mask(refused: Refused, errno: i32, around: &Surroundings) -> Option<Explanation> {
    let first = around.masked_proc.first()?;
    if refused != Refused::Proc || !matches!(errno, libc::EPERM | libc::EACCES) {
        return None;
    }
    let count = around.masked_proc.len();
    let cause = format!(
        "{count} places of /proc are masked ({first}{}), so the kernel lets nobody mount a fresh one",
        if count > 1 { ", …" } else { "" }
    );
    Some(Explanation::new(
        cause,
        around.container.map_or_else(
            || format!("sudo umount {}", around.masked_proc.join(" ")),
            |container| container.mend().to_owned(),
        ),
    ))
}

fn container(errno: i32, around: &Surroundings) -> Option<Explanation> {
    let container = around.container?;
    if !matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS) {
        return None;
    }
    let by = match &around.apparmor_profile {
        // A filter of a runtime's says EPERM or ENOSYS.
        Some(profile) if errno == libc::EACCES => format!("the AppArmor profile {profile} of"),
        _ if around.filtered => "the seccomp filter of".to_owned(),
        _ => "a security profile of".to_owned(),
    };
    Some(Explanation::new(
        format!("{by} {} refuses it", container.name()),
        container.mend(),
    ))
}

fn plain(refused: Refused, errno: i32, around: &Surroundings) -> Explanation {
    let said = io::Error::from_raw_os_error(errno);
    match (errno, refused) {
        (libc::EINVAL, Refused::UserNamespace) => Explanation::new(
            "this kernel has no user namespaces",
            "boot a kernel with CONFIG_USER_NS=y",
        ),
        (libc::EINVAL, Refused::NetworkNamespace | Refused::Namespace) => Explanation::new(
            "this kernel lacks one of the namespaces",
            "boot a kernel with CONFIG_NET_NS, CONFIG_PID_NS, CONFIG_IPC_NS and CONFIG_UTS_NS",
        ),
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) if around.filtered => Explanation::new(
            format!("a seccomp filter that this process was started under refuses it: {said}"),
            "start stepbox without that filter (systemd: RestrictNamespaces=no, SystemCallFilter= empty)",
        ),
        (libc::ENOSYS, _) => Explanation::new(
            format!("this kernel does not have it: {said}"),
            "boot Linux 5.15 or later",
        ),
        (libc::EPERM | libc::EACCES, Refused::UserNamespace) => Explanation::new(
            format!("a security module or a chroot refuses it: {said}"),
            "start stepbox outside of a chroot; sudo dmesg | grep -i -E 'avc|apparmor|denied' names a security module",
        ),
        _ => Explanation {
            cause: said.to_string(),
            mend: None,
        },
    }
}
