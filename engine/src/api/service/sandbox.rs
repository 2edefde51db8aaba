//! The `Sandbox` service.

use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming};

use super::stream::{self, Answers};
use super::{kernel, search, step};
use crate::api::backend::{Backend, WriteFile};
use crate::api::convert::{self, session_id, step_id};
use crate::api::host::HostInfo;
use crate::api::pb::{self, sandbox_server::Sandbox};
use crate::api::status::{internal, invalid, invalid_field};
use crate::spec::mount::{Host, HostAccess};
use crate::spec::{SandboxSpec, parse_spec};

/// The service of one listener.
#[derive(Clone)]
pub struct SandboxService<B> {
    backend: B,
    host: Arc<dyn Host + Send + Sync>,
    access: HostAccess,
    info: Arc<HostInfo>,
}

impl<B> std::fmt::Debug for SandboxService<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxService")
            .field("access", &self.access)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> SandboxService<B> {
    /// `access`: the host paths that callers of this listener may name.
    pub fn new(
        backend: B,
        host: Arc<dyn Host + Send + Sync>,
        access: HostAccess,
        info: HostInfo,
    ) -> Self {
        Self {
            backend,
            host,
            access,
            info: Arc::new(info),
        }
    }

    /// Parses a spec off the async threads: sources are looked at, which can take as long as a disk does.
    async fn parse(&self, spec: Option<pb::SandboxSpec>) -> Result<SandboxSpec, Status> {
        let (host, access) = (Arc::clone(&self.host), self.access.clone());
        let parse = move || parse_spec(convert::spec::request(spec), &*host, &access);
        let parsed = tokio::task::spawn_blocking(parse).await;
        parsed
            .map_err(|error| internal("parsing a spec", &error))?
            .map_err(invalid)
    }
}

#[tonic::async_trait]
impl<B: Backend> Sandbox for SandboxService<B> {
    type RunStreamStream = Answers<pb::RunStreamResponse>;
    type RunCellStreamStream = Answers<pb::RunCellStreamResponse>;
    type FetchOutputStream = Answers<pb::FetchOutputResponse>;
    type ListChangesStream = Answers<pb::ListChangesResponse>;
    type ReadFileStream = Answers<pb::ReadFileResponse>;
    type ListFilesStream = Answers<pb::ListFilesResponse>;
    type GlobFilesStream = Answers<pb::ListFilesResponse>;
    type GrepFilesStream = Answers<pb::GrepFilesResponse>;

    async fn check_spec(
        &self,
        request: Request<pb::CheckSpecRequest>,
    ) -> Result<Response<pb::CheckSpecResponse>, Status> {
        let pb::CheckSpecRequest { spec } = request.into_inner();
        let spec = self.parse(spec).await?;
        let (limits, isolation) = self.backend.check(&spec)?;
        Ok(Response::new(pb::CheckSpecResponse {
            limits: limits.iter().map(convert::result::limit).collect(),
            isolation,
        }))
    }

    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Result<Response<pb::CreateSessionResponse>, Status> {
        let pb::CreateSessionRequest { spec, attach } = request.into_inner();
        let spec = self.parse(spec).await?;
        let (session, attached) = self.backend.create_session(spec, attach).await?;
        Ok(Response::new(pb::CreateSessionResponse {
            session: Some(convert::session::session(session)),
            attached,
        }))
    }

    async fn close_session(
        &self,
        request: Request<pb::CloseSessionRequest>,
    ) -> Result<Response<pb::CloseSessionResponse>, Status> {
        let pb::CloseSessionRequest { session_id: id } = request.into_inner();
        let id = session_id(id)?;
        // A caller that hangs up while its session closes must not leave it half closed.
        let backend = self.backend.clone();
        let closed = tokio::spawn(async move { backend.close_session(&id).await }).await;
        closed.map_err(|error| internal("closing a session", &error))??;
        Ok(Response::new(pb::CloseSessionResponse {}))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Result<Response<pb::GetSessionResponse>, Status> {
        let pb::GetSessionRequest { session_id: id } = request.into_inner();
        let session = convert::session::session(self.backend.session(&session_id(id)?)?);
        Ok(Response::new(pb::GetSessionResponse {
            session: Some(session),
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        let pb::ListSessionsRequest {} = request.into_inner();
        let sessions = self.backend.sessions().into_iter();
        Ok(Response::new(pb::ListSessionsResponse {
            sessions: sessions.map(convert::session::session).collect(),
        }))
    }

    async fn run_code(
        &self,
        request: Request<pb::RunCodeRequest>,
    ) -> Result<Response<pb::RunCodeResponse>, Status> {
        let (id, step) = convert::step::run_code(request.into_inner())?;
        let result = step::run(&self.backend, id, step).await?;
        Ok(Response::new(pb::RunCodeResponse {
            result: Some(result),
        }))
    }

    async fn run(
        &self,
        request: Request<pb::RunRequest>,
    ) -> Result<Response<pb::RunResponse>, Status> {
        let (id, step) = convert::step::run(request.into_inner())?;
        let result = step::run(&self.backend, id, step).await?;
        Ok(Response::new(pb::RunResponse {
            result: Some(result),
        }))
    }

    async fn run_stream(
        &self,
        request: Request<pb::RunStreamRequest>,
    ) -> Result<Response<Self::RunStreamStream>, Status> {
        let deadline = step::deadline(request.metadata());
        let (id, step) = convert::step::run_stream(request.into_inner())?;
        // A session that is not there is told before the stream begins.
        self.backend.session(&id)?;
        let stream = step::run_stream(self.backend.clone(), id, step, deadline);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn fetch_output(
        &self,
        request: Request<pb::FetchOutputRequest>,
    ) -> Result<Response<Self::FetchOutputStream>, Status> {
        let pb::FetchOutputRequest {
            session_id: id,
            step_id: step,
            stream,
            offset,
        } = request.into_inner();
        let stdout = match pb::Stream::try_from(stream) {
            Ok(pb::Stream::Stdout) => true,
            Ok(pb::Stream::Stderr) => false,
            Ok(pb::Stream::Unspecified) | Err(_) => {
                return Err(invalid_field(
                    "stream",
                    "write STREAM_STDOUT or STREAM_STDERR",
                ));
            }
        };
        let kept = self.backend.kept(&session_id(id)?, &step_id(step)?)?;
        Ok(Response::new(stream::output(kept, stdout, offset)))
    }

    async fn list_changes(
        &self,
        request: Request<pb::ListChangesRequest>,
    ) -> Result<Response<Self::ListChangesStream>, Status> {
        let pb::ListChangesRequest {
            session_id: id,
            step_id: step,
            offset,
        } = request.into_inner();
        let kept = self.backend.kept(&session_id(id)?, &step_id(step)?)?;
        Ok(Response::new(stream::changes(kept, offset)))
    }

    async fn release_step(
        &self,
        request: Request<pb::ReleaseStepRequest>,
    ) -> Result<Response<pb::ReleaseStepResponse>, Status> {
        let pb::ReleaseStepRequest {
            session_id: id,
            step_id: step,
        } = request.into_inner();
        self.backend.release(&session_id(id)?, &step_id(step)?)?;
        Ok(Response::new(pb::ReleaseStepResponse {}))
    }

    async fn start_kernel(
        &self,
        request: Request<pb::StartKernelRequest>,
    ) -> Result<Response<pb::StartKernelResponse>, Status> {
        kernel::start(&self.backend, request.into_inner()).await
    }

    async fn run_cell(
        &self,
        request: Request<pb::RunCellRequest>,
    ) -> Result<Response<pb::RunCellResponse>, Status> {
        kernel::run(&self.backend, request.into_inner()).await
    }

    async fn run_cell_stream(
        &self,
        request: Request<pb::RunCellRequest>,
    ) -> Result<Response<Self::RunCellStreamStream>, Status> {
        let deadline = step::deadline(request.metadata());
        let cell = convert::kernel::cell(request.into_inner())?;
        // A session that is not there is told before the stream begins.
        self.backend.session(&cell.0)?;
        let stream = kernel::stream(self.backend.clone(), cell, deadline);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn interrupt_kernel(
        &self,
        request: Request<pb::InterruptKernelRequest>,
    ) -> Result<Response<pb::InterruptKernelResponse>, Status> {
        kernel::interrupt(&self.backend, request.into_inner())
    }

    async fn restart_kernel(
        &self,
        request: Request<pb::RestartKernelRequest>,
    ) -> Result<Response<pb::RestartKernelResponse>, Status> {
        kernel::restart(&self.backend, request.into_inner()).await
    }

    async fn close_kernel(
        &self,
        request: Request<pb::CloseKernelRequest>,
    ) -> Result<Response<pb::CloseKernelResponse>, Status> {
        kernel::close(&self.backend, request.into_inner()).await
    }

    async fn write_file(
        &self,
        request: Request<Streaming<pb::WriteFileRequest>>,
    ) -> Result<Response<pb::WriteFileResponse>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?;
        let first = first.ok_or_else(|| {
            invalid_field(
                "path",
                "the stream is empty; its first message names the file",
            )
        })?;
        let start = convert::file::write_start(first)?;
        let mut file = self
            .backend
            .write_file(&start.id, start.path, start.mode)
            .await?;
        file.write(&start.data).await?;
        // A stream that breaks off ends here by `?`: the file is dropped without its commit, and nothing appears.
        while let Some(message) = messages.message().await? {
            file.write(&convert::file::write_more(message)?).await?;
        }
        let size_bytes = file.commit().await?;
        Ok(Response::new(pb::WriteFileResponse { size_bytes }))
    }

    async fn read_file(
        &self,
        request: Request<pb::ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        let convert::file::Read {
            id,
            path,
            offset,
            length,
            max,
        } = convert::file::read(request.into_inner())?;
        let file = self
            .backend
            .read_file(&id, path, offset, length, max)
            .await?;
        Ok(Response::new(stream::data(file)))
    }

    async fn list_files(
        &self,
        request: Request<pb::ListFilesRequest>,
    ) -> Result<Response<Self::ListFilesStream>, Status> {
        let pb::ListFilesRequest {
            session_id: id,
            path,
            recursive,
            files_only,
        } = request.into_inner();
        let (id, path) = (session_id(id)?, convert::file::place(path)?);
        let (files, truncated) = self
            .backend
            .list_files(&id, path, recursive, files_only)
            .await?;
        Ok(Response::new(stream::entries(files, truncated)))
    }

    async fn stat_file(
        &self,
        request: Request<pb::StatFileRequest>,
    ) -> Result<Response<pb::StatFileResponse>, Status> {
        let pb::StatFileRequest {
            session_id: id,
            path,
        } = request.into_inner();
        let (id, path) = (session_id(id)?, convert::file::place(path)?);
        let file = convert::file::stat(self.backend.stat_file(&id, path).await?);
        Ok(Response::new(pb::StatFileResponse { file: Some(file) }))
    }

    async fn make_dir(
        &self,
        request: Request<pb::MakeDirRequest>,
    ) -> Result<Response<pb::MakeDirResponse>, Status> {
        let pb::MakeDirRequest {
            session_id: id,
            path,
        } = request.into_inner();
        let (id, path) = (session_id(id)?, convert::file::named(path)?);
        self.backend.make_dir(&id, path).await?;
        Ok(Response::new(pb::MakeDirResponse {}))
    }

    async fn remove(
        &self,
        request: Request<pb::RemoveRequest>,
    ) -> Result<Response<pb::RemoveResponse>, Status> {
        let pb::RemoveRequest {
            session_id: id,
            path,
            recursive,
        } = request.into_inner();
        let (id, path) = (session_id(id)?, convert::file::named(path)?);
        self.backend.remove(&id, path, recursive).await?;
        Ok(Response::new(pb::RemoveResponse {}))
    }

    async fn r#move(
        &self,
        request: Request<pb::MoveRequest>,
    ) -> Result<Response<pb::MoveResponse>, Status> {
        let pb::MoveRequest {
            session_id: id,
            source,
            target,
            replace,
        } = request.into_inner();
        let id = session_id(id)?;
        let (source, target) = (convert::file::named(source)?, convert::file::named(target)?);
        self.backend.rename(&id, source, target, replace).await?;
        Ok(Response::new(pb::MoveResponse {}))
    }

    async fn glob_files(
        &self,
        request: Request<pb::GlobFilesRequest>,
    ) -> Result<Response<Self::GlobFilesStream>, Status> {
        search::glob(&self.backend, request.into_inner()).await
    }

    async fn grep_files(
        &self,
        request: Request<pb::GrepFilesRequest>,
    ) -> Result<Response<Self::GrepFilesStream>, Status> {
        search::grep(&self.backend, request.into_inner()).await
    }

    async fn edit_file(
        &self,
        request: Request<pb::EditFileRequest>,
    ) -> Result<Response<pb::EditFileResponse>, Status> {
        search::edit(&self.backend, request.into_inner()).await
    }

    async fn get_info(
        &self,
        request: Request<pb::GetInfoRequest>,
    ) -> Result<Response<pb::GetInfoResponse>, Status> {
        let pb::GetInfoRequest {} = request.into_inner();
        Ok(Response::new(convert::session::info(
            &self.info,
            self.backend.live(),
        )))
    }
}
