//! Who the sandbox is for the host. In its realm it is uid and gid 1000, which the code sees too unless it was asked to see
//! another; the host sees an id that owns nothing.

use std::fs;
use std::io;

use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

use crate::spec::{DEFAULT_ID, Interpreter};

/// The uid and gid of a sandbox in its realm.
pub const BOX_ID: u32 = DEFAULT_ID;

/// The first of the realm's ids that no file of an image has: code that keeps capabilities can become one of these.
pub const RANGE_FIRST: u32 = BLOCK;

/// Who the code is in its sandbox, and who else is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub others: Others,
}

/// The ids of a sandbox beside the code's own.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Others {
    /// Those of the image, under their own numbers: files show whose they are.
    Image,
    /// Ids that own nothing, under the numbers of an image. Those of the image are nobody's: who could become their owner
    /// could read what is only theirs.
    Range,
    /// None: whatever is not the code's is nobody's.
    None,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            uid: BOX_ID,
            gid: BOX_ID,
            others: Others::Image,
        }
    }
}

impl Identity {
    /// The lines for the `uid_map` or `gid_map` of a user namespace in which [`BOX_ID`] of the one around it is `seen`.
    /// `around`: the map of that one.
    #[must_use]
    pub fn lines(self, seen: u32, around: &str) -> String {
        let (from, to, less) = match self.others {
            Others::Image => (0, RANGE_FIRST, 0),
            Others::Range => (RANGE_FIRST, 2 * RANGE_FIRST, RANGE_FIRST),
            Others::None => (0, 0, 0),
        };
        let mut lines = format!("{seen} {BOX_ID} 1\n");
        for line in around.lines() {
            let mut words = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(first)), _, Some(Ok(count))) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let end = (first + count).min(u64::from(to));
            let mut at = first.max(u64::from(from));
            // Neither another way to the code's own id, nor another id under its number.
            let mut holes = [BOX_ID, seen.saturating_add(less)].map(u64::from);
            holes.sort_unstable();
            for hole in holes.into_iter().chain([end]) {
                let stop = hole.min(end);
                if at < stop {
                    lines += &format!("{} {at} {}\n", at - u64::from(less), stop - at);
                }
                at = at.max(hole + 1);
            }
        }
        lines
    }
}

/// The home of the sandbox's user. A caller whose interpreter lies below a directory of the same name gets another, so that
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

/// Half of the ids that one realm takes when the map is wide enough: on-disk owners below this number keep their numbers,
/// and the other half is the range of code that keeps capabilities.
const BLOCK: u32 = 65_536;

/// A map that ends here or above is wide enough.
const WIDE: u32 = 1 << 24;

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
        if top >= WIDE {
            // The topmost block holds (uid_t)-1 and the overflow ids of some systems: leave it.
            let pairs = (top / BLOCK - 1) / 2;
            let pair = pairs - 1 - index % (pairs / 2);
            return Ok(Self {
                base: pair * 2 * BLOCK,
                first: 0,
                count: 2 * BLOCK,
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

    /// The ids of the realm whose user this host id is; none: it is that id alone.
    #[must_use]
    pub const fn of_user(user: u32) -> Option<(u32, u32)> {
        let base = user.wrapping_sub(BOX_ID);
        if user >= WIDE && base.is_multiple_of(2 * BLOCK) {
            Some((base, base + 2 * BLOCK))
        } else {
            None
        }
    }

    /// The first host id of the range, where the map has room for one.
    #[must_use]
    pub const fn range(self) -> Option<u32> {
        if self.count > RANGE_FIRST {
            Some(self.base + RANGE_FIRST)
        } else {
            None
        }
    }

    /// The lines that make `owner` on disk the sandbox's user. The realm's other ids are on disk what they are for the host,
    /// as long as they are there: a change of owner to an id that a mount has no word for would be refused with an error that
    /// programs such as `cp -a` do not know.
    #[must_use]
    pub fn owner_map(self, owner: u32) -> String {
        let user = self.user();
        let (below, above) = (user - self.base, self.base + self.count - user - 1);
        let mut lines = format!("{owner} {user} 1\n");
        for (first, count) in [(self.base, below), (user + 1, above)] {
            if count > 0 {
                lines += &format!("{first} {first} {count}\n");
            }
        }
        lines
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

    fn lines(uid: u32, others: Others, around: &str) -> Vec<String> {
        let identity = Identity {
            uid,
            gid: uid,
            others,
        };
        let lines = identity.lines(uid, around);
        lines.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_code_is_one_id_of_its_realm_under_whatever_number() {
        let root = "0 4294705152 131072\n";
        let rootless = "1000 500 1\n";
        let with_range = "1000 500 1\n65536 100000 65536\n";
        for around in [root, rootless, with_range] {
            assert_eq!(lines(7, Others::None, around), ["7 1000 1"]);
        }
        assert_eq!(
            lines(1000, Others::Image, root),
            ["1000 1000 1", "0 0 1000", "1001 1001 64535"]
        );
        assert_eq!(
            lines(0, Others::Image, root),
            ["0 1000 1", "1 1 999", "1001 1001 64535"]
        );
        assert_eq!(
            lines(70_000, Others::Image, root),
            ["70000 1000 1", "0 0 1000", "1001 1001 64535"]
        );
        assert_eq!(lines(0, Others::Image, rootless), ["0 1000 1"]);
    }

    #[test]
    fn what_code_can_become_is_no_id_of_the_image() {
        let root = "0 4294705152 131072\n";
        let with_range = "1000 500 1\n65536 100000 1000\n";
        assert_eq!(lines(0, Others::Range, root), ["0 1000 1", "1 65537 65535"]);
        assert_eq!(
            lines(1000, Others::Range, root),
            ["1000 1000 1", "0 65536 1000", "1001 66537 64535"]
        );
        assert_eq!(
            lines(0, Others::Range, with_range),
            ["0 1000 1", "1 65537 999"]
        );
        assert_eq!(lines(0, Others::Range, "1000 500 1\n"), ["0 1000 1"]);
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
        assert_eq!(
            HostIds::of_user(0xfffc_0000 + 1000),
            Some((0xfffc_0000, 0xfffe_0000))
        );
        assert_eq!(HostIds::of_user(65_000), None);
        assert_eq!(narrow.user(), 65_000);
        assert_eq!(narrow.owner_map(500), "500 65000 1\n");
        assert_eq!(
            one.owner_map(0),
            "0 4294837224 1\n4294836224 4294836224 1000\n4294837225 4294837225 64535\n"
        );
    }
}
