//! A log that names no segment to go on in, as on a nearly full volume: what mounts wrote that went on all the same is found.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use nenrin_core::format::superblock::{self, Superblock};
use nenrin_core::format::{Generation, Ino};
use nenrin_core::repair::RepairPlan;
use nenrin_core::{At, Fs, MountOptions};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, Image, MemDevice};
use std::sync::Arc;

const BLOCK: usize = 4096;

fn open(device: Arc<dyn BlockDevice>) -> Arc<Fs> {
    Fs::open(vec![device], Arc::new(TestClock::default()), MountOptions::default()).unwrap()
}

fn destroy(bytes: &mut [u8], block: u64) {
    bytes[block as usize * BLOCK..][..BLOCK].fill(0x5a);
}

fn slots_of(bytes: &[u8], sb: &Superblock) -> [u64; 2] {
    superblock::slot_blocks(sb.generation, (bytes.len() / BLOCK) as u64)
}

fn destroy_slots(bytes: &mut [u8], sb: &Superblock) {
    for slot in slots_of(bytes, sb) {
        destroy(bytes, slot);
    }
}

/// This root says no more where the log goes on behind its segment.
fn unname(bytes: &mut [u8], sb: &Superblock) {
    for slot in slots_of(bytes, sb) {
        let unnamed = Superblock { chain_next: None, ..sb.clone() };
        bytes[slot as usize * BLOCK..][..BLOCK].copy_from_slice(&unnamed.encode());
    }
}

/// A volume that was closed, whose root names no segment.
fn closed_unnamed() -> Vec<u8> {
    let w = World::new(32 << 20);
    let fs = w.open();
    fs.create(Ino::ROOT, b"before", &file(0o600)).unwrap();
    fs.close().unwrap();
    let mut bytes = w.device.inner().snapshot();
    unname(&mut bytes, &fs.superblock());
    bytes
}

fn write_since(fs: &Fs) {
    let f = fs.create(Ino::ROOT, b"since", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[8; 5000], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
}

fn assert_whole(fs: &Fs, when: &str) {
    assert_eq!(fs.recovery_report().damage, None, "back in time, {when}");
    assert!(fs.lookup(At::Live, Ino::ROOT, b"before").is_ok(), "{when}");
    let since = fs.lookup(At::Live, Ino::ROOT, b"since").and_then(|f| fs.read(At::Live, f.ino, 0, 5000));
    assert!(since.is_ok_and(|bytes| bytes == [8; 5000]), "back in time without a word, {when}");
}

/// Both copies of the slot are lost of the mount that wrote since.
fn gone_on() -> (Vec<u8>, Superblock) {
    let device = Arc::new(MemDevice::from_bytes(closed_unnamed()));
    let fs = open(device.clone());
    write_since(&fs);
    let mut bytes = device.snapshot();
    let sb = fs.superblock();
    destroy_slots(&mut bytes, &sb);
    (bytes, sb)
}

fn gone_on_unnamed() {
    let (bytes, _) = gone_on();
    assert_whole(&open(Arc::new(MemDevice::from_bytes(bytes.clone()))), "read again");
    // Whoever finds it, and is cut, leaves it to be found by the next.
    let disk = Arc::new(CrashDisk::from_image(Image::from_bytes(&bytes)));
    drop(open(disk.clone()));
    let history = disk.history().unwrap();
    assert!(history.cut_points() > 3, "{}", history.cut_points());
    for cut in 0..=history.cut_points() {
        for seed in [CrashChoice::SEED_DROPPED, CrashChoice::SEED_APPLIED, 3, 4] {
            let image = history.image_at(cut, &CrashChoice::from_seed(seed)).content();
            let fs = open(Arc::new(CrashDisk::from_image(image).without_history()));
            assert_whole(&fs, &format!("cut {cut}, seed {seed}"));
        }
    }
}

#[test]
fn a_log_that_goes_on_where_nothing_says_is_found() {
    gone_on_unnamed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "back in time without a word")]
fn a_log_that_goes_on_unsought_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnnamedUnsought, gone_on_unnamed);
}

/// A repair that mends slots takes the only sign away that the log must be sought.
#[test]
fn a_repair_of_slots_keeps_what_the_log_does_not_name() {
    let (mut bytes, sb) = gone_on();
    // The next slot alone may have been under way, and is left as it is.
    let used = Superblock { generation: Generation(sb.generation.0 - 1), ..sb };
    let [copy, _] = slots_of(&bytes, &used);
    destroy(&mut bytes, copy);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let clock = Arc::new(TestClock::default());
    let plan = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {}).unwrap();
    assert!(plan.report().needed);
    assert!(plan.report().losses.is_empty(), "{:?}", plan.report().losses);
    plan.carry_out(clock).unwrap();
    let fs = open(device);
    assert_eq!(fs.recovery_report().notes, Vec::<String>::new());
    assert_whole(&fs, "repaired");
}

/// Two mounts began in the same segment, since no other was named, and the first of them wrote nothing. The root of the second cannot
/// be read, and its slot can.
fn began_in_the_same() {
    let device = Arc::new(MemDevice::from_bytes(closed_unnamed()));
    let idle = open(device.clone()).superblock();
    let mut bytes = device.snapshot();
    unname(&mut bytes, &idle);
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let fs = open(device.clone());
    let sb = fs.superblock();
    assert_eq!((sb.chain, sb.chain_seq), (idle.chain, idle.chain_seq));
    assert!(sb.epoch > idle.epoch && sb.generation > idle.generation);
    write_since(&fs);
    let mut bytes = device.snapshot();
    for (addr, _) in sb.root {
        destroy(&mut bytes, sb.block_alone(addr).unwrap());
    }
    let fs = open(Arc::new(MemDevice::from_bytes(bytes)));
    assert!(fs.recovery_report().notes.iter().any(|n| n.contains("newest root")));
    assert_whole(&fs, "from the root of the idle mount");
}

#[test]
fn a_mount_that_began_where_an_idle_one_had_is_followed() {
    began_in_the_same();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "back in time")]
fn a_mount_that_is_sought_by_name_only_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GoneOnByName, began_in_the_same);
}
