//! What every call passes before its service sees it: a request id, the token, a place among those in flight, and one
//! line in the log when it is over.
//!
//! The line holds the method, the status and the time, and nothing that a caller wrote: no path, code, header or text.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::{Code, Status};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::auth::{Token, hexadecimal, random};
use super::lifetime::{Activity, Busy};
use super::status::{exhausted, with_reason};

const REQUEST_ID: &str = "x-request-id";
const REQUEST_ID_MOST: usize = 128;

/// The gate of one listener.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    token: Arc<Token>,
    places: Arc<Semaphore>,
    activity: Activity,
}

impl Gate {
    /// `places`: calls in flight at once; more are answered with `RESOURCE_EXHAUSTED`.
    pub(super) fn new(token: Token, places: usize, activity: Activity) -> Self {
        Self {
            token: Arc::new(token),
            places: Arc::new(Semaphore::new(places)),
            activity,
        }
    }

    fn admit(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, Status> {
        let borne = headers.get(http::header::AUTHORIZATION);
        if !borne.is_some_and(|value| self.token.is_borne_by(value.as_bytes())) {
            let message = if borne.is_some() {
                "the call bears another engine's token"
            } else {
                "the call bears no token: send \"authorization: Bearer TOKEN\" with the token of the engine's token file"
            };
            return Err(with_reason(
                Code::Unauthenticated,
                "UNAUTHENTICATED",
                message,
            ));
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| {
            exhausted(
                "TOO_MANY_CALLS",
                "the engine has as many calls in flight as it takes; try again later",
            )
        })
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated {
            gate: self.clone(),
            inner,
        }
    }
}

/// A service behind the gate.
#[derive(Clone, Debug)]
pub(super) struct Gated<S> {
    gate: Gate,
    inner: S,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let id = request_id(request.headers());
        let span = tracing::info_span!(target: "stepbox::rpc", "rpc", request_id = %id);
        let mut call = Call {
            method: method(request.uri().path()),
            id: id.clone(),
            began: Instant::now(),
            code: None,
            place: None,
            _busy: self.gate.activity.busy(),
        };
        let admitted = self.gate.admit(request.headers());
        // What was made ready is this one; the next caller gets the clone.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let answer = async move {
            match admitted {
                Ok(place) => call.place = Some(place),
                Err(status) => {
                    call.end(status.code());
                    return Ok(with_id(status.into_http(), &id));
                }
            }
            let response = inner.call(request).await?;
            call.note(response.headers());
            let (parts, body) = response.into_parts();
            let body = Body::new(Tracked { call, body });
            Ok(with_id(Response::from_parts(parts, body), &id))
        };
        Box::pin(answer.instrument(span))
    }
}

/// One call, from its headers to the end of its answer, or to where its caller hung up.
#[derive(Debug)]
struct Call {
    method: String,
    id: String,
    began: Instant,
    /// None: the answer did not end.
    code: Option<Code>,
    place: Option<OwnedSemaphorePermit>,
    _busy: Busy,
}

impl Call {
    fn note(&mut self, headers: &HeaderMap) {
        if let Some(code) = headers.get("grpc-status") {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }

    /// Ends it before any service saw it.
    fn end(mut self, code: Code) {
        self.code = Some(code);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let code = self.code.unwrap_or(Code::Cancelled);
        tracing::info!(
            target: "stepbox::rpc",
            request_id = self.id,
            method = self.method,
            status = ?code,
            duration_us,
            "call"
        );
    }
}

/// The body of an answer, which knows when it is over.
#[derive(Debug)]
struct Tracked {
    call: Call,
    body: Body,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.call.note(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The caller's own id when it is a plain word, so that it can be logged; else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let told = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let plain = |id: &&str| {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        !id.is_empty() && id.len() <= REQUEST_ID_MOST && id.bytes().all(word)
    };
    told.filter(plain).map_or_else(new_id, str::to_owned)
}

fn new_id() -> String {
    let mut bytes = [0; 16];
    match random(&mut bytes) {
        Ok(()) => hexadecimal(&bytes),
        Err(_) => "unknown".to_owned(),
    }
}

/// The method of a call by its name. One that no service has is the caller's own text, and is not repeated.
fn method(path: &str) -> String {
    const SERVICES: [&str; 4] = [
        "/stepbox.v1.Sandbox/",
        "/grpc.health.v1.Health/",
        "/grpc.reflection.v1.ServerReflection/",
        "/grpc.reflection.v1alpha.ServerReflection/",
    ];
    let name = SERVICES
        .iter()
        .find_map(|service| path.strip_prefix(service));
    match name {
        Some(name) if name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            path[1..].to_owned()
        }
        Some(_) | None => "unknown".to_owned(),
    }
}

fn with_id(mut response: Response<Body>, id: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_request_id_is_kept_and_any_other_replaced() {
        let told = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, value.parse().expect("a header"));
            request_id(&headers)
        };
        assert_eq!(told("req-1.a_B"), "req-1.a_B");
        for odd in ["", "a b", "a\"b", &"x".repeat(129)] {
            assert_eq!(told(odd).len(), 32, "{odd}");
        }
        assert_eq!(request_id(&HeaderMap::new()).len(), 32);
    }

    #[test]
    fn only_methods_of_our_services_are_named() {
        assert_eq!(
            method("/stepbox.v1.Sandbox/RunCode"),
            "stepbox.v1.Sandbox/RunCode"
        );
        for path in [
            "/",
            "/secret/path",
            "/stepbox.v1.Sandbox/a b",
            "/stepbox.v1.Sandbox/x/y",
        ] {
            assert_eq!(method(path), "unknown", "{path}");
        }
    }
}
