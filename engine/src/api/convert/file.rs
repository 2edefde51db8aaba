//! File requests of the wire, and entries to it.

use bytes::Bytes;
use tonic::Status;

use crate::api::pb;
use crate::api::status;
use crate::outcome::FileStat;
use crate::workspace::{FileError, FileReason};

use super::result::kind;
use super::session_id;

/// `ReadFile` refuses a larger file unless the caller says else.
const READ_MOST_BYTES: u64 = 1 << 30;
/// What one path may take: the kernel's own bound.
const PATH_MOST_BYTES: usize = 4096;
const PERMISSIONS: u32 = 0o777;

/// The first message of a `WriteFile`.
#[derive(Debug)]
pub struct WriteStart {
    pub id: String,
    pub path: Vec<u8>,
    pub mode: Option<u32>,
    pub data: Bytes,
}

/// The first message of a `WriteFile`. Set-id bits are left out of the mode: a sandbox's file must not carry them.
///
/// # Errors
/// `INVALID_ARGUMENT` for a session or path that cannot be.
pub fn write_start(request: pb::WriteFileRequest) -> Result<WriteStart, Status> {
    let pb::WriteFileRequest {
        session_id: id,
        path,
        data,
        mode,
    } = request;
    Ok(WriteStart {
        id: session_id(id)?,
        path: named(path)?,
        mode: mode.map(|mode| mode & PERMISSIONS),
        data,
    })
}

/// Any later message of a `WriteFile`: only data.
///
/// # Errors
/// `INVALID_ARGUMENT` when it names a file again.
pub fn write_more(request: pb::WriteFileRequest) -> Result<Bytes, Status> {
    let pb::WriteFileRequest {
        session_id,
        path,
        data,
        mode,
    } = request;
    if session_id.is_empty() && path.is_empty() && mode.is_none() {
        Ok(data)
    } else {
        Err(status::invalid_field(
            "path",
            "only the first message of a stream names the file; write one stream for each file",
        ))
    }
}

/// A `ReadFile`, taken apart.
#[derive(Debug)]
pub struct Read {
    pub id: String,
    pub path: Vec<u8>,
    pub offset: u64,
    pub length: Option<u64>,
    pub max: u64,
}

/// A `ReadFile`.
///
/// # Errors
/// `INVALID_ARGUMENT` for a session or path that cannot be.
pub fn read(request: pb::ReadFileRequest) -> Result<Read, Status> {
    let pb::ReadFileRequest {
        session_id: id,
        path,
        offset,
        length,
        max_bytes,
    } = request;
    Ok(Read {
        id: session_id(id)?,
        path: named(path)?,
        offset,
        length,
        max: max_bytes.unwrap_or(READ_MOST_BYTES),
    })
}

/// A path that must name something.
///
/// # Errors
/// `INVALID_ARGUMENT` with the reason `invalid_path`.
pub fn named(path: Bytes) -> Result<Vec<u8>, Status> {
    if path.is_empty() {
        return Err(refused(
            &path,
            "the path is empty; write one relative to the workspace",
        ));
    }
    place(path)
}

/// A path that may be the workspace itself, as an empty one.
///
/// # Errors
/// `INVALID_ARGUMENT` with the reason `invalid_path`.
pub fn place(path: Bytes) -> Result<Vec<u8>, Status> {
    if path.contains(&0) {
        return Err(refused(&path, "a path cannot hold a NUL byte"));
    }
    if path.len() >= PATH_MOST_BYTES {
        return Err(refused(&path, "the path is longer than 4095 bytes"));
    }
    Ok(path.into())
}

fn refused(path: &[u8], message: &str) -> Status {
    let shown = String::from_utf8_lossy(&path[..path.len().min(128)])
        .escape_debug()
        .to_string();
    status::file(FileError {
        path: shown,
        reason: FileReason::InvalidPath,
        message: message.to_owned(),
    })
}

/// An entry to the wire.
#[must_use]
pub fn stat(stat: FileStat) -> pb::FileStat {
    let FileStat {
        path,
        kind: of,
        size,
        mode,
        modified_ns,
        link_target,
    } = stat;
    pb::FileStat {
        display_path: String::from_utf8_lossy(&path).into_owned(),
        path: path.into(),
        kind: kind(of).into(),
        size,
        mode,
        modified_unix_ns: modified_ns,
        link_target: link_target.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;
    use crate::outcome::FileKind;

    #[test]
    fn paths_that_cannot_be_are_refused_with_their_reason() {
        for path in [&b""[..], b"a\0b", &[b'x'; 4096]] {
            let status = named(Bytes::copy_from_slice(path)).expect_err("refused");
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert_eq!(
                status.get_details_error_info().expect("info").reason,
                "invalid_path"
            );
        }
        assert_eq!(place(Bytes::new()).expect("the workspace"), b"");
        assert_eq!(
            named(Bytes::from_static(b"a\xff\n")).expect("a path"),
            b"a\xff\n"
        );
    }

    #[test]
    fn set_id_bits_are_left_out() {
        let start = write_start(pb::WriteFileRequest {
            session_id: "s".into(),
            path: Bytes::from_static(b"a"),
            data: Bytes::new(),
            mode: Some(0o106755),
        })
        .expect("parsed");
        assert_eq!(start.mode, Some(0o755));
    }

    #[test]
    fn a_later_message_that_names_a_file_is_refused() {
        let more = |path: &'static [u8]| {
            write_more(pb::WriteFileRequest {
                path: Bytes::from_static(path),
                data: Bytes::from_static(b"x"),
                ..pb::WriteFileRequest::default()
            })
        };
        assert_eq!(more(b"").expect("data"), "x");
        assert!(more(b"other").is_err());
    }

    #[test]
    fn an_entry_keeps_every_field() {
        let wire = stat(FileStat {
            path: b"l\xff".to_vec(),
            kind: FileKind::Symlink,
            size: 3,
            mode: 0o777,
            modified_ns: -5,
            link_target: Some(b"../x".to_vec()),
        });
        assert_eq!(wire.kind(), pb::FileKind::Symlink);
        assert_eq!(
            (wire.size, wire.mode, wire.modified_unix_ns),
            (3, 0o777, -5)
        );
        assert_eq!(wire.link_target.as_deref(), Some(&b"../x"[..]));
        assert_eq!(wire.display_path, "l\u{fffd}");
    }
}
