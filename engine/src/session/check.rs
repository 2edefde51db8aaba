//! Whether the host can give what a spec asks for, before anything is made.

use super::SessionError;
use crate::outcome::{AppliedLimit, EnforcedBy, Resource};
use crate::pool::Launcher;
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::Mode;
use crate::sandbox::landlock;
use crate::spec::{Isolation, Profile, SandboxSpec, User};

/// The limits and what keeps them. Refuses a limit that cannot bind, unless the caller said that it need not.
pub(super) fn limits(
    cgroups: &Cgroups,
    spec: &SandboxSpec,
    quota: [AppliedLimit; 2],
) -> Result<Vec<AppliedLimit>, SessionError> {
    let asked = [
        (Resource::Memory, "memory_mb", spec.limits.memory),
        (Resource::Pids, "pids", spec.limits.pids),
        (Resource::Cpu, "cpus", spec.limits.cpu),
    ];
    let mut limits = Vec::new();
    for (resource, option, max) in asked {
        let enforced_by = match max {
            Some(_) => cgroups.mechanism(resource, max),
            None => EnforcedBy::None,
        };
        let escapes = enforced_by == EnforcedBy::Rlimit && spec.kept.becomes_others();
        if escapes && spec.enforce_limits {
            return Err(SessionError::Unavailable {
                what: format!(
                    "{option} cannot be enforced on this host for code that keeps SETUID: tasks are counted for each \
                     user, and it can become others; drop SETUID with cap_drop, pass {option}=None for no limit, or \
                     enforce_limits=False to run without it"
                ),
                mend: None,
            });
        }
        let enforced_by = if escapes {
            EnforcedBy::None
        } else {
            enforced_by
        };
        if max.is_some() && enforced_by == EnforcedBy::None && spec.enforce_limits {
            return Err(cannot_bind(cgroups, resource, option, max));
        }
        limits.push(AppliedLimit {
            resource,
            max,
            enforced_by,
        });
    }
    limits.extend(quota);
    Ok(limits)
}

fn cannot_bind(
    cgroups: &Cgroups,
    resource: Resource,
    option: &str,
    max: Option<u64>,
) -> SessionError {
    let refusal = cgroups
        .refusals()
        .iter()
        .find(|refusal| refusal.resource == resource);
    let why = refusal.map_or_else(String::new, |refusal| format!(": {}", refusal.cause));
    // What stands in for the controller gives whole processors alone.
    let whole = max
        .filter(|_| resource == Resource::Cpu)
        .map_or_else(String::new, |milli| {
            format!(
                "; without it whole processors can be kept: pass {option}={}",
                milli.div_ceil(1000)
            )
        });
    SessionError::Unavailable {
        what: format!(
            "{option} cannot be enforced on this host{why}{whole}; pass {option}=None for no limit, or \
             enforce_limits=False to run without it"
        ),
        mend: refusal.and_then(|refusal| refusal.remedy.clone()),
    }
}

/// Refuses a session of the other kind: which one there is was said when the engine was started.
pub(super) fn kind(launcher: &Launcher, spec: &SandboxSpec) -> Result<(), SessionError> {
    let what = match (launcher.alone, spec.isolation) {
        (false, Isolation::Full) | (true, Isolation::Reduced) => return Ok(()),
        (true, Isolation::Full) => {
            "this engine was started with --isolation reduced, and makes no sandboxes with namespaces; write \
             isolation_mode=\"reduced\", or start another engine"
        }
        (false, Isolation::Reduced) => {
            "this engine makes sandboxes with namespaces; for isolation_mode=\"reduced\" start one with --isolation \
             reduced"
        }
    };
    Err(SessionError::Unavailable {
        what: what.to_owned(),
        mend: None,
    })
}

/// What every result of a session without namespaces says first.
pub(super) const REDUCED: &str = "isolation is reduced, as it was asked for: there are no namespaces around the code, \
                                  and `isolation` says what is missing";

/// The layers that are in force without namespaces, and those that are not there.
pub(super) fn reduced() -> Vec<String> {
    [
        "reduced: no namespaces",
        "landlock: read, write and execute allowlists, signals and abstract sockets scoped",
        "network: no sockets",
        "ipc: none",
        "capabilities: none",
        "no_new_privs",
        "seccomp: allowlist, kill list by notification",
        "identity: the caller's host id",
        "missing: a root of its own (names, sizes and owners of the host's files can be seen, and what is in system \
         directories can be read)",
        "missing: a process table and a host name of its own (numbers of processes and the name are the host's; /proc has \
         no processes)",
        "missing: protect (what the caller's tools run in a given workspace can be changed)",
        "missing: /workspace, /dev/shm and /tmp (the workspace is at its own path)",
        "missing: modes, owners, times and attributes of files (changing them is refused)",
        "missing: forked steps, kernels, and numbers of the sandbox's own",
    ]
    .map(str::to_owned)
    .into()
}

/// Refuses capabilities that there are no ids for.
pub(super) fn capabilities(launcher: &Launcher, spec: &SandboxSpec) -> Result<(), SessionError> {
    let Err(why) = &launcher.range else {
        return Ok(());
    };
    if spec.kept.is_empty() {
        return Ok(());
    }
    let who = match launcher.mode {
        Mode::Rootless { .. } => "ids of /etc/subuid and /etc/subgid",
        Mode::Root => "ids of its own, as /etc/subuid gives to users",
    };
    Err(SessionError::Unavailable {
        what: format!(
            "cap_drop keeps capabilities, and those need {who}, which there are none of: {why}; leave cap_drop out"
        ),
        mend: mend_range(launcher.mode),
    })
}

/// How an ordinary user gets ids. Root has them, but in a container that has few itself.
pub(super) fn mend_range(mode: Mode) -> Option<String> {
    let mend = "install newuidmap and newgidmap (the package uidmap or shadow-utils), and as root: usermod \
                --add-subuids 100000-165535 --add-subgids 100000-165535 \"$USER\"";
    matches!(mode, Mode::Rootless { .. }).then(|| mend.to_owned())
}

/// The layers in force, for results.
pub(super) fn isolation(mode: Mode, spec: &SandboxSpec) -> Vec<String> {
    if spec.isolation == Isolation::Reduced {
        return reduced();
    }
    let mut layers: Vec<String> = [
        "namespaces: user pid mount net ipc uts cgroup",
        "root: read-only",
        "network: loopback only",
    ]
    .map(str::to_owned)
    .into();
    layers.push(landlock::described(spec.resident));
    let kept: Vec<_> = spec.kept.names().collect();
    layers.push(if kept.is_empty() {
        "capabilities: none".to_owned()
    } else {
        format!("capabilities: {} within the sandbox", kept.join(" "))
    });
    layers.push("no_new_privs".to_owned());
    match spec.profile {
        Profile::Default => layers.push("seccomp: allowlist, kill list by notification".to_owned()),
        Profile::Untrusted => layers.extend(
            [
                "profile: untrusted",
                "seccomp: allowlist, everything else ends the step",
                "exec: nothing that the code can write",
                "unix sockets: pairs only",
                "proc: the code's own processes only",
            ]
            .map(str::to_owned),
        ),
    }
    layers.push(match mode {
        Mode::Root => "identity: a host id of this session's own".to_owned(),
        Mode::Rootless { .. } => "identity: the caller's host id".to_owned(),
    });
    if !kept.is_empty() {
        layers.push("ids: a range, given back after each step".to_owned());
    }
    let User { uid, gid, name } = &spec.user;
    if spec.user != User::default() {
        layers.push(format!("user: {name} ({uid}:{gid})"));
    }
    layers.extend(
        spec.devices
            .iter()
            .map(|device| format!("device: {}", device.path.display())),
    );
    layers
}
