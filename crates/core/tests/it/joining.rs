//! Devices that are brought up to date while the volume is in use.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::gate::gated;
use crate::common::{TestClock, file, patience};
use crate::devices::{World, bring_up, content, degraded, read, write};
use crate::still::{begin, broken_now, in_thread};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::superblock::{Profile, SLOTS_PER_AREA};
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, NewDevice, Standing, mkfs_on};
use nenrin_device::{BlockDevice, DeviceError, Fault, Faulty, Geometry, MemDevice, Op, OpKind, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// A mirror of which device `stale` misses what was written last, open again with all of them.
fn with_stale(width: usize, stale: usize) -> (World, Arc<Fs>) {
    let w = World::new(Profile::Mirror, &vec![64; width]);
    let all: Vec<usize> = (0..width).collect();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    write(&fs, "old", &content(1, 8 << 20));
    fs.close().unwrap();
    let others: Vec<usize> = all.iter().copied().filter(|i| *i != stale).collect();
    let fs = w.open(&others, degraded()).unwrap();
    write(&fs, "missed", &content(2, 5 << 20));
    fs.close().unwrap();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    (w, fs)
}

fn verified(w: &World) {
    let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
}

/// A device on which nothing is written any more when so many writes were made to this and to others.
struct Cut {
    device: Arc<dyn BlockDevice>,
    left: Arc<AtomicU64>,
}

impl BlockDevice for Cut {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        let takes = |left: u64| left.checked_sub(1);
        match op {
            Op::Write { .. } if self.left.fetch_update(SeqCst, SeqCst, takes).is_err() => {
                Ticket::done(Err(DeviceError::Off))
            }
            op => self.device.submit(op),
        }
    }
}

/// Where power is cut before the next roots have taken the places of what its other slots have, which is of before it was away.
#[test]
fn a_device_that_has_just_joined_lacks_no_slot() {
    let stale = |left: &Arc<AtomicU64>| {
        let w = World::new(Profile::Mirror, &[24; 2]);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        write(&fs, "old", &content(1, 9000));
        fs.close().unwrap();
        for i in 0..2 {
            let fs = w.open(&[0], degraded()).unwrap();
            write(&fs, &format!("missed {i}"), &content(2, 9000));
            fs.close().unwrap();
        }
        let cut = |device| Arc::new(Cut { device, left: left.clone() }) as Arc<dyn BlockDevice>;
        let fs = Fs::open(w.all().into_iter().map(cut).collect(), w.time(), MountOptions::default()).unwrap();
        (w, fs)
    };
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let (_w, fs) = stale(&left);
    left.store(u64::MAX, SeqCst);
    bring_up(&fs);
    let writes = u64::MAX - left.load(SeqCst);
    // With the last of these roots no other tells any more that it was away.
    for made in 0..writes - 2 {
        left.store(u64::MAX, SeqCst);
        let (w, fs) = stale(&left);
        left.store(made, SeqCst);
        let _ = (0..1000).find(|_| fs.tick().is_err());
        drop(fs);
        let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert_eq!(report.count(What::SlotStale), 0, "{made} of {writes} writes: {:?}", report.findings);
    }
}

#[test]
fn a_stale_device_is_brought_up_to_date_while_files_are_written() {
    for (width, stale) in [(2, 0), (2, 1), (3, 1), (4, 3)] {
        let (w, fs) = with_stale(width, stale);
        assert_eq!(fs.health()[stale].standing, Standing::Absent);
        fs.tick().unwrap();
        assert_eq!(fs.health()[stale].standing, Standing::Joining);
        let status = fs.join_status().unwrap();
        assert!(usize::from(status.index) == stale && status.blocks_expected > status.blocks, "{status:?}");
        let mut ticks = 0;
        while fs.join_status().is_some() {
            write(&fs, &format!("meanwhile {ticks}"), &content(ticks, 300_000));
            fs.tick().unwrap();
            ticks += 1;
        }
        assert!(ticks > 8, "{ticks} ticks beside others");
        assert!(fs.health().iter().all(|h| h.standing == Standing::Active), "{:?}", fs.health());
        write(&fs, "after", &content(9, 400_000));
        fs.close().unwrap();
        verified(&w);
        // It can stand in for another, which it could not before.
        let others: Vec<usize> = (0..width).filter(|i| *i != (stale + 1) % width).collect();
        let fs = w.open(&others, degraded()).unwrap();
        assert!(read(&fs, "old", 8 << 20).unwrap() == content(1, 8 << 20));
        assert!(read(&fs, "missed", 5 << 20).unwrap() == content(2, 5 << 20));
        assert!(read(&fs, "after", 400_000).unwrap() == content(9, 400_000));
        for i in 0..ticks {
            assert!(read(&fs, &format!("meanwhile {i}"), 300_000).unwrap() == content(i, 300_000), "{i}");
        }
    }
}

/// While nobody asks for anything it goes much faster.
#[test]
fn what_is_idle_is_used() {
    let (_, fs) = with_stale(2, 1);
    for _ in 0..3 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.health()[1].standing, Standing::Active);
}

/// What was written and is not committed yet has nobody who waits for it.
#[test]
fn what_nobody_waits_for_holds_nobody_up() {
    let (w, fs) = with_stale(2, 1);
    let new = fs.create(Ino::ROOT, b"written behind", &file(0o600)).unwrap();
    fs.write(new.ino, 0, &content(3, 300_000), 0).unwrap();
    let sync = fs.submit_sync(new.ino);
    for _ in 0..5 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.health()[1].standing, Standing::Active, "{:?}", fs.join_status());
    sync.wait().unwrap();
    fs.close().unwrap();
    let fs = w.open(&[1], degraded()).unwrap();
    assert!(read(&fs, "written behind", 300_000).unwrap() == content(3, 300_000));
}

/// What it holds is of before: nobody reads it.
#[test]
fn a_device_that_joins_is_not_read() {
    let (w, fs) = with_stale(2, 1);
    fs.tick().unwrap();
    w.faults[1].inject(Fault::FlipReads { range: 16 * 4096..40 << 20, mask: 0xff });
    let before = w.counters();
    assert!(read(&fs, "missed", 5 << 20).unwrap() == content(2, 5 << 20));
    assert_eq!(w.counters()[1].since(&before[1]).reads, 0);
    assert_eq!(fs.counters().mended_blocks, 0);
}

/// It fails while it is brought up to date, in its last flush, or when its root is written: nobody else notices.
#[test]
fn a_device_that_fails_while_it_joins_fails_nobody() {
    for (kind, from) in [(OpKind::Write, 1), (OpKind::Write, 4), (OpKind::Flush, 1), (OpKind::Flush, 2)] {
        let (w, fs) = with_stale(2, 1);
        w.faults[1].inject(Fault::Fail { kind, from, times: u64::MAX });
        for i in 0..40 {
            write(&fs, &format!("meanwhile {i}"), &content(i, 100_000));
            fs.tick().unwrap();
        }
        let health = &fs.health()[1];
        assert_eq!((health.standing, fs.failed()), (Standing::Absent, None), "{kind:?} {from}");
        assert!(health.why.as_ref().unwrap().contains("it failed"), "{health:?}");
        assert_eq!(fs.join_status(), None);
        fs.close().unwrap();
        w.faults[1].clear();
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        bring_up(&fs);
        fs.close().unwrap();
        let fs = w.open(&[1], degraded()).unwrap();
        assert!(read(&fs, "meanwhile 39", 100_000).unwrap() == content(39, 100_000), "{kind:?} {from}");
    }
}

/// A block that nobody can read any more keeps nothing else from being copied.
#[test]
fn what_cannot_be_read_is_counted_and_left() {
    let (w, fs) = with_stale(2, 1);
    w.faults[0].inject(Fault::Fail { kind: OpKind::Read, from: 5, times: 2 });
    bring_up(&fs);
    w.faults[0].clear();
    assert!(read(&fs, "old", 8 << 20).unwrap() == content(1, 8 << 20));
}

/// A device that has never been a member, with junk where roots would be.
fn fresh(megabytes: usize) -> Arc<Faulty<MemDevice>> {
    let device = MemDevice::new(megabytes << 20);
    let junk = Arc::new(nenrin_core::AlignedBuf::padded(&vec![0x3c; 1 << 20]));
    device.write(0, junk.clone()).unwrap();
    device.write(((megabytes - 1) << 20) as u64, junk).unwrap();
    Arc::new(Faulty::new(device))
}

fn replace(fs: &Fs, index: u16, device: &Arc<Faulty<MemDevice>>) -> nenrin_core::Result<()> {
    fs.replace_device(index, NewDevice { device: device.clone(), uuid: [0xab; 16] })
}

/// Goes on until nothing joins any more; how many times something was written meanwhile.
fn work_until_joined(fs: &Fs) -> usize {
    let mut n = 0;
    while fs.is_joining() {
        write(fs, &format!("meanwhile {n}"), &content(n, 200_000));
        fs.tick().unwrap();
        n += 1;
    }
    n
}

#[test]
fn a_device_is_replaced_under_every_profile_while_files_are_written() {
    for (profile, sizes, index) in [
        (Profile::Single, &[64][..], 0),
        (Profile::Single, &[40, 40], 1),
        (Profile::Stripe, &[40, 40, 40], 1),
        (Profile::Stripe, &[40, 40, 40, 60], 3),
        (Profile::Mirror, &[64, 64], 0),
        (Profile::Mirror, &[48, 48, 48], 2),
        (Profile::Parity, &[40, 40, 40], 1),
        (Profile::Parity, &[40, 40, 40, 40], 3),
    ] {
        let w = World::new(profile, sizes);
        let all: Vec<usize> = (0..sizes.len()).collect();
        let fs = w.open(&all, MountOptions::default()).unwrap();
        write(&fs, "old", &content(1, 9 << 20));
        let new = fresh(70);
        replace(&fs, index as u16, &new).unwrap();
        assert!(fs.join_status().unwrap().replacement.is_some());
        assert!(replace(&fs, 0, &fresh(70)).unwrap_err().to_string().contains("another device"));
        let meanwhile = work_until_joined(&fs);
        assert!(meanwhile > 0 && fs.join_failed().is_none(), "{profile:?} {meanwhile} {:?}", fs.join_failed());
        write(&fs, "after", &content(3, 500_000));
        let health = &fs.health()[index];
        assert_eq!((health.uuid, health.standing), ([0xab; 16], Standing::Active));
        assert_eq!(health.bytes, (sizes[index] as u64) << 20, "as much of it is used as of the old one");
        fs.close().unwrap();
        // The old one is nothing any more, and everything is on the new one.
        let mut now = w.all();
        let old = std::mem::replace(&mut now[index], new as Arc<dyn BlockDevice>);
        assert!(nenrin_core::probe(old.as_ref()).unwrap().newest().is_err(), "{profile:?}");
        let report = check(&now, &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.clean(), "{profile:?}: {:?}", report.findings);
        let fs = Fs::open(now.clone(), w.time(), MountOptions::default()).unwrap();
        assert!(read(&fs, "old", 9 << 20).unwrap() == content(1, 9 << 20));
        for i in 0..meanwhile {
            assert!(read(&fs, &format!("meanwhile {i}"), 200_000).unwrap() == content(i, 200_000), "{i}");
        }
        fs.close().unwrap();
        if matches!(profile, Profile::Mirror | Profile::Parity) {
            now.remove((index + 1) % now.len());
            let fs = Fs::open(now, w.time(), degraded()).unwrap();
            assert!(read(&fs, "old", 9 << 20).unwrap() == content(1, 9 << 20));
            assert!(read(&fs, "after", 500_000).unwrap() == content(3, 500_000));
        }
    }
}

#[test]
fn a_dead_device_of_a_mirror_is_replaced() {
    let w = World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    write(&fs, "old", &content(1, 9 << 20));
    w.faults[0].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    write(&fs, "without", &content(2, 100_000));
    assert_eq!(fs.health()[0].standing, Standing::Absent);
    let new = fresh(64);
    replace(&fs, 0, &new).unwrap();
    work_until_joined(&fs);
    assert_eq!(fs.health()[0].standing, Standing::Active);
    fs.close().unwrap();
    // The dead one comes back: it is told, and not used.
    w.faults[0].clear();
    let new: Arc<dyn BlockDevice> = new;
    for given in [vec![w.all()[0].clone(), w.all()[1].clone(), new.clone()], vec![new.clone(), w.all()[1].clone()]] {
        let fs = Fs::open(given.clone(), w.time(), MountOptions::default()).unwrap();
        assert!(fs.health().iter().all(|h| h.standing == Standing::Active));
        let told = fs.recovery_report().notes.iter().any(|n| n.contains("has been replaced"));
        assert_eq!(told, given.len() == 3);
        fs.close().unwrap();
    }
    let fs = Fs::open(vec![new], w.time(), degraded()).unwrap();
    assert!(read(&fs, "old", 9 << 20).unwrap() == content(1, 9 << 20));
    assert!(read(&fs, "without", 100_000).unwrap() == content(2, 100_000));
}

/// The new device fails at any of its requests: the old one goes on, and nothing of the new one counts later.
#[test]
fn a_new_device_that_fails_leaves_the_old_one() {
    for (profile, width) in [(Profile::Single, 1), (Profile::Stripe, 2), (Profile::Mirror, 2), (Profile::Parity, 3)] {
        let all: Vec<usize> = (0..width).collect();
        for (kind, from) in
            [(OpKind::Write, 2), (OpKind::Write, 5), (OpKind::Flush, 1), (OpKind::Flush, 2), (OpKind::Flush, 3)]
        {
            let w = World::new(profile, &vec![64; width]);
            let fs = w.open(&all, MountOptions::default()).unwrap();
            write(&fs, "old", &content(1, 4 << 20));
            let new = fresh(64);
            replace(&fs, 0, &new).unwrap();
            new.faults().inject(Fault::Fail { kind, from, times: u64::MAX });
            work_until_joined(&fs);
            let failed = fs.join_failed();
            assert!(
                failed.as_ref().is_some_and(|f| f.contains("it failed")),
                "{profile:?} {kind:?} {from}: {failed:?}"
            );
            assert_eq!((fs.failed(), fs.health()[0].standing), (None, Standing::Active));
            write(&fs, "after", &content(2, 100_000));
            fs.close().unwrap();
            new.faults().clear();
            let mut given = w.some(&all);
            if nenrin_core::probe(new.as_ref()).unwrap().newest().is_ok() {
                given.push(new);
            }
            let fs = Fs::open(given, w.time(), MountOptions::default()).unwrap();
            assert!(read(&fs, "after", 100_000).unwrap() == content(2, 100_000), "{profile:?} {kind:?} {from}");
            assert!(fs.health().iter().all(|h| h.standing == Standing::Active));
        }
    }
}

/// The slots of the device that is replaced are ended.
fn ends_roots(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.len() == SLOTS_PER_AREA as usize * BLOCK_BYTES && data.iter().all(|b| *b == 0))
}

/// A flush of the device that stays fails when the table is written to it, and nothing is told before the one that goes is done.
/// Whether that flush was it.
fn a_device_is_replaced_and_a_flush_fails(number: u64) -> bool {
    let stays = Arc::new(Faulty::new(MemDevice::new(64 << 20)));
    let (goes, gate) = gated(64 << 20);
    let devices: Vec<Arc<dyn BlockDevice>> = vec![stays.clone(), goes];
    let clock = Arc::new(TestClock::default());
    let time: Arc<dyn Clock> = clock.clone();
    mkfs_on(&devices, &time, &MkfsOptions { profile: Profile::Stripe, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(devices, time, MountOptions::default()).unwrap();
    let ino = write(&fs, "old", &content(1, 4 << 20));
    replace(&fs, 1, &fresh(64)).unwrap();
    gate.close(ends_roots, 0);
    gate.cannot_tell();
    stays.faults().inject(Fault::Fail { kind: OpKind::Flush, from: number, times: 1 });
    let joining = fs.clone();
    let joins = crate::leading::spawn(move || {
        while joining.is_joining() && joining.tick().is_ok() {
            clock.0.fetch_add(100_000_000, SeqCst);
        }
    });
    while gate.held() == 0 && !joins.is_finished() {
        std::thread::yield_now();
    }
    let is_it = gate.held() > 0 && stays.faults().fired() > 0 && fs.failed().is_none();
    std::thread::scope(|s| {
        let syncs = s.spawn(|| is_it && fs.write(ino, 0, &[7; 5000], 0).is_ok() && fs.fsync_wait(ino).is_ok());
        for _ in 0..100 {
            if !syncs.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        gate.open();
        assert!(!syncs.join().unwrap(), "a sync was told to be durable");
        joins.join().unwrap();
        assert!(!is_it || fs.failed().is_some());
        is_it
    })
}

fn a_flush_fails_with_the_table() {
    assert!((1..40).any(a_device_is_replaced_and_a_flush_fails));
}

/// P5: a device tells of what it has lost once, be it to who replaces another.
#[test]
fn a_flush_that_fails_while_a_device_is_replaced_is_the_last() {
    a_flush_fails_with_the_table();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync was told to be durable")]
fn a_flush_that_is_forgotten_with_a_replacement_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::TableUnwatched, a_flush_fails_with_the_table);
}

#[test]
fn what_cannot_be_replaced_is_refused_and_nothing_is_touched() {
    let w = World::new(Profile::Stripe, &[40, 40]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let refused = |index, device: &Arc<Faulty<MemDevice>>| replace(&fs, index, device).unwrap_err().to_string();
    assert!(refused(2, &fresh(40)).contains("no device 3"));
    let short = fresh(38);
    assert!(refused(0, &short).contains("too small"));
    assert_eq!(short.read(0, 4096).unwrap()[0], 0x3c);
    // It is given up on request.
    replace(&fs, 0, &fresh(40)).unwrap();
    assert!(fs.stop_replacing());
    assert!(!fs.is_joining() && fs.join_failed().unwrap().contains("on request"));
    write(&fs, "after", &content(2, 100_000));
    fs.close().unwrap();
    let w = World::new(Profile::Mirror, &[40, 40, 40]);
    let fs = w.open(&[0, 1], degraded()).unwrap();
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: 1 });
    write_fails(&fs);
    assert!(replace(&fs, 1, &fresh(40)).is_err());
}

fn write_fails(fs: &Fs) {
    let new = nenrin_core::NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let ino = fs.create(nenrin_core::format::Ino::ROOT, b"lost", &new).unwrap().ino;
    fs.write(ino, 0, &content(1, 1 << 20), 0).unwrap();
    assert!(fs.fsync_wait(ino).is_err());
}

/// Threads write and sync while others copy, as fast as they can: what the new device got is all of it.
#[test]
fn copying_and_writing_at_the_same_time() {
    for round in 0..3 {
        let w = World::new(Profile::Mirror, &[64, 64]);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        write(&fs, "old", &content(1, 20 << 20));
        let new = fresh(64);
        replace(&fs, round % 2, &new).unwrap();
        std::thread::scope(|scope| {
            for t in 0..3 {
                let fs = &fs;
                scope.spawn(move || {
                    for i in 0..60 {
                        write(fs, &format!("{t} {i}"), &content(t * 100 + i, 3_000 + i * 997));
                    }
                });
            }
            while fs.is_joining() {
                fs.join_step(300_000).unwrap();
            }
        });
        assert_eq!(fs.join_failed(), None);
        fs.close().unwrap();
        let fs = Fs::open(vec![new], w.time(), degraded()).unwrap();
        assert!(read(&fs, "old", 20 << 20).unwrap() == content(1, 20 << 20));
        for (t, i) in (0..3).flat_map(|t| (0..60).map(move |i| (t, i))) {
            let bytes = 3_000 + i * 997;
            assert!(read(&fs, &format!("{t} {i}"), bytes).unwrap() == content(t * 100 + i, bytes), "{t} {i}");
        }
    }
}

/// As much as is copied at once cannot be read: that is counted and left, and does not speak against who takes the place.
fn a_long_run_cannot_be_read() {
    let w = World::new(Profile::Single, &[64]);
    let fs = w.open(&[0], MountOptions::default()).unwrap();
    write(&fs, "large", &content(1, 8 << 20));
    write(&fs, "other", &[0xc3; 6 << 20]);
    // The MiB of its segment that the middle of the file lies in.
    let there = w.members[0].read(0, 64 << 20).unwrap();
    let middle = &content(1, 8 << 20)[4 << 20..][..4096];
    let block = there.chunks_exact(4096).position(|b| b == middle).unwrap() - 16;
    let of_segment = block % fs.superblock().segment_blocks as usize;
    let first = (16 + block - of_segment % 256) as u64 * 4096;
    w.faults[0].inject(Fault::FailReads { range: first..first + (1 << 20) });
    replace(&fs, 0, &fresh(70)).unwrap();
    let mut unreadable = 0;
    while let Some(status) = fs.join_step(1 << 20).unwrap() {
        unreadable = status.unreadable_blocks.max(unreadable);
    }
    assert_eq!((fs.join_failed(), unreadable), (None, 256));
    assert_eq!(fs.health()[0].uuid, [0xab; 16]);
    assert!(read(&fs, "other", 6 << 20).unwrap() == [0xc3; 6 << 20]);
    assert!(read(&fs, "large", 8 << 20).is_err(), "what could not be read is told by its checksum");
}

#[test]
fn a_long_run_that_cannot_be_read_is_counted_and_left() {
    a_long_run_cannot_be_read();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it failed")]
fn what_cannot_be_read_and_ends_a_replacement_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnreadableEnds, a_long_run_cannot_be_read);
}

/// All is copied, and lies in the cache of the device that joins: while that is flushed others sync.
fn syncs_beside_the_first_flush() {
    let w = World::new(Profile::Mirror, &[64; 2]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    write(&fs, "old", &content(1, 8 << 20));
    let (device, gate) = gated(64 << 20);
    fs.replace_device(1, NewDevice { device, uuid: [9; 16] }).unwrap();
    gate.close(|op| matches!(op, Op::Flush), 0);
    let now = broken_now();
    let is_kept = thread::scope(|scope| {
        scope.spawn(|| in_thread(now, || while fs.join_step(64 << 20).unwrap().is_some() {}));
        gate.wait_until(|s| s.held == 1);
        let synced = begin(scope, || write(&fs, "beside", &content(2, 100 << 10)));
        let is_kept = synced.recv_timeout(patience()).is_err();
        gate.open();
        is_kept
    });
    assert!(!is_kept, "a sync waits for all that was copied");
    assert!(fs.join_failed().is_none() && fs.health().iter().all(|d| d.standing == Standing::Active));
    fs.close().unwrap();
}

#[test]
fn no_sync_waits_for_the_first_flush_of_a_device_that_joins() {
    syncs_beside_the_first_flush();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync waits for all that was copied")]
fn syncs_that_wait_for_a_device_that_joins_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::EnteringAtOnce, syncs_beside_the_first_flush);
}

/// A member that misses something is to leave.
fn a_stale_member_leaves() {
    let (w, fs) = with_stale(3, 1);
    fs.device_remove(1).unwrap();
    fs.join_step(1 << 20).unwrap();
    for round in 0.. {
        assert!(round < 10_000, "{:?}", fs.laying_status());
        if fs.laying_step(1 << 20).unwrap().is_none() {
            break;
        }
    }
    while fs.join_step(1 << 20).unwrap().is_some() {}
    let entry = fs.superblock().devices[1];
    let before = w.counters()[1];
    write(&fs, "after", &content(3, 5000));
    assert!(entry.removed && !entry.active && w.counters()[1] == before, "who left is a member: {entry:?}");
    assert!(!fs.is_joining());
    let there: Vec<u16> = fs.health().iter().map(|d| d.index).collect();
    assert_eq!(there, [0, 2]);
    assert!(read(&fs, "missed", 5 << 20).unwrap() == content(2, 5 << 20));
    fs.close().unwrap();
    drop(fs);
    let report = check(&w.some(&[0, 2]), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
}

#[test]
fn a_stale_member_that_leaves_is_not_brought_up_to_date() {
    a_stale_member_leaves();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "who left is a member")]
fn who_is_brought_up_to_date_and_leaves_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LeavingJoins, a_stale_member_leaves);
}
