//! P5: a leaf of the index that is lost in both copies keeps what it held from going, and nothing else: what is removed, let go
//! and swept in the background is read before it is recorded, and what cannot be read is passed over.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::{BLOCK, CHANGED, PIECES, piece, rot, volume};
use crate::common::{World, dir, file};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::node::{Entries, TreeId, decode, first_key};
use nenrin_core::format::{BLOCK_BYTES, Ino, NODE_BYTES};
use nenrin_core::{At, Error, Fs, MountOptions, RenameMode, SetAttr, XattrMode};
use nenrin_device::{MemDevice, Observed};
use std::sync::Arc;

const TICK: u64 = 100_000_000;

fn open(w: &World) -> Arc<Fs> {
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    Fs::open(vec![w.device.clone()], w.clock.clone(), options)
        .unwrap_or_else(|e| panic!("what cannot be read keeps others from being mounted: {e}"))
}

/// For longer than what was passed over rests; what cannot be read may be told.
fn ticks(w: &World, fs: &Fs) {
    for _ in 0..700 {
        w.pass(TICK);
        match fs.tick() {
            Ok(()) | Err(Error::Damaged(..)) => {}
            Err(e) => panic!("what cannot be read ends all writing: {e}"),
        }
    }
    assert_eq!(fs.failed(), None);
}

/// Others are written and synced, and after the next mount, too.
fn assert_goes_on(w: &World, fs: Arc<Fs>, g: Ino) {
    fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = open(w);
    assert!(fs.recovery_report().damage.is_none(), "{:?}", fs.recovery_report());
    ticks(w, &fs);
    assert_eq!(fs.read(At::Live, g, 0, 9000).unwrap(), [2; BLOCK_BYTES]);
    fs.write(g, 0, &[3; BLOCK_BYTES], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    fs.close().unwrap();
}

fn blocks(fs: &Fs) -> u32 {
    fs.segments().iter().map(|s| s.live_blocks + s.history_blocks).sum()
}

/// All keys of backward references that the device has, in order.
pub(crate) fn backrefs(w: &World) -> Vec<Key> {
    let bytes = w.device.inner().snapshot();
    let mut all = Vec::new();
    for node in bytes.windows(NODE_BYTES).step_by(BLOCK_BYTES) {
        let Ok((head, _)) = first_key(node) else { continue };
        let Ok((_, Entries::Leaf(items))) = decode(TreeId(head.tree.get()), node) else { continue };
        all.extend(items.iter().map(|(key, _)| *key).filter(|key| key.kind == Kind::Backref));
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn in_pieces(fs: &Fs, ino: Ino, pieces: u64) {
    for n in 0..pieces {
        fs.write(ino, n * 2 * BLOCK, &piece(n), 0).unwrap();
    }
}

/// A file with a lost leaf is removed, and another one behind it.
fn a_file_with_a_lost_leaf_is_removed() {
    let (w, f, g) = volume();
    let fs = open(&w);
    let h = fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap().ino;
    in_pieces(&fs, h, 100);
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
    let fs = open(&w);
    let before = blocks(&fs);
    [&b"f"[..], b"h"].iter().for_each(|name| fs.unlink(Ino::ROOT, name).unwrap());
    fs.sync_all().unwrap();
    ticks(&w, &fs);
    // What is before the leaf goes, and all of the other file.
    let (left, pieces) = (blocks(&fs), PIECES as u32);
    assert!(left < before - 100 && (pieces / 4..pieces / 4 * 3).contains(&left), "{left} blocks of {before}");
    assert_goes_on(&w, fs, g);
}

#[test]
fn removing_a_file_with_a_lost_leaf_ends_nothing() {
    a_file_with_a_lost_leaf_is_removed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read ends all writing")]
fn what_is_reaped_unread_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, a_file_with_a_lost_leaf_is_removed);
}

/// What is removed after something was passed over does not wait for it, wherever it comes in the order of what is reaped.
#[test]
fn what_is_removed_later_does_not_rest_with_what_was_passed_over() {
    let (w, f, g) = volume_of_many();
    let fs = open(&w);
    let h = fs.lookup(At::Live, Ino::ROOT, b"before 7").unwrap().ino;
    in_pieces(&fs, f, 4000);
    in_pieces(&fs, h, 100);
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, 7000));
    let fs = open(&w);
    let some_ticks = || {
        let told = (0..20).filter(|_| {
            w.pass(TICK);
            fs.tick().is_err()
        });
        told.count()
    };
    fs.unlink(Ino::ROOT, b"f").unwrap();
    assert!(some_ticks() > 0, "nothing was passed over");
    let before = blocks(&fs);
    fs.unlink(Ino::ROOT, b"before 7").unwrap();
    some_ticks();
    let left = blocks(&fs);
    assert!(left + 100 <= before, "{left} blocks of {before} are left");
    assert_goes_on(&w, fs, g);
}

/// The leaf of what is looked at when a file goes with its last name, and does not go with it.
#[test]
fn a_file_goes_up_to_a_leaf_that_is_lost() {
    let w = World::new(128 << 20);
    let fs = open(&w);
    let make = |name: String| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    let files: Vec<Ino> = (0..1400).map(|i| make(format!("f{i}"))).collect();
    files.iter().for_each(|ino| in_pieces(&fs, *ino, 9 + ino.0 % 11));
    let g = make("g".into());
    fs.write(g, 0, &[1; BLOCK_BYTES], 0).unwrap();
    fs.close().unwrap();
    drop(fs);
    let bytes = w.device.inner().snapshot();
    // Its first eight extents go with it.
    let begins = |node: &[u8]| match first_key(node).map(|(_, key)| key) {
        Ok(Some(key)) if key == Key::new(Ino(key.ino), Kind::Extent, 0, 16) => Some(key),
        _ => None,
    };
    let candidates: Vec<Key> = bytes.windows(NODE_BYTES).step_by(BLOCK_BYTES).filter_map(begins).collect();
    let mut tried = 0;
    for key in &candidates {
        let device = Arc::new(Observed::new(MemDevice::from_bytes(bytes.clone())));
        let w = World { device, clock: w.clock.clone() };
        rot(&w, |k| k == key);
        let fs = open(&w);
        let reads = |block: u64| fs.read(At::Live, Ino(key.ino), block * BLOCK, BLOCK_BYTES).is_ok();
        if !reads(14) || reads(16) {
            continue;
        }
        tried += 1;
        let at = files.iter().position(|ino| ino.0 == key.ino).unwrap();
        fs.unlink(Ino::ROOT, format!("f{at}").as_bytes()).unwrap();
        ticks(&w, &fs);
        assert_goes_on(&w, fs, g);
    }
    assert!(tried > 0, "{candidates:?}");
}

/// A closed volume with many directories, each with two files, and of which each was something else before; and a file.
fn volume_of_directories() -> (World, Vec<Ino>, Ino) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let make = |i: usize| fs.create(Ino::ROOT, format!("d{i}").as_bytes(), &dir()).unwrap().ino;
    let dirs: Vec<Ino> = (0..1000).map(make).collect();
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap().ino;
    for name in [&b"one"[..], b"two"] {
        dirs.iter().for_each(|d| assert!(fs.create(*d, name, &file(0o600)).is_ok()));
        fs.checkpoint_create(Some(name)).unwrap();
    }
    fs.close().unwrap();
    (w, dirs, g)
}

/// Where a directory, as it was, has no place in the past, its names stay as they are.
#[test]
fn names_of_a_directory_with_a_lost_past_are_refused() {
    let (w, dirs, g) = volume_of_directories();
    let d = dirs[500];
    rot(&w, |key| key.ino == d.0 && key.kind == Kind::Inode && key.death > 0);
    let fs = open(&w);
    let other = dirs[0];
    let rename = |from, to| fs.rename(from, b"one", to, b"three", RenameMode::Replace);
    let one = fs.lookup(At::Live, other, b"one").unwrap().ino;
    let refused = [
        fs.unlink(d, b"one"),
        rename(d, other),
        rename(other, d),
        fs.rename(d, b"one", other, b"one", RenameMode::Exchange),
        fs.create(d, b"three", &file(0o600)).map(drop),
        fs.link(one, d, b"three").map(drop),
        fs.setattr(d, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).map(drop),
    ];
    for (i, outcome) in refused.iter().enumerate() {
        assert!(matches!(outcome, Err(Error::Damaged(..))), "{i}: {outcome:?}");
    }
    rename(other, dirs[999]).unwrap();
    assert_eq!(fs.failed(), None);
    assert_goes_on(&w, fs, g);
}

/// Many files before `f`, so that what it has lies in leaves without the root directory.
fn volume_of_many() -> (World, Ino, Ino) {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let make = |name: String| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    for i in 0..2000 {
        make(format!("before {i}"));
    }
    let f = make("f".into());
    // The first blocks lie in another leaf than the inode, among the first items all the same.
    fs.setxattr(f, b"user.large", &[7; 60_000], XattrMode::Any).unwrap();
    in_pieces(&fs, f, 500);
    for i in 0..1000 {
        make(format!("behind {i}"));
    }
    let g = make("g".into());
    fs.write(g, 0, &[1; BLOCK_BYTES], 0).unwrap();
    fs.close().unwrap();
    (w, f, g)
}

/// A piece of a large attribute is lost, or its place in the past.
fn an_attribute_cannot_be_changed() {
    for past in [false, true] {
        let (w, f, g) = volume_of_many();
        if past {
            let fs = open(&w);
            for n in 0..2 {
                fs.checkpoint_create(Some(&[b'a' + n])).unwrap();
                fs.setxattr(f, b"user.large", &[n; 60_000], XattrMode::Any).unwrap();
            }
            fs.checkpoint_create(Some(b"c")).unwrap();
            fs.close().unwrap();
        }
        rot(&w, |key| key.ino == f.0 && (key.kind, key.fork) == (Kind::Xattr, 7) && (key.death > 0) == past);
        let fs = open(&w);
        let large = |bytes| fs.setxattr(f, b"user.large", bytes, XattrMode::Any);
        let before = fs.getattr(At::Live, f).unwrap();
        for outcome in [large(&[9; 60_000]), large(b"little"), fs.removexattr(f, b"user.large")] {
            let why = outcome.expect_err("what cannot be applied is accepted");
            assert!(matches!(why, Error::Damaged(..)), "what cannot be read ends all writing: {why}");
        }
        assert_eq!((fs.getattr(At::Live, f).unwrap(), fs.failed()), (before, None));
        fs.setxattr(f, b"user.other", b"little", XattrMode::Any).unwrap();
        assert_goes_on(&w, fs, g);
    }
}

#[test]
fn attributes_with_a_lost_piece_are_refused() {
    an_attribute_cannot_be_changed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read ends all writing")]
fn attributes_that_are_changed_unread_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, an_attribute_cannot_be_changed);
}

/// The leaf that holds the inode of a file that was removed while it was in use.
fn an_orphan_is_lost() {
    let (w, f, g) = volume_of_many();
    let fs = open(&w);
    fs.retain(f);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.ino == f.0 && key.kind == Kind::Inode);
    let fs = open(&w);
    assert!(fs.recovery_report().notes.iter().any(|n| n.contains("keeps its space")), "{:?}", fs.recovery_report());
    assert_goes_on(&w, fs, g);
}

#[test]
fn an_orphan_that_is_lost_ends_nothing() {
    an_orphan_is_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read keeps others from being mounted")]
fn orphans_that_are_released_unread_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, an_orphan_is_lost);
}

/// A leaf of what goes with the last name: the file has no name then. And the one that says that it has it: the name stays.
#[test]
fn a_file_that_cannot_go_with_its_name_stays_without() {
    for (key, goes) in [(Key::new(Ino(0), Kind::Xattr, 7, 0), true), (Key::new(Ino(0), Kind::Link, 0, 0), false)] {
        let (w, f, g) = volume_of_many();
        rot(&w, |k| k.ino == f.0 && (k.kind, k.fork) == (key.kind, key.fork));
        let fs = open(&w);
        if goes {
            // It has no place any more then.
            fs.write(f, 0, &[9; BLOCK_BYTES], 0).unwrap();
        }
        let gone = fs.unlink(Ino::ROOT, b"f");
        let renamed = || fs.rename(Ino::ROOT, b"g", Ino::ROOT, b"f", RenameMode::Replace);
        match goes {
            true => gone.unwrap(),
            false => assert!(matches!((gone, renamed()), (Err(Error::Damaged(..)), Err(Error::Damaged(..))))),
        }
        assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"f").is_ok(), !goes);
        fs.sync_all().unwrap();
        ticks(&w, &fs);
        assert_goes_on(&w, fs, g);
    }
}

/// A file whose blocks another one shares, and back references of which some are lost.
fn shared(named: bool) -> (World, Arc<Fs>, Ino) {
    let (w, f, g) = volume();
    let fs = open(&w);
    let h = fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap().ino;
    let bytes = 2 * PIECES * BLOCK;
    let mut done = 0;
    while done < bytes {
        match fs.copy_range(f, done, h, done, bytes - done, 0).unwrap() {
            0 => break,
            n => done += n,
        }
    }
    fs.sync_all().unwrap();
    if named {
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"h").unwrap();
        ticks(&w, &fs);
    }
    fs.close().unwrap();
    drop(fs);
    let all = backrefs(&w);
    assert!(all.len() as u64 > PIECES, "{}", all.len());
    let lost = all[all.len() / 2];
    rot(&w, |key| *key == lost);
    let fs = open(&w);
    (w, fs, g)
}

#[test]
fn lost_back_references_of_a_file_that_is_removed_end_nothing() {
    let (w, fs, g) = shared(false);
    fs.unlink(Ino::ROOT, b"h").unwrap();
    fs.sync_all().unwrap();
    ticks(&w, &fs);
    assert_goes_on(&w, fs, g);
}

fn history_of_shared_blocks_is_swept() {
    let (w, fs, g) = shared(true);
    let all: Vec<_> = fs.checkpoints().iter().map(|c| c.cno).collect();
    fs.checkpoint_drop(&all).unwrap();
    ticks(&w, &fs);
    assert_goes_on(&w, fs, g);
}

#[test]
fn lost_back_references_of_what_is_swept_end_nothing() {
    history_of_shared_blocks_is_swept();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read ends all writing")]
fn what_is_swept_unread_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, history_of_shared_blocks_is_swept);
}

/// Of a history tree a leaf is lost: all behind it goes.
#[test]
fn what_is_behind_a_lost_leaf_is_swept() {
    let (w, f, g) = volume();
    let fs = open(&w);
    fs.checkpoint_create(None).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    ticks(&w, &fs);
    let before = blocks(&fs);
    assert!(before > PIECES as u32, "{before}");
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.living() == Key::new(f, Kind::Extent, 0, CHANGED) && key.death > 0);
    let fs = open(&w);
    let all: Vec<_> = fs.checkpoints().iter().map(|c| c.cno).collect();
    fs.checkpoint_drop(&all).unwrap();
    ticks(&w, &fs);
    let left = blocks(&fs);
    assert!(left < PIECES as u32 / 4, "{left} blocks are left of {before}");
    assert_goes_on(&w, fs, g);
}

/// The same while somebody needs the room: it comes from the file that has much history, not from whole checkpoints.
fn history_with_a_lost_leaf_gives_room() {
    let (w, f, _) = volume();
    let fs = open(&w);
    for _ in 0..2 {
        fs.checkpoint_create(None).unwrap();
        in_pieces(&fs, f, PIECES);
        fs.sync_all().unwrap();
    }
    fs.checkpoint_create(None).unwrap();
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.living() == Key::new(f, Kind::Extent, 0, CHANGED) && key.death > 0);
    let fs = open(&w);
    // Nothing of them has its place in the past where that is lost.
    let [h, k] = [b"h", b"k"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    for n in 0..650 {
        let written = fs.write(h, n << 16, &[n as u8; 1 << 16], 0);
        written.unwrap_or_else(|e| panic!("history gives no room at {n}: {e}"));
        if n % 50 == 0 {
            fs.fsync_wait(h).unwrap();
        }
    }
    let counted = fs.counters();
    assert!(counted.inodes_shed > 0 && counted.checkpoints_shed == 0, "whole checkpoints go: {counted:?}");
    assert_goes_on(&w, fs, k);
}

#[test]
fn history_gives_room_although_a_leaf_of_it_is_lost() {
    history_with_a_lost_leaf_gives_room();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "whole checkpoints go")]
fn a_survey_that_ends_at_a_lost_leaf_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SurveyStops, history_with_a_lost_leaf_gives_room);
}

/// The same of snapshots, of which one is one no more: what the other keeps is not known to the block, and there is room for what grows.
fn history_with_a_lost_leaf_is_counted() {
    let (w, f, k) = volume();
    let fs = open(&w);
    for name in [&b"one"[..], b"two"] {
        fs.checkpoint_create(Some(name)).unwrap();
        in_pieces(&fs, f, PIECES);
        fs.sync_all().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.living() == Key::new(f, Kind::Extent, 0, CHANGED) && key.death > 0);
    let fs = open(&w);
    ticks(&w, &fs);
    let both = fs.usage();
    assert!((2 * PIECES..2 * PIECES + PIECES / 4).contains(&both.snapshot_blocks), "{both:?}");
    let second = fs.checkpoints()[1].cno;
    fs.checkpoint_name(second, None).unwrap();
    ticks(&w, &fs);
    let usage = fs.usage();
    let room = usage.available_blocks;
    assert!(
        room > both.available_blocks + PIECES / 2,
        "history that cannot be read takes all room: {both:?} {usage:?}"
    );
    // Nor is it a reason not to let go of the rest.
    let all: Vec<_> = fs.checkpoints().iter().map(|c| c.cno).collect();
    let freed = fs.freed_by_dropping(&all).unwrap().content_blocks;
    let of_one: Vec<_> = fs.freed_by_each_snapshot().unwrap().into_values().map(|f| f.content_blocks).collect();
    assert!(
        (PIECES..2 * PIECES).contains(&freed) && of_one.iter().all(|n| (PIECES / 2..PIECES).contains(n)),
        "{of_one:?} {freed}"
    );
    // A leaf or two of them are what could be kept of the other one, too.
    assert!((PIECES..PIECES + PIECES / 3).contains(&usage.snapshot_blocks), "{usage:?}");
    let h = fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap().ino;
    (0..room / 32).for_each(|n| assert!(fs.write(h, n << 16, &[n as u8; 1 << 16], 0).is_ok(), "{n} of {room} blocks"));
    fs.fsync_wait(h).unwrap();
    assert_goes_on(&w, fs, k);
}

#[test]
fn what_snapshots_keep_is_counted_although_a_leaf_of_it_is_lost() {
    history_with_a_lost_leaf_is_counted();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "history that cannot be read takes all room")]
fn a_count_that_ends_at_a_lost_leaf_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CountStops, history_with_a_lost_leaf_is_counted);
}

/// Every other piece of a file is shared, and a leaf of back references is lost: pieces that lie there are copied no more, by themselves
/// or once more, of now or of the past; all others are.
fn copies_beside_lost_back_references() {
    let (w, f, g) = volume();
    let fs = open(&w);
    let make = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let (h, k) = (make(b"h"), make(b"k"));
    let at = |n: u64| n * 2 * BLOCK;
    let copy = |fs: &Fs, when, to, n| fs.copy_range_at(when, f, at(n), to, at(n), BLOCK, 0.into());
    for n in (0..PIECES).step_by(2) {
        assert_eq!(copy(&fs, At::Live, h, n).unwrap(), BLOCK);
    }
    let cno = fs.checkpoint_create(Some(b"then")).unwrap().cno;
    // These pieces are of the past only.
    (1..PIECES).step_by(4).for_each(|n| assert!(fs.write(f, at(n), &piece(n + 1), 0).is_ok()));
    fs.close().unwrap();
    drop(fs);
    let all = backrefs(&w);
    let lost = all[all.len() / 2];
    rot(&w, |key| *key == lost);
    let fs = open(&w);
    let mut refused = [0; 4];
    for n in 0..PIECES {
        let when = if n % 4 == 1 { At::Past(cno) } else { At::Live };
        match copy(&fs, when, k, n) {
            Ok(bytes) => assert_eq!(bytes, BLOCK),
            Err(Error::Damaged(..)) => refused[n as usize % 4] += 1,
            Err(e) => panic!("what cannot be read ends all writing: {e}"),
        }
        assert_eq!(fs.failed(), None, "what cannot be read ends all writing");
    }
    fs.fsync_wait(k).unwrap_or_else(|e| panic!("what cannot be read ends all writing: {e}"));
    assert!(refused.iter().all(|n| (1..PIECES / 8).contains(n)), "{refused:?}");
    assert_goes_on(&w, fs, g);
}

#[test]
fn copies_whose_back_references_are_lost_are_refused() {
    copies_beside_lost_back_references();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read ends all writing")]
fn copies_that_are_shared_unread_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, copies_beside_lost_back_references);
}

/// Of a file that is read the place is lost where its inode would go as it was.
fn an_access_cannot_be_noted() {
    let (w, files) = crate::applied::with_history_of_attributes();
    let [f, g] = [files[1000], files[1999]];
    rot(&w, |key| key.ino == f.0 && key.kind == Kind::Inode && key.death > 0);
    let fs = open(&w);
    w.pass(3_600_000_000_000);
    fs.accessed(f).unwrap();
    w.pass(3_600_000_000_000);
    ticks(&w, &fs);
    assert_goes_on(&w, fs, g);
}

#[test]
fn accesses_that_cannot_be_noted_end_nothing() {
    an_access_cannot_be_noted();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what cannot be read ends all writing")]
fn accesses_that_are_noted_unread_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, an_access_cannot_be_noted);
}
