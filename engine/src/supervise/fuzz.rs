//! Output, notifications and figures of processes, as code can make them.

use std::cell::RefCell;
use std::io::Write;

use arbitrary::{Result, Unstructured};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::mpsc;

use super::figures::{parse_rollup, parse_segments, parse_status, shares_of};
use super::listener::{innermost, shown};
use super::results::{Results, parse};
use super::stream::{Events, Listeners, Stream};
use crate::outcome::{Output, RichResult, StepEvent};
use crate::pool::{Board, MOST_RESULTS};
use crate::sandbox::seccomp;

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime")
    );
}

/// The bytes that say what was parsed. Kinds that were named twice are said once.
fn said(parsed: &[RichResult]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = |length: usize| u32::try_from(length).expect("short").to_le_bytes();
    for result in parsed {
        bytes.push(u8::from(result.main));
        bytes.extend(number(result.data.len()));
        for (kind, data) in &result.data {
            for part in [kind.as_bytes(), data] {
                bytes.extend(number(part.len()));
                bytes.extend(part);
            }
        }
    }
    bytes
}

/// What code shows, as records that nobody vouches for.
pub fn results(bytes: &[u8]) {
    let (parsed, _) = parse(bytes);
    let again = said(&parsed);
    assert!(again.len() <= bytes.len() && parsed.len() <= MOST_RESULTS);
    assert_eq!(parse(&again), (parsed.clone(), true));
    let plain = |kind: &String| {
        kind.len() <= 128 && kind.contains('/') && kind.bytes().all(|byte| byte.is_ascii_graphic())
    };
    for result in parsed {
        assert!(!result.data.is_empty() && result.data.len() <= 32);
        assert!(result.data.keys().all(plain));
    }
}

/// The memory that such records are left in, words and all.
pub fn board(bytes: &[u8]) {
    let board = Board::holding(bytes).expect("a board");
    let Results { results, note } = Results::read(&board);
    let shown = board.read().expect("read");
    let (parsed, whole) = parse(&shown.records);
    assert_eq!((results, note.is_none()), (parsed, whole && !shown.lost));
    board.clear().expect("cleared");
    assert_eq!(Results::read(&board), Results::default());
}

/// A call that was notified, by whatever name, of whatever number and architecture.
pub fn system_calls(bytes: &[u8]) {
    let _ = system_call(Unstructured::new(bytes));
}

fn system_call(mut given: Unstructured<'_>) -> Result<()> {
    const ARCHITECTURES: [u32; 4] = [0xc000_003e, 0xc000_00b7, 0x4000_0003, 0x4000_0028];
    let arch = match given.int_in_range(0..=5_usize)? {
        index @ 0..4 => ARCHITECTURES[index],
        4 => ARCHITECTURES[0],
        _ => given.arbitrary()?,
    };
    let nr = if given.ratio(3, 4)? {
        given.int_in_range(0..=600)?
    } else {
        given.arbitrary()?
    };
    let arguments: [u64; 6] = given.arbitrary()?;
    let refused = seccomp::refusal(arch, nr, &arguments);
    let word = seccomp::describe(arch, nr);
    assert!(
        word.len() <= 64
            && word
                .bytes()
                .all(|byte| byte == b' ' || byte.is_ascii_graphic())
    );
    if let Some(errno) = refused {
        // The reply is an error, and nothing but a native call is let off with one.
        assert!((1..4096).contains(&errno));
        assert_eq!(seccomp::name(nr), Some(word.as_str()));
    }
    let name = given.take_rest();
    let told = shown(name);
    assert!(!told.chars().any(char::is_control), "{told:?}");
    // The kernel gives sixteen bytes, and the escapes of a byte are ten characters at most.
    assert!(told.len() <= name.len() * 10);
    let status = [
        b"Name:\t",
        as_a_name(name).as_slice(),
        b"\nUmask:\t0022\nNSpid:\t4000\t7\t3\nTracerPid:\t0\n",
    ]
    .concat();
    assert_eq!(innermost(&status), Some(3));
    let _ = innermost(name);
    Ok(())
}

/// As the kernel shows a process's name in `status`.
fn as_a_name(name: &[u8]) -> Vec<u8> {
    let mut shown = Vec::new();
    for byte in name.iter().copied().filter(|byte| *byte != 0).take(15) {
        match byte {
            b'\n' => shown.extend(b"\\n"),
            b'\\' => shown.extend(b"\\\\"),
            other => shown.push(other),
        }
    }
    shown
}

/// The first byte chooses: what the kernel shows of a process whose names are those bytes, or the bytes themselves.
pub fn figures(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 6 {
        0 => {
            let status = [
                b"Name:\t",
                as_a_name(bytes).as_slice(),
                b"\nPPid:\t7\nThreads:\t3\nVmSize:\t 800 kB\nRssAnon:\t 40 kB\nRssShmem:\t 8 kB\nVmSwap:\t 2 kB\n",
            ]
            .concat();
            let process = parse_status(9, &status);
            assert_eq!((process.pid, process.parent, process.tasks), (9, 7, 3));
            assert_eq!((process.held(), process.size), (50 << 10, 800 << 10));
        }
        1 => {
            // A path has every byte but two.
            let path: Vec<u8> = bytes
                .iter()
                .copied()
                .filter(|byte| !matches!(byte, 0 | b'\n'))
                .collect();
            let smaps = [
                b"7f00-7f10 rw-s 00000000 00:1f 35 /",
                path.as_slice(),
                b"\nSize: 64 kB\nPss: 32 kB\nAnonymous: 4 kB\n7f20-7f30 rw-p 00000000 00:00 0 \nPss: 9 kB\nAnonymous: 9 kB\n",
            ]
            .concat();
            assert_eq!(
                shares_of(&smaps, |area| (area.major, area.minor, area.inode)
                    == (0, 0x1f, 35)),
                28 << 10
            );
            // The name of a segment is text; what begins like one and is not is a file.
            let segment = path.starts_with(b"SYSV") && std::str::from_utf8(&path).is_ok();
            assert_eq!(
                shares_of(&smaps, |area| area.segment),
                if segment { 28 << 10 } else { 0 }
            );
            assert_eq!(shares_of(&smaps, |_| true), 28 << 10);
        }
        2 => {
            let process = parse_status(9, bytes);
            let _ = (process.held(), process.undivided().is_undivided());
        }
        3 => {
            let _ = parse_rollup(bytes).is_undivided();
        }
        4 => assert!(parse_segments(bytes).len() <= bytes.len()),
        _ => {
            let some = shares_of(bytes, |area| area.segment);
            assert!(some <= shares_of(bytes, |_| true));
        }
    }
}

/// A stream that is written, read, cut and listened to in any order: what is kept is the head and the tail, never more
/// than the cap, and each byte is told to the listener or counted as lost.
pub fn output(bytes: &[u8]) {
    RUNTIME.with_borrow(|runtime| {
        let _context = runtime.enter();
        let _ = written(&mut Unstructured::new(bytes));
    });
}

fn written(given: &mut Unstructured<'_>) -> Result<()> {
    let cap: u64 = if given.arbitrary()? {
        given.int_in_range(0..=64)?
    } else {
        given.int_in_range(0..=300_000)?
    };
    let paced = given.arbitrary()?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
    let mut write = std::fs::File::from(write);
    let mut stream = Stream::new(true, read, cap).expect("a stream");
    let (sender, mut receiver) = mpsc::channel(given.int_in_range(1..=3)?);
    let mut listeners = Listeners::new(Some(Events { sender, paced }));
    let mut buffer = Vec::new();
    let mut whole: Vec<u8> = Vec::new();
    let mut heard = 0;
    let mut sequence = 0;
    let mut hear = |event: StepEvent| {
        let StepEvent::Output {
            stdout,
            sequence: number,
            data,
            ..
        } = event
        else {
            panic!("{event:?}");
        };
        assert!(stdout && number == sequence);
        sequence += 1;
        data.len() as u64
    };
    let mut step: u8 = 0;
    while !given.is_empty() {
        match given.int_in_range(0..=9)? {
            0..4 => {
                let length = if given.ratio(1, 4)? {
                    given.int_in_range(0..=65_536)?
                } else {
                    given.int_in_range(0..=100)?
                };
                step = step.wrapping_add(1);
                let piece: Vec<u8> = (0..length)
                    .map(|index: usize| step.wrapping_mul(31) ^ index.to_le_bytes()[0])
                    .collect();
                // A pipe that is full takes a part, or none.
                let taken = write.write(&piece).unwrap_or(0);
                whole.extend(&piece[..taken]);
            }
            4 | 5 => {
                if !stream.is_held(&listeners) {
                    stream.read(&mut buffer, &mut listeners);
                }
            }
            6 => stream.catch_up(&mut buffer, &mut listeners),
            7 => {
                while let Ok(event) = receiver.try_recv() {
                    heard += hear(event);
                }
            }
            8 => stream.flush(&mut listeners),
            _ => {
                stream.catch_up(&mut buffer, &mut listeners);
                kept(&stream.cut(cap), &whole, cap);
                while let Ok(event) = receiver.try_recv() {
                    hear(event);
                }
                whole.clear();
                heard = 0;
            }
        }
    }
    stream.drain(&mut buffer, &mut listeners);
    while let Ok(event) = receiver.try_recv() {
        heard += hear(event);
    }
    if let Some(event) = stream.last_event(&mut listeners) {
        heard += hear(event);
    }
    assert_eq!(heard + stream.lost(), whole.len() as u64);
    if paced {
        assert_eq!(stream.lost(), 0);
    }
    kept(&stream.finish(), &whole, cap);
    Ok(())
}

fn kept(output: &Output, whole: &[u8], cap: u64) {
    let cap = usize::try_from(cap).expect("small");
    assert_eq!(output.total, whole.len() as u64);
    assert_eq!(output.kept.len(), whole.len().min(cap));
    assert_eq!(output.truncated(), whole.len() > cap);
    let head = if output.truncated() {
        cap - cap / 2
    } else {
        whole.len()
    };
    assert_eq!(output.head, head as u64);
    let tail = output.kept.len() - head;
    assert_eq!(output.kept[..head], whole[..head]);
    assert_eq!(output.kept[head..], whole[whole.len() - tail..]);
}
