//! Writes and reads of one file with buffers of a given size: sequential and at random, buffered and with O_SYNC.
//!
//! A slice ends after the time it has or after one pass over the file; buffered writes end with an fsync inside the
//! measured time. Reads come after the page cache was dropped. The control on the raw device does the same past the
//! page cache, a durable write with 4 KiB more for a log record and an fdatasync.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use super::{Plan, Turn, Work, Workload};
use crate::contender::{Contender, Kind};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// A new file, from its beginning.
    Write,
    /// A file that is there, from its beginning.
    Rewrite,
    /// A file that is there, at random.
    RandomRewrite,
    /// From its beginning.
    Read,
    /// At random.
    RandomRead,
}

/// One row of such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// What is done.
    pub kind: Kinds,
    /// Bytes of each call.
    pub buffer: u64,
    /// Whether the file is open with O_SYNC.
    pub sync: bool,
}

impl Spec {
    fn reads(self) -> bool {
        matches!(self.kind, Kinds::Read | Kinds::RandomRead)
    }

    fn random(self) -> bool {
        matches!(self.kind, Kinds::RandomRewrite | Kinds::RandomRead)
    }
}

/// The work of one contender on a file of `file_bytes`.
pub fn make(contender: &Contender, plan: Plan, file_bytes: u64, rows: Vec<Spec>) -> Box<dyn Workload> {
    let file_bytes = file_bytes.min(plan.device_bytes / 4) & !(16 * MIB - 1);
    let raw = contender.kind == Kind::Raw;
    Box::new(Rewrite {
        rows,
        raw,
        file_bytes,
        at: 0,
        random: Random::new(41),
        data: Aligned::noise(17 * MIB as usize, 42),
    })
}

struct Rewrite {
    rows: Vec<Spec>,
    raw: bool,
    file_bytes: u64,
    /// Where a sequential pass goes on, since a slice may end before the file does.
    at: u64,
    random: Random,
    data: Aligned,
}

impl Rewrite {
    fn open(&self, spec: Spec, site: &Site) -> Result<File> {
        if self.raw {
            return site.disk.open_direct();
        }
        let path = site.path(if spec.kind == Kinds::Write { "new" } else { "rewritten" });
        let mut options = OpenOptions::new();
        options.read(true).write(!spec.reads()).create(spec.kind == Kinds::Write);
        options.custom_flags(if spec.sync { libc::O_SYNC } else { 0 });
        options.open(&path).doing(|| format!("opening {}", path.display()))
    }

    /// Bytes of one request to the raw device.
    fn raw_bytes(spec: Spec) -> usize {
        let data = spec.buffer.next_multiple_of(BLOCK);
        (data + if spec.sync { BLOCK } else { 0 }) as usize
    }
}

impl Workload for Rewrite {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        if self.raw {
            return Ok(());
        }
        let path = site.path("rewritten");
        let doing = || format!("preparing {}", path.display());
        let file = OpenOptions::new().write(true).create_new(true).open(&path).doing(doing)?;
        for at in (0..self.file_bytes).step_by(MIB as usize) {
            file.write_all_at(&self.data.get()[..MIB as usize], at).doing(doing)?;
        }
        file.sync_all().doing(doing)
    }

    fn enter(&mut self, _: usize, _: &mut Site) -> Result<()> {
        self.at = 0;
        Ok(())
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        if self.rows[turn.row].reads() {
            // Else a daemon has its index still, and kernels have nothing.
            site.remount()?;
            fs::write("/proc/sys/vm/drop_caches", "3").doing(|| "dropping caches".to_owned())?;
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let spec = self.rows[turn.row];
        let doing = || format!("{:?} with {} bytes", spec.kind, spec.buffer);
        let len = if self.raw { Self::raw_bytes(spec) } else { spec.buffer as usize };
        let step = len as u64;
        let places = (self.file_bytes - 16 * MIB).max(step) / step;
        let mut work = Work::default();
        let begin = Instant::now();
        let file = self.open(spec, site)?;
        if spec.kind == Kinds::Write {
            self.at = 0;
        }
        while work.operations == 0 || begin.elapsed() < turn.budget && work.bytes < self.file_bytes {
            let place = if spec.random() { self.random.below(places) * step } else { self.at };
            if spec.reads() {
                file.read_exact_at(&mut self.data.get_mut()[..len], place).doing(doing)?;
            } else {
                file.write_all_at(&self.data.get()[..len], place).doing(doing)?;
                if self.raw && spec.sync {
                    file.sync_data().doing(doing)?;
                }
            }
            self.at += step;
            work.operations += 1;
            work.bytes += spec.buffer;
            if spec.kind != Kinds::Write && self.at + step > self.file_bytes {
                self.at = 0;
            }
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        if !spec.reads() && !spec.sync {
            file.sync_all().doing(doing)?;
        }
        work.elapsed = begin.elapsed();
        Ok(work)
    }

    fn after(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        if self.rows[turn.row].kind == Kinds::Write && !self.raw {
            let path = site.path("new");
            fs::remove_file(&path).doing(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }
}
