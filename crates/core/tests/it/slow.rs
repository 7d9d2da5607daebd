//! A device that became slow: nothing new goes there while there is room, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::file;
use crate::devices::{World, content, read, write};
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{Ino, Time};
use nenrin_core::{Clock, Error, Fs, MkfsOptions, MountOptions, mkfs_on};
use nenrin_device::{BlockDevice, Geometry, MemDevice, Observed, Op, Outcome, Pending, Ticket};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const MS: u64 = 1_000_000;

const SHAPES: [(Profile, usize); 5] =
    [(Profile::Stripe, 2), (Profile::Stripe, 3), (Profile::Stripe, 4), (Profile::Single, 2), (Profile::Single, 4)];

fn open(w: &World, count: usize) -> Arc<Fs> {
    w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap()
}

fn clean(w: &World) {
    let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Small syncs, long files and index nodes: `n` rounds of them.
fn work(fs: &Fs, name: &str, n: usize) {
    let log = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    for i in 0..n {
        fs.write(log, i as u64 * 4096, &content(i, 4096), 0).unwrap();
        fs.fsync_wait(log).unwrap();
        if i % 20 == 0 {
            write(fs, &format!("{name} {i}"), &content(i, 900 << 10));
            write(fs, &format!("{name} small {i}"), &content(i, 150 << 10));
        }
    }
}

fn worked(fs: &Fs, name: &str, n: usize) {
    let log: Vec<u8> = (0..n).flat_map(|i| content(i, 4096)).collect();
    assert!(read(fs, name, n << 12).unwrap() == log, "{name}");
    for i in (0..n).step_by(20) {
        assert!(read(fs, &format!("{name} {i}"), 1 << 20).unwrap() == content(i, 900 << 10), "{name} {i}");
        assert!(read(fs, &format!("{name} small {i}"), 1 << 20).unwrap() == content(i, 150 << 10), "{name} {i}");
    }
}

#[test]
fn nothing_new_goes_to_a_slow_device() {
    for (profile, count) in SHAPES {
        for slow in 0..count {
            let w = World::new(profile, &vec![96; count]);
            let fs = open(&w, count);
            work(&fs, "before", 30);
            fs.declare_slow(slow as u16, true);
            assert!(fs.health()[slow].slow_since.is_some());
            fs.sync_all().unwrap();
            let before = w.counters();
            work(&fs, "while", 150);
            let cost = w.counters()[slow].since(&before[slow]);
            // The summary of a data partial that was begun there is written when that is full.
            let told = format!("{profile:?}, {count} devices, device {slow}: {cost:?}");
            assert!(cost.writes <= 1 && cost.flushes <= 1, "{told}");
            let others: u64 = w.counters().iter().zip(&before).map(|(now, b)| now.since(b).writes).sum();
            assert!(others > 150);
            // The index leaves it, too: what is written there is the root, twice on each device.
            let before = w.counters();
            fs.close().unwrap();
            let cost = w.counters()[slow].since(&before[slow]);
            assert_eq!((cost.writes, cost.flushes), (2, 1), "{profile:?}, {count} devices, device {slow}");
            clean(&w);
            let fs = open(&w, count);
            worked(&fs, "before", 30);
            worked(&fs, "while", 150);
            // It is used again when it is fast, which a mount believes first.
            let before = w.counters();
            work(&fs, "after", 300);
            assert!(profile == Profile::Single || w.counters()[slow].since(&before[slow]).writes > 0);
            fs.close().unwrap();
            clean(&w);
        }
    }
}

/// Also after a power cut, with a device that was slow, fast and slow again.
#[test]
fn the_log_is_followed_past_what_was_left_out() {
    for (profile, count) in SHAPES {
        let w = World::new(profile, &vec![96; count]);
        let fs = open(&w, count);
        for round in 0..4 * count {
            fs.declare_slow((round % count) as u16, round % 3 < 2);
            work(&fs, &format!("round {round}"), 25);
        }
        if profile == Profile::Stripe {
            assert!(fs.counters().chain_steps_aside > 3, "{profile:?}, {count} devices");
        }
        drop(fs);
        let fs = open(&w, count);
        for round in 0..4 * count {
            worked(&fs, &format!("round {round}"), 25);
        }
        fs.close().unwrap();
        clean(&w);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "round 0")]
fn a_log_that_is_not_followed_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::LeftOutUnseen, the_log_is_followed_past_what_was_left_out);
}

#[test]
fn a_slow_device_is_used_when_room_is_short() {
    for (profile, count) in SHAPES {
        let w = World::new(profile, &vec![64; count]);
        let fs = open(&w, count);
        fs.declare_slow(0, true);
        let mut names = Vec::new();
        let full = loop {
            let name = format!("file {}", names.len());
            let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
            let done = fs.write(ino, 0, &content(names.len(), 1 << 20), 0).map(drop);
            match done.and_then(|()| fs.fsync_wait(ino)) {
                Ok(()) => names.push(name),
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
        // As much as without a slow device fits, but for what cleaning would still bring.
        assert!(names.len() > count * 64 * 7 / 10, "{profile:?}, {count} devices: {} MiB", names.len());
        fs.close().unwrap();
        let fs = open(&w, count);
        for (i, name) in names.iter().enumerate() {
            assert!(read(&fs, name, 2 << 20).unwrap() == content(i, 1 << 20), "{name}");
        }
        fs.close().unwrap();
        clean(&w);
    }
}

/// What an earlier life of a segment left in units that are left out is not taken for what is there.
#[test]
fn segments_with_units_left_out_are_cleaned() {
    let w = World::new(Profile::Stripe, &[128, 128, 128, 128]);
    let fs = open(&w, 4);
    for life in 0..6 {
        fs.declare_slow(0, life % 2 == 1);
        for i in 0..60 {
            let name = format!("file {i}");
            if life > 0 {
                fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
            }
            write(&fs, &name, &content(i + life, 2 << 20));
        }
        fs.set_retention("none").unwrap_or(());
        fs.sync_all().unwrap();
        let mut job = fs.clean();
        while !job.is_done() {
            fs.clean_step(&mut job, 1024).unwrap();
        }
    }
    for i in 0..60 {
        assert!(read(&fs, &format!("file {i}"), 3 << 20).unwrap() == content(i + 5, 2 << 20));
    }
    fs.close().unwrap();
    clean(&w);
}

/// A device that does one write or flush after the other: each takes so many nanoseconds of the clock, or, of one that lets bursts
/// through, so many are done at once in each tenth of a second.
struct Sluggish {
    inner: MemDevice,
    pace: Arc<Pace>,
    clock: Arc<Waits>,
    /// Until when it is busy, and how many were done since it last stood.
    until: Mutex<(u64, u64)>,
}

#[derive(Default)]
struct Pace {
    nanos: AtomicU64,
    burst: AtomicU64,
    /// What each byte takes besides.
    nanos_per_byte: AtomicU64,
}

/// A clock that only those who wait move on, so that nothing depends on the machine.
#[derive(Default)]
struct Waits(AtomicU64);

impl Clock for Waits {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

struct Due(u64, Arc<Waits>, Ticket);

impl Pending for Due {
    fn wait(self: Box<Self>) -> Outcome {
        self.1.0.fetch_max(self.0, SeqCst);
        self.2.wait()
    }
    fn is_done(&self) -> bool {
        self.1.monotonic_nanos() >= self.0
    }
}

impl BlockDevice for Sluggish {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        if matches!(op, Op::Read { .. }) {
            return self.inner.submit(op);
        }
        let bytes = if let Op::Write { data, .. } = &op { data.len() as u64 } else { 0 };
        let nanos = self.pace.nanos.load(SeqCst) + bytes * self.pace.nanos_per_byte.load(SeqCst);
        let burst = self.pace.burst.load(SeqCst);
        let mut until = self.until.lock().unwrap();
        *until = (until.0.max(self.clock.monotonic_nanos()) + nanos, until.1 + 1);
        if burst > 0 && until.1 >= burst {
            *until = (until.0 + 100 * MS, 0);
        }
        Ticket::new(Due(until.0, self.clock.clone(), self.inner.submit(op)))
    }
}

/// A volume on devices of the given paces.
struct Paced {
    fs: Arc<Fs>,
    clock: Arc<Waits>,
    members: Vec<Arc<Observed<Sluggish>>>,
}

fn paced(profile: Profile, paces: &[Arc<Pace>], bytes: usize) -> Paced {
    let clock = Arc::new(Waits::default());
    let sluggish = |pace: &Arc<Pace>| {
        let (inner, pace, clock) = (MemDevice::new(bytes), pace.clone(), clock.clone());
        Sluggish { inner, pace, clock, until: Mutex::default() }
    };
    let members: Vec<_> = paces.iter().map(|p| Arc::new(Observed::new(sluggish(p)))).collect();
    let all: Vec<Arc<dyn BlockDevice>> = members.iter().map(|m| m.clone() as _).collect();
    let of_all: Arc<dyn Clock> = clock.clone();
    mkfs_on(&all, &of_all, &MkfsOptions { profile, ..MkfsOptions::default() }).unwrap();
    Paced { fs: Fs::open(all, of_all, MountOptions::default()).unwrap(), clock, members }
}

impl Paced {
    fn slow(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|i| self.fs.health()[*i].slow_since.is_some()).collect()
    }
}

/// Who writes and seldom syncs waits for one device after the other, and those that come later have nothing left to do.
#[test]
fn of_devices_with_the_same_limit_none_is_slow() {
    for (profile, count) in SHAPES {
        let pace = || Arc::new(Pace { nanos: (MS / 5).into(), nanos_per_byte: 50.into(), ..Pace::default() });
        let w = paced(profile, &(0..count).map(|_| pace()).collect::<Vec<_>>(), 256 << 20);
        let data = content(1, 1 << 20);
        for round in 0..12 {
            if round > 2 {
                w.fs.unlink(Ino::ROOT, format!("file {}", round - 3).as_bytes()).unwrap();
            }
            let ino = w.fs.create(Ino::ROOT, format!("file {round}").as_bytes(), &file(0o600)).unwrap().ino;
            for i in 0..48 {
                w.fs.write(ino, i << 20, &data, 0).unwrap();
                w.fs.tick().unwrap();
                assert!(w.slow().is_empty(), "{profile:?}, {count} devices, round {round}: {:?}", w.slow());
            }
            w.fs.fsync_wait(ino).unwrap();
            for _ in 0..20 {
                w.clock.0.fetch_add(100 * MS, SeqCst);
                w.fs.tick().unwrap();
            }
            assert!(w.slow().is_empty(), "{profile:?}, {count} devices, round {round}: {:?}", w.slow());
        }
        w.fs.close().unwrap();
    }
}

/// Four devices of which one is slow after so many seconds while a log is synced: it is noticed, it alone, and left.
fn noticed(after: u64, slow: impl FnOnce(&Pace)) {
    let paces: Vec<Arc<Pace>> = (0..4).map(|_| Arc::new(Pace { nanos: (MS / 5).into(), ..Pace::default() })).collect();
    let w = paced(Profile::Stripe, &paces, 64 << 20);
    let Paced { fs, clock, members } = &w;
    let log = fs.create(Ino::ROOT, b"log", &file(0o600)).unwrap().ino;
    let sync = |i: u64| {
        fs.write(log, i << 12, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(log).unwrap();
        clock.0.fetch_add(MS / 20, SeqCst);
        fs.tick().unwrap();
    };
    let mut i = 0;
    // Syncs until that is so, or for so long; how long they took.
    let mut syncs_until = |seconds: u64, is_so: &dyn Fn() -> bool| {
        let begin = clock.monotonic_nanos();
        while !is_so() && clock.monotonic_nanos() - begin < seconds * 1000 * MS {
            sync(i);
            i += 1;
        }
        clock.monotonic_nanos() - begin
    };
    syncs_until(after, &|| false);
    assert!(w.slow().is_empty());
    slow(&paces[2]);
    let took = syncs_until(60, &|| !w.slow().is_empty());
    assert!(took <= 6000 * MS, "{took} ns");
    assert_eq!(w.slow(), [2]);
    let before = (members[2].observer().counters(), fs.counters().index_checkpoints);
    syncs_until(3, &|| false);
    // None of thousands of syncs; an index checkpoint writes its root twice on each device.
    let since = members[2].observer().counters().since(&before.0);
    let roots = fs.counters().index_checkpoints - before.1;
    assert_eq!((since.writes, since.flushes), (2 * roots, roots));
    fs.close().unwrap();
}

/// Decision 0026: it is noticed within a few seconds of syncs, and left.
#[test]
fn a_device_that_becomes_slow_is_noticed() {
    noticed(3, |pace| pace.nanos.store(20 * MS, SeqCst));
}

/// Others were never asked for more than it bears.
#[test]
fn a_device_that_is_slow_from_the_mount_on_is_noticed() {
    noticed(0, |pace| pace.nanos.store(20 * MS, SeqCst));
}

/// Most of its requests are as fast as before.
#[test]
fn a_device_that_lets_bursts_through_and_then_stands_is_noticed() {
    noticed(3, |pace| pace.burst.store(10, SeqCst));
}

#[test]
fn a_device_that_lets_bursts_through_from_the_mount_on_is_noticed() {
    noticed(0, |pace| pace.burst.store(10, SeqCst));
}
