//! Ctrl-C and a plain `kill`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Place, cgroups_of};

/// All processes below one, by their parents.
fn descendants(of: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse().ok()
    };
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let above = found[at];
        found.extend(
            all.iter()
                .filter(|(_, up)| *up == above)
                .map(|(pid, _)| pid),
        );
        at += 1;
    }
    found.split_off(1)
}

fn ends_and_leaves_nothing(signal: Signal) {
    let place = Place::new();
    let code = "import subprocess\n\
        child = subprocess.Popen(['sleep', '1000'])\n\
        print('begun', flush=True)\n\
        child.wait()";
    let mut child = place.start(&["run", "-c", code]);
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let processes = descendants(child.id());
    assert!(
        processes.len() >= 4,
        "launcher, realm, spawner, init, code: {processes:?}"
    );
    let [engine] = &place.engines()[..] else {
        panic!("{:?}", place.engines());
    };
    assert!(
        !cgroups_of(engine).is_empty(),
        "there are cgroups to remove"
    );

    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.signal(),
        None,
        "it ends by itself: {output:?}"
    );
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("stepbox: cancelled: "), "{told}");

    place.assert_nothing_left();
    assert_eq!(cgroups_of(engine), Vec::<std::path::PathBuf>::new());
    for process in &processes {
        assert!(
            !is_running(*process),
            "{process} of {processes:?} runs still"
        );
    }
}

/// A process that waits for somebody to reap it runs nothing any more.
fn is_running(process: u32) -> bool {
    let path = format!("/proc/{process}/stat");
    std::fs::read_to_string(Path::new(&path)).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn an_interrupt_ends_the_program_and_leaves_nothing() {
    ends_and_leaves_nothing(Signal::INT);
}

#[test]
fn a_termination_ends_the_program_and_leaves_nothing() {
    ends_and_leaves_nothing(Signal::TERM);
}
