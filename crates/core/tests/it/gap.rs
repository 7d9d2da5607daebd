//! P4: a partial of the log is lost, and a repair goes on behind it: content that may have got a name in the gap is not
//! dropped with the name that was known before.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::{BLOCK, rot};
use crate::common::{World, file};
use crate::forget::forget;
use crate::lost_leaf::{block, cut, repaired, settle};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::AREA_BLOCKS;
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::repair::{Loss, LossKind, RepairReport};
use nenrin_core::{At, Error, Fs, NewInode, RenameMode, SetAttr, XattrMode, probe};
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
    let small = fs.create(Ino::ROOT, b"small", &file(0o600)).unwrap().ino;
    fs.write(small, 0, &[7; 100], 0).unwrap();
    let program = fs.create(Ino::ROOT, b"program", &file(0o6_755)).unwrap().ino;
    fs.write(program, 0, &[7; 9000], 0).unwrap();
    fs.setxattr(program, b"security.capability", b"all", XattrMode::Any).unwrap();
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

fn named(fs: &Fs, name: &str) -> Ino {
    fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap().ino
}

fn fill(fs: &Fs, ino: Ino, block: u64, byte: u8) {
    assert_eq!(fs.write(ino, block * BLOCK, &[byte; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
}

fn resize(fs: &Fs, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Which of these blocks cannot be read; the others are full of this byte.
fn lost_blocks(fs: &Fs, ino: Ino, blocks: std::ops::Range<u64>, byte: impl Fn(u64) -> u8) -> Vec<u64> {
    let is_lost = |n: &u64| {
        let Some(bytes) = block(fs, ino, *n) else { return true };
        let all = |b: u8| bytes.iter().all(|x| *x == b);
        assert!(all(byte(*n)) || !all(0), "what was written in the gap reads as zeros: block {n}");
        assert!(all(byte(*n)), "block {n} is {}", bytes[0]);
        false
    };
    blocks.filter(is_lost).collect()
}

fn lost_range(report: &RepairReport) -> Option<(u64, u64)> {
    report.losses.iter().find(|l| l.kind == LossKind::RangeLost).and_then(|l| l.range)
}

/// A file that is appended to in the gap, and then behind it.
fn appended_in_the_gap() {
    let (end, mib) = (FAR + 1, 256);
    let (fs, f, report) = repaired_behind(
        |fs, f| assert_eq!(fs.write(f, (FAR + 1) * BLOCK, &[8; 1 << 20], 0).unwrap(), 1 << 20),
        |fs, f| fill(fs, f, FAR + 1 + 256, 9),
        false,
    );
    let lost = lost_blocks(&fs, f, FAR..end + mib + 1, |n| if n == FAR { 7 } else { 9 });
    assert_eq!(lost, (end..end + mib).collect::<Vec<_>>());
    assert_eq!(lost_range(&report), Some((end * BLOCK, (end + mib) * BLOCK)), "{:?}", report.losses);
    // In the block in which it ended, what comes behind its end is not known either.
    let (fs, _, report) = repaired_behind(
        |fs, _| assert_eq!(fs.write(named(fs, "before 1"), 9000, &[8; 5 * BLOCK_BYTES], 0).unwrap(), 5 * BLOCK_BYTES),
        |fs, _| fill(fs, named(fs, "before 1"), 9, 9),
        false,
    );
    let lost = lost_blocks(&fs, named(&fs, "before 1"), 0..10, |n| if n < 2 { 7 } else { 9 });
    assert_eq!(lost, (2..9).collect::<Vec<_>>(), "{:?}", report.losses);
    // What was so little that it was no block goes with its item.
    let (fs, ..) = repaired_behind(
        |fs, _| assert_eq!(fs.write(named(fs, "small"), 100, &[8; 9000], 0).unwrap(), 9000),
        |fs, _| fill(fs, named(fs, "small"), 5, 9),
        false,
    );
    assert_eq!(lost_blocks(&fs, named(&fs, "small"), 0..6, |_| 9), (0..5).collect::<Vec<_>>());
}

#[test]
fn what_was_appended_in_a_gap_reads_as_an_error() {
    appended_in_the_gap();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was written in the gap reads as zeros")]
fn what_was_appended_in_a_gap_and_reads_as_zeros_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapReadsZeros, appended_in_the_gap);
}

/// All that is known of a file is what was written of it behind the gap.
#[test]
fn what_was_made_in_a_gap_reads_as_an_error_where_nothing_is_known() {
    let (fs, f, report) = repaired_behind(
        |fs, f| {
            let made = fs.create(Ino::ROOT, b"made in the gap", &file(0o600)).unwrap().ino;
            assert!(made > f && fs.write(made, 0, &[8; 3 * BLOCK_BYTES], 0).is_ok());
        },
        |fs, _| fill(fs, named(fs, "made in the gap"), 3, 9),
        false,
    );
    let is_found = |l: &&Loss| l.kind == LossKind::FileFound && l.ino.is_some_and(|i| i > f);
    let made = report.losses.iter().find(is_found).and_then(|l| l.ino).unwrap();
    assert!(found(&fs, made), "{:?}", report.losses);
    assert_eq!(lost_blocks(&fs, made, 0..4, |_| 9), [0, 1, 2]);
}

/// A truncation behind the gap says what there was: nothing.
#[test]
fn a_hole_that_the_log_shows_stays_a_hole() {
    let (fs, f, report) = repaired_behind(
        |fs, f| assert_eq!(fs.write(f, (FAR + 1) * BLOCK, &[8; 1 << 20], 0).unwrap(), 1 << 20),
        |fs, f| {
            resize(fs, f, (FAR + 1) * BLOCK);
            fill(fs, f, FAR + 100, 9);
        },
        false,
    );
    assert_eq!(lost_blocks(&fs, f, FAR + 1..FAR + 101, |n| if n == FAR + 100 { 9 } else { 0 }), []);
    assert!(!has(&report, LossKind::RangeLost), "{:?}", report.losses);
    // The same, later than the first that is known of it.
    let (fs, f, report) = repaired_behind(
        |fs, f| assert_eq!(fs.write(f, (FAR + 1) * BLOCK, &[8; 1 << 20], 0).unwrap(), 1 << 20),
        |fs, f| {
            fill(fs, f, FAR + 1 + 256, 9);
            fs.fsync_wait(f).unwrap();
            resize(fs, f, (FAR + 1) * BLOCK);
            fs.fsync_wait(f).unwrap();
            fill(fs, f, FAR + 100, 9);
        },
        false,
    );
    assert_eq!(lost_blocks(&fs, f, FAR + 1..FAR + 101, |n| if n == FAR + 100 { 9 } else { 0 }), []);
    assert!(!has(&report, LossKind::RangeLost), "{:?}", report.losses);
}

/// A file that is cut off in the gap, and changed behind it, is cut off: nothing of what it had comes back with its size.
fn cut_off_in_the_gap() {
    for size in [5000, 4096] {
        let (device, _) = damaged(
            if size == 5000 {
                |fs, _| resize(fs, named(fs, "before 2"), 5000)
            } else {
                |fs, _| resize(fs, named(fs, "before 2"), 4096)
            },
            |fs, _| fill(fs, named(fs, "before 2"), 0, 9),
            false,
        );
        let (fs, report) = repaired(&device);
        let cut = named(&fs, "before 2");
        assert!(has(&report, LossKind::FileUncertain) && fs.getattr(At::Live, cut).unwrap().size == size);
        fs.close().unwrap();
        drop(fs);
        let devices: [Arc<dyn BlockDevice>; 1] = [device.clone()];
        let found = check(&devices, &CheckOptions { data: true }, &mut |_| {}).unwrap().findings;
        let text = "what was cut off is behind the end of the file";
        assert!(found.iter().all(|f| f.what != What::TailNotZero), "{text}: {found:?}");
        let clock = Arc::new(crate::common::TestClock::default());
        let fs = Fs::open(vec![device], clock, Default::default()).unwrap();
        resize(&fs, cut, 3 * BLOCK);
        let lost = lost_blocks(&fs, cut, 0..3, |n| if n == 0 { 9 } else { 0 });
        assert_eq!(lost, if size == 5000 { vec![1] } else { vec![] });
    }
}

#[test]
fn what_was_cut_off_in_a_gap_does_not_come_back() {
    cut_off_in_the_gap();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was cut off is behind the end of the file")]
fn what_was_cut_off_in_a_gap_and_comes_back_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapReadsZeros, cut_off_in_the_gap);
}

/// Who wrote to it in the gap took its privileges away, and that is in the gap, too.
fn privileges_in_the_gap() {
    let (fs, _, report) = repaired_behind(
        |fs, _| {
            fs.setattr(named(fs, "program"), &SetAttr { kill_privileges: true, ..SetAttr::default() }).unwrap();
            fill(fs, named(fs, "program"), 0, 8);
        },
        |fs, _| fill(fs, named(fs, "program"), 1, 9),
        false,
    );
    let program = named(&fs, "program");
    let mode = fs.getattr(At::Live, program).unwrap().mode;
    assert_eq!(mode & 0o7777, 0o755, "what others wrote has privileges");
    assert!(matches!(fs.getxattr(At::Live, program, b"security.capability"), Err(Error::NoAttribute)));
    assert!(report.losses.iter().any(|l| l.kind == LossKind::AttributesLost && l.ino == Some(program)));
    // Those that it gets behind the gap are for what it held by then, of which a part is not known.
    let (fs, ..) = repaired_behind(
        |fs, _| fill(fs, named(fs, "program"), 0, 8),
        |fs, _| {
            fill(fs, named(fs, "program"), 1, 9);
            fs.fsync_wait(named(fs, "program")).unwrap();
            fs.setattr(named(fs, "program"), &SetAttr { mode: Some(0o4_750), ..SetAttr::default() }).unwrap();
        },
        false,
    );
    assert_eq!(fs.getattr(At::Live, named(&fs, "program")).unwrap().mode & 0o7777, 0o750);
    // Bits that it had, and gets again for somebody else.
    let (fs, ..) = repaired_behind(
        |fs, _| fill(fs, named(fs, "program"), 0, 8),
        |fs, _| {
            let f = named(fs, "program");
            fs.setattr(f, &SetAttr { uid: Some(1000), ..SetAttr::default() }).unwrap();
            fs.setattr(f, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
        },
        false,
    );
    assert_eq!(fs.getattr(At::Live, named(&fs, "program")).unwrap().mode & 0o7777, 0o755, "for its new owner");
}

/// What others are allowed behind the gap they are allowed to do with what the file held before it.
fn allowed_behind_the_gap() {
    let grants: [fn(&Fs, Ino); 4] = [
        |fs, f| assert!(fs.setattr(f, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap().ino == f),
        |fs, f| assert!(fs.setattr(f, &SetAttr { uid: Some(1000), ..SetAttr::default() }).unwrap().ino == f),
        |fs, f| assert!(fs.setattr(f, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap().ino == f),
        |fs, f| fs.setxattr(f, b"security.capability", b"all", XattrMode::Any).unwrap(),
    ];
    for (i, grant) in grants.into_iter().enumerate() {
        let (fs, f, report) = repaired_behind(|fs, f| fill(fs, f, 0, 8), grant, false);
        let is_told = |l: &&Loss| l.ino == Some(f) && l.kind == LossKind::FileUncertain;
        let told: Vec<_> = report.losses.iter().filter(is_told).collect();
        assert!(!told.is_empty(), "{i}: who may read what it held before is not told: {:?}", report.losses);
        assert_eq!(fs.getattr(At::Live, f).unwrap().mode & 0o6000, 0, "{i}");
        assert!(matches!(fs.getxattr(At::Live, f, b"security.capability"), Err(Error::NoAttribute)), "{i}");
        fs.close().unwrap();
    }
    // Less is no more, and what was made behind the gap has nothing from before.
    let less: fn(&Fs, Ino) = |fs, f| {
        fs.setattr(f, &SetAttr { mode: Some(0o400), ..SetAttr::default() }).unwrap();
        let new = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap().ino;
        fs.setattr(new, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    };
    let (fs, f, report) = repaired_behind(|fs, f| fill(fs, f, 0, 8), less, false);
    let is_told = |l: &Loss| l.ino == Some(f) && l.kind == LossKind::FileUncertain;
    assert!(!report.losses.iter().any(is_told), "{:?}", report.losses);
    assert_eq!(fs.getattr(At::Live, named(&fs, "new")).unwrap().mode & 0o7777, 0o4755);
    fs.close().unwrap();
}

#[test]
fn what_is_allowed_behind_a_gap_is_told() {
    allowed_behind_the_gap();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "who may read what it held before is not told")]
fn what_is_allowed_behind_a_gap_untold_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapGrants, allowed_behind_the_gap);
}

#[test]
fn a_file_written_to_in_a_gap_has_no_privileges() {
    privileges_in_the_gap();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what others wrote has privileges")]
fn privileges_that_a_gap_leaves_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::GapKeepsPrivileges, privileges_in_the_gap);
}
