use std::os::unix::fs::PermissionsExt;

use stepbox_engine::api::pb::{CheckSpecRequest, GetInfoRequest};
use stepbox_engine::config::ServeFlags;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_types::StatusExt;

use crate::served::{Bearer, Served};

fn list_services() -> tokio_stream::Once<ServerReflectionRequest> {
    tokio_stream::once(ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    })
}

#[tokio::test]
async fn a_call_without_the_token_is_refused_and_one_with_it_served() {
    let served = Served::start().await;
    let wrong = format!("Bearer {}", "0".repeat(64)).parse().expect("ascii");
    for bearer in [Bearer(None), Bearer(Some(wrong))] {
        let mut client = served.client_with(bearer).await;
        let status = client
            .get_info(GetInfoRequest {})
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(
            status.get_details_error_info().expect("reason").reason,
            "UNAUTHENTICATED"
        );
    }
    let info = served
        .client()
        .await
        .get_info(GetInfoRequest {})
        .await
        .expect("served")
        .into_inner();
    assert_eq!(info.version, stepbox_engine::VERSION);
    served.stop().await;
}

#[tokio::test]
async fn health_needs_the_token_and_says_serving() {
    let served = Served::start().await;
    let check = || HealthCheckRequest {
        service: "stepbox.v1.Sandbox".into(),
    };
    let channel = served.channel().await;
    let mut stranger = HealthClient::new(channel.clone());
    let status = stranger.check(check()).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut client = HealthClient::with_interceptor(channel, served.token());
    let health = client.check(check()).await.expect("served").into_inner();
    assert_eq!(health.status(), ServingStatus::Serving);
    served.stop().await;
}

#[tokio::test]
async fn reflection_needs_the_token_and_names_the_service() {
    let served = Served::start().await;
    let channel = served.channel().await;
    let mut stranger = ServerReflectionClient::new(channel.clone());
    let status = stranger
        .server_reflection_info(list_services())
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut client = ServerReflectionClient::with_interceptor(channel, served.token());
    let mut answers = client
        .server_reflection_info(list_services())
        .await
        .expect("served")
        .into_inner();
    let answer = answers.message().await.expect("answered").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    assert!(
        names.contains(&"stepbox.v1.Sandbox") && names.contains(&"grpc.health.v1.Health"),
        "{names:?}"
    );
    drop(answers);
    served.stop().await;
}

#[tokio::test]
async fn the_details_of_errors_are_described_by_reflection() {
    let served = Served::start().await;
    let mut client =
        ServerReflectionClient::with_interceptor(served.channel().await, served.token());
    for detail in ["BadRequest", "ErrorInfo", "RetryInfo"] {
        let symbol = format!("google.rpc.{detail}");
        let mut answers = client
            .server_reflection_info(tokio_stream::once(ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::FileContainingSymbol(symbol.clone())),
            }))
            .await
            .expect("served")
            .into_inner();
        let answer = answers.message().await.expect("answered").expect("one");
        let Some(MessageResponse::FileDescriptorResponse(found)) = answer.message_response else {
            panic!("{symbol}: {answer:?}");
        };
        assert_eq!(found.file_descriptor_proto.len(), 1, "{symbol}");
    }
    served.stop().await;
}

#[tokio::test]
async fn socket_and_token_are_the_owners_alone_and_the_ready_line_keeps_the_token_out() {
    let served = Served::start().await;
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path)
            .expect("exists")
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(&served.socket()), 0o600);
    assert_eq!(mode(served.socket().parent().expect("a parent")), 0o700);
    assert_eq!(mode(&served.ready.token_file), 0o600);
    let token = std::fs::read_to_string(&served.ready.token_file).expect("token");
    let line = serde_json::to_string(&served.ready).expect("a line");
    assert!(
        !line.contains(&token) && line.contains("\"endpoint\":\"unix:/"),
        "{line}"
    );
    served.stop().await;
}

#[tokio::test]
async fn over_tcp_the_token_counts_and_host_paths_are_refused_but_for_those_allowed() {
    let shared = tempfile::tempdir().expect("tempdir");
    let allowed = shared.path().canonicalize().expect("exists");
    let served = Served::with(ServeFlags {
        listen: Some("127.0.0.1:0".into()),
        allow_host_path: vec![allowed.clone()],
        ..ServeFlags::default()
    })
    .await;
    let status = served
        .client_with(Bearer(None))
        .await
        .get_info(GetInfoRequest {})
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut client = served.client().await;
    let workspace = |path: &std::path::Path| CheckSpecRequest {
        spec: Some(stepbox_engine::api::pb::SandboxSpec {
            workspace: Some(path.as_os_str().as_encoded_bytes().to_vec().into()),
            ..Default::default()
        }),
    };
    client
        .check_spec(workspace(&allowed.join("new")))
        .await
        .expect("allowed");
    let status = client
        .check_spec(workspace("/usr/share".as_ref()))
        .await
        .expect_err("refused");
    assert_eq!(
        status.get_details_error_info().expect("reason").reason,
        "MOUNT_REFUSED"
    );
    served.stop().await;
}

#[tokio::test]
async fn a_call_gets_its_own_request_id_back_or_a_new_one() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let mut request = tonic::Request::new(GetInfoRequest {});
    request
        .metadata_mut()
        .insert("x-request-id", "req-7".parse().expect("ascii"));
    let reply = client.get_info(request).await.expect("served");
    assert_eq!(
        reply.metadata().get("x-request-id").expect("an id"),
        "req-7"
    );
    let reply = client.get_info(GetInfoRequest {}).await.expect("served");
    assert_eq!(
        reply.metadata().get("x-request-id").expect("an id").len(),
        32
    );
    served.stop().await;
}
