//! Data that is held back beside syncs of other files (decision 0034).
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{World, is_long_write, world};
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{At, Fs, MountOptions, Order};
use nenrin_device::{BlockDevice, MemDevice, Op};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Files `f` and `g`, of which `g` was just synced.
fn beside_a_sync(options: MountOptions) -> (World, Ino, Ino) {
    let world = world(options);
    let fs = &world.fs;
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    fs.sync_all().unwrap();
    sync_of(fs, g);
    (world, f, g)
}

fn sync_of(fs: &Fs, g: Ino) {
    fs.write(g, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g).unwrap();
}

fn write(fs: &Fs, f: Ino, at: usize, mib: usize) {
    for n in at..at + mib {
        assert_eq!(fs.write(f, (n * MIB) as u64, &vec![n as u8 + 1; MIB], 0).unwrap(), MIB);
    }
}

fn bursts(fs: &Fs) -> u64 {
    fs.counters().bursts
}

/// Nothing of 3 MiB is begun, nor by a sync of the other file; the fourth has all of them written, and flushed.
#[test]
fn data_beside_syncs_of_others_is_written_in_bursts() {
    let (World { gate, fs, .. }, f, g) = beside_a_sync(MountOptions::default());
    gate.close(is_long_write, usize::MAX);
    let flushes = fs.counters().flushes;
    write(&fs, f, 0, 3);
    sync_of(&fs, g);
    assert_eq!((gate.held(), bursts(&fs), fs.counters().flushes - flushes), (0, 0, 1));
    // It can be read meanwhile.
    assert_eq!(fs.read(At::Live, f, 2 << 20, 4096).unwrap(), vec![3; 4096]);
    write(&fs, f, 3, 1);
    assert_eq!((gate.held(), bursts(&fs), fs.counters().flushes - flushes), (4, 1, 2));
}

/// What several writes put next to each other becomes one extent, of which nothing has arrived, or the end, or the beginning.
#[test]
fn what_is_on_its_way_in_several_writes_is_read_from_there() {
    const PART: usize = 128 << 10;
    let (World { fs, .. }, f, g) = beside_a_sync(MountOptions::default());
    let whole: Vec<u8> = (0..4 * PART).map(|i| (i / 4096) as u8).collect();
    for (n, part) in whole.chunks(PART).enumerate() {
        assert_eq!(fs.write(f, (n * PART) as u64, part, 0).unwrap(), PART);
    }
    sync_of(&fs, g);
    assert_eq!(bursts(&fs), 0);
    let read = |at: usize, bytes: usize| fs.read(At::Live, f, at as u64, bytes).unwrap() == whole[at..at + bytes];
    assert!(read(0, 4 * PART) && read(PART - 4096, 8192) && read(2 * PART + 8192, PART) && read(3 * PART, 4096));
    // One of two arrives before the other.
    for first in 0..2 {
        let (World { gate, fs, clock, .. }, f, _) = beside_a_sync(MountOptions::default());
        clock.0.fetch_add(2_000_000_000, Relaxed);
        gate.close(|op| matches!(op, Op::Write { data, .. } if data.len() >= PART), 0);
        for (n, part) in whole[..2 * PART].chunks(PART).enumerate() {
            fs.write(f, (n * PART) as u64, part, 0).unwrap();
        }
        assert_eq!(gate.held(), 2);
        gate.let_one_go(first);
        assert_eq!(fs.devices_left_in_use(), 0);
        assert!(fs.read(At::Live, f, 0, 2 * PART).unwrap() == whole[..2 * PART], "{first}");
        gate.open();
    }
}

#[test]
fn nothing_is_held_back_beside_own_syncs_nor_long_after_others_nor_in_strict_order() {
    let (World { gate, fs, clock, .. }, f, g) = beside_a_sync(MountOptions::default());
    gate.close(is_long_write, usize::MAX);
    write(&fs, g, 0, 1);
    assert_eq!(gate.held(), 1, "who syncs is not beside himself");
    clock.0.fetch_add(2_000_000_000, Relaxed);
    write(&fs, f, 0, 1);
    assert_eq!(gate.held(), 2, "nobody has synced for two seconds");
    let (World { gate, fs, .. }, f, _) =
        beside_a_sync(MountOptions { order: Order::Strict, ..MountOptions::default() });
    gate.close(is_long_write, usize::MAX);
    write(&fs, f, 0, 1);
    assert_eq!(gate.held(), 1, "each sync waits for all data there");
}

/// P1: a file's own sync writes what was held back of it, and that alone.
fn a_sync_writes_what_was_held_back() {
    let (World { gate, fs, device, .. }, f, g) = beside_a_sync(MountOptions::default());
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    gate.close(is_long_write, usize::MAX);
    write(&fs, f, 0, 2);
    write(&fs, other, 0, 1);
    fs.fsync_wait(f).unwrap();
    let begun = gate.held();
    sync_of(&fs, g);
    let left: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(device.snapshot()));
    let found = Fs::open(vec![left], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    let f = found.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
    for n in 0..2 {
        let content = found.read(At::Live, f, (n * MIB) as u64, MIB);
        assert!(content.is_ok_and(|c| c == vec![n as u8 + 1; MIB]), "what was synced is not there");
    }
    assert_eq!((begun, bursts(&fs)), (2, 0));
}

#[test]
fn a_sync_writes_what_was_held_back_of_its_file() {
    a_sync_writes_what_was_held_back();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was synced is not there")]
fn held_back_data_that_is_forgotten_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::HeldForgotten, a_sync_writes_what_was_held_back);
}

/// Whoever syncs does not wait for a burst that is under way, and writers have no more in memory than one more.
#[test]
fn a_sync_passes_a_burst_and_writers_wait_for_it() {
    let (World { gate, fs, .. }, f, g) = beside_a_sync(MountOptions::default());
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    gate.close(is_long_write, 0);
    thread::scope(|scope| {
        scope.spawn(|| write(&fs, f, 0, 4));
        gate.wait_until(|s| s.waiting > 0);
        sync_of(&fs, g);
        write(&fs, other, 0, 7);
        let held = scope.spawn(|| write(&fs, other, 7, 1));
        thread::sleep(Duration::from_millis(30));
        assert!(!held.is_finished(), "8 MiB are held back beside a burst");
        sync_of(&fs, g);
        gate.open();
    });
    assert_eq!(bursts(&fs), 2);
}

/// What was dropped since is in no commit, and is not kept for that.
#[test]
fn nothing_is_held_back_for_long() {
    let (World { fs, clock, .. }, f, g) = beside_a_sync(MountOptions::default());
    write(&fs, f, 0, 1);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    sync_of(&fs, g);
    fs.tick().unwrap();
    assert_eq!(bursts(&fs), 0);
    clock.0.fetch_add(1_000_000_000, Relaxed);
    fs.tick().unwrap();
    assert_eq!(bursts(&fs), 1);
}

/// Scattered blocks beside syncs on rows with parity: summaries between them must not begin more rows than there are places for.
fn scattered_blocks_beside_syncs_on_rows() {
    let w = crate::devices::World::new(Profile::Parity, &[96, 96, 96]);
    let fs = w.open(&[0, 1, 2], MountOptions::default()).unwrap();
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    write(&fs, f, 0, 32);
    fs.sync_all().unwrap();
    let write = |n: u64| {
        let synced = if n % 64 == 0 { fs.write(g, 0, &[8; 4096], 0).and_then(|_| fs.fsync_wait(g)) } else { Ok(()) };
        synced.and_then(|()| fs.write(f, n * 2477 % 8192 * 4096, &[n as u8; 4096], 0))
    };
    let outcome = (0..6000).try_for_each(|n| write(n).map(drop)).and_then(|()| fs.sync_all());
    assert!(outcome.is_ok() && fs.failed().is_none(), "the volume failed: {outcome:?}");
}

#[test]
fn rows_with_parity_bear_scattered_blocks_beside_syncs() {
    scattered_blocks_beside_syncs_on_rows();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the volume failed")]
fn data_held_back_on_rows_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RowsHeld, scattered_blocks_beside_syncs_on_rows);
}

/// A file of which a burst has taken something does not make others wait for the burst.
#[test]
fn a_small_file_in_a_burst_makes_no_commit_of_others_wait() {
    let (World { gate, fs, .. }, f, g) = beside_a_sync(MountOptions::default());
    let small = fs.create(Ino::ROOT, b"small", &file(0o600)).unwrap().ino;
    assert_eq!(fs.write(small, 0, &vec![5; 200 << 10], 0).unwrap(), 200 << 10);
    gate.close(|op| matches!(op, Op::Write { data, .. } if data.len() >= 128 << 10), 0);
    thread::scope(|scope| {
        scope.spawn(|| write(&fs, f, 0, 4));
        gate.wait_until(|s| s.waiting > 0);
        let own = scope.spawn(|| fs.fsync_wait(small).unwrap());
        // It has asked by then, or asks later: then this shows less.
        thread::sleep(Duration::from_millis(30));
        let (tx, rx) = mpsc::channel();
        let fs = &fs;
        scope.spawn(move || {
            sync_of(fs, g);
            tx.send(()).unwrap();
        });
        let passed = rx.recv_timeout(Duration::from_secs(5)).is_ok();
        let waited = !own.is_finished();
        gate.open();
        assert!(passed && waited, "passed: {passed}, the small file waited: {waited}");
    });
}

/// A sync that is submitted has its data on the way.
#[test]
fn a_submitted_sync_begins_what_was_held_back() {
    let (World { gate, fs, .. }, f, _) = beside_a_sync(MountOptions::default());
    gate.close(is_long_write, usize::MAX);
    write(&fs, f, 0, 1);
    let sync = fs.submit_sync(f);
    assert_eq!(gate.held(), 1);
    sync.wait().unwrap();
}

/// What a program is told, when it is.
type Answer = mpsc::Receiver<nenrin_core::Result<()>>;

/// Has MiB after MiB of a file accepted until the program is kept waiting, while a burst of 4 MiB is under way.
fn kept_waiting(fs: &Fs, ino: Ino) -> Answer {
    for n in 0..20 {
        let accepted = fs.accept(ino, n << 20, &vec![7; MIB], 0.into()).unwrap();
        assert_eq!(accepted.bytes, MIB);
        if accepted.is_told_later {
            assert_eq!(n, 7, "two bursts may be held back");
            let (told, answer) = mpsc::channel();
            fs.tell_later(ino, Box::new(move |result| told.send(result).unwrap()));
            return answer;
        }
    }
    panic!("nobody is kept waiting");
}

/// A writer whose burst does not end, and another that is kept waiting by it.
fn beside_a_burst() -> (World, thread::JoinHandle<()>, Answer) {
    let (world, f, _) = beside_a_sync(MountOptions::default());
    let other = world.fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    world.gate.close(is_long_write, 0);
    let fs = world.fs.clone();
    let writer = thread::spawn(move || write(&fs, f, 0, 4));
    world.gate.wait_until(|s| s.waiting == 1);
    let answer = kept_waiting(&world.fs, other);
    (world, writer, answer)
}

#[test]
fn who_is_kept_waiting_by_a_burst_is_told_when_it_ends() {
    let (world, writer, answer) = beside_a_burst();
    assert!(answer.try_recv().is_err(), "told while a burst is under way");
    assert_eq!(world.fs.counters().writes_told_later, 1);
    world.gate.open();
    answer.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    writer.join().unwrap();
    world.fs.sync_all().unwrap();
    world.fs.close().unwrap();
}

/// The burst is one of who commits everything: nobody leads.
#[test]
fn who_is_kept_waiting_by_a_commit_is_told_when_its_burst_ends() {
    let (world, f, _) = beside_a_sync(MountOptions::default());
    let other = world.fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    write(&world.fs, f, 0, 3);
    world.gate.close(is_long_write, 0);
    let fs = world.fs.clone();
    let commits = thread::spawn(move || fs.sync_all());
    world.gate.wait_until(|s| s.waiting == 1);
    let answer = kept_waiting(&world.fs, other);
    assert!(answer.try_recv().is_err(), "told while a burst is under way");
    world.gate.open();
    answer.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    commits.join().unwrap().unwrap();
}

#[test]
fn who_is_kept_waiting_is_told_of_a_burst_that_fails_and_of_one_whose_thread_is_lost() {
    for panics in [false, true] {
        let (world, writer, answer) = beside_a_burst();
        if panics {
            world.gate.panics(0)
        } else {
            world.gate.fail(0)
        }
        world.gate.open();
        let outcome = answer.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(matches!(outcome, Err(nenrin_core::Error::Failed(_))), "{outcome:?}");
        assert!(writer.join().is_err(), "its own write is not refused");
    }
}
