use bytes::Bytes;
use stepbox_engine::api::pb::sandbox_client::SandboxClient;
use stepbox_engine::api::pb::{
    EditFileRequest, GlobFilesRequest, GrepFilesRequest, ListFilesRequest, MakeDirRequest,
    MoveRequest, ReadFileRequest, RemoveRequest, StatFileRequest, WriteFileRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_types::StatusExt;

use crate::fake::MANY;
use crate::served::Served;

fn first(session_id: &str, path: &'static [u8], data: &'static [u8]) -> WriteFileRequest {
    WriteFileRequest {
        session_id: session_id.into(),
        path: Bytes::from_static(path),
        data: Bytes::from_static(data),
        mode: None,
    }
}

fn more(data: Vec<u8>) -> WriteFileRequest {
    WriteFileRequest {
        data: data.into(),
        ..WriteFileRequest::default()
    }
}

fn reason(status: &tonic::Status) -> String {
    status.get_details_error_info().expect("a reason").reason
}

#[tokio::test]
async fn a_file_of_any_size_makes_the_round_trip() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let messages = vec![
        first(&id, b"a\xff", b"x"),
        more(vec![b'y'; 3 << 20]),
        more(vec![b'z'; 3 << 20]),
    ];
    let size = messages
        .iter()
        .map(|message| message.data.len() as u64)
        .sum::<u64>();
    let reply = client
        .write_file(tokio_stream::iter(messages))
        .await
        .expect("written")
        .into_inner();
    assert_eq!(reply.size_bytes, size);
    let read = ReadFileRequest {
        session_id: id.clone(),
        path: Bytes::from_static(b"a\xff"),
        ..ReadFileRequest::default()
    };
    let mut chunks = client.read_file(read).await.expect("opened").into_inner();
    let mut data = Vec::new();
    while let Some(chunk) = chunks.message().await.expect("a chunk") {
        if data.is_empty() {
            assert_eq!(chunk.size_bytes, size);
        }
        data.extend_from_slice(&chunk.data);
    }
    assert_eq!(data.len() as u64, size);
    assert!(data.starts_with(b"xyy") && data.ends_with(b"zz"));
    served.stop().await;
}

#[tokio::test]
async fn an_empty_file_is_one_message_that_says_so() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    client
        .write_file(tokio_stream::once(first(&id, b"e", b"")))
        .await
        .expect("written");
    let read = ReadFileRequest {
        session_id: id,
        path: Bytes::from_static(b"e"),
        ..ReadFileRequest::default()
    };
    let mut chunks = client.read_file(read).await.expect("opened").into_inner();
    let chunk = chunks.message().await.expect("a chunk").expect("one");
    assert!(chunk.data.is_empty() && chunk.size_bytes == 0);
    assert!(chunks.message().await.expect("an end").is_none());
    served.stop().await;
}

#[tokio::test]
async fn a_write_that_breaks_off_leaves_nothing() {
    let served = Served::start().await;
    let (_, id) = served.session().await;
    let (messages, stream) = mpsc::channel(1);
    let (uri, bearer) = (
        format!("unix://{}", served.socket().display()),
        served.token(),
    );
    // A client with a runtime of its own, which dies with its connection.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.spawn(async move {
        let endpoint = tonic::transport::Endpoint::from_shared(uri).expect("an address");
        let channel = endpoint.connect().await.expect("connected");
        let mut client = SandboxClient::with_interceptor(channel, bearer);
        client.write_file(ReceiverStream::new(stream)).await
    });
    messages
        .send(first(&id, b"half", b"data"))
        .await
        .expect("sent");
    served.fake.until_write_begun().await;
    runtime.shutdown_background();
    served.fake.until_write_dropped().await;
    assert_eq!(served.fake.files(), Vec::<Vec<u8>>::new());
    served.stop().await;
}

#[tokio::test]
async fn a_stream_that_names_no_file_or_two_is_refused() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let status = client
        .write_file(tokio_stream::empty())
        .await
        .expect_err("empty");
    assert_eq!(status.code(), Code::InvalidArgument);
    let two = vec![first(&id, b"a", b"x"), first(&id, b"b", b"y")];
    let status = client
        .write_file(tokio_stream::iter(two))
        .await
        .expect_err("two names");
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = client
        .write_file(tokio_stream::once(first(&id, b"a\0b", b"")))
        .await
        .expect_err("NUL");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "invalid_path")
    );
    assert_eq!(served.fake.files(), Vec::<Vec<u8>>::new());
    served.stop().await;
}

#[tokio::test]
async fn a_missing_file_is_not_found_with_its_path() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let path = Bytes::from_static(b"nope");
    let read = ReadFileRequest {
        session_id: session_id.clone(),
        path: path.clone(),
        ..ReadFileRequest::default()
    };
    let stat = StatFileRequest { session_id, path };
    for status in [
        client.read_file(read).await.expect_err("missing"),
        client.stat_file(stat).await.expect_err("missing"),
    ] {
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::NotFound, "not_found")
        );
        let info = status.get_details_error_info().expect("info");
        assert_eq!(info.metadata.get("path").map(String::as_str), Some("nope"));
    }
    served.stop().await;
}

#[tokio::test]
async fn a_long_listing_comes_in_pages_and_says_at_its_end_that_it_was_cut() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let list = ListFilesRequest {
        session_id,
        ..ListFilesRequest::default()
    };
    let mut pages = client.list_files(list).await.expect("listed").into_inner();
    let (mut count, mut truncated, mut page_count) = (0, false, 0);
    while let Some(page) = pages.message().await.expect("a page") {
        assert!(!truncated, "only the last page says it");
        count += page.files.len();
        truncated = page.truncated;
        page_count += 1;
    }
    assert_eq!((count, truncated), (MANY, true));
    assert!(page_count > 1);
    served.stop().await;
}

#[tokio::test]
async fn directories_are_made_and_files_moved_and_removed() {
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let path = |name: &'static [u8]| Bytes::from_static(name);
    client
        .write_file(tokio_stream::once(first(&session_id, b"a", b"x")))
        .await
        .expect("written");
    let make = MakeDirRequest {
        session_id: session_id.clone(),
        path: path(b"d"),
    };
    client.make_dir(make).await.expect("made");
    let rename = MoveRequest {
        session_id: session_id.clone(),
        source: path(b"a"),
        target: path(b"d/b"),
        replace: false,
    };
    client.r#move(rename).await.expect("moved");
    assert_eq!(served.fake.files(), [b"d/b".to_vec()]);
    let remove = || RemoveRequest {
        session_id: session_id.clone(),
        path: path(b"d/b"),
        recursive: false,
    };
    client.remove(remove()).await.expect("removed");
    assert_eq!(
        client.remove(remove()).await.expect_err("gone").code(),
        Code::NotFound
    );
    served.stop().await;
}

#[tokio::test]
async fn lines_that_were_found_come_in_pages_and_the_last_says_what_is_missing() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let request = GrepFilesRequest {
        session_id: id,
        pattern: "x".into(),
        ..GrepFilesRequest::default()
    };
    let mut pages = client
        .grep_files(request)
        .await
        .expect("found")
        .into_inner();
    let (mut count, mut ends) = (0, Vec::new());
    while let Some(page) = pages.message().await.expect("a page") {
        count += page.matches.len();
        assert!(
            page.matches
                .iter()
                .all(|found| found.display_path == "bad\u{fffd}")
        );
        ends.push((page.truncated, page.binary_files_count));
    }
    assert_eq!(count, MANY);
    assert!(ends.len() > 1);
    assert_eq!(ends.pop(), Some((true, 2)));
    assert!(ends.iter().all(|end| *end == (false, 0)));
    served.stop().await;
}

#[tokio::test]
async fn a_wrong_pattern_and_an_edit_of_several_places_are_told_with_what_a_program_needs() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let glob = |session_id: &str, pattern: &str| GlobFilesRequest {
        session_id: session_id.into(),
        pattern: pattern.into(),
        ..GlobFilesRequest::default()
    };
    let status = client
        .glob_files(glob(&id, "a{"))
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    let details = status.get_details_bad_request().expect("violations");
    assert_eq!(details.field_violations[0].field, "pattern");
    let status = client
        .glob_files(glob("none", "*"))
        .await
        .expect_err("none");
    assert_eq!(status.code(), Code::NotFound);

    let edit = |replace_all| EditFileRequest {
        session_id: id.clone(),
        path: Bytes::from_static(b"f"),
        old_text: Bytes::from_static(b"a"),
        new_text: Bytes::from_static(b"b"),
        replace_all,
    };
    let status = client.edit_file(edit(false)).await.expect_err("several");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(
        (info.reason.as_str(), info.metadata["count"].as_str()),
        ("several_matches", "3")
    );
    let done = client
        .edit_file(edit(true))
        .await
        .expect("edited")
        .into_inner();
    assert_eq!(
        (done.replacements_count, done.diff_reason.as_deref()),
        (3, Some("binary"))
    );
    served.stop().await;
}
