//! A clock that jumps by more than a day drops nothing for 24 hours that the rule would not have dropped: forwards and
//! backwards, while the volume is mounted and between two mounts.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::file;
use nenrin_core::format::{Cno, Ino, Time};
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR as i64;

/// A clock that can be set.
#[derive(Default)]
struct Settable {
    nanos: AtomicU64,
    off: AtomicI64,
    suspended: AtomicU64,
}

impl Clock for Settable {
    fn wall(&self) -> Time {
        Time(1000 * DAY + self.nanos.load(Ordering::Relaxed) as i64 + self.off.load(Ordering::Relaxed))
    }
    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
    fn lease_nanos(&self) -> u64 {
        self.monotonic_nanos() + self.suspended.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Never,
    Mounted,
    Between,
}

/// A volume, its clock, and who works on it for so many minutes.
struct World {
    device: Arc<dyn BlockDevice>,
    clock: Arc<Settable>,
}

impl World {
    fn new() -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        let this = Self { device, clock: Arc::default() };
        let shared: Arc<dyn Clock> = this.clock.clone();
        mkfs(&this.device, &shared, &MkfsOptions::default()).unwrap();
        this
    }
    fn open(&self) -> Arc<Fs> {
        let options = MountOptions { checkpoint_nanos: 100 * SECOND, ..MountOptions::default() };
        Fs::open(vec![self.device.clone()], self.clock.clone(), options).unwrap()
    }
    fn work(&self, fs: &Fs, f: Ino, minutes: u64) {
        for minute in 0..minutes {
            fs.write(f, 0, &minute.to_le_bytes(), 0).unwrap();
            self.clock.nanos.fetch_add(60 * SECOND, Ordering::Relaxed);
            fs.tick().unwrap();
        }
    }
    fn jump(&self, nanos: i64) {
        self.clock.off.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// The checkpoints kept after each hour from the jump on.
fn kept(when: When, jump: i64) -> Vec<Vec<Cno>> {
    let world = World::new();
    let mut fs = world.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    world.work(&fs, f, 40 * 60);
    if when == When::Mounted {
        world.jump(jump);
    }
    fs.close().unwrap();
    if when == When::Between {
        world.jump(jump);
    }
    fs = world.open();
    let mut out = Vec::new();
    for _ in 0..23 {
        world.work(&fs, f, 60);
        out.push(fs.checkpoints().iter().map(|c| c.cno).collect());
    }
    out
}

/// Within one mount, by less than a day and time and again; at the end it is mounted anew. The last hour stays.
fn small_jumps_change_nothing() {
    for (times, jump) in [(1, HOUR), (1, 23 * HOUR), (30, 23 * HOUR)] {
        let world = World::new();
        let fs = world.open();
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        world.work(&fs, f, 40 * 60);
        let last: Vec<Cno> = fs.checkpoints().iter().rev().take(10).map(|c| c.cno).collect();
        for _ in 0..times {
            world.jump(jump as i64);
            world.work(&fs, f, 10 / times.min(10));
        }
        let stays = |fs: &Fs, when: &str| {
            let left = fs.checkpoints().iter().filter(|c| last.contains(&c.cno)).count();
            assert!(left == last.len(), "{times} jumps of {} h: {left} of {} left {when}", jump / HOUR, last.len());
        };
        stays(&fs, "mounted");
        fs.close().unwrap();
        let fs = world.open();
        world.work(&fs, f, 2);
        stays(&fs, "mounted anew");
        fs.close().unwrap();
    }
}

#[test]
fn a_clock_that_jumps_by_hours_drops_nothing_that_was_mounted() {
    small_jumps_change_nothing();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "jumps of")]
fn a_jump_that_counts_as_a_pause_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::PausesWithinMounts, small_jumps_change_nothing);
}

/// The machine is suspended for so long, as its battery clock says, while the volume is mounted: how many checkpoints are left of before.
fn left_after_suspending(nanos: i64) -> usize {
    let world = World::new();
    let fs = world.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    world.work(&fs, f, 40 * 60);
    let before: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    world.jump(nanos);
    world.clock.suspended.fetch_add(nanos as u64, Ordering::Relaxed);
    world.work(&fs, f, 30);
    fs.close().unwrap();
    let fs = world.open();
    world.work(&fs, f, 30);
    fs.checkpoints().iter().filter(|c| before.contains(&c.cno)).count()
}

/// A night is as long as it was, and a year, for which the battery clock may have been set, is no more than a day.
fn suspended_for_a_year() {
    let [still, night, day, year] = [0, 10 * HOUR as i64, DAY, 365 * DAY].map(left_after_suspending);
    assert!(still > night && night > day && day > 0, "{still}, {night}, {day}");
    assert!(year == day, "{year} of {day} left after a year");
}

#[test]
fn of_a_suspension_a_day_is_believed() {
    suspended_for_a_year();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left after a year")]
fn a_suspension_that_is_believed_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::SuspendsBelieved, suspended_for_a_year);
}

fn jumps_change_nothing() {
    let still = kept(When::Never, 0);
    assert!(still.iter().all(|k| k.len() > 60) && still[0] != still[22]);
    for when in [When::Mounted, When::Between] {
        for jump in [365 * DAY, 2 * DAY, -2 * DAY, -365 * DAY] {
            for (hour, (all, jumped)) in still.iter().zip(kept(when, jump)).enumerate() {
                // The stretch of time in which it jumps becomes two, of which each keeps one.
                let (lost, more) =
                    (all.iter().filter(|c| !jumped.contains(c)).count(), jumped.len() - all.len().min(jumped.len()));
                let text = format!("a jump of {} days, {when:?}: {lost} lost, {more} more after {hour} h", jump / DAY);
                assert!(lost == 0 && more <= 2, "{text}");
            }
        }
    }
}

#[test]
fn a_clock_that_jumps_drops_nothing_for_a_day() {
    jumps_change_nothing();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a jump of")]
fn a_jump_that_is_believed_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::JumpBelieved, jumps_change_nothing);
}
