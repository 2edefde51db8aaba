//! Kernels and their cells on the wire.

use tonic::Status;

use super::spec::cap;
use super::{id, path, session_id};
use crate::api::pb;
use crate::api::status::invalid;
use crate::outcome::StepResult;
use crate::session::StepEvent;
use crate::spec::request::{Cap, ProgramRequest, StepRequest};
use crate::spec::{StepSpec, parse_step};

/// A kernel's identifier.
fn kernel_id(text: String) -> Result<String, Status> {
    id("kernel_id", text)
}

/// The session's identifier and the kernel's.
///
/// # Errors
/// `INVALID_ARGUMENT` when no engine could have given them.
pub fn ids(session: String, kernel: String) -> Result<(String, String), Status> {
    Ok((session_id(session)?, kernel_id(kernel)?))
}

/// The session's identifier, and what the interpreter is started with.
///
/// # Errors
/// `INVALID_ARGUMENT` with every mistake.
pub fn start(request: pb::StartKernelRequest) -> Result<(String, StepSpec), Status> {
    let pb::StartKernelRequest {
        session_id: id,
        options,
    } = request;
    let pb::KernelOptions {
        memory_mb,
        env,
        cwd,
    } = options.unwrap_or_default();
    let spec = StepRequest {
        memory_mb: cap(memory_mb),
        env: env.into_iter().collect(),
        cwd: cwd.map(path),
        ..python(Vec::new(), None)
    };
    Ok((session_id(id)?, parse_step(spec).map_err(invalid)?))
}

/// The session's identifier, the kernel's, and the cell.
///
/// # Errors
/// `INVALID_ARGUMENT` with every mistake.
pub fn cell(request: pb::RunCellRequest) -> Result<(String, String, StepSpec), Status> {
    let pb::RunCellRequest {
        session_id,
        kernel_id,
        code,
        timeout_s,
    } = request;
    let (session, kernel) = ids(session_id, kernel_id)?;
    let spec = python(code.into(), timeout_s);
    Ok((session, kernel, parse_step(spec).map_err(invalid)?))
}

fn python(source: Vec<u8>, timeout_s: Option<f64>) -> StepRequest {
    StepRequest {
        program: ProgramRequest::Code {
            language: String::new(),
            source,
            args: Vec::new(),
        },
        timeout_s,
        memory_mb: Cap::Default,
        env: Default::default(),
        cwd: None,
        stdin: None,
        user: None,
    }
}

/// The reply, and whether all of the step's part is in it.
#[must_use]
pub fn result(cell: &StepResult) -> (pb::RunCellResponse, bool) {
    let (step, whole) = super::result::result(cell);
    let reply = pb::RunCellResponse { result: Some(step) };
    (reply, whole)
}

/// A live event to the wire.
#[must_use]
pub fn event(event: StepEvent) -> pb::RunCellStreamResponse {
    use pb::{run_cell_stream_response as cell, run_stream_response as step};
    let event = super::result::event(event)
        .event
        .and_then(|event| match event {
            step::Event::Started(started) => Some(cell::Event::Started(started)),
            step::Event::Output(output) => Some(cell::Event::Output(output)),
            step::Event::Result(_) => None,
        });
    pb::RunCellStreamResponse { event }
}
