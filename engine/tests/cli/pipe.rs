//! Output of `stepbox run` in a shell: readers that are slow, that do not read, that leave, and files that are full.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::program::Place;

const FLOOD: &str = "import sys\n\
    for number in range(1_000_000): sys.stdout.write(f'{number}\\n')";
const FLOOD_BYTES: usize = 6_888_890;

#[test]
fn a_reader_that_is_slower_than_the_program_gets_every_byte() {
    let place = Place::new();
    let mut child = place.start(&["run", "-c", FLOOD]);
    std::thread::sleep(Duration::from_millis(1500));
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(all.len(), FLOOD_BYTES);
    assert!(all.ends_with(b"999998\n999999\n"));
    assert_eq!(
        (ended.status.code(), &ended.stderr[..]),
        (Some(0), &b""[..])
    );
    place.assert_nothing_left();
}

#[test]
fn a_reader_that_does_not_read_puts_off_neither_the_time_limit_nor_an_interrupt() {
    let place = Place::new();
    let endless = "import sys\nwhile True: sys.stdout.write('x' * 65536)";
    // One processor: whoever waits for the reader must not wait in the runtime's only thread.
    let mut command = Command::new("taskset");
    command.args([
        "-c",
        "0",
        env!("CARGO_BIN_EXE_stepbox"),
        "run",
        "--timeout-s",
        "1",
        "-c",
        endless,
    ]);
    let mut child = place
        .settle(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        child.try_wait().unwrap().is_none(),
        "it waits for its reader"
    );
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    // The pipe is held open and never read.
    let _unread = child.stdout.take();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(137));
    place.assert_nothing_left();
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_that_says_so() {
    let place = Place::new();
    for words in [
        &["run", "-c", "print(1)"][..],
        &["run", "--json", "-c", "print(1)"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = place
            .command(words)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with("stepbox: write the output: No space left on device"),
            "{said}"
        );
    }
    place.assert_nothing_left();
}

#[test]
fn a_reader_that_leaves_ends_the_program_without_a_word() {
    let place = Place::new();
    let mut child = place.start(&[
        "run",
        "-c",
        "import time\nwhile True: print('y' * 4096); time.sleep(.01)",
    ]);
    let mut first = [0; 4096];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.code(), &ended.stderr[..]),
        (Some(137), &b""[..])
    );
    place.assert_nothing_left();
}
