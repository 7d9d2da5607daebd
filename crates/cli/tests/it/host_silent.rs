//! A host that answers no more, on which one image of a mirror lies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::time::{Duration, Instant};

/// Has a stopped process go on, whatever becomes of the test.
struct Stopped(i32);

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// Its image is given up, as a device that does not answer is, and nobody asks that host for anything else: what is written is durable on
/// the other, all goes on, and the volume is released. The log lies there, too.
#[test]
fn an_image_on_a_host_that_does_not_answer_holds_up_nothing() {
    if !can_mount() || !has("timeout") {
        return;
    }
    let place = Place::new();
    let [host, mnt] = ["host", "mnt"].map(|name| place.sub(name));
    nenrin(["mkfs", "--size", "256M", &place.text("far")]).ok();
    nenrin(["mount", &place.text("far"), &host]).ok();
    let (near, far) = (place.text("near"), place.text("host/image"));
    nenrin(["mkfs", "--profile", "mirror", "--size", SIZE, &near, &far]).ok();
    nenrin(["mount", "--log", &place.text("host/log"), &format!("{near},{far}"), &mnt]).ok();
    fs::write(place.path("mnt/before"), "x").unwrap();
    run("sync", &[&place.text("mnt/before")]).ok();
    let pid = |mnt: &str| nenrin(["info", "--json", mnt]).json()["pid"].as_i64().unwrap() as i32;
    let stopped = Stopped(pid(&host));
    let owner = pid(&mnt);
    signal(stopped.0, "STOP");
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    fs::write(place.path("mnt/after"), "y").unwrap();
    run("timeout", &["120", "sync", &place.text("mnt/after")]).ok();
    for _ in 0..3 {
        nenrin(["info", &mnt]);
    }
    let threads = fs::read_dir(format!("/proc/{owner}/task")).unwrap().flatten();
    let looks = threads.filter(|t| fs::read_to_string(t.path().join("comm")).is_ok_and(|name| name == "nenrin-look\n"));
    assert!(looks.count() <= 2, "one for each image");
    run("timeout", &["60", env!("CARGO_BIN_EXE_nenrin"), "umount", &mnt]).ok();
    assert!(begun.elapsed() < Duration::from_secs(150), "{:?}", begun.elapsed());
    drop(stopped);
    nenrin(["mount", "-o", "degraded", &near, &mnt]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/after")).unwrap(), "y");
    nenrin(["umount", &mnt]).ok();
}
