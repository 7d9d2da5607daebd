//! `nenrin retention`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;

const DEFAULT: &str = "1h:all 1d:10m 7d:1h 30d:1d\n";

#[test]
fn the_rule_is_shown_set_and_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    assert_eq!(nenrin(["retention", "show", &place.image()]).ok(), DEFAULT);
    nenrin(["retention", "set", &place.image(), "1d:all"]).fails(1, &["not mounted"]);
    place.mount("").ok();
    let mnt = place.text("mnt");
    assert_eq!(nenrin(["retention", "set", &mnt, "1d:all  1w:1h"]).ok(), "1d:all 7d:1h\n");
    nenrin(["retention", "set", &mnt, "1d:now"]).fails(2, &["now", "a rule is like"]);
    place.umount().ok();
    let shown = nenrin(["retention", "show", "--json", &place.image()]).json();
    assert_eq!(shown["retention"], "1d:all 7d:1h");
    place.mount("").ok();
    assert_eq!(nenrin(["retention", "set", &mnt, "default"]).ok(), DEFAULT);
}

#[test]
fn wrong_calls() {
    nenrin(["retention"]).fails(2, &["show or set"]);
    nenrin(["retention", "set"]).fails(2, &["rule"]);
    nenrin(["retention", "forget", "."]).fails(2, &["forget"]);
}
