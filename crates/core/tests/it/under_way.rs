//! Writes that are under way while others sync: a device whose long writes
//! complete only when the test lets them; short ones, of the chain, pass.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{Gate, World, behind, is_answered, is_long_write, world};
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, Order, mkfs_on};
use nenrin_device::{BlockDevice, Op};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A file `f` of which so many blocks wait in memory, here and there, and a commit by time is due; and `g`, which was just synced.
fn beside_a_sync(blocks: u64) -> (World, Ino) {
    let world = world(MountOptions::default());
    let fs = &world.fs;
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    fs.sync_all().unwrap();
    (0..blocks).for_each(|n| assert_eq!(fs.write(f, n * 8192, &[7; 4096], 0).unwrap(), 4096));
    world.clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.write(g, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    (world, f)
}

/// Of 8 MiB, in writes of 512 KiB.
fn a_burst_is_begun_at_once(write: impl Fn(&Fs, Ino) + Sync) {
    let (World { gate, fs, .. }, f) = beside_a_sync(2048);
    gate.close(is_long_write, 0);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write(&fs, f));
        gate.wait_until(|s| s.waiting > 0);
        let held = gate.held();
        gate.open();
        writing.join().unwrap();
        assert_eq!(held, 8, "writes of 256 KiB and more under way");
    });
}

/// Like a writer, whoever commits all files because of time has a burst under way beside the syncs of others.
#[test]
fn a_commit_because_of_time_writes_in_bursts_beside_syncs() {
    a_burst_is_begun_at_once(|fs, _| fs.tick().unwrap());
}

/// So does who closes a file: nobody else would wait for what it leaves behind.
#[test]
fn a_close_writes_in_bursts_beside_syncs() {
    a_burst_is_begun_at_once(|fs, f| fs.flush(f).unwrap());
}

/// It is not kept by who goes on writing.
#[test]
fn a_commit_because_of_time_ends_beside_syncs_and_a_writer_without_end() {
    const ROUNDS: u64 = 20;
    const PATIENCE: Duration = Duration::from_millis(100);
    let (World { gate, fs, .. }, f) = beside_a_sync(300);
    gate.close(is_long_write, 0);
    thread::scope(|scope| {
        let committing = scope.spawn(|| fs.tick().unwrap());
        let (mut rounds, mut waiting, mut since) = (0, 0, Instant::now());
        while rounds < ROUNDS && !committing.is_finished() {
            if gate.waiting() == waiting {
                if since.elapsed() > PATIENCE {
                    // All who are there wait for what came meanwhile.
                    gate.let_go(gate.held());
                }
                thread::yield_now();
                continue;
            }
            // While one write is waited for, 200 blocks come, and what was under way before ends.
            (waiting, rounds, since) = (gate.waiting(), rounds + 1, Instant::now());
            let (fs, before) = (&fs, gate.held());
            let writing = scope.spawn(move || fs.write(f, (100 + rounds) << 20, &[9; 200 * 4096], 0).unwrap());
            while !writing.is_finished() && gate.waiting() == waiting && since.elapsed() < PATIENCE {
                thread::yield_now();
            }
            gate.let_go(before);
        }
        gate.open();
        committing.join().unwrap();
        assert!(rounds < ROUNDS, "it waited for what came after it");
    });
}

/// Nor does it write one small file after the other, each when the one before is written.
#[test]
fn a_commit_because_of_time_writes_small_files_together_beside_syncs() {
    let World { gate, fs, clock, .. } = world(MountOptions::default());
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap().ino;
    for n in 0..100 {
        let f = fs.create(Ino::ROOT, format!("{n}").as_bytes(), &file(0o600)).unwrap().ino;
        assert_eq!(fs.write(f, 0, &[7; 8 * 4096], 0).unwrap(), 8 * 4096);
    }
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.write(g, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    // The first 160 blocks are written at once, and nobody has asked for them.
    gate.close(|op| matches!(op, Op::Write { data, .. } if data.len() == 8 * 4096), 20);
    thread::scope(|scope| {
        let committing = scope.spawn(|| fs.tick().unwrap());
        gate.wait_until(|s| s.waiting > 0);
        let held = gate.held();
        gate.open();
        committing.join().unwrap();
        assert!(held > 20 + 8, "{held} files were begun, of which 20 were written");
    });
}

/// Of 1,200 blocks of six files that a commit of all files writes beside syncs.
fn little_is_begun_at_once(fs: &Fs, gate: &Gate) {
    let create = |name: String| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    let (g, files) = (create("g".into()), (0..6).map(|n| create(format!("{n}"))).collect::<Vec<_>>());
    fs.sync_all().unwrap();
    fs.write(g, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    for f in files {
        (0..200).for_each(|n| assert_eq!(fs.write(f, n * 8192, &[7; 4096], 0).unwrap(), 4096));
    }
    gate.close(|op| matches!(op, Op::Write { data, .. } if data.len() >= 32 << 10), 0);
    thread::scope(|scope| {
        let committing = scope.spawn(|| fs.sync_all().unwrap());
        let mut begun = 0;
        // Until nothing more comes: were that said too soon, this shows less.
        while begun == 0 || begun < gate.held() {
            begun = gate.held();
            thread::sleep(Duration::from_millis(50));
        }
        gate.open();
        committing.join().unwrap();
        assert!(begun * 4 <= gate.held(), "{begun} of {} writes were under way at once", gate.held());
    });
}

/// Where data is not written in bursts, whoever commits all files has little under way beside syncs.
#[test]
fn a_commit_of_all_files_has_little_under_way_beside_syncs_in_strict_order() {
    let World { gate, fs, .. } = world(MountOptions { order: Order::Strict, ..MountOptions::default() });
    little_is_begun_at_once(&fs, &gate);
}

#[test]
fn a_commit_of_all_files_has_little_under_way_beside_syncs_on_rows_with_parity() {
    let gate = Arc::new(Gate::default());
    let devices: Vec<Arc<dyn BlockDevice>> = (0..3).map(|_| behind(&gate, 96 << 20)).collect();
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    mkfs_on(&devices, &clock, &MkfsOptions { profile: Profile::Parity, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(devices, clock, MountOptions::default()).unwrap();
    little_is_begun_at_once(&fs, &gate);
}

/// P1: a writer held up for want of memory waits for data writes of a file;
/// its fsync must wait for them too, though it does not hold their tickets.
#[test]
fn a_sync_waits_for_writes_that_another_thread_waits_for() {
    let World { gate, fs, .. } = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 0, &vec![7; 3 << 20], 0))
    };
    gate.wait_until(|s| s.waiting > 0);
    let (tx, synced) = mpsc::channel();
    let syncer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.fsync_wait(f.ino)))
    };
    assert!(!is_answered(&synced), "acknowledged while its data was under way");
    gate.open();
    synced.recv().unwrap().unwrap();
    syncer.join().unwrap().unwrap();
    writer.join().unwrap().unwrap();
}

/// P2, P3: no checkpoint of the index, after which segments are used anew, is
/// completed while a write is under way.
#[test]
fn closing_waits_for_writes_that_another_thread_waits_for() {
    let World { gate, fs, .. } = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 0, &vec![7; 3 << 20], 0))
    };
    gate.wait_until(|s| s.waiting > 0);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    let (tx, closed) = mpsc::channel();
    let closer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.close()))
    };
    assert!(!is_answered(&closed), "closed while a write was under way");
    gate.open();
    closed.recv().unwrap().unwrap();
    closer.join().unwrap().unwrap();
    drop(writer.join().unwrap());
}

/// Seed 4: a sync waits for its own file only.
#[test]
fn a_sync_does_not_wait_for_writes_of_other_files() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    fs.write(f.ino, 0, &vec![7; 3 << 20], 0).unwrap();
    fs.write(g.ino, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g.ino).unwrap();
    gate.open();
    fs.fsync_wait(f.ino).unwrap();
}

/// Seed 4: nor for those that others wait for, whatever makes them: a sync of another file, a commit
/// because of time, a checkpoint.
#[test]
fn a_sync_does_not_wait_for_those_who_wait_for_more() {
    type Other = fn(&World, Ino);
    let others: [Other; 3] = [
        |w, f| w.fs.fsync_wait(f).unwrap(),
        |w, _| {
            w.clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
            w.fs.tick().unwrap();
        },
        |w, _| drop(w.fs.checkpoint_create(Some(b"now")).unwrap()),
    ];
    for other in others {
        let w = world(MountOptions::default());
        let f = w.fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
        let g = w.fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
        w.fs.sync_all().unwrap();
        w.gate.close(is_long_write, 0);
        w.fs.write(f.ino, 0, &vec![7; 3 << 20], 0).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| other(&w, f.ino));
            w.gate.wait_until(|s| s.waiting > 0);
            w.fs.write(g.ino, 0, &[8; 4096], 0).unwrap();
            let (tx, synced) = mpsc::channel();
            let fs = w.fs.clone();
            scope.spawn(move || tx.send(fs.fsync_wait(g.ino)));
            let answer = synced.recv_timeout(std::time::Duration::from_secs(20));
            w.gate.open();
            answer.expect("the sync waited for the data of another file").unwrap();
            waiting.join().unwrap();
        });
    }
}

/// Whoever writes much is held while others sync, so that little is under way that they would wait for; and only he.
#[test]
fn a_writer_is_held_beside_the_syncs_of_others() {
    const MIB: usize = 1 << 20;
    let World { gate, fs, clock, .. } = world(MountOptions::default());
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let write = |n: u64| assert_eq!(fs.write(f, n * MIB as u64, &vec![7; MIB], 0).unwrap(), MIB);
    (0..8).for_each(write);
    fs.write(g, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g).unwrap();
    thread::scope(|scope| {
        let (tx, accepted) = mpsc::channel();
        scope.spawn(move || {
            write(8);
            tx.send(())
        });
        assert!(!is_answered(&accepted), "8 MiB were under way beside a sync");
        fs.write(g, 4096, &[9; 4096], 0).unwrap();
        fs.fsync_wait(g).unwrap();
        // The oldest five are done: 4 MiB are left.
        gate.let_go(5);
        accepted.recv().unwrap();
        gate.open();
    });
    fs.fsync_wait(f).unwrap();
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    gate.close(is_long_write, 0);
    (9..17).for_each(write);
    gate.open();
}
