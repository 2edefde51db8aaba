//! `stepbox session`: the sessions of the user's standing engine, or of the one that is named.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::args::{SessionArgs, SessionCommand};
use super::written;
use crate::api::pb::sandbox_client::SandboxClient;
use crate::api::pb::{self, run_stream_response::Event};
use crate::config::Environment;

type Client = SandboxClient<InterceptedService<Channel, Bearer>>;

/// Input that goes along with a command at most: it travels in one call.
const INPUT_MOST: u64 = 4 << 20;
/// As long as a step may be asked for: whoever attaches waits for it.
const TIMEOUT_S: f64 = 604_800.0;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionCommandError {
    #[error("no standing engine runs; one is started by the first Sandbox with a name")]
    NoEngine,
    #[error("the engine's token in {path}")]
    Token { path: PathBuf, source: io::Error },
    #[error("the engine at {path}")]
    Connect {
        path: PathBuf,
        source: tonic::transport::Error,
    },
    #[error("{}", .0.message())]
    Refused(Box<Status>),
    #[error("read the input")]
    Input(#[source] io::Error),
    #[error("start the client")]
    Runtime(#[source] io::Error),
}

impl From<Status> for SessionCommandError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// Adds the token to every call.
#[derive(Clone, Debug)]
struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub(super) fn command(
    args: SessionArgs,
    environment: &Environment,
) -> Result<ExitCode, SessionCommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SessionCommandError::Runtime)?;
    let socket = args
        .socket
        .unwrap_or_else(|| standing(environment).with_extension("sock"));
    runtime.block_on(async {
        match args.command {
            SessionCommand::Ls { json } => {
                let sessions = match connect(&socket).await {
                    Ok(mut client) => {
                        let reply = client.list_sessions(pb::ListSessionsRequest {}).await?;
                        reply.into_inner().sessions
                    }
                    // Where there is no engine there are no sessions.
                    Err(SessionCommandError::NoEngine) => Vec::new(),
                    Err(error) => return Err(error),
                };
                Ok(written(list(&sessions, json, &mut io::stdout().lock())))
            }
            SessionCommand::Attach { session, argv } => {
                attach(connect(&socket).await?, session, argv).await
            }
            SessionCommand::Rm { sessions } => {
                let mut client = connect(&socket).await?;
                for session_id in sessions {
                    let request = pb::CloseSessionRequest { session_id };
                    client.close_session(request).await?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Where clients have the standing engine listen, but for the ending.
fn standing(environment: &Environment) -> PathBuf {
    let runtime = environment.runtime.as_ref().filter(|path| path.is_dir());
    let directory = match runtime {
        Some(runtime) => runtime.join("stepbox"),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            environment.temp_dir().join(format!("stepbox-{uid}"))
        }
    };
    directory.join("standing-full")
}

async fn connect(socket: &std::path::Path) -> Result<Client, SessionCommandError> {
    if std::os::unix::net::UnixStream::connect(socket).is_err() {
        return Err(SessionCommandError::NoEngine);
    }
    // The standing engine's has the name of its socket, any other's lies beside it.
    let own = socket.with_extension("token");
    let path = if own.exists() {
        own
    } else {
        socket.with_file_name("token")
    };
    let token = std::fs::read_to_string(&path)
        .and_then(|token| {
            let value = format!("Bearer {}", token.trim());
            value.parse().map_err(|_| io::ErrorKind::InvalidData.into())
        })
        .map_err(|source| SessionCommandError::Token { path, source })?;
    let failed = |source| SessionCommandError::Connect {
        path: socket.to_owned(),
        source,
    };
    let channel = Endpoint::try_from(format!("unix:{}", socket.display()))
        .map_err(failed)?
        .connect()
        .await
        .map_err(failed)?;
    Ok(SandboxClient::with_interceptor(channel, Bearer(token)).max_decoding_message_size(8 << 20))
}

fn list(sessions: &[pb::Session], as_json: bool, out: &mut impl Write) -> io::Result<()> {
    if as_json {
        let all: Vec<_> = sessions.iter().map(told).collect();
        return writeln!(out, "{}", Value::from(all));
    }
    writeln!(
        out,
        "{:<32} {:<20} {:<8} {:>7} {:>7} {:>9}",
        "ID", "NAME", "RESIDENT", "RUNNING", "DONE", "IDLE"
    )?;
    for session in sessions {
        let name = match session.name.as_str() {
            "" => "-",
            name => name,
        };
        let idle = session
            .idle_ms
            .map_or_else(|| "-".to_owned(), |ms| format!("{} s", ms / 1000));
        writeln!(
            out,
            "{:<32} {:<20} {:<8} {:>7} {:>7} {:>9}",
            session.session_id,
            name,
            if session.resident { "yes" } else { "no" },
            session.steps_running_count,
            session.steps_done_count,
            idle
        )?;
    }
    Ok(())
}

fn told(session: &pb::Session) -> Value {
    let labels: std::collections::BTreeMap<_, _> = session.labels.iter().collect();
    let workspace = (!session.workspace.is_empty())
        .then(|| String::from_utf8_lossy(&session.workspace).into_owned());
    json!({
        "session_id": session.session_id,
        "name": Some(&session.name).filter(|name| !name.is_empty()),
        "labels": labels,
        "resident": session.resident,
        "workspace": workspace,
        "steps_running": session.steps_running_count,
        "steps_done": session.steps_done_count,
        "created_unix_ms": session.created_unix_ms,
        "ttl_ms": session.ttl_ms,
        "idle_ms": session.idle_ms,
    })
}

/// Runs a program in a session with this process's streams; without one, what the input says, as a shell would.
async fn attach(
    mut client: Client,
    session: String,
    argv: Vec<std::ffi::OsString>,
) -> Result<ExitCode, SessionCommandError> {
    let argv = match argv.is_empty() {
        true => vec!["/bin/bash".into()],
        false => argv,
    };
    let mut input = Vec::new();
    let stdin = io::stdin();
    // What is typed is not known before the program reads it.
    if !stdin.as_fd().is_terminal() {
        let mut limited = stdin.lock().take(INPUT_MOST);
        limited
            .read_to_end(&mut input)
            .map_err(SessionCommandError::Input)?;
    }
    let request = pb::RunStreamRequest {
        step: Some(pb::run_stream_request::Step::Run(pb::RunRequest {
            session_id: session,
            argv: argv
                .into_iter()
                .map(|word| word.into_vec().into())
                .collect(),
            options: Some(pb::StepOptions {
                stdin: Some(input.into()),
                timeout_s: Some(TIMEOUT_S),
                ..pb::StepOptions::default()
            }),
        })),
    };
    let mut events = client.run_stream(request).await?.into_inner();
    while let Some(message) = events.message().await? {
        match message.event {
            Some(Event::Output(chunk)) => {
                // A reader that is gone has read enough.
                let _ = match chunk.stream() {
                    pb::Stream::Stderr => io::stderr().lock().write_all(&chunk.data),
                    pb::Stream::Unspecified | pb::Stream::Stdout => {
                        let mut out = io::stdout().lock();
                        out.write_all(&chunk.data).and_then(|()| out.flush())
                    }
                };
            }
            Some(Event::Result(result)) => {
                let mut err = io::stderr().lock();
                let fault = result.fault.iter().map(|fault| &fault.message);
                for line in fault.chain(&result.runtime_notes) {
                    let _ = writeln!(err, "stepbox: {line}");
                }
                return Ok(u8::try_from(result.exit_code).unwrap_or(1).into());
            }
            Some(Event::Started(_)) | None => {}
        }
    }
    Err(Status::unavailable("the engine ended before the program did").into())
}
