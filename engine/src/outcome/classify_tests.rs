//! A test for each row of the table, and for each tie between rows.

use super::*;

fn ended(status: i32) -> Evidence {
    Evidence {
        started: true,
        wait_status: Some(status),
        ..Evidence::default()
    }
}

fn kind(evidence: &Evidence) -> Option<FaultKind> {
    classify(evidence).fault.map(|fault| fault.kind)
}

fn startup() -> StartupFailure {
    StartupFailure {
        step: "mount-proc".into(),
        errno: Some(libc::EPERM),
        message: "mount-proc: /proc: operation not permitted".into(),
    }
}

fn tried(syscall: &str) -> Notification {
    Notification {
        syscall: syscall.into(),
        args: vec![1, 2],
        pid: 7,
        program: "python3".into(),
    }
}

#[test]
fn a_programs_own_exit_code_is_never_a_fault() {
    for code in [0, 1, 3, 125, 126, 127, 137, 143, 159, 255] {
        let verdict = classify(&ended(code << 8));
        assert_eq!(
            (verdict.exit_code, verdict.signal, verdict.fault),
            (code, None, None)
        );
    }
}

#[test]
fn a_death_by_signal_is_128_and_the_signal_and_no_fault() {
    for signal in [
        libc::SIGSEGV,
        libc::SIGTERM,
        libc::SIGABRT,
        libc::SIGSYS,
        libc::SIGPIPE,
    ] {
        let verdict = classify(&ended(signal));
        assert_eq!(
            (verdict.exit_code, verdict.signal, verdict.fault),
            (128 + signal, Some(signal), None)
        );
        // A core flag changes nothing.
        assert_eq!(classify(&ended(signal | 0x80)).exit_code, 128 + signal);
    }
}

#[test]
fn a_sigkill_that_nothing_explains_is_killed() {
    assert_eq!(kind(&ended(libc::SIGKILL)), Some(FaultKind::Killed));
    let gone = Evidence {
        started: true,
        ..Evidence::default()
    };
    assert_eq!(kind(&gone), Some(FaultKind::Killed));
    assert_eq!(classify(&gone).exit_code, 137);
}

#[test]
fn a_sandbox_that_was_not_built_says_which_step_and_errno() {
    let verdict = classify(&Evidence {
        startup: Some(startup()),
        ..Evidence::default()
    });
    let fault = verdict.fault.unwrap();
    assert_eq!(
        (verdict.exit_code, fault.kind),
        (125, FaultKind::StartupFailed)
    );
    assert_eq!(fault.detail.step.as_deref(), Some("mount-proc"));
    assert_eq!(fault.detail.errno, Some(libc::EPERM));
}

#[test]
fn a_missing_program_is_127_and_a_forbidden_one_126() {
    let failed = |errno| {
        classify(&Evidence {
            exec: Some(ExecFailure {
                path: b"ghost".into(),
                errno,
                looked_in: vec!["/usr/bin".into(), "/bin".into()],
            }),
            ..Evidence::default()
        })
    };
    let missing = failed(libc::ENOENT);
    let fault = missing.fault.unwrap();
    assert_eq!(
        (missing.exit_code, fault.kind),
        (127, FaultKind::ExecFailed)
    );
    assert!(fault.message.contains("ghost") && fault.message.contains("/usr/bin, /bin"));
    for errno in [libc::EACCES, libc::ENOEXEC, libc::EISDIR, libc::E2BIG] {
        assert_eq!(failed(errno).exit_code, 126);
    }
}

#[test]
fn a_blocked_call_names_the_call_the_arguments_and_the_process() {
    let verdict = classify(&Evidence {
        started: true,
        notification: Some(tried("mount")),
        ..Evidence::default()
    });
    let fault = verdict.fault.unwrap();
    assert_eq!(
        (verdict.exit_code, fault.kind),
        (159, FaultKind::EscapeBlocked)
    );
    assert_eq!(fault.detail.syscall.as_deref(), Some("mount"));
    assert_eq!(fault.detail.syscall_args, [1, 2]);
    assert_eq!(
        (fault.detail.pid, fault.detail.program.as_deref()),
        (Some(7), Some("python3"))
    );
    // The name is the code's to choose: it is no part of our sentence.
    assert!(!fault.message.contains("python3"));
}

#[test]
fn a_counted_oom_kill_is_oom_whatever_became_of_the_main_process() {
    for status in [None, Some(0), Some(libc::SIGKILL), Some(1 << 8)] {
        let evidence = Evidence {
            started: true,
            oom_kills: 1,
            memory_max: Some(128 << 20),
            wait_status: status,
            ..Evidence::default()
        };
        let verdict = classify(&evidence);
        let fault = verdict.fault.unwrap();
        assert_eq!((verdict.exit_code, fault.kind), (137, FaultKind::Oom));
        assert!(fault.message.contains("128 MiB"));
    }
}

#[test]
fn a_bite_of_the_watchdog_is_oom_and_says_how_much_and_by_whom() {
    for status in [None, Some(0), Some(libc::SIGKILL)] {
        let verdict = classify(&Evidence {
            started: true,
            watchdog_memory: Some((150 << 20) - 1),
            memory_max: Some(128 << 20),
            wait_status: status,
            ..Evidence::default()
        });
        let fault = verdict.fault.unwrap();
        assert_eq!((verdict.exit_code, fault.kind), (137, FaultKind::Oom));
        for word in ["150 MiB", "128 MiB", "watchdog"] {
            assert!(fault.message.contains(word), "{}", fault.message);
        }
    }
}

#[test]
fn a_deadline_and_a_cancel_are_what_stopped_the_sandbox() {
    let timeout = Evidence {
        started: true,
        deadline_ms: Some(1500),
        ..Evidence::default()
    };
    assert_eq!(kind(&timeout), Some(FaultKind::Timeout));
    assert!(classify(&timeout).fault.unwrap().message.contains("1.5 s"));
    let cancelled = Evidence {
        started: true,
        cancelled: true,
        ..Evidence::default()
    };
    assert_eq!(kind(&cancelled), Some(FaultKind::Cancelled));
}

#[test]
fn a_deadline_before_the_code_ran_is_a_failed_start() {
    let evidence = Evidence {
        deadline_ms: Some(10),
        ..Evidence::default()
    };
    assert_eq!(kind(&evidence), Some(FaultKind::StartupFailed));
    assert_eq!(classify(&evidence).exit_code, 125);
}

#[test]
fn a_full_workspace_is_said_with_its_limit() {
    let evidence = Evidence {
        started: true,
        workspace_full: Some(WorkspaceFull::Bytes {
            held: 1001,
            max: 1000,
        }),
        ..Evidence::default()
    };
    assert_eq!(kind(&evidence), Some(FaultKind::WorkspaceFull));
    let said = classify(&evidence).fault.unwrap().message;
    assert!(said.contains("1001 bytes of a limit of 1000"), "{said}");
}

#[test]
fn a_main_process_that_ended_before_the_kill_keeps_its_own_end() {
    for (deadline_ms, cancelled) in [(Some(10), false), (None, true), (Some(10), true)] {
        let evidence = Evidence {
            deadline_ms,
            cancelled,
            ..ended(3 << 8)
        };
        let verdict = classify(&evidence);
        assert_eq!((verdict.exit_code, verdict.fault), (3, None));
    }
}

#[test]
fn ties_are_decided_in_the_order_of_the_table() {
    let everything = Evidence {
        resident: false,
        startup: Some(startup()),
        exec: Some(ExecFailure {
            path: b"x".into(),
            errno: libc::ENOENT,
            looked_in: Vec::new(),
        }),
        notification: Some(tried("bpf")),
        oom_kills: 2,
        memory_max: None,
        watchdog_memory: Some(1),
        workspace_full: Some(WorkspaceFull::Files { held: 2, max: 1 }),
        deadline_ms: Some(1),
        cancelled: true,
        wait_status: None,
        started: true,
    };
    let mut evidence = everything;
    assert_eq!(kind(&evidence), Some(FaultKind::StartupFailed));
    evidence.startup = None;
    assert_eq!(kind(&evidence), Some(FaultKind::ExecFailed));
    evidence.exec = None;
    assert_eq!(kind(&evidence), Some(FaultKind::EscapeBlocked));
    evidence.notification = None;
    assert_eq!(kind(&evidence), Some(FaultKind::Oom));
    evidence.oom_kills = 0;
    assert_eq!(kind(&evidence), Some(FaultKind::Oom));
    assert!(
        classify(&evidence)
            .fault
            .unwrap()
            .message
            .contains("watchdog")
    );
    evidence.watchdog_memory = None;
    assert_eq!(kind(&evidence), Some(FaultKind::WorkspaceFull));
    evidence.workspace_full = None;
    assert_eq!(kind(&evidence), Some(FaultKind::Timeout));
    evidence.deadline_ms = None;
    assert_eq!(kind(&evidence), Some(FaultKind::Cancelled));
    evidence.cancelled = false;
    assert_eq!(kind(&evidence), Some(FaultKind::Killed));
}
