//! One image of a power cut under load, in a file, so that the real program can be timed on it and what it finds be judged.
//!
//! The volume has segments of the size that users have, and the load is what makes recovery long: many small commits
//! since the last index checkpoint. The cut comes at a request to the device, a drawn number of them after a drawn number of
//! operations: so it is inside of a call, and mostly inside of a write, which nobody was told to be done. Writes that were not flushed
//! are dropped, kept or torn as drawn. Under `barrier=none` all that were done are kept, as only a device that loses nothing allows it,
//! and of the one under way some blocks from its beginning.

use crate::clock::VirtualClock;
use crate::content::pattern;
use crate::cut_judge::{File, Told, Write};
use crate::prng::Prng;
use nenrin_core::{Barrier, Fs, MkfsOptions, MountOptions, NewInode, Result, mkfs};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, Image};
use nenrin_format::Ino;
use std::sync::Arc;

/// Size of the volume, bytes.
const BYTES: u64 = 1 << 30;
/// Operations before the cut, at most. More would fill the volume.
const OPERATIONS_MAX: u64 = 60_000;
/// The cut comes after at most so many more requests, as a power of two: an index checkpoint has some hundred.
const REQUESTS_POWER_MAX: u64 = 9;
/// What an operation takes, nanoseconds of virtual time; every 100 ms the owner calls `tick`.
const OPERATION_NANOS: u64 = 150_000;
const TICK_OPERATIONS: u64 = 666;
/// Of 512 bytes each, as the crash disk has them.
const SECTORS_OF_BLOCK: u64 = 8;

/// What the load did before the cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    /// Operations.
    pub operations: u64,
    /// Syncs among them that were acknowledged.
    pub syncs: u64,
    /// Files made.
    pub files: u64,
    /// The call that the cut was in.
    pub call: &'static str,
    /// Blocks of the write that the cut was in; 0 where it was in a flush.
    pub blocks_under_way: u64,
    /// Under `barrier=none` so many of them were written; under the others that is as drawn, in sectors.
    pub blocks_kept: Option<u64>,
}

/// The device after a cut, what was done before, and what is promised of it.
pub struct CutImage {
    /// The device.
    pub image: Image,
    /// The load.
    pub load: Load,
    /// What it was told.
    pub told: Told,
}

/// A volume under load.
struct Loaded {
    fs: Arc<Fs>,
    clock: Arc<VirtualClock>,
    random: Prng,
    barrier: Barrier,
    files: Vec<Ino>,
    told: Told,
    /// Acknowledged and not promised yet, under `barrier=checkpoint`: the operation, names, and a file with its writes.
    acknowledged: Vec<(u64, usize, (usize, usize))>,
    index_checkpoints: u64,
    load: Load,
}

impl Loaded {
    /// One operation.
    fn step(&mut self, n: u64) -> Result<()> {
        self.clock.advance(OPERATION_NANOS);
        if n % TICK_OPERATIONS == 0 {
            self.load.call = "tick";
            self.fs.tick()?;
            self.promise_checkpointed(n);
        }
        let known = self.random.index(self.files.len().max(1));
        let end = self.told.files.get(known).map(|f| f.writes.iter().map(|w| w.place + w.bytes).max().unwrap_or(0));
        match (self.random.below(100), end) {
            (0..=19, _) | (_, None) => self.create(n)?,
            (20..=69, Some(end)) => {
                self.write(n, known, end, 4096)?;
                self.sync(n, known)?;
            }
            (70..=84, Some(end)) => {
                let place = self.random.below(end / 4096 + 1) * 4096;
                self.write(n, known, place, 4096)?;
            }
            (_, Some(end)) => {
                let bytes = self.random.range(1, 64) * 1024;
                self.write(n, known, end, bytes)?;
            }
        }
        self.promise_checkpointed(n);
        self.load.operations += 1;
        Ok(())
    }

    fn create(&mut self, n: u64) -> Result<()> {
        self.load.call = "create";
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let name = format!("file {n}");
        self.told.files.push(File { name: name.clone(), ..File::default() });
        self.files.push(self.fs.create(Ino::ROOT, name.as_bytes(), &new)?.ino);
        self.load.files += 1;
        Ok(())
    }

    fn write(&mut self, n: u64, file: usize, place: u64, bytes: u64) -> Result<()> {
        self.load.call = "write";
        self.told.files[file].writes.push(Write { id: n as u32, place, bytes });
        self.fs.write(self.files[file], place, &pattern(n as u32, place, bytes as usize), 0).map(drop)
    }

    fn sync(&mut self, n: u64, file: usize) -> Result<()> {
        self.load.call = "fsync";
        self.fs.fsync_wait(self.files[file])?;
        self.load.syncs += 1;
        let kept = (self.files.len(), (file, self.told.files[file].writes.len()));
        match self.barrier {
            Barrier::Checkpoint => self.acknowledged.push((n, kept.0, kept.1)),
            Barrier::Sync | Barrier::None => self.promise(kept.0, kept.1),
        }
        Ok(())
    }

    fn promise(&mut self, names: usize, (file, writes): (usize, usize)) {
        self.told.names_promised = names;
        self.told.files[file].promised = writes;
    }

    /// After an index checkpoint that ended in operation `n`, what was acknowledged before that operation is promised.
    fn promise_checkpointed(&mut self, n: u64) {
        let so_far = self.fs.counters().index_checkpoints;
        if std::mem::replace(&mut self.index_checkpoints, so_far) == so_far {
            return;
        }
        let before = self.acknowledged.iter().take_while(|(at, ..)| *at < n).count();
        for (_, names, kept) in self.acknowledged.drain(..before).collect::<Vec<_>>() {
            self.promise(names, kept);
        }
    }
}

/// The device after a cut under the load of this seed, and what the load was.
///
/// # Errors
/// Those of the file system, which has no reason for any before the cut.
pub fn cut_image(seed: u64, barrier: Barrier) -> Result<CutImage> {
    cut_after(seed, barrier, OPERATIONS_MAX)
}

/// [`cut_image`], after at most so many operations.
pub(crate) fn cut_after(seed: u64, barrier: Barrier, operations_max: u64) -> Result<CutImage> {
    let mut random = Prng::new(seed);
    let disk = Arc::new(CrashDisk::new(BYTES).without_history());
    let (device, clock): (Arc<dyn BlockDevice>, Arc<VirtualClock>) = (disk.clone(), Arc::default());
    let time: Arc<dyn nenrin_core::Clock> = clock.clone();
    mkfs(&device, &time, &MkfsOptions::default())?;
    let fs = Fs::open(vec![device], time, MountOptions { barrier, ..MountOptions::default() })?;
    let operations = random.range(1, operations_max);
    let power = random.range(0, REQUESTS_POWER_MAX);
    let requests = random.range(1, 1 << power);
    let index_checkpoints = fs.counters().index_checkpoints;
    let mut loaded = Loaded {
        fs,
        clock,
        random,
        barrier,
        files: Vec::new(),
        told: Told::default(),
        acknowledged: Vec::new(),
        index_checkpoints,
        load: Load::default(),
    };
    for n in 0..operations {
        loaded.step(n)?;
    }
    disk.power_off_at(disk.cut_points() + requests as usize);
    let cut = (operations..operations + 4 * requests + 1000).find(|n| loaded.step(*n).is_err());
    if cut.is_none() {
        return Err(nenrin_core::Error::Failed("the load went on without requests to the device".into()));
    }
    let Loaded { mut random, told, mut load, .. } = loaded;
    let sectors = disk.last_under_way();
    let choice = match (barrier, sectors) {
        (Barrier::None, Some(sectors)) => {
            let kept = random.below(sectors / SECTORS_OF_BLOCK + 1);
            load.blocks_kept = Some(kept);
            CrashChoice::last_torn(kept * SECTORS_OF_BLOCK)
        }
        (Barrier::None, None) => CrashChoice::from_seed(CrashChoice::SEED_APPLIED),
        _ => CrashChoice::from_seed(random.next_u64()),
    };
    load.blocks_under_way = sectors.unwrap_or(0) / SECTORS_OF_BLOCK;
    Ok(CutImage { image: disk.image(&choice).content(), load, told })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut_judge::Verdict;
    use nenrin_core::At;
    use std::collections::BTreeSet;

    /// Mounts what a cut has left and judges it.
    fn judged(cut: CutImage, barrier: Barrier) -> Verdict {
        let device = Arc::new(CrashDisk::from_image(cut.image).without_history());
        let options = MountOptions { barrier, ..MountOptions::default() };
        let fs = Fs::open(vec![device], Arc::new(VirtualClock::default()), options).unwrap();
        let mut names = BTreeSet::new();
        fs.readdir(At::Live, Ino::ROOT, 0, &mut |entry| {
            let name = String::from_utf8(entry.name.clone()).unwrap();
            names.extend((!matches!(name.as_str(), "." | "..")).then_some(name));
            true
        })
        .unwrap();
        let read = |name: &str| {
            let ino = fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap().ino;
            fs.read(At::Live, ino, 0, 1 << 30).map_err(|e| e.to_string())
        };
        cut.told.judge(&names, read)
    }

    const BARRIERS: [Barrier; 3] = [Barrier::Sync, Barrier::Checkpoint, Barrier::None];

    #[test]
    fn what_is_found_after_a_cut_is_what_was_promised() {
        let (mut in_writes, mut in_flushes, mut promised, mut kept) = (0, 0, 0, BTreeSet::new());
        for seed in 0..8 {
            for barrier in BARRIERS {
                let cut = cut_after(seed, barrier, 1500).unwrap();
                in_writes += u64::from(cut.load.blocks_under_way > 0);
                in_flushes += u64::from(cut.load.blocks_under_way == 0);
                kept.extend(cut.load.blocks_kept);
                let verdict = judged(cut, barrier);
                assert_eq!(verdict.mismatches, [""; 0], "seed {seed}, {barrier:?}");
                promised += if barrier == Barrier::Checkpoint { 0 } else { verdict.promised };
            }
        }
        assert!(
            in_writes > 5 && in_flushes > 0 && promised > 500 && kept.len() > 1,
            "{in_writes} {in_flushes} {promised} {kept:?}"
        );
    }

    /// Under barrier=checkpoint what an index checkpoint has is promised, and only that.
    #[test]
    fn an_index_checkpoint_promises_what_was_acknowledged_before_it() {
        let cut = cut_after(3, Barrier::Checkpoint, 20_000).unwrap();
        let promised = cut.told.files.iter().filter(|f| f.promised > 0).count();
        let synced = cut.load.syncs as usize;
        assert!(synced > 1000, "{synced}");
        let verdict = judged(cut, Barrier::Checkpoint);
        assert_eq!(verdict.mismatches, [""; 0], "{promised} files");
    }

    #[test]
    fn a_seed_means_the_same_every_time() {
        let [first, second] = [0, 1].map(|_| cut_after(5, Barrier::Sync, 300).unwrap());
        assert_eq!((&first.load, &first.told), (&second.load, &second.told));
        assert!(!first.told.files.is_empty());
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn syncs_that_do_not_flush_are_noticed() {
        use nenrin_core::breaks::{Break, with};
        let is_noticed = |seed: u64| {
            let cut = with(Break::NoFlush, || cut_after(seed, Barrier::Sync, 400).unwrap());
            !judged(cut, Barrier::Sync).mismatches.is_empty()
        };
        assert!((0..20).any(is_noticed));
    }
}
