//! Commands of a volume whose process is stopped, or does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::symlink;

/// Goes on when the test ends, however that is.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        run("sh", &["-c", &format!("kill -CONT {}", self.0)]);
    }
}

#[test]
fn a_process_that_is_stopped_is_named() {
    if !can_mount() || !has("timeout") {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/f"), "x").unwrap();
    symlink(place.path("mnt/d"), place.path("link")).unwrap();
    let pid = place.pid();
    let stopped = Stopped::new(pid);
    let said = format!("process {pid}");
    // The limit is there for who hangs; none of them ends by it.
    let dir = place.dir();
    let asked = &|args: &str| shell(&format!("timeout -s KILL 120 $NENRIN {args}"), dir);
    let all = [
        "info mnt",
        "info mnt/d/f",
        "info --json image",
        "info link",
        "history link/f",
        "diff mnt/d 1",
        "restore mnt/d/f --at 1",
        "restore --list-deleted mnt",
        "scrub mnt",
        "clean mnt",
        "snapshot create mnt name",
        "checkpoint list mnt",
        "device list mnt",
        "umount mnt",
    ];
    // All at once, as each of them waits for some seconds.
    let outs = std::thread::scope(|scope| {
        let begun = all.map(|args| (args, scope.spawn(move || asked(args))));
        begun.map(|(args, out)| (args, out.join().unwrap()))
    });
    for (args, out) in outs {
        assert!(out.stderr.contains(&said), "{args}: {out:?}");
        out.fails(1, &[&said, "does not answer"]);
    }
    shell("timeout -s KILL 120 $NENRIN info", &place.path("mnt")).fails(1, &[&said, "does not answer"]);
    drop(stopped);
    assert!(nenrin(["info", &place.text("mnt")]).ok().contains("health       good"));
}
