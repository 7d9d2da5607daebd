//! The retention rule at work on a volume.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, Error, Fs, MountOptions};
use nenrin_device::{Fault, Faulty, OpKind, Prng};
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;

/// Uses the volume for some hours, a checkpoint a minute.
fn use_it(w: &World, fs: &Fs, hours: u64) {
    let f = match fs.lookup(At::Live, Ino::ROOT, b"f") {
        Ok(f) => f,
        Err(_) => fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap(),
    };
    for minute in 0..hours * 60 {
        fs.write(f.ino, 0, &minute.to_le_bytes(), 0).unwrap();
        w.pass(60 * SECOND);
        fs.tick().unwrap();
    }
    for _ in 0..20 {
        fs.tick().unwrap();
    }
}

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 50 * SECOND, ..MountOptions::default() })
}

#[test]
fn old_checkpoints_are_thinned_and_what_they_saw_is_freed() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    use_it(&w, &fs, 1);
    let named = fs.checkpoint_create(Some(b"kept")).unwrap();
    let held = fs.checkpoint_create(None).unwrap();
    fs.hold_checkpoint(held.cno).unwrap();
    use_it(&w, &fs, 9);
    let kept = fs.checkpoints();
    // 60 of the last hour, 6 in each hour before, and what waits for the next thinning.
    assert!((60 + 9 * 6..60 + 9 * 6 + 20).contains(&kept.len()), "{}", kept.len());
    assert!(kept.iter().any(|c| c.cno == named.cno) && kept.iter().any(|c| c.cno == held.cno));
    // Past states that were kept are what they were.
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    for c in &kept {
        assert_eq!(fs.read(At::Past(c.cno), f.ino, 0, 8).unwrap().len(), 8, "{}", c.cno);
    }
    fs.let_checkpoint_go(held.cno);
    fs.set_retention("10m:all").unwrap();
    use_it(&w, &fs, 1);
    let kept = fs.checkpoints();
    assert!(kept.len() < 25, "{}", kept.len());
    assert!(kept.iter().all(|c| c.cno != held.cno) && kept.iter().any(|c| c.cno == named.cno));
    assert!(matches!(fs.read(At::Past(held.cno), f.ino, 0, 8), Err(Error::Stale)));
}

#[test]
fn the_rule_is_the_volumes_own() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    assert_eq!(fs.retention(), "1h:all 1d:10m 7d:1h 30d:1d");
    assert!(matches!(fs.set_retention("1h:sometimes"), Err(Error::BadRule(_))));
    fs.set_retention("2h:all forever:1d").unwrap();
    // A crash: the record alone must do.
    drop(fs);
    let fs = open(&w);
    assert_eq!(fs.retention(), "2h:all forever:1d");
    fs.close().unwrap();
    let fs = open(&w);
    assert_eq!(fs.retention(), "2h:all forever:1d");
    fs.set_retention("default").unwrap();
    assert_eq!(fs.retention(), "1h:all 1d:10m 7d:1h 30d:1d");
    assert!(matches!(fs.hold_checkpoint(Cno(99)), Err(Error::Stale)));
}

/// A read that fails while history is swept is told, keeps nothing else from
/// being done, and the sweep goes on afterwards.
#[test]
fn a_sweep_goes_on_after_an_error() {
    let w = World::new(64 << 20);
    let device = Arc::new(Faulty::new(w.device.clone()));
    let options = MountOptions { cache_bytes: 1, checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device.clone()], w.clock.clone(), options).unwrap();
    let files: Vec<Ino> =
        (0..300).map(|i| fs.create(Ino::ROOT, format!("file {i}").as_bytes(), &file(0o600)).unwrap().ino).collect();
    let write_all = |byte: u8| {
        for ino in &files {
            fs.write(*ino, 0, &[byte; 9000], 0).unwrap();
        }
        fs.sync_all().unwrap();
    };
    write_all(1);
    let first = fs.checkpoint_create(None).unwrap();
    write_all(2);
    // History reaches the device, and leaves memory.
    w.pass(30 * SECOND);
    fs.tick().unwrap();
    assert_eq!(fs.usage().history_blocks, 900);
    fs.checkpoint_drop(&[first.cno]).unwrap();
    device.faults().inject(Fault::Fail { kind: OpKind::Read, from: 1, times: u64::MAX / 2 });
    w.pass(30 * SECOND);
    let before = fs.counters().index_checkpoints;
    assert!(fs.tick().is_err(), "nothing was read");
    assert_eq!(fs.failed(), None);
    assert!(fs.counters().index_checkpoints > before, "the rest was not done");
    device.faults().clear();
    for _ in 0..20 {
        w.pass(10 * SECOND);
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().history_blocks, 0);
}

/// What letting checkpoints go is said to free is what it frees: whatever they share
/// with each other, and files with files.
#[test]
fn what_is_said_to_become_free_becomes_free() {
    for (seed, copies) in [(7, 0), (8, 1), (9, 3), (10, 8)] {
        said_and_freed(seed, copies);
    }
}

fn said_and_freed(seed: u64, copies: u64) {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let mut made = Vec::new();
    let files: Vec<Ino> =
        (0..12).map(|i| fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap().ino).collect();
    let mut random = Prng::new(seed);
    for round in 0..10u64 {
        for ino in &files {
            let (block, blocks) = (random.below(100), 1 + random.below(60));
            fs.write(*ino, block * 4096, &vec![round as u8; blocks as usize * 4096], 0).unwrap();
        }
        fs.sync_all().unwrap();
        for _ in 0..copies {
            let (from, to) = (files[random.below(12) as usize], files[random.below(12) as usize]);
            let (at, blocks) = (random.below(60) * 4096, 1 + random.below(40));
            if from != to {
                fs.copy_range(from, at, to, at / 2 / 4096 * 4096, blocks * 4096, 0).unwrap();
            }
        }
        let name = (round % 3 == 0).then(|| format!("snap{round}").into_bytes());
        made.push(fs.checkpoint_create(name.as_deref()).unwrap().cno);
    }
    fs.unlink(Ino::ROOT, b"f0").unwrap();
    fs.sync_all().unwrap();
    let settle = || {
        for _ in 0..50 {
            w.pass(SECOND);
            fs.tick().unwrap();
        }
        fs.usage().history_blocks
    };
    let mut history = settle();
    // One, a snapshot, several that are neighbours and not, the rest.
    for drops in [vec![1], vec![3], vec![4, 5, 8], vec![0, 2, 6, 7, 9]] {
        let cnos: Vec<Cno> = drops.into_iter().map(|i: usize| made[i]).collect();
        let said = fs.freed_by_dropping(&cnos).unwrap().content_blocks;
        for cno in &cnos {
            fs.checkpoint_name(*cno, None).unwrap();
        }
        fs.checkpoint_drop(&cnos).unwrap();
        let now = settle();
        assert_eq!(history - now, said, "letting {cnos:?} go, {copies} copies");
        assert!(said > 0);
        history = now;
    }
    assert_eq!(history, 0);
    let freed = fs.freed_by_dropping(&made[..1]).unwrap();
    assert_eq!(freed.blocks(), 0, "what has gone frees nothing");
}

/// Who lists checkpoints and lets them go does so beside others, who let some go or name them meanwhile.
#[test]
fn what_went_meanwhile_keeps_nothing_from_going() {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let made: Vec<Cno> = (0..6).map(|_| fs.checkpoint_create(None).unwrap().cno).collect();
    fs.checkpoint_drop(&made[1..3]).unwrap();
    fs.checkpoint_name(made[4], Some(b"kept")).unwrap();
    let there = |fs: &Fs| fs.checkpoints().iter().map(|c| c.cno).collect::<Vec<_>>();
    // All or none, where that is asked for.
    for some in [&made[..2], &made[3..]] {
        assert!(matches!(fs.checkpoint_drop(some), Err(Error::Checkpoint(_))));
    }
    let before = there(&fs);
    assert!([made[0], made[3], made[4], made[5]].iter().all(|cno| before.contains(cno)), "{before:?}");
    // What is mounted meanwhile stays; what is only looked into (`.nenrin/at`) goes.
    fs.hold_checkpoint(made[0]).unwrap();
    assert_eq!(fs.checkpoint_drop_unnamed(&made, &|cno| cno == made[3]).unwrap(), 2);
    assert_eq!(there(&fs).iter().filter(|cno| made.contains(cno)).collect::<Vec<_>>(), [&made[3], &made[4]]);
    assert_eq!(fs.checkpoint_drop_unnamed(&made, &|_| false).unwrap(), 1);
    assert_eq!(fs.checkpoint_drop_unnamed(&made, &|_| false).unwrap(), 0);
    // A crash: the records alone must do.
    drop(fs);
    let fs = w.open();
    assert_eq!(there(&fs).iter().filter(|cno| made.contains(cno)).collect::<Vec<_>>(), [&made[4]]);
}

/// A snapshot that is let go is gone with its name, at once: no rule, and nobody, can take it away in between.
#[test]
fn a_snapshot_goes_with_its_name() {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let first = fs.checkpoint_create(Some(b"first")).unwrap();
    let second = fs.checkpoint_create(Some(b"second")).unwrap();
    let goes = |_| false;
    assert_eq!(fs.snapshot_drop(second.cno, b"first", &goes).unwrap(), None, "that is another one");
    assert_eq!(fs.snapshot_drop(first.cno, b"first", &|cno| cno == first.cno).unwrap(), None, "it is in use");
    fs.hold_checkpoint(first.cno).unwrap();
    let cno = first.cno;
    assert_eq!(fs.snapshot_drop(cno, b"first", &goes).unwrap(), Some(first));
    assert_eq!(fs.snapshot_drop(cno, b"first", &goes).unwrap(), None, "there is none any more");
    assert_eq!(fs.checkpoints().iter().map(|c| c.cno).collect::<Vec<_>>(), [second.cno]);
    drop(fs);
    assert_eq!(w.open().checkpoints(), [second]);
}

/// What a snapshot is said to free becomes available, whatever unnamed checkpoints and other snapshots see of it: of files
/// that are nothing but items of the index, and of others.
#[test]
fn what_a_snapshot_is_said_to_free_becomes_available() {
    for (bytes, shares) in [(1500, false), (9000, false), (12_288, true)] {
        said_and_available(bytes, shares);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "said to be available")]
fn what_snapshots_keep_of_the_index_is_counted() {
    use nenrin_core::breaks::{Break, with};
    with(Break::PastIndexUncounted, what_a_snapshot_is_said_to_free_becomes_available);
}

/// `shares`: every other file is a copy of the one before, which is removed, too, or stays.
fn said_and_available(bytes: usize, shares: bool) {
    let w = World::new(128 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let make = |fs: &Fs, name: &str, files: u64| {
        let dir = fs.create(Ino::ROOT, name.as_bytes(), &dir()).unwrap().ino;
        for i in 0..files {
            let ino = fs.create(dir, format!("f{i}").as_bytes(), &file(0o600)).unwrap().ino;
            if shares && i % 2 == 1 {
                let from = fs.lookup(At::Live, dir, format!("f{}", i - 1).as_bytes()).unwrap().ino;
                fs.copy_range(from, 0, ino, 0, bytes as u64, 0).unwrap();
            } else {
                fs.write(ino, 0, &vec![i as u8; bytes], 0).unwrap();
            }
        }
        fs.sync_all().unwrap();
        dir
    };
    let settle = |fs: &Fs| {
        for _ in 0..30 {
            w.pass(SECOND);
            fs.tick().unwrap();
        }
    };
    settle(&fs);
    let empty = fs.usage();
    // One file is removed after the other: seen by one snapshot and an unnamed checkpoint, by two, and by unnamed ones only.
    let dirs = [make(&fs, "a", 4000), make(&fs, "b", 2000), make(&fs, "c", 2000)];
    let empty_again = |fs: &Fs, dir: usize, files: u64| {
        for i in 0..files {
            fs.unlink(dirs[dir], format!("f{i}").as_bytes()).unwrap();
        }
        fs.sync_all().unwrap();
    };
    let full = fs.usage();
    let first = fs.checkpoint_create(Some(b"first")).unwrap().cno;
    fs.checkpoint_create(None).unwrap();
    empty_again(&fs, 0, 4000);
    let second = fs.checkpoint_create(Some(b"second")).unwrap().cno;
    empty_again(&fs, 1, 2000);
    fs.checkpoint_name(first, None).unwrap();
    fs.checkpoint_name(first, Some(b"first")).unwrap();
    fs.checkpoint_name(second, None).unwrap();
    fs.checkpoint_create(None).unwrap();
    empty_again(&fs, 2, 2000);
    fs.checkpoint_name(second, Some(b"second")).unwrap();
    settle(&fs);
    // All of it is kept by the first one.
    let kept = fs.usage();
    let within = |a: u64, b: u64, of: u64| a.abs_diff(b) * 20 <= of;
    let takes = empty.available_blocks.saturating_sub(kept.available_blocks);
    assert!(within(takes, full.live_blocks, full.live_blocks), "said to be available: {empty:?} {full:?} {kept:?}");
    for cno in [second, first] {
        let (before, said) = (fs.usage(), fs.freed_by_each_snapshot().unwrap()[&cno].blocks());
        fs.checkpoint_name(cno, None).unwrap();
        fs.checkpoint_drop(&[cno]).unwrap();
        settle(&fs);
        let now = fs.usage();
        let becomes = now.available_blocks.saturating_sub(before.available_blocks);
        // Within 5 % of what was said, and two nodes.
        assert!(becomes.abs_diff(said) * 20 <= said + 20 * 16, "{becomes} of {said}: {before:?} {now:?}");
        assert_eq!(said == 0, cno == second);
    }
    // And can be written.
    let all = fs.usage().available_blocks / 20 * 19;
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    for mib in 0..all / 256 {
        fs.write(big, mib << 20, &vec![7; 1 << 20], 0).unwrap();
    }
    fs.sync_all().unwrap();
}

/// df: what can be shed counts as available, what a snapshot keeps does not.
#[test]
fn what_snapshots_keep_is_not_available() {
    let w = World::new(256 << 20);
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open_with(options.clone());
    fs.tick().unwrap();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let fill = |fs: &Fs, byte: u8| {
        fs.write(f, 0, &vec![byte; 32 << 20], 0).unwrap();
        fs.sync_all().unwrap();
        fs.usage()
    };
    let first = fill(&fs, 1);
    let unnamed = fs.checkpoint_create(None).unwrap().cno;
    let second = fill(&fs, 2);
    let near = |a: u64, b: u64| a.abs_diff(b) < 8192 / 20;
    assert_eq!((second.history_blocks, second.snapshot_blocks), (8192, 0));
    assert!(near(second.available_blocks, first.available_blocks), "{first:?} {second:?}");
    let named = fs.checkpoint_create(Some(b"s")).unwrap().cno;
    let third = fill(&fs, 3);
    assert_eq!((third.history_blocks, third.snapshot_blocks), (16384, 8192));
    assert!(near(third.available_blocks + 8192, first.available_blocks), "{first:?} {third:?}");
    // What gets a name later counts from then on, and what loses it no more.
    fs.checkpoint_name(unnamed, Some(b"t")).unwrap();
    assert_eq!(fs.usage().snapshot_blocks, 16384);
    assert!(near(fs.usage().available_blocks + 16384, first.available_blocks));
    fs.checkpoint_name(unnamed, None).unwrap();
    assert_eq!(fs.usage().snapshot_blocks, 8192);
    fs.close().unwrap();
    drop(fs);
    // A mount has it from the root, and counts again.
    let fs = w.open_with(options);
    assert_eq!(fs.usage().snapshot_blocks, 8192);
    fs.tick().unwrap();
    assert_eq!(fs.usage().snapshot_blocks, 8192);
    let before = fs.usage().available_blocks;
    assert_eq!(fs.freed_by_each_snapshot().unwrap()[&named].content_blocks, 8192);
    fs.checkpoint_name(named, None).unwrap();
    fs.checkpoint_drop(&[named]).unwrap();
    let after = fs.usage().available_blocks;
    assert!((after - before).abs_diff(8192) <= 8192 / 20, "{before} {after}");
}

/// A snapshot that is named while it is counted what snapshots keep counts in full.
#[test]
fn a_name_given_while_it_is_counted_counts_in_full() {
    const FILES: u64 = 6000;
    let w = World::new(256 << 20);
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open_with(options.clone());
    let files: Vec<Ino> =
        (0..FILES).map(|n| fs.create(Ino::ROOT, format!("{n}").as_bytes(), &file(0o600)).unwrap().ino).collect();
    let write_all = |byte: u8| {
        files.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &[byte; 4096], 0).unwrap(), 4096));
        fs.sync_all().unwrap();
    };
    write_all(1);
    let later = fs.checkpoint_create(None).unwrap().cno;
    write_all(2);
    fs.checkpoint_create(Some(b"first")).unwrap();
    write_all(3);
    fs.close().unwrap();
    drop(fs);
    // A mount counts anew, piece by piece.
    let fs = w.open_with(options);
    assert_eq!(fs.usage().snapshot_blocks, FILES);
    assert!(fs.count_named_history().unwrap());
    fs.checkpoint_name(later, Some(b"second")).unwrap();
    let told = fs.usage().snapshot_blocks;
    assert_eq!(told, 2 * FILES, "not all that two snapshots keep is counted");
    while fs.count_named_history().unwrap() {}
    assert_eq!(fs.usage().snapshot_blocks, told);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "not all that two snapshots keep")]
fn a_count_for_others_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::CountMixed, a_name_given_while_it_is_counted_counts_in_full);
}

/// Used twenty times for so many seconds, the time in between unmounted. How many checkpoints are there in the end.
fn mounted_for_a_short_time(seconds: u64) -> usize {
    let w = World::new(64 << 20);
    open(&w).set_retention("1m:all").unwrap();
    for round in 0..20u8 {
        let fs = open(&w);
        let f = match fs.lookup(At::Live, Ino::ROOT, b"f") {
            Ok(f) => f,
            Err(_) => fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap(),
        };
        for second in 0..seconds / 2 {
            if second % 20 == 0 {
                fs.write(f.ino, 0, &vec![round; 4096 + second as usize], 0).unwrap();
            }
            w.pass(2 * SECOND);
            fs.tick().unwrap();
        }
        fs.close().unwrap();
        w.pass(3600 * SECOND);
    }
    open(&w).checkpoints().len()
}

#[test]
fn the_rule_is_applied_however_short_the_mounts_are() {
    for seconds in [300, 56] {
        let left = mounted_for_a_short_time(seconds);
        assert!(left <= 10, "{left} are left of mounts for {seconds} seconds");
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "are left of mounts for 300 seconds")]
fn a_rule_that_waits_for_ten_minutes_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::ShortMountsKeep, the_rule_is_applied_however_short_the_mounts_are);
}
