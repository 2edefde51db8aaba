//! How the command line spells what the engine's sentences call by the names of the contract: `memory_mb` is
//! `--memory-mb`, and `enforce_limits=False` is `--no-enforce-limits`.

/// The options of the contract that have a flag.
const FLAGS: [(&str, &str); 15] = [
    ("memory_mb", "--memory-mb"),
    ("pids", "--pids"),
    ("cpus", "--cpus"),
    ("timeout_s", "--timeout-s"),
    ("env", "--env"),
    ("mounts", "--mount"),
    ("workspace", "--workspace"),
    ("workspace_max_bytes", "--workspace-max-bytes"),
    ("workspace_max_files", "--workspace-max-files"),
    ("profiles", "--profile"),
    ("language", "--language"),
    ("security_profile", "--security-profile"),
    ("isolation_mode", "--isolation"),
    ("cap_drop", "--cap-drop"),
    ("user", "--user"),
];

/// Those that a sentence advises with a value, and the flag stands for both.
const SWITCHES: [(&str, &str, &str); 2] = [
    ("enforce_limits", "False", "--no-enforce-limits"),
    ("allow_sockets", "True", "--allow-sockets"),
];

/// A sentence with the flags' spelling. An option is named at its start, has an underscore or is followed by `=`: other
/// words are English. What is in quotes is the caller's and stays as it is.
pub(super) fn in_flags(sentence: &str) -> String {
    let mut spelt = String::with_capacity(sentence.len());
    let mut rest = sentence;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => quoted(rest),
            'a'..='z' | 'A'..='Z' => word(rest),
            other => other.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        let starts = spelt.is_empty();
        rest = behind;
        if first.is_ascii_alphabetic() {
            rest = one(token, behind, starts, &mut spelt);
        } else {
            spelt.push_str(token);
        }
    }
    spelt
}

/// Writes the spelling of one word; what follows it and was not used up.
fn one<'a>(name: &str, behind: &'a str, starts: bool, spelt: &mut String) -> &'a str {
    if let Some(given) = behind.strip_prefix('=') {
        let (value, after) = given.split_at(word(given));
        if let Some((.., flag)) = SWITCHES
            .iter()
            .find(|(option, on, _)| (*option, *on) == (name, value))
        {
            spelt.push_str(flag);
            return after;
        }
    }
    let named = starts || name.contains('_') || behind.starts_with('=');
    match FLAGS.iter().find(|(option, _)| *option == name) {
        Some((_, flag)) if named => spelt.push_str(flag),
        _ if name == "None" => spelt.push_str("none"),
        _ => {
            spelt.push_str(name);
            return behind;
        }
    }
    // `mounts["/etc"]` and `memory_mb=None`, in the form in which they are typed; `workspace=` alone is the flag.
    if starts && let Some((key, after)) = bracketed(behind) {
        spelt.push(' ');
        spelt.push_str(key);
        return after;
    }
    match behind.strip_prefix('=') {
        Some(given) => {
            if given.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '"') {
                spelt.push(' ');
            }
            given
        }
        None => behind,
    }
}

/// The length of the word that the text starts with.
fn word(text: &str) -> usize {
    text.find(|next: char| !(next.is_ascii_alphanumeric() || next == '_'))
        .unwrap_or(text.len())
}

/// The length of the quoted part that the text starts with, to its end if it has none.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (position, next) in text.char_indices().skip(1) {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return position + 1,
            _ => {}
        }
    }
    text.len()
}

/// What is in the brackets that the text starts with, and what follows them.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('[')?;
    let (key, after) = inner.split_at(quoted(inner));
    Some((key, after.strip_prefix(']')?))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn every_flag_that_is_named_can_be_typed() {
        let command = Cli::command();
        let run = command.find_subcommand("run").expect("a command");
        let flags: Vec<_> = run
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .map(|long| format!("--{long}"))
            .collect();
        let named = FLAGS.iter().map(|(_, flag)| flag);
        for flag in named.chain(SWITCHES.iter().map(|(.., flag)| flag)) {
            assert!(flags.iter().any(|known| known == flag), "{flag}: {flags:?}");
        }
    }

    #[test]
    fn options_are_spelt_as_they_are_typed() {
        for (sentence, spelt) in [
            (
                "memory_mb: 1 is out of range; write at least 16 MiB, or None for no cap",
                "--memory-mb: 1 is out of range; write at least 16 MiB, or none for no cap",
            ),
            (
                "pids cannot be enforced on this host; pass pids=None for no limit, or enforce_limits=False to run without it",
                "--pids cannot be enforced on this host; pass --pids none for no limit, or --no-enforce-limits to run without it",
            ),
            (
                "mounts[\"/a b\"]: the target \"/workspace\" is the sandbox's own workspace (workspace= sets it)",
                "--mount \"/a b\": the target \"/workspace\" is the sandbox's own workspace (--workspace sets it)",
            ),
            (
                "workspace: \"/s\" is a unix socket; allow_sockets=True accepts it",
                "--workspace: \"/s\" is a unix socket; --allow-sockets accepts it",
            ),
            (
                "cap_drop: leave it out, or write security_profile=\"default\"",
                "--cap-drop: leave it out, or write --security-profile \"default\"",
            ),
            ("env[\"A=B\"]: a name", "--env \"A=B\": a name"),
        ] {
            assert_eq!(in_flags(sentence), spelt);
        }
    }

    #[test]
    fn english_and_what_the_caller_wrote_stay() {
        for sentence in [
            "",
            "the workspace and its mounts: env, pids",
            "x: \"/memory_mb/env=None \\\" allow_sockets=True\" is not there",
            "code: unfinished \"memory_mb",
            "démon: allow_sockets=False",
        ] {
            assert_eq!(in_flags(sentence), sentence);
        }
    }
}
