//! `nenrin info`, and how a volume is found from a path.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

#[test]
fn any_path_on_the_volume_names_it() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::create_dir_all(place.path("mnt/a/b")).unwrap();
    fs::write(place.path("mnt/a/note"), b"x").unwrap();
    let uuid = place.info()["uuid"].clone();
    for path in [place.text("mnt/a/b"), place.text("mnt/a/note"), place.image()] {
        assert_eq!(nenrin(["info", "--json", &path]).json()["uuid"], uuid, "{path}");
    }
    let here = shell("$NENRIN info --json", &place.path("mnt/a")).json();
    assert_eq!(here["uuid"], uuid);
    let info = place.info();
    assert_eq!(info["label"], "test");
    assert_eq!(info["inodes"], 4);
    assert_eq!(info["problems"].as_array().unwrap().len(), 0);
    assert!(info["counters"]["commits"].is_u64() && info["recovery"]["bytes_read"].is_u64());
    let text = nenrin(["info", &place.text("mnt")]).ok();
    for part in ["volume ", "\"test\"", "owned by process", "(live)", "available", "health       good"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_volume_that_is_not_mounted_is_only_read() {
    let place = Place::with_volume();
    let before = fs::read(place.image()).unwrap();
    let text = nenrin(["info", &place.image()]).ok();
    assert!(text.contains("not mounted") && text.contains("after a clean unmount"), "{text}");
    assert!(fs::read(place.image()).unwrap() == before, "info wrote to the image");
}

#[test]
fn space_is_counted() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/big"), vec![7; 4 << 20]).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "with-big"]).ok();
    let info = place.info();
    let live = info["live_bytes"].as_u64().unwrap();
    assert!((4 << 20..5 << 20).contains(&live), "live: {live}");
    fs::remove_file(place.path("mnt/big")).unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    wait_until("the content counts as history", || place.info()["history_bytes"].as_u64().unwrap() >= 4 << 20);
    assert_eq!(place.info()["snapshots"], 1);
}

/// Where no checkpoint is made by itself, that is told, with why and until when.
#[test]
fn checkpoints_that_rest_are_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (mnt, log) = (place.sub("mnt"), place.text("log"));
    nenrin(["mount", "-o", "checkpoint=1", "--log", &log, &place.image(), &mnt]).ok();
    assert!(place.info()["checkpoints_rest"].is_null());
    // Until nearly nothing is left.
    for bytes in [1 << 20, 64 << 10, 4 << 10] {
        for i in 0.. {
            if fs::write(place.path(&format!("mnt/{bytes} {i}")), vec![7; bytes]).is_err() {
                break;
            }
        }
    }
    let rest = place.info()["checkpoints_rest"].clone();
    assert!(rest["why"].as_str().unwrap().contains("nearly full"), "{rest}");
    assert!(rest["until"].as_str().unwrap().starts_with("until") && rest["until_time"].is_null(), "{rest}");
    let text = nenrin(["info", &place.text("mnt")]).ok();
    assert!(text.contains("\n             none is made by itself until 2 % of it are available: the volume"), "{text}");
    let said = "checkpoints: none is made by itself until 2 %";
    wait_until("the log tells it", || fs::read_to_string(&log).unwrap().contains(said));
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    fs::write(place.image(), vec![1; 8192]).unwrap();
    nenrin(["info", "/"]).fails(1, &["not on a nenrin volume"]);
    nenrin(["info", "/no/such/path"]).fails(1, &["/no/such/path"]);
    nenrin(["info", &place.image()]).fails(1, &["not a nenrin volume"]);
    nenrin(["info", "--frob"]).fails(2, &["unknown option --frob"]);
    nenrin(["info", "a", "b"]).fails(2, &["unexpected argument \"b\""]);
}

/// Who moves a log away asks for a new one, and the volume stays.
#[test]
fn a_log_that_was_moved_away_is_opened_anew() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (log, mnt) = (place.text("log"), place.sub("mnt"));
    let mut mount = ended_by_signals(["mount", "--log", "log", &place.image(), &mnt]);
    assert!(mount.current_dir(place.dir()).status().unwrap().success());
    let pid = place.info()["pid"].as_i64().unwrap();
    fs::rename(&log, place.path("log.1")).unwrap();
    signal(pid, "HUP");
    wait_until("there is a new log", || fs::read_to_string(&log).is_ok_and(|text| text.contains("opened anew")));
    fs::write(place.path("mnt/f"), b"still there").unwrap();
    // The directory of the log is gone: it goes on where it is.
    fs::rename(&log, place.path("log.2")).unwrap();
    fs::create_dir(&log).unwrap();
    signal(pid, "HUP");
    wait_until("it is told", || fs::read_to_string(place.path("log.2")).unwrap().contains("cannot be opened anew"));
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), b"still there");
    nenrin(["umount", &mnt]).ok();
}

/// Each byte of the volume belongs to one line.
#[test]
fn what_is_told_of_space_adds_up() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let adds_up = |when: &str, info: &serde_json::Value| {
        let of = |name: &str| info["space"][name].as_u64().unwrap_or_else(|| panic!("{when}: no {name}"));
        let parts = ["live", "snapshots", "promised", "kept_free", "history", "free"];
        assert_eq!(parts.iter().map(|p| of(p)).sum::<u64>(), info["total_bytes"].as_u64().unwrap(), "{when}");
        // What is available is free, or history that goes for it, of which some may lie where nothing else would.
        let available = info["available_bytes"].as_u64().unwrap();
        assert_eq!(of("free"), available.saturating_sub(of("history")), "{when}");
        assert_eq!(
            (of("live"), of("snapshots")),
            (info["live_bytes"].as_u64().unwrap(), info["snapshot_bytes"].as_u64().unwrap())
        );
    };
    adds_up("fresh", &nenrin(["info", "--json", &place.image()]).json());
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/a"), vec![1; 3 << 20]).unwrap();
    adds_up("written", &place.info());
    nenrin(["snapshot", "create", &place.text("mnt"), "one"]).ok();
    fs::write(place.path("mnt/a"), vec![2; 3 << 20]).unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    fs::write(place.path("mnt/a"), vec![3; 2 << 20]).unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    adds_up("history", &place.info());
    if has("fallocate") {
        run("fallocate", &["-l", "4M", &place.text("mnt/promised")]).ok();
        adds_up("promised", &place.info());
        assert!(place.info()["space"]["promised"].as_u64().unwrap() >= 4 << 20);
    }
    let _ = fs::write(place.path("mnt/full"), vec![4; 30 << 20]);
    adds_up("full", &place.info());
    // The lines for people, too: to the last digit that is shown of each.
    let text = nenrin(["info", &place.text("mnt")]).ok();
    for part in ["live  ", "snapshots  ", "promised  ", "kept free  ", "history  ", "free  "] {
        assert_eq!(text.lines().filter(|l| l.starts_with(part)).count(), 1, "{part:?} in:\n{text}");
    }
}
