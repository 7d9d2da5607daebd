//! `nenrin restore` of what had another name then, and of names that are no text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// What had another name in a state is told by that, which history shows.
#[test]
fn what_had_another_name_then_is_told_by_it() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    fs::write(place.path("mnt/f"), "1").unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    fs::rename(place.path("mnt/f"), place.path("mnt/g")).unwrap();
    let (was, is) = (place.text("mnt/f"), place.text("mnt/g"));
    let told = format!("nenrin restore {was} --at 1 --to {is}");
    nenrin(["restore", &is, "--at", "1", "--force"]).fails(1, &["had another name in checkpoint 1", &told]);
    nenrin(["restore", &was, "--at", "1", "--to", &is, "--force"]).ok();
    nenrin(["restore", &place.text("mnt/never"), "--at", "1"]).fails(1, &["was not there in checkpoint 1"]);
}

/// Two had to do with the name in that state: what stood for it in the directory, which had another name, and elsewhere what it stands for
/// now. The former is told.
#[test]
fn what_stood_for_the_name_then_is_told_before_what_does_now() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    let cut = || drop(nenrin(["checkpoint", "create", &mnt]).ok());
    fs::write(place.path("mnt/draft"), "draft").unwrap();
    cut();
    fs::create_dir(place.path("mnt/proj")).unwrap();
    fs::write(place.path("mnt/proj/y"), "y").unwrap();
    cut();
    fs::rename(place.path("mnt/draft"), place.path("mnt/proj/y")).unwrap();
    fs::rename(place.path("mnt/proj"), place.path("mnt/old")).unwrap();
    cut();
    let (is, to) = (format!("{mnt}/old/y"), place.text("y"));
    let hint = |at: &str, was: &str| {
        let told = format!("had another name in checkpoint {at} of");
        let what = format!("nenrin restore {mnt}/{was} --at {at} --to {to}");
        nenrin(["restore", &is, "--at", at, "--to", &to]).fails(1, &[&told, &what]);
    };
    hint("2", "proj/y");
    // Nothing stood for it there yet.
    hint("1", "draft");
}

/// A file of which nothing changed but the directories above it has one state under all of their names: each is told where it was so.
#[test]
fn each_name_of_a_directory_is_told_where_it_was() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    fs::create_dir(place.path("mnt/a")).unwrap();
    fs::write(place.path("mnt/a/f"), "1").unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    for (was, is) in [("a", "b"), ("b", "c")] {
        fs::rename(place.path("mnt").join(was), place.path("mnt").join(is)).unwrap();
        nenrin(["checkpoint", "create", &mnt]).ok();
    }
    for (at, was) in [("1", "a/f"), ("2", "b/f")] {
        let told = format!("nenrin restore {mnt}/{was} --at {at} --to");
        nenrin(["restore", &format!("{mnt}/c/f"), "--at", at]).fails(1, &[&told]);
    }
    // From a name that it had before, too.
    let told = format!("nenrin restore {mnt}/c/f --at 3 --to");
    nenrin(["restore", &format!("{mnt}/a/f"), "--at", "3"]).fails(1, &[&told]);
}

/// What a directory lost while it had another name is listed under the one it has, told by the one it had, and comes back.
#[test]
fn what_was_removed_before_its_directory_was_renamed_comes_back() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, dir) = (place.text("mnt"), place.text("mnt/old"));
    fs::create_dir(place.path("mnt/proj")).unwrap();
    fs::write(place.path("mnt/proj/x"), "1").unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    fs::remove_file(place.path("mnt/proj/x")).unwrap();
    fs::rename(place.path("mnt/proj"), &dir).unwrap();
    assert!(nenrin(["restore", "--list-deleted", &dir]).ok().contains("removed, as proj/x"));
    let listed = nenrin(["restore", "--json", "--list-deleted", &dir]).json();
    assert_eq!(listed[0]["then"], "proj/x");
    let x = format!("{dir}/x");
    assert!(nenrin(["history", &x]).ok().contains("made, as proj/x"));
    let told = format!("nenrin restore {mnt}/proj/x --at 1 --to {x}");
    nenrin(["restore", &x, "--at", "1"]).fails(1, &["had another name in checkpoint 1", &told]);
    nenrin(["restore", &format!("{mnt}/proj/x"), "--at", "1", "--to", &x]).ok();
    assert_eq!(fs::read_to_string(&x).unwrap(), "1");
}

/// Names that are no text are told byte for byte.
#[test]
fn names_that_are_no_text_are_told_in_bytes() {
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let file = place.path("mnt").join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    fs::write(&file, "1").unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    fs::remove_file(&file).unwrap();
    let gone = nenrin(["restore", "--json", "--list-deleted", &place.text("mnt")]).json();
    assert_eq!(gone[0]["name_bytes"], serde_json::json!([0xff, 0xfe]));
    let of = [std::ffi::OsStr::new("history"), "--json".as_ref(), file.as_os_str()];
    assert_eq!(nenrin(of).json()[0]["path_bytes"], serde_json::json!([0xff, 0xfe]));
}

/// The same of what `restore` and `forget` did.
#[test]
fn paths_that_are_no_text_are_told_in_bytes() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let own = OsStr::from_bytes(b"\xff");
    let (mnt, dir) = (place.path("mnt"), place.path("mnt").join(own));
    let bytes = |path: &std::path::Path| serde_json::json!(path.as_os_str().as_bytes());
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(own), "x").unwrap();
    fs::hard_link(dir.join(own), mnt.join("other")).unwrap();
    let cno = nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].as_u64().unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"since\xfe")), "x").unwrap();
    fs::write(dir.join("plain"), "x").unwrap();
    let cno = cno.to_string();
    let of = |path: &std::path::Path, more: &[&str]| {
        let mut all: Vec<OsString> = ["restore", "--json", "--at", &cno].map(OsString::from).to_vec();
        all.push(path.into());
        all.extend(more.iter().map(OsString::from));
        nenrin(all).json()
    };
    let told = of(&dir, &["--force"]);
    assert_eq!(told["path_bytes"], bytes(&dir), "{told}");
    assert_eq!(told["parted_bytes"], serde_json::json!([dir.join(own).as_os_str().as_bytes()]), "{told}");
    assert_eq!(told["went"][0], "plain");
    assert_eq!(told["went_bytes"], serde_json::json!([null, b"since\xfe"]), "{told}");
    let told = of(&mnt.join("other"), &["--force"]);
    assert!(told.get("path_bytes").is_none() && told.get("went_bytes").is_none(), "{told}");
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_file(mnt.join("other")).unwrap();
    let forget = [OsStr::new("forget"), "--json".as_ref(), "--yes".as_ref(), dir.as_os_str()];
    let told = nenrin(forget).json();
    assert_eq!(told["path_bytes"], bytes(&dir), "{told}");
    let names = told["names"].as_array().unwrap();
    assert!(names.iter().any(|n| n["path_bytes"] == serde_json::json!([0xff])), "{told}");
}
