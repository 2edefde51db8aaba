//! The order of the privileged steps, as data: [`ROOT`] to [`CHILD`] are executed by walking these lists, and
//! `stepbox plan` prints them. A failure anywhere is reported as (step, errno, operand).

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// One step on the way from a launcher to the code's first instruction.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, Serialize, Deserialize)]
pub enum Step {
    // launcher, once
    UserNamespace,
    MountNamespace,
    OrdinaryProcesses,
    ReadOnlySelf,
    // launcher, once per posture
    RootTmpfs,
    RootDirectories,
    RootSystem,
    RootInterpreter,
    RootEtc,
    RootDevices,
    RootReadOnly,
    // launcher, once for equal numbers
    RootNumbers,
    // launcher, per slot
    MountVolume,
    CloneTree,
    MapOwners,
    Realm,
    // spawner, once per slot
    DieWithParent,
    JoinCgroups,
    EnterRoot,
    TemplateProc,
    PivotRoot,
    LoopbackUp,
    SessionKeyring,
    DropBoundingSet,
    LockSecurebits,
    NoNewPrivileges,
    BaseFilter,
    // spawner and init without namespaces
    Enclose,
    AdoptOrphans,
    CodeDirectory,
    // template, instead of the cgroups and what follows
    TemplateScratch,
    KeepToEnter,
    // spawner, per session
    AttachMount,
    // spawner, per sandbox
    EmptyScratch,
    CloneSandbox,
    OwnUsers,
    // init
    OomScore,
    MountProc,
    MaskProc,
    ShowNumbers,
    OwnCgroup,
    MountTmpfs,
    MountShm,
    MountPts,
    FenceRules,
    MountCode,
    Hostname,
    ShowMemory,
    ShowNamespaces,
    Undumpable,
    DropCapabilities,
    StepFilter,
    PassListener,
    // template, ahead of a step
    ForkTemplate,
    EnterSandbox,
    // init, on go
    ReadRequest,
    WriteCode,
    ShareMemory,
    WorkingDirectory,
    CloneChild,
    // child
    EnterCgroup,
    NewSession,
    StandardStreams,
    Umask,
    ResourceLimits,
    Affinity,
    PinAffinity,
    CloseDescriptors,
    SignalMask,
    Fence,
    Execute,
}

/// Who walks a list of steps.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    pub name: &'static str,
    pub when: &'static str,
    pub steps: &'static [Step],
}

/// Building the read-only root of a posture, in the launcher's own mount namespace.
pub const ROOT: &[Step] = &[
    Step::RootTmpfs,
    Step::RootDirectories,
    Step::RootSystem,
    Step::RootInterpreter,
    Step::RootEtc,
    Step::RootDevices,
    Step::RootReadOnly,
];

/// What a spawner does before it serves.
pub const SPAWNER: &[Step] = &[
    Step::DieWithParent,
    Step::JoinCgroups,
    Step::EnterRoot,
    Step::TemplateProc,
    Step::PivotRoot,
    Step::LoopbackUp,
    Step::SessionKeyring,
    Step::LockSecurebits,
    Step::DropBoundingSet,
    Step::NoNewPrivileges,
    Step::BaseFilter,
];

/// What a spawner does without namespaces.
pub const SPAWNER_ALONE: &[Step] = &[
    Step::DieWithParent,
    Step::JoinCgroups,
    Step::NoNewPrivileges,
    Step::DropCapabilities,
    Step::AdoptOrphans,
    Step::Enclose,
    Step::BaseFilter,
];

/// What a keeper does without namespaces.
pub const KEEPER_ALONE: &[Step] = &[
    Step::DieWithParent,
    Step::NoNewPrivileges,
    Step::DropCapabilities,
    Step::BaseFilter,
];

/// What a sandbox's init does without namespaces.
pub const SKELETON_ALONE: &[Step] = &[
    Step::AdoptOrphans,
    Step::Enclose,
    Step::DieWithParent,
    Step::OomScore,
    Step::FenceRules,
    Step::CodeDirectory,
    Step::Undumpable,
    Step::DropCapabilities,
    Step::StepFilter,
    Step::PassListener,
];

/// What a keeper does before it is given a workspace.
pub const KEEPER: &[Step] = &[
    Step::DieWithParent,
    Step::EnterRoot,
    Step::TemplateProc,
    Step::PivotRoot,
    Step::SessionKeyring,
    Step::DropBoundingSet,
    Step::NoNewPrivileges,
    Step::BaseFilter,
];

/// What a template does before it is an interpreter.
pub const TEMPLATE: &[Step] = &[
    Step::DieWithParent,
    Step::EnterRoot,
    Step::TemplateProc,
    Step::PivotRoot,
    Step::TemplateScratch,
    Step::SessionKeyring,
    Step::Hostname,
    Step::ResourceLimits,
    Step::KeepToEnter,
    Step::LockSecurebits,
    Step::DropBoundingSet,
    Step::NoNewPrivileges,
    Step::BaseFilter,
    Step::Execute,
];

/// What a sandbox's init does before it waits for a step.
pub const SKELETON: &[Step] = &[
    Step::DieWithParent,
    Step::LockSecurebits,
    Step::DropBoundingSet,
    Step::OomScore,
    Step::MountProc,
    Step::MaskProc,
    Step::ShowNumbers,
    Step::OwnCgroup,
    Step::MountTmpfs,
    Step::MountShm,
    Step::MountPts,
    Step::FenceRules,
    Step::MountCode,
    Step::Hostname,
    Step::ShowMemory,
    Step::ShowNamespaces,
    Step::Undumpable,
    Step::DropCapabilities,
    Step::StepFilter,
    Step::PassListener,
];

/// What the code's process does between clone and execve.
pub const CHILD: &[Step] = &[
    Step::EnterCgroup,
    Step::NewSession,
    Step::StandardStreams,
    Step::Umask,
    Step::ResourceLimits,
    Step::Affinity,
    Step::PinAffinity,
    Step::CloseDescriptors,
    Step::SignalMask,
    Step::Fence,
    Step::Execute,
];

/// All of it, in order, for printing.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "launcher",
        when: "once per engine, before any thread exists",
        steps: &[
            Step::UserNamespace,
            Step::MountNamespace,
            Step::OrdinaryProcesses,
            Step::ReadOnlySelf,
        ],
    },
    Stage {
        name: "root",
        when: "once per posture, in the launcher",
        steps: ROOT,
    },
    Stage {
        name: "numbers",
        when: "once for equal limits, in the launcher",
        steps: &[Step::RootNumbers],
    },
    Stage {
        name: "slot",
        when: "ahead of need, in the launcher",
        steps: &[
            Step::Realm,
            Step::MountVolume,
            Step::CloneTree,
            Step::MapOwners,
        ],
    },
    Stage {
        name: "spawner",
        when: "once per slot, ahead of need",
        steps: SPAWNER,
    },
    Stage {
        name: "keeper",
        when: "once per session",
        steps: KEEPER,
    },
    Stage {
        name: "session",
        when: "once per slot and session, in the spawner",
        steps: &[Step::AttachMount],
    },
    Stage {
        name: "sandbox",
        when: "ahead of each step, in the spawner",
        steps: &[Step::EmptyScratch, Step::CloneSandbox, Step::OwnUsers],
    },
    Stage {
        name: "init",
        when: "ahead of each step, as pid 1 of the sandbox",
        steps: SKELETON,
    },
    Stage {
        name: "template",
        when: "once per interpreter, root and preload, in the background",
        steps: TEMPLATE,
    },
    Stage {
        name: "forked",
        when: "ahead of a step of Python where a template stands, in a fork of its interpreter",
        steps: &[
            Step::ForkTemplate,
            Step::EnterSandbox,
            Step::OomScore,
            Step::SignalMask,
            Step::NewSession,
            Step::SessionKeyring,
            Step::Umask,
            Step::ResourceLimits,
            Step::DropCapabilities,
            Step::Fence,
            Step::StepFilter,
            Step::PassListener,
        ],
    },
    Stage {
        name: "forked, go",
        when: "on the call, there",
        steps: &[
            Step::ReadRequest,
            Step::WriteCode,
            Step::WorkingDirectory,
            Step::StandardStreams,
            Step::Affinity,
            Step::PinAffinity,
            Step::CloseDescriptors,
        ],
    },
    Stage {
        name: "go",
        when: "on the call, in init",
        steps: &[
            Step::ReadRequest,
            Step::WriteCode,
            Step::ShareMemory,
            Step::WorkingDirectory,
            Step::CloneChild,
        ],
    },
    Stage {
        name: "child",
        when: "on the call, between clone and execve",
        steps: CHILD,
    },
    Stage {
        name: "reduced spawner",
        when: "without namespaces, where a session asks for that: instead of the spawner's",
        steps: SPAWNER_ALONE,
    },
    Stage {
        name: "reduced keeper",
        when: "likewise, instead of the keeper's",
        steps: KEEPER_ALONE,
    },
    Stage {
        name: "reduced init",
        when: "likewise, instead of init's",
        steps: SKELETON_ALONE,
    },
];

impl Step {
    /// The step's name in faults and in `stepbox plan`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    /// What it does, and what breaks without it.
    #[must_use]
    pub const fn why(self) -> &'static str {
        self.words().1
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::UserNamespace => (
                "user-namespace",
                "rootless: a user namespace in which the caller's own id may mount; nothing else of this list is allowed without it",
            ),
            Self::OrdinaryProcesses => (
                "ordinary-processes",
                "a realtime priority of the caller's is not the code's",
            ),
            Self::MountNamespace => (
                "mount-namespace",
                "a copy of the host's mounts that no mount of ours leaves",
            ),
            Self::ReadOnlySelf => (
                "read-only-self",
                "the launcher is executed from a read-only mount: /proc/self/exe of what it forks cannot be written to",
            ),
            Self::RootTmpfs => (
                "root-tmpfs",
                "an empty file system for the mount points, so that nothing of the host is there by default",
            ),
            Self::RootDirectories => (
                "root-directories",
                "the directories and links of a usual root",
            ),
            Self::RootSystem => (
                "root-system",
                "the host's /usr and /lib, read-only, without what is not for programs",
            ),
            Self::RootInterpreter => (
                "root-interpreter",
                "the caller's interpreter at its own path, without what lies beside it",
            ),
            Self::RootEtc => (
                "root-etc",
                "a built /etc: names, certificates, the loader's cache; no account of the host",
            ),
            Self::RootDevices => (
                "root-devices",
                "null zero full random urandom tty and no other device",
            ),
            Self::RootReadOnly => (
                "root-read-only",
                "read-only, nosuid, nodev for the whole tree: a sandbox cannot change what the next one runs",
            ),
            Self::RootNumbers => (
                "root-numbers",
                "files that tell how many processors and how much memory a sandbox has: pools size themselves by them",
            ),
            Self::MountVolume => (
                "mount-volume",
                "as root: a file system of the size that the workspace may have, where no process of the host's or of another session sees it",
            ),
            Self::CloneTree => (
                "clone-tree",
                "a detached copy of a mount tree that a slot can take over",
            ),
            Self::MapOwners => (
                "map-owners",
                "as root: owners on disk are translated, so that the sandbox's id is no id of the host and files still come out owned by the caller",
            ),
            Self::Realm => (
                "realm",
                "a user namespace and a pid namespace that hold all processes of one host id",
            ),
            Self::DieWithParent => (
                "die-with-parent",
                "a launcher that dies takes everything with it",
            ),
            Self::JoinCgroups => (
                "join-cgroups",
                "cgroup v1: what is cloned from here is born in the slot's cgroups, with no migration on the call",
            ),
            Self::EnterRoot => (
                "enter-root",
                "the slot's copy of the root, mounted in a namespace of its own",
            ),
            Self::TemplateProc => (
                "template-proc",
                "a visible /proc: without one the kernel refuses the sandbox's own",
            ),
            Self::PivotRoot => (
                "pivot-root",
                "the host's root is detached and cannot be reached by any name",
            ),
            Self::LoopbackUp => (
                "loopback-up",
                "127.0.0.1 works in the slot's own network namespace, which has no other device; every port is free to listen on",
            ),
            Self::SessionKeyring => (
                "session-keyring",
                "keys of the caller's session are not in ours",
            ),
            Self::LockSecurebits => (
                "lock-securebits",
                "uid 0 gives no capabilities, and cannot get that back; not for code that keeps some, which is to lose them as everywhere when it gives up uid 0",
            ),
            Self::DropBoundingSet => (
                "drop-bounding-set",
                "no program that is executed can gain a capability; again for each user namespace, which has all of them at first",
            ),
            Self::NoNewPrivileges => (
                "no-new-privileges",
                "setuid bits and file capabilities do nothing",
            ),
            Self::BaseFilter => (
                "base-filter",
                "seccomp, deny by default; inherited by every sandbox, so that a step does not pay for it; the untrusted profile has its own",
            ),
            Self::Enclose => (
                "enclose",
                "Landlock: signals from here on reach only what was started from here, so that one signal to everybody ends all of a sandbox and nothing else",
            ),
            Self::AdoptOrphans => (
                "adopt-orphans",
                "what the code leaves becomes a child of init, and is waited for",
            ),
            Self::CodeDirectory => (
                "code-directory",
                "a directory for the code's file that the fence lets be read only",
            ),
            Self::TemplateScratch => (
                "template-scratch",
                "a place for temporary files of what is imported, and the script under the name that a step's has",
            ),
            Self::KeepToEnter => (
                "keep-to-enter",
                "a template keeps the right to enter the namespaces of its realm's sandboxes, and no other",
            ),
            Self::ForkTemplate => (
                "fork-template",
                "a copy of the interpreter, born in the slot's cgroups as a child of the sandbox's init",
            ),
            Self::EnterSandbox => (
                "enter-sandbox",
                "the sandbox's namespaces, made ahead; nothing of the template's is left open",
            ),
            Self::ShowNamespaces => (
                "show-namespaces",
                "where a template serves the session: what is forked from it finds the sandbox by descriptors",
            ),
            Self::AttachMount => (
                "attach-mount",
                "the workspace, the home, the caller's mounts, the numbers and on cgroup v1 the slot's cgroups, read-only; by descriptor: no path is looked up again; for the untrusted profile nothing that code can write is executable",
            ),
            Self::EmptyScratch => (
                "empty-scratch",
                "home and temporary files of the last step are gone",
            ),
            Self::CloneSandbox => (
                "clone-sandbox",
                "fresh pid, mount, ipc, uts and cgroup namespaces, born in the step's cgroup",
            ),
            Self::OwnUsers => (
                "own-users",
                "for another user than the default, kept capabilities and the untrusted profile: a user namespace of the sandbox's own; and where no cgroup counts tasks, so that the kernel counts its alone",
            ),
            Self::OomScore => (
                "oom-score",
                "under memory pressure of the host the sandbox goes first, unless its code lowers the score again",
            ),
            Self::MountProc => (
                "mount-proc",
                "a /proc that shows this sandbox's processes only; for the untrusted profile without anything else, and without init",
            ),
            Self::MaskProc => (
                "mask-proc",
                "what writes to the kernel is read-only, what tells of it is empty",
            ),
            Self::ShowNumbers => (
                "show-numbers",
                "processors and memory in /proc are the sandbox's own, not the machine's",
            ),
            Self::OwnCgroup => (
                "own-cgroup",
                "cgroup v2: the step's cgroup, read-only and as the root of all that is seen of cgroups",
            ),
            Self::MountTmpfs => (
                "mount-tmpfs",
                "scratch in memory that is bounded and gone after the step",
            ),
            Self::MountShm => ("mount-shm", "POSIX shared memory and semaphores"),
            Self::MountPts => ("mount-pts", "pseudo terminals of the sandbox's own"),
            Self::MountCode => ("mount-code", "a place for the code outside the workspace"),
            Self::FenceRules => (
                "fence-rules",
                "Landlock: where code may write, as a list of its own; made ahead, because it names files of this sandbox",
            ),
            Self::Hostname => ("hostname", "a name that is not the host's"),
            Self::ShowMemory => (
                "show-memory",
                "where no cgroup counts memory: the engine gets /proc and the file systems in memory to measure by",
            ),
            Self::Undumpable => (
                "undumpable",
                "the code cannot read or write init's memory or descriptors",
            ),
            Self::ReadRequest => (
                "read-request",
                "arguments and environment, of any size, as data",
            ),
            Self::WriteCode => (
                "write-code",
                "the code as a file, read-only before it runs: tracebacks and spawned workers find it",
            ),
            Self::ShareMemory => (
                "share-memory",
                "for kernel() only: its interpreter and init speak through memory, so that no byte written to a descriptor matters",
            ),
            Self::WorkingDirectory => (
                "working-directory",
                "the directory asked for exists in the sandbox",
            ),
            Self::CloneChild => (
                "clone-child",
                "the code's process shares init's memory until it executes: no copy is made",
            ),
            Self::NewSession => ("new-session", "no controlling terminal"),
            Self::StandardStreams => (
                "standard-streams",
                "three pipes, and nothing of the engine's",
            ),
            Self::Umask => ("umask", "022"),
            Self::ResourceLimits => (
                "resource-limits",
                "no core files, 4096 descriptors, and where no cgroup counts them the tasks",
            ),
            Self::EnterCgroup => (
                "enter-cgroup",
                "in a resident: the step's own cgroup, by which all that it starts can be ended and nothing else",
            ),
            Self::Affinity => (
                "affinity",
                "as many processors as the cpu limit can feed: pools size themselves by it",
            ),
            Self::PinAffinity => (
                "pin-affinity",
                "where no cgroup keeps the cpu limit: seccomp, the code cannot change which processors it may use; without namespaces also what those would have kept apart: sockets, shared memory, modes and owners of files, priorities of others",
            ),
            Self::CloseDescriptors => (
                "close-descriptors",
                "nothing above 2 survives execve; of kernel() three descriptors do, which its interpreter closes before a cell runs",
            ),
            Self::DropCapabilities => (
                "drop-capabilities",
                "no capability in any set but those that cap_drop leaves",
            ),
            Self::SignalMask => ("signal-mask", "no signal blocked, none ignored"),
            Self::StepFilter => (
                "step-filter",
                "seccomp: the kill list is reported by the kernel to the engine, set-up calls are refused",
            ),
            Self::PassListener => ("pass-listener", "the engine holds the only listener"),
            Self::Fence => (
                "fence",
                "the code is put behind those rules, its signals and abstract sockets too: nothing can be mounted from then on",
            ),
            Self::Execute => ("execute", "the code runs"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A step that failed, in a form that crosses process boundaries.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {operand}: {}", io::Error::from_raw_os_error(*errno))]
pub struct StepError {
    pub step: Step,
    pub errno: i32,
    /// What it acted on.
    pub operand: String,
}

impl StepError {
    pub fn new(step: Step, operand: impl Into<String>, error: &io::Error) -> Self {
        Self {
            step,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            operand: operand.into(),
        }
    }
}

/// Names the step and the operand of a failed system call.
pub trait Context<T> {
    fn at(self, step: Step, operand: impl Into<String>) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn at(self, step: Step, operand: impl Into<String>) -> Result<T, StepError> {
        self.map_err(|error| StepError::new(step, operand, &error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_step_has_one_name() {
        let steps: Vec<_> = STAGES.iter().flat_map(|stage| stage.steps).collect();
        let names: HashSet<_> = steps.iter().map(|step| step.name()).collect();
        let distinct: HashSet<_> = steps.iter().collect();
        assert_eq!(names.len(), distinct.len());
    }

    #[test]
    fn capabilities_fall_and_the_filter_is_loaded_before_the_code_runs() {
        assert!(SKELETON.ends_with(&[
            Step::DropCapabilities,
            Step::StepFilter,
            Step::PassListener
        ]));
        assert!(CHILD.ends_with(&[Step::Fence, Step::Execute]));
        assert_eq!(SPAWNER.last(), Some(&Step::BaseFilter));
    }
}
