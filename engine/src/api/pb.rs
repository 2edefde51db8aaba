//! The generated messages and services of `proto/stepbox/v1`.
#![expect(
    missing_debug_implementations,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "generated code"
)]

tonic::include_proto!("stepbox.v1");

/// The protocol's own description, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stepbox_descriptor.bin"));
