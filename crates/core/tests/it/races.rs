//! What several threads do to each other, made certain by a device that holds
//! back chosen requests.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{World, has_nodes, is_answered, is_long_write, is_read, world};
use crate::common::{file, patience};
use nenrin_core::format::Ino;
use nenrin_core::{At, Error, Fs, MountOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// P1, P3: a write that begins and ends within blocks reads both; a commit
/// between the two reads must not make the first block's other bytes zeros.
#[test]
fn a_commit_between_two_reads_of_a_write_loses_nothing() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 3 * 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    gate.close(is_read, 1);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 100, &[9; 2 * 4096], 0))
    };
    gate.wait_until(|s| s.waiting == 1);
    fs.fsync_wait(f.ino).unwrap();
    gate.open();
    writer.join().unwrap().unwrap();
    let mut expected = vec![7; 3 * 4096];
    expected[100..100 + 2 * 4096].fill(9);
    assert!(fs.read(At::Live, f.ino, 0, 3 * 4096).unwrap() == expected, "bytes around the write changed");
}

/// The same for a hole that is punched.
#[test]
fn a_commit_between_two_reads_of_a_hole_leaves_nothing_behind() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 3 * 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    gate.close(is_read, 1);
    let puncher = {
        let fs = fs.clone();
        thread::spawn(move || fs.allocate(f.ino, nenrin_core::AllocateMode::Punch, 100, 2 * 4096))
    };
    gate.wait_until(|s| s.waiting == 1);
    fs.fsync_wait(f.ino).unwrap();
    gate.open();
    puncher.join().unwrap().unwrap();
    let mut expected = vec![7; 3 * 4096];
    expected[100..100 + 2 * 4096].fill(0);
    assert!(fs.read(At::Live, f.ino, 0, 3 * 4096).unwrap() == expected, "the hole is not one");
}

/// P4: nodes of the index leave memory only when the device has them.
#[test]
fn nodes_under_way_are_read_from_memory() {
    let World { gate, clock, fs, .. } = world(MountOptions { cache_bytes: 1, ..MountOptions::default() });
    let names: Vec<String> = (0..600).map(|i| format!("file number {i}")).collect();
    for name in &names {
        fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap();
    }
    for _ in 0..2 {
        fs.tick().unwrap();
        clock.0.fetch_add(30_000_000_000, Ordering::Relaxed);
    }
    gate.close(has_nodes, 0);
    let (tx, ticked) = mpsc::channel();
    let ticker = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.tick()))
    };
    gate.wait_until(|s| s.waiting > 0);
    for name in &names {
        fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.create(Ino::ROOT, b"one more", &file(0o600)).unwrap();
    gate.open();
    ticked.recv().unwrap().unwrap();
    ticker.join().unwrap().unwrap();
    for name in &names {
        fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap();
    }
    assert_eq!(fs.failed(), None);
}

/// Seed 4: a sync waits for what was written before it, and for nothing that
/// others write to the same file meanwhile.
#[test]
fn a_sync_does_not_wait_for_later_writes_of_its_file() {
    let World { gate, fs, .. } = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let write = |at: u64| {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, at, &vec![7; 3 << 20], 0))
    };
    let first = write(0);
    gate.wait_until(|s| s.waiting == 1);
    let earlier = gate.held();
    let (tx, synced) = mpsc::channel();
    let syncer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.fsync_wait(f.ino)))
    };
    assert!(!is_answered(&synced), "acknowledged while its data was under way");
    let second = write(3 << 20);
    gate.let_go(earlier);
    synced.recv_timeout(Duration::from_secs(60)).expect("it waits for a later write").unwrap();
    gate.open();
    syncer.join().unwrap().unwrap();
    for writer in [first, second] {
        writer.join().unwrap().unwrap();
    }
}

/// A program that syncs again as soon as it is told, so that somebody always waits.
fn sync_again(fs: &Arc<Fs>, ino: Ino, stop: &Arc<AtomicBool>) {
    let (again, stop) = (fs.clone(), stop.clone());
    let done = move |r: nenrin_core::Result<()>| {
        r.unwrap();
        if !stop.load(Ordering::Relaxed) {
            sync_again(&again, ino, &stop);
        }
    };
    fs.fsync(ino, Box::new(done));
}

/// P1, P2: programs that sync all the time leave others their turn: else no
/// checkpoint is cut, the log is never let go, and nothing else is committed in time.
#[test]
fn programs_that_sync_leave_others_their_turn() {
    let World { clock, fs, .. } = world(MountOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    // Like the serving threads of the front end, which do not wait for the answer.
    let mut threads: Vec<_> = (0..2)
        .map(|i| {
            let (fs, stop) = (fs.clone(), stop.clone());
            thread::spawn(move || {
                if i == 0 {
                    sync_again(&fs, f.ino, &stop);
                }
                while !stop.load(Ordering::Relaxed) {
                    fs.fsync(f.ino, Box::new(|r| r.unwrap()));
                    thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    let (tx, rx) = mpsc::channel();
    threads.push({
        let fs = fs.clone();
        thread::spawn(move || {
            for i in 0..5 {
                fs.checkpoint_create(None).unwrap();
                fs.create(Ino::ROOT, &[b'0' + i], &file(0o600)).unwrap();
                clock.0.fetch_add(6_000_000_000, Ordering::Relaxed);
                fs.tick().unwrap();
                fs.sync_all().unwrap();
                tx.send(i).unwrap();
            }
        })
    });
    let turns = (0..5).map_while(|_| rx.recv_timeout(patience()).ok()).count();
    stop.store(true, Ordering::Relaxed);
    for t in threads {
        t.join().unwrap();
    }
    assert_eq!(turns, 5, "beside {} commits", fs.counters().commits);
    assert_eq!(fs.counters().checkpoints, 10);
}

/// P7: room that was asked for is still there when a writer that had to read
/// first comes back, or it is refused.
#[test]
fn room_is_not_given_away_while_a_writer_reads() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    gate.close(is_read, 0);
    let large = vec![9; 12 << 20];
    let writer = {
        let (fs, large) = (fs.clone(), large.clone());
        thread::spawn(move || fs.write(f.ino, 100, &large, 0))
    };
    gate.wait_until(|s| s.waiting == 1);
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
    let mut at = 0;
    while fs.write(g.ino, at, &large[..1 << 20], 0).is_ok() {
        at += 1 << 20;
    }
    gate.open();
    let written = writer.join().unwrap();
    assert_eq!(fs.failed(), None);
    assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
    fs.unlink(Ino::ROOT, b"g").unwrap();
    fs.sync_all().unwrap();
    let expected = vec![7; 4096];
    assert!(fs.read(At::Live, f.ino, 0, 1 << 25).unwrap() == expected, "a refused write left something");
}

/// Memory: what others wait for counts, so that each thread does not get a limit of its own.
#[test]
fn writes_that_others_wait_for_count_as_dirty() {
    let World { gate, fs, .. } = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let inodes: Vec<Ino> = (b'a'..b'e').map(|n| fs.create(Ino::ROOT, &[n], &file(0o600)).unwrap().ino).collect();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let write = |ino: Ino, bytes: usize| {
        let (fs, (tx, rx)) = (fs.clone(), mpsc::channel());
        let thread = thread::spawn(move || drop(tx.send(fs.write(ino, 0, &vec![7; bytes], 0))));
        (thread, rx)
    };
    let mut writers = vec![write(inodes[0], 3 << 20)];
    gate.wait_until(|s| s.waiting == 1);
    for ino in &inodes[1..] {
        let writer = write(*ino, 512 << 10);
        assert!(!is_answered(&writer.1), "accepted beyond the limit");
        writers.push(writer);
    }
    gate.open();
    for (thread, answer) in writers {
        answer.recv().unwrap().unwrap();
        thread.join().unwrap();
    }
    fs.sync_all().unwrap();
}

/// P1: what is accepted while the volume is being closed is not lost: it is
/// refused, or it is there afterwards.
#[test]
fn nothing_is_accepted_and_lost_while_closing() {
    let World { gate, device, fs, clock } = world(MountOptions::default());
    for i in 0..600 {
        fs.create(Ino::ROOT, format!("file number {i}").as_bytes(), &file(0o600)).unwrap();
    }
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 4096], 0).unwrap();
    gate.close(has_nodes, 1);
    let closer = {
        let fs = fs.clone();
        thread::spawn(move || fs.close())
    };
    gate.wait_until(|s| s.waiting > 0);
    let written = fs.write(f.ino, 0, &[8; 4096], 0);
    let created = fs.create(Ino::ROOT, b"g", &file(0o600));
    gate.open();
    closer.join().unwrap().unwrap();
    let device: Arc<dyn nenrin_device::BlockDevice> = device;
    let fs = Fs::open(vec![device], clock, MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
    let expected = if written.is_ok() { 8 } else { 7 };
    assert_eq!(fs.read(At::Live, f.ino, 0, 4096).unwrap()[0], expected, "{written:?}");
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"g").is_ok(), created.is_ok(), "{created:?}");
}
