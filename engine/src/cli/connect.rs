//! The way to an engine that runs: by the flags, else by the environment.

use std::path::{Path, PathBuf};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::args::EngineArgs;
use crate::api::pb::sandbox_client::SandboxClient;
use crate::config::Environment;

/// The largest message that an engine sends.
const MOST_BYTES: usize = 8 << 20;

/// Why an engine could not be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("no engine is named; set --address or STEPBOX_ADDRESS to unix:/path or host:port")]
    NoAddress,
    #[error("{0:?} is no address; write unix:/absolute/path or host:port")]
    Address(String),
    #[error("no token is known for {0}; set --token-file or STEPBOX_TOKEN_FILE")]
    NoToken(String),
    #[error("read the token {}: {source}", path.display())]
    Token {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the token {} is none", .0.display())]
    BadToken(PathBuf),
    #[error("reach the engine at {address}: {source}")]
    Unreachable {
        address: String,
        source: tonic::transport::Error,
    },
    #[error("start the runtime: {0}")]
    Runtime(std::io::Error),
}

/// Adds the token to each call.
#[derive(Clone)]
pub(super) struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub(super) type Client = SandboxClient<InterceptedService<Channel, Bearer>>;

/// Where an engine is.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Address {
    uri: String,
    token_file: PathBuf,
}

/// Connects to the engine that the flags name, or else the environment.
///
/// # Errors
/// None is named, its token cannot be read, or nobody listens.
pub(super) async fn connect(
    args: &EngineArgs,
    environment: &Environment,
) -> Result<Client, ConnectError> {
    let given = args.address.as_ref().or(environment.address.as_ref());
    let given = given.ok_or(ConnectError::NoAddress)?;
    let token_file = args.token_file.as_ref().or(environment.token_file.as_ref());
    let address = address(given, token_file.map(PathBuf::as_path))?;
    let bearer = bearer(&address.token_file)?;
    let unreachable = |source| ConnectError::Unreachable {
        address: given.clone(),
        source,
    };
    let channel = Endpoint::from_shared(address.uri)
        .map_err(unreachable)?
        .connect()
        .await
        .map_err(unreachable)?;
    Ok(SandboxClient::with_interceptor(channel, bearer).max_decoding_message_size(MOST_BYTES))
}

fn address(given: &str, token_file: Option<&Path>) -> Result<Address, ConnectError> {
    let socket = given
        .strip_prefix("unix:")
        .map(|path| path.strip_prefix("//").unwrap_or(path))
        .or_else(|| given.starts_with('/').then_some(given));
    if let Some(socket) = socket {
        if !socket.starts_with('/') {
            return Err(ConnectError::Address(given.to_owned()));
        }
        let beside = || Path::new(socket).with_file_name("token");
        return Ok(Address {
            uri: format!("unix:{socket}"),
            token_file: token_file.map_or_else(beside, Path::to_owned),
        });
    }
    match given.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && !given.contains('/') && port.parse::<u16>().is_ok() => {}
        _ => return Err(ConnectError::Address(given.to_owned())),
    }
    let token_file = token_file.ok_or_else(|| ConnectError::NoToken(given.to_owned()))?;
    Ok(Address {
        uri: format!("http://{given}"),
        token_file: token_file.to_owned(),
    })
}

fn bearer(path: &Path) -> Result<Bearer, ConnectError> {
    let token = std::fs::read_to_string(path).map_err(|source| ConnectError::Token {
        path: path.to_owned(),
        source,
    })?;
    format!("Bearer {}", token.trim_end())
        .parse()
        .map(|mut value: MetadataValue<Ascii>| {
            value.set_sensitive(true);
            Bearer(value)
        })
        .map_err(|_| ConnectError::BadToken(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_with_a_token_beside_it_or_a_host_with_a_token_file() {
        let found = |given: &str, token: Option<&str>| {
            let found = address(given, token.map(Path::new)).ok()?;
            Some((found.uri, found.token_file.to_str()?.to_owned()))
        };
        let pair = |uri: &str, token: &str| Some((uri.to_owned(), token.to_owned()));
        let beside = pair("unix:/r/engine.sock", "/r/token");
        for given in [
            "unix:/r/engine.sock",
            "unix:///r/engine.sock",
            "/r/engine.sock",
        ] {
            assert_eq!(found(given, None), beside, "{given}");
        }
        assert_eq!(found("/r/e", Some("/t")), pair("unix:/r/e", "/t"));
        assert_eq!(
            found("127.0.0.1:5", Some("/t")),
            pair("http://127.0.0.1:5", "/t")
        );
        for given in [
            "",
            "unix:relative",
            "host",
            "host:port",
            "http://a:5",
            ":5",
            "127.0.0.1:5",
        ] {
            assert_eq!(found(given, None), None, "{given}");
        }
    }
}
