//! Copies by sharing: content, cost, accounting, and what may be shared.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, Error, Fs, SetAttr};
use nenrin_device::{BlockDevice, Prng};
use std::sync::Arc;

const BLOCK: u64 = 4096;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Prng::new(seed);
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

fn new(fs: &Fs, name: &[u8], data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name, &file(0o644)).unwrap().ino;
    fs.write(ino, 0, data, 0).unwrap();
    ino
}

fn all(fs: &Fs, ino: Ino) -> Vec<u8> {
    fs.read(At::Live, ino, 0, 1 << 28).unwrap()
}

/// Copies all of it, as cp(1) does.
fn copy(fs: &Fs, from: Ino, to: Ino) {
    let mut done = 0;
    loop {
        match fs.copy_range(from, done, to, done, 1 << 40, 0).unwrap() {
            0 => return,
            n => done += n,
        }
    }
}

fn resize(fs: &Fs, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Closes the volume, checks all of it, and opens it again.
fn checked(w: &World, fs: Arc<Fs>) -> Arc<Fs> {
    fs.close().unwrap();
    drop(fs);
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|f| f.what != What::HistorySweepable).collect();
    assert!(bad.is_empty(), "{bad:?}");
    w.open()
}

/// What two files share is not read to compare them, and what they do not share is.
#[test]
fn what_is_shared_is_the_same_unread() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let data = noise(3, 6_000_123);
    let (a, b) = (new(&fs, b"a", &data), new(&fs, b"b", b""));
    fs.sync_all().unwrap();
    let then = At::Past(fs.checkpoint_create(None).unwrap().cno);
    copy(&fs, a, b);
    let same =
        |when: At, one, other| fs.has_same_content((when, one), (At::Live, other), &mut || true).unwrap().unwrap();
    let read = || w.device.counters().read_bytes;
    for _ in 0..2 {
        let before = read();
        assert!(same(At::Live, a, b) && same(then, a, b));
        assert!(read() - before < 1 << 20, "{} bytes were read", read() - before);
        fs.sync_all().unwrap();
    }
    let c = new(&fs, b"c", &data);
    for round in 0..2 {
        assert!(same(then, a, c) && same(At::Live, b, c), "round {round}");
        fs.sync_all().unwrap();
    }
    // A byte in memory, and on the device; behind a hole, and the length.
    let other = [data[5_000_000] ^ 1];
    fs.write(c, 5_000_000, &other, 0).unwrap();
    assert!(!same(then, a, c));
    fs.sync_all().unwrap();
    assert!(!same(then, a, c) && !same(At::Live, b, c));
    fs.write(c, 5_000_000, &data[5_000_000..=5_000_000], 0).unwrap();
    assert!(same(then, a, c));
    resize(&fs, c, 6_000_124);
    assert!(!same(then, a, c));
    let (far, empty) = (new(&fs, b"far", b""), new(&fs, b"empty", b""));
    fs.write(far, 1 << 43, b"x", 0).unwrap();
    resize(&fs, empty, (1 << 43) + 1);
    assert!(!same(At::Live, far, empty));
    fs.write(empty, 1 << 43, b"x", 0).unwrap();
    assert!(same(At::Live, far, empty));
    checked(&w, fs);
}

/// What lies in the index has no blocks, and is content all the same.
#[test]
fn small_files_are_compared() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let files = [(&b"a"[..], &b"port=80"[..]), (b"b", b"port=81"), (b"c", b"port=80"), (b"empty", b"")];
    let [a, b, c, empty] = files.map(|(name, data)| new(&fs, name, data));
    let same =
        |when: At, one, other| fs.has_same_content((when, one), (At::Live, other), &mut || true).unwrap().unwrap();
    for round in 0..2 {
        assert!(!same(At::Live, a, b) && same(At::Live, a, c) && !same(At::Live, a, empty), "round {round}");
        fs.sync_all().unwrap();
    }
    let then = At::Past(fs.checkpoint_create(None).unwrap().cno);
    fs.write(a, 6, b"1", 0).unwrap();
    fs.sync_all().unwrap();
    assert!(same(At::Live, a, b) && !same(then, a, a) && same(then, b, a) && same(then, a, c));
    let zeros = new(&fs, b"zeros", &[0; 7]);
    resize(&fs, empty, 7);
    assert!(same(At::Live, zeros, empty) && !same(At::Live, zeros, a));
    checked(&w, fs);
}

/// Who does not want to know any more is noticed while two large files are read.
#[test]
fn a_comparison_ends_in_the_middle() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let data = noise(4, 8 << 20);
    let (a, b) = (new(&fs, b"a", &data), new(&fs, b"b", &data));
    fs.sync_all().unwrap();
    let read = || w.device.counters().read_bytes;
    let asked = |most: usize| {
        let (mut count, before) = (0, read());
        let same = fs.has_same_content((At::Live, a), (At::Live, b), &mut || {
            count += 1;
            count <= most
        });
        (same.unwrap(), count, read() - before)
    };
    let (same, count, bytes) = asked(usize::MAX);
    assert_eq!((same, bytes >= 16 << 20), (Some(true), true), "{bytes} bytes");
    assert!(count >= 8, "asked {count} times");
    let (same, count, bytes) = asked(3);
    assert_eq!((same, count), (None, 4));
    assert!(bytes <= 6 << 20, "{bytes} bytes were read for nobody");
}

#[test]
fn a_copy_costs_no_blocks_and_either_side_goes_its_own_way() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let data = noise(1, 5_000_123);
    let a = new(&fs, b"a", &data);
    fs.sync_all().unwrap();
    let before = (fs.usage(), fs.counters().data_blocks);
    let b = new(&fs, b"b", b"");
    copy(&fs, a, b);
    fs.sync_all().unwrap();
    let after = (fs.usage(), fs.counters().data_blocks);
    assert!(all(&fs, b) == data);
    assert_eq!(after.1, before.1, "no content was written");
    assert_eq!(after.0.shared_blocks - before.0.shared_blocks, 5_000_123u64.div_ceil(BLOCK));
    // What it costs is index: some nodes.
    assert!(after.0.live_blocks - before.0.live_blocks < 64, "{before:?} {after:?}");
    let fs = checked(&w, fs);
    // Either side changes alone.
    let (mut da, mut db) = (data.clone(), data);
    for (ino, at, len) in [(a, 1000, 5000), (b, 409_600, 300_000), (b, 4_999_000, 9000)] {
        let d = if ino == a { &mut da } else { &mut db };
        let patch = noise(at as u64, len);
        fs.write(ino, at as u64, &patch, 0).unwrap();
        d.resize(d.len().max(at + len), 0);
        d[at..at + len].copy_from_slice(&patch);
    }
    resize(&fs, a, 4_000_001);
    da.truncate(4_000_001);
    assert!(all(&fs, a) == da && all(&fs, b) == db);
    let fs = checked(&w, fs);
    assert!(all(&fs, a) == da && all(&fs, b) == db);
    // The one that stays keeps everything.
    fs.unlink(Ino::ROOT, b"a").unwrap();
    let fs = checked(&w, fs);
    assert!(all(&fs, b) == db);
    fs.unlink(Ino::ROOT, b"b").unwrap();
    for _ in 0..50 {
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().shared_blocks, 0);
    drop(checked(&w, fs));
}

#[test]
fn content_that_is_not_committed_yet() {
    // Source: pages, written behind, cut off, inline; destination: the same.
    let w = World::new(64 << 20);
    let mut fs = w.open();
    for (n, bytes) in [100usize, 2000, 5000, 70_000, 3_000_000].into_iter().enumerate() {
        for (m, before) in [0usize, 10, 50_000, 2_000_000].into_iter().enumerate() {
            let data = noise(n as u64, bytes);
            let a = new(&fs, format!("a{n}{m}").as_bytes(), &data);
            let b = new(&fs, format!("b{n}{m}").as_bytes(), &vec![7; before]);
            copy(&fs, a, b);
            let mut expected = vec![7; before];
            expected.resize(before.max(bytes), 0);
            expected[..bytes].copy_from_slice(&data);
            assert!(all(&fs, b) == expected, "{bytes} over {before}");
            // The source goes before either was committed.
            if m % 2 == 0 {
                resize(&fs, a, 0);
                fs.unlink(Ino::ROOT, format!("a{n}{m}").as_bytes()).unwrap();
            }
            fs.fsync_wait(b).unwrap();
            assert!(all(&fs, b) == expected, "{bytes} over {before}, committed");
            if n == 3 {
                // As a crash leaves it.
                drop(fs);
                fs = w.open();
                assert!(all(&fs, b) == expected, "{bytes} over {before}, recovered");
            }
        }
    }
    drop(checked(&w, fs));
}

#[test]
fn ranges_edges_and_refusals() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let data = noise(3, 100_000);
    let a = new(&fs, b"a", &data);
    fs.sync_all().unwrap();
    let b = new(&fs, b"b", &[1; 50_000]);
    let mut expected = vec![1; 50_000];
    // From, to, bytes: congruent or not, within one block, across the end.
    for (from, to, bytes) in [
        (0u64, 0u64, 4096u64),
        (4096, 8192, 4096),
        (100, 4196, 3000),
        (100, 4196, 3996),
        (100, 100, 20_000),
        (1, 2, 30_000),
        (8192, 40_960, 100_000),
        (99_999, 99_999, 10),
        (98_304, 200_704, 1 << 40),
        (4095, 8191, 2),
    ] {
        let want = bytes.min(100_000 - from) as usize;
        assert_eq!(fs.copy_range(a, from, b, to, bytes, 0).unwrap() as usize, want, "{from} {to} {bytes}");
        let (from, to) = (from as usize, to as usize);
        expected.resize(expected.len().max(to + want), 0);
        expected[to..to + want].copy_from_slice(&data[from..from + want]);
        assert!(all(&fs, b) == expected, "{from} {to} {bytes}");
    }
    // A tail that the destination goes on behind is copied, not shared.
    let tail = fs.usage().shared_blocks;
    assert_eq!(fs.copy_range(a, 98_304, b, 98_304, 4096, 0).unwrap(), 1696);
    expected[98_304..100_000].copy_from_slice(&data[98_304..]);
    fs.sync_all().unwrap();
    assert!(all(&fs, b) == expected);
    assert!(fs.usage().shared_blocks <= tail + 64);

    assert_eq!(fs.copy_range(a, 100_000, b, 0, 10, 0).unwrap(), 0);
    assert_eq!(fs.copy_range(a, 0, b, 0, 0, 0).unwrap(), 0);
    assert!(matches!(fs.copy_range(a, 0, a, 4096, 8192, 0), Err(Error::BadArgument(_))));
    assert!(matches!(fs.copy_range(a, 4096, a, 0, 8192, 0), Err(Error::BadArgument(_))));
    assert!(matches!(fs.copy_range(a, 0, b, i64::MAX as u64 - 100, 8192, 0), Err(Error::TooLarge)));
    assert!(matches!(fs.copy_range(Ino::ROOT, 0, b, 0, 1, 0), Err(Error::IsDirectory)));
    assert!(matches!(fs.copy_range(a, 0, Ino(999), 0, 1, 0), Err(Error::NotFound)));
    // Within one file, apart.
    assert_eq!(fs.copy_range(a, 0, a, 131_072, 65_536, 0).unwrap(), 65_536);
    let mut twice = data.clone();
    twice.resize(131_072, 0);
    twice.extend_from_slice(&data[..65_536]);
    assert!(all(&fs, a) == twice);
    let fs = checked(&w, fs);
    assert!(all(&fs, a) == twice && all(&fs, b) == expected);
}

#[test]
fn holes_and_reservations_are_not_content() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let a = new(&fs, b"a", &noise(4, 8192));
    fs.write(a, 40 << 20, &[5; 4096], 0).unwrap();
    fs.allocate(a, AllocateMode::Reserve, 1 << 20, 1 << 20).unwrap();
    fs.sync_all().unwrap();
    let b = new(&fs, b"b", &[9; 2 << 20]);
    copy(&fs, a, b);
    fs.sync_all().unwrap();
    assert!(all(&fs, a) == all(&fs, b));
    assert_eq!(fs.getattr(At::Live, b).unwrap().blocks_512, 3 * 8, "as many as the source has");
    drop(checked(&w, fs));
}

#[test]
fn the_past_keeps_what_a_copy_replaced_and_shares_with_the_present() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let (old, data) = (noise(5, 600_000), noise(6, 700_000));
    let a = new(&fs, b"a", &data);
    let b = new(&fs, b"b", &old);
    let first = fs.checkpoint_create(Some(b"first")).unwrap().cno;
    copy(&fs, a, b);
    let second = fs.checkpoint_create(Some(b"second")).unwrap().cno;
    fs.write(a, 100_000, &noise(7, 200_000), 0).unwrap();
    fs.unlink(Ino::ROOT, b"b").unwrap();
    let third = fs.checkpoint_create(Some(b"third")).unwrap().cno;
    let fs = checked(&w, fs);
    let at = |cno, ino| fs.read(At::Past(cno), ino, 0, 1 << 20).unwrap();
    assert!(at(first, b) == old && at(first, a) == data);
    assert!(at(second, b) == data && at(second, a) == data);
    assert!(at(third, a) == all(&fs, a));
    // Letting a state go frees what nobody else has.
    for name in [b"second".as_slice(), b"third"] {
        let cno = fs.checkpoint_find(name).unwrap().cno;
        fs.checkpoint_name(cno, None).unwrap();
        fs.checkpoint_drop(&[cno]).unwrap();
    }
    for _ in 0..50 {
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    }
    assert!(fs.read(At::Past(first), b, 0, 1 << 20).unwrap() == old);
    drop(checked(&w, fs));
}

/// Random copies, writes, cuts and removals, against vectors of bytes.
#[test]
fn random_changes_of_files_that_share() {
    for seed in 0..12 {
        let w = World::new(32 << 20);
        let mut fs = w.open();
        let mut rng = Prng::new(seed);
        let mut files: Vec<(Ino, Vec<u8>)> = Vec::new();
        for step in 0..150u64 {
            let at = rng.below(files.len() as u64 + 1) as usize;
            let Some((ino, data)) = files.get(at).cloned() else {
                let data = noise(step, rng.below(400_000) as usize);
                files.push((new(&fs, format!("f{step}").as_bytes(), &data), data));
                continue;
            };
            match rng.below(10) {
                0 => {
                    let size = rng.below(data.len() as u64 + 5000);
                    resize(&fs, ino, size);
                    files[at].1.resize(size as usize, 0);
                }
                1..=3 => {
                    let (offset, patch) = (rng.below(400_000) as usize, noise(step, 1 + rng.below(40_000) as usize));
                    fs.write(ino, offset as u64, &patch, 0).unwrap();
                    let d = &mut files[at].1;
                    d.resize(d.len().max(offset + patch.len()), 0);
                    d[offset..offset + patch.len()].copy_from_slice(&patch);
                }
                4 => drop(fs.checkpoint_create(None).unwrap()),
                5 => fs.fsync_wait(ino).unwrap(),
                6 if step % 3 == 0 => fs = checked(&w, fs),
                _ => {
                    let from = rng.below(files.len() as u64) as usize;
                    let source = files[from].1.clone();
                    let align = |n: u64| n / BLOCK * BLOCK;
                    let (a, b) = (align(rng.below(source.len() as u64 + 1)), align(rng.below(300_000)));
                    let bytes = 1 + rng.below(200_000);
                    match fs.copy_range(files[from].0, a, ino, b, bytes, 0) {
                        Ok(n) => {
                            let (a, b, n) = (a as usize, b as usize, n as usize);
                            assert_eq!(n, (source.len() - a).min(bytes as usize));
                            let d = &mut files[at].1;
                            d.resize(if n > 0 { d.len().max(b + n) } else { d.len() }, 0);
                            let b = b.min(d.len());
                            d[b..b + n].copy_from_slice(&source[a..a + n]);
                        }
                        Err(Error::BadArgument(_)) if from == at => {}
                        Err(e) => panic!("seed {seed} step {step}: {e}"),
                    }
                }
            }
            let (ino, data) = &files[at];
            assert!(all(&fs, *ino) == *data, "seed {seed} step {step}");
        }
        let fs = checked(&w, fs);
        for (ino, data) in &files {
            assert!(all(&fs, *ino) == *data, "seed {seed}");
        }
    }
}

/// A file without a name that is let go gives its blocks to the past that shares them, although
/// what it held was born after its name went.
#[test]
fn an_orphan_leaves_what_it_shares_to_history() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let s = new(&fs, b"s", &noise(1, 300_000));
    let f = new(&fs, b"f", b"");
    fs.sync_all().unwrap();
    fs.retain(f);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.checkpoint_create(Some(b"first")).unwrap();
    copy(&fs, s, f);
    fs.fsync_wait(f).unwrap();
    fs.checkpoint_create(Some(b"second")).unwrap();
    fs.unlink(Ino::ROOT, b"s").unwrap();
    fs.release(f);
    fs.sync_all().unwrap();
    for _ in 0..5 {
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    }
    let usage = fs.usage();
    assert_eq!((usage.history_blocks, usage.snapshot_blocks), (74, 74));
    checked(&w, fs);
}
