//! Volumes of several devices through the library: what they cost, what they bear.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, file};
use crate::forget::forget;
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{Ino, SegmentNo};
use nenrin_core::{At, Clock, Error, Fs, MkfsOptions, MountOptions, Standing, mkfs_on};
use nenrin_device::{BlockDevice, Counters, Fault, Faults, Faulty, MemDevice, Observed, Observer, OpKind};
use std::sync::Arc;

pub type Member = Arc<Observed<Faulty<MemDevice>>>;

pub struct World {
    pub members: Vec<Member>,
    pub faults: Vec<Faults>,
    observers: Vec<Observer>,
    clock: Arc<TestClock>,
}

pub fn degraded() -> MountOptions {
    MountOptions { degraded: true, ..MountOptions::default() }
}

impl World {
    pub fn new(profile: Profile, megabytes: &[usize]) -> Self {
        let members: Vec<Member> =
            megabytes.iter().map(|m| Arc::new(Observed::new(Faulty::new(MemDevice::new(m << 20))))).collect();
        let faults = members.iter().map(|m| m.inner().faults()).collect();
        let observers = members.iter().map(|m| m.observer()).collect();
        let this = Self { members, faults, observers, clock: Arc::default() };
        let options = MkfsOptions { profile, ..MkfsOptions::default() };
        mkfs_on(&this.all(), &this.time(), &options).unwrap();
        this
    }
    pub fn time(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
    pub fn all(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.members.iter().map(|m| m.clone() as Arc<dyn BlockDevice>).collect()
    }
    pub fn some(&self, which: &[usize]) -> Vec<Arc<dyn BlockDevice>> {
        which.iter().map(|i| self.members[*i].clone() as Arc<dyn BlockDevice>).collect()
    }
    pub fn open(&self, which: &[usize], options: MountOptions) -> nenrin_core::Result<Arc<Fs>> {
        Fs::open(self.some(which), self.time(), options)
    }
    pub fn counters(&self) -> Vec<Counters> {
        self.observers.iter().map(Observer::counters).collect()
    }
    fn since(&self, before: &[Counters]) -> Vec<(u64, u64)> {
        let cost = self.counters().into_iter().zip(before).map(|(now, b)| now.since(b));
        cost.map(|c| (c.writes, c.flushes)).collect()
    }
}

pub fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 999 + seed) as u8).collect()
}

pub fn write(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    fs.write(ino, 0, data, 0).unwrap();
    fs.fsync_wait(ino).unwrap();
    ino
}

pub fn read(fs: &Fs, name: &str, bytes: usize) -> nenrin_core::Result<Vec<u8>> {
    let ino = fs.lookup(At::Live, Ino::ROOT, name.as_bytes())?.ino;
    fs.read(At::Live, ino, 0, bytes)
}

/// Ticks until every device is up to date.
pub fn bring_up(fs: &Fs) {
    for _ in 0..10_000 {
        if fs.health().iter().all(|h| h.standing == Standing::Active) {
            return;
        }
        fs.tick().unwrap();
    }
    panic!("no end: {:?}, {:?}", fs.health(), fs.join_failed());
}

#[test]
fn a_small_sync_on_a_stripe_costs_one_write_and_one_flush() {
    let w = World::new(Profile::Stripe, &[64, 64, 64, 64]);
    let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[1; 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    let mut used = [0; 4];
    for i in 1..200u64 {
        let before = w.counters();
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        let cost = w.since(&before);
        let total = cost.iter().fold((0, 0), |t, c| (t.0 + c.0, t.1 + c.1));
        assert_eq!(total, (1, 1), "append {i}: {cost:?}");
        for (u, c) in used.iter_mut().zip(&cost) {
            *u += c.0;
        }
    }
    assert!(used.iter().all(|u| *u > 30), "{used:?}");
}

#[test]
fn a_small_sync_on_a_mirror_costs_one_write_and_one_flush_on_each() {
    let w = World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    for i in 0..100u64 {
        let before = w.counters();
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        assert_eq!(w.since(&before), [(1, 1), (1, 1)], "append {i}");
    }
}

/// Also where blocks are left out for order: nowhere of a small segment, of others so few that no device has more to do for it.
#[test]
fn large_writes_go_to_all_devices_alike() {
    for (megabytes, range) in [(72, 7500..=8700), (512, 7400..=8500)] {
        let w = World::new(Profile::Stripe, &[megabytes; 4]);
        let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
        let alike = |before: &[Counters], of: fn(&Counters) -> u64| {
            let bytes: Vec<u64> = w.counters().iter().zip(before).map(|(n, b)| of(&n.since(b)) >> 10).collect();
            assert!(bytes.iter().all(|b| range.contains(b)), "{bytes:?} KiB");
        };
        let before = w.counters();
        write(&fs, "f", &content(1, 32 << 20));
        alike(&before, |c| c.write_bytes);
        let before = w.counters();
        assert!(read(&fs, "f", 32 << 20).unwrap() == content(1, 32 << 20));
        alike(&before, |c| c.read_bytes);
    }
}

#[test]
fn unequal_devices_are_used_as_far_as_the_profile_can() {
    for (profile, sizes, least, most) in [
        (Profile::Single, &[40, 20, 60][..], 115, 120),
        (Profile::Stripe, &[40, 20, 60][..], 115, 120),
        (Profile::Mirror, &[40, 20, 60][..], 47, 50),
        (Profile::Mirror, &[30, 60][..], 28, 30),
    ] {
        let w = World::new(profile, sizes);
        let all: Vec<usize> = (0..sizes.len()).collect();
        let fs = w.open(&all, MountOptions::default()).unwrap();
        let sb = fs.superblock();
        let bytes = (sb.segments() * u64::from(sb.segment_blocks) * 4096) >> 20;
        assert!((least..=most).contains(&bytes), "{profile:?} {sizes:?}: {bytes} MiB");
        assert_eq!(sb.bands[0].first, SegmentNo(0));
        let size = (bytes as usize) << 19;
        write(&fs, "f", &content(3, size));
        fs.close().unwrap();
        let fs = w.open(&all, MountOptions::default()).unwrap();
        assert!(read(&fs, "f", size).unwrap() == content(3, size), "{profile:?}");
        fs.close().unwrap();
        let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.clean(), "{:?}", report.findings);
    }
}

/// What is on one device of a mirror rots, all of it but its root slots: nothing is lost.
#[test]
fn rot_on_one_device_is_read_from_the_other() {
    for rotten in 0..3 {
        let w = World::new(Profile::Mirror, &[48, 48, 48]);
        let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
        write(&fs, "large", &content(1, 6 << 20));
        write(&fs, "small", &content(2, 5000));
        drop(fs);
        let range = 16 * 4096..(48 << 20) - 16 * 4096;
        w.faults[rotten].inject(Fault::FlipReads { range, mask: 0x10 });
        for read_only in [true, false] {
            let options = MountOptions { read_only, ..MountOptions::default() };
            let fs = w.open(&[0, 1, 2], options).unwrap();
            assert_eq!(fs.recovery_report().damage, None);
            assert!(read(&fs, "large", 6 << 20).unwrap() == content(1, 6 << 20), "device {rotten}");
            assert!(read(&fs, "small", 5000).unwrap() == content(2, 5000));
            assert!(fs.failed().is_none());
        }
    }
}

/// Of one run some blocks are wrong on one device and others on another: each is there once, and all of it is read, told and mended.
#[test]
fn rot_on_two_devices_in_different_units_is_read_from_the_others() {
    let w = World::new(Profile::Mirror, &[64, 64, 64]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|i: usize| (i / 4096 + i % 251) as u8).collect();
    write(&fs, "f", &data);
    fs.close().unwrap();
    // Where the copies of the blocks lie.
    let places = |block: usize| -> Vec<(usize, u64)> {
        let wanted = &data[block * 4096..][..4096];
        (0..3)
            .flat_map(|d| {
                let bytes = w.members[d].inner().inner().snapshot();
                let at =
                    bytes.chunks(4096).enumerate().filter(|(_, b)| *b == wanted).map(|(at, _)| (d, at as u64 * 4096));
                at.collect::<Vec<_>>()
            })
            .collect()
    };
    let (first, other) = (places(5), places(6));
    assert_eq!((first.len(), other.len()), (2, 2));
    let spoil = |(device, at): (usize, u64)| {
        w.members[device].inner().inner().write(at, Arc::new(nenrin_device::AlignedBuf::zeroed(4096))).unwrap();
    };
    // Not both on one device.
    let (a, b) = first.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))).find(|(a, b)| a.0 != b.0).unwrap();
    spoil(a);
    spoil(b);
    let found = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap().findings;
    assert!(found.iter().all(|f| f.what == What::ContentCopyDamaged) && !found.is_empty(), "{found:?}");
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    assert!(read(&fs, "f", 1 << 20).unwrap() == data);
}

/// Of a large extent each copy has many wrong granules, and one is wrong in both: the others are read, and mended.
fn each_granule_comes_from_the_copy_that_has_it() {
    const LOST: usize = 200;
    let w = World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|i: usize| (i / 4096 + i % 251) as u8).collect();
    write(&fs, "f", &data);
    fs.close().unwrap();
    for device in 0..2 {
        let memory = w.members[device].inner().inner();
        let bytes = memory.snapshot();
        for (at, here) in bytes.chunks(4096).enumerate() {
            let block = data.chunks(4096).position(|block| block == here);
            if block.is_some_and(|block| block % 8 == 3 + 2 * device || block == LOST) {
                memory.write(at as u64 * 4096, Arc::new(nenrin_device::AlignedBuf::zeroed(4096))).unwrap();
            }
        }
    }
    let is_read = |fs: &Fs| {
        let ino = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
        let lost = |block: &usize| match fs.read(At::Live, ino, *block as u64 * 4096, 4096) {
            Ok(read) => read != data[block * 4096..][..4096],
            Err(_) => true,
        };
        let lost: Vec<usize> = (0..256).filter(lost).collect();
        assert!(lost.contains(&LOST) && lost.len() <= 16 && lost[lost.len() - 1] - lost[0] < 16, "not read: {lost:?}");
    };
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    // All extents but the last.
    let before = (LOST - 20) * 4096;
    assert!(read(&fs, "f", before).is_ok_and(|read| read == data[..before]), "not read: several granules at once");
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    assert_eq!(scrub.report().extents_damaged, 1);
    is_read(&fs);
    fs.close().unwrap();
    // Each device has all but that.
    for there in 0..2 {
        is_read(&w.open(&[there], MountOptions { read_only: true, ..degraded() }).unwrap());
    }
}

#[test]
fn granules_are_read_and_mended_one_by_one() {
    each_granule_comes_from_the_copy_that_has_it();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "not read")]
fn granules_that_are_right_together_or_not_at_all_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::GranulesTogether, each_granule_comes_from_the_copy_that_has_it);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "ContentDamaged")]
fn rot_that_is_not_put_together_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::UnitsUnmixed, rot_on_two_devices_in_different_units_is_read_from_the_others);
}

#[test]
fn the_work_goes_on_without_a_device_that_fails() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let w = World::new(Profile::Mirror, &[48, 48]);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        write(&fs, "before", &content(1, 100_000));
        w.faults[0].inject(Fault::Fail { kind, from: 1, times: u64::MAX });
        write(&fs, "after", &content(2, 3_000_000));
        fs.checkpoint_create(Some(b"snap")).unwrap();
        assert_eq!(fs.failed(), None);
        let health = fs.health();
        assert_eq!((health[0].standing, health[1].standing), (Standing::Absent, Standing::Active));
        assert!(read(&fs, "before", 100_000).unwrap() == content(1, 100_000));
        drop(fs);
        w.faults[0].clear();
        // It is back, and misses something: it is not read before it has been brought up to date.
        let look = MountOptions { read_only: true, ..MountOptions::default() };
        for (which, options) in [(&[1][..], degraded()), (&[0, 1], look.clone()), (&[1, 0], look)] {
            let fs = w.open(which, options).unwrap();
            assert!(read(&fs, "after", 3_000_000).unwrap() == content(2, 3_000_000), "{which:?}");
            assert_eq!(fs.health()[0].standing, Standing::Absent);
            fs.close().unwrap();
        }
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        bring_up(&fs);
        fs.close().unwrap();
        let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.clean(), "{:?}", report.findings);
        // Now it can stand in for the other.
        let fs = w.open(&[0], degraded()).unwrap();
        assert!(read(&fs, "after", 3_000_000).unwrap() == content(2, 3_000_000));
        assert!(read(&fs, "before", 100_000).unwrap() == content(1, 100_000));
    }
}

/// After a device is lost to a stripe nothing more is acknowledged, and what can be read still is.
#[test]
fn a_stripe_stops_when_a_device_fails() {
    let w = World::new(Profile::Stripe, &[48, 48]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let ino = write(&fs, "f", &content(1, 1 << 20));
    w.faults[0].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    fs.write(ino, 0, &content(5, 1 << 20), 0).unwrap();
    assert!(fs.fsync_wait(ino).is_err());
    assert!(fs.failed().is_some());
    assert!(fs.fsync_wait(ino).is_err());
    assert!(read(&fs, "f", 1 << 20).is_ok());
}

/// Read-only from then on, what is readable stays readable, nothing wrong is read, and it is told which devices are the cause.
#[test]
fn one_more_device_is_lost_than_the_profile_bears() {
    for (profile, count, gone) in [
        (Profile::Stripe, 4, &[1][..]),
        (Profile::Single, 2, &[0]),
        (Profile::Mirror, 2, &[1, 0]),
        (Profile::Mirror, 4, &[2, 3]),
        (Profile::Parity, 3, &[0, 2]),
        (Profile::Parity, 4, &[3, 1]),
    ] {
        let w = World::new(profile, &vec![64; count]);
        let fs = w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap();
        let names: Vec<String> = (0..200).map(|i| format!("file {i}")).collect();
        for (i, name) in names.iter().enumerate() {
            write(&fs, name, &content(i, 64 << 10));
        }
        let told = format!("{profile:?} of {count} without {gone:?}");
        let mut error = None;
        for (n, i) in gone.iter().enumerate() {
            w.faults[*i].switch_off();
            for (round, name) in names.iter().take(40).enumerate() {
                let ino = fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap().ino;
                let written =
                    fs.write(ino, 0, &content(round, 64 << 10), 0).map(drop).and_then(|()| fs.fsync_wait(ino));
                if let Err(e) = written {
                    assert!(n + 1 == gone.len(), "{told}: {e}");
                    error = Some(e);
                    break;
                }
            }
        }
        assert!(error.is_some() && fs.failed().is_some(), "{told}");
        assert!(fs.create(Ino::ROOT, b"no", &crate::common::dir()).is_err(), "{told}");
        let health = fs.health();
        let last = gone[gone.len() - 1];
        assert!(health[last].failed.as_ref().is_some_and(|f| f.contains("switched off")), "{told}: {health:?}");
        for i in &gone[..gone.len() - 1] {
            assert!(health[*i].why.as_ref().is_some_and(|w| w.contains("switched off")), "{told}: {health:?}");
        }
        let right = names.iter().enumerate().filter(|(i, name)| match read(&fs, name, 1 << 20) {
            Ok(bytes) => {
                assert!(bytes == content(*i, 64 << 10), "{told}: {name} is wrong");
                true
            }
            Err(_) => false,
        });
        let right = right.count();
        assert!(right > 0 && (right < names.len()), "{told}: {right} files can be read");
        drop(fs);
        // The devices are there again: everything that was acknowledged is.
        w.faults.iter().for_each(Faults::clear);
        let fs = w.open(&(0..count).collect::<Vec<_>>(), degraded()).unwrap();
        for (i, name) in names.iter().enumerate() {
            assert!(read(&fs, name, 1 << 20).unwrap() == content(i, 64 << 10), "{told}: {name}");
        }
        fs.close().unwrap();
    }
}

#[test]
fn two_halves_that_went_on_alone_are_refused() {
    let w = World::new(Profile::Mirror, &[48, 48]);
    w.open(&[0, 1], MountOptions::default()).unwrap().close().unwrap();
    for i in 0..2 {
        let fs = w.open(&[i], degraded()).unwrap();
        write(&fs, "f", &content(i, 4096));
        fs.close().unwrap();
    }
    for which in [&[0, 1][..], &[1, 0]] {
        let refused = w.open(which, degraded()).map(drop).unwrap_err();
        assert!(matches!(&refused, Error::Open(text) if text.contains("without the other")), "{refused}");
    }
    for i in 0..2 {
        let fs = w.open(&[i], degraded()).unwrap();
        assert!(read(&fs, "f", 4096).unwrap() == content(i, 4096));
    }
}

/// What rots on one device is written anew when it is read, and by scrubbing.
#[test]
fn rot_is_mended_from_the_other_device() {
    use nenrin_device::AlignedBuf;
    for by_scrub in [false, true] {
        let w = World::new(Profile::Mirror, &[48, 48]);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        write(&fs, "large", &content(1, 6 << 20));
        fs.close().unwrap();
        let (first, blocks) = (16u64, (48u64 << 20) / 4096 - 32);
        for block in (first..first + blocks).step_by(5) {
            let mut bytes = w.members[1].inner().inner().read(block * 4096, 4096).unwrap();
            bytes.iter_mut().for_each(|b| *b ^= 0x40);
            w.members[1].inner().inner().write(block * 4096, Arc::new(AlignedBuf::padded(&bytes))).unwrap();
        }
        let damaged = || {
            let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
            report.findings.iter().filter(|f| f.what == What::ContentCopyDamaged).count()
        };
        assert!(damaged() > 0);
        let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
        if by_scrub {
            let mut scrub = fs.scrub();
            while !scrub.is_done() {
                fs.scrub_step(&mut scrub, 1 << 20).unwrap();
            }
            let r = scrub.report();
            assert!(r.copies_damaged > 0 && r.copies_mended == r.copies_damaged && !r.has_losses(), "{r:?}");
        } else {
            for _ in 0..2 {
                assert!(read(&fs, "large", 6 << 20).unwrap() == content(1, 6 << 20));
            }
        }
        assert!(fs.counters().mended_blocks > 0);
        fs.close().unwrap();
        if by_scrub {
            assert_eq!(damaged(), 0);
            // All of it is on the device that had rotted.
            let fs = w.open(&[1], degraded()).unwrap();
            assert!(read(&fs, "large", 6 << 20).unwrap() == content(1, 6 << 20));
        }
    }
}

/// Reads alone leave nobody out, and a look without writing changes nothing.
#[test]
fn looking_without_a_device_changes_nothing() {
    let w = World::new(Profile::Mirror, &[48, 48]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    write(&fs, "f", &content(1, 4096));
    fs.close().unwrap();
    let before = w.counters();
    let look = MountOptions { read_only: true, ..degraded() };
    let fs = w.open(&[1], look).unwrap();
    assert!(read(&fs, "f", 4096).unwrap() == content(1, 4096));
    drop(fs);
    assert_eq!(w.since(&before), [(0, 0), (0, 0)]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    assert!(fs.health().iter().all(|h| h.standing == Standing::Active));
}

/// How often 16 bytes of what was forgotten stand on each device.
fn secrets(w: &World) -> Vec<usize> {
    let on = |m: &Member| {
        let all = m.read(0, m.geometry().bytes as usize).unwrap();
        all.chunks_exact(16).filter(|c| c.iter().all(|b| *b == 0xe7)).count()
    };
    w.members.iter().map(on).collect()
}

fn wiped(fs: &Fs) -> Option<String> {
    for _ in 0..20_000 {
        match fs.forget_step(1 << 20).unwrap() {
            None => return None,
            Some(status) if status.waits.is_some() => return status.waits,
            Some(_) => {}
        }
    }
    panic!("no end");
}

/// What is on an absent device cannot be wiped: forgetting begins and ends with all of them.
#[test]
fn forgetting_wants_every_device() {
    let w = World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], degraded()).unwrap();
    for name in ["a", "b"] {
        write(&fs, name, &vec![0xe7; 700_000]);
    }
    fs.checkpoint_create(Some(b"both")).unwrap();
    fs.close().unwrap();
    let fs = w.open(&[0], degraded()).unwrap();
    fs.unlink(Ino::ROOT, b"a").unwrap();
    fs.unlink(Ino::ROOT, b"b").unwrap();
    let refused = forget(&fs, &[b"a"]).unwrap_err().to_string();
    assert!(refused.contains("device 2") && refused.contains("absent"), "{refused}");
    fs.close().unwrap();
    let fs = w.open(&[0, 1], degraded()).unwrap();
    bring_up(&fs);
    forget(&fs, &[b"a"]).unwrap();
    forget(&fs, &[b"b"]).unwrap();
    assert!(secrets(&w).iter().all(|n| *n > 1000));
    // One fails before it was wiped.
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    let waits = wiped(&fs).unwrap_or_default();
    assert!(waits.contains("device 2 is absent"), "{waits:?}");
    let status = fs.forget_status().unwrap();
    assert!(!status.removing && status.segments_left == 0, "all that is there is wiped: {status:?}");
    assert!(secrets(&w)[0] == 0 && secrets(&w)[1] > 1000, "{:?}", secrets(&w));
    fs.close().unwrap();
    w.faults[1].clear();
    let fs = w.open(&[0, 1], degraded()).unwrap();
    assert!(fs.forget_status().is_some(), "it goes on when the device is back");
    fs.tick().unwrap();
    let waits = wiped(&fs).unwrap_or_default();
    assert!(waits.contains("device 2 is still being brought up to date"), "{waits:?}");
    bring_up(&fs);
    assert_eq!(wiped(&fs), None);
    assert_eq!(secrets(&w), [0, 0]);
    fs.close().unwrap();
}

/// A granule, and a unit that is written, is one request to one device: four devices are worth four.
#[test]
fn units_of_content_are_not_cut_in_two() {
    [Profile::Stripe, Profile::Parity].into_iter().for_each(units_are_whole);
}

fn units_are_whole(profile: Profile) {
    let w = World::new(profile, &[512, 512, 512, 512]);
    let fs = w.open(&[0, 1, 2, 3], MountOptions::default()).unwrap();
    let ino = write(&fs, "f", &content(1, 32 << 20));
    let before = w.counters();
    for unit in 0..512u64 {
        fs.read(At::Live, ino, unit << 16, 4096).unwrap();
    }
    let reads: u64 = w.counters().iter().zip(&before).map(|(n, b)| n.since(b).reads).sum();
    assert!(reads <= 520, "{reads} requests for 512 reads");
    // 64 KiB at a time, each written by itself.
    let before = w.counters();
    for unit in 0..256u64 {
        fs.write(ino, unit << 16, &content(2, 64 << 10), 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    let writes: u64 = w.since(&before).iter().map(|(writes, _)| writes).sum();
    let left_out = fs.counters().left_out_blocks;
    assert!((15..=(48 << 20) / 4096 / 32).contains(&left_out), "{left_out} blocks");
    let usual = 2 * 256 + 40;
    assert!(profile == Profile::Parity || writes <= usual, "{writes} requests for 256 writes and as many commits");
    fs.close().unwrap();
    assert!(check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap().clean());
}

/// A device that nobody has written to since it died: scrub finds out, and goes on with the others.
#[test]
fn scrub_leaves_out_a_device_that_died_unseen() {
    let w = World::new(Profile::Mirror, &[64, 64, 64]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    write(&fs, "f", &content(1, 1 << 20));
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        w.faults[1].inject(Fault::Fail { kind, from: 1, times: u64::MAX });
    }
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
    assert!(!scrub.report().has_losses(), "{:?}", scrub.report());
    assert_eq!(fs.health()[1].standing, Standing::Absent);
    assert!(read(&fs, "f", 1 << 20).unwrap() == content(1, 1 << 20));
}

/// A device fails in the very table that lists a new one: only the one that fails is left out.
#[test]
fn a_device_is_added_while_another_fails() {
    let w = World::new(Profile::Mirror, &[64, 64, 64]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    write(&fs, "before", &content(1, 1 << 20));
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    let new: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let index = fs.device_add(new.clone(), [9; 16]).unwrap();
    let standings: Vec<Standing> = fs.health().iter().map(|h| h.standing).collect();
    assert_eq!(standings, [Standing::Active, Standing::Absent, Standing::Active, Standing::Active]);
    assert_eq!(index, 3);
    write(&fs, "after", &content(2, 1 << 20));
    fs.close().unwrap();
    let there = vec![w.members[0].clone() as Arc<dyn BlockDevice>, w.members[2].clone(), new];
    let fs = Fs::open(there, w.time(), degraded()).unwrap();
    assert!(read(&fs, "before", 1 << 20).unwrap() == content(1, 1 << 20));
    assert!(read(&fs, "after", 1 << 20).unwrap() == content(2, 1 << 20));
    assert!(fs.health()[3].standing == Standing::Active, "{:?}", fs.health());
}

/// One device of a mirror has all that was written wrong: what the cleaner moves comes from the other.
fn the_cleaner_takes_what_is_right() {
    let w = World::new(Profile::Mirror, &[96, 96]);
    let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open(&[0, 1], options()).unwrap();
    for i in 0..400 {
        write(&fs, &format!("f{i}"), &content(i, 80_000));
    }
    (0..400).filter(|i| i % 4 > 0).for_each(|i| fs.unlink(Ino::ROOT, format!("f{i}").as_bytes()).unwrap());
    let (kept, copy) = (fs.lookup(At::Live, Ino::ROOT, b"f0").unwrap().ino, write(&fs, "copy", b""));
    assert_eq!(fs.copy_range(kept, 0, copy, 0, 80_000, 0).unwrap(), 80_000);
    fs.close().unwrap();
    drop(fs);
    let fs = w.open(&[0, 1], options()).unwrap();
    w.faults[0].inject(Fault::FlipReads { range: 1 << 20..95 << 20, mask: 4 });
    let mut clean = fs.clean();
    while !clean.is_done() {
        fs.clean_step(&mut clean, 256).unwrap();
    }
    let stuck = fs.cleaner_status().stuck_segments;
    assert!(
        clean.freed_segments() > 0 && stuck == 0,
        "{stuck} segments were left alone, {} freed",
        clean.freed_segments()
    );
    for i in (0..400).step_by(4) {
        assert_eq!(read(&fs, &format!("f{i}"), 1 << 20).unwrap(), content(i, 80_000), "{i}");
    }
    assert_eq!(read(&fs, "copy", 1 << 20).unwrap(), content(0, 80_000));
}

#[test]
fn what_one_device_has_wrong_is_moved_from_the_other() {
    the_cleaner_takes_what_is_right();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "segments were left alone")]
fn what_is_left_alone_although_a_device_has_it_right_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CopiesUntried, the_cleaner_takes_what_is_right);
}
