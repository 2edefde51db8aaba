//! Errors to gRPC statuses, with details that a program can branch on.
//!
//! Every status of ours bears a `google.rpc.ErrorInfo` of the domain `stepbox`; mistakes in a request bear a
//! `google.rpc.BadRequest` too, and what passes by itself a `google.rpc.RetryInfo`.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::session::SessionError;
use crate::spec::{Violation, Violations};
use crate::workspace::{FileError, FileReason};

/// The domain of every `ErrorInfo`.
pub const DOMAIN: &str = "stepbox";

/// What the violations of one status may take: message and details travel in HTTP/2 headers, which clients bound at
/// 8 KiB, and the details in base64.
const VIOLATIONS_MOST_BYTES: usize = 1_600;
/// One violation's part of it.
const VIOLATION_MOST_BYTES: usize = 480;

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A status with its reason and no more.
#[must_use]
pub fn with_reason(code: Code, reason: &str, message: impl Into<String>) -> Status {
    with_metadata(code, reason, message, HashMap::new())
}

/// A status that passes by itself: the caller may try again after a second.
#[must_use]
pub fn exhausted(reason: &str, message: impl Into<String>) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    details.set_retry_info(Some(RETRY_AFTER));
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// All mistakes of a request as one `INVALID_ARGUMENT`.
#[must_use]
pub fn invalid(violations: Vec<Violation>) -> Status {
    let mount = violations.iter().any(|violation| violation.mount_refused);
    let reason = if mount {
        "MOUNT_REFUSED"
    } else {
        "INVALID_SPEC"
    };
    let count = violations.len();
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    let mut sentences = Vec::new();
    let mut left = VIOLATIONS_MOST_BYTES;
    // Refused mounts first, so that none is among those that do not fit.
    let (refused, others): (Vec<_>, Vec<_>) = violations
        .into_iter()
        .partition(|violation| violation.mount_refused);
    for violation in refused.into_iter().chain(others) {
        let field = clip(violation.field, VIOLATION_MOST_BYTES / 3);
        let description = clip(violation.description, VIOLATION_MOST_BYTES * 2 / 3);
        let Some(rest) = left.checked_sub(field.len() + description.len()) else {
            break;
        };
        left = rest;
        sentences.push(format!("{field}: {description}"));
        details.add_bad_request_violation(field, description);
    }
    let untold = count - sentences.len();
    if untold > 0 {
        sentences.push(format!("and {untold} more"));
    }
    Status::with_error_details(Code::InvalidArgument, sentences.join("; "), details)
}

/// One mistake as an `INVALID_ARGUMENT`.
#[must_use]
pub fn invalid_field(field: &str, description: impl Into<String>) -> Status {
    let mut violations = Violations::default();
    violations.add(field, description);
    invalid(violations.into_vec())
}

/// The engine's own fault: logged, and opaque outside.
#[must_use]
pub fn internal(what: &'static str, cause: &(dyn std::error::Error + 'static)) -> Status {
    tracing::error!(what, cause, "internal error");
    with_reason(
        Code::Internal,
        "INTERNAL",
        format!("internal error: {what}"),
    )
}

impl From<SessionError> for Status {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::NoSession(_) => with_reason(Code::NotFound, "NO_SESSION", message),
            SessionError::Closed(_) => {
                with_reason(Code::FailedPrecondition, "SESSION_CLOSED", message)
            }
            SessionError::NoKernel(_) => with_reason(Code::NotFound, "NO_KERNEL", message),
            SessionError::KernelEnded(_) => {
                with_reason(Code::FailedPrecondition, "KERNEL_ENDED", message)
            }
            SessionError::KernelNotStarted(verdict) => with_metadata(
                Code::FailedPrecondition,
                "KERNEL_NOT_STARTED",
                message,
                verdict
                    .fault
                    .into_iter()
                    .flat_map(|fault| {
                        [
                            ("fault".to_owned(), fault.kind.name().to_owned()),
                            (
                                "fault_message".to_owned(),
                                clip(fault.message, VIOLATION_MOST_BYTES),
                            ),
                        ]
                    })
                    .collect(),
            ),
            SessionError::NoStep(_) => with_reason(Code::NotFound, "NO_STEP", message),
            SessionError::Refused {
                field,
                reason,
                mount,
            } => invalid(vec![Violation {
                field,
                description: reason,
                mount_refused: mount,
            }]),
            SessionError::Unavailable { what: _, mend } => with_metadata(
                Code::FailedPrecondition,
                "HOST_LACKS",
                message,
                mend.into_iter()
                    .map(|mend| ("mend".to_owned(), clip(mend, VIOLATION_MOST_BYTES)))
                    .collect(),
            ),
            SessionError::Busy { what: _ } => exhausted("BUSY", message),
            SessionError::Setup(_) => {
                with_reason(Code::FailedPrecondition, "SETUP_FAILED", message)
            }
            SessionError::File(error) => file(error),
            SessionError::LauncherLost => with_reason(Code::Unavailable, "LAUNCHER_LOST", message),
        }
    }
}

/// A file error, with its reason word and path.
#[must_use]
pub fn file(error: FileError) -> Status {
    let message = error.to_string();
    let FileError {
        path,
        reason,
        message: _,
    } = error;
    let (code, word) = match reason {
        FileReason::NotFound => (Code::NotFound, "not_found"),
        FileReason::IsDirectory => (Code::FailedPrecondition, "is_directory"),
        FileReason::NotADirectory => (Code::FailedPrecondition, "not_a_directory"),
        FileReason::PermissionDenied => (Code::PermissionDenied, "permission_denied"),
        FileReason::InvalidPath => (Code::InvalidArgument, "invalid_path"),
        FileReason::TooLarge => (Code::FailedPrecondition, "too_large"),
        FileReason::NotAFile => (Code::FailedPrecondition, "not_a_file"),
        FileReason::Exists => (Code::AlreadyExists, "exists"),
        FileReason::NoSpace => (Code::ResourceExhausted, "no_space"),
        FileReason::NoMatch => (Code::FailedPrecondition, "no_match"),
        FileReason::SeveralMatches { count: _ } => (Code::FailedPrecondition, "several_matches"),
        FileReason::Changed => (Code::Aborted, "changed"),
        FileReason::Other => (Code::Internal, "other"),
    };
    let mut metadata = HashMap::from([("path".to_owned(), clip(path, VIOLATION_MOST_BYTES))]);
    if let FileReason::SeveralMatches { count } = reason {
        metadata.insert("count".to_owned(), count.to_string());
    }
    with_metadata(code, word, message, metadata)
}

fn with_metadata(
    code: Code,
    reason: &str,
    message: impl Into<String>,
    metadata: HashMap<String, String>,
) -> Status {
    let details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    Status::with_error_details(code, clip(message.into(), VIOLATIONS_MOST_BYTES), details)
}

fn clip(mut text: String, most: usize) -> String {
    if text.len() > most {
        let at = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(at.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(field: &str, description: &str, mount_refused: bool) -> Violation {
        Violation {
            field: field.into(),
            description: description.into(),
            mount_refused,
        }
    }

    fn reason(status: &Status) -> String {
        let info = status
            .get_details_error_info()
            .expect("every status bears a reason");
        assert_eq!(info.domain, DOMAIN);
        info.reason
    }

    #[test]
    fn every_error_has_its_code_and_reason() {
        let text = || "x".to_owned();
        for (error, code, word) in [
            (
                SessionError::NoSession(text()),
                Code::NotFound,
                "NO_SESSION",
            ),
            (
                SessionError::Closed(text()),
                Code::FailedPrecondition,
                "SESSION_CLOSED",
            ),
            (SessionError::NoStep(text()), Code::NotFound, "NO_STEP"),
            (SessionError::NoKernel(text()), Code::NotFound, "NO_KERNEL"),
            (
                SessionError::KernelEnded(text()),
                Code::FailedPrecondition,
                "KERNEL_ENDED",
            ),
            (
                SessionError::KernelNotStarted(Box::new(exited(1))),
                Code::FailedPrecondition,
                "KERNEL_NOT_STARTED",
            ),
            (
                SessionError::Refused {
                    field: text(),
                    reason: text(),
                    mount: true,
                },
                Code::InvalidArgument,
                "MOUNT_REFUSED",
            ),
            (
                SessionError::Refused {
                    field: text(),
                    reason: text(),
                    mount: false,
                },
                Code::InvalidArgument,
                "INVALID_SPEC",
            ),
            (
                SessionError::Unavailable {
                    what: text(),
                    mend: Some(text()),
                },
                Code::FailedPrecondition,
                "HOST_LACKS",
            ),
            (
                SessionError::Busy { what: text() },
                Code::ResourceExhausted,
                "BUSY",
            ),
            (
                SessionError::Setup(text()),
                Code::FailedPrecondition,
                "SETUP_FAILED",
            ),
            (
                SessionError::LauncherLost,
                Code::Unavailable,
                "LAUNCHER_LOST",
            ),
        ] {
            let status = Status::from(error);
            assert_eq!((status.code(), reason(&status).as_str()), (code, word));
        }
    }

    fn exited(exit_code: i32) -> crate::outcome::Verdict {
        crate::outcome::Verdict {
            exit_code,
            signal: None,
            fault: None,
        }
    }

    #[test]
    fn a_kernel_that_could_not_start_bears_its_fault() {
        let mut verdict = exited(137);
        verdict.fault = Some(crate::outcome::Fault {
            kind: crate::outcome::FaultKind::Timeout,
            message: "it was slow".to_owned(),
            detail: crate::outcome::FaultDetail::default(),
        });
        let status = Status::from(SessionError::KernelNotStarted(Box::new(verdict)));
        let told = status.get_details_error_info().expect("info").metadata;
        assert_eq!(told["fault"], "timeout");
        assert_eq!(told["fault_message"], "it was slow");
        assert_eq!(
            status.message(),
            "the kernel could not start: timeout: it was slow"
        );
    }

    #[test]
    fn every_file_reason_has_its_code_and_word() {
        for (reason_of, code, word) in [
            (FileReason::NotFound, Code::NotFound, "not_found"),
            (
                FileReason::IsDirectory,
                Code::FailedPrecondition,
                "is_directory",
            ),
            (
                FileReason::NotADirectory,
                Code::FailedPrecondition,
                "not_a_directory",
            ),
            (
                FileReason::PermissionDenied,
                Code::PermissionDenied,
                "permission_denied",
            ),
            (
                FileReason::InvalidPath,
                Code::InvalidArgument,
                "invalid_path",
            ),
            (FileReason::TooLarge, Code::FailedPrecondition, "too_large"),
            (FileReason::NotAFile, Code::FailedPrecondition, "not_a_file"),
            (FileReason::Exists, Code::AlreadyExists, "exists"),
            (FileReason::NoSpace, Code::ResourceExhausted, "no_space"),
            (FileReason::Other, Code::Internal, "other"),
        ] {
            let status = Status::from(SessionError::File(FileError {
                path: "a/b".into(),
                reason: reason_of,
                message: "why".into(),
            }));
            assert_eq!((status.code(), reason(&status).as_str()), (code, word));
            let info = status.get_details_error_info().expect("info");
            assert_eq!(info.metadata.get("path").map(String::as_str), Some("a/b"));
        }
    }

    #[test]
    fn what_passes_by_itself_says_when_to_try_again() {
        let status = Status::from(SessionError::Busy {
            what: "full".into(),
        });
        let retry = status.get_details_retry_info().expect("a delay");
        assert_eq!(retry.retry_delay, Some(RETRY_AFTER));
    }

    #[test]
    fn all_violations_travel_with_refused_mounts_first() {
        let status = invalid(vec![
            violation("a", "one", false),
            violation("b", "two", true),
        ]);
        let bad = status.get_details_bad_request().expect("violations");
        let fields: Vec<_> = bad
            .field_violations
            .iter()
            .map(|v| v.field.as_str())
            .collect();
        assert_eq!(fields, ["b", "a"]);
        assert_eq!(status.message(), "b: two; a: one");
        assert_eq!(reason(&status), "MOUNT_REFUSED");
    }

    #[test]
    fn a_status_fits_in_the_headers_that_clients_accept() {
        let long = "é".repeat(5_000);
        let many = (0..500).map(|n| violation(&format!("env[{n}]"), &long, false));
        let status = invalid(many.collect());
        assert!(status.message().ends_with("more"), "{}", status.message());
        // The message is percent-encoded at three bytes a byte at worst, the details are in base64.
        let worst = status.message().len() * 3 + status.details().len() * 4 / 3;
        assert!(worst < 16 << 10, "{worst}");
    }
}
