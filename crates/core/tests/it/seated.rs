//! A device takes the place of another, and that one does not answer any more: nobody waits for it.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{gated, is_read};
use crate::common::patience;
use crate::devices::{content, read, write};
use crate::still::{World, begin, broken_now, clean, in_thread};
use nenrin_core::format::BLOCK_BYTES;
use nenrin_core::format::superblock::{Profile, SLOT_BLOCK, SLOTS_PER_AREA};
use nenrin_core::{MountOptions, NewDevice, Standing};
use nenrin_device::Op;
use std::thread;

/// What ends the roots of a device that was replaced.
fn is_end(op: &Op) -> bool {
    let bytes = SLOTS_PER_AREA as usize * BLOCK_BYTES;
    matches!(op, Op::Write { data, .. } if data.len() == bytes && data.iter().all(|b| *b == 0))
}

/// It does not answer when its roots are ended, after so many requests for that.
fn the_old_one_hangs(profile: Profile, count: usize, but: usize) {
    let w = World::new(profile, count);
    let fs = w.open(MountOptions::default());
    write(&fs, "before", &content(1, 3 << 20));
    fs.sync_all().unwrap();
    let (device, _gate) = gated(96 << 20);
    fs.replace_device(0, NewDevice { device: device.clone(), uuid: [9; 16] }).unwrap();
    let gate = &w.gates[0];
    gate.close(is_end, but);
    let now = broken_now();
    thread::scope(|scope| {
        let joined = begin(scope, || in_thread(now, || while fs.join_step(64 << 20).unwrap().is_some() {}));
        gate.wait_until(|s| s.held > but);
        // No time passes before that.
        let writer = begin(scope, || {
            write(&fs, "while", &content(2, 300 << 10));
            fs.sync_all().unwrap();
        });
        let is_synced = writer.recv_timeout(patience()).is_ok();
        w.pass(&fs, 35, || false);
        let is_seated = joined.recv_timeout(patience()).is_ok();
        gate.open();
        assert!(is_seated, "the new device waits for the old one");
        assert!(is_synced, "a sync waits for a device that was replaced");
    });
    let health = &fs.health()[0];
    assert_eq!((health.uuid, health.standing, fs.failed()), ([9; 16], Standing::Active, None));
    assert_eq!(fs.join_failed(), None);
    write(&fs, "after", &content(3, 1 << 20));
    fs.close().unwrap();
    drop(fs);
    let mut devices = w.devices.clone();
    devices[0] = device;
    clean(&devices);
    let fs = nenrin_core::Fs::open(devices, w.clock.clone(), MountOptions::default()).unwrap();
    for (name, seed, bytes) in [("before", 1, 3 << 20), ("while", 2, 300 << 10), ("after", 3, 1 << 20)] {
        assert!(read(&fs, name, 4 << 20).unwrap() == content(seed, bytes), "{name}");
    }
    fs.close().unwrap();
}

/// What begins to give a device its place.
fn is_slot(op: &Op) -> bool {
    let slots = SLOT_BLOCK * BLOCK_BYTES as u64..(SLOT_BLOCK + SLOTS_PER_AREA) * BLOCK_BYTES as u64;
    matches!(op, Op::Write { offset, data } if data.len() == BLOCK_BYTES && slots.contains(offset))
}

/// It hangs with what a sync asked it for before the new one had its place.
fn the_old_one_hangs_in_a_sync(profile: Profile, count: usize) {
    let w = World::new(profile, count);
    let fs = w.open(MountOptions::default());
    write(&fs, "before", &content(1, 3 << 20));
    fs.sync_all().unwrap();
    let (device, new) = gated(96 << 20);
    fs.replace_device(0, NewDevice { device: device.clone(), uuid: [9; 16] }).unwrap();
    new.close(is_slot, 0);
    let old = &w.gates[0];
    let now = broken_now();
    thread::scope(|scope| {
        let joined = begin(scope, || in_thread(now, || while fs.join_step(64 << 20).unwrap().is_some() {}));
        new.wait_until(|s| s.held > 0);
        old.close(|op| !is_read(op), 0);
        let writer = begin(scope, || {
            write(&fs, "while", &content(2, 300 << 10));
            fs.sync_all().unwrap();
        });
        old.wait_until(|s| s.held > 0);
        new.open();
        old.wait_until(|s| s.held > 1);
        w.pass(&fs, 35, || false);
        let is_seated = joined.recv_timeout(patience()).is_ok();
        let is_synced = writer.recv_timeout(patience()).is_ok();
        old.open();
        assert!(is_synced, "a sync waits for a device that was replaced, {profile:?}");
        assert!(is_seated, "the new device waits for the old one, {profile:?}");
    });
    assert_eq!((fs.health()[0].uuid, fs.failed()), ([9; 16], None));
    fs.close().unwrap();
    drop(fs);
    let mut devices = w.devices.clone();
    devices[0] = device;
    clean(&devices);
    let fs = nenrin_core::Fs::open(devices, w.clock.clone(), MountOptions::default()).unwrap();
    for (name, seed, bytes) in [("before", 1, 3 << 20), ("while", 2, 300 << 10)] {
        assert!(read(&fs, name, 4 << 20).unwrap() == content(seed, bytes), "{name}");
    }
    fs.close().unwrap();
}

#[test]
fn who_waits_for_a_device_that_is_replaced_meanwhile_is_let_go() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Stripe, 2), (Profile::Mirror, 2)] {
        the_old_one_hangs_in_a_sync(profile, count);
    }
}

#[test]
fn a_device_that_was_replaced_is_not_waited_for() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Single, 3), (Profile::Stripe, 2), (Profile::Mirror, 2)] {
        for but in 0..2 {
            the_old_one_hangs(profile, count, but);
        }
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the new device waits for the old one")]
fn a_device_that_was_replaced_and_is_waited_for_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OldAwaited, || the_old_one_hangs(Profile::Stripe, 2, 0));
}
