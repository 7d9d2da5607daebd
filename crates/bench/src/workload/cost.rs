//! Bytes that reach the device for each 4 KiB O_SYNC write, on a volume that is half full, with everything counted that
//! the file system does meanwhile and until it is quiet again.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use super::{Plan, Turn, Work, Workload};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const FILE_BYTES: u64 = 256 * MIB;

/// The work of one contender.
pub fn make(plan: Plan) -> Box<dyn Workload> {
    Box::new(Cost { length: plan.long, device_bytes: plan.device_bytes })
}

struct Cost {
    length: Duration,
    device_bytes: u64,
}

impl Workload for Cost {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        let data = Aligned::noise(MIB as usize, 51);
        let size = FILE_BYTES.min(self.device_bytes / 8);
        for (name, bytes) in [("worked-on", size), ("there", self.device_bytes / 2 - size)] {
            let path = site.path(name);
            let doing = || format!("preparing {}", path.display());
            let file = OpenOptions::new().write(true).create_new(true).open(&path).doing(doing)?;
            for at in (0..bytes & !(MIB - 1)).step_by(MIB as usize) {
                file.write_all_at(data.get(), at).doing(doing)?;
                if sys::interrupted() {
                    return Err(Error::Interrupted);
                }
            }
            file.sync_all().doing(doing)?;
        }
        Ok(())
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let path = site.path("worked-on");
        let doing = || format!("writing {}", path.display());
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).doing(doing)?;
        let blocks = FILE_BYTES.min(self.device_bytes / 8) / BLOCK;
        let (data, mut random) = (Aligned::noise(BLOCK as usize, 52), Random::new(53));
        let before = site.disk.counters();
        let (begin, mut operations) = (Instant::now(), 0u64);
        while begin.elapsed() < self.length {
            file.write_all_at(data.get(), random.below(blocks) * BLOCK).doing(doing)?;
            operations += 1;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let elapsed = begin.elapsed();
        site.settle()?;
        let bytes = site.disk.counters().since(before).write_bytes;
        let value = bytes as f64 / 1024.0 / operations.max(1) as f64;
        Ok(Work { operations, bytes: operations * BLOCK, elapsed, value: Some(value), ..Work::default() })
    }

    fn lasts(&self) -> Duration {
        self.length
    }
}
