//! A device that does not answer: what does not need it goes on, and where the others have all it has it is left out, as if it had failed.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::gate::{Gate, Which, gated, is_answered, is_read};
use crate::common::{TestClock, file, patience};
use crate::devices::{bring_up, content, degraded, read, write};
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::heartbeat::{Said, look};
use nenrin_core::{BEAT_NANOS, Clock, Fs, MkfsOptions, Mmp, MountOptions, NewDevice, Standing, mkfs_on};
use nenrin_device::BlockDevice;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

pub(crate) struct World {
    pub devices: Vec<Arc<dyn BlockDevice>>,
    pub gates: Vec<Arc<Gate>>,
    pub clock: Arc<TestClock>,
}

impl World {
    pub fn new(profile: Profile, count: usize) -> Self {
        let (devices, gates) = (0..count).map(|_| gated(96 << 20)).unzip();
        let this = Self { devices, gates, clock: Arc::default() };
        let options = MkfsOptions { profile, ..MkfsOptions::default() };
        mkfs_on(&this.devices, &(this.clock.clone() as Arc<dyn Clock>), &options).unwrap();
        this
    }
    pub fn open(&self, options: MountOptions) -> Arc<Fs> {
        Fs::open(self.devices.clone(), self.clock.clone(), options).unwrap()
    }
    /// So many seconds pass, in which somebody looks, until that is so; whether it was.
    pub fn pass(&self, fs: &Fs, seconds: u64, is_so: impl Fn() -> bool) -> bool {
        for _ in 0..2 * seconds {
            // Who is to notice something looks at it more often than that.
            thread::sleep(Duration::from_millis(10));
            if is_so() {
                return true;
            }
            self.clock.0.fetch_add(SECOND / 2, SeqCst);
            fs.judge_devices();
        }
        thread::sleep(Duration::from_millis(50));
        is_so()
    }
    /// What was under way is done after all.
    fn land(&self, which: usize) {
        for op in self.gates[which].take_late() {
            let _ = self.devices[which].submit(op).wait();
        }
    }
}

/// That in a thread, and when it is done.
pub(crate) fn begin<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> mpsc::Receiver<T> {
    let (sender, answer) = mpsc::channel();
    scope.spawn(move || sender.send(work()));
    answer
}

pub(crate) fn clean(devices: &[Arc<dyn BlockDevice>]) {
    let report = check(devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Each member, hung before a sync, an index checkpoint, or in the middle of it.
#[test]
fn a_member_that_does_not_answer_is_left_out() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Mirror, 4), (Profile::Parity, 3)] {
        for (gone, but) in [(0, 0), (count - 1, 0), (1, 1), (1, 3)] {
            let w = World::new(profile, count);
            let fs = w.open(MountOptions::default());
            write(&fs, "before", &content(1, 3 << 20));
            w.gates[gone].close(|_| true, but);
            let told = format!("{profile:?}, {count} devices, {gone} after {but}");
            thread::scope(|scope| {
                let answer = begin(scope, || {
                    for i in 0..12 {
                        write(&fs, &format!("while {i}"), &content(i, 300 << 10));
                    }
                    fs.tick().unwrap();
                    fs.sync_all().unwrap();
                });
                assert!(!is_answered(&answer), "{told}");
                assert!(!w.pass(&fs, 28, || fs.health()[gone].standing != Standing::Active), "{told}: too early");
                assert!(w.pass(&fs, 10, || fs.health()[gone].standing != Standing::Active), "{told}");
                answer.recv_timeout(Duration::from_secs(60)).unwrap();
            });
            let health = fs.health()[gone].clone();
            assert!(health.why.unwrap().contains("did not answer for 30 s") && health.slow_since.is_none(), "{told}");
            write(&fs, "after", &content(5, 1 << 20));
            // All at once, while the volume is in use, it does what it was asked for.
            w.gates[gone].open();
            w.land(gone);
            let all_there = |fs: &Fs| {
                assert!(read(fs, "before", 4 << 20).unwrap() == content(1, 3 << 20), "{told}");
                assert!(read(fs, "after", 4 << 20).unwrap() == content(5, 1 << 20), "{told}");
                for i in 0..12 {
                    assert!(read(fs, &format!("while {i}"), 1 << 20).unwrap() == content(i, 300 << 10), "{told}");
                }
            };
            all_there(&fs);
            fs.close().unwrap();
            drop(fs);
            // It is stale, is brought up to date, and has everything then.
            let fs = w.open(degraded());
            assert_ne!(fs.health()[gone].standing, Standing::Active, "{told}");
            all_there(&fs);
            bring_up(&fs);
            all_there(&fs);
            fs.close().unwrap();
            drop(fs);
            clean(&w.devices);
            let without: Vec<_> = w
                .devices
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != (gone + 1) % count)
                .map(|(_, d)| d.clone())
                .collect();
            let fs = Fs::open(without, w.clock.clone(), degraded()).unwrap();
            all_there(&fs);
            fs.close().unwrap();
        }
    }
}

/// Reads are answered by the others long before that, and all of them when it is given up.
#[test]
fn reads_go_elsewhere() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        let w = World::new(profile, count);
        let fs = w.open(MountOptions::default());
        write(&fs, "file", &content(1, 3 << 20));
        fs.close().unwrap();
        let fs = w.open(MountOptions::default());
        fs.lookup(nenrin_core::At::Live, Ino::ROOT, b"file").unwrap();
        w.gates[1].close(is_read, 0);
        thread::scope(|scope| {
            let answer = begin(scope, || read(&fs, "file", 4 << 20).unwrap());
            assert!(answer.recv_timeout(Duration::from_secs(20)).unwrap() == content(1, 3 << 20), "{profile:?}");
        });
        assert_eq!((fs.health()[1].standing, fs.health()[1].read_errors), (Standing::Active, 0));
        // What was asked of it is known to be under way, although nobody waits.
        w.pass(&fs, 40, || false);
        write(&fs, "more", &content(2, 1 << 20));
        assert_eq!(fs.health()[1].standing, Standing::Absent, "{profile:?}");
        fs.close().unwrap();
    }
}

/// A stripe needs all its devices, and waits: but new blocks leave the one that stands still, and who does not need it goes on.
#[test]
fn what_does_not_need_it_goes_on() {
    for profile in [Profile::Stripe, Profile::Single] {
        let w = World::new(profile, 4);
        let fs = w.open(MountOptions::default());
        let names: Vec<String> = (0..8).map(|i| format!("file {i}")).collect();
        for (i, name) in names.iter().enumerate() {
            write(&fs, name, &content(i, 1 << 20));
        }
        fs.sync_all().unwrap();
        let which = if profile == Profile::Single { 0 } else { 2 };
        w.gates[which].close(|_| true, 0);
        thread::scope(|scope| {
            let reader = begin(scope, || read(&fs, "file 3", 2 << 20).unwrap());
            assert!(!is_answered(&reader));
            assert!(w.pass(&fs, 8, || fs.slow_devices() == [which as u16]), "{profile:?}: not noticed");
            let held = w.gates[which].held();
            let writer = begin(scope, || {
                for i in 0..100u64 {
                    let ino = fs.create(Ino::ROOT, format!("new {i}").as_bytes(), &file(0o600)).unwrap().ino;
                    fs.write(ino, 0, &content(i as usize, 100 << 10), 0).unwrap();
                    fs.fsync_wait(ino).unwrap();
                    fs.tick().unwrap();
                }
            });
            let done = writer.recv_timeout(Duration::from_secs(60));
            assert!(done.is_ok(), "{profile:?}: {} requests to it", w.gates[which].held() - held);
            // However long it takes, it is waited for.
            assert!(!w.pass(&fs, 200, || fs.health()[which].standing != Standing::Active));
            assert!(!is_answered(&reader));
            w.gates[which].open();
            assert!(reader.recv_timeout(Duration::from_secs(60)).unwrap() == content(3, 1 << 20));
        });
        fs.close().unwrap();
        clean(&w.devices);
    }
}

/// Also while a tick waits for it.
#[test]
fn it_is_noticed_while_a_tick_waits() {
    let w = World::new(Profile::Stripe, 3);
    let fs = w.open(MountOptions { commit_nanos: SECOND, ..MountOptions::default() });
    write(&fs, "file", &content(1, 1 << 20));
    w.gates.iter().take(1).for_each(|gate| gate.close(|_| true, 0));
    let ino = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &content(1, 1 << 20), 0).unwrap();
    w.clock.0.fetch_add(2 * SECOND, SeqCst);
    thread::scope(|scope| {
        let tick = begin(scope, || fs.tick().unwrap());
        assert!(!is_answered(&tick));
        assert!(w.pass(&fs, 8, || fs.health()[0].slow_since.is_some()));
        assert!(!is_answered(&tick) && fs.slow_devices() == [0]);
        w.gates[0].open();
        tick.recv_timeout(Duration::from_secs(20)).unwrap();
    });
    fs.close().unwrap();
    clean(&w.devices);
}

/// Several that stand still have something in common, which may pass: also where the first of them is all that anybody waits for.
#[test]
fn nobody_is_left_out_while_all_stand_still() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        nobody_is_left_out(profile, count);
    }
}

fn nobody_is_left_out(profile: Profile, count: usize) {
    let w = World::new(profile, count);
    let fs = w.open(MountOptions::default());
    w.gates.iter().for_each(|gate| gate.close(|_| true, 0));
    thread::scope(|scope| {
        let answer = begin(scope, || write(&fs, "file", &content(1, 1 << 20)));
        assert!(!w.pass(&fs, 100, || fs.health().iter().any(|h| h.standing != Standing::Active)));
        assert!(!is_answered(&answer));
        w.gates.iter().for_each(|gate| gate.open());
        answer.recv_timeout(Duration::from_secs(20)).unwrap();
    });
    assert!(fs.health().iter().all(|h| h.standing == Standing::Active));
    fs.close().unwrap();
    clean(&w.devices);
}

/// One that owes a single old request answers all else, and is no reason to wait for another that does not answer.
fn another_hangs(owes: usize) {
    let w = World::new(Profile::Mirror, 2);
    let fs = w.open(MountOptions::default());
    write(&fs, "file", &content(1, 3 << 20));
    fs.close().unwrap();
    drop(fs);
    let fs = w.open(MountOptions::default());
    fs.lookup(nenrin_core::At::Live, Ino::ROOT, b"file").unwrap();
    w.gates[owes].hold_one(is_read);
    assert!(read(&fs, "file", 4 << 20).unwrap() == content(1, 3 << 20));
    assert!(w.gates[owes].held() > 0, "it was asked for nothing");
    w.pass(&fs, 20, || false);
    let hangs = 1 - owes;
    w.gates[hangs].close(|_| true, 0);
    thread::scope(|scope| {
        let writer = begin(scope, || {
            write(&fs, "while", &content(2, 300 << 10));
            fs.sync_all().unwrap();
        });
        let is_left = w.pass(&fs, 45, || fs.health()[hangs].standing != Standing::Active);
        w.gates[hangs].open();
        assert!(is_left, "{hangs} is waited for, as {owes} owes a request");
        writer.recv_timeout(Duration::from_secs(60)).unwrap();
    });
    assert_eq!(fs.health()[owes].standing, Standing::Active);
    w.gates[owes].open();
    fs.close().unwrap();
}

#[test]
fn one_old_request_keeps_nobody_else_in() {
    another_hangs(0);
    another_hangs(1);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "1 is waited for, as 0 owes a request")]
fn who_looks_at_the_first_suspect_only_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::FirstSuspectOnly, || another_hangs(0));
}

/// A member that reads and does not write: that it answers who asks is no reason to wait for it longer.
fn a_member_only_reads() {
    for gone in [0, 1] {
        let w = World::new(Profile::Mirror, 2);
        let fs = w.open(MountOptions::default());
        write(&fs, "before", &content(1, 1 << 20));
        w.gates[gone].close_and_tell(|op| !is_read(op));
        thread::scope(|scope| {
            let writer = begin(scope, || {
                write(&fs, "while", &content(2, 300 << 10));
                fs.sync_all().unwrap();
            });
            let is_left = w.pass(&fs, 40, || fs.health()[gone].standing != Standing::Active);
            w.gates[gone].open();
            assert!(is_left, "a member that only reads is waited for");
            writer.recv_timeout(Duration::from_secs(60)).unwrap();
        });
        assert_eq!(fs.health()[1 - gone].standing, Standing::Active);
        fs.close().unwrap();
    }
}

#[test]
fn a_member_that_only_reads_is_left_out() {
    a_member_only_reads();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a member that only reads is waited for")]
fn a_probe_that_counts_as_progress_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ProbesCount, a_member_only_reads);
}

fn with_mmp() -> MountOptions {
    // Long, so that nobody is late while time passes.
    let mmp = Mmp { node: "hana".into(), owner: [1; 16], interval_nanos: 60 * SECOND };
    MountOptions { mmp: Some(mmp), ..MountOptions::default() }
}

/// A device is to take the place of another, and hangs: who writes waits until it is given up.
fn a_joiner_hangs(options: MountOptions) {
    let w = World::new(Profile::Mirror, 2);
    let fs = w.open(options);
    write(&fs, "before", &content(1, 1 << 20));
    let (device, gate) = gated(96 << 20);
    fs.replace_device(1, NewDevice { device, uuid: [9; 16] }).unwrap();
    gate.close(|_| true, 0);
    thread::scope(|scope| {
        let writer = begin(scope, || {
            write(&fs, "while", &content(2, 1 << 20));
            fs.sync_all().unwrap();
        });
        assert!(!is_answered(&writer));
        let ended = w.pass(&fs, 40, || fs.join_failed().is_some());
        gate.open();
        assert!(ended, "a write waits for a device that nobody needs");
        writer.recv_timeout(Duration::from_secs(60)).unwrap();
    });
    assert!(fs.join_failed().unwrap().contains("did not answer for 30 s"));
    assert!(fs.health().iter().all(|d| d.standing == Standing::Active));
    fs.close().unwrap();
    drop(fs);
    clean(&w.devices);
}

#[test]
fn a_device_that_joins_and_hangs_is_given_up() {
    a_joiner_hangs(MountOptions::default());
    a_joiner_hangs(with_mmp());
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a write waits for a device that nobody needs")]
fn a_device_that_joins_and_is_waited_for_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::JoinerAwaited, || a_joiner_hangs(with_mmp()));
}

/// A member hangs while a host shows itself every two seconds; `but`: requests until then.
fn a_member_hangs_with_mmp(gone: usize, but: usize) {
    let w = World::new(Profile::Mirror, 2);
    let mmp = Mmp { node: "hana".into(), owner: [1; 16], interval_nanos: BEAT_NANOS };
    let fs = w.open(MountOptions { mmp: Some(mmp), ..MountOptions::default() });
    write(&fs, "before", &content(1, 1 << 20));
    w.gates[gone].close(|_| true, but);
    let beat_of = || match look(w.devices[1 - gone].as_ref()).unwrap() {
        Said::InUse(beat) => beat.sequence,
        said => panic!("{said:?}"),
    };
    let (before, now) = (beat_of(), broken_now());
    let (mut is_kept, mut is_left) = (false, false);
    thread::scope(|scope| {
        let writer = begin(scope, || {
            for i in 0..4 {
                write(&fs, &format!("while {i}"), &content(i, 300 << 10));
            }
            fs.sync_all().unwrap();
        });
        for _ in 0..90 {
            // No time passes before its beats are.
            let beat = begin(scope, || in_thread(now, || fs.beat()));
            is_kept = beat.recv_timeout(patience()).is_err();
            is_left = w.pass(&fs, 1, || fs.health()[gone].standing != Standing::Active);
            if is_kept || is_left {
                break;
            }
        }
        let was_shown = beat_of() > before + 10;
        // Who waits still is let go, so that this ends.
        let done = writer.recv_timeout(Duration::from_secs(if is_left { 60 } else { 0 }));
        w.gates[gone].open();
        assert!(!is_kept, "a beat waits for a member that hangs");
        assert!(is_left, "a member that hangs is waited for");
        assert!(was_shown && done.is_ok() && fs.failed().is_none(), "{:?}", fs.failed());
    });
    assert!(fs.health()[gone].why.clone().unwrap().contains("did not answer for"));
    write(&fs, "after", &content(5, 1 << 20));
    w.land(gone);
    fs.close().unwrap();
    drop(fs);
    let fs = w.open(degraded());
    bring_up(&fs);
    for i in 0..4 {
        assert!(read(&fs, &format!("while {i}"), 1 << 20).unwrap() == content(i, 300 << 10));
    }
    fs.close().unwrap();
    clean(&w.devices);
}

#[test]
fn a_member_that_hangs_with_mmp_is_left_out() {
    for gone in [0, 1] {
        for but in [0, 1, 2, 5] {
            a_member_hangs_with_mmp(gone, but);
        }
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a member that hangs is waited for")]
fn a_member_that_is_waited_for_with_mmp_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::MemberAwaited, || a_member_hangs_with_mmp(1, 0));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a beat waits for a member that hangs")]
fn beats_that_wait_for_a_member_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::BeatsAwaited, || a_member_hangs_with_mmp(1, 0));
}

#[cfg(feature = "breaks")]
pub(crate) type Broken = Option<nenrin_core::breaks::Break>;
#[cfg(not(feature = "breaks"))]
pub(crate) type Broken = Option<std::convert::Infallible>;

/// What is broken in this thread, for [`in_thread`].
pub(crate) fn broken_now() -> Broken {
    #[cfg(feature = "breaks")]
    return nenrin_core::breaks::now();
    #[cfg(not(feature = "breaks"))]
    None
}

pub(crate) fn in_thread<T>(now: Broken, work: impl FnOnce() -> T) -> T {
    #[cfg(feature = "breaks")]
    if let Some(what) = now {
        return nenrin_core::breaks::with(what, work);
    }
    #[cfg(not(feature = "breaks"))]
    assert!(now.is_none());
    work()
}

/// Who has asked for it is not kept waiting by it, nor is who writes, and nobody looks.
#[test]
fn a_device_that_hangs_is_left_on_request() {
    let w = World::new(Profile::Mirror, 2);
    let fs = w.open(with_mmp());
    write(&fs, "before", &content(1, 1 << 20));
    let (device, gate) = gated(96 << 20);
    fs.replace_device(1, NewDevice { device, uuid: [9; 16] }).unwrap();
    gate.close(|_| true, 0);
    thread::scope(|scope| {
        let copier = begin(scope, || fs.join_step(64 << 20).map(drop));
        let writer = begin(scope, || _ = write(&fs, "while", &content(2, 1 << 20)));
        // So long somebody has to wait before that is known.
        thread::sleep(Duration::from_millis(2500));
        assert!(!is_answered(&writer) && !is_answered(&copier));
        let stopped = begin(scope, || assert!(fs.stop_replacing()));
        let waits = [stopped.recv_timeout(Duration::from_secs(20)), writer.recv_timeout(Duration::from_secs(20))];
        let copied = copier.recv_timeout(Duration::from_secs(20));
        gate.open();
        assert!(waits.iter().all(Result::is_ok), "{waits:?}");
        copied.unwrap().unwrap();
    });
    assert!(fs.join_failed().unwrap().contains("on request") && fs.join_status().is_none());
    assert!(!fs.stop_replacing());
    fs.close().unwrap();
    clean(&w.devices);
}

/// A device that is added hangs at any request: it is given up.
fn a_device_is_added_and_hangs() {
    for (which, but) in (0..8).map(|but| (NOT_READ, but)).chain([(is_read as Which, 0)]) {
        let w = World::new(Profile::Mirror, 2);
        let fs = w.open(with_mmp());
        let (device, gate) = gated(96 << 20);
        gate.close(which, but);
        let now = broken_now();
        thread::scope(|scope| {
            let adder = begin(scope, || in_thread(now, || fs.device_add(device, [9; 16]).map(drop)));
            if is_answered(&adder) {
                return;
            }
            let told = std::cell::RefCell::new(None);
            let ended = w.pass(&fs, 45, || {
                told.replace_with(|old| old.take().or_else(|| adder.try_recv().ok()));
                told.borrow().is_some()
            });
            gate.open();
            assert!(ended, "it is waited for, after {but}");
            assert!(told.take().unwrap().unwrap_err().to_string().contains("did not answer"), "{but}");
        });
        write(&fs, "after", &content(1, 1 << 20));
        fs.close().unwrap();
    }
}

#[test]
fn a_device_that_is_added_and_hangs_is_given_up() {
    a_device_is_added_and_hangs();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it is waited for, after 0")]
fn a_device_that_is_made_ready_and_waited_for_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NewcomerAwaited, a_device_is_added_and_hangs);
}

const NOT_READ: Which = |op| !is_read(op);

/// What asks for a device to come.
type Comes = fn(&Fs, Arc<dyn BlockDevice>) -> nenrin_core::Result<()>;
const ADDED: Comes = |fs, device| fs.device_add(device, [9; 16]).map(drop);
const REPLACES: Comes = |fs, device| fs.replace_device(0, NewDevice { device, uuid: [9; 16] });

/// A volume is closed while a device is to come that hangs after so many requests; who closes is answered, within a minute at most.
fn closes_beside(profile: Profile, count: usize, comes: Comes, which: Which, but: usize) {
    let w = World::new(profile, count);
    let fs = w.open(MountOptions::default());
    let (device, gate) = gated(96 << 20);
    gate.close(which, but);
    let now = broken_now();
    thread::scope(|scope| {
        let comer = begin(scope, || in_thread(now, || comes(&fs, device)));
        gate.wait_until(|s| s.held > but);
        let ino = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &content(1, 300 << 10), 0).unwrap();
        let closer = begin(scope, || in_thread(now, || fs.close()));
        // No time passes: what was accepted waits for nobody, and who closes only where the device is about to be taken in.
        let is_taken_in = but == 3;
        let is_closed = closer.recv_timeout(if is_taken_in { Duration::ZERO } else { patience() }).is_ok();
        // Soon, as a rule; within a second, and each look copies all devices.
        let is_there = [20, 30, 50, 100, 200, 200, 200, 200].into_iter().any(|millis| {
            thread::sleep(Duration::from_millis(millis));
            is_there_after_a_cut(&w, "file", &content(1, 300 << 10))
        });
        let ended = is_closed || is_taken_in && w.pass(&fs, 60, || is_answered(&closer));
        gate.open();
        drop(comer.recv_timeout(Duration::from_secs(20)).unwrap());
        assert!(is_there, "what was accepted waits for a device that is to come, {profile:?}, after {but}");
        assert!(ended, "who closes waits for a device that is to come, {profile:?}, after {but}");
    });
    drop(fs);
    clean(&w.devices);
}

/// Whether the members have a file, if the power fails now.
fn is_there_after_a_cut(w: &World, name: &str, what: &[u8]) -> bool {
    let copy = |d: &Arc<dyn BlockDevice>| {
        let all = d.read(0, d.geometry().bytes as usize).unwrap();
        Arc::new(nenrin_device::MemDevice::from_bytes(all.to_vec())) as Arc<dyn BlockDevice>
    };
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = Fs::open(w.devices.iter().map(copy).collect(), w.clock.clone(), options);
    fs.and_then(|fs| read(&fs, name, 1 << 20)).is_ok_and(|found| found == what)
}

#[test]
fn who_closes_waits_for_no_device_that_is_to_come() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Mirror, 2)] {
        for but in 0..3 {
            closes_beside(profile, count, ADDED, NOT_READ, but);
            closes_beside(profile, count, REPLACES, NOT_READ, but);
        }
        // It is about to be taken in.
        closes_beside(profile, count, ADDED, NOT_READ, 3);
        // It does not even say whether somebody has it.
        closes_beside(profile, count, ADDED, is_read, 0);
        closes_beside(profile, count, REPLACES, is_read, 0);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "who closes waits for a device that is to come")]
fn who_closes_behind_a_device_that_is_made_ready_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::NewcomerHeld, || closes_beside(Profile::Mirror, 2, ADDED, NOT_READ, 0));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was accepted waits for a device that is to come")]
fn who_closes_and_commits_last_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::ClosesLate, || closes_beside(Profile::Mirror, 2, ADDED, NOT_READ, 3));
}

/// A device that is to take the place of another hangs before it begins to; or is slow, and goes on later.
fn a_replacement_is_left_before_it_begins(hangs: bool) {
    for (which, but) in [(NOT_READ, 0), (NOT_READ, 1), (NOT_READ, 2), (is_read as Which, 0)] {
        let w = World::new(Profile::Mirror, 2);
        let fs = w.open(MountOptions::default());
        let (device, gate) = gated(96 << 20);
        gate.close(which, but);
        let now = broken_now();
        thread::scope(|scope| {
            let comer = begin(scope, || in_thread(now, || REPLACES(&fs, device)));
            gate.wait_until(|s| s.held > but);
            if hangs {
                // So long somebody has to wait before that is known.
                thread::sleep(Duration::from_millis(100));
            }
            let stopper = begin(scope, || in_thread(now, || fs.stop_replacing()));
            let stopped = stopper.recv_timeout(patience());
            if !hangs {
                gate.open();
            }
            let answer = comer.recv_timeout(patience());
            gate.open();
            assert_eq!(stopped, Ok(true), "who gives up a replacement waits for it");
            let why = answer.expect("it is waited for").unwrap_err().to_string();
            assert!(why.contains("given up on request"), "{why}");
        });
        assert!(fs.join_status().is_none() && !fs.stop_replacing());
        write(&fs, "after", &content(1, 1 << 20));
        fs.close().unwrap();
        clean(&w.devices);
    }
}

#[test]
fn a_replacement_is_given_up_before_it_begins() {
    a_replacement_is_left_before_it_begins(true);
    a_replacement_is_left_before_it_begins(false);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "who gives up a replacement waits for it")]
fn a_replacement_that_cannot_be_given_up_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::NewcomerHeld, || a_replacement_is_left_before_it_begins(true));
}
