//! The flags of every command.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::ServeFlags;
use crate::spec::parse_size;

/// Runs code that a language model wrote in Linux sandboxes.
#[derive(Debug, Parser)]
#[command(name = "stepbox", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve sandboxes over gRPC, on a unix socket or a loopback address.
    Serve(ServeArgs),
    /// Run code once in a fresh sandbox; its stdin is empty, the exit code is the program's.
    Run(RunArgs),
    /// Say what this host gives, what is missing, and the command that mends it.
    Doctor(DoctorArgs),
    /// Print the steps by which a sandbox is made.
    Plan(PlanArgs),
    /// List, use and end the sessions of the user's standing engine.
    Session(SessionArgs),
    /// List, read, write and search the files of a session of a running engine.
    Files(FilesArgs),
    /// Print the completions of a shell, for its start-up file: source <(stepbox completions bash)
    Completions(CompletionsArgs),
}

#[derive(Clone, Debug, Args)]
pub struct SessionArgs {
    /// The socket of another engine than the standing one
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    #[command(subcommand)]
    pub command: SessionCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum SessionCommand {
    /// List the sessions that live.
    Ls {
        /// One JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run a program in a session, with this command's streams; the exit code is the program's.
    Attach {
        /// Its id or name
        #[arg(value_name = "SESSION")]
        session: String,
        /// The program and its arguments [default: bash, which reads its commands from the input]
        #[arg(last = true, value_name = "ARGUMENT")]
        argv: Vec<std::ffi::OsString>,
    },
    /// Close sessions, whoever uses them.
    Rm {
        /// Ids or names
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
    },
}

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Listen on this unix socket [default: in a private directory below $XDG_RUNTIME_DIR or $TMPDIR]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Listen on this loopback address instead, such as 127.0.0.1:0
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Write the token to this new file [default: in a private directory]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// End when this process, which must be the parent, ends
    #[arg(long, value_name = "PID")]
    pub parent_pid: Option<i32>,
    /// End when stdin does
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// End after so many seconds without a session and a call
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<f64>,
    /// Let callers over TCP name host paths in this directory (repeatable)
    #[arg(long, value_name = "DIR")]
    pub allow_host_path: Vec<PathBuf>,
    /// Calls in flight at once [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub max_calls: Option<usize>,
    /// full, or reduced: only sandboxes without namespaces, for hosts that have none
    #[arg(long, value_name = "ISOLATION")]
    pub isolation: Option<IsolationArg>,
}

impl From<ServeArgs> for ServeFlags {
    fn from(args: ServeArgs) -> Self {
        let ServeArgs {
            socket,
            listen,
            token_file,
            parent_pid,
            exit_on_stdin_eof,
            idle_exit,
            allow_host_path,
            max_calls,
            isolation: _,
        } = args;
        Self {
            socket,
            listen,
            token_file,
            parent_pid,
            exit_on_stdin_eof,
            idle_exit,
            allow_host_path,
            max_calls,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("source").args(["code", "file"]).required(true))]
pub struct RunArgs {
    /// python, bash, sh or javascript [default: by the file's ending, else python]
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,
    /// Mount this directory as the workspace [default: a private one, removed at the end]
    #[arg(short, long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Memory cap in MiB, or none [default: 512]
    #[arg(long, value_name = "MIB")]
    pub memory_mb: Option<CapArg<u64>>,
    /// Cap on tasks, or none [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<CapArg<u64>>,
    /// Cap on cores, such as 0.5, or none [default: none]
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<CapArg<f64>>,
    /// Run though a cap cannot be enforced on this host
    #[arg(long)]
    pub no_enforce_limits: bool,
    /// Time limit in seconds [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub timeout_s: Option<f64>,
    /// Most that workspace, home and caches hold, such as 2g, or none [default: 10g, or a tenth of the free disk]
    #[arg(long, value_name = "SIZE")]
    pub workspace_max_bytes: Option<CapArg<Bytes>>,
    /// Most files, directories and links in them, or none [default: none]
    #[arg(long, value_name = "COUNT")]
    pub workspace_max_files: Option<CapArg<u64>>,
    /// Take what is not given from stepbox.toml: vcpu:NAME, vdisk:NAME or vgpio:NAME (repeatable)
    #[arg(long, value_name = "KIND:NAME")]
    pub profile: Vec<String>,
    /// Set an environment variable (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<EnvArg>,
    /// Mount a directory or file of the host (repeatable)
    #[arg(long, value_name = "SOURCE:TARGET[:ro|:rw]")]
    pub mount: Vec<MountArg>,
    /// Mount directories though they hold unix sockets
    #[arg(long)]
    pub allow_sockets: bool,
    /// default, or untrusted for code that may mean harm
    #[arg(long, value_name = "PROFILE")]
    pub security_profile: Option<ProfileArg>,
    /// full, or reduced: without namespaces, for hosts that have none
    #[arg(long, value_name = "ISOLATION")]
    pub isolation: Option<IsolationArg>,
    /// Keep the capabilities of a container but these, or `none` to drop none of them (repeatable) [default: ALL]
    #[arg(long, value_name = "CAPABILITY")]
    pub cap_drop: Vec<String>,
    /// Run as this user of the image: a name, or UID[:GID]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Print the whole result as JSON
    #[arg(long)]
    pub json: bool,
    /// The code itself
    #[arg(short, value_name = "CODE")]
    pub code: Option<String>,
    /// The file that holds the code; - is stdin
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What the code sees after its own name
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<std::ffi::OsString>,
}

#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which running engine.
#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// Where the engine listens, as unix:/path or host:port [default: $STEPBOX_ADDRESS]
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub address: Option<String>,
    /// The file with its token [default: $STEPBOX_TOKEN_FILE, else `token` beside the socket]
    #[arg(long, value_name = "PATH", global = true)]
    pub token_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct FilesArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: FilesCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum FilesCommand {
    /// List a directory.
    Ls {
        session: String,
        /// Relative to the workspace [default: the workspace]
        path: Option<std::ffi::OsString>,
        /// With what is below it
        #[arg(short, long)]
        recursive: bool,
        /// With kind, mode and size
        #[arg(short)]
        long: bool,
    },
    /// Print a file.
    Cat {
        session: String,
        path: std::ffi::OsString,
    },
    /// Copy a file of the host into the workspace.
    Put {
        session: String,
        /// A file of the host; - is stdin
        local: PathBuf,
        path: std::ffi::OsString,
    },
    /// Copy a file of the workspace to the host.
    Get {
        session: String,
        path: std::ffi::OsString,
        /// Where to; - is stdout [default: its name, here]
        local: Option<PathBuf>,
    },
    /// Remove files and empty directories.
    Rm {
        session: String,
        #[arg(required = true)]
        paths: Vec<std::ffi::OsString>,
        /// Directories with what is in them
        #[arg(short, long)]
        recursive: bool,
    },
    /// List what a pattern matches, such as '**/*.py'.
    Glob {
        session: String,
        pattern: String,
        /// Below this directory
        path: Option<std::ffi::OsString>,
        /// Only regular files
        #[arg(long)]
        files_only: bool,
    },
    /// Print the lines that match a regular expression; exit code 1 when there are none.
    Grep {
        session: String,
        pattern: String,
        /// A file, or a directory with what is below it
        path: Option<std::ffi::OsString>,
        /// Letters of either case match
        #[arg(short, long)]
        ignore_case: bool,
        /// The pattern is text
        #[arg(short = 'F', long)]
        literal: bool,
        /// Only files that match this
        #[arg(short, long, value_name = "PATTERN")]
        glob: Option<String>,
        /// Lines at most
        #[arg(short, long, value_name = "COUNT", default_value_t = 10_000,
              value_parser = clap::value_parser!(u32).range(1..))]
        max_count: u32,
    },
}

#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    pub shell: ShellArg,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum ProfileArg {
    Default,
    Untrusted,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum IsolationArg {
    Full,
    Reduced,
}

/// Bytes, as a number with a unit or without one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bytes(pub u64);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().or_else(|_| parse_size(text)).map(Self)
    }
}

/// A cap, or `none` for no cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CapArg<T> {
    None,
    Max(T),
}

impl<T: std::str::FromStr<Err: std::fmt::Display>> std::str::FromStr for CapArg<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse()
            .map(Self::Max)
            .map_err(|error: T::Err| format!("{error}; write a number or none"))
    }
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnvArg {
    pub name: String,
    pub value: String,
}

impl std::str::FromStr for EnvArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            // The text is not repeated: it may be a secret.
            Some(_) | None => Err("write NAME=VALUE".to_owned()),
        }
    }
}

/// `SOURCE:TARGET[:ro|:rw]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountArg {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

impl std::str::FromStr for MountArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (paths, read_only) = match text.rsplit_once(':') {
            Some((paths, "ro")) => (paths, true),
            Some((paths, "rw")) => (paths, false),
            Some((_, mode)) if !mode.starts_with('/') => {
                return Err(format!("{mode:?} is no mode; write :ro or :rw"));
            }
            Some(_) | None => (text, false),
        };
        match paths.rsplit_once(':') {
            Some((source, target)) if !source.is_empty() && !target.is_empty() => Ok(Self {
                source: source.into(),
                target: target.into(),
                read_only,
            }),
            Some(_) | None => {
                Err("write SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(words: &[&str]) -> Result<Command, clap::Error> {
        let words = std::iter::once("stepbox").chain(words.iter().copied());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_a_file_stdin_or_code_and_then_arguments() {
        let run = |words: &[&str]| match parsed(words) {
            Ok(Command::Run(args)) => args,
            other => panic!("{other:?}"),
        };
        assert_eq!(run(&["run", "a.py", "--", "-x", "1"]).args, ["-x", "1"]);
        assert_eq!(run(&["run", "-"]).file, Some("-".into()));
        let coded = run(&[
            "run",
            "-c",
            "print(1)",
            "--memory-mb",
            "64",
            "--env",
            "A=b=c",
            "--",
            "z",
        ]);
        assert_eq!(coded.code.as_deref(), Some("print(1)"));
        assert_eq!(coded.env[0].value, "b=c");
        assert_eq!(coded.args, ["z"]);
        assert!(parsed(&["run"]).is_err());
        assert!(parsed(&["run", "-c", "x", "a.py"]).is_err());
    }

    #[test]
    fn a_cap_is_a_number_or_none() {
        assert_eq!("none".parse(), Ok(CapArg::<u64>::None));
        assert_eq!("64".parse(), Ok(CapArg::Max(64_u64)));
        assert_eq!("0.5".parse(), Ok(CapArg::Max(0.5)));
        assert_eq!("2g".parse(), Ok(CapArg::Max(Bytes(2 << 30))));
        assert_eq!("4096".parse(), Ok(CapArg::Max(Bytes(4096))));
        for text in ["", "None", "1.5", "-1"] {
            let said = text.parse::<CapArg<u64>>().expect_err(text);
            assert!(said.ends_with("; write a number or none"), "{said}");
        }
    }

    #[test]
    fn a_mount_is_source_target_and_mode() {
        let mount = |text: &str| text.parse::<MountArg>();
        let right = |source: &str, target: &str, read_only| {
            Ok(MountArg {
                source: source.into(),
                target: target.into(),
                read_only,
            })
        };
        assert_eq!(mount("/a:/b"), right("/a", "/b", false));
        assert_eq!(mount("/a:/b:ro"), right("/a", "/b", true));
        assert_eq!(mount("/a:x:/b:rw"), right("/a:x", "/b", false));
        for text in ["", "/a", "/a:", ":/b", "/a:ro"] {
            assert!(mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_env_without_a_value_is_refused_and_not_repeated() {
        let said = "secret".parse::<EnvArg>().expect_err("refused");
        assert!(!said.contains("secret"));
        assert!("=x".parse::<EnvArg>().is_err());
    }
}
