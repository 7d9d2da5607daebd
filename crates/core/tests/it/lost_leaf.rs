//! P2, P4: a leaf of the index that was right when it was read, and went bad on the device before the index checkpoint
//! that writes its change, ends neither the volume nor what was synced: a mount shows all before that change, read-only,
//! and a repair brings back the rest.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::{BLOCK, CHANGED, CHANGES, Change, PIECES, piece, rot, rot_inner, rot_newest, volume};
use crate::common::{TestClock, World, dir, file};
use nenrin_core::check::{Finding, What, check};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::repair::{LossKind, RepairPlan, RepairReport};
use nenrin_core::{At, CheckOptions, Error, Fs, MkfsOptions, MountOptions, RenameMode, Result, SetAttr};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;

/// The device as it is now, apart from who uses it: after a cut.
pub(crate) fn cut(w: &World) -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes(w.device.inner().snapshot()))
}

/// Mounted so often that no root is left of before: an older one, with the log behind it, would lose nothing.
pub(crate) fn settle(w: &World) {
    (0..4).for_each(|_| w.open().close().unwrap());
}

fn mount(device: &Arc<MemDevice>, read_only: bool) -> Result<Arc<Fs>> {
    let options = MountOptions { read_only, ..MountOptions::default() };
    Fs::open(vec![device.clone()], Arc::new(TestClock::default()), options)
}

/// Mounted, whatever was lost; not written to, and it says what to do.
pub(crate) fn mounted_read_only(device: &Arc<MemDevice>, read_only: bool) -> Arc<Fs> {
    let before = device.snapshot();
    let fs = mount(device, read_only).unwrap_or_else(|e| panic!("no mount comes past what cannot be read: {e}"));
    let damage = fs.recovery_report().damage.clone().unwrap();
    assert!(
        damage.contains("damage at block") && damage.contains("check --repair") && !damage.contains('\n'),
        "{damage}"
    );
    assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
    assert!(before == device.snapshot(), "a mount of a damaged volume wrote to it");
    fs
}

/// What check finds of the index afterwards is nothing.
pub(crate) fn repaired(device: &Arc<MemDevice>) -> (Arc<Fs>, RepairReport) {
    let devices: [Arc<dyn BlockDevice>; 1] = [device.clone()];
    let plan = RepairPlan::new(&devices, &TestClock::default(), &mut |_| {}).unwrap();
    let report = plan.carry_out(Arc::new(TestClock::default())).unwrap();
    report.losses.iter().for_each(|l| println!("{l}"));
    let after = check(&devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    // What of the past no checkpoint sees any more is swept in time.
    let is_right = |f: &Finding| f.what.number() >= 700 || f.what == What::HistorySweepable;
    assert!(after.findings.iter().all(is_right), "{:?}", after.findings);
    let fs = mount(device, false).unwrap();
    assert!(fs.recovery_report().damage.is_none(), "{:?}", fs.recovery_report());
    (fs, report)
}

/// What is read of a file block; `None` where that is an error.
pub(crate) fn block(fs: &Fs, ino: Ino, n: u64) -> Option<Vec<u8>> {
    match fs.read(At::Live, ino, n * BLOCK, BLOCK_BYTES) {
        Ok(bytes) => Some(bytes),
        Err(Error::Damaged(..)) => None,
        Err(Error::Corrupt(why)) if why.contains("lost to damage") => None,
        Err(e) => panic!("block {n}: {e}"),
    }
}

/// Mounted: a leaf of `f` is read and goes bad, and one commit of `g` is in the log.
fn going_bad(w: &World, f: Ino, g: Ino) -> Arc<Fs> {
    let fs = w.open();
    assert_eq!(block(&fs, f, CHANGED).unwrap(), piece(CHANGED / 2));
    rot(w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
    fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    fs
}

/// The leaf is read, goes bad, is changed, and the change is in the log, with one before it and others behind it.
fn changed(change: Change, settled: bool) -> (World, Ino, Ino) {
    let (w, f, g) = volume();
    if settled {
        settle(&w);
    }
    let fs = going_bad(&w, f, g);
    change(&fs, f).unwrap();
    fs.fsync_wait(f).unwrap();
    fs.write(g, 0, &[3; BLOCK_BYTES], 0).unwrap();
    let h = fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap().ino;
    fs.write(h, 0, &[4; 9000], 0).unwrap();
    fs.sync_all().unwrap();
    (w, f, g)
}

/// All up to the last commit before the change, no part of the change, and nothing behind it.
fn assert_before(fs: &Fs, f: Ino, g: Ino, what: &str) {
    assert_eq!(block(fs, g, 0).unwrap(), [2; BLOCK_BYTES], "{what}");
    assert!(matches!(fs.lookup(At::Live, Ino::ROOT, b"h"), Err(Error::NotFound)), "{what}");
    let mut lost = 0;
    for n in 0..PIECES {
        match block(fs, f, n * 2) {
            Some(bytes) => assert!(bytes == piece(n), "{what}: piece {n} is of another commit"),
            None => lost += 1,
        }
    }
    assert!((1..PIECES / 2).contains(&lost), "{what}: {lost} pieces are lost");
}

/// All but what the leaf held, with what was written to it since, and never zeros for it.
fn assert_repaired(fs: &Fs, f: Ino, g: Ino, what: &str) {
    assert_eq!(block(fs, g, 0).unwrap(), [3; BLOCK_BYTES], "{what}");
    let h = fs.lookup(At::Live, Ino::ROOT, b"h").unwrap();
    assert_eq!(fs.read(At::Live, h.ino, 0, 10_000).unwrap(), [4; 9000], "{what}");
    let size = fs.getattr(At::Live, f).unwrap().size;
    assert_eq!(size == CHANGED * BLOCK, what == "a truncation", "{what}: {size}");
    let written = |n: u64| what == "a block" && n == CHANGED / 2 || what == "many blocks" && n % 6 == 0;
    let mut lost = 0;
    for n in 0..size / BLOCK / 2 {
        match block(fs, f, n * 2) {
            Some(bytes) if written(n) => assert!(bytes == [9; BLOCK_BYTES], "{what}: piece {n} lacks the change"),
            Some(bytes) => assert!(bytes == piece(n), "{what}: piece {n} is {}", bytes[0]),
            None => {
                assert!(!written(n), "{what}: piece {n} was written and is lost");
                lost += 1;
            }
        }
    }
    assert!((1..PIECES / 2).contains(&lost), "{what}: {lost} pieces are lost");
}

fn no_lost_leaf_ends_a_volume() {
    for (what, change) in CHANGES {
        let (w, f, g) = changed(change, true);
        let device = cut(&w);
        for read_only in [true, false] {
            assert_before(&mounted_read_only(&device, read_only), f, g, what);
        }
        let (fs, report) = repaired(&device);
        assert!(report.losses.iter().any(|l| l.kind == LossKind::RangeLost && l.path.as_deref() == Some(b"/f")));
        assert!(report.losses.iter().all(|l| l.kind != LossKind::ChangeLost), "{what}: {:?}", report.losses);
        assert_repaired(&fs, f, g, what);
        [f, g].iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[5; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES));
        fs.close().unwrap();
        assert_eq!(block(&mount(&device, false).unwrap(), f, 0).unwrap(), [5; BLOCK_BYTES]);
    }
}

#[test]
fn a_leaf_that_is_lost_before_its_change_is_written_ends_no_volume() {
    no_lost_leaf_ends_a_volume();
}

/// A root of before the leaf, and the log behind that: a repair starts there.
#[test]
fn nothing_is_lost_where_the_log_still_has_it_all() {
    let (what, change) = CHANGES[0];
    let (w, f, g) = changed(change, false);
    let device = cut(&w);
    assert_before(&mounted_read_only(&device, false), f, g, what);
    let (fs, report) = repaired(&device);
    assert!(report.losses.is_empty(), "{:?}", report.losses);
    assert_eq!(block(&fs, g, 0).unwrap(), [3; BLOCK_BYTES]);
    for n in 0..PIECES {
        let is = block(&fs, f, n * 2).unwrap();
        assert!(is == if n * 2 == CHANGED { [9; BLOCK_BYTES] } else { piece(n) }, "piece {n}");
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "is of another commit")]
fn a_commit_that_is_shown_by_half_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::StoppedWithin, no_lost_leaf_ends_a_volume);
}

/// The leaf held a directory and a file: what was made in the one and written to the other since is in the log.
fn what_is_made_in_a_lost_directory_is_kept() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let make = |name: String| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[1; 2 * BLOCK_BYTES], 0).unwrap();
        ino
    };
    let first = make("first".into());
    (0..1000).for_each(|i| assert!(make(format!("before {i}")) > first));
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino;
    let [x, old] = ["x", "old"].map(|name| make(name.into()));
    (0..1000).for_each(|i| assert!(make(format!("behind {i}")) > x));
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    let fs = w.open();
    assert_eq!(block(&fs, x, 1).unwrap(), [1; BLOCK_BYTES]);
    assert_eq!(block(&fs, old, 1).unwrap(), [1; BLOCK_BYTES]);
    rot(&w, |key| [d, x, old].contains(&Ino(key.ino)) && key.kind == Kind::Inode);
    let new = fs.create(d, b"new", &file(0o640)).unwrap().ino;
    fs.write(new, 0, &[2; 9000], 0).unwrap();
    fs.write(x, BLOCK, &[3; BLOCK_BYTES], 0).unwrap();
    // As a program saves: the name is that of a lost inode until then.
    let saved = fs.create(Ino::ROOT, b"old.tmp", &file(0o600)).unwrap().ino;
    fs.write(saved, 0, &[5; 9000], 0).unwrap();
    fs.rename(Ino::ROOT, b"old.tmp", Ino::ROOT, b"old", RenameMode::Replace).unwrap();
    fs.write(first, 0, &[4; BLOCK_BYTES], 0).unwrap();
    fs.sync_all().unwrap();
    let device = cut(&w);
    let was = mounted_read_only(&device, false);
    assert_eq!(block(&was, first, 0).unwrap(), [1; BLOCK_BYTES]);
    drop(was);
    let (fs, report) = repaired(&device);
    assert_eq!(block(&fs, first, 0).unwrap(), [4; BLOCK_BYTES]);
    let path = fs.lookup(At::Live, Ino::ROOT, b"d").and_then(|d| fs.lookup(At::Live, d.ino, b"new"));
    let found = path.unwrap_or_else(|e| panic!("what was made in a lost directory is gone: {e}"));
    assert_eq!((found.ino, found.mode & 0o7777), (new, 0o640));
    assert_eq!(fs.read(At::Live, new, 0, 10_000).unwrap(), [2; 9000]);
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"old").map(|a| a.ino).unwrap(), saved);
    assert_eq!(fs.read(At::Live, saved, 0, 10_000).unwrap(), [5; 9000]);
    assert!(matches!(fs.lookup(At::Live, Ino::ROOT, b"old.tmp"), Err(Error::NotFound)));
    let found = fs.lookup(At::Live, Ino::ROOT, b"lost+found").unwrap().ino;
    assert!(fs.lookup(At::Live, found, format!("#{old}").as_bytes()).is_err(), "what was replaced is back");
    // No name vouches for the rest of it, and where it is lost it is no zeros.
    assert!(matches!(fs.lookup(At::Live, Ino::ROOT, b"x"), Err(Error::NotFound)));
    assert_eq!(block(&fs, x, 1).unwrap(), [3; BLOCK_BYTES]);
    assert!(block(&fs, x, 0).is_none_or(|b| b == [1; BLOCK_BYTES]), "a lost range reads as zeros");
    assert!(report.losses.iter().all(|l| l.kind != LossKind::ChangeLost), "{:?}", report.losses);
    fs.close().unwrap();
}

#[test]
fn what_is_made_where_a_leaf_is_lost_is_kept() {
    what_is_made_in_a_lost_directory_is_kept();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was made in a lost directory is gone")]
fn what_is_made_where_a_leaf_is_lost_and_let_go_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LostNotRegained, what_is_made_in_a_lost_directory_is_kept);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a lost range reads as zeros")]
fn what_is_found_and_reads_as_zeros_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::FoundReadsZeros, what_is_made_in_a_lost_directory_is_kept);
}

/// What was forgotten behind the record that cannot be applied: the past does not show it.
#[test]
fn what_was_forgotten_behind_a_lost_leaf_is_not_shown() {
    for forgotten in [false, true] {
        let (w, f, g) = volume();
        let fs = w.open();
        let z = fs.create(Ino::ROOT, b"z", &file(0o600)).unwrap().ino;
        fs.write(z, 0, &[7; 9000], 0).unwrap();
        let kept = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
        fs.unlink(Ino::ROOT, b"z").unwrap();
        fs.close().unwrap();
        drop(fs);
        settle(&w);
        let fs = going_bad(&w, f, g);
        fs.write(f, CHANGED * BLOCK, &[9; BLOCK_BYTES], 0).unwrap();
        fs.fsync_wait(f).unwrap();
        if forgotten {
            assert_eq!(crate::forget::forget(&fs, &[b"z"]).unwrap(), 1);
        }
        let fs = mounted_read_only(&cut(&w), false);
        let names = fs.lookup(At::Past(kept), Ino::ROOT, b"z").is_ok();
        let content = fs.read(At::Past(kept), z, 0, 10);
        assert_eq!((names, content.is_ok()), (!forgotten, !forgotten), "{content:?}");
        assert!(fs.lookup(At::Past(kept), Ino::ROOT, b"g").is_ok());
    }
}

/// The same of versions that only landmarks keep.
fn no_landmark_of_what_was_forgotten_is_shown() {
    for forgotten in [false, true] {
        let (w, f, g) = volume();
        let (book, versions) = crate::landmarks::with_versions_of_a_book(&w);
        settle(&w);
        let fs = going_bad(&w, f, g);
        fs.write(f, CHANGED * BLOCK, &[9; BLOCK_BYTES], 0).unwrap();
        fs.fsync_wait(f).unwrap();
        if forgotten {
            assert_eq!(crate::forget::forget(&fs, &[b"work", b"book"]).unwrap(), 1);
        }
        let fs = mounted_read_only(&cut(&w), false);
        let shown = fs.landmarks().iter().filter(|l| l.ino == book).count();
        assert_eq!(shown, if forgotten { 0 } else { versions.len() }, "landmarks of what was forgotten");
        for cno in versions {
            assert_eq!(fs.read(At::Past(cno), book, 0, 10).is_ok(), !forgotten, "{cno:?}");
        }
    }
}

#[test]
fn landmarks_of_what_was_forgotten_behind_a_lost_leaf_are_not_shown() {
    no_landmark_of_what_was_forgotten_is_shown();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "landmarks of what was forgotten")]
fn landmarks_that_are_shown_of_what_was_forgotten_are_noticed() {
    nenrin_core::breaks::with(
        nenrin_core::breaks::Break::LandmarksNotHidden,
        no_landmark_of_what_was_forgotten_is_shown,
    );
}

/// All inner nodes of a history tree are lost: the index is written all the same, also by who mounts.
#[test]
fn lost_inner_nodes_keep_no_index_from_being_written() {
    let w = World::with(64 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open_with(options());
    let files: Vec<Ino> =
        (0..1500).map(|i| fs.create(Ino::ROOT, format!("file {i}").as_bytes(), &file(0o600)).unwrap().ino).collect();
    for mode in 0..4 {
        fs.checkpoint_create(None).unwrap();
        for ino in &files {
            fs.setattr(*ino, &SetAttr { mode: Some(0o600 + mode), ..SetAttr::default() }).unwrap();
        }
    }
    fs.close().unwrap();
    drop(fs);
    // So many index segments are sparse then that they are tidied.
    (0..6).for_each(|_| w.open_with(options()).close().unwrap());
    // What is replaced from now on needs no place in the past.
    let fs = w.open_with(options());
    let all: Vec<_> = fs.checkpoints().iter().map(|c| c.cno).collect();
    fs.checkpoint_drop(&all).unwrap();
    fs.close().unwrap();
    drop(fs);
    rot_inner(&w);
    let device = cut(&w);
    let fs = Fs::open(vec![device.clone()], w.clock.clone(), options())
        .unwrap_or_else(|e| panic!("a lost inner node keeps the volume from being mounted: {e}"));
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap().ino;
    fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
    fs.sync_all().unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = mount(&device, false).unwrap();
    assert!(fs.recovery_report().clean, "{:?}", fs.recovery_report());
    assert_eq!(block(&fs, g, 0).unwrap(), [2; BLOCK_BYTES]);
}

/// The leaf with the root directory went bad: the root before, with the log behind it, has all that was; where it is lost in both a mount
/// writes nothing, so that a repair finds what it would have found before.
fn the_root_directory_is_lost() {
    let (w, f, _) = volume();
    let of_root = |key: &Key| key.ino == Ino::ROOT.0 && key.kind == Kind::Inode && key.death == 0;
    settle(&w);
    let fs = w.open();
    fs.setattr(Ino::ROOT, &SetAttr { mode: Some(0o750), ..SetAttr::default() }).unwrap();
    fs.close().unwrap();
    drop(fs);
    rot_newest(&w, of_root);
    let device = cut(&w);
    let fs = mount(&device, false).unwrap();
    let found = fs.lookup(At::Live, Ino::ROOT, b"f").map(|f| f.ino);
    assert!(matches!(found, Ok(ino) if ino == f), "all names are gone: {found:?}");
    fs.close().unwrap();
    drop(fs);
    rot(&w, of_root);
    mounted_read_only(&cut(&w), false);
}

#[test]
fn a_lost_root_directory_is_noticed_before_anything_is_written() {
    the_root_directory_is_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "all names are gone")]
fn a_root_directory_that_is_not_looked_for_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RootUnread, the_root_directory_is_lost);
}
