//! A newer program wrote to the volume: this one leaves it alone, however little of it is newer.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use crate::damage::crashed;
use crate::devices;
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{Clock, Error, Fs, MkfsOptions, MountOptions, RepairPlan, probe};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;

const BLOCK: usize = 4096;

/// What is newer in a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Newer {
    Version,
    Incompat,
    RoCompat,
}

/// The newest slot, so many generations later, as a program writes it that knows more.
fn slot(bytes: &[u8], what: Newer, later: u64) -> Vec<u8> {
    let mut sb = probe(&MemDevice::from_bytes(bytes.to_vec())).unwrap().newest().unwrap().clone();
    sb.generation.0 += later;
    match what {
        Newer::Version => {}
        Newer::Incompat => sb.features[2] = 1 << 5,
        Newer::RoCompat => sb.features[1] = 1 << 7,
    }
    let mut slot = sb.encode();
    if what == Newer::Version {
        slot[12] += 1;
        // Where it has everything else is not known.
        slot[512..].fill(0xa5);
    }
    slot[8..12].fill(0);
    let crc = nenrin_core::format::crc(&slot);
    slot[8..12].copy_from_slice(&crc.to_le_bytes());
    slot
}

/// The slot in a place: 0 to 3 of the head area, 4 to 7 of the tail area.
fn put(bytes: &mut [u8], place: usize, slot: &[u8]) {
    let area = if place < 4 { 0 } else { bytes.len() / BLOCK - 16 };
    let block = area + 4 + place % 4;
    bytes[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(slot);
}

fn devices(all: &[Vec<u8>]) -> Vec<Arc<MemDevice>> {
    all.iter().map(|bytes| Arc::new(MemDevice::from_bytes(bytes.clone()))).collect()
}

fn given(all: &[Arc<MemDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    all.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect()
}

fn text<T>(done: nenrin_core::Result<T>, what: &str) -> String {
    match done {
        Err(Error::Open(text)) => text,
        Err(e) => panic!("{what}: {e}"),
        Ok(_) => panic!("{what}: what a newer program wrote was passed over"),
    }
}

/// Mount, check and repair say so, and nothing is written.
fn refuses(all: &[Vec<u8>], what: Newer) {
    let disks = devices(all);
    let given = given(&disks);
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    for degraded in [false, true] {
        let options = MountOptions { degraded, ..MountOptions::default() };
        let said = text(Fs::open(given.clone(), clock.clone(), options), "mount");
        assert!(said.contains("update nenrin"), "{what:?}: {said}");
    }
    text(check(&given, &CheckOptions { data: false }, &mut |_| {}), "check");
    text(RepairPlan::new(&given, clock.as_ref(), &mut |_| {}), "repair");
    assert!(disks.iter().zip(all).all(|(d, before)| d.snapshot() == *before), "{what:?}: written to");
}

/// The volume can be read, and is not written to.
fn only_reads(all: &[Vec<u8>]) {
    let disks = devices(all);
    let given = given(&disks);
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let fs = Fs::open(given.clone(), clock.clone(), MountOptions::default()).unwrap();
    assert!(fs.recovery_report().only_readable, "a slot that forbids writing was passed over");
    assert!(matches!(fs.create(Ino::ROOT, b"x", &file(0o600)), Err(Error::ReadOnly)));
    drop(fs);
    let repaired = RepairPlan::new(&given, clock.as_ref(), &mut |_| {}).and_then(|plan| plan.carry_out(clock.clone()));
    drop(repaired);
    assert!(disks.iter().zip(all).all(|(d, before)| d.snapshot() == *before), "written to");
}

fn mirror() -> Vec<Vec<u8>> {
    let w = devices::World::new(Profile::Mirror, &[32, 32]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    devices::write(&fs, "f", &devices::content(1, 50_000));
    drop(fs);
    w.members.iter().map(|m| m.inner().inner().snapshot()).collect()
}

fn in_each_place(what: Newer, look: impl Fn(&[Vec<u8>])) {
    let (_, bytes) = crashed();
    for place in 0..8 {
        // The newest root once more, the next, or the one behind that.
        let mut one = bytes.clone();
        put(&mut one, place, &slot(&bytes, what, place as u64 % 3));
        look(&[one]);
    }
    let all = mirror();
    for (member, place) in [(0, 6), (1, 3)] {
        let mut some = all.clone();
        let newer = slot(&all[member], what, 1);
        put(&mut some[member], place, &newer);
        look(&some);
    }
}

#[test]
fn what_a_newer_program_wrote_refuses_the_volume() {
    for what in [Newer::Version, Newer::Incompat] {
        in_each_place(what, |all| refuses(all, what));
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "was passed over")]
fn a_newer_root_that_is_passed_over_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::NewerPassedOver, || in_each_place(Newer::Version, |all| refuses(all, Newer::Version)));
}

#[test]
fn what_one_slot_says_can_only_be_read() {
    in_each_place(Newer::RoCompat, only_reads);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "that forbids writing was passed over")]
fn a_volume_that_is_written_to_although_a_slot_forbids_it_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::OneRootAsked, || in_each_place(Newer::RoCompat, only_reads));
}

/// Left behind by a volume that was there before, it is no matter.
#[test]
fn a_newer_slot_of_another_volume_is_passed_over() {
    let (_, bytes) = crashed();
    let mut newer = slot(&bytes, Newer::Version, 1);
    newer[16] ^= 1;
    newer[8..12].fill(0);
    let crc = nenrin_core::format::crc(&newer);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut one = bytes;
    put(&mut one, 6, &newer);
    let disks = devices(&[one]);
    let fs = Fs::open(given(&disks), Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    let notes = &fs.recovery_report().notes;
    assert!(
        notes.iter().any(|n| n.contains("of another volume")) && !notes.iter().any(|n| n.contains("damaged")),
        "{notes:?}"
    );
}

/// The last partial of a log, of a newer version.
fn newer_log() {
    let (_, mut bytes) = crashed();
    let sb = probe(&MemDevice::from_bytes(bytes.clone())).unwrap().newest().unwrap().clone();
    let first = 16 + sb.chain.0.0 as usize * sb.segment_blocks as usize + sb.chain.1 as usize;
    let is_partial = |block: &usize| bytes[block * BLOCK..][..4] == *b"NPRT";
    // The one that has the last file content; what proves it to be durable is behind it, and goes.
    let of_log: Vec<usize> = (first..first + 90).filter(is_partial).collect();
    let [.., last, mark] = of_log[..] else { panic!("{of_log:?}") };
    bytes[mark * BLOCK..(mark + 1) * BLOCK].fill(0);
    let summary = &mut bytes[last * BLOCK..(last + 1) * BLOCK];
    assert_eq!(summary[12..16], [1, 0, 0, 0], "one block");
    summary[8] += 1;
    nenrin_core::format::set_own_crc(summary);
    let disks = devices(std::slice::from_ref(&bytes));
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let fs = Fs::open(given(&disks), clock.clone(), MountOptions::default()).unwrap();
    let damage = fs.recovery_report().damage.clone();
    assert!(damage.as_ref().is_some_and(|d| d.contains("newer")), "a newer log was taken for the end: {damage:?}");
    drop(fs);
    text(RepairPlan::new(&given(&disks), clock.as_ref(), &mut |_| {}), "repair");
    assert!(disks[0].snapshot() == bytes, "written to");
}

#[test]
fn a_log_that_a_newer_program_went_on_with_is_damaged() {
    newer_log();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "taken for the end")]
fn a_newer_log_taken_for_the_end_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NewerIsEnd, newer_log);
}

/// Of a fresh volume the newest slot alone.
#[test]
fn a_volume_of_one_root_is_refused_too() {
    let w = World::with(32 << 20, &MkfsOptions::default());
    let bytes = w.device.inner().snapshot();
    let mut newer = bytes.clone();
    put(&mut newer, 7, &slot(&bytes, Newer::Incompat, 0));
    refuses(&[newer], Newer::Incompat);
}
