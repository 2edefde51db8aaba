//! Both filters, run by an interpreter over every number on both architectures.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod argument_cases;
mod bpf_interpreter;

use std::{collections::BTreeMap, sync::LazyLock};

use libc::{EBUSY, ENOSYS, EPERM, sock_filter};
use proptest::prelude::*;

use self::bpf_interpreter::{Call, run, run_blind};
use crate::spec::Profile;

use super::{
    action::Action,
    assembler::{Verdict, Verdicts, assemble},
    base_filter, describe, name, pin_filter,
    policy::{self, Class, Row},
    refusal,
    rows::{POLICY, UNTRUSTED},
    rules::{count, errno},
    step_filter,
    syscalls::{AARCH64, Architecture, NATIVE, X86_64},
};

/// Both filters of one architecture, stacked.
struct Stack {
    architecture: &'static Architecture,
    base: Vec<sock_filter>,
    step: Vec<sock_filter>,
    /// What the listener decides by.
    verdicts: Verdicts,
}

impl Stack {
    fn of(architecture: &'static Architecture, profile: Profile) -> Self {
        let verdicts = policy::step(architecture, profile);
        Self {
            architecture,
            base: assemble(&policy::base(architecture, profile)),
            step: assemble(&verdicts),
            verdicts,
        }
    }

    fn both() -> &'static [Self] {
        static BOTH: LazyLock<[Stack; 2]> =
            LazyLock::new(|| [&X86_64, &AARCH64].map(|known| Stack::of(known, Profile::Default)));
        &*BOTH
    }

    fn call(&self, nr: u32, arguments: [u64; 6]) -> Call {
        Call {
            architecture: self.architecture.audit,
            nr,
            arguments,
        }
    }

    fn base(&self, call: &Call) -> Action {
        run(&self.base, call).0
    }

    /// What happens to a call of the code: the most restrictive answer, and of a notification what its reader makes of it.
    fn answer(&self, call: &Call) -> Action {
        match self.base(call).min(run(&self.step, call).0) {
            Action::Notify => self
                .verdicts
                .answer(call.architecture, call.nr, &call.arguments),
            decided => decided,
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.architecture
            .table
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(nr, _)| *nr)
    }
}

fn row(name: &str) -> &'static Row {
    policy::row(name).unwrap_or_else(|| panic!("{name} is in no row"))
}

fn expected(class: Class, arguments: &[u64; 6]) -> Action {
    match class {
        Class::Allow => Action::Allow,
        Class::Refuse(number) | Class::SetUp(number) => errno(number),
        Class::Counted(number) => count(number),
        Class::Escape => Action::Notify,
        Class::Checked(rule) | Class::CheckedAtStep(rule) => rule.answer(arguments),
    }
}

#[test]
fn every_number_gets_the_answer_of_its_row_and_unknown_ones_enosys() {
    for stack in Stack::both() {
        for nr in (0..600).chain([0x3fff_ffff, 0x8000_0000, u32::MAX]) {
            let answer = stack.answer(&stack.call(nr, [0; 6]));
            let wanted = stack
                .architecture
                .name(nr)
                .map_or(errno(ENOSYS), |name| expected(row(name).class, &[0; 6]));
            assert_eq!(answer, wanted, "{nr} {:?}", stack.architecture.name(nr));
        }
    }
}

#[test]
fn every_syscall_is_in_exactly_one_row_and_every_row_names_syscalls() {
    for (_, name) in X86_64.table.iter().chain(AARCH64.table) {
        assert_eq!(
            POLICY
                .iter()
                .filter(|row| row.names().any(|known| known == *name))
                .count(),
            1,
            "{name}"
        );
    }
    for name in POLICY.iter().flat_map(Row::names) {
        assert!(
            X86_64
                .table
                .iter()
                .chain(AARCH64.table)
                .any(|(_, known)| *known == name),
            "{name} is no syscall"
        );
    }
    assert!(
        POLICY
            .iter()
            .all(|row| !row.reason.is_empty() && !row.names.is_empty())
    );
}

#[test]
fn every_refusal_has_an_allowed_twin() {
    for row in POLICY {
        match (row.class, row.twin) {
            (
                Class::Refuse(_) | Class::SetUp(_) | Class::Counted(_) | Class::Escape,
                Some(twin),
            ) => {
                let class = self::row(twin).class;
                assert!(
                    matches!(
                        class,
                        Class::Allow | Class::Checked(_) | Class::CheckedAtStep(_)
                    ),
                    "{:?}: {twin} is not allowed either",
                    row.names
                );
            }
            (Class::Allow | Class::Checked(_) | Class::CheckedAtStep(_), None) => {}
            (class, twin) => panic!("{:?} is {class:?} with twin {twin:?}", row.names),
        }
    }
}

#[test]
fn every_argument_case_gets_its_answer_whatever_the_upper_halves_hold() {
    for stack in Stack::both() {
        for (name, arguments, wanted) in argument_cases::CASES {
            let Some(nr) = stack.number(name) else {
                continue;
            };
            assert_eq!(
                stack.answer(&stack.call(nr, *arguments)),
                *wanted,
                "{name} {arguments:x?}"
            );
            let dressed = arguments.map(|argument| argument | 0xdead_beef_0000_0000);
            assert_eq!(
                stack.answer(&stack.call(nr, dressed)),
                *wanted,
                "{name} {dressed:x?}"
            );
        }
    }
}

#[test]
fn every_checked_syscall_has_a_denied_and_an_allowed_case() {
    for row in POLICY {
        if let Class::Checked(_) | Class::CheckedAtStep(_) = row.class {
            for name in row.names() {
                let answers = || {
                    argument_cases::CASES
                        .iter()
                        .filter(|(case, ..)| *case == name)
                        .map(|(.., answer)| *answer)
                };
                assert!(
                    answers().any(|answer| answer == Action::Allow),
                    "{name} has no allowed case"
                );
                assert!(
                    answers().any(|answer| answer != Action::Allow),
                    "{name} has no denied case"
                );
            }
        }
    }
}

#[test]
fn calls_of_another_abi_pass_the_base_filter_and_notify() {
    for stack in Stack::both() {
        for architecture in [0x4000_0003, 0x4000_0028, 0xc000_00b7, 0xc000_003e, 0] {
            if architecture == stack.architecture.audit {
                continue;
            }
            for nr in [0, 20, 21, 39, 0x4000_0027, u32::MAX] {
                let call = Call {
                    architecture,
                    nr,
                    arguments: [0; 6],
                };
                assert_eq!(stack.base(&call), Action::Allow, "{call:x?}");
                assert_eq!(stack.answer(&call), Action::Notify, "{call:x?}");
            }
        }
    }
    let x86 = Stack::of(&X86_64, Profile::Default);
    for nr in [0x4000_0000, 0x4000_0027, 0x4000_0220, 0x7fff_ffff] {
        let call = x86.call(nr, [0; 6]);
        assert_eq!(x86.base(&call), Action::Allow, "{nr:#x}");
        assert_eq!(x86.answer(&call), Action::Notify, "{nr:#x}");
    }
    let arm = Stack::of(&AARCH64, Profile::Default);
    assert_eq!(arm.answer(&arm.call(0x4000_0027, [0; 6])), errno(ENOSYS));
}

#[test]
fn base_filter_hides_no_notification() {
    let by_arguments = argument_cases::CASES
        .iter()
        .filter(|(.., answer)| matches!(answer, Action::Count(_) | Action::Notify))
        .map(|(name, arguments, answer)| (*name, *arguments, *answer));
    let always = POLICY
        .iter()
        .filter(|row| matches!(row.class, Class::Counted(_) | Class::Escape))
        .flat_map(|row| {
            let answer = expected(row.class, &[0; 6]);
            row.names().map(move |name| (name, [0; 6], answer))
        });
    let notifying: Vec<_> = always.chain(by_arguments).collect();
    for stack in Stack::both() {
        for (name, arguments, answer) in notifying.iter().copied() {
            let Some(nr) = stack.number(name) else {
                continue;
            };
            let call = stack.call(nr, arguments);
            assert_eq!(stack.base(&call), Action::Allow, "{name}");
            assert_eq!(run(&stack.step, &call).0, Action::Notify, "{name}");
            assert_eq!(stack.answer(&call), answer, "{name}");
        }
    }
}

#[test]
fn only_refusals_are_answered_and_an_escape_is_none() {
    let number = |name| Stack::of(NATIVE, Profile::Default).number(name).unwrap();
    let arch = NATIVE.audit;
    let user_namespace = [0x1000_0000, 0, 0, 0, 0, 0];
    let mount_namespace = [0x0002_0000, 0, 0, 0, 0, 0];
    for name in ["ptrace", "process_vm_readv", "process_vm_writev"] {
        assert_eq!(refusal(arch, number(name), &[0; 6]), Some(EPERM), "{name}");
    }
    for name in ["clone", "unshare"] {
        assert_eq!(refusal(arch, number(name), &user_namespace), Some(EPERM));
        assert_eq!(refusal(arch, number(name), &mount_namespace), None);
    }
    for name in ["mount", "setns", "bpf", "read", "chroot"] {
        assert_eq!(refusal(arch, number(name), &user_namespace), None, "{name}");
    }
    assert_eq!(refusal(arch ^ 1, number("ptrace"), &[0; 6]), None);
    assert_eq!(refusal(arch, 0x4000_0000 | number("ptrace"), &[0; 6]), None);
}

#[test]
fn what_ordinary_programs_call_most_is_decided_without_a_look_at_arguments() {
    // The kernel answers these from a bitmap that it made when the filter was loaded, and runs no filter.
    let common = "read write close fstat lseek mmap munmap mprotect brk futex getpid gettid rt_sigaction rt_sigprocmask \
        rt_sigreturn clock_gettime epoll_pwait ppoll wait4 exit_group execve madvise getdents64 readlinkat newfstatat fcntl";
    for stack in Stack::both() {
        for name in common.split_whitespace() {
            let Some(nr) = stack.number(name) else {
                continue;
            };
            for program in [&stack.base, &stack.step] {
                assert_eq!(
                    run_blind(program, &stack.call(nr, [0; 6])),
                    Action::Allow,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn base_filter_lets_set_up_work() {
    let needed = "mount umount2 fsopen fsconfig fsmount move_mount open_tree mount_setattr pivot_root chroot setns unshare clone \
        clone3 sethostname seccomp capset prctl setresuid setresgid setgroups landlock_create_ruleset landlock_add_rule \
        landlock_restrict_self pidfd_open pidfd_send_signal close_range memfd_create sendmsg recvmsg ppoll epoll_create1 \
        epoll_ctl epoll_pwait signalfd4 mknodat keyctl openat2 execve execveat waitid prlimit64 umask setsid ioctl";
    let netlink_route = [16, 3, 0, 0, 0, 0];
    let every_namespace = [0x7e02_0080, 0, 0, 0, 0, 0];
    let null_device = [0, 0, 0o20666, 0x103, 0, 0];
    for stack in Stack::both() {
        for name in needed.split_whitespace() {
            let nr = stack.number(name).unwrap();
            assert_eq!(stack.base(&stack.call(nr, [0; 6])), Action::Allow, "{name}");
        }
        for (name, arguments) in [
            ("socket", netlink_route),
            ("clone", every_namespace),
            ("unshare", every_namespace),
            ("mknodat", null_device),
        ] {
            let nr = stack.number(name).unwrap();
            assert_eq!(
                stack.base(&stack.call(nr, arguments)),
                Action::Allow,
                "{name}"
            );
        }
    }
}

#[test]
fn child_can_hand_over_the_listener_and_execute_under_both_filters() {
    for stack in Stack::both() {
        for name in [
            "sendmsg",
            "close",
            "execve",
            "execveat",
            "exit_group",
            "write",
            "rt_sigprocmask",
        ] {
            let nr = stack.number(name).unwrap();
            assert_eq!(
                stack.answer(&stack.call(nr, [0; 6])),
                Action::Allow,
                "{name}"
            );
        }
    }
}

#[test]
fn second_listener_is_refused_as_the_kernel_does() {
    let stack = Stack::of(NATIVE, Profile::Default);
    let nr = stack.number("seccomp").unwrap();
    assert_eq!(
        stack.answer(&stack.call(nr, [1, 1 << 3, 0, 0, 0, 0])),
        errno(EBUSY)
    );
}

#[test]
fn decision_without_arguments_takes_few_instructions() {
    for stack in Stack::both() {
        for (filter, program) in [("base", &stack.base), ("step", &stack.step)] {
            let deepest = (0..600)
                .chain([0x3fff_ffff, 0x4000_0000, 0x7fff_ffff, u32::MAX])
                .filter(|nr| {
                    !stack.architecture.name(*nr).is_some_and(|name| {
                        matches!(row(name).class, Class::Checked(_) | Class::CheckedAtStep(_))
                    })
                })
                .map(|nr| run(program, &stack.call(nr, [0; 6])).1)
                .max()
                .unwrap();
            println!(
                "{:#x} {filter}: {} instructions, {deepest} deep",
                stack.architecture.audit,
                program.len()
            );
            assert!(deepest <= 16, "{filter}: {deepest}");
            assert!(program.len() <= 4096, "{filter}: {}", program.len());
        }
    }
}

#[test]
fn tables_are_in_order_and_agree_with_libc() {
    for table in [X86_64.table, AARCH64.table] {
        assert!(table.is_sorted_by(|(one, _), (next, _)| one < next));
        let names: BTreeMap<_, _> = table.iter().map(|(nr, name)| (name, nr)).collect();
        assert_eq!(names.len(), table.len(), "a name stands for two numbers");
    }
    let known = [
        (libc::SYS_mount, "mount"),
        (libc::SYS_ptrace, "ptrace"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_bpf, "bpf"),
        (libc::SYS_seccomp, "seccomp"),
        (libc::SYS_open_by_handle_at, "open_by_handle_at"),
        (libc::SYS_mseal, "mseal"),
    ];
    for (nr, wanted) in known {
        assert_eq!(name(u32::try_from(nr).unwrap()), Some(wanted));
    }
    assert_eq!(name(599), None);
}

#[test]
fn notifications_are_described_by_the_abi_they_came_by() {
    let mount = u32::try_from(libc::SYS_mount).unwrap();
    assert_eq!(describe(NATIVE.audit, mount), "mount");
    assert_eq!(describe(NATIVE.audit, 599), "syscall 599");
    assert_eq!(describe(0x4000_0003, 21), "i386 syscall 21");
    assert_eq!(describe(0x4000_0028, 21), "arm syscall 21");
    assert_eq!(
        describe(0x8000_0016, 21),
        "syscall 21 of architecture 0x80000016"
    );
    if NATIVE.other_abi.is_some() {
        assert_eq!(describe(NATIVE.audit, 0x4000_0027), "x32 syscall 39");
    }
}

#[test]
fn public_filters_are_those_of_this_architecture() {
    let words = |program: &[sock_filter]| -> Vec<_> {
        program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
    };
    for profile in [Profile::Default, Profile::Untrusted] {
        let native = Stack::of(NATIVE, profile);
        assert_eq!(words(base_filter(profile)), words(&native.base));
        assert_eq!(words(step_filter(profile)), words(&native.step));
    }
    let pin = assemble(&policy::pin(NATIVE));
    assert_eq!(words(pin_filter()), words(&pin));
}

#[test]
fn pinned_code_may_not_change_its_affinity_and_loses_nothing_else() {
    for stack in Stack::both() {
        let pin = assemble(&policy::pin(stack.architecture));
        for (nr, name) in stack.architecture.table {
            let call = stack.call(*nr, [0; 6]);
            let without = stack.answer(&call);
            let with = without.min(run(&pin, &call).0);
            if *name == "sched_setaffinity" {
                assert_eq!((without, with), (Action::Allow, errno(libc::EPERM)));
            } else {
                assert_eq!(with, without, "{name}");
            }
        }
    }
}

/// Registers with the flags and bounds that the rules ask about, and any other value.
fn register() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..64_u32).prop_map(|bit| 1 << bit),
        0..64_u64,
        Just(0x5412_u64),
        Just(0x541c_u64),
        Just(0o104_755_u64),
        Just(0o20_666_u64),
        any::<u64>(),
    ]
}

proptest! {
    #[test]
    fn rules_mean_the_same_compiled_and_evaluated(arguments in prop::array::uniform6(register())) {
        for stack in Stack::both() {
            for (nr, name) in stack.architecture.table {
                let answer = stack.answer(&stack.call(*nr, arguments));
                prop_assert_eq!(answer, expected(row(name).class, &arguments), "{}", name);
            }
        }
    }

    #[test]
    fn tree_of_any_size_finds_every_verdict(
        points in prop::collection::btree_map(0..2000_u32, 1..200_u16, 0..700),
        last in 2000..u32::MAX,
    ) {
        let mut verdicts = Verdicts::new(7, Action::KillProcess, Verdict::Always(Action::Allow));
        verdicts.set(2000, last, Verdict::Always(Action::Notify));
        for (nr, number) in &points {
            verdicts.set(*nr, *nr, Verdict::Always(Action::Errno(*number)));
        }
        let program = assemble(&verdicts);
        let answer = |nr| run(&program, &Call { architecture: 7, nr, arguments: [0; 6] }).0;
        for nr in 0..2000 {
            prop_assert_eq!(answer(nr), points.get(&nr).map_or(Action::Allow, |number| Action::Errno(*number)));
        }
        prop_assert_eq!(answer(2000), Action::Notify);
        prop_assert_eq!(answer(last), Action::Notify);
        prop_assert_eq!(answer(last + 1), Action::Allow);
        let foreign = Call { architecture: 8, nr: 0, arguments: [0; 6] };
        prop_assert_eq!(run(&program, &foreign).0, Action::KillProcess);
    }
}

#[test]
fn errno_actions_of_the_policy_are_what_libraries_fall_back_on() {
    let refused = |name: &str| match row(name).class {
        Class::Refuse(number) | Class::SetUp(number) | Class::Counted(number) => number,
        class => panic!("{name} is {class:?}"),
    };
    for name in [
        "clone3",
        "io_uring_setup",
        "userfaultfd",
        "perf_event_open",
        "keyctl",
        "openat2",
        "fchmodat2",
        "kcmp",
    ] {
        assert_eq!(refused(name), ENOSYS, "{name}");
    }
    for name in [
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "sethostname",
        "settimeofday",
    ] {
        assert_eq!(refused(name), EPERM, "{name}");
    }
}

fn untrusted() -> [Stack; 2] {
    [&X86_64, &AARCH64].map(|known| Stack::of(known, Profile::Untrusted))
}

#[test]
fn untrusted_code_is_stopped_where_other_code_is_told_that_a_call_is_missing() {
    for (usual, stack) in Stack::both().iter().zip(untrusted()) {
        for nr in (0..600).chain([0x3fff_ffff, 0x8000_0000, u32::MAX]) {
            let call = stack.call(nr, [0; 6]);
            let name = stack.architecture.name(nr);
            let own = UNTRUSTED
                .iter()
                .find(|row| row.names().any(|known| Some(known) == name));
            let wanted = match (own, usual.answer(&call)) {
                (Some(own), _) => expected(own.class, &[0; 6]),
                (None, answer) if answer == errno(ENOSYS) => Action::Notify,
                (None, answer) => answer,
            };
            assert_eq!(stack.answer(&call), wanted, "{nr} {name:?}");
            if stack.answer(&call) == Action::Notify {
                assert_eq!(stack.base(&call), Action::Allow, "{nr} {name:?}");
                assert_eq!(refusal(stack.architecture.audit, nr, &[0; 6]), None, "{nr}");
            }
        }
    }
}

#[test]
fn untrusted_code_has_no_local_socket_with_a_name_and_no_executable_memory_file() {
    const NO_FAMILY: Action = errno(libc::EAFNOSUPPORT);
    // Local: stream, datagram, raw, sequenced, each also with CLOEXEC. Internet: stream. The routing socket.
    let table: &[(&str, [u64; 3], Action)] = &[
        ("socket", [1, 1, 0], NO_FAMILY),
        ("socket", [1, 0x8_0002, 0], NO_FAMILY),
        ("socket", [2, 1, 0], Action::Allow),
        ("socket", [2, 3, 1], errno(EPERM)),
        ("socket", [16, 3, 0], Action::Allow),
        ("socketpair", [1, 1, 0], Action::Allow),
        ("socketpair", [1, 0x8_0001, 0], Action::Allow),
        ("socketpair", [1, 5, 0], Action::Allow),
        ("socketpair", [1, 2, 0], NO_FAMILY),
        ("socketpair", [1, 0x8_0002, 0], NO_FAMILY),
        ("socketpair", [1, 3, 0], NO_FAMILY),
        ("memfd_create", [0, 1, 0], errno(libc::EACCES)),
        ("memfd_create", [0, 0x11, 0], errno(libc::EACCES)),
        ("memfd_create", [0, 9, 0], Action::Allow),
        ("clone3", [0, 0, 0], errno(ENOSYS)),
    ];
    for stack in untrusted() {
        for (name, [a, b, c], wanted) in table {
            let nr = stack.number(name).unwrap();
            let call = stack.call(nr, [*a, *b, *c, 0, 0, 0]);
            assert_eq!(stack.answer(&call), *wanted, "{name} {a} {b} {c}");
        }
    }
}

#[test]
fn what_is_refused_without_namespaces_is_known_and_has_a_reason() {
    // Later than the tables: no kernel of theirs has them, and a later one's are unknown.
    let later = ["setxattrat", "removexattrat", "file_setattr"];
    for (_, names, reason) in super::policy::ALONE {
        assert!(!reason.is_empty());
        for name in names.split_ascii_whitespace() {
            let known = super::policy::row(name).is_some();
            assert!(known || later.contains(&name), "{name}");
        }
    }
}

#[test]
fn without_namespaces_other_processes_are_not_to_be_changed_and_the_own_is() {
    use super::action::Action;
    let native = super::syscalls::NATIVE;
    let number = |wanted: &str| {
        let found = native.table.iter().find(|(_, name)| *name == wanted);
        found.map(|(nr, _)| *nr)
    };
    for pinned in [false, true] {
        let verdicts = super::policy::alone(native, pinned);
        let answer = |name: &str, arguments: [u64; 6]| {
            verdicts.answer(native.audit, number(name).expect(name), &arguments)
        };
        let refused = super::rules::errno(EPERM);
        assert_eq!(answer("prlimit64", [0, 7, 0, 0, 0, 0]), Action::Allow);
        assert_eq!(answer("prlimit64", [9, 7, 0, 0, 0, 0]), refused);
        assert_eq!(answer("setpriority", [0, 0, 5, 0, 0, 0]), Action::Allow);
        assert_eq!(answer("setpriority", [0, 9, 5, 0, 0, 0]), refused);
        assert_eq!(answer("fchmodat", [0; 6]), refused);
        assert_eq!(answer("socket", [1; 6]), super::rules::errno(libc::EACCES));
        assert_eq!(answer("socketpair", [1; 6]), Action::Allow);
        assert_eq!(answer("fcntl", [3, 1024, 0, 0, 0, 0]), refused);
        assert_eq!(answer("fcntl", [3, 1, 0, 0, 0, 0]), Action::Allow);
        let own = answer("sched_setaffinity", [0; 6]);
        assert_eq!(own == Action::Allow, !pinned);
        assert_eq!(answer("sched_setaffinity", [9; 6]), refused);
    }
}
