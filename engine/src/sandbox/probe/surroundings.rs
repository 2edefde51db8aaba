//! What stands around this process: kernel switches, a container, filters that it was started under. Read, not tried.

use std::fs;
use std::path::{Path, PathBuf};

/// Found by reading alone; a file that is not there is none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Surroundings {
    /// `kernel.unprivileged_userns_clone`, a switch of Debian's kernels.
    pub userns_clone: Option<u64>,
    /// `user.max_user_namespaces` of this user namespace.
    pub max_user_namespaces: Option<u64>,
    /// `user.max_net_namespaces`, likewise.
    pub max_net_namespaces: Option<u64>,
    /// `user.max_*_namespaces` of the others.
    pub max_other_namespaces: Vec<(&'static str, u64)>,
    /// This process's root is a directory that is no mount.
    pub chrooted: bool,
    /// `kernel.apparmor_restrict_unprivileged_userns`, a switch of Ubuntu's kernels.
    pub apparmor_restricts: Option<u64>,
    /// The profile of AppArmor's that this process is held to.
    pub apparmor_profile: Option<String>,
    /// A seccomp filter was loaded before this process started.
    pub filtered: bool,
    /// Mounts over parts of `/proc`: while there is one, the kernel lets no user namespace mount a `/proc` of its own.
    pub masked_proc: Vec<String>,
    /// The id map does not reach all ids: this is inside another user namespace.
    pub nested: bool,
    pub container: Option<Container>,
    /// The path of this program, for profiles that name it.
    pub program: Option<PathBuf>,
}

/// What started this process's surroundings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Container {
    Docker,
    Podman,
    Kubernetes,
    DevContainer,
    /// Marked as a container by a manager that is not one of these.
    Other,
}

impl Container {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Kubernetes => "Kubernetes",
            Self::DevContainer => "a dev container",
            Self::Other => "a container",
        }
    }

    /// How to start it so that sandboxes can be made inside.
    #[must_use]
    pub const fn mend(self) -> &'static str {
        match self {
            Self::Docker => {
                "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined"
            }
            Self::Podman => {
                "podman run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt unmask=ALL"
            }
            Self::Kubernetes => {
                "in the pod: hostUsers: false, and in the container: securityContext: {procMount: Unmasked, \
                 seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}"
            }
            Self::DevContainer => {
                "in devcontainer.json: \"runArgs\": [\"--security-opt\", \"seccomp=unconfined\", \"--security-opt\", \
                 \"apparmor=unconfined\", \"--security-opt\", \"systempaths=unconfined\"]"
            }
            Self::Other => {
                "start the container without its seccomp filter, without its AppArmor profile and with an unmasked \
                 /proc, as docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined does"
            }
        }
    }
}

impl Surroundings {
    pub(super) fn of_this_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            max_net_namespaces: number("/proc/sys/user/max_net_namespaces"),
            max_other_namespaces: OTHERS
                .iter()
                .filter_map(|kind| {
                    Some((
                        *kind,
                        number(&format!("/proc/sys/user/max_{kind}_namespaces"))?,
                    ))
                })
                .collect(),
            chrooted: is_chrooted(&read("/proc/self/mountinfo")),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            apparmor_profile: enforced(&read("/proc/self/attr/apparmor/current")),
            filtered: is_filtered(&read("/proc/self/status")),
            masked_proc: masks(&read("/proc/self/mountinfo")),
            nested: is_nested(&read("/proc/self/uid_map")),
            container: container(),
            program: std::env::current_exe().ok(),
        }
    }
}

/// The kinds of namespaces that sandboxes have besides those of users and networks.
const OTHERS: [&str; 5] = ["mnt", "pid", "ipc", "uts", "cgroup"];

/// Only what can be reached from the root is listed, and a root that is a mount is.
fn is_chrooted(mountinfo: &str) -> bool {
    let mut targets = mountinfo
        .lines()
        .filter_map(|line| line.split_whitespace().nth(4));
    !mountinfo.is_empty() && targets.all(|target| target != "/")
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `unconfined`, or a name and what is done about it.
fn enforced(label: &str) -> Option<String> {
    label
        .trim_end_matches(['\n', '\0'])
        .strip_suffix(" (enforce)")
        .map(str::to_owned)
}

fn is_filtered(status: &str) -> bool {
    status
        .lines()
        .filter_map(|line| line.strip_prefix("Seccomp:"))
        .any(|mode| mode.trim() == "2")
}

/// The places below `/proc` that something is mounted on.
fn masks(mountinfo: &str) -> Vec<String> {
    mountinfo
        .lines()
        .filter_map(|line| line.split_whitespace().nth(4))
        // Mounted on demand by systemd, over nothing.
        .filter(|target| target.starts_with("/proc/") && *target != "/proc/sys/fs/binfmt_misc")
        .map(str::to_owned)
        .collect()
}

fn is_nested(uid_map: &str) -> bool {
    let whole = ["0", "0", "4294967295"];
    !uid_map.split_whitespace().eq(whole)
}

/// The innermost one by its marks. A mark alone says nothing: some hosts are made from images that carry it.
fn container() -> Option<Container> {
    let set = |name: &str| std::env::var_os(name).is_some();
    let there = |path: &str| Path::new(path).exists();
    if set("REMOTE_CONTAINERS") || set("CODESPACES") || set("DEVCONTAINER") {
        Some(Container::DevContainer)
    } else if set("KUBERNETES_SERVICE_HOST") || there("/var/run/secrets/kubernetes.io") {
        Some(Container::Kubernetes)
    } else if there("/run/.containerenv") {
        Some(Container::Podman)
    } else if there("/.dockerenv") {
        Some(Container::Docker)
    } else if there("/run/systemd/container") || set("container") {
        Some(Container::Other)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_a_mask_and_a_nested_map_are_seen() {
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Seccomp:\t0\nSeccomp_filters:\t0\n"));
        assert_eq!(
            enforced("docker-default (enforce)\n").as_deref(),
            Some("docker-default")
        );
        assert_eq!(enforced("unconfined\n"), None);
        assert_eq!(enforced("probe (complain)\n"), None);
        assert!(!is_nested("         0          0 4294967295\n"));
        assert!(is_nested("         0     100000      65536\n"));
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n\
            30 22 0:5 /null /proc/kcore rw - tmpfs tmpfs rw\n\
            31 22 0:9 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n";
        assert_eq!(masks(mounts), ["/proc/kcore"]);
        assert!(is_chrooted(mounts));
        assert!(!is_chrooted(&format!(
            "{mounts}21 1 0:20 / / rw - ext4 /dev/vda rw\n"
        )));
        assert!(!is_chrooted(""));
    }
}
