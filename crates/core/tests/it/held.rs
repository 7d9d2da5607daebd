//! P3: a file that is emptied to be written anew shows, after a power cut, one
//! of its commits: also when it waits for a commit already.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{World, is_write, world};
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, COMMITS_AT_ONCE, Fs, MountOptions, RenameMode, SetAttr};
use nenrin_device::MemDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

fn empty(fs: &Fs, ino: Ino) {
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
}

/// The device as it is, after the power has gone: nothing of what is in memory.
fn after_a_cut(device: &MemDevice) -> Arc<Fs> {
    let device = MemDevice::from_bytes(device.snapshot());
    Fs::open(vec![Arc::new(device)], Arc::new(TestClock::default()), MountOptions::default()).unwrap()
}

fn content(fs: &Fs, name: &[u8]) -> Vec<u8> {
    let f = fs.lookup(At::Live, Ino::ROOT, name).unwrap();
    fs.read(At::Live, f.ino, 0, 1 << 20).unwrap()
}

/// Small content lives in the index, larger in blocks, and more goes ahead of its commit.
const SIZES: [usize; 3] = [100, 9000, 600 << 10];

#[test]
fn content_that_a_rename_carries_survives_being_emptied() {
    for bytes in SIZES {
        let World { device, fs, .. } = world(MountOptions::default());
        let old = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
        fs.write(old.ino, 0, &vec![1; bytes], 0).unwrap();
        let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap();
        fs.sync_all().unwrap();
        let new = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
        fs.write(new.ino, 0, &vec![2; bytes], 0).unwrap();
        fs.rename(Ino::ROOT, b"new", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
        empty(&fs, new.ino);
        fs.write(other.ino, 0, &[9; 100], 0).unwrap();
        fs.fsync_wait(other.ino).unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: emptied");
        // Beside it the emptied file is what it was made, and goes on.
        assert_eq!(content(&fs, b"file"), b"");
        fs.write(new.ino, 0, &vec![3; bytes / 2], 0).unwrap();
        fs.fsync_wait(other.ino).unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: half of it written");
        fs.flush(new.ino).unwrap();
        fs.sync_all().unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![3; bytes / 2], "{bytes} bytes: closed");
    }
}

#[test]
fn content_that_a_sync_waits_to_commit_survives_being_emptied() {
    for bytes in SIZES {
        let World { gate, device, fs, .. } = world(MountOptions::default());
        let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
        fs.write(f.ino, 0, &vec![1; bytes], 0).unwrap();
        let make = |i: u32| fs.create(Ino::ROOT, format!("other {i}").as_bytes(), &file(0o600)).unwrap().ino;
        let others: Vec<Ino> = (0..COMMITS_AT_ONCE).map(make).collect();
        fs.sync_all().unwrap();
        // As many commits of other files are under way as can be, so that the next has to wait.
        gate.close(is_write, 0);
        let lead = |(i, ino): (usize, Ino)| {
            fs.write(ino, 0, &[9; 100], 0).unwrap();
            let leader = {
                let fs = fs.clone();
                thread::spawn(move || fs.fsync_wait(ino))
            };
            gate.wait_until(|s| s.waiting == i + 1);
            leader
        };
        let leaders: Vec<_> = others.into_iter().enumerate().map(lead).collect();
        fs.write(f.ino, 0, &vec![2; bytes], 0).unwrap();
        let shared = fs.counters().shared_commits;
        let syncer = {
            let fs = fs.clone();
            thread::spawn(move || fs.fsync_wait(f.ino))
        };
        // It waits for the commit, or first for its own data; then the file takes no change until it has joined a commit.
        while gate.waiting() <= leaders.len() && fs.counters().shared_commits == shared {
            thread::yield_now();
        }
        let emptier = {
            let fs = fs.clone();
            thread::spawn(move || empty(&fs, f.ino))
        };
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(u64::from(!emptier.is_finished())));
        }
        assert_eq!(emptier.is_finished(), bytes < 256 << 10);
        gate.open();
        emptier.join().unwrap();
        syncer.join().unwrap().unwrap();
        for leader in leaders {
            leader.join().unwrap().unwrap();
        }
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: what was synced is gone");
        assert_eq!(content(&fs, b"file"), b"");
        fs.close().unwrap();
        assert_eq!(content(&after_a_cut(&device), b"file"), b"");
    }
}

/// P1: nobody has the file open, so that no close will come: what emptied it is seen by the next checkpoint, and by the next commit of
/// all files.
#[test]
fn what_nobody_has_open_is_emptied_at_once() {
    for bytes in SIZES {
        let World { device, clock, fs, .. } = world(MountOptions::default());
        let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
        let fill = || {
            fs.write(f, 0, &vec![1; bytes], 0).unwrap();
            fs.sync_all().unwrap();
            fs.setattr(f, &SetAttr { size: Some(0), closed: true, ..SetAttr::default() }).unwrap();
        };
        fill();
        let cno = fs.checkpoint_create(None).unwrap().cno;
        assert_eq!(fs.read(At::Past(cno), f, 0, 1 << 20).unwrap(), b"", "{bytes} bytes: the past");
        fill();
        clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
        fs.tick().unwrap();
        assert_eq!(content(&after_a_cut(&device), b"file"), b"", "{bytes} bytes: after a cut");
    }
}

/// What waits for a commit goes with the file.
#[test]
fn a_file_that_is_gone_needs_no_commit() {
    let World { device, fs, .. } = world(MountOptions::default());
    let old = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
    fs.write(old.ino, 0, &[1; 9000], 0).unwrap();
    fs.sync_all().unwrap();
    let new = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
    fs.write(new.ino, 0, &vec![2; 600 << 10], 0).unwrap();
    fs.rename(Ino::ROOT, b"new", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
    empty(&fs, new.ino);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.sync_all().unwrap();
    for _ in 0..20 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().inodes, 1);
    fs.close().unwrap();
    after_a_cut(&device).close().unwrap();
}

/// P1: a sync was submitted, the file is emptied, and time makes a commit of all other files. Whether the sync was told that all is
/// durable, and what of the file is there after a cut then.
fn emptied_behind_a_submitted_sync(bytes: usize) -> (bool, Vec<u8>) {
    let World { device, clock, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
    fs.write(f, 0, &vec![1; bytes], 0).unwrap();
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    fs.write(f, 0, &vec![2; bytes], 0).unwrap();
    let ticket = fs.submit_sync(f);
    empty(&fs, f);
    fs.write(other, 0, &[9; 100], 0).unwrap();
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    let commits = fs.counters().commits;
    ticket.wait().unwrap();
    (fs.counters().commits == commits, content(&after_a_cut(&device), b"file"))
}

#[test]
fn a_sync_that_was_submitted_carries_what_is_held_back() {
    for bytes in SIZES {
        let (is_told, content) = emptied_behind_a_submitted_sync(bytes);
        assert!(is_told, "{bytes} bytes: the commit of all files told nobody");
        assert!(content != vec![1; bytes], "{bytes} bytes: what was there before the sync");
        assert!(content.is_empty(), "{bytes} bytes: {} are left", content.len());
    }
}

/// What of a file is there after a cut that was emptied, and over which very many ranges were copied; and again when it was closed.
fn emptied_and_copied_over() -> [Vec<u8>; 2] {
    let World { device, fs, .. } = world(MountOptions::default());
    let [from, to] = ["from", "file"].map(|name| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino);
    fs.write(to, 0, &[1; 4096], 0).unwrap();
    // A thousand extents, 36 times.
    (0..1000).for_each(|n| assert_eq!(fs.write(from, n * 8192, &[2; 4096], 0).unwrap(), 4096));
    fs.sync_all().unwrap();
    empty(&fs, to);
    for at in (0..36).map(|n| n * 8_192_000) {
        let mut done = 0;
        while done < 8_187_904 {
            done += fs.copy_range(from, done, to, at + done, 8_187_904 - done, 0).unwrap();
        }
    }
    let held = content(&after_a_cut(&device), b"file");
    fs.flush(to).unwrap();
    fs.sync_all().unwrap();
    [held, content(&after_a_cut(&device), b"file")]
}

#[test]
fn a_copy_of_very_many_ranges_stays_held_back() {
    let [held, closed] = emptied_and_copied_over();
    assert!(held == [1; 4096], "{} bytes", held.len());
    assert!(closed.len() == 1 << 20 && closed.chunks(8192).all(|c| c[..4096] == [2; 4096] && c[4096..] == [0; 4096]));
}

#[cfg(feature = "breaks")]
#[test]
fn a_copy_of_very_many_ranges_that_ends_a_hold_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let [held, _] = with(Break::RangesEndHolds, emptied_and_copied_over);
    assert!(held != [1; 4096]);
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_held_back_from_a_submitted_sync_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    for bytes in SIZES {
        let (is_told, content) = with(Break::HeldAskedLeftOut, || emptied_behind_a_submitted_sync(bytes));
        assert!(is_told && content == vec![1; bytes], "{bytes} bytes");
    }
}
