//! A process that shares the memory of the one that runs the code: while it is there, the end of the code's process need
//! not take that memory apart, which takes longer than all else that an end takes.
//!
//! It sleeps until the code's process lets go of the memory, by its end or by executing a program, and ends then. It is
//! under the filters of the code and one more, by which it can sleep, wake others and end: code that writes over what it
//! runs gains nothing.

use core::arch::global_asm;

use super::call::{call, number};
use super::process::{number as own_number, unblock_signals};
use super::{close, open};

unsafe extern "C" {
    /// Clones a child of this process's parent that shares this memory, and gives its number or a negative error. On
    /// `stack` it loads `program` as a filter, sleeps while `word` has the value `held`, and ends.
    fn stepbox_hold(word: *const u32, held: u32, stack: *mut u8, program: *const Program) -> isize;
}

// CLONE_VM | CLONE_PARENT. The child uses no stack: all signals are blocked.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl stepbox_hold",
    ".hidden stepbox_hold",
    ".type stepbox_hold, @function",
    "stepbox_hold:",
    "push r12",
    "push r13",
    "push r14",
    "mov r12, rdi",
    "mov r13d, esi",
    "mov r14, rcx",
    "mov edi, 0x8100",
    "mov rsi, rdx",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "pop r14",
    "pop r13",
    "pop r12",
    "ret",
    // seccomp(SECCOMP_SET_MODE_FILTER, 0, program)
    "2:",
    "mov eax, 317",
    "mov edi, 1",
    "xor esi, esi",
    "mov rdx, r14",
    "syscall",
    "test rax, rax",
    "jnz 4f",
    // futex(word, FUTEX_WAIT, held, forever)
    "3:",
    "mov eax, 202",
    "mov rdi, r12",
    "xor esi, esi",
    "mov edx, r13d",
    "xor r10d, r10d",
    "syscall",
    "cmp dword ptr [r12], r13d",
    "je 3b",
    // futex(word, FUTEX_WAKE, all): the one wake may have been meant for another.
    "mov eax, 202",
    "mov rdi, r12",
    "mov esi, 1",
    "mov edx, 0x7fffffff",
    "syscall",
    // exit_group(0)
    "4:",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    "jmp 4b",
    ".size stepbox_hold, . - stepbox_hold",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl stepbox_hold",
    ".hidden stepbox_hold",
    ".type stepbox_hold, %function",
    "stepbox_hold:",
    "mov x9, x0",
    "mov w10, w1",
    "mov x11, x3",
    "mov x0, 0x8100",
    "mov x1, x2",
    "mov x2, 0",
    "mov x3, 0",
    "mov x4, 0",
    "mov x8, 220",
    "svc 0",
    "cbz x0, 2f",
    "ret",
    // seccomp(SECCOMP_SET_MODE_FILTER, 0, program)
    "2:",
    "mov x8, 277",
    "mov x0, 1",
    "mov x1, 0",
    "mov x2, x11",
    "svc 0",
    "cbnz x0, 4f",
    // futex(word, FUTEX_WAIT, held, forever)
    "3:",
    "mov x8, 98",
    "mov x0, x9",
    "mov x1, 0",
    "mov w2, w10",
    "mov x3, 0",
    "svc 0",
    "ldr w12, [x9]",
    "cmp w12, w10",
    "b.eq 3b",
    // futex(word, FUTEX_WAKE, all): the one wake may have been meant for another.
    "mov x8, 98",
    "mov x0, x9",
    "mov x1, 1",
    "mov x2, 0x7fffffff",
    "svc 0",
    // exit_group(0)
    "4:",
    "mov x8, 94",
    "mov x0, 0",
    "svc 0",
    "b 4b",
    ".size stepbox_hold, . - stepbox_hold",
);

/// `struct sock_filter` and `struct sock_fprog`.
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    filter: &'static [Instruction; LENGTH],
}

static PROGRAM: Program = Program {
    length: LENGTH as u16,
    filter: &FILTER,
};

const LENGTH: usize = 8;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const fn load(offset: u32) -> Instruction {
    Instruction {
        code: 0x20,
        if_true: 0,
        if_false: 0,
        operand: offset,
    }
}

const fn equal(operand: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code: 0x15,
        if_true,
        if_false,
        operand,
    }
}

const fn answer(action: u32) -> Instruction {
    Instruction {
        code: 0x06,
        if_true: 0,
        if_false: 0,
        operand: action,
    }
}

/// Sleeping, waking, and the end. Anything else kills.
static FILTER: [Instruction; LENGTH] = [
    load(4),
    equal(ARCHITECTURE, 0, 4),
    load(0),
    equal(number::FUTEX as u32, 3, 0),
    equal(number::EXIT_GROUP as u32, 2, 0),
    equal(number::RESTART_SYSCALL as u32, 1, 0),
    answer(0x8000_0000),
    answer(0x7fff_0000),
];

static mut STACK: [u64; 64] = [0; 64];

/// Makes one; gives its number. None: the kernel or the library lacks what it takes, and nothing is lost but time.
pub fn hold() -> Option<u32> {
    const GET_TID_ADDRESS: usize = 40;
    const SET: usize = 2;
    // Init must be able to see that nobody else is left.
    close(open(None, c"/proc/thread-self/children", 0, 0).ok()?);
    let mut word: *const u32 = core::ptr::null();
    // SAFETY: a place for one pointer.
    unsafe { call(number::PRCTL, [GET_TID_ADDRESS, &raw mut word as usize]) }.ok()?;
    if word.is_null() {
        return None;
    }
    // The kernel clears it, and wakes who waits there, when this thread lets go of its memory.
    // SAFETY: the word that the library gave to the kernel, in its own memory.
    let held = unsafe { *word };
    if held != own_number() {
        return None;
    }
    let all = u64::MAX;
    // SAFETY: a set of the kernel's size; the old one is not asked for.
    unsafe { call(number::RT_SIGPROCMASK, [SET, &raw const all as usize, 0, 8]) }.ok()?;
    // SAFETY: the word, the stack and the program are there as long as this memory is.
    let child = unsafe {
        let top = (&raw mut STACK).cast::<u8>().add(size_of::<[u64; 64]>());
        stepbox_hold(word, held, top, &raw const PROGRAM)
    };
    let _ = unblock_signals();
    u32::try_from(child).ok().filter(|child| *child > 0)
}
