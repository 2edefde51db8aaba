//! What code can write where an init reads.

pub use super::kernel::fuzz::kernel_memory;
