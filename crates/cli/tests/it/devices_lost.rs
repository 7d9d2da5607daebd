//! Devices that are cut, or missing, and what takes their place.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn mirror(place: &Place) -> String {
    let (a, b) = (place.text("a"), place.text("b"));
    nenrin(["mkfs", "--profile", "mirror", "--size", SIZE, &a, &b]).ok();
    format!("{a},{b}")
}

/// What lies behind the end of an image that was cut is had from the other device, and each listing names the one that was cut.
#[test]
fn an_image_that_was_cut_while_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let devices = mirror(&place);
    let mnt = place.sub("mnt");
    nenrin(["mount", "-o", "checkpoint=0", &devices, &mnt]).ok();
    let content: Vec<u8> = (0..4_000_000_u32).map(|i| (i / 911) as u8).collect();
    fs::write(place.path("mnt/f"), &content).unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    fs::File::options().write(true).open(place.path("b")).unwrap().set_len(1 << 20).unwrap();
    run("sh", &["-c", "echo 3 >/proc/sys/vm/drop_caches"]);
    assert!(fs::read(place.path("mnt/f")).unwrap() == content, "the other device has it");
    fs::write(place.path("mnt/g"), &content).unwrap();
    fs::File::open(place.path("mnt/g")).unwrap().sync_all().unwrap();
    wait_until("it is noticed", || place.info()["problems"].to_string().contains("was cut"));
    let info = place.info();
    let problems = info["problems"].to_string();
    assert!(problems.contains("device 2") && problems.contains("nenrin device replace"), "{problems}");
    assert!(!problems.contains("is lost"), "the other device has it: {problems}");
    let listed = nenrin(["device", "list", "--json", &mnt]).json();
    assert!(listed[1]["why"].as_str().is_some_and(|w| w.contains("cut")), "{listed}");
    assert!(nenrin(["device", "list", &mnt]).ok().contains("was cut"), "{listed}");
    place.umount();
    let refused = nenrin(["mount", &devices, &mnt]);
    let text = place.text("b");
    refused.fails(1, &[&text, "is truncated", &format!("truncate -s {}", 32 << 20), "-o degraded"]);
    nenrin(["mount", "-o", "degraded", &devices, &mnt]).ok();
    let both_are_there = || {
        assert!(fs::read(place.path("mnt/f")).unwrap() == content && fs::read(place.path("mnt/g")).unwrap() == content)
    };
    both_are_there();
    assert!(place.info()["devices"][1]["why"].as_str().unwrap().contains("truncated"), "{}", place.info());
    place.umount().ok();
    // What helps is what is said.
    fs::File::options().write(true).open(place.path("b")).unwrap().set_len(32 << 20).unwrap();
    nenrin(["mount", &devices, &mnt]).ok();
    wait_until("it is up to date", || place.info()["devices"][1]["state"] == "active");
    nenrin(["scrub", &mnt]);
    nenrin(["scrub", &mnt]).ok();
    place.umount().ok();
    fs::remove_file(place.path("a")).unwrap();
    nenrin(["mount", "-o", "degraded", &place.text("b"), &mnt]).ok();
    both_are_there();
    place.umount().ok();
}

/// What a new device was written is told, also where the old one is not there.
#[test]
fn what_takes_the_place_of_a_missing_device_is_copied_and_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    mirror(&place);
    let mnt = place.sub("mnt");
    fs::remove_file(place.path("b")).unwrap();
    let log = place.text("log");
    nenrin(["mount", "-o", &format!("degraded,log={log}"), &place.text("a"), &mnt]).ok();
    let content = vec![0x5a; 5 << 20];
    fs::write(place.path("mnt/f"), &content).unwrap();
    fs::File::open(place.path("mnt/f")).unwrap().sync_all().unwrap();
    let lost = || {
        fs::read_to_string(&log).unwrap().matches("device 2 is absent, so what is written has no second copy").count()
    };
    wait_until("it is logged", || lost() == 1);
    // What is not there yet is made before, and how is said.
    let c = place.text("c");
    nenrin(["device", "replace", &mnt, "2", &c]).fails(1, &[&c, "is not there", "fallocate -l 32M"]);
    fs::File::create(place.path("c")).unwrap().set_len(32 << 20).unwrap();
    let told = nenrin(["device", "replace", "--json", &mnt, "2", &c]).json();
    assert!(told["bytes"].as_u64().unwrap() >= 5 << 20, "{told}");
    place.umount().ok();
    assert_eq!(lost(), 1, "once");
    fs::remove_file(place.path("a")).unwrap();
    nenrin(["mount", "-o", "degraded", &c, &mnt]).ok();
    assert!(fs::read(place.path("mnt/f")).unwrap() == content);
    place.umount().ok();
}

/// A machine that starts finds its devices one after the other: mount(8) waits for those of the volume. With `degraded` others stand in
/// for what does not come in time, and for what the volume goes on without nobody waits again.
#[test]
fn a_device_that_comes_late_is_waited_for_by_mount8() {
    if !can_mount() {
        return;
    }
    for named in ["a", "both"] {
        let place = Place::new();
        let both = mirror(&place);
        let (mnt, b, away) = (place.sub("mnt"), place.text("b"), place.sub("away") + "/b");
        symlink(env!("CARGO_BIN_EXE_nenrin"), place.path("mount.nenrin")).unwrap();
        let devices = if named == "both" { both } else { place.text("a") };
        let start = |options: &str| {
            let mut helper = Command::new(place.path("mount.nenrin"));
            helper.args([&devices, &mnt, "-o", options]).stdin(Stdio::null());
            helper.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let end = |child: std::process::Child| Out::of(child.wait_with_output().unwrap());
        fs::rename(&b, &away).unwrap();
        let mut helper = start("rw");
        thread::sleep(Duration::from_secs(2));
        assert!(helper.try_wait().unwrap().is_none(), "it did not wait: {:?}", end(helper));
        fs::rename(&away, &b).unwrap();
        let out = end(helper);
        assert!(out.code == 0 && out.stderr.contains("1 device of the volume is not there yet; waiting"), "{out:?}");
        assert_eq!(place.info()["devices"][1]["state"], "active");
        place.umount().ok();
        let out = end(start("rw"));
        assert_eq!((out.code, out.stderr.as_str()), (0, ""), "all are there");
        place.umount().ok();
        if named == "both" {
            continue;
        }
        fs::rename(&b, &away).unwrap();
        for waits in [true, false] {
            let begun = Instant::now();
            let out = end(start("degraded"));
            assert_eq!((out.code, out.stderr.contains("not there yet")), (0, waits), "{out:?}");
            assert_eq!(begun.elapsed() >= Duration::from_secs(10), waits);
            fs::write(place.path("mnt/f"), "without it").unwrap();
            place.umount().ok();
        }
        // The command by its own name waits for nobody, and says what is missing.
        nenrin(["mount", &devices, &mnt]).fails(1, &["is missing"]);
    }
}

/// What the volume needs the newest says of those that are there: one that was away for a while is named, and does not know what has taken
/// the place of another since.
#[test]
fn nobody_waits_for_what_was_replaced_since() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let both = mirror(&place);
    let (mnt, a, b, c) = (place.sub("mnt"), place.text("a"), place.text("b"), place.text("c"));
    let old = place.sub("away") + "/a";
    fs::copy(&a, &old).unwrap();
    nenrin(["mount", &both, &mnt]).ok();
    fs::File::create(&c).unwrap().set_len(32 << 20).unwrap();
    nenrin(["device", "replace", &mnt, "2", &c]).ok();
    place.umount().ok();
    fs::remove_file(&b).unwrap();
    fs::rename(&old, &a).unwrap();
    symlink(env!("CARGO_BIN_EXE_nenrin"), place.path("mount.nenrin")).unwrap();
    let begun = Instant::now();
    let out = Command::new(place.path("mount.nenrin")).args([&a, &mnt, "-o", "degraded"]).stdin(Stdio::null()).output();
    let out = Out::of(out.unwrap());
    assert!(begun.elapsed() < Duration::from_secs(10) && !out.stderr.contains("not there yet"), "{out:?}");
    place.umount();
}
