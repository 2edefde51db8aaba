//! `stepbox serve`.

use super::args::ServeArgs;
use crate::api::host::{self, HostInfo};
use crate::api::server::{self, ServeError};
use crate::config::{Environment, Mistakes, ServeConfig};
use crate::sandbox::identity::Mode;
use crate::sandbox::probe::Probe;
use crate::session::Engine;

/// Parses the flags of `serve`.
///
/// # Errors
/// Every mistake at once.
pub fn configure(args: ServeArgs, environment: Environment) -> Result<ServeConfig, Mistakes> {
    ServeConfig::parse(args.into(), environment)
}

/// Leaves the parent's session, so that its terminal's Ctrl-C does not reach the engine. A process that leads its group
/// already, as one started by hand from a shell, stays: there Ctrl-C is meant for it.
pub fn leave_session() {
    if let Err(errno) = rustix::process::setsid() {
        tracing::debug!(%errno, "the engine stays in its session");
    }
}

/// Serves until it is told to end, and leaves nothing behind.
///
/// # Errors
/// The server could not start, or its transport failed.
pub async fn serve(
    config: ServeConfig,
    probes: Vec<Probe>,
    engine: Engine,
) -> Result<(), ServeError> {
    let host = HostInfo {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        root: engine.mode() == Mode::Root,
        probes: probes.into_iter().map(told).collect(),
        limit_mechanisms: engine.limit_mechanisms(),
    };
    engine.compile_bytecode();
    server::serve(config, host, engine).await
}

fn told(probe: Probe) -> host::Probe {
    let Probe {
        name,
        available,
        needed: _,
        detail,
        mend,
    } = probe;
    host::Probe {
        name: name.to_owned(),
        available,
        detail,
        mend,
    }
}
