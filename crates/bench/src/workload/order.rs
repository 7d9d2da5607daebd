//! Reading a file in sequence that was written at random, before and after it is put in order, beside one that was
//! written in sequence. Each is read cold: after the volume was mounted anew, past the page cache of the device.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::{Plan, Turn, Work, Workload};
use crate::disk::{Aligned, Counters, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// Blocks written between two syncs.
const SYNC_BLOCKS: usize = 512;

/// The work of one contender.
pub fn make(plan: Plan) -> Box<dyn Workload> {
    let bytes = (plan.device_bytes / 16).clamp(MIB, 512 * MIB) & !(MIB - 1);
    Box::new(InOrder { bytes, data: Aligned::noise(MIB as usize, 21), random: Random::new(22) })
}

struct InOrder {
    bytes: u64,
    data: Aligned,
    random: Random,
}

impl InOrder {
    fn file(site: &Site, name: &str) -> Result<File> {
        let path = site.path(name);
        OpenOptions::new().write(true).create_new(true).open(&path).doing(|| format!("making {}", path.display()))
    }

    /// Each block once, in an order that is drawn.
    fn write_at_random(&mut self, site: &Site) -> Result<()> {
        let doing = || "writing at random".to_owned();
        let file = Self::file(site, "random")?;
        let mut blocks: Vec<u64> = (0..self.bytes / BLOCK as u64).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        for some in blocks.chunks(SYNC_BLOCKS) {
            for block in some {
                let at = block * BLOCK as u64;
                let from = (at % MIB) as usize;
                file.write_all_at(&self.data.get()[from..from + BLOCK], at).doing(doing)?;
            }
            file.sync_data().doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        file.sync_all().doing(doing)
    }

    fn write_in_sequence(&self, site: &Site) -> Result<()> {
        let doing = || "writing in sequence".to_owned();
        let file = Self::file(site, "sequence")?;
        for at in (0..self.bytes).step_by(MIB as usize) {
            file.write_all_at(self.data.get(), at).doing(doing)?;
        }
        file.sync_all().doing(doing)
    }

    /// Reads a file cold; the rate, in bytes a second.
    fn read(&self, site: &mut Site, name: &str, as_part: &str, extra: &mut BTreeMap<String, f64>) -> Result<f64> {
        site.remount()?;
        fs::write("/proc/sys/vm/drop_caches", "3").doing(|| "dropping caches".to_owned())?;
        let doing = || format!("reading {name}");
        let file = File::open(site.path(name)).doing(doing)?;
        let mut got = Aligned::noise(MIB as usize, 1);
        let (begin, before) = (Instant::now(), site.each_counters());
        for at in (0..self.bytes).step_by(MIB as usize) {
            file.read_exact_at(got.get_mut(), at).doing(doing)?;
            if got.get() != self.data.get() {
                return Err(Error::Wrong(format!("{name} is not what was written, at {at}")));
            }
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let elapsed = begin.elapsed().as_secs_f64();
        let mut all = Counters::default();
        site.each_counters().into_iter().zip(before).for_each(|(now, then)| all.add(now.since(then)));
        let (mib, rate) = (self.bytes as f64 / MIB as f64, self.bytes as f64 / elapsed);
        extra.insert(format!("{as_part}_mb_per_s"), rate / 1e6);
        extra.insert(format!("{as_part}_reads_per_mib"), all.reads as f64 / mib);
        extra.insert(format!("{as_part}_bytes_per_byte"), all.read_bytes as f64 / self.bytes as f64);
        Ok(rate)
    }
}

impl Workload for InOrder {
    fn prepare(&mut self, _: &mut Site) -> Result<()> {
        Ok(())
    }

    fn before(&mut self, _: Turn, site: &mut Site) -> Result<()> {
        self.write_at_random(site)?;
        self.write_in_sequence(site)
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let mut work = Work { bytes: self.bytes, operations: self.bytes / MIB, ..Work::default() };
        let begin = Instant::now();
        self.read(site, "random", "before", &mut work.extra)?;
        let cleaned = Instant::now();
        let did = site.nenrin(&["clean", "--json"])?;
        work.extra.insert("clean_s".to_owned(), cleaned.elapsed().as_secs_f64());
        work.extra.insert("ordered_bytes".to_owned(), did["ordered_bytes"].as_f64().unwrap_or(0.0));
        let after = self.read(site, "random", "after", &mut work.extra)?;
        let usual = self.read(site, "sequence", "sequence", &mut work.extra)?;
        work.extra.insert("file_bytes".to_owned(), self.bytes as f64);
        work.value = Some(usual / after);
        work.elapsed = begin.elapsed();
        Ok(work)
    }

    fn after(&mut self, _: Turn, site: &mut Site) -> Result<()> {
        for name in ["random", "sequence"] {
            fs::remove_file(site.path(name)).doing(|| format!("removing {name}"))?;
        }
        Ok(())
    }
}
