//! Who the sandbox is for the host. The code sees uid and gid 1000; the host sees an id that owns nothing.

use std::fs;
use std::io;

use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

use crate::spec::Interpreter;

/// The uid and gid that the code sees.
pub const BOX_ID: u32 = 1000;
/// The name of that id in the sandbox's passwd and group files.
pub const BOX_NAME: &str = "user";

/// The home of that name. A caller whose interpreter lies below a directory of the same name gets another, so that
/// neither covers the other.
#[must_use]
pub fn home(interpreter: Option<&Interpreter>) -> &'static str {
    free_of(interpreter, "/home/user", "/home/sandbox")
}

/// The directory for temporary files on disk, chosen likewise.
#[must_use]
pub fn temporary(interpreter: Option<&Interpreter>) -> &'static str {
    free_of(interpreter, "/var/tmp", "/var/cache/tmp")
}

fn free_of(
    interpreter: Option<&Interpreter>,
    usual: &'static str,
    other: &'static str,
) -> &'static str {
    let taken = interpreter.is_some_and(|interpreter| {
        interpreter
            .prefixes
            .iter()
            .any(|prefix| prefix.starts_with(usual))
    });
    if taken { other } else { usual }
}

/// Ids that one realm takes when the map is wide enough: then on-disk owners below this number keep their numbers.
const BLOCK: u32 = 65_536;

/// Whose rights the engine has.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Mode {
    /// Every sandbox id is the caller's one id: sessions are one trust domain.
    Rootless { uid: u32, gid: u32 },
    /// Each realm has host ids of its own.
    Root,
}

impl Mode {
    /// Judges by capabilities and by what the own id map leaves free.
    pub fn of_this_process() -> io::Result<Self> {
        let wanted = CapabilitySet::SYS_ADMIN
            | CapabilitySet::SETUID
            | CapabilitySet::SETGID
            | CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE;
        let uid = rustix::process::geteuid();
        let gid = rustix::process::getegid();
        let able = capabilities(None)?.effective.contains(wanted);
        if uid.is_root() && able && top_of("/proc/self/uid_map")? > BOX_ID + 1 {
            return Ok(Self::Root);
        }
        Ok(Self::Rootless {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
        })
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rootless { .. } => "rootless",
            Self::Root => "root",
        }
    }
}

/// Whether this process is root for the kernel, not only for the user namespace that it is in. A namespace that maps
/// every id to itself is taken for the host's.
#[must_use]
pub fn is_hosts_root() -> bool {
    rustix::process::geteuid().is_root()
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_root_to_root(&map))
}

fn maps_root_to_root(map: &str) -> bool {
    map.lines()
        .any(|line| line.split_whitespace().take(2).eq(["0", "0"]))
}

/// The host ids of one realm.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct HostIds {
    /// The host id of the realm's id `first`.
    pub base: u32,
    /// The lowest id inside.
    pub first: u32,
    pub count: u32,
}

impl HostIds {
    /// The ids of the `index`th realm, counted down from the top of the own map, which neither passwd nor subuid use.
    pub fn nth(index: u32) -> io::Result<Self> {
        let top = top_of("/proc/self/uid_map")?.min(top_of("/proc/self/gid_map")?);
        if top >= 1 << 24 {
            // The topmost block holds (uid_t)-1 and the overflow ids of some systems: leave it.
            let blocks = top / BLOCK - 1;
            let block = blocks - 1 - index % (blocks / 2);
            return Ok(Self {
                base: block * BLOCK,
                first: 0,
                count: BLOCK,
            });
        }
        Ok(Self {
            base: top - 1 - index % (top / 4).max(1),
            first: BOX_ID,
            count: 1,
        })
    }

    /// What the sandbox's user is for the host.
    #[must_use]
    pub const fn user(self) -> u32 {
        self.base + (BOX_ID - self.first)
    }

    /// The line for `uid_map` and `gid_map`.
    #[must_use]
    pub fn map_line(self) -> String {
        format!("{} {} {}", self.first, self.base, self.count)
    }
}

/// One past the highest id that a map gives.
fn top_of(path: &str) -> io::Result<u32> {
    Ok(fs::read_to_string(path)?
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
            Some(first.ok()? + count.ok()?)
        })
        .max()
        .and_then(|top| u32::try_from(top).ok())
        .unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_container_with_ids_of_its_own_is_not_the_hosts() {
        assert!(maps_root_to_root("         0          0 4294967295\n"));
        assert!(!maps_root_to_root("         0     100000      65536\n"));
        assert!(!maps_root_to_root("      1000          0          1\n"));
    }

    #[test]
    fn realms_have_ids_of_their_own_far_above_accounts() {
        let one = HostIds {
            base: 0xfffe_0000,
            first: 0,
            count: BLOCK,
        };
        assert_eq!(one.user(), 0xfffe_0000 + 1000);
        assert_eq!(one.map_line(), "0 4294836224 65536");
        let narrow = HostIds {
            base: 65_000,
            first: BOX_ID,
            count: 1,
        };
        assert_eq!(narrow.user(), 65_000);
    }
}
