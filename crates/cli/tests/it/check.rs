//! `nenrin check`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::ffi::OsStrExt;

fn used_volume() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/big"), vec![0xa7; 1 << 20]).unwrap();
    fs::write(place.path("mnt/small"), b"small").unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "snap"]).ok();
    fs::write(place.path("mnt/small"), b"other").unwrap();
    Some(place)
}

#[test]
fn a_sound_volume_is_clean() {
    let Some(place) = used_volume() else { return };
    place.umount().ok();
    let before = fs::read(place.image()).unwrap();
    for args in [vec!["check"], vec!["check", "-n"], vec!["check", "--data"]] {
        let mut args = args;
        let image = place.image();
        args.push(&image);
        let text = nenrin(&args).ok();
        assert!(text.contains("clean;") && text.contains(" 4 inodes"), "{args:?}: {text}");
    }
    let report = nenrin(["check", "--data", "--json", &place.image()]).json();
    assert_eq!((&report["clean"], &report["errors"]), (&true.into(), &0.into()));
    assert!(report["counts"]["blocks_verified"].as_u64().unwrap() >= 256);
    assert!(fs::read(place.image()).unwrap() == before, "check wrote to the image");
}

#[test]
fn after_a_power_cut_too() {
    let Some(place) = used_volume() else { return };
    place.kill();
    let report = nenrin(["check", "--data", "--json", &place.image()]).json();
    assert_eq!(report["clean"], true, "{report}");
}

#[test]
fn damage_is_found_and_named() {
    let Some(place) = used_volume() else { return };
    place.umount().ok();
    // One byte of the content of a file, wherever it lies.
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    nenrin(["check", &place.image()]).ok();
    let out = nenrin(["check", "--data", &place.image()]);
    assert_eq!(out.code, 4, "{out:?}");
    assert!(out.stdout.contains("error 7") && out.stdout.contains("/dir/big"), "{}", out.stdout);
    let json = nenrin(["check", "--data", "--json", &place.image()]);
    assert_eq!(json.code, 4);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["clean"], false);
    assert_eq!(report["findings"][0]["path"], "/dir/big");
    // Damage is never given out as data, and the rest can be read.
    place.mount("").ok();
    let error = fs::read(place.path("mnt/dir/big")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_eq!(fs::read(place.path("mnt/small")).unwrap(), b"other");
}

#[test]
fn a_damaged_slot_is_damage() {
    let place = Place::with_volume();
    let image = fs::read(place.image()).unwrap();
    let slot = place.slots().into_iter().find(|o| image[*o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    let out = nenrin(["check", &place.image()]);
    assert_eq!(out.code, 4, "{out:?}");
    assert!(out.stdout.contains("101 slot-damaged"), "{}", out.stdout);
}

#[test]
fn a_sound_volume_is_not_repaired() {
    let place = Place::with_volume();
    let before = fs::read(place.image()).unwrap();
    for option in ["-n", "--yes"] {
        let text = nenrin(["check", "--repair", option, &place.image()]).ok();
        assert!(text.contains("nothing to repair"), "{text}");
    }
    assert!(fs::read(place.image()).unwrap() == before, "a repair of nothing wrote to the image");
}

#[test]
fn a_damaged_slot_is_repaired() {
    let place = Place::with_volume();
    let slot = *place.slots().iter().find(|o| fs::read(place.image()).unwrap()[**o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    let before = fs::read(place.image()).unwrap();
    let plan = nenrin(["check", "--repair", "-n", &place.image()]);
    assert_eq!(plan.code, 4, "{plan:?}");
    assert!(plan.stdout.contains("mend 902 slots-rewritten") && plan.stdout.contains("without loss"), "{plan:?}");
    assert!(plan.stdout.contains("nothing was changed"), "{plan:?}");
    assert!(fs::read(place.image()).unwrap() == before, "the plan wrote to the image");
    let done = nenrin(["check", "--repair", "--yes", "--json", &place.image()]);
    assert_eq!(done.code, 1, "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&report["repaired"], &report["losses_total"]), (&true.into(), &0.into()), "{report}");
    let text = nenrin(["check", "--data", &place.image()]).ok();
    assert!(text.contains("clean;"), "{text}");
    nenrin(["check", "--repair", "--yes", &place.image()]).ok();
}

/// Whoever is to lose something reads first what.
#[test]
fn a_repair_whose_plan_cannot_be_told_is_not_made() {
    let place = Place::with_volume();
    let full = |args: &[&str]| {
        let out = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(["check", "--repair"].iter().chain(args));
        Out::of(command.arg(place.image()).stdout(out).stderr(std::process::Stdio::piped()).output().unwrap())
    };
    for args in [&["-n"][..], &["--yes"], &["-n", "--json"], &["--yes", "--json"]] {
        full(args).fails(8, &["standard output", "No space left"]);
    }
    let slot = *place.slots().iter().find(|o| fs::read(place.image()).unwrap()[**o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    let before = fs::read(place.image()).unwrap();
    for args in [&["-n"][..], &["--yes"]] {
        full(args).fails(8, &["standard output", "No space left"]);
        assert!(fs::read(place.image()).unwrap() == before, "{args:?} wrote to the image");
    }
    // Nobody reads a plan in JSON before it is carried out.
    full(&["--yes", "--json"]).fails(8, &["standard output", "it was repaired all the same"]);
    nenrin(["check", &place.image()]).ok();
}

#[test]
fn content_that_is_damaged_is_listed_and_left() {
    let Some(place) = used_volume() else { return };
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    let before = fs::read(place.image()).unwrap();
    let out = nenrin(["check", "--repair", "--yes", "--json", &place.image()]);
    assert_eq!(out.code, 4, "{out:?}");
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let loss = &report["losses"][0];
    assert_eq!((&loss["number"], &loss["path"]), (&801.into(), &"/dir/big".into()), "{report}");
    assert_eq!((&report["needed"], &report["repaired"]), (&false.into(), &false.into()));
    assert!(fs::read(place.image()).unwrap() == before, "nothing can be done about it, and yet something was");
}

/// Of whom damage is told can be known also where its path is no text.
#[test]
fn damage_of_paths_that_are_no_text_is_told_in_bytes() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let name = b"bad\xff";
    fs::write(place.path("mnt").join(std::ffi::OsStr::from_bytes(name)), vec![0xb3; 100_000]).unwrap();
    place.umount().ok();
    crate::restore::spoil(&place, 0xb3);
    let told = |out: Out| serde_json::from_str::<serde_json::Value>(&out.stdout).unwrap();
    let is_told = |list: &serde_json::Value| {
        let bytes = |told: &serde_json::Value| serde_json::from_value::<Vec<u8>>(told["path_bytes"].clone()).ok();
        let is_it =
            |told: &serde_json::Value| bytes(told).is_some_and(|b| b.ends_with(name)) && told["path"].is_string();
        assert!(list.as_array().unwrap().iter().any(is_it), "{list}");
    };
    is_told(&told(nenrin(["check", "--data", "--json", &place.image()]))["findings"]);
    is_told(&told(nenrin(["check", "--repair", "-n", "--json", &place.image()]))["losses"]);
    place.mount("checkpoint=0").ok();
    is_told(&told(nenrin(["scrub", "--json", &place.text("mnt")]))["findings"]);
}

#[test]
fn wrong_calls() {
    let place = Place::with_volume();
    nenrin(["check"]).fails(16, &["a device is needed", "usage:"]);
    nenrin(["check", "--frob", "x"]).fails(16, &["unknown option --frob"]);
    assert!(nenrin(["check", "--repair", &place.image()]).ok().contains("nothing to repair"));
    nenrin(["check", "--yes", &place.image()]).fails(16, &["--yes goes with --repair"]);
    nenrin(["check", "/no/such/image"]).fails(8, &["no such file or device"]);
    if can_mount() {
        place.mount("").ok();
        nenrin(["check", &place.image()]).fails(8, &["in use by nenrin"]);
    }
}
