//! What is wrong is said in one line, with an exit code, and nothing is lost.
//! One test for each case that README or the commands' help promise a message for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Offsets in a root slot, as docs/FORMAT.md has them.
const VERSION: usize = 12;
const RO_COMPAT: usize = 40;
const INCOMPAT: usize = 48;

fn mount(place: &Place) -> Out {
    place.mount("")
}

/// The image is byte for byte what it was.
fn unchanged(place: &Place, what: impl FnOnce()) {
    let before = fs::read(place.image()).unwrap();
    what();
    assert!(fs::read(place.image()).unwrap() == before, "the image was changed");
}

#[test]
fn not_a_volume() {
    let place = Place::new();
    for content in [vec![0; 8 << 20], b"hello".repeat(100_000), vec![0; 100], vec![]] {
        fs::write(place.image(), content).unwrap();
        unchanged(&place, || {
            mount(&place).fails(1, &["image: not a nenrin volume", "nenrin mkfs"]);
            nenrin(["check", &place.image()]).fails(8, &["not a nenrin volume"]);
        });
    }
    nenrin(["mount", "/no/such/image", &place.sub("mnt")]).fails(1, &["/no/such/image", "no such file"]);
    nenrin(["mount", &place.sub("dir"), &place.sub("mnt")]).fails(1, &["neither a regular file nor a block device"]);
}

/// An option that is another verb's was taken, and ignored: the device was added that was not to be.
#[test]
fn options_of_other_verbs() {
    let refused = |args: &[&str], parts: &[&str]| nenrin(args).fails(2, parts);
    for (verb, takes) in [
        ("list", &["--json"][..]),
        ("add", &["--size", "--sparse", "--force", "--json"]),
        ("remove", &["--cancel", "--json"]),
        ("replace", &["--cancel", "--force", "--json"]),
        ("forgive", &["--json"]),
    ] {
        for flag in [&["--cancel"][..], &["--force"], &["-f"], &["--sparse"], &["--size", "32M"]] {
            let long = if flag[0] == "-f" { "--force" } else { flag[0] };
            if !takes.contains(&long) {
                let told = format!("device {verb} takes no {long}");
                refused(&[&["device", verb], flag, &["/nowhere", "/nothing"][..]].concat(), &[&told, "usage"]);
            }
        }
    }
    refused(&["device", "replace", "--cancel", "--force", "/nowhere"], &["replace --cancel takes no other option"]);
    refused(&["snapshot", "list", "--of", "3", "/nowhere"], &["snapshot list takes no --of"]);
    refused(&["snapshot", "delete", "--of", "3", "/nowhere", "monday"], &["snapshot delete takes no --of"]);
}

#[test]
fn a_truncated_image() {
    let place = Place::with_volume();
    fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(16 << 20).unwrap();
    unchanged(&place, || mount(&place).fails(1, &["truncated", "16777216", "restore its length"]));
    nenrin(["info", &place.image()]).fails(1, &["truncated"]);
    for path in ["image", "./image", "$PWD/image"] {
        for command in ["check", "info"] {
            let said = shell(&format!("$NENRIN {command} {path}"), place.dir()).stderr;
            assert_eq!(said.matches("image").count(), 1, "{command} {path}: {said}");
        }
    }
}

/// What is gone is less than a segment, so that none lies there.
#[test]
fn an_image_without_its_last_block() {
    let place = Place::with_volume();
    let image = fs::OpenOptions::new().write(true).open(place.image()).unwrap();
    let bytes = image.metadata().unwrap().len();
    image.set_len(bytes - 4096).unwrap();
    unchanged(&place, || mount(&place).fails(1, &["truncated", &bytes.to_string(), "restore its length"]));
    nenrin(["info", &place.image()]).fails(1, &["truncated"]);
}

#[test]
fn a_newer_format() {
    let place = Place::with_volume();
    place.patch_slots(|slot| slot[VERSION] = 9);
    unchanged(&place, || {
        mount(&place).fails(1, &["format version 9", "newer", "update nenrin"]);
        nenrin(["check", &place.image()]).fails(8, &["format version 9"]);
    });
}

#[test]
fn an_unknown_feature() {
    let place = Place::with_volume();
    place.patch_slots(|slot| slot[INCOMPAT + 1] = 2);
    unchanged(&place, || mount(&place).fails(1, &["features", "0x200", "update nenrin"]));
}

#[test]
fn a_feature_that_allows_reading() {
    let place = Place::with_volume();
    place.patch_slots(|slot| slot[RO_COMPAT] = 4);
    unchanged(&place, || {
        if can_mount() {
            for options in ["rw", "ro"] {
                let out = place.mount(options);
                assert_eq!(out.code, 0, "{out:?}");
                let warned = out.stderr.contains("bits 0x4") && out.stderr.contains("update nenrin");
                assert_eq!(warned, options == "rw", "{}", out.stderr);
                let e = fs::write(place.path("mnt/x"), b"x").unwrap_err();
                assert_eq!(e.raw_os_error(), Some(libc::EROFS));
                place.umount().ok();
            }
        }
        nenrin(["check", &place.image()]).ok();
    });
}

#[test]
fn one_damaged_slot() {
    if !can_mount() {
        return;
    }
    // Slot 1 is the first root's; its twin lies at the end.
    let place = Place::with_volume();
    let written: Vec<u64> = {
        let image = fs::read(place.image()).unwrap();
        place.slots().into_iter().filter(|o| image[*o as usize] != 0).collect()
    };
    place.patch(written[0] + 60, b"rotten");
    let out = mount(&place);
    assert_eq!(out.code, 0, "{out:?}");
    assert!(out.stderr.contains("damaged") && out.stderr.contains("twin"), "{}", out.stderr);
    let info = place.info();
    assert!(info["notes"][0].as_str().unwrap().contains("damaged"));
    assert!(info["problems"].to_string().contains("superblock slot is not as written"), "{info}");
    let text = nenrin(["info", &place.text("mnt")]).ok();
    assert!(text.contains("health       NOT GOOD"), "{text}");
    // A scrub writes it anew, and then nothing is told of it any more.
    nenrin(["scrub", &place.text("mnt")]);
    let info = place.info();
    assert_eq!(info["problems"].as_array().unwrap().len(), 0, "{info}");
    assert!(!info["notes"].to_string().contains("slot"), "{info}");
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    place.umount().ok();
    mount(&place).ok();
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
}

#[test]
fn all_slots_damaged() {
    let place = Place::with_volume();
    for slot in place.slots() {
        place.patch(slot + 60, b"rotten");
    }
    unchanged(&place, || mount(&place).fails(1, &["slots are damaged", "nothing was changed"]));
}

#[test]
fn a_busy_volume() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    mount(&place).ok();
    let other = place.sub("other");
    let pid = place.pid().to_string();
    nenrin(["mount", &place.image(), &other]).fails(1, &["in use by nenrin", &pid, "mounted at", "nenrin umount"]);
    nenrin(["check", &place.image()]).fails(8, &["in use by nenrin", &pid]);
    place.umount().ok();
    // Somebody who is no daemon of ours is named at once.
    let mut holder = Command::new("flock").args(["-F", "-x", &place.image(), "sleep", "60"]).spawn().unwrap();
    let busy = || run("flock", &["-n", "-x", &place.image(), "true"]).code != 0;
    wait_until("somebody holds the image", busy);
    nenrin(["mount", &place.image(), &other]).fails(1, &["in use by"]);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_directory_that_will_not_do() {
    let place = Place::with_volume();
    let full = place.sub("full");
    fs::write(place.path("full/file"), b"x").unwrap();
    nenrin(["mount", &place.image(), "/no/such/dir"]).fails(1, &["/no/such/dir", "no such directory", "create it"]);
    nenrin(["mount", &place.image(), &place.text("full/file")]).fails(1, &["not a directory"]);
    if !can_mount() {
        return;
    }
    nenrin(["mount", &place.image(), &full]).fails(1, &["full", "not empty", "nonempty"]);
    nenrin(["mount", "-o", "nonempty", &place.image(), &full]).ok();
    nenrin(["umount", &full]).ok();
    // What was opened for a mount that failed was closed cleanly.
    assert_eq!(nenrin(["info", "--json", &place.image()]).json()["recovery"]["clean"], true);
    mount(&place).ok();
    let second = Place::with_volume();
    nenrin(["mount", &second.image(), &place.text("mnt")]).fails(1, &["a nenrin volume is mounted there already"]);
}

#[test]
fn no_image_is_made_among_devices() {
    if !is_root() {
        return;
    }
    for name in ["nenrin-nowhere", "./nenrin-nowhere"] {
        shell(&format!("$NENRIN mkfs --size 32M {name}"), Path::new("/dev")).fails(1, &["no such device"]);
    }
}

#[test]
fn no_fuse_device() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.sub("mnt");
    let script = "mount -t tmpfs none /dev; mknod /dev/null c 1 3; $NENRIN mount image mnt";
    let out = Out::of(in_own_mounts(place.dir(), script).output().unwrap());
    out.fails(1, &["/dev/fuse is missing", "fuse module"]);
}

#[test]
fn unknown_and_impossible_options() {
    let place = Place::with_volume();
    for (options, part) in [
        ("frobnicate", "unknown mount option \"frobnicate\""),
        ("order=strict,cache=writeback", "exclude each other"),
        ("commit=never", "seconds are needed"),
        ("at=2025-13-01", "say a time as"),
    ] {
        unchanged(&place, || place.mount(options).fails(2, &[part]));
    }
    nenrin(["mount", &place.image()]).fails(2, &["a device and a directory are needed"]);
    nenrin(["mount", "/no/a,/no/b", &place.sub("mnt")]).fails(1, &["/no/a", "no such file"]);
    nenrin(["mount", "--frob", "a", "b"]).fails(2, &["unknown option --frob"]);
    for version in [&["version", "--frob"][..], &["--version", "frob"]] {
        nenrin(version).fails(2, &["frob"]);
    }
    nenrin(["history", ""]).fails(2, &["an empty path", "directory you are in"]);
    let mount = ["mount", "--log", "/nonexist/log", &place.image(), &place.sub("mnt")];
    nenrin(mount).fails(1, &["log file /nonexist/log: No such file"]);
}

#[test]
fn no_permission() {
    let place = Place::with_volume();
    fs::set_permissions(place.sub("mnt"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.image(), fs::Permissions::from_mode(0o600)).unwrap();
    let Some(out) = as_nobody(&place, "$NENRIN mount image mnt") else { return };
    out.fails(1, &["image", "permission denied", "owner or as root"]);
    as_nobody(&place, "$NENRIN info image").unwrap().fails(1, &["permission denied"]);
    if can_mount() {
        place.mount("allow_other").ok();
        as_nobody(&place, "$NENRIN info mnt").unwrap().fails(1, &["another user", "as root"]);
        as_nobody(&place, "$NENRIN umount mnt").unwrap().fails(1, &["another user"]);
    }
}

/// The whole way as an ordinary user, through fusermount3.
#[test]
fn without_root() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::new();
    let script = "
        $NENRIN mkfs --size 32M image
        mkdir mnt past
        $NENRIN mount image mnt
        echo first > mnt/note
        test $(stat -c %u mnt/note) = 65534
        $NENRIN snapshot create mnt monday
        echo second > mnt/note
        $NENRIN mount -o at=monday image past
        cat past/note mnt/note
        $NENRIN umount past
        $NENRIN info mnt | grep -q 'health       good'
        sleep 60 <mnt/note & holder=$!
        $NENRIN umount mnt 2>&1 && exit 1
        kill $holder; wait $holder || true
        $HIDDEN 0.7 <mnt/note &
        sleep 0.2
        $NENRIN umount mnt
        $NENRIN mount -o allow_other,dev image mnt 2>&1 || true
        $NENRIN mount -o ro image mnt
        kill -9 $($NENRIN info --json mnt | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')
        $NENRIN mount image mnt
        cat mnt/note
        $NENRIN umount mnt";
    // What a program that may not be read has open its user cannot see either.
    let hidden = place.path("hidden-sleep");
    run("cp", &["/bin/sleep", hidden.to_str().unwrap()]).ok();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o711)).unwrap();
    let Some(out) = as_nobody(&place, &script.replace("$HIDDEN", "./hidden-sleep")) else { return };
    let text = out.ok();
    assert!(text.contains("in use by sleep (pid") && text.contains("close it, then try again"), "{text}");
    assert!(text.contains("first\nsecond\n") && text.ends_with("second\n"), "{text}");
    assert!(text.contains("only root can mount with"), "{text}");
}

#[test]
fn without_fusermount3() {
    let place = Place::with_volume();
    fs::set_permissions(place.image(), fs::Permissions::from_mode(0o666)).unwrap();
    place.sub("mnt");
    if !can_mount() {
        return;
    }
    let Some(out) = as_nobody(&place, "PATH=/nowhere $NENRIN mount image mnt") else { return };
    out.fails(1, &["fusermount3 is missing", "install the package fuse3"]);
}

#[test]
fn a_read_only_device() {
    if !can_mount() || !has("losetup") {
        return;
    }
    let place = Place::with_volume();
    let out = run("losetup", &["--find", "--show", "--read-only", &place.image()]);
    if out.code != 0 {
        crate::common::left_out(format_args!("no loop device: {}", out.stderr));
        return;
    }
    let device = out.stdout.trim().to_owned();
    let mnt = place.sub("mnt");
    let wrong = nenrin(["mount", &device, &mnt]);
    let right = nenrin(["mount", "-o", "ro", &device, &mnt]);
    let listed = nenrin(["info", "--json", &mnt]);
    nenrin(["umount", &mnt]);
    let others = [nenrin(["mkfs", "--force", &device]), nenrin(["check", "--repair", "--yes", &device])];
    run("losetup", &["--detach", &device]).ok();
    wrong.fails(1, &[&device, "read-only device", "-o ro"]);
    right.ok();
    assert_eq!(listed.json()["read_only"], true);
    for (out, code) in others.into_iter().zip([1, 8]) {
        assert!(!out.stderr.contains("-o ro"), "nothing is to be mounted: {out:?}");
        out.fails(code, &["read-only device: nothing can be written to it"]);
    }
}

#[test]
fn a_mounted_block_device() {
    if !can_mount() || !has("losetup") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    fs::write(place.image(), vec![0; 16 << 20]).unwrap();
    shell("PATH=$PATH:/sbin:/usr/sbin mkfs.ext4 -q image", place.dir()).ok();
    let out = run("losetup", &["--find", "--show", &place.image()]);
    if out.code != 0 {
        crate::common::left_out(format_args!("no loop device: {}", out.stderr));
        return;
    }
    let device = out.stdout.trim().to_owned();
    let (ext, mnt) = (place.sub("ext"), place.sub("mnt"));
    run("mount", &[&device, &ext]).ok();
    let made = nenrin(["mkfs", "--force", &device]);
    let mounted = nenrin(["mount", &device, &mnt]);
    run("umount", &[&ext]).ok();
    run("losetup", &["--detach", &device]).ok();
    made.fails(1, &["mounted at", &ext]);
    mounted.fails(1, &["mounted at", &ext]);
}

#[test]
fn a_full_volume() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    nenrin(["mkfs", "--size", "16M", &place.image()]).ok();
    mount(&place).ok();
    fs::write(place.path("mnt/kept"), b"kept").unwrap();
    let fill = |name: &str| -> std::io::Result<()> {
        let mut file = fs::File::create(place.path(name))?;
        loop {
            file.write_all(&[5; 65536])?;
        }
    };
    let error = fill("mnt/big").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    // Removing works on a full volume, and gives the space back.
    fs::remove_file(place.path("mnt/big")).unwrap();
    wait_until("there is room again", || fs::write(place.path("mnt/more"), vec![6; 1 << 20]).is_ok());
    place.umount().ok();
    mount(&place).ok();
    assert_eq!(fs::read(place.path("mnt/more")).unwrap(), vec![6; 1 << 20]);
}

/// A sparse image on a host that has less room than it promises: writes of the
/// daemon fail, so nothing more is acknowledged, and what was is there later.
#[test]
fn a_full_host_under_the_image() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.sub("host");
    run("mount", &["-t", "tmpfs", "-o", "size=12M", "none", &host]).ok();
    let (image, mnt) = (place.text("host/image"), place.sub("mnt"));
    nenrin(["mkfs", "--sparse", "--size", "64M", &image]).ok();
    nenrin(["mount", "--log", &place.text("log"), &image, &mnt]).ok();
    let mut acknowledged = 0;
    let mut failed = None;
    for round in 0..60u8 {
        let written = fs::File::create(place.path("mnt").join(format!("file{round}")))
            .and_then(|mut f| f.write_all(&vec![round; 1 << 20]).and_then(|()| f.sync_all()));
        match written {
            Ok(()) => acknowledged = round + 1,
            Err(e) => {
                failed = Some(e);
                break;
            }
        }
    }
    let failed = failed.expect("64 MiB went into 12");
    assert!(acknowledged > 0);
    assert!([libc_eio(), libc_erofs()].contains(&failed.raw_os_error().unwrap()), "{failed}");
    // From then on everything that writes fails, and reading goes on.
    assert!(
        fs::write(place.path("mnt/late"), b"x").is_err()
            || fs::File::open(place.path("mnt")).unwrap().sync_all().is_err()
    );
    let info = place.info();
    assert!(info["problems"][0].as_str().unwrap().contains("No space left"), "{info}");
    wait_until("it is logged", || fs::read_to_string(place.path("log")).unwrap().contains("No space left"));
    let out = place.umount();
    assert_eq!(out.code, 1, "the last writes are lost, and umount must say so: {out:?}");
    run("mount", &["-o", "remount,size=100M", &host]).ok();
    nenrin(["mount", &image, &mnt]).ok();
    for round in 0..acknowledged {
        let content = fs::read(place.path("mnt").join(format!("file{round}"))).unwrap();
        assert!(content == vec![round; 1 << 20], "file{round} was acknowledged and is not there");
    }
    nenrin(["umount", &mnt]).ok();
}

#[test]
fn a_mount_on_a_full_host_says_what_is_full() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.sub("host");
    run("mount", &["-t", "tmpfs", "-o", "size=8M", "none", &host]).ok();
    let (image, mnt) = (place.text("host/image"), place.sub("mnt"));
    nenrin(["mkfs", "--sparse", "--size", "64M", &image]).ok();
    assert!(fs::write(place.path("host/more"), vec![1; 8 << 20]).is_err());
    nenrin(["mount", &image, &mnt]).fails(1, &["image", "lies on is full", "-o ro"]);
    nenrin(["mount", "-o", "ro", &image, &mnt]).ok();
    nenrin(["umount", &mnt]).ok();
    fs::remove_file(place.path("host/more")).unwrap();
    nenrin(["mount", &image, &mnt]).ok();
    nenrin(["umount", &mnt]).ok();
}

const fn libc_eio() -> i32 {
    5
}
const fn libc_erofs() -> i32 {
    30
}

#[test]
fn an_image_deleted_or_cut_while_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (mnt, log) = (place.sub("mnt"), place.text("log"));
    nenrin(["mount", "--log", &log, &place.image(), &mnt]).ok();
    fs::write(place.path("mnt/note"), b"x").unwrap();
    fs::remove_file(place.image()).unwrap();
    let said = |part: &str| {
        let problems = place.info()["problems"].to_string();
        problems.contains(part) && fs::read_to_string(&log).unwrap().contains(part)
    };
    wait_until("it is noticed", || said("deleted while mounted: unmounting loses it"));
    // What is open is still there to be copied.
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"x");
    let text = nenrin(["info", &mnt]).ok();
    assert!(text.contains("NOT GOOD"), "{text}");
    nenrin(["umount", "--force", &mnt]).ok();

    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    nenrin(["mount", &place.image(), &mnt]).ok();
    fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(20 << 20).unwrap();
    wait_until("it is noticed", || place.info()["problems"].to_string().contains("cut to 20971520"));
    let _ = place.umount();
    assert!(!Path::new(&place.text("mnt/note")).exists());
}

/// What could not be printed was not told: the command says so, and a script that asked sees it.
#[test]
fn output_that_cannot_be_written() {
    let place = Place::with_volume();
    let image = place.image();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (args, code) in [
        (vec!["info", "--json", &image], 1),
        (vec!["info", &image], 1),
        (vec!["help"], 1),
        (vec!["check", "--help"], 1),
        (vec!["check", &image], 8),
        (vec!["check", "--json", &image], 8),
    ] {
        let out = Out::of(command(&args).stdout(full()).stderr(std::process::Stdio::piped()).output().unwrap());
        out.fails(code, &["standard output", "No space left"]);
    }
    // Nor does it matter where the line that says what is wrong cannot be written.
    let status = command(["info", "/no/such/image"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    // A reader that has gone away has read enough.
    let script = "{ $NENRIN check --json image; echo $? >code; } | true; cat code";
    assert_eq!(shell(script, place.dir()).ok(), "0\n");
}
