//! Members that were away and come back: what they still have is kept where it is right, and only what they lack is written.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::devices::{World, bring_up, degraded, read, write};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{BLOCK_BYTES, Epoch};
use nenrin_core::{AlignedBuf, MountOptions};
use nenrin_device::BlockDevice;
use std::sync::Arc;

const OLD_BYTES: usize = 8 << 20;
const MISSED_BYTES: usize = 3 << 20;

/// Content of which no block is like another.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|i| (i ^ seed << 40).to_le_bytes()).collect()
}

/// A volume of which device `away` was not there when something was written.
fn missed(profile: Profile, width: usize, away: usize) -> World {
    let w = World::new(profile, &vec![48; width]);
    let all: Vec<usize> = (0..width).collect();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    write(&fs, "old", &content(1, OLD_BYTES));
    for i in 0..40 {
        write(&fs, &format!("little {i}"), &content(2 + i, 9000));
    }
    fs.close().unwrap();
    let others: Vec<usize> = all.iter().copied().filter(|i| *i != away).collect();
    let fs = w.open(&others, degraded()).unwrap();
    write(&fs, "missed", &content(100, MISSED_BYTES));
    fs.close().unwrap();
    w
}

/// What was written in the first mount, while all were there.
const FIRST_LIFE: Epoch = Epoch(1);

/// Makes some blocks of a device rot that hold old content, and the summaries before it; how many.
fn rot(w: &World, device: usize) -> usize {
    let old = content(1, OLD_BYTES);
    let member = &w.members[device];
    let there = member.read(0, 48 << 20).unwrap();
    let blocks: std::collections::HashSet<&[u8]> = old.chunks_exact(BLOCK_BYTES).collect();
    let mut count = 0;
    for (i, block) in there.chunks_exact(BLOCK_BYTES).enumerate() {
        let is_content = blocks.contains(block) && i % 23 == 0;
        let is_summary = Header::decode(&there[i * BLOCK_BYTES..])
            .is_ok_and(|s| s.header.kind == PartialKind::Data && s.header.epoch == FIRST_LIFE);
        if is_content || is_summary {
            let mut wrong = block.to_vec();
            wrong[BLOCK_BYTES / 2] ^= 0x55;
            member.write((i * BLOCK_BYTES) as u64, Arc::new(AlignedBuf::padded(&wrong))).unwrap();
            count += 1;
        }
    }
    count
}

fn what_is_right_stays(profile: Profile, width: usize, away: usize, rotten: usize) {
    let w = missed(profile, width, away);
    assert!(rot(&w, rotten) > 25, "something rots");
    let all: Vec<usize> = (0..width).collect();
    let fs = w.open(&all, MountOptions::default()).unwrap();
    bring_up(&fs);
    fs.close().unwrap();
    // Without the device with the rot everything is there.
    let others: Vec<usize> = all.into_iter().filter(|i| *i != rotten).collect();
    let fs = w.open(&others, MountOptions { read_only: true, ..degraded() }).unwrap();
    let is_right = |name: &str, right: Vec<u8>| read(&fs, name, right.len()).is_ok_and(|bytes| bytes == right);
    assert!(is_right("missed", content(100, MISSED_BYTES)), "{profile:?} {width}: what was missed");
    assert!(
        is_right("old", content(1, OLD_BYTES)),
        "{profile:?} {width}, {away} was away: rot was copied over what was right"
    );
    for i in 0..40 {
        assert!(is_right(&format!("little {i}"), content(2 + i, 9000)), "{i}");
    }
    fs.close().unwrap();
    let report = check(&w.some(&others), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let others = report.findings.iter().filter(|f| f.what != What::DeviceAbsent).count();
    assert_eq!(others, 0, "{:?}", report.findings);
}

#[test]
fn what_is_right_on_a_mirror_member_that_comes_back_stays() {
    for (width, away, rotten) in [(2, 1, 0), (2, 0, 1), (3, 1, 2), (4, 3, 0)] {
        what_is_right_stays(Profile::Mirror, width, away, rotten);
    }
}

#[test]
fn what_is_right_on_a_member_with_parity_that_comes_back_stays() {
    for (width, away, rotten) in [(3, 1, 0), (3, 0, 2), (4, 3, 1)] {
        what_is_right_stays(Profile::Parity, width, away, rotten);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "rot was copied over what was right")]
fn rot_that_is_copied_over_a_mirror_member_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::JoinUnjudged, || what_is_right_stays(Profile::Mirror, 2, 1, 0));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "rot was copied over what was right")]
fn rot_that_is_copied_over_a_member_with_parity_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::JoinUnjudged, || what_is_right_stays(Profile::Parity, 3, 1, 0));
}

/// What it had it gets no second time, and all of what it missed.
#[test]
fn only_what_a_member_missed_is_written_to_it() {
    for (profile, width) in [(Profile::Mirror, 2), (Profile::Mirror, 3), (Profile::Parity, 3)] {
        let w = missed(profile, width, 1);
        let before = w.counters();
        let fs = w.open(&(0..width).collect::<Vec<_>>(), MountOptions::default()).unwrap();
        bring_up(&fs);
        let written = w.counters()[1].since(&before[1]).write_bytes;
        fs.close().unwrap();
        let share = (MISSED_BYTES * if profile == Profile::Mirror { 2 } else { 3 } / width) as u64;
        assert!((share / 2..share + (3 << 20)).contains(&written), "{profile:?} {width}: {written} of {share}");
        let report = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.clean(), "{:?}", report.findings);
    }
}
