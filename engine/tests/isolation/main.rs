//! What a sandbox keeps its code from doing, shown on the real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "what is tested is what programs of the host meet"
)]

mod fence;
mod seccomp;
