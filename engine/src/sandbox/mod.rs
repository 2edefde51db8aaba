//! sandbox

pub mod cgroup;
