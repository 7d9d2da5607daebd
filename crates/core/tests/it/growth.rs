//! P7: nothing grows where df says 0, and what is there can be written over and removed, and shows at once.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
#[cfg(feature = "breaks")]
use nenrin_core::breaks::{Break, with};
use nenrin_core::format::Ino;
use nenrin_core::format::items::HISTORY_XATTR;
use nenrin_core::{AllocateMode, At, Error, Fs, MkfsOptions, MountOptions, NewInode, SetAttr, XattrMode};
use std::sync::Arc;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const BYTES: usize = 64 << 20;

pub(crate) fn world() -> World {
    World::with(BYTES, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() })
}

pub(crate) fn open(w: &World, history: bool) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: if history { 10_000_000_000 } else { 0 }, ..MountOptions::default() })
}

pub(crate) fn pass(w: &World, fs: &Fs, seconds: u64) {
    for _ in 0..seconds * 2 {
        w.pass(500_000_000);
        fs.tick().unwrap();
    }
}

/// Does something again and again until it is refused; how often it was not.
pub(crate) fn until_refused(mut what: impl FnMut(u64) -> Result<(), Error>) -> u64 {
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
    // Five to a node, each with an index checkpoint of its own in the end.
    ("attributes", 512, |fs, f, n| fs.setxattr(f, format!("user.{n}").as_bytes(), &[1; 3000], XattrMode::Any)),
    ("symbolic links", 8, |fs, d, n| {
        let target = [b't'; 2000];
        let new = NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: &target };
        fs.create(d, format!("l{n}").as_bytes(), &new).map(drop)
    }),
];

/// What df takes for nodes moves by so much when what waits is written, and so much is needed for records until they are.
pub(crate) const WOBBLE: u64 = 2 * 256;

fn growth_ends_where_df_says_nothing() {
    for way in WAYS {
        for history in [false, true] {
            fill_in_a_way(way, 2 * BYTES, history);
        }
    }
}

fn fill_in_a_way((what, most, grow): (&str, u64, Grow), bytes: usize, history: bool) {
    // In large segments, since small ones lose much to each small part of the index that is written to them.
    let w = World::with(bytes, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
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
    // Who is refused again and again, and has something else refused, too, costs the device nothing in the end.
    let again = |n: u64| {
        w.pass(1_100_000_000);
        until_refused(|at| if at < 50 { grow(&fs, into, done + n * 50 + at) } else { Err(Error::NoSpace) });
        fs.counters().index_checkpoints
    };
    let before = (0..10).map(again).max();
    assert_eq!((10..20).map(again).max(), before, "{what}, history {history}: index checkpoints for who is refused");
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

/// In a larger volume index segments hold little garbage each, and all of them together much.
fn large_attributes() {
    let (what, most, grow) = WAYS[5];
    assert_eq!(what, "attributes");
    fill_in_a_way((what, 6 * most, grow), 16 * BYTES, false);
}

#[test]
fn large_attributes_fill_a_volume() {
    large_attributes();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "attributes, history false: refused")]
fn gains_that_count_as_none_are_noticed() {
    with(Break::GainsInVain, large_attributes);
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
#[should_panic(expected = "small files, history")]
fn hardly_sparse_index_segments_that_are_kept_are_noticed() {
    with(Break::HardlySparseKept, growth_ends_where_df_says_nothing);
}

pub(crate) fn fill(fs: &Fs, name: &[u8], blocks: usize) -> (Ino, u64) {
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
    let reserved = fs.allocate(f, AllocateMode::Reserve, (blocks + 1000) * BLOCK, 400 * BLOCK);
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
        fs.sync_all().unwrap();
        fill(&fs, b"rest", 16);
        fs.sync_all().unwrap();
        for n in 0..8 {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
            let f = fs.create(Ino::ROOT, format!("g{n}").as_bytes(), &file(0o600)).unwrap().ino;
            let pieces = until_refused(|at| {
                if at < 90 { fs.write(f, at << 16, &[2; 65536], 0).map(drop) } else { Err(Error::NoSpace) }
            });
            assert!(pieces >= 88, "{n}, history {history}: {pieces} pieces, {:?}", fs.usage());
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
#[should_panic(expected = " pieces, ")]
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

/// Fills the volume but for so many blocks.
pub(crate) fn leave(w: &World, fs: &Fs, blocks: u64) {
    let spare = fs.create(Ino::ROOT, b"spare", &file(0o600)).unwrap().ino;
    fs.write(spare, 0, &vec![1; blocks as usize * 4096], 0).unwrap();
    fill(fs, b"rest", 1);
    fs.unlink(Ino::ROOT, b"spare").unwrap();
    pass(w, fs, 12);
}

pub(crate) fn write_all(fs: &Fs, f: Ino, from: u64, blocks: u64) -> Result<(), Error> {
    (0..blocks / 16).try_for_each(|n| fs.write(f, (from + n * 16) * BLOCK, &[3; 65536], 0).map(drop))
}

pub(crate) fn empty(fs: &Fs, f: Ino) {
    fs.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
}

/// df counts twice what is written over beside a snapshot, and not what goes from within a file, until it is committed: who is to
/// be refused for that has it committed first.
fn what_waits_for_a_commit() {
    let w = world();
    let fs = open(&w, false);
    let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let (spare, b, c) = (new(b"spare"), new(b"b"), new(b"c"));
    fs.checkpoint_create(Some(b"empty")).unwrap();
    write_all(&fs, spare, 0, 512).unwrap();
    write_all(&fs, b, 0, 2048).unwrap();
    fill(&fs, b"rest", 16);
    fs.sync_all().unwrap();
    fs.unlink(Ino::ROOT, b"spare").unwrap();
    pass(&w, &fs, 12);
    let told = fs.usage().available_blocks;
    assert!(told > 400, "{told}");
    write_all(&fs, b, 0, 1024).unwrap();
    assert!(write_all(&fs, c, 0, 384).is_ok(), "written over: {:?}", fs.usage());
    pass(&w, &fs, 12);
    fs.allocate(b, AllocateMode::Punch, 0, 1024 * BLOCK).unwrap();
    assert!(write_all(&fs, c, 384, 960).is_ok(), "punched: {:?}", fs.usage());
    fs.close().unwrap();
}

#[test]
fn what_waits_is_committed_before_anybody_is_refused() {
    what_waits_for_a_commit();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "written over")]
fn growth_that_commits_nothing_is_noticed() {
    with(Break::GrowthCommitsNothing, what_waits_for_a_commit);
}

/// What is available is not counted anew for each block, so a snapshot that takes it is seen a little later: by no more than a
/// sixteenth of what there was, and for a second at most.
fn a_snapshot_takes_what_is_available() {
    let w = world();
    let fs = open(&w, false);
    let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let (f, rest, late) = (new(b"f"), new(b"rest"), new(b"late"));
    write_all(&fs, f, 0, 4096).unwrap();
    let past = fs.checkpoint_create(None).unwrap().cno;
    write_all(&fs, f, 0, 4096).unwrap();
    pass(&w, &fs, 12);
    // Nothing is left but what may be had by letting the past go.
    let mut at = 0;
    while fs.usage().available_blocks > 4096 + 32 {
        write_all(&fs, rest, at, 16).unwrap();
        at += 16;
    }
    write_all(&fs, rest, at, 32).unwrap();
    let told = fs.usage().available_blocks;
    fs.checkpoint_name(past, Some(b"kept")).unwrap();
    let taken = until_refused(|n| fs.write(late, n * BLOCK, &[1; 4096], 0).map(drop));
    let most = told / 16 + fs.usage().available_blocks + 64;
    assert!(taken < most, "{taken} blocks went beyond what there was, of {told}");
    fs.close().unwrap();
}

#[test]
fn what_a_snapshot_takes_is_seen_within_a_sixteenth() {
    a_snapshot_takes_what_is_available();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks went beyond what there was")]
fn grants_without_end_are_noticed() {
    with(Break::GrantsLast, a_snapshot_takes_what_is_available);
}

/// On a full volume a file that is emptied can be filled again, as programs save files: refused, they would lose what it held. Also
/// beside snapshots, where it lay in the index, and where the volume holds more than df allows.
fn what_is_emptied_is_filled_again() {
    for (beyond, snapshot) in [(false, false), (false, true), (true, false)] {
        let w = world();
        let fs = open(&w, false);
        let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
        if snapshot {
            fs.checkpoint_create(Some(b"empty")).unwrap();
        }
        let large = new(b"large");
        write_all(&fs, large, 0, 1024).unwrap();
        let small: Vec<Ino> = (0..100).map(|n| new(format!("f{n}").as_bytes())).collect();
        for f in &small {
            fs.write(*f, 0, &[1; 700], 0).unwrap();
        }
        if beyond {
            #[cfg(feature = "breaks")]
            with(Break::GrowsBeyondDf, || fill(&fs, b"rest", 1));
        } else {
            fill(&fs, b"rest", 1);
        }
        fs.sync_all().unwrap();
        w.pass(2_000_000_000);
        let what = format!("beyond {beyond}, snapshot {snapshot}: {:?}", fs.usage());
        // Beyond what df allows there may be no segment for what frees none.
        for f in small.into_iter().filter(|_| !beyond) {
            empty(&fs, f);
            let filled = fs.write(f, 0, &[2; 700], 0);
            assert!(filled.is_ok(), "a small file, {what}");
            fs.flush(f).unwrap();
        }
        // As a program does that has it open.
        fs.retain(large);
        empty(&fs, large);
        let blocks = if beyond { 16 } else { 1024 };
        assert!(write_all(&fs, large, 0, blocks).is_ok(), "a large file, {what}");
        fs.close().unwrap();
    }
}

#[test]
fn a_full_volume_takes_files_that_are_saved() {
    what_is_emptied_is_filled_again();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a small file")]
fn rewriting_that_grows_is_noticed() {
    with(Break::RewritingGrows, what_is_emptied_is_filled_again);
}

/// Attributes are replaced on a full volume, and new ones refused.
fn attributes_of_a_full_volume() {
    let w = world();
    let fs = open(&w, false);
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.setxattr(f, b"user.old", &[1; 300], XattrMode::Any).unwrap();
    fill(&fs, b"rest", 1);
    w.pass(2_000_000_000);
    assert!(matches!(fs.setxattr(f, b"user.new", &[1; 300], XattrMode::Any), Err(Error::NoSpace)));
    fs.setxattr(f, b"user.old", &[2; 300], XattrMode::Any).unwrap();
    let larger = fs.setxattr(f, b"user.old", &[2; 3000], XattrMode::Any);
    assert!(matches!(larger, Err(Error::NoSpace)), "a larger attribute: {larger:?}");
    fs.setxattr(f, HISTORY_XATTR, b"none", XattrMode::Any).unwrap();
    // What is gone is no damage.
    let gone = fs.setxattr(Ino(9999), HISTORY_XATTR, b"none", XattrMode::Any);
    assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
    fs.close().unwrap();
}

#[test]
fn attributes_are_replaced_on_a_full_volume() {
    attributes_of_a_full_volume();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "larger attribute")]
fn attributes_that_grow_when_they_are_replaced_are_noticed() {
    with(Break::LargerAttributes, attributes_of_a_full_volume);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "NoSpace")]
fn attributes_that_grow_are_noticed() {
    with(Break::AttributesGrow, attributes_of_a_full_volume);
}

/// What a snapshot keeps anyway can be had back on a full volume.
fn what_a_snapshot_gives_back() {
    let w = world();
    let fs = open(&w, false);
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    write_all(&fs, f, 0, 1024).unwrap();
    let kept = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fill(&fs, b"rest", 1);
    fs.unlink(Ino::ROOT, b"rest").unwrap();
    pass(&w, &fs, 12);
    let rest = fs.create(Ino::ROOT, b"again", &file(0o600)).unwrap().ino;
    until_refused(|n| {
        if fs.usage().available_blocks > 64 { write_all(&fs, rest, n * 16, 16) } else { Err(Error::NoSpace) }
    });
    w.pass(2_000_000_000);
    let back = fs.create(Ino::ROOT, b"back", &file(0o600)).unwrap().ino;
    let before = fs.usage().available_blocks;
    let copied = fs.copy_range_at(At::Past(kept), f, 0, back, 0, 1024 * BLOCK, nenrin_core::Writer::default());
    assert_eq!(copied.unwrap(), 1024 * BLOCK);
    fs.sync_all().unwrap();
    let after = fs.usage().available_blocks;
    assert!(after + 64 > before, "{before} blocks before what is kept was copied, {after} behind it");
    fs.close().unwrap();
}

#[test]
fn a_snapshot_gives_back_on_a_full_volume() {
    what_a_snapshot_gives_back();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "NoSpace")]
fn copies_of_what_is_kept_that_grow_are_noticed() {
    with(Break::KeptCopiesGrow, what_a_snapshot_gives_back);
}

/// What was reserved is filled in pieces that meet within blocks, whatever keeps those meanwhile.
fn pieces_of_what_is_reserved() {
    let piece = 11 * BLOCK / 2;
    for (snapshot, unit) in [(true, piece), (false, piece), (true, BLOCK / 4)] {
        let w = world();
        let fs = open(&w, false);
        let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
        let (f, g) = (new(b"f"), new(b"g"));
        let blocks = 110;
        fs.allocate(f, AllocateMode::Reserve, 0, blocks * BLOCK).unwrap();
        leave(&w, &fs, if snapshot { 0 } else { 64 });
        for at in 0..blocks * BLOCK / unit {
            let written = fs.write(f, at * unit, &vec![1; unit as usize], 0);
            assert!(written.is_ok(), "piece {at} of {unit} bytes, snapshot {snapshot}: {:?}", fs.usage());
            if at % 16 == 0 {
                fs.sync_all().unwrap();
                if snapshot {
                    fs.checkpoint_create(Some(format!("s{at}").as_bytes())).unwrap();
                } else {
                    fs.copy_range(f, 0, g, 0, blocks * BLOCK, 0).unwrap();
                    fs.sync_all().unwrap();
                }
                w.pass(2_000_000_000);
            }
        }
        fs.close().unwrap();
    }
}

#[test]
fn what_is_reserved_is_filled_beside_snapshots() {
    pieces_of_what_is_reserved();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "bytes, snapshot true")]
fn pieces_that_are_refused_are_noticed() {
    with(Break::PiecesRefused, pieces_of_what_is_reserved);
}

/// In the smallest segments summaries take all that df leaves out, and there would be no garbage to begin with.
fn small_segments_are_written_over() {
    for spare in (0..256).step_by(32) {
        let w = world();
        let fs = open(&w, false);
        let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
        let (f, g) = (new(b"f"), new(b"g"));
        write_all(&fs, f, 0, 2048).unwrap();
        assert_eq!(fs.copy_range(f, 0, g, 0, 2048 * BLOCK, 0).unwrap(), 2048 * BLOCK);
        write_all(&fs, new(b"spare"), 0, 1024 + spare).unwrap();
        let (rest, _) = fill(&fs, b"rest", 1);
        fs.sync_all().unwrap();
        w.pass(2_000_000_000);
        let over = write_all(&fs, rest, 0, 512);
        assert!(over.is_ok(), "with {spare} blocks: {over:?} {:?}", fs.usage());
        fs.close().unwrap();
    }
}

#[test]
fn full_volumes_of_small_segments_are_written_over() {
    small_segments_are_written_over();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = " blocks: ")]
fn summaries_that_count_as_room_are_noticed() {
    with(Break::SummariesAreRoom, small_segments_are_written_over);
}

/// A snapshot keeps all there is on a full volume, and all of it is removed: what that takes of the index is what growth has left.
fn all_that_a_snapshot_keeps() {
    let w = World::with(2 * BYTES, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = open(&w, false);
    let names: Vec<String> = (0..4000).map(|n| format!("file number {n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let f = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(f, 0, &vec![1; 300 + n % 9 * 1500], 0).unwrap();
    }
    fs.sync_all().unwrap();
    fill(&fs, b"rest", 16);
    fs.sync_all().unwrap();
    fs.checkpoint_create(Some(b"all")).unwrap();
    for (n, name) in names.iter().chain([&"rest".to_owned()]).enumerate() {
        let gone = fs.unlink(Ino::ROOT, name.as_bytes());
        assert!(gone.is_ok(), "{n} removed, then {gone:?} {:?}", fs.usage());
        if n % 500 == 0 {
            pass(&w, &fs, 1);
        }
    }
    let kept = fs.checkpoints()[0].cno;
    fs.checkpoint_name(kept, None).unwrap();
    fs.checkpoint_drop(&[kept]).unwrap();
    pass(&w, &fs, 12);
    assert!(fs.usage().available_blocks > 20_000, "{:?}", fs.usage());
    fs.close().unwrap();
}

#[test]
fn all_that_a_snapshot_keeps_is_removed_from_a_full_volume() {
    all_that_a_snapshot_keeps();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "NoSpace")]
fn removals_that_find_what_growth_has_taken_are_noticed() {
    with(Break::GrowsBeyondDf, all_that_a_snapshot_keeps);
}

/// How many megabytes a file can grow beside a snapshot and 32 MiB of history that it does not keep.
fn grows_beside_a_snapshot(shared: u64) -> u64 {
    const MIB: usize = 1 << 20;
    let w = world();
    let fs = open(&w, false);
    let make = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    make(b"kept");
    fs.checkpoint_create(Some(b"s")).unwrap();
    pass(&w, &fs, 2);
    let over = |cno| {
        fs.checkpoint_drop(&[cno]).unwrap();
        pass(&w, &fs, 2);
    };
    // Both names of the same blocks go, and so does the only checkpoint that saw them.
    for n in 0..shared {
        let (a, b) = (make(b"a"), make(b"b"));
        fs.write(a, 0, &vec![n as u8; MIB], 0).unwrap();
        fs.sync_all().unwrap();
        assert_eq!(fs.copy_range(a, 0, b, 0, MIB as u64, 0).unwrap(), MIB as u64);
        let cno = fs.checkpoint_create(None).unwrap().cno;
        fs.unlink(Ino::ROOT, b"a").unwrap();
        fs.unlink(Ino::ROOT, b"b").unwrap();
        fs.sync_all().unwrap();
        over(cno);
    }
    assert!(fs.usage().history_blocks < 300, "{:?}", fs.usage());
    let f = make(b"f");
    for round in 0..3u8 {
        (0..16).for_each(|n| assert_eq!(fs.write(f, (n * MIB) as u64, &vec![round; MIB], 0).unwrap(), MIB));
        fs.checkpoint_create(None).unwrap();
    }
    let g = make(b"g");
    until_refused(|n| {
        fs.write(g, n * MIB as u64, &vec![9; MIB], 0)?;
        fs.fsync_wait(g)
    })
}

/// P7: what was shared, and is gone with the checkpoint that saw it, counts for no snapshot when somebody needs room.
#[test]
fn what_was_shared_once_holds_up_no_growth() {
    let (alone, beside) = (grows_beside_a_snapshot(0), grows_beside_a_snapshot(40));
    assert!(alone > 30 && beside + 2 >= alone, "{alone} MiB, and {beside} behind others that were shared");
}

/// Attributes are set and removed all over an index that fills most of the volume, with checkpoints that come and go, snapshots among
/// them. How often somebody was refused, and the most that df told then.
fn churned_index(seed: u64, steps: u64) -> (u64, u64) {
    const FILES: u64 = 400;
    let w = world();
    let fs = open(&w, true);
    let mut at = seed;
    let mut random = |below: u64| {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (at >> 33) % below
    };
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino;
    let create = |n: u64| fs.create(d, format!("f{n}").as_bytes(), &file(0o600)).unwrap().ino;
    let files: Vec<Ino> = (0..FILES).map(create).collect();
    let (total, mut snapshots) = (fs.usage().available_blocks, 0);
    let (mut refused, mut most) = (0, 0);
    for step in 0..steps {
        let f = files[random(FILES) as usize];
        let available = fs.usage().available_blocks;
        let fills = available >= total / 10;
        let name = format!("user.{}", random(8));
        let set = |bytes: u64| fs.setxattr(f, name.as_bytes(), &vec![1; bytes as usize], XattrMode::Any);
        let done = match random(100) {
            0..60 if fills => set(100 + random(3500)),
            0..30 => fs.removexattr(f, name.as_bytes()),
            30..60 => set(100 + random(1500)),
            60..80 => fs.write(f, random(8) * BLOCK, &[1; 4096], 0).map(drop),
            80..90 => fs.setattr(f, &SetAttr { size: Some(random(4) * BLOCK), ..SetAttr::default() }).map(drop),
            90..98 => fs.sync_all(),
            98 if random(40) == 0 => {
                snapshots += 1;
                for c in fs.checkpoints().iter().filter(|c| c.name.is_some() && snapshots % 3 == 0) {
                    fs.checkpoint_name(c.cno, None).unwrap();
                    fs.checkpoint_drop(&[c.cno]).unwrap();
                }
                fs.checkpoint_create(Some(format!("s{step}").as_bytes())).map(drop)
            }
            _ => {
                pass(&w, &fs, 1);
                Ok(())
            }
        };
        match done {
            Err(Error::NoSpace) => (refused, most) = (refused + 1, most.max(available)),
            Err(Error::NoAttribute) | Ok(()) => {}
            Err(e) => unreachable!("{e}"),
        }
    }
    fs.close().unwrap();
    (refused, most)
}

#[test]
fn an_index_that_changes_all_over_a_full_volume_comes_to_no_end() {
    let (refused, most) = churned_index(3, 16_000);
    assert!(most < 8 * 64, "refused {refused} times, with up to {most} blocks");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks")]
fn letting_go_that_takes_all_is_noticed() {
    let (refused, most) = with(Break::LettingGoTakesAll, || churned_index(3, 30_000));
    assert!(most < 8 * 64, "refused {refused} times, with up to {most} blocks");
}
