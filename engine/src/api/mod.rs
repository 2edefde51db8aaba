//! The proto boundary: conversion, services, status, listeners.
//!
//! Wire words live here and nowhere else. An RPC's body is convert, call, convert; what the call means is `session`'s.

pub mod auth;
pub mod backend;
pub mod convert;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gate;
pub mod host;
mod lifetime;
mod listen;
pub mod pb;
pub mod server;
pub mod service;
pub mod status;
