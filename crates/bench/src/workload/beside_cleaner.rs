//! Small durable writes while the cleaner works, against the same while it has nothing to do, on one volume.
//!
//! Each slice has three parts with the same durable writes and the same load, one thread that overwrites 4 KiB at random
//! at a stated rate. *Idle*: `nenrin clean` has just ended, so nothing is to be cleaned. *Working*: so much was overwritten
//! that the cleaner works in the background. *Asked*: `nenrin clean` runs. What the cleaner moved in each part is told; slices
//! in which that is not nothing in the first and something in the second are not judged (`scripts/work/bench_clean.py`).
//!
//! The control on the raw device has the same parts with nothing but the requests that a log cannot do without: the load
//! as large writes, and what the cleaner moves as reads and writes of what the daemon has under way beside syncs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::overwrites::{self, Pattern};
use super::paced::{Durable, FILE_BYTES, Paced, fsyncs, note_both, series};
use super::{Plan, Turn, Work, Workload};
use crate::contender::{Contender, Kind};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::stats::latency;
use crate::sys;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// What the thread beside the durable writes writes, bytes per second.
pub const RATE: u64 = 20_000_000;
const POINTS: usize = 300;

/// What the control copies in the parts *working* and *asked*, bytes per second: about what nenrin moves there.
const COPIED: [u64; 2] = [60_000_000, 150_000_000];
/// Bytes of the control's reads and writes: what it copies, and what is joined of the load.
const COPY_BYTES: u64 = 512 << 10;
const LOAD_BYTES: u64 = 256 << 10;

/// The work of one contender, `percent` of what is available live.
pub fn make(contender: &Contender, plan: Plan, percent: u64) -> Box<dyn Workload> {
    if contender.kind == Kind::Raw {
        return Box::new(Control { plan, synced: None, random: Random::new(95) });
    }
    Box::new(Beside { plan, percent, file: None, blocks: 0, synced: None, random: Random::new(93) })
}

struct Beside {
    plan: Plan,
    percent: u64,
    file: Option<File>,
    blocks: u64,
    synced: Option<Paced>,
    random: Random,
}

/// A part of a slice.
struct Part {
    taken: Vec<Durable>,
    moved_bytes: f64,
    rate: f64,
}

fn moved(site: &Site) -> Result<f64> {
    let info = site.nenrin(&["info", "--json"])?;
    let missing = || Error::Wrong("nenrin info does not tell what the cleaner moved".to_owned());
    info["cleaner"]["moved_bytes"].as_f64().ok_or_else(missing)
}

fn works(site: &Site) -> Result<bool> {
    Ok(site.nenrin(&["info", "--json"])?["cleaner"]["working"] == true)
}

/// Overwrites at its rate until told to stop. What it falls behind it does not make up for.
fn overwrite(file: &File, blocks: u64, seed: u64, stop: &AtomicBool, written: &AtomicU64) -> io::Result<()> {
    const TOGETHER: u64 = 8;
    let (data, mut random) = (Aligned::noise(BLOCK as usize, seed), Random::new(seed));
    let pause = Duration::from_secs_f64((TOGETHER * BLOCK) as f64 / RATE as f64);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..TOGETHER {
            file.write_all_at(data.get(), Pattern::Uniform.draw(&mut random, blocks) * BLOCK)?;
            written.fetch_add(BLOCK, Ordering::Relaxed);
        }
        due = (due + pause).max(Instant::now() - 10 * pause);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

impl Beside {
    /// Durable writes beside the load, for the given time, or, when `asked`, as long as `nenrin clean` runs and no longer.
    fn part(&mut self, site: &Site, asked: bool) -> Result<Part> {
        let doing = || "writing beside the cleaner".to_owned();
        let (Some(file), Some(synced)) = (&self.file, &mut self.synced) else {
            return Err(Error::Wrong("nothing prepared".to_owned()));
        };
        let (stop, over, written) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let (blocks, seed, length) = (self.blocks, self.random.next(), self.plan.loaded);
        let before = moved(site)?;
        let begin = Instant::now();
        let (taken, elapsed) = std::thread::scope(|scope| -> Result<_> {
            let load = scope.spawn(|| overwrite(file, blocks, seed, &stop, &written));
            let clean = asked.then(|| {
                scope.spawn(|| {
                    let outcome = site.nenrin(&["clean", "--json"]);
                    over.store(true, Ordering::Relaxed);
                    outcome.map(drop)
                })
            });
            let taken = synced.go(if asked { Duration::from_secs(60) } else { length }, &over);
            let elapsed = begin.elapsed();
            stop.store(true, Ordering::Relaxed);
            let died = || io::Error::other("a thread died");
            load.join().unwrap_or_else(|_| Err(died())).doing(doing)?;
            if let Some(clean) = clean {
                clean.join().map_err(|_| died()).doing(doing)??;
            }
            Ok((taken.doing(doing)?, elapsed))
        })?;
        let moved_bytes = moved(site)? - before;
        let rate = written.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6;
        Ok(Part { taken, moved_bytes, rate })
    }

    /// Overwrites at random until the cleaner works, or the device's size was written.
    fn wear(&mut self, site: &Site) -> Result<()> {
        let doing = || "making garbage".to_owned();
        let Some(file) = &self.file else { return Ok(()) };
        let data = Aligned::noise(BLOCK as usize, 94);
        for n in 0..self.plan.device_bytes / BLOCK {
            if n % 2048 == 0 {
                if sys::interrupted() {
                    return Err(Error::Interrupted);
                }
                if works(site)? {
                    break;
                }
            }
            file.write_all_at(data.get(), Pattern::Uniform.draw(&mut self.random, self.blocks) * BLOCK).doing(doing)?;
        }
        Ok(())
    }
}

impl Workload for Beside {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        self.synced = Some(Paced::new(site)?);
        let space = sys::space(site.root()).doing(|| "asking for the space".to_owned())?;
        let bytes = (space.available / 100 * self.percent) & !(MIB - 1);
        self.file = Some(overwrites::fill(&site.path("overwritten"), bytes)?);
        self.blocks = bytes / BLOCK;
        self.wear(site)
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        site.nenrin(&["clean", "--json"])?;
        site.settle()?;
        let begin = Instant::now();
        let idle = self.part(site, false)?;
        self.wear(site)?;
        let working = self.part(site, false)?;
        self.wear(site)?;
        let asked = self.part(site, true)?;
        Ok(summed(turn, begin.elapsed(), &idle, &working, &asked))
    }
}

/// What a slice of these parts was.
fn summed(turn: Turn, elapsed: Duration, idle: &Part, working: &Part, asked: &Part) -> Work {
    let mut work = Work { elapsed, ..Work::default() };
    let mut all = BTreeMap::new();
    for (name, part) in [("idle", idle), ("working", working), ("asked", asked)] {
        let nanos = fsyncs(&part.taken);
        note_both(&mut work.extra, name, &part.taken);
        work.extra.insert(format!("{name}_moved_bytes"), part.moved_bytes);
        work.extra.insert(format!("{name}_mb_per_s"), part.rate);
        all.insert(name, latency(&nanos).map(|l| l.p99_us));
        work.operations += nanos.len() as u64;
        if name == "working" {
            work.latencies = nanos;
        }
    }
    let p99 = |name| all.get(name).copied().flatten();
    work.value = p99("working").zip(p99("idle")).map(|(working, idle)| working / idle);
    work.bytes = work.operations * BLOCK;
    if turn.round == 1 {
        work.series = series(&working.taken, POINTS);
    }
    work
}

/// The same requests on the raw device.
struct Control {
    plan: Plan,
    synced: Option<Paced>,
    random: Random,
}

/// Writes `LOAD_BYTES` (and, where `copies`, reads `COPY_BYTES` elsewhere and writes them) at a rate until told to stop.
/// What it falls behind it does not make up for.
fn requests(site: &Site, copies: bool, rate: u64, seed: u64, stop: &AtomicBool, moved: &AtomicU64) -> Result<()> {
    let doing = || format!("writing to {}", site.disk.device().display());
    let file = site.disk.open_direct()?;
    let bytes = if copies { COPY_BYTES } else { LOAD_BYTES };
    let (mut data, mut random) = (Aligned::noise(bytes as usize, seed), Random::new(seed));
    let places = (site.disk.bytes() - FILE_BYTES) / bytes;
    let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if copies {
            file.read_exact_at(data.get_mut(), FILE_BYTES + random.below(places) * bytes).doing(doing)?;
        }
        file.write_all_at(data.get(), FILE_BYTES + random.below(places) * bytes).doing(doing)?;
        moved.fetch_add(bytes, Ordering::Relaxed);
        due = (due + pause).max(Instant::now() - 10 * pause);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

impl Control {
    /// Durable writes beside the load, and beside copies at this rate where there is one.
    fn part(&mut self, site: &Site, copied: Option<u64>) -> Result<Part> {
        let Some(synced) = &mut self.synced else { return Err(Error::Wrong("nothing prepared".to_owned())) };
        let (stop, written, moved) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let seeds = [self.random.next(), self.random.next()];
        let begin = Instant::now();
        let (taken, elapsed) = std::thread::scope(|scope| -> Result<_> {
            let load = scope.spawn(|| requests(site, false, RATE, seeds[0], &stop, &written));
            let copies = copied.map(|rate| {
                scope.spawn({
                    let (stop, moved) = (&stop, &moved);
                    move || requests(site, true, rate, seeds[1], stop, moved)
                })
            });
            let taken = synced.go(self.plan.loaded, &AtomicBool::new(false));
            let elapsed = begin.elapsed();
            stop.store(true, Ordering::Relaxed);
            for thread in [Some(load), copies].into_iter().flatten() {
                thread.join().unwrap_or_else(|_| Err(Error::Wrong("a thread died".to_owned())))?;
            }
            Ok((taken.doing(|| "writing beside others".to_owned())?, elapsed))
        })?;
        let rate = written.into_inner() as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6;
        Ok(Part { taken, moved_bytes: moved.into_inner() as f64, rate })
    }
}

impl Workload for Control {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        self.synced = Some(Paced::raw(site)?);
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let begin = Instant::now();
        let idle = self.part(site, None)?;
        let working = self.part(site, Some(COPIED[0]))?;
        let asked = self.part(site, Some(COPIED[1]))?;
        Ok(summed(turn, begin.elapsed(), &idle, &working, &asked))
    }
}
