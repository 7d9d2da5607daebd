//! P4: a partial of the log is lost, and a repair goes on behind it: content that may have got a name in the gap is not
//! dropped with the name that was known before.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::{BLOCK, rot};
use crate::common::{World, file};
use crate::forget::forget;
use crate::lost_leaf::{block, cut, repaired, settle};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::AREA_BLOCKS;
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::repair::{LossKind, RepairReport};
use nenrin_core::{At, Fs, NewInode, RenameMode, probe};
use nenrin_device::{AlignedBuf, BlockDevice, MemDevice};
use std::sync::Arc;

/// A block of the file far behind the leaf with its inode.
const FAR: u64 = 4000;

/// Where the partials of the log lie that follow the newest root, in order.
fn partials(device: &MemDevice) -> Vec<u64> {
    let newest = probe(device).unwrap().newest().unwrap().clone();
    let (segment, mut block) = newest.chain;
    let first = AREA_BLOCKS + segment.0 * u64::from(newest.segment_blocks);
    let mut out = Vec::new();
    while block < newest.segment_blocks {
        let at = (first + u64::from(block)) * BLOCK_BYTES as u64;
        let Ok(header) = Header::peek(&device.read(at, BLOCK_BYTES).unwrap()) else { break };
        if header.kind != PartialKind::Chain || header.epoch != newest.epoch {
            break;
        }
        out.push(at);
        block += header.total_blocks();
    }
    out
}

/// A file `f`; one step is in the part of the log that is lost, the next behind it.
fn damaged(in_gap: fn(&Fs, Ino), behind: fn(&Fs, Ino), leaf_lost: bool) -> (Arc<MemDevice>, Ino) {
    let w = World::new(64 << 20);
    let fs = w.open();
    let make = |name: &str| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[7; 9000], 0).unwrap();
        ino
    };
    (0..300).for_each(|i| assert!(make(&format!("before {i}")) > Ino::ROOT));
    let f = make("f");
    // Extents in other leaves than the inode.
    (0..=FAR / 2).for_each(|n| assert!(fs.write(f, n * 2 * BLOCK, &[7; BLOCK_BYTES], 0).unwrap() > 0));
    (0..300).for_each(|i| assert!(make(&format!("behind {i}")) > f));
    fs.create(Ino::ROOT, b"pipe", &NewInode { mode: 0o010_600, ..file(0) }).unwrap();
    fs.checkpoint_create(Some(b"kept")).unwrap();
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    let fs = w.open();
    assert!(block(&fs, f, FAR).is_some());
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    fs.fsync_wait(other).unwrap();
    let first = partials(&cut(&w)).len();
    in_gap(&fs, f);
    fs.sync_all().unwrap();
    let lost = partials(&cut(&w))[first..].to_vec();
    behind(&fs, f);
    fs.sync_all().unwrap();
    for byte in 0..3 {
        fs.write(other, 0, &[byte; 100], 0).unwrap();
        fs.fsync_wait(other).unwrap();
    }
    if leaf_lost {
        rot(&w, |key| *key == Key::new(f, Kind::Inode, 0, 0));
    }
    let device = cut(&w);
    assert!(!lost.is_empty());
    for at in lost {
        device.write(at, Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]))).unwrap();
    }
    (device, f)
}

/// Then a repair.
fn repaired_behind(in_gap: fn(&Fs, Ino), behind: fn(&Fs, Ino), leaf_lost: bool) -> (Arc<Fs>, Ino, RepairReport) {
    let (device, f) = damaged(in_gap, behind, leaf_lost);
    let (fs, report) = repaired(&device);
    assert!(has(&report, LossKind::LogGap), "{:?}", report.losses);
    (fs, f, report)
}

fn has(report: &RepairReport, kind: LossKind) -> bool {
    report.losses.iter().any(|l| l.kind == kind)
}

fn found(fs: &Fs, ino: Ino) -> bool {
    let dir = fs.lookup(At::Live, Ino::ROOT, b"lost+found");
    dir.is_ok_and(|d| fs.lookup(At::Live, d.ino, format!("#{ino}").as_bytes()).is_ok_and(|a| a.ino == ino))
}

fn delivered(fs: &Fs, f: Ino) {
    fs.link(f, Ino::ROOT, b"new").unwrap();
}

/// The name that is known goes: the other was made in the gap.
const GOES: [fn(&Fs, Ino); 2] = [
    |fs, _| {
        fs.unlink(Ino::ROOT, b"f").unwrap();
        // Its content goes in steps.
        fs.tick().unwrap();
    },
    |fs, _| {
        let x = fs.create(Ino::ROOT, b"x", &file(0o600)).unwrap().ino;
        fs.write(x, 0, b"x", 0).unwrap();
        fs.rename(Ino::ROOT, b"x", Ino::ROOT, b"f", RenameMode::Replace).unwrap();
    },
];

fn last_known_name() {
    for leaf_lost in [false, true] {
        for behind in GOES {
            let (fs, f, report) = repaired_behind(delivered, behind, leaf_lost);
            let text = "content is dropped with a name, and may have another";
            assert!(found(&fs, f), "{text}: {leaf_lost}: {:?}", report.losses);
            assert!(!has(&report, LossKind::ChangeLost), "{:?}", report.losses);
            assert_eq!(fs.getattr(At::Live, f).unwrap().nlink, 1);
            assert_eq!(block(&fs, f, FAR).unwrap(), [7; BLOCK_BYTES]);
            fs.close().unwrap();
        }
    }
}

#[test]
fn content_stays_that_may_have_got_a_name_in_the_gap() {
    last_known_name();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "content is dropped with a name, and may have another")]
fn content_that_goes_with_the_last_known_name_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapDropsLast, last_known_name);
}

/// It was in use without a name, and then no more: the log shows that it went.
#[test]
fn what_the_log_shows_to_be_released_goes() {
    let (fs, f, _) = repaired_behind(
        |fs, f| assert!(fs.create(Ino::ROOT, b"in the gap", &file(0o600)).unwrap().ino > f),
        |fs, f| {
            fs.retain(f);
            fs.unlink(Ino::ROOT, b"f").unwrap();
            fs.sync_all().unwrap();
            fs.release(f);
        },
        false,
    );
    assert!(!found(&fs, f) && fs.getattr(At::Live, f).is_err());
}

/// What was made behind the gap has no names but those that are known.
#[test]
fn what_was_made_behind_the_gap_goes_with_its_last_name() {
    let (fs, ..) = repaired_behind(
        delivered,
        |fs, _| {
            let x = fs.create(Ino::ROOT, b"x", &file(0o600)).unwrap().ino;
            fs.write(x, 0, &[1; 9000], 0).unwrap();
            fs.fsync_wait(x).unwrap();
            fs.unlink(Ino::ROOT, b"x").unwrap();
        },
        false,
    );
    assert!(fs.lookup(At::Live, Ino::ROOT, b"lost+found").is_err());
}

fn unlinked(fs: &Fs, _: Ino) {
    fs.unlink(Ino::ROOT, b"f").unwrap();
}

fn other_made(fs: &Fs, f: Ino) {
    assert!(fs.create(Ino::ROOT, b"in the gap", &file(0o600)).unwrap().ino > f);
}

/// Its last name went behind the gap, or in it.
fn what_was_forgotten() {
    let behind = |fs: &Fs, _: Ino| assert_eq!(forget(fs, &[b"f"]).unwrap(), 1);
    let unlinked_behind = |fs: &Fs, f: Ino| {
        unlinked(fs, f);
        assert_eq!(forget(fs, &[b"f"]).unwrap(), 1);
    };
    for (fs, f, _) in [repaired_behind(other_made, unlinked_behind, false), repaired_behind(unlinked, behind, false)] {
        let live = fs.getattr(At::Live, f).is_ok() || found(&fs, f) || fs.lookup(At::Live, Ino::ROOT, b"f").is_ok();
        assert!(!live, "what was forgotten is back");
        let kept = fs.checkpoints()[0].cno;
        assert!(fs.lookup(At::Past(kept), Ino::ROOT, b"other").is_err());
        assert!(fs.lookup(At::Past(kept), Ino::ROOT, b"pipe").is_ok());
        assert!(fs.read(At::Past(kept), f, 0, 10).is_err() && fs.lookup(At::Past(kept), Ino::ROOT, b"f").is_err());
        fs.close().unwrap();
    }
}

#[test]
fn what_was_forgotten_behind_a_gap_does_not_come_back() {
    what_was_forgotten();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was forgotten is back")]
fn what_was_forgotten_and_comes_back_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapForgetsNothing, what_was_forgotten);
}

/// The name that takes its place was made in the gap: nothing is replaced, and no name is lost.
#[test]
fn a_name_that_nothing_replaces_is_not_counted_twice() {
    let (fs, f, report) = repaired_behind(
        |fs, _| assert!(fs.create(Ino::ROOT, b"x", &file(0o600)).is_ok()),
        |fs, _| fs.rename(Ino::ROOT, b"x", Ino::ROOT, b"f", RenameMode::Replace).unwrap(),
        false,
    );
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino, f);
    assert!(has(&report, LossKind::ChangeLost) && !has(&report, LossKind::NameLost), "{:?}", report.losses);
    assert_eq!(fs.getattr(At::Live, f).unwrap().nlink, 1);
}

/// What has no content is not kept.
#[test]
fn a_pipe_goes_with_the_last_name_that_is_known() {
    let (fs, ..) = repaired_behind(other_made, |fs, _| fs.unlink(Ino::ROOT, b"pipe").unwrap(), false);
    assert!(fs.lookup(At::Live, Ino::ROOT, b"lost+found").is_err());
    assert!(fs.lookup(At::Live, Ino::ROOT, b"pipe").is_err());
}

/// Behind a root older than the two newest the space of what was removed may be another's.
#[test]
fn behind_an_old_root_nothing_is_kept_that_was_removed() {
    let (device, f) = damaged(other_made, unlinked, false);
    let newest = probe(&*device).unwrap().newest().unwrap().clone();
    for root in probe(&*device).unwrap().roots.iter().take(2) {
        for (addr, _) in root.root {
            let block = AREA_BLOCKS + addr.segment().0 * u64::from(newest.segment_blocks) + u64::from(addr.block());
            let at = block * BLOCK_BYTES as u64;
            device.write(at, Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]))).unwrap();
        }
    }
    let (fs, report) = repaired(&device);
    assert!(has(&report, LossKind::LogGap) && !found(&fs, f), "{:?}", report.losses);
    assert!(fs.lookup(At::Live, Ino::ROOT, b"f").is_err());
}
