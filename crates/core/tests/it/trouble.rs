//! What a device did wrong is known after the mount in which others stood in for it; what a mount ends with.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::devices::{World, read, write};
use nenrin_core::format::BLOCK_BYTES;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{AlignedBuf, Fs, MountOptions, NewDevice};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;

const BYTES: usize = 1 << 20;
const ROTTEN_BLOCKS: usize = 3;

/// Content of which no block is like another.
fn content() -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|i| (i ^ 7 << 40).to_le_bytes()).collect()
}

/// Makes some blocks with content of a device rot.
fn rot(w: &World, device: usize) {
    let member = &w.members[device];
    let (there, content) = (member.read(0, 48 << 20).unwrap(), content());
    let blocks: std::collections::HashSet<&[u8]> = content.chunks_exact(BLOCK_BYTES).collect();
    let own = there.chunks_exact(BLOCK_BYTES).enumerate().filter(|(_, b)| blocks.contains(b));
    let some: Vec<usize> = own.map(|(i, _)| i).step_by(20).take(ROTTEN_BLOCKS).collect();
    assert_eq!(some.len(), ROTTEN_BLOCKS);
    for i in some {
        let mut wrong = there[i * BLOCK_BYTES..(i + 1) * BLOCK_BYTES].to_vec();
        wrong[BLOCK_BYTES / 2] ^= 0x55;
        member.write((i * BLOCK_BYTES) as u64, Arc::new(AlignedBuf::padded(&wrong))).unwrap();
    }
}

fn scrub(fs: &Fs) {
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, 1 << 20).unwrap();
    }
}

/// Blocks that each device gave wrong.
fn wrong(fs: &Fs) -> Vec<u64> {
    fs.health().iter().map(|d| d.wrong_blocks).collect()
}

fn is_told(profile: Profile, width: usize) {
    let w = World::new(profile, &vec![48; width]);
    let all: Vec<usize> = (0..width).collect();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    write(&fs, "f", &content());
    fs.close().unwrap();
    rot(&w, 1);
    let fs = w.open(&all, MountOptions::default()).unwrap();
    assert_eq!(wrong(&fs), vec![0; width]);
    scrub(&fs);
    let told = wrong(&fs);
    let expected = ROTTEN_BLOCKS as u64;
    // With parity some of them may be copies in the row log, which nobody needs any more.
    let least = if profile == Profile::Parity { 1 } else { expected };
    assert!((least..=expected).contains(&told[1]), "{profile:?}: counted while it is mended: {told:?}");
    assert_eq!(told.iter().sum::<u64>(), told[1], "{profile:?}: nobody else is blamed: {told:?}");
    assert_eq!(read(&fs, "f", BYTES).unwrap(), content());
    fs.close().unwrap();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    assert_eq!(wrong(&fs), told, "{profile:?}: the next mount knows");
    scrub(&fs);
    assert_eq!(wrong(&fs), told, "{profile:?}: once mended it is not wrong again");
    assert!(fs.device_forgive(1).unwrap() && !fs.device_forgive(9).unwrap());
    // Closing writes a root anyway.
    drop(fs);
    let fs = w.open(&all, MountOptions::default()).unwrap();
    assert_eq!(wrong(&fs), vec![0; width], "{profile:?}: forgiven for good");
    fs.close().unwrap();
}

fn what_was_given_up_is_past() {
    let w = World::new(Profile::Mirror, &[48, 48]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    write(&fs, "f", &content());
    let spare = || NewDevice { device: Arc::new(MemDevice::new(48 << 20)), uuid: [9; 16] };
    fs.replace_device(1, spare()).unwrap();
    fs.stop_replacing();
    assert!(fs.join_failed().is_some(), "it was given up");
    fs.replace_device(1, spare()).unwrap();
    while fs.join_step(1 << 20).unwrap().is_some() {}
    assert_eq!(fs.join_failed(), None, "told of another device");
    fs.close().unwrap();
}

#[test]
fn a_replacement_after_one_that_was_given_up_is_told_as_done() {
    what_was_given_up_is_past();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "told of another device")]
fn what_became_of_another_device_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::EndedBefore, what_was_given_up_is_past);
}

/// The last work of a mount can be gone back to as that before, where checkpoints are cut by time.
#[test]
fn who_is_about_to_close_cuts_what_has_changed() {
    let w = World::new(Profile::Single, &[48]);
    for (checkpoint_nanos, expected) in [(5_000_000_000, 1), (0, 1), (5_000_000_000, 2)] {
        let options = || MountOptions { checkpoint_nanos, ..MountOptions::default() };
        let fs = w.open(&[0], options()).unwrap();
        write(&fs, &format!("f{expected}{checkpoint_nanos}"), b"the last work");
        fs.cut_at_end().unwrap();
        assert_eq!(fs.checkpoints().len(), expected);
        fs.cut_at_end().unwrap();
        assert_eq!(fs.checkpoints().len(), expected, "nothing has changed since");
        fs.close().unwrap();
        let fs = w.open(&[0], MountOptions { read_only: true, ..options() }).unwrap();
        fs.cut_at_end().unwrap();
        assert_eq!(fs.checkpoints().len(), expected);
    }
}

#[test]
fn what_a_device_did_wrong_is_told_by_the_next_mount() {
    for (profile, width) in [(Profile::Mirror, 2), (Profile::Mirror, 3), (Profile::Parity, 3)] {
        is_told(profile, width);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the next mount knows")]
fn trouble_that_is_not_told_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::TroubleUntold, || is_told(Profile::Mirror, 2));
}
