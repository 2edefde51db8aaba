//! Whole texts, as files in `snapshots`. `STEPBOX_UPDATE_SNAPSHOTS=1` writes them anew; the difference is then reviewed
//! as any other.

use std::fs;
use std::path::Path;

use crate::program::Place;

fn compare(name: &str, words: &[&str]) {
    let ended = Place::new().stepbox(words);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{words:?}");
    let told = ended.stdout.replace(env!("CARGO_PKG_VERSION"), "[version]");
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cli/snapshots")
        .join(name);
    if std::env::var_os("STEPBOX_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&file, &told).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        known == told,
        "{} is not what {words:?} prints; with STEPBOX_UPDATE_SNAPSHOTS=1 it is written anew. Printed:\n{told}",
        file.display()
    );
}

#[test]
fn the_plan_is_the_one_that_was_reviewed() {
    compare("plan.txt", &["plan"]);
}

#[test]
fn the_help_of_every_command_is_the_one_that_was_reviewed() {
    compare("help.txt", &["--help"]);
    for command in [
        "serve",
        "run",
        "doctor",
        "plan",
        "files",
        "completions",
        "session",
    ] {
        compare(&format!("help-{command}.txt"), &[command, "--help"]);
    }
    compare("version.txt", &["--version"]);
}

#[test]
fn the_plan_as_json_has_the_stages_and_steps_of_the_printed_one() {
    let place = Place::new();
    let printed = place.stepbox(&["plan"]).stdout;
    let told = place.stepbox(&["plan", "--json"]).json();
    let stages = told.as_array().unwrap();
    let mut lines = printed.lines();
    for stage in stages {
        let heading = lines.next().unwrap();
        assert!(
            heading.starts_with(stage["stage"].as_str().unwrap()),
            "{heading}"
        );
        for step in stage["steps"].as_array().unwrap() {
            let line = lines.next().unwrap();
            assert!(line.contains(step["name"].as_str().unwrap()), "{line}");
            assert!(line.ends_with(step["why"].as_str().unwrap()), "{line}");
        }
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn the_completions_of_every_shell_name_every_command_and_are_the_same_each_time() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let told = place.stepbox(&["completions", shell]);
        assert_eq!((told.code, &*told.stderr), (Some(0), ""));
        for word in [
            "serve",
            "run",
            "doctor",
            "plan",
            "files",
            "grep",
            "workspace-max-bytes",
        ] {
            assert!(told.stdout.contains(word), "{shell}: {word}");
        }
        assert_eq!(told.stdout, place.stepbox(&["completions", shell]).stdout);
    }
    assert_eq!(place.stepbox(&["completions", "tcsh"]).code, Some(2));
}

#[test]
fn a_command_that_needs_an_engine_says_how_one_is_named() {
    let place = Place::new();
    let told = place.stepbox(&["files", "ls", "s"]);
    assert_eq!(told.code, Some(125));
    assert!(told.stderr.contains("STEPBOX_ADDRESS"), "{}", told.stderr);
    let told = place.stepbox(&["files", "ls", "s", "--address", "unix:/none/engine.sock"]);
    assert_eq!(told.code, Some(125));
    assert!(told.stderr.contains("/none/token"), "{}", told.stderr);
}
