//! Memory-backed directories: where, how large, and what is left for `/dev/shm`.
//!
//! Their pages count against the sandbox's memory cap, so one as large as the cap is an OOM kill in waiting: `/tmp` and
//! `/dev/shm` together stay at half of it.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::mount::plain_target;
use super::request::TmpfsRequest;
use super::size::{mebibytes, parse_size};
use super::text::shown_path;
use super::{Mount, Tmpfs, Violations};

const TMP: &str = "/tmp";
const SHM: &str = "/dev/shm";

/// The default `/tmp`, before it is clamped.
const TMP_DEFAULT: u64 = 64 << 20;

/// `/dev/shm` of a sandbox whose memory is uncapped.
const SHM_UNCAPPED: u64 = 64 << 20;

/// The kernel reads a size of 0 as "no limit", so the smallest is a few pages.
const SMALLEST: u64 = 64 << 10;

/// Parses the tmpfs option: none is the default `/tmp`, an empty list is none at all.
pub(super) fn parse_tmpfs(
    request: Option<&[TmpfsRequest]>,
    memory: Option<u64>,
    mounts: &[Mount],
    violations: &mut Violations,
) -> Vec<Tmpfs> {
    let Some(request) = request else {
        return default_tmp(memory, mounts).into_iter().collect();
    };
    let mut parsed: Vec<Tmpfs> = Vec::new();
    let mut seen = BTreeSet::new();
    for item in request {
        let field = format!("tmpfs[{}]", shown_path(&item.target));
        let target = violations.take(&field, parse_target(&item.target, mounts));
        let size = violations.take(&field, parse_bounded(&item.size, memory));
        let (Some(target), Some(size)) = (target, size) else {
            continue;
        };
        if seen.insert(target.clone()) {
            parsed.push(Tmpfs { target, size });
        } else {
            violations.add(field, "the target is named twice");
        }
    }
    check_half(&parsed, memory, violations);
    parsed
}

/// Bytes of the sandbox's `/dev/shm`, when the caller gave it neither a tmpfs nor a mount: what `/tmp` leaves of half of
/// the memory.
#[must_use]
pub fn shm_size(memory: Option<u64>, tmpfs: &[Tmpfs]) -> u64 {
    let Some(memory) = memory else {
        return SHM_UNCAPPED;
    };
    (memory / 2)
        .saturating_sub(size_of(tmpfs, TMP))
        .max(SMALLEST)
}

fn default_tmp(memory: Option<u64>, mounts: &[Mount]) -> Option<Tmpfs> {
    // A bind at /tmp is the caller's own /tmp. One below it needs no room made: it is mounted later.
    if mounts.iter().any(|mount| mount.target == Path::new(TMP)) {
        return None;
    }
    // A quarter of the half stays for /dev/shm, without which semaphores cannot be made.
    let size = memory.map_or(TMP_DEFAULT, |memory| TMP_DEFAULT.min(memory / 8 * 3));
    Some(Tmpfs {
        target: TMP.into(),
        size,
    })
}

fn size_of(tmpfs: &[Tmpfs], target: &str) -> u64 {
    let found = tmpfs.iter().find(|one| one.target == Path::new(target));
    found.map_or(0, |one| one.size)
}

fn check_half(parsed: &[Tmpfs], memory: Option<u64>, violations: &mut Violations) {
    let Some(half) = memory.map(|memory| memory / 2) else {
        return;
    };
    let (tmp, shm) = (size_of(parsed, TMP), size_of(parsed, SHM));
    if tmp.saturating_add(shm) > half {
        let field = if tmp > 0 { TMP } else { SHM };
        violations.add(
            format!("tmpfs[\"{field}\"]"),
            format!(
                "/tmp and /dev/shm are memory of the sandbox and together at most half of it ({}); ask for less, or raise memory_mb",
                mebibytes(half)
            ),
        );
    }
}

fn parse_bounded(size: &str, memory: Option<u64>) -> Result<u64, String> {
    let bytes = parse_size(size)?;
    match memory {
        Some(memory) if bytes > memory => Err(format!(
            "{} is more than the sandbox's memory ({}); ask for less, or raise memory_mb",
            mebibytes(bytes),
            mebibytes(memory)
        )),
        Some(_) | None => Ok(bytes.max(SMALLEST)),
    }
}

fn parse_target(target: &Path, mounts: &[Mount]) -> Result<PathBuf, String> {
    let plain = plain_target(target).map_err(|refusal| refusal.to_string())?;
    if plain.as_os_str().as_bytes().contains(&b':') {
        return Err(
            "the target holds \":\"; write {\"/scratch\": \"64m\"}, the size apart from the path"
                .into(),
        );
    }
    if plain == Path::new("/") {
        return Err("the target is the sandbox's root; choose another such as \"/scratch\"".into());
    }
    let own = ["/proc", "/sys", "/dev", "/workspace", "/run/stepbox"];
    let taken = own.into_iter().find(|own| plain.starts_with(own));
    if let Some(own) = taken.filter(|_| plain != Path::new(SHM)) {
        return Err(format!(
            "the target is, or lies in, the sandbox's own {own}; choose another such as \"/scratch\""
        ));
    }
    if plain == Path::new("/run") {
        return Err(
            "the target is the sandbox's own /run; choose another such as \"/scratch\"".into(),
        );
    }
    match mounts.iter().find(|mount| mount.target.starts_with(&plain)) {
        Some(mount) => Err(format!(
            "it would cover the mount at {}",
            shown_path(&mount.target)
        )),
        None => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mount(target: &str) -> Mount {
        Mount {
            source: "/data".into(),
            identity: (1, 1),
            target: target.into(),
            read_only: false,
        }
    }

    fn parsed(
        request: Option<&[(&str, &str)]>,
        memory: Option<u64>,
        mounts: &[Mount],
    ) -> Result<Vec<(String, u64)>, Vec<String>> {
        let request: Option<Vec<_>> = request.map(|items| {
            let items = items.iter();
            items
                .map(|(target, size)| TmpfsRequest {
                    target: target.into(),
                    size: (*size).into(),
                })
                .collect()
        });
        let mut violations = Violations::default();
        let tmpfs = parse_tmpfs(request.as_deref(), memory, mounts, &mut violations);
        if violations.is_empty() {
            let shown = tmpfs.into_iter();
            Ok(shown
                .map(|one| (one.target.display().to_string(), one.size))
                .collect())
        } else {
            let said = violations.into_vec().into_iter();
            Err(said
                .map(|v| format!("{}: {}", v.field, v.description))
                .collect())
        }
    }

    #[test]
    fn the_default_is_tmp_and_stays_with_shm_at_half_of_the_memory() {
        for memory in [16 * MIB, 64 * MIB, 128 * MIB, 512 * MIB, 4096 * MIB] {
            let tmp = parsed(None, Some(memory), &[]).expect("default");
            assert_eq!(tmp.len(), 1);
            let tmpfs = [Tmpfs {
                target: TMP.into(),
                size: tmp[0].1,
            }];
            let shm = shm_size(Some(memory), &tmpfs);
            assert!(shm >= memory / 8, "{memory}: {shm}");
            assert!(tmp[0].1 + shm <= memory / 2, "{memory}");
        }
        assert_eq!(
            parsed(None, Some(512 * MIB), &[]),
            Ok(vec![("/tmp".into(), 64 * MIB)])
        );
        assert_eq!(parsed(None, None, &[]), Ok(vec![("/tmp".into(), 64 * MIB)]));
        assert_eq!(shm_size(None, &[]), 64 * MIB);
    }

    #[test]
    fn an_empty_list_removes_the_default_and_a_bind_at_tmp_takes_its_place() {
        assert_eq!(parsed(Some(&[]), Some(512 * MIB), &[]), Ok(vec![]));
        assert_eq!(parsed(None, Some(512 * MIB), &[mount("/tmp")]), Ok(vec![]));
        assert_eq!(
            parsed(None, Some(512 * MIB), &[mount("/tmp/in")]).map(|all| all.len()),
            Ok(1)
        );
    }

    #[test]
    fn one_below_a_mount_works_and_one_that_covers_a_mount_is_refused() {
        let mounts = [mount("/data")];
        assert!(parsed(Some(&[("/data/scratch", "1m")]), None, &mounts).is_ok());
        assert!(parsed(Some(&[("/data", "1m")]), None, &mounts).is_err());
        assert!(parsed(Some(&[("/data", "1m")]), None, &[mount("/data/in")]).is_err());
    }

    #[test]
    fn targets_and_sizes_are_refused_with_the_field_named() {
        for (target, size) in [
            ("scratch", "1m"),
            ("/", "1m"),
            ("/a/../b", "1m"),
            ("/a:9g", "1m"),
            ("/proc", "1m"),
            ("/sys/fs", "1m"),
            ("/dev", "1m"),
            ("/dev/shm/x", "1m"),
            ("/workspace", "1m"),
            ("/workspace/x", "1m"),
            ("/run", "1m"),
            ("/a", "64"),
            ("/a", "0"),
            ("/a", "0m"),
            ("/a", ""),
            ("/a", "513m"),
            ("/tmp", "257m"),
            ("/dev/shm", "257m"),
        ] {
            let said = parsed(Some(&[(target, size)]), Some(512 * MIB), &[]).expect_err(target);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(
                said[0].starts_with(&format!("tmpfs[{target:?}]: ")),
                "{said:?}"
            );
        }
        assert!(
            parsed(
                Some(&[("/tmp", "200m"), ("/dev/shm", "100m")]),
                Some(512 * MIB),
                &[]
            )
            .is_err()
        );
        assert!(
            parsed(
                Some(&[("/tmp", "100m"), ("/dev/shm", "100m")]),
                Some(512 * MIB),
                &[]
            )
            .is_ok()
        );
        assert!(parsed(Some(&[("/a", "512m"), ("/a/", "1m")]), Some(512 * MIB), &[]).is_err());
    }
}
