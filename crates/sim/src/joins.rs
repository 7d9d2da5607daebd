//! A device that is brought up to date while the work goes on: one that missed something, or one that takes the
//! place of another.

use crate::config::Config;
use crate::content::pattern;
use crate::members::{Drive, Joins};
use crate::ops::Op;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::workload::Workload;
use crate::{clock::VirtualClock, hash};
use nenrin_core::{Clock, NewInode};
use nenrin_device::CrashDisk;
use nenrin_format::Ino;
use std::sync::Arc;

/// Ticks after which bringing a device up to date is taken for something that never ends.
const TICKS_MAX: usize = 4000;

/// Formats a volume; one of its members misses something when it is mounted for the work, or is gone.
///
/// # Errors
/// What went wrong.
pub fn prepare<S: Subject>(
    disk: Arc<CrashDisk>,
    mut device: Drive,
    plain: Drive,
    config: &Config,
    joins: Joins,
) -> Result<Run<S>, String> {
    let clock = Arc::new(VirtualClock::new());
    let time: Arc<dyn Clock> = clock.clone();
    S::mkfs_on(plain.clone(), &time, config.segment_blocks).map_err(|e| format!("mkfs: {e}"))?;
    clock.advance(1_000_000);
    if let Some(index) = joins.missing() {
        let fs = S::open(plain.clone().without(index), time, config.options()).map_err(|e| format!("open: {e}"))?;
        let some = 1 + hash::of_words(&[config.seed, 79]) % 3;
        for n in 0..some {
            let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
            let name = format!("missed {n}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), &new).map_err(|e| e.to_string())?;
            fs.write(file.ino, 0, &pattern(n as u32, 0, 30_000), 0).map_err(|e| e.to_string())?;
            fs.fsync_wait(file.ino).map_err(|e| e.to_string())?;
        }
        fs.close().map_err(|e| format!("close: {e}"))?;
        clock.advance(1_000_000);
    }
    if let Joins::TakesDead(index) = joins {
        device = device.without(usize::from(index));
    }
    let durable = disk.cut_points();
    Run::mount_on(disk, device, plain, clock, config.options(), Some(durable))
}

/// The workload of `config`, with a device that joins in its course.
///
/// # Errors
/// The first wrong answer.
pub fn carry_out<S: Subject>(run: &mut Run<S>, config: &Config, joins: Joins) -> Result<(), String> {
    let mut workload = config.workload();
    let mut begin = 0;
    if let Some(index) = joins.replaced() {
        begin = config.steps / 4;
        go_on(run, &mut workload, begin)?;
        let spare = run.device.spare.clone().ok_or("nothing to replace it by")?;
        run.fs()?.replace(index as u16, spare).map_err(|e| format!("replace: {e}"))?;
    }
    // Ticks are rare in a workload; without them nothing is copied.
    for part in 0..6 {
        go_on(run, &mut workload, (config.steps - begin) / 8)?;
        if config.seed % 3 != 0 || part % 2 == 0 {
            tick(run)?;
        }
    }
    if config.seed % 4 != 3 {
        bring_up(run)?;
    }
    go_on(run, &mut workload, (config.steps - begin) / 4)
}

fn go_on<S: Subject>(run: &mut Run<S>, workload: &mut Workload, steps: usize) -> Result<(), String> {
    match run.steps(workload, steps)? {
        Some(e) => Err(format!("the volume failed without a fault: {e}")),
        None => Ok(()),
    }
}

fn tick<S: Subject>(run: &mut Run<S>) -> Result<(), String> {
    match run.step(&Op::Tick)? {
        Step::Failed(e) => Err(format!("the volume failed without a fault: {e}")),
        _ => Ok(()),
    }
}

/// Ticks until no device is to be brought up to date any more.
///
/// # Errors
/// When that does not end, or the volume fails.
pub fn bring_up<S: Subject>(run: &mut Run<S>) -> Result<(), String> {
    for _ in 0..TICKS_MAX {
        if !run.fs()?.is_joining() {
            return Ok(());
        }
        tick(run)?;
    }
    Err("a device is brought up to date without end".into())
}
