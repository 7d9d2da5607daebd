//! `nenrin scrub`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// A mounted volume with a directory, a large file and a small one.
fn mounted() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/big"), vec![0xa7; 1 << 20]).unwrap();
    fs::write(place.path("mnt/small"), b"small").unwrap();
    Some(place)
}

#[test]
fn a_sound_volume_has_nothing_to_mend() {
    let Some(place) = mounted() else { return };
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    let text = nenrin(["scrub", &place.text("mnt/dir")]).ok();
    assert!(text.contains("nothing is damaged"), "{text}");
    let report = nenrin(["scrub", "--rate", "0", "--json", &place.text("mnt")]).json();
    assert_eq!((&report["done"], &report["copies_damaged"]), (&true.into(), &0.into()), "{report}");
    place.umount().ok();
    let text = nenrin(["scrub", &place.image()]).ok();
    assert!(text.contains("1M of content"), "{text}");
}

/// What a scrub left is told also when the volume is not mounted, and by the next mounts, until one finds nothing.
#[test]
fn what_a_scrub_left_is_not_forgotten() {
    let Some(place) = mounted() else { return };
    let scrubbed = |target: &str| nenrin(["info", "--json", target]).json()["scrubbed"].clone();
    assert!(scrubbed(&place.text("mnt")).is_null());
    assert!(nenrin(["info", &place.text("mnt")]).ok().contains("scrubbed     never, as far as is known"));
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    place.mount("checkpoint=0").ok();
    assert_eq!(nenrin(["scrub", &place.text("mnt")]).code, 4);
    // Also where nothing comes behind it.
    place.kill();
    nenrin(["umount", &place.text("mnt")]);
    let problem = "1 pieces of content and 0 index nodes damaged, without a right copy";
    for _ in 0..2 {
        let info = nenrin(["info", &place.image()]).ok();
        assert!(info.contains(problem) && info.contains("NOT GOOD") && info.contains(", damage was left"), "{info}");
        assert_eq!(scrubbed(&place.image())["extents_damaged"], 1);
        let out = nenrin(["check", &place.image()]);
        assert!(out.stdout.contains(problem) && out.stdout.contains("--data reads all of it"), "{out:?}");
        place.mount("checkpoint=0").ok();
        assert!(nenrin(["info", &place.text("mnt")]).ok().contains(problem));
        place.umount().ok();
    }
    place.mount("checkpoint=0").ok();
    fs::remove_file(place.path("mnt/dir/big")).unwrap();
    for cno in nenrin(["checkpoint", "list", "--json", &place.text("mnt")]).json().as_array().unwrap() {
        nenrin(["checkpoint", "delete", &place.text("mnt"), &cno["cno"].to_string()]).ok();
    }
    wait_until("the damage is gone", || nenrin(["scrub", "--rate", "0", &place.text("mnt")]).code == 0);
    place.umount().ok();
    let info = nenrin(["info", &place.image()]).ok();
    assert!(info.contains(", nothing damaged was left") && info.contains("health       good"), "{info}");
}

/// Who ends it is told how far it came: of a volume in use, and of one that is not.
#[test]
fn one_that_is_interrupted_says_how_far_it_came() {
    let Some(place) = mounted() else { return };
    fs::write(place.path("mnt/more"), vec![0xa8; 12 << 20]).unwrap();
    nenrin(["checkpoint", "create", &place.text("mnt")]).ok();
    for (target, name) in [(place.text("mnt"), "INT"), (place.image(), "TERM")] {
        if target == place.image() {
            place.umount().ok();
        }
        let args = ["scrub", "--rate", "1M", &target];
        let mut child = ended_by_signals(args).stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
        signal(child.id(), name);
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(130), "{said}");
        let told = said.starts_with("nenrin: interrupted: about ") && said.contains(" % were verified, and nothing");
        assert!(told && said.contains("begins anew") && said.lines().count() == 1, "{said}");
    }
    place.mount("").ok();
    nenrin(["scrub", "--rate", "0", &place.text("mnt")]).ok();
}

#[test]
fn a_damaged_slot_is_mended_by_the_next_mount() {
    let Some(place) = mounted() else { return };
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let slot = place.slots().into_iter().rfind(|o| image[*o as usize] != 0).unwrap();
    place.patch(slot + 60, b"rotten");
    // Unmounted it is only told.
    let out = nenrin(["scrub", &place.image()]);
    assert_eq!(out.code, 4, "{out:?}");
    place.mount("checkpoint=0").ok();
    // The mount has written it again.
    nenrin(["scrub", &place.text("mnt")]).ok();
    place.umount().ok();
    nenrin(["check", &place.image()]).ok();
}

#[test]
fn damaged_content_is_named() {
    let Some(place) = mounted() else { return };
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
    place.mount("checkpoint=0").ok();
    let out = nenrin(["scrub", &place.text("mnt")]);
    assert!(out.code == 4 && out.stdout.contains("/dir/big at byte "), "{out:?}");
    let out = nenrin(["scrub", "--json", &place.text("mnt")]);
    assert_eq!(out.code, 4);
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(report["findings"][0]["path"], "/dir/big");
    // Written again, it is whole again.
    fs::write(place.path("mnt/dir/big"), vec![0xa8; 1 << 20]).unwrap();
    let file = fs::File::open(place.path("mnt/dir/big")).unwrap();
    file.sync_all().unwrap();
    let out = nenrin(["scrub", "--json", &place.text("mnt")]);
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(report["extents_damaged"], 0, "{report}");
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    nenrin(["scrub", "--rate", "fast", "."]).fails(2, &["--rate", "20M"]);
    nenrin(["scrub", &place.text("nothing")]).fails(8, &["nothing"]);
    nenrin(["scrub", "/"]).fails(8, &["not"]);
}

/// The block of the image in which this content is wrong now, of the file with these bytes.
fn torn(place: &Place, byte: u8) {
    let image = fs::read(place.image()).unwrap();
    let at = image.chunks(4096).position(|b| b.iter().all(|x| *x == byte)).unwrap();
    place.patch(at as u64 * 4096 + 17, b"x");
}

/// P4: what `info` says of a mounted volume, and its log of the reads, until a scrub finds that all is right.
#[test]
fn damage_that_was_met_is_told_until_it_is_gone() {
    let Some(place) = mounted() else { return };
    place.umount().ok();
    torn(&place, 0xa7);
    let log = place.text("log");
    nenrin(["mount", "--log", &log, "-o", "checkpoint=0", &place.image(), &place.text("mnt")]).ok();
    let problems = || place.info()["problems"].as_array().unwrap().iter().map(|p| p.to_string()).collect::<Vec<_>>();
    assert_eq!(problems(), Vec::<String>::new());
    for _ in 0..2 {
        assert_eq!(fs::read(place.path("mnt/dir/big")).unwrap_err().raw_os_error(), Some(5));
    }
    let told = problems();
    assert!(told.len() == 1 && told[0].contains("/dir/big at byte 0 cannot be read: damage at block"), "{told:?}");
    let shown = nenrin(["info", &place.text("mnt")]).ok();
    assert!(shown.contains("NOT GOOD") && shown.contains("/dir/big at byte 0"), "{shown}");
    let logged = || fs::read_to_string(&log).unwrap().matches("/dir/big at byte 0 cannot be read").count();
    wait_until("it is in the log", || logged() > 0);
    assert_eq!(nenrin(["scrub", &place.text("mnt")]).code, 4);
    let told = problems();
    assert!(told.len() == 2 && told[1].contains("found 1 pieces of content and 0 index nodes damaged"), "{told:?}");
    fs::write(place.path("mnt/dir/big"), vec![0xa8; 1 << 20]).unwrap();
    fs::File::open(place.path("mnt/dir/big")).unwrap().sync_all().unwrap();
    assert_eq!(problems().len(), 2, "until that is known");
    nenrin(["scrub", &place.text("mnt")]).ok();
    assert_eq!(problems(), Vec::<String>::new());
    assert_eq!(logged(), 1);
}

/// What is damaged of the past alone is not told of the present file, which is whole, nor by a name that came later.
#[test]
fn damage_of_the_past_is_told_with_its_checkpoint() {
    let Some(place) = mounted() else { return };
    let cno = nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].to_string();
    fs::write(place.path("mnt/dir/big"), vec![0xa9; 1 << 20]).unwrap();
    fs::rename(place.path("mnt/dir"), place.path("mnt/moved")).unwrap();
    place.umount().ok();
    torn(&place, 0xa7);
    let log = place.text("log");
    nenrin(["mount", "--log", &log, "-o", "checkpoint=0", &place.image(), &place.text("mnt")]).ok();
    let past = place.path("mnt/.nenrin/at").join(&cno).join("dir/big");
    assert_eq!(fs::read(past).unwrap_err().raw_os_error(), Some(5));
    let told = format!("/dir/big as of checkpoint {cno} at byte 0 cannot be read");
    let problems = place.info()["problems"].to_string();
    assert!(problems.contains(&told) && !problems.contains("moved"), "{problems}");
    wait_until("it is in the log", || fs::read_to_string(&log).unwrap().contains(&told));
    // What rots of it as it is now is another matter.
    assert_eq!(fs::read(place.path("mnt/moved/big")).unwrap(), vec![0xa9; 1 << 20]);
    place.umount().ok();
    torn(&place, 0xa9);
    place.mount("checkpoint=0").ok();
    fs::read(place.path("mnt/.nenrin/at").join(&cno).join("dir/big")).unwrap_err();
    fs::read(place.path("mnt/moved/big")).unwrap_err();
    let problems = place.info()["problems"].to_string();
    assert!(problems.contains(&told) && problems.contains("/moved/big at byte 0 cannot be read"), "{problems}");
}

/// Even the directory by which the volume is asked for may be lost.
#[test]
fn a_volume_whose_root_directory_is_lost_is_found() {
    let Some(place) = mounted() else { return };
    for i in 0..1000 {
        fs::write(place.path(&format!("mnt/name {i}")), b"").unwrap();
    }
    let mark = [b"beside the inode ".repeat(5), vec![0xff]].concat();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(place.path("mnt"), c"user.mark", &mark, flags).unwrap();
    place.umount().ok();
    // Until no root is left of before.
    for _ in 0..4 {
        place.mount("checkpoint=0").ok();
        place.umount().ok();
    }
    let image = fs::read(place.image()).unwrap();
    let found: Vec<usize> =
        image.windows(mark.len()).enumerate().filter(|(_, w)| *w == mark).map(|(at, _)| at).collect();
    found.iter().for_each(|at| place.patch(*at as u64, b"lost"));
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    assert_eq!(fs::metadata(&mnt).unwrap_err().raw_os_error(), Some(5));
    let info = nenrin(["info", &mnt]).ok();
    assert!(info.contains("NOT GOOD"), "{info}");
    nenrin(["checkpoint", "list", &mnt]).ok();
    let out = nenrin(["scrub", &mnt]);
    assert!(out.code == 4 && out.stdout.contains("index nodes are damaged"), "{out:?}");
    place.umount().ok();
}

/// Nobody takes for mended what could not be told; and `check` tells of the last scrub as data, too.
#[test]
fn what_cannot_be_told_is_no_result() {
    let place = Place::with_volume();
    for args in ["scrub image", "scrub --json image"] {
        let out = shell(&format!("$NENRIN {args} >/dev/full"), place.dir());
        out.fails(8, &["standard output", "No space left"]);
    }
    assert_eq!(nenrin(["check", "--json", &place.image()]).json()["scrubbed"], serde_json::Value::Null);
    if can_mount() {
        place.mount("").ok();
        nenrin(["scrub", &place.text("mnt")]).ok();
        place.umount().ok();
        let told = nenrin(["check", "--json", &place.image()]).json();
        assert_eq!(told["scrubbed"]["extents_damaged"], 0, "{told}");
    }
}
