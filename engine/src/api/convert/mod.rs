//! Wire to domain and back, in one place. Every message is taken apart whole, so that a new field does not compile
//! until someone decides what it means.

pub mod file;
pub mod kernel;
pub mod result;
pub mod search;
pub mod session;
pub mod spec;
pub mod step;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bytes::Bytes;
use tonic::Status;

use super::status::invalid_field;
use crate::spec::is_id;

/// A path as it came over the wire.
fn path(bytes: Bytes) -> PathBuf {
    OsString::from_vec(bytes.into()).into()
}

/// An identifier that an engine could have given out.
fn id(field: &str, text: String) -> Result<String, Status> {
    if is_id(&text) {
        Ok(text)
    } else {
        let why = if text.is_empty() {
            "it is empty; write the identifier that the engine gave"
        } else {
            "it is not an identifier of an engine"
        };
        Err(invalid_field(field, why))
    }
}

/// A session's identifier.
///
/// # Errors
/// `INVALID_ARGUMENT` when no engine could have given it.
pub fn session_id(text: String) -> Result<String, Status> {
    id("session_id", text)
}

/// A step's identifier.
///
/// # Errors
/// `INVALID_ARGUMENT` when no engine could have given it.
pub fn step_id(text: String) -> Result<String, Status> {
    id("step_id", text)
}
