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

/// What fills a volume: so many blocks, so many copies of them, and how often what is beside them is written over, so that as little is
/// free as may be. Then the blocks lie on the device in another order than in the file.
struct Shape {
    blocks: u64,
    copies: u64,
    over: u64,
}

const IN_ORDER: Shape = Shape { blocks: BLOCKS, copies: COPIES, over: 0 };
/// Each item has its back reference in another leaf than the one before.
const SCATTERED: Shape = Shape { blocks: 8000, copies: 12, over: 200 };

/// A volume on which df says 0, and a file of it that is nothing but extents: the same blocks again and again.
fn full(shape: &Shape) -> (Device, Arc<Fs>, Ino) {
    let device: Device = Arc::new(Sparse::new(128 << 20));
    let clock: Arc<dyn nenrin_core::Clock> = Arc::new(TestClock::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let fs = open(&device).unwrap();
    let (from, to) = (create(&fs, b"copied"), create(&fs, b"extents"));
    let scattered = shape.over > 0;
    for n in 0..shape.blocks {
        let place = if scattered { n * 7919 % shape.blocks } else { n };
        fs.write(from, place * 2 * BLOCK, &[0; 4096], 0).unwrap();
        if scattered && n % 16 == 15 {
            fs.fsync_wait(from).unwrap();
        }
    }
    fs.sync_all().unwrap();
    copy(&fs, from, to, shape);
    let (rest, mut at) = (create(&fs, b"rest"), 0);
    for blocks in [64, 8, 1] {
        while fs.write(rest, at * BLOCK, &vec![0; blocks * 4096], 0).is_ok() {
            at += blocks as u64;
        }
    }
    fs.sync_all().unwrap();
    for n in 0..shape.over {
        fs.write(rest, n * 64 % (at - 64) * BLOCK, &[1; 64 * 4096], 0).unwrap();
        fs.fsync_wait(rest).unwrap();
    }
    (device, fs, to)
}

fn copy(fs: &Fs, from: Ino, to: Ino, shape: &Shape) {
    let bytes = shape.blocks * 2 * BLOCK;
    for at in (0..shape.copies).map(|n| n * bytes) {
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
}

/// Cuts nearly all off while a checkpoint sees it: why the volume failed, if it did.
fn cut_off(cut: impl Fn(&Fs, Ino) -> Result<(), Error>) -> Option<String> {
    let (device, fs, ino) = full(&IN_ORDER);
    fs.checkpoint_create(None).unwrap();
    let done = cut(&fs, ino).and_then(|()| fs.fsync_wait(ino));
    if let (Err(_), Some(why)) = (&done, fs.failed()) {
        return Some(why);
    }
    done.unwrap_or_else(|e| panic!("{e}: {:?}, {:?}", fs.usage(), fs.counters()));
    let size = fs.getattr(At::Live, ino).unwrap().size;
    drop(fs.tick());
    if let Some(why) = fs.failed() {
        return Some(why);
    }
    drop(fs);
    let fs = match open(&device) {
        Ok(fs) => fs,
        Err(why) => return Some(format!("the next mount: {why}")),
    };
    let after = fs.getattr(At::Live, ino).unwrap();
    assert_eq!((after.size, after.blocks_512), (size, 8));
    goes_on(&device, &fs);
    None
}

/// It can be used, and is whole.
fn goes_on(device: &Device, fs: &Fs) {
    fs.unlink(Ino::ROOT, b"rest").unwrap();
    fs.write(create(fs, b"new"), 0, &[1; 4096], 0).unwrap();
    fs.close().unwrap();
    is_whole(device);
}

fn is_whole(device: &Device) {
    let report = check(std::slice::from_ref(device), &CheckOptions { data: false }, &mut |_| {}).unwrap();
    assert!(report.findings.iter().all(|f| f.what.severity() != check::Severity::Error), "{:?}", report.findings);
}

fn punched(fs: &Fs, ino: Ino) -> Result<(), Error> {
    fs.allocate(ino, AllocateMode::Punch, BLOCK, COPIES * BLOCKS * 2 * BLOCK)
}

/// What is removed while a checkpoint sees it goes with the checkpoint: why the volume failed, if it did.
fn swept() -> Option<String> {
    let (device, fs, _) = full(&SCATTERED);
    let cno = fs.checkpoint_create(None).unwrap().cno;
    fs.unlink(Ino::ROOT, b"extents").unwrap();
    let tick_until = |done: &dyn Fn(&Fs) -> bool| {
        let all = (0..4000).take_while(|_| fs.failed().is_none() && !done(&fs)).filter(|_| fs.tick().is_err()).count();
        assert!(all == 0 || fs.failed().is_some());
    };
    tick_until(&|fs| fs.usage().shared_blocks == 0);
    // It may have gone for want of room.
    if fs.failed().is_none() && fs.checkpoints().iter().any(|c| c.cno == cno) {
        fs.checkpoint_drop(&[cno]).unwrap();
    }
    tick_until(&|fs| fs.history_trees() == 0);
    if let Some(why) = fs.failed() {
        return Some(why);
    }
    drop(fs);
    // Whether it gives room again is not promised (decision 0007, Weak); that it can be mounted, to be written, and is whole is.
    let fs = open(&device).unwrap();
    assert_eq!(fs.read(At::Live, fs.lookup(At::Live, Ino::ROOT, b"copied").unwrap().ino, 0, 4096).unwrap(), [0; 4096]);
    fs.close().unwrap();
    is_whole(&device);
    None
}

fn shorter(fs: &Fs, ino: Ino) -> Result<(), Error> {
    fs.setattr(ino, &SetAttr { size: Some(BLOCK), ..SetAttr::default() }).map(drop)
}

#[test]
fn a_full_volume_bears_that_very_much_is_cut_off() {
    assert_eq!(cut_off(shorter), None);
    assert_eq!(cut_off(punched), None);
}

#[test]
fn a_full_volume_bears_that_what_was_shared_here_and_there_is_swept() {
    assert_eq!(swept(), None);
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_cut_off_without_room_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let failed = with(Break::CutAtOnce, || cut_off(shorter));
    assert!(failed.is_some(), "there was room");
}
