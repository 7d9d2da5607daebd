//! P7, P2: very many extents are cut off a file of a full volume, and the volume goes on, also after a cut.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::sparse::Sparse;
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, CheckOptions, Error, Fs, MkfsOptions, MountOptions, SetAttr, check, mkfs};
use nenrin_device::BlockDevice;
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Blocks of what is copied, each with a hole behind it, and how often that is.
const BLOCKS: u64 = 10_000;
const COPIES: u64 = 16;

type Device = Arc<dyn BlockDevice>;

fn open(device: &Device) -> Result<Arc<Fs>, Error> {
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    Fs::open(vec![device.clone()], Arc::new(TestClock::default()), options)
}

fn create(fs: &Fs, name: &[u8]) -> Ino {
    fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino
}

/// A volume on which df says 0, and a file of it that is nothing but extents: the same blocks again and again.
fn full() -> (Device, Arc<Fs>, Ino) {
    let device: Device = Arc::new(Sparse::new(128 << 20));
    let clock: Arc<dyn nenrin_core::Clock> = Arc::new(TestClock::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let fs = open(&device).unwrap();
    let (from, to) = (create(&fs, b"copied"), create(&fs, b"extents"));
    for n in 0..BLOCKS {
        fs.write(from, n * 2 * BLOCK, &[0; 4096], 0).unwrap();
    }
    fs.sync_all().unwrap();
    let bytes = BLOCKS * 2 * BLOCK;
    for at in (0..COPIES).map(|n| n * bytes) {
        let mut done = 0;
        while done < bytes {
            match fs.copy_range(from, done, to, at + done, bytes - done, 0).unwrap() {
                0 => break,
                n => done += n,
            }
        }
        fs.fsync_wait(to).unwrap();
        fs.tick().unwrap();
    }
    let (rest, mut at) = (create(&fs, b"rest"), 0);
    for blocks in [64, 8, 1] {
        while fs.write(rest, at * BLOCK, &vec![0; blocks * 4096], 0).is_ok() {
            at += blocks as u64;
        }
    }
    fs.sync_all().unwrap();
    (device, fs, to)
}

/// Cuts nearly all off while a checkpoint sees it: why the volume failed, if it did.
fn cut_off(cut: impl Fn(&Fs, Ino) -> Result<(), Error>) -> Option<String> {
    let (device, fs, ino) = full();
    fs.checkpoint_create(None).unwrap();
    cut(&fs, ino).unwrap_or_else(|e| panic!("{e}: {:?}, {:?}", fs.usage(), fs.counters()));
    fs.fsync_wait(ino).unwrap();
    let size = fs.getattr(At::Live, ino).unwrap().size;
    drop(fs.tick());
    if let Some(why) = fs.failed() {
        return Some(why);
    }
    drop(fs);
    let fs = open(&device).unwrap();
    let after = fs.getattr(At::Live, ino).unwrap();
    assert_eq!((after.size, after.blocks_512), (size, 8));
    // It goes on.
    fs.unlink(Ino::ROOT, b"rest").unwrap();
    fs.write(create(&fs, b"new"), 0, &[1; 4096], 0).unwrap();
    fs.close().unwrap();
    let report = check(&[device], &CheckOptions { data: false }, &mut |_| {}).unwrap();
    assert!(report.findings.iter().all(|f| f.what.severity() != check::Severity::Error), "{:?}", report.findings);
    None
}

fn shorter(fs: &Fs, ino: Ino) -> Result<(), Error> {
    fs.setattr(ino, &SetAttr { size: Some(BLOCK), ..SetAttr::default() }).map(drop)
}

#[test]
fn a_full_volume_bears_that_very_much_is_cut_off() {
    assert_eq!(cut_off(shorter), None);
    assert_eq!(cut_off(|fs, ino| fs.allocate(ino, AllocateMode::Punch, BLOCK, COPIES * BLOCKS * 2 * BLOCK)), None);
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_cut_off_without_room_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let failed = with(Break::CutAtOnce, || cut_off(shorter));
    assert!(failed.is_some(), "there was room");
}
