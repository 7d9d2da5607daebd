//! Removing a huge file, and how long the fsync of another one waits meanwhile, against what it waited just before.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::paced::{Durable, Paced, fsyncs, note_both, series};
use super::{Plan, Turn, Work, Workload};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::stats::latency;
use crate::sys;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// Of a full file, so much of what is available at most.
const MOST_PERCENT: u64 = 90;
const POINTS: usize = 300;
const NAME: &str = "huge";

/// What the file is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// 4 KiB in each MiB, as far as they fit into half of what is available, and holes between.
    Sparse,
    /// Every byte was written, all with the same value: a device that keeps such pages for nothing has room for more.
    Full,
}

/// The work of one contender.
pub fn make(plan: Plan, kind: Kinds) -> Box<dyn Workload> {
    Box::new(Removal { plan, kind, synced: None, bytes: 0, data_bytes: 0 })
}

struct Removal {
    plan: Plan,
    kind: Kinds,
    synced: Option<Paced>,
    /// Size of the file, and how much of it was written.
    bytes: u64,
    data_bytes: u64,
}

impl Removal {
    fn make_file(&mut self, site: &Site) -> Result<()> {
        let path = site.path(NAME);
        let doing = || format!("making {}", path.display());
        let available = sys::space(site.root()).doing(doing)?.available;
        let file = OpenOptions::new().write(true).create_new(true).open(&path).doing(doing)?;
        self.bytes = self.plan.sustained.removed_bytes;
        if self.kind == Kinds::Full {
            self.bytes = self.bytes.min(available / 100 * MOST_PERCENT) & !(MIB - 1);
        }
        // Each block takes some of the index as well.
        let pieces = (self.bytes / MIB).min(available / 2 / (BLOCK as u64 + 512)).max(1);
        let data = vec![0x5a; if self.kind == Kinds::Full { MIB as usize } else { BLOCK }];
        let pieces = if self.kind == Kinds::Full { self.bytes / MIB } else { pieces };
        let step = (self.bytes / pieces.max(1)) & !(BLOCK as u64 - 1);
        for piece in 0..pieces {
            file.write_all_at(&data, piece * step).doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        self.data_bytes = pieces * data.len() as u64;
        file.set_len(self.bytes).doing(doing)?;
        file.sync_all().doing(doing)?;
        site.settle().map(drop)
    }
}

impl Workload for Removal {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        self.synced = Some(Paced::new(site)?);
        Ok(())
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        // The warm-up has nothing to remove.
        if turn.round > 0 { self.make_file(site) } else { Ok(()) }
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let doing = || "writing beside a removal".to_owned();
        let Some(synced) = &mut self.synced else { return Err(Error::Wrong("nothing prepared".to_owned())) };
        let (length, never) = (self.plan.loaded, AtomicBool::new(false));
        let begin = Instant::now();
        let usual = synced.go(length, &never).doing(doing)?;
        let mut work = Work { elapsed: begin.elapsed(), ..Work::default() };
        if turn.round == 0 {
            return Ok(work);
        }
        let (path, begin) = (site.path(NAME), Instant::now());
        let (taken, removed) = std::thread::scope(|scope| -> Result<(Vec<Durable>, Duration)> {
            let remover = scope.spawn(|| fs::remove_file(&path).map(|()| begin.elapsed()));
            let taken = synced.go(length, &never).doing(doing)?;
            let removed = remover.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread died")));
            Ok((taken, removed.doing(doing)?))
        })?;
        let first: Vec<_> = taken.iter().filter(|d| d.at < Duration::from_secs(1)).copied().collect();
        note_both(&mut work.extra, "usual", &usual);
        note_both(&mut work.extra, "removing", &taken);
        note_both(&mut work.extra, "first_second", &first);
        let (usual, during) = (fsyncs(&usual), fsyncs(&taken));
        work.extra.insert("file_bytes".to_owned(), self.bytes as f64);
        work.extra.insert("data_bytes".to_owned(), self.data_bytes as f64);
        work.extra.insert("remove_ms".to_owned(), removed.as_secs_f64() * 1e3);
        if let (Some(before), Some(after)) = (latency(&usual), latency(&during)) {
            work.value = Some(after.p99_us / before.p99_us);
            let over = |of: &[u64]| {
                let long = of.iter().filter(|n| **n as f64 / 1000.0 > 2.0 * before.p99_us).count();
                100.0 * long as f64 / of.len() as f64
            };
            work.extra.insert("usual_over_percent".to_owned(), over(&usual));
            work.extra.insert("removing_over_percent".to_owned(), over(&during));
        }
        work.series = series(&taken, POINTS);
        work.operations = during.len() as u64;
        work.bytes = work.operations * BLOCK as u64;
        work.latencies = during;
        Ok(work)
    }
}
