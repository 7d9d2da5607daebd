//! P6: what stood for hours is in a checkpoint, whichever way it was committed; and a volume on which nothing happens cuts none.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Fs, MountOptions, SetAttr};
use nenrin_device::MemDevice;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;

/// What the background does in this time.
fn pass(w: &World, fs: &Fs, seconds: u64) {
    for _ in 0..seconds * 2 {
        w.pass(SECOND / 2);
        fs.tick().unwrap();
    }
}

fn saved(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    fs.write(ino, 0, data, 0).unwrap();
    fs.flush(ino).unwrap();
    fs.fsync_wait(ino).unwrap();
    ino
}

/// Whether the file can be had as it was, after it stood for as long as all checkpoints are kept, and was removed.
fn outlives_removal(w: &World, fs: &Fs, ino: Ino, name: &str, data: &[u8]) -> bool {
    pass(w, fs, 60);
    w.pass(1800 * SECOND);
    fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    pass(w, fs, 20);
    let is_it = |cno| fs.read(At::Past(cno), ino, 0, 1 << 20).is_ok_and(|read| read == data);
    fs.checkpoints().iter().any(|c| is_it(c.cno))
}

/// How what a truncation held back is committed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Half a minute has passed.
    Time,
    /// The file is synced, by a call that waits and by one that does not.
    Sync,
    Submitted,
    /// Everything is.
    SyncAll,
    /// Somebody else may read it afterwards.
    Granted,
    /// It is closed.
    Closed,
}

const ENDS: [End; 6] = [End::Time, End::Sync, End::Submitted, End::SyncAll, End::Granted, End::Closed];

/// A file is emptied and filled by who keeps it open, and meanwhile a checkpoint is cut, which shows what it was.
fn what_is_held_back(end: End) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let ino = saved(&fs, "f", b"old");
    pass(&w, &fs, 12);
    fs.retain(ino);
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.write(ino, 0, b"new and longer", 0).unwrap();
    pass(&w, &fs, 12);
    let last = fs.checkpoints().last().unwrap().cno;
    assert_eq!(fs.read(At::Past(last), ino, 0, 100).unwrap(), b"old", "it is held back");
    match end {
        End::Time => pass(&w, &fs, 40),
        End::Sync => {
            let (told, answer) = std::sync::mpsc::channel();
            fs.fsync(ino, Box::new(move |r| told.send(r).unwrap()));
            answer.recv().unwrap().unwrap();
        }
        End::Submitted => fs.submit_sync(ino).wait().unwrap(),
        End::SyncAll => fs.sync_all().unwrap(),
        End::Granted => {
            fs.setattr(ino, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap();
        }
        End::Closed => fs.flush(ino).unwrap(),
    }
    // Else it would be there after its removal, too, for who has it open.
    fs.release(ino);
    assert!(
        outlives_removal(&w, &fs, ino, "f", b"new and longer"),
        "{end:?}: what stood for hours is in no checkpoint"
    );
}

fn what_was_held_back_is_cut() {
    ENDS.into_iter().for_each(what_is_held_back);
}

#[test]
fn what_was_held_back_while_a_checkpoint_was_cut_is_in_the_next() {
    what_was_held_back_is_cut();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "is in no checkpoint")]
fn what_was_held_back_and_is_never_cut_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::HeldUncut, what_was_held_back_is_cut);
}

/// What is held back still when the volume is about to be closed is cut with the rest.
#[test]
fn what_is_held_back_at_the_end_is_cut() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let ino = saved(&fs, "f", b"old");
    pass(&w, &fs, 12);
    fs.retain(ino);
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.write(ino, 0, b"the last work", 0).unwrap();
    pass(&w, &fs, 12);
    fs.cut_at_end().unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    assert!(outlives_removal(&w, &fs, ino, "f", b"the last work"));
}

/// The volume as it is found after the power went.
fn after_a_cut(w: &World) -> World {
    let device = MemDevice::from_bytes(w.device.inner().snapshot());
    World { device: Arc::new(nenrin_device::Observed::new(device)), clock: w.clock.clone() }
}

/// A file is saved and synced right behind a checkpoint, and the power goes: before an index checkpoint, or after some.
fn what_is_saved_right_behind_a_checkpoint(idle: u64) {
    let w = World::new(64 << 20);
    let rarely = || MountOptions { checkpoint_nanos: 300 * SECOND, ..MountOptions::default() };
    let fs = w.open_with(rarely());
    saved(&fs, "other", b"other");
    fs.checkpoint_create(None).unwrap();
    pass(&w, &fs, 1);
    let ino = saved(&fs, "f", b"saved");
    pass(&w, &fs, idle);
    assert_eq!(fs.checkpoints().len(), 1);
    let w = after_a_cut(&w);
    drop(fs);
    let fs = w.open_with(rarely());
    pass(&w, &fs, 310);
    assert!(outlives_removal(&w, &fs, ino, "f", b"saved"), "what a mount found is in no checkpoint");
}

fn what_a_mount_found_is_cut() {
    [0, 40].into_iter().for_each(what_is_saved_right_behind_a_checkpoint);
}

#[test]
fn what_a_mount_found_behind_the_newest_checkpoint_is_in_the_next() {
    what_a_mount_found_is_cut();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what a mount found is in no checkpoint")]
fn what_a_mount_found_and_is_never_cut_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ReplayedUncut, what_a_mount_found_is_cut);
}

/// A file is saved while no checkpoints are cut, where one is kept or none, and the volume is closed; then it is mounted as usual.
fn what_a_clean_end_left(kept: bool) {
    let w = World::new(64 << 20);
    let never = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open_with(never());
    saved(&fs, "other", b"other");
    if kept {
        fs.checkpoint_create(None).unwrap();
    }
    let ino = saved(&fs, "f", b"saved");
    pass(&w, &fs, 20);
    fs.cut_at_end().unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    assert_eq!(fs.checkpoints().len(), usize::from(kept));
    assert!(outlives_removal(&w, &fs, ino, "f", b"saved"), "what a clean end left is in no checkpoint");
    fs.cut_at_end().unwrap();
    fs.close().unwrap();
    drop(fs);
    // What was removed may have gone behind the last one: once.
    let idle = || {
        let fs = w.open();
        pass(&w, &fs, 60);
        fs.cut_at_end().unwrap();
        let cut = fs.checkpoints_cut();
        fs.close().unwrap();
        cut
    };
    let settled = idle();
    assert_eq!((idle(), idle()), (settled, settled), "an idle volume");
}

fn what_clean_ends_left_is_cut() {
    [true, false].into_iter().for_each(what_a_clean_end_left);
}

#[test]
fn what_a_clean_end_left_behind_the_newest_checkpoint_is_in_the_next() {
    what_clean_ends_left_is_cut();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what a clean end left is in no checkpoint")]
fn what_a_clean_end_left_and_is_never_cut_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ReplayedUncut, what_clean_ends_left_is_cut);
}

/// One checkpoint at most is cut where nothing happens, after whatever end the mount before had; none after one that was clean, or where
/// the newest checkpoint comes last in the log.
#[test]
fn an_idle_volume_cuts_no_checkpoints() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let ino = saved(&fs, "f", b"old");
    fs.retain(ino);
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.write(ino, 0, b"new", 0).unwrap();
    pass(&w, &fs, 60);
    let settled = fs.checkpoints_cut();
    assert!(settled >= 2);
    pass(&w, &fs, 600);
    assert_eq!(fs.checkpoints_cut(), settled, "nothing has happened");
    saved(&fs, "g", b"more");
    let cut = after_a_cut(&w);
    let found = cut.open();
    pass(&cut, &found, 600);
    assert_eq!(found.checkpoints_cut(), settled + 1, "one after a power cut");
    found.cut_at_end().unwrap();
    found.close().unwrap();
    drop(found);
    let found = cut.open();
    pass(&cut, &found, 600);
    assert_eq!(found.checkpoints_cut(), settled + 1, "none after a clean end");
    // What comes last in the log is the checkpoint itself.
    pass(&w, &fs, 40);
    fs.setattr(ino, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    fs.checkpoint_create(None).unwrap();
    let settled = fs.checkpoints_cut();
    let cut = after_a_cut(&w);
    let found = cut.open();
    pass(&cut, &found, 600);
    assert_eq!(found.checkpoints_cut(), settled, "all that was found is in a checkpoint");
}
