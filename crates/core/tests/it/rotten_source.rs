//! P1, P4: a block that rots in what was copied costs nobody an acknowledged commit; and a commit whose own content never arrived counts
//! for nothing, also where that is shared.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Error, Fs, MountOptions};
use nenrin_device::{BlockDevice, Fault, Faulty, MemDevice};
use std::sync::Arc;

const BLOCKS: usize = 40;

/// Blocks that are found again on the device.
fn content(stamp: u8) -> Vec<u8> {
    (0..BLOCKS).flat_map(|n| [&[stamp; 4000][..], &[n as u8; 96]].concat()).collect()
}

fn write(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    fs.write(ino, 0, data, 0).unwrap();
    ino
}

/// Copies a file as cp(1) does, and syncs the copy.
fn copied(fs: &Fs, from: Ino, name: &str) -> Ino {
    let to = write(fs, name, b"");
    assert_eq!(fs.copy_range(from, 0, to, 0, 1 << 30, 0).unwrap(), (BLOCKS * 4096) as u64);
    fs.fsync_wait(to).unwrap();
    to
}

fn place_of(image: &[u8], block: &[u8]) -> usize {
    image.chunks(4096).position(|b| b == block).unwrap() * 4096
}

/// Where the copy is of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// In an index, and shared by nobody.
    Settled,
    /// Shared already, by two syncs before.
    Shared,
    /// In the log alone.
    Logged,
    /// In a checkpoint alone.
    Past,
}

/// The image after the power went behind the sync of a copy, with a block of its source wrong, and what is wrong.
fn cut_behind_a_copy(source: Source) -> (Vec<u8>, usize) {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let old = write(&fs, "old", &content(7));
    fs.sync_all().unwrap();
    if source == Source::Shared {
        copied(&fs, old, "before");
        copied(&fs, old, "again");
    }
    if source != Source::Logged {
        // Idle for long enough that an index checkpoint comes.
        for _ in 0..200 {
            w.pass(500_000_000);
            fs.tick().unwrap();
        }
    }
    match source {
        Source::Past => {
            let cno = fs.checkpoint_create(None).unwrap().cno;
            fs.unlink(Ino::ROOT, b"old").unwrap();
            fs.sync_all().unwrap();
            let to = write(&fs, "new", b"");
            let done = fs.copy_range_at(At::Past(cno), old, 0, to, 0, 1 << 30, 0.into()).unwrap();
            assert_eq!(done, (BLOCKS * 4096) as u64);
            fs.fsync_wait(to).unwrap();
        }
        _ => drop(copied(&fs, old, "new")),
    }
    let image = w.device.inner().snapshot();
    let at = place_of(&image, &content(7)[9 * 4096..10 * 4096]);
    (image, at)
}

/// What a mount, and one after a repair, must show of the copy.
fn shows_the_copy(fs: &Fs, what: &str) {
    assert_eq!(fs.recovery_report().damage, None, "{what}");
    let new = fs.lookup(At::Live, Ino::ROOT, b"new").unwrap_or_else(|e| panic!("{what}: a sync was lost: {e}"));
    assert_eq!(new.size, (BLOCKS * 4096) as u64, "{what}: a sync was lost");
    assert!(fs.read(At::Live, new.ino, 9 * 4096, 4096).is_err(), "{what}: that is lost");
    // A checksum may be that of some blocks together.
    let read = fs.read(At::Live, new.ino, 32 * 4096, 1 << 20).unwrap();
    assert!(read == content(7)[32 * 4096..], "{what}: the rest is right");
}

fn rotten_sources() {
    for source in [Source::Settled, Source::Shared, Source::Logged, Source::Past] {
        let (mut image, at) = cut_behind_a_copy(source);
        image[at + 17] ^= 1;
        let rotten = Arc::new(MemDevice::from_bytes(image));
        let clock = Arc::new(crate::common::TestClock::default());
        let fs = Fs::open(vec![rotten], clock, MountOptions::default()).unwrap();
        shows_the_copy(&fs, &format!("{source:?}, rotten"));
        write(&fs, "more", b"more");
        fs.close().unwrap();
    }
}

#[test]
fn what_rots_in_the_source_of_a_copy_costs_no_commit() {
    rotten_sources();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync was lost")]
fn commits_that_are_judged_by_what_they_share_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SharedJudged, rotten_sources);
}

/// The same where the device does not give the block.
#[test]
fn what_cannot_be_read_of_the_source_of_a_copy_costs_no_commit() {
    let (image, at) = cut_behind_a_copy(Source::Settled);
    let faulty = Arc::new(Faulty::new(Arc::new(MemDevice::from_bytes(image)) as Arc<dyn BlockDevice>));
    faulty.faults().inject(Fault::FailReads { range: at as u64..at as u64 + 4096 });
    let clock = Arc::new(crate::common::TestClock::default());
    let fs = Fs::open(vec![faulty], clock, MountOptions::default()).unwrap();
    shows_the_copy(&fs, "unread");
    fs.close().unwrap();
}

/// A copy of what was never committed: the commit of the copy is the first that names it, and none of it arrived.
fn copy_without_its_data(committed: bool) -> Option<Result<Vec<u8>, Error>> {
    let w = World::new(64 << 20);
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    fs.sync_all().unwrap();
    // Much of it, so that it is written ahead and is not part of the log.
    let data: Vec<u8> = (0..8).flat_map(|_| content(9)).collect();
    let old = write(&fs, "old", &data);
    if committed {
        fs.fsync_wait(old).unwrap();
    }
    fs.flush(old).unwrap();
    let to = write(&fs, "new", b"");
    let mut done = 0;
    while done < 100 * 4096 {
        done += fs.copy_range(old, done, to, done, 100 * 4096 - done, 0).unwrap();
    }
    fs.fsync_wait(to).unwrap();
    let mut image = w.device.inner().snapshot();
    let wrong = &content(9)[9 * 4096..10 * 4096];
    let places: Vec<_> = (0..image.len()).step_by(4096).filter(|at| &image[*at..*at + 4096] == wrong).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| image[at..at + 4096].fill(0));
    let fs = Fs::open(vec![Arc::new(MemDevice::from_bytes(image))], w.clock.clone(), MountOptions::default()).unwrap();
    let new = fs.lookup(At::Live, Ino::ROOT, b"new").ok()?;
    Some(fs.read(At::Live, new.ino, 0, 1 << 20))
}

fn data_that_never_arrived() {
    let read = copy_without_its_data(false);
    let is_cut = read.as_ref().is_none_or(|read| read.as_ref().is_ok_and(Vec::is_empty));
    assert!(is_cut, "a commit counts whose data never arrived: {:?}", read.map(|r| r.map(|b| b.len())));
}

#[test]
fn a_copy_whose_data_never_arrived_does_not_count() {
    data_that_never_arrived();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a commit counts whose data never arrived")]
fn copies_that_count_without_their_data_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SharedBelieved, data_that_never_arrived);
}
