//! The power fails in the middle of a change of length, and later the beginning of the device is lost: what its end says then.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA};
use nenrin_core::{Fs, MkfsOptions, MountOptions, Probe, SlotState, mkfs, probe};
use nenrin_device::{AlignedBuf, BlockDevice, CrashChoice, CrashDisk, Fault, Faulty, MemDevice};
use std::sync::Arc;

const ALL: u64 = 24 << 20;
const LESS: u64 = 18 << 20;

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Fs> {
    Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default()).unwrap()
}

/// So much of the device is used from now on.
fn resize(fs: &Fs, bytes: u64) {
    fs.device_resize(0, bytes / 4096).unwrap();
    for _ in 0..1000 {
        if fs.laying_step(4 << 20).unwrap().is_none() {
            return;
        }
    }
    assert!(fs.laying_status().is_none(), "{:?}", fs.laying_status());
}

/// What the slots of a device say that ends here, and whose beginning is lost.
fn from_the_end(device: &dyn BlockDevice, bytes: u64) -> Probe {
    let mut all = device.read(0, bytes as usize).unwrap().to_vec();
    all[..AREA_BLOCKS as usize * 4096].fill(0);
    probe(&MemDevice::from_bytes(all)).unwrap()
}

/// After a cut that left this the volume is mounted, written to, and closed.
fn goes_on(image: &Arc<dyn BlockDevice>, what: &str) {
    let fs = open(image);
    let slots = probe(image.as_ref()).unwrap();
    let tables = |generation| {
        let of = |block: &u64| slots.tables.iter().find(|(b, _)| b == block).map(|(_, table)| *table);
        let valid = slots.slots.iter().filter(|(_, state)| *state == nenrin_core::SlotState::Valid(generation));
        valid.filter_map(|(block, _)| of(block)).collect::<std::collections::BTreeSet<u64>>()
    };
    for root in &slots.roots {
        assert_eq!(tables(root.generation).len(), 1, "a root has two device tables: {}, {what}", root.generation);
    }
    for i in 0..3 {
        fs.create(Ino::ROOT, format!("after {i}").as_bytes(), &file(0o600)).unwrap();
        fs.sync_all().unwrap();
    }
    fs.close().unwrap();
    let newest = probe(image.as_ref()).unwrap().newest().unwrap().clone();
    for end in [ALL, newest.devices[0].blocks * 4096] {
        let found = from_the_end(image.as_ref(), end).roots.first().map(|r| r.generation);
        assert!(found.is_none_or(|g| g == newest.generation), "an old root is found, {found:?}: {what}");
    }
}

/// Cut after each operation of a change of length, both ways.
fn lengths_that_are_cut() {
    for (before, after) in [(ALL, LESS), (LESS, ALL)] {
        let disk = Arc::new(CrashDisk::new(ALL));
        let device: Arc<dyn BlockDevice> = disk.clone();
        let options = MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() };
        mkfs(&device, &(Arc::new(TestClock::default()) as _), &options).unwrap();
        let fs = open(&device);
        resize(&fs, before);
        let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &vec![7; 1 << 20], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        let from = disk.cut_points();
        resize(&fs, after);
        let (to, history) = (disk.cut_points(), disk.history().unwrap());
        assert!(to > from + 6);
        for cut in from..=to {
            for seed in [CrashChoice::SEED_DROPPED, CrashChoice::SEED_APPLIED, 9] {
                let image = history.image_at(cut, &CrashChoice::from_seed(seed)).record().without_history();
                goes_on(&(Arc::new(image) as _), &format!("{before} to {after}, cut at {cut}, {seed}"));
            }
        }
    }
}

#[test]
fn what_a_length_that_was_cut_leaves_is_no_root() {
    lengths_that_are_cut();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "an old root is found")]
fn roots_that_are_left_at_the_end_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OldEndsLeft, lengths_that_are_cut);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a root has two device tables")]
fn tables_that_are_left_at_one_end_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OldTwinsKept, lengths_that_are_cut);
}

/// A block of the area at the end of a device cannot be read any more when its length changes, both ways.
fn a_length_changes_beside_a_bad_block(block: u64) {
    for (before, after) in [(ALL, LESS), (LESS, ALL)] {
        let faulty = Arc::new(Faulty::new(MemDevice::new(ALL as usize)));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let options = MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() };
        mkfs(&device, &(Arc::new(TestClock::default()) as _), &options).unwrap();
        let fs = open(&device);
        resize(&fs, before);
        let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &vec![7; 1 << 20], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        let at = before - (AREA_BLOCKS - block) * 4096;
        faulty.faults().inject(Fault::BadUntilWritten { at });
        let asked = fs.device_resize(0, after / 4096);
        assert!(asked.is_ok(), "the length stays, since block {block} is bad: {asked:?}");
        for _ in 0..1000 {
            if fs.laying_step(4 << 20).unwrap().is_none() {
                break;
            }
        }
        assert!(fs.laying_status().is_none(), "the length stays, since block {block} is bad: {:?}", fs.laying_status());
        let slots = probe(device.as_ref()).unwrap();
        let newest = slots.newest().unwrap();
        assert_eq!(newest.devices[0].blocks, after / 4096);
        let valid = slots.slots.iter().filter(|(_, state)| *state == SlotState::Valid(newest.generation));
        let ends: Vec<bool> = valid.map(|(block, _)| *block >= AREA_BLOCKS).collect();
        assert_eq!(ends, [false, true], "{block}");
        fs.close().unwrap();
        drop(fs);
        let fs = open(&device);
        let back = fs.read(nenrin_core::At::Live, ino, 0, 1 << 20).unwrap();
        assert!(back == vec![7; 1 << 20], "{block}");
        fs.close().unwrap();
    }
}

#[test]
fn a_bad_block_at_its_end_keeps_no_device_as_long_as_it_is() {
    (0..AREA_BLOCKS).for_each(a_length_changes_beside_a_bad_block);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the length stays, since block 9 is bad")]
fn a_bad_block_that_keeps_a_length_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::TailWhole, || a_length_changes_beside_a_bad_block(9));
}

/// Neither a slot at the end of a device nor its twin can be read when the length changes: what is in it may be nowhere else.
fn a_slot_is_read_nowhere(is_other: bool) {
    let faulty = Arc::new(Faulty::new(MemDevice::new(ALL as usize)));
    let device: Arc<dyn BlockDevice> = faulty.clone();
    let options = MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() };
    mkfs(&device, &(Arc::new(TestClock::default()) as _), &options).unwrap();
    let fs = open(&device);
    resize(&fs, LESS);
    for i in 0..SLOTS_PER_AREA {
        let at = |area: u64| (area + SLOT_BLOCK + i) * 4096;
        let tail = at(LESS / 4096 - AREA_BLOCKS);
        faulty.faults().inject(Fault::FailReads { range: tail..tail + 4096 });
        // What is there instead of its twin is none.
        let twin = device.read(at(0), 4096).unwrap();
        match is_other {
            true => device.write(at(0), Arc::new(AlignedBuf::padded(&[7; 4096]))).unwrap(),
            false => faulty.faults().inject(Fault::FailReads { range: at(0)..at(0) + 4096 }),
        }
        let asked = fs.device_resize(0, ALL / 4096);
        faulty.faults().clear();
        device.write(at(0), Arc::new(AlignedBuf::padded(&twin))).unwrap();
        assert!(asked.is_err(), "the length changes, and nobody knows what slot {i} says");
    }
    assert_eq!(fs.failed(), None);
    resize(&fs, ALL);
    fs.close().unwrap();
}

#[test]
fn a_length_stays_where_a_slot_is_read_nowhere() {
    a_slot_is_read_nowhere(false);
    a_slot_is_read_nowhere(true);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the length changes, and nobody knows what slot")]
fn a_slot_that_is_guessed_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::TailGuessed, || a_slot_is_read_nowhere(false));
}
