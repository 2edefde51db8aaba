//! Flags and environment, parsed once. No other room reads the environment.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Calls in flight at once, unless `--max-calls` says else.
pub const MAX_CALLS: usize = 1024;

/// What calls in flight get to finish by themselves when the engine is told to end.
pub const DRAIN: Duration = Duration::from_secs(5);

/// Every environment variable that the engine reads, with what it is for.
pub const ENVIRONMENT: [(&str, &str); 10] = [
    (
        "STEPBOX_LOG",
        "log filter, such as \"info\" or \"stepbox::rpc=info\"; default \"warn\"",
    ),
    (
        "STEPBOX_ADDRESS",
        "the engine that commands which need a running one ask: unix:/path or host:port",
    ),
    (
        "STEPBOX_TOKEN_FILE",
        "its token; default: the file \"token\" beside the socket",
    ),
    ("NO_COLOR", "no colours, whatever is printed to"),
    ("HOME", "never mounted itself"),
    (
        "TMPDIR",
        "where private workspaces and, without XDG_RUNTIME_DIR, the socket are",
    ),
    ("XDG_RUNTIME_DIR", "where the socket is"),
    (
        "XDG_CACHE_HOME",
        "its stepbox directory is the engine's: bytecode is kept in it",
    ),
    (
        "XDG_CONFIG_HOME",
        "its stepbox directory is the engine's: stepbox.toml with the profiles is in it",
    ),
    ("XDG_DATA_HOME", "its stepbox directory is the engine's"),
];

/// The environment, as far as it is read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Environment {
    pub log: Option<String>,
    pub address: Option<String>,
    pub token_file: Option<PathBuf>,
    pub no_color: bool,
    pub home: Option<PathBuf>,
    pub temp: Option<PathBuf>,
    pub runtime: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub data: Option<PathBuf>,
}

impl Environment {
    /// Reads the process's environment. Directories that are not absolute are left out, as the XDG specification says.
    #[must_use]
    pub fn read() -> Self {
        let dir = |name| {
            let dir = std::env::var_os(name).map(PathBuf::from);
            dir.filter(|dir| dir.is_absolute())
        };
        Self {
            log: std::env::var("STEPBOX_LOG").ok(),
            address: std::env::var("STEPBOX_ADDRESS")
                .ok()
                .filter(|address| !address.is_empty()),
            token_file: std::env::var_os("STEPBOX_TOKEN_FILE").map(PathBuf::from),
            no_color: std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
            home: dir("HOME"),
            temp: dir("TMPDIR"),
            runtime: dir("XDG_RUNTIME_DIR"),
            cache: dir("XDG_CACHE_HOME"),
            config: dir("XDG_CONFIG_HOME"),
            data: dir("XDG_DATA_HOME"),
        }
    }

    /// The directory for what is short-lived.
    #[must_use]
    pub fn temp_dir(&self) -> &Path {
        self.temp.as_deref().unwrap_or(Path::new("/tmp"))
    }

    /// Where the user's engines keep what can be made again. None: no home is known.
    #[must_use]
    pub fn cache_dir(&self) -> Option<PathBuf> {
        let home = || self.home.as_ref().map(|home| home.join(".cache"));
        let base = self.cache.clone().or_else(home);
        base.map(|base| base.join("stepbox"))
    }

    /// Where the user's profiles are. None: no home is known.
    #[must_use]
    pub fn profiles(&self) -> Option<PathBuf> {
        let home = || self.home.as_ref().map(|home| home.join(".config"));
        let base = self.config.clone().or_else(home);
        base.map(|base| base.join("stepbox/stepbox.toml"))
    }

    /// The engine's own directories, whether they exist or not: no sandbox may see them.
    #[must_use]
    pub fn engine_dirs(&self) -> Vec<PathBuf> {
        let uid = rustix::process::geteuid().as_raw();
        let home = |below: &str| self.home.as_ref().map(|home| home.join(below));
        let bases = [
            self.cache.clone().or_else(|| home(".cache")),
            self.config.clone().or_else(|| home(".config")),
            self.data.clone().or_else(|| home(".local/share")),
            self.runtime.clone(),
        ];
        let mut dirs: Vec<_> = bases
            .into_iter()
            .flatten()
            .map(|base| base.join("stepbox"))
            .collect();
        dirs.push(format!("/var/tmp/stepbox-{uid}").into());
        dirs.push(self.temp_dir().join(format!("stepbox-{uid}")));
        dirs
    }
}

/// Flags of `serve` as they were written.
#[derive(Clone, Debug, Default)]
pub struct ServeFlags {
    pub socket: Option<PathBuf>,
    pub listen: Option<String>,
    pub token_file: Option<PathBuf>,
    pub parent_pid: Option<i32>,
    pub exit_on_stdin_eof: bool,
    pub idle_exit: Option<f64>,
    pub allow_host_path: Vec<PathBuf>,
    pub max_calls: Option<usize>,
}

/// Where the engine listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Endpoint {
    /// None: in a directory of the engine's own.
    Unix(Option<PathBuf>),
    /// A loopback address.
    Tcp(SocketAddr),
}

/// What `serve` does, parsed.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    pub endpoint: Endpoint,
    /// None: in a directory of the engine's own.
    pub token_file: Option<PathBuf>,
    /// The engine ends with this process, which must be its parent.
    pub parent: Option<i32>,
    pub exit_on_stdin_eof: bool,
    /// The engine ends after so long without a session and a call.
    pub idle_exit: Option<Duration>,
    /// Resolved directories that callers over TCP may name.
    pub allow_host_paths: Vec<PathBuf>,
    pub max_calls: usize,
    /// What calls in flight get to finish by themselves.
    pub drain: Duration,
    pub environment: Environment,
}

/// One mistake in the flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    pub flag: &'static str,
    pub description: String,
}

/// All mistakes in the flags.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, Mistake { flag, description }) in self.0.iter().enumerate() {
            let separator = if nth == 0 { "" } else { "; " };
            write!(f, "{separator}{flag}: {description}")?;
        }
        Ok(())
    }
}

impl ServeConfig {
    /// Parses the flags of `serve`.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn parse(flags: ServeFlags, environment: Environment) -> Result<Self, Mistakes> {
        let ServeFlags {
            socket,
            listen,
            token_file,
            parent_pid,
            exit_on_stdin_eof,
            idle_exit,
            allow_host_path,
            max_calls,
        } = flags;
        let mut mistakes = Vec::new();
        let mut note = |flag, description: String| mistakes.push(Mistake { flag, description });
        let endpoint = match (socket, listen) {
            (Some(_), Some(_)) => {
                note(
                    "--listen",
                    "cannot be given with --socket; an engine listens in one place".into(),
                );
                Endpoint::Unix(None)
            }
            (socket, None) => {
                if !allow_host_path.is_empty() {
                    note(
                        "--allow-host-path",
                        "is for callers over TCP; give --listen too".into(),
                    );
                }
                Endpoint::Unix(socket)
            }
            (None, Some(address)) => match parse_loopback(&address) {
                Ok(address) => Endpoint::Tcp(address),
                Err(description) => {
                    note("--listen", description);
                    Endpoint::Unix(None)
                }
            },
        };
        if parent_pid.is_some_and(|pid| pid <= 0) {
            note("--parent-pid", "is not a process".into());
        }
        let idle_exit = idle_exit.and_then(|seconds| match Duration::try_from_secs_f64(seconds) {
            Ok(limit) if !limit.is_zero() => Some(limit),
            Ok(_) | Err(_) => {
                note(
                    "--idle-exit",
                    format!("{seconds} is not a time; write seconds above 0, such as 600"),
                );
                None
            }
        });
        let mut allow_host_paths = Vec::new();
        for path in allow_host_path {
            match path.canonicalize() {
                Ok(path) => allow_host_paths.push(path),
                Err(error) => note("--allow-host-path", format!("{}: {error}", path.display())),
            }
        }
        if max_calls == Some(0) {
            note("--max-calls", "0 would refuse every call".into());
        }
        if !mistakes.is_empty() {
            return Err(Mistakes(mistakes));
        }
        Ok(Self {
            endpoint,
            token_file,
            parent: parent_pid,
            exit_on_stdin_eof,
            idle_exit,
            allow_host_paths,
            max_calls: max_calls.unwrap_or(MAX_CALLS),
            drain: DRAIN,
            environment,
        })
    }
}

/// An address that only this machine reaches.
fn parse_loopback(address: &str) -> Result<SocketAddr, String> {
    let parsed = address
        .parse::<SocketAddr>()
        .map_err(|_| format!("{address:?} is not an address; write one such as 127.0.0.1:0"))?;
    if parsed.ip().is_loopback() {
        Ok(parsed)
    } else {
        Err(format!(
            "{address} is not a loopback address, and TLS is not available in stepbox {}; write one such as 127.0.0.1:0",
            crate::VERSION
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: ServeFlags) -> Result<ServeConfig, Mistakes> {
        ServeConfig::parse(flags, Environment::default())
    }

    #[test]
    fn without_flags_the_engine_listens_on_a_unix_socket_of_its_own() {
        let config = parsed(ServeFlags::default()).expect("defaults");
        assert_eq!(config.endpoint, Endpoint::Unix(None));
        assert_eq!(config.max_calls, MAX_CALLS);
    }

    #[test]
    fn only_loopback_addresses_are_listened_on() {
        let listen = |address: &str| {
            parsed(ServeFlags {
                listen: Some(address.into()),
                ..ServeFlags::default()
            })
        };
        for address in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:0"] {
            assert!(listen(address).is_ok(), "{address}");
        }
        for address in [
            "0.0.0.0:0",
            "[::]:0",
            "192.168.1.1:80",
            "localhost:0",
            "127.0.0.1",
            "",
        ] {
            let said = listen(address).expect_err(address);
            assert!(said.to_string().contains("127.0.0.1:0"), "{said}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let said = parsed(ServeFlags {
            socket: Some("/a".into()),
            listen: Some("127.0.0.1:0".into()),
            parent_pid: Some(0),
            idle_exit: Some(-1.0),
            allow_host_path: vec!["/nonexistent/x".into()],
            max_calls: Some(0),
            ..ServeFlags::default()
        })
        .expect_err("mistakes");
        let flags: Vec<_> = said.0.iter().map(|mistake| mistake.flag).collect();
        assert_eq!(
            flags,
            [
                "--listen",
                "--parent-pid",
                "--idle-exit",
                "--allow-host-path",
                "--max-calls"
            ]
        );
    }

    #[test]
    fn the_engines_directories_follow_the_environment() {
        let environment = Environment {
            home: Some("/home/ada".into()),
            cache: Some("/moved/cache".into()),
            runtime: Some("/run/user/1".into()),
            ..Environment::default()
        };
        let dirs = environment.engine_dirs();
        for dir in [
            "/moved/cache/stepbox",
            "/home/ada/.config/stepbox",
            "/run/user/1/stepbox",
        ] {
            assert!(dirs.contains(&dir.into()), "{dir}: {dirs:?}");
        }
        assert!(!dirs.contains(&"/home/ada/.cache/stepbox".into()));
    }
}
