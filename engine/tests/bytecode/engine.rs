//! `stepbox serve` with directories of a test's own, and a client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stepbox_engine::api::pb;
use stepbox_engine::api::pb::sandbox_client::SandboxClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// How long bytecode may take to appear on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// A place for one test: the engines' state, private workspaces and cache are in it.
pub(crate) struct Place {
    base: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        for name in ["run", "tmp", "cache"] {
            fs::DirBuilder::new()
                .mode(0o700)
                .create(base.path().join(name))
                .unwrap();
        }
        Self { base }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("cache/stepbox/bytecode")
    }

    pub(crate) fn store_names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.store())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Nothing of an engine is left, and nothing in the store that is not complete.
    pub(crate) fn assert_only_the_store_is_left(&self) {
        for name in ["run/stepbox", "tmp"] {
            let left = fs::read_dir(self.path(name)).into_iter().flatten();
            let left: Vec<_> = left
                .map(|entry| entry.unwrap().path())
                .filter(|path| fs::read_dir(path).is_ok_and(|below| below.count() > 0))
                .collect();
            assert_eq!(left, Vec::<PathBuf>::new());
        }
        assert!(
            self.store_names().iter().all(|name| !name.contains('.')),
            "{:?}",
            self.store_names()
        );
    }
}

#[derive(Clone)]
struct Bearer(MetadataValue<Ascii>);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// It ends with this value.
pub(crate) struct Engine {
    child: Child,
    client: SandboxClient<InterceptedService<Channel, Bearer>>,
    log: PathBuf,
}

impl Engine {
    pub(crate) async fn start(place: &Place) -> Self {
        let log = (0..)
            .map(|number| place.path(&format!("log-{number}")))
            .find(|path| !path.exists())
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_stepbox"))
            .args(["serve", "--exit-on-stdin-eof"])
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("XDG_CACHE_HOME", place.path("cache"))
            .env("TMPDIR", place.path("tmp"))
            .env("STEPBOX_LOG", "info")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let word = |name: &str| ready[name].as_str().unwrap().to_owned();
        let token = fs::read_to_string(word("token_file")).unwrap();
        let socket = word("endpoint").replace("unix:", "unix://");
        let channel = Endpoint::from_shared(socket).unwrap().connect().await;
        let bearer = Bearer(format!("Bearer {}", token.trim()).parse().unwrap());
        Self {
            child,
            client: SandboxClient::with_interceptor(channel.unwrap(), bearer),
            log,
        }
    }

    pub(crate) async fn try_session(&mut self, spec: pb::SandboxSpec) -> Result<String, Status> {
        let request = pb::CreateSessionRequest {
            spec: Some(spec),
            attach: false,
        };
        let reply = self.client.create_session(request).await?;
        Ok(reply.into_inner().session.unwrap().session_id)
    }

    pub(crate) async fn session(&mut self, spec: pb::SandboxSpec) -> String {
        self.try_session(spec).await.unwrap()
    }

    /// What the code printed; it must end well.
    pub(crate) async fn python(&mut self, session: &str, code: &str) -> String {
        let request = pb::RunCodeRequest {
            session_id: session.to_owned(),
            code: code.to_owned(),
            language: "python".to_owned(),
            ..pb::RunCodeRequest::default()
        };
        let reply = self.client.run_code(request).await.unwrap();
        let result = reply.into_inner().result.unwrap();
        let text = |stream: Option<pb::OutputStream>| {
            String::from_utf8(stream.unwrap_or_default().data.to_vec()).unwrap()
        };
        let (out, err) = (text(result.stdout), text(result.stderr));
        assert_eq!(result.exit_code, 0, "{out}{err}");
        out
    }

    /// Runs the code until what it prints begins like this.
    pub(crate) async fn python_until(&mut self, session: &str, code: &str, begin: &str) -> String {
        let begun = Instant::now();
        loop {
            let said = self.python(session, code).await;
            if said.starts_with(begin) {
                return said;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{said}{}",
                fs::read_to_string(&self.log).unwrap()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it, and gives its log.
    pub(crate) async fn stop(mut self) -> String {
        drop(self.child.stdin.take());
        let mut child = self.child;
        let ended = tokio::task::spawn_blocking(move || child.wait()).await;
        let log = fs::read_to_string(&self.log).unwrap();
        assert!(ended.unwrap().unwrap().success(), "{log}");
        log
    }
}
