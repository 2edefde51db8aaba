use stepbox_engine::api::pb::{
    CheckSpecRequest, CloseSessionRequest, CreateSessionRequest, GetSessionRequest,
    ListSessionsRequest, Mount, SandboxSpec,
};
use tonic::Code;
use tonic_types::StatusExt;

use crate::served::Served;

#[tokio::test]
async fn all_mistakes_of_a_spec_come_back_at_once_as_field_violations() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let spec = SandboxSpec {
        timeout_s: Some(-1.0),
        setup: Some("pip install x".into()),
        env: [("A=B".to_owned(), "x".to_owned())].into(),
        ..SandboxSpec::default()
    };
    let status = client
        .check_spec(CheckSpecRequest { spec: Some(spec) })
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    let details = status.get_error_details();
    assert_eq!(details.error_info().expect("reason").reason, "INVALID_SPEC");
    let violations = &details.bad_request().expect("violations").field_violations;
    let fields: Vec<_> = violations
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    assert_eq!(fields, ["setup", "timeout_s", "env[\"A=B\"]"]);
    assert!(
        violations[0].description.contains("not available"),
        "{violations:?}"
    );
    served.stop().await;
}

#[tokio::test]
async fn a_refused_mount_is_told_from_other_mistakes_and_makes_nothing() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let spec = SandboxSpec {
        mounts: vec![Mount {
            source: b"/etc".to_vec().into(),
            target: b"/in".to_vec().into(),
            ..Mount::default()
        }],
        ..SandboxSpec::default()
    };
    let status = client
        .create_session(CreateSessionRequest {
            spec: Some(spec),
            attach: false,
        })
        .await
        .expect_err("refused");
    assert_eq!(
        status.get_details_error_info().expect("reason").reason,
        "MOUNT_REFUSED"
    );
    let sessions = client
        .list_sessions(ListSessionsRequest {})
        .await
        .expect("listed")
        .into_inner();
    assert_eq!(sessions.sessions, []);
    served.stop().await;
}

#[tokio::test]
async fn the_engines_own_socket_cannot_be_mounted() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let socket = served.socket();
    for path in [
        socket.as_path(),
        socket.parent().expect("dir"),
        served.dir.path(),
        &served.ready.token_file,
    ] {
        let path = path.canonicalize().expect("exists");
        let spec = SandboxSpec {
            mounts: vec![Mount {
                source: path.as_os_str().as_encoded_bytes().to_vec().into(),
                target: b"/in".to_vec().into(),
                allow_sockets: true,
                ..Mount::default()
            }],
            ..SandboxSpec::default()
        };
        let status = client
            .check_spec(CheckSpecRequest { spec: Some(spec) })
            .await
            .expect_err("refused");
        assert_eq!(
            status.get_details_error_info().expect("reason").reason,
            "MOUNT_REFUSED"
        );
    }
    served.stop().await;
}

#[tokio::test]
async fn a_session_lives_from_create_to_close() {
    let served = Served::start().await;
    let (mut client, id) = served.session().await;
    let get = || GetSessionRequest {
        session_id: id.clone(),
    };
    let close = || CloseSessionRequest {
        session_id: id.clone(),
    };
    let session = client
        .get_session(get())
        .await
        .expect("there")
        .into_inner()
        .session
        .expect("one");
    assert_eq!(session.session_id, id);
    client.close_session(close()).await.expect("closed");
    for status in [
        client.get_session(get()).await.expect_err("gone"),
        client.close_session(close()).await.expect_err("gone"),
    ] {
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(
            status.get_details_error_info().expect("reason").reason,
            "NO_SESSION"
        );
    }
    let odd = GetSessionRequest {
        session_id: "../x".into(),
    };
    assert_eq!(
        client.get_session(odd).await.expect_err("refused").code(),
        Code::InvalidArgument
    );
    served.stop().await;
}
