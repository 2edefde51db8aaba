//! The interpreter of a session that named none: the first `python3` on the engine's PATH, by its own word.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::spec::Interpreter;

/// `python3` may be a shim: only the interpreter itself knows where it is.
const QUESTION: &str = "import sys\n\
    print(*[sys.executable, sys.version.split()[0], sys.prefix, sys.base_prefix, sys.exec_prefix], sep='\\n')";
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks it; none when there is none, or when it does not answer in time. Blocks.
pub(super) fn discover() -> Option<Interpreter> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the interpreter of the engine's own PATH, before any code of a session"
    )]
    let mut command = Command::new("python3");
    let mut child = command
        // Not `-S`: it is the site module that finds out about a virtual environment, and without it `sys.prefix` is
        // that of the interpreter below.
        // Asking leaves no bytecode in the interpreter's library.
        .args(["-I", "-B", "-c", QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let asked = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if asked.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().ok()?;
    if !output.status.success() {
        return None;
    }
    parse(&String::from_utf8(output.stdout).ok()?)
}

fn parse(answer: &str) -> Option<Interpreter> {
    let mut lines = answer.lines();
    let executable = PathBuf::from(lines.next()?);
    let version = lines.next()?.to_owned();
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for prefix in lines.map(PathBuf::from) {
        if prefix.is_absolute() && prefix.parent().is_some() && !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    executable.is_absolute().then_some(Interpreter {
        executable,
        prefixes,
        version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_executable_and_each_prefix_once() {
        let interpreter = parse("/v/bin/python\n3.11.7\n/v\n/base\n/v\n").unwrap();
        assert_eq!(interpreter.version, "3.11.7");
        assert_eq!(
            interpreter.prefixes,
            [PathBuf::from("/v"), PathBuf::from("/base")]
        );
        assert_eq!(parse("python3\n3.11\n"), None);
    }
}
