//! From a [`SpecRequest`] to a [`SandboxSpec`], with all mistakes at once.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::absent::check_absent;
use super::capability::parse_kept;
use super::mount::{self, Host, HostAccess, Observed, Refusal};
use super::name::{check_env, check_labels, parse_name};
use super::profile;
use super::request::{
    Cap, Choice, InterpreterRequest, IsolationChoice, MountRequest, NetworkChoice, ProfileChoice,
    SpecRequest,
};
use super::text::{holds_nul, shown, shown_path};
use super::tmpfs::parse_tmpfs;
use super::user::parse_user;
use super::{
    Capabilities, Image, Interpreter, Isolation, Limits, Mount, Network, PROTECTED, Profile, Quota,
    SandboxSpec, Violation, Violations, WorkspaceSource,
};

const MEMORY_DEFAULT_MB: u64 = 512;
const MEMORY_LEAST_MB: u64 = 16;
const PIDS_DEFAULT: u64 = 256;
const PIDS_LEAST: u64 = 2;
/// The kernel's own ceiling on process numbers.
const PIDS_MOST: u64 = 4_194_304;
const CPUS_MOST: f64 = 8192.0;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Of sessions that outlive their client.
const TTL_DEFAULT: Duration = Duration::from_secs(3600);
/// A week: past it a limit is a mistake of units.
const TIMEOUT_MOST_S: f64 = 604_800.0;
const OUTPUT_DEFAULT: u64 = 64 << 20;
const OUTPUT_MOST: u64 = 1 << 30;
/// Less holds not even the directories that tools expect in their caches.
pub(super) const QUOTA_LEAST_BYTES: u64 = 64 << 10;
const PRELOAD_MOST: usize = 32;
const PREWARM_MOST: u32 = 64;

/// Parses a session's options.
///
/// # Errors
/// Every mistake, each with the option's name and what would be right.
pub fn parse_spec(
    mut request: SpecRequest,
    host: &dyn Host,
    access: &HostAccess,
) -> Result<SandboxSpec, Vec<Violation>> {
    let mut violations = Violations::default();
    let given = profile::apply(&mut request, host, access, &mut violations);
    check_absent(&request, &mut violations);
    check_image(request.image.as_deref(), &mut violations);
    let limits = parse_limits(&request, &mut violations);
    let quota = parse_quota(&request, &mut violations);
    let timeout = match request.timeout_s {
        None => Some(TIMEOUT_DEFAULT),
        Some(seconds) => violations.take("timeout_s", parse_timeout(seconds)),
    };
    let resident = request.resident == Some(true);
    // Nobody else would end what outlives its client.
    let outlives = resident || request.name.is_some();
    let mut ttl = outlives.then_some(TTL_DEFAULT);
    if let Some(seconds) = request.ttl_s {
        ttl = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|ttl| !ttl.is_zero());
    }
    if let Some(seconds) = request.ttl_s
        && ttl.is_none()
    {
        violations.add(
            "ttl_s",
            format!("{seconds} is not a time; write seconds above 0, such as 3600"),
        );
    }
    let max_output = request.max_output_bytes.unwrap_or(OUTPUT_DEFAULT);
    if max_output > OUTPUT_MOST {
        violations.add(
            "max_output_bytes",
            format!("{max_output} is too many; at most {OUTPUT_MOST}"),
        );
    }
    check_env(&request.env, &mut violations);
    check_labels(&request.labels, &mut violations);
    let name = request
        .name
        .as_deref()
        .and_then(|name| violations.take("name", parse_name(name)));
    let user = parse_user(request.user.as_deref(), &mut violations);
    let kept = parse_kept(request.cap_drop.as_deref(), &mut violations);
    let profile = match request.security_profile {
        Choice::Named(ProfileChoice::Untrusted) => Profile::Untrusted,
        _ => Profile::Default,
    };
    let isolation = match request.isolation_mode {
        Choice::Named(IsolationChoice::Reduced) => Isolation::Reduced,
        _ => Isolation::Full,
    };
    if isolation == Isolation::Reduced {
        check_reduced(&request, &mut violations);
    }
    if profile == Profile::Untrusted {
        check_untrusted(&request, kept, &mut violations);
    }
    let protect = parse_protect(request.protect.as_deref(), &mut violations);
    let preload = parse_preload(&request.preload, request.prewarm, &mut violations);
    let workspace = parse_workspace(
        request.workspace.as_deref(),
        request.allow_sockets,
        host,
        access,
        given.workspace.as_ref(),
        &mut violations,
    );
    let mounts = parse_mounts(&request.mounts, host, access, &mut violations);
    let tmpfs = parse_tmpfs(
        request.tmpfs.as_deref(),
        limits.memory,
        &mounts,
        &mut violations,
    );
    let interpreter = request
        .interpreter
        .and_then(|interpreter| parse_interpreter(interpreter, host, access, &mut violations));
    match (timeout, workspace) {
        (Some(timeout), Some(workspace)) if violations.is_empty() => Ok(SandboxSpec {
            image: Image::Host,
            interpreter,
            workspace,
            limits,
            quota,
            devices: given.devices,
            timeout,
            network: Network::None,
            mounts,
            tmpfs,
            env: request.env,
            max_output,
            enforce_limits: request.enforce_limits.unwrap_or(true),
            profile,
            isolation,
            user,
            kept,
            track_files: request.track_files.unwrap_or(true),
            file_diffs: request.file_diffs.unwrap_or(true),
            protect,
            prewarm: request.prewarm,
            preload,
            name,
            labels: request.labels,
            resident,
            ttl,
        }),
        _ => Err(violations.into_vec()),
    }
}

fn check_image(image: Option<&str>, violations: &mut Violations) {
    match image {
        None | Some("" | "host") => {}
        Some(other) => violations.add(
            "image",
            format!(
                "{}: images other than \"host\" are not available in stepbox {}",
                shown(other),
                crate::VERSION
            ),
        ),
    }
}

/// What takes a namespace.
fn check_reduced(request: &SpecRequest, violations: &mut Violations) {
    let asked = [
        ("mounts", !request.mounts.is_empty()),
        ("tmpfs", request.tmpfs.is_some()),
        (
            "security_profile",
            request.security_profile == Choice::Named(ProfileChoice::Untrusted),
        ),
        ("cap_drop", request.cap_drop.is_some()),
        ("user", request.user.is_some()),
        ("protect", request.protect.is_some()),
        ("preload", !request.preload.is_empty()),
        (
            "prewarm",
            request.prewarm.is_some_and(|prewarm| prewarm > 0),
        ),
        ("devices", !request.devices.is_empty()),
        ("resident", request.resident == Some(true)),
        ("host_packages", !request.host_packages.is_empty()),
    ];
    for (field, _) in asked.into_iter().filter(|(_, asked)| *asked) {
        violations.add(
            field,
            "isolation_mode=\"reduced\" has no namespace to do this in; leave it out, or write \
             isolation_mode=\"full\""
                .to_owned(),
        );
    }
}

/// What takes away what the profile is for.
fn check_untrusted(request: &SpecRequest, kept: Capabilities, violations: &mut Violations) {
    let against = [
        (
            "cap_drop",
            !kept.is_empty(),
            "keeping capabilities",
            "leave it out",
        ),
        (
            "network",
            request.network == Choice::Named(NetworkChoice::Host),
            "the host's network",
            "write network=False",
        ),
        (
            "deps_readonly",
            request.deps_readonly == Some(false),
            "packages that code can change",
            "leave it out",
        ),
    ];
    for (field, given, what, right) in against {
        if given {
            violations.add(
                field,
                format!(
                    "security_profile=\"untrusted\" and {what} exclude each other; {right}, or write \
                     security_profile=\"default\""
                ),
            );
        }
    }
}

fn parse_limits(request: &SpecRequest, violations: &mut Violations) -> Limits {
    let memory = match request.memory_mb {
        Cap::Default => Some(MEMORY_DEFAULT_MB << 20),
        Cap::Uncapped => None,
        Cap::Max(mb) => violations.take("memory_mb", parse_memory(mb)),
    };
    let pids = match request.pids {
        Cap::Default => Some(PIDS_DEFAULT),
        Cap::Uncapped => None,
        Cap::Max(pids) if (PIDS_LEAST..=PIDS_MOST).contains(&pids) => Some(pids),
        Cap::Max(pids) => {
            violations.add("pids", format!("{pids} is out of range; write {PIDS_LEAST} to {PIDS_MOST} tasks, or None for no cap"));
            None
        }
    };
    let cpu = request
        .cpus
        .and_then(|cpus| violations.take("cpus", parse_cpus(cpus)));
    Limits { memory, pids, cpu }
}

fn parse_quota(request: &SpecRequest, violations: &mut Violations) -> Quota {
    let mut check = |option: &str, cap, least, unit: &str| match cap {
        Cap::Max(max) if max < least => violations.add(
            option,
            format!("{max} is out of range; write at least {least} {unit}, or None for no cap"),
        ),
        _ => {}
    };
    check(
        "workspace_max_bytes",
        request.workspace_max_bytes,
        QUOTA_LEAST_BYTES,
        "bytes",
    );
    check(
        "workspace_max_files",
        request.workspace_max_files,
        1,
        "file",
    );
    Quota {
        bytes: request.workspace_max_bytes,
        files: match request.workspace_max_files {
            Cap::Max(files) => Some(files),
            Cap::Default | Cap::Uncapped => None,
        },
    }
}

/// Bytes of a memory cap in MiB.
pub(super) fn parse_memory(mb: u64) -> Result<u64, String> {
    let most = u64::MAX >> 21;
    if (MEMORY_LEAST_MB..=most).contains(&mb) {
        Ok(mb << 20)
    } else {
        Err(format!(
            "{mb} is out of range; write at least {MEMORY_LEAST_MB} MiB, or None for no cap"
        ))
    }
}

pub(super) fn parse_cpus(cpus: f64) -> Result<u64, String> {
    if cpus.is_finite() && cpus > 0.0 && cpus <= CPUS_MOST {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 8192000 after the check"
        )]
        let thousandths = (cpus * 1000.0).round() as u64;
        Ok(thousandths.max(1))
    } else {
        Err(format!(
            "{cpus} is not a number of cores; write one above 0, such as 0.5, or None for no cap"
        ))
    }
}

/// A time limit of at least a millisecond.
pub(super) fn parse_timeout(seconds: f64) -> Result<Duration, String> {
    if seconds.is_finite() && seconds > 0.0 && seconds <= TIMEOUT_MOST_S {
        Ok(Duration::from_secs_f64(seconds).max(Duration::from_millis(1)))
    } else {
        Err(format!(
            "{seconds} is not a time limit; write seconds above 0 and at most {TIMEOUT_MOST_S}, such as 30"
        ))
    }
}

fn parse_protect(protect: Option<&[String]>, violations: &mut Violations) -> Vec<String> {
    let Some(names) = protect else {
        return PROTECTED.map(str::to_owned).to_vec();
    };
    let mut parsed = Vec::new();
    for name in names {
        let path = Path::new(name);
        let plain = !holds_nul(path)
            && path
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            && path.components().count() > 0;
        if plain {
            parsed.push(name.clone());
        } else {
            violations.add(
                format!("protect[{}]", shown(name)),
                "write a path in the workspace, without a leading \"/\", \".\" and \"..\"",
            );
        }
    }
    parsed
}

/// Module names, each once, in the order in which they are imported.
fn parse_preload(
    names: &[String],
    prewarm: Option<u32>,
    violations: &mut Violations,
) -> Vec<String> {
    let mut parsed: Vec<String> = Vec::new();
    if names.len() > PRELOAD_MOST {
        violations.add(
            "preload",
            format!("{} modules; at most {PRELOAD_MOST}", names.len()),
        );
    }
    if prewarm.is_some_and(|count| count > PREWARM_MOST) {
        violations.add(
            "prewarm",
            format!("at most {PREWARM_MOST} sandboxes are kept ready for a session"),
        );
    }
    if prewarm == Some(0) && !names.is_empty() {
        violations.add(
            "preload",
            "needs interpreters that are started ahead, and prewarm=0 turns them off; leave one of both out",
        );
    }
    for name in names {
        let plain = name.len() <= 256
            && name.split('.').all(|part| {
                part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                    && part.chars().all(|c| c.is_alphanumeric() || c == '_')
            });
        if !plain {
            violations.add(
                format!("preload[{}]", shown(name)),
                "write the name of a module, such as \"numpy\" or \"matplotlib.pyplot\"",
            );
        } else if !parsed.contains(name) {
            parsed.push(name.clone());
        }
    }
    parsed
}

fn parse_workspace(
    workspace: Option<&Path>,
    allow_sockets: bool,
    host: &dyn Host,
    access: &HostAccess,
    origin: Option<&profile::Origin>,
    violations: &mut Violations,
) -> Option<WorkspaceSource> {
    let Some(path) = workspace else {
        return Some(WorkspaceSource::Private);
    };
    let judged = observe_and_judge(path, true, allow_sockets, host, access).and_then(|observed| {
        if observed.kind == mount::SourceKind::Dir {
            Ok(observed)
        } else {
            Err(Refusal::NotADirectory(observed.path))
        }
    });
    match judged {
        Ok(observed) => Some(WorkspaceSource::Given {
            path: observed.path,
            allow_sockets,
        }),
        Err(refusal) => {
            match origin {
                Some(origin) => {
                    violations.refuse(origin.field.clone(), format!("{}: {refusal}", origin.place))
                }
                None => violations.refuse("workspace", refusal.to_string()),
            }
            None
        }
    }
}

fn parse_mounts(
    requests: &[MountRequest],
    host: &dyn Host,
    access: &HostAccess,
    violations: &mut Violations,
) -> Vec<Mount> {
    let mut parsed = Vec::new();
    let mut targets = BTreeSet::new();
    for request in requests {
        let field = format!("mounts[{}]", shown_path(&request.source));
        match parse_mount(request, host, access) {
            Ok(mount) if targets.insert(mount.target.clone()) => parsed.push(mount),
            Ok(mount) => violations.add(
                field,
                format!("the target {} is named twice", shown_path(&mount.target)),
            ),
            Err(refusal) => violations.refuse(field, refusal.to_string()),
        }
    }
    parsed
}

fn parse_mount(
    request: &MountRequest,
    host: &dyn Host,
    access: &HostAccess,
) -> Result<Mount, Refusal> {
    let target = mount::parse_target(&request.target)?;
    let observed = observe_and_judge(&request.source, false, request.allow_sockets, host, access)?;
    Ok(Mount {
        identity: observed.identity.ok_or(mount::Unobservable::Missing)?,
        source: observed.path,
        target,
        read_only: request.read_only,
    })
}

fn observe_and_judge(
    source: &Path,
    may_be_missing: bool,
    allow_sockets: bool,
    host: &dyn Host,
    access: &HostAccess,
) -> Result<Observed, Refusal> {
    mount::check_source(source)?;
    let observed = host.observe(source, may_be_missing)?;
    mount::judge(&observed, host.places(), access)?;
    if let Some(socket) = host.find_socket(&observed) {
        mount::judge_socket(&socket, allow_sockets)?;
    }
    Ok(observed)
}

/// Paths stay as they were given: an interpreter finds its prefix by the link that it was started by.
fn parse_interpreter(
    request: InterpreterRequest,
    host: &dyn Host,
    access: &HostAccess,
    violations: &mut Violations,
) -> Option<Interpreter> {
    let InterpreterRequest {
        executable,
        prefixes,
        version,
    } = request;
    let mut fine = true;
    let paths = [("interpreter.executable", &executable)].into_iter().chain(
        prefixes
            .iter()
            .map(|prefix| ("interpreter.prefixes", prefix)),
    );
    for (field, path) in paths {
        if let Err(refusal) = judge_interpreter_path(path, host, access) {
            violations.refuse(field, format!("{}: {refusal}", shown_path(path)));
            fine = false;
        }
    }
    if version.len() > 64 || version.chars().any(char::is_control) {
        violations.add("interpreter.version", "write a version such as \"3.11.7\"");
        fine = false;
    }
    fine.then(|| Interpreter {
        executable,
        prefixes: plain_prefixes(prefixes),
        version,
    })
}

fn plain_prefixes(prefixes: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let plain = prefixes
        .into_iter()
        .map(|prefix| prefix.components().collect());
    plain
        .filter(|prefix: &PathBuf| seen.insert(prefix.clone()))
        .collect()
}

fn judge_interpreter_path(
    path: &Path,
    host: &dyn Host,
    access: &HostAccess,
) -> Result<(), Refusal> {
    mount::check_source(path)?;
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(Refusal::TargetParent);
    }
    let observed = host.observe(path, false)?;
    mount::judge_prefix(&observed.path, host.places(), access)?;
    mount::judge_prefix(path, host.places(), access)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
