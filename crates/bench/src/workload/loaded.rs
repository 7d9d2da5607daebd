//! Small durable writes beside others that write all the time: four threads write 64 KiB to random places of their own
//! files, buffered, at a stated rate together.
//!
//! The control on the raw device writes past the page cache: the four at the same rate, and 8 KiB + fdatasync as the
//! durable write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::sustained::nanos;
use super::{Plan, Turn, Work, Workload};
use crate::contender::{Contender, Kind};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: u64 = 4096;
const RAW_BLOCK: usize = 8192;
const CHUNK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;
const WRITERS: u64 = 4;
/// What the four write together, bytes per second.
pub const RATE: u64 = 20_000_000;
/// They have written so long before the measured part begins.
const LEAD: Duration = Duration::from_millis(1500);
/// Points of a series.
const POINTS: usize = 400;

/// The durable write that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreground {
    /// 4 KiB to the end of a file, then fsync, every so often (zero: back to back).
    Append(Duration),
    /// 4 KiB to the next place of a file that was written before, then fdatasync, back to back.
    Overwrite,
    /// The same to random places.
    Random,
}

/// The work of one contender; `rows` says the durable write of each row of the group. The value is the 99th percentile
/// of the latency where appends are measured, and else the rate.
pub fn make(contender: &Contender, plan: Plan, rows: &'static [Foreground]) -> Box<dyn Workload> {
    let file_bytes = (plan.device_bytes / 16).min(128 * MIB) & !(MIB - 1);
    let raw = contender.kind == Kind::Raw;
    Box::new(Loaded { rows, raw, length: plan.loaded, file_bytes, own: None, others: Vec::new(), at: 0 })
}

struct Loaded {
    rows: &'static [Foreground],
    raw: bool,
    length: Duration,
    file_bytes: u64,
    own: Option<File>,
    others: Vec<File>,
    /// Where the own file's next write goes.
    at: u64,
}

impl Loaded {
    fn open(&self, site: &Site, name: &str, filled: bool) -> Result<File> {
        if self.raw {
            return site.disk.open_direct();
        }
        let path = site.path(name);
        let doing = || format!("preparing {}", path.display());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).doing(doing)?;
        if filled {
            let data = Aligned::noise(MIB as usize, 21);
            for at in (0..self.file_bytes).step_by(MIB as usize) {
                file.write_all_at(data.get(), at).doing(doing)?;
            }
        }
        file.sync_all().doing(doing)?;
        Ok(file)
    }

    /// First byte of what writer `n` (from 1) or the own file (0) may write on the raw device.
    fn base(&self, n: u64) -> u64 {
        if self.raw { n * self.file_bytes } else { 0 }
    }

    fn foreground(&mut self, kind: Foreground, begin: Instant) -> io::Result<Vec<(Duration, u64)>> {
        let Some(file) = &self.own else { return Err(io::Error::other("nothing prepared")) };
        let bytes = if self.raw { RAW_BLOCK } else { BLOCK as usize };
        let data = Aligned::noise(bytes, 22);
        let mut random = Random::new(23 + self.at);
        let mut taken = Vec::with_capacity(65_536);
        let mut due = begin;
        while begin.elapsed() < self.length && !sys::interrupted() {
            let start = Instant::now();
            match kind {
                _ if self.raw => {
                    file.write_all_at(data.get(), self.at % self.file_bytes)?;
                    file.sync_data()?;
                }
                Foreground::Append(_) => {
                    file.write_all_at(data.get(), self.at)?;
                    file.sync_all()?;
                }
                Foreground::Overwrite => {
                    file.write_all_at(data.get(), self.at % self.file_bytes)?;
                    file.sync_data()?;
                }
                Foreground::Random => {
                    file.write_all_at(data.get(), random.below(self.file_bytes / BLOCK) * BLOCK)?;
                    file.sync_data()?;
                }
            }
            self.at += bytes as u64;
            taken.push((start - begin, nanos(start)));
            if let Foreground::Append(pause) = kind {
                // One that took longer than the pause skips turns rather than hurrying after them.
                while due <= Instant::now() && !pause.is_zero() {
                    due += pause;
                }
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        Ok(taken)
    }
}

/// Writes at its part of the rate until told to stop. What it falls behind it does not make up for.
fn write_steadily(
    file: &File,
    base: u64,
    bytes: u64,
    seed: u64,
    stop: &AtomicBool,
    written: &AtomicU64,
) -> io::Result<()> {
    let data = Aligned::noise(CHUNK as usize, seed);
    let mut random = Random::new(seed);
    let pause = Duration::from_secs_f64(CHUNK as f64 * WRITERS as f64 / RATE as f64);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        file.write_all_at(data.get(), base + random.below(bytes / CHUNK) * CHUNK)?;
        written.fetch_add(CHUNK, Ordering::Relaxed);
        due = (due + pause).max(Instant::now() - 10 * pause);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// The slowest operation of each of `POINTS` equal parts of the time.
fn series(taken: &[(Duration, u64)], length: Duration) -> Vec<(f32, f32)> {
    let mut worst: Vec<Option<(f32, f32)>> = vec![None; POINTS];
    for (at, nanos) in taken {
        let part = (at.as_secs_f64() / length.as_secs_f64() * POINTS as f64) as usize;
        let us = *nanos as f32 / 1000.0;
        let Some(slot) = worst.get_mut(part.min(POINTS - 1)) else { continue };
        if slot.is_none_or(|(_, most)| us > most) {
            *slot = Some((at.as_secs_f32(), us));
        }
    }
    worst.into_iter().flatten().collect()
}

impl Workload for Loaded {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for writer in 0..WRITERS {
            let file = self.open(site, &format!("busy-{writer}"), true)?;
            self.others.push(file);
        }
        Ok(())
    }

    fn enter(&mut self, row: usize, site: &mut Site) -> Result<()> {
        let filled = !matches!(self.rows[row], Foreground::Append(_));
        self.own = Some(self.open(site, &format!("own-{row}"), filled)?);
        self.at = 0;
        site.settle().map(drop)
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        let kind = self.rows[turn.row];
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let others = std::mem::take(&mut self.others);
        let (bytes, bases) = (self.file_bytes, [1, 2, 3, 4].map(|n| self.base(n)));
        let doing = || "writing beside others".to_owned();
        let (stopped, count) = (&stop, &written);
        let (taken, elapsed, rate) = std::thread::scope(|scope| -> Result<_> {
            let threads: Vec<_> = (others.iter().zip(bases).zip(u64::from(turn.round)..))
                .map(|((file, base), seed)| {
                    scope.spawn(move || write_steadily(file, base, bytes, 30 + seed, stopped, count))
                })
                .collect();
            std::thread::sleep(LEAD);
            let (begin, before) = (Instant::now(), written.load(Ordering::Relaxed));
            let taken = self.foreground(kind, begin);
            let (elapsed, after) = (begin.elapsed(), written.load(Ordering::Relaxed));
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a writing thread died"))).doing(doing)?;
            }
            Ok((taken.doing(doing)?, elapsed, (after - before) as f64 / elapsed.as_secs_f64()))
        })?;
        self.others = others;
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
        let latencies: Vec<u64> = taken.iter().map(|(_, nanos)| *nanos).collect();
        let operations = latencies.len() as u64;
        let mut work = Work { operations, bytes: operations * BLOCK, elapsed, ..Work::default() };
        work.extra.insert("others_mb_per_s".to_owned(), rate / 1e6);
        if let (Foreground::Append(_), Some(l)) = (kind, crate::stats::latency(&latencies)) {
            work.value = Some(l.p99_us);
            work.series = series(&taken, self.length);
        }
        work.latencies = latencies;
        Ok(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_the_slowest() {
        let taken: Vec<_> = (0..10_000).map(|n| (Duration::from_millis(n), 1000 * (n % 100))).collect();
        let points = series(&taken, Duration::from_secs(10));
        assert_eq!(points.len(), POINTS);
        assert_eq!(points.iter().map(|(_, us)| *us as u32).max(), Some(99));
    }
}
