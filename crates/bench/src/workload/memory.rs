//! Resident memory of the daemon after everything in a large tree was looked at.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Instant;

use super::{Plan, Turn, Work, Workload};
use crate::error::{Doing, Error, Result};
use crate::machine;
use crate::site::Site;
use crate::sys;

const FILES_PER_DIRECTORY: u64 = 1_000;

/// The work of one contender.
pub fn make(plan: Plan) -> Box<dyn Workload> {
    Box::new(Walk { files: plan.walk_files, idle: 0 })
}

struct Walk {
    files: u64,
    idle: u64,
}

fn resident(site: &Site, key: &str) -> Result<u64> {
    let missing = || Error::Wrong("the daemon's memory cannot be read".to_owned());
    site.daemon().and_then(|pid| machine::process_memory(pid, key)).ok_or_else(missing)
}

/// Lists a directory and looks at everything in it; how many entries there were.
fn walk(directory: &Path) -> std::io::Result<u64> {
    let mut seen = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        seen += 1;
        if metadata.is_dir() {
            seen += walk(&entry.path())?;
        }
    }
    Ok(seen)
}

impl Workload for Walk {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for first in (0..self.files).step_by(FILES_PER_DIRECTORY as usize) {
            let directory = site.path(&format!("dir-{first:07}"));
            fs::create_dir(&directory).doing(|| format!("making {}", directory.display()))?;
            for number in first..(first + FILES_PER_DIRECTORY).min(self.files) {
                let path = directory.join(format!("file-{number:07}"));
                let made = OpenOptions::new().write(true).create_new(true).open(&path);
                made.doing(|| format!("making {}", path.display()))?;
            }
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        site.settle().map(drop)
    }

    fn before(&mut self, _: Turn, site: &mut Site) -> Result<()> {
        site.remount()?;
        self.idle = resident(site, "VmRSS")?;
        Ok(())
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let begin = Instant::now();
        let seen = walk(site.root()).doing(|| "walking".to_owned())?;
        let elapsed = begin.elapsed();
        if seen < self.files {
            return Err(Error::Wrong(format!("{} files were made, {seen} entries are there", self.files)));
        }
        let after = resident(site, "VmRSS")?;
        let mut work = Work { operations: seen, elapsed, value: Some(after as f64 / 1e6), ..Work::default() };
        work.extra.insert("idle_mb".to_owned(), self.idle as f64 / 1e6);
        work.extra.insert("peak_mb".to_owned(), resident(site, "VmHWM")? as f64 / 1e6);
        work.extra.insert("files".to_owned(), self.files as f64);
        work.extra.insert("walk_ms".to_owned(), elapsed.as_secs_f64() * 1e3);
        Ok(work)
    }
}
