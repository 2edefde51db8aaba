//! Limits where some controllers can be had and some cannot.

use std::fs;
use std::process::Command;

use crate::program::{Ended, Place};

/// Where a cgroup v1 controller is mounted.
fn hierarchy(controller: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| {
        line.split_once(" - cgroup ")
            .and_then(|(_, rest)| rest.split_whitespace().last())
            .is_some_and(|options| options.split(',').any(|option| option == controller))
    })?;
    line.split_whitespace().nth(4).map(str::to_owned)
}

/// Runs the program where a hierarchy is covered; none: it is not there to be covered.
fn without(controller: &str, words: &[&str]) -> Option<Ended> {
    let place = Place::new();
    let covered = hierarchy(controller)?;
    let inside = place.command(words);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command
        .args([
            "sh",
            "-c",
            "mount -t tmpfs -o ro,size=4k none \"$0\" && exec \"$@\"",
        ])
        .arg(covered)
        .arg(inside.get_program())
        .args(inside.get_args())
        .current_dir(place.here())
        .stdin(std::process::Stdio::null());
    for (name, value) in inside.get_envs() {
        command.env(name, value.unwrap());
    }
    let ended = command.output().unwrap().into();
    place.assert_nothing_left();
    Some(ended)
}

#[test]
fn each_limit_falls_back_alone() {
    let code = "import os; print(len(os.sched_getaffinity(0)))";
    let words = ["run", "--json", "--cpus", "1", "-c", code];
    for (controller, resource, kept) in [
        ("memory", "memory", "watchdog"),
        ("pids", "pids", "rlimit"),
        ("cpu", "cpu", "throttle"),
    ] {
        let Some(ended) = without(controller, &words) else {
            // On cgroup v2 controllers are not mounted one by one.
            return;
        };
        assert_eq!(ended.code, Some(0), "{controller}: {ended:?}");
        let told = ended.json();
        assert_eq!(told["stdout"], "1\n");
        for limit in told["limits"].as_array().unwrap() {
            let expected = match limit["resource"].as_str().unwrap() {
                // No controller keeps those.
                "workspace" | "workspace_files" => continue,
                name if name == resource => kept,
                _ => "cgroup1",
            };
            assert_eq!(limit["enforced_by"], expected, "{controller}: {limit}");
        }
    }
}

#[test]
fn a_part_of_a_processor_without_a_controller_is_refused_unless_it_need_not_bind() {
    let half = ["run", "--json", "--cpus", "0.5", "-c", "print(1)"];
    let Some(ended) = without("cpu", &half) else {
        return;
    };
    assert_eq!((ended.code, &*ended.stdout), (Some(125), ""), "{ended:?}");
    for words in ["cannot be enforced", "whole processors", "--cpus 1;"] {
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
    let anyway = [&half[..], &["--no-enforce-limits"]].concat();
    let ended = without("cpu", &anyway).expect("a hierarchy");
    let told = ended.json();
    assert_eq!(told["stdout"], "1\n");
    let cpu = told["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|limit| limit["resource"] == "cpu")
        .unwrap();
    assert_eq!(cpu["enforced_by"], "none");
}
