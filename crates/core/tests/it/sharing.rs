//! P7: what several have, files or snapshots or copies that wait for their commit, counts once in df, and is growth when one of
//! them writes over it.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use crate::growth::{BLOCK, BYTES, WOBBLE, empty, fill, leave, open, pass, until_refused, world, write_all};
#[cfg(feature = "breaks")]
use nenrin_core::breaks::{Break, with};
use nenrin_core::format::Ino;
use nenrin_core::{At, Error, Fs, MkfsOptions};

/// What a snapshot or another file keeps is written over as long as df has blocks for it. What is written a second time, or what
/// the other file kept that is gone, takes nothing.
fn what_is_kept_is_written_over() {
    for (what, snapshot) in [("a snapshot", true), ("another file", false)] {
        let w = world();
        let fs = open(&w, false);
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        write_all(&fs, f, 0, 2048).unwrap();
        if snapshot {
            fs.checkpoint_create(Some(b"kept")).unwrap();
        } else {
            let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap().ino;
            assert_eq!(fs.copy_range(f, 0, g, 0, 2048 * BLOCK, 0).unwrap(), 2048 * BLOCK);
        }
        let spare = fs.create(Ino::ROOT, b"spare", &file(0o600)).unwrap().ino;
        write_all(&fs, spare, 0, 1024).unwrap();
        let (rest, _) = fill(&fs, b"rest", 1);
        fs.sync_all().unwrap();
        w.pass(2_000_000_000);
        let before = fs.usage();
        let over = until_refused(|n| if n < 128 { write_all(&fs, f, n * 16, 16) } else { Err(Error::NoSpace) });
        assert!(over * 16 < WOBBLE, "{what}: {} blocks written over at {before:?}", over * 16);
        // What nobody else keeps is written over.
        let again = write_all(&fs, rest, 0, 512);
        assert!(again.is_ok(), "{what}: {again:?} {over} {before:?} {:?}", fs.usage());
        fs.unlink(Ino::ROOT, b"spare").unwrap();
        pass(&w, &fs, 12);
        let shown = fs.usage().available_blocks;
        assert!(shown + WOBBLE > 1024, "{what}: {shown} of 1024 blocks");
        let over = until_refused(|n| if n < 128 { write_all(&fs, f, n * 16, 16) } else { Err(Error::NoSpace) });
        assert!(over * 16 + WOBBLE > shown && over < 128, "{what}: {} of {shown} blocks", over * 16);
        for _ in 0..4 {
            assert!(write_all(&fs, f, 0, over * 16).is_ok(), "{what}: a second time");
            pass(&w, &fs, 12);
        }
        if !snapshot {
            fs.unlink(Ino::ROOT, b"g").unwrap();
            assert!(write_all(&fs, f, over * 16, 2048 - over * 16).is_ok(), "{what} is gone");
        }
        fs.close().unwrap();
    }
}

#[test]
fn what_is_kept_grows_when_it_is_written_over() {
    what_is_kept_is_written_over();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks written over at")]
fn what_is_kept_and_written_over_unasked_is_noticed() {
    with(Break::KeptWrittenOver, what_is_kept_is_written_over);
}

/// What waits counts as it will when it is committed.
fn counts(fs: &Fs, what: &str, told: u64, blocks: u64) {
    for when in ["waiting", "committed"] {
        let taken = told.saturating_sub(fs.usage().available_blocks);
        assert!(taken.abs_diff(blocks) < 64, "{what}, {when}: {taken} blocks, not {blocks}");
        fs.sync_all().unwrap();
    }
}

/// What is copied before it is committed counts once, and df stays where it is when it is committed.
fn copies_that_wait() {
    let w = world();
    let fs = open(&w, false);
    let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let copy = |from, to, blocks| assert_eq!(fs.copy_range(from, 0, to, 0, blocks * BLOCK, 0).unwrap(), blocks * BLOCK);
    let (f, g, h, i) = (new(b"f"), new(b"g"), new(b"h"), new(b"i"));
    fs.sync_all().unwrap();
    let told = fs.usage().available_blocks;
    write_all(&fs, f, 0, 2048).unwrap();
    copy(f, g, 2048);
    copy(g, h, 1024);
    write_all(&fs, g, 0, 512).unwrap();
    counts(&fs, "copies", told, 2560);
    // The copy alone has what was there before.
    write_all(&fs, i, 0, 512).unwrap();
    let j = new(b"j");
    copy(i, j, 512);
    write_all(&fs, i, 0, 256).unwrap();
    counts(&fs, "a source that is written over", told, 3328);
    empty(&fs, i);
    fs.flush(i).unwrap();
    fs.sync_all().unwrap();
    // What history alone had.
    let past = fs.checkpoint_create(None).unwrap().cno;
    fs.unlink(Ino::ROOT, b"h").unwrap();
    empty(&fs, f);
    fs.flush(f).unwrap();
    pass(&w, &fs, 12);
    let told = fs.usage().available_blocks;
    let k = new(b"k");
    let copied = fs.copy_range_at(At::Past(past), f, 0, k, 0, 512 * BLOCK, nenrin_core::Writer::default());
    assert_eq!(copied.unwrap(), 512 * BLOCK);
    write_all(&fs, new(b"l"), 0, 256).unwrap();
    counts(&fs, "copies of history", told, 512 + 256);
    // Of what waits with a truncation that is held back, the copy alone is committed.
    let (m, n) = (new(b"m"), new(b"n"));
    write_all(&fs, m, 0, 512).unwrap();
    fs.sync_all().unwrap();
    let told = fs.usage().available_blocks;
    empty(&fs, m);
    write_all(&fs, m, 0, 1024).unwrap();
    copy(m, n, 1024);
    fs.fsync_wait(n).unwrap();
    // What the truncation gives may count later, since it is not known whether the copy has any of it.
    let taken = told - fs.usage().available_blocks;
    assert!((512 - 64..1024 + 64).contains(&taken), "a copy that is committed alone: {taken} blocks");
    fs.flush(m).unwrap();
    fs.sync_all().unwrap();
    counts(&fs, "both", told, 512);
    fs.close().unwrap();
}

#[test]
fn copies_count_before_they_are_committed() {
    copies_that_wait();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "copies, waiting: ")]
fn copies_that_are_not_counted_are_noticed() {
    with(Break::SharedUncounted, copies_that_wait);
}

/// Who moves a file by copying it sees nothing of that in df, before the copy's commit and after it.
fn what_is_copied_and_removed() {
    for (committed, snapshot, history) in
        [(true, false, false), (false, false, false), (true, true, false), (true, false, true), (false, false, true)]
    {
        let what = format!("committed {committed}, snapshot {snapshot}, history {history}");
        let w = world();
        let fs = open(&w, history);
        let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
        let copy = |from, to| assert_eq!(fs.copy_range(from, 0, to, 0, 2048 * BLOCK, 0).unwrap(), 2048 * BLOCK);
        let (f, g, h) = (new(b"f"), new(b"g"), new(b"h"));
        pass(&w, &fs, 12);
        let told = fs.usage().available_blocks;
        write_all(&fs, f, 0, 2048).unwrap();
        if committed {
            fs.sync_all().unwrap();
        }
        if snapshot {
            fs.checkpoint_create(Some(b"kept")).unwrap();
            pass(&w, &fs, 4);
        }
        let taken = |at: &str| {
            let taken = told.saturating_sub(fs.usage().available_blocks);
            assert!(taken.abs_diff(2048) < 64, "{what}, {at}: {taken} blocks, not 2048");
        };
        copy(f, g);
        copy(g, h);
        taken("copied");
        fs.unlink(Ino::ROOT, b"f").unwrap();
        taken("removed");
        for tenth in 0..60 {
            w.pass(100_000_000);
            fs.tick().unwrap();
            taken(&format!("after {tenth} tenths of a second"));
        }
        fs.sync_all().unwrap();
        taken("at the end");
        fs.close().unwrap();
    }
}

#[test]
fn files_that_move_by_copies_stay_in_df() {
    what_is_copied_and_removed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "removed: ")]
fn copies_without_their_source_that_are_not_counted_are_noticed() {
    with(Break::SharedUncounted, what_is_copied_and_removed);
}

/// What a copy is of stays when it is written over, also before the copy is committed.
fn the_source_of_a_copy_that_waits() {
    let w = World::with(4 * BYTES, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = open(&w, false);
    let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let (f, g) = (new(b"f"), new(b"g"));
    write_all(&fs, f, 0, 4096).unwrap();
    leave(&w, &fs, 256);
    assert_eq!(fs.copy_range(f, 0, g, 0, 4096 * BLOCK, 0).unwrap(), 4096 * BLOCK);
    let over = until_refused(|n| if n < 256 { write_all(&fs, f, n * 16, 16) } else { Err(Error::NoSpace) });
    assert!(over * 16 < 256 + WOBBLE, "{} blocks written over", over * 16);
    fs.close().unwrap();
}

#[test]
fn the_source_of_a_copy_stays_before_the_copy_is_committed() {
    the_source_of_a_copy_that_waits();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = " blocks written over")]
fn copies_that_are_forgotten_until_their_commit_are_noticed() {
    with(Break::CopiesForgotten, the_source_of_a_copy_that_waits);
}

/// What a snapshot keeps counts once when it is live again, also where there is other history.
fn what_comes_back_beside_history() {
    let w = world();
    let fs = open(&w, false);
    let new = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    let (f, g) = (new(b"f"), new(b"g"));
    write_all(&fs, f, 0, 1024).unwrap();
    write_all(&fs, g, 0, 1024).unwrap();
    let kept = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    fs.unlink(Ino::ROOT, b"f").unwrap();
    for _ in 0..2 {
        write_all(&fs, g, 0, 1024).unwrap();
        fs.checkpoint_create(None).unwrap();
    }
    pass(&w, &fs, 12);
    let before = fs.usage().available_blocks;
    let back = new(b"back");
    assert_eq!(
        fs.copy_range_at(At::Past(kept), f, 0, back, 0, 1024 * BLOCK, nenrin_core::Writer::default()).unwrap(),
        1024 * BLOCK
    );
    fs.sync_all().unwrap();
    pass(&w, &fs, 12);
    let after = fs.usage().available_blocks;
    assert!(after + 64 > before, "{before} blocks before what is kept was copied, {after} behind it");
    fs.close().unwrap();
}

#[test]
fn what_comes_back_counts_once() {
    what_comes_back_beside_history();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "before what is kept was copied")]
fn what_comes_back_and_counts_twice_is_noticed() {
    with(Break::BackCountsTwice, what_comes_back_beside_history);
}
