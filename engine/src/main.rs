//! The `stepbox` binary: start order, and the only exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The launcher is this binary again; it must not have a thread, nor anything of the command line.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "launcher")
    {
        stepbox_engine::launcher::main_on_stdin();
    }
    stepbox_engine::cli::main()
}
