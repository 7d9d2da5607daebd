//! Copies of a mirror: what is right is not written over for the sake of what is wrong, and each copy is looked at.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{TestClock, file};
use crate::devices::{World, content, read, write};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::Ino;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::{AREA_BLOCKS, Profile};
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, Standing, mkfs_on};
use nenrin_device::{AlignedBuf, BlockDevice, CrashDisk, Fault, HistoryCursor, OpKind, Sequence};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const BLOCK: u64 = 4096;

/// Every tenth block of what may hold content, from this one on, is wrong on a device; which these are.
fn rot(device: &dyn BlockDevice, from: u64, mib: usize) -> BTreeSet<u64> {
    let bad: BTreeSet<u64> = (AREA_BLOCKS + from..(mib * MIB) as u64 / BLOCK - AREA_BLOCKS).step_by(10).collect();
    for block in &bad {
        let mut bytes = device.read(block * BLOCK, BLOCK as usize).unwrap();
        bytes.iter_mut().for_each(|b| *b ^= 0x40);
        device.write(block * BLOCK, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
    }
    bad
}

/// A mirror on which blocks have rotted, of one device or of both in turn, is read. What the devices were written.
fn mends(both: bool) {
    let w = World::new(Profile::Mirror, &[48, 48]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    write(&fs, "large", &content(1, 6 * MIB));
    let below = |i: usize| w.members[i].inner().inner();
    let bad = [if both { rot(below(0), 5, 48) } else { BTreeSet::new() }, rot(below(1), 0, 48)];
    drop(fs);
    let fs = w.open(&[0, 1], MountOptions { cache_bytes: MIB, ..MountOptions::default() }).unwrap();
    if !both {
        // It can be read, and that is all.
        w.faults[0].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    }
    w.members.iter().for_each(|m| m.observer().start_trace());
    for _ in 0..3 {
        let got = read(&fs, "large", 6 * MIB);
        assert!(got.is_ok_and(|got| got == content(1, 6 * MIB)), "what one device had right is lost by a mend");
    }
    assert!(fs.counters().mended_blocks > 100, "{}", fs.counters().mended_blocks);
    for (i, m) in w.members.iter().enumerate() {
        let writes = m.observer().take_trace().into_iter().filter(|e| e.kind == OpKind::Write);
        let mut blocks = writes.flat_map(|e| e.offset / BLOCK..(e.offset + e.bytes) / BLOCK);
        let right = blocks.find(|b| !bad[i].contains(b));
        assert_eq!(right, None, "a block that is right is written over on device {i}");
        assert_eq!(fs.health()[i].standing, Standing::Active);
    }
}

#[test]
fn what_is_right_is_not_written_over() {
    mends(false);
    mends(true);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a block that is right is written over")]
fn copies_that_are_written_over_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::MendedOverRight, || mends(true));
}

/// And the device that has the only right copy is lost with that.
#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what one device had right is lost by a mend")]
fn a_device_that_is_lost_by_a_mend_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::MendedOverRight, || mends(false));
}

/// The first blocks of partials of a kind are wrong on a device; how many.
fn lose_summaries(device: &dyn BlockDevice, kind: PartialKind) -> usize {
    let blocks = device.geometry().bytes / BLOCK;
    let is_one = |block: &u64| {
        let bytes = device.read(block * BLOCK, BLOCK as usize).unwrap();
        Header::peek(&bytes).is_ok_and(|h| h.kind == kind)
    };
    let lost: Vec<u64> = (AREA_BLOCKS..blocks - AREA_BLOCKS).filter(is_one).collect();
    let zeros = Arc::new(AlignedBuf::zeroed(BLOCK as usize));
    lost.iter().for_each(|block| device.write(block * BLOCK, zeros.clone()).unwrap());
    lost.len()
}

fn a_check_looks_at_roots_and_the_log_on_each_device() {
    for (kind, what) in [(PartialKind::Root, What::RootCopyDamaged), (PartialKind::Chain, What::LogCopyDamaged)] {
        for wrong in 0..2 {
            let w = World::new(Profile::Mirror, &[48, 48]);
            let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
            for i in 0..20 {
                write(&fs, &format!("file {i}"), &content(i, 9000));
            }
            drop(fs);
            let whole = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
            assert!(whole.clean(), "{:?}", whole.findings);
            assert!(lose_summaries(w.members[wrong].inner().inner(), kind) > 2);
            let found = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
            assert!(found.count(what) > 1, "{kind:?} on device {wrong} is wrong: {:?}", found.findings);
            assert!(found.findings.iter().all(|f| f.what == what), "{:?}", found.findings);
        }
    }
}

#[test]
fn roots_and_log_that_one_device_has_wrong_are_found() {
    a_check_looks_at_roots_and_the_log_on_each_device();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "on device 0 is wrong")]
fn roots_that_are_checked_on_one_device_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::OneCopyChecked, a_check_looks_at_roots_and_the_log_on_each_device);
}

/// What a cut could take away of the blocks that held something before this moment.
fn under_way(cursor: &HistoryCursor<'_>, before: &[u8]) -> BTreeSet<u64> {
    let blocks = |r: Range<u64>| r.start / BLOCK..r.end.div_ceil(BLOCK);
    let last = before.len() as u64 / BLOCK - AREA_BLOCKS;
    let held = |b: &u64| before[(b * BLOCK) as usize..((b + 1) * BLOCK) as usize].iter().any(|byte| *byte != 0);
    let all = cursor.unflushed_ranges().into_iter().flat_map(blocks);
    all.filter(|b| (AREA_BLOCKS..last).contains(b)).filter(held).collect()
}

/// A mirror is mounted after a crash: what may have been acknowledged is written anew.
fn what_was_acknowledged_is_written_anew() {
    let (sequence, clock) = (Sequence::default(), Arc::new(TestClock::default()));
    let disks: Vec<_> = (0..2).map(|_| Arc::new(CrashDisk::new(32 << 20).with_sequence(&sequence))).collect();
    let all: Vec<_> = disks.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect();
    let time: Arc<dyn Clock> = clock.clone();
    mkfs_on(&all, &time, &MkfsOptions { profile: Profile::Mirror, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(all.clone(), clock.clone(), MountOptions::default()).unwrap();
    let fs = open();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for (i, bytes) in [200_000, 3000].into_iter().enumerate() {
        fs.write(ino, i as u64 * (1 << 20), &vec![7; bytes], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    drop(fs);
    let before: Vec<Vec<u8>> = all.iter().map(|d| d.read(0, 32 << 20).unwrap().to_vec()).collect();
    let (from, written) = (sequence.now(), disks[0].counters().writes);
    drop(open());
    assert!(disks[0].counters().writes > written + 4);
    let histories: Vec<_> = disks.iter().map(|d| d.history().unwrap()).collect();
    let mut cursors: Vec<_> = histories.iter().map(|h| h.cursor()).collect();
    let mut seen = 0;
    for now in from..=sequence.now() {
        let mut open = cursors.iter_mut().zip(&histories).zip(&before).map(|((cursor, history), before)| {
            cursor.advance_to(history.cut_at(now));
            under_way(cursor, before)
        });
        let (one, other) = (open.next().unwrap(), open.next().unwrap());
        seen += usize::from(!one.is_empty() || !other.is_empty());
        assert!(one.is_disjoint(&other), "both copies of what was acknowledged are being written: {one:?}, {other:?}");
    }
    assert!(seen > 1);
}

#[test]
fn one_copy_at_a_time_is_written_anew() {
    what_was_acknowledged_is_written_anew();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "both copies of what was acknowledged are being written")]
fn copies_that_are_written_at_once_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::AnewAtOnce, what_was_acknowledged_is_written_anew);
}
