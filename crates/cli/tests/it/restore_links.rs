//! `nenrin restore` of what has several names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore};
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn ino(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// One of two names gets what it had, and the other keeps what it has: that is told, with what gives it to both.
#[test]
fn a_name_that_becomes_a_file_of_its_own_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (a, b) = (place.path("mnt/a"), place.path("mnt/b"));
    fs::write(&a, "then").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let cno = cut(&place);
    fs::write(&a, "now").unwrap();
    let name = place.text("mnt/a");
    let told = restore(&[&name, "--at", &cno, "--force"]);
    assert!(told.code == 0 && told.stderr.contains("mnt/a is a file of its own now"), "{told:?}");
    assert!(told.stderr.contains("--in-place"), "{told:?}");
    assert_eq!((fs::read_to_string(&a).unwrap(), fs::read_to_string(&b).unwrap()), ("then".into(), "now".into()));
    // The same of a name that was removed.
    fs::remove_file(&a).unwrap();
    let told = restore(&["--json", &name, "--at", &cno]).json();
    assert_eq!(told["parted"], serde_json::json!([name]), "{told}");
    // Beside it nobody takes it for the same file.
    let beside = restore(&["--json", &name, "--at", &cno, "--to", &place.text("mnt/c")]).json();
    assert_eq!(beside["parted"], serde_json::json!([]), "{beside}");
}

/// Of a tree those are told that have names outside of it.
#[test]
fn names_outside_of_a_tree_are_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let dir = place.path("mnt/d");
    fs::create_dir(&dir).unwrap();
    for name in ["within", "across", "since", "alone"] {
        fs::write(dir.join(name), "then").unwrap();
    }
    fs::hard_link(dir.join("within"), dir.join("within2")).unwrap();
    fs::hard_link(dir.join("across"), place.path("mnt/outside")).unwrap();
    let cno = cut(&place);
    fs::hard_link(dir.join("since"), place.path("mnt/outside2")).unwrap();
    let path = place.text("mnt/d");
    let told = restore(&["--json", &path, "--at", &cno, "--force"]).json();
    assert_eq!(told["parted"], serde_json::json!([format!("{path}/across"), format!("{path}/since")]), "{told}");
    assert_eq!(ino(&dir.join("within")), ino(&dir.join("within2")));
}

/// All names of a file get what it was, with its attributes, and it stays the same file.
#[test]
fn a_file_is_restored_in_place() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (a, b) = (place.path("mnt/a"), place.path("mnt/b"));
    let then: Vec<u8> = (0..5_000_000_u32).map(|i| (i / 977) as u8).collect();
    fs::write(&a, &then).unwrap();
    fs::set_permissions(&a, Permissions::from_mode(0o640)).unwrap();
    let time = fs::metadata(&a).unwrap().modified().unwrap();
    fs::hard_link(&a, &b).unwrap();
    let cno = cut(&place);
    fs::write(&b, "now").unwrap();
    fs::set_permissions(&a, Permissions::from_mode(0o604)).unwrap();
    let has_attributes = has("setfattr");
    if has_attributes {
        run("setfattr", &["-n", "user.since", "-v", "x", a.to_str().unwrap()]).ok();
    }
    let open = fs::File::open(&b).unwrap();
    let before = ino(&a);
    let told = restore(&["--json", &place.text("mnt/a"), "--at", &cno, "--in-place"]).json();
    assert_eq!((told["in_place"].as_bool(), told["bytes"].as_u64()), (Some(true), Some(5_000_000)));
    assert_eq!(told["parted"], serde_json::json!([]));
    let now = fs::metadata(&b).unwrap();
    assert_eq!((ino(&a), now.ino(), now.nlink()), (before, before, 2));
    assert!(fs::read(&a).unwrap() == then && fs::read(&b).unwrap() == then);
    assert_eq!((now.mode() & 0o7777, now.modified().unwrap()), (0o640, time));
    if has_attributes {
        assert_eq!(run("getfattr", &[a.to_str().unwrap()]).ok(), "", "what it got since");
    }
    // Who has it open has the file, and what was replaced can be had back.
    let mut first = [0; 8];
    open.read_exact_at(&mut first, 4_000_000).unwrap();
    assert_eq!(first[..], then[4_000_000..4_000_008]);
    let kept = told["replaced_kept_in"].as_u64().unwrap().to_string();
    restore(&[&place.text("mnt/b"), "--at", &kept, "--in-place"]).ok();
    assert_eq!(fs::read_to_string(&a).unwrap(), "now");
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 2, "nothing is left behind");
    drop(open);
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn what_is_not_restored_in_place() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let name = place.text("mnt/a");
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(&name, "then").unwrap();
    let cno = cut(&place);
    let in_place = |name: &str, more: &[&str]| restore(&[&[name, "--at", &cno, "--in-place"], more].concat());
    in_place(&place.text("mnt/d"), &[]).fails(1, &["mnt/d", "not a file", "--force"]);
    for more in [&["--force"][..], &["--salvage"], &["--to", "x"], &["--as", "x"]] {
        in_place(&name, more).fails(2, &["--in-place"]);
    }
    fs::remove_file(&name).unwrap();
    in_place(&name, &[]).fails(1, &["mnt/a", "is not there", "without --in-place"]);
    fs::write(&name, "another").unwrap();
    in_place(&name, &[]).fails(1, &["mnt/a", "another file", "--force"]);
    assert_eq!(fs::read_to_string(&name).unwrap(), "another");
}

/// Wherever it is cut, both names have the old content or both the new.
#[test]
fn a_cut_in_the_middle_leaves_the_old_or_the_new() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (a, b) = (place.path("mnt/a"), place.path("mnt/b"));
    let content = |salt: u32| (0..6_000_000_u32).map(|i| (i / 4096 + salt) as u8).collect::<Vec<u8>>();
    let (old, new) = (content(1), content(100));
    place.mount("checkpoint=0").ok();
    fs::write(&a, &old).unwrap();
    fs::hard_link(&a, &b).unwrap();
    let cno = cut(&place);
    for millis in [0, 40, 80, 120, 160, 250] {
        fs::write(&a, &new).unwrap();
        nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
        let mut child = command(["restore", &place.text("mnt/a"), "--at", &cno, "--in-place"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(millis));
        place.kill();
        child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("--in-place"), "it was understood: {said}");
        nenrin(["umount", &place.text("mnt")]).ok();
        place.mount("checkpoint=0").ok();
        let now = fs::read(&a).unwrap();
        assert!(now == old || now == new, "{millis} ms: {} bytes, a mixture", now.len());
        assert!(fs::read(&b).unwrap() == now && ino(&a) == ino(&b));
        // What the killed one left.
        shell("rm -rf mnt/.restoring-*", place.dir()).ok();
    }
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}
