//! supervise
