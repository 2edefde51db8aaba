//! Whether the host can give what a spec asks for, before anything is made.

use super::SessionError;
use crate::outcome::{AppliedLimit, EnforcedBy, Resource};
use crate::sandbox::cgroup::Cgroups;
use crate::sandbox::identity::Mode;
use crate::spec::{Device, SandboxSpec};

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

/// The layers in force, for results.
pub(super) fn isolation(mode: Mode, devices: &[Device]) -> Vec<String> {
    let mut layers: Vec<String> = [
        "namespaces: user pid mount net ipc uts cgroup",
        "root: read-only",
        "network: loopback only",
        "capabilities: none",
        "no_new_privs",
        "seccomp: allowlist, kill list by notification",
    ]
    .map(str::to_owned)
    .into();
    layers.push(match mode {
        Mode::Root => "identity: a host id of this session's own".to_owned(),
        Mode::Rootless { .. } => "identity: the caller's host id".to_owned(),
    });
    layers.extend(
        devices
            .iter()
            .map(|device| format!("device: {}", device.path.display())),
    );
    layers
}
