//! `stepbox run`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::program::Place;

#[test]
fn the_exit_code_is_the_programs_and_its_streams_stay_apart() {
    let place = Place::new();
    let code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)";
    let ended = place.stepbox(&["run", "-c", code]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!(ended.stdout, "out\n");
    assert_eq!(ended.stderr, "err\n");
}

#[test]
fn a_program_that_succeeds_is_0_and_one_that_a_signal_ends_is_128_and_its_number() {
    let place = Place::new();
    assert_eq!(place.stepbox(&["run", "-c", "pass"]).code, Some(0));
    let ended = place.stepbox(&["run", "-l", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
}

#[test]
fn a_file_runs_in_the_language_of_its_ending_with_its_arguments() {
    let place = Place::new();
    for (name, code) in [
        ("a.py", "import sys; print(sys.argv[1:])"),
        ("a.bash", "[[ $# == 2 ]] && echo \"['$1', '$2']\""),
        ("a.sh", "echo \"['$1', '$2']\""),
        (
            "a.js",
            "console.log(`['${process.argv.slice(2).join(\"', '\")}']`)",
        ),
    ] {
        place.write(name, code);
        let ended = place.stepbox(&["run", name, "--", "x", "--y"]);
        assert_eq!(ended.stdout, "['x', '--y']\n", "{name}: {ended:?}");
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
    }
}

#[test]
fn a_dash_reads_the_code_from_stdin() {
    let ended = Place::new().stepbox_with_stdin(&["run", "-"], "print(6 * 7)");
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "42\n"), "{ended:?}");
}

#[test]
fn a_named_language_wins_over_the_ending() {
    let place = Place::new();
    place.write("a.txt", "echo ${BASH_VERSION:+bash}");
    let ended = place.stepbox(&["run", "-l", "bash", "a.txt"]);
    assert_eq!(ended.stdout, "bash\n", "{ended:?}");
    let ended = place.stepbox(&["run", "-l", "javascript", "-c", "console.log(1 + 1)"]);
    assert_eq!(ended.stdout, "2\n", "{ended:?}");
}

#[test]
fn an_unknown_language_is_refused_by_name_and_nothing_runs() {
    let ended = Place::new().stepbox(&["run", "-l", "cobol", "-c", "x"]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.contains("cobol"), "{ended:?}");
    assert!(ended.stderr.contains("python"), "{ended:?}");
}

#[test]
fn a_file_that_is_not_there_is_named_and_nothing_runs() {
    let ended = Place::new().stepbox(&["run", "nothing.py"]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.stderr.contains("nothing.py"), "{ended:?}");
}

#[test]
fn a_workspace_keeps_its_files_as_the_callers_own() {
    let place = Place::new();
    let workspace = place.here().join("ws");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("in.txt"), "given").unwrap();
    let code = "open('out.txt', 'w').write(open('in.txt').read() + ' and made')";
    let ended = place.stepbox(&["run", "-w", "ws", "-c", code]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let made = workspace.join("out.txt");
    assert_eq!(fs::read_to_string(&made).unwrap(), "given and made");
    let (made, given) = (made.metadata().unwrap(), workspace.metadata().unwrap());
    assert_eq!((made.uid(), made.gid()), (given.uid(), given.gid()));
}

#[test]
fn without_a_workspace_nothing_of_the_current_directory_is_seen_or_changed() {
    let place = Place::new();
    place.write("in.txt", "given");
    let code = "import os; print(os.listdir('.')); open('made', 'w').write('x')";
    let ended = place.stepbox(&["run", "-c", code]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "[]\n"), "{ended:?}");
    assert!(!place.here().join("made").exists());
}

#[test]
fn a_mount_is_writable_unless_it_is_read_only() {
    let place = Place::new();
    let data = place.here().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("in.txt"), "given").unwrap();
    let code = "print(open('/data/in.txt').read()); open('/data/out.txt', 'w').write('made')";
    let mount = format!("{}:/data:ro", data.display());
    let ended = place.stepbox(&["run", "--mount", &mount, "-c", code]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout, "given\n");
    assert!(ended.stderr.contains("Read-only file system"), "{ended:?}");
    assert!(!data.join("out.txt").exists());

    let ended = place.stepbox(&["run", "--mount", "data:/data:rw", "-c", code]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fs::read_to_string(data.join("out.txt")).unwrap(), "made");
}

#[test]
fn a_refused_mount_is_named_and_nothing_runs() {
    let ended = Place::new().stepbox(&["run", "--mount", "/etc:/x", "-c", "print('ran')"]);
    assert_eq!((ended.code, &*ended.stdout), (Some(125), ""), "{ended:?}");
    assert!(ended.stderr.contains("/etc"), "{ended:?}");
}

#[test]
fn all_mistakes_are_told_at_once_in_the_spelling_of_the_flags() {
    let place = Place::new();
    let ended = place.stepbox(&[
        "run",
        "--memory-mb",
        "1",
        "--pids",
        "1",
        "--cpus",
        "0",
        "--timeout-s",
        "0",
        "--mount",
        ".:/workspace",
        "--workspace",
        "/etc",
        "-l",
        "cobol",
        "-c",
        "x",
    ]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert_eq!(ended.stdout, "");
    let here = place.here();
    let told: Vec<_> = ended.stderr.lines().collect();
    let wanted = [
        "--memory-mb: 1 is out of range; write at least 16 MiB, or none for no cap",
        "--pids: 1 is out of range; write 2 to 4194304 tasks, or none for no cap",
        "--cpus: 0 is not a number of cores; write one above 0, such as 0.5, or none for no cap",
        "--timeout-s: 0 is not a time limit; write seconds above 0 and at most 604800, such as 30",
        "--workspace: \"/etc\" belongs to the host's system (/etc) and is never mounted",
        &format!(
            "--mount \"{}/.\": the target \"/workspace\" is the sandbox's own workspace (--workspace sets it); choose \
            another such as \"/data\"",
            here.display()
        ),
        "--language: \"cobol\" is not a language; write one of python, bash, sh, javascript",
    ];
    for (told, wanted) in told.iter().zip(wanted) {
        assert_eq!(*told, format!("stepbox: {wanted}"));
    }
    assert_eq!(told.len(), wanted.len());
}

#[test]
fn what_the_sentences_advise_can_be_typed() {
    let place = Place::new();
    let uncapped = place.stepbox(&[
        "run",
        "--json",
        "--memory-mb",
        "none",
        "--pids",
        "none",
        "--cpus",
        "none",
        "--workspace-max-bytes",
        "none",
        "--no-enforce-limits",
        "-c",
        "pass",
    ]);
    assert_eq!(uncapped.code, Some(0), "{uncapped:?}");
    for limit in uncapped.json()["limits"].as_array().unwrap() {
        assert!(limit["max"].is_null(), "{limit}");
    }
    let _socket = std::os::unix::net::UnixListener::bind(place.here().join("s")).unwrap();
    let mount = ["run", "--mount", ".:/data", "-c", "pass"];
    let refused = place.stepbox(&mount);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(
        refused.stderr.ends_with("; --allow-sockets accepts it\n"),
        "{refused:?}"
    );
    let allowed = [&mount[..], &["--allow-sockets"]].concat();
    assert_eq!(place.stepbox(&allowed).code, Some(0));
}

#[test]
fn past_its_time_a_program_is_stopped_and_the_fault_is_on_stderr() {
    let ended = Place::new().stepbox(&[
        "run",
        "--timeout-s",
        "0.5",
        "-c",
        "print('begun', flush=True)\nwhile True: pass",
    ]);
    assert_eq!(ended.code, Some(137), "{ended:?}");
    assert_eq!(ended.stdout, "begun\n");
    assert!(ended.stderr.contains("stepbox: timeout: "), "{ended:?}");
}

#[test]
fn an_environment_variable_reaches_the_program_and_the_callers_own_do_not() {
    let place = Place::new();
    let code = "import os; print(os.environ.get('GIVEN'), os.environ.get('CANARY'))";
    let output = place
        .command(&["run", "--env", "GIVEN=a=b", "-c", code])
        .env("CANARY", "seen")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "a=b None\n");
}

#[test]
fn json_tells_the_whole_result_and_keeps_the_exit_code() {
    let code =
        "import sys; print('out'); print('err', file=sys.stderr); open('f', 'w'); sys.exit(3)";
    let ended = Place::new().stepbox(&["run", "--json", "-c", code]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(ended.stderr, "");
    let told = ended.json();
    assert_eq!(told["exit_code"], 3);
    assert_eq!(told["stdout"], "out\n");
    assert_eq!(told["code_stderr"], "err\n");
    assert!(told["fault"].is_null(), "{told}");
    assert_eq!(told["files"][0]["path"], "f");
    assert_eq!(told["files"][0]["change"], "created");
    assert_ne!(told["limits"][0]["enforced_by"], "none");
}

#[test]
fn a_refused_call_is_counted_and_the_program_goes_on() {
    // CLONE_NEWUSER is refused and counted, CLONE_FILES is allowed.
    let code = "import ctypes; l = ctypes.CDLL(None, use_errno=True); \
        print(l.unshare(0x400), l.unshare(0x10000000), ctypes.get_errno())";
    let ended = Place::new().stepbox(&["run", "--json", "-c", code]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let told = ended.json();
    assert_eq!(told["stdout"], "0 -1 1\n");
    assert!(told["fault"].is_null(), "{told}");
    assert_eq!(told["usage"]["denied_syscalls"], 1);
}

#[test]
fn json_tells_the_fault() {
    let code = "b'x' * (1 << 30)";
    let ended = Place::new().stepbox(&["run", "--json", "--memory-mb", "64", "-c", code]);
    assert_eq!(ended.code, Some(137), "{ended:?}");
    let told = ended.json();
    assert_eq!(told["fault"]["type"], "oom", "{told}");
}
