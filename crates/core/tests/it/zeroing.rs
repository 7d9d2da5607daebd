//! FALLOC_FL_ZERO_RANGE leaves zeros whose room stays.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::World;
use crate::reserve::{create, pass, small, take_everything};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, CheckOptions, Error, Fs, MountOptions, check};
use nenrin_device::{BlockDevice, Prng};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn fill(fs: &Fs, ino: Ino, bytes: u64) {
    (0..bytes / MIB).for_each(|n| assert_eq!(fs.write(ino, n * MIB, &vec![5; MIB as usize], 0).unwrap() as u64, MIB));
}

fn zero(fs: &Fs, ino: Ino, from: u64, bytes: u64) {
    fs.allocate(ino, AllocateMode::Zero, from, bytes).unwrap();
}

fn is_clean(w: &World, fs: &Fs) {
    fs.close().unwrap();
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Content of 10 MiB is zeroed, others take all that they get, and it is written again.
fn zero_and_write_again() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    fill(&fs, ino, 10 * MIB);
    fs.sync_all().unwrap();
    zero(&fs, ino, 0, 10 * MIB);
    assert_eq!(fs.read(At::Live, ino, 0, 10 << 20).unwrap(), vec![0; 10 << 20]);
    let after = fs.usage().reserved_blocks;
    fs.sync_all().unwrap();
    assert_eq!((after, fs.usage().reserved_blocks), (2560, 2560));
    assert_eq!(fs.getattr(At::Live, ino).unwrap().blocks_512, 2560 * 8);
    take_everything(&w, &fs);
    for n in 0..160 {
        let wrote = fs.write(ino, n * 65_536, &[n as u8; 65_536], 0);
        wrote.unwrap_or_else(|e| panic!("what was zeroed can be written again: {n}: {e}"));
        pass(&w, &fs, u64::from(n % 10 == 0));
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, 0);
    (0..160).for_each(|n| assert_eq!(fs.read(At::Live, ino, n * 65_536, 65_536).unwrap(), vec![n as u8; 65_536]));
    is_clean(&w, &fs);
}

#[test]
fn what_is_zeroed_can_be_written_again() {
    zero_and_write_again();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "(0, 0)")]
fn what_is_zeroed_and_given_away_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ZeroedGivenAway, zero_and_write_again);
}

/// Where there is no room to reserve any, zeros are written over what is there: the room stays as it was.
#[test]
fn a_full_volume_is_zeroed_and_written_again() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    fill(&fs, ino, 10 * MIB);
    fs.sync_all().unwrap();
    take_everything(&w, &fs);
    zero(&fs, ino, 100, 10 * MIB - 200);
    let mut content = vec![0; 10 << 20];
    content[..100].fill(5);
    content[(10 << 20) - 100..].fill(5);
    assert_eq!(fs.read(At::Live, ino, 0, 10 << 20).unwrap(), content);
    let others = fs.lookup(At::Live, Ino::ROOT, b"others").unwrap().ino;
    let more =
        fs.create(others, b"more", &crate::common::file(0o600)).and_then(|f| fs.write(f.ino, 0, &[1; 65_536], 0));
    assert!(matches!(more, Err(Error::NoSpace)), "what is zeroed is nobody else's");
    for n in 0..160 {
        fs.write(ino, n * 65_536, &[n as u8; 65_536], 0).unwrap();
        pass(&w, &fs, u64::from(n % 10 == 0));
    }
    fs.sync_all().unwrap();
    (0..160).for_each(|n| assert_eq!(fs.read(At::Live, ino, n * 65_536, 65_536).unwrap(), vec![n as u8; 65_536]));
    is_clean(&w, &fs);
}

/// What a snapshot keeps is not freed by zeroing, so that is growth: refused where df has nothing, before anything is done.
#[test]
fn what_a_snapshot_keeps_is_zeroed_where_there_is_room() {
    let w = small();
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let ino = create(&fs, "f");
    fill(&fs, ino, 10 * MIB);
    let cno = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    zero(&fs, ino, 0, 4 * MIB);
    assert_eq!(fs.usage().reserved_blocks, 1024);
    fs.sync_all().unwrap();
    take_everything(&w, &fs);
    let refused = fs.allocate(ino, AllocateMode::Zero, 5 * MIB, 4 * MIB);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    assert_eq!(fs.read(At::Live, ino, 5 << 20, 5 << 20).unwrap(), vec![5; 5 << 20]);
    assert_eq!(fs.write(ino, MIB, &vec![7; 3 << 20], 0).unwrap(), 3 << 20, "what was zeroed before");
    assert_eq!(fs.read(At::Past(cno), ino, 0, 10 << 20).unwrap(), vec![5; 10 << 20]);
    is_clean(&w, &fs);
}

/// Holes get room, too, blocks in part included, and behind the end where the size is kept.
#[test]
fn holes_that_are_zeroed_are_reserved() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    fs.write(ino, 0, &[5; 100], 0).unwrap();
    fs.write(ino, 20 * BLOCK, &[5; 5 * 4096], 0).unwrap();
    zero(&fs, ino, 10 * BLOCK + 7, 12 * BLOCK);
    // Blocks 10 to 21, and 22, of which a part is content.
    assert_eq!(fs.usage().reserved_blocks, 12);
    fs.allocate(ino, AllocateMode::ZeroKeepSize, 24 * BLOCK, 10 * BLOCK + 1).unwrap();
    assert_eq!(fs.usage().reserved_blocks, 12 + 11);
    assert_eq!(fs.getattr(At::Live, ino).unwrap().size, 25 * BLOCK);
    zero(&fs, ino, 0, 100 * BLOCK + 1);
    assert_eq!((fs.usage().reserved_blocks, fs.getattr(At::Live, ino).unwrap().size), (101, 100 * BLOCK + 1));
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, 101);
    assert_eq!(fs.read(At::Live, ino, 0, 200 << 12).unwrap(), vec![0; 100 * 4096 + 1]);
    let refused = fs.allocate(ino, AllocateMode::Zero, 0, 100 << 30);
    assert!(matches!(refused, Err(Error::NoSpace)));
    is_clean(&w, &fs);
}

/// Whatever else is done to it.
#[test]
fn the_sum_is_right_and_so_is_what_is_read() {
    let w = small();
    let fs = w.open();
    let ino = create(&fs, "f");
    let mut random = Prng::new(11);
    let mut model: Vec<u8> = Vec::new();
    for round in 0..300u64 {
        let (at, bytes) = (random.below(2_000_000) as usize, 1 + random.below(600_000) as usize);
        match random.below(5) {
            0 | 1 => {
                zero(&fs, ino, at as u64, bytes as u64);
                model.resize(model.len().max(at + bytes), 0);
                model[at..at + bytes].fill(0);
            }
            2 => {
                fs.allocate(ino, AllocateMode::ZeroKeepSize, at as u64, bytes as u64).unwrap();
                let end = model.len();
                model[at.min(end)..(at + bytes).min(end)].fill(0);
            }
            3 => {
                fs.write(ino, at as u64, &vec![round as u8; bytes], 0).unwrap();
                model.resize(model.len().max(at + bytes), 0);
                model[at..at + bytes].fill(round as u8);
            }
            _ => fs.checkpoint_create(None).map(drop).unwrap(),
        }
        if round % 7 == 0 {
            fs.fsync_wait(ino).unwrap();
        }
        assert!(fs.read(At::Live, ino, 0, 4 << 20).unwrap() == model, "round {round}");
    }
    let said = fs.usage().reserved_blocks;
    fs.sync_all().unwrap();
    assert_eq!(fs.usage().reserved_blocks, said);
    is_clean(&w, &fs);
}
