//! The volumes that image cases start from: small, and with something of
//! everything: several levels of index, history, snapshots, orphans, content
//! of every kind, and a stretch of chain that recovery has to replay.

use nenrin_core::format::{Cno, Ino, Time};
use nenrin_core::{
    AllocateMode, At, Clock, Fs, MkfsOptions, MountOptions, NewInode, RenameMode, Result, SetAttr, XattrMode, mkfs,
};
use nenrin_device::{BlockDevice, CrashDisk, Image};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Blocks in a segment of these volumes.
pub const SEGMENT_BLOCKS: u32 = 64;
const BYTES: u64 = 24 << 20;

/// A clock that moves a little with every look.
#[derive(Debug, Default)]
pub struct Steps(AtomicU64);

impl Steps {
    /// Time passes.
    pub fn pass(&self, nanos: u64) {
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for Steps {
    fn wall(&self) -> Time {
        Time(1_700_000_000_000_000_000 + self.0.fetch_add(1000, Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How these volumes are mounted: little memory, so that a limit overrun shows.
#[must_use]
pub fn options() -> MountOptions {
    MountOptions { cache_bytes: 1 << 20, dirty_bytes_max: 1 << 20, ..MountOptions::default() }
}

/// The volumes: closed cleanly, in the middle of work, and young.
///
/// # Panics
/// When they cannot be made.
#[must_use]
pub fn volumes() -> &'static [Image] {
    static VOLUMES: OnceLock<Vec<Image>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let made: Result<Vec<Image>> =
            [(900, true), (900, false), (8, false)].map(|(n, c)| make(n, c)).into_iter().collect();
        made.unwrap_or_default()
    })
}

fn file(mode: u32) -> NewInode<'static> {
    NewInode { mode, uid: 1, gid: 1, rdev: 0, target: b"" }
}

fn make(names: u32, close: bool) -> Result<Image> {
    let disk = Arc::new(CrashDisk::new(BYTES).without_history());
    let clock = Arc::new(Steps::default());
    let (device, time): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (disk.clone(), clock.clone());
    mkfs(
        &device,
        &time,
        &MkfsOptions { segment_blocks: SEGMENT_BLOCKS, uuid: [3; 16], hash_key: [5; 16], ..MkfsOptions::default() },
    )?;
    let fs = Fs::open(vec![device.clone()], time.clone(), options())?;
    let dir = fs.create(Ino::ROOT, b"d", &file(0o040_755))?.ino;
    for n in 0..names {
        let ino = fs.create(dir, format!("name {n}").as_bytes(), &file(0o100_644))?.ino;
        fs.write(ino, 0, &vec![n as u8; 10 + n as usize % 900], 1)?;
    }
    work(&fs, dir)?;
    let monday = fs.checkpoint_create(Some(b"monday"))?.cno;
    clock.pass(30_000_000_000);
    fs.tick()?;
    // From here on the chain has it.
    work(&fs, dir)?;
    copies(&fs, dir, monday)?;
    let orphan = fs.tmpfile(&file(0o100_600))?.ino;
    fs.write(orphan, 0, &[7; 9000], 1)?;
    fs.sync_all()?;
    fs.checkpoint_create(None)?;
    for n in 0..names / 4 {
        fs.unlink(dir, format!("name {n}").as_bytes())?;
    }
    work(&fs, dir)?;
    fs.sync_all()?;
    if close {
        fs.release(orphan);
        fs.close()?;
    }
    Ok(disk.current())
}

/// Blocks that files share with each other and with the past, some of whose owners are gone.
fn copies(fs: &Fs, dir: Ino, past: Cno) -> Result<()> {
    let source = fs.create(dir, b"source", &file(0o100_644))?.ino;
    fs.write(source, 0, &[5; 90_000], 1)?;
    fs.fsync_wait(source)?;
    for n in 0..4u64 {
        let copy = fs.create(dir, format!("copy {n}").as_bytes(), &file(0o100_644))?.ino;
        fs.copy_range(source, n * 4096, copy, n * 8192, 50_000, 1)?;
        fs.fsync_wait(copy)?;
        if n == 1 {
            fs.write(source, 8192, &[6; 12_000], 1)?;
            fs.checkpoint_create(Some(b"shared"))?;
        }
    }
    let kept = fs.lookup(At::Past(past), dir, b"big")?;
    let restored = fs.create(dir, b"restored", &file(0o100_644))?.ino;
    fs.copy_range_at(At::Past(past), kept.ino, 0, restored, 0, kept.size, 1.into())?;
    fs.unlink(dir, b"copy 2")?;
    fs.fsync_wait(restored)
}

/// A bit of everything.
fn work(fs: &Fs, dir: Ino) -> Result<()> {
    let big = match fs.lookup(At::Live, dir, b"big") {
        Ok(a) => a.ino,
        Err(_) => fs.create(dir, b"big", &file(0o100_644))?.ino,
    };
    fs.write(big, 0, &[1; 300_000], 1)?;
    fs.fsync_wait(big)?;
    fs.write(big, 40_000, &[2; 5000], 1)?;
    fs.write(big, 1_000_000, &[3; 100], 1)?;
    fs.allocate(big, AllocateMode::Punch, 8192, 20_000)?;
    fs.allocate(big, AllocateMode::Reserve, 2_000_000, 100_000)?;
    fs.setxattr(big, b"user.small", b"value", XattrMode::Any)?;
    fs.setxattr(big, b"user.large", &[9; 10_000], XattrMode::Any)?;
    fs.fsync_wait(big)?;
    let sub = fs.create(dir, b"sub", &file(0o040_700))?.ino;
    let soft = NewInode { target: b"../d/big", ..file(0o120_777) };
    fs.create(sub, b"soft", &soft)?;
    let saved = fs.create(sub, b"saved", &file(0o100_644))?.ino;
    fs.write(saved, 0, &[4; 9000], 1)?;
    fs.link(big, sub, b"hard")?;
    fs.rename(sub, b"saved", dir, b"kept", RenameMode::Replace)?;
    fs.setattr(saved, &SetAttr { mode: Some(0o600), size: Some(5000), ..SetAttr::default() })?;
    fs.sync_all()?;
    fs.unlink(sub, b"soft")?;
    fs.unlink(sub, b"hard")?;
    fs.rmdir(dir, b"sub")?;
    fs.setattr(big, &SetAttr { size: Some(200_000), ..SetAttr::default() })?;
    fs.fsync_wait(big)
}
