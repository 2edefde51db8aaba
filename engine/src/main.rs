//! The `stepbox` binary: start order, and the only exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    // The launcher is this binary again; it must not have a thread, nor anything of the command line.
    if let Some((word, rest)) = words.split_first()
        && word == "launcher"
    {
        stepbox_engine::launcher::main(rest);
    }
    stepbox_engine::cli::main()
}
