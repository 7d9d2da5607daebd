//! `nenrin umount`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

#[test]
fn it_returns_when_the_device_is_free() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("commit=60").ok();
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    let pid = place.pid();
    place.umount().ok();
    assert!(!std::path::Path::new(&format!("/proc/{pid}/fd/0")).exists(), "the owner still runs");
    // Nobody holds the lock, so that another program could use the device at once.
    let mut flock = std::process::Command::new("flock");
    assert!(flock.args(["-n", "-x", &place.image(), "true"]).status().unwrap().success());
    let info = nenrin(["info", "--json", &place.image()]).json();
    assert_eq!(info["recovery"]["clean"], true);
    assert_eq!(info["inodes"], 2);
}

#[test]
fn a_path_below_or_a_link_names_what_it_names() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::create_dir(place.path("mnt/sub")).unwrap();
    nenrin(["umount", &place.text("mnt/sub")]).fails(1, &["nothing is mounted here"]);
    std::os::unix::fs::symlink(place.path("mnt"), place.path("link")).unwrap();
    nenrin(["umount", &place.text("link")]).ok();
}

#[test]
fn who_uses_it_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mut sleeper = std::process::Command::new("sleep").arg("60").current_dir(place.path("mnt")).spawn().unwrap();
    place.umount().fails(1, &["in use by sleep (pid", "close it"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    place.umount().ok();
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    let dir = place.sub("dir");
    nenrin(["umount"]).fails(2, &["a directory is needed", "usage: nenrin umount DIR"]);
    nenrin(["umount", &dir]).fails(1, &["nothing is mounted here"]);
    nenrin(["umount", "/no/such/dir"]).fails(1, &["/no/such/dir", "No such file"]);
    nenrin(["umount", "/proc"]).fails(1, &["proc is mounted here, not a nenrin volume"]);
}
