//! Scrubbing finds every kind of damage while the volume is in use, and mends
//! what has a second copy.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::applied::{CHANGED, PIECES};
use crate::common::{World, dir, file};
use crate::devices;
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{Addr, Ino};
use nenrin_core::{At, Fs, MountOptions, ScrubReport, SegmentState};
use nenrin_device::{AlignedBuf, BlockDevice};
use std::sync::Arc;

const BLOCK: usize = 4096;

/// A closed volume with 3,000 names and 2 MiB of content, some of it past.
fn volume() -> (World, Ino) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap();
    for i in 0..3000 {
        fs.create(d.ino, format!("name-{i}").as_bytes(), &file(0o600)).unwrap();
    }
    let f = fs.create(d.ino, b"content", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &vec![5; 2 << 20], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    fs.checkpoint_create(Some(b"before")).unwrap();
    fs.write(f.ino, 0, &vec![6; 1 << 20], 0).unwrap();
    fs.close().unwrap();
    (w, f.ino)
}

/// Flips a bit in each of these blocks of the device.
fn rot(w: &World, blocks: impl IntoIterator<Item = usize>) {
    for block in blocks {
        let mut bytes = w.device.read((block * BLOCK) as u64, BLOCK).unwrap();
        bytes[1234] ^= 8;
        w.device.write((block * BLOCK) as u64, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
    }
}

fn place(fs: &Fs, addr: Addr) -> usize {
    16 + addr.segment().0 as usize * fs.superblock().segment_blocks as usize + addr.block() as usize
}

fn scrubbed(fs: &Fs) -> ScrubReport {
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 300_000).unwrap();
    }
    let (read, expected) = scrub.progress();
    assert!(read > 0 && read <= expected);
    scrub.report().clone()
}

#[test]
fn a_sound_volume_has_nothing_to_mend_and_nothing_is_written() {
    let (w, _) = volume();
    let fs = w.open();
    let writes = w.device.counters().writes;
    let report = scrubbed(&fs);
    assert_eq!(w.device.counters().writes, writes);
    assert!(report.nodes > 20 && report.blocks >= 768, "{report:?}");
    assert!(report.findings.is_empty() && report.copies_damaged == 0 && !report.has_losses(), "{report:?}");
}

/// All of one copy rots: every node is written anew, and a second scrub finds nothing.
#[test]
fn a_rotten_copy_of_the_index_is_mended() {
    let (w, ino) = volume();
    let fs = w.open();
    // The segments of the first copies and of the second are apart.
    let with_nodes: Vec<_> = fs.segments().into_iter().filter(|s| s.nodes > 0).collect();
    assert!(with_nodes.len() >= 2);
    let size = fs.superblock().segment_blocks as usize;
    let segment = with_nodes[0].segment;
    rot(&w, (0..size).map(|b| place(&fs, Addr::new(segment, 0)) + b));
    drop(fs);
    let fs = w.open();
    let report = scrubbed(&fs);
    assert!(report.copies_damaged > 0, "{report:?}");
    assert_eq!(report.copies_mended, report.copies_damaged, "{report:?}");
    assert!(!report.has_losses() && report.findings.is_empty(), "{report:?}");
    let again = scrubbed(&fs);
    assert_eq!((again.copies_damaged, again.has_losses()), (0, false), "{again:?}");
    assert_eq!(fs.read(At::Live, ino, 0, 10).unwrap(), [6; 10]);
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    for i in 0..3000 {
        let d = fs.lookup(At::Live, Ino::ROOT, b"d").unwrap();
        fs.lookup(At::Live, d.ino, format!("name-{i}").as_bytes()).unwrap();
    }
}

#[test]
fn damaged_slots_and_roots_are_written_anew() {
    let (w, _) = volume();
    let fs = w.open();
    let tail = (64 << 20) / BLOCK - 16;
    let root = fs.superblock().root[1].0;
    rot(&w, [5, 6, tail + 4, place(&fs, root)]);
    let report = scrubbed(&fs);
    assert_eq!((report.copies_damaged, report.copies_mended), (4, 4), "{report:?}");
    assert_eq!(scrubbed(&fs).copies_damaged, 0);
}

/// Content has one copy: what is damaged is told by path and offset, in the
/// present and in the past.
#[test]
fn damaged_content_is_told_by_path_and_offset() {
    damage_is_told();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what the scrub found")]
fn a_scrub_whose_result_is_forgotten_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ScrubForgotten, damage_is_told);
}

fn damage_is_told() {
    let (w, ino) = volume();
    let fs = w.open();
    let bytes = w.device.inner().snapshot();
    // Blocks of content are uniform, and there are no others of these bytes.
    let blocks_of = |byte: u8| -> Vec<usize> {
        bytes.chunks(BLOCK).enumerate().filter(|(_, b)| b.iter().all(|x| *x == byte)).map(|(i, _)| i).collect()
    };
    let (live, past) = (blocks_of(6), blocks_of(5));
    rot(&w, [live[10], past[0]]);
    let report = scrubbed(&fs);
    assert_eq!(report.extents_damaged, 2, "{report:?}");
    assert!(report.has_losses());
    for f in &report.findings {
        assert_eq!((f.ino, f.path.as_deref()), (Some(ino), Some(&b"/d/content"[..])), "{f:?}");
    }
    let at: Vec<u64> = report.findings.iter().filter_map(|f| f.offset).collect();
    // Where one checksum covers 16 KiB, the offset is that of the first block.
    assert!(at.contains(&0) && at.iter().any(|o| (8 * 4096..=10 * 4096).contains(o)), "{at:?}");
    assert!(report.findings.iter().any(|f| f.text.contains("before checkpoint")), "{report:?}");
    // A mount after a power cut knows, and so does a check, until a scrub finds nothing.
    drop(fs);
    let fs = w.open();
    let left = |fs: &Fs| fs.superblock().scrubbed.map(|s| (s.content, s.nodes, s.copies));
    assert_eq!(left(&fs), Some((2, 0, 0)), "what the scrub found");
    fs.close().unwrap();
    drop(fs);
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(report.scrubbed.map(|s| s.content), Some(2));
    w.device.inner().write(0, AlignedBuf::padded(&bytes).into()).unwrap();
    let fs = w.open();
    assert_eq!(left(&fs), None, "a volume that was never scrubbed");
    scrubbed(&fs);
    assert_eq!(left(&fs), Some((0, 0, 0)));
}

#[test]
fn a_read_only_volume_is_verified_and_not_changed() {
    let (w, _) = volume();
    let fs = w.open();
    let segment = fs.segments().into_iter().find(|s| s.nodes > 0 && s.state != SegmentState::Free).unwrap().segment;
    let size = fs.superblock().segment_blocks as usize;
    rot(&w, (0..size).map(|b| place(&fs, Addr::new(segment, 0)) + b));
    drop(fs);
    let before = w.device.inner().snapshot();
    let fs = w.open_with(MountOptions { read_only: true, ..MountOptions::default() });
    let report = scrubbed(&fs);
    assert!(report.copies_damaged > 0 && report.copies_mended == 0 && report.has_losses(), "{report:?}");
    assert!(!report.findings.is_empty());
    drop(fs);
    assert!(before == w.device.inner().snapshot());
}

/// Leaves of which both copies are gone: scrubbing tells them, goes on behind them, and ends.
#[test]
fn lost_leaves_do_not_hold_it_up() {
    let (w, _) = volume();
    let fs = w.open();
    let segments: Vec<_> = fs.segments().into_iter().filter(|s| s.nodes > 0).map(|s| s.segment).collect();
    let size = fs.superblock().segment_blocks as usize;
    let places: Vec<usize> =
        segments.iter().flat_map(|s| place(&fs, Addr::new(*s, 0))..place(&fs, Addr::new(*s, 0)) + size).collect();
    let before = w.device.inner().snapshot();
    let is_leaf = |block: &usize| {
        let node = &before[block * BLOCK..];
        let head = nenrin_core::format::node::NodeHeader::read_prefix(node);
        nenrin_core::format::node::verify(&node[..4 * BLOCK])
            && head.is_ok_and(|(h, _)| h.level == 0 && h.tree.get() == 1)
    };
    let leaves: Vec<usize> = places.into_iter().filter(is_leaf).collect();
    assert!(leaves.len() > 20, "{}", leaves.len());
    rot(&w, leaves);
    drop(fs);
    // Nearly nothing cached, or memory would mend them.
    let fs = w.open_with(MountOptions { cache_bytes: 16 << 10, read_only: true, ..MountOptions::default() });
    let report = scrubbed(&fs);
    assert!(report.nodes_lost > 10 && report.has_losses(), "{report:?}");
}

/// What was changed since the index was written lies in leaves that the device does not have yet.
#[test]
fn content_right_behind_a_lost_leaf_is_verified() {
    let (w, f, _) = crate::applied::volume();
    crate::applied::rot(&w, |key| *key == Key::new(f, Kind::Extent, 0, CHANGED));
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let is_there = |n: &u64| fs.read(At::Live, f, n * 2 * BLOCK as u64, BLOCK).is_ok();
    let offset = (CHANGED / 2..PIECES).find(is_there).unwrap() * 2 * BLOCK as u64;
    assert!(offset > CHANGED * BLOCK as u64);
    fs.write(f, offset, &[0xab; BLOCK], 0).unwrap();
    fs.fsync_wait(f).unwrap();
    let bytes = w.device.inner().snapshot();
    let places: Vec<usize> =
        (0..).zip(bytes.chunks(BLOCK)).filter(|(_, b)| **b == [0xab; BLOCK]).map(|b| b.0).collect();
    assert_eq!(places.len(), 1);
    rot(&w, places);
    let report = scrubbed(&fs);
    let found = report.findings.iter().filter(|found| found.ino == Some(f));
    assert_eq!(found.map(|found| found.offset).collect::<Vec<_>>(), [Some(offset)], "{report:?}");
}

/// Records that were synced since the last index checkpoint: only the log has them.
fn with_a_log(w: &World) -> (Arc<Fs>, usize) {
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"late", &file(0o600)).unwrap();
    fs.write(f.ino, 0, b"only the log has this", 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    let holds = |at: &usize| {
        let bytes = w.device.read((at * BLOCK) as u64, BLOCK).unwrap();
        bytes.windows(21).any(|piece| piece == b"only the log has this")
    };
    let at = (0..(64 << 20) / BLOCK).find(holds).unwrap();
    (fs, at)
}

/// A cut right after a scrub, which found rot in the log, loses nothing.
#[test]
fn rot_in_the_log_is_found_and_matters_no_more() {
    let (w, _) = volume();
    let (fs, at) = with_a_log(&w);
    rot(&w, [at]);
    let report = scrubbed(&fs);
    assert_eq!((report.copies_damaged, report.copies_mended, report.has_losses()), (1, 1, false), "{report:?}");
    let again = scrubbed(&fs);
    assert_eq!((again.copies_damaged, again.has_losses()), (0, false), "{again:?}");
    drop(fs);
    let fs = w.open();
    let late = fs.lookup(At::Live, Ino::ROOT, b"late").unwrap();
    assert_eq!(fs.read(At::Live, late.ino, 0, 100).unwrap(), b"only the log has this");
}

#[test]
fn a_sound_log_is_left_alone() {
    let (w, _) = volume();
    let (fs, _) = with_a_log(&w);
    let writes = w.device.counters().writes;
    assert_eq!(scrubbed(&fs).copies_damaged, 0);
    assert_eq!(w.device.counters().writes, writes);
}

/// What nobody has synced is committed first, so that all is looked at where it lies.
#[test]
fn what_is_not_committed_yet_is_verified_as_well() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &vec![7; 3 << 20], 0).unwrap();
    assert!(scrubbed(&fs).blocks >= 768);
}

/// One copy of the log rots: the device that has it is as good as the other after a scrub.
#[test]
fn rot_in_one_copy_of_the_log_is_found() {
    let w = devices::World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"late", &file(0o600)).unwrap();
    fs.write(f.ino, 0, b"only the log has this", 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    let device = w.members[0].inner().inner();
    let bytes = device.snapshot();
    let at = bytes.chunks(BLOCK).position(|b| b.windows(21).any(|piece| piece == b"only the log has this")).unwrap();
    device.write((at * BLOCK) as u64, Arc::new(AlignedBuf::zeroed(BLOCK))).unwrap();
    let report = scrubbed(&fs);
    assert_eq!((report.copies_damaged, report.copies_mended, report.has_losses()), (1, 1, false), "{report:?}");
    drop(fs);
    let fs = w.open(&[0], devices::degraded()).unwrap();
    let late = fs.lookup(At::Live, Ino::ROOT, b"late").unwrap();
    assert_eq!(fs.read(At::Live, late.ino, 0, 100).unwrap(), b"only the log has this");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "copies_damaged: 0")]
fn a_log_that_is_left_out_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LogUnscrubbed, rot_in_the_log_is_found_and_matters_no_more);
}

/// What dies while a scrub is under way goes to a tree that was not there when it began.
fn what_dies_meanwhile_is_verified() {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &vec![0x5a; 256 << 10], 0).unwrap();
    fs.sync_all().unwrap();
    fs.checkpoint_create(Some(b"kept")).unwrap();
    let at = fs.checkpoints().last().unwrap().cno;
    let mut scrub = fs.scrub();
    fs.write(ino, 0, &vec![0xa5; 256 << 10], 0).unwrap();
    fs.sync_all().unwrap();
    let all = w.device.read(0, 64 << 20).unwrap();
    let found = all.chunks_exact(BLOCK).position(|block| block.iter().all(|b| *b == 0x5a)).unwrap();
    rot(&w, [found]);
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    assert!(scrub.report().extents_damaged > 0, "nobody looked at what died meanwhile: {:?}", scrub.report());
    assert!(fs.read(At::Past(at), ino, 0, 256 << 10).is_err());
    fs.close().unwrap();
}

#[test]
fn content_that_dies_during_a_scrub_is_verified() {
    what_dies_meanwhile_is_verified();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody looked at what died meanwhile")]
fn trees_that_come_later_and_are_left_out_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ScrubTreesOfBefore, what_dies_meanwhile_is_verified);
}
