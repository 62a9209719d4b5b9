//! What the operating system says about memory: this process and its limits, the machine, the container, other processes.
//!
//! Linux only, from `/proc` and the cgroup file systems (v1 and v2); elsewhere every function says so. Reads are bounded,
//! and [`process`] allocates nothing, so it can be called between steps.

mod container;
mod limits;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use ambitus_exec::cpu::return_freed;
use ambitus_recipe::size::ByteSize;
pub use container::{Container, container};
pub use limits::{Limit, at_start, limit, require, stack};

/// A figure that this system does not provide.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// A file of `/proc` cannot be read: not Linux, or hidden here.
    #[error("{file} cannot be read ({source}): memory is measured on Linux only; give --memory")]
    Unreadable {
        /// The file.
        file: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// It lacks a row.
    #[error("{file} has no row {row}: give --memory")]
    Missing {
        /// The file.
        file: &'static str,
        /// The row.
        row: &'static str,
    },
}

const STATUS: &str = "/proc/self/status";
const MEMINFO: &str = "/proc/meminfo";
/// More than `status` and `meminfo` have; a longer file is cut here, after the rows that are read.
const FILE_BYTES: usize = 8192;

/// This process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Resident bytes now.
    pub rss_bytes: u64,
    /// High-water mark of resident bytes, since the start.
    pub peak_rss_bytes: u64,
    /// Page faults served from memory, since the start.
    pub minor_faults: u64,
    /// Page faults that waited for a disk, since the start.
    pub major_faults: u64,
    /// Times a thread of this process lost its core to another, since the start.
    pub involuntary_switches: u64,
    /// Processor time of all threads since the start, in microseconds.
    pub cpu_micros: u64,
}

/// Reads this process's row. Allocates nothing.
pub fn process() -> Result<Process, MemoryError> {
    let mut buffer = [0; FILE_BYTES];
    let status = read_text(STATUS, &mut buffer)?;
    let row = |row| kib(status, row).ok_or(MemoryError::Missing { file: STATUS, row });
    let mut p = Process { rss_bytes: row("VmRSS:")?, peak_rss_bytes: row("VmHWM:")?, ..Process::default() };
    usage(&mut p);
    Ok(p)
}

/// Makes the allocator give large blocks back when they are freed, and keep few heaps: to be called before threads are. Left to
/// itself, glibc's keeps blocks of up to 32 MiB for later, and a heap for each thread.
pub fn keep_little_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// Blocks from this size on are the system's own.
        const LARGE: libc::c_int = 128 << 10;
        const HEAPS: libc::c_int = 2;
        for (what, value) in
            [(libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE), (libc::M_ARENA_MAX, HEAPS)]
        {
            // SAFETY: takes no pointer; no other thread is there yet.
            unsafe {
                libc::mallopt(what, value);
            }
        }
    }
}

/// What a phase of a run was planned to hold and held, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBytes {
    /// Its name, as in the plan.
    pub name: String,
    /// At most, by the plan: what the budget bounds, and without a card the host arena where that is in memory.
    pub planned_bytes: u64,
    /// As measured ([`Meter`]); on a card, of what this process holds there, which is the same from the start
    /// of the executor to its end.
    pub measured_bytes: Option<u64>,
}

/// What this process held in each phase of a run, as the system counts it.
///
/// The system keeps one high-water mark for the whole life of a process. A phase in which it rose is known to the byte. For any
/// other phase only what was resident at its ends is known, which is less than what earlier phases held.
#[derive(Clone, Debug)]
pub struct Meter {
    phases: Vec<(&'static str, u64)>,
    high: u64,
    last: u64,
}

impl Meter {
    /// Begins now: the first phase that ends began here.
    pub fn start() -> Meter {
        let Process { rss_bytes, peak_rss_bytes, .. } = process().unwrap_or_default();
        Meter { phases: Vec::new(), high: peak_rss_bytes, last: rss_bytes }
    }

    /// Records that `phase` has ended, which began with the last call.
    pub fn ended(&mut self, phase: &'static str) {
        let Ok(Process { rss_bytes, peak_rss_bytes, .. }) = process() else { return };
        let most = if peak_rss_bytes > self.high { peak_rss_bytes } else { rss_bytes.max(self.last) };
        (self.high, self.last) = (peak_rss_bytes, rss_bytes);
        match self.phases.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, before)) => *before = most.max(*before),
            None => self.phases.push((phase, most)),
        }
    }

    /// Returns the bytes of a phase; `None` if it did not take place.
    pub fn of(&self, phase: &str) -> Option<u64> {
        self.phases.iter().find(|(name, _)| *name == phase).map(|(_, bytes)| *bytes)
    }

    /// Returns the most of all phases.
    pub fn most(&self) -> Option<u64> {
        self.phases.iter().map(|(_, bytes)| *bytes).max()
    }
}

/// The machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Bytes that programs can still take without swapping, as the kernel estimates it.
    pub available_bytes: u64,
}

/// Reads the machine's memory.
pub fn machine() -> Result<Machine, MemoryError> {
    let mut buffer = [0; FILE_BYTES];
    let text = read_text(MEMINFO, &mut buffer)?;
    let row = |row| kib(text, row).ok_or(MemoryError::Missing { file: MEMINFO, row });
    Ok(Machine { total_bytes: row("MemTotal:")?, available_bytes: row("MemAvailable:")? })
}

/// Share of the free memory that a run without `--memory` may use, in percent.
pub const DEFAULT_PERCENT: u64 = 90;

/// The budget of a run without `--memory`, and what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DefaultBudget {
    /// The budget.
    pub bytes: u64,
    /// Available memory.
    pub available_bytes: u64,
    /// The container, if it has a limit.
    pub container: Option<Container>,
    /// The process's own limit, if it has one.
    pub limit: Option<Limit>,
}

impl std::fmt::Display for DefaultBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (budget, available) = (ByteSize(self.bytes), ByteSize(self.available_bytes));
        write!(f, "{budget} ({DEFAULT_PERCENT} % of ")?;
        let left = self.container.as_ref().map_or(self.available_bytes, |c| c.remaining_bytes);
        if let Some(l) = self.limit.as_ref().filter(|l| room(l) < left.min(self.available_bytes)) {
            let (left, limit) = (ByteSize(room(l)), ByteSize(l.limit_bytes));
            return write!(
                f,
                "the {left} that the limit of {limit} on {} leaves; the machine has {available} available)",
                l.name
            );
        }
        match &self.container {
            Some(c) if c.remaining_bytes < self.available_bytes => {
                let (left, limit) = (ByteSize(c.remaining_bytes), ByteSize(c.limit_bytes));
                write!(
                    f,
                    "the {left} that the container's limit of {limit} leaves; the machine has {available} available)"
                )
            }
            _ => write!(f, "the {available} of memory that are available)"),
        }
    }
}

/// Returns what a limit leaves a run on all cores.
fn room(limit: &Limit) -> u64 {
    limit.room(std::thread::available_parallelism().map_or(1, usize::from) as u64)
}

/// Returns 90 % of the smallest of available memory and what the limits of container and process leave.
pub fn default_budget() -> Result<DefaultBudget, MemoryError> {
    let available_bytes = machine()?.available_bytes;
    let container = container();
    let free = container.as_ref().map_or(available_bytes, |c| c.remaining_bytes.min(available_bytes));
    let limit = limit();
    let free = limit.as_ref().map_or(free, |l| free.min(room(l)));
    // Multiplying first would overflow only beyond 2^57 bytes.
    Ok(DefaultBudget { bytes: free / 100 * DEFAULT_PERCENT, available_bytes, container, limit })
}

/// Another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// Process id.
    pub pid: u32,
    /// Its name, at most 15 bytes, as the kernel keeps it.
    pub name: String,
    /// Resident bytes; pages shared between processes count in each.
    pub rss_bytes: u64,
}

/// Returns the `most` other processes that hold most memory, largest first. Empty where processes cannot be seen.
pub fn top_processes(most: usize) -> Vec<Other> {
    let mut found = Vec::new();
    let own = std::process::id();
    let mut buffer = [0; FILE_BYTES];
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == own {
            continue;
        }
        // Processes end while they are listed, and kernel threads have no VmRSS: both are passed over.
        let Ok(n) = read_some(&entry.path().join("status"), &mut buffer) else { continue };
        let text = String::from_utf8_lossy(&buffer[..n]);
        if let Some(rss_bytes) = kib(&text, "VmRSS:") {
            let name = text.lines().find_map(|l| l.strip_prefix("Name:")).unwrap_or("?").trim().to_owned();
            found.push(Other { pid, name, rss_bytes });
        }
    }
    found.sort_by_key(|o| (std::cmp::Reverse(o.rss_bytes), o.pid));
    found.truncate(most);
    found
}

/// Fills the counters of `getrusage`; they stay 0 where it does not exist.
#[cfg(unix)]
fn usage(p: &mut Process) {
    let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a live, writable rusage, which is all the call asks for.
    let ok = unsafe { libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) } == 0;
    // SAFETY: all-zero bytes are a valid rusage (plain integers), whether or not the call filled it.
    let raw = unsafe { raw.assume_init() };
    if ok {
        let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        p.minor_faults = count(raw.ru_minflt);
        p.major_faults = count(raw.ru_majflt);
        p.involuntary_switches = count(raw.ru_nivcsw);
        let micros =
            |t: libc::timeval| (t.tv_sec.max(0) as u64).saturating_mul(1_000_000) + t.tv_usec.max(0) as u64;
        p.cpu_micros = micros(raw.ru_utime) + micros(raw.ru_stime);
    }
}

#[cfg(not(unix))]
fn usage(_: &mut Process) {}

/// Reads until the buffer is full or the file ends.
fn read_some(path: &Path, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut file = File::open(path)?;
    let mut n = 0;
    while n < buffer.len() {
        match file.read(&mut buffer[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn read_text<'a>(file: &'static str, buffer: &'a mut [u8]) -> Result<&'a str, MemoryError> {
    let n = read_some(Path::new(file), buffer).map_err(|source| MemoryError::Unreadable { file, source })?;
    // Only a process name could be something else than ASCII; what stands before it is enough of an answer.
    let bytes = &buffer[..n];
    Ok(std::str::from_utf8(bytes)
        .unwrap_or_else(|e| std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or("")))
}

/// Returns the value of a `Row:   123 kB` in bytes.
fn kib(text: &str, row: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(row))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_follows_what_is_touched() {
        const TOUCHED: usize = 64 << 20;
        let mut meter = Meter::start();
        meter.ended("before");
        let before = process().unwrap();
        assert!(before.rss_bytes > 0 && before.peak_rss_bytes >= before.rss_bytes / 2);
        let held = vec![1_u8; TOUCHED];
        let during = process().unwrap();
        assert_eq!(std::hint::black_box(&held)[TOUCHED - 1], 1);
        assert!(during.peak_rss_bytes >= before.rss_bytes + TOUCHED as u64 / 2, "{before:?} {during:?}");
        assert!(during.minor_faults >= before.minor_faults && during.cpu_micros >= before.cpu_micros);
        meter.ended("during");
        drop(held);
        meter.ended("between");
        meter.ended("after");
        let of = |phase| meter.of(phase).unwrap();
        assert!(of("before") <= of("during") && of("during") >= during.peak_rss_bytes);
        // The mark did not rise: what is known is what was there.
        assert!(of("after") + TOUCHED as u64 / 2 < of("during"), "{meter:?}");
        assert!(meter.most() >= Some(of("during")) && meter.of("never").is_none());
    }

    #[test]
    fn the_machine_is_measured() {
        let machine = machine().unwrap();
        assert!(machine.available_bytes > 0 && machine.available_bytes <= machine.total_bytes);
        let budget = default_budget().unwrap();
        assert!(budget.bytes > 0 && budget.bytes <= budget.available_bytes);
        assert!(budget.to_string().contains("90 % of the "), "{budget}");
        let top = top_processes(3);
        assert!(top.len() <= 3 && top.is_sorted_by(|a, b| a.rss_bytes >= b.rss_bytes));
    }

    #[test]
    fn rows_are_read_or_refused() {
        assert_eq!(kib("VmPeak: 1 kB\nVmHWM:\t     24 kB\n", "VmHWM:"), Some(24 << 10));
        for bad in [
            "",
            "VmHWM:",
            "VmHWM: 24",
            "VmHWM: -1 kB",
            "VmHWM: 99999999999999999999 kB",
            "VmHWM: 18446744073709551615 kB",
        ] {
            assert_eq!(kib(bad, "VmHWM:"), None, "{bad}");
        }
    }
}
