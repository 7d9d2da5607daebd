//! Small durable writes: 4 KiB, then fsync or fdatasync, or O_SYNC, by one or more threads, each with a file of its own.
//!
//! The control on the raw device writes 8 KiB past the page cache and then calls fdatasync: what a log record costs.
//! The other part of a durable write is the calls alone: a write to a file that nobody makes durable, and the fsync of
//! another that has nothing to make durable. Their time and the raw device's together are what a file system needs at
//! least that is called so.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{Plan, Turn, Work, Workload, relay};
use crate::contender::{Contender, Kind};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

/// Where the writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To the end of the file, then fsync.
    Append,
    /// To random places of a file that was written before, then fdatasync.
    Overwrite,
    /// To random places of a file that was written before and is open with O_SYNC.
    Osync,
    /// To the same place of a file again and again, then fsync of another file, which has not changed.
    Calls,
}

const BLOCK: usize = 4096;
pub(super) const RAW_BLOCK: usize = 8192;
const MIB: u64 = 1 << 20;

/// The work of one contender; `jobs` says the number of threads in each row of the group.
pub fn make(contender: &Contender, plan: Plan, mode: Mode, jobs: &'static [usize]) -> Box<dyn Workload> {
    let most = most(jobs);
    if contender.kind.is_device() {
        let region = (plan.device_bytes / (2 * most)).min(1 << 30) & !(MIB - 1);
        return match contender.kind {
            Kind::Relay => relay::make(jobs, region),
            _ => Box::new(Raw { jobs, lanes: Vec::new(), region }),
        };
    }
    let file_bytes = (plan.device_bytes / (4 * most)).min(64 << 20) & !(MIB - 1);
    Box::new(Files { mode, jobs, file_bytes, lanes: Vec::new() })
}

/// One thread's file, and where it is in it.
pub struct Lane {
    file: File,
    /// A file that has nothing to make durable.
    unchanged: Option<File>,
    at: u64,
    random: Random,
    data: Aligned,
}

impl Lane {
    /// Writes of `bytes` to a file.
    pub fn new(file: File, seed: u64, bytes: usize) -> Self {
        Self { file, unchanged: None, at: 0, random: Random::new(seed), data: Aligned::noise(bytes, seed) }
    }

    /// Writes behind the last write, then fsync.
    pub fn append(&mut self) -> io::Result<()> {
        self.file.write_all_at(self.data.get(), self.at)?;
        self.at += self.data.get().len() as u64;
        self.file.sync_all()
    }

    /// Writes to one of so many places, then fsync.
    pub fn overwrite(&mut self, places: u64) -> io::Result<()> {
        let bytes = self.data.get().len() as u64;
        self.file.write_all_at(self.data.get(), self.random.below(places) * bytes)?;
        self.file.sync_all()
    }
}

/// Threads that the rows of a group need at most.
pub(super) fn most(jobs: &[usize]) -> u64 {
    jobs.iter().copied().max().unwrap_or(1) as u64
}

struct Files {
    mode: Mode,
    jobs: &'static [usize],
    file_bytes: u64,
    lanes: Vec<Lane>,
}

impl Workload for Files {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for job in 0..most(self.jobs) {
            let path = site.path(&format!("job-{job}"));
            let doing = || format!("preparing {}", path.display());
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).doing(doing)?;
            if matches!(self.mode, Mode::Overwrite | Mode::Osync) {
                let data = Aligned::noise(MIB as usize, job);
                for at in (0..self.file_bytes).step_by(MIB as usize) {
                    file.write_all_at(data.get(), at).doing(doing)?;
                }
            }
            file.sync_all().doing(doing)?;
            let flags = if self.mode == Mode::Osync { libc::O_SYNC } else { 0 };
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&path).doing(doing)?;
            let mut lane = Lane::new(file, 100 + job, BLOCK);
            if self.mode == Mode::Calls {
                let path = site.path(&format!("unchanged-{job}"));
                lane.unchanged = Some(File::create_new(&path).doing(|| format!("preparing {}", path.display()))?);
            }
            self.lanes.push(lane);
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        let (mode, blocks) = (self.mode, self.file_bytes / BLOCK as u64);
        let lanes = &mut self.lanes[..self.jobs[turn.row]];
        together(lanes, turn.budget, BLOCK, |lane| match mode {
            Mode::Append => lane.append(),
            Mode::Calls => {
                lane.file.write_all_at(lane.data.get(), 0)?;
                lane.unchanged.as_ref().map_or(Ok(()), File::sync_all)
            }
            Mode::Overwrite | Mode::Osync => {
                let place = lane.random.below(blocks) * BLOCK as u64;
                lane.file.write_all_at(lane.data.get(), place)?;
                if mode == Mode::Osync { Ok(()) } else { lane.file.sync_data() }
            }
        })
    }
}

struct Raw {
    jobs: &'static [usize],
    lanes: Vec<Lane>,
    region: u64,
}

impl Workload for Raw {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for job in 0..most(self.jobs) {
            let file = site.disk.open_direct()?;
            self.lanes.push(Lane { at: job * self.region, ..Lane::new(file, job, RAW_BLOCK) });
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        let region = self.region;
        together(&mut self.lanes[..self.jobs[turn.row]], turn.budget, RAW_BLOCK, |lane| {
            lane.file.write_all_at(lane.data.get(), lane.at)?;
            lane.at += RAW_BLOCK as u64;
            if lane.at % region == 0 {
                lane.at -= region;
            }
            lane.file.sync_data()
        })
    }
}

/// Repeats an operation in one thread per lane until the time is over; the time is that of the slowest thread.
pub fn together<L: Send>(
    lanes: &mut [L],
    budget: Duration,
    bytes: usize,
    operation: impl Fn(&mut L) -> io::Result<()> + Sync,
) -> Result<Work> {
    let start = Barrier::new(lanes.len());
    let one = |lane: &mut L| -> io::Result<(Duration, Vec<u64>)> {
        let mut latencies = Vec::with_capacity(32_768);
        start.wait();
        let begin = Instant::now();
        let mut last = begin;
        while last - begin < budget && !sys::interrupted() {
            operation(lane)?;
            let now = Instant::now();
            latencies.push(u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX));
            last = now;
        }
        Ok((last - begin, latencies))
    };
    let outcomes: Vec<io::Result<(Duration, Vec<u64>)>> = if let [lane] = lanes {
        vec![one(lane)]
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(|| one(lane))).collect();
            let died = |_| Err(io::Error::other("a writing thread died"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        })
    };
    let mut work = Work::default();
    for outcome in outcomes {
        let (elapsed, latencies) = outcome.doing(|| "a small durable write".to_owned())?;
        work.elapsed = work.elapsed.max(elapsed);
        work.latencies.extend(latencies);
    }
    work.operations = work.latencies.len() as u64;
    work.bytes = work.operations * bytes as u64;
    if sys::interrupted() { Err(Error::Interrupted) } else { Ok(work) }
}
