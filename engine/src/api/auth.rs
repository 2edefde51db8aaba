//! Who may call: the token of every call, and the peer of a unix socket.
//!
//! The uid alone is not enough on a unix socket: rootless sandboxes run as the caller's own uid, and one that reached
//! the socket through a mount would be taken for the caller. So a peer must also live in the engine's own user and pid
//! namespaces, which no sandbox does, and know the token.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

const TOKEN_BYTES: usize = 32;

/// The secret that every call bears. Prints as `****`.
#[derive(Clone, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// In constant time, whatever the other holds.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.0.as_bytes())
    }
}

impl Token {
    /// A new secret of 256 random bits, in hexadecimal.
    ///
    /// # Errors
    /// The kernel has no randomness to give.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        random(&mut bytes)?;
        Ok(Self(hexadecimal(&bytes)))
    }

    /// Writes the token to a new file that only its owner may read.
    ///
    /// # Errors
    /// The file exists already, or cannot be made.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(self.0.as_bytes())
    }

    /// Whether a presented secret is this one. The time taken does not depend on where they differ.
    #[must_use]
    pub fn is(&self, presented: &[u8]) -> bool {
        let own = self.0.as_bytes();
        if own.len() != presented.len() {
            return false;
        }
        let differing = own
            .iter()
            .zip(presented)
            .fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }

    /// Whether an `authorization` header's value bears this token.
    #[must_use]
    pub fn is_borne_by(&self, authorization: &[u8]) -> bool {
        let scheme = authorization
            .get(..7)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        scheme && self.is(&authorization[7..])
    }
}

/// Fills a buffer with random bytes.
pub(super) fn random(buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        filled +=
            rustix::rand::getrandom(&mut buffer[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Why a peer of the unix socket was turned away.
#[derive(Debug, thiserror::Error)]
pub enum PeerRefused {
    #[error("read the peer's credentials")]
    Credentials(#[source] io::Error),
    #[error("the peer's uid is {0}")]
    Uid(u32),
    #[error("the peer is of a pid namespace that the engine cannot see into")]
    Unseen,
    #[error("read {path}")]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the peer's {0} namespace is not the engine's")]
    Foreign(&'static str),
}

/// Whose calls a unix socket takes.
#[derive(Clone, Debug)]
pub struct PeerRule {
    uid: u32,
    namespaces: Vec<(&'static str, PathBuf)>,
}

impl PeerRule {
    /// The rule of this process: its own uid or root, from its own user and pid namespaces.
    ///
    /// # Errors
    /// `/proc` does not tell the process's own namespaces.
    pub fn own() -> Result<Self, PeerRefused> {
        let own = |name| Ok((name, namespace("self", name)?));
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            namespaces: vec![own("user")?, own("pid")?],
        })
    }

    /// Judges a peer at accept.
    ///
    /// # Errors
    /// What about the peer is not as the rule says.
    pub fn check(&self, stream: &UnixStream) -> Result<(), PeerRefused> {
        let peer = stream.peer_cred().map_err(PeerRefused::Credentials)?;
        self.check_process(peer.uid(), peer.pid().unwrap_or(0))
    }

    fn check_process(&self, uid: u32, pid: i32) -> Result<(), PeerRefused> {
        if uid != self.uid && uid != 0 {
            return Err(PeerRefused::Uid(uid));
        }
        if pid <= 0 {
            return Err(PeerRefused::Unseen);
        }
        for (name, own) in &self.namespaces {
            if namespace(&pid.to_string(), name)? != *own {
                return Err(PeerRefused::Foreign(name));
            }
        }
        Ok(())
    }
}

fn namespace(process: &str, name: &str) -> Result<PathBuf, PeerRefused> {
    let path = PathBuf::from(format!("/proc/{process}/ns/{name}"));
    std::fs::read_link(&path).map_err(|source| PeerRefused::Namespace { path, source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_256_random_bits_and_does_not_print() {
        let (one, two) = (
            Token::generate().expect("random"),
            Token::generate().expect("random"),
        );
        assert_eq!(one.0.len(), 64);
        assert_ne!(one, two);
        assert_eq!(format!("{one:?}"), "****");
    }

    #[test]
    fn only_the_whole_token_behind_the_right_scheme_is_borne() {
        let token = Token("ab12".into());
        for (header, right) in [
            ("Bearer ab12", true),
            ("bearer ab12", true),
            ("Bearer ab1", false),
            ("Bearer ab123", false),
            ("Bearer AB12", false),
            ("Basic ab12", false),
            ("ab12", false),
            ("", false),
            ("Bearer ", false),
        ] {
            assert_eq!(token.is_borne_by(header.as_bytes()), right, "{header}");
        }
    }

    #[test]
    fn a_token_file_is_its_owners_alone_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("token");
        let token = Token::generate().expect("random");
        token.write_to(&path).expect("written");
        assert_eq!(
            std::fs::metadata(&path)
                .expect("exists")
                .permissions()
                .mode()
                & 0o7777,
            0o600
        );
        assert_eq!(std::fs::read(&path).expect("read"), token.0.as_bytes());
        assert!(token.write_to(&path).is_err());
    }

    #[test]
    fn a_peer_of_another_uid_or_namespace_is_refused_and_the_own_one_accepted() {
        let own = PeerRule::own().expect("rule");
        let pid = i32::try_from(std::process::id()).expect("pid");
        assert!(own.check_process(own.uid, pid).is_ok());
        assert!(matches!(
            own.check_process(own.uid + 1, pid),
            Err(PeerRefused::Uid(_))
        ));
        assert!(matches!(
            own.check_process(own.uid, 0),
            Err(PeerRefused::Unseen)
        ));
        let foreign = PeerRule {
            namespaces: vec![("user", "user:[1]".into())],
            ..own.clone()
        };
        assert!(matches!(
            foreign.check_process(own.uid, pid),
            Err(PeerRefused::Foreign("user"))
        ));
    }

    #[tokio::test]
    async fn a_peer_of_this_process_is_accepted_through_a_real_socket() {
        let (one, _two) = UnixStream::pair().expect("pair");
        PeerRule::own()
            .expect("rule")
            .check(&one)
            .expect("accepted");
    }
}
