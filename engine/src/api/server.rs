//! The server's life: it listens, says that it is ready, serves, drains, and leaves nothing behind.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::server::HealthReporter;

use super::auth::{PeerRefused, PeerRule, Token};
use super::backend::Backend;
use super::gate::Gate;
use super::host::HostInfo;
use super::lifetime::{Activity, End, Signals, ended, idle, watch_parent, watch_stdin};
use super::listen::{self, Leftovers, ListenError, Peers};
use super::pb;
use super::pb::sandbox_server::SandboxServer;
use super::service::SandboxService;
use crate::config::{Endpoint, ServeConfig};
use crate::spec::mount::HostAccess;
use crate::workspace::source::HostFiles;

/// No message is larger, either way.
const MESSAGE_MOST: usize = 8 << 20;
const STREAMS_PER_CONNECTION: u32 = 512;
const HEADERS_MOST: u32 = 16 << 10;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow control: a whole reply is on its way before the first acknowledgement.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// What stopping the sandboxes may take.
const STOP: Duration = Duration::from_secs(20);
/// What the last answers get to be sent.
const FLUSH: Duration = Duration::from_secs(2);

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("make a token")]
    Token(#[source] io::Error),
    #[error("learn the engine's own namespaces")]
    Peers(#[source] PeerRefused),
    #[error("install signal handlers")]
    Signals(#[source] io::Error),
    #[error("watch the parent process {pid}")]
    Parent {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("watch stdin")]
    Stdin(#[source] io::Error),
    #[error("describe the protocol for reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
    #[error("write the ready line")]
    Ready(#[source] io::Error),
    #[error("serve")]
    Transport(#[source] tonic::transport::Error),
    #[error("the server's task ended by itself")]
    Ended,
}

/// The ready line: what a client needs to call the engine, but for the token itself.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Ready {
    /// `unix:/…` or `127.0.0.1:PORT`, as gRPC clients spell it.
    pub endpoint: String,
    pub pid: u32,
    pub version: &'static str,
    pub token_file: PathBuf,
}

impl Ready {
    /// Writes the one line to stdout.
    ///
    /// # Errors
    /// Nobody reads stdout any more.
    pub fn announce(&self) -> io::Result<()> {
        let line = serde_json::to_string(self)?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{line}")?;
        stdout.flush()
    }
}

/// Serves until a signal, the parent's death, the end of stdin or idleness, as configured, or the launcher's end; then drains, shuts the
/// engine down and removes socket and token.
///
/// # Errors
/// The server could not start, or its transport failed.
pub async fn serve<B: Backend>(
    config: ServeConfig,
    host: HostInfo,
    engine: B,
) -> Result<(), ServeError> {
    serve_until(
        config,
        host,
        engine,
        Ready::announce,
        std::future::pending(),
    )
    .await
}

/// [`serve`] with another way to announce, and one more reason to stop.
///
/// # Errors
/// As [`serve`].
pub async fn serve_until<B: Backend>(
    config: ServeConfig,
    host: HostInfo,
    engine: B,
    announce: impl FnOnce(&Ready) -> io::Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let result = serve_and_drain(&config, host, &engine, announce, stop).await;
    // Also when the start failed: the engine may hold what a dead one left.
    if tokio::time::timeout(STOP, engine.shutdown()).await.is_err() {
        tracing::error!("the engine did not shut down in time");
    }
    let mut running = result?;
    if tokio::time::timeout(FLUSH, &mut running.task)
        .await
        .is_err()
    {
        running.task.abort();
    }
    Ok(())
}

/// The server while it runs. Its files go when it is dropped.
#[derive(Debug)]
struct Running {
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    ready: Ready,
    health: HealthReporter,
    activity: Activity,
    closing: CancellationToken,
    _leftovers: Leftovers,
}

async fn serve_and_drain<B: Backend>(
    config: &ServeConfig,
    host: HostInfo,
    engine: &B,
    announce: impl FnOnce(&Ready) -> io::Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<Running, ServeError> {
    // Before anything is listened on: a signal in between must not leave a socket behind.
    let mut signals = Signals::install().map_err(ServeError::Signals)?;
    let mut parent = config.parent.map(hold_parent).transpose()?;
    let stdin = config.exit_on_stdin_eof.then(watch_stdin).transpose();
    let mut stdin = stdin.map_err(ServeError::Stdin)?;
    let mut running = start(config, host, engine).await?;
    announce(&running.ready).map_err(ServeError::Ready)?;
    let lost = engine.lost();
    let end = tokio::select! {
        () = signals.next() => End::Signal,
        () = stop => End::Signal,
        () = ended(&mut parent) => End::Parent,
        () = ended(&mut stdin) => End::Stdin,
        () = idled(config.idle_exit, &running.activity, engine) => End::Idle,
        () = lost.cancelled() => End::Lost,
        ended = &mut running.task => {
            return Err(match ended {
                Ok(Err(error)) => ServeError::Transport(error),
                Ok(Ok(())) | Err(_) => ServeError::Ended,
            });
        }
    };
    tracing::info!(reason = end.word(), "the engine ends");
    running
        .health
        .set_not_serving::<SandboxServer<SandboxService<B>>>()
        .await;
    running.closing.cancel();
    if matches!(end, End::Signal | End::Lost) {
        tokio::select! {
            () = drained(&running.activity) => {}
            () = tokio::time::sleep(config.drain) => {}
            // Asked twice: at once.
            () = signals.next() => {}
        }
    }
    Ok(running)
}

fn hold_parent(number: i32) -> Result<oneshot::Receiver<()>, ServeError> {
    let failed = |source| ServeError::Parent {
        pid: number,
        source,
    };
    let pid = Pid::from_raw(number).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    watch_parent(pid).map_err(failed)
}

async fn idled<B: Backend>(limit: Option<Duration>, activity: &Activity, engine: &B) {
    match limit {
        Some(limit) => idle(activity, || engine.live().sessions, limit).await,
        None => std::future::pending().await,
    }
}

/// Ends when nothing is in flight.
async fn drained(activity: &Activity) {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    while activity.idle_since().is_none() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn start<B: Backend>(
    config: &ServeConfig,
    host: HostInfo,
    engine: &B,
) -> Result<Running, ServeError> {
    let mut leftovers = Leftovers::new(engine.state_directory());
    let token = Token::generate().map_err(ServeError::Token)?;
    let token_file = leftovers.token_file(config.token_file.as_deref(), &token)?;
    let bound = Bound::listen(&config.endpoint, &mut leftovers).await?;
    let mut engine_dirs = config.environment.engine_dirs();
    engine_dirs.extend(engine.directories());
    engine_dirs.extend_from_slice(leftovers.places());
    let access = match bound {
        Bound::Unix(..) => HostAccess::Own,
        Bound::Tcp(..) => HostAccess::Below(config.allow_host_paths.clone()),
    };
    let files = Arc::new(HostFiles::probe(&config.environment, engine_dirs));
    let service = SandboxService::new(engine.clone(), files, access, host);
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<SandboxServer<SandboxService<B>>>()
        .await;
    let activity = Activity::new();
    let keepalive = matches!(bound, Bound::Tcp(..)).then_some(KEEPALIVE_INTERVAL);
    let router = Server::builder()
        .layer(Gate::new(token, config.max_calls, activity.clone()))
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADERS_MOST)
        .http2_keepalive_interval(keepalive)
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(ServeError::Reflection)?)
        .add_service(
            reflection()
                .build_v1alpha()
                .map_err(ServeError::Reflection)?,
        )
        .add_service(
            SandboxServer::new(service)
                .max_decoding_message_size(MESSAGE_MOST)
                .max_encoding_message_size(MESSAGE_MOST),
        );
    let closing = CancellationToken::new();
    let closed = closing.clone().cancelled_owned();
    let (endpoint, task) = match bound {
        Bound::Unix(peers, path) => (
            format!("unix:{}", path.display()),
            tokio::spawn(router.serve_with_incoming_shutdown(peers, closed)),
        ),
        Bound::Tcp(incoming, address) => (
            address.to_string(),
            tokio::spawn(router.serve_with_incoming_shutdown(incoming, closed)),
        ),
    };
    Ok(Running {
        task,
        ready: Ready {
            endpoint,
            pid: rustix::process::getpid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
            version: crate::VERSION,
            token_file,
        },
        health,
        activity,
        closing,
        _leftovers: leftovers,
    })
}

/// A listener that is open.
#[derive(Debug)]
enum Bound {
    Unix(Peers, PathBuf),
    Tcp(TcpIncoming, SocketAddr),
}

impl Bound {
    async fn listen(endpoint: &Endpoint, leftovers: &mut Leftovers) -> Result<Self, ServeError> {
        match endpoint {
            Endpoint::Unix(socket) => {
                let rule = PeerRule::own().map_err(ServeError::Peers)?;
                let (listener, path) = leftovers.unix(socket.as_deref())?;
                Ok(Self::Unix(Peers::new(listener, rule), path))
            }
            Endpoint::Tcp(address) => {
                let (listener, bound) = listen::tcp(*address).await?;
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                Ok(Self::Tcp(incoming, bound))
            }
        }
    }
}

fn reflection<'b>() -> tonic_reflection::server::Builder<'b> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // The details of errors: without it a client by reflection shows them as bytes.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}
