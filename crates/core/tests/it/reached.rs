//! Hosts with `mmp` of which one does not reach all devices, or not any more: no two of them write to one device, and what each wrote
//! alone is never put together.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::file;
use crate::devices::bring_up;
use crate::mmp::{World, clean, put, with_mmp};
use nenrin_core::format::heartbeat::{HEARTBEAT_BLOCK, Heartbeat};
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{Ino, Time};
use nenrin_core::heartbeat::{Said, look};
use nenrin_core::{At, BEAT_NANOS, Fs, MountOptions, Standing};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Fault, Geometry, Op, OpKind, Outcome, Pending, Ticket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// What becomes of requests on the way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// They fail.
    Broken,
    /// Reads of the heartbeat do, as those of a bad sector.
    Deaf,
    /// They are not done before it is open again.
    Hangs,
    /// Writes are not.
    HangsWrites,
}

/// A device as one host reaches it.
struct Path {
    inner: Arc<dyn BlockDevice>,
    way: Mutex<Way>,
    /// Writes that arrived while another host showed itself there, but for heartbeats.
    intruded: AtomicU64,
}

impl Path {
    fn is(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }
    fn do_it(&self, op: Op) -> Outcome {
        let is_other = || look(self.inner.as_ref()).is_ok_and(|s| matches!(s, Said::InUse(b) if b.node != b"a"));
        let is_beat = |offset: u64| offset == HEARTBEAT_BLOCK * 4096;
        if matches!(&op, Op::Write { offset, .. } if !is_beat(*offset)) && is_other() {
            self.intruded.fetch_add(1, SeqCst);
        }
        self.inner.submit(op).wait()
    }
}

/// A device of host `a`.
struct Reached(Arc<Path>);

impl BlockDevice for Reached {
    fn geometry(&self) -> Geometry {
        self.0.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        let is_deaf = matches!(&op, Op::Read { offset, bytes: 4096 } if *offset == HEARTBEAT_BLOCK * 4096);
        match *self.0.way.lock().unwrap() {
            Way::Deaf if is_deaf => return Ticket::done(Err(DeviceError::Os(5))),
            Way::Broken => return Ticket::done(Err(DeviceError::Os(5))),
            Way::HangsWrites if matches!(op, Op::Write { .. }) => {
                return Ticket::new(Late { path: self.0.clone(), op });
            }
            Way::Hangs => return Ticket::new(Late { path: self.0.clone(), op }),
            Way::Open | Way::Deaf | Way::HangsWrites => {}
        }
        Ticket::done(self.0.do_it(op))
    }
}

struct Late {
    path: Arc<Path>,
    op: Op,
}

impl Pending for Late {
    fn wait(self: Box<Self>) -> Outcome {
        assert!(self.is_done(), "a test waits for ever");
        self.path.do_it(self.op)
    }
    fn is_done(&self) -> bool {
        !matches!(*self.path.way.lock().unwrap(), Way::Hangs | Way::HangsWrites)
    }
    fn wait_at_most(&self, _: Duration) -> bool {
        self.is_done()
    }
}

/// Host `a` on both devices of a mirror, and its paths.
fn host_a(w: &World) -> (Arc<Fs>, Vec<Arc<Path>>) {
    let path = |d: &Arc<dyn BlockDevice>| {
        Arc::new(Path { inner: d.clone(), way: Mutex::new(Way::Open), intruded: AtomicU64::new(0) })
    };
    let paths: Vec<Arc<Path>> = w.devices.iter().map(path).collect();
    let devices = paths.iter().map(|p| Arc::new(Reached(p.clone())) as Arc<dyn BlockDevice>).collect();
    (Fs::open(devices, w.time(), with_mmp("a")).unwrap(), paths)
}

fn mount(w: &World, which: &[usize], host: &str, degraded: bool) -> nenrin_core::Result<Arc<Fs>> {
    let devices = which.iter().map(|i| w.devices[*i].clone()).collect();
    Fs::open(devices, w.time(), MountOptions { degraded, ..with_mmp(host) })
}

fn names(fs: &Fs) -> Vec<&'static str> {
    let is_there = |name: &&&str| fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).is_ok();
    ["before", "of a", "of b", "late"].iter().filter(is_there).copied().collect()
}

fn intruded(paths: &[Arc<Path>]) -> u64 {
    paths.iter().map(|p| p.intruded.load(SeqCst)).sum()
}

/// What host `a` does while it does not reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// It beats, and so do its requests.
    Writes,
    Beats,
    /// It is asleep.
    Sleeps,
}

/// Host `a` loses a device, and `b` takes that alone. Then the way is open again, and `a` goes on.
fn lost_and_found(way: Way, lost: usize, meanwhile: Meanwhile, beats_first: bool) {
    let told = format!("{way:?}, {lost}, {meanwhile:?}, {beats_first}");
    let w = World::new(Profile::Mirror, 2);
    let (a, paths) = host_a(&w);
    put(&a, "before").unwrap();
    paths[lost].is(way);
    if meanwhile == Meanwhile::Sleeps {
        w.clock.pass(MINUTE);
    } else {
        w.clock.alive(&a);
    }
    if meanwhile == Meanwhile::Writes {
        put(&a, "of a").unwrap();
    }
    let b = mount(&w, &[lost], "b", true).unwrap_or_else(|e| panic!("{told}: {e}"));
    put(&b, "of b").unwrap();
    w.clock.alone();
    paths[lost].is(Way::Open);
    if beats_first {
        let _ = a.beat();
    }
    let late = put(&a, "late").is_ok();
    let _ = (a.sync_all(), a.tick());
    assert_eq!(intruded(&paths), 0, "{told}: two hosts write to one device");
    put(&b, "of b, later").unwrap_or_else(|e| panic!("{told}: {e}"));
    b.close().unwrap();
    let _ = a.close();
    drop(a);
    // What was acknowledged is on the devices of who acknowledged it, and nothing of the other.
    let of_a = match (meanwhile == Meanwhile::Writes, late) {
        (true, true) => vec!["before", "of a", "late"],
        (true, false) => vec!["before", "of a"],
        (false, true) => vec!["before", "late"],
        (false, false) => vec!["before"],
    };
    let went_on = late || meanwhile == Meanwhile::Writes;
    match mount(&w, &[0, 1], "c", false) {
        Ok(c) => {
            assert!(!went_on, "{told}: two lines are put together");
            bring_up(&c);
            assert_eq!(names(&c), ["before", "of b"], "{told}");
            c.close().unwrap();
            clean(&w);
            return;
        }
        Err(e) => {
            assert!(e.to_string().contains("were each written to without the other"), "{told}: {e}");
        }
    }
    for (which, expected) in [(1 - lost, of_a), (lost, vec!["before", "of b"])] {
        let c = mount(&w, &[which], "c", true).unwrap();
        assert_eq!(names(&c), expected, "{told}: {which}");
        c.close().unwrap();
    }
}

fn all_that_are_lost_and_found() {
    for lost in [0, 1] {
        for beats_first in [false, true] {
            lost_and_found(Way::Broken, lost, Meanwhile::Writes, beats_first);
            for meanwhile in [Meanwhile::Beats, Meanwhile::Sleeps] {
                for way in [Way::Broken, Way::Deaf, Way::Hangs, Way::Open] {
                    if way != Way::Open || meanwhile == Meanwhile::Sleeps {
                        lost_and_found(way, lost, meanwhile, beats_first);
                    }
                }
            }
        }
    }
}

#[test]
fn no_two_hosts_write_to_one_device_and_their_lines_stay_apart() {
    all_that_are_lost_and_found();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "two hosts write to one device")]
fn a_lease_of_a_device_that_others_renew_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LeaseShared, all_that_are_lost_and_found);
}

/// A beat is under way for long, and lands on what another host has shown since.
fn beat_on_what_another_has() {
    let w = World::new(Profile::Mirror, 2);
    let (a, paths) = host_a(&w);
    put(&a, "before").unwrap();
    paths[1].is(Way::HangsWrites);
    w.clock.alive(&a);
    let b = mount(&w, &[1], "b", true).unwrap();
    put(&b, "of b").unwrap();
    w.clock.alone();
    paths[1].is(Way::Open);
    w.clock.pass(BEAT_NANOS);
    a.beat().unwrap();
    assert!(matches!(look(w.devices[1].as_ref()).unwrap(), Said::InUse(b) if b.node == b"a"), "it has landed");
    assert_eq!(a.health()[1].standing, Standing::Absent, "it goes on with what another has");
    put(&a, "of a").unwrap();
    w.clock.pass(BEAT_NANOS);
    assert!(b.beat().unwrap_err().to_string().contains("in use on host a, too"));
    assert!(put(&b, "late").is_err());
    a.close().unwrap();
    assert!(b.close().is_err());
    assert!(mount(&w, &[0, 1], "c", false).is_err());
    for (which, expected) in [(0, ["before", "of a"]), (1, ["before", "of b"])] {
        let c = mount(&w, &[which], "c", true).unwrap();
        assert_eq!(names(&c), expected);
        c.close().unwrap();
    }
}

#[test]
fn who_wrote_a_beat_too_late_has_lost_that_device() {
    beat_on_what_another_has();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it goes on with what another has")]
fn a_late_beat_that_is_believed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LateBeatBelieved, beat_on_what_another_has);
}

/// A machine sleeps while its beats are under way. They land when it wakes, and nobody has come.
#[test]
fn beats_that_land_late_where_nobody_came_cost_no_device() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Mirror, 2)] {
        let w = World::new(profile, count);
        let (a, paths) = host_a(&w);
        put(&a, "before").unwrap();
        w.clock.pass(BEAT_NANOS);
        paths.iter().for_each(|p| p.is(Way::HangsWrites));
        a.beat().unwrap();
        w.clock.pass(MINUTE);
        paths.iter().for_each(|p| p.is(Way::Open));
        put(&a, "of a").unwrap();
        w.clock.pass(BEAT_NANOS);
        a.beat().unwrap();
        assert!(a.health().iter().all(|d| d.standing == Standing::Active), "{profile:?}");
        a.close().unwrap();
        drop(a);
        clean(&w);
    }
}

/// A device that took no beat, or whose block cannot be read, is not claimed: it takes no part.
fn what_cannot_be_claimed() {
    for is_read in [false, true] {
        let w = World::new(Profile::Mirror, 2);
        let offset = HEARTBEAT_BLOCK * 4096;
        let fault = || match is_read {
            true => Fault::FailReads { range: offset..offset + 512 },
            false => Fault::Fail { kind: OpKind::Write, from: 1, times: 1 },
        };
        w.fault(1, fault());
        let error = mount(&w, &[0, 1], "a", false).err().unwrap_or_else(|| panic!("claimed by nobody: {is_read}"));
        assert!(error.to_string().contains("the heartbeat cannot be"), "{error}");
        w.clear(1);
        w.fault(1, fault());
        let a = mount(&w, &[0, 1], "b", true).unwrap();
        assert_eq!(a.health()[1].standing, Standing::Absent, "a member that is claimed by nobody: {is_read}");
        put(&a, "of a").unwrap();
        a.close().unwrap();
        w.clear(1);
        let c = mount(&w, &[0, 1], "c", false).unwrap();
        bring_up(&c);
        c.close().unwrap();
        clean(&w);
        // Where it is the only one there is nothing to mount.
        let w = World::new(Profile::Single, 1);
        w.fault(0, fault());
        assert!(mount(&w, &[0], "a", true).is_err());
    }
}

#[test]
fn a_device_that_cannot_be_claimed_takes_no_part() {
    what_cannot_be_claimed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "claimed by nobody")]
fn a_device_that_nobody_claimed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ClaimUnheard, what_cannot_be_claimed);
}

/// The second look and beat of a claim take longer than a look is good for, once or always.
#[test]
fn a_claim_that_is_slow_blames_no_device() {
    struct Slow {
        inner: Arc<dyn BlockDevice>,
        clock: Arc<crate::mmp::Hours>,
        /// Looks of the claim until it is slow, and how often it is.
        looks: AtomicU64,
        slow: (u64, u64),
    }
    impl BlockDevice for Slow {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn submit(&self, op: Op) -> Ticket {
            if matches!(op, Op::Read { offset, bytes: 4096 } if offset == HEARTBEAT_BLOCK * 4096) {
                let look = self.looks.fetch_add(1, SeqCst);
                if (self.slow.0..self.slow.0 + self.slow.1).contains(&look) {
                    self.clock.pass(5 * SECOND);
                }
            }
            self.inner.submit(op)
        }
    }
    for (times, is_taken) in [(1, true), (2, true), (3, false)] {
        let w = World::new(Profile::Mirror, 2);
        // The first is before it waits.
        let slow = |d: &Arc<dyn BlockDevice>| Slow {
            inner: d.clone(),
            clock: w.clock.clone(),
            looks: AtomicU64::new(0),
            slow: (1, times),
        };
        let first: Arc<dyn BlockDevice> = Arc::new(slow(&w.devices[0]));
        let fs = Fs::open(vec![first, w.devices[1].clone()], w.time(), with_mmp("a"));
        match (fs, is_taken) {
            (Ok(fs), true) => {
                assert!(fs.health().iter().all(|d| d.standing == Standing::Active), "{times}");
                put(&fs, "before").unwrap();
                fs.close().unwrap();
                clean(&w);
            }
            (Err(e), false) => assert!(e.to_string().contains("takes more than 4 seconds"), "{e}"),
            (fs, _) => panic!("{times}: {:?}", fs.map(drop)),
        }
    }
}

/// A member missed something, and another host shows itself there: it has taken it alone, and has written nothing yet.
fn stale_and_taken() {
    let w = World::new(Profile::Mirror, 2);
    mount(&w, &[0, 1], "a", false).unwrap().close().unwrap();
    let a = mount(&w, &[0], "a", true).unwrap();
    put(&a, "of a").unwrap();
    a.close().unwrap();
    let (sequence, device) = (AtomicU64::new(7), w.devices[1].clone());
    let show = move |_| {
        let (sequence, owner) = (sequence.fetch_add(1, SeqCst), [9; 16]);
        let (written_at, node) = (Time(0), b"b".to_vec());
        let beat = Heartbeat { interval_millis: 2000, owner, sequence, written_at, in_use: true, node };
        device.write(HEARTBEAT_BLOCK * 4096, Arc::new(AlignedBuf::padded(&beat.encode()))).unwrap();
    };
    show(0);
    w.clock.meanwhile(Box::new(show));
    for options in [with_mmp("c"), MountOptions::default()] {
        let taken = Fs::open(w.devices.clone(), w.time(), options);
        let error = taken.err().unwrap_or_else(|| panic!("a member that another host has is written to"));
        assert!(error.to_string().contains("in use on host b"), "{error}");
    }
    w.clock.alone();
}

#[test]
fn a_member_that_missed_something_may_be_anothers() {
    stale_and_taken();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a member that another host has is written to")]
fn a_member_that_is_anothers_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::JoinerUnshown, stale_and_taken);
}

/// A host that is bringing a member up to date sleeps for an hour between a look and a write, and nobody else comes.
fn joins_behind_a_late_lease() {
    struct Sleepy(Arc<dyn BlockDevice>, Arc<crate::mmp::Hours>, AtomicU64, Arc<AtomicBool>);
    impl BlockDevice for Sleepy {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn submit(&self, op: Op) -> Ticket {
            let is_compared = matches!(&op, Op::Read { bytes, .. } if *bytes > 64 << 10);
            if is_compared && self.3.load(SeqCst) && self.2.fetch_add(1, SeqCst) < 3 {
                let outcome = self.0.submit(op).wait();
                self.1.pass(60 * MINUTE);
                return Ticket::done(outcome);
            }
            self.0.submit(op)
        }
    }
    for away in [0, 1] {
        let w = World::new(Profile::Mirror, 2);
        mount(&w, &[0, 1], "a", false).unwrap().close().unwrap();
        let a = mount(&w, &[1 - away], "a", true).unwrap();
        let ino = a.create(Ino::ROOT, b"of a", &file(0o600)).unwrap().ino;
        for i in 0..8 {
            a.write(ino, i << 20, &vec![7; 1 << 20], 0).unwrap();
        }
        a.close().unwrap();
        let on = Arc::new(AtomicBool::new(false));
        let sleepy = |d: &Arc<dyn BlockDevice>| {
            Arc::new(Sleepy(d.clone(), w.clock.clone(), AtomicU64::new(0), on.clone())) as Arc<dyn BlockDevice>
        };
        let c = Fs::open(w.devices.iter().map(sleepy).collect(), w.time(), with_mmp("c")).unwrap();
        on.store(true, SeqCst);
        for _ in 0..1000 {
            let told = c.join_step(1 << 20).unwrap();
            assert!(c.join_failed().is_none(), "a member does not come back: {:?}", c.join_failed());
            if told.is_none() {
                break;
            }
        }
        assert!(c.health().iter().all(|d| d.standing == Standing::Active));
        assert!(matches!(look(w.devices[away].as_ref()).unwrap(), Said::InUse(b) if b.node == b"c"));
        c.close().unwrap();
        clean(&w);
    }
}

#[test]
fn a_member_comes_back_behind_a_late_lease() {
    joins_behind_a_late_lease();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a member does not come back")]
fn a_member_that_is_refused_behind_a_late_lease_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::JoinerUnshown, joins_behind_a_late_lease);
}
