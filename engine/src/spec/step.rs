//! From a [`StepRequest`] to a [`StepSpec`], with all mistakes at once.

use std::path::{Component, Path, PathBuf};

use super::name::check_env;
use super::request::{Cap, ProgramRequest, StepRequest};
use super::session::{parse_memory, parse_timeout};
use super::text::{holds_nul, shown};
use super::{Language, Program, StepSpec, Violation, Violations};

const WORKSPACE: &str = "/workspace";

/// Parses one step.
///
/// # Errors
/// Every mistake, each with the argument's name and what would be right.
pub fn parse_step(request: StepRequest) -> Result<StepSpec, Vec<Violation>> {
    let mut violations = Violations::default();
    let program = parse_program(request.program, &mut violations);
    let timeout = request
        .timeout_s
        .and_then(|seconds| violations.take("timeout_s", parse_timeout(seconds)));
    let memory = match request.memory_mb {
        Cap::Default => None,
        Cap::Uncapped => Some(None),
        Cap::Max(mb) => violations.take("memory_mb", parse_memory(mb)).map(Some),
    };
    check_env(&request.env, &mut violations);
    let cwd = match request.cwd {
        None => Some(WORKSPACE.into()),
        Some(cwd) => violations.take("cwd", parse_cwd(&cwd)),
    };
    if request.user.is_some() {
        violations.add(
            "user",
            format!("not available in stepbox {}", crate::VERSION),
        );
    }
    match (program, cwd) {
        (Some(program), Some(cwd)) if violations.is_empty() => Ok(StepSpec {
            program,
            timeout,
            memory,
            env: request.env,
            cwd,
            stdin: request.stdin.unwrap_or_default(),
        }),
        _ => Err(violations.into_vec()),
    }
}

fn parse_program(request: ProgramRequest, violations: &mut Violations) -> Option<Program> {
    match request {
        ProgramRequest::Argv(argv) => violations.take("argv", parse_argv(argv)).map(Program::Argv),
        ProgramRequest::Code {
            language,
            source,
            args,
        } => {
            let language = violations.take("language", parse_language(&language));
            if source.contains(&0) {
                violations.add("code", "code cannot hold a NUL byte; write data to a file");
            }
            if args.iter().any(|arg| arg.contains(&0)) {
                violations.add("args", "an argument cannot hold a NUL byte");
            }
            Some(Program::Code {
                language: language?,
                source,
                args,
            })
        }
    }
}

fn parse_argv(argv: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, String> {
    match argv.first() {
        None => {
            return Err(
                "it is empty; write the program and its arguments, such as [\"ls\", \"-l\"]".into(),
            );
        }
        Some(program) if program.is_empty() => {
            return Err("the program's name is empty; write one such as [\"ls\", \"-l\"]".into());
        }
        Some(_) => {}
    }
    if argv.iter().any(|arg| arg.contains(&0)) {
        return Err("an argument cannot hold a NUL byte".into());
    }
    Ok(argv)
}

/// A language by its name in requests; empty is python.
///
/// # Errors
/// One sentence that lists the languages.
pub fn parse_language(name: &str) -> Result<Language, String> {
    if name.is_empty() {
        return Ok(Language::Python);
    }
    let known = Language::ALL.into_iter();
    known
        .clone()
        .find(|language| language.name() == name)
        .ok_or_else(|| {
            let names: Vec<_> = known.map(Language::name).collect();
            format!(
                "{} is not a language; write one of {}",
                shown(name),
                names.join(", ")
            )
        })
}

fn parse_cwd(cwd: &Path) -> Result<PathBuf, String> {
    if holds_nul(cwd) {
        return Err("a path cannot hold a NUL byte".into());
    }
    if cwd.components().any(|part| part == Component::ParentDir) {
        return Err(
            "the path holds \"..\"; write it without, relative to /workspace or absolute".into(),
        );
    }
    let joined = Path::new(WORKSPACE).join(cwd);
    Ok(joined
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn argv(words: &[&str]) -> ProgramRequest {
        ProgramRequest::Argv(words.iter().map(|word| word.as_bytes().to_vec()).collect())
    }

    fn code(language: &str, source: &str) -> ProgramRequest {
        ProgramRequest::Code {
            language: language.into(),
            source: source.into(),
            args: vec![],
        }
    }

    fn fields(request: StepRequest) -> Vec<String> {
        let said = parse_step(request).expect_err("refused");
        said.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn programs_that_cannot_start_are_refused() {
        for words in [&[][..], &[""], &["", "x"], &["a", "b\0"], &["a\0"]] {
            assert_eq!(fields(StepRequest::new(argv(words))), ["argv"], "{words:?}");
        }
        assert_eq!(fields(StepRequest::new(code("python", "a\0b"))), ["code"]);
        assert_eq!(
            fields(StepRequest::new(code("perl", "a\0b"))),
            ["language", "code"]
        );
    }

    #[test]
    fn an_unknown_language_is_answered_with_the_known_ones() {
        let said = parse_language("ruby").expect_err("unknown");
        assert!(said.contains("python, bash, sh, javascript"), "{said}");
        assert_eq!(parse_language(""), Ok(Language::Python));
        for language in Language::ALL {
            assert_eq!(parse_language(language.name()), Ok(language));
        }
    }

    #[test]
    fn cwd_is_beneath_the_workspace_or_absolute() {
        for (cwd, right) in [
            ("", "/workspace"),
            (".", "/workspace"),
            ("a/./b/", "/workspace/a/b"),
            ("/tmp", "/tmp"),
            ("/", "/"),
        ] {
            assert_eq!(parse_cwd(Path::new(cwd)), Ok(right.into()), "{cwd}");
        }
        for cwd in ["..", "a/../b", "/tmp/..", "a\0"] {
            assert!(parse_cwd(Path::new(cwd)).is_err(), "{cwd:?}");
        }
    }

    #[test]
    fn all_mistakes_of_a_step_are_told_at_once() {
        let request = StepRequest {
            timeout_s: Some(0.0),
            memory_mb: Cap::Max(1),
            env: [("A=".to_owned(), String::new())].into(),
            cwd: Some("..".into()),
            user: Some("root".into()),
            ..StepRequest::new(argv(&[]))
        };
        let said = fields(request);
        assert_eq!(
            said,
            [
                "argv",
                "timeout_s",
                "memory_mb",
                "env[\"A=\"]",
                "cwd",
                "user"
            ]
        );
    }

    #[test]
    fn overrides_are_kept_apart_from_what_was_not_said() {
        let step = parse_step(StepRequest::new(argv(&["true"]))).expect("parsed");
        assert_eq!((step.timeout, step.memory), (None, None));
        assert_eq!(step.cwd, Path::new("/workspace"));
        let step = parse_step(StepRequest {
            timeout_s: Some(0.5),
            memory_mb: Cap::Uncapped,
            ..StepRequest::new(argv(&["true"]))
        })
        .expect("parsed");
        assert_eq!(step.timeout, Some(Duration::from_millis(500)));
        assert_eq!(step.memory, Some(None));
    }
}
