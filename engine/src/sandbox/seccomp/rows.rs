//! The policy as reviewed data: each syscall that any supported architecture has, its class, and the reason.

use libc::{ENOSYS, EPERM};

use super::{
    policy::{Class, Row},
    rules,
};

const fn allow(names: &'static str, reason: &'static str) -> Row {
    Row {
        class: Class::Allow,
        names,
        reason,
        twin: None,
    }
}

const fn checked(class: Class, names: &'static str, reason: &'static str) -> Row {
    Row {
        class,
        names,
        reason,
        twin: None,
    }
}

const fn deny(class: Class, names: &'static str, twin: &'static str, reason: &'static str) -> Row {
    Row {
        class,
        names,
        reason,
        twin: Some(twin),
    }
}

/// What the profile for untrusted code sees otherwise than the rows below. What they answer with ENOSYS and is not here, and
/// what is in neither, ends the step.
pub(super) static UNTRUSTED: &[Row] = &[
    deny(
        Class::SetUp(ENOSYS),
        "clone3 openat2 fchmodat2",
        "clone",
        "libc asks for these first in ordinary calls, and falls back: a program is not hostile for the libc that it has",
    ),
    checked(
        Class::Checked(&rules::SOCKET_UNTRUSTED),
        "socket",
        "as by default, but no local sockets: one that is given a name is a way to whoever has that name",
    ),
    checked(
        Class::Checked(&rules::SOCKETPAIR_UNTRUSTED),
        "socketpair",
        "asyncio, subprocess, node; but not the kind that can send to a name later",
    ),
    checked(
        Class::CheckedAtStep(&rules::MEMFD_UNTRUSTED),
        "memfd_create",
        "memory by descriptor; but not what can be executed, as nothing is that code can write",
    ),
];

/// Every reviewed syscall, in exactly one row.
pub(super) static POLICY: &[Row] = &[
    // Files.
    allow(
        "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close \
         close_range lseek dup dup2 dup3 fcntl flock pipe pipe2",
        "every program",
    ),
    allow(
        "stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat \
         getcwd chdir fchdir statfs fstatfs getdents getdents64",
        "looking at files: every program",
    ),
    allow(
        "rename renameat renameat2 rmdir unlink unlinkat link linkat symlink symlinkat truncate \
         ftruncate fallocate utime utimes utimensat futimesat umask",
        "changing files: git, compilers, package managers",
    ),
    allow(
        "chown fchown lchown fchownat",
        "cp -a, tar, npm; the kernel lets an owner without capabilities give nothing away",
    ),
    allow(
        "getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat \
         setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr \
         removexattrat",
        "ls, cp -a, tar; the kernel keeps security.* and trusted.* for capabilities that code has not",
    ),
    allow(
        "sync syncfs fsync fdatasync sync_file_range fadvise64 readahead cachestat",
        "sqlite, git, databases",
    ),
    allow(
        "sendfile splice tee vmsplice copy_file_range",
        "cp, cat, Python's shutil, Go's io.Copy",
    ),
    checked(
        Class::Checked(&rules::OPEN),
        "open",
        "every program; may not make a set-id file",
    ),
    checked(
        Class::Checked(&rules::OPENAT),
        "openat",
        "every program; may not make a set-id file",
    ),
    checked(
        Class::Checked(&rules::MODE_IS_ARGUMENT_1),
        "creat chmod fchmod mkdir",
        "every program; on an idmapped workspace a set-id file would be one on the host",
    ),
    checked(
        Class::Checked(&rules::MODE_IS_ARGUMENT_2),
        "fchmodat mkdirat",
        "every program; on an idmapped workspace a set-id file would be one on the host",
    ),
    checked(
        Class::CheckedAtStep(&rules::MKNOD),
        "mknod",
        "FIFOs and plain files: mkfifo, bash; set-up makes device nodes",
    ),
    checked(
        Class::CheckedAtStep(&rules::MKNODAT),
        "mknodat",
        "FIFOs and plain files: mkfifo, bash; set-up makes device nodes",
    ),
    deny(
        Class::SetUp(ENOSYS),
        "openat2",
        "openat",
        "its mode lies behind a pointer, out of a filter's sight; set-up opens beneath directories with it",
    ),
    deny(
        Class::SetUp(ENOSYS),
        "fchmodat2",
        "fchmodat",
        "libc falls back to fchmodat, which one rule guards",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "file_getattr file_setattr",
        "ioctl",
        "project ids and inode flags: nothing needs the new form",
    ),
    // Waiting and events.
    allow(
        "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait \
         epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime \
         timerfd_gettime",
        "event loops: asyncio, libuv, tokio, Go, the JVM",
    ),
    allow(
        "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch",
        "file watchers: node, webpack, pytest-watch",
    ),
    allow(
        "io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents",
        "databases and fio; where io_uring is shut they fall back to it",
    ),
    deny(
        Class::Refuse(EPERM),
        "fanotify_init fanotify_mark",
        "inotify_init1",
        "watches whole mounts; EPERM is what kernels before 5.13 say, and watchers fall back to inotify",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "io_uring_setup io_uring_enter io_uring_register",
        "epoll_create1",
        "runs operations past every filter; libuv and tokio fall back on ENOSYS",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "userfaultfd",
        "mprotect",
        "holds kernel code still at a chosen instant, the tool of race exploits",
    ),
    // Memory.
    allow(
        "mmap munmap mremap mprotect madvise brk msync mincore mlock mlock2 munlock mlockall \
         munlockall memfd_create remap_file_pages pkey_alloc pkey_free pkey_mprotect mseal \
         map_shadow_stack membarrier",
        "every program; JIT compilers, glibc",
    ),
    allow(
        "get_mempolicy set_mempolicy mbind set_mempolicy_home_node",
        "numpy, OpenBLAS, libnuma, the JVM; acts on the caller only",
    ),
    deny(
        Class::Refuse(EPERM),
        "migrate_pages move_pages",
        "mbind",
        "moves pages between nodes, of other processes too; libnuma goes on",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "memfd_secret",
        "memfd_create",
        "memory that the limits and the host cannot look into",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "process_madvise process_mrelease",
        "madvise",
        "acts on the memory of other processes",
    ),
    // Processes and threads.
    allow(
        "fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open \
         pidfd_send_signal",
        "every program; Python's asyncio waits on pidfds",
    ),
    allow(
        "getpid getppid gettid getpgid getpgrp getsid setpgid setsid getuid geteuid getgid \
         getegid getresuid getresgid getgroups capget",
        "every program",
    ),
    allow(
        "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset",
        "programs that give up rights at start; without capabilities there is nothing to gain",
    ),
    allow(
        "futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list \
         set_tid_address rseq arch_prctl sched_yield getcpu",
        "threads: glibc, Go, the JVM",
    ),
    allow(
        "sched_getaffinity sched_getparam sched_getscheduler sched_getattr sched_get_priority_max \
         sched_get_priority_min sched_rr_get_interval getpriority ioprio_get",
        "OpenBLAS, the JVM, nice, ionice",
    ),
    checked(
        Class::Checked(&rules::NOT_INIT),
        "sched_setaffinity sched_setparam sched_setscheduler sched_setattr",
        "OpenBLAS, the JVM; the cgroup bounds what they can take. A sandbox ends when its init does, which must get to run for it",
    ),
    checked(
        Class::Checked(&rules::SETPRIORITY),
        "setpriority",
        "nice, make; init, which has the code's uid, keeps its own",
    ),
    checked(
        Class::Checked(&rules::IOPRIO_SET),
        "ioprio_set",
        "ionice; init, which has the code's uid, keeps its own",
    ),
    allow(
        "getrlimit setrlimit getrusage times sysinfo uname",
        "shells, Python's resource, time",
    ),
    checked(
        Class::Checked(&rules::NOT_INIT),
        "prlimit64",
        "shells, Python's resource; a limit on init's processor time would end the sandbox as if from outside",
    ),
    allow(
        "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait \
         rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause restart_syscall",
        "signals: every program",
    ),
    allow(
        "uretprobe uprobe",
        "the kernel places them into a process that the host traces; refusing them would crash it",
    ),
    checked(
        Class::CheckedAtStep(&rules::CLONE),
        "clone",
        "processes and threads; new namespaces are a way to capabilities, user namespaces a probe",
    ),
    checked(
        Class::CheckedAtStep(&rules::UNSHARE),
        "unshare",
        "unsharing files or the working directory; as for clone",
    ),
    checked(
        Class::Checked(&rules::PERSONALITY),
        "personality",
        "setarch, debuggers, sanitizers",
    ),
    checked(
        Class::Checked(&rules::PRCTL),
        "prctl",
        "thread names, death signals, dumpability; but not the process's place in /proc",
    ),
    deny(
        Class::SetUp(ENOSYS),
        "clone3",
        "clone",
        "its flags lie behind a pointer, out of a filter's sight; libc falls back to clone on ENOSYS",
    ),
    deny(
        Class::Counted(EPERM),
        "ptrace process_vm_readv process_vm_writev",
        "pidfd_send_signal",
        "reads and steers other processes; sanitizers and crash handlers try it and go on without",
    ),
    deny(
        Class::SetUp(ENOSYS),
        "pidfd_getfd",
        "recvmsg",
        "takes descriptors out of other processes",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "kcmp",
        "fstat",
        "compares kernel pointers of processes",
    ),
    // Sockets and messages.
    allow(
        "bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt \
         shutdown sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg",
        "servers and clients; which network there is, its namespace decides",
    ),
    allow(
        "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl \
         mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
        "PostgreSQL, multiprocessing; in the sandbox's own IPC namespace",
    ),
    checked(
        Class::Checked(&rules::SOCKET),
        "socket",
        "local, internet and routing sockets; each other family is a module of the host's kernel",
    ),
    checked(
        Class::Checked(&rules::SOCKETPAIR),
        "socketpair",
        "asyncio, subprocess, node",
    ),
    checked(
        Class::Checked(&rules::IOCTL),
        "ioctl",
        "terminals, sockets, file flags; but not typing into the caller's terminal",
    ),
    // Time.
    allow(
        "time gettimeofday clock_gettime clock_getres nanosleep clock_nanosleep alarm getitimer \
         setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete",
        "every program",
    ),
    deny(
        Class::Refuse(EPERM),
        "settimeofday clock_settime adjtimex clock_adjtime",
        "clock_gettime",
        "sets the host's clock; date and time libraries try, and know EPERM",
    ),
    // Fences that code may put up for itself.
    allow(
        "landlock_create_ruleset landlock_add_rule landlock_restrict_self getrandom",
        "programs that confine themselves; every program needs random bytes",
    ),
    checked(
        Class::CheckedAtStep(&rules::SECCOMP),
        "seccomp",
        "browsers, OpenSSH: filters of their own, without a listener",
    ),
    // Keys.
    deny(
        Class::SetUp(ENOSYS),
        "keyctl",
        "getrandom",
        "keyrings have no namespace of their own; set-up joins a fresh one",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "add_key request_key",
        "getrandom",
        "keyrings have no namespace of their own",
    ),
    deny(
        Class::SetUp(EPERM),
        "chroot",
        "chdir",
        "ordinary test suites try it, and without a capability the kernel says the same",
    ),
    // Ways out: nothing but an escape calls them in a sandbox.
    deny(
        Class::Escape,
        "mount umount2 fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr \
         mount_setattr pivot_root",
        "chdir",
        "rearranges what the sandbox was given to see",
    ),
    deny(
        Class::Escape,
        "setns",
        "pidfd_open",
        "enters the namespaces of others",
    ),
    deny(
        Class::Escape,
        "bpf",
        "seccomp",
        "loads programs into the host's kernel",
    ),
    deny(
        Class::Escape,
        "kexec_load kexec_file_load init_module finit_module delete_module reboot",
        "uname",
        "replaces, extends or stops the host's kernel",
    ),
    deny(
        Class::Escape,
        "swapon swapoff acct quotactl quotactl_fd",
        "statfs",
        "changes what the host accounts and where it swaps",
    ),
    deny(
        Class::Escape,
        "open_by_handle_at",
        "openat",
        "opens files of the host by number, past every mount",
    ),
    deny(
        Class::Escape,
        "iopl ioperm",
        "sched_setscheduler",
        "gives access to the host's devices",
    ),
    // Refused without alarm: ordinary tools try them.
    deny(
        Class::Refuse(EPERM),
        "name_to_handle_at",
        "statx",
        "half of open_by_handle_at; systemd's tools ask it for mount ids and fall back to /proc",
    ),
    deny(
        Class::SetUp(EPERM),
        "sethostname setdomainname",
        "uname",
        "set-up names the sandbox; hostname(1) knows EPERM",
    ),
    deny(
        Class::Refuse(EPERM),
        "syslog vhangup",
        "sysinfo",
        "the host's kernel log and its terminals; dmesg knows EPERM",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "perf_event_open",
        "getrusage",
        "measures the host, and has let many a process out",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "statmount listmount",
        "statfs",
        "shows what the masked mount list does not; tools fall back to it",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "lsm_get_self_attr lsm_set_self_attr lsm_list_modules",
        "prctl",
        "new names for what /proc shows; nothing needs them yet",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "modify_ldt set_thread_area get_thread_area",
        "arch_prctl",
        "segments for 16- and 32-bit code, which cannot run here",
    ),
    deny(
        Class::Refuse(ENOSYS),
        "uselib ustat sysfs _sysctl create_module get_kernel_syms query_module nfsservctl \
         getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old epoll_wait_old \
         lookup_dcookie",
        "statfs",
        "gone from the kernel, or nearly",
    ),
];
