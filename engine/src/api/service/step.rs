//! Running a step for a caller who may go away.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::api::backend::Backend;
use crate::api::status::{internal, with_reason};
use crate::api::{convert, pb};
use crate::outcome::StepResult;
use crate::session::SessionError;
use crate::spec::StepSpec;

/// Events that wait for a slow client before the engine drops, and counts, more.
pub(super) const EVENTS_WAITING: usize = 64;
/// Messages that wait for the transport.
pub(super) const MESSAGES_WAITING: usize = 4;

/// Runs a step to its end, in a task of its own: when the caller hangs up or its deadline passes this future is
/// dropped, and what then remains is the task that stops the step.
pub(super) async fn run<B: Backend>(
    backend: &B,
    id: String,
    step: StepSpec,
) -> Result<pb::StepResult, Status> {
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let task = {
        let (backend, id) = (backend.clone(), id.clone());
        tokio::spawn(async move { backend.run(&id, step, None, cancel).await })
    };
    let ended = task.await;
    stop.disarm();
    reply(backend, &id, joined(ended)?)
}

/// Runs a step with live output; the stream ends with its result, or with the status that no result could be.
pub(super) fn run_stream<B: Backend>(
    backend: B,
    id: String,
    step: StepSpec,
    deadline: Option<Duration>,
) -> ReceiverStream<Result<pb::RunStreamResponse, Status>> {
    let (out, messages) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(async move {
        let last = tokio::select! {
            last = follow(&backend, &id, step, &out) => last,
            // The caller hung up: nobody listens, and dropping `follow` stops the step.
            () = out.closed() => return,
            () = passed(deadline) => Err(too_late()),
        };
        // The caller may be gone by now, which is its own affair.
        let _ = out.send(last).await;
    });
    ReceiverStream::new(messages)
}

type Out = mpsc::Sender<Result<pb::RunStreamResponse, Status>>;

/// Forwards events until the step ends; gives the last message. Dropping it stops the step.
async fn follow<B: Backend>(
    backend: &B,
    id: &str,
    step: StepSpec,
    out: &Out,
) -> Result<pb::RunStreamResponse, Status> {
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let (events, mut received) = mpsc::channel(EVENTS_WAITING);
    let task = {
        let (backend, id) = (backend.clone(), id.to_owned());
        tokio::spawn(async move { backend.run(&id, step, Some(events), cancel).await })
    };
    while let Some(event) = received.recv().await {
        if out.send(Ok(convert::result::event(event))).await.is_err() {
            break;
        }
    }
    let ended = task.await;
    stop.disarm();
    let result = reply(backend, id, joined(ended)?)?;
    Ok(pb::RunStreamResponse {
        event: Some(pb::run_stream_response::Event::Result(result)),
    })
}

fn joined(
    ended: Result<Result<StepResult, SessionError>, tokio::task::JoinError>,
) -> Result<StepResult, Status> {
    match ended {
        Ok(result) => Ok(result?),
        Err(error) => Err(internal("a step's task", &error)),
    }
}

/// The reply; what does not fit in it is kept for the caller to fetch.
fn reply<B: Backend>(backend: &B, id: &str, result: StepResult) -> Result<pb::StepResult, Status> {
    let (reply, whole) = convert::result::result(&result);
    if !whole {
        backend.keep(id, Arc::new(result));
    }
    Ok(reply)
}

/// Ends when the deadline passes; never where there is none. The transport itself bounds only the time to the first
/// message of a stream.
pub(super) async fn passed(deadline: Option<Duration>) {
    match deadline {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}

/// What a stream ends with whose deadline has passed.
pub(super) fn too_late() -> Status {
    with_reason(
        Code::DeadlineExceeded,
        "DEADLINE",
        "the deadline of the call passed",
    )
}

/// The deadline of a call, as its `grpc-timeout` says: up to eight digits and a unit.
pub(super) fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse::<u64>().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("ascii"));
        deadline(&metadata)
    }

    #[test]
    fn a_deadline_is_read_in_every_unit() {
        assert_eq!(told("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(told("3M"), Some(Duration::from_secs(180)));
        assert_eq!(told("4S"), Some(Duration::from_secs(4)));
        assert_eq!(told("5m"), Some(Duration::from_millis(5)));
        assert_eq!(told("6u"), Some(Duration::from_micros(6)));
        assert_eq!(told("7n"), Some(Duration::from_nanos(7)));
        assert_eq!(
            told("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
    }

    #[test]
    fn anything_else_is_no_deadline() {
        for text in ["", "S", "1", "1x", "-1S", "123456789S", "1.5S", " 1S"] {
            assert_eq!(told(text), None, "{text}");
        }
        assert_eq!(deadline(&MetadataMap::new()), None);
    }
}
