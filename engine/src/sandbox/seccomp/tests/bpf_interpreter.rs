//! Runs a filter as the kernel would: the subset of classic BPF that `seccomp(2)` takes and the assembler emits.

use libc::sock_filter;

use crate::sandbox::seccomp::Action;

/// What a filter is asked: `struct seccomp_data` without the instruction pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) architecture: u32,
    pub(super) nr: u32,
    pub(super) arguments: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.nr,
            4 => self.architecture,
            16..64 => {
                let argument = self.arguments[(offset as usize - 16) / 8].to_le_bytes();
                let at = (offset as usize - 16) % 8;
                u32::from_le_bytes(argument[at..at + 4].try_into().unwrap())
            }
            _ => panic!("load from offset {offset}"),
        }
    }
}

/// The answer of `program` to `call`, and how many instructions it took.
pub(super) fn run(program: &[sock_filter], call: &Call) -> (Action, usize) {
    walk(program, |offset| call.word(offset))
}

/// The answer of `program` to `call`, which must not depend on an argument.
pub(super) fn run_blind(program: &[sock_filter], call: &Call) -> Action {
    let (answer, _) = walk(program, |offset| {
        assert!(offset < 16, "{call:x?}: an argument was looked at");
        call.word(offset)
    });
    answer
}

fn walk(program: &[sock_filter], load: impl Fn(u32) -> u32) -> (Action, usize) {
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        let branch = |hit: bool| usize::from(if hit { jt } else { jf });
        match code {
            0x20 => accumulator = load(k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            0x06 => return (action(k), steps),
            _ => panic!("instruction {code:#x}"),
        }
    }
}

fn action(word: u32) -> Action {
    match word & 0xffff_0000 {
        0x8000_0000 => Action::KillProcess,
        0x0005_0000 => Action::Errno(u16::try_from(word & 0xffff).unwrap()),
        0x7fc0_0000 => Action::Notify,
        0x7fff_0000 => Action::Allow,
        _ => panic!("answer {word:#x}"),
    }
}
