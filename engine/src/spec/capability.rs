//! Which capabilities code keeps, within the user namespace of its sandbox.

use serde::{Deserialize, Serialize};

use super::Violations;
use super::text::{nearest, shown};

/// A set of capabilities, by their numbers.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Capabilities(u64);

/// Every name that Linux has, in the order of the numbers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// What programs that start as root use to become somebody else. Not in it: SETFCAP, whose work on a translated workspace
/// counts on the host, MKNOD, NET_RAW, SYS_CHROOT and AUDIT_WRITE.
const KEPT: [&str; 9] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
];

impl Capabilities {
    pub const NONE: Self = Self(0);

    /// As the kernel counts them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether code that has these can take the ids of others.
    #[must_use]
    pub fn becomes_others(self) -> bool {
        Self::named("SETUID").is_some_and(|setuid| self.0 & setuid.0 != 0)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..)
            .zip(NAMES)
            .filter_map(move |(number, name)| (self.0 >> number & 1 == 1).then_some(name))
    }

    fn named(wanted: &str) -> Option<Self> {
        let number = NAMES.iter().position(|name| *name == wanted)?;
        Some(Self(1 << number))
    }

    /// What is kept when nothing is dropped.
    fn kept() -> Self {
        KEPT.into_iter()
            .filter_map(Self::named)
            .fold(Self::NONE, |all, one| Self(all.0 | one.0))
    }
}

/// What is left when `dropped` is; not said: nothing.
pub(super) fn parse_kept(dropped: Option<&[String]>, violations: &mut Violations) -> Capabilities {
    let Some(dropped) = dropped else {
        return Capabilities::NONE;
    };
    let mut kept = Capabilities::kept();
    for given in dropped {
        let name = given.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        if name == "ALL" {
            kept = Capabilities::NONE;
        } else if let Some(one) = Capabilities::named(name) {
            kept = Capabilities(kept.0 & !one.0);
        } else {
            let near = nearest(name, NAMES.into_iter().chain(["ALL"]));
            violations.add(
                "cap_drop",
                format!("{} is no capability; did you mean {near:?}?", shown(given)),
            );
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(dropped: Option<&[&str]>) -> Result<Vec<&'static str>, Vec<String>> {
        let mut violations = Violations::default();
        let dropped: Option<Vec<_>> =
            dropped.map(|all| all.iter().map(|name| (*name).to_owned()).collect());
        let kept = parse_kept(dropped.as_deref(), &mut violations);
        let said: Vec<_> = violations
            .into_vec()
            .into_iter()
            .map(|violation| violation.description)
            .collect();
        if said.is_empty() {
            Ok(kept.names().collect())
        } else {
            Err(said)
        }
    }

    #[test]
    fn nothing_is_kept_unless_the_caller_says_so() {
        assert_eq!(parse(None), Ok(vec![]));
        assert_eq!(parse(Some(&["ALL"])), Ok(vec![]));
        assert_eq!(parse(Some(&["net_raw", "all"])), Ok(vec![]));
    }

    #[test]
    fn what_is_not_dropped_is_kept_and_what_counts_on_the_host_never() {
        let kept = parse(Some(&[])).expect("all");
        assert!(kept.iter().all(|name| KEPT.contains(name)) && kept.len() == KEPT.len());
        for never in [
            "SETFCAP",
            "MKNOD",
            "NET_RAW",
            "SYS_CHROOT",
            "AUDIT_WRITE",
            "SYS_ADMIN",
        ] {
            assert!(!kept.contains(&never), "{never}");
        }
        let some = parse(Some(&["CAP_KILL", "setpcap", "NET_RAW"])).expect("some");
        assert_eq!(some.len(), KEPT.len() - 2);
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_the_nearest() {
        let said = parse(Some(&["NET_RAWW"])).expect_err("refused");
        assert!(said[0].ends_with("did you mean \"NET_RAW\"?"), "{said:?}");
        let said = parse(Some(&["cap_chwon"])).expect_err("refused");
        assert!(said[0].ends_with("did you mean \"CHOWN\"?"), "{said:?}");
    }
}
