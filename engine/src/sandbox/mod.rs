//! sandbox

pub mod seccomp;
