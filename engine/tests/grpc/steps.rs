use std::time::Duration;

use stepbox_engine::api::pb::run_stream_request::Step;
use stepbox_engine::api::pb::run_stream_response::Event;
use stepbox_engine::api::pb::{
    FaultType, FetchOutputRequest, ListChangesRequest, ReleaseStepRequest, RunCodeRequest,
    RunStreamRequest, Stream,
};
use stepbox_engine::config::ServeFlags;
use tonic::{Code, Request};
use tonic_types::StatusExt;

use crate::fake::{LARGE, MANY};
use crate::served::{Served, argv};

#[tokio::test]
async fn code_comes_back_with_what_it_wrote() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let request = RunCodeRequest {
        session_id,
        code: "print('é')".into(),
        ..RunCodeRequest::default()
    };
    let result = client
        .run_code(request)
        .await
        .expect("ran")
        .into_inner()
        .result
        .expect("a result");
    assert_eq!(result.stdout.expect("stdout").data, "print('é')".as_bytes());
    assert_eq!(
        (result.exit_code, result.duration_ms, result.fault),
        (0, 1, None)
    );
    served.stop().await;
}

#[tokio::test]
async fn what_a_reply_cannot_carry_is_fetched_and_released() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let result = client
        .run(argv(&id, &["large"]))
        .await
        .expect("ran")
        .into_inner()
        .result
        .expect("a result");
    let stdout = result.stdout.expect("stdout");
    assert_eq!(stdout.kept_bytes, LARGE as u64);
    assert!(stdout.data.len() < LARGE);
    assert_eq!(result.files_count, MANY as u64);

    let fetch = |stream: Stream, offset| FetchOutputRequest {
        session_id: id.clone(),
        step_id: result.step_id.clone(),
        stream: stream.into(),
        offset,
    };
    let mut size = stdout.data.len();
    let mut chunks = client
        .fetch_output(fetch(Stream::Stdout, size as u64))
        .await
        .expect("kept")
        .into_inner();
    while let Some(chunk) = chunks.message().await.expect("a chunk") {
        assert!(!chunk.data.is_empty() && chunk.data.len() <= 1 << 20);
        size += chunk.data.len();
    }
    assert_eq!(size, LARGE);
    let past = client
        .fetch_output(fetch(Stream::Stderr, u64::MAX))
        .await
        .expect("kept");
    assert!(past.into_inner().message().await.expect("an end").is_none());
    let status = client
        .fetch_output(fetch(Stream::Unspecified, 0))
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);

    let mut paths: Vec<_> = result.files.iter().map(|file| file.path.clone()).collect();
    let changes = ListChangesRequest {
        session_id: id.clone(),
        step_id: result.step_id.clone(),
        offset: paths.len() as u64,
    };
    let mut pages = client
        .list_changes(changes)
        .await
        .expect("kept")
        .into_inner();
    while let Some(page) = pages.message().await.expect("a page") {
        paths.extend(page.files.into_iter().map(|file| file.path));
    }
    let expected: Vec<_> = (0..MANY).map(|nth| format!("f{nth}")).collect();
    assert_eq!(paths, expected);

    let release = || ReleaseStepRequest {
        session_id: id.clone(),
        step_id: result.step_id.clone(),
    };
    client.release_step(release()).await.expect("released");
    for status in [
        client.release_step(release()).await.expect_err("gone"),
        client
            .fetch_output(fetch(Stream::Stdout, 0))
            .await
            .expect_err("gone"),
    ] {
        assert_eq!(
            status.get_details_error_info().expect("reason").reason,
            "NO_STEP"
        );
    }
    served.stop().await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_cancels_its_step() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let call = tokio::spawn(async move { client.run(argv(&id, &["wait"])).await });
    served.fake.until_waiting(1).await;
    call.abort();
    served.fake.until_cancelled(1).await;
    served.stop().await;
}

#[tokio::test]
async fn a_deadline_that_passes_cancels_the_step() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let mut request = Request::new(argv(&id, &["wait"]));
    request.set_timeout(Duration::from_millis(50));
    client.run(request).await.expect_err("the deadline passed");
    served.fake.until_cancelled(1).await;
    let mut request = Request::new(stream(&id, &["wait"]));
    request.set_timeout(Duration::from_millis(50));
    // Bare calls end at the client; the server must see the deadline by itself.
    let events = client.run_stream(request).await;
    served.fake.until_cancelled(2).await;
    drop(events);
    served.stop().await;
}

fn stream(id: &str, words: &[&str]) -> RunStreamRequest {
    RunStreamRequest {
        step: Some(Step::Run(argv(id, words))),
    }
}

#[tokio::test]
async fn a_stream_is_a_start_then_output_in_order_then_the_result() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let mut events = client
        .run_stream(stream(&id, &["count"]))
        .await
        .expect("a stream")
        .into_inner();
    let mut next = async || {
        events
            .message()
            .await
            .expect("an event")
            .and_then(|message| message.event)
    };
    assert!(matches!(next().await, Some(Event::Started(started)) if started.step_id == "t1"));
    for sequence in 0..100 {
        let Some(Event::Output(chunk)) = next().await else {
            panic!("chunk {sequence} is missing");
        };
        let right = if sequence % 2 == 0 {
            Stream::Stdout
        } else {
            Stream::Stderr
        };
        assert_eq!((chunk.sequence, chunk.stream()), (sequence, right));
        assert_eq!(chunk.data, sequence.to_string());
    }
    assert!(matches!(next().await, Some(Event::Result(result)) if result.exit_code == 0));
    assert_eq!(next().await, None);
    served.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_dropped_cancels_its_step() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let mut events = client
        .run_stream(stream(&id, &["wait"]))
        .await
        .expect("a stream")
        .into_inner();
    assert!(events.message().await.expect("an event").is_some());
    drop(events);
    served.fake.until_cancelled(1).await;
    served.stop().await;
}

#[tokio::test]
async fn errors_of_a_step_say_what_to_do() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let status = client.run(argv(&id, &["busy"])).await.expect_err("busy");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().is_some());
    let status = client
        .run(argv("nobody", &["true"]))
        .await
        .expect_err("no session");
    assert_eq!(status.code(), Code::NotFound);
    let status = client
        .run_stream(stream("nobody", &["true"]))
        .await
        .expect_err("no session");
    assert_eq!(status.code(), Code::NotFound);
    let status = client
        .run(argv(&id, &[]))
        .await
        .expect_err("nothing to run");
    let violations = status
        .get_details_bad_request()
        .expect("violations")
        .field_violations;
    assert_eq!(violations[0].field, "argv");
    let status = client
        .run_stream(RunStreamRequest { step: None })
        .await
        .expect_err("nothing to run");
    assert_eq!(status.code(), Code::InvalidArgument);
    served.stop().await;
}

#[tokio::test]
async fn more_calls_than_the_engine_takes_are_told_to_come_back() {
    let served = Served::with(ServeFlags {
        max_calls: Some(1),
        ..ServeFlags::default()
    })
    .await;
    let (mut client, id) = served.session().await;
    let call = {
        let (mut client, request) = (client.clone(), argv(&id, &["wait"]));
        tokio::spawn(async move { client.run(request).await })
    };
    served.fake.until_waiting(1).await;
    let status = client.run(argv(&id, &["true"])).await.expect_err("full");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().is_some());
    call.abort();
    served.fake.until_cancelled(1).await;
    served.stop().await;
}

#[tokio::test]
async fn a_message_past_the_bound_is_refused_and_the_connection_lives() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let request = RunCodeRequest {
        session_id: session_id.clone(),
        code: "#".repeat(9 << 20),
        ..RunCodeRequest::default()
    };
    let status = client.run_code(request).await.expect_err("too large");
    assert!(
        matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{status:?}"
    );
    client
        .run(argv(&session_id, &["true"]))
        .await
        .expect("the next call");
    served.stop().await;
}

#[tokio::test]
async fn a_stopping_engine_cancels_what_runs_and_still_answers() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let call = tokio::spawn(async move { client.run(argv(&id, &["wait"])).await });
    served.fake.until_waiting(1).await;
    served.stop().await;
    let result = call
        .await
        .expect("no panic")
        .expect("an answer")
        .into_inner()
        .result
        .expect("a result");
    assert_eq!(
        result.fault.expect("a fault").r#type(),
        FaultType::Cancelled
    );
}
