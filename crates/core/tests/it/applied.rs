//! P2, P5: a change that cannot be applied, since the index is unreadable where it belongs, ends all writing and is not
//! in the log: no mount would write behind it.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::node::{Entries, TreeId, decode, first_key};
use nenrin_core::format::{BLOCK_BYTES, Ino, NODE_BYTES};
use nenrin_core::{AllocateMode, At, Error, Fs, MountOptions, Result, SetAttr};
use nenrin_device::{AlignedBuf, BlockDevice, MemDevice};
use std::cell::Cell;
use std::sync::Arc;

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a file with holes between them, so that each is an item of its own: several leaves of them.
pub(crate) const PIECES: u64 = 6000;
/// The file block that is changed: in the midst of them, and far from the item of the inode.
pub(crate) const CHANGED: u64 = PIECES;

/// A closed volume with a file `f` of many pieces and a file `g` of one block.
pub(crate) fn volume() -> (World, Ino, Ino) {
    let w = World::new(96 << 20);
    let fs = w.open();
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    for n in 0..PIECES {
        fs.write(f, n * 2 * BLOCK, &piece(n), 0).unwrap();
    }
    fs.write(g, 0, &[1; BLOCK_BYTES], 0).unwrap();
    fs.close().unwrap();
    (w, f, g)
}

pub(crate) fn piece(n: u64) -> [u8; BLOCK_BYTES] {
    [(n % 100) as u8 + 1; BLOCK_BYTES]
}

/// Damages all copies of the leaves with an item for which `holds` is true.
pub(crate) fn rot(w: &World, holds: impl Fn(&Key) -> bool) {
    let has = |entries: &Entries| matches!(entries, Entries::Leaf(items) if items.iter().any(|(key, _)| holds(key)));
    assert!(rot_nodes(w, |_, _, entries| has(entries)) >= 2);
}

/// The same of those that were written last.
pub(crate) fn rot_newest(w: &World, holds: impl Fn(&Key) -> bool) {
    let has = |entries: &Entries| matches!(entries, Entries::Leaf(items) if items.iter().any(|(key, _)| holds(key)));
    let newest = Cell::new(0);
    let note = |generation: u64, entries: &Entries| {
        newest.set(if has(entries) { generation.max(newest.get()) } else { newest.get() });
        false
    };
    rot_nodes(w, |_, generation, entries| note(generation, entries));
    assert_eq!(rot_nodes(w, |_, generation, entries| generation == newest.get() && has(entries)), 2);
}

/// Damages all copies of all nodes above the leaves of history trees.
pub(crate) fn rot_inner(w: &World) {
    let inner = |tree, entries: &Entries| tree >= TreeId::HISTORY && matches!(entries, Entries::Inner(_));
    assert!(rot_nodes(w, |tree, _, entries| inner(tree, entries)) >= 2);
}

/// Damages nodes, told by tree, generation and what they have; how many.
fn rot_nodes(w: &World, which: impl Fn(TreeId, u64, &Entries) -> bool) -> usize {
    let bytes = w.device.inner().snapshot();
    let mut copies = 0;
    for (block, node) in (0..).zip(bytes.windows(NODE_BYTES).step_by(BLOCK_BYTES)) {
        let Ok((head, _)) = first_key(node) else { continue };
        let tree = TreeId(head.tree.get());
        if decode(tree, node).is_ok_and(|(_, entries)| which(tree, head.generation.get(), &entries)) {
            let mut damaged = node[..BLOCK_BYTES].to_vec();
            damaged[1234] ^= 8;
            w.device.write(block * BLOCK, Arc::new(AlignedBuf::padded(&damaged))).unwrap();
            copies += 1;
        }
    }
    copies
}

/// Nothing is acknowledged any more.
fn assert_ended(fs: &Fs, g: Ino, what: &str) {
    for outcome in [fs.fsync_wait(g), fs.write(g, 0, &[3; 1], 0).map(drop), fs.tick(), fs.close()] {
        assert!(matches!(outcome, Err(Error::Failed(_))), "{what}: {outcome:?}");
    }
}

/// The device as it is, mounted again.
fn mounted_again(w: &World) -> Arc<Fs> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(w.device.inner().snapshot()));
    let fs = Fs::open(vec![device], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    let report = fs.recovery_report();
    if let Some(damage) = &report.damage {
        panic!("the next mount does not come past what could not be applied: {damage}");
    }
    assert!(report.dropped == 0 && report.notes.is_empty(), "{report:?}");
    fs
}

/// The next mount has all that was synced before, but for what the leaf held, and goes on.
fn assert_goes_on(w: &World, f: Ino, g: Ino) {
    let fs = mounted_again(w);
    assert_eq!(fs.read(At::Live, g, 0, 9000).unwrap(), [2; BLOCK_BYTES]);
    fs.lookup(At::Live, Ino::ROOT, b"h").unwrap();
    let is_lost = |n: &u64| match fs.read(At::Live, f, n * 2 * BLOCK, BLOCK_BYTES) {
        Ok(bytes) => {
            assert!(bytes == piece(*n), "piece {n}");
            false
        }
        Err(Error::Damaged(..)) => true,
        Err(e) => panic!("piece {n}: {e}"),
    };
    let lost: Vec<u64> = (0..PIECES).filter(is_lost).collect();
    assert!(lost.contains(&(CHANGED / 2)) && (lost.len() as u64) < PIECES / 2, "{} pieces are lost", lost.len());
    [f, g].iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[4; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES));
    fs.sync_all().unwrap();
    fs.close().unwrap();
}

/// A change of `f`.
pub(crate) type Change = fn(&Fs, Ino) -> Result<()>;

/// Those that write are accepted without a look at what is there.
pub(crate) const CHANGES: [(&str, Change); 4] = [
    ("a block", |fs, f| fs.write(f, CHANGED * BLOCK, &[9; BLOCK_BYTES], 0).map(drop)),
    ("many blocks", |fs, f| {
        (0..PIECES).step_by(6).try_for_each(|n| fs.write(f, n * 2 * BLOCK, &[9; BLOCK_BYTES], 0).map(drop))
    }),
    ("a truncation", |fs, f| fs.setattr(f, &SetAttr { size: Some(CHANGED * BLOCK), ..SetAttr::default() }).map(drop)),
    ("a hole", |fs, f| fs.allocate(f, AllocateMode::Punch, CHANGED * BLOCK, BLOCK)),
];

fn what_cannot_be_applied_is_not_in_the_log() {
    for (what, change) in &CHANGES[..2] {
        let (w, f, g) = volume();
        rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
        let fs = w.open();
        fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
        fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap();
        fs.fsync_wait(g).unwrap();
        // What would be in the same commit is not in the log either.
        fs.write(g, 0, &[3; BLOCK_BYTES], 0).unwrap();
        change(&fs, f).unwrap_or_else(|e| panic!("{what} is not accepted: {e}"));
        assert!(fs.sync_all().is_err(), "{what}");
        assert_ended(&fs, g, what);
        drop(fs);
        assert_goes_on(&w, f, g);
    }
}

#[test]
fn a_change_that_cannot_be_applied_is_not_in_the_log() {
    what_cannot_be_applied_is_not_in_the_log();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the next mount does not come past what could not be applied")]
fn a_change_that_is_written_unapplied_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::WrittenUnapplied, what_cannot_be_applied_is_not_in_the_log);
}

/// What is cut off is counted first: where it cannot be read the call is refused, and all else goes on.
#[test]
fn what_cannot_be_cut_off_is_refused() {
    for (what, change) in &CHANGES[2..] {
        let (w, f, g) = volume();
        rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
        let fs = w.open();
        let before = fs.getattr(At::Live, f).unwrap();
        assert!(matches!(change(&fs, f), Err(Error::Damaged(..))), "{what}");
        fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
        fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap();
        fs.sync_all().unwrap();
        assert_eq!(fs.getattr(At::Live, f).unwrap().size, before.size, "{what}");
        drop(fs);
        assert_goes_on(&w, f, g);
    }
}

/// Where somebody was told that a leaf cannot be read, what would need it is refused: who writes over what he could not read.
fn what_was_seen_to_be_lost_is_not_written_over() {
    for (what, change) in &CHANGES {
        let (w, f, g) = volume();
        rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
        let fs = w.open();
        assert!(matches!(fs.read(At::Live, f, CHANGED * BLOCK, 1), Err(Error::Damaged(..))));
        let before = fs.getattr(At::Live, f).unwrap();
        let refused = change(&fs, f);
        fs.write(g, 0, &[2; BLOCK_BYTES], 0).unwrap();
        fs.create(Ino::ROOT, b"h", &file(0o600)).unwrap();
        fs.sync_all().unwrap_or_else(|e| panic!("{what} that was accepted ends all writing: {e}"));
        assert!(matches!(refused, Err(Error::Damaged(..))), "{what}: {refused:?}");
        assert_eq!(fs.getattr(At::Live, f).unwrap().size, before.size, "{what}");
        // What lies elsewhere is written, and all of it can go.
        assert_eq!(fs.write(f, 0, &[1; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
        fs.sync_all().unwrap();
        fs.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        assert_eq!(fs.write(f, CHANGED * BLOCK, &[5; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
        fs.sync_all().unwrap();
        drop(fs);
        let fs = mounted_again(&w);
        assert_eq!(fs.read(At::Live, f, CHANGED * BLOCK, BLOCK_BYTES).unwrap(), [5; BLOCK_BYTES], "{what}");
    }
}

#[test]
fn writing_over_what_was_seen_to_be_lost_is_refused() {
    what_was_seen_to_be_lost_is_not_written_over();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "that was accepted ends all writing")]
fn content_that_is_accepted_unread_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NotReadAhead, what_was_seen_to_be_lost_is_not_written_over);
}

/// What a file held has no place in the past: the same.
#[test]
fn writing_over_what_has_no_place_in_the_past_is_refused() {
    let (w, f, g) = volume();
    let fs = w.open();
    for n in 0..2 {
        fs.checkpoint_create(Some(&[b'a' + n])).unwrap();
        (0..PIECES).for_each(|n| assert!(fs.write(f, n * 2 * BLOCK, &piece(n), 0).is_ok()));
    }
    fs.sync_all().unwrap();
    let cno = fs.checkpoint_create(Some(b"c")).unwrap().cno;
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.living() == Key::new(f, Kind::Extent, 0, CHANGED) && key.death > 0);
    let fs = w.open();
    let first = fs.checkpoints()[0].cno;
    assert!(first < cno && fs.read(At::Past(first), f, CHANGED * BLOCK, 1).is_err());
    for (what, change) in &CHANGES {
        assert!(matches!(change(&fs, f), Err(Error::Damaged(..))), "{what}");
    }
    fs.write(g, 0, &[3; BLOCK_BYTES], 0).unwrap();
    fs.sync_all().unwrap();
    fs.close().unwrap();
}

fn set(fs: &Fs, ino: Ino, mode: u32) -> Result<nenrin_core::Attr> {
    fs.setattr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })
}

/// A closed volume with many files, which all had other attributes.
pub(crate) fn with_history_of_attributes() -> (World, Vec<Ino>) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let create = |i: usize| fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap().ino;
    let files: Vec<Ino> = (0..2000).map(create).collect();
    fs.checkpoint_create(Some(b"one")).unwrap();
    files.iter().for_each(|ino| assert_eq!(set(&fs, *ino, 0o640).unwrap().ino, *ino));
    fs.checkpoint_create(Some(b"two")).unwrap();
    fs.close().unwrap();
    (w, files)
}

/// Here the past has no place for what is replaced.
#[test]
fn attributes_that_cannot_be_applied_are_refused() {
    let (w, files) = with_history_of_attributes();
    let [f, g] = [files[1000], files[1999]];
    rot(&w, |key| key.ino == f.0 && key.kind == Kind::Inode && key.death > 0);
    let fs = w.open();
    set(&fs, g, 0o644).unwrap();
    fs.fsync_wait(g).unwrap();
    set(&fs, g, 0o600).unwrap();
    // The first to meet it.
    let cut = SetAttr { size: Some(100), ..SetAttr::default() };
    assert!(matches!(fs.setattr(f, &cut), Err(Error::Damaged(..))));
    assert!(matches!(set(&fs, f, 0o644), Err(Error::Damaged(..))));
    assert_eq!(fs.getattr(At::Live, f).unwrap().size, 0);
    fs.fsync_wait(g).unwrap();
    drop(fs);
    let fs = mounted_again(&w);
    let modes = [f, g].map(|ino| fs.getattr(At::Live, ino).unwrap().mode & 0o7777);
    assert_eq!(modes, [0o640, 0o600]);
    set(&fs, g, 0o640).unwrap();
    fs.sync_all().unwrap();
    fs.close().unwrap();
}

/// Blocks that two files share are no reason to refuse anything where something else was lost.
#[test]
fn shared_blocks_are_written_over_although_others_are_lost() {
    let (w, f, _) = volume();
    let fs = w.open();
    let [s, t] = [&b"s"[..], b"t"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    fs.write(s, 0, &vec![3; 1 << 20], 0).unwrap();
    assert_eq!(fs.copy_range(s, 0, t, 0, 1 << 20, 0).unwrap(), 1 << 20);
    fs.close().unwrap();
    drop(fs);
    rot(&w, |key| key.ino == f.0 && key.kind == Kind::Extent && key.off == PIECES);
    let fs = w.open();
    assert!(fs.read(At::Live, f, PIECES * BLOCK, BLOCK_BYTES).is_err());
    assert_eq!(fs.write(s, 50 * BLOCK, &[7; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
    fs.setattr(t, &SetAttr { size: Some(30 * BLOCK + 5), ..SetAttr::default() }).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.read(At::Live, s, 50 * BLOCK, 1).unwrap(), [7]);
    assert_eq!(fs.read(At::Live, t, 29 * BLOCK, 1).unwrap(), [3]);
}
