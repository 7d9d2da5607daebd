//! `nenrin history`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

#[test]
fn a_name_over_time() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, image) = (place.path("mnt"), place.text("mnt"));
    let cut = || nenrin(["checkpoint", "create", "--json", &image]).json()["cno"].as_u64().unwrap();
    let work = mnt.join("work");
    let report = work.join("report.txt");
    let asked = report.to_str().unwrap().to_owned();
    fs::create_dir(&work).unwrap();
    fs::write(&report, "first").unwrap();
    let first = cut();
    // As editors do it.
    fs::write(work.join(".tmp"), "second one").unwrap();
    fs::rename(work.join(".tmp"), &report).unwrap();
    let second = cut();
    fs::write(&report, "now").unwrap();
    let states = nenrin(["history", "--json", &asked]).json();
    let told: Vec<_> = states.as_array().unwrap().iter().map(|s| (s["cno"].as_u64(), s["size"].as_u64())).collect();
    assert_eq!(told, [(Some(first), Some(5)), (Some(second), Some(10)), (None, Some(3))]);
    assert_eq!(states[2]["is_now"], true);
    // All for an hour, then, unless it is the oldest of its ten minutes, no longer.
    let until: Vec<_> = states.as_array().unwrap().iter().map(|s| s["kept_until"].as_str()).collect();
    assert!(until[0].unwrap() > until[1].unwrap() && until[2].is_none(), "{until:?}");
    nenrin(["snapshot", "create", &image, "kept"]).ok();
    assert_eq!(nenrin(["history", "--json", &asked]).json()[2]["kept_until"], "forever");
    assert_eq!(states[0]["path"], "work/report.txt");
    assert!(states[0]["cut"].as_str().unwrap().starts_with("20"));
    // What was removed, with the directory that held it.
    fs::remove_dir_all(&work).unwrap();
    let gone = cut();
    let text = nenrin(["history", &asked]).ok();
    let last = text.lines().last().unwrap();
    assert!(text.starts_with("checkpoint  changed"), "{text}");
    assert!(last.starts_with(&format!("{gone}..now")) && last.ends_with("removed"), "{text}");
    // Moved: under the name it had.
    fs::write(mnt.join("a"), "x").unwrap();
    cut();
    fs::rename(mnt.join("a"), mnt.join("b")).unwrap();
    let text = nenrin(["history", mnt.join("b").to_str().unwrap()]).ok();
    assert!(text.contains("made, as a\n") && text.contains("renamed from a\n"), "{text}");
    // The root itself, and a link rather than what it leads to.
    nenrin(["history", &image]).ok();
    std::os::unix::fs::symlink("b", mnt.join("link")).unwrap();
    let link = nenrin(["history", "--json", mnt.join("link").to_str().unwrap()]).json();
    assert_eq!(link[0]["kind"], "symlink");
}

#[test]
fn what_has_no_history() {
    nenrin(["history"]).fails(2, &["a path is needed"]);
    nenrin(["history", "/proc/version"]).fails(1, &["/proc", "not on a nenrin volume"]);
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let path = |name: &str| place.path("mnt").join(name).to_str().unwrap().to_owned();
    nenrin(["history", &path("never")]).fails(1, &["never: there is and was nothing of this name"]);
    nenrin(["history", &path("never/at/all")]).fails(1, &["never/at/all: there is and was nothing of this name"]);
    nenrin(["history", &path("never/../x")]).fails(1, &["\"..\" behind what is not there"]);
    nenrin(["history", &path(&"x".repeat(256))]).fails(1, &["x"]);
}
