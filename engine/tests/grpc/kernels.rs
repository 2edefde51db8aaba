use stepbox_engine::api::pb::run_cell_stream_response::Event;
use stepbox_engine::api::pb::{
    KernelOptions, RestartKernelRequest, RunCellRequest, Start, StartKernelRequest,
};
use tonic::Code;
use tonic_types::StatusExt;

use crate::served::Served;

fn cell(session: &str, kernel: &str, code: &str) -> RunCellRequest {
    RunCellRequest {
        session_id: session.into(),
        kernel_id: kernel.into(),
        code: code.into(),
        timeout_s: None,
    }
}

#[tokio::test]
async fn a_cell_comes_back_with_its_results_live_or_not() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let request = StartKernelRequest {
        session_id: session_id.clone(),
        options: None,
    };
    let started = client.start_kernel(request).await.expect("started");
    let started = started.into_inner();
    assert_eq!(started.start(), Start::Cold);
    let request = cell(&session_id, &started.kernel_id, "40 + 2");
    let reply = client.run_cell(request.clone()).await.expect("ran");
    let reply = reply.into_inner().result.expect("a step's");
    let [result] = &reply.results[..] else {
        panic!("not one: {:?}", reply.results);
    };
    assert_eq!(
        (&result.data["text/plain"][..], result.main),
        (&b"42"[..], true)
    );
    assert_eq!(reply.exit_code, 0);

    let stream = client.run_cell_stream(request).await.expect("ran");
    let mut stream = stream.into_inner();
    let mut events = Vec::new();
    while let Some(message) = stream.message().await.expect("an event") {
        events.push(message.event.expect("one of them"));
    }
    assert!(matches!(&events[0], Event::Started(_)), "{events:?}");
    let Some(Event::Result(last)) = events.last() else {
        panic!("no result: {events:?}");
    };
    assert_eq!(
        last.result.as_ref().expect("a step's").results,
        reply.results
    );
    served.stop().await;
}

#[tokio::test]
async fn a_kernel_that_has_ended_or_never_was_is_told_by_its_reason() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    for (kernel, code, word) in [
        ("dead", Code::FailedPrecondition, "KERNEL_ENDED"),
        ("other", Code::NotFound, "NO_KERNEL"),
        ("a/b", Code::InvalidArgument, "INVALID_SPEC"),
    ] {
        let status = client.run_cell(cell(&id, kernel, "1")).await;
        let status = status.expect_err("refused");
        let reason = status.get_details_error_info().expect("a reason").reason;
        assert_eq!((status.code(), reason.as_str()), (code, word));
    }
    let ended = client.run_cell(cell(&id, "dead", "1")).await;
    let text = ended.expect_err("refused").message().to_owned();
    assert_eq!(text, "kernel ended: timeout: it was slow");
    let request = RestartKernelRequest {
        session_id: id,
        kernel_id: "other".into(),
    };
    let status = client.restart_kernel(request).await.expect_err("refused");
    assert_eq!(status.code(), Code::NotFound);
    served.stop().await;
}

#[tokio::test]
async fn every_mistake_of_a_kernel_is_told_before_it_starts() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let request = StartKernelRequest {
        session_id,
        options: Some(KernelOptions {
            memory_mb: None,
            env: [("A=".to_owned(), "x".to_owned())].into(),
            cwd: Some("../up".into()),
        }),
    };
    let status = client.start_kernel(request).await.expect_err("refused");
    let found = status.get_details_bad_request().expect("violations");
    assert_eq!(found.field_violations.len(), 2, "{status:?}");
    served.stop().await;
}
