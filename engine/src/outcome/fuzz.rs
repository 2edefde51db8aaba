//! Evidence of every kind at once, with words of the code's in all places where some can stand.

use arbitrary::{Result, Unstructured};

use super::{
    Evidence, ExecFailure, FaultKind, Notification, StartupFailure, WorkspaceFull, classify,
};

/// What stands where code chooses: no sentence may have it.
const CODES_OWN: &str = "the-codes-own-word";

/// No fault without the evidence for it, an end that a process can have, and no sentence of the code's.
pub fn verdicts(bytes: &[u8]) {
    let Ok(evidence) = evidence(&mut Unstructured::new(bytes)) else {
        return;
    };
    let verdict = classify(&evidence);
    assert_eq!(classify(&evidence), verdict);
    assert!((0..=255).contains(&verdict.exit_code), "{verdict:?}");
    if let Some(signal) = verdict.signal {
        assert_eq!(verdict.exit_code, 128 + signal);
        assert!((1..=127).contains(&signal));
    }
    let Some(fault) = &verdict.fault else {
        let status = evidence
            .wait_status
            .expect("an end without a fault is the program's own");
        assert!(
            evidence.startup.is_none()
                && evidence.exec.is_none()
                && evidence.notification.is_none()
        );
        assert!(
            evidence.oom_kills == 0
                && evidence.watchdog_memory.is_none()
                && evidence.workspace_full.is_none()
        );
        assert_eq!(status & 0x7f, verdict.signal.unwrap_or(0));
        return;
    };
    // What could not be executed, and where it was looked for, is the caller's word.
    let callers = fault.kind == FaultKind::ExecFailed;
    assert!(callers || !fault.message.contains(CODES_OWN), "{fault:?}");
    let unfinished = evidence.wait_status.is_none();
    let proven = match fault.kind {
        FaultKind::StartupFailed => {
            evidence.startup.is_some()
                || unfinished && evidence.deadline_ms.is_some() && !evidence.started
        }
        FaultKind::ExecFailed => evidence.exec.is_some(),
        FaultKind::EscapeBlocked => evidence.notification.is_some(),
        FaultKind::Oom => evidence.oom_kills > 0 || evidence.watchdog_memory.is_some(),
        FaultKind::WorkspaceFull => evidence.workspace_full.is_some(),
        FaultKind::Timeout => unfinished && evidence.deadline_ms.is_some() && evidence.started,
        FaultKind::Cancelled => unfinished && evidence.cancelled,
        FaultKind::Killed => evidence.wait_status.is_none_or(|status| status & 0x7f == 9),
    };
    assert!(proven, "{verdict:?} of {evidence:?}");
}

fn evidence(given: &mut Unstructured<'_>) -> Result<Evidence> {
    let full = match given.int_in_range(0..=6)? {
        0 => Some(WorkspaceFull::Hidden),
        1 => Some(WorkspaceFull::Bytes {
            held: given.arbitrary()?,
            max: given.arbitrary()?,
        }),
        2 => Some(WorkspaceFull::Files {
            held: given.arbitrary()?,
            max: given.arbitrary()?,
        }),
        _ => None,
    };
    Ok(Evidence {
        startup: option(given, |given| {
            Ok(StartupFailure {
                step: "mount".into(),
                errno: given.arbitrary()?,
                message: "mount: refused".into(),
            })
        })?,
        exec: option(given, |given| {
            Ok(ExecFailure {
                path: given.arbitrary()?,
                errno: given.arbitrary()?,
                looked_in: given.arbitrary()?,
            })
        })?,
        notification: option(given, |given| {
            Ok(Notification {
                syscall: "mount".into(),
                args: given.arbitrary()?,
                pid: given.arbitrary()?,
                program: CODES_OWN.into(),
            })
        })?,
        oom_kills: option(given, Unstructured::arbitrary)?.unwrap_or(0),
        memory_max: given.arbitrary()?,
        watchdog_memory: option(given, Unstructured::arbitrary)?,
        workspace_full: full,
        deadline_ms: given.arbitrary()?,
        cancelled: given.arbitrary()?,
        wait_status: given.arbitrary()?,
        started: given.arbitrary()?,
        resident: given.arbitrary()?,
    })
}

/// Seldom something: the evidence that is looked at first would hide all other.
fn option<'a, T>(
    given: &mut Unstructured<'a>,
    make: impl FnOnce(&mut Unstructured<'a>) -> Result<T>,
) -> Result<Option<T>> {
    if given.ratio(1, 4)? {
        make(given).map(Some)
    } else {
        Ok(None)
    }
}
