//! Volumes of several devices: made, mounted, and what is said when one of them is not right.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::*;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;
use std::time::{Duration, Instant};

/// A volume of two or three images, `a`, `b` and `c`.
fn volume(place: &Place, profile: &str, names: &[&str]) {
    let paths: Vec<String> = names.iter().map(|n| place.text(n)).collect();
    let mut args = vec!["mkfs", "--profile", profile, "--size", SIZE];
    args.extend(paths.iter().map(String::as_str));
    let said = nenrin(&args).ok();
    assert!(said.contains(&format!("{profile} of {} devices", names.len())), "{said}");
}

fn list(place: &Place, names: &[&str]) -> String {
    names.iter().map(|n| place.text(n)).collect::<Vec<_>>().join(",")
}

fn mount(place: &Place, names: &[&str], options: &str) -> Out {
    let (devices, mnt) = (list(place, names), place.sub("mnt"));
    match options {
        "" => nenrin(["mount", &devices, &mnt]),
        _ => nenrin(["mount", "-o", options, &devices, &mnt]),
    }
}

/// Moves a file away, so that it is not found beside the others.
fn away(place: &Place, name: &str) {
    place.sub("away");
    fs::rename(place.path(name), place.path("away").join(name)).unwrap();
}

fn back(place: &Place, name: &str) {
    fs::rename(place.path("away").join(name), place.path(name)).unwrap();
}

#[test]
fn each_profile_holds_what_is_written() {
    if !can_mount() {
        return;
    }
    for profile in ["single", "stripe", "mirror", "parity"] {
        let place = Place::new();
        volume(&place, profile, &["a", "b", "c"]);
        mount(&place, &["c", "a", "b"], "").ok();
        let content: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        fs::write(place.path("mnt/file"), &content).unwrap();
        let info = place.info();
        assert_eq!((info["profile"].as_str(), info["devices"].as_array().unwrap().len()), (Some(profile), 3));
        assert_eq!(info["problems"].as_array().unwrap().len(), 0);
        place.umount().ok();
        // One is enough: the others lie beside it.
        mount(&place, &["b"], "").ok();
        assert!(fs::read(place.path("mnt/file")).unwrap() == content, "{profile}");
        place.umount().ok();
        nenrin(["check", "--data", &place.text("a"), &place.text("b"), &place.text("c")]).ok();
        nenrin(["check", "--data", &place.text("c")]).ok();
        assert!(nenrin(["info", &place.text("a")]).ok().contains(&format!("profile      {profile}")));
    }
}

/// Of a mirror whose halves were each mounted without the other nobody knows which is right.
#[test]
fn a_mount_that_is_refused_has_written_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    let content = |names: &[&str]| names.iter().map(|n| fs::read(place.path(n)).unwrap()).collect::<Vec<_>>();
    let before = content(&["a", "b"]);
    let full = place.sub("full");
    fs::write(place.path("full/something"), "").unwrap();
    fs::write(place.path("file"), "").unwrap();
    let other = Place::with_volume();
    other.mount("").ok();
    let refused = |devices: &str, options: &str| {
        let mount = |dir: &str| nenrin(["mount", "-o", options, devices, dir]);
        mount(&full).fails(1, &["full", "not empty", "nonempty"]);
        mount(&place.text("file")).fails(1, &["file", "not a directory"]);
        mount(&place.text("nowhere")).fails(1, &["nowhere", "no such directory"]);
        mount(&other.text("mnt")).fails(1, &["a nenrin volume is mounted there already"]);
        let mount = |more: &str| nenrin(["mount", "-o", &format!("{options}{more}"), devices, &place.sub("empty")]);
        assert_ne!(mount(",own_check,allow_other").code, 0);
    };
    refused(&list(&place, &["a", "b"]), "rw");
    assert!(content(&["a", "b"]) == before, "a plain mount");
    for (one, absent) in [("a", "b"), ("b", "a")] {
        away(&place, absent);
        refused(&place.text(one), "degraded");
        back(&place, absent);
    }
    assert!(content(&["a", "b"]) == before, "each half alone");
    // Where a user may not write fusermount3 does not mount.
    place.sub("theirs");
    for name in ["a", "b"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    let script = "
        ! $NENRIN mount a theirs 2>said || exit 1
        grep -q 'permission denied; mount as root' said
        ! $NENRIN mount -o suid a theirs 2>said || exit 1
        grep -q 'only root can mount' said";
    if has("fusermount3") {
        as_nobody(&place, script).map(Out::ok);
        assert!(content(&["a", "b"]) == before, "a user");
    }
    mount(&place, &["a", "b"], "").ok();
}

#[test]
fn a_missing_device() {
    for (profile, parts) in [
        ("mirror", &["device 2 (", "is missing", "-o degraded"][..]),
        ("stripe", &["device 2 (", "is missing", "cannot stand in for it: this volume needs each"][..]),
        ("single", &["device 2 (", "is missing", "cannot stand in"][..]),
    ] {
        let place = Place::new();
        volume(&place, profile, &["a", "b"]);
        away(&place, "b");
        mount(&place, &["a"], "").fails(1, parts);
        if profile != "mirror" {
            mount(&place, &["a"], "degraded").fails(1, parts);
        }
    }
}

#[test]
fn the_list_of_devices() {
    let place = Place::with_volume();
    let list = nenrin(["device", "list", "--json", &place.image()]).json();
    assert_eq!((list.as_array().unwrap().len(), list[0]["state"].as_str()), (1, Some("active")));
    volume(&place, "mirror", &["a", "b"]);
    assert!(nenrin(["device", "list", &place.text("a")]).ok().contains(&place.text("b")));
    away(&place, "b");
    let list = nenrin(["device", "list", "--json", &place.text("a")]).json();
    assert_eq!((list[0]["state"].as_str(), list[1]["state"].as_str()), (Some("active"), Some("absent")));
    nenrin(["device", "add", &place.text("a"), "c"]).fails(1, &["not mounted", "mount it first"]);
    nenrin(["device", "replace", &place.text("a"), "b", "c"]).fails(1, &["not mounted"]);
    nenrin(["device"]).fails(2, &["list, add, remove, replace or forgive is needed"]);
}

/// What was told of a device when the volume was opened is told as long as it is so; the log says what became of it.
#[test]
fn what_is_told_of_a_device_ends_when_it_is_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    away(&place, "b");
    let (mnt, log) = (place.sub("mnt"), place.text("log"));
    nenrin(["mount", "-o", "degraded", "--log", &log, &place.text("a"), &mnt]).ok();
    let notes = || nenrin(["info", "--json", &mnt]).json()["notes"].to_string();
    assert!(notes().contains("device 2 is absent"), "{}", notes());
    fs::File::create(place.path("c")).unwrap().set_len(64 << 20).unwrap();
    nenrin(["device", "replace", &mnt, "2", &place.text("c")]).ok();
    assert!(!notes().contains("absent"), "{}", notes());
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains(&format!("device 2 is {} now", place.text("c"))), "{logged}");
    place.umount().ok();
}

/// Which device of a mirror rots is told until somebody says that it is dealt with.
#[test]
fn what_a_device_did_wrong_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    mount(&place, &["a", "b"], "checkpoint=0").ok();
    let mnt = place.text("mnt");
    fs::write(place.path("mnt/f"), vec![0xa7; 1 << 20]).unwrap();
    place.umount().ok();
    let image = fs::read(place.path("b")).unwrap();
    let at = image.windows(4096).step_by(4096).position(|b| b.iter().all(|x| *x == 0xa7)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(place.path("b")).unwrap();
    file.write_all_at(b"x", at as u64 * 4096 + 17).unwrap();
    // A check names it, and what helps.
    let out = nenrin(["check", "--data", &place.text("a")]);
    let said = format!("checksum mismatch on device 2 ({})", place.text("b"));
    assert!(out.code == 4 && out.stdout.contains(&said) && out.stdout.contains("run nenrin scrub"), "{out:?}");
    let log = place.text("log");
    let devices = list(&place, &["a", "b"]);
    nenrin(["mount", "--log", &log, "-o", "checkpoint=0", &devices, &mnt]).ok();
    assert_eq!(nenrin(["scrub", &mnt]).code, 1, "all is mended");
    place.umount().ok();
    let log = fs::read_to_string(&log).unwrap();
    let (said, by) =
        (format!("device 2 ({}) had 1 wrong block", place.text("b")), "written anew from what others have");
    assert!(log.contains(&said) && log.contains(by), "{log}");
    mount(&place, &["a", "b"], "checkpoint=0").ok();
    for _ in 0..2 {
        let list = nenrin(["device", "list", "--json", &mnt]).json();
        let wrong = [0, 1].map(|i| list[i]["wrong_blocks"].as_u64());
        assert_eq!(wrong, [Some(0), Some(1)], "{list}");
        let info = nenrin(["info", &mnt]).ok();
        assert!(
            info.contains("device 2 had 1 wrong block since") && info.contains("nenrin device forgive 2"),
            "{info}"
        );
        place.umount().ok();
        mount(&place, &["a", "b"], "checkpoint=0").ok();
    }
    nenrin(["device", "forgive", &mnt, "7"]).fails(1, &["no device of this volume"]);
    assert!(nenrin(["device", "forgive", &mnt, "2"]).ok().contains("device 2"));
    place.umount().ok();
    mount(&place, &["a", "b"], "checkpoint=0").ok();
    assert_eq!(nenrin(["device", "list", "--json", &mnt]).json()[1]["wrong_blocks"], 0);
    assert!(!nenrin(["info", &mnt]).ok().contains("wrong block"));
}

/// What boot asks of the devices in fstab.
#[test]
fn fsck_at_boot() {
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    for devices in [list(&place, &["a", "b"]), place.text("b")] {
        let mut fsck = command(["-a", &devices]);
        let out = fsck.arg0("fsck.nenrin").output().unwrap();
        assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains(": clean"), "{out:?}");
    }
}

/// Without one of two, with it again, and with both having gone on alone.
#[test]
fn without_a_device_and_with_it_again() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    mount(&place, &["a"], "").ok();
    fs::write(place.path("mnt/before"), "one").unwrap();
    place.umount().ok();
    away(&place, "b");
    mount(&place, &["a"], "degraded").ok();
    assert_eq!(fs::read_to_string(place.path("mnt/before")).unwrap(), "one");
    fs::write(place.path("mnt/alone"), "two").unwrap();
    let info = place.info();
    assert_eq!(info["devices"][1]["state"], "absent");
    assert!(info["problems"][0].as_str().unwrap().contains("device 2"), "{info}");
    assert!(nenrin(["info", &place.text("mnt")]).ok().contains("NOT GOOD"));
    place.umount().ok();
    let out = nenrin(["check", "--data", &place.text("a")]);
    assert!(out.code == 4 && out.stdout.contains("device-absent"), "{out:?}");
    back(&place, "b");
    fs::copy(place.path("b"), place.path("b.old")).unwrap();
    away(&place, "b.old");
    // Both again: the one that was away is brought up to date.
    mount(&place, &["a", "b"], "").ok();
    let begin = Instant::now();
    while !place.info()["problems"].as_array().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", place.info()["problems"]);
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(place.info()["devices"][1]["state"], "active");
    place.umount().ok();
    nenrin(["check", "--data", &place.text("a"), &place.text("b")]).ok();
    away(&place, "a");
    mount(&place, &["b"], "degraded").ok();
    assert_eq!(fs::read_to_string(place.path("mnt/alone")).unwrap(), "two");
    place.umount().ok();
    back(&place, "a");
    // The other alone, as it was before the first went on without it: two lines.
    fs::rename(place.path("a"), place.path("away/a")).unwrap();
    fs::rename(place.path("b"), place.path("away/b")).unwrap();
    fs::rename(place.path("away/b.old"), place.path("b")).unwrap();
    mount(&place, &["b"], "degraded").ok();
    place.umount().ok();
    back(&place, "a");
    mount(&place, &["a", "b"], "degraded").fails(1, &["each written to without the other", "clear the other"]);
    nenrin(["check", &list(&place, &["a", "b"])]).fails(8, &["each written to without the other"]);
    // Without degraded both count; with it the one that is named is taken, whatever lies beside it.
    mount(&place, &["a"], "").fails(1, &["each written to without the other"]);
    for (named, other) in [("a", "b"), ("b", "a")] {
        let out = mount(&place, &[named], "degraded,ro");
        assert!(out.code == 0 && out.stderr.contains(&format!("{other} is left out")), "{out:?}");
        assert_eq!(place.info()["devices"].as_array().unwrap().len(), 2);
        place.umount().ok();
        nenrin(["info", &place.text(named)]).ok();
    }
    // And where it is truncated.
    let file = fs::OpenOptions::new().write(true).open(place.path("b")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    mount(&place, &["a"], "").fails(1, &[]);
    let out = mount(&place, &["a"], "degraded");
    assert!(out.code == 0 && out.stderr.contains("b is left out"), "{out:?}");
    assert_eq!(fs::read_to_string(place.path("mnt/alone")).unwrap(), "two");
    place.umount().ok();
}

#[test]
fn devices_that_do_not_belong() {
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    fs::create_dir(place.path("other")).unwrap();
    volume(&place, "mirror", &["other/a", "other/b"]);
    nenrin(["mkfs", "--size", SIZE, &place.text("alone")]).ok();
    fs::write(place.path("empty"), vec![0; 1 << 20]).unwrap();
    mount(&place, &["a", "other/b"], "").fails(1, &["other/b", "belongs to another volume than"]);
    mount(&place, &["a", "alone"], "").fails(1, &["alone", "belongs to another volume than"]);
    mount(&place, &["a", "empty"], "").fails(1, &["empty", "not a nenrin volume"]);
    mount(&place, &["a", "none"], "").fails(1, &["none", "no such file"]);
    fs::copy(place.path("a"), place.path("copy")).unwrap();
    mount(&place, &["a", "copy"], "").fails(1, &["the same device of the volume (1)", "name one of them"]);
    fs::remove_file(place.path("copy")).unwrap();
    fs::OpenOptions::new().write(true).open(place.path("b")).unwrap().set_len(16 << 20).unwrap();
    mount(&place, &["a", "b"], "").fails(1, &["truncated", "restore its length"]);
}

#[test]
fn devices_that_cannot_be_used_together() {
    let place = Place::new();
    let (a, b) = (place.text("a"), place.text("b"));
    nenrin(["mkfs", "--size", SIZE, &a, &a]).fails(1, &["named twice"]);
    assert!(!place.path("a").exists());
    fs::write(&b, "words that matter").unwrap();
    nenrin(["mkfs", "--size", SIZE, &a, &b]).fails(1, &["a file that has content"]);
    assert!(!place.path("a").exists() && fs::read_to_string(&b).unwrap() == "words that matter");
    fs::remove_file(&b).unwrap();
    // Long for a segment of its own, too short for its share of sixteen.
    nenrin(["mkfs", "--size", "8G", "--sparse", &a]).ok();
    fs::write(&b, vec![0; 5 << 20]).unwrap();
    nenrin(["mkfs", "--force", "--sparse", "--profile", "stripe", &a, &b]).fails(1, &["too small", "on each device"]);
}

#[test]
fn what_is_not_built_for_several_devices_says_so() {
    let place = Place::new();
    volume(&place, "stripe", &["a", "b"]);
    assert!(nenrin(["check", "--repair", "-n", &place.text("a")]).ok().contains("nothing to repair"));
    nenrin(["dump", &place.text("a"), "0"]).fails(1, &["one of 2 devices"]);
    assert!(nenrin(["dump", &place.text("a")]).ok().contains("stripe"));
}

/// All of one device of a mirror but its root slots is gone; it is found beside the other, and so is a third that is away.
#[test]
fn a_mirror_is_repaired_from_its_other_device() {
    let place = Place::new();
    volume(&place, "mirror", &["a", "b"]);
    let file = fs::OpenOptions::new().write(true).open(place.path("a")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; 24 << 20], 64 << 10).unwrap();
    let out = nenrin(["check", "--repair", "--yes", "--json", &place.text("b")]);
    assert!(out.code == 0 || out.code == 1, "{out:?}");
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((report["losses_total"].as_u64(), report["absent"].as_array().map(Vec::len)), (Some(0), Some(0)));
    nenrin(["check", "--data", &place.text("a"), &place.text("b")]).ok();
}

/// The same where they lie in different directories, so that both have to be named: what only the second has is not lost.
#[test]
fn a_repair_uses_every_device_that_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.sub("one");
    place.sub("two");
    volume(&place, "mirror", &["one/a", "two/b"]);
    let (a, b) = (place.text("one/a"), place.text("two/b"));
    mount(&place, &["one/a", "two/b"], "").ok();
    let content: Vec<u8> = (0..2_000_000u32).map(|i| (i / 5) as u8).collect();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/a name to be lost"), &content).unwrap();
    place.umount().ok();
    // All that bears the name goes on the first: a leaf of the index, and the log.
    let mut image = fs::read(&a).unwrap();
    for block in image.chunks_mut(4096).filter(|b| b.windows(17).any(|w| w == b"a name to be lost")) {
        block.fill(0xff);
    }
    fs::write(&a, image).unwrap();
    let (before, other) = (fs::read(&a).unwrap(), fs::read(&b).unwrap());
    // One that is not there, or not of this volume, is no reason to go on without it.
    nenrin(["mkfs", "--size", SIZE, &place.text("alone")]).ok();
    fs::write(place.path("empty"), vec![0; 1 << 20]).unwrap();
    for (second, parts) in [
        ("none", ["none", "no such file"]),
        ("alone", ["alone", "belongs to another volume than"]),
        ("empty", ["empty", "not a nenrin volume"]),
    ] {
        nenrin(["check", "--repair", "--yes", &a, &place.text(second)]).fails(8, &parts);
        nenrin(["check", "--repair", "--yes", &list(&place, &["one/a", second])]).fails(8, &parts);
    }
    assert!(fs::read(&a).unwrap() == before, "something was written");
    let out = nenrin(["check", "--repair", "--yes", "--json", &a, &b]);
    assert_eq!(out.code, 1, "{out:?}");
    let report: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((report["losses_total"].as_u64(), report["absent"].as_array().map(Vec::len)), (Some(0), Some(0)));
    assert!(fs::read(&b).unwrap() != other, "the repaired state is on both");
    nenrin(["check", "--data", &a, &b]).ok();
    // The damaged one alone.
    mount(&place, &["one/a"], "degraded").ok();
    assert!(fs::read(place.path("mnt/dir/a name to be lost")).unwrap() == content);
    place.umount().ok();
}

/// One device of a stripe can take no more: what is there is read, nothing is written, and it is told which device that is.
#[test]
fn a_device_that_is_lost_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.sub("host");
    run("mount", &["-t", "tmpfs", "-o", "size=6M", "none", &host]).ok();
    let (a, b) = (place.text("a"), place.text("host/b"));
    nenrin(["mkfs", "--sparse", "--size", "64M", "--profile", "stripe", &a, &b]).ok();
    nenrin(["mount", "--log", &place.text("log"), &format!("{a},{b}"), &place.sub("mnt")]).ok();
    let write = |n: u8| {
        let mut file = fs::File::create(place.path("mnt").join(format!("file{n}")))?;
        std::io::Write::write_all(&mut file, &vec![n; 1 << 20])?;
        file.sync_all()
    };
    let there = (0..60).take_while(|n| write(*n).is_ok()).count() as u8;
    assert!(there > 2 && there < 30, "{there} MiB");
    let info = place.info();
    assert_eq!(
        (info["devices"][0]["state"].as_str(), info["devices"][1]["state"].as_str()),
        (Some("active"), Some("failed"))
    );
    assert!(info["devices"][1]["why"].as_str().unwrap().contains("No space left"), "{info}");
    assert!(info["problems"].to_string().contains("device 2 ("), "{info}");
    for n in 0..there {
        assert!(fs::read(place.path("mnt").join(format!("file{n}"))).unwrap() == vec![n; 1 << 20], "file{n}");
    }
    assert_eq!(place.umount().code, 1);
    run("mount", &["-o", "remount,size=100M", &host]).ok();
    nenrin(["mount", &format!("{a},{b}"), &place.text("mnt")]).ok();
    for n in 0..there {
        assert!(fs::read(place.path("mnt").join(format!("file{n}"))).unwrap() == vec![n; 1 << 20], "file{n}");
    }
    place.umount().ok();
}

/// A device comes, another goes, one grows, and everything is there.
#[test]
fn devices_of_a_mounted_volume_change() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let (mnt, b) = (place.text("mnt"), place.text("b"));
    fs::write(place.path("mnt/f"), vec![7; 3 << 20]).unwrap();
    let added = nenrin(["device", "add", "--size", SIZE, "--json", &mnt, &b]);
    assert!(added.stderr.contains("under single a device that is added is no second copy"), "{added:?}");
    let added = added.json();
    assert_eq!((added["done"].as_bool(), added["segments_left"].as_u64()), (Some(true), Some(0)));
    nenrin(["device", "add", &mnt, &b]).fails(1, &["mounted"]);
    nenrin(["device", "remove", &mnt, "3"]).fails(1, &["no device of this volume"]);
    nenrin(["device", "remove", "--cancel", &mnt, "1"]).fails(1, &["not being removed"]);
    assert!(nenrin(["device", "remove", &mnt, &place.image()]).ok().contains("device 1 is removed"));
    nenrin(["device", "remove", &mnt, "2"]).fails(1, &["the last device"]);
    let longer = fs::metadata(&b).unwrap().len() + (16 << 20);
    assert!(nenrin(["resize", &mnt, &longer.to_string()]).ok().contains("device 2 is resized"));
    assert_eq!(fs::metadata(&b).unwrap().len(), longer);
    nenrin(["resize", "--device", "2", &mnt, "nonsense"]).fails(2, &["a size such as"]);
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), vec![7; 3 << 20]);
    nenrin(["umount", &mnt]).ok();
    nenrin(["check", "--data", &b]).ok();
}

/// What was put in the place of an image is not the volume's: it is neither cut nor made longer.
#[test]
fn an_image_that_was_replaced_is_not_resized() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let (mnt, other) = (place.text("mnt"), vec![7; 40 << 20]);
    fs::rename(place.image(), place.path("away")).unwrap();
    fs::write(place.image(), &other).unwrap();
    let refused = || {
        for size in ["24M", "48M", "max"] {
            nenrin(["resize", &mnt, size]).fails(1, &["image: deleted or replaced while mounted"]);
        }
    };
    refused();
    assert!(fs::read(place.image()).unwrap() == other);
    fs::rename(place.image(), place.path("other")).unwrap();
    for to in ["other", "away"] {
        std::os::unix::fs::symlink(to, place.image()).unwrap();
        refused();
        fs::remove_file(place.image()).unwrap();
    }
    refused();
    fs::rename(place.path("away"), place.image()).unwrap();
    nenrin(["resize", &mnt, "48M"]).ok();
    nenrin(["resize", &mnt, "24M"]).ok();
    assert_eq!(fs::metadata(place.image()).unwrap().len(), 24 << 20);
    assert!(fs::read(place.path("other")).unwrap() == other);
    place.umount().ok();
    nenrin(["check", &place.image()]).ok();
}

/// Who asked for less may go: what was moved in the background is cut off in the background.
#[test]
fn an_image_is_cut_when_the_command_was_ended() {
    use std::io::{BufRead, BufReader, Write};
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::write(place.path("mnt/f"), vec![7; 5 << 20]).unwrap();
    let uuid = place.info()["uuid"].as_str().unwrap().to_owned();
    // What the command does before it waits.
    let socket = format!("/run/nenrin/{uuid}.sock");
    let mut owner = std::os::unix::net::UnixStream::connect(socket).unwrap();
    owner.write_all(b"{\"do\":\"resize\",\"device\":null,\"bytes\":25165824}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(&owner).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    drop(owner);
    wait_until("it is cut", || fs::metadata(place.image()).unwrap().len() == 24 << 20);
    assert_eq!(place.info()["problems"].as_array().unwrap().len(), 0);
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
    // After a mount nobody knows what was asked for; whoever asks again gets it.
    fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(32 << 20).unwrap();
    place.mount("").ok();
    nenrin(["resize", &place.text("mnt"), "24M"]).ok();
    assert_eq!(fs::metadata(place.image()).unwrap().len(), 24 << 20);
    assert!(fs::read(place.path("mnt/f")).unwrap() == vec![7; 5 << 20]);
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

/// ext4 takes all the room there is, and makes the file longer, before it says that there is too little.
#[test]
fn what_does_not_fit_on_the_host_takes_no_room_there() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let disk = Place::new();
    fs::File::create(disk.path("disk")).unwrap().set_len(96 << 20).unwrap();
    let Some(host) = Loop::over(&disk.text("disk")) else { return };
    run("mkfs.ext4", &["-q", &host.0]).ok();
    let place = Place::new();
    let (dir, mnt) = (place.sub("host"), place.sub("mnt"));
    run("mount", &[&host.0, &dir]).ok();
    let (image, there) = (place.text("host/image"), place.text("host/there"));
    nenrin(["mkfs", "--size", SIZE, &image]).ok();
    fs::write(&there, vec![0; 8 << 20]).unwrap();
    nenrin(["mount", &image, &mnt]).ok();
    let room = || {
        run("sync", &["-f", &dir]).ok();
        run("stat", &["-f", "-c", "%a", &dir]).ok().trim().parse::<u64>().unwrap()
    };
    let before = room();
    let left = |what: &str| {
        let lengths = [&image, &there].map(|path| fs::metadata(path).unwrap().len());
        assert_eq!(lengths, [32 << 20, 8 << 20], "{what}");
        assert!(room().abs_diff(before) < 1024, "{what}: {} blocks were free, now {}", before, room());
    };
    nenrin(["resize", &mnt, "500M"]).fails(1, &["image", "No space left"]);
    left("resize");
    nenrin(["mkfs", "--size", "500M", &there]).fails(1, &["there: the host has no room"]);
    left("mkfs");
    fs::write(place.path("mnt/f"), vec![7; 1 << 20]).unwrap();
    nenrin(["umount", &mnt]).ok();
    nenrin(["check", "--data", &image]).ok();
}

/// What the owner refuses to add is as it was, whatever is on it, and as long.
#[test]
fn a_device_that_is_refused_is_as_it_was() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let all: Vec<String> = (0..8).map(|i| place.text(&format!("d{i}"))).collect();
    let mut args = vec!["mkfs", "--sparse", "--profile", "single", "--size", "16M"];
    args.extend(all.iter().map(String::as_str));
    nenrin(&args).ok();
    let (mnt, ninth) = (place.sub("mnt"), place.text("ninth"));
    nenrin(["mkfs", "--size", "8M", &ninth]).ok();
    let before = fs::read(&ninth).unwrap();
    nenrin(["mount", &all.join(","), &mnt]).ok();
    for size in [&["--size", "24M"][..], &["--size", "24M", "--sparse"], &[], &["--size", "6M"]] {
        let args: Vec<&str> =
            ["device", "add", "--force"].iter().chain(size).copied().chain([&mnt[..], &ninth]).collect();
        let part = if size.contains(&"6M") { "more than --size says" } else { "at most 8 devices" };
        nenrin(&args).fails(1, &[part]);
        assert!(fs::read(&ninth).unwrap() == before, "not as it was after {args:?}");
    }
    nenrin(["device", "add", "--size", "24M", &mnt, &place.text("new")]).fails(1, &["at most 8 devices"]);
    assert!(!place.path("new").exists());
    nenrin(["umount", &mnt]).ok();
    nenrin(["check", &ninth]).ok();
}

/// Digits alone are a number, also where a file is called so, and `./` makes them a file.
#[test]
fn a_number_is_no_file_of_that_name() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let script = "
        mkdir mnt
        for n in 1 2 3; do truncate -s 32M $n; done
        $NENRIN mkfs --profile single 2 3 1 >/dev/null
        $NENRIN mount 2,3,1 mnt
        $NENRIN device remove mnt 1 >&2
        $NENRIN device list mnt
        if $NENRIN device remove mnt 99999999; then exit 9; fi
        if $NENRIN device replace mnt 1 new; then exit 9; fi
        $NENRIN device remove mnt ./1 >&2
        $NENRIN device list mnt
        $NENRIN umount mnt";
    let out = shell(script, place.dir());
    assert!(out.stderr.contains("device 1 is removed") && out.stderr.contains("device 3 is removed"), "{out:?}");
    assert!(out.stderr.contains("99999999: no device of this volume"), "{out:?}");
    let is_listed = |list: &str, name: &str| list.contains(&place.text(name));
    let (first, last) = out.stdout.split_once("wrong blocks").unwrap().1.split_once("wrong blocks").unwrap();
    assert_eq!(["1", "2", "3"].map(|name| is_listed(first, name)), [true, false, true], "{out:?}");
    assert_eq!(["1", "2", "3"].map(|name| is_listed(last, name)), [false, false, true], "{out:?}");
    assert_eq!(out.code, 0, "{out:?}");
}
