//! Isolation, one file per mechanism. Everything here runs in the launcher and in what it forks: single-threaded
//! processes that know no session and no request beyond plain `spec` words.

pub mod capabilities;
pub mod cgroup;
pub mod child;
pub mod identity;
pub mod init;
mod kernel;
pub mod landlock;
mod mask;
pub mod numbers;
pub mod plan;
pub mod probe;
pub mod resident;
pub mod rootfs;
pub mod seccomp;
pub mod skeleton;
pub mod template;
pub mod tree;
