//! sys

pub mod seccomp;
