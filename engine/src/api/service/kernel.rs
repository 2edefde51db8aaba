//! Kernels, for a caller who may go away.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use super::step::{EVENTS_WAITING, MESSAGES_WAITING, passed, too_late};
use crate::api::backend::Backend;
use crate::api::convert::{self, kernel::ids};
use crate::api::pb;
use crate::api::status::internal;
use crate::outcome::StepResult;
use crate::session::SessionError;
use crate::spec::StepSpec;

pub(super) async fn start<B: Backend>(
    backend: &B,
    request: pb::StartKernelRequest,
) -> Result<Response<pb::StartKernelResponse>, Status> {
    let (id, spec) = convert::kernel::start(request)?;
    let started = backend.start_kernel(&id, spec).await?;
    Ok(Response::new(pb::StartKernelResponse {
        kernel_id: started.id,
        start: convert::result::start(started.start).into(),
    }))
}

pub(super) fn interrupt<B: Backend>(
    backend: &B,
    request: pb::InterruptKernelRequest,
) -> Result<Response<pb::InterruptKernelResponse>, Status> {
    let pb::InterruptKernelRequest {
        session_id,
        kernel_id,
    } = request;
    let (id, kernel) = ids(session_id, kernel_id)?;
    backend.interrupt_kernel(&id, &kernel)?;
    Ok(Response::new(pb::InterruptKernelResponse {}))
}

pub(super) async fn restart<B: Backend>(
    backend: &B,
    request: pb::RestartKernelRequest,
) -> Result<Response<pb::RestartKernelResponse>, Status> {
    let pb::RestartKernelRequest {
        session_id,
        kernel_id,
    } = request;
    let (id, kernel) = ids(session_id, kernel_id)?;
    // A caller that hangs up must not leave it half done.
    let backend = backend.clone();
    let task = tokio::spawn(async move { backend.restart_kernel(&id, &kernel).await });
    let ended = task.await;
    let started = ended.map_err(|error| internal("restarting a kernel", &error))??;
    Ok(Response::new(pb::RestartKernelResponse {
        start: convert::result::start(started.start).into(),
    }))
}

pub(super) async fn close<B: Backend>(
    backend: &B,
    request: pb::CloseKernelRequest,
) -> Result<Response<pb::CloseKernelResponse>, Status> {
    let pb::CloseKernelRequest {
        session_id,
        kernel_id,
    } = request;
    let (id, kernel) = ids(session_id, kernel_id)?;
    backend.close_kernel(&id, &kernel).await?;
    Ok(Response::new(pb::CloseKernelResponse {}))
}

/// Runs a cell to its end, in a task of its own: when the caller hangs up or its deadline passes this future is dropped,
/// and what then remains is the task that stops the cell.
pub(super) async fn run<B: Backend>(
    backend: &B,
    request: pb::RunCellRequest,
) -> Result<Response<pb::RunCellResponse>, Status> {
    let (id, kernel, spec) = convert::kernel::cell(request)?;
    let reply = follow(backend, &id, &kernel, spec, None).await?;
    Ok(Response::new(reply))
}

/// Runs a cell with live output; the stream ends with its result, or with the status that no result could be.
pub(super) fn stream<B: Backend>(
    backend: B,
    (id, kernel, spec): (String, String, StepSpec),
    deadline: Option<Duration>,
) -> ReceiverStream<Result<pb::RunCellStreamResponse, Status>> {
    let (out, messages) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(async move {
        let last = tokio::select! {
            reply = follow(&backend, &id, &kernel, spec, Some(&out)) => reply.map(|reply| {
                let event = pb::run_cell_stream_response::Event::Result(reply);
                pb::RunCellStreamResponse { event: Some(event) }
            }),
            // The caller hung up: nobody listens, and dropping `follow` stops the cell.
            () = out.closed() => return,
            () = passed(deadline) => Err(too_late()),
        };
        // The caller may be gone by now, which is its own affair.
        let _ = out.send(last).await;
    });
    ReceiverStream::new(messages)
}

type Out = mpsc::Sender<Result<pb::RunCellStreamResponse, Status>>;

/// Forwards events, if somebody wants them, until the cell ends; gives the reply. Dropping it stops the cell.
async fn follow<B: Backend>(
    backend: &B,
    id: &str,
    kernel: &str,
    spec: StepSpec,
    out: Option<&Out>,
) -> Result<pb::RunCellResponse, Status> {
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let (events, mut received) = mpsc::channel(EVENTS_WAITING);
    let events = out.map(|_| events);
    let task = {
        let (backend, id, kernel) = (backend.clone(), id.to_owned(), kernel.to_owned());
        tokio::spawn(async move { backend.run_cell(&id, &kernel, spec, events, cancel).await })
    };
    if let Some(out) = out {
        while let Some(event) = received.recv().await {
            if out.send(Ok(convert::kernel::event(event))).await.is_err() {
                break;
            }
        }
    }
    let ended = task.await;
    stop.disarm();
    let ended: Result<StepResult, SessionError> =
        ended.map_err(|error| internal("a cell's task", &error))?;
    let cell = ended?;
    let (reply, whole) = convert::kernel::result(&cell);
    if !whole {
        backend.keep(id, Arc::new(cell));
    }
    Ok(reply)
}
