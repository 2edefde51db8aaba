//! Where this process is in each cgroup hierarchy: `/proc/self/cgroup` joined with `/proc/self/mountinfo`. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::Version;
use super::error::Obstacle;

/// One line of `/proc/self/cgroup`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Membership {
    /// Empty for cgroup v2.
    pub(super) controllers: Vec<String>,
    pub(super) path: String,
}

/// One mounted cgroup hierarchy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Mount {
    pub(super) version: Version,
    /// The cgroup that is seen at the mount point.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    pub(super) options: Vec<String>,
}

/// The own directory of one controller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) directory: PathBuf,
    /// No ancestor above it can be seen.
    pub(super) mount_point: PathBuf,
}

pub(super) fn parse_memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            // The path may hold colons; the first two fields cannot.
            let mut fields = line.splitn(3, ':');
            let _hierarchy = fields.next()?;
            let controllers = fields.next()?;
            let path = fields.next()?;
            Some(Membership {
                controllers: controllers
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect(),
                path: path.to_owned(),
            })
        })
        .collect()
}

pub(super) fn parse_mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo
        .lines()
        .filter_map(|line| {
            // Optional fields end at the lone dash, so the file system's type has no fixed column.
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(3);
            let root = unescape(before.next()?);
            let point = unescape(before.next()?);
            let mut after = after.split(' ');
            let version = match after.next()? {
                "cgroup" => Version::V1,
                "cgroup2" => Version::V2,
                _ => return None,
            };
            let options = after.nth(1)?.split(',').map(str::to_owned).collect();
            Some(Mount {
                version,
                root,
                point,
                options,
            })
        })
        .collect()
}

/// The own directory for `controller`: of its v1 hierarchy where the kernel has bound it to one, else of v2's.
pub(super) fn locate(
    memberships: &[Membership],
    mounts: &[Mount],
    controller: &str,
) -> Result<Place, Obstacle> {
    let v1 = memberships
        .iter()
        .find(|membership| membership.controllers.iter().any(|name| name == controller));
    let (version, membership) = match v1 {
        Some(membership) => (Version::V1, membership),
        None => (
            Version::V2,
            memberships
                .iter()
                .find(|membership| membership.controllers.is_empty())
                .ok_or(Obstacle::NotMounted)?,
        ),
    };
    let shows = |mount: &&Mount| {
        mount.version == version
            && (version == Version::V2 || mount.options.iter().any(|option| option == controller))
    };
    let mut unseen = None;
    let mut best: Option<(&Mount, &Path)> = None;
    for mount in mounts.iter().filter(shows) {
        match Path::new(&membership.path).strip_prefix(&mount.root) {
            // `..` stands for what is above a cgroup namespace's root: it cannot be walked to.
            Ok(below) if !below.starts_with("..") => {
                // The widest view lets ancestors' limits be seen.
                if best.is_none_or(|(known, _)| {
                    mount.root.components().count() < known.root.components().count()
                }) {
                    best = Some((mount, below));
                }
            }
            _ => unseen = Some(mount.root.display().to_string()),
        }
    }
    match (best, unseen) {
        (Some((mount, below)), _) => Ok(Place {
            version,
            directory: if below.as_os_str().is_empty() {
                mount.point.clone()
            } else {
                mount.point.join(below)
            },
            mount_point: mount.point.clone(),
        }),
        (None, Some(root)) => Err(Obstacle::OutOfSight {
            cgroup: membership.path.clone(),
            root,
        }),
        (None, None) => Err(Obstacle::NotMounted),
    }
}

/// mountinfo writes blank, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            at += 4;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(cgroup: &str, mountinfo: &str, controller: &str) -> Result<Place, Obstacle> {
        locate(
            &parse_memberships(cgroup),
            &parse_mounts(mountinfo),
            controller,
        )
    }

    fn found(version: Version, directory: &str, mount_point: &str) -> Result<Place, Obstacle> {
        Ok(Place {
            version,
            directory: directory.into(),
            mount_point: mount_point.into(),
        })
    }

    const V1_CGROUP: &str =
        "9:name=systemd:/\n8:pids:/\n4:memory:/runner/one\n2:cpuacct:/\n1:cpu:/\n0::/\n";
    const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn each_v1_controller_has_the_own_cgroup_of_its_own_hierarchy() {
        assert_eq!(
            place(V1_CGROUP, V1_MOUNTS, "memory"),
            found(
                Version::V1,
                "/sys/fs/cgroup/memory/runner/one",
                "/sys/fs/cgroup/memory"
            )
        );
        assert_eq!(
            place(V1_CGROUP, V1_MOUNTS, "pids"),
            found(Version::V1, "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids")
        );
    }

    #[test]
    fn controllers_mounted_together_share_a_directory() {
        let cgroup = "4:cpu,cpuacct:/user.slice\n0::/user.slice\n";
        let mounts = "\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
28 25 0:24 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw
";
        let expected = found(
            Version::V1,
            "/sys/fs/cgroup/cpu,cpuacct/user.slice",
            "/sys/fs/cgroup/cpu,cpuacct",
        );
        assert_eq!(place(cgroup, mounts, "cpu"), expected);
        assert_eq!(place(cgroup, mounts, "cpuacct"), expected);
        // A hybrid host may leave a controller to v2.
        assert_eq!(
            place(cgroup, mounts, "pids"),
            found(
                Version::V2,
                "/sys/fs/cgroup/unified/user.slice",
                "/sys/fs/cgroup/unified"
            )
        );
    }

    #[test]
    fn a_systemd_user_scope_is_below_the_v2_mount() {
        let cgroup = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/stepbox-a.scope\n";
        let mounts = "29 22 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        assert_eq!(
            place(cgroup, mounts, "memory"),
            found(
                Version::V2,
                "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/stepbox-a.scope",
                "/sys/fs/cgroup"
            )
        );
    }

    #[test]
    fn a_container_with_a_cgroup_namespace_is_at_the_mount_point() {
        let mounts = "700 690 0:25 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";
        assert_eq!(
            place("0::/\n", mounts, "cpu"),
            found(Version::V2, "/sys/fs/cgroup", "/sys/fs/cgroup")
        );
    }

    #[test]
    fn the_root_of_a_nested_mount_is_taken_off_the_path() {
        let cgroup = "5:memory:/docker/0123/worker\n";
        let mounts =
            "701 690 0:32 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            place(cgroup, mounts, "memory"),
            found(
                Version::V1,
                "/sys/fs/cgroup/memory/worker",
                "/sys/fs/cgroup/memory"
            )
        );
    }

    #[test]
    fn a_cgroup_above_the_namespace_or_beside_the_mount_is_out_of_sight() {
        let mounts = "29 22 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            place("0::/../other\n", mounts, "memory"),
            Err(Obstacle::OutOfSight {
                cgroup: "/../other".into(),
                root: "/".into()
            })
        );
        let mounts = "29 22 0:25 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert!(place("0::/docker/ab\n", mounts, "memory").is_err());
    }

    #[test]
    fn a_controller_without_a_mount_is_not_mounted() {
        assert_eq!(
            place("4:memory:/\n", "", "memory"),
            Err(Obstacle::NotMounted)
        );
        assert_eq!(place("", V1_MOUNTS, "memory"), Err(Obstacle::NotMounted));
    }

    #[test]
    fn escaped_blanks_in_a_mount_point_are_read() {
        let mounts = r"29 22 0:25 / /mnt/c\040g rw - cgroup2 cgroup2 rw";
        assert_eq!(parse_mounts(mounts)[0].point, PathBuf::from("/mnt/c g"));
    }

    #[test]
    fn a_path_with_colons_is_kept_whole() {
        assert_eq!(parse_memberships("0::/a:b:c\n")[0].path, "/a:b:c");
    }
}
