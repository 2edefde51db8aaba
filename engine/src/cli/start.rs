//! Starting an engine in this process: directories, launcher and cgroups first, the runtime after them.

use std::process::ExitCode;

use crate::pool::{PoolError, Started, start};
use crate::sandbox::cgroup::{CgroupError, Cgroups};
use crate::session::{Engine, RuntimeDir, RuntimeDirError};

/// Why no engine could be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Directories(#[from] RuntimeDirError),
    #[error("sandboxes cannot be made on this host: {0}")]
    Launcher(#[from] PoolError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error("start the runtime: {0}")]
    Runtime(std::io::Error),
}

/// What exists before the runtime does.
#[derive(Debug)]
pub(super) struct Foundation {
    started: Started,
    cgroups: Cgroups,
    directories: RuntimeDir,
}

impl Foundation {
    /// To be called before any thread exists: the launcher is forked here.
    pub(super) fn lay() -> Result<Self, StartError> {
        let directories = RuntimeDir::create()?;
        let laid = start(&directories.setup())
            .map_err(StartError::from)
            .and_then(|started| {
                let cgroups = Cgroups::create(&directories.id, Some(started.pid))?;
                Ok((started, cgroups))
            });
        match laid {
            Ok((started, cgroups)) => Ok(Self {
                started,
                cgroups,
                directories,
            }),
            Err(error) => {
                directories.remove();
                Err(error)
            }
        }
    }

    /// Runs `work` with the engine, in the runtime.
    pub(super) fn run<F: Future<Output = ExitCode>>(
        self,
        work: impl FnOnce(Engine) -> F,
    ) -> Result<ExitCode, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(
                std::thread::available_parallelism().map_or(2, |count| count.get().min(8)),
            )
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let Self {
            started,
            cgroups,
            directories,
        } = self;
        let code = runtime.block_on(async move {
            let engine = Engine::new(started, cgroups, directories).await?;
            Ok::<_, StartError>(work(engine).await)
        })?;
        // What still runs in a worker thread is not waited for.
        runtime.shutdown_background();
        Ok(code)
    }
}
