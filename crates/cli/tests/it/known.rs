//! Volumes that are known by label and UUID, and what is told of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A label that no other test and no device of this machine has.
fn label(what: &str) -> String {
    format!("{what} {} ü", std::process::id())
}

/// A volume with a label on a loop device; its image is `name`.
fn on_loop(place: &Place, name: &str, label: &str) -> Option<Loop> {
    let image = place.text(name);
    nenrin(["mkfs", "--size", SIZE, "--label", label, &image]).ok();
    Loop::over(&image)
}

fn uuid_of(device: &str) -> String {
    nenrin(["probe", "--json", device]).json()[0]["uuid"].as_str().unwrap().to_owned()
}

/// By label and by UUID, for each command that takes a device.
#[test]
fn a_volume_is_found_by_what_it_is() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::new(), label("my, disk"));
    let Some(device) = on_loop(&place, "a", &name) else { return };
    let (by_label, by_uuid) = (format!("LABEL={name}"), format!("UUID={}", uuid_of(&device.0)));
    let mnt = place.sub("mnt");
    for known in [&by_label, &by_uuid, &by_uuid.to_uppercase()] {
        nenrin(["mount", known, &mnt]).ok();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(mounts.contains(&format!("{} {mnt} fuse.nenrin", device.0)), "{mounts}");
        assert_eq!(nenrin(["info", "--json", known]).json()["pid"], place.info()["pid"]);
        nenrin(["umount", known]).ok();
        assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt));
        assert!(nenrin(["check", known]).ok().contains(&format!("{}: clean", device.0)));
        nenrin(["check", "--repair", "-n", known]).ok();
        nenrin(["dump", known]).ok();
        nenrin(["segments", known]).ok();
        assert_eq!(nenrin(["device", "list", "--json", known]).json()[0]["path"], device.0);
        assert!(nenrin(["probe", known]).ok().contains(&device.0));
    }
    // A state of the past beside the live mount, which is the one that a device means.
    nenrin(["mount", &by_label, &mnt]).ok();
    let cno = nenrin(["checkpoint", "create", "--json", &by_label]).json()["cno"].to_string();
    let past = place.sub("past");
    nenrin(["mount", "-o", &format!("cp={cno}"), &by_uuid, &past]).ok();
    let left = nenrin(["umount", &device.0]);
    assert!(left.code == 0 && left.stderr.contains("also mounted at"), "{left:?}");
    nenrin(["umount", &by_label]).ok();
    nenrin(["umount", &by_label]).fails(1, &[&by_label, "nothing is mounted here"]);
}

/// Of two at one place the lower one cannot go, and by its device the upper one does not.
#[test]
fn what_another_mount_covers_is_not_mistaken_for_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let above = place.sub("above");
    let (mnt, other) = (place.sub("above/mnt"), place.sub("other"));
    let images = ["a", "b"].map(|name| place.text(name));
    for (image, at) in images.iter().zip([&mnt, &other]) {
        nenrin(["mkfs", "--size", SIZE, image]).ok();
        nenrin(["mount", image, at]).ok();
        fs::write(Path::new(at).join("of"), image).unwrap();
    }
    let pid_of = |image: &str| nenrin(["info", "--json", image]).json()["pid"].clone();
    let pids = images.each_ref().map(|image| pid_of(image));
    let told = [&*format!("is mounted at {mnt}, where another mount covers it"), "unmount that first"];
    run("mount", &["--bind", &other, &mnt]).ok();
    nenrin(["umount", &images[0]]).fails(1, &told);
    assert_eq!(fs::read_to_string(place.path("above/mnt/of")).unwrap(), images[1]);
    assert_eq!(images.each_ref().map(|image| pid_of(image)), pids, "both go on");
    // What is bound there, too, is meant where it was mounted.
    nenrin(["umount", &images[1]]).ok();
    assert_eq!(fs::read_to_string(place.path("above/mnt/of")).unwrap(), images[1]);
    nenrin(["umount", &images[1]]).ok();
    assert_eq!(fs::read_to_string(place.path("above/mnt/of")).unwrap(), images[0]);
    // Nor where what covers it lies over a directory above it.
    run("mount", &["-t", "tmpfs", "none", &above]).ok();
    let out = fs::create_dir(&mnt).map(|()| nenrin(["umount", &images[0]]));
    run("umount", &[&above]).ok();
    out.unwrap().fails(1, &told);
    assert_eq!(pid_of(&images[0]), pids[0]);
    nenrin(["umount", &images[0]]).ok();
    assert_eq!(images.each_ref().map(|image| pid_of(image)), [serde_json::Value::Null, serde_json::Value::Null]);
}

/// Where it is mounted for others only, the path that these have is of something else here.
#[test]
fn what_is_mounted_for_others_is_not_looked_for_here() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    let other = place.text("other");
    nenrin(["mkfs", "--size", SIZE, &other]).ok();
    place.mount("").ok();
    let pid = place.pid();
    let script = "
        umount -i mnt
        $NENRIN mount other mnt
        code=0; $NENRIN umount image || code=$?
        grep -q \" $PWD/mnt \" /proc/self/mountinfo
        $NENRIN umount other
        exit $code";
    let out = Out::of(in_own_mounts(place.dir(), script).output().unwrap());
    out.fails(1, &["is mounted in another mount name space, not here"]);
    assert_eq!(place.pid(), pid);
    place.umount().ok();
}

/// As mount(8) calls its helper, which waits for what is late.
#[test]
fn the_helpers_know_it_too() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::new(), label("late"));
    let image = place.image();
    nenrin(["mkfs", "--size", SIZE, "--label", &name, &image]).ok();
    let mnt = place.sub("mnt");
    for helper in ["mount.nenrin", "fsck.nenrin"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nenrin"), place.path(helper)).unwrap();
    }
    let known = format!("LABEL={name}");
    let mut mounting = std::process::Command::new(place.path("mount.nenrin"));
    let mounting = mounting.args([&known, &mnt]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let device = Loop::over(&image);
    let out = mounting.wait_with_output().unwrap();
    let Some(device) = device else { return };
    assert!(out.status.success(), "{out:?}");
    assert_eq!(place.info()["device"], device.0);
    place.umount().ok();
    let fsck = |args: &[&str]| run(&place.text("fsck.nenrin"), args);
    assert!(fsck(&["-a", &known]).ok().contains(": clean"));
    fsck(&["-a", "UUID=1"]).fails(16, &["not a UUID"]);
    fsck(&["-a", &format!("LABEL={}", label("nobody"))]).fails(8, &["no volume has this label"]);
}

#[test]
fn nobody_guesses_which_is_meant() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::new(), label("twin"));
    let (known, mnt) = (format!("LABEL={name}"), place.sub("mnt"));
    let Some(one) = on_loop(&place, "a", &name) else { return };
    // Two ways to one device are one.
    let Some(again) = Loop::over(&place.text("a")) else { return };
    nenrin(["mount", &known, &mnt]).ok();
    place.umount().ok();
    drop(again);
    let Some(two) = on_loop(&place, "b", &name) else { return };
    nenrin(["mount", &known, &mnt])
        .fails(1, &[&known, &one.0, &two.0, "different volumes with the same label", "UUID="]);
    nenrin(["info", &known]).fails(1, &[&one.0, &two.0]);
    nenrin(["check", &known]).fails(8, &[&one.0, &two.0]);
    nenrin(["info", &format!("UUID={}", uuid_of(&two.0))]).ok();
    drop(two);
    // A copy, as of a disk that was taken to another one.
    fs::copy(place.path("a"), place.path("copy")).unwrap();
    let Some(copy) = Loop::over(&place.text("copy")) else { return };
    for known in [known, format!("UUID={}", uuid_of(&one.0))] {
        nenrin(["mount", &known, &mnt])
            .fails(1, &[&known, &one.0, &copy.0, "say to be the same device", "by its path"]);
    }
    nenrin(["mount", &one.0, &mnt]).ok();
    place.umount().ok();
}

#[test]
fn what_is_not_there_is_told() {
    let place = Place::new();
    let mnt = place.sub("mnt");
    let name = label("none");
    let known = format!("LABEL={name}");
    // What looks like a label is one, whatever lies here.
    fs::write(place.path(&known), "x").unwrap();
    let mut here = command(["info", &known]);
    Out::of(here.current_dir(place.dir()).output().unwrap()).fails(1, &[&known, "no volume has this label"]);
    let none = "UUID=00000000-0000-4000-8000-000000000000";
    nenrin(["mount", none, &mnt]).fails(1, &["no volume has this UUID"]);
    nenrin(["mount", "UUID=xyz", &mnt]).fails(2, &["not a UUID"]);
    nenrin(["mount", "LABEL=", &mnt]).fails(2, &["a label is needed"]);
    nenrin(["check", "LABEL="]).fails(16, &["a label is needed"]);
    nenrin(["probe", "UUID=1"]).fails(4, &["not a UUID"]);
    nenrin(["probe", none]).fails(2, &["no volume has this UUID"]);
    for args in [&["mkfs", "--size", SIZE, &known][..], &["mkfs", "UUID=1"]] {
        nenrin(args).fails(2, &["names a volume that there is"]);
    }
    // Who may not read devices is told so.
    if let Some(out) = as_nobody(&place, &format!("exec $NENRIN info '{none}'")) {
        out.fails(1, &["no volume has this UUID"]);
        // With the devices of this machine, where it has one that a volume fits on: others are not looked at.
        let is_closed = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, _, kibibytes, name] = words[..] else { return false };
            let meta = fs::metadata(Path::new("/dev").join(name));
            kibibytes.parse().is_ok_and(|k: u64| k >= 8 << 10) && meta.is_ok_and(|m| m.mode() & 0o004 == 0)
        };
        if fs::read_to_string("/proc/partitions").is_ok_and(|table| table.lines().any(is_closed)) {
            let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR"];
            let info = [&*place.text("nenrin"), "info", none].map(str::to_owned);
            let args: Vec<&str> = nobody.into_iter().chain(info.iter().map(|arg| &**arg)).collect();
            run("setpriv", &args).fails(1, &["no volume has this UUID", "permission denied; root may"]);
        }
    }
}

/// All of a volume that have the label, wherever, and which says who the others are.
#[test]
fn a_volume_of_several_devices() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::new(), label("pair"));
    let (known, mnt) = (format!("LABEL={name}"), place.sub("mnt"));
    // In directories of their own, so that only the search among devices finds the other one.
    let images = ["x", "y"].map(|d| format!("{}/image", place.sub(d)));
    nenrin(["mkfs", "--size", SIZE, "--label", &name, &images[0], &images[1]]).ok();
    let mut loops: Vec<Loop> = images.iter().filter_map(|image| Loop::over(image)).collect();
    let [one, two] = &loops[..] else { return };
    let told = [one, two].map(|l| nenrin(["probe", "--json", &l.0]).json()[0].clone());
    assert_eq!((&told[0]["devices"], &told[0]["number"], &told[1]["number"]), (&2.into(), &1.into(), &2.into()));
    assert!(told[0]["uuid"] == told[1]["uuid"] && told[0]["uuid_sub"] != told[1]["uuid_sub"]);
    let udev = nenrin(["probe", "--udev", &two.0]).ok();
    for key in ["ID_FS_UUID_SUB", "ID_FS_UUID_SUB_ENC"] {
        assert!(udev.contains(&format!("{key}={}\n", told[1]["uuid_sub"].as_str().unwrap())), "{udev}");
    }
    nenrin(["mount", &known, &mnt]).ok();
    fs::write(place.path("mnt/f"), "both").unwrap();
    nenrin(["umount", &known]).ok();
    assert_eq!(nenrin(["device", "list", "--json", &known]).json().as_array().unwrap().len(), 2);
    // The one that was away does not say that it is all there is.
    drop(loops.remove(0));
    nenrin(["mount", "-o", "degraded", &known, &mnt]).ok();
    fs::write(place.path("mnt/f"), "the second alone").unwrap();
    nenrin(["umount", &known]).ok();
    let Some(back) = Loop::over(&images[0]) else { return };
    nenrin(["mount", &known, &mnt]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "the second alone");
    nenrin(["umount", &known]).ok();
    drop((back, loops));
}

/// What udev gets, of labels that want to be more than labels.
#[test]
fn what_udev_is_told() {
    let place = Place::new();
    let image = place.image();
    let evil = "a\nID_FS_TYPE=ext4\u{85}/../$x";
    nenrin(["mkfs", "--size", SIZE, "--label", evil, &image]).ok();
    let told = nenrin(["probe", "--udev", &image]).ok();
    let uuid = uuid_of(&image);
    let version = nenrin(["info", "--json", &image]).json()["format"].to_string();
    let wanted = format!(
        "ID_FS_TYPE=nenrin\nID_FS_USAGE=filesystem\nID_FS_VERSION={version}\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\n\
         ID_FS_LABEL=a_ID_FS_TYPE=ext4__..__x\nID_FS_LABEL_ENC=a\\x0aID_FS_TYPE=ext4\\xc2\\x85\\x2f..\\x2f\\x24x\n"
    );
    assert_eq!(told, wanted);
    // Without one, and while the volume is in use.
    let other = place.text("other");
    nenrin(["mkfs", "--size", SIZE, &other]).ok();
    assert!(!nenrin(["probe", "--udev", &other]).ok().contains("LABEL"));
    if can_mount() {
        place.mount("").ok();
        assert_eq!(nenrin(["probe", "--udev", &image]).ok(), wanted);
        place.umount().ok();
    }
    // No volume, and none that can be told: nothing is said to udev, and 2 as blkid has it.
    fs::write(place.path("zeros"), vec![0; 8 << 20]).unwrap();
    let none = nenrin(["probe", "--udev", &place.text("zeros")]);
    assert_eq!((none.code, &*none.stdout, &*none.stderr), (2, "", ""));
    nenrin(["probe", &place.text("zeros")]).fails(2, &["no nenrin volume"]);
    nenrin(["probe", "--udev", &place.text("missing")]).fails(2, &["no such file or device"]);
    nenrin(["probe", "--udev", &place.text("")]).fails(2, &["neither a regular file nor a block device"]);
    nenrin(["probe", "--udev"]).fails(4, &["one device"]);
    nenrin(["probe", "--udev", "--json", &image]).fails(4, &["one device"]);
    nenrin(["probe", "--frob"]).fails(4, &["unknown option"]);
    let both = nenrin(["probe", &image, &place.text("zeros")]);
    assert!(both.code == 2 && both.stdout.contains(&uuid) && both.stderr.contains("no nenrin volume"), "{both:?}");
    assert!(!both.stdout.contains("a\nID"), "{both:?}");
}

/// Nothing is written, not even where the device could be.
#[test]
fn looking_changes_nothing() {
    let place = Place::with_volume();
    let before = fs::read(place.image()).unwrap();
    let times = || fs::metadata(place.image()).unwrap().modified().unwrap();
    let changed = times();
    for args in [&["probe"][..], &["probe", "--udev"], &["probe", "--json"]] {
        nenrin(args.iter().copied().chain([&*place.image()])).ok();
    }
    assert!(fs::read(place.image()).unwrap() == before && times() == changed);
}

/// All there are, where there is one.
#[test]
fn the_volumes_of_this_machine_are_listed() {
    let (place, name) = (Place::new(), label("listed"));
    if !is_root() {
        left_out(format_args!("this test needs root"));
        return;
    }
    let Some(device) = on_loop(&place, "a", &name) else { return };
    let uuid = uuid_of(&device.0);
    let listed = nenrin(["probe"]);
    let line = listed.stdout.lines().find(|l| l.contains(&device.0)).unwrap_or_else(|| panic!("{listed:?}"));
    assert!(line.contains(&name) && line.contains(&uuid) && line.contains("1 of 1"), "{line}");
    let all = nenrin(["probe", "--json"]).json();
    assert!(all.as_array().unwrap().iter().any(|v| v["uuid"] == *uuid && v["label"] == *name), "{all}");
    // mkfs says that the label is no name for it any more.
    fs::File::create(place.path("b")).unwrap().set_len(32 << 20).unwrap();
    let Some(other) = Loop::over(&place.text("b")) else { return };
    let made = nenrin(["mkfs", "--label", &name, &other.0]);
    assert!(
        made.code == 0 && made.stderr.contains(&device.0) && made.stderr.contains("has this label, too"),
        "{made:?}"
    );
    let made = nenrin(["mkfs", "--force", "--label", &label("other"), &other.0]);
    assert!(made.code == 0 && !made.stderr.contains("has this label"), "{made:?}");
    // What another file system was made over is nobody's, and what lost its first slots is what it was.
    for (at, found) in [(0u64, false), (1080, false)] {
        let mark = if at == 0 { &b"XFSB"[..] } else { &[0x53, 0xef] };
        let before = fs::read(place.path("a")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&fs::File::options().write(true).open(&device.0).unwrap(), mark, at)
            .unwrap();
        assert_eq!(nenrin(["probe", &device.0]).code == 0, found);
        std::os::unix::fs::FileExt::write_all_at(
            &fs::File::options().write(true).open(&device.0).unwrap(),
            &before[..4096],
            0,
        )
        .unwrap();
    }
    assert!(Path::new(&device.0).exists());
    nenrin(["probe", &device.0]).ok();
}

/// A device that does not answer, as one whose cable was pulled: here one over a file of a volume whose process is stopped.
#[test]
fn a_device_that_hangs_keeps_nobody() {
    if !can_mount() {
        return;
    }
    let (place, name) = (Place::with_volume(), label("beside"));
    place.mount("").ok();
    fs::File::create(place.path("mnt/disk")).unwrap().set_len(8 << 20).unwrap();
    let images = ["x", "y"].map(|d| format!("{}/image", place.sub(d)));
    nenrin(["mkfs", "--size", SIZE, "--label", &name, &images[0], &images[1]]).ok();
    let loops: Vec<Loop> = images.iter().filter_map(|image| Loop::over(image)).collect();
    let (2, Some(dead)) = (loops.len(), Loop::over(&place.text("mnt/disk"))) else { return };
    let (pid, pair) = (place.pid(), place.sub("pair"));
    signal(pid, "STOP");
    // The other one of a volume, and a volume by its label.
    let outs = [&loops[0].0, &format!("LABEL={name}")].map(|known| {
        let mount = run("timeout", &["-s", "KILL", "25", env!("CARGO_BIN_EXE_nenrin"), "mount", known, &pair]);
        (mount, run("timeout", &["-s", "KILL", "25", env!("CARGO_BIN_EXE_nenrin"), "umount", &pair]))
    });
    signal(pid, "CONT");
    drop(dead);
    for (mount, umount) in &outs {
        assert!(mount.code == 0 && umount.code == 0, "{outs:?}");
    }
    // Where both were found before it had its time nothing is said of it.
    let said = &outs[1].0.stderr;
    let told = format!("{}: does not answer", said.split(": ").nth(1).unwrap_or_default());
    assert!(said.is_empty() || told.contains("/dev/loop") && said.contains(&told), "{outs:?}");
}
