//! What sandboxes keep on disk without a name: files that were removed while somebody has them open or mapped. A look at a
//! tree does not meet them. They are gone with the sandbox, and until then they take space.
//!
//! Asked for only when the disk has lost more than the tree has won: it takes a walk over the host's processes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SECTOR: u64 = 512;

/// The pid namespace that a sandbox's init is the first process of; none: it is in that of everybody.
pub(super) fn namespace_of(init: BorrowedFd<'_>) -> Option<String> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", init.as_raw_fd())).ok()?;
    let pid = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    let found = link(&format!("/proc/{}/ns/pid", pid.trim()))?;
    (link("/proc/self/ns/pid")? != found).then_some(found)
}

fn link(path: &str) -> Option<String> {
    fs::read_link(path)
        .ok()?
        .into_os_string()
        .into_string()
        .ok()
}

/// Bytes that processes of these namespaces keep on these devices. Blocks.
pub(super) fn bytes(namespaces: &HashSet<String>, devices: &HashSet<u64>) -> u64 {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        // Threads may have descriptors of their own; the namespace is the process's.
        let ours = link(&format!("/proc/{pid}/ns/pid"));
        if !ours.is_some_and(|namespace| namespaces.contains(&namespace)) {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            open_files(&task.path().join("fd"), devices, &mut found);
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        mapped_files(&maps, devices, &mut found);
    }
    found.values().sum()
}

type Found = HashMap<(u64, u64), u64>;

fn open_files(descriptors: &Path, devices: &HashSet<u64>, found: &mut Found) {
    for descriptor in fs::read_dir(descriptors).into_iter().flatten().flatten() {
        // The file itself is looked at, whatever its name was.
        let Ok(facts) = fs::metadata(descriptor.path()) else {
            continue;
        };
        if facts.nlink() == 0 && facts.is_file() && devices.contains(&facts.dev()) {
            found.insert((facts.dev(), facts.ino()), facts.blocks() * SECTOR);
        }
    }
}

/// Of a file that is only mapped no more is known than how much of it is.
fn mapped_files(maps: &str, devices: &HashSet<u64>, found: &mut Found) {
    let mut mapped = Found::new();
    for line in maps.lines().filter(|line| line.ends_with(" (deleted)")) {
        let mut words = line.split_ascii_whitespace();
        let (range, _, _, device, inode) = (
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
        );
        let Some(((begin, end), (major, minor))) = range
            .and_then(|range| range.split_once('-'))
            .zip(device.and_then(|device| device.split_once(':')))
        else {
            continue;
        };
        let address = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let number = |text| u32::from_str_radix(text, 16).unwrap_or(0);
        let device = rustix::fs::makedev(number(major), number(minor));
        let inode = inode.and_then(|inode| inode.parse().ok()).unwrap_or(0);
        if devices.contains(&device) {
            *mapped.entry((device, inode)).or_default() +=
                address(end).saturating_sub(address(begin));
        }
    }
    for (file, bytes) in mapped {
        found.entry(file).or_insert(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_without_a_name_counts_while_it_is_open() {
        let own = HashSet::from([link("/proc/self/ns/pid").expect("a namespace")]);
        let file = tempfile::tempfile().expect("a file");
        let device = HashSet::from([file.metadata().expect("facts").dev()]);
        let before = bytes(&own, &device);
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).expect("written");
        file.sync_all().expect("on disk");
        assert!(bytes(&own, &device) >= before + (1 << 20));
        assert_eq!(bytes(&HashSet::new(), &device), 0);
        assert_eq!(bytes(&own, &HashSet::new()), 0);
    }

    #[test]
    fn a_process_in_the_engines_own_namespace_is_not_told_from_others_by_it() {
        let own = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        )
        .expect("a pidfd");
        assert_eq!(namespace_of(own.as_fd()), None);
    }

    #[test]
    fn what_is_mapped_and_removed_counts_by_its_ranges() {
        let mut found = Found::new();
        let device = rustix::fs::makedev(0xfe, 0);
        let maps = "7f0000000000-7f0000100000 rw-s 00000000 fe:00 77 /workspace/a (deleted)\n\
                    7f0000200000-7f0000300000 rw-s 00000000 fe:00 77 /workspace/a (deleted)\n\
                    7f0000400000-7f0000500000 rw-s 00000000 fe:01 78 /x (deleted)\n\
                    7f0000600000-7f0000700000 rw-s 00000000 fe:00 79 /workspace/b\n";
        mapped_files(maps, &HashSet::from([device]), &mut found);
        assert_eq!(found, Found::from([((device, 77), 2 << 20)]));
    }
}
