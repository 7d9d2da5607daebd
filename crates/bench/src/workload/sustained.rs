//! Work that goes on until the cleaner has to keep up with it: on a volume that is full up to a stated part, as much as the
//! device holds several times is written before anything counts.
//!
//! Invariants
//! 1. Nothing the device wrote is left out: what came between two slices belongs to the later one, and the last slice of a
//!    row ends with an unmount and a mount, so that nothing is owed but garbage, whose change is in `free_segment_bytes`.
//! 2. Whatever was written to nenrin is read back at the end of a row, after that mount, and compared.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::{Plan, Turn, Work, Workload};
use crate::contender::Kind;
use crate::disk::Counters;
use crate::error::{Doing, Error, Result};
use crate::machine;
use crate::site::Site;
use crate::stats::latency;
use crate::sys;

const MIB: u64 = 1 << 20;
/// Points of the curve of what was written before anything counts, for each device's size of it.
const PARTS: u64 = 8;

/// How long a call is tried again that was refused for want of room.
const PATIENCE: Duration = Duration::from_secs(120);

/// When what was written is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// Once, at the end of a slice.
    AtTheEnd,
    /// After so many bytes each time, and at the end.
    Every(u64),
}

/// The rows of each group.
pub const ROWS: [Durable; 2] = [Durable::AtTheEnd, Durable::Every(16 * MIB)];

/// One step of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were written, in so many nanoseconds.
    Wrote(u64, u64),
    /// Something was removed.
    Removed(u64),
}

/// What is written again and again.
pub trait Stream {
    /// Makes so many hundredths of what is available live.
    fn fill(&mut self, site: &Site, percent: u64) -> Result<()>;
    /// Writes or removes something; where that is refused, nothing has changed.
    fn step(&mut self, site: &Site) -> io::Result<Step>;
    /// Makes the file that was written last durable.
    fn fsync(&mut self, site: &Site) -> io::Result<()>;
    /// Makes everything durable, as far as the kernel passes that on.
    fn sync(&mut self, site: &Site) -> io::Result<()> {
        self.fsync(site)
    }
    /// Gives back what it holds open.
    fn close(&mut self);
    /// Reads everything and compares; how many blocks that were.
    fn verify(&mut self, site: &Site) -> Result<u64>;
}

/// Nanoseconds since, as they are kept.
pub fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The 99th percentile and the most of some latencies, as figures named `NAME_p99_us` and so on.
pub fn note(extra: &mut BTreeMap<String, f64>, name: &str, taken: &[u64]) {
    let Some(l) = latency(taken) else { return };
    let figures = [("n", l.n as f64), ("p50_us", l.p50_us), ("p99_us", l.p99_us), ("max_us", l.max_us)];
    extra.extend(figures.map(|(figure, value)| (format!("{name}_{figure}"), value)));
}

/// The work of one contender, `percent` of what is available live.
pub fn make(stream: Box<dyn Stream>, plan: Plan, percent: u64) -> Box<dyn Workload> {
    Box::new(Sustained { stream, plan, percent, counted: Counters::default(), written: 0, aged: Vec::new() })
}

struct Sustained {
    stream: Box<dyn Stream>,
    plan: Plan,
    percent: u64,
    /// The device's counters up to which everything belongs to a slice.
    counted: Counters,
    /// Bytes since the volume was filled.
    written: u64,
    /// How often the device's size was written, and device bytes for each byte just then.
    aged: Vec<(f32, f32)>,
}

/// What a run of steps did.
#[derive(Default)]
struct Run {
    /// Times that a call was refused for want of room, and tried again.
    refused: u64,
    bytes: u64,
    elapsed: Duration,
    writes: Vec<u64>,
    removals: Vec<u64>,
    fsyncs: Vec<u64>,
}

/// What nenrin says of itself where something failed, for whoever has to find out why.
fn state(site: &Site) -> String {
    let told = (site.contender.kind == Kind::Nenrin).then(|| site.nenrin(&["info", "--json"]).ok()).flatten();
    let Some(info) = told else { return String::new() };
    let names = [
        "live_bytes",
        "history_bytes",
        "available_bytes",
        "checkpoints",
        "read_only",
        "problems",
        "cleaner",
        "counters",
    ];
    let figures: Vec<String> = names.iter().map(|name| format!("{name} {}", info[name])).collect();
    format!(" ({})", figures.join(", "))
}

/// Tries again, for a while, when there is said to be no room: there is, and somebody has to clean.
fn patient<T>(refused: &mut u64, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::StorageFull && begin.elapsed() < PATIENCE && !sys::interrupted() => {
                *refused += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            done => return done,
        }
    }
}

impl Sustained {
    fn run(&mut self, site: &Site, bytes: u64, limit: Duration, durable: Durable) -> Result<Run> {
        let doing = || format!("sustained writing{}", state(site));
        let mut run = Run::default();
        let (begin, mut unsynced, mut steps) = (Instant::now(), 0, 0u32);
        while run.bytes < bytes && begin.elapsed() < limit {
            match patient(&mut run.refused, || self.stream.step(site)).doing(doing)? {
                Step::Wrote(bytes, nanos) => {
                    run.bytes += bytes;
                    unsynced += bytes;
                    run.writes.push(nanos);
                }
                Step::Removed(nanos) => run.removals.push(nanos),
            }
            if matches!(durable, Durable::Every(bytes) if unsynced >= bytes) {
                unsynced = 0;
                let start = Instant::now();
                patient(&mut run.refused, || self.stream.fsync(site)).doing(|| format!("fsync in {}", doing()))?;
                run.fsyncs.push(nanos(start));
            }
            steps += 1;
            if steps % 256 == 0 && sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let start = Instant::now();
        patient(&mut run.refused, || self.stream.sync(site)).doing(|| format!("the last sync of {}", doing()))?;
        if durable == Durable::AtTheEnd {
            run.fsyncs.push(nanos(start));
        }
        run.elapsed = begin.elapsed();
        self.written += run.bytes;
        Ok(run)
    }

    /// Device bytes since what was counted last, which is counted now.
    fn settle_account(&mut self, site: &Site) -> Counters {
        let now = site.disk.counters();
        let since = now.since(self.counted);
        self.counted = now;
        since
    }

    fn times_written(&self) -> f64 {
        self.written as f64 / self.plan.device_bytes as f64
    }

    fn age(&mut self, site: &Site) -> Result<()> {
        let begin = Instant::now();
        let plan = self.plan.sustained;
        let of = |bytes: u128, percent: u64| bytes.saturating_mul(u128::from(percent)) / 100;
        let device = u128::from(self.plan.device_bytes);
        let free = of(device, 100 - self.percent.min(100));
        let target = of(device, plan.age_percent).min(of(free, plan.age_free_percent));
        self.settle_account(site);
        while u128::from(self.written) < target && begin.elapsed() < plan.age {
            let left = plan.age.saturating_sub(begin.elapsed());
            let run = self.run(site, self.plan.device_bytes / PARTS, left, Durable::AtTheEnd)?;
            let device = self.settle_account(site).write_bytes;
            self.aged.push((self.times_written() as f32, device as f32 / run.bytes.max(1) as f32));
        }
        Ok(())
    }
}

impl Workload for Sustained {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        self.stream.fill(site, self.percent)
    }

    fn enter(&mut self, _: usize, site: &mut Site) -> Result<()> {
        if self.written == 0 {
            self.age(site)?;
        }
        self.settle_account(site);
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let plan = self.plan.sustained;
        let part = if turn.round == 0 { 4 } else { 1 };
        let mut work = Work::default();
        let mut tell = |name: &str, value: Option<f64>| {
            work.extra.extend(value.map(|value| (name.to_owned(), value)));
        };
        tell("free_before", site.free_segment_bytes().map(|bytes| bytes as f64));
        let bytes = self.plan.device_bytes / 100 * plan.slice_percent / part;
        let dirtied_before = machine::dirtied_bytes();
        let run = self.run(site, bytes, plan.slice / part as u32, ROWS[turn.row % ROWS.len()])?;
        let dirtied = machine::dirtied_bytes().zip(dirtied_before).map(|(now, before)| (now - before) as f64);
        let mut verified = None;
        if turn.last {
            self.stream.close();
            site.remount()?;
        }
        let device = self.settle_account(site);
        if turn.last {
            if site.contender.kind == Kind::Nenrin {
                verified = Some(self.stream.verify(site)? as f64);
            }
            // The next row has its own account.
            self.settle_account(site);
        }
        tell("free_after", site.free_segment_bytes().map(|bytes| bytes as f64));
        tell("device_bytes", Some(device.write_bytes as f64));
        tell("device_read_bytes", Some(device.read_bytes as f64));
        tell("device_writes", Some(device.writes as f64));
        tell("dirtied_bytes", dirtied);
        tell("refused", Some(run.refused as f64));
        tell("times_written", Some(self.times_written()));
        tell("verified_blocks", verified);
        note(&mut work.extra, "fsync", &run.fsyncs);
        note(&mut work.extra, "remove", &run.removals);
        if turn.row == 0 && turn.round <= 1 {
            work.series = std::mem::take(&mut self.aged);
        }
        work.operations = run.writes.len() as u64;
        work.bytes = run.bytes;
        work.elapsed = run.elapsed;
        work.latencies = run.writes;
        Ok(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_want_of_room_is_waited_out() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let (mut refused, mut left) = (0, 2);
        let outcome = patient(&mut refused, || {
            left -= 1;
            if left > 0 { Err(full()) } else { Ok(7) }
        });
        assert_eq!((outcome.unwrap(), refused), (7, 1));
        let other = || Err::<(), _>(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert!(patient(&mut refused, other).is_err());
        assert_eq!(refused, 1);
    }
}
