//! Images that were deleted or renamed while they are mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// What has no name any more is lost when it is unmounted: that is told at once, refused, and the way out that is told works.
#[test]
fn an_image_without_a_name_is_not_unmounted_by_mistake() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    fs::remove_file(place.image()).unwrap();
    fs::write(place.path("mnt/f"), "x").unwrap();
    let info = nenrin(["info", &mnt]).ok();
    assert!(info.contains("NOT GOOD") && info.contains("image was deleted while mounted"), "{info}");
    let list = nenrin(["device", "list", &mnt]).ok();
    assert!(list.contains("image was deleted while mounted"), "{list}");
    let refused = place.umount();
    let copy = format!("/proc/{}/fd/", place.pid());
    let at = refused.stderr.find(&copy).unwrap_or_else(|| panic!("{refused:?}"));
    let open = refused.stderr[at..].split(' ').next().unwrap().to_owned();
    refused.fails(1, &["not unmounted", "unmounting loses it", "cp --sparse=always", "nenrin umount --force"]);
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "x");
    run("cp", &["--sparse=always", &open, &place.text("saved")]).ok();
    let forced = nenrin(["umount", "--force", &mnt]);
    assert!(forced.code == 0 && forced.stderr.contains("was deleted while mounted"), "{forced:?}");
    nenrin(["mount", &place.text("saved"), &mnt]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "x");
}

/// One that has another name by now is told where it is, and unmounted.
#[test]
fn an_image_with_another_name_is_unmounted_with_a_word() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::write(place.path("mnt/f"), "x").unwrap();
    fs::rename(place.image(), place.path("away")).unwrap();
    fs::write(place.image(), "another").unwrap();
    let told = format!("image was renamed or replaced while mounted: what is mounted is in {} now", place.text("away"));
    let problems = place.info()["problems"].to_string();
    assert!(problems.contains(&told), "{problems}");
    let out = place.umount();
    assert!(out.code == 0 && out.stderr.contains(&told), "{out:?}");
    nenrin(["mount", &place.text("away"), &place.text("mnt")]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "x");
}

/// Of a mirror the other device has all.
#[test]
fn what_others_have_is_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| place.text(name));
    nenrin(["mkfs", "--profile", "mirror", "--size", SIZE, &a, &b]).ok();
    let mnt = place.sub("mnt");
    nenrin(["mount", &a, &mnt]).ok();
    fs::write(place.path("mnt/f"), "x").unwrap();
    fs::remove_file(&b).unwrap();
    let list = nenrin(["device", "list", "--json", &mnt]).json();
    assert!(list[0]["why"].is_null() && list[1]["why"].as_str().unwrap().contains("deleted while mounted"), "{list}");
    let out = nenrin(["umount", &mnt]);
    assert!(out.code == 0 && out.stderr.contains("b was deleted while mounted"), "{out:?}");
    nenrin(["mount", "-o", "degraded", &a, &mnt]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "x");
    fs::remove_file(&a).unwrap();
    nenrin(["umount", &mnt]).fails(1, &["not unmounted", "a was deleted"]);
    nenrin(["umount", "--force", &mnt]).ok();
}

/// A path that is no text is found again, and told with its bytes; no other is taken for it that looks like it.
#[test]
fn an_image_whose_path_is_no_text_is_where_it_was() {
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b"image-\xff");
    let (image, mnt) = (place.path("").join(name), place.sub("mnt"));
    let args = |words: &[&str], end: &[&std::ffi::OsStr]| {
        nenrin(words.iter().map(std::ffi::OsStr::new).chain(end.iter().copied()).collect::<Vec<_>>())
    };
    args(&["mkfs", "--size", SIZE], &[image.as_os_str()]).ok();
    let alike = place.path("image-\u{fffd}");
    fs::write(&alike, vec![7; 60 << 20]).unwrap();
    args(&["mount"], &[image.as_os_str(), mnt.as_ref()]).ok();
    let bytes = serde_json::json!(fs::canonicalize(&image).unwrap().as_os_str().as_bytes());
    let info = place.info();
    assert_eq!(info["problems"], serde_json::json!([]), "{info}");
    assert_eq!((&info["device_bytes"], &info["devices"][0]["path_bytes"]), (&bytes, &bytes));
    assert_eq!(nenrin(["device", "list", "--json", &mnt]).json()[0]["path_bytes"], bytes);
    nenrin(["resize", &mnt, "48M"]).ok();
    assert_eq!(fs::metadata(&image).unwrap().len(), 48 << 20);
    nenrin(["resize", &mnt, "32M"]).ok();
    let lengths = [&image, &alike].map(|path| fs::metadata(path).unwrap().len());
    assert_eq!(lengths, [32 << 20, 60 << 20]);
    nenrin(["resize", "--device", alike.to_str().unwrap(), &mnt, "40M"]).fails(1, &["no device of this volume"]);
    let named = || args(&["resize", "--device"], &[image.as_os_str(), mnt.as_ref(), "48M".as_ref()]);
    named().fails(1, &["no device of this volume"]);
    // What looks like nothing else is what is meant.
    fs::remove_file(&alike).unwrap();
    named().ok();
    assert_eq!(fs::metadata(&image).unwrap().len(), 48 << 20);
    let out = place.umount();
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
}

/// Two of one volume may look the same.
#[test]
fn images_whose_paths_look_the_same_are_told_apart() {
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let images = [b"image-\xff", b"image-\xfe"].map(|name| place.path("").join(std::ffi::OsStr::from_bytes(name)));
    let mnt = place.sub("mnt");
    let of = |words: &[&str], end: &[&std::ffi::OsStr]| {
        nenrin(words.iter().map(std::ffi::OsStr::new).chain(end.iter().copied()).collect::<Vec<_>>())
    };
    let both = images.each_ref().map(|image| image.as_os_str());
    of(&["mkfs", "--profile", "mirror", "--size", SIZE], &both).ok();
    of(&["mount"], &[both[0], mnt.as_ref()]).ok();
    let info = place.info();
    assert_eq!(info["problems"], serde_json::json!([]), "{info}");
    let bytes = |n: usize| serde_json::json!(fs::canonicalize(&images[n]).unwrap().as_os_str().as_bytes());
    for n in 0..2 {
        assert_eq!(info["devices"][n]["path_bytes"], bytes(n), "{info}");
    }
    of(&["resize", "--device"], &[both[1], mnt.as_ref(), "48M".as_ref()]).fails(1, &["no device of this volume"]);
    nenrin(["resize", "--device", "2", &mnt, "48M"]).ok();
    let lengths = images.each_ref().map(|image| fs::metadata(image).unwrap().len());
    assert_eq!(lengths, [lengths[0], 48 << 20], "{lengths:?}");
    fs::remove_file(&images[1]).unwrap();
    let list = nenrin(["device", "list", "--json", &mnt]).json();
    assert!(list[0]["why"].is_null() && list[1]["why"].as_str().unwrap().contains("deleted while mounted"), "{list}");
    let out = place.umount();
    assert!(out.code == 0 && out.stderr.contains("was deleted while mounted"), "{out:?}");
}
