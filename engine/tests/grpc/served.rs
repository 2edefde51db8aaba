//! A server on a socket of its own, and a client that knows its token.

use std::path::PathBuf;

use stepbox_engine::api::host::HostInfo;
use stepbox_engine::api::pb::sandbox_client::SandboxClient;
use stepbox_engine::api::pb::{CreateSessionRequest, RunRequest, SandboxSpec};
use stepbox_engine::api::server::{Ready, ServeError, serve_until};
use stepbox_engine::config::{Environment, ServeConfig, ServeFlags};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::fake::Fake;

pub(crate) type Client = SandboxClient<InterceptedService<Channel, Bearer>>;

/// Adds a token to every call.
#[derive(Clone)]
pub(crate) struct Bearer(pub(crate) Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

pub(crate) struct Served {
    pub(crate) fake: Fake,
    pub(crate) ready: Ready,
    pub(crate) dir: tempfile::TempDir,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::with(ServeFlags::default()).await
    }

    pub(crate) async fn with(flags: ServeFlags) -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let environment = Environment {
            temp: Some(dir.path().to_owned()),
            ..Environment::default()
        };
        let mut config = ServeConfig::parse(flags, environment).expect("flags");
        config.drain = std::time::Duration::from_millis(1);
        let (fake, stop) = (Fake::default(), CancellationToken::new());
        let (announced, ready) = oneshot::channel();
        let task = {
            let (fake, stop) = (fake.clone(), stop.clone());
            tokio::spawn(async move {
                let announce = move |ready: &Ready| {
                    announced.send(ready.clone()).expect("somebody waits");
                    Ok(())
                };
                serve_until(
                    config,
                    HostInfo::default(),
                    fake,
                    announce,
                    stop.cancelled_owned(),
                )
                .await
            })
        };
        Self {
            fake,
            ready: ready.await.expect("ready"),
            dir,
            stop,
            task,
        }
    }

    pub(crate) fn token(&self) -> Bearer {
        let token = std::fs::read_to_string(&self.ready.token_file).expect("token");
        Bearer(Some(format!("Bearer {token}").parse().expect("ascii")))
    }

    pub(crate) async fn channel(&self) -> Channel {
        let uri = match self.ready.endpoint.strip_prefix("unix:") {
            Some(path) => format!("unix://{path}"),
            None => format!("http://{}", self.ready.endpoint),
        };
        let endpoint = Endpoint::from_shared(uri).expect("an address");
        endpoint.connect().await.expect("connected")
    }

    pub(crate) async fn client_with(&self, bearer: Bearer) -> Client {
        SandboxClient::with_interceptor(self.channel().await, bearer)
            .max_decoding_message_size(8 << 20)
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(self.token()).await
    }

    /// A client with a session, by its id.
    pub(crate) async fn session(&self) -> (Client, String) {
        let mut client = self.client().await;
        let request = CreateSessionRequest {
            attach: false,
            spec: Some(SandboxSpec::default()),
        };
        let reply = client.create_session(request).await.expect("created");
        let id = reply.into_inner().session.expect("a session").session_id;
        (client, id)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.ready
            .endpoint
            .strip_prefix("unix:")
            .expect("a socket")
            .into()
    }

    /// Stops the server, and says that it left nothing behind.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await;
    }

    pub(crate) async fn ended(self) {
        self.task.await.expect("no panic").expect("served");
        assert!(self.fake.is_down(), "the engine is shut down");
        let left: Vec<_> = std::fs::read_dir(self.dir.path()).expect("dir").collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.ready.token_file.exists());
    }
}

pub(crate) fn argv(session_id: &str, words: &[&str]) -> RunRequest {
    RunRequest {
        session_id: session_id.into(),
        argv: words
            .iter()
            .map(|word| word.as_bytes().to_vec().into())
            .collect(),
        options: None,
    }
}
