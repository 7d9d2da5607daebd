//! What operations cost in requests: the first thing that decides how fast a
//! FUSE file system is. Each number was looked at and is what it must be on
//! Linux 6.18; when one grows, something made the kernel ask more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::toy::Toy;
use common::{Mounted, mount, raw};
use nenrin_core::At;
use nenrin_fuse::{Cache, MountOptions, Permissions, SessionOptions};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

fn mounted(change: impl FnOnce(&mut MountOptions, &mut SessionOptions)) -> Option<Mounted> {
    let m = mount(Arc::new(Toy::new()), At::Live, change)?;
    fs::metadata(m.root()).unwrap();
    Some(m)
}

/// Somebody may drop the kernel's caches while a test counts on them, so each
/// may try three times, on a fresh mount.
fn thrice(test: fn()) {
    for _ in 0..2 {
        if std::panic::catch_unwind(test).is_ok() {
            return;
        }
    }
    test();
}

/// Asserts what ten of an action cost, told by their number.
#[track_caller]
fn ten(m: &Mounted, want: &[(&str, u64)], action: impl Fn(u64)) {
    assert_eq!(m.cost(|| (0..10).for_each(action)), want);
}

#[test]
fn names() {
    thrice(names_once);
}

fn names_once() {
    let Some(m) = mounted(|_, _| {}) else { return };
    let path = |kind: &str, i: u64| m.join(&format!("{kind}{i}"));
    let touch = |i| drop(File::create(path("a", i)).unwrap());
    // The kernel asks for the attributes of a directory that changed before it
    // lets anybody through again.
    ten(&m, &[("Lookup", 10), ("Getattr", 9), ("Release", 10), ("Create", 10)], touch);
    let stat = |i| assert!(fs::metadata(path("a", i)).unwrap().is_file());
    // Once for the time of creation, which only STATX tells.
    ten(&m, &[("Getattr", 1), ("Statx", 10)], stat);
    ten(&m, &[], stat);
    ten(&m, &[("Lookup", 1)], |_| drop(fs::metadata(m.join("none")).unwrap_err()));
    // The kernel never believes its cache about the target of a rename.
    let rename = |i| fs::rename(path("a", i), path("b", i)).unwrap();
    ten(&m, &[("Lookup", 10), ("Getattr", 9), ("Rename", 10)], rename);
    let mode = |i| fs::set_permissions(path("b", i), PermissionsExt::from_mode(0o600)).unwrap();
    ten(&m, &[("Getattr", 1), ("Setattr", 10)], mode);
    ten(&m, &[("Setxattr", 10)], |i| raw::setxattr(&path("b", i), "user.x", b"1", 0).unwrap());
    ten(&m, &[("Getattr", 9), ("Unlink", 10)], |i| fs::remove_file(path("b", i)).unwrap());
    ten(&m, &[("Lookup", 10), ("Getattr", 10), ("Mkdir", 10)], |i| fs::create_dir(path("d", i)).unwrap());
}

#[test]
fn our_own_check_saves_asking_for_attributes() {
    thrice(our_own_check_saves_asking_for_attributes_once);
}

fn our_own_check_saves_asking_for_attributes_once() {
    let Some(m) = mounted(|_, options| options.permissions = Permissions::Own) else { return };
    let path = |i: u64| m.join(&format!("{i}"));
    ten(&m, &[("Lookup", 10), ("Release", 10), ("Create", 10)], |i| drop(File::create(path(i)).unwrap()));
    ten(&m, &[("Unlink", 10)], |i| fs::remove_file(path(i)).unwrap());
}

#[test]
fn listings() {
    thrice(listings_once);
}

fn listings_once() {
    let Some(m) = mounted(|_, _| {}) else { return };
    for i in 0..50 {
        File::create(m.join(&format!("{i}"))).unwrap();
    }
    let list = || assert_eq!(fs::read_dir(m.root()).unwrap().count(), 50);
    assert_eq!(m.cost(list), [("Getattr", 1), ("Opendir", 1), ("Readdir", 1), ("Readdirplus", 1)]);
    assert_eq!(m.cost(list), [("Getattr", 1)], "read once, kept after that");
    assert_eq!(m.cost(list), []);
}

#[test]
fn content() {
    thrice(content_once);
}

fn content_once() {
    let Some(m) = mounted(|_, _| {}) else { return };
    let path = |i: u64| m.join(&format!("{i}"));
    // GETXATTR is for security.capability, once for each inode that is written
    // to after its attributes were asked for.
    let want = [("Lookup", 10), ("Getattr", 9), ("Write", 10), ("Release", 10), ("Getxattr", 10), ("Create", 10)];
    ten(&m, &want, |i| fs::write(path(i), b"x").unwrap());
    let want = [("Getattr", 1), ("Open", 10), ("Read", 10), ("Release", 10), ("Statx", 10)];
    ten(&m, &want, |i| drop(fs::read(path(i)).unwrap()));
    // The first READ made the kernel doubt the access time. After that, nothing
    // but OPEN goes out.
    let want = [("Open", 10), ("Release", 10), ("Statx", 10)];
    ten(&m, &want, |i| drop(fs::read(path(i)).unwrap()));
    ten(&m, &[("Open", 10), ("Release", 10)], |i| drop(fs::read(path(i)).unwrap()));

    let f = File::create(m.join("f")).unwrap();
    let synced = |i: u64| {
        f.write_all_at(&[1; 4096], i * 4096).unwrap();
        f.sync_data().unwrap();
    };
    ten(&m, &[("Write", 10), ("Fsync", 10), ("Getxattr", 1)], synced);
    ten(&m, &[("Write", 10), ("Fsync", 10)], synced);
    let large = vec![1; 1 << 20];
    ten(&m, &[("Write", 10)], |i| f.write_all_at(&large, i << 20).unwrap());
    ten(&m, &[("Write", 20)], |i| f.write_all_at(&large, 100 + (i << 20)).unwrap());
}

#[test]
fn writeback_collects() {
    thrice(writeback_collects_once);
}

fn writeback_collects_once() {
    let Some(m) = mounted(|_, options| options.cache = Cache::WriteBack) else { return };
    let f = File::create(m.join("f")).unwrap();
    ten(&m, &[("Getxattr", 1)], |i| f.write_all_at(&[1; 1000], i * 1000).unwrap());
    let cost = m.cost(|| f.sync_all().unwrap());
    assert_eq!(cost, [("Setattr", 1), ("Write", 1), ("Fsync", 1)]);
    let close = m.cost(|| drop(f));
    assert_eq!(close, [("Release", 1), ("Flush", 1)], "the first FLUSH is the last");
    let want = [
        ("Lookup", 10),
        ("Getattr", 10),
        ("Setattr", 10),
        ("Write", 10),
        ("Release", 10),
        ("Getxattr", 10),
        ("Create", 10),
    ];
    ten(&m, &want, |i| fs::write(m.join(&format!("{i}")), b"x").unwrap());
}
