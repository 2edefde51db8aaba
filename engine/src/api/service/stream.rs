//! Long answers in messages of bounded size.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::api::backend::ReadFile;
use crate::api::convert;
use crate::api::convert::file::stat;
use crate::api::convert::result::file_page;
use crate::api::pb;
use crate::outcome::{FileStat, StepResult};
use crate::session::SessionError;
use crate::workspace::Matches;

/// Data of one message.
const CHUNK: usize = 512 << 10;
/// Entries of one message.
const ENTRIES: usize = 1_000;

/// The stream of a server's answers.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Kept output from `offset` on.
pub(super) fn output(
    result: Arc<StepResult>,
    stdout: bool,
    offset: u64,
) -> Answers<pb::FetchOutputResponse> {
    let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
    let chunks = std::iter::from_fn(move || {
        let output = if stdout {
            &result.stdout
        } else {
            &result.stderr
        };
        let rest = output.kept.get(at..).filter(|rest| !rest.is_empty())?;
        let data = Bytes::copy_from_slice(&rest[..rest.len().min(CHUNK)]);
        at += data.len();
        Some(Ok(pb::FetchOutputResponse { data }))
    });
    Box::pin(tokio_stream::iter(chunks))
}

/// Kept changes from `offset` on.
pub(super) fn changes(result: Arc<StepResult>, offset: u64) -> Answers<pb::ListChangesResponse> {
    let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
    let pages = std::iter::from_fn(move || {
        let files = file_page(&result.files, at, ENTRIES, CHUNK);
        at = at.saturating_add(files.len());
        (!files.is_empty()).then_some(Ok(pb::ListChangesResponse { files }))
    });
    Box::pin(tokio_stream::iter(pages))
}

/// Entries of a directory; at least one message, so that `truncated` is always told.
pub(super) fn entries(files: Vec<FileStat>, truncated: bool) -> Answers<pb::ListFilesResponse> {
    let mut files = files.into_iter();
    let mut done = false;
    // A page of the longest paths is 1000 times 4 KiB twice over, so pages are bounded by size too.
    let pages = std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mut page = Vec::new();
        let mut size = 0;
        while page.len() < ENTRIES && size < CHUNK {
            let Some(file) = files.next() else { break };
            let file = stat(file);
            size += prost::Message::encoded_len(&file);
            page.push(file);
        }
        done = files.len() == 0;
        Some(Ok(pb::ListFilesResponse {
            files: page,
            truncated: done && truncated,
        }))
    });
    Box::pin(tokio_stream::iter(pages))
}

/// Lines that were found; at least one message, so that the end is always told.
pub(super) fn matches(matches: Matches) -> Answers<pb::GrepFilesResponse> {
    let Matches {
        found,
        truncated,
        binary,
    } = matches;
    let mut found = found.into_iter();
    let mut done = false;
    let pages = std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mut page = Vec::new();
        let mut size = 0;
        while page.len() < ENTRIES && size < CHUNK {
            let Some(next) = found.next() else { break };
            let next = convert::search::found(next);
            size += prost::Message::encoded_len(&next);
            page.push(next);
        }
        done = found.len() == 0;
        Some(Ok(pb::GrepFilesResponse {
            matches: page,
            truncated: done && truncated,
            binary_files_count: if done { binary } else { 0 },
        }))
    });
    Box::pin(tokio_stream::iter(pages))
}

/// A file's data; the first message says how large the whole file is, also when there is none.
pub(super) fn data<R: ReadFile>(mut file: R) -> Answers<pb::ReadFileResponse> {
    let (out, messages) = mpsc::channel(2);
    tokio::spawn(async move {
        let mut size_bytes = file.size();
        let mut first = true;
        loop {
            let read: Result<Vec<u8>, SessionError> = file.read(CHUNK).await;
            let message = match read {
                Ok(data) if data.is_empty() && !first => return,
                Ok(data) => Ok(pb::ReadFileResponse {
                    data: data.into(),
                    size_bytes: std::mem::take(&mut size_bytes),
                }),
                Err(error) => Err(error.into()),
            };
            first = false;
            let last = message
                .as_ref()
                .map_or(true, |message| message.data.is_empty());
            // A caller that hung up needs no more.
            if out.send(message).await.is_err() || last {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(messages))
}
