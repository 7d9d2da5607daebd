//! `nenrin restore --list-deleted`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore};
use std::fs;

/// Where nothing is listed it is told how far back anything is known, and that more was.
#[test]
fn an_empty_list_says_how_far_it_reaches() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (dir, mnt) = (place.text("mnt/d"), place.text("mnt"));
    fs::create_dir(&dir).unwrap();
    let listed = |args: &[&str]| restore(&[&["--list-deleted", &dir], args].concat());
    let out = listed(&[]);
    assert_eq!((out.code, out.stdout.as_str()), (0, ""));
    let told = format!("{dir}: nothing is known to have been removed from it; the volume has no checkpoints yet");
    assert!(out.stderr.contains(&told), "{}", out.stderr);
    fs::write(place.path("mnt/d/f"), "f").unwrap();
    let shows = cut(&place);
    fs::remove_file(place.path("mnt/d/f")).unwrap();
    let later = cut(&place);
    assert!(listed(&[]).ok().contains("removed"));
    nenrin(["checkpoint", "delete", &mnt, &shows]).ok();
    for json in [false, true] {
        let out = listed(if json { &["--json"] } else { &[] });
        assert_eq!((out.code, out.stdout.trim()), (0, if json { "[]" } else { "" }));
        assert_eq!(out.stderr.lines().count(), 1, "{}", out.stderr);
        for part in
            [&format!("begins with checkpoint {later} of "), "; 1 checkpoint was let go, and what that alone showed"]
        {
            assert!(out.stderr.contains(part), "{}", out.stderr);
        }
    }
}
