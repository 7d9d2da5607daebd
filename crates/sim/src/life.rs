//! Scenarios over several lives of a volume: what one life left on the device
//! must not come back in a later one.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::content::pattern;
use crate::driver::{Cut, Failure, Plan, Tally, failure, guarded, record, record_on};
use crate::forget;
use crate::hosts;
use crate::mend::{self, Damage};
use crate::ops::Op;
use crate::run::Run;
use crate::subject::Subject;
use crate::walk::walk;
use crate::workload::Profile;
use nenrin_core::{At, Barrier, Fs, MountOptions, NewInode, Order};
use nenrin_device::{AlignedBuf, BLOCK_BYTES, BlockDevice, CrashDisk, Image};
use nenrin_format::superblock::AREA_BLOCKS;
use nenrin_format::{Addr, Ino};
use std::sync::Arc;

/// Lives after which the chain must have come back to a segment.
const LIVES_MAX: usize = 60;

type Core = Arc<Fs>;

/// What happens over several lives of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// A write of an earlier life lands late.
    LateWrite,
    /// The newest root is lost, and the segment in which its log begins.
    LostRoot,
    /// Cut, mount, write the same length again, cut again.
    SameLength,
    /// The newest root slot is torn.
    TornSlot,
    /// The volume is damaged, and its repair is cut.
    Repair(Damage),
    /// Secrets are forgotten, and that is cut.
    Forget,
    /// Two hosts want the same devices.
    Hosts,
}

impl Life {
    /// All of them, with their names on the command line.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::LateWrite, "late-write"),
        (Self::LostRoot, "lost-root"),
        (Self::SameLength, "same-length"),
        (Self::TornSlot, "torn-slot"),
        (Self::Repair(Damage::Leaf), "repair-leaf"),
        (Self::Repair(Damage::Behind), "repair-behind"),
        (Self::Repair(Damage::Roots), "repair-roots"),
        (Self::Repair(Damage::Log), "repair-log"),
        (Self::Repair(Damage::Items), "repair-items"),
        (Self::Repair(Damage::Shared), "repair-shared"),
        (Self::Forget, "forget"),
        (Self::Hosts, "hosts"),
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|l| l.0 == self).map_or("", |l| l.1)
    }

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|l| l.1 == name).map(|l| l.0)
    }

    /// The settings of a seed for it.
    #[must_use]
    pub fn config(self, seed: u64) -> Config {
        let base = Config::of_seed(seed);
        let ace = if self == Self::SameLength { vec![26 * 8 + 1] } else { Vec::new() };
        let profile = if self == Self::Repair(Damage::Shared) { Some(Profile::Copies) } else { None };
        let (barrier, order) = match (self, base.barrier) {
            (Self::Forget, Barrier::Sync) => (Barrier::Sync, base.order),
            (Self::Forget, _) => (Barrier::Checkpoint, base.order),
            _ => (Barrier::Sync, Order::Relaxed),
        };
        // Room for what is kept of secrets, and to empty segments in.
        let more = if self == Self::Forget { base.device_bytes / 2 } else { 0 };
        let device_bytes = base.device_bytes + more / 4096 * 4096;
        Config { life: Some(self), barrier, order, profile, ace, device_bytes, remounts: false, ..base }
    }
}

/// Carries out what `config.life` says; of a repair perhaps one cut only.
///
/// # Errors
/// What is not as it should be, with the line that replays it.
pub fn carry_out(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let told = |done: Result<(), String>| done.map_err(|what| failure(config, &[], what, String::new()));
    guarded(config, || match config.life {
        None => Ok(()),
        Some(Life::LateWrite) => told(late_write(config.seed)),
        Some(Life::LostRoot) => told(lost_root(config.seed)),
        Some(Life::SameLength) => same_length_again::<Core>(config, tally),
        Some(Life::TornSlot) => told(newest_slot_torn::<Core>(config)),
        Some(Life::Repair(damage)) => mend::repair_cuts(config, damage, only, tally),
        Some(Life::Hosts) => told(hosts::two_hosts(config, tally)),
        Some(Life::Forget) => forget::forget_cuts(config, only, tally),
    })
}

/// A commit of one life stays in some queue, and lands when a later life has
/// begun its own chain in the same place, behind the same partial. Only the
/// epoch tells that it is of an earlier life.
///
/// # Errors
/// When it comes back, or the situation cannot be brought about.
fn late_write(seed: u64) -> Result<(), String> {
    let bytes = (20 + seed % 8) << 20;
    let disk = Arc::new(CrashDisk::new(bytes).without_history());
    let clock: Arc<VirtualClock> = Arc::new(VirtualClock::new());
    let (device, time): (Arc<dyn BlockDevice>, Arc<dyn nenrin_core::Clock>) = (disk.clone(), clock.clone());
    <Core as Subject>::mkfs(&device, &time, 64).map_err(|e| e.to_string())?;
    let open = |image: &Image| -> Result<(Arc<CrashDisk>, Core), String> {
        let disk = Arc::new(CrashDisk::from_image(image.clone()).without_history());
        let fs = <Core as Subject>::open(disk.clone(), clock.clone(), MountOptions::default());
        Ok((disk, fs.map_err(|e| e.to_string())?))
    };
    let (first, fs) = open(&disk.current())?;
    let begun = first.current();
    let segment = fs.superblock().chain.0;
    let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(Ino::ROOT, b"zombie", &new).map_err(|e| e.to_string())?;
    fs.write(file.ino, 0, &pattern(1, 0, 5000), 0).map_err(|e| e.to_string())?;
    fs.fsync_wait(file.ino).map_err(|e| e.to_string())?;
    let offset = (AREA_BLOCKS + segment.0 * 64) * BLOCK_BYTES as u64;
    let late = first.read(offset, 16 * BLOCK_BYTES).map_err(|e| e.to_string())?;
    // That commit never lands; lives without a commit follow until one goes on in the same segment.
    let mut image = begun;
    for _ in 0..LIVES_MAX {
        let (disk, fs) = open(&image)?;
        if fs.superblock().chain.0 == segment {
            return lands(&disk, fs, offset, late, &clock);
        }
        image = disk.current();
    }
    Err(format!("the chain did not come back to segment {segment:?} in {LIVES_MAX} lives"))
}

fn lands(
    disk: &Arc<CrashDisk>,
    fs: Core,
    offset: u64,
    late: AlignedBuf,
    clock: &Arc<VirtualClock>,
) -> Result<(), String> {
    let before = walk(&fs, At::Live, None)?;
    drop(fs);
    disk.write(offset, Arc::new(late)).map_err(|e| e.to_string())?;
    let image = Arc::new(CrashDisk::from_image(disk.current()));
    let fs = <Core as Subject>::open(image, clock.clone(), MountOptions::default()).map_err(|e| e.to_string())?;
    let after = walk(&fs, At::Live, None)?;
    if before == after { Ok(()) } else { Err("a commit of an earlier life came back".to_owned()) }
}

/// The newest root cannot be read, and the segment in which its log begins is
/// gone with it. The log before looks whole, and ends too early: that must be
/// said, or all that the last life wrote is lost without a word.
///
/// # Errors
/// When nothing is said, or the situation cannot be brought about.
fn lost_root(seed: u64) -> Result<(), String> {
    let disk = Arc::new(CrashDisk::new((20 + seed % 8) << 20).without_history());
    let clock: Arc<VirtualClock> = Arc::new(VirtualClock::new());
    let (device, time): (Arc<dyn BlockDevice>, Arc<dyn nenrin_core::Clock>) = (disk.clone(), clock.clone());
    <Core as Subject>::mkfs(&device, &time, 64).map_err(|e| e.to_string())?;
    let open =
        || <Core as Subject>::open(disk.clone(), clock.clone(), MountOptions::default()).map_err(|e| e.to_string());
    let mut superblock = None;
    for (life, commits) in [3 + seed % 5, 40 + seed % 50].into_iter().enumerate() {
        let fs = open()?;
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = fs.create(Ino::ROOT, format!("life {life}").as_bytes(), &new).map_err(|e| e.to_string())?;
        for n in 0..commits {
            fs.write(file.ino, n * 4096, &pattern(n as u32, 0, 4096), 0).map_err(|e| e.to_string())?;
            fs.fsync_wait(file.ino).map_err(|e| e.to_string())?;
        }
        superblock = Some(fs.superblock());
    }
    let before = walk(&open_read_only(&disk, &clock)?, At::Live, None)?;
    let superblock = superblock.ok_or("no root")?;
    let block = |addr: Addr| AREA_BLOCKS + addr.segment().0 * 64 + u64::from(addr.block());
    let log = AREA_BLOCKS + superblock.chain.0.0 * 64;
    for at in superblock.root.iter().map(|(addr, _)| block(*addr)).chain(log..log + 64) {
        let junk = Arc::new(AlignedBuf::padded(&[0x5a; BLOCK_BYTES]));
        disk.write(at * BLOCK_BYTES as u64, junk).map_err(|e| e.to_string())?;
    }
    let fs = open_read_only(&disk, &clock)?;
    let after = walk(&fs, At::Live, None)?;
    if before != after && Subject::damage(&fs).is_none() {
        return Err("what a whole life wrote is not shown, and nothing is said about damage".to_owned());
    }
    Ok(())
}

fn open_read_only(disk: &Arc<CrashDisk>, clock: &Arc<VirtualClock>) -> Result<Core, String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    <Core as Subject>::open(disk.clone(), clock.clone(), options).map_err(|e| e.to_string())
}

/// Cut, mount, write the same length again, cut again: nothing of the first
/// write may be found behind the second.
///
/// # Errors
/// The first state that is not allowed.
fn same_length_again<S: Subject>(config: &Config, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let plan = Plan { choices: 5, deep_every: 0, images_max: 60, ..Plan::default() };
    let first = record::<S>(config, false)?;
    let cuts = first.last_cut() - first.first_cut();
    for n in 0..6 {
        let at = first.first_cut() + cuts * n / 6;
        for choice in [0, 1, 2, 3 + config.seed + n as u64] {
            let image = first.image_at(at, choice).content();
            let again = record_on::<S>(config, image, &first.clock(), rewrite)?;
            again.cut_all::<S>(&plan, tally)?;
        }
    }
    Ok(())
}

/// Writes as the life before did, with other bytes.
fn rewrite<S: Subject>(run: &mut Run<S>) -> Result<(), String> {
    let file = run.model()?.tree.inodes.get(&Ino::ROOT.0).and_then(|d| d.entries.get(&b"f"[..]).copied());
    let ino = file.ok_or("the file is gone")?;
    for op in [Op::Write { ino, offset: 8192, bytes: 400_000, id: 77 }, Op::Fsync { ino, callback: true }] {
        run.step(&op)?;
    }
    run.compare_all()
}

/// The newest root slot is torn, both copies: the one before it leads to the same state.
///
/// # Errors
/// When it does not.
fn newest_slot_torn<S: Subject>(config: &Config) -> Result<(), String> {
    let recorded = record::<S>(config, false).map_err(|f| f.to_string())?;
    let image = recorded.image_at(recorded.last_cut(), nenrin_device::CrashChoice::SEED_APPLIED).content();
    let clock = Arc::new(recorded.clock());
    let look = |image: Image| -> Result<_, String> {
        let disk = Arc::new(CrashDisk::from_image(image));
        let fs = S::open(disk, clock.clone(), config.options()).map_err(|e| e.to_string())?;
        let past = fs.checkpoints().into_iter().map(|c| walk(&fs, At::Past(c.cno), None).map(|found| (c, found)));
        Ok((walk(&fs, At::Live, None)?, past.collect::<Result<Vec<_>, _>>()?))
    };
    let whole = look(image.clone())?;
    let disk = Arc::new(CrashDisk::from_image(image));
    let found = nenrin_core::probe(disk.as_ref()).map_err(|e| e.to_string())?;
    let newest = found.newest().map_err(|e| e.to_string())?.generation;
    for (block, state) in &found.slots {
        if *state == nenrin_core::SlotState::Valid(newest) {
            let offset = block * BLOCK_BYTES as u64;
            let mut slot = disk.read(offset, BLOCK_BYTES).map_err(|e| e.to_string())?;
            slot[1024..].fill(0);
            slot[600] ^= 1;
            disk.write(offset, Arc::new(slot)).map_err(|e| e.to_string())?;
        }
    }
    let older = look(disk.current())?;
    if older == whole { Ok(()) } else { Err("the older root leads to another state".to_owned()) }
}
