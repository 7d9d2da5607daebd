//! What `-o remount` does besides changing flags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

fn remount(place: &Place, options: &str) -> Out {
    nenrin(["mount", "-o", &format!("remount,{options}"), &place.image(), &place.text("mnt")])
}

/// Who makes a volume read-only has on the device what was there by then, as on any other file system.
#[test]
fn what_was_written_before_a_volume_became_read_only_is_durable() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    for options in ["commit=60,checkpoint=0", "commit=60,checkpoint=0,cache=writeback"] {
        place.mount(options).ok();
        fs::write(place.path("mnt/note"), options).unwrap();
        remount(&place, "ro").ok();
        place.kill();
        place.umount().ok();
        place.mount("").ok();
        assert_eq!(fs::read_to_string(place.path("mnt/note")).unwrap(), options);
        place.umount().ok();
    }
}

/// Reading changes nothing of a volume that was made read-only, and again what it changes when it is writable again.
#[test]
fn access_times_stay_while_a_volume_is_read_only() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let [first, second] = ["mnt/first", "mnt/second"].map(|name| place.path(name));
    place.mount("").ok();
    for file in [&first, &second] {
        fs::write(file, "x").unwrap();
        run("touch", &["-a", "--date", "@1000000000", file.to_str().unwrap()]).ok();
    }
    // So that the kernel asks for what is read.
    place.umount().ok();
    place.mount("").ok();
    remount(&place, "ro").ok();
    fs::read(&first).unwrap();
    remount(&place, "rw").ok();
    fs::read(&second).unwrap();
    place.umount().ok();
    place.mount("").ok();
    let accessed = |file| fs::metadata(file).unwrap().atime();
    assert_eq!(accessed(&first), 1_000_000_000, "read while it was read-only");
    assert!(accessed(&second) > 1_000_000_000, "read when it was not any more");
    place.umount().ok();
    // What said noatime goes on so.
    place.mount("noatime").ok();
    run("touch", &["-a", "--date", "@1000000000", second.to_str().unwrap()]).ok();
    place.umount().ok();
    place.mount("noatime").ok();
    remount(&place, "ro").ok();
    remount(&place, "rw").ok();
    fs::read(&second).unwrap();
    place.umount().ok();
    place.mount("").ok();
    assert_eq!(accessed(&second), 1_000_000_000, "noatime");
    place.umount().ok();
}
