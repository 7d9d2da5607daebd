//! Content of files that looks like parts of the log: because somebody wants it to, or because it is a copy of a volume that has
//! gone on since, kept on what was restored from it.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use nenrin_core::format::partial::{Header, LOGICAL_BEGIN, LOGICAL_END, PartialKind};
use nenrin_core::format::superblock::{AREA_BLOCKS, Superblock};
use nenrin_core::format::{Addr, BLOCK_BYTES, Cno, Epoch, Ino, SegmentNo, Seq, Time};
use nenrin_core::{At, Fs, MountOptions, probe};
use nenrin_device::MemDevice;
use std::ops::Range;
use std::sync::Arc;

const VOLUME_BYTES: usize = 24 << 20;

fn newest(image: &[u8]) -> Superblock {
    probe(&MemDevice::from_bytes(image.to_vec())).unwrap().newest().unwrap().clone()
}

/// What somebody writes who knows the volume, but cannot read its device: a header that says more was durable.
fn forged(volume: &Superblock, addr: Addr, mount_id: u64) -> Vec<u8> {
    let header = Header {
        kind: PartialKind::Chain,
        flags: LOGICAL_BEGIN | LOGICAL_END,
        summary_blocks: 1,
        uuid: volume.uuid,
        epoch: Epoch(volume.epoch.0 + 1000),
        seq: Seq(1 << 40),
        addr,
        prev_addr: Addr::NONE,
        prev_crc: 0,
        payload_crc: 0,
        durable_seq: Seq((1 << 40) - 1),
        open_cno: Cno(1),
        written_at: Time(0),
        record_bytes: 0,
        map_count: 0,
        payload_blocks: 0,
        left_out: 0,
        next: None,
        mount_id,
    };
    header.encode(&[], &[]).0
}

/// The blocks of the device where the log goes on: the rest of its segment, and the one after it.
fn where_the_log_goes_on(volume: &Superblock) -> [(SegmentNo, Range<u32>); 2] {
    let all = volume.segment_blocks;
    [(volume.chain.0, volume.chain.1..all), (volume.chain_next.unwrap(), 0..all)]
}

/// Puts blocks where files were that are gone, and where the log goes on.
fn put(image: &mut [u8], volume: &Superblock, mut block: impl FnMut(Addr) -> Option<Vec<u8>>) {
    for (segment, blocks) in where_the_log_goes_on(volume) {
        for n in blocks {
            let addr = Addr::new(segment, n);
            let at = (AREA_BLOCKS + segment.0 * u64::from(volume.segment_blocks) + u64::from(n)) as usize * BLOCK_BYTES;
            if let Some(bytes) = block(addr) {
                image[at..at + BLOCK_BYTES].copy_from_slice(&bytes);
            }
        }
    }
}

fn opened(image: Vec<u8>, clock: &Arc<TestClock>) -> (Arc<MemDevice>, Arc<Fs>) {
    let device = Arc::new(MemDevice::from_bytes(image));
    let fs = Fs::open(vec![device.clone()], clock.clone(), MountOptions::default()).unwrap();
    (device, fs)
}

fn sync_some(fs: &Fs, name: &str, content: &[u8]) {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    fs.write(ino, 0, content, 0).unwrap();
    fs.fsync_wait(ino).unwrap();
}

/// After a clean unmount, and after a cut.
fn forged_content_proves_nothing() {
    for closes in [true, false] {
        for guesses in [true, false] {
            let w = World::new(VOLUME_BYTES);
            let fs = w.open();
            sync_some(&fs, "f", &[5; 9000]);
            if closes {
                fs.close().unwrap();
            }
            let mut image = w.device.inner().snapshot();
            let volume = newest(&image);
            // The log behind the root stays where nothing was closed.
            let is_free = |image: &[u8], addr: Addr| {
                let at = (AREA_BLOCKS + addr.segment().0 * u64::from(volume.segment_blocks) + u64::from(addr.block()))
                    as usize;
                closes || image[at * BLOCK_BYTES..][..BLOCK_BYTES].iter().all(|b| *b == 0)
            };
            let before = image.clone();
            put(&mut image, &volume, |addr| {
                let place = if guesses { addr } else { Addr::new(SegmentNo(1), 3) };
                is_free(&before, addr).then(|| forged(&volume, place, 0x1234_5678))
            });
            let (_, fs) = opened(image, &w.clock);
            assert_eq!(fs.recovery_report().damage, None, "believed, closed: {closes}, at home: {guesses}");
            let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
            assert_eq!(fs.read(At::Live, f.ino, 0, 9000).unwrap(), [5; 9000]);
            sync_some(&fs, "more", &[6; 5000]);
            fs.close().unwrap();
        }
    }
}

#[test]
fn content_that_looks_like_the_log_proves_nothing() {
    forged_content_proves_nothing();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "believed")]
fn content_that_proves_something_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ContentProves, forged_content_proves_nothing);
}

/// A volume is restored from a backup, and what became of it since is kept there as a file.
#[test]
fn a_copy_of_the_volume_that_went_on_proves_nothing() {
    let w = World::new(VOLUME_BYTES);
    let fs = w.open();
    sync_some(&fs, "f", &[5; 9000]);
    fs.close().unwrap();
    let backup = w.device.inner().snapshot();
    for i in 0..12 {
        let fs = w.open();
        sync_some(&fs, &format!("since {i}"), &[i; 6000]);
        fs.close().unwrap();
    }
    let since = w.device.inner().snapshot();
    let (device, fs) = opened(backup, &w.clock);
    sync_some(&fs, "restored", &[7; 6000]);
    fs.close().unwrap();
    let mut image = device.snapshot();
    let volume = newest(&image);
    let log = since
        .chunks_exact(BLOCK_BYTES)
        .filter(|b| Header::decode(b).is_ok_and(|s| s.header.kind == PartialKind::Chain));
    let blocks: Vec<&[u8]> = log.collect();
    assert!(blocks.len() > 12);
    let mut next = blocks.iter().cycle();
    put(&mut image, &volume, |_| Some(next.next()?.to_vec()));
    let (_, fs) = opened(image, &w.clock);
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.lookup(At::Live, Ino::ROOT, b"restored").is_ok());
}

/// A commit that is torn by a power cut, of which another part of the content looks like a later commit.
#[test]
fn content_does_not_prove_the_commit_that_it_is_a_part_of() {
    let w = World::new(VOLUME_BYTES);
    let fs = w.open();
    sync_some(&fs, "before", &[5; 9000]);
    let volume = newest(&w.device.inner().snapshot());
    let mut content = forged(&volume, Addr::new(SegmentNo(1), 3), 0x1234_5678);
    content.extend(forged(&volume, Addr::new(SegmentNo(1), 4), 0));
    content.extend([0x5e; BLOCK_BYTES]);
    sync_some(&fs, "torn", &content);
    let mut image = w.device.inner().snapshot();
    let last = image.chunks_exact(BLOCK_BYTES).position(|b| b == [0x5e; BLOCK_BYTES]).unwrap();
    image[last * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
    let (_, fs) = opened(image, &w.clock);
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.lookup(At::Live, Ino::ROOT, b"torn").is_err(), "what never was whole is there");
    assert!(fs.lookup(At::Live, Ino::ROOT, b"before").is_ok());
}

/// Each mount has an identity of its own, also of two volumes of which one is a copy of the other.
#[test]
fn mounts_are_told_apart() {
    let w = World::new(VOLUME_BYTES);
    let mut seen = std::collections::BTreeSet::from([newest(&w.device.inner().snapshot()).mount_id]);
    let copy = w.device.inner().snapshot();
    for i in 0..3 {
        let fs = w.open();
        sync_some(&fs, &format!("{i}"), &[i; 100]);
        fs.close().unwrap();
        assert!(seen.insert(newest(&w.device.inner().snapshot()).mount_id), "{i}");
    }
    w.pass(1000);
    let (device, fs) = opened(copy, &w.clock);
    fs.close().unwrap();
    assert!(seen.insert(newest(&device.snapshot()).mount_id));
    assert!(!seen.contains(&0));
}

/// A mirror of which the last partial has a summary of several blocks: the first of them is on one device, and on the other what was
/// there before, a partial of an earlier life of the segment, or nothing. How many partials were found.
fn found_with(before: bool) -> u64 {
    use crate::devices::World as Mirror;
    use nenrin_core::AlignedBuf;
    use nenrin_core::format::superblock::Profile;
    use nenrin_device::BlockDevice;
    let w = Mirror::new(Profile::Mirror, &[24, 24]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    sync_some(&fs, "f", &[5; 9000]);
    for i in 0..200 {
        fs.create(Ino::ROOT, format!("one of very many files with a long name {i:040}").as_bytes(), &file(0o600))
            .unwrap();
    }
    sync_some(&fs, "last", b"");
    let image = w.members[0].read(0, 24 << 20).unwrap();
    let chain = |at: usize| Some((at, Header::decode(image.get(at * BLOCK_BYTES..)?).ok()?.header));
    let all = (0..image.len() / BLOCK_BYTES).filter_map(chain);
    let (at, last) = all.filter(|(_, h)| h.kind == PartialKind::Chain).max_by_key(|(_, h)| h.seq).unwrap();
    assert!(last.summary_blocks > 1, "{last:?}");
    drop(fs);
    let put = |device: usize, block: usize, bytes: &[u8]| {
        let bytes = Arc::new(AlignedBuf::padded(bytes));
        w.members[device].write((block * BLOCK_BYTES) as u64, bytes).unwrap();
    };
    for block in 0..last.total_blocks() as usize {
        put(1, at + block, &[0; BLOCK_BYTES]);
        if block > 0 {
            put(0, at + block, &[0; BLOCK_BYTES]);
        }
    }
    if before {
        let earlier = Header { seq: Seq(1), prev_addr: Addr::NONE, prev_crc: 0, payload_blocks: 0, next: None, ..last };
        put(1, at, &earlier.encode(&[], &[]).0);
    }
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    let partials = fs.recovery_report().partials;
    sync_some(&fs, "more", &[6; 5000]);
    fs.close().unwrap();
    partials
}

fn another_summary_is_not_taken() {
    assert_eq!(found_with(true), found_with(false), "another summary is taken");
}

#[test]
fn what_another_device_has_of_before_is_not_taken_for_a_torn_summary() {
    another_summary_is_not_taken();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "another summary is taken")]
fn what_is_taken_for_a_torn_summary_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::AnySummary, another_summary_is_not_taken);
}
