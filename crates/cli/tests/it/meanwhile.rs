//! What goes on while something else does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::process::Stdio;

/// Devices come and go also while something is being forgotten: what comes is there at once, what goes waits for that.
#[test]
fn devices_change_while_something_is_forgotten() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    // So long that it is not wiped at once.
    nenrin(["mkfs", "--sparse", "--size", "8G", &image]).ok();
    nenrin(["mount", "-o", "checkpoint=0", &image, &mnt]).ok();
    let notes = || nenrin(["info", "--json", &mnt]).json()["notes"].to_string();
    let begin = |name: &str| {
        let path = place.text(&format!("mnt/{name}"));
        fs::write(&path, vec![7; 100_000]).unwrap();
        nenrin(["checkpoint", "create", &mnt]).ok();
        fs::remove_file(&path).unwrap();
        let mut forget = command(["forget", "--yes", &path]);
        let mut forget = forget.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it is being forgotten", || notes().contains("are forgotten"));
        forget.kill().unwrap();
        forget.wait().unwrap();
    };
    begin("one");
    let added = nenrin(["device", "add", "--sparse", "--size", "64M", &mnt, &place.text("more")]).ok();
    assert!(added.contains("is added;"), "{added}");
    assert!(!notes().contains("devices have changed"), "{}", notes());
    let listed = nenrin(["device", "list", "--json", &mnt]).json();
    assert_eq!((&listed[1]["state"], listed.as_array().unwrap().len()), (&"active".into(), 2), "{listed}");
    begin("two");
    let removed = nenrin(["device", "remove", "--json", &mnt, &place.text("more")]).json();
    assert_eq!((&removed["done"], &removed["waits"]), (&true.into(), &serde_json::Value::Null), "{removed}");
    assert_eq!(nenrin(["device", "list", "--json", &mnt]).json().as_array().unwrap().len(), 1);
}

/// A command that stood still while another one took back what it had asked for.
#[test]
fn what_is_taken_back_meanwhile_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    nenrin(["mkfs", "--sparse", "--size", "8G", &image]).ok();
    nenrin(["mount", "-o", "checkpoint=0", &image, &mnt]).ok();
    nenrin(["device", "add", "--sparse", "--size", "64M", &mnt, &place.text("more")]).ok();
    let begin = |args: &[&str], state: &str| {
        // That comes first, so that nothing is done too soon.
        fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
        nenrin(["checkpoint", "create", &mnt]).ok();
        fs::remove_file(place.path("mnt/f")).unwrap();
        let mut forget = command(["forget", "--yes", &place.text("mnt/f")]);
        let mut forget = forget.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it is being forgotten", || place.info()["notes"].to_string().contains("are forgotten"));
        let asked = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let list = || nenrin(["device", "list", "--json", &mnt]).json();
        wait_until("it was asked for", || list()[1]["state"] == state);
        signal(asked.id(), "STOP");
        forget.kill().unwrap();
        forget.wait().unwrap();
        nenrin(["device", "remove", "--cancel", &mnt, "2"]).ok();
        signal(asked.id(), "CONT");
        let out = Out::of(asked.wait_with_output().unwrap());
        assert_eq!((list()[1]["state"].as_str(), list()[1]["bytes"].as_u64()), (Some("active"), Some(64 << 20)));
        out
    };
    let told = ["device 2 was taken back meanwhile", "nenrin device list"];
    begin(&["device", "remove", &mnt, "2"], "leaving").fails(1, &told);
    begin(&["resize", "--device", "2", &mnt, "32M"], "shrinking").fails(1, &told);
    let out = begin(&["device", "remove", "--json", &mnt, "2"], "leaving");
    let json: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((out.code, &json["done"], &json["taken_back"]), (1, &false.into(), &true.into()), "{json}");
    assert_eq!(fs::metadata(place.path("more")).unwrap().len(), 64 << 20);
}

/// Who unmounts ends a scrub, which says how far it came.
#[test]
fn a_scrub_of_what_is_unmounted_says_so() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    fs::write(place.path("mnt/f"), vec![7; 12 << 20]).unwrap();
    run("sync", &["-f", &place.text("mnt/f")]).ok();
    let mut scrub = command(["scrub", "--rate", "1M", &mnt]);
    let scrub = scrub.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_connected = || {
        let open = fs::read_dir(format!("/proc/{}/fd", scrub.id())).unwrap().flatten();
        open.filter_map(|e| fs::read_link(e.path()).ok()).any(|to| to.to_string_lossy().starts_with("socket:"))
    };
    wait_until("it asks the owner", is_connected);
    // Who asks is known, and the first answer comes.
    std::thread::sleep(std::time::Duration::from_secs(1));
    place.umount().ok();
    let out = Out::of(scrub.wait_with_output().unwrap());
    out.fails(130, &["mnt: unmounted meanwhile: ", "verified"]);
}

/// Who unmounts ends the copying to a new device, and whoever waited for that is told what is so.
#[test]
fn a_replacement_of_what_is_unmounted_says_so() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    nenrin(["mkfs", "--sparse", "--size", "128M", &image]).ok();
    place.mount("").ok();
    fs::write(place.path("mnt/f"), vec![7; 64 << 20]).unwrap();
    let new = place.text("new");
    run("truncate", &["-s", "128M", &new]).ok();
    let replace = command(["device", "replace", &mnt, "1", &new]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let replace = replace.unwrap();
    let list = || nenrin(["device", "list", "--json", &mnt]).json().to_string();
    wait_until("it is being replaced", || list().contains("being replaced by"));
    signal(replace.id(), "STOP");
    place.umount().ok();
    signal(replace.id(), "CONT");
    let out = Out::of(replace.wait_with_output().unwrap());
    out.fails(130, &["unmounted meanwhile: ", &new, "--force begins anew"]);
}
