//! Large sequential writes and reads, 1 MiB each.
//!
//! A cold read is of a file that nobody read since the mount: the volume is mounted anew after the files were written,
//! each slice takes the next file, and the page cache is dropped before it. So neither the kernel nor a daemon has it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::{Plan, Turn, Work, Workload};
use crate::contender::{Contender, Kind};
use crate::disk::Aligned;
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const MIB: u64 = 1 << 20;

/// Writers: a new file in each slice.
pub fn make_writer(contender: &Contender, plan: Plan) -> Box<dyn Workload> {
    let bytes = (plan.device_bytes / 16).min(256 * MIB) & !(MIB - 1);
    let data = Aligned::noise(MIB as usize, 11);
    if contender.kind == Kind::Raw {
        return Box::new(RawStream { bytes, at: 0, data, reading: false });
    }
    Box::new(Writer { bytes, data })
}

/// Readers: cold and warm.
pub fn make_reader(contender: &Contender, plan: Plan) -> Box<dyn Workload> {
    let files = u64::from(plan.slices) + 1;
    let bytes = (plan.device_bytes * 2 / 5 / files).clamp(MIB, 128 * MIB) & !(MIB - 1);
    let data = Aligned::noise(MIB as usize, 12);
    if contender.kind == Kind::Raw {
        return Box::new(RawStream { bytes, at: 0, data, reading: true });
    }
    Box::new(Reader { bytes, files, data, warm: None })
}

fn go_on() -> Result<()> {
    if sys::interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

struct Writer {
    bytes: u64,
    data: Aligned,
}

impl Workload for Writer {
    fn prepare(&mut self, _: &mut Site) -> Result<()> {
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let path = site.path(&format!("written-{}", turn.round));
        let doing = || format!("writing {}", path.display());
        let begin = Instant::now();
        let file = OpenOptions::new().write(true).create_new(true).open(&path).doing(doing)?;
        for at in (0..self.bytes).step_by(MIB as usize) {
            file.write_all_at(self.data.get(), at).doing(doing)?;
            go_on()?;
        }
        file.sync_all().doing(doing)?;
        let elapsed = begin.elapsed();
        Ok(Work { operations: self.bytes / MIB, bytes: self.bytes, elapsed, ..Work::default() })
    }

    fn after(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        let path = site.path(&format!("written-{}", turn.round));
        fs::remove_file(&path).doing(|| format!("removing {}", path.display()))
    }
}

struct Reader {
    bytes: u64,
    files: u64,
    data: Aligned,
    warm: Option<File>,
}

impl Reader {
    fn open(site: &Site, number: u64) -> Result<File> {
        let path = site.path(&format!("read-{number}"));
        File::open(&path).doing(|| format!("opening {}", path.display()))
    }

    fn read(&mut self, file: &File) -> Result<u64> {
        for at in (0..self.bytes).step_by(MIB as usize) {
            file.read_exact_at(self.data.get_mut(), at).doing(|| "reading".to_owned())?;
            go_on()?;
        }
        Ok(self.bytes)
    }
}

impl Workload for Reader {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for number in 0..self.files {
            let path = site.path(&format!("read-{number}"));
            let doing = || format!("preparing {}", path.display());
            let file = OpenOptions::new().write(true).create_new(true).open(&path).doing(doing)?;
            for at in (0..self.bytes).step_by(MIB as usize) {
                file.write_all_at(self.data.get(), at).doing(doing)?;
                go_on()?;
            }
            file.sync_all().doing(doing)?;
        }
        site.remount().map(drop)
    }

    fn enter(&mut self, row: usize, site: &mut Site) -> Result<()> {
        if row == 1 {
            let file = Self::open(site, 0)?;
            self.read(&file)?;
            self.warm = Some(file);
        }
        Ok(())
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        if turn.row == 0 {
            let file = Self::open(site, u64::from(turn.round))?;
            sys::forget_pages(&file).doing(|| "forgetting pages".to_owned())?;
            fs::write("/proc/sys/vm/drop_caches", "3").doing(|| "dropping caches".to_owned())?;
        } else if let Some(file) = self.warm.take() {
            // Other contenders' turns may have pushed it out.
            self.read(&file)?;
            self.warm = Some(file);
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let begin = Instant::now();
        let mut work = Work::default();
        if turn.row == 0 {
            let file = Self::open(site, u64::from(turn.round))?;
            work.bytes = self.read(&file)?;
        } else if let Some(file) = self.warm.take() {
            while begin.elapsed() < turn.budget {
                work.bytes += self.read(&file)?;
            }
            self.warm = Some(file);
        }
        work.elapsed = begin.elapsed();
        work.operations = work.bytes / MIB;
        Ok(work)
    }
}

/// The control: 1 MiB at a time past the page cache, one after the other.
struct RawStream {
    bytes: u64,
    at: u64,
    data: Aligned,
    reading: bool,
}

impl Workload for RawStream {
    fn prepare(&mut self, _: &mut Site) -> Result<()> {
        Ok(())
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let device = site.disk.open_direct()?;
        let doing = || "the raw stream".to_owned();
        if self.at + self.bytes > site.disk.bytes() {
            self.at = 0;
        }
        let begin = Instant::now();
        for at in (self.at..self.at + self.bytes).step_by(MIB as usize) {
            if self.reading {
                device.read_exact_at(self.data.get_mut(), at).doing(doing)?;
            } else {
                device.write_all_at(self.data.get(), at).doing(doing)?;
            }
            go_on()?;
        }
        if !self.reading {
            device.sync_data().doing(doing)?;
        }
        self.at += self.bytes;
        let elapsed = begin.elapsed();
        Ok(Work { operations: self.bytes / MIB, bytes: self.bytes, elapsed, ..Work::default() })
    }
}
