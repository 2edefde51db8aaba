//! The one decision from kernel evidence to verdict. Pure: no clock, no file, no text of the code's.

use super::{Fault, FaultDetail, FaultKind};

/// What is known about a step when it is over. Each field comes from the kernel or from the engine's own clock.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Evidence {
    /// The sandbox was not built, or the child did not reach the code's exec.
    pub startup: Option<StartupFailure>,
    /// The program asked for could not be executed.
    pub exec: Option<ExecFailure>,
    /// The seccomp listener told of a system call on the kill list.
    pub notification: Option<Notification>,
    /// OOM kills that this sandbox's cgroup counted during the step.
    pub oom_kills: u64,
    /// Bytes that the sandbox may hold.
    pub memory_max: Option<u64>,
    /// Bytes that the sandbox held when the watchdog stopped it for that.
    pub watchdog_memory: Option<u64>,
    /// How the watcher of the workspace found it when it stopped the sandbox for that.
    pub workspace_full: Option<WorkspaceFull>,
    /// Our deadline fired: milliseconds that were allowed.
    pub deadline_ms: Option<u64>,
    pub cancelled: bool,
    /// The main process's wait status, when it ended before the sandbox did.
    pub wait_status: Option<i32>,
    /// The step shared its sandbox with others, which is there still: only what the step had started was stopped.
    pub resident: bool,
    /// The code was executed: before that a deadline is a failed start.
    pub started: bool,
}

/// A workspace that grew past one of its limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkspaceFull {
    Bytes {
        held: u64,
        max: u64,
    },
    Files {
        held: u64,
        max: u64,
    },
    /// Code made directories too deep for anybody to count what is in them.
    Hidden,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StartupFailure {
    /// The step of the plan that failed.
    pub step: String,
    pub errno: Option<i32>,
    /// One sentence of facts: what it acted on and what the kernel said.
    pub message: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExecFailure {
    pub path: Vec<u8>,
    pub errno: i32,
    pub looked_in: Vec<String>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notification {
    pub syscall: String,
    pub args: Vec<u64>,
    pub pid: i32,
    pub program: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// 128 + signal for a death by signal.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub fault: Option<Fault>,
}

const SIGKILL: i32 = 9;

/// Decides how a step ended, first match first: startup, exec, escape, oom, workspace, deadline, cancel, SIGKILL,
/// and else the program's own end.
#[must_use]
pub fn classify(evidence: &Evidence) -> Verdict {
    let killed = |kind, message: String| Verdict {
        exit_code: 128 + SIGKILL,
        signal: Some(SIGKILL),
        fault: Some(Fault {
            kind,
            message,
            detail: FaultDetail::default(),
        }),
    };
    if let Some(failure) = &evidence.startup {
        return startup_failed(failure);
    }
    if let Some(failure) = &evidence.exec {
        return exec_failed(failure);
    }
    if let Some(notification) = &evidence.notification {
        return escape_blocked(notification, evidence.resident);
    }
    if evidence.oom_kills > 0 {
        let cap = evidence
            .memory_max
            .map_or_else(String::new, |bytes| format!(" (limit {} MiB)", bytes >> 20));
        return killed(
            FaultKind::Oom,
            format!("the sandbox ran out of memory{cap} and was stopped"),
        );
    }
    if let Some(bytes) = evidence.watchdog_memory {
        let cap = evidence.memory_max.map_or_else(String::new, |max| {
            format!(" of a limit of {} MiB", max >> 20)
        });
        return killed(
            FaultKind::Oom,
            format!(
                "the sandbox held {} MiB of memory{cap}, and the watchdog stopped it",
                bytes.div_ceil(1 << 20)
            ),
        );
    }
    if let Some(full) = evidence.workspace_full {
        return killed(FaultKind::WorkspaceFull, workspace_full(full));
    }
    // A main process that ended by itself before the deadline or the cancel was acted on keeps its own end.
    if evidence.wait_status.is_none() {
        if let Some(ms) = evidence.deadline_ms {
            if !evidence.started {
                return startup_failed(&StartupFailure {
                    step: "start".into(),
                    errno: None,
                    message: format!(
                        "the sandbox was still being built when the time limit of {} passed",
                        seconds(ms)
                    ),
                });
            }
            return killed(
                FaultKind::Timeout,
                format!(
                    "the time limit of {} passed and {} stopped",
                    seconds(ms),
                    stopped(evidence)
                ),
            );
        }
        if evidence.cancelled {
            return killed(
                FaultKind::Cancelled,
                format!(
                    "the caller cancelled the step and {} stopped",
                    stopped(evidence)
                ),
            );
        }
    }
    match evidence.wait_status {
        None => killed(
            FaultKind::Killed,
            "the sandbox was killed from outside; the kernel does not tell by whom".into(),
        ),
        Some(status) => own_end(status),
    }
}

fn workspace_full(full: WorkspaceFull) -> String {
    let found = match full {
        WorkspaceFull::Bytes { held, max } => format!("held {held} bytes of a limit of {max}"),
        WorkspaceFull::Files { held, max } => format!("held {held} files of a limit of {max}"),
        WorkspaceFull::Hidden => {
            "had directories so deep that what they hold cannot be counted".to_owned()
        }
    };
    format!("the workspace, with the home and the caches, {found}, and the sandbox was stopped")
}

/// The end that a wait status tells.
fn own_end(status: i32) -> Verdict {
    let signal = status & 0x7f;
    if signal == 0 {
        return Verdict {
            exit_code: (status >> 8) & 0xff,
            signal: None,
            fault: None,
        };
    }
    let fault = (signal == SIGKILL).then(|| Fault {
        kind: FaultKind::Killed,
        message: "the program was killed with SIGKILL; the kernel does not tell by whom".into(),
        detail: FaultDetail::default(),
    });
    Verdict {
        exit_code: 128 + signal,
        signal: Some(signal),
        fault,
    }
}

fn startup_failed(failure: &StartupFailure) -> Verdict {
    Verdict {
        exit_code: 125,
        signal: None,
        fault: Some(Fault {
            kind: FaultKind::StartupFailed,
            message: failure.message.clone(),
            detail: FaultDetail {
                step: Some(failure.step.clone()),
                errno: failure.errno,
                ..FaultDetail::default()
            },
        }),
    }
}

fn exec_failed(failure: &ExecFailure) -> Verdict {
    let name = String::from_utf8_lossy(&failure.path)
        .escape_debug()
        .to_string();
    let missing = failure.errno == libc::ENOENT;
    let why = match failure.errno {
        libc::ENOENT if failure.looked_in.is_empty() => {
            "there is no such file in the sandbox, or its interpreter is missing".to_string()
        }
        libc::ENOENT => format!("looked in {}", failure.looked_in.join(", ")),
        libc::EACCES => "it is not an executable file".to_string(),
        libc::ENOEXEC => "it is not a program that this machine can execute".to_string(),
        libc::E2BIG => "the arguments and the environment are too long".to_string(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let verb = if missing {
        "was not found"
    } else {
        "cannot be executed"
    };
    Verdict {
        exit_code: if missing { 127 } else { 126 },
        signal: None,
        fault: Some(Fault {
            kind: FaultKind::ExecFailed,
            message: format!("{name} {verb}: {why}"),
            detail: FaultDetail {
                errno: Some(failure.errno),
                path: Some(failure.path.clone()),
                ..FaultDetail::default()
            },
        }),
    }
}

/// What was stopped, with its verb.
const fn stopped(evidence: &Evidence) -> &'static str {
    match evidence.resident {
        true => "all that it had started was",
        false => "the sandbox was",
    }
}

fn escape_blocked(notification: &Notification, resident: bool) -> Verdict {
    let with_it = match resident {
        true => "all else that its step had started",
        false => "the sandbox",
    };
    Verdict {
        exit_code: 159,
        signal: Some(31),
        fault: Some(Fault {
            kind: FaultKind::EscapeBlocked,
            message: format!(
                "the system call {} is not allowed in a sandbox; process {} was stopped, and {with_it} with it",
                notification.syscall, notification.pid
            ),
            detail: FaultDetail {
                syscall: Some(notification.syscall.clone()),
                syscall_args: notification.args.clone(),
                pid: Some(notification.pid),
                program: Some(notification.program.clone()),
                ..FaultDetail::default()
            },
        }),
    }
}

fn seconds(ms: u64) -> String {
    format!("{} s", std::time::Duration::from_millis(ms).as_secs_f64())
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
