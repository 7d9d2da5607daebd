//! What goes on while something else does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::process::Stdio;

/// Devices come and go also while something is being forgotten: the command waits for that, and does what it says.
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
    assert!(!notes().contains("forgotten") && !notes().contains("devices have changed"), "{}", notes());
    begin("two");
    let removed = nenrin(["device", "remove", "--json", &mnt, &place.text("more")]).json();
    assert_eq!((&removed["done"], &removed["waits"]), (&true.into(), &serde_json::Value::Null), "{removed}");
    assert_eq!(nenrin(["device", "list", "--json", &mnt]).json().as_array().unwrap().len(), 1);
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
