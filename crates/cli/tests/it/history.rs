//! `nenrin history`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use nenrin_core::{Clock, Fs, MountOptions, NewInode};
use nenrin_device::{BlockDevice, FileDevice, OpenMode};
use nenrin_format::{Ino, Time};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    let text = nenrin(["history", mnt.join("a").to_str().unwrap()]).ok();
    assert!(text.lines().last().is_some_and(|l| l.ends_with("moved to b")), "{text}");
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
    nenrin(["history", &path("never")]).fails(1, &["never: nothing of this name is known"]);
    nenrin(["history", &path("never/at/all")]).fails(1, &["never/at/all: nothing of this name is known"]);
    nenrin(["history", &path("never/../x")]).fails(1, &["\"..\" behind what is not there"]);
    nenrin(["history", &path(&"x".repeat(256))]).fails(1, &["x"]);
}

/// What checkpoints showed that were let go is not told to have never been.
#[test]
fn what_was_let_go_is_not_denied() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, path) = (place.text("mnt"), place.text("mnt/gone"));
    let cut = || drop(nenrin(["checkpoint", "create", &mnt]).ok());
    fs::write(place.path("mnt/gone"), "gone").unwrap();
    cut();
    fs::remove_file(place.path("mnt/gone")).unwrap();
    cut();
    nenrin(["checkpoint", "delete", &mnt, "1"]).ok();
    let said = ["nothing of this name is known", "begins with checkpoint 2 of", "1 checkpoint was let go"];
    nenrin(["history", &path]).fails(1, &said);
    nenrin(["checkpoint", "delete", &mnt, "2"]).ok();
    nenrin(["history", &path])
        .fails(1, &["no checkpoints any more", "2 checkpoints were let go", "not known any more"]);
}

/// A clock that the test moves.
#[derive(Default)]
pub(crate) struct Hours(AtomicU64);

impl Clock for Hours {
    fn wall(&self) -> Time {
        Time(1_700_000_000_000_000_000 + self.monotonic_nanos() as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A file saved in bursts, two hours later: what the volume then shows of it.
#[test]
fn landmarks_are_told_and_brought_back() {
    const SECOND: u64 = 1_000_000_000;
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let clock = Arc::new(Hours::default());
    let volume: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(place.image(), OpenMode::OWNER).unwrap());
    let fs = Fs::open(vec![volume], clock.clone(), MountOptions::default()).unwrap();
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
    let directory = fs.create(Ino::ROOT, b"work", &new(0o040_755)).unwrap().ino;
    let book = fs.create(directory, b"book", &new(0o100_644)).unwrap().ino;
    let pass = |seconds: u64| {
        for _ in 0..seconds.div_ceil(60) {
            clock.0.fetch_add(seconds.min(60) * SECOND, Ordering::Relaxed);
            fs.tick().unwrap();
        }
    };
    for save in 0..24u64 {
        fs.write(book, 0, format!("{save:5} {}", "x".repeat(save as usize)).as_bytes(), 0).unwrap();
        fs.sync_all().unwrap();
        fs.checkpoint_create(None).unwrap();
        // Each a second shorter than the one before, since of equal ones some nanosecond would say which stands out.
        pass(if save % 4 == 3 { 100 } else { 8 - save % 4 });
    }
    pass(7200);
    fs.close().unwrap();
    drop(fs);

    place.mount("checkpoint=0").ok();
    let asked = place.path("mnt/work/book").to_str().unwrap().to_owned();
    let states = nenrin(["history", "--json", &asked]).json();
    let landmarks: Vec<_> = states.as_array().unwrap().iter().filter(|s| s["landmark"].is_u64()).collect();
    assert!(landmarks.len() >= 3, "{states}");
    assert!(landmarks.iter().all(|s| s["kept_until"].as_str().is_some_and(|u| u != "forever")), "{states}");
    let shown = nenrin(["history", &asked]).ok();
    assert_eq!(shown.lines().filter(|l| l.ends_with("content, landmark")).count(), landmarks.len(), "{shown}");
    for s in &landmarks {
        let at = s["cno"].to_string();
        let save = s["size"].as_u64().unwrap() - 6;
        assert_eq!(save % 4, 3, "the last before a pause");
        nenrin(["restore", &asked, "--at", &at, "--force"]).ok();
        assert_eq!(fs::read_to_string(&asked).unwrap(), format!("{save:5} {}", "x".repeat(save as usize)));
        // Of a directory only a part is left, which looks like the whole.
        let directory = place.text("mnt/work");
        let there = place.text("mnt/work again");
        nenrin(["restore", &directory, "--at", &at, "--to", &there]).fails(1, &["only single files are left", &at]);
        nenrin(["diff", &directory, &at]).fails(1, &["no checkpoint"]);
        let stale = |e: std::io::Error| assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{e}");
        let then = place.path("mnt/.nenrin/at").join(&at);
        assert_eq!(fs::read(then.join("work/book")).unwrap(), fs::read(&asked).unwrap());
        match fs::read_dir(then.join("work")) {
            Ok(mut entries) => stale(entries.next().unwrap().unwrap_err()),
            Err(e) => stale(e),
        }
        stale(fs::metadata(then.join("work/other")).unwrap_err());
        let other = place.text("mnt/work/other");
        nenrin(["restore", &other, "--at", &at]).fails(1, &["only single files are left, and not this one", &at]);
    }
    // Gone, and with it every checkpoint that shows it: the newest landmark is where to find it.
    fs::remove_file(&asked).unwrap();
    let mnt = place.text("mnt");
    let last = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].as_u64().unwrap();
    nenrin(["checkpoint", "delete", &mnt, &format!("1..{}", last - 1)]).ok();
    let gone = nenrin(["restore", "--json", "--list-deleted", &place.text("mnt/work")]).json();
    let newest = landmarks.iter().filter_map(|s| s["cno"].as_u64()).max();
    assert_eq!((gone[0]["cno"].as_u64(), gone[0]["is_landmark"].as_bool()), (newest, Some(true)), "{gone}");
    assert!(gone[0]["nanos"].as_i64() > Some(0), "{gone}");
    let text = nenrin(["restore", "--list-deleted", &place.text("mnt/work")]).ok();
    assert!(text.lines().any(|l| l.starts_with("book") && l.ends_with("removed, landmark")), "{text}");
    nenrin(["restore", &asked, "--at", &gone[0]["cno"].to_string()]).ok();
}

/// One very long name among others does not push what is told of these out of sight.
#[test]
fn a_very_long_name_leaves_the_table_of_removed_names_as_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let long = "x".repeat(255);
    for name in ["short", &long] {
        fs::write(place.path("mnt").join(name), "1").unwrap();
    }
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    for name in ["short", &long] {
        fs::remove_file(place.path("mnt").join(name)).unwrap();
    }
    let text = nenrin(["restore", "--list-deleted", &place.text("mnt")]).ok();
    let of_short = text.lines().find(|l| l.starts_with("short")).unwrap();
    assert!(of_short.len() < 120 && of_short.contains("removed"), "{text}");
    // Its name is told whole, so that it can be asked for.
    assert!(text.lines().any(|l| l == long), "{text}");
}
