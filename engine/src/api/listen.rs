//! The places where the engine listens, and what it leaves in the file system while it does.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::FlockOperation;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::Stream;

use super::auth::{PeerRule, Token};
use crate::config::Environment;

/// The kernel's bound on a socket's path.
const SOCKET_PATH_MOST: usize = 107;
/// What the engine's own names add to it.
const OWN_PATH_MOST: usize = 40;
const DIR_PREFIX: &str = "stepbox-engine-";
const NEW_PREFIX: &str = ".stepbox-new-";
const LOCK: &str = "lock";

/// Why the engine cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("make a directory for the engine's socket in {path}")]
    Dir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another engine listens on {0}")]
    Taken(PathBuf),
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    #[error("the socket path {0} is longer than {SOCKET_PATH_MOST} bytes")]
    TooLong(PathBuf),
    #[error("listen on {path}")]
    Unix {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("listen on {address}")]
    Tcp {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("write the token to {path}")]
    Token {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Files that go when the engine does.
#[derive(Debug)]
pub(super) struct Leftovers {
    base: PathBuf,
    files: Vec<PathBuf>,
    dir: Option<RuntimeDir>,
}

impl Leftovers {
    pub(super) fn new(environment: &Environment) -> Self {
        Self {
            base: runtime_base(environment),
            files: Vec::new(),
            dir: None,
        }
    }

    /// What no sandbox may see of these.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let dir = self.dir.iter().map(|dir| dir.path.clone());
        dir.chain(self.files.iter().cloned()).collect()
    }

    /// A directory of the engine's own, 0700.
    pub(super) fn dir(&mut self) -> Result<&Path, ListenError> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => RuntimeDir::make(&self.base)?,
        };
        Ok(&self.dir.insert(dir).path)
    }

    /// Writes the token where the caller asked, else in the engine's own directory.
    pub(super) fn token_file(
        &mut self,
        asked: Option<&Path>,
        token: &Token,
    ) -> Result<PathBuf, ListenError> {
        let path = match asked {
            Some(path) => path.to_owned(),
            None => self.dir()?.join("token"),
        };
        token.write_to(&path).map_err(|source| ListenError::Token {
            path: path.clone(),
            source,
        })?;
        self.files.push(path.clone());
        Ok(path)
    }

    /// Listens on a unix socket, 0600.
    pub(super) fn unix(
        &mut self,
        asked: Option<&Path>,
    ) -> Result<(UnixListener, PathBuf), ListenError> {
        let path = match asked {
            Some(path) => asked_socket(path)?,
            None => self.dir()?.join("engine.sock"),
        };
        if path.as_os_str().len() > SOCKET_PATH_MOST {
            return Err(ListenError::TooLong(path));
        }
        let failed = |source| ListenError::Unix {
            path: path.clone(),
            source,
        };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        self.files.push(path.clone());
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
        Ok((listener, path))
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for file in &self.files {
            // Gone already is as good.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Makes room for a socket at a path of the caller's: its parent, and a dead engine's socket out of the way.
fn asked_socket(path: &Path) -> Result<PathBuf, ListenError> {
    let path = std::path::absolute(path).map_err(|source| ListenError::Unix {
        path: path.to_owned(),
        source,
    })?;
    if let Some(parent) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|source| ListenError::Dir {
            path: parent.to_owned(),
            source,
        })?;
    }
    match std::fs::symlink_metadata(&path) {
        Err(_) => {}
        Ok(meta) if !meta.file_type().is_socket() => return Err(ListenError::NotASocket(path)),
        Ok(_) if std::os::unix::net::UnixStream::connect(&path).is_ok() => {
            return Err(ListenError::Taken(path));
        }
        Ok(_) => std::fs::remove_file(&path).map_err(|source| ListenError::Unix {
            path: path.clone(),
            source,
        })?,
    }
    Ok(path)
}

/// A directory that is locked as long as its engine lives, so that the next engine can tell a dead one's.
#[derive(Debug)]
struct RuntimeDir {
    path: PathBuf,
    _lock: File,
}

impl RuntimeDir {
    fn make(base: &Path) -> Result<Self, ListenError> {
        sweep(base);
        Self::try_make(base).map_err(|source| ListenError::Dir {
            path: base.to_owned(),
            source,
        })
    }

    /// The directory gets its name only once it is locked: before that a sweep would take it for a dead engine's.
    fn try_make(base: &Path) -> io::Result<Self> {
        let new = tempfile::Builder::new()
            .prefix(NEW_PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(base)?;
        let lock = File::create_new(new.path().join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let name = new.path().file_name().unwrap_or_default().to_string_lossy();
        let path = base.join(format!(
            "{DIR_PREFIX}{}",
            name.trim_start_matches(NEW_PREFIX)
        ));
        let made = new.keep();
        if let Err(error) = std::fs::rename(&made, &path) {
            std::fs::remove_dir_all(&made)?;
            return Err(error);
        }
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "the engine's runtime directory stays");
        }
    }
}

/// Removes the directories of engines that died without removing them.
fn sweep(base: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(DIR_PREFIX)
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == own);
        if !ours {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // One that cannot be removed now is the next sweep's.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// `$XDG_RUNTIME_DIR` where it is the caller's own, else the temporary directory; and when that is too long a path for
/// a socket, `/tmp`.
fn runtime_base(environment: &Environment) -> PathBuf {
    let own = rustix::process::geteuid().as_raw();
    let is_own = |dir: &&PathBuf| {
        std::fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == own)
    };
    let runtime = environment.runtime.as_ref().filter(is_own);
    let base = runtime.map_or_else(|| environment.temp_dir(), PathBuf::as_path);
    if base.as_os_str().len() + OWN_PATH_MOST > SOCKET_PATH_MOST {
        PathBuf::from("/tmp")
    } else {
        base.to_owned()
    }
}

/// Listens on a loopback address.
pub(super) async fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |source| ListenError::Tcp { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Connections of peers that the rule accepts; the others are closed at once.
#[derive(Debug)]
pub(super) struct Peers {
    listener: UnixListener,
    rule: PeerRule,
}

impl Peers {
    pub(super) fn new(listener: UnixListener, rule: PeerRule) -> Self {
        Self { listener, rule }
    }
}

impl Stream for Peers {
    type Item = io::Result<UnixStream>;

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<UnixStream>>> {
        loop {
            let (stream, _) = match std::task::ready!(self.listener.poll_accept(cx)) {
                Ok(accepted) => accepted,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            match self.rule.check(&stream) {
                Ok(()) => return Poll::Ready(Some(Ok(stream))),
                Err(refused) => tracing::warn!(%refused, "a connection was refused"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_directory_is_private_and_goes_with_its_engine() {
        let base = tempfile::tempdir().expect("tempdir");
        let dir = RuntimeDir::make(base.path()).expect("made");
        let meta = std::fs::metadata(&dir.path).expect("exists");
        assert_eq!(meta.permissions().mode() & 0o7777, 0o700);
        drop(dir);
        assert_eq!(std::fs::read_dir(base.path()).expect("base").count(), 0);
    }

    #[test]
    fn a_dead_engines_directory_is_swept_and_a_live_ones_stays() {
        let base = tempfile::tempdir().expect("tempdir");
        let dead = base.path().join(format!("{DIR_PREFIX}dead"));
        std::fs::create_dir(&dead).expect("mkdir");
        std::fs::write(dead.join(LOCK), "").expect("lock");
        std::fs::create_dir(base.path().join("other")).expect("mkdir");
        let live = RuntimeDir::make(base.path()).expect("made");
        let second = RuntimeDir::make(base.path()).expect("made");
        assert!(!dead.exists());
        assert!(live.path.exists() && second.path.exists() && base.path().join("other").exists());
    }

    #[tokio::test]
    async fn a_dead_engines_socket_is_replaced_and_a_live_ones_is_not() {
        let base = tempfile::tempdir().expect("tempdir");
        let path = base.path().join("sub/engine.sock");
        let leftovers = || Leftovers::new(&Environment::default());
        let mut first = leftovers();
        let (listener, _) = first.unix(Some(&path)).expect("listening");
        let mode = std::fs::metadata(&path)
            .expect("exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(matches!(
            leftovers().unix(Some(&path)),
            Err(ListenError::Taken(_))
        ));
        drop(listener);
        let mut second = leftovers();
        assert!(second.unix(Some(&path)).is_ok());
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "mine").expect("write");
        assert!(matches!(
            leftovers().unix(Some(&path)),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
    }
}
