//! How much memory a sandbox holds, as read from the outside where no cgroup counts it: what the kernel could get back
//! by nothing but an end of the sandbox. Pages that files on disk back are none of it.
//!
//! The first look at all processes takes each one's own figures, which charge a page that several share to all of them.
//! Only when that is past the limit are pages divided among those that share them, which takes a walk over page tables,
//! and a lock of each process's memory, that code can make whoever asks wait for.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, openat, statx};

use super::figures::{
    Process, Share, close, numbers, parse_rollup, parse_segments, parse_status, read_whole,
    shares_of,
};

/// Descriptors looked at in one look at most, but for those of the last task: the next look goes on from there.
const DESCRIPTORS: usize = 4096;
/// How long a child that has its parent's memory is taken for one that only borrows it until it executes.
const BORROWED: Duration = Duration::from_millis(250);
/// How often the threads of a process whose first one has ended are listed, to find one that is still there when asked.
const LISTED: u32 = 4;
/// A look takes a while: what is given back here and taken there meanwhile counts twice, and the shares of processes that
/// come and go belong to different moments and add up to none. So nothing is past the limit before it was in two looks,
/// and while processes come and go in more.
const AGAIN: u32 = 4;
const AGAIN_AFTER: Duration = Duration::from_millis(3);

/// How long pages are divided at most. Whoever is not asked by then is charged in full: code that has many processes of
/// many mappings on purpose must not gain the time that they take.
const PATIENCE: Duration = Duration::from_millis(500);
/// By when [`Footprint::look`] has its answer, unless the kernel keeps it waiting for a single process.
pub(super) const ANSWERED: Duration = Duration::from_millis(1000);

/// A sandbox's memory, through its `/proc`.
#[derive(Debug)]
pub(super) struct Footprint {
    windows: Arc<Windows>,
    text: Vec<u8>,
    memfds: Arc<Mutex<Memfds>>,
    /// Since when a child has looked like one that borrows its parent's memory.
    borrowers: HashMap<u32, Instant>,
}

#[derive(Debug)]
struct Windows {
    proc: OwnedFd,
    segments: OwnedFd,
    tmpfs: Vec<OwnedFd>,
    /// The file system that memfds are on.
    nameless: (u32, u32),
}

/// Files in memory that only a descriptor leads to, by inode: bytes, and the sweep that saw them last.
#[derive(Debug, Default)]
struct Memfds {
    known: HashMap<u64, (u64, u32)>,
    sweep: u32,
    /// The process and its task that the sweep got to.
    reached: (u32, u32),
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Held {
    pub(super) bytes: u64,
    /// No page is counted twice, as far as one look can tell.
    pub(super) exact: bool,
}

/// Memory that is not a process's own.
#[derive(Debug, Default)]
struct Kept {
    bytes: u64,
    segments: HashSet<u64>,
}

impl Footprint {
    /// `windows` are those that an init gives.
    pub(super) fn new(windows: Vec<OwnedFd>) -> io::Result<Self> {
        let mut windows = windows.into_iter();
        let (Some(proc), Some(segments)) = (windows.next(), windows.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let memfd = memfd_create("probe", MemfdFlags::CLOEXEC)?;
        let device = rustix::fs::fstat(memfd)?.st_dev;
        Ok(Self::of(
            Arc::new(Windows {
                proc,
                segments,
                tmpfs: windows.collect(),
                nameless: (rustix::fs::major(device), rustix::fs::minor(device)),
            }),
            Arc::default(),
        ))
    }

    /// For another thread; both know the memfds that either has seen.
    pub(super) fn another(&self) -> Self {
        Self::of(self.windows.clone(), self.memfds.clone())
    }

    fn of(windows: Arc<Windows>, memfds: Arc<Mutex<Memfds>>) -> Self {
        Self {
            windows,
            text: Vec::new(),
            memfds,
            borrowers: HashMap::new(),
        }
    }

    /// Takes each process's own figures, that the kernel gives at once; pages may be counted twice.
    pub(super) fn glance(&mut self) -> Held {
        let processes = self.processes();
        let kept = self.kept(&processes);
        let own: u64 = processes.iter().map(Process::held).sum();
        Held {
            bytes: own + kept.bytes,
            exact: processes.len() <= 1 && (own == 0 || kept.bytes == 0),
        }
    }

    /// Counts each page once. What is past `most` is no more than there is, unless there was not the time to tell; below,
    /// pages may be counted twice.
    pub(super) fn look(&mut self, most: u64) -> Held {
        let begun = Instant::now();
        let mut held = self.measure_until(most, begun + PATIENCE);
        for round in 0..AGAIN {
            let settled = held.exact || begun.elapsed() > PATIENCE;
            if held.bytes <= most || settled && round > 0 {
                break;
            }
            std::thread::sleep(AGAIN_AFTER);
            let again = self.measure_until(most, begun + PATIENCE * 3 / 2);
            held = Held {
                bytes: held.bytes.min(again.bytes),
                ..again
            };
        }
        held
    }

    /// Counts each page once, in a single look: at least what there was.
    pub(super) fn measure(&mut self) -> Held {
        self.measure_until(0, Instant::now() + PATIENCE)
    }

    fn measure_until(&mut self, most: u64, until: Instant) -> Held {
        let processes = self.processes();
        let kept = self.kept(&processes);
        self.divide(&processes, &kept, most, until)
    }

    /// All but init, which is the engine's.
    fn processes(&mut self) -> Vec<Process> {
        let mut found: Vec<Process> = numbers(&self.windows.proc)
            .into_iter()
            .filter(|pid| *pid != 1)
            .filter_map(|pid| self.process(pid))
            .collect();
        found.sort_by_key(|process| process.pid);
        found
    }

    /// One that is gone by now holds nothing.
    fn process(&mut self, pid: u32) -> Option<Process> {
        self.read(&format!("{pid}/status"))?;
        let process = parse_status(pid, &self.text);
        if process.size > 0 || process.tasks <= 1 {
            return Some(process);
        }
        // Its first thread has ended and shows nothing any more; the others have the memory still.
        for _ in 0..LISTED {
            for task in self.tasks(&process) {
                if self.read(&format!("{task}/status")).is_none() {
                    continue;
                }
                let alive = parse_status(task, &self.text);
                if alive.size > 0 {
                    return Some(Process { pid, ..alive });
                }
            }
        }
        Some(process)
    }

    fn tasks(&self, process: &Process) -> Vec<u32> {
        if process.tasks <= 1 {
            return vec![process.pid];
        }
        let mut tasks = self
            .directory(&format!("{}/task", process.pid))
            .map(|directory| numbers(&directory))
            .unwrap_or_default();
        tasks.sort_unstable();
        tasks
    }

    fn directory(&self, path: &str) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.windows.proc, path, flags, Mode::empty()).ok()
    }

    /// Reads a file below `/proc`.
    fn read(&mut self, path: &str) -> Option<()> {
        let file = openat(
            &self.windows.proc,
            path,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        read_whole(&file, &mut self.text)
    }

    fn kept(&mut self, processes: &[Process]) -> Kept {
        let mut kept = Kept::default();
        for tmpfs in &self.windows.tmpfs {
            if let Ok(stat) = rustix::fs::fstatvfs(tmpfs) {
                kept.bytes += stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize;
            }
        }
        if read_whole(&self.windows.segments, &mut self.text).is_some() {
            for (id, bytes) in parse_segments(&self.text) {
                kept.bytes += bytes;
                kept.segments.insert(id);
            }
        }
        let mut memfds = self.memfds();
        self.sweep(&mut memfds, processes);
        kept.bytes += memfds.known.values().map(|(bytes, _)| bytes).sum::<u64>();
        drop(memfds);
        kept
    }

    fn memfds(&self) -> MutexGuard<'_, Memfds> {
        self.memfds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on through the descriptors of all tasks, each of which can have a table of its own; one round after the other.
    fn sweep(&self, memfds: &mut Memfds, processes: &[Process]) {
        let mut looked = 0;
        let begun = memfds.reached;
        let first = processes.partition_point(|process| process.pid < begun.0);
        for process in &processes[first..] {
            for task in self.tasks(process) {
                if (process.pid, task) <= begun {
                    continue;
                }
                if looked >= DESCRIPTORS {
                    return;
                }
                memfds.reached = (process.pid, task);
                looked += 1 + self.descriptors_of(memfds, task);
            }
        }
        memfds.end_round();
    }

    fn descriptors_of(&self, memfds: &mut Memfds, task: u32) -> usize {
        let Some(directory) = self.directory(&format!("{task}/fd")) else {
            return 0;
        };
        let numbers = numbers(&directory);
        for number in &numbers {
            // Not asked of the file system: one on a network may never answer.
            let stat = statx(
                &directory,
                number.to_string(),
                AtFlags::STATX_DONT_SYNC,
                StatxFlags::BLOCKS | StatxFlags::INO,
            );
            if let Ok(stat) = stat
                && (stat.stx_dev_major, stat.stx_dev_minor) == self.windows.nameless
            {
                memfds.saw(stat.stx_ino, stat.stx_blocks * 512);
            }
        }
        numbers.len()
    }

    /// Counts each page once. Also whether that holds: no process ended meanwhile, and none may only borrow its memory.
    fn divide(&mut self, processes: &[Process], kept: &Kept, most: u64, until: Instant) -> Held {
        let suspects = self.borrowers_among(processes);
        let mut sum = Share::default();
        let mut excused = false;
        // Of borrowers that are counted all the same.
        let mut doubtful = 0;
        for process in processes {
            let share = if Instant::now() < until {
                self.share_of(process)
            } else {
                process.undivided()
            };
            if suspects.contains(&process.pid) && share.is_undivided() {
                if !std::mem::replace(&mut excused, true) {
                    continue;
                }
                doubtful += share.anonymous + share.shared;
            }
            sum.anonymous += share.anonymous;
            sum.shared += share.shared;
            sum.largest = sum.largest.max(share.largest);
        }
        // However many share it, and end before they are asked, one process's memory is there.
        let anonymous = sum.anonymous.max(sum.largest);
        let shared = sum.shared;
        let least = anonymous + shared.max(kept.bytes);
        let highest = anonymous + shared + kept.bytes;
        // What is mapped may be what is kept: only where that decides is it worth finding out.
        let bytes = if least > most || highest <= most {
            if least > most { least } else { highest }
        } else {
            highest - self.mapped_and_kept(processes, kept, until).min(shared)
        };
        let in_time = Instant::now() < until;
        let sure = doubtful == 0 || bytes - doubtful.min(bytes) > most;
        Held {
            bytes,
            exact: in_time && sure && (bytes <= most || self.all_live(processes)),
        }
    }

    fn share_of(&mut self, process: &Process) -> Share {
        if self
            .read(&format!("{}/smaps_rollup", process.task))
            .is_some()
        {
            return parse_rollup(&self.text);
        }
        // Gone, or not to be read: then its own figures must do.
        self.process(process.pid)
            .map(|process| process.undivided())
            .unwrap_or_default()
    }

    fn all_live(&mut self, processes: &[Process]) -> bool {
        let now = self.processes();
        processes
            .iter()
            .filter(|then| then.held() > 0)
            .all(|then| find(&now, then.pid).is_some_and(|process| process.held() > 0))
    }

    /// Children that look like their parents, as one does between `vfork` and `execve`. Only for a while, and only one at
    /// a time is believed: code could make such children on purpose.
    fn borrowers_among(&mut self, processes: &[Process]) -> Vec<u32> {
        let now = Instant::now();
        let alike: Vec<u32> = processes
            .iter()
            .filter(|child| {
                find(processes, child.parent).is_some_and(|parent| {
                    close(parent.size, child.size) && close(parent.anonymous, child.anonymous)
                })
            })
            .map(|child| child.pid)
            .collect();
        self.borrowers.retain(|pid, _| alike.contains(pid));
        alike
            .into_iter()
            .filter(|pid| now - *self.borrowers.entry(*pid).or_insert(now) < BORROWED)
            .collect()
    }

    /// Bytes that processes map of what [`Self::kept`] has counted.
    fn mapped_and_kept(&mut self, processes: &[Process], kept: &Kept, until: Instant) -> u64 {
        let tmpfs: HashSet<(u32, u32)> = self
            .windows
            .tmpfs
            .iter()
            .filter_map(|fd| rustix::fs::fstat(fd).ok())
            .map(|stat| {
                let device = stat.st_dev;
                (rustix::fs::major(device), rustix::fs::minor(device))
            })
            .collect();
        let nameless = self.windows.nameless;
        let mut bytes = 0;
        for process in processes {
            if Instant::now() >= until {
                break;
            }
            if self.read(&format!("{}/smaps", process.task)).is_none() {
                continue;
            }
            let memfds = self.memfds();
            bytes += shares_of(&self.text, |area| {
                let device = (area.major, area.minor);
                tmpfs.contains(&device)
                    || device == nameless
                        && if area.segment {
                            kept.segments.contains(&area.inode)
                        } else {
                            memfds.known.contains_key(&area.inode)
                        }
            });
        }
        bytes
    }
}

impl Memfds {
    fn saw(&mut self, inode: u64, bytes: u64) {
        self.known.insert(inode, (bytes, self.sweep));
    }

    /// What no process had in this round is gone.
    fn end_round(&mut self) {
        let round = self.sweep;
        self.known.retain(|_, (_, seen)| *seen == round);
        self.sweep = self.sweep.wrapping_add(1);
        self.reached = (0, 0);
    }
}

/// Looks up one of processes that are sorted.
fn find(processes: &[Process], pid: u32) -> Option<&Process> {
    let index = processes.binary_search_by_key(&pid, |process| process.pid);
    index.ok().map(|index| &processes[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_that_nobody_has_any_more_is_forgotten_after_a_round() {
        let mut memfds = Memfds::default();
        memfds.saw(1, 10);
        memfds.end_round();
        memfds.saw(2, 20);
        assert_eq!(memfds.known.len(), 2);
        memfds.end_round();
        assert_eq!(memfds.known.keys().collect::<Vec<_>>(), [&2]);
    }
}
