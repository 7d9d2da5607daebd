//! Large content that was cut off, and is not reaped yet when its file is removed: it is gone since it was cut off.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, Fs, MountOptions, RepairPlan, SetAttr};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;

/// Blocks of a file that are so many that cutting them off is left to the reaper.
const MANY: usize = 1536;
/// How often the file is emptied.
const FORKS: usize = 2;

fn options() -> MountOptions {
    MountOptions { checkpoint_nanos: 0, ..MountOptions::default() }
}

fn put(fs: &Fs, ino: Ino, blocks: usize, byte: u8) {
    for at in (0..blocks).step_by(256) {
        let bytes = vec![byte; (blocks - at).min(256) * 4096];
        fs.write(ino, at as u64 * 4096, &bytes, 0).unwrap();
    }
    fs.fsync_wait(ino).unwrap();
}

/// A file that was filled and emptied, again and again, and has so many blocks when the snapshot is made; then it is removed by `remove`.
fn emptied_and_removed(blocks: usize, remove: impl FnOnce(&Fs)) -> (World, Arc<Fs>, Cno) {
    let w = World::new(96 << 20);
    let fs = w.open_with(options());
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for i in 0..FORKS {
        put(&fs, ino, MANY, i as u8 + 1);
        fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    put(&fs, ino, blocks, 9);
    let snapshot = fs.checkpoint_create(Some(b"snap")).unwrap().cno;
    remove(&fs);
    fs.sync_all().unwrap();
    (w, fs, snapshot)
}

fn unlink(fs: &Fs) {
    fs.unlink(Ino::ROOT, b"f").unwrap();
}

fn copy(w: &World) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::from_bytes(w.device.inner().snapshot()))
}

/// Nothing is wrong, and nothing to be repaired.
fn is_sound(w: &World) {
    let device = copy(w);
    let report = check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
    assert!(!RepairPlan::new(&[device], w.clock.as_ref(), &mut |_| {}).unwrap().report().needed);
}

/// Blocks that are kept once all is reaped.
fn kept(w: &World, fs: Arc<Fs>, snapshot: Cno, blocks: usize) -> u64 {
    for _ in 0..200 {
        w.pass(100_000_000);
        fs.tick().unwrap();
    }
    is_sound(w);
    let usage = fs.usage();
    assert_eq!((usage.inodes, usage.live_blocks < 100), (1, true), "{usage:?}");
    let f = fs.lookup(At::Past(snapshot), Ino::ROOT, b"f").unwrap();
    let content = fs.read(At::Past(snapshot), f.ino, 0, (blocks + 1) * 4096).unwrap();
    assert!(content == vec![9; blocks * 4096], "{} bytes", content.len());
    fs.close().unwrap();
    is_sound(w);
    usage.history_blocks
}

/// Nothing, what goes with the name, and so much that it is left to the reaper.
const SIZES: [usize; 3] = [0, 600, 3072];

#[test]
fn what_was_cut_off_before_a_snapshot_is_not_kept_by_it() {
    for blocks in SIZES {
        let (w, fs, snapshot) = emptied_and_removed(blocks, unlink);
        is_sound(&w);
        assert_eq!(kept(&w, fs, snapshot, blocks), blocks as u64);
    }
}

/// As long as it is in use it stays, and goes as an orphan.
#[test]
fn the_same_of_a_file_that_was_in_use_when_it_lost_its_name() {
    for blocks in SIZES {
        let (w, fs, snapshot) = emptied_and_removed(blocks, |fs| {
            let ino = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
            fs.retain(ino);
            unlink(fs);
            fs.release(ino);
        });
        is_sound(&w);
        assert_eq!(kept(&w, fs, snapshot, blocks), blocks as u64);
    }
}

/// The log says all of it again, and the reaper goes on behind a cut or an unmount.
#[test]
fn reaping_goes_on_after_a_mount() {
    for (blocks, closed) in SIZES.into_iter().flat_map(|blocks| [(blocks, false), (blocks, true)]) {
        let (w, fs, snapshot) = emptied_and_removed(blocks, unlink);
        if closed {
            fs.close().unwrap();
        }
        is_sound(&w);
        let fs = w.open_with(options());
        assert_eq!(kept(&w, fs, snapshot, blocks), blocks as u64);
    }
}

#[cfg(feature = "breaks")]
mod broken {
    use super::*;
    use nenrin_core::breaks::{Break, with};

    #[test]
    fn what_dies_with_its_file_is_noticed() {
        let (w, fs, snapshot) = with(Break::OldForksDieLate, || emptied_and_removed(600, unlink));
        assert_eq!(kept(&w, fs, snapshot, 600), 600 + (FORKS * MANY) as u64);
    }

    /// Volumes on which that was so: what was to be reaped at an unmount, and logs with all or some of the steps.
    #[test]
    fn volumes_on_which_it_died_with_its_file_go_on() {
        for blocks in SIZES {
            let (w, fs, snapshot) = with(Break::OldForksDieLate, || emptied_and_removed(blocks, unlink));
            fs.close().unwrap();
            is_sound(&w);
            let all = (blocks + FORKS * MANY) as u64;
            assert_eq!(kept(&w, w.open_with(options()), snapshot, blocks), all);
            for ticks in [1, 100] {
                let (w, fs, snapshot) = with(Break::OldForksDieLate, || emptied_and_removed(blocks, unlink));
                for _ in 0..ticks {
                    w.pass(100_000_000);
                    with(Break::OldForksDieLate, || fs.tick().unwrap());
                }
                with(Break::OldForksDieLate, || fs.sync_all().unwrap());
                is_sound(&w);
                let left = kept(&w, w.open_with(options()), snapshot, blocks);
                assert!((blocks as u64..=all).contains(&left), "{left}");
            }
        }
    }
}
