//! `stepbox completions`: what a shell sources to complete the words of this command line.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::args::{Cli, CompletionsArgs, ShellArg};

pub(super) fn print(args: &CompletionsArgs, out: &mut impl Write) -> io::Result<()> {
    let shell = match args.shell {
        ShellArg::Bash => Shell::Bash,
        ShellArg::Zsh => Shell::Zsh,
        ShellArg::Fish => Shell::Fish,
    };
    // It panics where a write fails, and a pipe may be closed.
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "stepbox", &mut text);
    out.write_all(&text)
}
