//! `nenrin scrub`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// A mounted volume with a directory, a large file and a small one.
fn mounted() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/big"), vec![0xa7; 1 << 20]).unwrap();
    fs::write(place.path("mnt/small"), b"small").unwrap();
    Some(place)
}

#[test]
fn a_sound_volume_has_nothing_to_mend() {
    let Some(place) = mounted() else { return };
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    let text = nenrin(["scrub", &place.text("mnt/dir")]).ok();
    assert!(text.contains("nothing is damaged"), "{text}");
    let report = nenrin(["scrub", "--rate", "0", "--json", &place.text("mnt")]).json();
    assert_eq!((&report["done"], &report["copies_damaged"]), (&true.into(), &0.into()), "{report}");
    place.umount().ok();
    let text = nenrin(["scrub", &place.image()]).ok();
    assert!(text.contains("1M of content"), "{text}");
}

#[test]
fn a_damaged_slot_is_mended_by_the_next_mount() {
    let Some(place) = mounted() else { return };
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let slot = place.slots().into_iter().rfind(|o| image[*o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    // Unmounted it is only told.
    let out = nenrin(["scrub", &place.image()]);
    assert_eq!(out.code, 4, "{out:?}");
    place.mount("checkpoint=0").ok();
    // The mount has written it again.
    nenrin(["scrub", &place.text("mnt")]).ok();
    place.umount().ok();
    nenrin(["check", &place.image()]).ok();
}

#[test]
fn damaged_content_is_named() {
    let Some(place) = mounted() else { return };
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    place.mount("checkpoint=0").ok();
    let out = nenrin(["scrub", &place.text("mnt")]);
    assert!(out.code == 4 && out.stdout.contains("/dir/big at byte "), "{out:?}");
    let out = nenrin(["scrub", "--json", &place.text("mnt")]);
    assert_eq!(out.code, 4);
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(report["findings"][0]["path"], "/dir/big");
    // Written again, it is whole again.
    fs::write(place.path("mnt/dir/big"), vec![0xa8; 1 << 20]).unwrap();
    let file = fs::File::open(place.path("mnt/dir/big")).unwrap();
    file.sync_all().unwrap();
    let out = nenrin(["scrub", "--json", &place.text("mnt")]);
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(report["extents_damaged"], 0, "{report}");
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    nenrin(["scrub", "--rate", "fast", "."]).fails(2, &["--rate", "20M"]);
    nenrin(["scrub", &place.text("nothing")]).fails(8, &["nothing"]);
    nenrin(["scrub", "/"]).fails(8, &["not"]);
}
