//! Files that were just closed, and mounts whose process ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// Wherever its mount was bound or moved to, whoever looks there is not to hang or fail.
#[test]
fn a_signal_leaves_no_dead_mount_anywhere() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    fs::create_dir(place.path("mnt/sub")).unwrap();
    let of_it = fs::metadata(&mnt).unwrap().dev();
    let device = format!(" {}:{} ", libc::major(of_it), libc::minor(of_it));
    let shown = || fs::read_to_string("/proc/self/mountinfo").unwrap().matches(&device).count();
    run("mount", &["--bind", &place.text("mnt/sub"), &place.sub("bound")]).ok();
    let moved = run("mount", &["--move", &mnt, &place.sub("moved")]);
    if moved.code != 0 {
        left_out(format_args!("a mount cannot be moved here"));
    }
    assert_eq!(shown(), 2);
    let at = if moved.code == 0 { place.text("moved") } else { mnt };
    let pid = nenrin(["info", "--json", &at]).json()["pid"].as_i64().unwrap() as i32;
    signal(pid, "TERM");
    wait_until("it has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(shown(), 0);
}
