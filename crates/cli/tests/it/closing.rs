//! Files that were just closed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::Write;

/// The kernel tells of a close(2) when that has returned: who makes a snapshot next has the new content all the same.
#[test]
fn what_was_saved_before_is_in_the_snapshot() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    let conf = place.path("mnt/app.conf");
    for n in 0..20 {
        fs::write(&conf, format!("version {n}")).unwrap();
        let made = nenrin(["checkpoint", "create", "--json", &mnt]).json();
        assert_eq!(made["held_back_files"], 0);
        let then = place.path(&format!("mnt/.nenrin/at/{}/app.conf", made["cno"]));
        assert_eq!(fs::read_to_string(then).unwrap(), format!("version {n}"));
    }
    // Of what is still being written it has what was there, and says so.
    let mut open = fs::File::create(&conf).unwrap();
    open.write_all(b"half of it").unwrap();
    let out = nenrin(["snapshot", "create", &mnt, "before"]);
    assert!(out.code == 0 && out.stderr.contains("of one file that a program has emptied"), "{out:?}");
    assert_eq!(fs::read_to_string(place.path("mnt/.nenrin/at/before/app.conf")).unwrap(), "version 19");
    let made = nenrin(["snapshot", "create", "--json", &mnt, "again"]).json();
    assert_eq!(made["held_back_files"], 1);
    drop(open);
    let out = nenrin(["snapshot", "create", &mnt, "after"]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    assert_eq!(fs::read_to_string(place.path("mnt/.nenrin/at/after/app.conf")).unwrap(), "half of it");
}
