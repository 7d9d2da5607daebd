//! Rows with parity: what they cost, what they bear.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::gate::{Gate, behind};
use crate::common::{TestClock, file};
use crate::devices::{World, bring_up, content, degraded, read, write};
use crate::forget::forget;
use nenrin_core::check::What;
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::Ino;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::row_log::{ROW_LOG_UNITS, RowLog};
use nenrin_core::format::superblock::{AREA_BLOCKS, Profile};
use nenrin_core::{Clock, Error, Fs, MkfsOptions, MountOptions, RepairPlan, Standing, mkfs_on};
use nenrin_device::{AlignedBuf, BlockDevice, Fault, Op, OpKind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const LARGE: usize = 6 << 20;

fn is_whole(fs: &Fs) {
    assert!(read(fs, "large", LARGE).unwrap() == content(1, LARGE));
    assert!(read(fs, "small", 5000).unwrap() == content(2, 5000));
}

fn scrub(fs: &Fs) -> nenrin_core::ScrubReport {
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    scrub.report().clone()
}

fn is_clean(w: &World) {
    let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
}

/// Also right after a sync, when nothing was closed.
#[test]
fn any_one_device_may_be_missing() {
    for width in 3..6 {
        for closed in [false, true] {
            for gone in 0..width {
                let w = World::new(Profile::Parity, &vec![24; width]);
                let all: Vec<usize> = (0..width).collect();
                let others: Vec<usize> = all.iter().copied().filter(|i| *i != gone).collect();
                let fs = w.open(&all, MountOptions::default()).unwrap();
                write(&fs, "large", &content(1, LARGE));
                write(&fs, "small", &content(2, 5000));
                if closed {
                    fs.close().unwrap();
                }
                drop(fs);
                let refused = w.open(&others, MountOptions::default()).map(drop).unwrap_err().to_string();
                assert!(refused.contains("is missing") && refused.contains("degraded"), "{refused}");
                let before = w.counters();
                let look = w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap();
                is_whole(&look);
                drop(look);
                assert!(w.counters().iter().zip(&before).all(|(n, b)| n.since(b).writes == 0));
                let fs = w.open(&others, degraded()).unwrap();
                is_whole(&fs);
                write(&fs, "without", &content(3, 1_000_000));
                fs.close().unwrap();
                // It is back, and brought up to date: then another one may be lost.
                let fs = w.open(&all, MountOptions::default()).unwrap();
                bring_up(&fs);
                write(&fs, "again", &content(4, 70_000));
                drop(fs);
                let next = (gone + 1) % width;
                let others: Vec<usize> = all.iter().copied().filter(|i| *i != next).collect();
                let fs = w.open(&others, degraded()).unwrap();
                is_whole(&fs);
                assert!(read(&fs, "without", 1_000_000).unwrap() == content(3, 1_000_000));
                assert!(read(&fs, "again", 70_000).unwrap() == content(4, 70_000));
                let two: Vec<usize> = others[1..].to_vec();
                drop(fs);
                let refused = w.open(&two, degraded()).map(drop).unwrap_err().to_string();
                assert!(refused.contains("cannot stand in"), "{refused}");
            }
        }
    }
}

#[test]
fn a_small_sync_writes_to_two_devices() {
    let w = World::new(Profile::Parity, &[64; 4]);
    let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    let (mut usual, mut writes) = (0, 0);
    for i in 0..200u64 {
        let before = w.counters();
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        let cost: Vec<(u64, u64)> =
            w.counters().iter().zip(&before).map(|(n, b)| n.since(b)).map(|c| (c.writes, c.flushes)).collect();
        usual += u64::from(
            cost.iter().filter(|c| **c == (1, 1)).count() == 2 && cost.iter().filter(|c| **c == (0, 0)).count() == 2,
        );
        writes += cost.iter().map(|c| c.0).sum::<u64>();
        assert!(cost.iter().all(|c| c.1 <= 1), "{cost:?}");
    }
    // Now and then a row begins, which is claimed on all devices, or a partial lies in two units.
    assert!(usual > 160 && writes < 620, "{usual} of 200 as usual, {writes} writes");
}

#[test]
fn large_writes_cost_their_parity_and_little_more() {
    let w = World::new(Profile::Parity, &[64; 4]);
    let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
    let before = w.counters();
    write(&fs, "large", &content(1, 24 << 20));
    let bytes: Vec<u64> = w.counters().iter().zip(&before).map(|(n, b)| n.since(b).write_bytes >> 10).collect();
    let all: u64 = bytes.iter().sum();
    assert!((32 << 10..35 << 10).contains(&all), "{bytes:?} KiB");
    assert!(bytes.iter().all(|b| (7500..9500).contains(b)), "{bytes:?} KiB");
}

#[test]
fn what_one_device_cannot_read_or_reads_wrong_is_rebuilt() {
    for rotten in 0..3 {
        for fails in [false, true] {
            let w = World::new(Profile::Parity, &[24; 3]);
            let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
            write(&fs, "large", &content(1, LARGE));
            write(&fs, "small", &content(2, 5000));
            drop(fs);
            let log = 4096 * 16 * (1 + u64::from(ROW_LOG_UNITS));
            let range = log..(24 << 20) - 16 * 4096;
            let fs = w.open(&[0, 1, 2], MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
            w.faults[rotten].inject(match fails {
                true => Fault::Fail { kind: OpKind::Read, from: 1, times: u64::MAX },
                false => Fault::FlipReads { range: range.clone(), mask: 0x10 },
            });
            is_whole(&fs);
            drop(fs);
            w.faults[rotten].clear();
            w.open(&[0, 1, 2], MountOptions::default()).unwrap().close().unwrap();
            if !fails {
                w.faults[rotten].inject(Fault::FlipReads { range, mask: 0x10 });
                let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
                is_whole(&fs);
                assert!(fs.failed().is_none());
            }
        }
    }
}

/// Everything on one device is wrong, but for its roots and its row log: scrubbing mends it, units and parity.
#[test]
fn scrubbing_mends_units_and_parity() {
    for rotten in 0..4usize {
        let w = World::new(Profile::Parity, &[24; 4]);
        let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
        write(&fs, "large", &content(1, LARGE));
        write(&fs, "small", &content(2, 5000));
        fs.close().unwrap();
        let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
        assert!(!scrub(&fs).has_losses() && scrub(&fs).copies_damaged == 0);
        fs.close().unwrap();
        let device = w.members[rotten].inner().inner();
        for block in (16 + 16 * u64::from(ROW_LOG_UNITS)..(24 << 20) / 4096 - 16).step_by(3) {
            let mut bytes = device.read(block * 4096, 4096).unwrap();
            bytes.iter_mut().for_each(|b| *b ^= 0x40);
            device.write(block * 4096, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
        }
        let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
        let r = scrub(&fs);
        assert!(r.copies_damaged > 0 && r.copies_mended == r.copies_damaged && !r.has_losses(), "{r:?}");
        let r = scrub(&fs);
        assert_eq!((r.copies_damaged, r.has_losses()), (0, false), "{r:?}");
        fs.close().unwrap();
        is_clean(&w);
        // So any other one can be lost.
        for gone in (0..4).filter(|i| *i != rotten) {
            let others: Vec<usize> = (0..4).filter(|i| *i != gone).collect();
            is_whole(&w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap());
        }
    }
}

/// Runs that begin at units, in segments that held something else before: each device can be lost, and parity is right.
#[test]
fn what_is_left_out_of_a_row_is_zeros() {
    let w = World::new(Profile::Parity, &[24; 3]);
    let open = || w.open(&[0, 1, 2], MountOptions { left_out_share: 2, ..MountOptions::default() }).unwrap();
    let fs = open();
    for round in 0..12u8 {
        let junk = vec![0x5a + round; 12 << 20];
        let ino = write(&fs, "junk", &junk);
        fs.fsync_wait(ino).unwrap();
        fs.unlink(Ino::ROOT, b"junk").unwrap();
        fs.sync_all().unwrap();
        // Files that end within a unit, so that the next one begins at another.
        for i in 0..8 {
            write(&fs, &format!("odd {round} {i}"), &content(i, (100 << 10) + 5000 * i));
        }
        (0..8).for_each(|i| fs.unlink(Ino::ROOT, format!("odd {round} {i}").as_bytes()).unwrap());
    }
    assert!(fs.counters().left_out_blocks > 100, "{}", fs.counters().left_out_blocks);
    for i in 0..20 {
        write(&fs, &format!("odd {i}"), &content(i, (100 << 10) + 5000 * i));
    }
    write(&fs, "large", &content(1, LARGE));
    write(&fs, "small", &content(2, 5000));
    fs.close().unwrap();
    is_clean(&w);
    for others in [[0, 1], [0, 2], [1, 2]] {
        let fs = w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap();
        is_whole(&fs);
        for i in 0..20 {
            assert!(read(&fs, &format!("odd {i}"), 1 << 20).unwrap() == content(i, (100 << 10) + 5000 * i));
        }
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the row log is full")]
fn what_is_left_as_it_was_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::LeftOutUnwritten, what_is_left_out_of_a_row_is_zeros);
}

/// What only a lost device would show: check finds it, repair and scrubbing mend it.
#[test]
fn wrong_parity_is_found() {
    for by_repair in [false, true] {
        let w = World::new(Profile::Parity, &[24; 3]);
        let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
        write(&fs, "large", &content(1, LARGE));
        write(&fs, "small", &content(2, 5000));
        fs.close().unwrap();
        is_clean(&w);
        // A byte in each unit of one device: every third is parity.
        let device = w.members[1].inner().inner();
        for unit in (1 + u64::from(ROW_LOG_UNITS)..(24 << 20) / 65536 - 1).step_by(5) {
            let mut bytes = device.read(unit << 16, 4096).unwrap();
            bytes[77] ^= 0x40;
            device.write(unit << 16, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
        }
        let findings = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap().findings;
        let count = |what| findings.iter().filter(|f| f.what == what).count();
        let (parity, content) = (count(What::ParityWrong), count(What::ContentCopyDamaged));
        assert!(parity > 3 && content > 3, "{findings:?}");
        if by_repair {
            let plan = RepairPlan::new(&w.all(), w.time().as_ref(), &mut |_| {}).unwrap();
            plan.carry_out(w.time()).unwrap();
        } else {
            let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
            assert!(!scrub(&fs).has_losses());
            fs.close().unwrap();
        }
        is_clean(&w);
    }
}

/// A device goes on giving wrong bytes where the right ones were written anew: only the rest of the row has these.
#[test]
fn scrubbing_leaves_the_parity_of_what_cannot_be_mended() {
    (0..3).for_each(scrubbed_and_still_wrong);
    #[cfg(feature = "breaks")]
    {
        use nenrin_core::breaks::{Break, with};
        let noticed = |rotten| {
            with(Break::RowsBelieved, || std::panic::catch_unwind(|| scrubbed_and_still_wrong(rotten)).is_err())
        };
        assert!((0..3).any(noticed));
    }
}

fn scrubbed_and_still_wrong(rotten: usize) {
    let w = World::new(Profile::Parity, &[24; 3]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    write(&fs, "large", &content(1, LARGE));
    write(&fs, "small", &content(2, 5000));
    fs.close().unwrap();
    drop(fs);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    for byte in (4 << 20..20 << 20).step_by(300_000) {
        w.faults[rotten].inject(Fault::FlipReads { range: byte..byte + 1, mask: 4 });
    }
    for _ in 0..2 {
        let r = scrub(&fs);
        assert!(r.copies_damaged > r.copies_mended && r.nodes_lost + r.extents_damaged == 0, "{r:?}");
        is_whole(&fs);
    }
    fs.close().unwrap();
    drop(fs);
    w.faults[rotten].clear();
    let others: Vec<usize> = (0..3).filter(|i| *i != rotten).collect();
    is_whole(&w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap());
}

/// What is wrong lies in the log that recovery needs, too: scrubbing must not make parity of it.
#[test]
fn scrubbing_leaves_what_the_log_needs() {
    (0..3).for_each(scrubbed_with_a_long_log);
    #[cfg(feature = "breaks")]
    {
        use nenrin_core::breaks::{Break, with};
        let noticed = |rotten| {
            with(Break::ParityUnverified, || std::panic::catch_unwind(|| scrubbed_with_a_long_log(rotten)).is_err())
        };
        assert!((0..3).any(noticed));
    }
}

fn scrubbed_with_a_long_log(rotten: usize) {
    // So that content and log lie beside each other in rows.
    let size = |i: usize| 5000 + i * 4099 % 12_000;
    let w = World::new(Profile::Parity, &[48; 3]);
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open(&[0, 1, 2], options.clone()).unwrap();
    write(&fs, "large", &content(1, LARGE));
    write(&fs, "small", &content(2, 5000));
    for i in 0..600 {
        write(&fs, &format!("log {i}"), &content(i, size(i)));
    }
    // Beside it, as rot does: what is written to that device later is right.
    let device = w.members[rotten].inner().inner();
    for block in 16 + 16 * u64::from(ROW_LOG_UNITS)..(48 << 20) / 4096 - 16 {
        let mut bytes = device.read(block * 4096, 4096).unwrap();
        if Header::peek(&bytes).is_ok_and(|h| h.kind == PartialKind::Chain) {
            bytes.iter_mut().for_each(|b| *b ^= 0x40);
            device.write(block * 4096, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
        }
    }
    let r = scrub(&fs);
    assert!(r.copies_damaged > 0 && !r.has_losses(), "{r:?}");
    drop(fs);
    let fs = w.open(&[0, 1, 2], options).unwrap();
    is_whole(&fs);
    for i in 0..600 {
        assert!(read(&fs, &format!("log {i}"), size(i)).unwrap() == content(i, size(i)), "{rotten} {i}");
    }
    fs.close().unwrap();
    // What was log is that no more: its rows are mended now.
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    assert!(!scrub(&fs).has_losses());
    fs.close().unwrap();
    is_clean(&w);
}

#[test]
fn the_work_goes_on_without_a_device_that_fails() {
    for kind in [OpKind::Write, OpKind::Flush] {
        for dead in 0..3 {
            let w = World::new(Profile::Parity, &[32; 3]);
            let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
            write(&fs, "large", &content(1, LARGE));
            w.faults[dead].inject(Fault::Fail { kind, from: 1, times: u64::MAX });
            write(&fs, "small", &content(2, 5000));
            write(&fs, "after", &content(3, 3_000_000));
            fs.checkpoint_create(Some(b"snap")).unwrap();
            assert_eq!((fs.failed(), fs.health()[dead].standing), (None, Standing::Absent));
            is_whole(&fs);
            drop(fs);
            w.faults[dead].clear();
            let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
            bring_up(&fs);
            fs.close().unwrap();
            is_clean(&w);
            let fs = w.open(&[dead, (dead + 1) % 3], degraded()).unwrap();
            is_whole(&fs);
            assert!(read(&fs, "after", 3_000_000).unwrap() == content(3, 3_000_000));
        }
    }
}

#[test]
fn room_is_what_is_left_beside_parity() {
    for (sizes, least, most) in [
        (&[40, 40, 40][..], 73, 76),
        (&[40, 40, 40, 40], 110, 114),
        // What larger ones have more: rows of fewer.
        (&[40, 20, 60], 50, 56),
        (&[30, 30, 90], 53, 56),
    ] {
        let w = World::new(Profile::Parity, sizes);
        let all: Vec<usize> = (0..sizes.len()).collect();
        let fs = w.open(&all, MountOptions::default()).unwrap();
        let sb = fs.superblock();
        let bytes = (sb.segments() * u64::from(sb.segment_blocks) * 4096) >> 20;
        assert!((least..=most).contains(&bytes), "{sizes:?}: {bytes} MiB");
        let ino = fs.create(Ino::ROOT, b"full", &file(0o600)).unwrap().ino;
        let mut at = 0;
        let refused = loop {
            match fs.write(ino, at, &content(at as usize, 1 << 20), 0) {
                Ok(_) => at += 1 << 20,
                Err(e) => break e,
            }
        };
        assert!(matches!(refused, Error::NoSpace), "{refused}");
        fs.fsync_wait(ino).unwrap();
        assert!(at >> 20 > bytes * 3 / 4, "{} of {bytes} MiB", at >> 20);
        fs.close().unwrap();
        for gone in 0..sizes.len() {
            let others: Vec<usize> = all.iter().copied().filter(|i| *i != gone).collect();
            let fs = w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap();
            for from in (0..at).step_by(1 << 20) {
                let got = fs.read(nenrin_core::At::Live, ino, from, 1 << 20).unwrap();
                assert!(got == content(from as usize, 1 << 20), "{sizes:?} without {gone} at {from}");
            }
        }
        let fs = w.open(&all, MountOptions::default()).unwrap();
        fs.unlink(Ino::ROOT, b"full").unwrap();
        write(&fs, "new", &content(7, LARGE));
        fs.close().unwrap();
    }
}

/// Zeros for a slot of the row log.
fn is_wiped_slot(op: &Op) -> bool {
    let Op::Write { offset, data } = op else { return false };
    let slots = RowLog::entry_block(0, 0)..u64::from(ROW_LOG_UNITS) * 16;
    slots.contains(&(offset / 4096).saturating_sub(AREA_BLOCKS)) && data.len() == 128 << 10
}

/// What is forgotten is wiped from the row log, and somebody syncs meanwhile. `wiped`: runs what wipes.
fn a_sync_beside_a_wipe(wiped: fn(Box<dyn FnOnce()>)) {
    let gate = Arc::new(Gate::default());
    let devices: Vec<Arc<dyn BlockDevice>> = (0..3).map(|_| behind(&gate, 24 << 20)).collect();
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let options = MkfsOptions { profile: Profile::Parity, ..MkfsOptions::default() };
    mkfs_on(&devices, &clock, &options).unwrap();
    let fs = Fs::open(devices, clock, MountOptions::default()).unwrap();
    write(&fs, "secret", &content(1, 5000));
    fs.checkpoint_create(None).unwrap();
    fs.unlink(Ino::ROOT, b"secret").unwrap();
    forget(&fs, &[b"secret"]).unwrap();
    gate.close(is_wiped_slot, 0);
    let wiper = {
        let fs = fs.clone();
        let wipe = move || {
            let _ = (0..2000).find(|_| fs.forget_step(1 << 20).unwrap().is_none());
        };
        thread::spawn(move || wiped(Box::new(wipe)))
    };
    gate.wait_until(|g| g.held > 0);
    let (told, answer) = mpsc::channel();
    let syncs = {
        let fs = fs.clone();
        thread::spawn(move || {
            let ino = fs.create(Ino::ROOT, b"synced", &file(0o600)).unwrap().ino;
            fs.write(ino, 0, &content(2, 200 << 10), 0).unwrap();
            told.send(fs.fsync_wait(ino))
        })
    };
    let answer = answer.recv_timeout(Duration::from_secs(20));
    gate.open();
    drop((syncs.join().unwrap(), wiper.join()));
    assert!(answer.is_ok_and(|synced| synced.is_ok()), "a sync waits for the row log, or fails: {:?}", fs.failed());
    assert_eq!(fs.failed(), None);
}

#[test]
fn nobody_who_syncs_waits_for_the_row_log_to_be_wiped() {
    a_sync_beside_a_wipe(|wipe| wipe());
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync waits for the row log, or fails")]
fn who_takes_all_slots_is_noticed() {
    a_sync_beside_a_wipe(|wipe| nenrin_core::breaks::with(nenrin_core::breaks::Break::WipeTakesAll, wipe));
}

/// A closed volume of three devices, with content, and open again.
fn reopened() -> (World, Arc<Fs>) {
    let w = World::new(Profile::Parity, &[24; 3]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    write(&fs, "large", &content(1, LARGE));
    write(&fs, "small", &content(2, 5000));
    fs.close().unwrap();
    drop(fs);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    (w, fs)
}

/// Blocks of a device that lie in rows.
fn in_rows(megabytes: u64) -> std::ops::Range<u64> {
    AREA_BLOCKS + 16 * u64::from(ROW_LOG_UNITS)..(megabytes << 20) / 4096 - AREA_BLOCKS
}

/// Sectors of a device go bad, whatever lies there: content, nodes, parity, and what nobody needs.
fn bad_sectors_are_scrubbed(bad: usize) {
    let (w, fs) = reopened();
    for block in in_rows(24).step_by(7) {
        w.faults[bad].inject(Fault::BadUntilWritten { at: block * 4096 });
    }
    let r = scrub(&fs);
    assert!(r.copies_damaged > 20 && r.copies_mended == r.copies_damaged && !r.has_losses(), "not mended: {r:?}");
    let r = scrub(&fs);
    assert_eq!((r.copies_damaged, r.has_losses()), (0, false), "{r:?}");
    fs.close().unwrap();
    drop(fs);
    for gone in (0..3).filter(|i| *i != bad) {
        let others: Vec<usize> = (0..3).filter(|i| *i != gone).collect();
        is_whole(&w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap());
    }
}

/// A device does not give some blocks of content, and another gives wrong bytes beside them: these are right nowhere. Later both are well.
fn lost_and_given_later() {
    let (w, fs) = reopened();
    let all = content(1, LARGE);
    let blocks: Vec<&[u8]> = all.chunks_exact(4096).collect();
    let lies = |block: u64| w.members[0].read(block * 4096, 4096).unwrap();
    let bad: Vec<u64> = in_rows(24).filter(|b| blocks.contains(&&lies(*b)[..])).step_by(97).take(4).collect();
    let before: Vec<AlignedBuf> = bad.iter().map(|b| lies(*b)).collect();
    assert!(!bad.is_empty());
    for at in bad.iter().map(|b| b * 4096) {
        w.faults[0].inject(Fault::BadUntilWritten { at });
        w.faults[1].inject(Fault::FlipReads { range: at..at + 4096, mask: 1 });
    }
    let r = scrub(&fs);
    assert!(r.extents_damaged > 0 && r.has_losses(), "{r:?}");
    w.faults[..2].iter().for_each(nenrin_device::Faults::clear);
    let after: Vec<AlignedBuf> = bad.iter().map(|b| lies(*b)).collect();
    assert!(before.iter().zip(&after).all(|(b, a)| b[..] == a[..]), "what is right nowhere was written over");
    is_whole(&fs);
    fs.close().unwrap();
}

#[test]
fn scrubbing_leaves_what_is_right_nowhere() {
    lost_and_given_later();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what is right nowhere was written over")]
fn what_is_right_nowhere_and_written_over_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RowsBelieved, lost_and_given_later);
}

#[test]
fn scrubbing_writes_anew_what_a_device_does_not_give() {
    (0..3).for_each(bad_sectors_are_scrubbed);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "not mended")]
fn what_a_device_does_not_give_and_stays_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnreadLeft, || bad_sectors_are_scrubbed(0));
}

/// A sector with content goes bad, and somebody reads the file.
fn a_bad_sector_is_read() {
    let (w, fs) = reopened();
    let (device, wanted) = (w.members[1].inner().inner(), content(1, LARGE));
    let blocks: std::collections::HashSet<&[u8]> = wanted.chunks_exact(4096).collect();
    let is_content = |b: &u64| blocks.contains(&device.read(b * 4096, 4096).unwrap()[..]);
    let at = in_rows(24).filter(is_content).nth(20).unwrap() * 4096;
    w.faults[1].inject(Fault::BadUntilWritten { at });
    is_whole(&fs);
    assert!(w.members[1].read(at, 4096).is_ok(), "a sector stays bad");
    is_whole(&fs);
    fs.close().unwrap();
    is_clean(&w);
}

#[test]
fn reading_writes_anew_what_a_device_does_not_give() {
    a_bad_sector_is_read();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sector stays bad")]
fn a_sector_that_is_read_and_stays_bad_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnreadLeft, a_bad_sector_is_read);
}

/// A device goes on not to give what was written anew: that is told, and it is not written to with each read.
#[test]
fn what_a_device_never_gives_is_told_and_not_written_for_ever() {
    let (w, fs) = reopened();
    w.faults[1].inject(Fault::FailReads { range: in_rows(24).start * 4096..u64::MAX });
    let before = w.counters()[1];
    (0..40).for_each(|_| is_whole(&fs));
    let written = w.counters()[1].since(&before).writes;
    assert!(written < 2000, "{written} writes");
    let r = scrub(&fs);
    assert!(r.copies_damaged > r.copies_mended && r.nodes_lost + r.extents_damaged == 0, "{r:?}");
}

/// A partial of the log that recovery needs rots on its device, or is not given.
fn the_log_is_scrubbed(rots: bool) {
    let w = World::new(Profile::Parity, &[48; 3]);
    let fs = w.open(&[0, 1, 2], MountOptions { checkpoint_nanos: 0, ..MountOptions::default() }).unwrap();
    for i in 0..60 {
        write(&fs, &format!("log {i}"), &content(i, 5000));
    }
    let device = |d: usize| w.members[d].inner().inner();
    let heads = (0..3).flat_map(|d| in_rows(48).map(move |block| (d, block)));
    let heads = heads.filter_map(|(d, block)| {
        let header = Header::peek(&device(d).read(block * 4096, 4096).unwrap()).ok()?;
        (header.kind == PartialKind::Chain).then_some((header.seq, d, block))
    });
    let mut heads: Vec<_> = heads.collect();
    heads.sort_unstable();
    let (_, d, block) = heads[heads.len() / 2];
    let right = device(d).read(block * 4096, 4096).unwrap();
    if rots {
        let wrong: Vec<u8> = right.iter().map(|b| b ^ 0x40).collect();
        device(d).write(block * 4096, Arc::new(AlignedBuf::padded(&wrong))).unwrap();
    } else {
        w.faults[d].inject(Fault::BadUntilWritten { at: block * 4096 });
    }
    let r = scrub(&fs);
    assert!(r.copies_damaged > 0 && r.copies_mended == r.copies_damaged, "{r:?}");
    let is = w.members[d].read(block * 4096, 4096);
    assert!(is.is_ok_and(|is| is[..] == right[..]), "not written anew");
    assert_eq!(scrub(&fs).copies_damaged, 0);
}

#[test]
fn scrubbing_mends_the_log_of_rows() {
    the_log_is_scrubbed(true);
    the_log_is_scrubbed(false);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "not written anew")]
fn a_log_of_rows_that_is_not_scrubbed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LogUnscrubbed, || the_log_is_scrubbed(true));
}

/// Blocks that say which one they are.
fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| if i % 2 == 0 { (i >> 12) as u8 } else { (i >> 20) as u8 ^ 0x5a }).collect()
}

/// Where a device has a block of `data`, somewhere in the middle, and which one it is; it is wrong there from then on.
fn rot_one(w: &World, data: &[u8]) -> usize {
    let device = w.members[0].inner().inner();
    let blocks: Vec<&[u8]> = data.chunks_exact(4096).collect();
    let here = |at: u64| blocks.iter().position(|b| *b == &device.read(at * 4096, 4096).unwrap()[..]);
    let (at, which) = in_rows(24).filter_map(|at| Some((at, here(at)?))).nth(100).unwrap();
    let wrong: Vec<u8> = blocks[which].iter().map(|b| b ^ 0x40).collect();
    device.write(at * 4096, Arc::new(AlignedBuf::padded(&wrong))).unwrap();
    which
}

/// Content rots, and goes to the past while it is scrubbed: to a tree that was not there when that began.
#[test]
fn rot_that_goes_to_the_past_during_a_scrub_is_mended() {
    let w = World::new(Profile::Parity, &[24; 3]);
    let open = || w.open(&[0, 1, 2], MountOptions { checkpoint_nanos: 0, ..MountOptions::default() }).unwrap();
    let fs = open();
    let data = numbered(LARGE);
    let ino = write(&fs, "numbered", &data);
    let kept = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    fs.close().unwrap();
    drop(fs);
    let which = rot_one(&w, &data);
    let fs = open();
    let mut scrub = fs.scrub();
    fs.write(ino, (which as u64 / 16 * 16) << 12, &[7; 64 << 10], 0).unwrap();
    fs.sync_all().unwrap();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    let r = scrub.report();
    assert!(r.copies_damaged > 0 && r.copies_mended == r.copies_damaged && !r.has_losses(), "{r:?}");
    let past = fs.read(nenrin_core::At::Past(kept), ino, 0, LARGE).unwrap();
    assert!(past == data);
    fs.close().unwrap();
    drop(fs);
    is_clean(&w);
}

/// Content rots, and while it is scrubbed a file has it alone that was looked at before.
fn rot_is_copied_behind_the_scrub() {
    let w = World::new(Profile::Parity, &[24; 3]);
    let open = || w.open(&[0, 1, 2], MountOptions { checkpoint_nanos: 0, ..MountOptions::default() }).unwrap();
    let fs = open();
    let pieces = fs.create(Ino::ROOT, b"pieces", &file(0o600)).unwrap().ino;
    for n in 0..200u64 {
        fs.write(pieces, n << 13, &[n as u8; 4096], 0).unwrap();
    }
    let data = numbered(LARGE);
    let ino = fs.create(Ino::ROOT, b"numbered", &file(0o600)).unwrap().ino;
    // No history has it, either.
    fs.setxattr(ino, nenrin_core::format::items::HISTORY_XATTR, b"none", nenrin_core::XattrMode::Any).unwrap();
    fs.write(ino, 0, &data, 0).unwrap();
    fs.close().unwrap();
    drop(fs);
    // With all that one checksum is of.
    let from = rot_one(&w, &data) as u64 / 16 * 16;
    let fs = open();
    let mut scrub = fs.scrub();
    while scrub.report().blocks == 0 {
        fs.scrub_step(&mut scrub, 1).unwrap();
    }
    assert_eq!(fs.copy_range(ino, from << 12, pieces, 0, 64 << 10, 0).unwrap(), 64 << 10);
    fs.sync_all().unwrap();
    fs.allocate(ino, nenrin_core::AllocateMode::Punch, from << 12, 64 << 10).unwrap();
    fs.sync_all().unwrap();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    let copied = fs.read(nenrin_core::At::Live, pieces, 0, 64 << 10);
    assert!(
        copied.is_ok_and(|copied| copied == data[(from as usize) << 12..][..64 << 10]),
        "the parity of what is wrong was made of it"
    );
    let r = scrub.report();
    assert!(r.copies_damaged > r.copies_mended, "{r:?}");
    // Who read it has mended it.
    assert_eq!(self::scrub(&fs).copies_damaged, 0);
    fs.close().unwrap();
    drop(fs);
    is_clean(&w);
}

#[test]
fn scrubbing_makes_no_parity_of_what_it_did_not_look_at() {
    rot_is_copied_behind_the_scrub();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the parity of what is wrong was made of it")]
fn parity_of_what_nobody_looked_at_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RowsBelieved, rot_is_copied_behind_the_scrub);
}
