//! How long a mount takes: after an orderly umount, and after the daemon was killed under load.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Turn, Work, Workload};
use crate::disk::Aligned;
use crate::error::{Doing, Error, Result};
use crate::site::Site;

const FILES: usize = 2_000;
const WRITERS: usize = 3;
const LOAD: Duration = Duration::from_millis(700);

/// Mount after an orderly umount.
pub fn make_mounting() -> Box<dyn Workload> {
    Box::new(Mounting)
}

/// Mount after a crash of the daemon.
pub fn make_recovery() -> Box<dyn Workload> {
    Box::new(Recovery { acknowledged: Vec::new() })
}

fn populate(site: &Site) -> Result<()> {
    let data = Aligned::noise(32 << 10, 9);
    for directory in 0..10 {
        let path = site.path(&format!("dir-{directory}"));
        fs::create_dir(&path).doing(|| format!("making {}", path.display()))?;
        for file in 0..FILES / 10 {
            let path = path.join(format!("file-{file}"));
            fs::write(&path, data.get()).doing(|| format!("writing {}", path.display()))?;
        }
    }
    site.settle().map(drop)
}

struct Mounting;

impl Workload for Mounting {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        populate(site)
    }

    fn before(&mut self, _: Turn, site: &mut Site) -> Result<()> {
        site.unmount()
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let elapsed = site.mount()?;
        Ok(Work { operations: 1, elapsed, ..Work::default() })
    }
}

struct Recovery {
    acknowledged: Vec<(PathBuf, u64)>,
}

/// Appends and syncs until the daemon is gone; counts the bytes whose fsync came back.
fn append_until_dead(path: &Path, acknowledged: &AtomicU64) {
    let data = Aligned::noise(4096, 4);
    let Ok(file) = File::create(path) else { return };
    for at in (0..).step_by(4096) {
        if file.write_all_at(data.get(), at).and_then(|()| file.sync_all()).is_err() {
            return;
        }
        acknowledged.store(at + 4096, Ordering::Relaxed);
    }
}

/// Creates files until the daemon is gone.
fn create_until_dead(directory: &Path) {
    for number in 0.. {
        let path = directory.join(format!("made-{number}"));
        if OpenOptions::new().write(true).create_new(true).open(path).is_err() {
            return;
        }
    }
}

impl Workload for Recovery {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        populate(site)
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        let directory = site.path(&format!("load-{}", turn.round));
        fs::create_dir(&directory).doing(|| format!("making {}", directory.display()))?;
        let paths: Vec<PathBuf> = (0..WRITERS).map(|n| directory.join(format!("appended-{n}"))).collect();
        let acknowledged: Vec<AtomicU64> = paths.iter().map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (path, count) in paths.iter().zip(&acknowledged) {
                scope.spawn(|| append_until_dead(path, count));
            }
            scope.spawn(|| create_until_dead(&directory));
            std::thread::sleep(LOAD);
            site.crash()
        })?;
        let counts = acknowledged.iter().map(|count| count.load(Ordering::Relaxed));
        self.acknowledged = paths.into_iter().zip(counts).collect();
        Ok(())
    }

    fn slice(&mut self, _: Turn, site: &mut Site) -> Result<Work> {
        let elapsed = site.mount()?;
        Ok(Work { operations: 1, elapsed, ..Work::default() })
    }

    fn after(&mut self, _: Turn, _: &mut Site) -> Result<()> {
        for (path, bytes) in self.acknowledged.drain(..) {
            let found = fs::metadata(&path).map_or(0, |m| m.len());
            if bytes == 0 || found < bytes {
                let text = format!("{}: {bytes} bytes were acknowledged, {found} are there", path.display());
                return Err(Error::Wrong(text));
            }
        }
        Ok(())
    }
}
