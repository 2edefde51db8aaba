//! The rules that look at a syscall's arguments.
//!
//! A filter sees the six argument registers and never the memory behind a pointer. Every argument compared here is
//! an `int` (or keeps all its meaning in the low 32 bits, as the flags of `clone` and `unshare` do), and the kernel
//! drops the upper half of the register. So the upper half is never looked at: a rule that did could be walked
//! around by setting a bit there (CVE-2019-10063). An argument with meaning in its upper half needs a second load and
//! must not be added as it is.

use super::action::Action;

/// One question about one argument.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// At least one bit of `mask` is set.
    AnyBit { argument: u8, mask: u32 },
    /// What `mask` leaves of the argument is one of `values`.
    OneOf {
        argument: u8,
        mask: u32,
        values: &'static [u32],
    },
}

/// An action that is taken when every check holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clause {
    pub(super) when: &'static [Check],
    pub(super) then: Action,
}

/// Clauses in order; the first that holds decides.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) clauses: &'static [Clause],
    pub(super) otherwise: Action,
}

impl Check {
    fn holds(&self, arguments: &[u64; 6]) -> bool {
        match self {
            Self::AnyBit { argument, mask } => low_half(arguments, *argument) & mask != 0,
            Self::OneOf {
                argument,
                mask,
                values,
            } => values.contains(&(low_half(arguments, *argument) & mask)),
        }
    }
}

impl Rule {
    /// What the rule says of a call with these arguments: the same as its block in a filter.
    pub(super) fn answer(&self, arguments: &[u64; 6]) -> Action {
        self.clauses
            .iter()
            .find(|clause| clause.when.iter().all(|check| check.holds(arguments)))
            .map_or(self.otherwise, |clause| clause.then)
    }
}

fn low_half(arguments: &[u64; 6], argument: u8) -> u32 {
    let [a, b, c, d, ..] = arguments[usize::from(argument)].to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

const ALL: u32 = u32::MAX;
const EPERM: Action = errno(libc::EPERM);

/// The action that returns `number`; errno numbers are below 4096 (`MAX_ERRNO`).
pub(super) const fn errno(number: i32) -> Action {
    Action::Errno(small(number))
}

/// The action that returns `number` and counts the call.
pub(super) const fn count(number: i32) -> Action {
    Action::Count(small(number))
}

const fn small(number: i32) -> u16 {
    assert!(
        number > 0 && number < 4096,
        "an errno is a small positive number"
    );
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded by the line above"
    )]
    let number = number as u16;
    number
}

/// A flag word of libc, which types them as `int`, as the register's low half.
const fn bits(flags: i32) -> u32 {
    flags.cast_unsigned()
}

// Pid 1 of the sandbox is of the engine's and has the code's uid. Threads of a program name each other, so only this one
// number is refused.

const INIT: &[u32] = &[1];

const fn one_of(argument: u8, values: &'static [u32]) -> Check {
    Check::OneOf {
        argument,
        mask: ALL,
        values,
    }
}

/// The process that calls, by the number for it.
const CALLER: &[u32] = &[0];

pub(super) static SELF_ONLY: Rule = Rule {
    clauses: &[Clause {
        when: &[one_of(0, CALLER)],
        then: Action::Allow,
    }],
    otherwise: EPERM,
};

const KEEP_OTHERS_OUT: &[u32] = &[bits(libc::F_SETLEASE), bits(libc::F_NOTIFY)];

pub(super) static NO_LEASE: Rule = Rule {
    clauses: &[Clause {
        when: &[one_of(1, KEEP_OTHERS_OUT)],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

/// `PRIO_PROCESS` and `IOPRIO_WHO_PROCESS`.
const ONE_PROCESS: &[u32] = &[0, 1];

pub(super) static WHO_SELF: Rule = Rule {
    clauses: &[Clause {
        when: &[one_of(0, ONE_PROCESS), one_of(1, CALLER)],
        then: Action::Allow,
    }],
    otherwise: EPERM,
};

pub(super) static NOT_INIT: Rule = Rule {
    clauses: &[Clause {
        when: &[one_of(0, INIT)],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

const PRIO_PROCESS: &[u32] = &[0];
const PRIO_USER: &[u32] = &[2];

pub(super) static SETPRIORITY: Rule = Rule {
    clauses: &[
        Clause {
            when: &[one_of(0, PRIO_PROCESS), one_of(1, INIT)],
            then: EPERM,
        },
        Clause {
            when: &[one_of(0, PRIO_USER)],
            then: EPERM,
        },
    ],
    otherwise: Action::Allow,
};

const IOPRIO_WHO_PROCESS: &[u32] = &[1];
const IOPRIO_WHO_USER: &[u32] = &[3];

pub(super) static IOPRIO_SET: Rule = Rule {
    clauses: &[
        Clause {
            when: &[one_of(0, IOPRIO_WHO_PROCESS), one_of(1, INIT)],
            then: EPERM,
        },
        Clause {
            when: &[one_of(0, IOPRIO_WHO_USER)],
            then: EPERM,
        },
    ],
    otherwise: Action::Allow,
};

// Namespaces.

const NAMESPACES: u32 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

/// The new time namespace; in `clone` the same bit belongs to the exit signal.
const NEWTIME: u32 = 0x80;

/// A new user namespace is what browsers, bubblewrap and build tools try first, and they go on without it.
const NEWUSER_IS_REFUSED: Clause = Clause {
    when: &[Check::AnyBit {
        argument: 0,
        mask: bits(libc::CLONE_NEWUSER),
    }],
    then: count(libc::EPERM),
};

pub(super) static CLONE: Rule = Rule {
    clauses: &[
        NEWUSER_IS_REFUSED,
        Clause {
            when: &[Check::AnyBit {
                argument: 0,
                mask: NAMESPACES,
            }],
            then: Action::Notify,
        },
    ],
    otherwise: Action::Allow,
};

pub(super) static UNSHARE: Rule = Rule {
    clauses: &[
        NEWUSER_IS_REFUSED,
        Clause {
            when: &[Check::AnyBit {
                argument: 0,
                mask: NAMESPACES | NEWTIME,
            }],
            then: Action::Notify,
        },
    ],
    otherwise: Action::Allow,
};

// Set-id bits and device nodes. On an idmapped workspace a file that the code makes is a file of the host.

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

pub(super) static MODE_IS_ARGUMENT_1: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::AnyBit {
            argument: 1,
            mask: SET_ID,
        }],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

pub(super) static MODE_IS_ARGUMENT_2: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::AnyBit {
            argument: 2,
            mask: SET_ID,
        }],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

/// The mode is read only when a file may be made; otherwise the register holds whatever the caller left in it. Of
/// O_TMPFILE only the bit of its own counts: the other is O_DIRECTORY.
const MAKES_A_FILE: u32 = bits(libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY));

pub(super) static OPEN: Rule = Rule {
    clauses: &[Clause {
        when: &[
            Check::AnyBit {
                argument: 1,
                mask: MAKES_A_FILE,
            },
            Check::AnyBit {
                argument: 2,
                mask: SET_ID,
            },
        ],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

pub(super) static OPENAT: Rule = Rule {
    clauses: &[Clause {
        when: &[
            Check::AnyBit {
                argument: 2,
                mask: MAKES_A_FILE,
            },
            Check::AnyBit {
                argument: 3,
                mask: SET_ID,
            },
        ],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

const DEVICES: &[u32] = &[libc::S_IFCHR, libc::S_IFBLK];

pub(super) static MKNOD: Rule = Rule {
    clauses: &[
        Clause {
            when: &[Check::AnyBit {
                argument: 1,
                mask: SET_ID,
            }],
            then: EPERM,
        },
        Clause {
            when: &[Check::OneOf {
                argument: 1,
                mask: libc::S_IFMT,
                values: DEVICES,
            }],
            then: EPERM,
        },
    ],
    otherwise: Action::Allow,
};

pub(super) static MKNODAT: Rule = Rule {
    clauses: &[
        Clause {
            when: &[Check::AnyBit {
                argument: 2,
                mask: SET_ID,
            }],
            then: EPERM,
        },
        Clause {
            when: &[Check::OneOf {
                argument: 2,
                mask: libc::S_IFMT,
                values: DEVICES,
            }],
            then: EPERM,
        },
    ],
    otherwise: Action::Allow,
};

// Sockets.

/// `SOCK_TYPE_MASK`: what is above are SOCK_CLOEXEC and SOCK_NONBLOCK.
const SOCKET_TYPE: u32 = 0xf;

/// Raw sockets, and SOCK_PACKET, which `socket(AF_INET, SOCK_PACKET)` turns into a packet socket.
const RAW_TYPES: &[u32] = &[bits(libc::SOCK_RAW), 10];

const INTERNET: &[u32] = &[bits(libc::AF_INET), bits(libc::AF_INET6)];

/// What every kernel with these families has built in. Each further protocol (SCTP, DCCP, L2TP) is a module that a
/// mere `socket` call loads into the host's kernel.
const INTERNET_PROTOCOLS: &[u32] = &[
    bits(libc::IPPROTO_IP),
    bits(libc::IPPROTO_ICMP),
    bits(libc::IPPROTO_TCP),
    bits(libc::IPPROTO_UDP),
    bits(libc::IPPROTO_ICMPV6),
    bits(libc::IPPROTO_UDPLITE),
    bits(libc::IPPROTO_MPTCP),
];

pub(super) static SOCKET: Rule = Rule {
    clauses: &[
        Clause {
            when: &[Check::OneOf {
                argument: 0,
                mask: ALL,
                values: &[bits(libc::AF_UNIX)],
            }],
            then: Action::Allow,
        },
        ROUTING,
        RAW_INTERNET,
        INTERNET_KNOWN,
        INTERNET_OTHER,
    ],
    otherwise: errno(libc::EAFNOSUPPORT),
};

pub(super) static SOCKET_UNTRUSTED: Rule = Rule {
    clauses: &[ROUTING, RAW_INTERNET, INTERNET_KNOWN, INTERNET_OTHER],
    otherwise: errno(libc::EAFNOSUPPORT),
};

/// getifaddrs, the JVM, Go and node ask the routing socket which interfaces there are; it is always raw.
const ROUTING: Clause = Clause {
    when: &[
        Check::OneOf {
            argument: 0,
            mask: ALL,
            values: &[bits(libc::AF_NETLINK)],
        },
        Check::OneOf {
            argument: 2,
            mask: ALL,
            values: &[bits(libc::NETLINK_ROUTE)],
        },
    ],
    then: Action::Allow,
};

const RAW_INTERNET: Clause = Clause {
    when: &[
        Check::OneOf {
            argument: 0,
            mask: ALL,
            values: INTERNET,
        },
        Check::OneOf {
            argument: 1,
            mask: SOCKET_TYPE,
            values: RAW_TYPES,
        },
    ],
    then: EPERM,
};

const INTERNET_KNOWN: Clause = Clause {
    when: &[
        Check::OneOf {
            argument: 0,
            mask: ALL,
            values: INTERNET,
        },
        Check::OneOf {
            argument: 2,
            mask: ALL,
            values: INTERNET_PROTOCOLS,
        },
    ],
    then: Action::Allow,
};

const INTERNET_OTHER: Clause = Clause {
    when: &[Check::OneOf {
        argument: 0,
        mask: ALL,
        values: INTERNET,
    }],
    then: errno(libc::EPROTONOSUPPORT),
};

pub(super) static SOCKETPAIR: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::OneOf {
            argument: 0,
            mask: ALL,
            values: &[bits(libc::AF_UNIX)],
        }],
        then: Action::Allow,
    }],
    otherwise: errno(libc::EAFNOSUPPORT),
};

/// Of the local kinds those that stay with their other end: a datagram socket of a pair can be connected anew.
const PAIRED: &[u32] = &[bits(libc::SOCK_STREAM), bits(libc::SOCK_SEQPACKET)];

pub(super) static SOCKETPAIR_UNTRUSTED: Rule = Rule {
    clauses: &[Clause {
        when: &[
            Check::OneOf {
                argument: 0,
                mask: ALL,
                values: &[bits(libc::AF_UNIX)],
            },
            Check::OneOf {
                argument: 1,
                mask: SOCKET_TYPE,
                values: PAIRED,
            },
        ],
        then: Action::Allow,
    }],
    otherwise: errno(libc::EAFNOSUPPORT),
};

/// `MFD_NOEXEC_SEAL`: never executable. A kernel that does not know it gives none of these.
const NOEXEC_SEAL: u32 = 8;

pub(super) static MEMFD_UNTRUSTED: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::AnyBit {
            argument: 1,
            mask: NOEXEC_SEAL,
        }],
        then: Action::Allow,
    }],
    otherwise: errno(libc::EACCES),
};

// Single options of calls that are otherwise harmless.

/// TIOCSTI and TIOCLINUX type into the terminal that the caller sits at (CVE-2017-5226); TIOCSETD loads a line
/// discipline, a module, into the host's kernel.
const TERMINAL_REQUESTS: &[u32] = &[0x5412, 0x541c, 0x5423];

pub(super) static IOCTL: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::OneOf {
            argument: 1,
            mask: ALL,
            values: TERMINAL_REQUESTS,
        }],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

/// PER_LINUX and PER_LINUX32, either with UNAME26, no address randomisation (debuggers, sanitizers), and the query.
/// The rest turns hardening off (READ_IMPLIES_EXEC, MMAP_PAGE_ZERO).
const PERSONALITIES: &[u32] = &[0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, u32::MAX];

pub(super) static PERSONALITY: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::OneOf {
            argument: 0,
            mask: ALL,
            values: PERSONALITIES,
        }],
        then: Action::Allow,
    }],
    otherwise: EPERM,
};

/// PR_SET_MM rewrites what `/proc` says of the process, which is evidence.
pub(super) static PRCTL: Rule = Rule {
    clauses: &[Clause {
        when: &[Check::OneOf {
            argument: 0,
            mask: ALL,
            values: &[bits(libc::PR_SET_MM)],
        }],
        then: EPERM,
    }],
    otherwise: Action::Allow,
};

/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`.
const NEW_LISTENER: u32 = 1 << 3;

/// Browsers, OpenSSH and systemd tools stack filters of their own: that takes rights away and never gives any back.
/// They cannot have a listener, because a chain of filters has at most one and the step's is it; the kernel
/// answers EBUSY to a second, and so does this rule.
pub(super) static SECCOMP: Rule = Rule {
    clauses: &[Clause {
        when: &[
            Check::OneOf {
                argument: 0,
                mask: ALL,
                values: &[libc::SECCOMP_SET_MODE_FILTER],
            },
            Check::AnyBit {
                argument: 1,
                mask: NEW_LISTENER,
            },
        ],
        then: errno(libc::EBUSY),
    }],
    otherwise: Action::Allow,
};
