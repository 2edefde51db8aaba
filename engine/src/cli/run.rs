//! `stepbox run`: code once, in a fresh sandbox. The exit code is the program's.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::args::{Bytes, CapArg, IsolationArg, ProfileArg, RunArgs};
use super::{json, spelling};
use crate::config::Environment;
use crate::outcome::{StepEvent, StepResult};
use crate::session::{Engine, Events, SessionError};
use crate::spec::mount::HostAccess;
use crate::spec::request::{
    Cap, Choice, IsolationChoice, MountRequest, ProfileChoice, ProgramRequest, SpecRequest,
    StepRequest,
};
use crate::spec::{Isolation, SandboxSpec, StepSpec, Violation, parse_spec, parse_step};
use crate::workspace::source::HostFiles;

/// Exit code when nothing ran: bad flags, a refused mount, a host that cannot.
pub(super) const NOTHING_RAN: u8 = 125;
/// Exit code when the output could not be written, whatever the program's was.
const NOT_WRITTEN: u8 = 1;

/// What is asked for, parsed before anything is started.
#[derive(Debug)]
pub(super) struct Order {
    spec: SandboxSpec,
    step: StepSpec,
    json: bool,
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("{}", list(.0))]
    Spec(Vec<Violation>),
}

fn list(violations: &[Violation]) -> String {
    let lines: Vec<_> = violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .map(|line| spelling::in_flags(&line))
        .collect();
    lines.join("\n")
}

impl Order {
    /// Whether it is for a sandbox without namespaces.
    pub(super) fn is_reduced(&self) -> bool {
        self.spec.isolation == Isolation::Reduced
    }

    /// Reads the code and parses every option. Nothing is made yet.
    pub(super) fn parse(args: RunArgs, environment: &Environment) -> Result<Self, OrderError> {
        let RunArgs {
            language,
            workspace,
            memory_mb,
            pids,
            cpus,
            no_enforce_limits,
            timeout_s,
            workspace_max_bytes,
            workspace_max_files,
            profile,
            env,
            mount,
            allow_sockets,
            security_profile,
            isolation,
            cap_drop,
            user,
            json,
            code,
            file,
            args,
        } = args;
        let here = std::env::current_dir().unwrap_or_default();
        let absolute = |path: &Path| here.join(path);
        let cap = |asked: Option<CapArg<u64>>| match asked {
            None => Cap::Default,
            Some(CapArg::None) => Cap::Uncapped,
            Some(CapArg::Max(max)) => Cap::Max(max),
        };
        let request = SpecRequest {
            workspace: workspace.as_deref().map(absolute),
            memory_mb: cap(memory_mb),
            pids: cap(pids),
            workspace_max_bytes: cap(workspace_max_bytes.map(|max| match max {
                CapArg::None => CapArg::None,
                CapArg::Max(Bytes(bytes)) => CapArg::Max(bytes),
            })),
            workspace_max_files: cap(workspace_max_files),
            profiles: profile,
            cpus: match cpus {
                None | Some(CapArg::None) => None,
                Some(CapArg::Max(cores)) => Some(cores),
            },
            enforce_limits: Some(!no_enforce_limits),
            allow_sockets,
            security_profile: security_profile.map_or(Choice::Default, |profile| {
                Choice::Named(match profile {
                    ProfileArg::Default => ProfileChoice::Default,
                    ProfileArg::Untrusted => ProfileChoice::Untrusted,
                })
            }),
            isolation_mode: isolation.map_or(Choice::Default, |isolation| {
                Choice::Named(match isolation {
                    IsolationArg::Full => IsolationChoice::Full,
                    IsolationArg::Reduced => IsolationChoice::Reduced,
                })
            }),
            cap_drop: match cap_drop.as_slice() {
                [] => None,
                [none] if none == "none" => Some(Vec::new()),
                _ => Some(cap_drop),
            },
            user,
            timeout_s,
            env: env.into_iter().map(|env| (env.name, env.value)).collect(),
            mounts: mount
                .into_iter()
                .map(|mount| MountRequest {
                    source: absolute(&mount.source),
                    target: mount.target,
                    read_only: mount.read_only,
                    allow_sockets,
                })
                .collect(),
            ..SpecRequest::default()
        };
        let language = language.unwrap_or_else(|| language_of(file.as_deref()).to_owned());
        let source = read_code(code, file.as_deref())?;
        let step = StepRequest::new(ProgramRequest::Code {
            language,
            source,
            args: args.into_iter().map(OsStringExt::into_vec).collect(),
        });
        let observer = HostFiles::probe(environment, environment.engine_dirs());
        let spec = parse_spec(request, &observer, &HostAccess::Own);
        match (spec, parse_step(step)) {
            (Ok(spec), Ok(step)) => Ok(Self { spec, step, json }),
            (spec, step) => {
                let mut violations = spec.err().unwrap_or_default();
                violations.extend(step.err().unwrap_or_default());
                Err(OrderError::Spec(violations))
            }
        }
    }
}

fn language_of(file: Option<&Path>) -> &'static str {
    match file
        .and_then(Path::extension)
        .and_then(|ending| ending.to_str())
    {
        Some("sh") => "sh",
        Some("bash") => "bash",
        Some("js" | "mjs" | "cjs") => "javascript",
        _ => "python",
    }
}

fn read_code(code: Option<String>, file: Option<&Path>) -> Result<Vec<u8>, OrderError> {
    if let Some(code) = code {
        return Ok(code.into_bytes());
    }
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let read = if file == Path::new("-") {
        let mut code = Vec::new();
        io::stdin().lock().read_to_end(&mut code).map(|_| code)
    } else {
        std::fs::read(file)
    };
    read.map_err(|source| OrderError::Read {
        file: file.display().to_string(),
        source,
    })
}

/// Runs the order to its end, prints, and leaves nothing behind.
pub(super) async fn run(engine: Engine, order: Order) -> ExitCode {
    let code = match one(&engine, order).await {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            NOTHING_RAN
        }
    };
    engine.shutdown().await;
    code.into()
}

fn report(error: &SessionError) {
    let mut err = io::stderr().lock();
    // Nobody to tell is nobody to tell.
    let _ = writeln!(err, "stepbox: {}", spelling::in_flags(&error.to_string()));
    if let SessionError::Unavailable {
        mend: Some(mend), ..
    } = error
    {
        let _ = writeln!(err, "stepbox: to mend it: {mend}");
    }
}

async fn one(engine: &Engine, order: Order) -> Result<u8, SessionError> {
    let Order { spec, step, json } = order;
    let (session, _) = engine.create_session(spec, false).await?;
    let cancel = CancellationToken::new();
    let interrupted = tokio::spawn(cancel_on_signal(cancel.clone()));
    let (events, printer) = if json {
        (None, None)
    } else {
        let (sender, receiver) = mpsc::channel(64);
        // Whoever reads the output of a program in a shell gets all of it.
        let events = Events {
            sender,
            paced: true,
        };
        (Some(events), Some(print_live(receiver, cancel.clone())))
    };
    let result = engine
        .run(&session.id, step, events, cancel.clone())
        .await?;
    let printed = match printer {
        Some(printer) => ended(printer, &cancel).await,
        None => Ok(()),
    };
    interrupted.abort();
    let code = u8::try_from(result.verdict.exit_code).unwrap_or(u8::MAX);
    match printed.and_then(|()| finish(&result, json)) {
        // The reader has gone, or does not read: it wants to hear nothing more.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::TimedOut
            ) =>
        {
            Ok(code)
        }
        Err(error) => {
            // Nobody to tell is nobody to tell.
            let _ = writeln!(io::stderr().lock(), "stepbox: write the output: {error}");
            Ok(NOT_WRITTEN)
        }
        Ok(()) => Ok(code),
    }
}

/// What the printer came to. One whose reader does not read is left to itself once the caller wants an end.
async fn ended(
    printer: oneshot::Receiver<io::Result<()>>,
    cancel: &CancellationToken,
) -> io::Result<()> {
    let patience = async {
        cancel.cancelled().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        printed = printer => printed.unwrap_or(Ok(())),
        () = patience => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn cancel_on_signal(cancel: CancellationToken) {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    cancel.cancel();
}

/// Prints in a thread of its own: writing waits as long as the reader likes, which the runtime must not. A reader that
/// closes the pipe wants no more of it: the step ends.
fn print_live(
    mut events: mpsc::Receiver<StepEvent>,
    cancel: CancellationToken,
) -> oneshot::Receiver<io::Result<()>> {
    let (done, printed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut written = Ok(());
        while let (Ok(()), Some(event)) = (&written, events.blocking_recv()) {
            if let StepEvent::Output { stdout, data, .. } = event {
                written = print(stdout, &data);
            }
        }
        if written.is_err() {
            cancel.cancel();
        }
        // Whoever waited for it may have left.
        let _ = done.send(written);
    });
    printed
}

fn print(stdout: bool, data: &[u8]) -> io::Result<()> {
    if stdout {
        let mut out = io::stdout().lock();
        out.write_all(data)?;
        out.flush()
    } else {
        io::stderr().lock().write_all(data)
    }
}

/// The verdict, where the code's own output is not: on stderr, or in the JSON.
fn finish(result: &StepResult, json: bool) -> io::Result<()> {
    if json {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", json::result(result))?;
        return out.flush();
    }
    let mut err = io::stderr().lock();
    if let Some(fault) = &result.verdict.fault {
        let _ = writeln!(err, "stepbox: {}: {}", fault.kind.name(), fault.message);
    }
    for note in &result.notes {
        let _ = writeln!(err, "stepbox: {note}");
    }
    Ok(())
}
