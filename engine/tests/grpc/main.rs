//! The gRPC surface over real sockets, before an engine that makes no sandboxes.

mod auth;
mod fake;
mod files;
mod kernels;
mod lifecycle;
mod logs;
mod served;
mod spec;
mod steps;
