//! `nenrin forget`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// Bytes in a row that nothing else has: 16 of 0xe0 to 0xef, here as parts of UTF-8 too.
fn secret(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 60) as u8
    };
    (0..bytes).map(|_| 0xe0 | next()).collect()
}

/// How many runs of 16 such bytes the image holds, and whether it holds a word.
fn leaks(image: &Path, word: &str) -> (usize, bool) {
    let all = fs::read(image).unwrap();
    let (mut found, mut run) = (0, 0);
    for b in &all {
        run = if b & 0xf0 == 0xe0 { run + 1 } else { 0 };
        found += usize::from(run == 16);
    }
    (found, !word.is_empty() && all.windows(word.len()).any(|w| w == word.as_bytes()))
}

#[test]
fn a_directory_with_all_its_past() {
    if !can_mount() || !has("setfattr") {
        return;
    }
    const WORD: &str = "the name that nobody may know";
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    let dir = mnt.join(WORD);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("small"), secret(700, 1)).unwrap();
    fs::write(dir.join("large"), secret(900_000, 2)).unwrap();
    symlink(format!("/nowhere/{WORD}"), dir.join("link")).unwrap();
    let file = dir.join("small").to_str().unwrap().to_owned();
    run("setfattr", &["-n", "user.note", "-v", WORD, &file]).ok();
    let kept = vec![3; 500_000];
    fs::write(mnt.join("kept"), &kept).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "monday"]).ok();
    // Saved as editors do, written over, linked elsewhere, moved away.
    for seed in 3..6 {
        fs::write(dir.join("new"), secret(60_000, seed)).unwrap();
        fs::rename(dir.join("new"), dir.join("small")).unwrap();
    }
    fs::write(dir.join("large"), secret(30_000, 7)).unwrap();
    fs::hard_link(dir.join("small"), mnt.join("another")).unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    fs::rename(dir.join("large"), mnt.join("moved")).unwrap();
    fs::write(mnt.join("kept"), &kept[..400_000]).unwrap();
    let path = dir.to_str().unwrap().to_owned();
    assert!(leaks(&place.path("image"), WORD).0 > 3);
    // Nothing that is there is removed, not even when it is asked for: whose it is, the user says by removing it.
    nenrin(["forget", "--yes", &path])
        .fails(1, &["another", "2 more names of it are", "remove what is there first", "by its own paths"]);
    assert!(dir.join("small").exists() && mnt.join("another").exists() && mnt.join("moved").exists());
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_file(mnt.join("another")).unwrap();
    fs::remove_file(mnt.join("moved")).unwrap();
    // Nobody is there to be asked.
    nenrin(["forget", &path]).fails(2, &[WORD, "snapshot", "--yes"]);
    let told = nenrin(["forget", "--yes", "--json", &path]).json();
    assert_eq!(told["wiped"], true, "{told}");
    assert_eq!(told["snapshots"][0]["name"], "monday");
    let names: Vec<&str> = told["names"].as_array().unwrap().iter().map(|n| n["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["another", "moved", WORD]);
    assert_eq!(leaks(&place.path("image"), WORD), (0, false), "while it is mounted");
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 1);
    assert!(fs::read(mnt.join("kept")).unwrap() == kept[..400_000]);
    let monday = mnt.join(".nenrin/at/monday");
    assert_eq!(fs::read_dir(&monday).unwrap().count(), 1, "the snapshot has the rest");
    assert!(fs::read(monday.join("kept")).unwrap() == kept);
    nenrin(["history", &path]).fails(1, &["nothing of this name is known"]);
    place.umount().ok();
    assert_eq!(leaks(&place.path("image"), WORD), (0, false), "and when it is not");
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn what_is_in_use_or_unknown_is_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let file = place.path("mnt/file");
    fs::write(&file, secret(50_000, 1)).unwrap();
    let path = place.text("mnt/file");
    let open = fs::File::open(&file).unwrap();
    // It is asked for before any checkpoint has seen it, and known all the same once it is removed.
    nenrin(["forget", "--yes", &path]).fails(1, &["file is still there", "remove what is there first"]);
    assert!(file.exists());
    fs::remove_file(&file).unwrap();
    nenrin(["forget", "--yes", &path]).fails(1, &["file", "in use", "close it"]);
    drop(open);
    nenrin(["forget", "--yes", &path]).ok();
    assert_eq!(leaks(&place.path("image"), "").0, 0);
    nenrin(["forget", &path]).fails(2, &["nothing of this name is known", "--yes to wipe all that is free"]);
    nenrin(["forget", "--yes", &place.text("mnt")]).fails(1, &[&format!("{}: is the root", place.text("mnt"))]);
    nenrin(["forget", "--yes", &place.image()]).fails(1, &["not on a nenrin volume"]);
    nenrin(["forget"]).fails(2, &["a path is needed"]);
}

#[test]
fn a_killed_mount_goes_on_with_the_wipe() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (file, path) = (place.path("mnt/file"), place.text("mnt/file"));
    fs::write(&file, secret(8 << 20, 1)).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "one"]).ok();
    fs::remove_file(&file).unwrap();
    let mut forget = command(["forget", "--yes", &path]).spawn().unwrap();
    wait_until("it is on the list", || {
        let notes = place.info()["notes"].to_string();
        notes.contains("still to be wiped") || forget.try_wait().unwrap().is_some()
    });
    place.kill();
    forget.wait().unwrap();
    place.mount("").ok();
    wait_until("nothing is left", || !place.info()["notes"].to_string().contains("still to be wiped"));
    assert_eq!(leaks(&place.path("image"), "").0, 0);
    assert!(!file.exists());
}

/// What no checkpoint ever saw has no name in any state, and its bytes may be on the device all the same.
#[test]
fn what_no_state_has_is_wiped_with_all_that_is_free() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (image, path) = (place.path("image"), place.text("mnt/file"));
    let kept = vec![3; 500_000];
    fs::write(place.path("mnt/kept"), &kept).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "monday"]).ok();
    for bytes in [500, 900_000] {
        fs::write(&path, secret(bytes, bytes as u64)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::remove_file(&path).unwrap();
    }
    assert!(leaks(&image, "").0 > 1);
    let open = place.path("mnt/open");
    fs::write(&open, secret(9000, 1)).unwrap();
    let held = fs::File::open(&open).unwrap();
    fs::remove_file(&open).unwrap();
    nenrin(["forget", "--yes", &path]).fails(1, &["a file that was removed is in use", "close it"]);
    drop(held);
    let out = nenrin(["forget", "--yes", "--json", &path]);
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(out.code, 1, "a path that was mistyped is not forgotten");
    assert_eq!(
        (&told["known"], &told["forgotten"], &told["wiped"]),
        (&false.into(), &0.into(), &true.into()),
        "{told}"
    );
    assert_eq!(leaks(&image, "").0, 0, "while it is mounted");
    assert!(fs::read(place.path("mnt/kept")).unwrap() == kept);
    assert!(fs::read(place.path("mnt/.nenrin/at/monday/kept")).unwrap() == kept);
    let said = nenrin(["forget", "--yes", &path]).stdout;
    assert!(said.contains("no state has anything of this name") && said.contains("segments wiped"), "{said}");
    place.umount().ok();
    assert_eq!(leaks(&image, "").0, 0, "and when it is not");
    nenrin(["check", "--data", &place.image()]).ok();
}

/// It was asked for while it was there: what it was is known from then, though it keeps no history.
#[test]
fn what_kept_no_history_is_known_from_when_it_was_asked_for() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    rustix::fs::setxattr(&dir, c"user.nenrin.history", b"none", rustix::fs::XattrFlags::empty()).unwrap();
    let (file, path) = (dir.join("file"), place.text("mnt/dir/file"));
    fs::write(&file, secret(50_000, 1)).unwrap();
    nenrin(["forget", "--yes", &path]).fails(1, &["still there"]);
    fs::remove_file(&file).unwrap();
    let told = nenrin(["forget", "--yes", "--json", &path]).json();
    assert_eq!((&told["known"], &told["forgotten"]), (&true.into(), &1.into()), "{told}");
    assert_eq!(leaks(&place.path("image"), "").0, 0);
}

/// What had the name while its directory had another is no part of it, and is told, so that nobody takes it for forgotten.
#[test]
fn what_a_renamed_directory_had_before_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    fs::create_dir(place.path("mnt/proj")).unwrap();
    for seed in 1..3 {
        // Saved as editors do, each time another file.
        fs::write(place.path("mnt/proj/new"), secret(60_000, seed)).unwrap();
        fs::rename(place.path("mnt/proj/new"), place.path("mnt/proj/f")).unwrap();
        nenrin(["checkpoint", "create", &mnt]).ok();
    }
    fs::rename(place.path("mnt/proj"), place.path("mnt/old")).unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    fs::remove_file(place.path("mnt/old/f")).unwrap();
    let (now, then) = (place.text("mnt/old/f"), place.text("mnt/proj/f"));
    let told = "proj/f had this name while a directory had another, and stays: forget that, too";
    nenrin(["forget", &now]).fails(2, &["1 file or directory would go", told]);
    assert_eq!(nenrin(["forget", "--yes", "--json", &now]).json()["elsewhere"], serde_json::json!(["proj/f"]));
    assert!(leaks(&place.path("image"), "").0 > 0, "what stays is there");
    let told = nenrin(["forget", "--yes", "--json", &then]).json();
    assert_eq!((told["elsewhere"].as_array().unwrap().len(), told["wiped"].as_bool()), (0, Some(true)), "{told}");
    place.umount().ok();
    assert_eq!(leaks(&place.path("image"), "").0, 0);
}

/// The other way round: what the directory has got under the name since it has another is none of it either.
#[test]
fn what_a_renamed_directory_has_got_since_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    fs::create_dir(place.path("mnt/proj")).unwrap();
    fs::write(place.path("mnt/proj/f"), secret(60_000, 1)).unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    fs::rename(place.path("mnt/proj"), place.path("mnt/old")).unwrap();
    fs::write(place.path("mnt/old/new"), secret(60_000, 2)).unwrap();
    fs::rename(place.path("mnt/old/new"), place.path("mnt/old/f")).unwrap();
    nenrin(["checkpoint", "create", &mnt]).ok();
    let (then, now) = (place.text("mnt/proj/f"), place.text("mnt/old/f"));
    let told = "old/f had this name while a directory had another, and stays: forget that, too";
    nenrin(["forget", &then]).fails(2, &["1 file or directory would go", told]);
    fs::remove_file(&now).unwrap();
    nenrin(["forget", &then]).fails(2, &["1 file or directory would go", told]);
    assert_eq!(nenrin(["forget", "--yes", "--json", &then]).json()["elsewhere"], serde_json::json!(["old/f"]));
    assert!(leaks(&place.path("image"), "").0 > 0, "what stays is there");
    let told = nenrin(["forget", "--yes", "--json", &now]).json();
    assert_eq!((told["elsewhere"].as_array().unwrap().len(), told["wiped"].as_bool()), (0, Some(true)), "{told}");
    place.umount().ok();
    assert_eq!(leaks(&place.path("image"), "").0, 0);
}

/// Nor is it shown by a mount of a state, or inside the live one, of which the kernel was told names and attributes before, and keeps
/// listings and content.
#[test]
fn a_mount_of_the_past_shows_it_no_more() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let secret = place.path("mnt/secret");
    fs::write(&secret, "secret").unwrap();
    fs::write(place.path("mnt/other"), "other").unwrap();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::hard_link(&secret, place.path("mnt/dir/linked")).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "one"]).ok();
    let past = place.sub("past");
    nenrin(["mount", "-o", "at=one", &place.image(), &past]).ok();
    let states = [Path::new(&past).to_owned(), place.path("mnt/.nenrin/at/one")];
    let listed = |dir: &Path| -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    };
    let mut open = Vec::new();
    for state in &states {
        assert_eq!(listed(state), ["dir", "other", "secret"]);
        assert_eq!(listed(&state.join("dir")), ["linked"]);
        let file = File::open(state.join("secret")).unwrap();
        file.read_exact_at(&mut [0; 6], 0).unwrap();
        assert_eq!(fs::read_to_string(state.join("other")).unwrap(), "other");
        open.push(file);
    }
    fs::remove_file(&secret).unwrap();
    fs::remove_file(place.path("mnt/dir/linked")).unwrap();
    nenrin(["forget", "--yes", secret.to_str().unwrap()]).ok();
    for (state, file) in states.iter().zip(&open) {
        assert_eq!((listed(state), listed(&state.join("dir"))), (vec!["dir".into(), "other".into()], Vec::new()));
        assert!(file.read_at(&mut [0; 6], 0).is_err(), "what was open shows it");
        wait_until("the past has forgotten it", || fs::read_to_string(state.join("secret")).is_err());
        assert_eq!(fs::read_to_string(state.join("other")).unwrap(), "other");
    }
    drop(open);
    nenrin(["umount", &past]).ok();
}

/// All that goes is told before anybody decides, also where it is much; and that changes nothing.
#[test]
fn all_that_goes_is_told_before() {
    if !can_mount() {
        return;
    }
    const NAMES: usize = 30;
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, file, path) = (place.text("mnt"), place.path("mnt/file"), place.text("mnt/file"));
    fs::write(&file, secret(9000, 1)).unwrap();
    let name = |i: usize| place.path(&format!("mnt/name{i:02}"));
    for i in 0..NAMES {
        fs::hard_link(&file, name(i)).unwrap();
    }
    nenrin(["snapshot", "create", &mnt, "monday"]).ok();
    let checkpoints = || nenrin(["checkpoint", "list", "--json", &mnt]).json().as_array().unwrap().len();
    let before = checkpoints();
    nenrin(["forget", "-n", &path]).fails(1, &["still there"]);
    assert_eq!(checkpoints(), before, "nothing is kept for who only asks");
    (0..NAMES).for_each(|i| fs::remove_file(name(i)).unwrap());
    fs::remove_file(&file).unwrap();
    let told = nenrin(["forget", "-n", &path]).ok();
    for i in 0..NAMES {
        assert!(told.contains(&format!("also named name{i:02} (in the past)\n")), "{i}: {told}");
    }
    assert!(told.contains("snapshot monday loses it\n") && !told.contains("more\n"), "{told}");
    let told = nenrin(["forget", "-n", "--json", &path]).json();
    assert_eq!((&told["known"], &told["inodes"]), (&true.into(), &1.into()), "{told}");
    let names: Vec<&str> = told["names"].as_array().unwrap().iter().map(|n| n["path"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], &told["snapshots"][0]["name"]), (NAMES + 1, "file", &"monday".into()));
    assert!(leaks(&place.path("image"), "").0 > 0, "nothing was forgotten");
    nenrin(["forget", "-n", &place.text("mnt/none")]).fails(1, &["nothing of this name is known"]);
    nenrin(["forget", "-n", "--yes", &path]).fails(2, &["-n"]);
    nenrin(["forget", "--yes", &path]).ok();
    assert_eq!(leaks(&place.path("image"), "").0, 0);
}
