//! `nenrin restore` to another file system, and what it says of what it cannot do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore, spoil};
use std::fs;

/// Unmounted when it goes.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &["-l", &self.0]);
    }
}

/// Extended attributes that another file system does not take keep no content from coming back.
#[test]
fn attributes_that_do_not_fit_are_named() {
    if !can_mount() || !has("setfattr") || !has("setfacl") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    for (name, attribute) in [("d/f", "user.note"), ("d/g", "user.other")] {
        fs::write(place.path(&format!("mnt/{name}")), name).unwrap();
        run("setfattr", &["-n", attribute, "-v", "x", &place.text(&format!("mnt/{name}"))]).ok();
    }
    fs::write(place.path("mnt/d/plain"), "plain").unwrap();
    run("setfacl", &["-d", "-m", "u:1234:rw", &place.text("mnt/d")]).ok();
    let cno = cut(&place);
    let ram = place.sub("ram");
    run("mount", &["-t", "ramfs", "none", &ram]).ok();
    let _ram = Mounted(ram.clone());
    let out = restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &format!("{ram}/d")]);
    assert_eq!(out.code, 1, "{out:?}");
    for (name, attribute) in [("d/f", "user.note (1 bytes: "), ("d/g", "user.other (1 bytes: ")] {
        let told = |line: &str| line.contains(&format!("mnt/{name}: extended attributes")) && line.contains(attribute);
        assert!(out.stderr.lines().any(told), "{out:?}");
        assert_eq!(fs::read_to_string(place.path(&format!("ram/{name}"))).unwrap(), name);
    }
    assert!(
        out.stderr.contains("mnt/d: extended attributes") && out.stderr.contains("system.posix_acl_default"),
        "{out:?}"
    );
    assert!(out.stdout.contains("3 files and 1 directory") && out.stderr.lines().count() == 3, "{out:?}");
    let out = restore(&["--json", &place.text("mnt/d/f"), "--at", &cno, "--to", &format!("{ram}/one")]);
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["attributes_left_out"][0]["path"], place.text("mnt/d/f"), "{told}");
    // On the volume they fit.
    restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &place.text("mnt/again")]).ok();
}

/// Who cannot have a file for its damage is told how to have what is left of it.
#[test]
fn a_damaged_file_names_the_way_to_its_rest() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let path = place.text("mnt/bad");
    let whole: Vec<u8> = (0..40u8).flat_map(|n| vec![n + 1; 4096]).collect();
    fs::write(&path, &whole).unwrap();
    let cno = cut(&place);
    place.umount().ok();
    spoil(&place, 21);
    place.mount("checkpoint=0").ok();
    let to = place.text("mnt/to");
    restore(&[&path, "--at", &cno, "--to", &to]).fails(1, &["bad: is damaged", "--salvage with --to DEST restores"]);
    assert_eq!(restore(&[&path, "--at", &cno, "--to", &to, "--salvage"]).code, 1);
    assert_eq!(fs::read(&to).unwrap()[..4096], whole[..4096]);
}

/// Who may not give a file away is told so in plain words.
#[test]
fn a_file_that_is_somebody_elses() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0,allow_other").ok();
    fs::write(place.path("mnt/f"), "x").unwrap();
    let cno = cut(&place);
    let script = format!("$NENRIN restore mnt/f --at {cno} --to ./mine");
    let Some(out) = as_nobody(&place, &script) else { return };
    let told = "1 file or directory belongs to you now, and not to who, or the group that, had it then: only root";
    assert!(out.code == 0 && out.stderr.contains(told), "{out:?}");
}

/// What another file system has no place for, here by a limit on the length of files, keeps nothing else of a tree from coming back.
#[test]
fn what_cannot_be_there_is_left_out_of_a_tree() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    for (name, bytes) in [("a", 10), ("big", 4 << 20), ("z", 10)] {
        fs::write(place.path("mnt/d").join(name), vec![7; bytes]).unwrap();
    }
    let cno = cut(&place);
    place.sub("other");
    let asked = |rest: &str| shell(&format!("ulimit -f 1024; $NENRIN restore mnt/d{rest} --at {cno}"), place.dir());
    let out = asked(" --json --to other/d");
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["left_out"], serde_json::json!([{ "path": "mnt/d/big", "why": "unfit" }]), "{out:?}");
    assert!(out.code == 1 && out.stderr.contains("mnt/d/big cannot be made where it was to go"), "{out:?}");
    let mut names: Vec<_> = fs::read_dir(place.path("other/d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "z"]);
    // By itself it is no tree that could do without.
    asked("/big --to other/big").fails(1, &["other/big", "too large"]);
}
