//! Files that lie scattered are put in order by cleaning on request: what comes of it, and what it leaves alone.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::gate::{is_long_write, world as gated_world};
use crate::common::{World, file};
use crate::devices::World as Stripe;
use nenrin_core::format::superblock::Profile;
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::{AllocateMode, At, CheckOptions, Clean, Fs, MkfsOptions, MountOptions, check};
use nenrin_device::{AlignedBuf, BlockDevice};
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const BLOCK: u64 = BLOCK_BYTES as u64;

fn world(bytes: usize) -> World {
    World::with(bytes, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() })
}

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

fn named(fs: &Fs, name: &str) -> Ino {
    match fs.lookup(At::Live, Ino::ROOT, name.as_bytes()) {
        Ok(f) => f.ino,
        Err(_) => fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino,
    }
}

fn block(byte: u64) -> Vec<u8> {
    vec![(byte % 251) as u8 + 1; BLOCK_BYTES]
}

/// Writes each block of a file once, in an order of its own, and commits after every sixteen (of a small one after each); what it
/// holds then.
fn scattered(fs: &Fs, name: &str, blocks: u64) -> Vec<u8> {
    let ino = named(fs, name);
    let each = if blocks < 100 { 1 } else { 16 };
    // A prime that divides no size here: every block comes once.
    for i in 0..blocks {
        let at = i * 7919 % blocks;
        fs.write(ino, at * BLOCK, &block(at), 0).unwrap();
        if i % each == each - 1 {
            fs.fsync_wait(ino).unwrap();
        }
    }
    fs.fsync_wait(ino).unwrap();
    (0..blocks).flat_map(block).collect()
}

fn clean(fs: &Fs) -> Clean {
    let mut clean = fs.clean();
    while !clean.is_done() {
        fs.clean_step(&mut clean, 256).unwrap();
    }
    clean
}

fn content(fs: &Fs, at: At, name: &str) -> Vec<u8> {
    let ino = fs.lookup(at, Ino::ROOT, name.as_bytes()).unwrap().ino;
    fs.read(at, ino, 0, 1 << 30).unwrap()
}

/// Requests that reading a file takes, 1 MiB at a time.
fn requests(w: &World, fs: &Fs, name: &str) -> u64 {
    let ino = named(fs, name);
    let size = content(fs, At::Live, name).len() as u64;
    let before = w.device.counters();
    for at in (0..size).step_by(1 << 20) {
        fs.read(At::Live, ino, at, 1 << 20).unwrap();
    }
    w.device.counters().since(&before).reads
}

fn assert_sound(w: &World) {
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Nothing of it is garbage, and still it lies in order after cleaning, once and for all.
#[test]
fn a_file_written_once_at_random_is_put_in_order() {
    let w = world(64 << 20);
    let fs = open(&w);
    let (blocks, small) = (3000, 20);
    let expected = scattered(&fs, "f", blocks);
    let little = scattered(&fs, "little", small);
    let whole = vec![7; 4 << 20];
    fs.write(named(&fs, "sequential"), 0, &whole, 0).unwrap();
    fs.sync_all().unwrap();
    assert!(requests(&w, &fs, "f") > 2900);
    let told = fs.order_estimate().unwrap();
    assert_eq!((told.looked, told.files, told.blocks), (true, 2, blocks + small));
    let did = clean(&fs).order();
    assert_eq!((did.files, did.ordered_files, did.left_files), (2, 2, 0), "{did:?}");
    assert_eq!((did.ordered_blocks, did.left_blocks), (blocks + small, 0));
    // 12 for 12 reads, and one more at each end of a segment.
    let after = requests(&w, &fs, "f");
    assert!(after <= 12 + 14, "{after} requests for 12 reads");
    assert!(requests(&w, &fs, "little") <= 2);
    // Who asks again gets nothing moved.
    for _ in 0..3 {
        let moved = fs.counters().moved_blocks;
        assert_eq!(fs.order_estimate().unwrap().files, 0);
        let again = clean(&fs);
        assert_eq!((again.order().ordered_blocks, again.moved_blocks()), (0, 0), "was put in order again");
        assert_eq!(fs.counters().moved_blocks, moved);
    }
    let right = |fs: &Fs| {
        assert!(content(fs, At::Live, "f") == expected && content(fs, At::Live, "little") == little);
        assert!(content(fs, At::Live, "sequential") == whole);
    };
    right(&fs);
    fs.close().unwrap();
    assert_sound(&w);
    right(&open(&w));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "was put in order again")]
fn order_without_end_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::OrderEndless, || {
        let w = world(64 << 20);
        let fs = open(&w);
        scattered(&fs, "f", 3000);
        clean(&fs);
        assert_eq!(clean(&fs).order().ordered_blocks, 0, "was put in order again");
    });
}

/// At rest nothing is put in order.
#[test]
fn it_is_done_on_request_only() {
    let w = world(64 << 20);
    let fs = open(&w);
    scattered(&fs, "f", 3000);
    for _ in 0..3000 {
        w.pass(SECOND / 10);
        fs.tick().unwrap();
    }
    assert_eq!(fs.counters().moved_blocks, 0);
    assert!(requests(&w, &fs, "f") > 2900);
}

/// What snapshots keep, and what copies share, stays what it was, and stays shared.
#[test]
fn snapshots_and_copies_keep_their_content() {
    let w = world(96 << 20);
    let fs = open(&w);
    let blocks = 3000;
    let before = scattered(&fs, "f", blocks);
    let shared = scattered(&fs, "shared", 1000);
    let (f, source) = (named(&fs, "f"), named(&fs, "shared"));
    let copy = named(&fs, "copy");
    // The second half first: no order is one for both.
    assert_eq!(fs.copy_range(source, 500 * BLOCK, copy, 0, 500 * BLOCK, 0).unwrap(), 500 * BLOCK);
    assert_eq!(fs.copy_range(source, 0, copy, 500 * BLOCK, 400 * BLOCK, 0).unwrap(), 400 * BLOCK);
    let part = named(&fs, "part");
    assert_eq!(fs.copy_range(f, 300 * BLOCK, part, 0, 500 * BLOCK, 0).unwrap(), 500 * BLOCK);
    fs.sync_all().unwrap();
    let cno = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    let mut now = before.clone();
    for i in 0..400 {
        let at = i * 1009 % blocks;
        fs.write(f, at * BLOCK, &block(at + 100), 0).unwrap();
        now[(at * BLOCK) as usize..][..BLOCK_BYTES].copy_from_slice(&block(at + 100));
        if i % 16 == 15 {
            fs.fsync_wait(f).unwrap();
        }
    }
    fs.sync_all().unwrap();
    let (usage, then) = (fs.usage(), requests(&w, &fs, "f"));
    let did = clean(&fs).order();
    assert!(did.ordered_blocks > 2400 && did.left_files == 0, "{did:?}");
    let after = requests(&w, &fs, "f");
    assert!(then > 2900 && after < 600, "{then} requests, then {after}");
    let got = fs.usage();
    assert_eq!((got.shared_blocks, got.history_blocks), (usage.shared_blocks, usage.history_blocks));
    let again = clean(&fs);
    assert_eq!((again.order().ordered_blocks, again.moved_blocks()), (0, 0));
    let right = |fs: &Fs| {
        assert!(content(fs, At::Live, "f") == now && content(fs, At::Past(cno), "f") == before);
        let bytes = |from: u64, to: u64| &shared[(from * BLOCK) as usize..(to * BLOCK) as usize];
        for at in [At::Live, At::Past(cno)] {
            assert!(content(fs, at, "shared") == shared);
            assert!(content(fs, at, "copy") == [bytes(500, 1000), bytes(0, 400)].concat());
            assert!(content(fs, at, "part") == before[300 * BLOCK_BYTES..800 * BLOCK_BYTES]);
        }
    };
    right(&fs);
    fs.close().unwrap();
    assert_sound(&w);
    right(&open(&w));
}

/// On a volume without much room files stay as they are: no history goes, no promise is broken, nobody is refused or waits.
#[test]
fn room_is_not_taken_for_order() {
    let w = world(64 << 20);
    let fs = open(&w);
    let kept = scattered(&fs, "kept", 1000);
    fs.checkpoint_create(None).unwrap();
    let f = named(&fs, "kept");
    for at in 0..1000 {
        fs.write(f, at * BLOCK, &block(at + 1), 0).unwrap();
    }
    fs.sync_all().unwrap();
    let expected = scattered(&fs, "f", 4000);
    let promised = named(&fs, "promised");
    fs.allocate(promised, AllocateMode::Reserve, 0, 4 << 20).unwrap();
    let filler = named(&fs, "filler");
    while fs.usage().available_blocks > 4500 {
        let at = fs.getattr(At::Live, filler).unwrap().size;
        fs.write(filler, at, &[1; 256 << 10], 0).unwrap();
    }
    fs.sync_all().unwrap();
    let (usage, counters, checkpoints) = (fs.usage(), fs.counters(), fs.checkpoints());
    let did = clean(&fs);
    let order = did.order();
    assert!(!did.is_out_of_room());
    assert!(
        order.left_files > 0 && order.left_blocks + order.ordered_blocks == order.blocks,
        "room was taken: {order:?}"
    );
    let (now, got) = (fs.usage(), fs.counters());
    assert_eq!(
        (fs.checkpoints(), got.checkpoints_shed, got.room_rounds),
        (checkpoints.clone(), 0, counters.room_rounds)
    );
    assert!(now.available_blocks + 200 >= usage.available_blocks, "{usage:?} {now:?}");
    // What is available can be written, without waiting for room.
    for i in 0..4u64 {
        fs.write(promised, i << 20, &vec![2; 1 << 20], 0).unwrap();
        fs.sync_all().unwrap();
        fs.write(filler, i << 18, &vec![3; 256 << 10], 0).unwrap();
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.counters().room_rounds, counters.room_rounds, "somebody waited for room");
    assert!(content(&fs, At::Live, "f") == expected);
    assert!(content(&fs, At::Past(checkpoints[0].cno), "kept") == kept);
    fs.close().unwrap();
    assert_sound(&w);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "room was taken")]
fn room_that_is_taken_for_order_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::OrderBeyondRoom, room_is_not_taken_for_order);
}

/// What cannot be read stays where it is; the rest is put in order, once.
#[test]
fn what_cannot_be_read_is_left_alone() {
    let w = world(64 << 20);
    let fs = open(&w);
    let expected = scattered(&fs, "f", 2000);
    fs.close().unwrap();
    drop(fs);
    let bytes = w.device.inner().snapshot();
    let lost = block(1234);
    let at = bytes.chunks_exact(BLOCK_BYTES).position(|b| *b == lost).unwrap();
    w.device.write((at * BLOCK_BYTES) as u64, Arc::new(AlignedBuf::zeroed(BLOCK_BYTES))).unwrap();
    let fs = open(&w);
    let did = clean(&fs).order();
    assert_eq!((did.ordered_files, did.ordered_blocks), (1, 1999), "{did:?}");
    let moved = fs.counters().moved_blocks;
    clean(&fs);
    assert_eq!(fs.counters().moved_blocks, moved);
    let f = named(&fs, "f");
    let broken = (0..2000u64).filter(|b| {
        let got = fs.read(At::Live, f, b * BLOCK, BLOCK_BYTES);
        got.is_err() || got.unwrap() != expected[(b * BLOCK) as usize..][..BLOCK_BYTES]
    });
    assert_eq!(broken.count(), 1, "damage is told, not moved");
}

/// A block that is overwritten between its copy and the record of it stays what was written last.
fn overwritten_meanwhile() {
    let w = gated_world(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let fs = &w.fs;
    let mut expected = scattered(fs, "f", 1000);
    let f = named(fs, "f");
    let mut job = fs.clean();
    while !job.is_ordering() || !job.order().looked {
        fs.clean_step(&mut job, 1).unwrap();
    }
    w.gate.close(is_long_write, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            w.gate.wait_until(|g| g.held > 0);
            for at in (0..1000).step_by(31) {
                fs.write(f, at * BLOCK, &block(at + 50), 0).unwrap();
                expected[(at * BLOCK) as usize..][..BLOCK_BYTES].copy_from_slice(&block(at + 50));
            }
            fs.fsync_wait(f).unwrap();
            w.gate.open();
        });
        while !job.is_done() {
            fs.clean_step(&mut job, 4096).unwrap();
        }
    });
    assert!(job.order().ordered_blocks > 0);
    assert!(content(fs, At::Live, "f") == expected, "what was written last is gone");
    fs.close().unwrap();
}

#[test]
fn what_is_overwritten_meanwhile_stays() {
    overwritten_meanwhile();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was written last is gone")]
fn what_is_moved_over_a_newer_block_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::MoveBlind, overwritten_meanwhile);
}

/// Its job ends with each step, so that who stops asking leaves nothing pinned, and no tick goes on with it.
#[test]
fn it_can_be_left_at_any_time() {
    let w = world(64 << 20);
    let fs = open(&w);
    let expected = scattered(&fs, "f", 3000);
    let mut job = fs.clean();
    while job.order().ordered_blocks == 0 {
        fs.clean_step(&mut job, 256).unwrap();
    }
    drop(job);
    let moved = fs.counters().moved_blocks;
    assert!(moved < 2000, "{moved}");
    for _ in 0..100 {
        w.pass(SECOND / 10);
        fs.tick().unwrap();
    }
    assert_eq!((fs.counters().moved_blocks, fs.cleaner_status().victims), (moved, 0));
    assert_eq!(clean(&fs).order().ordered_blocks, 3000 - moved);
    assert!(content(&fs, At::Live, "f") == expected);
    fs.close().unwrap();
    assert_sound(&w);
}

/// A file larger than the room beside it is sorted in groups first, so that segments become empty on the way.
#[test]
fn a_file_larger_than_the_room_is_put_in_order() {
    let w = World::with(96 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let fs = open(&w);
    let blocks = 12_000;
    let expected = scattered(&fs, "f", blocks);
    fs.close().unwrap();
    drop(fs);
    let fs = open(&w);
    assert!(fs.usage().available_blocks < 10_000, "{:?}", fs.usage());
    let did = clean(&fs).order();
    assert_eq!((did.ordered_files, did.left_files), (1, 0), "{did:?}");
    assert!(did.ordered_blocks > blocks && did.ordered_blocks < 2 * blocks + 100, "{did:?}");
    let after = requests(&w, &fs, "f");
    // One at each end of a segment, and of 1 MiB.
    assert!(after <= 260, "{after} requests");
    let again = clean(&fs);
    assert_eq!((again.order().ordered_blocks, again.moved_blocks()), (0, 0));
    assert_eq!(fs.counters().room_rounds, 0);
    assert!(content(&fs, At::Live, "f") == expected);
    fs.close().unwrap();
    assert_sound(&w);
}

/// Over several devices what is in order begins at units, so that each unit is one request to one device. While one is slow
/// nothing is put in order, since blocks would be left out.
#[test]
fn on_stripes_units_stay_whole() {
    let w = Stripe::new(Profile::Stripe, &[512, 512, 512, 512]);
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open(&[0, 1, 2, 3], options).unwrap();
    let blocks = 4096;
    let expected = scattered(&fs, "f", blocks);
    fs.declare_slow(1, true);
    let did = clean(&fs).order();
    assert_eq!((did.ordered_blocks, did.left_files), (0, 1), "{did:?}");
    fs.declare_slow(1, false);
    let did = clean(&fs).order();
    assert_eq!((did.ordered_blocks, did.left_files), (blocks, 0), "{did:?}");
    let f = named(&fs, "f");
    let before = w.counters();
    for at in (0..blocks * BLOCK).step_by(1 << 20) {
        fs.read(At::Live, f, at, 1 << 20).unwrap();
    }
    let reads: Vec<u64> = w.counters().iter().zip(&before).map(|(now, b)| now.since(b).reads).collect();
    // 256 units of 64 KiB; those of one device next to each other may be one request, and a few are cut by summaries.
    assert!(reads.iter().sum::<u64>() <= 280, "{reads:?}");
    assert_eq!(clean(&fs).order().ordered_blocks, 0);
    assert!(content(&fs, At::Live, "f") == expected);
    fs.close().unwrap();
}

/// Who needs the cleaner waits for one step: of files that find no room it looks at some.
#[test]
fn a_step_looks_at_few_files_that_find_no_room() {
    let w = world(48 << 20);
    let fs = open(&w);
    let files: Vec<Ino> = (0..150).map(|i| named(&fs, &format!("f{i}"))).collect();
    for at in 0..16 {
        for ino in &files {
            fs.write(*ino, at * BLOCK, &block(at), 0).unwrap();
        }
        fs.sync_all().unwrap();
    }
    let filler = named(&fs, "filler");
    let mut at = 0;
    while fs.usage().available_blocks > 6 * 256 {
        fs.write(filler, at, &[1; 64 << 10], 0).unwrap();
        at += 64 << 10;
    }
    fs.sync_all().unwrap();
    let (mut clean, mut steps) = (fs.clean(), Vec::new());
    while !clean.is_done() {
        let before = clean.order().left_files;
        fs.clean_step(&mut clean, 1).unwrap();
        steps.push(clean.order().left_files - before);
    }
    let (most, all) = (steps.iter().max().unwrap(), steps.iter().sum::<u64>());
    assert!(all > 100, "only {all} files were left out: {:?}", clean.order());
    assert!(*most <= 65, "a step was long: {most} files of {all}");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a step was long")]
fn steps_of_order_that_are_long_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::OrderStepsLong, a_step_looks_at_few_files_that_find_no_room);
}
