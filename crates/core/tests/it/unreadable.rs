//! Places that a device does not give for ever: of the root slots, and of the log (P4).
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, file};
use crate::damage::crashed;
use crate::devices;
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::superblock::{AREA_BLOCKS, Profile, SLOT_BLOCK, SLOTS_PER_AREA};
use nenrin_core::format::{BLOCK_BYTES, Ino, SegmentNo};
use nenrin_core::{At, Clock, Error, Fs, MkfsOptions, MountOptions, RepairPlan, Standing, mkfs_on, probe};
use nenrin_device::{AlignedBuf, BlockDevice, Fault, Faulty, MemDevice, Observed};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of the file that [`crashed`] synced one by one.
const SYNCED: u64 = 40;
/// So few that all of their log is in one segment, and read from one device.
const SYNCS: u64 = 25;

/// A device with these bytes, of which blocks from `first` on cannot be read.
fn bad(bytes: &[u8], first: u64, blocks: u64) -> Arc<Faulty<MemDevice>> {
    let device = Faulty::new(MemDevice::from_bytes(bytes.to_vec()));
    device.faults().inject(Fault::FailReads { range: first * BLOCK..(first + blocks) * BLOCK });
    Arc::new(device)
}

fn open(device: &Arc<Faulty<MemDevice>>) -> nenrin_core::Result<Arc<Fs>> {
    Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default())
}

fn synced(fs: &Fs) -> usize {
    let f = fs.lookup(At::Live, Ino::ROOT, b"f");
    f.map_or(0, |f| fs.read(At::Live, f.ino, 0, 1 << 20).unwrap().len() / BLOCK_BYTES)
}

/// Blocks of the same file that can be read, and are no zeros: what was in a part of the log that is lost is an error.
fn readable(fs: &Fs) -> usize {
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    let read = |n: &u64| fs.read(At::Live, f.ino, n * BLOCK, BLOCK_BYTES).is_ok_and(|b| b.iter().any(|x| *x != 0));
    (0..f.size / BLOCK).filter(read).count()
}

fn writes(fs: &Fs) {
    let ino = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &[7; 9000], 0).unwrap();
    fs.fsync_wait(ino).unwrap();
    fs.close().unwrap();
}

/// A volume that was closed, and where its log would have gone on: both places.
fn closed() -> (Vec<u8>, [u64; 2]) {
    let (w, _) = crashed();
    w.open().close().unwrap();
    let bytes = w.device.inner().snapshot();
    let sb = probe(&MemDevice::from_bytes(bytes.clone())).unwrap().newest().unwrap().clone();
    let first = |segment: SegmentNo| AREA_BLOCKS + segment.0 * u64::from(sb.segment_blocks);
    (bytes, [first(sb.chain.0) + u64::from(sb.chain.1), first(sb.chain_next.unwrap())])
}

/// The first block of each partial behind the root of a volume that was not closed, and of what lies behind them.
fn log_of(device: &dyn BlockDevice) -> Vec<u64> {
    let sb = probe(device).unwrap().newest().unwrap().clone();
    let mut at = AREA_BLOCKS + sb.chain.0.0 * u64::from(sb.segment_blocks) + u64::from(sb.chain.1);
    let mut out = vec![at];
    while let Ok(header) = nenrin_core::format::partial::Header::peek(&device.read(at * BLOCK, BLOCK_BYTES).unwrap()) {
        if header.epoch != sb.epoch {
            break;
        }
        at += u64::from(header.total_blocks());
        out.push(at);
    }
    out
}

#[test]
fn a_slot_that_cannot_be_read_is_one_of_several() {
    let (bytes, _) = closed();
    let tail = bytes.len() as u64 / BLOCK - AREA_BLOCKS;
    for area in [0, tail] {
        for slot in 0..SLOTS_PER_AREA {
            let device = bad(&bytes, area + SLOT_BLOCK + slot, 1);
            let as_dyn: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
            let report = check(&as_dyn, &CheckOptions::default(), &mut |_| {}).unwrap();
            assert!(report.findings.iter().any(|f| f.to_string().contains("cannot be read")), "{:?}", report.findings);
            let fs = open(&device).unwrap();
            assert!(fs.recovery_report().notes.iter().any(|n| n.contains("unreadable")), "{:?}", fs.recovery_report());
            assert_eq!(synced(&fs), SYNCED as usize);
            writes(&fs);
        }
    }
    // A whole area, and then all of them.
    assert_eq!(synced(&open(&bad(&bytes, SLOT_BLOCK, SLOTS_PER_AREA)).unwrap()), SYNCED as usize);
    let device = bad(&bytes, SLOT_BLOCK, SLOTS_PER_AREA);
    let range = (tail + SLOT_BLOCK) * BLOCK..(tail + AREA_BLOCKS) * BLOCK;
    device.faults().inject(Fault::FailReads { range });
    assert!(matches!(open(&device), Err(Error::Device(_))));
}

/// A member of a mirror with a bad slot is a member.
#[test]
fn a_device_with_a_bad_slot_is_not_absent() {
    let w = devices::World::new(Profile::Mirror, &[64; 2]);
    w.open(&[0, 1], MountOptions::default()).unwrap().close().unwrap();
    w.faults[1].inject(Fault::FailReads { range: (SLOT_BLOCK + 1) * BLOCK..(SLOT_BLOCK + 2) * BLOCK });
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    assert!(fs.health().iter().all(|h| h.standing == Standing::Active), "{:?}", fs.health());
    fs.close().unwrap();
}

/// Nothing was written behind the root of a volume that was closed: nothing can be missed there.
#[test]
fn bad_places_behind_a_closed_log_are_no_matter() {
    let (bytes, places) = closed();
    for first in places {
        for behind in [0, 1, 30] {
            let fs = open(&bad(&bytes, first + behind, 3)).unwrap();
            assert_eq!((fs.recovery_report().damage.clone(), synced(&fs)), (None, SYNCED as usize), "{first} {behind}");
            // What is bad may be written to: a device puts other sectors in the place of such.
            writes(&fs);
        }
    }
}

/// Behind the end of a log that was not closed.
#[test]
fn a_bad_place_further_behind_ends_no_mount() {
    let (_, bytes) = crashed();
    let log = log_of(&MemDevice::from_bytes(bytes.clone()));
    let end = log[log.len() - 1];
    for behind in [1, 2, 17, 50] {
        let fs = open(&bad(&bytes, end + behind, 1)).unwrap();
        assert_eq!((fs.recovery_report().damage.clone(), synced(&fs)), (None, SYNCED as usize), "{behind}");
        writes(&fs);
    }
}

/// Where the log goes on there may have been something: all before it is shown, nothing is written, and a repair ends that.
fn what_may_have_been_is_damage() {
    let (_, bytes) = crashed();
    let log = log_of(&MemDevice::from_bytes(bytes.clone()));
    // The last but one that names content, the mark behind them, and where nothing was yet.
    for (back, at) in log.iter().rev().take(4).enumerate() {
        let device = bad(&bytes, *at, 1);
        let fs = open(&device).unwrap();
        assert!(fs.recovery_report().damage.is_some(), "silent: {} of {SYNCED} are there", synced(&fs));
        assert!(synced(&fs) + back >= SYNCED as usize, "{back}");
        assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
        drop(fs);
        let as_dyn: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
        let time: Arc<dyn nenrin_core::Clock> = Arc::new(TestClock::default());
        let plan = RepairPlan::new(&as_dyn, time.as_ref(), &mut |_| {}).unwrap();
        assert!(plan.report().needed, "{back}");
        let _ = plan.carry_out(time).unwrap();
        let fs = open(&device).unwrap();
        assert_eq!(fs.recovery_report().damage, None, "{back}");
        assert!(readable(&fs) + back >= SYNCED as usize, "{back}");
        writes(&fs);
    }
}

#[test]
fn what_may_have_been_where_the_log_cannot_be_read_is_damage() {
    what_may_have_been_is_damage();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "silent")]
fn a_bad_place_taken_for_the_end_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnreadIsEnd, what_may_have_been_is_damage);
}

/// Of a mirror one device has lost the log from some partial on, and the other that partial alone.
fn torn_mirror(lost: usize) -> devices::World {
    let w = devices::World::new(Profile::Mirror, &[64; 2]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for i in 0..SYNCS {
        fs.write(ino, i * BLOCK, &[i as u8 + 1; BLOCK_BYTES], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    drop(fs);
    let at = log_of(w.members[0].as_ref())[10];
    let zero = |device: usize, blocks: u64| {
        let zeros = Arc::new(AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES));
        w.members[device].write(at * BLOCK, zeros).unwrap();
    };
    zero(lost, 150);
    zero(1 - lost, 1);
    w
}

/// A repair loses what no device has, and not more.
fn a_repair_takes_the_log_from_either_device() {
    for lost in 0..2 {
        let w = torn_mirror(lost);
        let _ = RepairPlan::new(&w.all(), w.time().as_ref(), &mut |_| {}).unwrap().carry_out(w.time()).unwrap();
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
        let is_there = |i: &u64| {
            let read = fs.read(At::Live, f, i * BLOCK, BLOCK_BYTES);
            read.is_ok_and(|bytes| bytes == vec![*i as u8 + 1; BLOCK_BYTES])
        };
        let there = (0..SYNCS).filter(is_there).count() as u64;
        assert_eq!(there, SYNCS - 1, "without {lost}: left out what the other device has");
    }
}

#[test]
fn a_repair_takes_the_log_from_whichever_device_has_it() {
    a_repair_takes_the_log_from_either_device();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left out what the other device has")]
fn a_repair_that_looks_at_one_device_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OneWayBehind, a_repair_takes_the_log_from_either_device);
}

/// What follows on the other proves that it was durable, whichever is asked first.
fn either_device_proves() {
    for lost in 0..2 {
        let fs = torn_mirror(lost).open(&[0, 1], MountOptions::default()).unwrap();
        assert!(fs.recovery_report().damage.is_some(), "silent: {} of {SYNCS} are there", synced(&fs));
    }
}

#[test]
fn what_either_device_proves_was_durable() {
    either_device_proves();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "silent")]
fn a_proof_sought_on_one_device_alone_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OneWayBehind, either_device_proves);
}

/// On a mirror the header of the last partial is rotten in one copy, and a block of its content cannot be read in the other.
fn what_each_device_has_a_part_of() {
    let w = devices::World::new(Profile::Mirror, &[64; 2]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let content: Vec<u8> = (0..12 * 3 * BLOCK).map(|i| (i / 4099 % 251) as u8 + 1).collect();
    for (n, some) in content.chunks(3 * BLOCK_BYTES).enumerate() {
        fs.write(f, n as u64 * 3 * BLOCK, some, 0).unwrap();
        fs.fsync_wait(f).unwrap();
    }
    let bytes = [0, 1].map(|d: usize| w.members[d].read(0, 64 << 20).unwrap().to_vec());
    drop(fs);
    let log = log_of(&MemDevice::from_bytes(bytes[0].clone()));
    let (last, end) = (log[log.len() - 2], log[log.len() - 1]);
    for (rotten, is_read) in [(0, false), (1, false), (0, true), (1, true)] {
        for block in last + 1..end {
            let mut copies = bytes.clone();
            copies[rotten][(last * BLOCK) as usize..][..64].fill(0xa5);
            let mut members: Vec<Arc<dyn BlockDevice>> = vec![bad(&copies[0], 0, 0), bad(&copies[1], 0, 0)];
            members[1 - rotten] = bad(&copies[1 - rotten], block, 1);
            if is_read {
                copies[1 - rotten][(block * BLOCK) as usize + 77] ^= 1;
                members[1 - rotten] = bad(&copies[1 - rotten], 0, 0);
            }
            let fs = Fs::open(members, Arc::new(TestClock::default()), MountOptions::default()).unwrap();
            assert_eq!(fs.recovery_report().damage, None);
            assert!(
                fs.read(At::Live, f, 0, 1 << 20).unwrap()[..] == content[..],
                "block {} of the commit is missing",
                block - last
            );
            fs.close().unwrap();
        }
    }
    assert!(log.len() > 12 && end - last > 2, "nothing was tried");
}

/// Of a large commit one device has the summary and the beginning of the payload, the other all but these.
fn summary_and_payload_are_put_together() {
    const BLOCKS: u64 = 12;
    for (headed, begun) in [(0, 2), (1, 2), (0, 0), (1, 0), (0, BLOCKS), (1, BLOCKS)] {
        let w = devices::World::new(Profile::Mirror, &[64; 2]);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|i| (i / 4099 % 251) as u8 + 1).collect();
        fs.fsync_wait(f).unwrap();
        fs.write(f, 0, &content, 0).unwrap();
        fs.fsync_wait(f).unwrap();
        drop(fs);
        let log = log_of(w.members[0].as_ref());
        let (last, end) = (log[log.len() - 2], log[log.len() - 1]);
        assert_eq!(end - last, 1 + BLOCKS, "not what was to be tried");
        for block in last..end {
            let first = block < last + 1 + begun;
            let lost = if first { 1 - headed } else { headed };
            let rot = Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]));
            w.members[lost].write(block * BLOCK, rot).unwrap();
        }
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        assert_eq!(fs.recovery_report().damage, None);
        assert!(fs.read(At::Live, f, 0, 1 << 20).unwrap() == content, "the commit is missing");
        fs.close().unwrap();
    }
}

#[test]
fn a_commit_whose_summary_one_device_has_and_its_payload_the_other_counts() {
    summary_and_payload_are_put_together();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic = "Damaged"]
fn a_commit_that_is_written_as_one_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::PartialsWhole, summary_and_payload_are_put_together);
}

/// What is wrong on the only device is not read again, in the hope of something else.
fn what_is_wrong_is_read_once() {
    let observed = Arc::new(Observed::new(Faulty::new(MemDevice::new(32 << 20))));
    let (observer, faults) = (observed.observer(), observed.inner().faults());
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    mkfs_on(&[observed.clone() as Arc<dyn BlockDevice>], &clock, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![observed.clone()], clock, MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(f, 0, &vec![7; 1 << 20], 0).unwrap();
    fs.fsync_wait(f).unwrap();
    let reads = |right: bool| {
        let before = observer.counters().reads;
        assert_eq!(fs.read(At::Live, f, 0, 1 << 20).is_ok(), right);
        observer.counters().reads - before
    };
    let at_most = reads(true);
    faults.inject(Fault::FlipReads { range: 0..u64::MAX, mask: 1 });
    let reads = reads(false);
    assert!(reads <= at_most, "{reads} reads of what is wrong");
}

#[test]
fn what_no_other_device_has_is_read_once() {
    what_is_wrong_is_read_once();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic = "reads of what is wrong"]
fn what_is_read_in_vain_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::ReadInVain, what_is_wrong_is_read_once);
}

#[test]
fn a_commit_of_which_each_device_has_a_part_counts() {
    what_each_device_has_a_part_of();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic = "of the commit is missing"]
fn a_commit_that_no_device_has_all_of_and_is_dropped_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::WalkReadsElsewhere, what_each_device_has_a_part_of);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic = "the commit is missing"]
fn a_commit_that_is_not_put_together_of_blocks_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::BlocksUnmixed, summary_and_payload_are_put_together);
}

/// A volume whose last sync, of this file, nothing later proves; and where its blocks lie.
fn acknowledged(bytes: usize) -> (Vec<u8>, Vec<u64>) {
    let w = crate::common::World::new(24 << 20);
    let fs = w.open();
    let before = fs.create(Ino::ROOT, b"before", &file(0o600)).unwrap().ino;
    fs.write(before, 0, &[9; 5000], 0).unwrap();
    fs.fsync_wait(before).unwrap();
    let content: Vec<u8> = (0..bytes as u64 / 8).flat_map(|i| (i | 0xabcd << 40).to_le_bytes()).collect();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &content, 0).unwrap();
    fs.fsync_wait(ino).unwrap();
    let image = w.device.inner().snapshot();
    let blocks: Vec<&[u8]> = content.chunks_exact(BLOCK_BYTES).collect();
    let lies = |(i, block): (u64, &[u8])| blocks.contains(&block).then_some(i);
    let places = (0..).zip(image.chunks_exact(BLOCK_BYTES)).filter_map(lies).collect();
    (image, places)
}

/// What was acknowledged is in the log, and one of its blocks cannot be read: now.
fn what_cannot_be_read_is_not_dropped() {
    for (bytes, may_be_flushed) in [(12 << 10, false), (400 << 10, false), (3 << 20, true)] {
        let (image, places) = acknowledged(bytes);
        assert_eq!(places.len(), bytes / BLOCK_BYTES);
        for at in [places[0], places[places.len() / 2], places[places.len() - 1]] {
            let device = bad(&image, at, 1);
            let fs = open(&device).unwrap();
            let is_there = fs.lookup(At::Live, Ino::ROOT, b"f").is_ok_and(|f| f.size == bytes as u64);
            let damage = fs.recovery_report().damage.clone();
            assert!(damage.is_some() || may_be_flushed && is_there, "silent: {bytes} bytes, block {at}");
            if damage.is_some() {
                assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
                let before = fs.lookup(At::Live, Ino::ROOT, b"before").unwrap();
                assert_eq!(fs.read(At::Live, before.ino, 0, 9000).unwrap(), [9; 5000]);
            }
            drop(fs);
            // Nothing was written: when it can be read again all of it is there.
            device.faults().clear();
            let fs = open(&device).unwrap();
            assert_eq!(fs.recovery_report().damage, None);
            let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
            assert_eq!(fs.read(At::Live, f.ino, 0, 4 << 20).unwrap().len(), bytes);
        }
    }
}

#[test]
fn what_was_acknowledged_and_cannot_be_read_now_is_damage() {
    what_cannot_be_read_is_not_dropped();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "silent")]
fn what_was_acknowledged_and_is_dropped_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::UnreadIsMissing, what_cannot_be_read_is_not_dropped);
}

/// A volume that was closed, or not, with segments of 8 MiB, on so many devices with copies of each other; and where its log would go
/// on: both places, which are the same on each of them.
fn with_long_segments(is_closed: bool, devices: usize) -> (Vec<Vec<u8>>, [u64; 2]) {
    let members: Vec<Arc<MemDevice>> = (0..devices).map(|_| Arc::new(MemDevice::new(160 << 20))).collect();
    let as_dyn: Vec<Arc<dyn BlockDevice>> = members.iter().map(|m| m.clone() as Arc<dyn BlockDevice>).collect();
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let profile = if devices > 1 { Profile::Mirror } else { Profile::Single };
    mkfs_on(&as_dyn, &clock, &MkfsOptions { segment_blocks: 2048, profile, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(as_dyn, clock, MountOptions::default()).unwrap();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for i in 0..SYNCED {
        fs.write(ino, i * BLOCK, &[i as u8 + 1; BLOCK_BYTES], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    if is_closed {
        fs.close().unwrap();
    }
    let bytes: Vec<Vec<u8>> = members.iter().map(|m| m.snapshot()).collect();
    drop(fs);
    let of = MemDevice::from_bytes(bytes[0].clone());
    let sb = probe(&of).unwrap().newest().unwrap().clone();
    let next = AREA_BLOCKS + sb.chain_next.unwrap().0 * u64::from(sb.segment_blocks);
    let end = log_of(&of).last().copied().unwrap();
    (bytes, [end, next])
}

/// Behind the end of the log one block in so many can be read, or none, of a thousand at each place, on no device.
fn much_is_bad_behind_the_log(is_closed: bool, every: u64, devices: usize) {
    let (bytes, places) = with_long_segments(is_closed, devices);
    let mount = |is_bad: bool| {
        let member = |bytes: &Vec<u8>| Arc::new(Observed::new(Faulty::new(MemDevice::from_bytes(bytes.clone()))));
        let members: Vec<_> = bytes.iter().map(member).collect();
        for (member, place) in members.iter().flat_map(|m| places.map(|p| (m, p))).filter(|_| is_bad) {
            let bad = |from: u64, blocks: u64| {
                let range = (place + from) * BLOCK..(place + from + blocks) * BLOCK;
                member.inner().faults().inject(Fault::FailReads { range });
            };
            match every {
                0 => bad(1, 1000),
                _ => (0..1000 / every).for_each(|i| bad(1 + i * every, every - 1)),
            }
        }
        let all = members.iter().map(|m| m.clone() as Arc<dyn BlockDevice>).collect();
        let fs = Fs::open(all, Arc::new(TestClock::default()), MountOptions::default()).unwrap();
        assert_eq!((fs.recovery_report().damage.clone(), synced(&fs)), (None, SYNCED as usize));
        let is_told = fs.recovery_report().notes.iter().any(|n| n.contains("hardly anything behind the log"));
        (members.iter().map(|m| m.observer().counters().reads).sum::<u64>(), is_told)
    };
    let ((usual, told_in_vain), (asked, is_told)) = (mount(false), mount(true));
    // A mirror is asked as a whole, and without either.
    let most = [300, 1600][devices - 1].max(if every > 0 { 1000 } else { 0 });
    assert!(
        asked <= usual + most,
        "each bad place is asked for: {asked} requests, {usual} are usual, {every} {devices}"
    );
    assert!(is_told && !told_in_vain);
}

#[test]
fn many_bad_places_behind_the_log_do_not_hold_a_mount_up() {
    for is_closed in [true, false] {
        for every in [0, 2, 3, 5] {
            much_is_bad_behind_the_log(is_closed, every, 1);
        }
        much_is_bad_behind_the_log(is_closed, 0, 2);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "each bad place is asked for")]
fn bad_places_that_are_all_asked_for_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::EachBadPlaceAsked, || much_is_bad_behind_the_log(true, 0, 1));
}

/// What proves that more of the log was durable lies behind many places that cannot be read.
#[test]
fn a_proof_behind_many_bad_places_is_found() {
    let (bytes, [end, next]) = with_long_segments(false, 1);
    let bytes = &bytes[0];
    let log = log_of(&MemDevice::from_bytes(bytes.clone()));
    let last = log[log.len() - 2];
    let header = bytes[(last * BLOCK) as usize..][..((end - last) * BLOCK) as usize].to_vec();
    for gap in [20, 333, 1500] {
        let mut bytes = bytes.clone();
        // The log is rotten from the middle on; and what proves it lies far behind, as a device misplaced it.
        let rotten = log[log.len() / 2];
        bytes[(rotten * BLOCK) as usize..(end * BLOCK) as usize].fill(0xa5);
        let at = end + gap;
        bytes[(at * BLOCK) as usize..][..header.len()].copy_from_slice(&header);
        let device = bad(&bytes, end, gap);
        device.faults().inject(Fault::FailReads { range: (next + 1) * BLOCK..(next + 1000) * BLOCK });
        let damage = open(&device).unwrap().recovery_report().damage.clone();
        assert!(damage.is_some_and(|d| d.contains("a later one proves")), "the proof is missed behind {gap}");
    }
}

/// What proves it lies where some can be read, between places that cannot be.
fn a_proof_is_on_an_island() {
    let (bytes, [end, _]) = with_long_segments(false, 1);
    let bytes = &bytes[0];
    let log = log_of(&MemDevice::from_bytes(bytes.clone()));
    let last = log[log.len() - 2];
    let header = bytes[(last * BLOCK) as usize..][..((end - last) * BLOCK) as usize].to_vec();
    for before in [20, 100, 107, 333] {
        let mut bytes = bytes.clone();
        let rotten = log[log.len() / 2];
        bytes[(rotten * BLOCK) as usize..(end * BLOCK) as usize].fill(0xa5);
        let island = end + before;
        bytes[((island + 7) * BLOCK) as usize..][..header.len()].copy_from_slice(&header);
        let device = bad(&bytes, end, before);
        device.faults().inject(Fault::FailReads { range: (island + 15) * BLOCK..(island + 900) * BLOCK });
        let damage = open(&device).unwrap().recovery_report().damage.clone();
        assert!(damage.is_some_and(|d| d.contains("a later one proves")), "the proof is missed behind {before}");
    }
}

#[test]
fn a_proof_between_many_bad_places_is_found() {
    a_proof_is_on_an_island();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the proof is missed")]
fn a_proof_that_is_passed_over_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::IslandsPassed, a_proof_is_on_an_island);
}

/// The last of the log is rotten; what proves that it was durable may be where no device gives anything.
fn what_is_rotten_was_perhaps_durable() {
    let (bytes, [end, _]) = with_long_segments(false, 1);
    let mut bytes = bytes[0].clone();
    let log = log_of(&MemDevice::from_bytes(bytes.clone()));
    let last = log[log.len() - 2] * BLOCK;
    bytes[last as usize + BLOCK_BYTES - 1] ^= 1;
    let is_damage = |bytes: &[u8], blocks| open(&bad(bytes, end, blocks)).unwrap().recovery_report().damage.is_some();
    assert!(!is_damage(&bytes, 1), "nothing proves it");
    assert!(is_damage(&bytes, 1000), "it is dropped in silence");
}

#[test]
fn what_may_be_proven_where_nothing_is_given_is_damage() {
    what_is_rotten_was_perhaps_durable();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it is dropped in silence")]
fn what_is_dropped_since_nothing_is_given_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::PassedIsNothing, what_is_rotten_was_perhaps_durable);
}
