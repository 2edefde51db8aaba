use super::*;

fn empty() -> StepResult {
    StepResult {
        step_id: "t1".into(),
        stdout: Output::default(),
        stderr: Output::default(),
        notes: vec![],
        verdict: Verdict {
            exit_code: 0,
            signal: None,
            fault: None,
        },
        duration_us: 2_500,
        files: vec![],
        files_truncated: false,
        files_shared: false,
        files_tracked: true,
        usage: Usage::default(),
        limits: vec![],
        isolation: vec![],
        image_digest: String::new(),
        start: None,
        results: vec![],
        results_truncated: false,
    }
}

fn file(path: &[u8]) -> FileChange {
    FileChange {
        path: path.to_vec(),
        change: ChangeKind::Created,
        kind: FileKind::File,
        size: 1,
        mode: 0o644,
        old_path: None,
        host_risk: None,
        diff: None,
        diff_reason: None,
    }
}

#[test]
fn a_small_result_travels_whole_and_unknown_stays_unknown() {
    let (reply, whole) = result(&empty());
    assert!(whole);
    assert_eq!(reply.duration_ms, 2);
    assert_eq!(reply.usage, Some(pb::Usage::default()));
    assert_eq!(reply.fault, None);
}

#[test]
fn output_past_the_inline_bound_is_kept_back_and_counted() {
    let kept = vec![b'x'; INLINE_OUTPUT + 1];
    let (reply, whole) = result(&StepResult {
        stderr: Output {
            total: kept.len() as u64 + 5,
            head: 7,
            kept,
        },
        ..empty()
    });
    assert!(!whole);
    let stderr = reply.stderr.expect("stderr");
    assert_eq!(stderr.data.len(), INLINE_OUTPUT);
    assert_eq!(stderr.kept_bytes, INLINE_OUTPUT as u64 + 1);
    assert!(stderr.truncated);
    assert_eq!(stderr.head_bytes, 7);
}

#[test]
fn many_files_are_kept_back_by_number_and_by_size() {
    let (reply, whole) = result(&StepResult {
        files: vec![file(b"a"); INLINE_FILES + 1],
        ..empty()
    });
    assert!(!whole);
    assert_eq!(
        (reply.files.len(), reply.files_count),
        (INLINE_FILES, INLINE_FILES as u64 + 1)
    );
    let (reply, whole) = result(&StepResult {
        files: vec![file(&[b'n'; 4000]); 3000],
        ..empty()
    });
    assert!(!whole);
    assert!(reply.encoded_len() < 2 << 20);
}

#[test]
fn the_largest_reply_stays_under_four_mebibytes() {
    let output = || Output {
        kept: vec![b'x'; INLINE_OUTPUT * 3],
        total: u64::MAX,
        head: 1,
    };
    let (reply, _) = result(&StepResult {
        stdout: output(),
        stderr: output(),
        files: vec![file(&[0xff; 4000]); INLINE_FILES],
        ..empty()
    });
    assert!(reply.encoded_len() < 4_000_000, "{}", reply.encoded_len());
}

#[test]
fn pages_cover_every_file_once() {
    let files: Vec<_> = (0..100).map(|n| file(format!("f{n}").as_bytes())).collect();
    let mut seen = 0;
    while seen < files.len() {
        let page = file_page(&files, seen, 7, 100);
        assert!(!page.is_empty());
        for (one, whole) in page.iter().zip(&files[seen..]) {
            assert_eq!(one.path, whole.path);
        }
        seen += page.len();
    }
    assert_eq!(seen, files.len());
    assert_eq!(file_page(&files, 100, 7, 100), []);
}

#[test]
fn every_fault_has_its_word_and_its_facts() {
    for (kind, word) in [
        (FaultKind::StartupFailed, pb::FaultType::StartupFailed),
        (FaultKind::ExecFailed, pb::FaultType::ExecFailed),
        (FaultKind::EscapeBlocked, pb::FaultType::EscapeBlocked),
        (FaultKind::Oom, pb::FaultType::Oom),
        (FaultKind::WorkspaceFull, pb::FaultType::WorkspaceFull),
        (FaultKind::Timeout, pb::FaultType::Timeout),
        (FaultKind::Cancelled, pb::FaultType::Cancelled),
        (FaultKind::Killed, pb::FaultType::Killed),
    ] {
        let wire = fault(&Fault {
            kind,
            message: "why".into(),
            detail: FaultDetail {
                syscall: Some("mount".into()),
                syscall_args: vec![1, 2],
                path: Some(b"/x\xff".to_vec()),
                ..FaultDetail::default()
            },
        });
        assert_eq!(wire.r#type(), word);
        assert_eq!(wire.syscall.as_deref(), Some("mount"));
        assert_eq!(wire.path.as_deref(), Some(&b"/x\xff"[..]));
    }
}

#[test]
fn a_name_that_is_not_text_travels_as_bytes_with_a_text_beside_it() {
    let wire = change(&file(b"a\xff"));
    assert_eq!(&wire.path[..], b"a\xff");
    assert_eq!(wire.display_path, "a\u{fffd}");
}

#[test]
fn chunks_keep_their_stream_and_order() {
    let wire = event(StepEvent::Output {
        stdout: false,
        sequence: 3,
        data: b"e".to_vec(),
        dropped: 9,
    });
    let Some(pb::run_stream_response::Event::Output(chunk)) = wire.event else {
        panic!("not a chunk");
    };
    assert_eq!(
        (chunk.stream(), chunk.sequence, chunk.dropped_bytes),
        (pb::Stream::Stderr, 3, 9)
    );
}
