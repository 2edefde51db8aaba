//! Searches and edits of the wire.

use tonic::Status;

use super::file::{named, place};
use super::session_id;
use crate::api::pb;
use crate::api::status::{self, invalid_field};
use crate::session::Edited;
use crate::spec::{Grep, PathPattern, PatternError};
use crate::workspace::Match;

/// Lines of a search that names no number.
const LINES: u32 = 10_000;

fn refused(field: &str, error: &PatternError) -> Status {
    invalid_field(field, error.to_string())
}

/// A `GlobFiles`, taken apart.
#[derive(Debug)]
pub struct Glob {
    pub id: String,
    pub path: Vec<u8>,
    pub pattern: String,
    pub files_only: bool,
}

/// A `GlobFiles`.
///
/// # Errors
/// `INVALID_ARGUMENT` for a session, path or pattern that cannot be.
pub fn glob(request: pb::GlobFilesRequest) -> Result<Glob, Status> {
    let pb::GlobFilesRequest {
        session_id: id,
        pattern,
        path,
        files_only,
    } = request;
    let (id, path) = (session_id(id)?, place(path)?);
    PathPattern::parse(&pattern).map_err(|error| refused("pattern", &error))?;
    Ok(Glob {
        id,
        path,
        pattern,
        files_only,
    })
}

/// A `GrepFiles`.
///
/// # Errors
/// `INVALID_ARGUMENT` for a session, path or pattern that cannot be.
pub fn grep(request: pb::GrepFilesRequest) -> Result<(String, Vec<u8>, Grep), Status> {
    let pb::GrepFilesRequest {
        session_id: id,
        pattern,
        path,
        literal,
        ignore_case,
        glob,
        max_count,
    } = request;
    let (id, path) = (session_id(id)?, place(path)?);
    let grep = Grep {
        pattern,
        literal,
        ignore_case,
        glob,
        max_count: if max_count == 0 { LINES } else { max_count },
    };
    grep.regex().map_err(|error| refused("pattern", &error))?;
    grep.filter().map_err(|error| refused("glob", &error))?;
    Ok((id, path, grep))
}

/// A line to the wire.
#[must_use]
pub fn found(found: Match) -> pb::GrepMatch {
    let Match {
        path,
        line_number,
        line,
    } = found;
    pb::GrepMatch {
        display_path: String::from_utf8_lossy(&path).into_owned(),
        path: path.into(),
        line_number,
        line: line.into(),
    }
}

/// An `EditFile`, taken apart.
#[derive(Debug)]
pub struct Edit {
    pub id: String,
    pub path: Vec<u8>,
    pub texts: (Vec<u8>, Vec<u8>),
    pub all: bool,
}

/// An `EditFile`.
///
/// # Errors
/// `INVALID_ARGUMENT` for a session, path or text that cannot be.
pub fn edit(request: pb::EditFileRequest) -> Result<Edit, Status> {
    let pb::EditFileRequest {
        session_id: id,
        path,
        old_text,
        new_text,
        replace_all: all,
    } = request;
    let (id, path) = (session_id(id)?, named(path)?);
    if old_text.is_empty() {
        return Err(invalid_field(
            "old_text",
            "is empty; name the text to be replaced",
        ));
    }
    if old_text == new_text {
        return Err(invalid_field("new_text", "is the same as old_text"));
    }
    Ok(Edit {
        id,
        path,
        texts: (old_text.into(), new_text.into()),
        all,
    })
}

/// What an edit did, to the wire.
#[must_use]
pub fn edited(edited: Edited) -> pb::EditFileResponse {
    use crate::outcome::NoDiff;
    let Edited {
        size: _,
        replacements,
        diff,
        truncated,
    } = edited;
    let reason = match (&diff, truncated) {
        (None, _) => Some(NoDiff::Binary),
        (Some(_), true) => Some(NoDiff::Truncated),
        (Some(_), false) => None,
    };
    pb::EditFileResponse {
        replacements_count: replacements,
        diff,
        diff_reason: reason.map(|reason| reason.name().to_owned()),
    }
}

/// What stopped a conversion that ran beside the runtime's threads.
#[must_use]
pub fn interrupted(error: &tokio::task::JoinError) -> Status {
    status::internal("parsing a pattern", error)
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

    fn field(status: &Status) -> String {
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let details = status.get_details_bad_request().expect("violations");
        details.field_violations[0].field.clone()
    }

    #[test]
    fn a_wrong_pattern_is_refused_by_its_field_and_position() {
        let status = glob(pb::GlobFilesRequest {
            session_id: "s".into(),
            pattern: "a[".into(),
            ..pb::GlobFilesRequest::default()
        })
        .expect_err("refused");
        assert_eq!(field(&status), "pattern");
        assert!(status.message().contains("at character 2"), "{status}");
        let search = |pattern: &str, glob: Option<&str>| {
            grep(pb::GrepFilesRequest {
                session_id: "s".into(),
                pattern: pattern.into(),
                glob: glob.map(str::to_owned),
                ..pb::GrepFilesRequest::default()
            })
        };
        assert_eq!(field(&search("a(", None).expect_err("refused")), "pattern");
        assert_eq!(field(&search("a", Some("{")).expect_err("refused")), "glob");
        assert_eq!(search("a", None).expect("a search").2.max_count, LINES);
    }

    #[test]
    fn an_edit_has_to_change_something() {
        let change = |old: &'static str, new: &'static str| {
            edit(pb::EditFileRequest {
                session_id: "s".into(),
                path: "f".into(),
                old_text: old.into(),
                new_text: new.into(),
                replace_all: false,
            })
        };
        assert_eq!(field(&change("", "x").expect_err("refused")), "old_text");
        assert_eq!(field(&change("x", "x").expect_err("refused")), "new_text");
        assert!(change("x", "").is_ok());
    }
}
