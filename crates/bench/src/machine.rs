//! Facts about the machine and what its processors are doing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::gate::Load;
use crate::sys;

/// What the figures were measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Processor model.
    pub processor: String,
    /// Processors online.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Load average when the run began.
    pub load_start: String,
    /// Load average when the results were written.
    pub load_end: String,
    /// File system that holds the image files: source, type and options.
    pub host_file_system: String,
    /// Settings of the kernel that the figures hang on.
    pub kernel_settings: BTreeMap<String, String>,
    /// Versions of the programs used.
    pub versions: BTreeMap<String, String>,
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Value of `KEY<separator>value` in a file of such lines.
fn field(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// The load average as the kernel prints it.
pub fn load_average() -> String {
    read("/proc/loadavg")
}

/// First line that a program prints about its version; None when it cannot be run.
pub fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Collects the facts; `work` is where the image files lie.
pub fn collect(work: &Path) -> Machine {
    let memory = field(&read("/proc/meminfo"), "MemTotal", ':').unwrap_or_default();
    let kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let settings = [
        "vm/dirty_ratio",
        "vm/dirty_background_ratio",
        "vm/dirty_expire_centisecs",
        "vm/dirty_writeback_centisecs",
        "vm/vfs_cache_pressure",
    ];
    Machine {
        kernel: read("/proc/sys/kernel/osrelease"),
        system: field(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_default(),
        processor: field(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kib * 1024,
        load_start: load_average(),
        load_end: String::new(),
        host_file_system: host_file_system(work),
        kernel_settings: settings
            .iter()
            .map(|name| (name.replace('/', "."), read(format!("/proc/sys/{name}"))))
            .collect(),
        versions: BTreeMap::new(),
    }
}

/// Source, type and options of the mount that holds `path`.
fn host_file_system(path: &Path) -> String {
    let mounts = read("/proc/self/mounts");
    let best = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (source, point, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        path.starts_with(point).then(|| (point.len(), format!("{source} {kind} {options}")))
    });
    best.max_by_key(|(length, _)| *length).map(|(_, text)| text).unwrap_or_default()
}

/// Whether this kernel has a file system, perhaps after loading its module.
pub fn knows(name: &str) -> bool {
    let there = || read("/proc/filesystems").lines().any(|line| line.split_whitespace().last() == Some(name));
    there() || {
        let loaded = Command::new("modprobe").args(["-q", name]).status();
        loaded.is_ok_and(|status| status.success()) && there()
    }
}

/// Ticks that all processors were busy, out of the text of /proc/stat. Waiting for a disk and being idle are not busy;
/// time that the hypervisor gave to somebody else is.
fn busy_ticks(stat: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = numbers[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

/// The processors of this machine, by /proc/stat.
pub struct Processors;

impl Load for Processors {
    fn busy_cores(&mut self, window: Duration) -> Option<f64> {
        let begin = Instant::now();
        let before = busy_ticks(&read("/proc/stat"))?;
        std::thread::sleep(window);
        let after = busy_ticks(&read("/proc/stat"))?;
        let ticks = begin.elapsed().as_secs_f64() * sys::ticks_per_second();
        Some(after.saturating_sub(before) as f64 / ticks)
    }
}

/// Fields of /proc/PID/stat after the name, which may hold anything: state is number 0.
fn stat_fields(stat: &str) -> Option<Vec<i64>> {
    let rest = &stat[stat.rfind(')')? + 1..];
    Some(rest.split_whitespace().skip(1).map(|n| n.parse().unwrap_or(0)).collect())
}

/// Processor ticks that programs outside the harness (and outside what it started) have used, by process. The kernel's own
/// threads are left out: those that carry loop devices work for the contender.
pub fn foreign_ticks() -> BTreeMap<u32, i64> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let processes = entries.filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let fields = stat_fields(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let parent = u32::try_from(*fields.first()?).ok()?;
        // utime, stime and those of children waited for, so that a compiler that ended is not lost
        let ticks = fields.get(10..14)?.iter().sum();
        (pid != own && parent != own && pid != 2 && parent != 2).then_some((pid, ticks))
    });
    processes.collect()
}

/// Cores that foreign programs used between two looks.
pub fn foreign_cores(before: &BTreeMap<u32, i64>, after: &BTreeMap<u32, i64>, elapsed: Duration) -> f64 {
    let ticks: i64 = after.iter().map(|(pid, ticks)| ticks - before.get(pid).copied().unwrap_or(0)).sum();
    (ticks.max(0) as f64) / (elapsed.as_secs_f64() * sys::ticks_per_second()).max(1.0)
}

/// Whether a process has not ended yet.
pub fn is_alive(pid: u32) -> bool {
    let stat = read(format!("/proc/{pid}/stat"));
    let state = stat.rfind(')').and_then(|end| stat[end + 1..].split_whitespace().next());
    state.is_some_and(|state| !matches!(state, "Z" | "X"))
}

/// Processor time of all threads of a process.
pub fn process_time(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanos: u64 = threads
        .filter_map(|thread| {
            let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    Some(Duration::from_nanos(nanos))
}

/// Bytes that this process has made dirty in the page cache: what is written again before it is written back counts once.
pub fn dirtied_bytes() -> Option<u64> {
    field(&read("/proc/self/io"), "write_bytes", ':')?.parse().ok()
}

/// A field of /proc/PID/status that is given in kB, in bytes.
pub fn process_memory(pid: u32, key: &str) -> Option<u64> {
    let value = field(&read(format!("/proc/{pid}/status")), key, ':')?;
    Some(value.split(' ').next()?.parse::<u64>().ok()? * 1024)
}

/// The time as `2025-01-31T12:00:00Z`.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format_time(seconds)
}

fn format_time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years; Howard Hinnant's civil_from_days.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let shifted = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_not_idle_and_not_waiting() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 0 0\ncpu0 9 9"), Some(63));
        assert_eq!(busy_ticks("nothing"), None);
    }

    #[test]
    fn a_process_name_may_hold_anything() {
        let fields = stat_fields("7 (a) b (c)) S 1 2 3").unwrap();
        assert_eq!(fields, [1, 2, 3]);
    }

    #[test]
    fn foreign_use_counts_new_processes_and_forgets_ended_ones() {
        let before = BTreeMap::from([(10, 100), (11, 50)]);
        let after = BTreeMap::from([(10, 150), (12, 10)]);
        let cores = foreign_cores(&before, &after, Duration::from_secs(1));
        assert!((cores - 60.0 / sys::ticks_per_second()).abs() < 1e-9);
    }

    #[test]
    fn who_lives() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }

    #[test]
    fn dates() {
        assert_eq!(format_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(format_time(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
