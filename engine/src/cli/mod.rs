//! The command line: flags, and one file for each command.

pub mod args;
pub mod serve;
