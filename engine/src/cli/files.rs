//! `stepbox files`: the files of a session of a running engine.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::args::{FilesArgs, FilesCommand};
use super::connect::{Client, ConnectError, connect};
use super::{refuse, written};
use crate::api::pb;
use crate::config::Environment;
use crate::workspace::display;

/// Data of one message.
const CHUNK: usize = 1 << 20;
/// From this size on a copy shows how far it is.
const SLOW: u64 = 16 << 20;
/// `grep` found no line.
const NONE: u8 = 1;

#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What the engine said, alone.
    #[error("{0}")]
    Refused(String),
    #[error("{}: {source}", path.display())]
    Local { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error("the search ended at its budget; there is more, so name a directory")]
    Truncated,
}

impl From<Status> for FilesError {
    fn from(status: Status) -> Self {
        Self::Refused(match status.message() {
            "" => status.code().to_string(),
            message => message.to_owned(),
        })
    }
}

pub(super) fn main(args: FilesArgs, environment: &Environment) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(carry_out(args, environment)),
        Err(error) => Err(ConnectError::Runtime(error).into()),
    };
    match ended {
        Ok(code) => code,
        Err(FilesError::Output(error)) => written(Err(error)),
        Err(error) => refuse(&error),
    }
}

async fn carry_out(args: FilesArgs, environment: &Environment) -> Result<ExitCode, FilesError> {
    let FilesArgs {
        engine,
        json,
        command,
    } = args;
    let mut client = connect(&engine, environment).await?;
    let mut page = Page::new(json, environment);
    match command {
        FilesCommand::Ls {
            session,
            path,
            recursive,
            long,
        } => {
            let request = pb::ListFilesRequest {
                session_id: session,
                path: bytes_of(path.as_deref()),
                recursive,
                files_only: false,
            };
            let found = client.list_files(request).await?.into_inner();
            entries(found, &mut page, long).await?;
        }
        FilesCommand::Glob {
            session,
            pattern,
            path,
            files_only,
        } => {
            let request = pb::GlobFilesRequest {
                session_id: session,
                pattern,
                path: bytes_of(path.as_deref()),
                files_only,
            };
            let found = client.glob_files(request).await?.into_inner();
            entries(found, &mut page, false).await?;
        }
        FilesCommand::Cat { session, path } => {
            cat(&mut client, session, &path, &mut page).await?;
        }
        FilesCommand::Put {
            session,
            local,
            path,
        } => put(&mut client, session, local, &path, &mut page).await?,
        FilesCommand::Get {
            session,
            path,
            local,
        } => get(&mut client, session, &path, local, &mut page).await?,
        FilesCommand::Rm {
            session,
            paths,
            recursive,
        } => {
            for path in &paths {
                let request = pb::RemoveRequest {
                    session_id: session.clone(),
                    path: bytes_of(Some(path)),
                    recursive,
                };
                client.remove(request).await?;
            }
            page.json_only(json!({"removed_count": paths.len()}))?;
        }
        FilesCommand::Grep {
            session,
            pattern,
            path,
            ignore_case,
            literal,
            glob,
            max_count,
        } => {
            let request = pb::GrepFilesRequest {
                session_id: session,
                pattern,
                path: bytes_of(path.as_deref()),
                literal,
                ignore_case,
                glob,
                max_count,
            };
            let found = client.grep_files(request).await?.into_inner();
            return lines(found, &mut page).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn bytes_of(path: Option<&OsStr>) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(path.unwrap_or_default().as_bytes())
}

/// What is printed, and how: for a program as it is, for a person without what would drive the terminal.
struct Page {
    json: bool,
    terminal: bool,
    color: bool,
}

impl Page {
    fn new(json: bool, environment: &Environment) -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            json,
            terminal,
            color: terminal && !environment.no_color,
        }
    }

    fn name(&self, path: &[u8]) -> Vec<u8> {
        if self.terminal {
            display(path).into_bytes()
        } else {
            path.to_vec()
        }
    }

    fn painted(&self, text: Vec<u8>, color: &str) -> Vec<u8> {
        if self.color {
            [b"\x1b[", color.as_bytes(), b"m", &text, b"\x1b[0m"].concat()
        } else {
            text
        }
    }

    fn line(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(&parts.concat())?;
        out.write_all(b"\n")
    }

    fn json_only(&mut self, value: Value) -> io::Result<()> {
        if self.json {
            self.line(&[value.to_string().as_bytes()])
        } else {
            Ok(())
        }
    }
}

async fn entries(
    mut found: Streaming<pb::ListFilesResponse>,
    page: &mut Page,
    long: bool,
) -> Result<(), FilesError> {
    let mut told = Vec::new();
    let mut truncated = false;
    while let Some(message) = found.message().await? {
        truncated |= message.truncated;
        for entry in message.files {
            if page.json {
                told.push(described(&entry));
                continue;
            }
            let directory = entry.kind() == pb::FileKind::Dir;
            let name = match page.name(&entry.path) {
                name if directory => page.painted([&name[..], b"/"].concat(), "34"),
                name if entry.kind() == pb::FileKind::Symlink => page.painted(name, "36"),
                name => name,
            };
            if long {
                let facts = format!("{:04o} {:>12} {:<8}", entry.mode, entry.size, word(&entry));
                page.line(&[facts.as_bytes(), &name])?;
            } else {
                page.line(&[&name])?;
            }
        }
    }
    page.json_only(json!({"files": told, "truncated": truncated}))?;
    if truncated && !page.json {
        return Err(FilesError::Truncated);
    }
    Ok(())
}

fn word(entry: &pb::FileStat) -> String {
    let name = entry.kind().as_str_name();
    name.trim_start_matches("FILE_KIND_").to_ascii_lowercase()
}

fn described(entry: &pb::FileStat) -> Value {
    json!({
        "path": entry.display_path,
        "kind": word(entry),
        "size": entry.size,
        "mode": entry.mode,
        "modified_unix_ns": entry.modified_unix_ns,
        "link_target": entry.link_target.as_deref().map(String::from_utf8_lossy),
    })
}

async fn lines(
    mut found: Streaming<pb::GrepFilesResponse>,
    page: &mut Page,
) -> Result<ExitCode, FilesError> {
    let mut told = Vec::new();
    let mut count = 0;
    let (mut truncated, mut binary) = (false, 0);
    while let Some(message) = found.message().await? {
        truncated |= message.truncated;
        binary += message.binary_files_count;
        count += message.matches.len();
        for found in message.matches {
            if page.json {
                told.push(json!({
                    "path": found.display_path,
                    "line_number": found.line_number,
                    "line": String::from_utf8_lossy(&found.line),
                }));
                continue;
            }
            let name = page.painted(page.name(&found.path), "35");
            let number = page.painted(found.line_number.to_string().into_bytes(), "32");
            let line = if page.terminal {
                display_line(&found.line)
            } else {
                found.line.to_vec()
            };
            page.line(&[&name, b":", &number, b":", &line])?;
        }
    }
    page.json_only(json!({"matches": told, "truncated": truncated, "binary_files_count": binary}))?;
    if !page.json {
        let mut err = io::stderr().lock();
        if truncated {
            // Nobody to tell is nobody to tell.
            let _ = writeln!(
                err,
                "stepbox: there may be more lines; the search ended at its bound"
            );
        }
        if binary > 0 {
            let _ = writeln!(err, "stepbox: {binary} binary files were passed over");
        }
    }
    Ok(if count == 0 {
        NONE.into()
    } else {
        ExitCode::SUCCESS
    })
}

/// As a name is shown, but for tabs and backslashes, which lines are full of.
fn display_line(line: &[u8]) -> Vec<u8> {
    let part = |part: &[u8]| display(part);
    let tabs = line.split(|byte| *byte == b'\t').map(|between| {
        let pieces = between.split(|byte| *byte == b'\\').map(part);
        pieces.collect::<Vec<_>>().join("\\")
    });
    tabs.collect::<Vec<_>>().join("\t").into_bytes()
}

async fn read(
    client: &mut Client,
    session: String,
    path: &OsStr,
) -> Result<Streaming<pb::ReadFileResponse>, FilesError> {
    let request = pb::ReadFileRequest {
        session_id: session,
        path: bytes_of(Some(path)),
        max_bytes: Some(u64::MAX),
        ..pb::ReadFileRequest::default()
    };
    Ok(client.read_file(request).await?.into_inner())
}

async fn cat(
    client: &mut Client,
    session: String,
    path: &OsStr,
    page: &mut Page,
) -> Result<(), FilesError> {
    let mut data = read(client, session, path).await?;
    let mut whole = Vec::new();
    while let Some(message) = data.message().await? {
        if page.json {
            whole.extend_from_slice(&message.data);
        } else {
            io::stdout().lock().write_all(&message.data)?;
        }
    }
    page.json_only(json!({
        "path": path.to_string_lossy(),
        "size_bytes": whole.len(),
        "text": String::from_utf8_lossy(&whole),
    }))?;
    Ok(())
}

async fn put(
    client: &mut Client,
    session: String,
    local: PathBuf,
    path: &OsStr,
    page: &mut Page,
) -> Result<(), FilesError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| FilesError::Local {
        path: local.clone(),
        source,
    };
    let (mut source, mode, size): (Box<dyn Read + Send>, _, _) = if local == Path::new("-") {
        (Box::new(io::stdin()), None, 0)
    } else {
        let file = std::fs::File::open(&local).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        let mode = facts.permissions().mode() & 0o777;
        (Box::new(file), Some(mode), facts.len())
    };
    let (out, requests) = mpsc::channel::<pb::WriteFileRequest>(2);
    let first = pb::WriteFileRequest {
        session_id: session,
        path: bytes_of(Some(path)),
        mode,
        ..pb::WriteFileRequest::default()
    };
    let (broken, why) = tokio::sync::oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut progress = Progress::new(size);
        let mut request = first;
        loop {
            let mut chunk = Vec::new();
            match source.by_ref().take(CHUNK as u64).read_to_end(&mut chunk) {
                Ok(count) => progress.step(count),
                Err(error) => {
                    let _ = broken.send(error);
                    // Without an end the engine writes nothing.
                    return Some(out);
                }
            }
            let last = chunk.is_empty();
            request.data = chunk.into();
            // An engine that refuses the rest says why itself.
            if out.blocking_send(std::mem::take(&mut request)).is_err() || last {
                return None;
            }
        }
    });
    let sent = client.write_file(ReceiverStream::new(requests).fuse());
    let reply = tokio::select! {
        reply = sent => reply?.into_inner(),
        Ok(error) = why => return Err(failed(error)),
    };
    drop(reading);
    page.json_only(json!({"path": path.to_string_lossy(), "size_bytes": reply.size_bytes}))?;
    Ok(())
}

async fn get(
    client: &mut Client,
    session: String,
    path: &OsStr,
    local: Option<PathBuf>,
    page: &mut Page,
) -> Result<(), FilesError> {
    let mut data = read(client, session, path).await?;
    let name = Path::new(path).file_name().unwrap_or(path);
    let local = local.unwrap_or_else(|| PathBuf::from(name));
    let local = if local.is_dir() {
        local.join(name)
    } else {
        local
    };
    let failed = |source| FilesError::Local {
        path: local.clone(),
        source,
    };
    let mut size = 0;
    if local == Path::new("-") {
        while let Some(message) = data.message().await? {
            io::stdout().lock().write_all(&message.data)?;
        }
        return Ok(());
    }
    // It appears whole or not at all.
    let directory = match local.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(failed)?;
    let mut progress: Option<Progress> = None;
    while let Some(message) = data.message().await? {
        file.write_all(&message.data).map_err(failed)?;
        size += message.data.len() as u64;
        progress
            .get_or_insert_with(|| Progress::new(message.size_bytes))
            .step(message.data.len());
    }
    file.persist(&local).map_err(|error| failed(error.error))?;
    let told = json!({"path": local.to_string_lossy(), "size_bytes": size});
    page.json_only(told)?;
    Ok(())
}

/// How far a long copy is, for who sits at a terminal.
struct Progress {
    total: u64,
    done: u64,
    shown: bool,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self {
            total,
            done: 0,
            shown: total >= SLOW && io::stderr().is_terminal(),
        }
    }

    fn step(&mut self, count: usize) {
        self.done += count as u64;
        if self.shown {
            let percent = self.done.saturating_mul(100) / self.total.max(1);
            // Nobody to tell is nobody to tell.
            let _ = write!(io::stderr(), "\r{percent:>3} % of {} MiB", self.total >> 20);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_at_a_terminal_cannot_drive_it() {
        assert_eq!(display_line(b"a\tb \\n"), b"a\tb \\n");
        assert_eq!(display_line(b"\x1b[2Jx"), b"\\u{1b}[2Jx");
    }
}
