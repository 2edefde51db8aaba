//! Names, labels, environment names and identifiers.

use std::collections::BTreeMap;

use super::Violations;
use super::text::shown;

const NAME_MAX: usize = 128;
const LABELS_MAX: usize = 64;
const LABEL_VALUE_MAX: usize = 1024;

/// A name of a session, fit for a terminal and a file name.
///
/// # Errors
/// One sentence with the right spelling.
pub(super) fn parse_name(name: &str) -> Result<String, String> {
    let fits = name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if fits {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "{} is not a name; write 1 to {NAME_MAX} letters, digits, \".\", \"_\" or \"-\", starting with a letter or digit",
            shown(name)
        ))
    }
}

/// Whether text can be an identifier that an engine gave out.
#[must_use]
pub fn is_id(text: &str) -> bool {
    parse_name(text).is_ok()
}

pub(super) fn check_labels(labels: &BTreeMap<String, String>, violations: &mut Violations) {
    if labels.len() > LABELS_MAX {
        violations.add(
            "labels",
            format!("{} labels; at most {LABELS_MAX}", labels.len()),
        );
    }
    for (key, value) in labels {
        let field = format!("labels[{}]", shown(key));
        if key.is_empty() || key.len() > NAME_MAX || key.contains('=') || holds_control(key) {
            violations.add(
                &field,
                format!(
                    "a label's key is 1 to {NAME_MAX} bytes without \"=\" and control characters"
                ),
            );
        }
        if value.len() > LABEL_VALUE_MAX || holds_control(value) {
            violations.add(
                field,
                format!(
                    "a label's value is at most {LABEL_VALUE_MAX} bytes without control characters"
                ),
            );
        }
    }
}

/// Environment values never appear in a sentence: they may be secrets.
pub(super) fn check_env(env: &BTreeMap<String, String>, violations: &mut Violations) {
    for (name, value) in env {
        let field = format!("env[{}]", shown(name));
        if name.is_empty() {
            violations.add(&field, "the name is empty; write a name such as \"MODE\"");
        } else if name.contains('=') {
            violations.add(
                &field,
                "a name cannot hold \"=\"; write the value apart from it",
            );
        } else if name.contains('\0') {
            violations.add(&field, "a name cannot hold a NUL byte");
        }
        if value.contains('\0') {
            violations.add(field, "a value cannot hold a NUL byte");
        }
    }
}

fn holds_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for name in ["a", "thread-1", "A.b_c-9", &"x".repeat(128)] {
            assert!(parse_name(name).is_ok(), "{name}");
        }
        for name in ["", ".a", "-a", "a/b", "a b", "a\n", "é", &"x".repeat(129)] {
            let said = parse_name(name).expect_err(name);
            assert!(said.contains("letters, digits"), "{said}");
        }
    }

    #[test]
    fn env_names_and_values_are_refused_by_field_and_values_never_shown() {
        let env: BTreeMap<_, _> = [
            ("", "a"),
            ("A=B", "b"),
            ("C\0", "c"),
            ("D", "secret\0"),
            ("E", "x\ny=1"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
        let mut violations = Violations::default();
        check_env(&env, &mut violations);
        let said = violations.into_vec();
        let fields: Vec<_> = said.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                r#"env[""]"#,
                r#"env["A=B"]"#,
                r#"env["C\0"]"#,
                r#"env["D"]"#
            ]
        );
        assert!(said.iter().all(|v| !v.description.contains("secret")));
    }

    #[test]
    fn labels_hold_no_control_characters() {
        let labels: BTreeMap<_, _> = [("a", "fine value"), ("b", "\x1b[2J"), ("c=d", ""), ("", "")]
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        let mut violations = Violations::default();
        check_labels(&labels, &mut violations);
        assert_eq!(violations.into_vec().len(), 3);
    }
}
