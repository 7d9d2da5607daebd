//! The asynchronous calls: what is under way together, what is told when, what a dropped ticket leaves.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{Gate, gated, is_read};
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{At, Clock, Error, Fs, MkfsOptions, MountOptions, NewInode, mkfs_on};
use nenrin_device::BlockDevice;
use std::sync::Arc;
use std::thread;

struct World {
    gates: Vec<Arc<Gate>>,
    devices: Vec<Arc<dyn BlockDevice>>,
    clock: Arc<dyn Clock>,
    fs: Arc<Fs>,
}

fn world(count: usize, profile: Profile) -> World {
    let (devices, gates): (Vec<_>, Vec<_>) = (0..count).map(|_| gated(64 << 20)).unzip();
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    mkfs_on(&devices, &clock, &MkfsOptions { profile, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(devices.clone(), clock.clone(), MountOptions::default()).unwrap();
    World { gates, devices, clock, fs }
}

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 999 + seed) as u8).collect()
}

fn written(fs: &Fs, name: &[u8], data: &[u8]) -> Ino {
    let ino = fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    assert_eq!(fs.submit_write(ino, 0, data, 0).wait().unwrap(), data.len());
    fs.submit_sync(ino).wait().unwrap();
    ino
}

impl World {
    fn held(&self) -> Vec<usize> {
        self.gates.iter().map(|g| g.held()).collect()
    }
    fn close_reads(&self) {
        self.gates.iter().for_each(|g| g.close(is_read, 0));
    }
    fn open(&self) {
        self.gates.iter().for_each(|g| g.open());
    }
}

#[test]
fn reads_of_one_thread_are_under_way_on_all_devices() {
    let w = world(4, Profile::Stripe);
    let data = content(1, 8 << 20);
    let f = written(&w.fs, b"f", &data);
    w.close_reads();
    let reads: Vec<_> = (0..8u64).map(|i| w.fs.submit_read(At::Live, f, i << 20, 1 << 20)).collect();
    assert!(w.held().iter().all(|held| *held >= 8), "{:?}", w.held());
    assert!(reads.iter().all(|r| !r.is_done()));
    w.open();
    assert!(reads.iter().all(nenrin_core::ReadTicket::is_done));
    for (i, read) in reads.into_iter().enumerate().rev() {
        assert!(read.wait().unwrap().into_vec() == data[i << 20..(i + 1) << 20]);
    }
}

/// A slow device holds up only who needs it.
#[test]
fn a_read_of_other_devices_is_over_while_one_device_is_stuck() {
    let w = world(4, Profile::Stripe);
    let data = content(2, 1 << 20);
    let f = written(&w.fs, b"f", &data);
    w.gates[2].close(is_read, 0);
    let units: Vec<_> = (0..16u64).map(|u| w.fs.submit_read(At::Live, f, u << 16, 1 << 16)).collect();
    let stuck: Vec<usize> = (0..16).filter(|u| !units[*u].is_done()).collect();
    assert!((4..=8).contains(&stuck.len()), "{stuck:?}");
    for (u, read) in units.into_iter().enumerate() {
        if !stuck.contains(&u) {
            assert!(read.wait().unwrap().into_vec() == data[u << 16..(u + 1) << 16]);
        }
    }
    w.open();
}

#[test]
fn errors_come_from_wait() {
    let w = world(1, Profile::Single);
    let directory = NewInode { mode: 0o040_755, ..file(0) };
    let d = w.fs.create(Ino::ROOT, b"d", &directory).unwrap().ino;
    assert!(matches!(w.fs.submit_read(At::Live, d, 0, 1).wait(), Err(Error::IsDirectory)));
    assert!(matches!(w.fs.submit_read(At::Live, Ino(999), 0, 1).wait(), Err(Error::NotFound)));
    assert!(matches!(w.fs.submit_write(Ino(999), 0, b"x", 0).wait(), Err(Error::NotFound)));
    assert!(matches!(w.fs.submit_write(d, u64::MAX, b"x", 0).wait(), Err(Error::TooLarge)));
    let f = written(&w.fs, b"f", b"short");
    assert_eq!(w.fs.submit_read(At::Live, f, 2, 100).wait().unwrap().into_vec(), b"ort");
    assert!(w.fs.submit_read(At::Live, f, 5, 100).wait().unwrap().is_empty());
    let ticket = w.fs.submit_write(f, 0, b"x", 0);
    w.fs.close().unwrap();
    assert_eq!(ticket.wait().unwrap(), 1);
    assert!(w.fs.submit_write(f, 0, b"y", 0).wait().is_err());
    assert!(w.fs.submit_sync(f).wait().is_err());
}

/// P4: rot on one device of a mirror is found by who waits, and mended.
#[test]
fn what_is_waited_for_is_verified_and_mended() {
    let w = world(2, Profile::Mirror);
    let data = content(3, 1 << 20);
    let f = written(&w.fs, b"f", &data);
    let bytes = w.devices[0].geometry().bytes;
    for at in (1 << 20..bytes - (1 << 20)).step_by(1 << 20) {
        let zeros = Arc::new(nenrin_core::AlignedBuf::zeroed(1 << 20));
        w.devices[0].write(at, zeros).unwrap();
    }
    let reads: Vec<_> = (0..16u64).map(|u| w.fs.submit_read(At::Live, f, u << 16, 1 << 16)).collect();
    for (u, read) in reads.into_iter().enumerate() {
        assert!(read.wait().unwrap().into_vec() == data[u << 16..(u + 1) << 16]);
    }
    assert!(w.fs.counters().mended_blocks > 0);
}

/// No unbounded memory: beyond the limit a read begins when it is waited for, also by the thread that holds all tickets.
fn submit_a_hundred(w: &World, f: Ino) -> usize {
    w.close_reads();
    let first = w.fs.submit_read(At::Live, f, 0, 1 << 20);
    let requests = w.gates[0].held();
    let reads: Vec<_> = (0..99).map(|_| w.fs.submit_read(At::Live, f, 0, 1 << 20)).chain([first]).collect();
    let begun = w.gates[0].held() / requests;
    w.open();
    assert!(reads.into_iter().all(|r| r.wait().unwrap().len() == 1 << 20));
    begun
}

#[test]
fn reads_under_way_are_bounded() {
    let w = world(1, Profile::Single);
    let f = written(&w.fs, b"f", &content(4, 1 << 20));
    let begun = submit_a_hundred(&w, f);
    assert_eq!(begun, 64);
    // What was dropped counts no more.
    w.close_reads();
    drop((0..100).map(|_| w.fs.submit_read(At::Live, f, 0, 1 << 20)).collect::<Vec<_>>());
    w.open();
    assert_eq!(submit_a_hundred(&w, f), begun);
}

#[cfg(feature = "breaks")]
#[test]
fn unbounded_reads_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    let w = world(1, Profile::Single);
    let f = written(&w.fs, b"f", &content(4, 1 << 20));
    assert!(with(Break::ReadsUnbounded, || submit_a_hundred(&w, f)) == 100);
}

#[test]
fn syncs_that_were_submitted_share_commits() {
    let w = world(4, Profile::Stripe);
    let files: Vec<Ino> = (0..10).map(|i| written(&w.fs, &[b'a' + i], b"x")).collect();
    let before = w.fs.counters();
    let tickets: Vec<_> = files
        .iter()
        .map(|f| {
            w.fs.submit_write(*f, 0, b"new", 0).wait().unwrap();
            w.fs.submit_sync(*f)
        })
        .collect();
    tickets.into_iter().rev().for_each(|t| t.wait().unwrap());
    let after = w.fs.counters();
    assert_eq!((after.commits - before.commits, after.flushes - before.flushes), (1, 1));
    assert_eq!(after.shared_commits - before.shared_commits, 9);
    // Another one's sync takes along what was submitted; a dropped ticket asks for nothing.
    let mine = w.fs.submit_sync(files[0]);
    drop(w.fs.submit_sync(files[1]));
    w.fs.submit_write(files[2], 0, b"more", 0).wait().unwrap();
    w.fs.fsync_wait(files[2]).unwrap();
    let now = w.fs.counters();
    mine.wait().unwrap();
    assert_eq!(w.fs.counters().commits, now.commits);
    let fs = Fs::open(w.devices.clone(), w.clock.clone(), MountOptions { read_only: true, ..MountOptions::default() });
    assert_eq!(fs.unwrap().read(At::Live, files[9], 0, 9).unwrap(), b"new");
}

#[test]
fn tickets_go_from_thread_to_thread() {
    let w = world(4, Profile::Stripe);
    let data = content(5, 4 << 20);
    let f = written(&w.fs, b"f", &data);
    thread::scope(|scope| {
        for i in 0..4u64 {
            let ticket = w.fs.submit_read(At::Live, f, i << 20, 1 << 20);
            let expected = &data[(i as usize) << 20..(i as usize + 1) << 20];
            scope.spawn(move || assert!(ticket.wait().unwrap().into_vec() == expected));
            let sync = w.fs.submit_sync(f);
            scope.spawn(move || sync.wait().unwrap());
        }
    });
}

/// A device that became slow gets few reads of what another one has, too.
#[test]
fn a_copy_is_read_where_less_is_under_way() {
    let w = world(2, Profile::Mirror);
    let data = content(6, 4 << 20);
    let f = written(&w.fs, b"f", &data);
    w.gates[0].close(is_read, 0);
    let mut stuck = Vec::new();
    while w.gates[0].held() == 0 {
        stuck.push(w.fs.submit_read(At::Live, f, 0, 4096));
    }
    stuck.retain(|read| !read.is_done());
    for at in (0..4 << 20).step_by(64 << 10) {
        // One request: of two, the first would make the device that answers as busy as the other.
        let read = w.fs.submit_read(At::Live, f, at, 4096);
        assert!(read.is_done(), "from the device that does not answer");
        assert!(read.wait().unwrap().into_vec() == data[at as usize..][..4096]);
    }
    w.gates[0].open();
    assert!(stuck.into_iter().all(|read| read.wait().unwrap().into_vec() == data[..4096]));
}
