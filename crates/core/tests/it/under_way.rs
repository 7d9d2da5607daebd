//! Writes that are under way while others sync: a device whose long writes
//! complete only when the test lets them; short ones, of the chain, pass.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::file;
use crate::common::gate::{World, is_answered, is_long_write, world};
use nenrin_core::MountOptions;
use nenrin_core::format::Ino;
use std::sync::mpsc;
use std::thread;

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
