//! The generated messages and services of `proto/stepbox/v1`.

#![expect(
    clippy::large_enum_variant,
    reason = "generated: the variants are the protocol's messages"
)]

tonic::include_proto!("stepbox.v1");

/// The protocol's own description, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stepbox_descriptor.bin"));
