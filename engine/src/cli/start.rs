//! Starting an engine in this process: directories, launcher and cgroups first, the runtime after them.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, WaitOptions, getrlimit, pidfd_open, setrlimit, waitpid,
};

use super::host;
use crate::config::Environment;
use crate::pool::{PoolError, Started, start};
use crate::sandbox::cgroup::{CgroupError, Cgroups};
use crate::sandbox::probe::{Probe, REDUCED};
use crate::session::{Engine, RuntimeDir, RuntimeDirError};

/// Why no engine could be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Directories(#[from] RuntimeDirError),
    #[error("sandboxes cannot be made on this host: {source}{}", told(obstacles))]
    Launcher {
        source: PoolError,
        /// What the host lacks, by trying.
        obstacles: Vec<Probe>,
    },
    #[error("the launcher: {0}")]
    Engine(#[from] PoolError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error("start the runtime: {0}")]
    Runtime(std::io::Error),
}

/// A line for each obstacle, and one for what mends it; last what there is instead.
fn told(obstacles: &[Probe]) -> String {
    let mends = obstacles.iter().filter_map(|probe| {
        let mend = probe.mend.as_deref()?;
        Some(format!(
            "\n{}: {}\nto mend it: {mend}",
            probe.name, probe.detail
        ))
    });
    let instead = obstacles
        .iter()
        .filter(|probe| probe.name == REDUCED && probe.available)
        .map(|_| {
            "\nor with less around the code: isolation_mode=\"reduced\" (--isolation reduced)"
                .to_owned()
        });
    mends.chain(instead).collect()
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
    /// `reduced`: for sandboxes without namespaces.
    pub(super) fn lay(reduced: bool) -> Result<Self, StartError> {
        let directories = RuntimeDir::create()?;
        let laid = start(&directories.setup(), reduced)
            .map_err(|source| StartError::Launcher {
                source,
                obstacles: host::obstacles(reduced),
            })
            .and_then(|started| {
                let cgroups = Cgroups::create(&directories.id, Some(started.pid))?;
                let cgroups = match reduced {
                    true => cgroups.for_reduced(),
                    false => cgroups,
                };
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
    pub(super) fn run<T, F: Future<Output = T>>(
        self,
        work: impl FnOnce(Engine) -> F,
    ) -> Result<T, StartError> {
        raise_descriptor_limit();
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
        let launcher = started.pid;
        let done = runtime.block_on(async move {
            let cache = Environment::read().cache_dir();
            let engine = Engine::new(started, cgroups, directories, cache.as_deref()).await?;
            Ok::<_, StartError>(work(engine).await)
        })?;
        // What still runs in a worker thread is not waited for any longer.
        runtime.shutdown_timeout(Duration::from_millis(200));
        wait_for_end(launcher);
        Ok(done)
    }
}

/// A hundred sandboxes hold more descriptors than the soft limit that most sessions start with. Sandboxes get limits of
/// their own.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Never more than is allowed: where it fails the old limit stands.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The launcher ends with its socket, after all that it made: whoever started this program finds nothing running when it
/// returns. One that hangs is left to itself.
fn wait_for_end(launcher: u32) {
    let patience = Timespec {
        tv_sec: 2,
        tv_nsec: 0,
    };
    let pid = i32::try_from(launcher).ok().and_then(Pid::from_raw);
    // One that is reaped already has no descriptor.
    if let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience));
    }
    // Not every pid 1 reaps what it inherits.
    let _ = waitpid(pid, WaitOptions::NOHANG);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::plan::{Step, StepError};

    #[test]
    fn a_launcher_that_cannot_start_says_the_cause_and_the_command() {
        let refused = std::io::Error::from_raw_os_error(libc::EPERM);
        let probe = |name, mend: Option<&str>| Probe {
            name,
            available: false,
            needed: true,
            detail: "the seccomp filter of Docker refuses it".to_owned(),
            mend: mend.map(str::to_owned),
        };
        let error = StartError::Launcher {
            source: StepError::new(Step::UserNamespace, "unshare", &refused).into(),
            obstacles: vec![
                probe("user_namespaces", Some("docker run --security-opt x")),
                probe("fresh_proc", None),
                Probe {
                    available: true,
                    needed: false,
                    ..probe(REDUCED, None)
                },
            ],
        };
        assert_eq!(
            error.to_string(),
            "sandboxes cannot be made on this host: user-namespace: unshare: Operation not permitted (os error 1)\n\
             user_namespaces: the seccomp filter of Docker refuses it\n\
             to mend it: docker run --security-opt x\n\
             or with less around the code: isolation_mode=\"reduced\" (--isolation reduced)"
        );
    }
}
