//! Damage is reported, repaired from the second copy where there is one, and
//! never returned as data.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use nenrin_core::format::Ino;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::{self, Superblock};
use nenrin_core::repair::{LossKind, RepairPlan};
use nenrin_core::{At, Barrier, DamagedReads, Error, Fs, MkfsOptions, MountOptions, SegmentState, probe};
use nenrin_device::{BlockDevice, Fault, Faulty, MemDevice, OpKind};
use std::sync::Arc;

const BLOCK: usize = 4096;

fn open(bytes: Vec<u8>, read_only: bool) -> nenrin_core::Result<Arc<Fs>> {
    let options = MountOptions { read_only, ..MountOptions::default() };
    Fs::open(vec![Arc::new(MemDevice::from_bytes(bytes))], Arc::new(TestClock::default()), options)
}

/// A volume with fsynced content in the chain and not cleanly unmounted.
pub fn crashed() -> (World, Vec<u8>) {
    let w = World::with(32 << 20, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    for i in 0..40u64 {
        fs.write(f.ino, i * 4096, &[i as u8 + 1; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
    }
    // The durable mark that closes the window of P4.
    w.pass(1_000_000_000);
    fs.tick().unwrap();
    let bytes = w.device.inner().snapshot();
    (w, bytes)
}

fn chain_blocks(bytes: &[u8]) -> std::ops::Range<usize> {
    let device = MemDevice::from_bytes(bytes.to_vec());
    let sb: Superblock = probe(&device).unwrap().newest().unwrap().clone();
    let first = 16 + sb.chain.0.0 as usize * sb.segment_blocks as usize + sb.chain.1 as usize;
    first..first + 82
}

/// P4: below a proven durable mark every flip is damage, not the end of the log.
#[test]
fn a_flipped_bit_in_any_block_of_the_window_is_noticed() {
    let (_, bytes) = crashed();
    let whole = open(bytes.clone(), true).unwrap();
    assert_eq!(whole.recovery_report().damage, None);
    let f = whole.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    let content = whole.read(At::Live, f.ino, 0, 1 << 20).unwrap();
    assert_eq!(content.len(), 40 * 4096);
    let mut noticed = 0;
    for block in chain_blocks(&bytes) {
        let mut flipped = bytes.clone();
        flipped[block * BLOCK + 2000] ^= 4;
        let fs = open(flipped, true).unwrap();
        let damaged = fs.recovery_report().damage.is_some();
        let read = fs.lookup(At::Live, Ino::ROOT, b"f").and_then(|f| fs.read(At::Live, f.ino, 0, 1 << 20));
        match read {
            Ok(bytes) if bytes == content => {}
            Ok(_) => assert!(damaged, "block {block}: shorter content without a word"),
            Err(Error::Damaged(..)) => noticed += 1,
            Err(Error::NotFound) => assert!(damaged, "block {block}"),
            Err(e) => panic!("block {block}: {e}"),
        }
        noticed += u32::from(damaged);
    }
    assert!(noticed >= 80, "{noticed} of 82 flips were noticed");
}

#[test]
fn damage_in_the_log_makes_the_volume_read_only() {
    let (_, mut bytes) = crashed();
    let block = chain_blocks(&bytes).start + 20;
    bytes[block * BLOCK + 100] ^= 1;
    let fs = open(bytes, false).unwrap();
    assert!(fs.recovery_report().damage.is_some());
    assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
}

#[test]
fn one_copy_of_every_index_node_may_rot() {
    let w = World::new(64 << 20);
    let fs = w.open();
    for i in 0..2000 {
        fs.create(Ino::ROOT, format!("n{i}").as_bytes(), &file(0o600)).unwrap();
    }
    fs.close().unwrap();
    let index: Vec<usize> = fs
        .segments()
        .iter()
        .filter(|s| s.nodes > 0 && s.state != SegmentState::Free)
        .map(|s| s.segment.0 as usize)
        .collect();
    let blocks = fs.superblock().segment_blocks as usize;
    assert!(index.len() >= 2, "{index:?}");
    for segment in index {
        let mut bytes = w.device.inner().snapshot();
        let start = (16 + segment * blocks) * BLOCK;
        bytes[start..start + blocks * BLOCK].fill(0x55);
        let fs = open(bytes, true).unwrap();
        for i in 0..2000 {
            fs.lookup(At::Live, Ino::ROOT, format!("n{i}").as_bytes()).unwrap();
        }
    }
}

#[test]
fn one_damaged_slot_is_told_and_its_twin_used() {
    let (_, bytes) = crashed();
    let device = MemDevice::from_bytes(bytes.clone());
    let newest = probe(&device).unwrap().newest().unwrap().generation;
    let slot = 4 + (newest.0 % 4) as usize;
    let mut damaged = bytes;
    damaged[slot * BLOCK + 77] ^= 1;
    let fs = open(damaged.clone(), true).unwrap();
    assert_eq!(fs.superblock().generation, newest);
    assert!(fs.recovery_report().notes.iter().any(|n| n.contains("slot")), "{:?}", fs.recovery_report().notes);
    // All of them: a clear refusal.
    let len = damaged.len() / BLOCK;
    for area in [0, len - 16] {
        for s in 4..8 {
            damaged[(area + s) * BLOCK + 9] ^= 1;
        }
    }
    let Err(Error::Open(text)) = open(damaged, true) else { panic!("opened without a root") };
    assert!(text.contains("all superblock slots are damaged"), "{text}");
}

/// P5: after a failed write or flush nothing is acknowledged, and what was
/// acknowledged before is there.
#[test]
fn a_failed_write_or_flush_ends_all_acknowledging() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let w = World::new(32 << 20);
        let device = Arc::new(Faulty::new(w.device.clone()));
        let fs = Fs::open(vec![device.clone()], w.clock.clone(), MountOptions::default()).unwrap();
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
        fs.write(f.ino, 0, &[1; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        device.faults().inject(Fault::Fail { kind, from: 1, times: 1 });
        fs.write(f.ino, 0, &[2; 4096], 0).unwrap();
        assert!(fs.fsync_wait(f.ino).is_err());
        assert!(fs.failed().is_some());
        assert!(fs.fsync_wait(f.ino).is_err(), "a retried fsync must not succeed");
        assert!(fs.sync_all().is_err());
        assert!(fs.create(Ino::ROOT, b"g", &file(0o600)).is_err());
        assert!(fs.checkpoint_create(None).is_err());
        assert!(fs.tick().is_err());
        drop(fs);
        let fs = w.open();
        let content = fs.read(At::Live, f.ino, 0, 9000).unwrap();
        assert!(content == vec![1; 4096] || content == vec![2; 4096]);
    }
}

/// What a device refused can still be read from memory, to be copied away.
#[test]
fn content_that_could_not_be_written_can_still_be_read() {
    for (bytes, sync) in [(200 << 12, false), (200 << 12, true), (3 << 12, true)] {
        let w = World::new(32 << 20);
        let device = Arc::new(Faulty::new(w.device.clone()));
        let fs = Fs::open(vec![device.clone()], w.clock.clone(), MountOptions::default()).unwrap();
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
        fs.sync_all().unwrap();
        device.faults().inject(Fault::Fail { kind: OpKind::Write, from: 1, times: 1 });
        let content: Vec<u8> = (0..bytes).map(|i| (i / 4096) as u8).collect();
        let written = fs.write(f.ino, 0, &content, 0);
        let synced = if sync { fs.fsync_wait(f.ino) } else { fs.sync_all() };
        assert!(written.is_err() || synced.is_err(), "{bytes} bytes, sync {sync}");
        assert_eq!(fs.read(At::Live, f.ino, 0, bytes).unwrap(), content, "{bytes} bytes");
    }
}

#[test]
fn damaged_content_is_an_error_for_its_reader_only() {
    let w = World::new(32 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
    let marker = [0xabu8; 4096];
    fs.write(f.ino, 0, &marker, 0).unwrap();
    fs.write(g.ino, 0, &[0xcd; 4096], 0).unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    let mut bytes = w.device.inner().snapshot();
    let at = bytes.chunks_exact(BLOCK).position(|b| b == marker).unwrap();
    bytes[at * BLOCK + 5] = 0;
    // Beyond the durable mark this would be the log's end; so unmount cleanly first.
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let fs = Fs::open(vec![device], w.clock.clone(), MountOptions::default()).unwrap();
    fs.close().unwrap();
    let mut bytes = w.device.inner().snapshot();
    bytes[at * BLOCK + 5] = 0;
    let fs = open(bytes, true).unwrap();
    assert!(matches!(fs.read(At::Live, f.ino, 0, 4096), Err(Error::Damaged(..))));
    assert_eq!(fs.read(At::Live, g.ino, 0, 4096).unwrap(), vec![0xcd; 4096]);
}

fn destroy(bytes: &mut [u8], block: u64) {
    bytes[block as usize * BLOCK..][..BLOCK].fill(0x5a);
}

/// A volume that crashed, so that the end of its log was dropped, was mounted,
/// used, and crashed again. Also the block in which the second mount's log begins.
fn crashed_twice() -> (Vec<u8>, Superblock, u64) {
    crashed_after(5)
}

/// The same, with so many commits in the second life.
fn crashed_after(commits: u64) -> (Vec<u8>, Superblock, u64) {
    crashed_with(commits, 1)
}

/// The same, with so many commits dropped, of which the first lacks its payload.
fn crashed_with(commits: u64, dropped: u8) -> (Vec<u8>, Superblock, u64) {
    let w = World::with(32 << 20, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    // Nothing says of the last few that they were durable.
    let barrier = if dropped > 1 { Barrier::Checkpoint } else { Barrier::Sync };
    let fs = w.open_with(MountOptions { barrier, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    for i in 0..5u8 {
        fs.write(f.ino, u64::from(i) * 4096, &[i + 100; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
    }
    let mut bytes = w.device.inner().snapshot();
    // One payload never arrived.
    let last = bytes.chunks_exact(BLOCK).rposition(|b| b == [105 - dropped; BLOCK]).unwrap();
    bytes[last * BLOCK..][..BLOCK].fill(0);
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let fs = Fs::open(vec![device.clone()], w.clock.clone(), MountOptions::default()).unwrap();
    assert_eq!(fs.recovery_report().dropped, u64::from(dropped));
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
    for i in 0..commits {
        fs.write(g.ino, i * 4096, &[7; 4096], 0).unwrap();
        fs.fsync_wait(g.ino).unwrap();
    }
    let sb = fs.superblock();
    let begin = 16 + sb.chain.0.0 * u64::from(sb.segment_blocks);
    (device.snapshot(), sb, begin)
}

fn assert_whole(fs: &Fs) {
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    assert_eq!(f.size, 4 * 4096);
    let g = fs.lookup(At::Live, Ino::ROOT, b"g").unwrap();
    assert_eq!(fs.read(At::Live, g.ino, 0, 1 << 20).unwrap(), vec![7; 5 * 4096]);
}

/// P1, P4: the root that a mount after a crash wrote may be lost: the log from
/// the root before leads to what that mount wrote, not to what it dropped.
#[test]
fn a_lost_root_after_a_crash_loses_nothing() {
    let (bytes, sb, _) = crashed_twice();
    let mut lost = bytes.clone();
    for slot in superblock::slot_blocks(sb.generation, (bytes.len() / BLOCK) as u64) {
        destroy(&mut lost, slot);
    }
    let fs = open(lost, false).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.recovery_report().notes[0].contains("both copies"), "{:?}", fs.recovery_report().notes);
    assert_eq!(fs.recovery_report().notes.len(), 1);
    assert_whole(&fs);
    fs.close().unwrap();
    // The same, when it is the root itself that cannot be read.
    let mut lost = bytes;
    for (addr, _) in sb.root {
        destroy(&mut lost, 16 + addr.segment().0 * u64::from(sb.segment_blocks) + u64::from(addr.block()));
    }
    let fs = open(lost, false).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.recovery_report().notes[0].contains("newest root"), "{:?}", fs.recovery_report().notes);
    assert_whole(&fs);
}

fn destroy_slots(bytes: &mut [u8], sb: &Superblock) {
    for slot in superblock::slot_blocks(sb.generation, (bytes.len() / BLOCK) as u64) {
        destroy(bytes, slot);
    }
}

fn destroy_root(bytes: &mut [u8], sb: &Superblock) {
    for (addr, _) in sb.root {
        destroy(bytes, sb.block_alone(addr).unwrap());
    }
}

fn size_of(fs: &Fs, name: &[u8]) -> u64 {
    fs.lookup(At::Live, Ino::ROOT, name).unwrap().size
}

/// P4: where the log does not lead there any more, that is damage, not the past.
fn damaged_when_it_goes_back() {
    let (bytes, sb, begin) = crashed_twice();
    let mut lost = bytes.clone();
    destroy(&mut lost, begin);
    destroy_slots(&mut lost, &sb);
    let fs = open(lost, false).unwrap();
    assert!(fs.recovery_report().damage.is_some());
    // Later partials of the second life prove nothing of what it dropped.
    assert_eq!(size_of(&fs, b"f"), 4 * 4096, "what was dropped is back");
    assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
    // A root that is known, further on than the log behind the one before leads.
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let fs = Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    let sb = fs.superblock();
    assert!(fs.lookup(At::Live, Ino::ROOT, b"g").is_ok());
    let mut lost = device.snapshot();
    destroy(&mut lost, begin);
    for (addr, _) in sb.root {
        destroy(&mut lost, 16 + addr.segment().0 * u64::from(sb.segment_blocks) + u64::from(addr.block()));
    }
    let fs = open(lost, false).unwrap();
    assert!(fs.recovery_report().damage.is_some(), "{:?}", fs.recovery_report());
    assert_eq!(size_of(&fs, b"f"), 4 * 4096);
}

#[test]
fn going_back_in_time_is_damage() {
    damaged_when_it_goes_back();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was dropped is back")]
fn a_later_life_that_vouches_for_what_it_dropped_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LaterVouches, damaged_when_it_goes_back);
}

/// The volume after a repair, and what that told of the log.
fn repaired(bytes: Vec<u8>) -> (Arc<Fs>, Vec<String>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let clock = Arc::new(TestClock::default());
    let plan = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {}).unwrap();
    let gaps = plan.report().losses.iter().filter(|l| l.kind == LossKind::LogGap).map(|l| l.text.clone()).collect();
    plan.carry_out(clock.clone()).unwrap();
    let fs = Fs::open(vec![device], clock, MountOptions::default()).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    (fs, gaps)
}

/// Of the log of the second life the first two partials are lost: a repair does not put in their place what that life dropped, whole
/// or not. The root with which it began says so, or what is left of its first partial.
fn repaired_without_the_first_two(cases: &[(bool, bool)]) {
    let (bytes, sb, begin) = crashed_after(8);
    let gap = format!("partial segments {} to {} are missing", sb.chain_seq.next(), sb.chain_seq.0 + 2);
    for &(by_root, whole) in cases {
        let mut lost = bytes.clone();
        if whole {
            let payload = dropped_payload(&lost, &sb);
            lost[payload * BLOCK..][..BLOCK].fill(104);
        }
        destroy(&mut lost, begin + 2);
        if by_root {
            destroy(&mut lost, begin);
        } else {
            lost[begin as usize * BLOCK + 300] ^= 1;
            destroy_slots(&mut lost, &sb);
        }
        let fs = open(lost.clone(), true).unwrap();
        assert!(fs.recovery_report().damage.is_some());
        assert_eq!(size_of(&fs, b"f"), 4 * 4096, "what was dropped is back, by root: {by_root}, whole: {whole}");
        let (fs, gaps) = repaired(lost);
        assert_eq!(size_of(&fs, b"f"), 4 * 4096, "what was dropped is back, by root: {by_root}, whole: {whole}");
        assert!(gaps.len() == 1 && gaps[0].starts_with(&gap), "{by_root}: {gap}: {gaps:?}");
    }
}

#[test]
fn a_repair_does_not_follow_what_a_mount_dropped() {
    repaired_without_the_first_two(&[(true, false), (false, false), (true, true), (false, true)]);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was dropped is back")]
fn a_life_of_which_only_a_header_is_left_is_noticed() {
    let repaired = || repaired_without_the_first_two(&[(false, true)]);
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LivesByFound, repaired);
}

/// The block of the payload of the first partial that the second life dropped.
fn dropped_payload(bytes: &[u8], sb: &Superblock) -> usize {
    let is_it = |h: &Header| h.kind == PartialKind::Chain && h.epoch < sb.epoch && h.seq == sb.chain_seq.next();
    let blocks = bytes.chunks_exact(BLOCK).enumerate();
    let mut found = blocks.filter_map(|(i, b)| Some((i, Header::peek(b).ok().filter(is_it)?)));
    let (at, header) = found.next().unwrap();
    at + header.summary_blocks as usize
}

/// What was dropped is whole after all: it arrived late, or a read was wrong once. The root of the mount that dropped it cannot be read,
/// but its slot can: it stays dropped.
fn dropped_and_whole() {
    let (mut bytes, sb, begin) = crashed_after(1);
    let payload = dropped_payload(&bytes, &sb);
    bytes[payload * BLOCK..][..BLOCK].fill(104);
    destroy_root(&mut bytes, &sb);
    destroy(&mut bytes, begin);
    let fs = open(bytes.clone(), false).unwrap();
    assert_eq!(size_of(&fs, b"f"), 4 * 4096, "what was dropped is back");
    drop(fs);
    // Where the device does not give the place where that mount went on, more may have been there.
    let device = Arc::new(Faulty::new(Arc::new(MemDevice::from_bytes(bytes))));
    let at = begin * BLOCK as u64;
    device.faults().inject(Fault::FailReads { range: at..at + 4096 });
    let fs = Fs::open(vec![device], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    assert!(fs.recovery_report().damage.is_some());
}

#[test]
fn what_a_mount_dropped_does_not_come_back_when_its_root_is_lost() {
    dropped_and_whole();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was dropped is back")]
fn what_was_cut_off_and_is_followed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CutOffFollowed, dropped_and_whole);
}

/// Three commits were dropped, of which the first is lost by now and the others are whole. Of the life that dropped them the root and
/// the first two partials are lost.
fn dropped_behind_what_is_lost() {
    let (mut bytes, sb, begin) = crashed_with(8, 3);
    let payload = dropped_payload(&bytes, &sb) as u64;
    for block in [payload - 1, begin, begin + 2] {
        destroy(&mut bytes, block);
    }
    destroy_root(&mut bytes, &sb);
    for slot_too in [false, true] {
        if slot_too {
            destroy_slots(&mut bytes, &sb);
        }
        let (fs, gaps) = repaired(bytes.clone());
        assert_eq!(size_of(&fs, b"f"), 2 * 4096, "what was dropped is back, slot lost: {slot_too}: {gaps:?}");
        fs.lookup(At::Live, Ino::ROOT, b"lost+found").unwrap();
    }
}

#[test]
fn a_repair_takes_nothing_from_where_a_life_was_cut_off() {
    dropped_behind_what_is_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was dropped is back")]
fn a_life_that_begins_where_something_is_found_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LivesByFound, dropped_behind_what_is_lost);
}

/// P1, P4: the newest root is lost, and with it the whole segment in which its log begins. The log before it looks as if
/// it ended there; the slot, which is intact, tells where it went on.
#[test]
fn a_log_that_is_lost_where_the_newest_root_begins_is_damage() {
    let (bytes, sb, begin) = crashed_after(180);
    let whole = open(bytes.clone(), true).unwrap();
    assert_eq!(whole.recovery_report().damage, None);
    assert!(whole.recovery_report().partials >= 180, "{:?}", whole.recovery_report());
    let mut lost = bytes;
    for (addr, _) in sb.root {
        destroy(&mut lost, 16 + addr.segment().0 * u64::from(sb.segment_blocks) + u64::from(addr.block()));
    }
    for block in begin..begin + u64::from(sb.segment_blocks) {
        destroy(&mut lost, block);
    }
    let fs = open(lost.clone(), false).unwrap();
    let report = fs.recovery_report();
    assert!(report.damage.as_ref().is_some_and(|d| d.contains("what came later is not shown")), "{report:?}");
    assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
    drop(fs);
    // A repair says so, too, and takes what is intact behind the gap.
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(lost));
    let clock = Arc::new(TestClock::default());
    let plan = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {}).unwrap();
    assert!(plan.report().losses.iter().any(|l| l.kind == LossKind::LogGap), "{:?}", plan.report());
    plan.carry_out(clock.clone()).unwrap();
    let fs = Fs::open(vec![device], clock, MountOptions::default()).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().size, 4 * 4096);
    fs.lookup(At::Live, Ino::ROOT, b"lost+found").unwrap();
}

/// What the front end tells: how many reads were refused, and of each file what was missed first.
#[test]
fn refused_reads_are_counted_and_the_first_of_each_file_told() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let [whole, torn] = [&b"whole"[..], b"torn"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    for ino in [whole, torn] {
        fs.write(ino, 0, &vec![ino.0 as u8; 1 << 20], 0).unwrap();
    }
    fs.close().unwrap();
    let mut bytes = w.device.inner().snapshot();
    let blocks: Vec<usize> = (0..bytes.len() / BLOCK)
        .filter(|b| bytes[b * BLOCK..(b + 1) * BLOCK].iter().all(|byte| u64::from(*byte) == torn.0))
        .collect();
    assert_eq!(blocks.len(), 256);
    bytes[blocks[100] * BLOCK + 7] ^= 1;
    let fs = open(bytes, false).unwrap();
    let at = |from: u64, bytes: usize| fs.read(At::Live, torn, from * BLOCK as u64, bytes * BLOCK);
    // One checksum may cover 16 blocks.
    assert!(at(0, 96).is_ok() && at(112, 144).is_ok() && fs.read(At::Live, whole, 0, 1 << 20).is_ok());
    assert_eq!(fs.damaged_reads().count, 0);
    assert!(at(3, 200).is_err() && at(100, 1).is_err());
    let damaged = fs.damaged_reads();
    let first: Vec<_> = damaged.first.iter().map(|d| (d.ino, d.offset.map(|o| o / BLOCK as u64 / 16))).collect();
    assert_eq!((damaged.count, first), (2, vec![(torn, Some(6))]));
    assert_eq!(fs.path_of_inode(At::Live, torn).as_deref(), Some(&b"/torn"[..]));
    // A write to a part of it needs the rest, and is no more than noted either.
    assert!(fs.write(torn, 100 * BLOCK as u64 + 5, b"x", 0).is_err());
    assert_eq!(fs.damaged_reads().count, 3);
    fs.damage_is_gone();
    assert_eq!(fs.damaged_reads(), DamagedReads::default());
}
