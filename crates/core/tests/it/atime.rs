//! Access times: relatime, without a write for a read.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::{Ino, Time};
use nenrin_core::{At, Fs, MountOptions, SetAttr, SetTime};
use std::sync::Arc;

const HOUR: u64 = 3_600_000_000_000;

fn atime(fs: &Fs, ino: Ino) -> Time {
    fs.getattr(At::Live, ino).unwrap().atime
}

/// A file that has been written and committed.
fn written(w: &World, fs: &Arc<Fs>, name: &[u8]) -> Ino {
    let f = fs.create(Ino::ROOT, name, &file(0o600)).unwrap();
    w.pass(1000);
    fs.write(f.ino, 0, &[7; 4096], 0).unwrap();
    fs.sync_all().unwrap();
    w.pass(1000);
    f.ino
}

#[test]
fn the_first_read_after_a_change_moves_it_and_the_second_does_not() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = written(&w, &fs, b"f");
    let before = fs.getattr(At::Live, f).unwrap();
    fs.accessed(f).unwrap();
    let first = fs.getattr(At::Live, f).unwrap();
    assert!(first.atime > before.mtime && first.atime > before.atime);
    assert_eq!((first.mtime, first.ctime), (before.mtime, before.ctime));
    w.pass(HOUR);
    fs.accessed(f).unwrap();
    assert_eq!(atime(&fs, f), first.atime);
    fs.write(f, 0, b"changed", 0).unwrap();
    w.pass(1000);
    fs.accessed(f).unwrap();
    assert!(atime(&fs, f) > first.atime);
    let second = atime(&fs, f);
    w.pass(25 * HOUR);
    fs.accessed(f).unwrap();
    assert!(atime(&fs, f) > second, "a day later it moves with any read");
}

#[test]
fn reading_ten_thousand_times_writes_nothing() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let files: Vec<Ino> = (0..100).map(|i| written(&w, &fs, format!("f{i}").as_bytes())).collect();
    // The durable mark and the checkpoint of an idle volume come first.
    for _ in 0..400 {
        w.pass(100_000_000);
        fs.tick().unwrap();
    }
    let before = w.device.counters();
    for _ in 0..100 {
        for f in &files {
            fs.accessed(*f).unwrap();
        }
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    }
    assert_eq!(w.device.counters().since(&before).writes, 0);
    w.pass(HOUR);
    fs.tick().unwrap();
    w.pass(2_000_000_000);
    fs.tick().unwrap();
    let cost = w.device.counters().since(&before);
    assert!((1..=8).contains(&cost.writes), "an hour later all go together, in {} writes", cost.writes);
}

#[test]
fn it_outlives_the_mount_and_a_sync_but_needs_no_fsync() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let (f, g) = (written(&w, &fs, b"f"), written(&w, &fs, b"g"));
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino;
    w.pass(1000);
    fs.accessed(f).unwrap();
    fs.accessed(d).unwrap();
    let (of_f, of_d) = (atime(&fs, f), atime(&fs, d));
    fs.sync_all().unwrap();
    fs.accessed(g).unwrap();
    let of_g = atime(&fs, g);
    // A program that syncs one file does not pay for those that were read.
    fs.write(f, 0, &[1; 4096], 0).unwrap();
    fs.fsync_wait(f).unwrap();
    let before = w.device.counters();
    fs.write(f, 4096, &[1; 4096], 0).unwrap();
    fs.fsync_wait(f).unwrap();
    let cost = w.device.counters().since(&before);
    assert_eq!((cost.writes, cost.flushes), (1, 1));
    assert!(cost.write_bytes <= 8192);
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    assert_eq!((atime(&fs, f), atime(&fs, d), atime(&fs, g)), (of_f, of_d, of_g));
}

#[test]
fn the_time_that_was_set_counts() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = written(&w, &fs, b"f");
    fs.accessed(f).unwrap();
    let set = SetAttr { atime: Some(SetTime::At(Time(5))), ..Default::default() };
    fs.setattr(f, &set).unwrap();
    assert_eq!(atime(&fs, f), Time(5));
    fs.sync_all().unwrap();
    assert_eq!(atime(&fs, f), Time(5));
}

#[test]
fn an_inode_that_is_gone_by_then_does_no_harm() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = written(&w, &fs, b"f");
    fs.accessed(f).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.close().unwrap();
    drop(fs);
    w.open();
}

#[test]
fn a_checkpoint_shows_the_time_of_then() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = written(&w, &fs, b"f");
    let then = atime(&fs, f);
    let c = fs.checkpoint_create(Some(b"then")).unwrap();
    fs.accessed(f).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.getattr(At::Past(c.cno), f).unwrap().atime, then);
    assert_ne!(atime(&fs, f), then);
}

#[test]
fn a_full_volume_does_without() {
    let w = World::new(32 << 20);
    let fs = w.open();
    let mut files = Vec::new();
    'fill: for i in 0.. {
        let Ok(f) = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)) else { break };
        files.push(f.ino);
        for block in 0..16u64 {
            if fs.write(f.ino, block * 65536, &[i as u8; 65536], 0).is_err() {
                break 'fill;
            }
        }
    }
    fs.sync_all().unwrap();
    w.pass(1000);
    for f in &files {
        fs.accessed(*f).unwrap();
    }
    fs.sync_all().unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    fs.unlink(Ino::ROOT, b"f0").unwrap();
    fs.close().unwrap();
}

#[test]
fn a_read_only_volume_keeps_its_times() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = written(&w, &fs, b"f");
    fs.close().unwrap();
    drop(fs);
    let fs = w.open_with(MountOptions { read_only: true, ..Default::default() });
    let then = atime(&fs, f);
    fs.accessed(f).unwrap();
    assert_eq!(atime(&fs, f), then);
}
