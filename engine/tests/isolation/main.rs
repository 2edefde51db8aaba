//! What a sandbox keeps its code from doing, shown on the real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod seccomp;
