//! What fallocate reserves stays for who reserved it.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::sparse::Sparse;
use crate::common::{TestClock, World, file};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, CheckOptions, Clock, Error, Fs, MkfsOptions, MountOptions, SetAttr, check, mkfs};
use nenrin_device::{BlockDevice, Prng};
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

pub fn small() -> World {
    World::with(48 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() })
}

pub fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino
}

fn reserve(fs: &Fs, ino: Ino, from: u64, bytes: u64) {
    fs.allocate(ino, AllocateMode::Reserve, from, bytes).unwrap();
}

pub fn pass(w: &World, fs: &Fs, ticks: u64) {
    for _ in 0..ticks {
        w.pass(SECOND / 10);
        fs.tick().unwrap();
    }
}

/// Takes all room there is, in each way there is: large and small files, names, overwriting.
pub fn take_everything(w: &World, fs: &Fs) {
    let dir = fs.create(Ino::ROOT, b"others", &crate::common::dir()).unwrap().ino;
    let mut n = 0;
    for bytes in [1 << 20, 60_000, 5000, 100, 0] {
        let mut refused = 0;
        while refused < 3 {
            n += 1;
            let made = fs.create(dir, format!("{n}").as_bytes(), &file(0o600));
            let wrote = made.and_then(|f| fs.write(f.ino, 0, &vec![n as u8; bytes], 0));
            match wrote {
                Ok(_) => {}
                Err(Error::NoSpace) => refused += 1,
                Err(e) => panic!("{e}"),
            }
            if n % 16 == 0 {
                pass(w, fs, 1);
            }
        }
    }
    for i in 1..n {
        if let Ok(f) = fs.lookup(At::Live, dir, format!("{i}").as_bytes()) {
            match fs.write(f.ino, 0, &vec![!(i as u8); 5000], 0) {
                Ok(_) | Err(Error::NoSpace) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
    pass(w, fs, 30);
}

/// How a program fills what it has reserved.
#[derive(Clone, Copy, Debug)]
enum Filling {
    InOrder,
    Random,
    RandomSynced,
}

#[test]
fn what_is_reserved_can_be_written_whatever_others_take() {
    for how in [Filling::InOrder, Filling::Random, Filling::RandomSynced] {
        let w = small();
        let fs = w.open();
        let ino = create(&fs, "f");
        let bytes = 10 * MIB;
        reserve(&fs, ino, 0, bytes);
        take_everything(&w, &fs);
        // Nobody else gets anything now.
        let other = fs.lookup(At::Live, Ino::ROOT, b"others").unwrap().ino;
        assert!(matches!(fs.create(other, b"more", &file(0o600)), Err(Error::NoSpace)), "{how:?}");
        let piece = if matches!(how, Filling::InOrder) { MIB } else { 4096 };
        let mut places: Vec<u64> = (0..bytes / piece).collect();
        if !matches!(how, Filling::InOrder) {
            let mut random = Prng::new(3);
            (1..places.len()).rev().for_each(|i| places.swap(i, random.below(i as u64 + 1) as usize));
        }
        for (i, place) in places.iter().enumerate() {
            let wrote = fs.write(ino, place * piece, &vec![(*place as u8).wrapping_add(1); piece as usize], 0);
            wrote.unwrap_or_else(|e| panic!("{how:?}: {i} of {}: {e}: {:?}", places.len(), fs.usage()));
            match how {
                Filling::RandomSynced => fs.fsync_wait(ino).unwrap(),
                _ if i % 10 == 0 => pass(&w, &fs, 1),
                _ => {}
            }
        }
        fs.sync_all().unwrap();
        assert_eq!(fs.usage().reserved_blocks, 0, "{how:?}");
        for place in places {
            let got = fs.read(At::Live, ino, place * piece, piece as usize).unwrap();
            assert!(got == vec![(place as u8).wrapping_add(1); piece as usize], "{how:?}: {place}");
        }
        fs.close().unwrap();
        let device: Arc<dyn BlockDevice> = w.device.clone();
        let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{how:?}: {:?}", report.findings);
    }
}

/// The rest of a block is read first, which ends its reservation; the room is still that of who reads it.
#[test]
fn a_part_of_what_is_reserved_can_be_written() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    let blocks = 500;
    reserve(&fs, ino, 0, blocks * 4096);
    take_everything(&w, &fs);
    for block in 0..blocks {
        let wrote = fs.write(ino, block * 4096 + 1062, &[7; 43], 0);
        wrote.unwrap_or_else(|e| panic!("{block} of {blocks}: {e}: {:?}", fs.usage()));
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, 0);
    let got = fs.read(At::Live, ino, 0, (blocks * 4096) as usize).unwrap();
    let is_written = |i: usize| (1062..1105).contains(&(i % 4096));
    assert!(got.iter().enumerate().all(|(i, b)| *b == if is_written(i) { 7 } else { 0 }));
}

/// Small volumes, on which everything that is kept back is a large part; mounted anew in between, with and without a crash.
#[test]
fn small_volumes_keep_their_promises() {
    let mut failed = Vec::new();
    for (mib, percent, piece, crash) in
        [5, 6, 8, 12, 16].into_iter().flat_map(|m| [(m, 20, 40_000, true), (m, 60, 4096, false), (m, 95, 9000, true)])
    {
        let w = World::with(mib << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
        let fs = w.open();
        let ino = create(&fs, "f");
        let bytes = fs.usage().available_blocks * percent / 100 * 3640;
        if fs.allocate(ino, AllocateMode::Reserve, 0, bytes).is_err() {
            // On the smallest, what is available is not to be had in one piece.
            assert!(mib < 12 || percent > 90, "{mib} MiB: {percent} % of what is available cannot be reserved");
            continue;
        }
        fs.fsync_wait(ino).unwrap();
        take_everything(&w, &fs);
        if !crash {
            fs.close().unwrap();
        }
        drop(fs);
        let fs = w.open();
        let pieces = bytes / piece;
        for i in 0..pieces {
            let place = i * 7919 % pieces;
            if let Err(e) = fs.write(ino, place * piece, &vec![i as u8; piece as usize], 0) {
                failed
                    .push(format!("{mib} MiB, {percent} %, {piece}, {crash}: {i} of {pieces}: {e}: {:?}", fs.usage()));
                break;
            }
            if i % 3 == 0 {
                fs.fsync_wait(ino).unwrap();
            }
            if i % 5 == 0 {
                pass(&w, &fs, 3);
            }
        }
        fs.close().unwrap();
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn reservations_survive_a_crash_and_a_remount() {
    let w = small();
    let fs = w.open();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    reserve(&fs, a, 0, 5 * MIB);
    fs.allocate(b, AllocateMode::ReserveKeepSize, MIB + 100, MIB).unwrap();
    fs.write(a, 3 * MIB + 10, &[1; 9000], 0).unwrap();
    let now = fs.usage();
    // Three blocks of the first were written; the second touches one more than it has bytes.
    assert_eq!(now.reserved_blocks, 1280 - 3 + 257);
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, now.reserved_blocks);
    drop(fs);
    let fs = w.open();
    assert_eq!(fs.usage().reserved_blocks, now.reserved_blocks, "after a crash");
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    assert_eq!(fs.usage().reserved_blocks, now.reserved_blocks, "after a remount");
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"b").unwrap().size, 0);
}

/// df: reserving takes, writing what was reserved does not take once more, and letting go gives back.
#[test]
fn what_is_reserved_counts_as_used_until_it_is_let_go() {
    let w = small();
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let ino = create(&fs, "f");
    fs.sync_all().unwrap();
    let empty = fs.usage();
    reserve(&fs, ino, 0, 8 * MIB);
    let full = fs.usage();
    assert_eq!(full.reserved_blocks, 2048);
    assert!(empty.available_blocks - full.available_blocks >= 2048, "{empty:?} {full:?}");
    // Again, where it is reserved already: nothing.
    reserve(&fs, ino, 0, 8 * MIB);
    assert_eq!(fs.usage().reserved_blocks, 2048);
    fs.write(ino, 0, &vec![1; 4 << 20], 0).unwrap();
    fs.sync_all().unwrap();
    let half = fs.usage();
    assert_eq!(half.reserved_blocks, 1024);
    assert!(half.available_blocks >= full.available_blocks, "{full:?} {half:?}");
    // Punched, and cut in the middle of a block, which is then content.
    fs.allocate(ino, AllocateMode::Punch, 6 * MIB, MIB).unwrap();
    assert_eq!(fs.usage().reserved_blocks, 768);
    fs.setattr(ino, &SetAttr { size: Some(5 * MIB + 1), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.usage().reserved_blocks, 256);
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, 256);
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.usage().reserved_blocks, 0);
    reserve(&fs, ino, 0, 20 * MIB);
    fs.sync_all().unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    // Who needs it does not have to wait for the background.
    let other = create(&fs, "g");
    reserve(&fs, other, 0, 20 * MIB);
    fs.sync_all().unwrap();
    pass(&w, &fs, 20);
    assert_eq!(fs.usage().reserved_blocks, 20 * 256);
    fs.unlink(Ino::ROOT, b"g").unwrap();
    pass(&w, &fs, 20);
    assert_eq!(fs.usage().reserved_blocks, 0);
    assert!(fs.usage().available_blocks + 16 >= empty.available_blocks);
}

/// What is reserved takes an item in the index for each MiB. Others sync beside it.
#[test]
fn very_much_is_reserved_in_short_commits() {
    reserve_very_much();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks of the log")]
fn what_is_reserved_at_once_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ReservedAtOnce, reserve_very_much);
}

fn reserve_very_much() {
    let (device, clock) = (Arc::new(Sparse::new(1 << 40)), Arc::new(TestClock::default()));
    let (dev, clk): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (device, clock);
    mkfs(&dev, &clk, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![dev], clk, MountOptions::default()).unwrap();
    let ino = create(&fs, "f");
    fs.sync_all().unwrap();
    let before = fs.counters();
    let bytes = 256 << 30;
    reserve(&fs, ino, 0, bytes);
    let reserved = fs.counters();
    let (commits, blocks) = (reserved.commits - before.commits, reserved.chain_blocks - before.chain_blocks);
    assert!(commits >= 16 && blocks < 80 * commits, "{blocks} blocks of the log in {commits} commits");
    fs.sync_all().unwrap();
    let left = fs.counters().chain_blocks - reserved.chain_blocks;
    assert!(left < 80, "{left} blocks of the log in one commit");
    assert_eq!(fs.usage().reserved_blocks, bytes / 4096);
    let attr = fs.getattr(At::Live, ino).unwrap();
    assert_eq!((attr.size, attr.blocks_512), (bytes, bytes / 512));
    // And let go, in commits as short.
    fs.setattr(ino, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, 1);
    fs.close().unwrap();
}

/// A file that is reserved and then written in very many small pieces is reserved, and zeroed, once more on a full volume: nothing is
/// left to be reserved.
fn reserve_in_pieces_again() {
    let w = World::with(320 << 20, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let (f, other) = (create(&fs, "f"), create(&fs, "other"));
    let bytes = 160 * MIB;
    reserve(&fs, f, 0, bytes);
    for block in (0..bytes / 4096).step_by(2) {
        assert_eq!(fs.write(f, block * 4096, &[7; 4096], 0).unwrap(), 4096);
    }
    fs.sync_all().unwrap();
    let before = fs.usage().reserved_blocks;
    assert_eq!(before, bytes / 8192);
    reserve(&fs, f, 0, bytes);
    assert_eq!(fs.usage().reserved_blocks, before, "blocks are reserved once more");
    let mut taken = 0;
    while fs.usage().available_blocks > 1500 {
        reserve(&fs, other, taken * MIB, MIB);
        taken += 1;
    }
    fs.sync_all().unwrap();
    let before = fs.usage().reserved_blocks;
    reserve(&fs, f, 0, bytes);
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, before);
    fs.allocate(f, AllocateMode::Zero, 0, bytes).unwrap();
    fs.close().unwrap();
}

#[test]
fn what_is_reserved_in_pieces_is_reserved_once() {
    reserve_in_pieces_again();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks are reserved once more")]
fn pieces_that_are_reserved_once_more_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::PiecesOverlooked, reserve_in_pieces_again);
}

/// Copying over, exchanging forks, and a commit in between leave the sum right.
#[test]
fn the_sum_is_right_whatever_happens_to_the_file() {
    let w = small();
    let fs = w.open();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(b, 0, &vec![7; 64 * 4096], 0).unwrap();
    fs.sync_all().unwrap();
    let mut random = Prng::new(5);
    for round in 0..400 {
        let (at, bytes) = (random.below(300) * 1000, 1 + random.below(200_000));
        let done = match random.below(8) {
            0 | 1 => fs.allocate(a, AllocateMode::Reserve, at, bytes),
            2 => fs.allocate(a, AllocateMode::ReserveKeepSize, at, bytes),
            3 => fs.allocate(a, AllocateMode::Punch, at, bytes),
            4 => fs.write(a, at, &vec![1; bytes as usize], 0).map(drop),
            5 => fs.copy_range(b, 0, a, at / 4096 * 4096, 64 * 4096, 0).map(drop),
            6 => fs.setattr(a, &SetAttr { size: Some(at), ..SetAttr::default() }).map(drop),
            _ => fs.setattr(a, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop),
        };
        done.unwrap();
        match random.below(4) {
            0 => fs.fsync_wait(a).unwrap(),
            1 => pass(&w, &fs, 11),
            _ => {}
        }
        if round % 10 == 0 {
            let said = fs.usage().reserved_blocks;
            fs.flush(a).unwrap();
            fs.sync_all().unwrap();
            // What was truncated may wait for the reaper.
            let counted = fs.usage().reserved_blocks;
            pass(&w, &fs, 3);
            assert_eq!((said.min(counted), fs.usage().reserved_blocks), (counted.min(said), said), "round {round}");
        }
    }
    fs.close().unwrap();
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A request that cannot be met costs nobody's past.
#[test]
fn asking_for_too_much_is_refused_early() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    for round in 0..20 {
        fs.write(ino, 0, &vec![round; 300_000], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
    }
    let before = (fs.checkpoints().len(), fs.usage().reserved_blocks, fs.counters().room_rounds);
    for bytes in [47 * MIB, 1 << 30, 1 << 50] {
        let refused = fs.allocate(ino, AllocateMode::Reserve, 0, bytes);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    }
    assert_eq!((fs.checkpoints().len(), fs.usage().reserved_blocks, fs.counters().room_rounds), before);
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().size, 300_000);
}

/// Who asks again and again for more than there is has nothing committed, nor kept of the past.
#[test]
fn a_refused_reservation_changes_nothing() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    fs.write(ino, 0, b"little", 0).unwrap();
    fs.checkpoint_create(Some(b"kept")).unwrap();
    pass(&w, &fs, 20);
    let (before, checkpoints) = (fs.counters().commits, fs.checkpoints().len());
    for _ in 0..10 {
        let refused = fs.allocate(ino, AllocateMode::Reserve, 0, 47 * MIB);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        pass(&w, &fs, 60);
    }
    assert_eq!(fs.counters().commits, before, "what was refused is committed");
    assert_eq!(fs.checkpoints().len(), checkpoints);
    let dir = fs.create(Ino::ROOT, b"d", &crate::common::dir()).unwrap().ino;
    assert!(matches!(fs.allocate(dir, AllocateMode::Reserve, 0, MIB), Err(Error::IsDirectory)));
}

/// Zeroing is no letting go: what is reserved stays so, and punching takes it.
#[test]
fn what_is_zeroed_stays_reserved() {
    let w = small();
    let fs = w.open();
    let f = create(&fs, "f");
    reserve(&fs, f, 0, 8 * MIB);
    for is_committed in [false, true] {
        if is_committed {
            fs.sync_all().unwrap();
        }
        fs.write(f, 2 * MIB, &[7; 8192], 0).unwrap();
        fs.allocate(f, AllocateMode::Zero, MIB, 3 * MIB).unwrap();
        fs.allocate(f, AllocateMode::ZeroKeepSize, 7 * MIB, 4 * MIB).unwrap();
        // So is what was written to since, and what lies behind the end.
        assert_eq!(fs.usage().reserved_blocks, 11 * 256, "committed: {is_committed}");
        assert_eq!(fs.read(At::Live, f, MIB, 3 * MIB as usize).unwrap(), vec![0; 3 * MIB as usize]);
        assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().size, 8 * MIB);
    }
    let before = fs.usage().reserved_blocks;
    fs.close().unwrap();
    drop(fs);
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let fs = w.open();
    assert_eq!(fs.usage().reserved_blocks, before);
    fs.allocate(f, AllocateMode::Punch, 4 * MIB, 2 * MIB).unwrap();
    assert_eq!(fs.usage().reserved_blocks, before - 512);
    take_everything(&w, &fs);
    assert_eq!(fs.write(f, MIB, &[1; 65_536], 0).unwrap(), 65_536, "what is reserved");
}
