//! What df tells does not jump.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Fs, MountOptions, SetAttr};
use nenrin_device::Prng;

const FILES: u64 = 20_000;
/// Most blocks by which what is available may change with one small change: 4 of 256 MiB.
const JUMP_MAX: u64 = 1024;

/// Looks at what is available after each of many small changes, while time goes on.
fn each(w: &World, fs: &Fs, count: u64, mut change: impl FnMut(u64)) {
    let mut last = fs.usage().available_blocks;
    for n in 0..count {
        change(n);
        if n % 64 == 0 {
            w.pass(100_000_000);
            fs.tick().unwrap();
        }
        let now = fs.usage().available_blocks;
        assert!(now.abs_diff(last) <= JUMP_MAX, "change {n}: {last} blocks available, then {now}");
        last = now;
    }
}

/// Index nodes that wait to be written take no room away from users: who lacks room has them written first.
#[test]
fn df_moves_with_what_is_written() {
    let w = World::new(256 << 20);
    let fs = w.open_with(MountOptions::default());
    let empty = fs.usage().available_blocks;
    each(&w, &fs, FILES, |n| {
        let ino = fs.create(Ino::ROOT, format!("{n}").as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[7; 1500], 0).unwrap();
    });
    let full = fs.usage().available_blocks;
    let mut prng = Prng::new(1);
    each(&w, &fs, FILES, |n| {
        let ino = fs.lookup(At::Live, Ino::ROOT, format!("{}", prng.below(FILES)).as_bytes()).unwrap().ino;
        fs.setattr(ino, &SetAttr { mode: Some(0o600 + (n % 7) as u32), ..SetAttr::default() }).unwrap();
    });
    assert!(fs.usage().available_blocks.abs_diff(full) <= JUMP_MAX, "changing modes takes no room");
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    each(&w, &fs, 4096, |n| {
        fs.write(big, prng.below(8192) * 4096, &[n as u8; 4096], 0).unwrap();
    });
    fs.setattr(big, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    // Else what it had goes at some time later.
    fs.fsync_wait(big).unwrap();
    w.pass(1_000_000_000);
    fs.tick().unwrap();
    each(&w, &fs, FILES, |n| fs.unlink(Ino::ROOT, format!("{n}").as_bytes()).unwrap());
    assert!(fs.usage().available_blocks + JUMP_MAX >= empty, "{:?}", fs.usage());
}

/// What is written counts at once and once, wherever it is on its way, and what is written in place of it does not count.
#[test]
fn df_tells_what_a_commit_will_leave() {
    let w = World::new(256 << 20);
    let fs = w.open_with(MountOptions::default());
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    let megabyte = vec![7; 1 << 20];
    let stays_so = |when: &str, change: &dyn Fn()| {
        let before = fs.usage().available_blocks;
        change();
        let now = fs.usage().available_blocks;
        assert!(now.abs_diff(before) <= JUMP_MAX, "{when}: {before} blocks available, then {now}");
    };
    let empty = fs.usage().available_blocks;
    for n in 0..64 {
        fs.write(big, n << 20, &megabyte, 0).unwrap();
        let (now, expected) = (fs.usage().available_blocks, empty - (n + 1) * 256);
        assert!(now.abs_diff(expected) <= JUMP_MAX, "{n}: {now} blocks available, not {expected}");
    }
    let sync = || {
        fs.fsync_wait(big).unwrap();
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    };
    stays_so("synced", &sync);
    let mut prng = Prng::new(2);
    let blocks: Vec<u64> = (0..8192).map(|_| prng.below(64 << 8)).collect();
    stays_so("overwritten here and there", &|| {
        for n in &blocks {
            fs.write(big, n << 12, &[1; 4096], 0).unwrap();
        }
    });
    stays_so("and synced", &sync);
    stays_so("overwritten from one end to the other", &|| {
        for n in 0..64 {
            fs.write(big, n << 20, &megabyte, 0).unwrap();
        }
    });
    stays_so("and synced again", &sync);
    fs.setattr(big, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert!(fs.usage().available_blocks.abs_diff(empty) <= JUMP_MAX, "emptied");
    stays_so("and that synced", &sync);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks available, ")]
fn df_that_does_not_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DfCountsTwice, df_tells_what_a_commit_will_leave);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks available, then")]
fn df_that_jumps_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DfFallsWithIndex, df_moves_with_what_is_written);
}
