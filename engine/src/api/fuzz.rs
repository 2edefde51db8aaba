//! Requests as anybody could send them.

use prost::Message;
use tonic::Status;

use super::convert::{file, kernel, spec, step};
use super::pb;
use crate::spec::mount::HostAccess;
use crate::spec::{fuzz, parse_spec};

/// A refusal is of the request, and says so.
fn refused<T>(done: Result<T, Status>) -> Option<T> {
    done.inspect_err(|status| {
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
        assert!(!status.message().is_empty());
    })
    .ok()
}

/// The first byte chooses the message.
pub fn requests(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 8 {
        0 => {
            if let Ok(request) = pb::SandboxSpec::decode(bytes) {
                let request = spec::request(Some(request));
                fuzz::judged(&parse_spec(
                    request,
                    &fuzz::Plain::default(),
                    &HostAccess::Own,
                ));
            }
        }
        1 => drop(
            pb::RunCodeRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(step::run_code(request))),
        ),
        2 => drop(
            pb::RunRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(step::run(request))),
        ),
        3 => drop(
            pb::RunStreamRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(step::run_stream(request))),
        ),
        4 => drop(
            pb::RunCellRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(kernel::cell(request))),
        ),
        5 => drop(
            pb::StartKernelRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(kernel::start(request))),
        ),
        6 => drop(
            pb::ReadFileRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(file::read(request))),
        ),
        _ => drop(
            pb::WriteFileRequest::decode(bytes)
                .ok()
                .and_then(|request| refused(file::write_start(request))),
        ),
    }
}
