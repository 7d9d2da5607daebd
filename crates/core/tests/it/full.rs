//! P7: a full volume refuses, and goes on; whatever is asked of it.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{Attr, Error, Fs, MkfsOptions, SetAttr, XattrMode};
use std::sync::Arc;

/// An answer of a volume that may be full: whether it did what was asked.
fn refused_or_done<T>(fs: &Fs, what: &str, answer: Result<T, Error>) -> bool {
    let done = match answer {
        Ok(_) => true,
        Err(Error::NoSpace) => false,
        Err(e) => {
            assert_eq!(fs.failed(), None, "{what}");
            unreachable!("{what}: {e}");
        }
    };
    assert_eq!(fs.failed(), None, "{what}");
    done
}

/// A volume full of small files, all of them kept by a snapshot.
fn full(w: &World) -> (Arc<Fs>, Vec<Attr>) {
    let fs = w.open();
    let mut files = Vec::new();
    loop {
        match fs.create(Ino::ROOT, format!("file number {}", files.len()).as_bytes(), &file(0o600)) {
            Ok(f) => files.push(f),
            Err(Error::NoSpace) => break,
            Err(e) => unreachable!("{e}"),
        }
    }
    assert!(files.len() > 1000, "{}", files.len());
    // Room enough for the snapshot itself.
    while fs.checkpoint_create(Some(b"all")).is_err() {
        for _ in 0..files.len() / 64 {
            files.pop();
            fs.unlink(Ino::ROOT, format!("file number {}", files.len()).as_bytes()).unwrap();
        }
        fs.sync_all().unwrap();
    }
    (fs, files)
}

/// Time passes, and what is due is done.
fn pass(w: &World, fs: &Fs) {
    w.pass(6_000_000_000);
    let ticked = fs.tick();
    assert_eq!(fs.failed(), None);
    ticked.unwrap();
}

/// A change of every file.
type Change = fn(&Fs, &Attr, usize) -> Result<(), Error>;

const CHANGES: [(&str, Change); 6] = [
    ("modes", |fs, f, _| fs.setattr(f.ino, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).map(drop)),
    ("owners", |fs, f, _| fs.setattr(f.ino, &SetAttr { uid: Some(7), ..SetAttr::default() }).map(drop)),
    ("attributes", |fs, f, _| fs.setxattr(f.ino, b"user.some", &[7; 300], XattrMode::Any)),
    ("names", |fs, _, i| {
        let (old, new) = (format!("file number {i}"), format!("renamed file number {i}"));
        fs.rename(Ino::ROOT, old.as_bytes(), Ino::ROOT, new.as_bytes(), nenrin_core::RenameMode::Replace)
    }),
    ("removals", |fs, _, i| fs.unlink(Ino::ROOT, format!("file number {i}").as_bytes())),
    ("sizes", |fs, f, _| fs.setattr(f.ino, &SetAttr { size: Some(77), ..SetAttr::default() }).map(drop)),
];

/// Each change of a file that a snapshot keeps adds to the index, and removing
/// gives nothing back.
#[test]
fn changes_of_what_a_snapshot_keeps_never_take_the_last_room() {
    for (what, change) in CHANGES {
        let w = World::with(12 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
        let (fs, files) = full(&w);
        let mut done = 0;
        for (i, f) in files.iter().enumerate() {
            done += usize::from(refused_or_done(&fs, what, change(&fs, f, i)));
            if i % 500 == 0 {
                pass(&w, &fs);
            }
        }
        pass(&w, &fs);
        // Letting the snapshot go works at any time, and then removing does.
        let snapshot = fs.checkpoint_find(b"all").unwrap();
        fs.checkpoint_name(snapshot.cno, None).unwrap();
        // Without a name it may have been shed to make room.
        let dropped = fs.checkpoint_drop(&[snapshot.cno]);
        assert!(matches!(dropped, Ok(()) | Err(Error::Checkpoint(_))), "{what}: {dropped:?}");
        for _ in 0..200 {
            pass(&w, &fs);
        }
        for i in 0..files.len() {
            for name in [format!("file number {i}"), format!("renamed file number {i}")] {
                match fs.unlink(Ino::ROOT, name.as_bytes()) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => unreachable!("{what}: {done} of {} done, then {name}: {e}", files.len()),
                }
            }
        }
        for _ in 0..200 {
            pass(&w, &fs);
        }
        fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
        fs.close().unwrap();
    }
}

/// A program that tries again and again wears nothing out: what did not help a moment ago is not
/// tried again before something has changed. Where the volume holds more than df allows: else nothing is tried at all.
#[cfg(feature = "breaks")]
#[test]
fn refusals_try_nothing_twice() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GrowsBeyondDf, nothing_is_tried_twice);
}

#[cfg(feature = "breaks")]
fn nothing_is_tried_twice() {
    let w = World::with(12 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let (fs, files) = full(&w);
    let refused = |f: &Attr| {
        let answer = fs.write(f.ino, 1 << 20, &[7; 1 << 20], 0);
        assert!(matches!(answer, Err(Error::NoSpace)), "{answer:?}");
    };
    // Until nothing helps any more.
    let mut rounds = u64::MAX;
    for f in &files[..20] {
        refused(f);
        if rounds == fs.counters().room_rounds {
            break;
        }
        rounds = fs.counters().room_rounds;
    }
    for f in &files[20..120] {
        refused(f);
    }
    assert_eq!(fs.counters().room_rounds, rounds, "rounds of making room for 100 refusals");
    // Something changed, so it is worth trying again.
    fs.unlink(Ino::ROOT, b"file number 0").unwrap();
    fs.sync_all().unwrap();
    refused(&files[200]);
    assert!(fs.counters().room_rounds > rounds);
}
