//! Random buffered writes of 4 KiB over a large file, with one fsync at the end of each slice.
//!
//! The control on the raw device writes the same number of blocks to random places past the page cache, one at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::{Plan, Turn, Work, Workload};
use crate::contender::{Contender, Kind};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// The work of one contender.
pub fn make(contender: &Contender, plan: Plan) -> Box<dyn Workload> {
    let file_bytes = (plan.device_bytes / 4).min(1 << 30) & !(MIB - 1);
    let raw = contender.kind == Kind::Raw;
    let blocks = file_bytes / 16 / BLOCK;
    Box::new(Scatter { raw, file_bytes, blocks, file: None, random: Random::new(31), data: Aligned::noise(4096, 5) })
}

struct Scatter {
    raw: bool,
    file_bytes: u64,
    blocks: u64,
    file: Option<File>,
    random: Random,
    data: Aligned,
}

impl Workload for Scatter {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        if self.raw {
            self.file = Some(site.disk.open_direct()?);
            return Ok(());
        }
        let path = site.path("scattered");
        let doing = || format!("preparing {}", path.display());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).doing(doing)?;
        let data = Aligned::noise(MIB as usize, 6);
        for at in (0..self.file_bytes).step_by(MIB as usize) {
            file.write_all_at(data.get(), at).doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        file.sync_all().doing(doing)?;
        self.file = Some(file);
        Ok(())
    }

    fn slice(&mut self, _: Turn, _: &mut Site) -> Result<Work> {
        let Some(file) = &self.file else { return Err(Error::Wrong("nothing prepared".to_owned())) };
        // The raw control is one write at a time: a quarter of the blocks says as much.
        let blocks = if self.raw { self.blocks / 4 } else { self.blocks };
        let doing = || "random writes".to_owned();
        let begin = Instant::now();
        for _ in 0..blocks {
            let place = self.random.below(self.file_bytes / BLOCK) * BLOCK;
            file.write_all_at(self.data.get(), place).doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let written = begin.elapsed();
        file.sync_all().doing(doing)?;
        let elapsed = begin.elapsed();
        let mut work = Work { operations: blocks, bytes: blocks * BLOCK, elapsed, ..Work::default() };
        work.extra.insert("write_ms".to_owned(), written.as_secs_f64() * 1e3);
        work.extra.insert("fsync_ms".to_owned(), (elapsed - written).as_secs_f64() * 1e3);
        Ok(work)
    }
}
