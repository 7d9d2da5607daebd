//! P7: nothing grows where df says 0, and what is there can be written over and removed, and shows at once.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
#[cfg(feature = "breaks")]
use nenrin_core::breaks::{Break, with};
use nenrin_core::format::Ino;
use nenrin_core::{At, Error, Fs, MkfsOptions, MountOptions, NewInode, XattrMode};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const BYTES: usize = 64 << 20;

fn world() -> World {
    World::with(BYTES, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() })
}

fn open(w: &World, history: bool) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: if history { 10_000_000_000 } else { 0 }, ..MountOptions::default() })
}

fn pass(w: &World, fs: &Fs, seconds: u64) {
    for _ in 0..seconds * 2 {
        w.pass(500_000_000);
        fs.tick().unwrap();
    }
}

/// Does something again and again until it is refused; how often it was not.
fn until_refused(mut what: impl FnMut(u64) -> Result<(), Error>) -> u64 {
    for n in 0.. {
        match what(n) {
            Ok(()) => {}
            Err(Error::NoSpace) => return n,
            Err(e) => unreachable!("{e}"),
        }
    }
    0
}

/// One more thing that a volume is to hold.
type Grow = fn(&Fs, Ino, u64) -> Result<(), Error>;

/// With its name, and the most blocks that one of them takes.
const WAYS: [(&str, u64, Grow); 7] = [
    ("a block behind the end", 1, |fs, f, n| fs.write(f, n * BLOCK, &[1; 4096], 0).map(drop)),
    ("blocks with holes between", 3, |fs, f, n| fs.write(f, n * 17 * BLOCK + 77, &[1; 9000], 0).map(drop)),
    ("a megabyte", 256, |fs, f, n| fs.write(f, n << 20, &vec![1; 1 << 20], 0).map(drop)),
    ("small files", 8, |fs, d, n| {
        let ino = fs.create(d, format!("f{n}").as_bytes(), &file(0o600))?.ino;
        fs.write(ino, 0, &[1; 700], 0).map(drop)
    }),
    ("names", 8, |fs, d, n| fs.create(d, format!("file number {n}").as_bytes(), &file(0o600)).map(drop)),
    // Five to a node, each with an index checkpoint of its own in the end: a tenth of the index is headers, of which df does not know.
    ("attributes", 3000, |fs, f, n| fs.setxattr(f, format!("user.{n}").as_bytes(), &[1; 3000], XattrMode::Any)),
    ("symbolic links", 8, |fs, d, n| {
        let target = [b't'; 2000];
        let new = NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: &target };
        fs.create(d, format!("l{n}").as_bytes(), &new).map(drop)
    }),
];

/// What df takes for nodes moves by so much when what waits is written, and so much is needed for records until they are.
const WOBBLE: u64 = 2 * 256;

fn growth_ends_where_df_says_nothing() {
    for (what, most, grow) in WAYS {
        for history in [false, true] {
            // In large segments, since small ones lose much to each small part of the index that is written to them.
            let w = World::with(2 * BYTES, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
            let fs = open(&w, history);
            let reserve = fs.create(Ino::ROOT, b"reserve", &file(0o600)).unwrap().ino;
            fs.write(reserve, 0, &vec![1; 4 << 20], 0).unwrap();
            let into = match what {
                "small files" | "names" | "symbolic links" => fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino,
                _ => fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino,
            };
            fs.sync_all().unwrap();
            let told = fs.usage().available_blocks;
            let done = until_refused(|n| {
                if n % 256 == 0 {
                    pass(&w, &fs, 1);
                }
                grow(&fs, into, n)
            });
            let left = fs.usage().available_blocks;
            assert!(left < most + WOBBLE, "{what}, history {history}: refused after {done} of {told} with {left}");
            // What goes shows at once, and all of it: there is nothing to be made up for first.
            fs.sync_all().unwrap();
            let before = fs.usage().available_blocks;
            fs.unlink(Ino::ROOT, b"reserve").unwrap();
            pass(&w, &fs, 12);
            let shown = fs.usage().available_blocks - before;
            assert!(shown + WOBBLE > 1024, "{what}, history {history}: {shown} of 1024 blocks, {before} before");
            // And it can be had.
            let again = fs.create(Ino::ROOT, b"again", &file(0o600)).unwrap().ino;
            fs.write(again, 0, &vec![1; (shown - WOBBLE) as usize * 4096], 0).unwrap();
            fs.close().unwrap();
        }
    }
}

#[test]
fn what_goes_from_a_full_volume_shows_at_once() {
    growth_ends_where_df_says_nothing();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "of 1024 blocks")]
fn growth_beyond_df_is_noticed() {
    with(Break::GrowsBeyondDf, growth_ends_where_df_says_nothing);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "small files, history true: refused")]
fn hardly_sparse_index_segments_that_are_kept_are_noticed() {
    with(Break::HardlySparseKept, growth_ends_where_df_says_nothing);
}

fn fill(fs: &Fs, name: &[u8], blocks: usize) -> (Ino, u64) {
    let f = fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let done = until_refused(|n| fs.write(f, n * blocks as u64 * BLOCK, &vec![1; blocks * 4096], 0).map(drop));
    (f, done * blocks as u64)
}

/// On a full volume all that is there can be written over, again and again, in any order: that is what the sixteenth is for.
fn written_over_without_end() {
    let w = World::new(BYTES);
    let fs = open(&w, false);
    let (f, blocks) = fill(&fs, b"f", 1);
    let version = |block: u64, times: u64| [(block * 7 + times) as u8 | 1; 4096];
    let mut times = vec![0; blocks as usize];
    let mut at = 1_u64;
    for i in 0..blocks {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (at >> 33) % blocks;
        times[block as usize] += 1;
        let written = fs.write(f, block * BLOCK, &version(block, times[block as usize]), 0);
        assert!(written.is_ok(), "write {i} over {blocks} blocks: {written:?} {:?}", fs.usage());
        if i % 64 == 0 {
            pass(&w, &fs, 1);
        }
    }
    for (block, times) in times.iter().enumerate().filter(|(_, t)| **t > 0) {
        let read = fs.read(At::Live, f, block as u64 * BLOCK, 4096).unwrap();
        assert!(read == version(block as u64, *times), "block {block}");
    }
    assert!(fs.usage().available_blocks < WOBBLE);
    fs.close().unwrap();
}

#[test]
fn a_full_volume_is_written_over_without_end() {
    written_over_without_end();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "NoSpace")]
fn little_garbage_that_is_kept_is_noticed() {
    with(Break::LittleGarbageKept, written_over_without_end);
}

/// Who is refused because df says so costs nobody anything: no round of making room, no history.
#[test]
fn who_is_refused_costs_no_past() {
    let w = World::with(256 << 20, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = open(&w, true);
    let f = fs.create(Ino::ROOT, b"old", &file(0o600)).unwrap().ino;
    for version in 0..2 {
        fs.write(f, 0, &vec![version; 200 * 4096], 0).unwrap();
        pass(&w, &fs, 30);
    }
    let (f, blocks) = fill(&fs, b"f", 255);
    fill(&fs, b"rest", 1);
    fs.sync_all().unwrap();
    let before = (fs.counters().room_rounds, fs.usage().history_blocks, fs.checkpoints().len());
    assert!(before.1 > 0 && before.2 > 0, "{before:?}");
    w.pass(2_000_000_000);
    let writes = w.device.counters();
    for n in 0..100 {
        let refused = fs.write(f, (blocks + 1000 + n * 500) * BLOCK, &vec![3; 400 * 4096], 0);
        assert!(matches!(refused, Err(Error::NoSpace)));
        assert!(!fs.takes_at_once(f, (blocks + 1000) * BLOCK, 64 << 10));
    }
    assert_eq!((fs.counters().room_rounds, fs.usage().history_blocks, fs.checkpoints().len()), before);
    assert_eq!(w.device.counters().since(&writes).writes, 0);
    // The blocks between may be reserved no more than they may be written.
    let reserved = fs.allocate(f, nenrin_core::AllocateMode::Reserve, (blocks + 1000) * BLOCK, 400 * BLOCK);
    assert!(matches!(reserved, Err(Error::NoSpace)));
    fs.close().unwrap();
}

/// What was removed a moment ago is there for who writes next.
fn the_place_of_what_was_removed() {
    for history in [false, true] {
        let w = world();
        let fs = open(&w, history);
        for n in 0..8 {
            let f = fs.create(Ino::ROOT, format!("f{n}").as_bytes(), &file(0o600)).unwrap().ino;
            // In more pieces than one record frees.
            for at in 0..1440 {
                fs.write(f, at * 2 * BLOCK, &[1; 4096], 0).unwrap();
            }
        }
        fill(&fs, b"rest", 16);
        fs.sync_all().unwrap();
        for n in 0..8 {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
            let f = fs.create(Ino::ROOT, format!("g{n}").as_bytes(), &file(0o600)).unwrap().ino;
            let pieces = until_refused(|at| {
                if at < 90 { fs.write(f, at << 16, &[2; 65536], 0).map(drop) } else { Err(Error::NoSpace) }
            });
            assert_eq!(pieces, 90, "{n}, history {history}: {:?}", fs.usage());
        }
        fs.close().unwrap();
    }
}

#[test]
fn what_was_removed_can_be_had_before_it_is_reaped() {
    the_place_of_what_was_removed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left == right")]
fn growth_that_waits_for_the_reaper_is_noticed() {
    with(Break::GrowthReapsNothing, the_place_of_what_was_removed);
}

/// Until it is counted what snapshots keep, all of history counts as kept: who is to be refused for that counts first.
#[cfg(feature = "breaks")]
fn what_no_snapshot_keeps() {
    let w = world();
    let fs = open(&w, false);
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for version in 0..3 {
        fs.write(f, 0, &vec![version; 12 << 20], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
    }
    // It keeps the first version and not the second.
    fs.checkpoint_name(fs.checkpoints()[0].cno, Some(b"first")).unwrap();
    let told = fs.usage().available_blocks;
    // A root that does not state what is kept.
    with(Break::PastUntold, || fs.close().unwrap());
    let fs = open(&w, false);
    assert!(fs.usage().available_blocks + 3000 < told);
    let (_, blocks) = fill(&fs, b"rest", 16);
    assert!(blocks + WOBBLE > told, "{blocks} blocks of {told}");
    fs.close().unwrap();
}

#[cfg(feature = "breaks")]
#[test]
fn what_snapshots_keep_is_counted_before_anybody_is_refused() {
    what_no_snapshot_keeps();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks of")]
fn growth_that_counts_nothing_is_noticed() {
    with(Break::GrowthCountsNothing, what_no_snapshot_keeps);
}
