//! `nenrin clean`, and what `info` says of the cleaner.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn what_it_says_is_what_it_does() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    // Every other file goes: segments half full of garbage.
    for i in 0..100 {
        fs::write(place.path(&format!("mnt/f{i}")), vec![i as u8; 100_000]).unwrap();
    }
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    let info = nenrin(["info", "--json", &place.text("mnt")]).json();
    let named = info["newest"]["cno"].as_u64().unwrap();
    assert!(named > 0);
    let text = nenrin(["info", &place.text("mnt")]).ok();
    assert!(text.contains("cleaner ") && text.contains("rests: "), "{text}");
    for i in (0..100).step_by(2) {
        fs::remove_file(place.path(&format!("mnt/f{i}"))).unwrap();
    }
    let would = nenrin(["clean", "-n", "--json", &place.text("mnt")]).json();
    let text = nenrin(["clean", "-n", &place.text("mnt")]).ok();
    assert!(text.contains("would be emptied"), "{text}");
    let did = nenrin(["clean", "--json", &place.text("mnt")]).json();
    assert_eq!((&did["done"], &did["out_of_room"]), (&true.into(), &false.into()), "{did}");
    assert!(did["moved_bytes"].as_u64() >= would["moved_bytes"].as_u64().map(|b| b / 2), "{would} {did}");
    let text = nenrin(["clean", &place.text("mnt")]).ok();
    assert!(text.contains("became free"), "{text}");
    for i in (1..100).step_by(2) {
        assert_eq!(fs::read(place.path(&format!("mnt/f{i}"))).unwrap(), vec![i as u8; 100_000]);
    }
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn what_was_written_at_random_is_put_in_order() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (path, blocks) = (place.path("mnt/f"), 512u64);
    let file = fs::File::create(&path).unwrap();
    for i in 0..blocks {
        let block = i * 79 % blocks;
        file.write_all_at(&[block as u8; 4096], block * 4096).unwrap();
        if i % 4 == 3 {
            file.sync_all().unwrap();
        }
    }
    drop(file);
    let expected = fs::read(&path).unwrap();
    let would = nenrin(["clean", "-n", "--json", &place.text("mnt")]).json();
    assert_eq!((&would["scattered_files"], &would["scattered_bytes"]), (&1.into(), &(2 << 20).into()), "{would}");
    let text = nenrin(["clean", "-n", &place.text("mnt")]).ok();
    assert!(text.contains("1 file would be put in order") && text.contains(": 2M"), "{text}");
    let text = nenrin(["clean", &place.text("mnt")]).ok();
    assert!(text.contains("1 file put in order, 2M moved"), "{text}");
    let again = nenrin(["clean", "--json", &place.text("mnt")]).json();
    let got =
        ["scattered_files", "ordered_files", "ordered_bytes", "left_files", "left_bytes"].map(|k| again[k].as_u64());
    assert_eq!(got, [Some(0); 5], "{again}");
    assert_eq!((&again["done"], &again["looked"], &again["ordering"]), (&true.into(), &true.into(), &false.into()));
    let info = nenrin(["info", "--json", &place.text("mnt")]).json();
    assert_eq!((&info["cleaner"]["ordering"], &info["counters"]["ordered_blocks"]), (&false.into(), &512.into()));
    assert!(fs::read(&path).unwrap() == expected);
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn wrong_calls() {
    let place = Place::with_volume();
    nenrin(["clean", &place.image()]).fails(1, &["not mounted"]);
    nenrin(["clean", "-x"]).fails(2, &["-x"]);
    nenrin(["clean", &place.text("nothing")]).fails(1, &["nothing"]);
}
