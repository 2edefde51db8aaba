//! The places where the engine listens, and what it leaves in the file system while it does.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::Stream;

use super::auth::{PeerRule, Token};

/// The kernel's bound on a socket's path.
const SOCKET_PATH_MOST: usize = 107;

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
    /// A directory of the engine's own, 0700.
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Leftovers {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            files: Vec::new(),
        }
    }

    /// What no sandbox may see of these.
    pub(super) fn places(&self) -> &[PathBuf] {
        &self.files
    }

    /// Writes the token where the caller asked, else in the engine's own directory.
    pub(super) fn token_file(
        &mut self,
        asked: Option<&Path>,
        token: &Token,
    ) -> Result<PathBuf, ListenError> {
        let path = match asked {
            Some(path) => path.to_owned(),
            None => self.dir.join("token"),
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
            None => self.dir.join("engine.sock"),
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

    #[tokio::test]
    async fn a_dead_engines_socket_is_replaced_and_a_live_ones_is_not() {
        let base = tempfile::tempdir().expect("tempdir");
        let path = base.path().join("sub/engine.sock");
        let leftovers = || Leftovers::new(base.path());
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
