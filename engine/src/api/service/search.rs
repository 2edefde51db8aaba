//! Searches in a workspace, and edits of its files.

use tonic::{Response, Status};

use super::stream::{self, Answers};
use crate::api::backend::Backend;
use crate::api::convert::search as convert;
use crate::api::pb;

pub(super) async fn glob<B: Backend>(
    backend: &B,
    request: pb::GlobFilesRequest,
) -> Result<Response<Answers<pb::ListFilesResponse>>, Status> {
    let convert::Glob {
        id,
        path,
        pattern,
        files_only,
    } = parsed(move || convert::glob(request)).await?;
    let (files, truncated) = backend.glob_files(&id, path, pattern, files_only).await?;
    Ok(Response::new(stream::entries(files, truncated)))
}

pub(super) async fn grep<B: Backend>(
    backend: &B,
    request: pb::GrepFilesRequest,
) -> Result<Response<Answers<pb::GrepFilesResponse>>, Status> {
    let (id, path, grep) = parsed(move || convert::grep(request)).await?;
    let matches = backend.grep_files(&id, path, grep).await?;
    Ok(Response::new(stream::matches(matches)))
}

pub(super) async fn edit<B: Backend>(
    backend: &B,
    request: pb::EditFileRequest,
) -> Result<Response<pb::EditFileResponse>, Status> {
    let convert::Edit {
        id,
        path,
        texts,
        all,
    } = convert::edit(request)?;
    let edited = backend.edit_file(&id, path, texts, all).await?;
    Ok(Response::new(convert::edited(edited)))
}

/// A pattern is compiled off the async threads: that takes as long as it likes, within its memory.
async fn parsed<T: Send + 'static>(
    parse: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let parsed = tokio::task::spawn_blocking(parse).await;
    parsed.map_err(|error| convert::interrupted(&error))?
}
