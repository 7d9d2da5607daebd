//! Versions of single files that stand out outlive the checkpoints that showed them.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::key::Kind;
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, CheckOptions, Error, Fs, LandmarkInfo, MountOptions, RenameMode, check};
use nenrin_device::BlockDevice;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 5 * SECOND, ..MountOptions::default() })
}

/// Lets time go by, with other work that makes checkpoints.
fn pass(w: &World, fs: &Fs, nanos: u64) {
    let step = (nanos / 400).max(30 * SECOND);
    let mut left = nanos;
    while left > 0 {
        w.pass(left.min(step));
        left -= left.min(step);
        fs.tick().unwrap();
    }
}

/// How the file is saved.
#[derive(Clone, Copy, PartialEq)]
enum Save {
    InPlace,
    ByRename,
}

/// Saves `directory/book` once; a checkpoint sees it.
fn save(w: &World, fs: &Fs, directory: Ino, number: u64, how: Save) {
    let bytes = content(number);
    let known = fs.lookup(At::Live, directory, b"book").ok();
    match (how, known) {
        (Save::InPlace, Some(f)) => drop(fs.write(f.ino, 0, &bytes, 0).unwrap()),
        (_, known) => {
            let name: &[u8] = if known.is_some() { b"book.new" } else { b"book" };
            let f = fs.create(directory, name, &file(0o644)).unwrap();
            fs.write(f.ino, 0, &bytes, 0).unwrap();
            if known.is_some() {
                fs.rename(directory, name, directory, b"book", RenameMode::Replace).unwrap();
            }
        }
    }
    fs.sync_all().unwrap();
    fs.checkpoint_create(None).unwrap();
    w.pass(SECOND);
}

fn content(number: u64) -> Vec<u8> {
    (0..9000u64).map(|i| (i / 8 * 31 + number * 7) as u8).collect()
}

/// The content at a state, by name.
fn read_at(fs: &Fs, cno: Cno) -> Vec<u8> {
    let at = At::Past(cno);
    let directory = fs.lookup(at, Ino::ROOT, b"work").unwrap();
    let f = fs.lookup(at, directory.ino, b"book").unwrap();
    fs.read(at, f.ino, 0, 10_000).unwrap().to_vec()
}

/// Bursts of four saves, seconds apart, with minutes between: the last of each burst is what counts.
fn write_a_book(w: &World, fs: &Fs, how: Save) -> Vec<u64> {
    let directory = fs.create(Ino::ROOT, b"work", &dir()).unwrap().ino;
    let mut before_pauses = Vec::new();
    for burst in 0..10u64 {
        for nth in 0..4 {
            save(w, fs, directory, burst * 4 + nth, how);
            w.pass(5 * SECOND);
        }
        before_pauses.push(burst * 4 + 3);
        // Each fourth pause is longer.
        pass(w, fs, if burst % 4 == 3 { 8 * 60 * SECOND } else { 90 * SECOND });
    }
    before_pauses
}

/// A closed volume gets `work/book`, which is removed, with versions that only landmarks keep; the states that show them.
pub(crate) fn with_versions_of_a_book(w: &World) -> (Ino, Vec<Cno>) {
    let fs = open(w);
    write_a_book(w, &fs, Save::InPlace);
    pass(w, &fs, 2 * HOUR);
    let directory = fs.lookup(At::Live, Ino::ROOT, b"work").unwrap().ino;
    let book = fs.lookup(At::Live, directory, b"book").unwrap().ino;
    let versions: Vec<Cno> = fs.landmarks().iter().filter(|l| l.ino == book).map(|l| l.cno).collect();
    assert!(versions.len() >= 3, "{versions:?}");
    fs.unlink(directory, b"book").unwrap();
    fs.close().unwrap();
    (book, versions)
}

/// Which of the book's versions the states that are kept show; landmarks and all.
fn shown(fs: &Fs) -> (Vec<u64>, Vec<u64>) {
    let (mut landmarks, mut all) = (Vec::new(), Vec::new());
    for state in fs.history(&[b"work", b"book"]).unwrap() {
        let Some((cno, _)) = state.shown_by else { continue };
        let bytes = read_at(fs, cno);
        let number = (0..40).find(|n| content(*n) == bytes).unwrap();
        assert_eq!(state.landmark.is_some(), fs.checkpoints().iter().all(|c| c.cno != cno), "{number}");
        if state.landmark.is_some() {
            landmarks.push(number);
        }
        all.push(number);
    }
    (landmarks, all)
}

fn is_whole(w: &World) {
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let options = CheckOptions { data: true };
    let report = check(&[device], &options, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn what_was_there_before_a_pause_outlives_what_was_there_between() {
    for how in [Save::InPlace, Save::ByRename] {
        let w = World::new(64 << 20);
        let mut fs = open(&w);
        let before_pauses = write_a_book(&w, &fs, how);
        assert_eq!(fs.landmarks(), [], "everything is shown yet");
        pass(&w, &fs, 2 * HOUR);
        // The records alone must do.
        drop(fs);
        fs = open(&w);
        let (landmarks, all) = shown(&fs);
        assert!(landmarks.len() >= 5, "{landmarks:?}");
        // The last one is what there is now.
        assert!(before_pauses.iter().all(|n| *n == 39 || all.contains(n)), "{all:?}");
        assert!(all.len() <= 20, "{all:?}");
        let kept = |l: &LandmarkInfo| l.left.is_some_and(|left| left > 0) && (1..=3).contains(&l.level);
        assert!(fs.landmarks().iter().all(kept), "{:?}", fs.landmarks());
        // A day later those before the longer pauses are left.
        pass(&w, &fs, 24 * HOUR);
        fs.close().unwrap();
        is_whole(&w);
        fs = open(&w);
        let (landmarks, all) = shown(&fs);
        assert!(all.contains(&15) && all.contains(&31), "{all:?}");
        assert!(all.len() <= 6, "{all:?}");
        let last = fs.landmarks().last().map(|l| (l.cno, l.ino));
        // A month later none.
        pass(&w, &fs, 31 * 24 * HOUR);
        assert_eq!((fs.landmarks(), landmarks.is_empty()), (Vec::new(), false));
        let (cno, ino) = last.unwrap();
        assert!(matches!(fs.read(At::Past(cno), ino, 0, 10), Err(Error::Stale)));
        for _ in 0..50 {
            w.pass(10 * SECOND);
            fs.tick().unwrap();
        }
        assert_eq!(fs.usage().history_blocks, 0);
        fs.close().unwrap();
        is_whole(&w);
    }
}

/// A landmark keeps one file and the way to it, nothing else of its checkpoint.
#[test]
fn a_landmark_keeps_one_file_and_the_way_to_it() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    let directory = fs.create(Ino::ROOT, b"work", &dir()).unwrap().ino;
    for burst in 0..4u64 {
        for nth in 0..3 {
            fs.write(big, 0, &vec![(burst * 3 + nth) as u8; 1 << 20], 0).unwrap();
            let scratch = format!("scratch {burst} {nth}");
            fs.create(directory, scratch.as_bytes(), &file(0o600)).unwrap();
            save(&w, &fs, directory, burst * 4 + nth, Save::ByRename);
            fs.unlink(directory, scratch.as_bytes()).unwrap();
            // This one changes evenly, and so has no version that stands out but the first.
            w.pass(5 * SECOND);
        }
        for _ in 0..10 {
            fs.write(big, 0, &[burst as u8; 5000], 0).unwrap();
            fs.sync_all().unwrap();
            pass(&w, &fs, 6 * SECOND);
        }
    }
    fs.rename(Ino::ROOT, b"work", Ino::ROOT, b"work before", RenameMode::Replace).unwrap();
    pass(&w, &fs, 3 * HOUR);
    let landmarks = fs.landmarks();
    let books: Vec<_> = landmarks.iter().filter(|l| l.ino != big).collect();
    assert!(books.len() >= 2, "{landmarks:?}");
    let kept: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    assert!(books.iter().any(|l| !kept.contains(&l.cno)));
    for l in books.iter().filter(|l| !kept.contains(&l.cno)) {
        let at = At::Past(l.cno);
        // Under the name that the directory had then.
        let then = fs.lookup(at, Ino::ROOT, b"work").unwrap().ino;
        assert_eq!(fs.lookup(at, then, b"book").unwrap().ino, l.ino);
        assert!(!fs.read(at, l.ino, 0, 10).unwrap().is_empty());
        // A part must not pass for all there was: neither a listing nor "no such file" is known to be right.
        let stale = |e: Error| assert!(matches!(e, Error::Stale), "{e}");
        for dir in [Ino::ROOT, then] {
            stale(fs.readdir(at, dir, 0, &mut |_| true).unwrap_err());
            stale(fs.lookup(at, dir, b"scratch 0 0").unwrap_err());
        }
        stale(fs.lookup(at, Ino::ROOT, b"big").unwrap_err());
        stale(fs.getattr(at, big).unwrap_err());
        stale(fs.read(at, big, 0, 10).unwrap_err());
    }
    // Permissions of the past are those of when a file was last seen, be it by a landmark only.
    let mut by_landmark = 0;
    for l in &books {
        let shows = |cno: &&Cno| fs.getattr(At::Past(**cno), l.ino).is_ok();
        let (checkpoint, landmark) = (kept.iter().rfind(shows), books.iter().rfind(|m| m.ino == l.ino).map(|m| m.cno));
        by_landmark += u64::from(checkpoint.copied() < landmark);
        assert_eq!(fs.last_seen(l.ino).unwrap(), checkpoint.copied().max(landmark), "{l:?}");
    }
    assert!(by_landmark > 0, "{books:?}");
    // What the big file held then was let go: one version of it is worth 256 blocks.
    let usage = fs.usage();
    let checkpoints = fs.checkpoints().len() as u64;
    let of_big = landmarks.iter().filter(|l| l.ino == big).count() as u64;
    assert!(usage.history_blocks <= (checkpoints + of_big) * 262 + landmarks.len() as u64 * 4, "{usage:?}");
}

/// Of several names a landmark is kept under one, and `history` of any says which.
#[test]
fn history_says_under_which_name_a_landmark_is_kept() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let directory = fs.create(Ino::ROOT, b"work", &dir()).unwrap().ino;
    let other = fs.create(Ino::ROOT, b"other", &dir()).unwrap().ino;
    save(&w, &fs, directory, 0, Save::InPlace);
    let book = fs.lookup(At::Live, directory, b"book").unwrap().ino;
    fs.link(book, other, b"copy").unwrap();
    for burst in 0..6u64 {
        for nth in 0..4 {
            save(&w, &fs, directory, burst * 4 + nth, Save::InPlace);
            w.pass(5 * SECOND);
        }
        pass(&w, &fs, 90 * SECOND);
    }
    pass(&w, &fs, 2 * HOUR);
    for asked in [[&b"work"[..], b"book"], [b"other", b"copy"]] {
        let states = fs.history(&asked).unwrap();
        let landmarks: Vec<_> = states.iter().filter(|s| s.landmark.is_some()).collect();
        assert!(landmarks.len() >= 3, "{states:?}");
        for s in landmarks {
            let at = At::Past(s.shown_by.unwrap().0);
            let mut ino = Ino::ROOT;
            for name in s.path.split(|b| *b == b'/') {
                ino = fs.lookup(at, ino, name).unwrap().ino;
            }
            assert_eq!((ino, fs.read(at, ino, 0, 10).unwrap().len()), (book, 10));
        }
    }
}

/// A name that is gone is found where it was last seen, be it by a landmark only.
#[test]
fn a_name_that_is_gone_is_told_with_its_last_landmark() {
    for how in [Save::InPlace, Save::ByRename] {
        let w = World::new(64 << 20);
        let fs = open(&w);
        write_a_book(&w, &fs, how);
        let directory = fs.lookup(At::Live, Ino::ROOT, b"work").unwrap().ino;
        fs.unlink(directory, b"book").unwrap();
        pass(&w, &fs, 24 * HOUR);
        let shows = |cno: &Cno| {
            let directory = fs.lookup(At::Past(*cno), Ino::ROOT, b"work");
            directory.and_then(|d| fs.lookup(At::Past(*cno), d.ino, b"book")).is_ok()
        };
        let checkpoint = fs.checkpoints().iter().map(|c| c.cno).rfind(shows);
        let landmark = fs.landmarks().iter().map(|l| l.cno).rfind(shows);
        assert!(landmark > checkpoint, "{landmark:?} {checkpoint:?}");
        let told = || {
            fs.gone(&[b"work"]).unwrap().into_iter().map(|g| (g.name, g.last, g.attr.unwrap().size)).collect::<Vec<_>>()
        };
        assert_eq!(told(), [(b"book".to_vec(), landmark.unwrap(), 9000)]);
        // The directory that went, too, was only on the way to it.
        let kept: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
        fs.rmdir(Ino::ROOT, b"work").unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.checkpoint_drop(&kept).unwrap();
        assert_eq!(told(), [(b"book".to_vec(), landmark.unwrap(), 9000)]);
        let above = fs.gone(&[]).unwrap();
        assert_eq!((&above[0].name[..], above[0].last, above.len()), (&b"work"[..], landmark.unwrap(), 1));
    }
}

/// Letting checkpoints go by hand, and want of room, keep nothing; a full volume lets landmarks go.
#[test]
fn landmarks_give_way() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    write_a_book(&w, &fs, Save::InPlace);
    let all: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    fs.checkpoint_drop(&all[..10]).unwrap();
    assert_eq!(fs.landmarks(), []);
    pass(&w, &fs, 2 * HOUR);
    assert!(!fs.landmarks().is_empty());
    let f = fs.create(Ino::ROOT, b"filler", &file(0o600)).unwrap().ino;
    let mut end = 0;
    loop {
        match fs.write(f, end, &[7; 65536], 0) {
            Ok(_) => end += 65536,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    // Beside what cleaning needs there is room for them still, until it is written over here and there.
    let before = fs.landmarks().len();
    assert!(before > 3);
    let (blocks, mut at) = (end / 4096, 1_u64);
    for _ in 0..blocks {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        fs.write(f, (at >> 33) % blocks * 4096, &[8; 4096], 0).unwrap();
    }
    assert!(fs.landmarks().len() <= before / 2, "{:?}", fs.landmarks());
    fs.close().unwrap();
    is_whole(&w);
}

/// A leaf of the history of other files is lost, before that of the book.
fn the_book_beside_a_lost_leaf() {
    let (w, files) = crate::applied::with_history_of_attributes();
    let fs = open(&w);
    write_a_book(&w, &fs, Save::InPlace);
    fs.close().unwrap();
    drop(fs);
    crate::applied::rot(&w, |key| key.ino == files[1000].0 && key.kind == Kind::Inode && key.death > 0);
    let fs = open(&w);
    let mut told = 0;
    for _ in 0..400 {
        w.pass(30 * SECOND);
        match fs.tick() {
            Ok(()) => {}
            Err(Error::Damaged(..)) => told += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(told > 0, "nothing was lost");
    let directory = fs.lookup(At::Live, Ino::ROOT, b"work").unwrap().ino;
    let book = fs.lookup(At::Live, directory, b"book").unwrap().ino;
    let landmarks = fs.landmarks().iter().filter(|l| l.ino == book).count();
    assert!(landmarks >= 5, "{landmarks} landmarks of a file that can be read");
    assert_eq!(fs.failed(), None);
    fs.close().unwrap();
}

#[test]
fn what_cannot_be_read_takes_landmarks_from_nobody_else() {
    the_book_beside_a_lost_leaf();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "landmarks of a file that can be read")]
fn landmarks_that_end_at_a_lost_leaf_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LandmarksStop, the_book_beside_a_lost_leaf);
}
