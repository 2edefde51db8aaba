//! `stepbox doctor`: what this host gives, what is missing, and the command that mends it; last of all a sandbox with
//! default options, made and run.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::args::DoctorArgs;
use super::host;
use super::start::{Foundation, StartError};
use crate::config::Environment;
use crate::sandbox::probe::Probe;
use crate::session::{Engine, SessionError};
use crate::spec::mount::HostAccess;
use crate::spec::request::{ProgramRequest, SpecRequest, StepRequest};
use crate::spec::{parse_spec, parse_step};
use crate::workspace::source::HostFiles;

/// Exit code when sandboxes with default options cannot run.
const NOT_READY: u8 = 1;

/// To be called before any thread exists. 0: sandboxes with default options can run.
pub(super) fn examine(args: &DoctorArgs) -> ExitCode {
    let mut probes = host::probes();
    probes.extend(trial());
    let ready = probes.last().is_some_and(|trial| trial.available);
    let out = &mut io::stdout().lock();
    let written = if args.json {
        writeln!(out, "{}", json(&probes, ready))
    } else {
        table(&probes, ready, out)
    };
    match written {
        // A reader that closes the pipe early has read enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => super::refuse(&error),
        Ok(()) | Err(_) if ready => ExitCode::SUCCESS,
        Ok(()) | Err(_) => NOT_READY.into(),
    }
}

/// A whole engine, a session with default options, and a step in it. Before that what only an engine can tell.
fn trial() -> Vec<Probe> {
    let begun = Instant::now();
    let (detail, mend) =
        match Foundation::lay(false).and_then(|foundation| foundation.run(one_step)) {
            Ok((ids, Ok(()))) => {
                let detail = format!(
                    "made, run and removed with default options, in {} ms",
                    begun.elapsed().as_millis()
                );
                return vec![ids, sandbox(true, detail, None)];
            }
            Ok((_, Err(SessionError::Unavailable { what, mend }))) => (what, mend),
            Ok((_, Err(error))) => (error.to_string(), None),
            // What is missing is in the lines above.
            Err(StartError::Launcher { source, .. }) => (source.to_string(), None),
            Err(error) => (error.to_string(), None),
        };
    vec![sandbox(false, detail, mend)]
}

/// Whether code can keep capabilities: it can where it has ids to use them on.
fn ids(engine: &Engine) -> Probe {
    let why = engine.why_no_range();
    let detail = why.as_ref().map_or_else(
        || "a range for code that keeps capabilities (cap_drop)".to_owned(),
        |(why, _)| why.clone(),
    );
    Probe {
        name: "ids",
        available: why.is_none(),
        needed: false,
        detail,
        mend: why.and_then(|(_, mend)| mend),
    }
}

fn sandbox(available: bool, detail: String, mend: Option<String>) -> Probe {
    Probe {
        name: "sandbox",
        available,
        needed: true,
        detail,
        mend,
    }
}

async fn one_step(engine: Engine) -> (Probe, Result<(), SessionError>) {
    let ids = ids(&engine);
    let result = run_nothing(&engine).await;
    engine.shutdown().await;
    (ids, result)
}

async fn run_nothing(engine: &Engine) -> Result<(), SessionError> {
    let environment = Environment::read();
    let observer = HostFiles::probe(&environment, environment.engine_dirs());
    let program = StepRequest::new(ProgramRequest::Code {
        language: "sh".to_owned(),
        source: b":".to_vec(),
        args: Vec::new(),
    });
    let refused = |violations| SessionError::Setup(format!("{violations:?}"));
    let spec = parse_spec(SpecRequest::default(), &observer, &HostAccess::Own).map_err(refused)?;
    let step = parse_step(program).map_err(refused)?;
    let (session, _) = engine.create_session(spec, false).await?;
    let result = engine
        .run(&session.id, step, None, CancellationToken::new())
        .await?;
    match result.verdict.fault {
        None if result.verdict.exit_code == 0 => Ok(()),
        None => Err(SessionError::Setup(format!(
            "an empty script ended with code {}",
            result.verdict.exit_code
        ))),
        Some(fault) => Err(SessionError::Setup(format!(
            "{}: {}",
            fault.kind.name(),
            fault.message
        ))),
    }
}

fn mark(probe: &Probe) -> &'static str {
    match (probe.available, probe.needed) {
        (true, _) => "ok",
        (false, true) => "MISSING",
        (false, false) => "absent",
    }
}

fn table(probes: &[Probe], ready: bool, out: &mut impl Write) -> io::Result<()> {
    for probe in probes {
        writeln!(
            out,
            "{:<8} {:<21} {}",
            mark(probe),
            probe.name,
            probe.detail
        )?;
        if let Some(mend) = &probe.mend {
            writeln!(out, "{:30} to mend it: {mend}", "")?;
        }
    }
    let verdict = if ready {
        "sandboxes with default options can run here"
    } else {
        "sandboxes with default options cannot run here"
    };
    writeln!(out, "\n{verdict}")
}

fn json(probes: &[Probe], ready: bool) -> serde_json::Value {
    let told: Vec<_> = probes
        .iter()
        .map(|probe| {
            let Probe {
                name,
                available,
                needed,
                detail,
                mend,
            } = probe;
            serde_json::json!({
                "name": name,
                "available": available,
                "needed": needed,
                "detail": detail,
                "mend": mend,
            })
        })
        .collect();
    serde_json::json!({"version": crate::VERSION, "ready": ready, "probes": told})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_is_missing_with_its_command_below() {
        let probes = [
            sandbox(true, "made".to_owned(), None),
            Probe {
                name: "cgroup_cpu",
                needed: false,
                ..sandbox(false, "denied".to_owned(), Some("mend".to_owned()))
            },
            sandbox(false, "refused".to_owned(), None),
        ];
        let mut out = Vec::new();
        table(&probes, false, &mut out).expect("written");
        let told = String::from_utf8(out).expect("text");
        assert_eq!(
            told,
            "ok       sandbox               made\n\
             absent   cgroup_cpu            denied\n\
             \x20                              to mend it: mend\n\
             MISSING  sandbox               refused\n\
             \nsandboxes with default options cannot run here\n"
        );
    }

    #[test]
    fn json_says_whether_sandboxes_can_run() {
        let told = json(&[sandbox(true, "made".to_owned(), None)], true);
        assert_eq!(told["ready"], true);
        assert_eq!(told["probes"][0]["name"], "sandbox");
        assert!(told["probes"][0]["mend"].is_null());
    }
}
