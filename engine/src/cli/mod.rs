//! The command line: flags, and one file for each command.

pub mod args;
mod completions;
mod connect;
mod doctor;
mod files;
mod host;
mod json;
mod plan;
mod run;
pub mod serve;
mod session;
mod spelling;
mod start;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, IsolationArg};
use start::Foundation;

use crate::config::Environment;

/// Runs the command of this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let environment = Environment::read();
    if let Err(error) = crate::telemetry::start(environment.log.as_deref()) {
        return refuse(&error);
    }
    match Cli::parse().command {
        Command::Serve(args) => {
            let reduced = args.isolation == Some(IsolationArg::Reduced);
            let config = match serve::configure(args, environment) {
                Ok(config) => config,
                Err(mistakes) => return refuse(&mistakes),
            };
            serve::leave_session();
            // By forks, which must come before the first thread.
            let probes = host::probes();
            with_engine(reduced, |engine| async move {
                match serve::serve(config, probes, engine).await {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => refuse(&error),
                }
            })
        }
        Command::Run(args) => match run::Order::parse(args, &environment) {
            Ok(order) => with_engine(order.is_reduced(), |engine| run::run(engine, order)),
            Err(error) => refuse(&error),
        },
        Command::Plan(args) => written(plan::print(&args, &mut io::stdout().lock())),
        Command::Session(args) => match session::command(args, &environment) {
            Ok(code) => code,
            Err(error) => refuse(&error),
        },
        Command::Doctor(args) => doctor::examine(&args),
        Command::Files(args) => files::main(args, &environment),
        Command::Completions(args) => written(completions::print(&args, &mut io::stdout().lock())),
    }
}

fn with_engine<F: Future<Output = ExitCode>>(
    reduced: bool,
    work: impl FnOnce(crate::session::Engine) -> F,
) -> ExitCode {
    match Foundation::lay(reduced).and_then(|foundation| foundation.run(work)) {
        Ok(code) => code,
        Err(error) => refuse(&error),
    }
}

/// Nothing ran: says why on stderr, down to the first cause.
fn refuse(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some tell their cause themselves.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    let mut err = io::stderr().lock();
    for line in text.lines() {
        // Nobody to tell is nobody to tell.
        let _ = writeln!(err, "stepbox: {line}");
    }
    run::NOTHING_RAN.into()
}

/// A reader that closes the pipe early has read enough.
fn written(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => refuse(&error),
    }
}
