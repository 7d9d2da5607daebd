//! Two hosts on the same devices (`mmp`): each has a library of its own over them, and nothing else in common.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::file;
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::heartbeat::HEARTBEAT_BLOCK;
use nenrin_core::format::superblock::{Profile, segment_block, slot_blocks};
use nenrin_core::format::{BLOCK_BYTES, Generation, Ino, Time};
use nenrin_core::heartbeat::{Said, look, watch_nanos};
use nenrin_core::{
    At, BEAT_NANOS, Clock, Fs, Joined, MkfsOptions, Mmp, MountOptions, NewDevice, RepairPlan, Standing, mkfs_on, probe,
};
use nenrin_device::{AlignedBuf, BlockDevice, Fault, Faults, Faulty, MemDevice, Observed, Observer, OpKind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub(crate) type Meanwhile = Box<dyn Fn(u64) + Send>;

/// Time of all hosts. Who waits lets the others do what they do, each half second.
#[derive(Default)]
pub(crate) struct Hours {
    now: AtomicU64,
    waited: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl Clock for Hours {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.now.fetch_add(1, SeqCst) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.now.load(SeqCst)
    }
    fn wait(&self, nanos: u64) {
        self.waited.fetch_add(nanos, SeqCst);
        let end = self.monotonic_nanos() + nanos;
        while self.monotonic_nanos() < end {
            self.now.fetch_add(500_000_000, SeqCst);
            if let Some(meanwhile) = &*self.meanwhile.lock().unwrap() {
                meanwhile(self.monotonic_nanos());
            }
        }
    }
}

impl Hours {
    pub(crate) fn pass(&self, nanos: u64) {
        self.now.fetch_add(nanos, SeqCst);
    }
    /// While somebody waits, this mount goes on.
    pub(crate) fn alive(&self, fs: &Arc<Fs>) {
        let fs = fs.clone();
        self.meanwhile(Box::new(move |_| drop(fs.beat())));
    }
    pub(crate) fn meanwhile(&self, what: Meanwhile) {
        *self.meanwhile.lock().unwrap() = Some(what);
    }
    pub(crate) fn alone(&self) {
        *self.meanwhile.lock().unwrap() = None;
    }
    /// How long a call waited.
    fn waits<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        let before = self.waited.load(SeqCst);
        let got = call();
        (got, self.waited.load(SeqCst) - before)
    }
}

pub(crate) struct World {
    pub(crate) clock: Arc<Hours>,
    pub(crate) devices: Vec<Arc<dyn BlockDevice>>,
    faults: Vec<Faults>,
    pub(crate) observers: Vec<Observer>,
}

impl World {
    pub(crate) fn new(profile: Profile, count: usize) -> Self {
        let members: Vec<_> =
            (0..count).map(|_| Arc::new(Observed::new(Faulty::new(MemDevice::new(64 << 20))))).collect();
        let devices: Vec<Arc<dyn BlockDevice>> = members.iter().map(|m| m.clone() as Arc<dyn BlockDevice>).collect();
        let faults = members.iter().map(|m| m.inner().faults()).collect();
        let observers = members.iter().map(|m| m.observer()).collect();
        let this = Self { clock: Arc::default(), devices, faults, observers };
        let options = MkfsOptions { profile, ..MkfsOptions::default() };
        mkfs_on(&this.devices, &this.time(), &options).unwrap();
        this
    }
    pub(crate) fn fault(&self, device: usize, fault: Fault) {
        self.faults[device].inject(fault);
    }
    pub(crate) fn clear(&self, device: usize) {
        self.faults[device].clear();
    }
    pub(crate) fn time(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
    fn open(&self, options: MountOptions) -> nenrin_core::Result<Arc<Fs>> {
        Fs::open(self.devices.clone(), self.time(), options)
    }
    pub(crate) fn on(&self, host: &str) -> nenrin_core::Result<Arc<Fs>> {
        self.open(with_mmp(host))
    }
    fn said(&self) -> Said {
        look(self.devices[0].as_ref()).unwrap()
    }
}

pub(crate) fn with_mmp(host: &str) -> MountOptions {
    let mut owner = [0; 16];
    owner[..host.len()].copy_from_slice(host.as_bytes());
    let mmp = Some(Mmp { node: host.to_owned(), owner, interval_nanos: BEAT_NANOS });
    MountOptions { mmp, degraded: true, ..MountOptions::default() }
}

pub(crate) fn put(fs: &Fs, name: &str) -> nenrin_core::Result<()> {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600))?.ino;
    fs.write(ino, 0, &[7; 9000], 0)?;
    fs.fsync_wait(ino)
}

fn has(fs: &Fs, name: &str) -> bool {
    fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).is_ok()
}

pub(crate) fn clean(w: &World) {
    let report = check(&w.devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
}

/// A way to have what was accepted committed.
pub(crate) type Sync = fn(&Fs, Ino) -> nenrin_core::Result<()>;

fn asks_and_waits(fs: &Fs, ask: impl FnOnce(nenrin_core::Done)) -> nenrin_core::Result<()> {
    let (tx, rx) = std::sync::mpsc::channel();
    ask(Box::new(move |told| drop(tx.send(told))));
    rx.try_recv().unwrap_or_else(|_| panic!("not told: {:?}", fs.failed()))
}

pub(crate) const SYNCS: [(&str, Sync); 4] = [
    ("fsync", |fs, ino| asks_and_waits(fs, |done| fs.fsync(ino, done))),
    ("a sync that is joined", |fs, ino| {
        asks_and_waits(fs, |done| {
            assert!(matches!(fs.join_sync(ino, done), Joined::Unled));
            fs.lead_announced();
        })
    }),
    ("a sync that leads once", |fs, ino| asks_and_waits(fs, |done| assert!(!fs.fsync_once(ino, done)))),
    ("sync", |fs, _| fs.sync_all()),
];

/// A host that was asleep when another took the volume has accepted something, and is asked to sync that first of all.
fn sleepers_sync() {
    for (what, sync) in SYNCS {
        let w = World::new(Profile::Single, 1);
        let a = w.on("a").unwrap();
        let ino = a.create(Ino::ROOT, b"accepted", &file(0o600)).unwrap().ino;
        a.write(ino, 0, &[7; 9000], 0).unwrap();
        w.clock.pass(3_600_000_000_000);
        let b = w.on("b").unwrap();
        put(&b, "of the other").unwrap();
        let before = w.observers[0].counters().writes;
        assert!(sync(&a, ino).is_err(), "{what}: durable on a volume that another host has");
        assert_eq!(w.observers[0].counters().writes, before, "{what}");
        put(&b, "after that").unwrap();
        b.close().unwrap();
        clean(&w);
    }
}

#[test]
fn who_was_asleep_looks_before_it_syncs() {
    sleepers_sync();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "durable on a volume that another host has")]
fn syncs_of_a_sleeper_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::MmpSyncsLate, sleepers_sync);
}

const PROFILES: [(Profile, usize); 3] = [(Profile::Single, 1), (Profile::Stripe, 2), (Profile::Mirror, 2)];

/// The same, of data that was held back beside the sync of another file.
fn sleepers_hold_data() {
    let w = World::new(Profile::Single, 1);
    let a = w.on("a").unwrap();
    let [held, synced] = [&b"held"[..], b"synced"].map(|name| a.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    a.fsync_wait(synced).unwrap();
    a.write(held, 0, &vec![7; 1 << 20], 0).unwrap();
    w.clock.pass(3_600_000_000_000);
    let b = w.on("b").unwrap();
    put(&b, "of the other").unwrap();
    let before = w.observers[0].counters().writes;
    assert!(asks_and_waits(&a, |done| a.fsync(held, done)).is_err());
    assert_eq!(w.observers[0].counters().writes, before, "held data went where another host writes");
    b.close().unwrap();
    clean(&w);
}

#[test]
fn who_was_asleep_looks_before_it_writes_what_it_held_back() {
    sleepers_hold_data();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "held data went where another host writes")]
fn held_data_of_a_sleeper_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::HeldUnowned, sleepers_hold_data);
}

#[test]
fn a_second_host_is_refused_while_the_first_lives() {
    for (profile, count) in PROFILES {
        let w = World::new(profile, count);
        let first = w.on("hana").unwrap();
        put(&first, "before").unwrap();
        w.clock.alive(&first);
        // Whether it asks for protection or not: the block says that somebody has it.
        for options in [with_mmp("yuki"), MountOptions::default()] {
            let error = w.open(options).err().unwrap().to_string();
            for part in ["in use on host hana", "within the last 5 seconds", "unmount it there first"] {
                assert!(error.contains(part), "{error}");
            }
        }
        w.clock.alone();
        put(&first, "after").unwrap();
        first.close().unwrap();
        let (second, waited) = w.clock.waits(|| w.on("yuki").unwrap());
        assert_eq!(waited, watch_nanos(BEAT_NANOS), "ended cleanly: only the claim is watched");
        assert!(has(&second, "before") && has(&second, "after"));
        second.close().unwrap();
        clean(&w);
    }
}

/// Made new, added, or put in the place of another: what a host has at work is not.
#[test]
fn a_device_in_use_on_another_host_is_not_replaced() {
    let w = World::new(Profile::Single, 1);
    let mine = World { clock: w.clock.clone(), ..World::new(Profile::Mirror, 2) };
    let fs = mine.open(MountOptions::default()).unwrap();
    let theirs = || w.devices[0].clone();
    let make = |w: &World| mkfs_on(&w.devices, &w.time(), &MkfsOptions::default());
    let first = w.on("hana").unwrap();
    put(&first, "before").unwrap();
    w.clock.alive(&first);
    let refused = [
        make(&w),
        fs.device_add(theirs(), [9; 16]).map(drop),
        fs.replace_device(1, NewDevice { device: theirs(), uuid: [9; 16] }),
    ];
    for error in refused.map(|r| r.unwrap_err().to_string()) {
        assert!(error.contains("in use on host hana"), "{error}");
    }
    put(&first, "after").unwrap();
    w.clock.alone();
    drop(first);
    // It is gone, and is waited for once more.
    let (made, waited) = w.clock.waits(|| make(&w));
    assert!(made.is_ok() && waited == watch_nanos(BEAT_NANOS) && w.said() == Said::Nothing);
    let (made, waited) = w.clock.waits(|| make(&w));
    assert!(made.is_ok() && waited == 0);
    fs.close().unwrap();
}

#[test]
fn who_only_reads_is_not_refused_and_writes_nothing() {
    let w = World::new(Profile::Single, 1);
    let first = w.on("hana").unwrap();
    let writes = w.observers[0].counters().writes;
    let (reader, waited) = w.clock.waits(|| w.open(MountOptions { read_only: true, ..with_mmp("yuki") }).unwrap());
    assert!(waited == 0 && reader.mmp().is_none() && w.observers[0].counters().writes == writes);
    drop(reader);
    first.close().unwrap();
}

#[test]
fn a_host_that_died_is_waited_for_once() {
    let w = World::new(Profile::Mirror, 2);
    let first = w.on("hana").unwrap();
    put(&first, "synced").unwrap();
    drop(first);
    assert!(matches!(w.said(), Said::InUse(b) if b.node == b"hana"));
    // Without protection too, and then it is over.
    let (second, waited) = w.clock.waits(|| w.open(MountOptions::default()).unwrap());
    assert!(waited == watch_nanos(BEAT_NANOS) && has(&second, "synced"), "{waited}");
    assert!(matches!(w.said(), Said::Ended(_)));
    drop(second);
    let (third, waited) = w.clock.waits(|| w.open(MountOptions::default()).unwrap());
    assert_eq!(waited, 0);
    drop(third);
    // With protection: what was there, and whether somebody else claims it at the same time.
    drop(w.on("hana").unwrap());
    let (fourth, waited) = w.clock.waits(|| w.on("yuki").unwrap());
    assert_eq!(waited, 2 * watch_nanos(BEAT_NANOS));
    fourth.close().unwrap();
    clean(&w);
}

#[test]
fn of_two_that_come_at_once_one_gets_it() {
    let w = World::new(Profile::Single, 1);
    let other = World { clock: w.clock.clone(), devices: w.devices.clone(), faults: Vec::new(), observers: Vec::new() };
    let done = Arc::new(Mutex::new(None));
    let result = done.clone();
    let begun = AtomicU64::new(0);
    *w.clock.meanwhile.lock().unwrap() = Some(Box::new(move |_| {
        // In the middle of the other's wait; its own wait lets nobody run.
        if begun.fetch_add(1, SeqCst) == 3 {
            let clock = Arc::new(Hours { now: AtomicU64::new(other.clock.monotonic_nanos()), ..Hours::default() });
            let yuki = Fs::open(other.devices.clone(), clock, with_mmp("yuki"));
            *result.lock().unwrap() = Some(yuki.map(|fs| drop(put(&fs, "yuki"))).map_err(|e| e.to_string()));
        }
    }));
    let first = w.on("hana").map(drop).map_err(|e| e.to_string());
    let second = done.lock().unwrap().take().unwrap();
    assert!(second.is_ok() && first.as_ref().is_err_and(|e| e.contains("host yuki")), "{first:?}, {second:?}");
}

/// What was stopped, with its machine or by it, and is woken, finds that another one has the volume.
#[test]
fn who_was_asleep_writes_nothing_more() {
    for (profile, count) in PROFILES {
        for wake in 0..4 {
            let w = World::new(profile, count);
            let first = w.on("hana").unwrap();
            put(&first, "before").unwrap();
            let ino = first.lookup(At::Live, Ino::ROOT, b"before").unwrap().ino;
            if wake == 1 {
                first.write(ino, 0, b"late", 0).unwrap();
            }
            w.clock.pass(20_000_000_000);
            let second = w.on("yuki").unwrap();
            put(&second, "yuki").unwrap();
            let before: Vec<u64> = w.observers.iter().map(|o| o.counters().writes).collect();
            let woken = match wake {
                0 => put(&first, "late"),
                1 => first.fsync_wait(ino),
                2 => first.tick(),
                _ => first.beat(),
            };
            let error = woken.unwrap_err().to_string();
            assert!(error.contains("in use on host yuki, too"), "{profile:?} {wake}: {error}");
            assert!(first.failed().unwrap().contains("nothing more is written here"));
            assert!(first.close().is_err() && put(&first, "later").is_err() && has(&first, "before"));
            let after: Vec<u64> = w.observers.iter().map(|o| o.counters().writes).collect();
            assert_eq!(before, after, "{profile:?} {wake}");
            put(&second, "on").unwrap();
            second.close().unwrap();
            clean(&w);
        }
    }
}

/// One copy of a slot, or of the newest root.
fn spoil(w: &World, slot: bool) {
    let sb = probe(w.devices[0].as_ref()).unwrap().newest().unwrap().clone();
    let blocks = w.devices[0].geometry().bytes / BLOCK_BYTES as u64;
    let (addr, _) = sb.root[1];
    let block = match slot {
        true => slot_blocks(Generation(sb.generation.0 - 2), blocks)[0],
        false => segment_block(addr.segment().0 as u32, sb.segment_blocks) + u64::from(addr.block()),
    };
    w.devices[0].write(block * BLOCK_BYTES as u64, Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]))).unwrap();
}

/// Between the plan of a repair and the answer another host mounts the volume, and syncs something: it works on, or died, or
/// has ended.
fn plans_that_are_outdated() {
    for (slot, now) in [(true, 0), (true, 1), (true, 2), (false, 0), (false, 1), (false, 2)] {
        let w = World::new(Profile::Single, 1);
        for _ in 0..4 {
            let fs = w.on("hana").unwrap();
            drop(put(&fs, "before"));
            fs.close().unwrap();
        }
        spoil(&w, slot);
        let plan = RepairPlan::new(&w.devices, w.clock.as_ref(), &mut |_| {}).unwrap();
        assert!(plan.report().needed && (plan.report().segments_needed == 0) == slot, "{:?}", plan.report());
        let other = w.on("yuki").unwrap();
        put(&other, "of the other").unwrap();
        match now {
            0 => w.clock.alive(&other),
            1 => {}
            _ => other.close().unwrap(),
        }
        let outcome = plan.carry_out(w.time());
        w.clock.alone();
        let error = outcome.err().map(|e| e.to_string());
        let error = error.unwrap_or_else(|| panic!("a repair goes over what another host wrote: {slot} {now}"));
        let expected = if now == 0 { "in use on host yuki" } else { "nothing was changed, plan it again" };
        assert!(error.contains(expected), "{error}");
        drop(other);
        let fs = w.open(MountOptions::default()).unwrap();
        assert!(has(&fs, "of the other") && has(&fs, "before"));
        fs.close().unwrap();
        // Planned once more, it goes.
        spoil(&w, slot);
        RepairPlan::new(&w.devices, w.clock.as_ref(), &mut |_| {}).unwrap().carry_out(w.time()).unwrap();
        assert!(has(&w.open(MountOptions::default()).unwrap(), "of the other"));
    }
}

#[test]
fn a_repair_looks_again_before_it_writes() {
    plans_that_are_outdated();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a repair goes over what another host wrote")]
fn a_repair_that_is_outdated_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::PlanOutdated, plans_that_are_outdated);
}

/// Two writes in three minutes are all that it costs in one interval, and none without it.
#[test]
fn a_beat_is_one_read_and_one_write_without_a_flush() {
    let w = World::new(Profile::Single, 1);
    for (options, beats) in [(MountOptions::default(), 0), (with_mmp("hana"), 30)] {
        let fs = w.open(options).unwrap();
        put(&fs, "something").unwrap();
        for _ in 0..6000 {
            w.clock.pass(100_000_000);
            fs.tick().unwrap();
        }
        let before = w.observers[0].counters();
        for _ in 0..600 {
            w.clock.pass(100_000_000);
            fs.tick().unwrap();
        }
        let cost = w.observers[0].counters().since(&before);
        assert_eq!((cost.reads, cost.writes, cost.flushes), (beats, beats, 0));
        fs.close().unwrap();
        fs.beat().unwrap();
        assert_eq!(matches!(w.said(), Said::Nothing), beats == 0);
        fs_removed(&w);
    }
}

fn fs_removed(w: &World) {
    let fs = w.open(MountOptions::default()).unwrap();
    fs.unlink(Ino::ROOT, b"something").unwrap();
    fs.close().unwrap();
}

#[test]
fn what_is_no_heartbeat_is_watched_and_then_replaced() {
    let w = World::new(Profile::Single, 1);
    let junk = Arc::new(AlignedBuf::padded(&[0x5a; 512]));
    for options in [MountOptions::default(), with_mmp("hana")] {
        w.devices[0].write(HEARTBEAT_BLOCK * BLOCK_BYTES as u64, junk.clone()).unwrap();
        assert_eq!(w.said(), Said::Unclear);
        let (fs, waited) = w.clock.waits(|| w.open(options).unwrap());
        assert!(waited >= watch_nanos(BEAT_NANOS));
        fs.close().unwrap();
        assert!(!w.said().may_be_in_use());
    }
}

/// A member of a mirror that fails is left out; when none can be told any more, the writing ends.
#[test]
fn beats_that_reach_nobody_end_the_writing() {
    let w = World::new(Profile::Mirror, 2);
    let fs = w.on("hana").unwrap();
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    w.clock.pass(BEAT_NANOS);
    fs.beat().unwrap();
    assert_eq!(fs.health()[1].standing, Standing::Absent);
    put(&fs, "on one").unwrap();
    w.faults[0].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    w.clock.pass(BEAT_NANOS);
    let error = fs.beat().unwrap_err().to_string();
    assert!(error.contains("cannot be told"), "{error}");
}

/// What a device does to a beat is not taken for another host.
#[test]
fn a_beat_that_a_device_loses_or_spoils_is_written_again() {
    let w = World::new(Profile::Single, 1);
    let fs = w.on("hana").unwrap();
    w.faults[0].inject(Fault::LoseWrites { from: 1, times: 1 });
    for _ in 0..3 {
        w.clock.pass(BEAT_NANOS);
        fs.beat().unwrap();
    }
    w.devices[0].write(HEARTBEAT_BLOCK * BLOCK_BYTES as u64, Arc::new(AlignedBuf::padded(&[0x5a; 512]))).unwrap();
    w.clock.pass(BEAT_NANOS);
    fs.beat().unwrap();
    assert!(matches!(w.said(), Said::InUse(b) if b.node == b"hana"));
    put(&fs, "on").unwrap();
    fs.close().unwrap();
    clean(&w);
}

/// A device that takes no beat cannot be claimed; under `degraded` the others are, without it.
#[test]
fn a_device_that_takes_no_beat_is_not_mounted() {
    let w = World::new(Profile::Mirror, 2);
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    let error = w.open(MountOptions { degraded: false, ..with_mmp("hana") }).err().unwrap().to_string();
    assert!(error.contains("the heartbeat cannot be written"), "{error}");
    let fs = w.on("hana").unwrap();
    assert_eq!(fs.health()[1].standing, Standing::Absent);
    put(&fs, "on one").unwrap();
    fs.close().unwrap();
}
