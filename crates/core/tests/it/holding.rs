//! P6, P7: what a truncation that is held back keeps from others.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Fs, MkfsOptions, MountOptions, SetAttr};
use nenrin_device::MemDevice;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn volume(bytes: usize) -> (World, Arc<Fs>) {
    let w = World::with(bytes, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    (w, fs)
}

/// A file that is open.
fn open_file(fs: &Fs, name: &str) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    fs.retain(ino);
    ino
}

fn set_size(fs: &Fs, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// After the power went: what it holds of a file.
fn content_after_a_cut(w: &World, name: &[u8]) -> Vec<u8> {
    let device = MemDevice::from_bytes(w.device.inner().snapshot());
    let fs = Fs::open(vec![Arc::new(device)], w.clock.clone(), MountOptions::default()).unwrap();
    let ino = fs.lookup(At::Live, Ino::ROOT, name).unwrap().ino;
    fs.read(At::Live, ino, 0, 1 << 30).unwrap_or_default()
}

/// How what was written is written again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    /// In its place.
    Over,
    /// Behind another truncation.
    Emptied,
    /// Where a hole was made.
    Punched,
    /// In its place, in pieces that are pages first.
    InPieces,
}

const AGAIN: [Again; 4] = [Again::Over, Again::Emptied, Again::Punched, Again::InPieces];

/// A small file is emptied, and filled ten times over before it is closed, with more than there is room for. What was refused, how many
/// checkpoints went, whether a power cut before the end shows what it was before, and whether its content is what was written last.
fn filled_again_and_again(again: Again) -> (Vec<String>, u64, bool, bool) {
    let (w, fs) = volume(64 * MIB);
    let ino = open_file(&fs, "file");
    fs.write(ino, 0, &[1; 4096], 0).unwrap();
    let other = open_file(&fs, "other");
    for round in 0..6 {
        fs.write(other, 0, &vec![round; MIB / 4], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
    }
    let more = open_file(&fs, "more");
    set_size(&fs, ino, 0);
    let mut refused = Vec::new();
    for round in 0..10u8 {
        match again {
            Again::Emptied => set_size(&fs, ino, 0),
            Again::Punched => fs.allocate(ino, nenrin_core::AllocateMode::Punch, 0, 20 << 20).unwrap(),
            Again::Over | Again::InPieces => {}
        }
        let piece = if again == Again::InPieces { 16 << 10 } else { MIB };
        for at in (0..20 * MIB).step_by(piece) {
            if let Err(e) = fs.write(ino, at as u64, &vec![round + 10; piece], 0) {
                refused.push(format!("{at} of round {round}: {e}"));
            }
        }
    }
    let was = content_after_a_cut(&w, b"file") == [1; 4096];
    // Others get what is room, and what becomes free.
    for at in (0..60 * MIB).step_by(MIB) {
        let wrote = fs.write(more, (at % (15 * MIB)) as u64, &vec![7; MIB], 0).and_then(|_| fs.fsync_wait(more));
        refused.extend(wrote.err().map(|e| format!("{at} of another file: {e}")));
    }
    fs.sync_all().unwrap();
    let shed = fs.counters().checkpoints_shed;
    fs.close().unwrap();
    let content = content_after_a_cut(&w, b"file");
    (refused, shed, was, content.len() == 20 * MIB && content.iter().all(|b| *b == 19))
}

#[test]
fn what_is_written_over_while_it_is_held_back_takes_nothing() {
    for again in AGAIN {
        let (refused, shed, was, is) = filled_again_and_again(again);
        assert!(refused.is_empty(), "{again:?}: refused: {refused:?}");
        assert_eq!(shed, 0, "{again:?}: checkpoints went");
        assert!(was, "{again:?}: held back no longer");
        assert!(is, "{again:?}: other content");
    }
}

/// A large file that keeps no history is emptied and filled again, beside versions of a document, and beside the background or not. What
/// was refused, and how many checkpoints went.
fn filled_again_beside_history(ticks: bool) -> (Vec<String>, u64) {
    let (w, fs) = volume(64 * MIB);
    let large = open_file(&fs, "large");
    fs.setxattr(large, b"user.nenrin.history", b"none", nenrin_core::XattrMode::Any).unwrap();
    let fill = |byte: u8| {
        let wrote = (0..27u64).map(|n| {
            if ticks {
                w.pass(100_000_000);
                fs.tick().unwrap();
            }
            fs.write(large, n << 20, &vec![byte; MIB], 0)
        });
        wrote.filter_map(|w| w.err().map(|e| e.to_string())).collect::<Vec<_>>()
    };
    assert!(fill(1).is_empty());
    fs.sync_all().unwrap();
    let document = open_file(&fs, "document");
    for round in 0..6 {
        fs.write(document, 0, &vec![round; MIB], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
    }
    set_size(&fs, large, 0);
    let refused = fill(2);
    fs.flush(large).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.read(At::Live, large, 26 << 20, MIB).unwrap(), vec![2; MIB]);
    (refused, fs.counters().checkpoints_shed)
}

#[test]
fn what_is_held_back_goes_before_history_that_it_would_save() {
    for ticks in [false, true] {
        let (refused, shed) = filled_again_beside_history(ticks);
        assert!(refused.is_empty(), "refused: {refused:?}");
        assert_eq!(shed, 0, "checkpoints went while a truncation was held back, ticks: {ticks}");
    }
}

/// Files are gone but for history, and a file that keeps none waits to be filled again, which frees more than a segment, but less than is
/// wanted. How many checkpoints there were at each time that some went, up to the one when it was held back no longer.
fn held_beside_history() -> Vec<usize> {
    let (w, fs) = volume(24 * MIB);
    let emptied = open_file(&fs, "emptied");
    fs.setxattr(emptied, b"user.nenrin.history", b"none", nenrin_core::XattrMode::Any).unwrap();
    fs.write(emptied, 0, &vec![1; 100 << 12], 0).unwrap();
    for round in 0..12u8 {
        let ino = fs.create(Ino::ROOT, b"gone", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &vec![round; MIB], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"gone").unwrap();
    }
    fs.sync_all().unwrap();
    let rest = open_file(&fs, "rest");
    set_size(&fs, emptied, 0);
    let mut there = vec![fs.checkpoints().len()];
    for n in 0..20 {
        if fs.write(rest, n << 20, &vec![9; MIB], 0).is_err() {
            break;
        }
        let is_held = content_after_a_cut(&w, b"emptied").len() == 100 << 12;
        let now = fs.checkpoints().len();
        if there.last() != Some(&now) {
            there.push(now);
        }
        if !is_held {
            break;
        }
    }
    there
}

#[test]
fn what_is_held_back_goes_before_a_second_part_of_history() {
    assert_eq!(held_beside_history(), [12, 9], "checkpoints, until it was held back no longer");
}

#[cfg(feature = "breaks")]
mod broken {
    use super::*;
    use nenrin_core::breaks::{Break, with};

    #[test]
    #[should_panic(expected = "Over: held back no longer")]
    fn what_keeps_segments_for_nothing_is_noticed() {
        with(Break::DeadPinned, what_is_written_over_while_it_is_held_back_takes_nothing);
    }

    #[test]
    #[should_panic(expected = "other content")]
    fn segments_that_are_let_go_of_too_early_are_noticed() {
        with(Break::NamedUnpinned, what_is_written_over_while_it_is_held_back_takes_nothing);
    }

    #[test]
    #[should_panic(expected = "checkpoints went while a truncation was held back")]
    fn history_that_goes_first_is_noticed() {
        with(Break::HoldsOutlastHistory, what_is_held_back_goes_before_history_that_it_would_save);
    }

    #[test]
    #[should_panic(expected = "until it was held back no longer")]
    fn history_of_which_more_goes_is_noticed() {
        with(Break::HoldsOutlastHistory, what_is_held_back_goes_before_a_second_part_of_history);
    }
}
