//! The crash model: what survives a power cut and what may not.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::{blocks, refuses_misuse, roundtrip, write_op};
use nenrin_device::crash::{DISCARD_FILL, SECTOR_BYTES, Sequence};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, DeviceError, Image, Op, Prng};
use proptest::prelude::*;
use std::collections::HashSet;

const BLOCKS: u64 = 64;
const BYTES: u64 = BLOCKS * 4096;

const DROPPED: u64 = CrashChoice::SEED_DROPPED;
const APPLIED: u64 = CrashChoice::SEED_APPLIED;

/// The first byte of every sector after a cut.
fn sectors(disk: &CrashDisk, cut: usize, seed: u64) -> Vec<u8> {
    let image = disk.history().unwrap().image_at(cut, &CrashChoice::from_seed(seed));
    image.content().to_vec().into_iter().step_by(SECTOR_BYTES).collect()
}

fn first(disk: &CrashDisk, cut: usize, seed: u64) -> u8 {
    sectors(disk, cut, seed)[0]
}

#[test]
fn it_is_a_device_like_any_other() {
    let disk = CrashDisk::new(BYTES);
    disk.submit(Op::Discard { offset: 0, bytes: 4096 }).wait().unwrap();
    assert_eq!(disk.read(0, 4096).unwrap()[9], DISCARD_FILL);
    roundtrip(&disk);
    refuses_misuse(&disk);
    let image = disk.image(&CrashChoice::from_seed(APPLIED));
    assert_eq!(image.content().to_vec(), disk.current().to_vec());
    roundtrip(&image);
    refuses_misuse(&image);
}

/// What was never written and what was discarded reads right in any mixture and length, and a reader's changes are his own.
#[test]
fn what_reads_as_one_fill_is_nobody_elses() {
    let bytes = 600 * 4096;
    let disk = CrashDisk::new(bytes);
    disk.submit(Op::Discard { offset: 300 * 4096, bytes: 290 * 4096 }).wait().unwrap();
    disk.write(595 * 4096, blocks(7, 1)).unwrap();
    let image = disk.image(&CrashChoice::from_seed(APPLIED));
    let whole = image.content().to_vec();
    for (at, count) in
        [(0, 2), (0, 256), (0, 257), (0, 300), (299, 2), (300, 256), (300, 290), (300, 257), (589, 11), (590, 5)]
    {
        let place = at * 4096..(at + count) * 4096;
        let mut read = image.read(place.start as u64, count * 4096).unwrap();
        assert!(read[..] == whole[place.clone()], "{count} blocks at {at}");
        read.fill(1);
        assert!(image.read(place.start as u64, count * 4096).unwrap()[..] == whole[place], "{count} blocks at {at}");
        assert!(read.iter().all(|b| *b == 1));
    }
    assert_eq!(image.content().to_vec(), whole);
}

#[test]
fn flushed_survives_and_unflushed_may_not() {
    let disk = CrashDisk::new(BYTES);
    disk.write(0, blocks(1, 1)).unwrap();
    disk.flush().unwrap();
    disk.write(0, blocks(2, 1)).unwrap();
    assert_eq!(disk.cut_points(), 3);
    assert_eq!([0, 1, 2, 3].map(|cut| first(&disk, cut, DROPPED)), [0, 0, 1, 1]);
    assert_eq!([0, 1, 2, 3].map(|cut| first(&disk, cut, APPLIED)), [0, 1, 1, 2]);
    assert_eq!(disk.durable().to_vec()[0], 1);
    assert_eq!(disk.read(0, 4096).unwrap()[0], 2);
    for seed in 3..200 {
        assert!([1, 2].contains(&first(&disk, 3, seed)), "seed {seed}");
        assert_eq!(first(&disk, 2, seed), 1, "seed {seed}");
    }
}

#[test]
fn every_subset_of_unflushed_writes_is_reached() {
    let disk = CrashDisk::new(BYTES);
    (0..3).for_each(|n| disk.write(n * 4096, blocks(1, 1)).unwrap());
    let whole = |seed| {
        let sectors = sectors(&disk, 3, seed);
        let blocks = sectors.chunks(8).take(3);
        blocks.map(|b| b.iter().map(|x| usize::from(*x)).sum::<usize>()).collect::<Vec<_>>()
    };
    let reached: HashSet<_> = (3..500).map(whole).filter(|b| b.iter().all(|n| n % 8 == 0)).collect();
    assert_eq!(reached.len(), 8);
}

#[test]
fn tears_are_at_sectors_and_mostly_prefixes() {
    let disk = CrashDisk::new(BYTES);
    disk.write(0, blocks(1, 2)).unwrap();
    let history = disk.history().unwrap();
    let (mut prefixes, mut others) = (HashSet::new(), HashSet::new());
    let mut prefix_count = 0;
    for seed in 3..1000 {
        let bytes = history.image_at(1, &CrashChoice::from_seed(seed)).content().to_vec();
        assert!(bytes.chunks(SECTOR_BYTES).all(|s| s.iter().all(|b| *b == s[0])), "seed {seed}");
        let kept: Vec<_> = bytes.chunks(SECTOR_BYTES).take(16).map(|s| s[0]).collect();
        if kept.is_sorted_by(|a, b| a >= b) {
            prefix_count += 1;
            prefixes.insert(kept);
        } else {
            others.insert(kept);
        }
    }
    assert_eq!(prefixes.len(), 17, "every prefix, none and all included");
    assert!(others.len() > 40 && prefix_count > 700, "{} {prefix_count}", others.len());
}

#[test]
fn fixed_seeds_and_exact_tears() {
    let disk = CrashDisk::new(BYTES);
    disk.write(0, blocks(1, 1)).unwrap();
    disk.write(4096, blocks(2, 1)).unwrap();
    assert_eq!(sectors(&disk, 2, CrashChoice::SEED_LAST_TORN)[..16], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]);
    let history = disk.history().unwrap();
    let mut cursor = history.cursor();
    cursor.advance_to(2);
    assert_eq!((cursor.unflushed(), cursor.last_sectors()), (2, 8));
    for kept in 0..=8 {
        let image = cursor.image(&CrashChoice::last_torn(kept as u64));
        let read = image.read(4096, 4096).unwrap();
        assert_eq!(read.iter().filter(|b| **b == 2).count(), kept * SECTOR_BYTES);
    }
    let text = cursor.describe(&CrashChoice::last_torn(3));
    assert!(text.contains("0: write 4096 at 0: applied"), "{text}");
    assert!(text.contains("1: write 4096 at 4096: first 3 sectors"), "{text}");
}

#[test]
fn a_flush_covers_what_was_completed_before_it_was_submitted() {
    let disk = CrashDisk::new(BYTES);
    let early = disk.submit(write_op(0, 1, 1));
    let flush = disk.submit(Op::Flush);
    early.wait().unwrap();
    flush.wait().unwrap();
    assert_eq!(first(&disk, 2, DROPPED), 0, "not completed when the flush was submitted");
    let flush = disk.submit(Op::Flush);
    assert_eq!((disk.cut_points(), first(&disk, 2, DROPPED)), (2, 0), "not yet waited for");
    disk.write(0, blocks(2, 1)).unwrap();
    flush.wait().unwrap();
    assert_eq!(first(&disk, 4, DROPPED), 1, "the later write is not covered");
    assert_eq!(disk.read(0, 4096).unwrap()[0], 2);
    let ticket = disk.submit(write_op(1, 3, 1));
    assert!(ticket.is_done(), "asking is as good as waiting");
    disk.flush().unwrap();
    assert_eq!(disk.durable().to_vec()[4096], 3);
}

#[test]
fn a_dropped_ticket_is_never_covered() {
    let disk = CrashDisk::new(BYTES);
    drop(disk.submit(write_op(0, 1, 1)));
    disk.flush().unwrap();
    disk.flush().unwrap();
    let cut = disk.cut_points();
    assert_eq!([DROPPED, APPLIED].map(|seed| first(&disk, cut, seed)), [0, 1]);
}

#[test]
fn what_is_durable_by_itself_covers_nothing_else() {
    let disk = CrashDisk::new(BYTES);
    disk.write(0, blocks(1, 1)).unwrap();
    disk.write(8192, blocks(2, 1)).unwrap();
    disk.write_durable(4096, blocks(3, 1)).unwrap();
    let seen = |disk: &CrashDisk, cut, seed| [0, 8, 16].map(|s| sectors(disk, cut, seed)[s]);
    // Before it was written, while it is under way, and after.
    assert_eq!(seen(&disk, 2, DROPPED), [0, 0, 0]);
    assert_eq!([DROPPED, APPLIED].map(|seed| seen(&disk, 3, seed)), [[0, 0, 0], [1, 3, 2]]);
    assert_eq!([DROPPED, APPLIED].map(|seed| seen(&disk, 4, seed)), [[0, 3, 0], [1, 3, 2]]);
    assert_eq!((disk.counters().writes, disk.counters().flushes), (3, 1));
    disk.flush().unwrap();
    assert_eq!(seen(&disk, 5, DROPPED), [1, 3, 2]);
    disk.power_off();
    assert_eq!(disk.write_durable(0, blocks(4, 1)), Err(DeviceError::Off));
}

/// A disk does not put older content of its cache over what it was told to make durable.
#[test]
fn nothing_older_comes_over_what_is_durable_by_itself() {
    let disk = CrashDisk::new(BYTES);
    disk.write_flush(0, blocks(1, 4)).unwrap();
    disk.submit(Op::Discard { offset: 0, bytes: 8192 }).wait().unwrap();
    disk.write_durable(4096, blocks(5, 1)).unwrap();
    let cut = disk.cut_points();
    for seed in 0..200 {
        assert_eq!([8, 16].map(|s| sectors(&disk, cut, seed)[s]), [5, 1], "{seed}");
    }
}

/// A flush that fails loses what it was to cover: it reads as it was written, and no flush covers it until it is written again.
#[test]
fn what_a_failed_flush_loses_is_covered_by_no_other() {
    for itself in [false, true] {
        let disk = CrashDisk::new(BYTES);
        let write = |byte: u8| disk.write(0, blocks(byte, 1));
        disk.fail_next_flush(CrashChoice::from_seed(CrashChoice::SEED_DROPPED));
        if itself {
            assert!(disk.write_durable(0, blocks(7, 1)).is_err());
        } else {
            write(7).unwrap();
            assert!(disk.flush().is_err());
        }
        assert!(disk.flush().is_ok());
        assert_eq!(disk.read(0, 4096).unwrap()[0], 7);
        for seed in 0..20 {
            assert_eq!(first(&disk, disk.cut_points(), seed), 0, "{itself} {seed}");
            assert_eq!(disk.image(&CrashChoice::from_seed(seed)).content().to_vec()[0], 0);
        }
        write(7).unwrap();
        disk.flush().unwrap();
        assert_eq!(first(&disk, disk.cut_points(), 0), 7);
    }
}

#[test]
fn zeros_and_discards_are_changes_too() {
    let disk = CrashDisk::new(BYTES);
    disk.write_flush(0, blocks(1, 4)).unwrap();
    disk.submit(Op::Zero { offset: 0, bytes: 4096 }).wait().unwrap();
    disk.submit(Op::Discard { offset: 4096, bytes: 4096 }).wait().unwrap();
    assert_eq!([0, 8, 16].map(|s| sectors(&disk, 4, DROPPED)[s]), [1, 1, 1]);
    assert_eq!([0, 8, 16].map(|s| sectors(&disk, 4, APPLIED)[s]), [0, DISCARD_FILL, 1]);
    let counters = disk.counters();
    assert_eq!((counters.writes, counters.zeros, counters.discards, counters.flushes), (1, 1, 1, 1));
}

#[test]
fn power_off_acknowledges_nothing() {
    let disk = CrashDisk::new(BYTES).without_history();
    disk.write_flush(0, blocks(1, 1)).unwrap();
    disk.write(0, blocks(2, 1)).unwrap();
    let flush = disk.submit(Op::Flush);
    disk.power_off();
    assert_eq!(flush.wait().unwrap_err(), DeviceError::Off);
    assert_eq!(disk.read(0, 4096).unwrap_err(), DeviceError::Off);
    let read = |seed| disk.image(&CrashChoice::from_seed(seed)).read(0, 4096).unwrap()[0];
    assert_eq!([read(DROPPED), read(APPLIED)], [1, 2]);
    assert!(disk.history().is_none());
}

#[test]
fn recovery_can_be_cut_as_well() {
    let disk = CrashDisk::new(BYTES);
    disk.write(0, blocks(1, 1)).unwrap();
    let image = disk.history().unwrap().image_at(1, &CrashChoice::from_seed(APPLIED));
    let again = image.record();
    again.write(4096, blocks(2, 1)).unwrap();
    assert_eq!([0, 8].map(|s| sectors(&again, 1, DROPPED)[s]), [1, 0]);
    assert_eq!([0, 8].map(|s| sectors(&again, 1, APPLIED)[s]), [1, 2]);
    image.write(0, blocks(9, 1)).unwrap();
    assert_eq!(again.read(0, 4096).unwrap()[0], 1, "images are apart");
}

#[test]
fn disks_with_one_sequence_are_cut_together() {
    let sequence = Sequence::default();
    let disks = [(); 2].map(|()| CrashDisk::new(BYTES).with_sequence(&sequence));
    for n in 0..6u8 {
        disks[usize::from(n % 3 == 0)].write(0, blocks(n + 1, 1)).unwrap();
    }
    assert_eq!(sequence.now(), 6);
    let histories = disks.each_ref().map(|d| d.history().unwrap());
    let cuts: Vec<_> = (0..7).map(|s| histories.each_ref().map(|h| h.cut_at(s))).collect();
    assert_eq!(cuts, [[0, 0], [0, 1], [1, 1], [2, 1], [2, 2], [3, 2], [4, 2]]);
}

#[test]
fn hashes_tell_contents_apart_across_cuts() {
    let disk = CrashDisk::from_image(Image::from_bytes(&vec![7; BYTES as usize]));
    disk.write(0, blocks(1, 1)).unwrap();
    disk.flush().unwrap();
    disk.write(0, blocks(7, 1)).unwrap();
    let history = disk.history().unwrap();
    let hash = |cut, seed| history.image_at(cut, &CrashChoice::from_seed(seed)).content_hash();
    assert_eq!(hash(0, DROPPED), hash(1, DROPPED));
    assert_eq!(hash(1, APPLIED), hash(2, DROPPED));
    assert_eq!(hash(2, DROPPED), hash(3, DROPPED));
    assert_eq!(hash(3, APPLIED), hash(0, DROPPED), "written back");
    assert_ne!(hash(3, DROPPED), hash(3, APPLIED));
    let image = history.image_at(0, &CrashChoice::from_seed(DROPPED));
    image.write(0, blocks(1, 1)).unwrap();
    assert_eq!(image.content_hash(), hash(2, DROPPED));
}

#[test]
fn the_generator_is_fixed_for_ever() {
    let mut prng = Prng::new(1234567);
    // The published test vector of splitmix64.
    let published = [6457827717110365317, 3203168211198807973, 9817491932198370423];
    assert_eq!([(); 3].map(|()| prng.next_u64()), published);
    assert!((0..1000).all(|_| prng.below(10) < 10));
    assert_eq!(prng.below(0), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64),
    Flush,
    Zero(u64, u64),
    Dropped(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..BLOCKS, 1..9u64).prop_map(|(at, n)| (at, n.min(BLOCKS - at)));
    let step = prop_oneof![
        5 => range().prop_map(|(at, n)| Step::Write(at, n)),
        2 => Just(Step::Flush),
        1 => range().prop_map(|(at, n)| Step::Zero(at, n)),
        1 => (0..BLOCKS).prop_map(Step::Dropped),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// A sector holds its last flushed content or that of a later unflushed change, and
    /// cursor, fresh image, second run and live disk agree.
    #[test]
    fn every_sector_holds_something_it_may_hold(steps in steps(), seed in 0..10_000u64) {
        let disk = CrashDisk::new(BYTES);
        // Per block: what a cut may leave, the durable first. Stamped by step.
        let mut may = vec![vec![0u8]; BLOCKS as usize];
        let mut uncovered: Vec<(u64, u8)> = Vec::new();
        let mut allowed = vec![may.clone()];
        for (n, step) in (1u8..).zip(&steps) {
            match step {
                Step::Write(at, count) => {
                    disk.write(at * 4096, blocks(n, *count as usize)).unwrap();
                    (*at..at + count).for_each(|b| may[b as usize].push(n));
                }
                Step::Zero(at, count) => {
                    disk.submit(Op::Zero { offset: at * 4096, bytes: count * 4096 }).wait().unwrap();
                    (*at..at + count).for_each(|b| may[b as usize].push(0));
                }
                Step::Dropped(at) => {
                    drop(disk.submit(write_op(*at, n, 1)));
                    may[*at as usize].push(n);
                    uncovered.push((*at, n));
                }
                Step::Flush => {
                    disk.flush().unwrap();
                    for (b, may) in (0u64..).zip(&mut may) {
                        let lost = |x: &u8| uncovered.contains(&(b, *x));
                        let durable = may.iter().copied().rfind(|x| !lost(x)).unwrap();
                        let open: Vec<_> = may.iter().copied().filter(lost).collect();
                        *may = std::iter::once(durable).chain(open).collect();
                    }
                }
            }
            allowed.push(may.clone());
        }
        prop_assert_eq!(disk.cut_points(), steps.len());
        let history = disk.history().unwrap();
        let mut cursor = history.cursor();
        let choice = CrashChoice::from_seed(seed);
        for (cut, allowed) in allowed.iter().enumerate() {
            cursor.advance_to(cut);
            let image = cursor.image(&choice);
            let bytes = image.content().to_vec();
            for (n, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                prop_assert!(sector.iter().all(|b| *b == sector[0]));
                prop_assert!(allowed[n / 8].contains(&sector[0]), "cut {} sector {}", cut, n);
            }
            let fresh = history.image_at(cut, &choice);
            prop_assert_eq!(&fresh.content().to_vec(), &bytes);
            prop_assert_eq!(fresh.content_hash(), image.content_hash());
            let whole = CrashDisk::from_image(Image::from_bytes(&bytes));
            let whole = whole.history().unwrap().image_at(0, &choice);
            prop_assert_eq!(whole.content_hash(), image.content_hash());
        }
        let live = disk.image(&choice);
        prop_assert_eq!(live.content().to_vec(), cursor.image(&choice).content().to_vec());
        prop_assert_eq!(live.content_hash(), cursor.image(&choice).content_hash());
        cursor.advance_to(0);
        prop_assert_eq!(cursor.image(&choice).content().to_vec(), vec![0; BYTES as usize]);
    }
}
