//! P4: leaves of the space tree are lost in both copies and for both roots: what lives is shown, read-only, and a repair
//! counts anew what they held. Nothing that is needed is taken for free.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::rot;
use crate::common::{TestClock, World, file};
use crate::lost_leaf::{cut, mounted_read_only, repaired, settle};
use nenrin_core::format::key::Kind;
use nenrin_core::format::{BLOCK_BYTES, Cno, Ino};
use nenrin_core::repair::LossKind;
use nenrin_core::{At, CheckpointInfo, Error, Fs, MountOptions};
use std::sync::Arc;

const FILES: u64 = 200;

/// What a file holds in the end.
fn content(i: u64) -> Vec<u8> {
    vec![(i % 250) as u8 + 1; 3 * BLOCK_BYTES]
}

fn assert_content(fs: &Fs, files: &[Ino], logged: bool, what: &str) {
    for (i, ino) in (0..).zip(files) {
        let expected = if logged && i % 10 == 0 { content(i + 1) } else { content(i) };
        let is = fs.read(At::Live, *ino, 0, 4 * BLOCK_BYTES).unwrap_or_else(|e| panic!("{what}: file {i}: {e}"));
        assert!(is == expected, "{what}: file {i} is another");
    }
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"new").is_ok(), logged, "{what}");
}

/// Files with a past and a snapshot; some was written since the last checkpoint of the index, or not. Then all leaves of
/// the space tree that there are go bad.
fn without_space(logged: bool) -> (World, Vec<Ino>, Cno) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let make = |i: u64| {
        let ino = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &content(i + 7), 0).unwrap();
        ino
    };
    let files: Vec<Ino> = (0..FILES).map(make).collect();
    let cno = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    (0..).zip(&files).for_each(|(i, ino)| assert_eq!(fs.write(*ino, 0, &content(i), 0).unwrap(), 3 * BLOCK_BYTES));
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    if logged {
        let fs = w.open();
        for (i, ino) in (0..).zip(&files).step_by(10) {
            fs.write(*ino, 0, &content(i + 1), 0).unwrap();
        }
        fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
        fs.sync_all().unwrap();
        std::mem::forget(fs);
    }
    rot(&w, |key| key.kind as u8 >= Kind::Segment as u8);
    (w, files, cno)
}

fn no_lost_space_ends_a_volume() {
    for logged in [false, true] {
        let (w, files, cno) = without_space(logged);
        let device = cut(&w);
        for read_only in [true, false] {
            let fs = mounted_read_only(&device, read_only);
            assert_content(&fs, &files, logged, "read-only");
            assert_no_past(&fs, files[0], cno);
        }
        let options = MountOptions { no_recovery: true, read_only: true, ..MountOptions::default() };
        let fs = Fs::open(vec![device.clone()], Arc::new(TestClock::default()), options).unwrap();
        assert_content(&fs, &files, false, "norecovery");
        drop(fs);
        let (fs, report) = repaired(&device);
        assert!(report.losses.iter().any(|l| l.kind == LossKind::CheckpointsLost), "{:?}", report.losses);
        assert_content(&fs, &files, logged, "repaired");
        fill(&fs);
        assert_content(&fs, &files, logged, "filled");
        fs.close().unwrap();
    }
}

fn assert_no_past(fs: &Fs, file: Ino, cno: Cno) {
    let past = fs.read(At::Past(cno), file, 0, 10);
    assert!(past.is_err() && fs.checkpoints().is_empty(), "the past is shown: {past:?}");
}

/// The last leaf of the space tree, in which there would be what is to be forgotten; checkpoints are in others, too.
fn no_past_where_something_may_be_forgotten() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let mut all = Vec::new();
    for i in 0..700 {
        fs.write(f, 0, &content(i), 0).unwrap();
        all.push(
            fs.checkpoint_create(Some(format!("a snapshot with a name of some length {i}").as_bytes())).unwrap().cno,
        );
        if i == 200 {
            assert_eq!(fs.write(f, 0, &content(i + 1), 0).unwrap(), 3 * BLOCK_BYTES);
            fs.checkpoint_create(None).unwrap();
        }
    }
    let is_unnamed = |c: &CheckpointInfo| c.name.is_none();
    assert!(fs.checkpoints().iter().any(is_unnamed));
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    rot(&w, |key| key.kind == Kind::Checkpoint && key.off == all[699].0);
    let device = cut(&w);
    let fs = mounted_read_only(&device, false);
    assert!(fs.read(At::Live, f, 0, 4 * BLOCK_BYTES).unwrap() == content(699));
    assert_no_past(&fs, f, all[0]);
    drop(fs);
    let (fs, report) = repaired(&device);
    assert!(report.losses.iter().any(|l| l.kind == LossKind::CheckpointsLost && l.text.contains("forgotten again")));
    let kept = fs.checkpoints();
    assert!(kept.len() > 50 && kept.len() < 700, "{}", kept.len());
    assert!(!kept.iter().any(is_unnamed), "a checkpoint is kept of which something may be shed");
    assert!(report.losses.iter().any(|l| l.kind == LossKind::CheckpointsLost && l.text.contains("without a name go")));
    for (i, cno) in (0..).zip(&all).filter(|(_, cno)| kept.iter().any(|c| c.cno == **cno)) {
        assert!(fs.read(At::Past(*cno), f, 0, 4 * BLOCK_BYTES).unwrap() == content(i), "snapshot {i} is another");
    }
    fs.close().unwrap();
}

#[test]
fn nothing_of_the_past_is_shown_that_may_be_forgotten() {
    no_past_where_something_may_be_forgotten();
}

/// All that counts as free is written to.
fn fill(fs: &Fs) {
    let big = fs.create(Ino::ROOT, b"all the rest", &file(0o600)).unwrap().ino;
    for i in 0..64u64 << 4 {
        match fs.write(big, i << 16, &[0xee; 1 << 16], 0).and_then(|_| fs.fsync_wait(big)) {
            Ok(()) => {}
            Err(Error::NoSpace) => return,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the volume does not fill");
}

#[test]
fn leaves_of_the_space_tree_that_are_lost_end_no_volume() {
    no_lost_space_ends_a_volume();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "no mount comes past what cannot be read")]
fn leaves_of_the_space_tree_that_end_a_volume_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SpaceEnds, no_lost_space_ends_a_volume);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the past is shown")]
fn a_past_of_which_something_may_be_forgotten_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SpacelessPast, no_past_where_something_may_be_forgotten);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a checkpoint is kept of which something may be shed")]
fn a_checkpoint_of_which_something_may_be_shed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ShedUnknown, no_past_where_something_may_be_forgotten);
}

/// The leaf that is lost forbids nothing, but the log may.
#[test]
fn nothing_of_the_past_is_shown_where_the_log_is_not_applied() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let make = |i: u64| {
        fs.write(f, 0, &content(i), 0).unwrap();
        fs.checkpoint_create(Some(format!("a snapshot with a name of some length {i}").as_bytes())).unwrap().cno
    };
    let all: Vec<Cno> = (0..700).map(make).collect();
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    rot(&w, |key| key.kind == Kind::Checkpoint && key.off == all[0].0);
    let device = cut(&w);
    let last = all[699];
    let fs = mounted_read_only(&device, false);
    assert!(fs.read(At::Past(last), f, 0, 4 * BLOCK_BYTES).unwrap() == content(699));
    drop(fs);
    let options = MountOptions { no_recovery: true, read_only: true, ..MountOptions::default() };
    assert_no_past(&Fs::open(vec![device], Arc::new(TestClock::default()), options).unwrap(), f, last);
}
