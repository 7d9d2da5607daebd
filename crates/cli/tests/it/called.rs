//! What is told to who calls a command wrongly, or asks for what cannot be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// A time that is none is a mistake of who says it.
#[test]
fn a_malformed_time_is_a_wrong_call() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, file) = (place.text("mnt"), place.text("mnt/f"));
    fs::write(&file, "x").unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    let past = place.sub("past");
    for when in ["2026-13-45", "-5 minutes ago", "", "2026-11-30 25:00", "0 months ago"] {
        let at = format!("--at={when}");
        assert_eq!(nenrin(["restore", &file, &at, "--to", &place.text("out")]).code, 2, "{when}");
        assert_eq!(nenrin(["diff", &mnt, "--", when]).code, 2, "{when}");
        assert_eq!(nenrin(["mount", "-o", &format!("at={when}"), &place.image(), &past]).code, 2, "{when}");
    }
    // One that nothing is known of is not.
    assert_eq!(nenrin(["restore", &file, "--at", "2001-01-01", "--to", &place.text("out")]).code, 1);
}

/// What is wrong is named, and not what is right.
#[test]
fn what_is_wrong_is_named() {
    nenrin(["snapshot", "list", "/", "extra"]).fails(2, &["snapshot list takes one directory or device", "\"extra\""]);
    nenrin(["snapshot", "foo"]).fails(2, &["\"foo\" is not understood: create, list or delete"]);
    nenrin(["device", "foo", "/"]).fails(2, &["\"foo\" is not understood: list, add, remove"]);
    nenrin(["device", "list", "/", "extra"]).fails(2, &["device list takes one directory or device", "\"extra\""]);
    nenrin(["checkpoint", "foo"]).fails(2, &["\"foo\" is not understood: list, create or delete"]);
    nenrin(["checkpoint", "list", "/", "extra"]).fails(2, &["\"extra\" is one more"]);
    nenrin(["retention", "show", "/", "extra"]).fails(2, &["retention show takes one", "\"extra\""]);
    let place = Place::new();
    let image = place.image();
    for (size, code) in [("8E", 2), ("1X", 2), ("20000T", 1), ("8388608T", 1), ("1K", 1)] {
        nenrin(["mkfs", "--sparse", "--size", size, &image]).fails(code, &["4.1M", "16384T"]);
        assert!(!place.path("image").exists(), "{size}");
    }
}

/// A device that is named twice is no other one.
#[test]
fn a_device_named_twice() {
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    let link = place.text("link");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    for other in [&image, &link] {
        let both = format!("{image},{other}");
        if can_mount() {
            nenrin(["mount", &both, &mnt]).fails(1, &["image: named twice"]);
        }
        nenrin(["check", &image, other]).fails(8, &[other, "named twice"]);
    }
}

/// Nobody is asked where there is nothing to repair.
#[test]
fn a_repair_without_a_plan_asks_nobody() {
    let place = Place::with_volume();
    assert!(nenrin(["check", "--repair", &place.image()]).ok().contains("nothing to repair"));
    let report = nenrin(["check", "--repair", "--json", &place.image()]).json();
    assert_eq!((&report["needed"], &report["repaired"]), (&false.into(), &false.into()));
    let slot = *place.slots().iter().find(|o| fs::read(place.image()).unwrap()[**o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    let before = fs::read(place.image()).unwrap();
    for json in [&[][..], &["--json"]] {
        let out = nenrin(["check", "--repair"].iter().chain(json).copied().chain([&*place.image()]));
        assert!(out.stdout.contains("can be repaired") != json.contains(&"--json"), "{out:?}");
        out.fails(16, &["nobody is there to be asked", "--yes"]);
    }
    assert!(fs::read(place.image()).unwrap() == before, "it was repaired");
}

/// What no repair brings back is not sent to one.
#[test]
fn lost_content_is_not_sent_to_a_repair() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::write(place.path("mnt/big"), vec![0xa7; 200_000]).unwrap();
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    let found = nenrin(["check", "--data", &place.image()]);
    assert_eq!(found.code, 4, "{found:?}");
    let told = found.stdout.lines().find(|l| l.contains("what to do")).unwrap_or_else(|| panic!("{found:?}"));
    assert!(
        !told.contains("--repair") && told.contains("remove the files that are named, or bring them back"),
        "{told}"
    );
    let repair = nenrin(["check", "--repair", &place.image()]);
    assert_eq!(repair.code, 4, "{repair:?}");
    assert!(repair.stdout.contains("no repair can undo: no repair brings content back: remove"), "{repair:?}");
}

/// All devices that are missing are named, and with how few of them it would go on.
#[test]
fn all_missing_devices_are_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let names = ["a", "b", "c", "d"].map(|name| place.text(name));
    place.sub("away");
    for (profile, bears) in [("parity", "parity bears the loss of one device"), ("stripe", "needs each of its devices")]
    {
        let mut args = vec!["mkfs", "--force", "--profile", profile, "--size", SIZE];
        args.extend(names.iter().map(String::as_str));
        nenrin(args).ok();
        for gone in ["b", "d"] {
            fs::rename(place.path(gone), place.path("away").join(gone)).unwrap();
        }
        let (other, bears) = (place.sub("other"), [bears, "device 2 (", " and device 4 (", "are missing"]);
        nenrin(["mount", "-o", "degraded", &names[0], &other]).fails(1, &bears);
        for gone in ["b", "d"] {
            fs::rename(place.path("away").join(gone), place.path(gone)).unwrap();
        }
    }
}

/// Where only mounts of the past are left, all of them are named that keep the volume.
#[test]
fn mounts_of_the_past_that_keep_a_volume() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    let cno = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    let pasts = ["p2", "p3"].map(|name| place.sub(name));
    for past in &pasts {
        nenrin(["mount", "-o", &format!("cp={cno}"), &place.image(), past]).ok();
    }
    let left = place.umount();
    assert!(left.code == 0 && left.stderr.contains("to mount it anew, unmount each of these, too"), "{left:?}");
    let [two, three] = pasts.each_ref().map(|past| format!("nenrin umount {past}"));
    place.mount("").fails(1, &[&two, &three, "release it, all of them: they show the past only"]);
    nenrin(["umount", &pasts[0]]).ok();
    place.mount("").fails(1, &[&three, "releases it: what is left of its mounts shows the past only"]);
    nenrin(["umount", &pasts[1]]).ok();
    place.mount("").ok();
}

/// What a restore brought back as it was is no difference, whatever kind it is of.
#[test]
fn special_files_that_were_brought_back() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0,dev").ok();
    let mnt = place.text("mnt");
    fs::create_dir(place.path("mnt/d")).unwrap();
    run("mkfifo", &[&place.text("mnt/d/pipe")]).ok();
    run("mknod", &[&place.text("mnt/d/null"), "c", "1", "3"]).ok();
    run("mknod", &[&place.text("mnt/d/zero"), "c", "1", "5"]).ok();
    drop(std::os::unix::net::UnixListener::bind(place.path("mnt/d/socket")).unwrap());
    let cno = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    fs::remove_dir_all(place.path("mnt/d")).unwrap();
    nenrin(["restore", &place.text("mnt/d"), "--at", &cno]).ok();
    let told = nenrin(["diff", &mnt, &cno]).ok();
    assert!(!told.contains("pipe") && !told.contains("socket") && !told.contains("null"), "{told}");
    // Another device is one.
    fs::remove_file(place.path("mnt/d/zero")).unwrap();
    run("mknod", &[&place.text("mnt/d/zero"), "c", "1", "7"]).ok();
    let told = nenrin(["diff", &mnt, &cno]).ok();
    assert!(told.contains("M d/zero"), "{told}");
}
