//! Small durable writes at a steady pace, whose latency shows what goes on beside them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::sustained::{nanos, note};
use crate::disk::Aligned;
use crate::error::{Doing, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: u64 = 4096;
/// Where the writes go, one after the other and from the start again.
pub const FILE_BYTES: u64 = 16 << 20;
/// From one to the next: 500 a second, so that ten seconds have 50 beyond the 99th percentile.
const PAUSE: Duration = Duration::from_millis(2);

/// One durable write.
#[derive(Debug, Clone, Copy)]
pub struct Durable {
    /// When it began.
    pub at: Duration,
    /// Nanoseconds of the fsync.
    pub fsync: u64,
    /// The same with the write before it, which may have to wait for room.
    pub whole: u64,
}

/// Notes both latencies of some durable writes, the second as `NAME_whole`.
pub fn note_both(extra: &mut BTreeMap<String, f64>, name: &str, taken: &[Durable]) {
    note(extra, name, &fsyncs(taken));
    note(extra, &format!("{name}_whole"), &taken.iter().map(|d| d.whole).collect::<Vec<_>>());
}

/// Latencies of the fsyncs.
pub fn fsyncs(taken: &[Durable]) -> Vec<u64> {
    taken.iter().map(|d| d.fsync).collect()
}

/// A file whose next 4 KiB are written and made durable, again and again.
pub struct Paced {
    file: File,
    /// Bytes of one write.
    each: u64,
    at: u64,
    data: Aligned,
}

impl Paced {
    /// Makes the file.
    pub fn new(site: &Site) -> Result<Self> {
        let path = site.path("synced");
        let doing = || format!("preparing {}", path.display());
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).doing(doing)?;
        let data = Aligned::noise(FILE_BYTES as usize, 92);
        file.write_all_at(data.get(), 0).doing(doing)?;
        file.sync_all().doing(doing)?;
        Ok(Self { file, each: BLOCK, at: 0, data })
    }

    /// The control: the first bytes of the raw device, 8 KiB at a time, which is what a log record costs.
    pub fn raw(site: &Site) -> Result<Self> {
        let data = Aligned::noise(FILE_BYTES as usize, 92);
        Ok(Self { file: site.disk.open_direct()?, each: 2 * BLOCK, at: 0, data })
    }

    /// Writes and syncs until the time is over or somebody says stop.
    pub fn go(&mut self, length: Duration, stop: &AtomicBool) -> io::Result<Vec<Durable>> {
        let begin = Instant::now();
        let (mut due, mut taken) = (begin, Vec::new());
        while begin.elapsed() < length && !stop.load(Ordering::Relaxed) && !sys::interrupted() {
            let place = self.at % FILE_BYTES;
            let whole = Instant::now();
            self.file.write_all_at(&self.data.get()[..self.each as usize], place)?;
            self.at += self.each;
            let start = Instant::now();
            self.file.sync_all()?;
            taken.push(Durable { at: whole - begin, fsync: nanos(start), whole: nanos(whole) });
            // One that took longer than the pause skips turns rather than hurrying after them.
            while due <= Instant::now() {
                due += PAUSE;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(taken)
    }
}

/// The slowest of each of some moments, for a plot: seconds, microseconds.
pub fn series(taken: &[Durable], points: usize) -> Vec<(f32, f32)> {
    let each = taken.len().div_ceil(points.max(1)).max(1);
    let slowest = taken.chunks(each).filter_map(|some| some.iter().max_by_key(|d| d.fsync));
    slowest.map(|d| (d.at.as_secs_f32(), d.fsync as f32 / 1000.0)).collect()
}
