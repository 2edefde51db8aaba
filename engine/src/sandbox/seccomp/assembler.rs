//! Compiles verdicts over syscall numbers into a classic BPF program.
//!
//! The program is a balanced search tree over ranges of numbers. When a filter is loaded the kernel walks it for
//! every syscall number to learn which are always allowed (`seccomp_cache_prepare`), so the depth of a program
//! decides what loading costs: a linear list of 300 comparisons takes five times as long as the same list as a tree.
//! That walk stops at the first look at an argument, so the tree reads only the architecture and the number, and the
//! blocks that read arguments lie behind it.
//!
//! ```text
//!     load arch; unless native: return the foreign action
//!     load nr
//!     tree: jump on ranges; each leaf is a return, or a long jump to a block
//!     blocks: one per argument rule, shared by the syscalls that use it
//! ```

use std::collections::BTreeMap;

use libc::sock_filter;

use super::{
    action::Action,
    rules::{Check, Clause, Rule},
};

/// What becomes of a syscall number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Always this.
    Always(Action),
    /// Depends on the arguments.
    ByArguments(&'static Rule),
}

/// A verdict for every number, on one architecture.
#[derive(Debug)]
pub(super) struct Verdicts {
    /// The audit word of a native call.
    pub(super) architecture: u32,
    /// For calls of any other architecture.
    pub(super) foreign: Action,
    /// The verdict for each number from the key up to the next key.
    spans: BTreeMap<u32, Verdict>,
}

impl Verdicts {
    /// Gives `otherwise` to every number.
    pub(super) fn new(architecture: u32, foreign: Action, otherwise: Verdict) -> Self {
        Self {
            architecture,
            foreign,
            spans: BTreeMap::from([(0, otherwise)]),
        }
    }

    /// Gives `verdict` to the numbers from `first` to `last`, both included.
    pub(super) fn set(&mut self, first: u32, last: u32, verdict: Verdict) {
        if let Some(after) = last.checked_add(1) {
            let resumed = self.at(after);
            self.spans.insert(after, resumed);
        }
        self.spans
            .retain(|start, _| !(first..=last).contains(start));
        self.spans.insert(first, verdict);
    }

    /// What becomes of the call `nr` of `architecture` with these arguments: the same as the compiled filter says.
    pub(super) fn answer(&self, architecture: u32, nr: u32, arguments: &[u64; 6]) -> Action {
        if architecture != self.architecture {
            return self.foreign;
        }
        match self.at(nr) {
            Verdict::Always(action) => action,
            Verdict::ByArguments(rule) => rule.answer(arguments),
        }
    }

    fn at(&self, nr: u32) -> Verdict {
        let (_, verdict) = self
            .spans
            .range(..=nr)
            .next_back()
            .expect("the first span starts at 0");
        *verdict
    }

    /// The spans with equal neighbours joined.
    fn joined(&self) -> Vec<(u32, Verdict)> {
        let mut joined: Vec<(u32, Verdict)> = Vec::with_capacity(self.spans.len());
        for (start, verdict) in &self.spans {
            if joined.last().is_none_or(|(_, last)| last != verdict) {
                joined.push((*start, *verdict));
            }
        }
        joined
    }
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// An instruction whose target may not be known yet.
enum Draft {
    Ready(sock_filter),
    /// A long jump to the block with this index.
    ToBlock(usize),
}

/// Compiles `verdicts`.
pub(super) fn assemble(verdicts: &Verdicts) -> Vec<sock_filter> {
    let mut rules = Vec::new();
    let mut drafts = vec![
        Draft::Ready(load(ARCHITECTURE)),
        Draft::Ready(jump(libc::BPF_JEQ, verdicts.architecture, 1, 0)),
        Draft::Ready(answer(verdicts.foreign)),
        Draft::Ready(load(NUMBER)),
    ];
    drafts.extend(tree(&verdicts.joined(), &mut rules));

    let mut blocks = Vec::new();
    let mut starts = Vec::with_capacity(rules.len());
    for rule in rules {
        starts.push(drafts.len() + blocks.len());
        blocks.extend(block(rule));
    }
    let mut program = Vec::with_capacity(drafts.len() + blocks.len());
    for (position, draft) in drafts.into_iter().enumerate() {
        program.push(match draft {
            Draft::Ready(instruction) => instruction,
            Draft::ToBlock(index) => long_jump(starts[index] - position - 1),
        });
    }
    program.extend(blocks);
    program
}

/// A search tree over `spans`, each given by its first number.
fn tree(spans: &[(u32, Verdict)], rules: &mut Vec<&'static Rule>) -> Vec<Draft> {
    if let [(_, verdict)] = spans {
        return vec![leaf(*verdict, rules)];
    }
    let (low, high) = spans.split_at(spans.len() / 2);
    let below = tree(low, rules);
    let mut drafts = match u8::try_from(below.len()) {
        Ok(distance) => vec![Draft::Ready(jump(libc::BPF_JGE, high[0].0, distance, 0))],
        // A conditional jump reaches 255 instructions; a plain one reaches as far as it must.
        Err(_) => {
            vec![
                Draft::Ready(jump(libc::BPF_JGE, high[0].0, 0, 1)),
                Draft::Ready(long_jump(below.len())),
            ]
        }
    };
    drafts.extend(below);
    drafts.extend(tree(high, rules));
    drafts
}

fn leaf(verdict: Verdict, rules: &mut Vec<&'static Rule>) -> Draft {
    match verdict {
        Verdict::Always(action) => Draft::Ready(answer(action)),
        Verdict::ByArguments(rule) => Draft::ToBlock(
            rules
                .iter()
                .position(|known| *known == rule)
                .unwrap_or_else(|| {
                    rules.push(rule);
                    rules.len() - 1
                }),
        ),
    }
}

fn block(rule: &Rule) -> Vec<sock_filter> {
    let mut block: Vec<_> = rule.clauses.iter().flat_map(clause).collect();
    block.push(answer(rule.otherwise));
    block
}

/// The checks of a clause, each leaving to what follows the clause when it does not hold. Built from the end, since
/// each check jumps over all that is behind it.
fn clause(clause: &Clause) -> Vec<sock_filter> {
    let mut behind = vec![answer(clause.then)];
    for check in clause.when.iter().rev() {
        let mut instructions = self::check(check, near(behind.len()));
        instructions.append(&mut behind);
        behind = instructions;
    }
    behind
}

/// Goes on to the next instruction if `check` holds, else over `miss` instructions.
fn check(check: &Check, miss: u8) -> Vec<sock_filter> {
    match check {
        Check::AnyBit { argument, mask } => vec![
            load_low_half(*argument),
            jump(libc::BPF_JSET, *mask, 0, miss),
        ],
        Check::OneOf {
            argument,
            mask,
            values,
        } => {
            let mut instructions = vec![load_low_half(*argument)];
            if *mask != u32::MAX {
                instructions.push(instruction(
                    libc::BPF_ALU | libc::BPF_AND | libc::BPF_K,
                    *mask,
                    0,
                    0,
                ));
            }
            for (position, value) in values.iter().enumerate() {
                let left = values.len() - position - 1;
                let otherwise = if left == 0 { miss } else { 0 };
                instructions.push(jump(libc::BPF_JEQ, *value, near(left), otherwise));
            }
            instructions
        }
    }
}

fn near(distance: usize) -> u8 {
    u8::try_from(distance).expect("a clause of the policy is a few instructions long")
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Registers are 64 bits wide and both supported architectures store the low half first.
fn load_low_half(argument: u8) -> sock_filter {
    load(ARGUMENTS + 8 * u32::from(argument))
}

fn jump(condition: u32, value: u32, hit: u8, miss: u8) -> sock_filter {
    instruction(libc::BPF_JMP | condition | libc::BPF_K, value, hit, miss)
}

fn long_jump(distance: usize) -> sock_filter {
    let distance = u32::try_from(distance).expect("a program has at most 4096 instructions");
    instruction(libc::BPF_JMP | libc::BPF_JA, distance, 0, 0)
}

fn answer(action: Action) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action.word(), 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).expect("classic BPF codes are 16 bits wide"),
        jt,
        jf,
        k,
    }
}
