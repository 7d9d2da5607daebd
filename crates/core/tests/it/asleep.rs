//! A host with `mmp` that was asleep while another took the volume, and has much to write when it wakes; or falls asleep in the midst of
//! writing it.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::file;
use crate::mmp::{SYNCS, World, clean, put, with_mmp};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::heartbeat::look;
use nenrin_core::{Fs, NewDevice, probe};
use nenrin_device::{BlockDevice, DeviceError, Geometry, MemDevice, Op, Outcome, Pending, Ticket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const HOUR: u64 = 3_600_000_000_000;

/// Files with so many blocks each of which no two lie together: they wait in memory.
fn scattered(fs: &Fs, files: usize, blocks: u64) -> Ino {
    let write = |i: usize| {
        let ino = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap().ino;
        (0..blocks).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[i as u8; 4096], 0).unwrap(), 4096));
        ino
    };
    (0..files).map(write).last().unwrap()
}

/// More was accepted than travels in the log, of one file or of several; then the host sleeps.
fn sleepers_write_behind() {
    // What can be joined without waiting is little.
    let mut ways: Vec<_> = SYNCS.into_iter().filter(|(what, _)| !what.contains("joined")).collect();
    ways.push(("a commit by time", |fs, _| fs.commit_due()));
    ways.push(("a checkpoint", |fs, _| fs.checkpoint_create(None).map(drop)));
    ways.push(("the end", |fs, _| fs.close()));
    for (what, sync) in ways {
        for (files, blocks) in [(1, 80), (4, 30)] {
            let w = World::new(Profile::Single, 1);
            let a = w.on("a").unwrap();
            let ino = scattered(&a, files, blocks);
            w.clock.pass(HOUR);
            let b = w.on("b").unwrap();
            put(&b, "of the other").unwrap();
            let before = w.observers[0].counters().writes;
            let outcome = sync(&a, ino);
            let written = w.observers[0].counters().writes - before;
            assert_eq!(written, 0, "{what}, {files} files: went where another host writes");
            assert!(outcome.unwrap_err().to_string().contains("in use on host b, too"), "{what}");
            put(&b, "after that").unwrap();
            b.close().unwrap();
            clean(&w);
        }
    }
}

#[test]
fn who_was_asleep_looks_before_it_writes_behind() {
    sleepers_write_behind();
}

/// Who looks needs no gate for that.
#[cfg(feature = "breaks")]
#[test]
fn who_looks_needs_no_gate() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LeaseOpen, sleepers_write_behind);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "went where another host writes")]
fn data_that_a_sleeper_writes_behind_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::BehindUnowned, sleepers_write_behind);
}

type Nap = Box<dyn FnOnce() + Send>;

/// When a host falls asleep, and what it writes after that to devices on which another shows itself.
#[derive(Default)]
struct Sleep {
    /// Writes until then; none before it is set.
    left: AtomicU64,
    nap: Mutex<Option<Nap>>,
    slept: AtomicBool,
    late: AtomicU64,
}

impl Sleep {
    fn set(&self, writes: u64, nap: Nap) {
        *self.nap.lock().unwrap() = Some(nap);
        self.left.store(writes, SeqCst);
    }
    fn begins_write(&self, device: &dyn BlockDevice) {
        let is_late = self.slept.load(SeqCst) && look(device).is_ok_and(|said| said.node().as_deref() == Some("b"));
        self.late.fetch_add(is_late.into(), SeqCst);
    }
    fn wrote(&self) {
        if self.left.load(SeqCst) > 0 && self.left.fetch_sub(1, SeqCst) == 1 {
            self.sleep();
        }
    }
    fn sleep(&self) {
        if let Some(nap) = self.nap.lock().unwrap().take() {
            nap();
            self.slept.store(true, SeqCst);
        }
    }
}

/// A device as one host sees it. It falls asleep behind the write that is set; or, `lost`, while it waits for one that fails.
struct Seen {
    inner: Arc<dyn BlockDevice>,
    sleep: Arc<Sleep>,
    lost: AtomicBool,
}

impl BlockDevice for Seen {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        if matches!(op, Op::Read { .. } | Op::Flush) {
            return self.inner.submit(op);
        }
        self.sleep.begins_write(self.inner.as_ref());
        if self.lost.load(SeqCst) {
            return Ticket::new(Lost(self.sleep.clone()));
        }
        let outcome = self.inner.submit(op).wait();
        self.sleep.wrote();
        Ticket::done(outcome)
    }
}

struct Lost(Arc<Sleep>);

impl Pending for Lost {
    fn wait(self: Box<Self>) -> Outcome {
        self.0.sleep();
        Err(DeviceError::Os(5))
    }
    fn is_done(&self) -> bool {
        false
    }
}

/// A host on devices of its own making, and its sleep.
fn sleeper(w: &World) -> (Arc<Fs>, Arc<Sleep>, Vec<Arc<Seen>>) {
    let sleep = Arc::<Sleep>::default();
    let see = |d: &Arc<dyn BlockDevice>| Seen { inner: d.clone(), sleep: sleep.clone(), lost: AtomicBool::new(false) };
    let seen: Vec<Arc<Seen>> = w.devices.iter().map(|d| Arc::new(see(d))).collect();
    let devices = seen.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect();
    let fs = Fs::open(devices, w.time(), with_mmp("a")).unwrap();
    (fs, sleep, seen)
}

/// While a host sleeps another takes the volume, and goes on to roots that need other slots.
fn meanwhile(w: &World) -> Nap {
    meanwhile_on(w, w.devices.clone())
}

/// The same on those of these devices that are of the volume then.
fn meanwhile_on(w: &World, devices: Vec<Arc<dyn BlockDevice>>) -> Nap {
    let (clock, time) = (w.clock.clone(), w.time());
    Box::new(move || {
        clock.pass(HOUR);
        let is_of_it = |d: &Arc<dyn BlockDevice>| probe(d.as_ref()).is_ok_and(|p| p.newest().is_ok());
        let devices = devices.into_iter().filter(is_of_it).collect();
        let b = Fs::open(devices, time, with_mmp("b")).unwrap();
        for i in 0..4 {
            put(&b, &format!("{i} of the other")).unwrap();
            clock.pass(21_000_000_000);
            b.tick().unwrap();
        }
        b.close().unwrap();
    })
}

/// What a host is about: prepared, and then done, in the midst of which it falls asleep.
type Work = (&'static str, fn(&Fs, &World), fn(&Fs) -> nenrin_core::Result<()>);

fn half_removed(fs: &Fs, w: &World) {
    for i in 0..40_u8 {
        let ino = fs.create(Ino::ROOT, format!("file {i}").as_bytes(), &file(0o600)).unwrap().ino;
        assert_eq!(fs.write(ino, 0, &vec![i; 256 << 10], 0).unwrap(), 256 << 10);
    }
    fs.sync_all().unwrap();
    (0..40).step_by(2).for_each(|i| fs.unlink(Ino::ROOT, format!("file {i}").as_bytes()).unwrap());
    for _ in 0..3 {
        w.clock.pass(1_900_000_000);
        fs.tick().unwrap();
    }
}

const WORKS: [Work; 3] = [
    ("syncs", |fs, _| _ = scattered(fs, 3, 40), |fs| fs.sync_all()),
    ("ends", |fs, _| _ = scattered(fs, 2, 10), |fs| fs.close()),
    ("cleans", half_removed, |fs| {
        let mut clean = fs.clean();
        while !clean.is_done() {
            fs.clean_step(&mut clean, 512)?;
        }
        Ok(())
    }),
];

const PROFILES: [(Profile, usize); 4] =
    [(Profile::Single, 1), (Profile::Stripe, 2), (Profile::Mirror, 2), (Profile::Parity, 3)];

/// A host falls asleep behind any of its writes, with what is to follow decided.
fn naps_between_writes() {
    for (what, prepare, work) in WORKS {
        for (profile, count) in PROFILES {
            let mut writes = 1;
            loop {
                let w = World::new(profile, count);
                let (a, sleep, _) = sleeper(&w);
                prepare(&a, &w);
                sleep.set(writes, meanwhile(&w));
                let outcome = work(&a);
                if !sleep.slept.load(SeqCst) {
                    break;
                }
                assert_eq!(sleep.late.load(SeqCst), 0, "{what}, {profile:?}, {writes}: it wrote after another had it");
                assert!(
                    outcome.is_err() || a.sync_all().is_err() || a.tick().is_err(),
                    "{what}, {profile:?}, {writes}"
                );
                drop(a);
                clean(&w);
                writes += 1 + writes / 3;
            }
            assert!(writes > 1, "{what}: nothing was written");
        }
    }
}

#[test]
fn who_falls_asleep_between_two_writes_writes_nothing_more() {
    naps_between_writes();
}

/// One member of a mirror fails a write in whose midst the host fell asleep: that it is left out is for no slot to say.
fn naps_while_a_member_fails() {
    let w = World::new(Profile::Mirror, 2);
    let (a, sleep, seen) = sleeper(&w);
    let ino = a.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    a.fsync_wait(ino).unwrap();
    sleep.set(u64::MAX, meanwhile(&w));
    seen[1].lost.store(true, SeqCst);
    assert_eq!(a.write(ino, 0, &vec![7; 1 << 20], 0).unwrap(), 1 << 20);
    seen[1].lost.store(false, SeqCst);
    let outcome = a.fsync_wait(ino);
    assert!(sleep.slept.load(SeqCst));
    assert_eq!(sleep.late.load(SeqCst), 0, "slots were written over those of another host");
    outcome.unwrap_err();
    drop(a);
    clean(&w);
    assert!(w.on("c").unwrap().health().iter().all(|d| d.standing == nenrin_core::Standing::Active));
}

#[test]
fn who_leaves_a_device_out_owns_the_volume() {
    naps_while_a_member_fails();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "slots were written over those of another host")]
fn slots_of_a_sleeper_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LeaseOpen, naps_while_a_member_fails);
}

/// A device that is added, or takes the place of another, is behind the gate like those that were there.
#[test]
fn what_is_written_to_a_new_device_passes_the_gate() {
    for replaces in [true, false] {
        for writes in 1..40 {
            let w = World::new(Profile::Mirror, 2);
            let (a, sleep, _) = sleeper(&w);
            put(&a, "before").unwrap();
            let inner: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
            let all = w.devices.iter().cloned().chain([inner.clone()]).collect();
            let new = Arc::new(Seen { inner, sleep: sleep.clone(), lost: AtomicBool::new(false) });
            sleep.set(writes, meanwhile_on(&w, all));
            let outcome = match replaces {
                true => a.replace_device(1, NewDevice { device: new, uuid: [9; 16] }),
                false => a.device_add(new, [9; 16]).map(drop),
            };
            let outcome = outcome.and_then(|()| if replaces { a.join_step(64 << 20).map(drop) } else { a.tick() });
            if !sleep.slept.load(SeqCst) {
                break;
            }
            assert_eq!(sleep.late.load(SeqCst), 0, "{replaces} {writes}");
            assert!(outcome.is_err() || a.sync_all().is_err(), "{replaces} {writes}");
        }
    }
}

/// Who was kept waiting by a device for long, and finds that the volume is its own, goes on.
#[test]
fn who_slept_alone_goes_on() {
    for (what, prepare, work) in WORKS {
        for (profile, count) in PROFILES {
            let w = World::new(profile, count);
            let (a, sleep, _) = sleeper(&w);
            prepare(&a, &w);
            let clock = w.clock.clone();
            clock.pass(HOUR);
            sleep.set(u64::MAX, Box::new(|| {}));
            work(&a).unwrap_or_else(|e| panic!("{what}, {profile:?}: {e}"));
            drop(a);
            clean(&w);
        }
    }
}
