//! The numbers that code sizes itself by: how many processors, how much memory. Files in the place of the kernel's, which
//! tell of the whole machine; made once for equal numbers, and read-only.
//!
//! They do not move: what is free or busy is what a sandbox finds when it starts. What moves is in its own cgroup.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Context, Step, StepError};

/// What a sandbox is told. Equal numbers share their files.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// How many processors the code can keep busy.
    pub processors: u32,
    /// Bytes that it may have; none: what the machine has.
    pub memory: Option<u64>,
}

/// Where the files are mounted.
pub const DEVICES: &str = "/sys/devices";
/// The directory of it with those that are shown in `/proc`.
const PROC: &str = ".proc";
/// Files of `/proc` that may be in it.
const PROC_FILES: &[&str] = &["cpuinfo", "loadavg", "meminfo", "stat", "swaps"];
/// What the kernel tells of each processor of a machine that is shown whole.
const TOPOLOGY: &[&str] = &[
    "core_cpus",
    "core_cpus_list",
    "core_id",
    "core_siblings",
    "core_siblings_list",
    "die_id",
    "package_cpus",
    "package_cpus_list",
    "physical_package_id",
    "thread_siblings",
    "thread_siblings_list",
];
const PROCESSORS: &str = "system/cpu";

/// Files of `/proc`, and what is shown in the place of each: what a sandbox's numbers do not need is not there.
pub fn covers() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let place = Path::new(DEVICES).join(PROC);
    PROC_FILES
        .iter()
        .map(move |name| (place.join(name), Path::new("/proc").join(name)))
}

/// Writes the files below `place`, an empty directory that will be seen at [`DEVICES`].
///
/// # Errors
///
/// The file that could not be written. What the host does not tell is left out.
pub fn write(numbers: &Numbers, place: &Path) -> Result<(), StepError> {
    let host = Host::read();
    let whole = host.is_whole(numbers.processors);
    let mut files = processors(numbers.processors.max(1), whole, &host);
    let mut cover = |name: &str, text: String| files.push((format!("{PROC}/{name}"), text));
    if !whole {
        cover("cpuinfo", cpuinfo(&host.cpuinfo, numbers.processors));
        cover("stat", stat(&host.stat, numbers.processors, host.uptime));
        // The machine's load is no reason for a sandbox to start less.
        cover("loadavg", "0.00 0.00 0.00 1/1 1\n".to_owned());
    }
    if let Some(memory) = numbers.memory.filter(|memory| *memory < host.memory) {
        cover("meminfo", meminfo(memory));
        // With a limit of memory there is no swap.
        cover(
            "swaps",
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".to_owned(),
        );
    }
    for (name, text) in files {
        let path = place.join(&name);
        let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
        parent
            .and_then(|()| fs::write(&path, text))
            .at(Step::RootNumbers, format!("{DEVICES}/{name}"))?;
    }
    Ok(())
}

/// What the machine says of itself. What it does not say is empty, or as much as can be asked for.
struct Host {
    online: Vec<u32>,
    cpuinfo: String,
    stat: String,
    memory: u64,
    /// Seconds.
    uptime: u64,
}

impl Host {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        let uptime = read("/proc/uptime");
        let mut online = list(&read("/sys/devices/system/cpu/online"));
        if online.is_empty() {
            online = blocks(&cpuinfo).map(|(number, _)| number).collect();
        }
        Self {
            online,
            cpuinfo,
            stat: read("/proc/stat"),
            memory: kibibytes(&memory, "MemTotal").map_or(u64::MAX, |total| total << 10),
            uptime: uptime
                .split('.')
                .next()
                .and_then(|seconds| seconds.parse().ok())
                .unwrap_or(0),
        }
    }

    /// Whether so many processors are all that the machine has.
    fn is_whole(&self, processors: u32) -> bool {
        usize::try_from(processors).is_ok_and(|shown| shown >= self.online.len())
    }
}

/// `/sys/devices/system/cpu`.
fn processors(count: u32, whole: bool, host: &Host) -> Vec<(String, String)> {
    let copied = |name: &str| fs::read_to_string(Path::new(DEVICES).join(PROCESSORS).join(name));
    let mut files = Vec::new();
    let mut put = |name: &str, text: String| files.push((format!("{PROCESSORS}/{name}"), text));
    if let Ok(most) = copied("kernel_max") {
        put("kernel_max", most);
    }
    if whole && let Ok(online) = copied("online") {
        put("online", online);
        for name in ["offline", "possible", "present"] {
            if let Ok(text) = copied(name) {
                put(name, text);
            }
        }
        for number in &host.online {
            for name in TOPOLOGY {
                let name = format!("cpu{number}/topology/{name}");
                if let Ok(text) = copied(&name) {
                    put(&name, text);
                }
            }
        }
        return files;
    }
    let all = match count {
        1 => "0\n".to_owned(),
        count => format!("0-{}\n", count - 1),
    };
    put("offline", "\n".to_owned());
    for name in ["online", "possible", "present"] {
        put(name, all.clone());
    }
    // Which of the machine's they are changes from step to step: each is a core of one package.
    let siblings = mask(0..count, count);
    for number in 0..count {
        let own = mask(number..number + 1, count);
        for (names, text) in [
            (&["core_id"][..], number.to_string()),
            (&["physical_package_id", "die_id"], "0".to_owned()),
            (&["core_cpus", "thread_siblings"], own),
            (
                &["core_cpus_list", "thread_siblings_list"],
                number.to_string(),
            ),
            (&["core_siblings", "package_cpus"], siblings.clone()),
            (
                &["core_siblings_list", "package_cpus_list"],
                all.trim_end().to_owned(),
            ),
        ] {
            for name in names {
                put(&format!("cpu{number}/topology/{name}"), format!("{text}\n"));
            }
        }
    }
    files
}

/// A set of processors as the kernel writes it: words of 32 bits, the highest first.
fn mask(set: std::ops::Range<u32>, count: u32) -> String {
    let words = count.div_ceil(32).max(1);
    let word = |index: u32| {
        (0..32)
            .filter(|bit| set.contains(&(index * 32 + bit)))
            .fold(0_u32, |word, bit| word | 1 << bit)
    };
    let digits = if words == 1 {
        usize::try_from(count.div_ceil(4)).unwrap_or(8)
    } else {
        8
    };
    (0..words)
        .rev()
        .map(|index| format!("{:0digits$x}", word(index)))
        .collect::<Vec<_>>()
        .join(",")
}

/// The first `count` processors of the machine's list, counted from 0, each a core of one package.
fn cpuinfo(host: &str, count: u32) -> String {
    let mut text = String::new();
    for ((_, block), number) in blocks(host).zip(0..count) {
        for line in block.lines() {
            let name = line.split(':').next().unwrap_or_default();
            let value = match name.trim_end() {
                "processor" | "core id" | "apicid" | "initial apicid" => number,
                "physical id" => 0,
                "siblings" | "cpu cores" => count,
                _ => {
                    text.push_str(line);
                    text.push('\n');
                    continue;
                }
            };
            // A name is followed by tabs up to its colon.
            let _ = writeln!(text, "{name}: {value}");
        }
        text.push('\n');
    }
    text
}

/// The paragraphs of `/proc/cpuinfo` that are of a processor, with its number.
fn blocks(cpuinfo: &str) -> impl Iterator<Item = (u32, &str)> {
    cpuinfo.split("\n\n").filter_map(|block| {
        let first = block.trim_start_matches('\n').lines().next()?;
        let (name, value) = first.split_once(':')?;
        let number = value.trim().parse().ok()?;
        (name.trim() == "processor").then_some((number, block))
    })
}

/// Idle since the machine started: differences between two looks are none. The time of its start is the machine's, which
/// the start times of processes are counted from.
fn stat(host: &str, count: u32, uptime: u64) -> String {
    let ticks = uptime * 100;
    let line = |name: &str, idle: u64| format!("{name} 0 0 0 {idle} 0 0 0 0 0 0\n");
    let mut text = line("cpu ", ticks * u64::from(count));
    for number in 0..count {
        text.push_str(&line(&format!("cpu{number}"), ticks));
    }
    text.push_str("intr 0\nctxt 0\n");
    if let Some(start) = host.lines().find(|line| line.starts_with("btime ")) {
        text.push_str(start);
        text.push('\n');
    }
    text.push_str("processes 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n");
    text
}

/// What init and the like have is not to be had.
const TAKEN: u64 = 2 << 10;

fn meminfo(memory: u64) -> String {
    let total = memory >> 10;
    let free = total.saturating_sub(TAKEN).max(total / 2);
    let mut text = String::new();
    for (name, value) in [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", total - free),
        ("Inactive", 0),
        ("Active(anon)", total - free),
        ("Inactive(anon)", 0),
        ("Active(file)", 0),
        ("Inactive(file)", 0),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", total - free),
        ("Mapped", 0),
        ("Shmem", 0),
        ("KReclaimable", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("KernelStack", 0),
        ("PageTables", 0),
        ("NFS_Unstable", 0),
        ("Bounce", 0),
        ("WritebackTmp", 0),
        ("CommitLimit", total),
        ("Committed_AS", total - free),
        ("VmallocTotal", 34_359_738_367),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
        ("Percpu", 0),
        ("AnonHugePages", 0),
        ("ShmemHugePages", 0),
        ("FileHugePages", 0),
    ] {
        let _ = writeln!(text, "{:<15} {value:>8} kB", format!("{name}:"));
    }
    text
}

/// The value of a line of `/proc/meminfo`.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// The numbers of a list such as `0-2,4`.
fn list(text: &str) -> Vec<u32> {
    text.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: A\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: 0\n\
        cpu cores\t: 2\nflags\t\t: fpu sse\n\nprocessor\t: 3\nmodel name\t: A\nphysical id\t: 1\nsiblings\t: 4\n\
        core id\t\t: 1\ncpu cores\t: 2\nflags\t\t: fpu sse\n\nHardware\t: B\n\n";

    #[test]
    fn a_processor_is_what_the_machines_is_but_for_its_place() {
        assert_eq!(
            cpuinfo(CPUINFO, 1),
            "processor\t: 0\nmodel name\t: A\nphysical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\n\
             flags\t\t: fpu sse\n\n"
        );
        let both = cpuinfo(CPUINFO, 2);
        let numbers: Vec<_> = blocks(&both).map(|(number, _)| number).collect();
        assert_eq!(numbers, [0, 1]);
        assert!(!both.contains("physical id\t: 1"));
    }

    #[test]
    fn processors_are_counted_from_nought_without_a_gap() {
        let files = processors(
            3,
            false,
            &Host {
                online: vec![2, 4, 5, 6],
                cpuinfo: String::new(),
                stat: String::new(),
                memory: 0,
                uptime: 0,
            },
        );
        let file = |name: &str| {
            let name = format!("{PROCESSORS}/{name}");
            let found = files.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| text.as_str())
        };
        assert_eq!(file("online"), Some("0-2\n"));
        assert_eq!(file("possible"), Some("0-2\n"));
        assert_eq!(file("cpu2/topology/core_id"), Some("2\n"));
        assert_eq!(file("cpu2/topology/thread_siblings"), Some("4\n"));
        assert_eq!(file("cpu0/topology/core_siblings_list"), Some("0-2\n"));
        assert_eq!(file("cpu3/topology/core_id"), None);
    }

    #[test]
    fn a_set_of_processors_is_written_as_the_kernel_writes_it() {
        assert_eq!(mask(0..1, 1), "1");
        assert_eq!(mask(3..4, 8), "08");
        assert_eq!(mask(0..32, 32), "ffffffff");
        assert_eq!(mask(33..34, 40), "00000002,00000000");
    }

    #[test]
    fn a_list_of_processors_is_read() {
        assert_eq!(list("0-2,4\n"), [0, 1, 2, 4]);
        assert_eq!(list("\n"), [0_u32; 0]);
    }

    #[test]
    fn memory_is_the_limit_and_most_of_it_is_free() {
        for limit in [1 << 20, 64 << 20, 8 << 30] {
            let text = meminfo(limit);
            let value = |name| kibibytes(&text, name).unwrap();
            assert_eq!(value("MemTotal"), limit >> 10);
            assert!(value("MemAvailable") * 2 >= value("MemTotal"));
            assert!(value("MemAvailable") < value("MemTotal"));
        }
        assert_eq!(
            kibibytes("MemTotal:       24683652 kB\n", "MemTotal"),
            Some(24_683_652)
        );
    }

    #[test]
    fn the_machine_has_started_when_it_did() {
        let text = stat("cpu  9 9\nbtime 1700000000\n", 2, 10);
        assert!(text.starts_with("cpu  0 0 0 2000 "));
        assert!(text.contains("\ncpu1 0 0 0 1000 "));
        assert!(!text.contains("cpu2"));
        assert!(text.contains("\nbtime 1700000000\n"));
    }
}
