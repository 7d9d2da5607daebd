//! A tracefs instance of our own: made, set up, drained, removed.

use super::format::{Field, Format};
use super::ring::PageLayout;
use crate::device::{BlockDev, Level};
use crate::event::{Event, EventKind, Flags, Op, parse_rwbs};
use crate::{TraceError, sys};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Buffer of each CPU: at 100,000 requests a second it lasts for two thirds of a second.
const BUFFER_KIB: u32 = 16 << 10;
/// What our instances are called; the number of the process follows.
const PREFIX: &str = "nenrin-";
/// The longest page that kernels offer.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// A tracepoint that is on, and where its fields are.
struct Point {
    kind: EventKind,
    id: u16,
    pid: Option<Field>,
    dev: Field,
    sector: Field,
    sectors: Field,
    rwbs: Field,
    comm: Option<Field>,
    error: Option<Field>,
}

/// The instance. Dropping it removes it from the kernel.
pub(crate) struct Instance {
    dir: PathBuf,
    points: Vec<Point>,
    cpus: Vec<(PathBuf, File)>,
    layout: PageLayout,
    page: Vec<u8>,
    devices: Vec<BlockDev>,
    started: u64,
    held: Vec<Event>,
    names: HashMap<[u8; 16], u16>,
    new_names: Vec<String>,
}

impl Instance {
    /// Makes the instance; nothing is recorded yet.
    ///
    /// # Errors
    /// No permission, no tracefs, no such tracepoints.
    pub fn new(devices: &[BlockDev]) -> Result<Self, TraceError> {
        if sys::euid() != 0 {
            return Err(TraceError::NotPermitted);
        }
        let root = tracefs()?;
        remove_stale(&root);
        let layout = layout(&root)?;
        // From here on, dropping `this` removes the directory.
        let mut this = Self {
            dir: make_dir(&root)?,
            layout,
            page: vec![0; page_bytes(&root)],
            points: Vec::new(),
            cpus: Vec::new(),
            devices: devices.to_vec(),
            started: 0,
            held: Vec::new(),
            names: HashMap::new(),
            new_names: Vec::new(),
        };
        this.write("tracing_on", "0")?;
        this.write("trace_clock", "mono")?;
        this.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        for (level, events) in [
            (
                Level::Request,
                &[
                    ("block_rq_issue", EventKind::Issue),
                    ("block_rq_complete", EventKind::Complete),
                    ("block_rq_requeue", EventKind::Requeue),
                ][..],
            ),
            (Level::Bio, &[("block_bio_queue", EventKind::Issue), ("block_bio_complete", EventKind::Complete)][..]),
        ] {
            let wanted: Vec<&BlockDev> = devices.iter().filter(|d| d.level == level).collect();
            if !wanted.is_empty() {
                for (name, kind) in events {
                    this.enable(name, *kind, &filter(&wanted))?;
                }
            }
        }
        this.open_cpus()?;
        Ok(this)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), TraceError> {
        let place = self.dir.join(file);
        fs::write(&place, text).map_err(TraceError::io(&place))
    }

    fn enable(&mut self, name: &'static str, kind: EventKind, filter: &str) -> Result<(), TraceError> {
        let base = format!("events/block/{name}");
        let text = fs::read_to_string(self.dir.join(&base).join("format")).map_err(|_| TraceError::NoEvent(name))?;
        let point = Format::parse(&text).and_then(|f| {
            Some(Point {
                kind,
                id: f.id,
                pid: f.field("common_pid"),
                dev: f.field("dev")?,
                sector: f.field("sector")?,
                sectors: f.field("nr_sector")?,
                rwbs: f.field("rwbs")?,
                comm: f.field("comm"),
                error: f.field("error"),
            })
        });
        self.points.push(point.ok_or(TraceError::NoEvent(name))?);
        self.write(&format!("{base}/filter"), filter)?;
        self.write(&format!("{base}/enable"), "1")
    }

    fn open_cpus(&mut self) -> Result<(), TraceError> {
        let base = self.dir.join("per_cpu");
        for entry in fs::read_dir(&base).map_err(TraceError::io(&base))?.flatten() {
            let place = entry.path().join("trace_pipe_raw");
            match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&place) {
                Ok(file) => self.cpus.push((entry.path(), file)),
                // A CPU that was never online has no buffer.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => return Err(TraceError::io(&place)(e)),
            }
        }
        Ok(())
    }

    /// Begins to record, and returns the kernel's time in nanoseconds.
    ///
    /// # Errors
    /// The instance has gone.
    pub fn start(&mut self) -> Result<u64, TraceError> {
        self.started = sys::monotonic_nanos();
        self.write("tracing_on", "1")?;
        Ok(self.started)
    }

    /// Nanoseconds since [`Instance::start`].
    pub fn elapsed(&self) -> u64 {
        sys::monotonic_nanos().saturating_sub(self.started)
    }

    /// Stops recording; what is in the buffers may still be drained.
    ///
    /// # Errors
    /// The instance has gone.
    pub fn stop(&self) -> Result<(), TraceError> {
        self.write("tracing_on", "0")
    }

    /// Empties all buffers. Appends to `out`, in the order of time, what no
    /// later event can precede; with `all`, everything.
    ///
    /// # Errors
    /// A buffer cannot be read.
    pub fn drain(&mut self, all: bool, out: &mut Vec<Event>) -> Result<(), TraceError> {
        // The kernel's clock may be read a little earlier than the event becomes visible.
        const SLACK_NANOS: u64 = 2_000_000;
        let limit = if all { u64::MAX } else { self.elapsed().saturating_sub(SLACK_NANOS) };
        for i in 0..self.cpus.len() {
            loop {
                match self.cpus[i].1.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(n) => self.decode(n),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(TraceError::io(&self.cpus[i].0)(e)),
                }
            }
        }
        self.held.sort_by_key(|e| e.nanos);
        let ready = self.held.partition_point(|e| e.nanos < limit);
        out.extend(self.held.drain(..ready));
        Ok(())
    }

    fn decode(&mut self, bytes: usize) {
        let (points, devices, held, names, new_names) =
            (&self.points, &self.devices, &mut self.held, &mut self.names, &mut self.new_names);
        let started = self.started;
        self.layout.events(&self.page[..bytes], |time, bytes| {
            let Some(kind) = bytes.get(..2).map(|b| u16::from_ne_bytes([b[0], b[1]])) else { return };
            let Some(point) = points.iter().find(|p| p.id == kind) else { return };
            let Some(mut event) = point.event(bytes, devices) else { return };
            event.nanos = time.saturating_sub(started);
            if let Some(comm) = &point.comm {
                let mut name = [0; 16];
                let text = comm.text(bytes);
                let length = text.len().min(16);
                name[..length].copy_from_slice(&text[..length]);
                let next = names.len().min(usize::from(u16::MAX)) as u16;
                event.name = *names.entry(name).or_insert_with(|| {
                    new_names.push(String::from_utf8_lossy(&text[..length]).into_owned());
                    next
                });
            }
            held.push(event);
        });
    }

    /// Names that were met since the last call, in the order of their numbers.
    pub fn take_names(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new_names)
    }

    /// Events that the kernel had no room for.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().filter_map(|(dir, _)| fs::read_to_string(dir.join("stats")).ok()).map(|t| lost(&t)).sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // An instance with open files cannot be removed.
        self.cpus.clear();
        let _ = fs::remove_dir(&self.dir);
    }
}

impl Point {
    fn event(&self, bytes: &[u8], devices: &[BlockDev]) -> Option<Event> {
        let number = self.dev.number(bytes) as u32;
        let sectors = self.sectors.number(bytes) as u32;
        // A flush carries no place; some kernels show all ones.
        let sector = match self.sector.number(bytes) {
            u64::MAX => 0,
            sector => sector,
        };
        let device = devices.iter().position(|d| d.covers(number, sector, sectors))?;
        let (op, flags) = match parse_rwbs(self.rwbs.text(bytes)).unwrap_or((Op::Other, Flags(0))) {
            // Kernels before 6.18 have no letter for it; commands of the driver have no sectors.
            (Op::Other, flags) if sectors > 0 => (Op::Zeroes, flags),
            known => known,
        };
        Some(Event {
            kind: self.kind,
            device: device as u8,
            op,
            flags,
            sectors,
            sector,
            nanos: 0,
            pid: self.pid.map_or(0, |f| f.number(bytes)) as u32,
            name: u16::MAX,
            error: self.error.map_or(0, |f| f.number(bytes) as i32).clamp(-4096, 0) as i16,
        })
    }
}

/// Lets events of these devices pass. Empty requests are let through for
/// partitions, since flushes are among them.
fn filter(devices: &[&BlockDev]) -> String {
    let one = |d: &&BlockDev| {
        let number = d.kernel_number();
        if d.partition {
            let end = d.start + d.sectors;
            format!("(dev == {number} && (nr_sector == 0 || (sector >= {} && sector < {end})))", d.start)
        } else {
            format!("dev == {number}")
        }
    };
    devices.iter().map(one).collect::<Vec<_>>().join(" || ")
}

/// `overrun` (overwritten unread), `dropped events` and `commit overrun` of a CPU's `stats`.
fn lost(stats: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let counts = matches!(name, "overrun" | "dropped events" | "commit overrun");
        counts.then(|| value.trim().parse::<u64>().ok())?
    };
    stats.lines().filter_map(of).sum()
}

/// Where tracefs is; it is mounted if need be.
fn tracefs() -> Result<PathBuf, TraceError> {
    let usual = Path::new("/sys/kernel/tracing");
    for place in [usual, Path::new("/sys/kernel/debug/tracing")] {
        if place.join("instances").is_dir() {
            return Ok(place.to_owned());
        }
    }
    if !usual.is_dir() {
        return Err(TraceError::NoTracefs("/sys/kernel/tracing does not exist".into()));
    }
    let out = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(usual).output();
    match out {
        Ok(_) if usual.join("instances").is_dir() => Ok(usual.to_owned()),
        Ok(out) => Err(TraceError::NoTracefs(String::from_utf8_lossy(&out.stderr).trim().replace('\n', " "))),
        Err(e) => Err(TraceError::NoTracefs(format!("mount: {e}"))),
    }
}

fn make_dir(root: &Path) -> Result<PathBuf, TraceError> {
    let base = root.join("instances");
    for n in 0..64 {
        let dir = base.join(format!("{PREFIX}{}-{n}", std::process::id()));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(TraceError::io(&dir)(e)),
        }
    }
    Err(TraceError::NoTracefs("too many recordings in this process".into()))
}

/// Removes instances whose process has ended without a chance to.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root.join("instances")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // One that is in use has open files, and stays: its process need not be seen from here.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn layout(root: &Path) -> Result<PageLayout, TraceError> {
    let place = root.join("events/header_page");
    // This file gives what one read takes, and nothing to a second.
    let mut bytes = [0; 4096];
    let n = File::open(&place).and_then(|mut f| f.read(&mut bytes)).map_err(TraceError::io(&place))?;
    PageLayout::parse(&String::from_utf8_lossy(&bytes[..n]))
        .ok_or_else(|| TraceError::NoTracefs(format!("{} is not understood", place.display())))
}

/// Bytes of a page of the buffer: the machine's, or since Linux 6.8 what `buffer_subbuf_size_kb` says.
fn page_bytes(root: &Path) -> usize {
    let text = fs::read_to_string(root.join("buffer_subbuf_size_kb")).unwrap_or_default();
    let told = text.trim().parse::<usize>().ok().map(|k| k << 10);
    // More than a page is harmless: one page is read at a time.
    told.filter(|n| (1 << 10..=PAGE_BYTES_MAX).contains(n)).unwrap_or(64 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another recorder may run where its process is not seen from here: what still has open files the kernel does not remove.
    #[test]
    fn what_may_be_another_recorders_is_not_switched_off() {
        let root = tempfile::tempdir().unwrap();
        let [used, left, ours] = ["4294967295-0", "4294967295-1", &format!("{}-0", std::process::id())]
            .map(|name| root.path().join("instances").join(format!("{PREFIX}{name}")));
        for dir in [&used, &left, &ours] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(used.join("tracing_on"), "1").unwrap();
        remove_stale(root.path());
        assert_eq!(fs::read_to_string(used.join("tracing_on")).unwrap(), "1");
        assert!(!left.exists() && ours.exists());
    }

    #[test]
    fn losses_of_a_cpu() {
        let stats = "entries: 10\noverrun: 3\ncommit overrun: 1\nbytes: 99\noldest event ts:  5.1\nnow ts: 6\ndropped events: 2\nread events: 7\n";
        assert_eq!(lost(stats), 6);
        assert_eq!(lost(""), 0);
    }

    #[test]
    fn what_passes_the_filter() {
        let disk = BlockDev {
            path: "/dev/sda".into(),
            name: "sda".into(),
            sysfs: "/".into(),
            whole: (8, 0),
            start: 0,
            sectors: 4096,
            partition: false,
            level: Level::Request,
        };
        let part = BlockDev { whole: (7, 1), start: 100, sectors: 50, partition: true, ..disk.clone() };
        assert_eq!(
            filter(&[&disk, &part]),
            "dev == 8388608 || (dev == 7340033 && (nr_sector == 0 || (sector >= 100 && sector < 150)))"
        );
    }
}
