use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stepbox_engine::api::pb::{
    CheckSpecRequest, Mount, RunCodeRequest, SandboxSpec, StatFileRequest, StepOptions,
    WriteFileRequest,
};
use stepbox_engine::telemetry::parse_filter;
use tonic::Request;
use tracing_subscriber::fmt::MakeWriter;

use crate::served::Served;

const MARKER: &str = "marker-5f1c";

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("no panic holds it")
            .extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Captured {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The log at its lowest level, of everything that code, arguments, environment, paths and headers pass through.
#[tokio::test]
async fn nothing_that_a_caller_says_is_in_the_log_at_any_level() {
    let captured = Captured::default();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parse_filter(Some("trace")).expect("a filter"))
        .with_writer(captured.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only one of this process");
    let served = Served::start().await;
    let (mut client, session_id) = served.session().await;
    let bytes = || Bytes::from(MARKER);
    let mut request = Request::new(RunCodeRequest {
        session_id: session_id.clone(),
        code: format!("print('{MARKER}')"),
        options: Some(StepOptions {
            env: [(MARKER.to_owned(), MARKER.to_owned())].into(),
            stdin: Some(bytes()),
            cwd: Some(bytes()),
            ..StepOptions::default()
        }),
        args: vec![bytes()],
        ..RunCodeRequest::default()
    });
    request
        .metadata_mut()
        .insert("x-request-id", "req-known".parse().expect("ascii"));
    request
        .metadata_mut()
        .insert("x-odd", MARKER.parse().expect("ascii"));
    let result = client
        .run_code(request)
        .await
        .expect("ran")
        .into_inner()
        .result
        .expect("a result");
    assert!(String::from_utf8_lossy(&result.stdout.expect("stdout").data).contains(MARKER));
    let write = WriteFileRequest {
        session_id: session_id.clone(),
        path: bytes(),
        data: bytes(),
        mode: None,
    };
    client
        .write_file(tokio_stream::once(write))
        .await
        .expect("written");
    let stat = StatFileRequest {
        session_id: session_id.clone(),
        path: Bytes::from(format!("{MARKER}/missing")),
    };
    client.stat_file(stat).await.expect_err("missing");
    let spec = SandboxSpec {
        env: [("A=".to_owned(), MARKER.to_owned())].into(),
        mounts: vec![Mount {
            source: Bytes::from(format!("/{MARKER}")),
            target: bytes(),
            ..Mount::default()
        }],
        ..SandboxSpec::default()
    };
    client
        .check_spec(CheckSpecRequest { spec: Some(spec) })
        .await
        .expect_err("refused");
    let token = std::fs::read_to_string(&served.ready.token_file).expect("token");
    served.stop().await;
    let log = captured.0.lock().expect("no panic holds it").clone();
    let log = String::from_utf8_lossy(&log);
    assert!(
        log.contains("req-known") && log.contains("stepbox.v1.Sandbox/RunCode"),
        "{log}"
    );
    assert!(!log.contains(MARKER), "{log}");
    assert!(!log.contains(&token), "the token is in the log");
}
