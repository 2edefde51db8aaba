//! Observations of hosts, and what is said of each.

use std::path::PathBuf;

use super::cause::{Refused, cause};
use super::*;
use crate::outcome::{EnforcedBy, Resource};
use crate::sandbox::cgroup::{ControllerProbe, Obstacle, Probe as CgroupProbe};
use crate::sandbox::identity::Mode;

fn controller(resource: Resource) -> ControllerProbe {
    ControllerProbe {
        resource,
        mechanism: EnforcedBy::Cgroup2,
        directory: Some("/sys/fs/cgroup/user.slice".into()),
        writable: true,
        by_scope: false,
        fallback: EnforcedBy::Watchdog,
        obstacle: None,
        remedy: None,
        ancestor: None,
    }
}

/// A laptop on which everything works.
fn laptop() -> Observation {
    Observation {
        kernel: "6.8.0-45-generic".to_owned(),
        mode: Mode::Rootless {
            uid: 1000,
            gid: 1000,
        },
        surroundings: Surroundings {
            max_user_namespaces: Some(63_000),
            max_net_namespaces: Some(63_000),
            program: Some("/usr/local/bin/stepbox".into()),
            ..Surroundings::default()
        },
        attempts: Attempts {
            process: Attempt::Done,
            user_namespace: Attempt::Done,
            id_maps: Attempt::Done,
            mount_namespace: Attempt::Done,
            network_namespace: Attempt::Done,
            other_namespaces: Attempt::Done,
            proc: Attempt::Done,
            seccomp_notification: Attempt::Done,
            idmapped_mount: Attempt::NotTried,
            enclosure: Attempt::Done,
            plain_notification: Attempt::Done,
        },
        openat2: Attempt::Done,
        memfd: Attempt::Done,
        landlock: Some(7),
        cgroups: CgroupProbe {
            controllers: [Resource::Memory, Resource::Pids, Resource::Cpu]
                .map(controller)
                .into(),
        },
        scratch: Place {
            directory: PathBuf::from("/var/tmp"),
            in_memory: false,
        },
    }
}

/// The same, where the user namespace is refused and nothing after it was tried.
fn without_user_namespaces(errno: i32, around: Surroundings) -> Observation {
    Observation {
        attempts: Attempts {
            process: Attempt::Done,
            user_namespace: Attempt::Refused(errno),
            ..Attempts::default()
        },
        surroundings: around,
        ..laptop()
    }
}

fn said(seen: &Observation, name: &str) -> Probe {
    let probes = judge(seen);
    let found = probes.iter().find(|probe| probe.name == name);
    found
        .unwrap_or_else(|| panic!("{name}: {probes:?}"))
        .clone()
}

/// What is said of user namespaces: the detail, and the command.
fn of_user_namespaces(errno: i32, around: Surroundings) -> (String, String) {
    let probe = said(&without_user_namespaces(errno, around), "user_namespaces");
    assert!(probe.is_obstacle());
    (probe.detail, probe.mend.expect("a mending command"))
}

#[test]
fn a_host_that_gives_everything_has_no_obstacle_and_nothing_to_mend() {
    for probe in judge(&laptop()) {
        assert!(probe.available, "{probe:?}");
        assert_eq!(probe.mend, None, "{probe:?}");
    }
}

#[test]
fn every_obstacle_that_was_tried_comes_with_a_command() {
    let seen = without_user_namespaces(libc::EPERM, Surroundings::default());
    for probe in judge(&seen).iter().filter(|probe| probe.is_obstacle()) {
        let untried = probe.detail.starts_with("not tried");
        assert!(untried || probe.mend.is_some(), "{probe:?}");
    }
}

#[test]
fn debians_switch_is_named() {
    let (detail, mend) = of_user_namespaces(
        libc::EPERM,
        Surroundings {
            userns_clone: Some(0),
            ..Surroundings::default()
        },
    );
    assert!(detail.contains("kernel.unprivileged_userns_clone is 0"));
    assert_eq!(mend, "sudo sysctl -w kernel.unprivileged_userns_clone=1");
}

#[test]
fn a_count_of_no_user_namespaces_is_named() {
    let (detail, mend) = of_user_namespaces(
        libc::ENOSPC,
        Surroundings {
            max_user_namespaces: Some(0),
            ..Surroundings::default()
        },
    );
    assert!(detail.contains("user.max_user_namespaces is 0"));
    assert_eq!(mend, "sudo sysctl -w user.max_user_namespaces=15000");
}

#[test]
fn a_count_set_by_a_sandbox_around_is_not_the_hosts_to_mend() {
    let (detail, mend) = of_user_namespaces(
        libc::ENOSPC,
        Surroundings {
            max_user_namespaces: Some(0),
            nested: true,
            ..Surroundings::default()
        },
    );
    assert!(
        detail.contains("user namespace around this process"),
        "{detail}"
    );
    assert!(!mend.contains("sysctl"), "{mend}");
}

#[test]
fn apparmor_is_named_and_a_profile_for_this_program_is_given() {
    let seen = Observation {
        surroundings: Surroundings {
            apparmor_restricts: Some(1),
            ..laptop().surroundings
        },
        attempts: Attempts {
            process: Attempt::Done,
            user_namespace: Attempt::Done,
            id_maps: Attempt::Refused(libc::EPERM),
            ..Attempts::default()
        },
        ..laptop()
    };
    let probe = said(&seen, "user_namespaces");
    assert!(probe.detail.contains("AppArmor"), "{probe:?}");
    let mend = probe.mend.expect("a mending command");
    assert!(
        mend.contains("profile stepbox \"/usr/local/bin/stepbox\""),
        "{mend}"
    );
    assert!(
        mend.contains("userns,") && mend.contains("apparmor_parser -r"),
        "{mend}"
    );
}

#[test]
fn the_filter_of_a_container_is_named_with_the_line_that_starts_it_without() {
    for (container, line) in [
        (
            Container::Docker,
            "docker run --security-opt seccomp=unconfined",
        ),
        (
            Container::Podman,
            "podman run --security-opt seccomp=unconfined",
        ),
        (Container::Kubernetes, "procMount: Unmasked"),
        (Container::DevContainer, "\"runArgs\""),
        (Container::Other, "seccomp"),
    ] {
        let around = Surroundings {
            filtered: true,
            container: Some(container),
            ..Surroundings::default()
        };
        for errno in [libc::EPERM, libc::ENOSYS] {
            let (detail, mend) = of_user_namespaces(errno, around.clone());
            assert!(detail.contains("seccomp filter of"), "{detail}");
            assert!(detail.contains(container.name()), "{detail}");
            assert!(mend.contains(line), "{mend}");
        }
    }
}

#[test]
fn a_masked_proc_is_told_from_a_filter() {
    let seen = Observation {
        attempts: Attempts {
            proc: Attempt::Refused(libc::EPERM),
            ..laptop().attempts
        },
        surroundings: Surroundings {
            masked_proc: vec!["/proc/kcore".into(), "/proc/keys".into()],
            container: Some(Container::Docker),
            ..Surroundings::default()
        },
        ..laptop()
    };
    let probe = said(&seen, "fresh_proc");
    assert!(
        probe
            .detail
            .contains("2 places of /proc are masked (/proc/kcore"),
        "{probe:?}"
    );
    assert!(
        probe
            .mend
            .expect("a command")
            .contains("systempaths=unconfined")
    );
}

#[test]
fn a_container_is_not_blamed_for_a_kernel_without_the_feature() {
    let around = Surroundings {
        container: Some(Container::Docker),
        ..Surroundings::default()
    };
    let (detail, mend) = of_user_namespaces(libc::EINVAL, around);
    assert!(detail.contains("this kernel has no user namespaces"));
    assert!(mend.contains("CONFIG_USER_NS"));
}

#[test]
fn a_unit_that_restricts_namespaces_is_told_by_its_filter() {
    let around = Surroundings {
        filtered: true,
        ..Surroundings::default()
    };
    let (detail, mend) = of_user_namespaces(libc::EPERM, around);
    assert!(detail.contains("seccomp filter"), "{detail}");
    assert!(mend.contains("RestrictNamespaces"), "{mend}");
}

#[test]
fn network_namespaces_run_out_by_a_count_of_their_own() {
    let around = Surroundings {
        max_net_namespaces: Some(64),
        ..Surroundings::default()
    };
    let found = cause(Refused::NetworkNamespace, libc::ENOSPC, &around);
    assert!(found.cause.contains("user.max_net_namespaces is 64"));
}

#[test]
fn an_old_kernel_is_an_obstacle_and_a_release_that_is_no_number_is_none() {
    for (release, obstacle) in [
        ("5.14.0-503.el9.x86_64", true),
        ("4.4.0", true),
        ("5.15.0", false),
        ("6.18.5-custom", false),
        ("10.0", false),
        ("mainline", false),
    ] {
        let seen = Observation {
            kernel: release.to_owned(),
            ..laptop()
        };
        assert_eq!(said(&seen, "kernel").is_obstacle(), obstacle, "{release}");
    }
}

#[test]
fn limits_that_default_options_ask_for_are_needed_and_the_processors_is_not() {
    let denied = |resource| ControllerProbe {
        mechanism: EnforcedBy::None,
        fallback: EnforcedBy::None,
        obstacle: Some(Obstacle::NotMounted),
        remedy: Some("mend it".to_owned()),
        ..controller(resource)
    };
    let seen = Observation {
        cgroups: CgroupProbe {
            controllers: [Resource::Memory, Resource::Pids, Resource::Cpu]
                .map(denied)
                .into(),
        },
        ..laptop()
    };
    for (name, obstacle) in [
        ("cgroup_memory", true),
        ("cgroup_pids", true),
        ("cgroup_cpu", false),
    ] {
        let probe = said(&seen, name);
        assert!(!probe.available);
        assert_eq!(probe.is_obstacle(), obstacle, "{name}");
        assert_eq!(probe.mend.as_deref(), Some("mend it"));
        assert!(probe.detail.contains("nothing else keeps it"), "{probe:?}");
    }
}

#[test]
fn a_limit_that_something_else_keeps_is_told_with_its_remedy_and_stops_nothing() {
    for (resource, name, fallback, words) in [
        (
            Resource::Memory,
            "cgroup_memory",
            EnforcedBy::Watchdog,
            "watchdog",
        ),
        (
            Resource::Pids,
            "cgroup_pids",
            EnforcedBy::Rlimit,
            "RLIMIT_NPROC",
        ),
        (
            Resource::Cpu,
            "cgroup_cpu",
            EnforcedBy::Throttle,
            "whole processors",
        ),
    ] {
        let weaker = ControllerProbe {
            mechanism: EnforcedBy::None,
            fallback,
            obstacle: Some(Obstacle::NotMounted),
            remedy: Some("mend it".to_owned()),
            ..controller(resource)
        };
        let seen = Observation {
            cgroups: CgroupProbe {
                controllers: vec![weaker],
            },
            ..laptop()
        };
        let probe = said(&seen, name);
        assert!(!probe.available && !probe.is_obstacle(), "{probe:?}");
        assert!(probe.detail.contains(words), "{probe:?}");
        assert_eq!(probe.mend.as_deref(), Some("mend it"));
    }
}

#[test]
fn a_lower_limit_above_is_told() {
    let mut seen = laptop();
    seen.cgroups.controllers[0].ancestor = Some(crate::sandbox::cgroup::AncestorLimit {
        resource: Resource::Memory,
        directory: "/sys/fs/cgroup/user.slice".into(),
        max: 300 << 20,
    });
    let probe = said(&seen, "cgroup_memory");
    assert!(
        probe.available && probe.detail.contains("300 MiB"),
        "{probe:?}"
    );
}

#[test]
fn scratch_in_memory_and_owners_that_stay_are_told_and_stop_nothing() {
    let seen = Observation {
        mode: Mode::Root,
        attempts: Attempts {
            idmapped_mount: Attempt::Refused(libc::EINVAL),
            ..laptop().attempts
        },
        scratch: Place {
            directory: "/tmp".into(),
            in_memory: true,
        },
        ..laptop()
    };
    for name in ["scratch", "idmapped_mounts"] {
        let probe = said(&seen, name);
        assert!(!probe.available && !probe.is_obstacle(), "{probe:?}");
        assert!(probe.mend.expect("a command").contains("TMPDIR"));
    }
}

#[test]
fn a_second_listener_is_told_from_a_kernel_without_seccomp() {
    for (errno, word) in [(libc::EBUSY, "listener"), (libc::EINVAL, "Invalid")] {
        let seen = Observation {
            attempts: Attempts {
                seccomp_notification: Attempt::Refused(errno),
                ..laptop().attempts
            },
            ..laptop()
        };
        let probe = said(&seen, "seccomp_notification");
        assert!(
            probe.is_obstacle() && probe.detail.contains(word),
            "{probe:?}"
        );
    }
}

#[test]
fn what_reduced_isolation_lacks_is_named_and_is_never_an_obstacle() {
    let with = |landlock, filtered, enclosure, plain_notification| Observation {
        landlock,
        surroundings: Surroundings {
            filtered,
            ..laptop().surroundings
        },
        attempts: Attempts {
            enclosure,
            plain_notification,
            ..laptop().attempts
        },
        ..laptop()
    };
    let refused = Attempt::Refused(libc::EOPNOTSUPP);
    let busy = Attempt::Refused(libc::EBUSY);
    let there = said(
        &with(Some(7), false, Attempt::Done, Attempt::Done),
        "reduced",
    );
    assert!(there.available && there.mend.is_none(), "{there:?}");
    for (seen, word) in [
        (with(Some(4), false, refused, Attempt::NotTried), "signals"),
        (with(None, false, refused, Attempt::NotTried), "no Landlock"),
        (
            with(None, true, refused, Attempt::NotTried),
            "seccomp filter",
        ),
        (with(Some(7), false, Attempt::Done, busy), "listener"),
    ] {
        let probe = said(&seen, "reduced");
        assert!(!probe.available && !probe.is_obstacle(), "{probe:?}");
        assert!(
            probe.detail.contains(word) && probe.mend.is_some(),
            "{probe:?}"
        );
    }
}

#[test]
fn a_chroot_and_a_kind_of_namespace_of_which_none_may_be_made_are_named() {
    let (detail, mend) = of_user_namespaces(
        libc::EPERM,
        Surroundings {
            chrooted: true,
            ..laptop().surroundings
        },
    );
    assert!(detail.contains("chroot") && mend.contains("outside"));
    let around = Surroundings {
        max_other_namespaces: vec![("mnt", 63_000), ("pid", 0), ("ipc", 63_000)],
        ..laptop().surroundings
    };
    let found = cause(Refused::Namespace, libc::ENOSPC, &around);
    assert_eq!(
        found.cause,
        "user.max_pid_namespaces is 0: none may be made"
    );
    assert_eq!(
        found.mend.as_deref(),
        Some("sudo sysctl -w user.max_pid_namespaces=15000")
    );
}

#[test]
fn root_that_may_not_map_its_own_id_is_told_which_capability_it_takes() {
    let seen = Observation {
        mode: Mode::Rootless { uid: 0, gid: 0 },
        attempts: Attempts {
            id_maps: Attempt::Refused(libc::EPERM),
            ..laptop().attempts
        },
        ..laptop()
    };
    let probe = said(&seen, "user_namespaces");
    assert!(
        probe.is_obstacle() && probe.detail.contains("SETFCAP"),
        "{probe:?}"
    );
    assert!(
        probe
            .mend
            .is_some_and(|mend| mend.contains("--cap-add SETFCAP"))
    );
}
