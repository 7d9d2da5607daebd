//! One image of a power cut under load, in a file, so that the real program can be timed on it.
//!
//! The volume has segments of the size that users have, and the load is what makes recovery long: many small commits
//! since the last index checkpoint. The cut comes after a drawn number of operations, with the writes that were not
//! flushed dropped, kept or torn as drawn; under `barrier=none` all are kept, as only a device that loses nothing allows it.

use crate::clock::VirtualClock;
use crate::content::pattern;
use crate::prng::Prng;
use nenrin_core::{Barrier, Fs, MkfsOptions, MountOptions, NewInode, Result, mkfs};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, Image};
use nenrin_format::Ino;
use std::sync::Arc;

/// Size of the volume, bytes.
const BYTES: u64 = 1 << 30;
/// Operations before the cut, at most. More would fill the volume.
const OPERATIONS_MAX: u64 = 60_000;
/// What an operation takes, nanoseconds of virtual time; every 100 ms the owner calls `tick`.
const OPERATION_NANOS: u64 = 150_000;
const TICK_OPERATIONS: u64 = 666;

/// What the load did before the cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Operations.
    pub operations: u64,
    /// Syncs among them that were acknowledged.
    pub syncs: u64,
    /// Files made.
    pub files: u64,
}

/// The device after a cut under the load of this seed, and what the load was.
///
/// # Errors
/// Those of the file system, which has no reason for any.
pub fn cut_image(seed: u64, barrier: Barrier) -> Result<(Image, Load)> {
    let mut random = Prng::new(seed);
    let disk = Arc::new(CrashDisk::new(BYTES).without_history());
    let (device, clock): (Arc<dyn BlockDevice>, Arc<VirtualClock>) = (disk.clone(), Arc::default());
    let time: Arc<dyn nenrin_core::Clock> = clock.clone();
    mkfs(&device, &time, &MkfsOptions::default())?;
    let fs = Fs::open(vec![device], time, MountOptions { barrier, ..MountOptions::default() })?;
    let mut load = Load { operations: random.range(1, OPERATIONS_MAX), ..Load::default() };
    let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let mut files: Vec<(Ino, u64)> = Vec::new();
    for n in 0..load.operations {
        clock.advance(OPERATION_NANOS);
        if n % TICK_OPERATIONS == 0 {
            fs.tick()?;
        }
        let known = random.index(files.len().max(1));
        match (random.below(100), files.get_mut(known)) {
            (0..=19, _) | (_, None) => {
                let file = fs.create(Ino::ROOT, format!("file {n}").as_bytes(), &new)?;
                files.push((file.ino, 0));
                load.files += 1;
            }
            (20..=69, Some((ino, end))) => {
                fs.write(*ino, *end, &pattern(n as u32, *end, 4096), 0)?;
                *end += 4096;
                fs.fsync_wait(*ino)?;
                load.syncs += 1;
            }
            (70..=84, Some((ino, end))) => {
                let place = random.below(*end / 4096 + 1) * 4096;
                fs.write(*ino, place, &pattern(n as u32, place, 4096), 0)?;
                *end = (*end).max(place + 4096);
            }
            (_, Some((ino, end))) => {
                let bytes = random.range(1, 64) * 1024;
                fs.write(*ino, *end, &pattern(n as u32, *end, bytes as usize), 0)?;
                *end += bytes;
            }
        }
    }
    let image = disk.image(&CrashChoice::from_seed(choice(barrier, random.next_u64()))).content();
    disk.power_off();
    Ok((image, load))
}

/// What becomes of writes that were not flushed, of those drawn.
fn choice(barrier: Barrier, drawn: u64) -> u64 {
    if barrier == Barrier::None { CrashChoice::SEED_APPLIED } else { drawn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_barriers_loses_nothing() {
        assert_eq!([Barrier::Sync, Barrier::Checkpoint].map(|b| choice(b, 77)), [77, 77]);
        assert_eq!(choice(Barrier::None, 77), CrashChoice::SEED_APPLIED);
    }
}
