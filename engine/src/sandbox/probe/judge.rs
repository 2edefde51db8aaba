//! From an observation to what is there, what is missing and what mends it. Pure.

use std::io;

use super::super::cgroup::ControllerProbe;
use super::super::identity::Mode;
use super::super::landlock::{LOWEST_ALONE, is_used};
use super::cause::{Refused, cause};
use super::{Attempt, Observation, Probe};
use crate::outcome::{EnforcedBy, Resource};

/// `mount_setattr`, idmapped mounts of the common file systems, `CLONE_INTO_CGROUP`.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// What of the host is there and what is not, in the order in which sandboxes need it.
#[must_use]
pub fn judge(seen: &Observation) -> Vec<Probe> {
    let tried = &seen.attempts;
    let mut probes = vec![
        kernel(&seen.kernel),
        mode(seen.mode),
        mechanism(
            seen,
            "clone3",
            tried.process,
            Refused::Process,
            "processes with a pidfd",
        ),
        user_namespaces(seen),
        mechanism(
            seen,
            "mount_namespaces",
            tried.mount_namespace,
            Refused::Namespace,
            "mounts of one's own",
        ),
        mechanism(
            seen,
            "network_namespaces",
            tried.network_namespace,
            Refused::NetworkNamespace,
            "a network with nothing but a loopback device",
        ),
        mechanism(
            seen,
            "other_namespaces",
            tried.other_namespaces,
            Refused::Namespace,
            "pid, ipc, uts and cgroup namespaces",
        ),
        mechanism(
            seen,
            "fresh_proc",
            tried.proc,
            Refused::Proc,
            "a /proc of the sandbox's own",
        ),
        seccomp(tried.seccomp_notification),
        call("openat2", seen.openat2),
        call("memfd", seen.memfd),
    ];
    probes.extend(idmapped_mounts(seen));
    probes.extend(seen.cgroups.controllers.iter().map(limit));
    probes.push(scratch(seen));
    probes.push(landlock(seen.landlock));
    probes.push(reduced(seen));
    probes
}

fn there(name: &'static str, detail: impl Into<String>) -> Probe {
    Probe {
        name,
        available: true,
        needed: true,
        detail: detail.into(),
        mend: None,
    }
}

fn missing(name: &'static str, detail: impl Into<String>, mend: Option<String>) -> Probe {
    Probe {
        name,
        available: false,
        needed: true,
        detail: detail.into(),
        mend,
    }
}

fn kernel(release: &str) -> Probe {
    match version(release) {
        Some(version) if version < OLDEST_KERNEL => missing(
            "kernel",
            format!("Linux {release} is too old"),
            Some("boot Linux 5.15 or later".to_owned()),
        ),
        Some(_) => there("kernel", format!("Linux {release}")),
        None => there(
            "kernel",
            format!("Linux {release}, whose age cannot be told"),
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn mode(mode: Mode) -> Probe {
    there(
        "mode",
        match mode {
            Mode::Root => "root: each session has a host id of its own".to_owned(),
            Mode::Rootless { uid, .. } => {
                format!("rootless: all sessions have the caller's host id, {uid}")
            }
        },
    )
}

fn mechanism(
    seen: &Observation,
    name: &'static str,
    attempt: Attempt,
    refused: Refused,
    what: &'static str,
) -> Probe {
    match attempt {
        Attempt::Done => there(name, what),
        Attempt::NotTried => missing(name, "not tried: what it builds on is missing", None),
        Attempt::Refused(errno) => {
            let found = cause(refused, errno, &seen.surroundings);
            missing(name, found.cause, found.mend)
        }
    }
}

fn user_namespaces(seen: &Observation) -> Probe {
    let attempt = match (seen.attempts.user_namespace, seen.attempts.id_maps) {
        (Attempt::Done, maps) => maps,
        (namespace, _) => namespace,
    };
    let by_root = matches!(seen.mode, Mode::Rootless { uid: 0, .. });
    let made = seen.attempts.user_namespace == Attempt::Done;
    if by_root && made && attempt == Attempt::Refused(libc::EPERM) && !seen.surroundings.nested {
        return missing(
            "user_namespaces",
            "root without the capability SETFCAP may give no namespace its own id",
            Some("docker run --cap-add SETFCAP, or start stepbox as an ordinary user".to_owned()),
        );
    }
    mechanism(
        seen,
        "user_namespaces",
        attempt,
        Refused::UserNamespace,
        "rights over what is in the sandbox alone",
    )
}

fn seccomp(attempt: Attempt) -> Probe {
    const NAME: &str = "seccomp_notification";
    match attempt {
        Attempt::Done => there(NAME, "the kernel reports calls that break out"),
        Attempt::NotTried => missing(NAME, "not tried: what it builds on is missing", None),
        Attempt::Refused(libc::EBUSY) => missing(
            NAME,
            "a filter that this process was started under has the one listener that there can be",
            Some("start stepbox outside of that sandbox".to_owned()),
        ),
        Attempt::Refused(errno) => missing(
            NAME,
            io::Error::from_raw_os_error(errno).to_string(),
            Some("boot a kernel with CONFIG_SECCOMP_FILTER=y".to_owned()),
        ),
    }
}

fn call(name: &'static str, attempt: Attempt) -> Probe {
    match attempt {
        Attempt::Done | Attempt::NotTried => there(name, "works"),
        Attempt::Refused(errno) => missing(
            name,
            io::Error::from_raw_os_error(errno).to_string(),
            Some(
                "start the container with a seccomp profile that knows the call (Docker 20.10.10 or later), or boot \
                 Linux 5.15 or later"
                    .to_owned(),
            ),
        ),
    }
}

/// Only root's sandboxes use them, and there is a way without.
fn idmapped_mounts(seen: &Observation) -> Option<Probe> {
    const NAME: &str = "idmapped_mounts";
    let place = seen.scratch.directory.display();
    let probe = match (seen.mode, seen.attempts.idmapped_mount) {
        (Mode::Rootless { .. }, _) | (Mode::Root, Attempt::NotTried) => return None,
        (Mode::Root, Attempt::Done) => there(NAME, format!("owners below {place} are translated")),
        (Mode::Root, Attempt::Refused(errno)) => missing(
            NAME,
            format!(
                "the file system of {place} cannot translate owners ({}): workspaces there change their owner while \
                 they are in use",
                io::Error::from_raw_os_error(errno)
            ),
            Some("set TMPDIR to a directory on ext4, xfs or btrfs".to_owned()),
        ),
    };
    Some(Probe {
        needed: false,
        ..probe
    })
}

fn limit(controller: &ControllerProbe) -> Probe {
    let name = match controller.resource {
        Resource::Memory => "cgroup_memory",
        Resource::Pids => "cgroup_pids",
        Resource::Cpu => "cgroup_cpu",
        Resource::Workspace | Resource::WorkspaceFiles => "workspace_quota",
    };
    let mut probe = if controller.mechanism == EnforcedBy::None {
        let why = controller
            .obstacle
            .as_ref()
            .map_or_else(|| "no cgroup keeps it".to_owned(), ToString::to_string);
        missing(
            name,
            format!("{why}{}", instead(controller)),
            controller.remedy.clone(),
        )
    } else {
        there(name, mechanism_of(controller))
    };
    // A sandbox with default options has a limit of memory and of tasks, and none of processor time.
    probe.needed = controller.resource != Resource::Cpu && controller.fallback == EnforcedBy::None;
    if let Some(above) = &controller.ancestor {
        probe.detail = format!("{}; {above}", probe.detail);
    }
    probe
}

/// What keeps the limit though no cgroup does.
fn instead(controller: &ControllerProbe) -> &'static str {
    match controller.fallback {
        EnforcedBy::Watchdog => "; the watchdog looks at memory and stops what is past its limit",
        EnforcedBy::Rlimit => "; RLIMIT_NPROC in a user namespace of the sandbox's own keeps it",
        EnforcedBy::Throttle => "; whole processors are kept by affinity, parts of one are refused",
        EnforcedBy::None
        | EnforcedBy::Cgroup1
        | EnforcedBy::Cgroup2
        | EnforcedBy::ProjectQuota
        | EnforcedBy::SizedFilesystem => "; nothing else keeps it",
    }
}

fn mechanism_of(controller: &ControllerProbe) -> String {
    let kept = controller.mechanism.name();
    let place = controller
        .directory
        .as_ref()
        .map(|directory| format!(" below {}", directory.display()))
        .unwrap_or_default();
    if controller.by_scope {
        format!("{kept}, in a scope that systemd is asked for")
    } else {
        format!("{kept}{place}")
    }
}

fn scratch(seen: &Observation) -> Probe {
    let place = seen.scratch.directory.display();
    let probe = if seen.scratch.in_memory {
        missing(
            "scratch",
            format!("{place} is in memory: what a step writes counts against its memory limit"),
            Some("set TMPDIR to a directory on disk".to_owned()),
        )
    } else {
        there(
            "scratch",
            format!("private workspaces are on disk, below {place}"),
        )
    };
    Probe {
        needed: false,
        ..probe
    }
}

/// What isolation without namespaces is asked by.
pub const REDUCED: &str = "reduced";

/// Whether sandboxes could be made without namespaces, for a caller who asks for that.
fn reduced(seen: &Observation) -> Probe {
    let tried = &seen.attempts;
    let probe = match (tried.enclosure, tried.plain_notification) {
        (Attempt::Done, Attempt::Done) => there(
            REDUCED,
            "isolation_mode=\"reduced\" can be asked for: Landlock and seccomp, without namespaces",
        ),
        (Attempt::Done, notification) => {
            let why = seccomp(notification);
            missing(REDUCED, format!("seccomp: {}", why.detail), why.mend)
        }
        (Attempt::NotTried, _) => missing(REDUCED, "not tried: what it builds on is missing", None),
        (Attempt::Refused(errno), _) => {
            let (why, mend) = match seen.landlock {
                None if seen.surroundings.filtered => (
                    "Landlock is refused by a seccomp filter that this process was started under"
                        .to_owned(),
                    "start stepbox without that filter, or let it pass landlock_create_ruleset, landlock_add_rule and \
                     landlock_restrict_self",
                ),
                None => (
                    "this kernel has no Landlock, or it is not enabled at boot".to_owned(),
                    "boot Linux 6.12 or later with landlock in the kernel's lsm= list",
                ),
                Some(abi) if abi < LOWEST_ALONE => (
                    format!(
                        "Landlock's ABI {abi} does not keep signals in, so that code could end every process of the \
                         caller's; that takes ABI {LOWEST_ALONE}"
                    ),
                    "boot Linux 6.12 or later",
                ),
                Some(_) => (
                    format!("Landlock: {}", io::Error::from_raw_os_error(errno)),
                    "start stepbox without the filter or security module that refuses it",
                ),
            };
            missing(REDUCED, why, Some(mend.to_owned()))
        }
    };
    Probe {
        needed: false,
        ..probe
    }
}

fn landlock(abi: Option<u32>) -> Probe {
    let probe = match abi {
        Some(abi) if is_used(abi) => there("landlock", format!("ABI {abi}")),
        Some(abi) => missing(
            "landlock",
            format!("ABI {abi}, which forbids moving files: not used"),
            None,
        ),
        None => missing(
            "landlock",
            "not in this kernel, or not enabled at boot: sandboxes go without this second fence",
            None,
        ),
    };
    Probe {
        needed: false,
        ..probe
    }
}
