//! What the kernel tells of a process's memory, read and parsed: files of its `/proc`, and the lists of segments there.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Dir;

/// One process's own figures, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The task that tells of its memory: another than the first where that has ended.
    pub(super) task: u32,
    pub(super) tasks: u64,
    pub(super) parent: u32,
    pub(super) size: u64,
    pub(super) anonymous: u64,
    pub(super) shared: u64,
    pub(super) swapped: u64,
}

impl Process {
    pub(super) fn held(&self) -> u64 {
        self.anonymous
            .saturating_add(self.shared)
            .saturating_add(self.swapped)
    }

    pub(super) fn undivided(&self) -> Share {
        let anonymous = self.anonymous.saturating_add(self.swapped);
        Share {
            anonymous,
            shared: self.shared,
            largest: anonymous,
        }
    }
}

/// What one process, or all together, have, with each page divided by how many map it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Share {
    /// With what is swapped.
    pub(super) anonymous: u64,
    pub(super) shared: u64,
    /// The anonymous memory of the largest process, not divided.
    pub(super) largest: u64,
}

impl Share {
    /// A process that was forked shares its pages with its parent, each for itself. One that runs in its parent's memory
    /// shows that as its own.
    pub(super) fn is_undivided(&self) -> bool {
        close(self.largest, self.anonymous)
    }
}

/// Near enough for two readings of what one moment had.
pub(super) fn close(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one / 8
}

/// The entries of a directory that are numbers.
pub(super) fn numbers(directory: &OwnedFd) -> Vec<u32> {
    let Ok(entries) = Dir::read_from(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| number(entry.file_name()))
        .collect()
}

fn number(name: &CStr) -> Option<u32> {
    name.to_str().ok()?.parse().ok()
}

/// A file of `/proc` has no size that is known before. Read by position: what the descriptor is a copy of has the same.
pub(super) fn read_whole(file: impl AsFd, text: &mut Vec<u8>) -> Option<()> {
    text.clear();
    loop {
        let filled = text.len();
        text.resize(filled + 16 * 1024, 0);
        match rustix::io::retry_on_intr(|| {
            rustix::io::pread(&file, &mut text[filled..], filled as u64)
        }) {
            Ok(read) => {
                text.truncate(filled + read);
                if read == 0 {
                    return Some(());
                }
            }
            Err(_) => return None,
        }
    }
}

/// `Name:  12 kB` or `Name:  12`, line by line; sizes are in bytes.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let value = std::str::from_utf8(&line[colon + 1..]).ok()?;
        let mut words = value.split_ascii_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        let unit = if words.next() == Some("kB") { 1024 } else { 1 };
        Some((&line[..colon], number.saturating_mul(unit)))
    })
}

pub(super) fn parse_status(pid: u32, text: &[u8]) -> Process {
    let mut process = Process {
        pid,
        task: pid,
        ..Process::default()
    };
    for (name, value) in fields(text) {
        match name {
            b"PPid" => process.parent = u32::try_from(value).unwrap_or(0),
            b"Threads" => process.tasks = value,
            b"VmSize" => process.size = value,
            b"RssAnon" => process.anonymous = value,
            b"RssShmem" => process.shared = value,
            b"VmSwap" => process.swapped = value,
            _ => {}
        }
    }
    process
}

pub(super) fn parse_rollup(text: &[u8]) -> Share {
    let mut share = Share::default();
    for (name, value) in fields(text) {
        match name {
            b"Pss_Anon" | b"SwapPss" => share.anonymous = share.anonymous.saturating_add(value),
            b"Pss_Shmem" => share.shared = value,
            b"Anonymous" => share.largest = value,
            _ => {}
        }
    }
    share
}

/// The id and the bytes in memory and in swap of each segment of `/proc/sysvipc/shm`.
pub(super) fn parse_segments(text: &[u8]) -> Vec<(u64, u64)> {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    let names: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let column = |name| names.iter().position(|known| *known == name);
    let (Some(id), Some(rss), Some(swap)) = (column("shmid"), column("rss"), column("swap")) else {
        return Vec::new();
    };
    lines
        .filter_map(|line| {
            let words: Vec<u64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap_or(0))
                .collect();
            Some((
                *words.get(id)?,
                words.get(rss)?.saturating_add(*words.get(swap)?),
            ))
        })
        .collect()
}

/// A mapping, as far as it tells what it maps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Area {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) inode: u64,
    /// A System V segment, whose inode is its id.
    pub(super) segment: bool,
}

/// The shares of the areas of a `smaps` that `counts`, without what was written to private ones.
pub(super) fn shares_of(text: &[u8], counts: impl Fn(Area) -> bool) -> u64 {
    let mut total = 0_u64;
    let mut counted = false;
    let (mut share, mut private) = (0u64, 0u64);
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(area) = parse_area(line) {
            if counted {
                total = total.saturating_add(share.saturating_sub(private));
            }
            (share, private) = (0, 0);
            counted = counts(area);
        } else if counted {
            for (name, value) in fields(line) {
                match name {
                    b"Pss" => share = value,
                    b"Anonymous" => private = value,
                    _ => {}
                }
            }
        }
    }
    if counted {
        total = total.saturating_add(share.saturating_sub(private));
    }
    total
}

/// `7f00-7f10 rw-s 00000000 00:01 1035   /memfd:x (deleted)`
fn parse_area(line: &[u8]) -> Option<Area> {
    let text = std::str::from_utf8(line).ok().or_else(|| {
        // Only a path may be anything but text.
        let path = line.iter().position(|byte| *byte == b'/')?;
        std::str::from_utf8(&line[..path]).ok()
    })?;
    let mut words = text.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    u64::from_str_radix(from, 16).ok()?;
    u64::from_str_radix(to, 16).ok()?;
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    Some(Area {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
        inode,
        segment: words.next().is_some_and(|path| path.starts_with("/SYSV")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_charged_for_what_no_disk_has() {
        let text = b"Name:\tRssAnon: 9 kB\nPPid:\t7\nThreads:\t3\nVmSize:\t 800 kB\nRssAnon:\t 40 kB\nRssFile:\t 500 kB\n\
            RssShmem:\t 8 kB\nVmSwap:\t 2 kB\n";
        let process = parse_status(9, text);
        assert_eq!(
            (process.parent, process.tasks, process.held()),
            (7, 3, 50 << 10)
        );
        // A dead one that is not yet reaped has no memory.
        assert_eq!(parse_status(9, b"Name:\tx\nPPid:\t7\n").held(), 0);
    }

    #[test]
    fn shares_are_those_of_anonymous_and_shared_pages() {
        let text = b"00400000-7ffd [rollup]\nRss: 900 kB\nPss: 700 kB\nPss_Anon: 30 kB\nPss_File: 660 kB\n\
            Pss_Shmem: 10 kB\nAnonymous: 60 kB\nSwapPss: 5 kB\n";
        let share = parse_rollup(text);
        assert_eq!(
            (share.anonymous, share.shared, share.largest),
            (35 << 10, 10 << 10, 60 << 10)
        );
    }

    #[test]
    fn segments_are_counted_by_what_is_in_memory() {
        let text = b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
            atime      dtime      ctime                   rss                  swap\n         0          3   600 \
            1048576     7     0      0  1000  1000  1000  1000          0          0 1790000000                  8192 \
            4096\n";
        assert_eq!(parse_segments(text), [(3, 12288)]);
        assert_eq!(parse_segments(b""), []);
    }

    #[test]
    fn what_is_mapped_of_a_counted_file_is_found_by_device_and_inode() {
        let text = b"7f00-7f10 rw-s 00000000 00:01 35   /memfd:x (deleted)\nSize: 64 kB\nPss: 32 kB\nAnonymous: 0 kB\n\
            7f20-7f30 rw-s 00000000 00:01 3   /SYSV00000000 (deleted)\nPss: 16 kB\nAnonymous: 0 kB\n\
            7f40-7f50 rw-p 00000000 00:1f 35   /dev/shm/a\xff b\nPss: 8 kB\nAnonymous: 4 kB\n\
            7f60-7f70 rw-p 00000000 00:00 0 \nPss: 99 kB\nAnonymous: 99 kB\n";
        let bytes = |wanted: fn(Area) -> bool| shares_of(text, wanted) >> 10;
        assert_eq!(bytes(|area| area.inode == 35 && area.minor == 1), 32);
        assert_eq!(bytes(|area| area.segment), 16);
        assert_eq!(bytes(|area| area.minor == 0x1f), 4);
        assert_eq!(bytes(|_| true), 52);
    }
}
