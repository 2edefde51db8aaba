//! The only unsafe code: typed wrappers of system calls that `rustix` does not have. They return owned descriptors and
//! `io::Error`s, know no word of the product, and do not allocate unless they say so.

pub mod clone;
pub mod datagram;
pub mod exec;
pub mod keyring;
pub mod landlock;
pub mod loop_device;
pub mod mount;
pub mod namespace;
pub mod netdevice;
pub mod readiness;
pub mod rusage;
pub mod schedule;
pub mod seccomp;
pub mod shared;
pub mod signal;
