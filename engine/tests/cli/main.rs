//! The `stepbox` program as a shell sees it: exit codes, streams, files, and that nothing is left.
//!
//! A host on which sandboxes with default options cannot run fails here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "the program is tested as others start it"
)]

mod doctor;
mod interrupt;
mod limits;
mod pipe;
mod program;
mod run;
mod snapshots;
