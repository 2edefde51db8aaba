//! Step requests of the wire to [`StepSpec`].

use tonic::Status;

use crate::api::pb;
use crate::api::status::{invalid, invalid_field};
use crate::spec::request::{Cap, ProgramRequest, StepRequest};
use crate::spec::{StepSpec, parse_step};

use super::spec::cap;
use super::{path, session_id};

/// The session's identifier and the step of a `RunCode`.
///
/// # Errors
/// `INVALID_ARGUMENT` with every mistake.
pub fn run_code(request: pb::RunCodeRequest) -> Result<(String, StepSpec), Status> {
    let pb::RunCodeRequest {
        session_id: id,
        code,
        language,
        options,
        args,
    } = request;
    let program = ProgramRequest::Code {
        language,
        source: code.into(),
        args: args.into_iter().map(Into::into).collect(),
    };
    parse(id, program, options)
}

/// The session's identifier and the step of a `Run`.
///
/// # Errors
/// `INVALID_ARGUMENT` with every mistake.
pub fn run(request: pb::RunRequest) -> Result<(String, StepSpec), Status> {
    let pb::RunRequest {
        session_id: id,
        argv,
        options,
    } = request;
    let program = ProgramRequest::Argv(argv.into_iter().map(Into::into).collect());
    parse(id, program, options)
}

/// The session's identifier and the step of a `RunStream`.
///
/// # Errors
/// `INVALID_ARGUMENT` with every mistake.
pub fn run_stream(request: pb::RunStreamRequest) -> Result<(String, StepSpec), Status> {
    let pb::RunStreamRequest { step } = request;
    match step {
        Some(pb::run_stream_request::Step::RunCode(request)) => run_code(request),
        Some(pb::run_stream_request::Step::Run(request)) => run(request),
        None => Err(invalid_field(
            "step",
            "nothing is to be run; write run_code or run",
        )),
    }
}

fn parse(
    id: String,
    program: ProgramRequest,
    options: Option<pb::StepOptions>,
) -> Result<(String, StepSpec), Status> {
    let id = session_id(id)?;
    let pb::StepOptions {
        timeout_s,
        memory_mb,
        env,
        cwd,
        stdin,
        user,
    } = options.unwrap_or_default();
    let memory_mb: Cap = cap(memory_mb);
    let request = StepRequest {
        program,
        timeout_s,
        memory_mb,
        env: env.into_iter().collect(),
        cwd: cwd.map(path),
        stdin: stdin.map(Into::into),
        user,
    };
    let step = parse_step(request).map_err(invalid)?;
    Ok((id, step))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::spec::{Language, Program};

    #[test]
    fn code_and_arguments_arrive_as_they_were_sent() {
        let (id, step) = run_code(pb::RunCodeRequest {
            session_id: "s1".into(),
            code: "print(1)\n".into(),
            language: String::new(),
            options: Some(pb::StepOptions {
                cwd: Some(Bytes::from_static(b"sub")),
                stdin: Some(Bytes::from_static(b"\0in")),
                ..pb::StepOptions::default()
            }),
            args: vec![Bytes::from_static(b"\xff")],
        })
        .expect("parsed");
        assert_eq!(id, "s1");
        assert_eq!(
            step.program,
            Program::Code {
                language: Language::Python,
                source: b"print(1)\n".to_vec(),
                args: vec![b"\xff".to_vec()],
            }
        );
        assert_eq!(step.cwd, std::path::Path::new("/workspace/sub"));
        assert_eq!(step.stdin, b"\0in");
    }

    #[test]
    fn a_stream_of_nothing_and_a_session_without_a_name_are_refused() {
        assert!(run_stream(pb::RunStreamRequest { step: None }).is_err());
        for id in ["", "a/b", "a\n"] {
            let request = pb::RunRequest {
                session_id: id.into(),
                argv: vec![Bytes::from_static(b"true")],
                options: None,
            };
            assert!(run(request).is_err(), "{id:?}");
        }
    }
}
