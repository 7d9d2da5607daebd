//! `nenrin restore`: where to, what is left of what is damaged, and what is made on the way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore, spoil};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// As cp: what is told to go to a directory goes into it, and nothing else there is touched.
#[test]
fn a_directory_is_restored_into() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    for d in ["d", "to"] {
        fs::create_dir(mnt.join(d)).unwrap();
        fs::write(mnt.join(d).join("f"), d).unwrap();
    }
    let cno = cut(&place);
    let (d, to) = (place.text("mnt/d"), place.text("mnt/to"));
    let told = restore(&[&d, "--at", &cno, "--to", &to]).ok();
    assert!(told.starts_with(&format!("{to}/d restored from")), "{told}");
    restore(&[&d, "--at", &cno, "--to", &to]).fails(1, &["to/d: is there already", "--force"]);
    fs::write(mnt.join("to/d/f"), "changed").unwrap();
    restore(&[&d, "--at", &cno, "--to", &to, "--force"]).ok();
    restore(&[&format!("{d}/f"), "--at", &cno, "--to", &to, "--force"]).ok();
    let read = |name: &str| fs::read_to_string(mnt.join(name)).unwrap();
    assert_eq!((read("to/d/f"), read("to/f")), ("d".to_owned(), "d".to_owned()));
    // To where it was is where it was.
    restore(&[&to, "--at", &cno, "--to", &to, "--force"]).ok();
    assert_eq!((read("to/f"), mnt.join("to/to").exists(), mnt.join("to/d").exists()), ("to".to_owned(), false, false));
    restore(&[&d, "--at", &cno, "--as", &to, "--force"]).ok();
    assert_eq!((read("to/f"), mnt.join("to/d").exists()), ("d".to_owned(), false));
    restore(&[&d, "--at", &cno, "--as", &to, "--to", &to]).fails(2, &["exclude each other"]);
    restore(&[&place.text("mnt"), "--at", &cno, "--to", &to]).fails(1, &["to: is there already", "has no name"]);
}

/// The directory that one is in is restored like any other, and what to do then is said.
#[test]
fn the_directory_that_one_is_in() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir_all(place.path("mnt/d/e")).unwrap();
    fs::write(place.path("mnt/d/f"), "then").unwrap();
    let cno = cut(&place);
    let again = |at: &str, from: &str| {
        fs::write(place.path("mnt/d/f"), "now").unwrap();
        let script = format!("$NENRIN restore {from} --at {cno} --force; cd \"$PWD\"; cat {at}");
        let out = shell(&script, &place.path("mnt/d").join(if at == "f" { "" } else { "e" }));
        assert!(out.stderr.contains("the directory that you are in was replaced"), "{out:?}");
        assert!(out.ok().ends_with("then"));
    };
    again("f", ".");
    again("../f", "..");
    again("f", "$PWD");
    shell(&format!("$NENRIN restore . --at {cno}"), &place.path("mnt/d")).fails(1, &["mnt/d: is there already"]);
    shell(&format!("$NENRIN restore . --at {cno} --force"), &place.path("mnt")).fails(1, &["all of the volume"]);
    shell(&format!("$NENRIN restore e --at {cno} --to . --force"), &place.path("mnt/d")).ok();
}

/// A state may be cut while a restore is at work: what is made on its way has no part in what is told and brought back.
#[test]
fn what_a_restore_makes_on_its_way_is_seen_by_nobody() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, dir) = (place.path("mnt/d"), place.text("mnt/d"));
    fs::create_dir(&mnt).unwrap();
    fs::write(mnt.join("other"), "").unwrap();
    let first = cut(&place);
    let [made, open] = ["7", "1"].map(|pid| format!(".restoring-{pid}-0123456789abcdef0123456789abcdef"));
    // As a restore does it, with checkpoints between its steps.
    fs::create_dir(mnt.join(&made)).unwrap();
    fs::set_permissions(mnt.join(&made), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(mnt.join(&made).join("copy"), "f").unwrap();
    // Somebody's own, which others may enter.
    fs::create_dir(mnt.join(&open)).unwrap();
    let second = cut(&place);
    fs::rename(mnt.join(&made).join("copy"), mnt.join("f")).unwrap();
    cut(&place);
    fs::remove_dir(mnt.join(&made)).unwrap();
    let last = cut(&place);
    let shown: Vec<_> = fs::read_dir(place.path("mnt/.nenrin/at").join(&second).join("d")).unwrap().collect();
    let mut shown: Vec<_> = shown.into_iter().map(|e| e.unwrap().file_name()).collect();
    shown.sort();
    assert_eq!(shown, [&open[..], "other"], "in the past");
    fs::remove_dir(mnt.join(&open)).unwrap();
    let file = place.text("mnt/d/f");
    let told = nenrin(["history", &file]).ok();
    assert!(!told.contains(".restoring") && told.contains(" made\n") && told.lines().count() == 2, "{told}");
    for (from, to) in [(&first, &second), (&second, &last), (&first, &last)] {
        let told = nenrin(["diff", &dir, from, to]).ok();
        assert!(!told.contains(".restoring"), "{told}");
        assert_eq!(told.contains("+ f\n"), *to == last, "{told}");
    }
    assert!(!restore(&["--list-deleted", &dir]).ok().contains(".restoring"));
    restore(&[&dir, "--at", &second, "--to", &place.text("mnt/then")]).ok();
    let names: Vec<_> = fs::read_dir(place.path("mnt/then")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.contains(&"other".into()) && !names.contains(&made.into()), "{names:?}");
    restore(&[&file, "--at", &second, "--force"]).fails(1, &["d/f: was not there in checkpoint"]);
}

/// Who asks for it gets of a damaged file what can be read, and is told which bytes are zeros.
#[test]
fn what_is_left_of_a_damaged_file_is_had_when_asked_for() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let tree = place.text("mnt/d");
    let path = format!("{tree}/bad");
    fs::create_dir(&tree).unwrap();
    let block = |n: usize| vec![n as u8 + 1; 4096];
    let whole: Vec<u8> = (0..40).flat_map(block).chain([9; 5]).collect();
    fs::write(&path, &whole).unwrap();
    fs::write(format!("{tree}/good"), "good").unwrap();
    let cno = cut(&place);
    fs::write(&path, "now").unwrap();
    place.umount().ok();
    for n in [3, 4, 20] {
        spoil(&place, n + 1);
    }
    place.mount("checkpoint=0").ok();
    let out = restore(&["--json", &path, "--at", &cno, "--to", &place.text("mnt/json"), "--salvage"]);
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((&told["salvaged"][0]["path"], &told["left_out"]), (&path.as_str().into(), &serde_json::json!([])));
    // A checksum may be one of some blocks, of which nobody knows then which is wrong.
    let range = |r: &serde_json::Value| [0, 1].map(|i| r[i].as_u64().unwrap() as usize);
    let bad: Vec<[usize; 2]> = told["salvaged"][0]["bad"].as_array().unwrap().iter().map(range).collect();
    for n in [3, 4, 20] {
        assert!(bad.iter().any(|[from, to]| (*from..*to).contains(&(n * 4096 + 6))), "{bad:?}");
    }
    let lost: usize = bad.iter().map(|[from, to]| to - from).sum();
    assert!(lost <= 24 * 4096, "{bad:?}");
    let mut left = whole.clone();
    bad.iter().for_each(|[from, to]| left[*from..*to].fill(0));
    let said = format!("{path} is damaged in checkpoint {cno}");
    let ranges: Vec<String> = bad.iter().map(|[from, to]| format!("{from} to {}", to - 1)).collect();
    let ranges = format!("{lost} bytes of the copy are zeros that could not be read: bytes {}", ranges.join(", "));
    // On the volume, and off it; by itself, and in a tree.
    for (from, to, read) in [
        (&path, place.text("mnt/left"), ""),
        (&path, place.text("left"), ""),
        (&tree, place.text("mnt/d2"), "bad"),
        (&tree, place.text("d2"), "bad"),
    ] {
        restore(&[from, "--at", &cno, "--to", &to, "--salvage", "--force"]).fails(2, &["goes without --force"]);
        let out = restore(&[from, "--at", &cno, "--to", &to, "--salvage"]);
        assert!(out.code == 1 && out.stderr.contains(&said) && out.stderr.contains(&ranges), "{out:?}");
        assert!(
            fs::read(Path::new(&to).join(read).components().collect::<std::path::PathBuf>()).unwrap() == left,
            "{to}"
        );
    }
    assert_eq!(fs::read_to_string(place.path("d2/good")).unwrap(), "good");
    // What is shared by that is whole.
    place.umount().ok();
    place.mount("").ok();
    assert!(fs::read(place.path("mnt/left")).unwrap() == left);
    restore(&[&path, "--at", &cno, "--salvage"]).fails(1, &["is there already"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "now");
}

/// What has a longer path than there can be is left out, and told; the rest comes back.
#[test]
fn a_path_that_is_too_long_keeps_nothing_else() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir_all(place.path("mnt/tree/deep")).unwrap();
    fs::write(place.path("mnt/tree/f"), "here").unwrap();
    let name = "n".repeat(200);
    // Longer than 4,095 bytes in all, made from within.
    let deep = format!("for i in $(seq 24); do mkdir {name} && cd -P {name} || exit 1; done; echo x >end");
    shell(&deep, &place.path("mnt/tree/deep")).ok();
    nenrin(["snapshot", "create", &place.text("mnt"), "s"]).ok();
    fs::remove_dir_all(place.path("mnt/tree")).unwrap();
    let out = nenrin(["restore", &place.text("mnt/tree"), "--at", "s"]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stderr.contains("longer path"), "{out:?}");
    assert_eq!(fs::read(place.path("mnt/tree/f")).unwrap(), b"here");
    assert!(place.path("mnt/tree/deep").join(&name).exists());
}

/// The log of another state beside a database, which SQLite would apply to it, is told; so is who goes on with what was replaced.
#[test]
fn what_does_not_go_with_what_came_back_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (db, wal) = (place.path("mnt/db"), place.path("mnt/db-wal"));
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(&db, "SQLite format 3\0first").unwrap();
    fs::write(&wal, "log of then").unwrap();
    let cno = cut(&place);
    let path = place.text("mnt/db");
    fs::write(&db, "SQLite format 3\0second").unwrap();
    let back = || restore(&[&path, "--at", &cno, "--force"]);
    let out = back();
    assert_eq!((out.code, out.stderr.as_str()), (0, ""), "it is that of then still");
    fs::write(&wal, "log of now, which is longer").unwrap();
    let out = back();
    let told = "mnt/db-wal beside it belongs to what was there before; bring back that of then";
    assert!(out.code == 0 && out.stderr.contains(told) && out.stderr.lines().count() == 1, "{out:?}");
    fs::write(&db, "no database").unwrap();
    let cno = cut(&place);
    let out = restore(&[&path, "--at", &cno, "--force"]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));

    let mut sleeper = std::process::Command::new("sleep").arg("60").current_dir(place.path("mnt/d")).spawn().unwrap();
    let out = restore(&[&place.text("mnt/d"), "--at", &cno, "--force"]);
    let told = format!("mnt/d was in use by sleep (pid {})", sleeper.id());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(out.code == 0 && out.stderr.contains(&told), "{out:?}");
    let out = restore(&[&place.text("mnt/d"), "--at", &cno, "--force"]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
}
