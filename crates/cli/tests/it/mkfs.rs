//! `nenrin mkfs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

#[test]
fn an_image_is_allocated_whole() {
    let place = Place::with_volume();
    let meta = fs::metadata(place.image()).unwrap();
    assert_eq!(meta.len(), 32 << 20);
    assert!(meta.blocks() * 512 >= meta.len(), "only {} of {} bytes are allocated", meta.blocks() * 512, meta.len());
}

/// What is in a volume is for those whom its mount lets in, whatever the umask says of new files.
#[test]
fn an_image_that_is_made_only_its_owner_reads() {
    let place = Place::new();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().mode() & 0o7777;
    shell(
        &format!("umask 022; $NENRIN mkfs --size {SIZE} made; $NENRIN mkfs --size {SIZE} --sparse holes"),
        place.dir(),
    )
    .ok();
    assert_eq!([mode("made"), mode("holes")], [0o600; 2]);
    shell(&format!("umask 022; : >there; $NENRIN mkfs --size {SIZE} there"), place.dir()).ok();
    assert_eq!(mode("there"), 0o644);
}

#[test]
fn a_sparse_image_is_not() {
    let place = Place::new();
    nenrin(["mkfs", "--sparse", "--size", "1G", &place.image()]).ok();
    let meta = fs::metadata(place.image()).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 16 << 20);
}

#[test]
fn what_was_made_is_told() {
    let place = Place::new();
    let made = nenrin(["mkfs", "--json", "--size", "64M", "--label", "年輪", &place.image()]).json();
    assert_eq!(made["label"], "年輪");
    let info = nenrin(["info", "--json", &place.image()]).json();
    assert_eq!(made["uuid"], info["uuid"]);
    assert_eq!(info["label"], "年輪");
    assert_eq!(info["total_bytes"], made["bytes"]);
    let text = nenrin(["mkfs", "--force", &place.image()]).ok();
    assert!(text.contains("volume ") && text.contains(" segments of "), "{text}");
    assert_ne!(nenrin(["info", "--json", &place.image()]).json()["uuid"], made["uuid"]);
}

#[test]
fn an_empty_file_and_one_of_zeros_will_do() {
    let place = Place::new();
    fs::write(place.image(), b"").unwrap();
    nenrin(["mkfs", &place.image()]).fails(1, &["0 bytes are too small", "the smallest is"]);
    nenrin(["mkfs", "--size", SIZE, &place.image()]).ok();
    fs::write(place.image(), vec![0; 16 << 20]).unwrap();
    nenrin(["mkfs", &place.image()]).ok();
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    let image = place.image();
    let long = "x".repeat(65);
    for (args, code, parts) in [
        (vec!["mkfs"], 2, vec!["no device given", "usage:"]),
        (vec!["mkfs", &image], 1, vec!["no such file or device", "--size"]),
        (vec!["mkfs", "--size", "10X", &image], 2, vec!["10X", "such as 512M"]),
        (vec!["mkfs", "--size", "1M", &image], 1, vec!["too small", "the smallest is"]),
        (vec!["mkfs", "--size", "900000T", &image], 1, vec!["too large", "16384T"]),
        (vec!["mkfs", "--size", "16000T", &image], 1, vec!["cannot hold a file of 16000T"]),
        (vec!["mkfs", "--label", &long, "--size", SIZE, &image], 2, vec!["65 bytes; 64 fit"]),
        (vec!["mkfs", "--profile", "mirror", "--size", SIZE, &image], 2, vec!["at least two devices"]),
        (vec!["mkfs", "--profile", "heap", "--size", SIZE, &image], 2, vec!["there are single"]),
        (vec!["mkfs", "--frob", &image], 2, vec!["unknown option --frob"]),
        (vec!["mkfs", "--profile", "parity", "--size", SIZE, &image, "second"], 2, vec!["at least three devices"]),
        (vec!["mkfs", "--size", SIZE, "/dev/no-such-device"], 1, vec!["no such device"]),
        (vec!["mkfs", "--size", SIZE, "/dev/no-such-directory/device"], 1, vec!["no such device"]),
        (vec!["mkfs", "/dev/null"], 1, vec!["neither a regular file nor a block device"]),
        (vec!["mkfs", "--size", SIZE, "/no/such/dir/image"], 1, vec!["/no/such/dir/image"]),
    ] {
        let shown = format!("{args:?}");
        let out = nenrin(&args);
        assert_eq!(out.code, code, "{shown}: {}", out.stderr);
        out.fails(code, &parts);
    }
    assert!(!place.path("image").exists(), "a failed mkfs leaves no file");
}

/// What is mounted below /dev holds files like any other place.
#[test]
fn an_image_in_shared_memory() {
    use std::path::Path;
    let device = |path: &str| fs::metadata(path).map(|m| m.dev()).ok();
    if device("/dev/shm").is_none() || device("/dev/shm") == device("/dev") {
        return crate::common::left_out(format_args!("nothing is mounted at /dev/shm"));
    }
    let image = format!("/dev/shm/nenrin-{}.img", std::process::id());
    let out = nenrin(["mkfs", "--size", SIZE, "--sparse", &image]);
    let made = Path::new(&image).exists();
    let _ = fs::remove_file(&image);
    out.ok();
    assert!(made);
}

/// Every foreign thing that can be made by writing a few bytes.
#[test]
fn what_is_there_is_named_and_kept() {
    let marks: &[(&str, usize, &[u8])] = &[
        ("xfs", 0, b"XFSB"),
        ("btrfs", 0x1_0040, b"_BHRfS_M"),
        ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
        ("nilfs2", 1030, b"\x34\x34"),
        ("ntfs", 3, b"NTFS    "),
        ("vfat", 82, b"FAT32   "),
        ("exfat", 3, b"EXFAT   "),
        ("jfs", 0x8000, b"JFS1"),
        ("reiserfs", 0x1_0034, b"ReIsEr2Fs"),
        ("iso9660", 0x8001, b"CD001"),
        ("ext2", 1080, b"\x53\xef"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("LVM", 512, b"LABELONE"),
        ("GPT", 512, b"EFI PART"),
        ("bcachefs", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
        ("bcache;", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
        ("apfs", 32, b"NXSB"),
        ("zfs", 0x2_0000 + 3 * 4096, b"\x0c\xb1\xba\0\0\0\0\0"),
        ("has content", 70_000, b"dear diary"),
        // With zeros before them: at the end.
        ("zfs", (8 << 20) - 0x2_0000, b"\x0c\xb1\xba\0\0\0\0\0"),
        ("zfs", (8 << 20) - 0x6_0000, b"\0\0\0\0\0\xba\xb1\x0c"),
        ("RAID", (8 << 20) - 65_536, b"\xfc\x4e\x2b\xa9"),
        ("RAID", (8 << 20) - 8192, b"\xfc\x4e\x2b\xa9"),
        ("GPT", (8 << 20) - 512, b"EFI PART"),
    ];
    for (name, offset, bytes) in marks {
        let place = Place::new();
        let mut content = vec![0; 8 << 20];
        content[*offset..offset + bytes.len()].copy_from_slice(bytes);
        fs::write(place.image(), &content).unwrap();
        nenrin(["mkfs", &place.image()]).fails(1, &[name, "--force"]);
        assert!(fs::read(place.image()).unwrap() == content, "{name}: something was written");
        nenrin(["mkfs", "--force", &place.image()]).ok();
        let now = fs::read(place.image()).unwrap();
        assert_ne!(&now[*offset..offset + bytes.len()], *bytes, "{name}: the old signature is still there");
    }
    let place = Place::with_volume();
    nenrin(["mkfs", &place.image()]).fails(1, &["a nenrin volume", "--force"]);
    // Its second area is enough.
    place.patch(0, &vec![0; 1 << 20]);
    nenrin(["mkfs", &place.image()]).fails(1, &["a nenrin volume", "--force"]);
}

/// A block device that holds what nobody knows is not overwritten unasked, by any command.
#[test]
fn what_is_on_a_block_device_is_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    fs::write(place.path("disk"), vec![0; 32 << 20]).unwrap();
    let Some(disk) = Loop::over(&place.text("disk")) else { return };
    let mnt = place.text("mnt");
    place.mount("").ok();
    let refused = |what: &str| {
        let parts = [&disk.0, what, "--force overwrites it"].map(|p| p as &str);
        nenrin(["mkfs", &disk.0]).fails(1, &parts);
        nenrin(["mkfs", "--profile", "mirror", "--size", SIZE, &place.text("new"), &disk.0]).fails(1, &parts);
        nenrin(["device", "add", &mnt, &disk.0]).fails(1, &parts);
        nenrin(["device", "replace", &mnt, "1", &disk.0]).fails(1, &parts);
    };
    let write = |offset: u64, bytes: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(&disk.0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
        file.sync_all().unwrap();
    };
    write(200_000, b"dear diary");
    refused("holds something that is not known");
    write(200_000, &[0; 10]);
    write((32 << 20) - 65_536, b"\xfc\x4e\x2b\xa9");
    refused("holds a RAID member (md)");
    // Zeros are nothing.
    write((32 << 20) - 65_536, &[0; 4]);
    nenrin(["device", "add", &mnt, &disk.0]).ok();
    nenrin(["device", "remove", &mnt, "2"]).ok();
    nenrin(["mkfs", "--force", &disk.0]).ok();
    refused("holds a nenrin volume");
}

#[test]
fn real_file_systems_are_named() {
    for (program, args, name) in [
        ("mkfs.ext4", vec!["-q", "-F"], "ext4"),
        ("mkfs.ext4", vec!["-q", "-F", "-t", "ext2"], "ext2"),
        ("mkswap", vec![], "swap"),
    ] {
        if !has(program) {
            continue;
        }
        let place = Place::new();
        fs::write(place.image(), vec![0; 16 << 20]).unwrap();
        let image = place.image();
        let mut args = args;
        args.push(&image);
        shell(&format!("PATH=$PATH:/sbin:/usr/sbin {program} {}", args.join(" ")), place.dir()).ok();
        nenrin(["mkfs", &image]).fails(1, &[name, "--force"]);
        // And mounting says what it is.
        let mnt = place.sub("mnt");
        nenrin(["mount", &image, &mnt]).fails(1, &["not a nenrin volume", name]);
    }
}

#[test]
fn a_volume_in_use_is_left_alone() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    nenrin(["mkfs", "--force", &place.image()]).fails(1, &["in use by nenrin", "nenrin umount"]);
}

#[test]
fn a_full_host_leaves_no_half_image() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let small = place.sub("small");
    run("mount", &["-t", "tmpfs", "-o", "size=8M", "none", &small]).ok();
    nenrin(["mkfs", "--size", "64M", &place.text("small/image")]).fails(1, &["no room for 64M", "--sparse"]);
    assert!(!place.path("small/image").exists());
}

#[test]
fn the_root_belongs_to_who_made_it() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let meta = fs::metadata(place.path("mnt")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o755));
}

/// Where one image finds no room the others, which were there and were made longer, get their length back.
#[test]
fn what_was_made_longer_in_vain_is_made_shorter_again() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.sub("host");
    run("mount", &["-t", "tmpfs", "-o", "size=24M", "none", &host]).ok();
    let paths = ["a", "b", "c"].map(|name| place.text(&format!("host/{name}")));
    for path in &paths[..2] {
        fs::write(path, vec![0; 1 << 20]).unwrap();
    }
    let mut args = vec!["mkfs", "--size", "10M", "--force"];
    args.extend(paths.iter().map(String::as_str));
    nenrin(&args).fails(1, &["c: the host has no room"]);
    let lengths: Vec<_> = paths.iter().map(|path| fs::metadata(path).map(|m| m.len()).ok()).collect();
    assert_eq!(lengths, [Some(1 << 20), Some(1 << 20), None]);
}

/// Whatever is refused, and of whichever device: what was on the others is there, and they are as long as they were.
#[test]
fn a_refusal_leaves_every_device_as_it_was() {
    let place = Place::new();
    let [a, b, small, typo] = ["a", "b", "small", "typo"].map(|name| place.text(name));
    for image in [&a, &b] {
        nenrin(["mkfs", "--size", SIZE, image]).ok();
    }
    fs::write(&small, vec![7; 2 << 20]).unwrap();
    let before = [&a, &b, &small].map(|path| fs::read(path).unwrap());
    let stripe = ["--profile", "stripe"];
    for (rest, parts) in [
        (vec![&a[..], &small], vec!["small", "too small"]),
        (vec![&a, &b, &a], vec!["named twice"]),
        (vec![&a, &typo], vec!["typo", "no such file or device"]),
        (vec![&a, &b, "/dev/null"], vec!["neither a regular file nor a block device"]),
        (vec!["--size", "40M", &a, &b, &place.text("none/typo")], vec!["typo"]),
        (vec!["--size", "5M", stripe[0], stripe[1], &a, &typo, &typo], vec!["named twice"]),
    ] {
        let args: Vec<&str> = ["mkfs", "--force"].into_iter().chain(rest.iter().copied()).collect();
        nenrin(&args).fails(1, &parts);
        for (path, was) in [&a, &b, &small].iter().zip(&before) {
            assert!(fs::read(path).unwrap() == *was, "{path} is not as it was after {args:?}");
        }
        assert!(!place.path("typo").exists(), "{args:?}");
    }
    nenrin(["check", &a]).ok();
}

/// Who ends it finds no image that is half made, of `mkfs` or of `device add`, and may begin anew.
#[test]
fn one_that_is_interrupted_leaves_no_image() {
    let place = Place::with_volume();
    let new = place.text("new");
    let mut calls = vec![vec!["mkfs".to_owned()]];
    if can_mount() {
        place.mount("").ok();
        calls.push(["device", "add", &place.text("mnt")].map(str::to_owned).to_vec());
    }
    for call in calls {
        let args: Vec<&str> = call.iter().map(String::as_str).chain(["--size", "1500M", &new]).collect();
        let mut child = ended_by_signals(args).stderr(std::process::Stdio::piped()).spawn().unwrap();
        wait_until("there is an image", || place.path("new").exists() || child.try_wait().unwrap().is_some());
        signal(child.id(), "INT");
        let out = Out::of(child.wait_with_output().unwrap());
        out.fails(130, &[&new, "interrupted"]);
        assert!(!place.path("new").exists(), "{call:?}");
    }
}

/// Who looks for a volume is not told how to make one.
#[test]
fn what_is_not_there_is_not_made() {
    let place = Place::new();
    for args in [vec!["check", "/no/such"], vec!["mount", "/no/such", &place.sub("mnt")]] {
        let out = nenrin(&args);
        assert!(out.code != 0 && out.stderr.contains("/no/such: no such file or device"), "{out:?}");
        assert!(!out.stderr.contains("mkfs"), "{out:?}");
    }
}

/// Several make the same image: one of them does, and what the others take back is not that.
#[test]
fn one_of_several_makes_an_image() {
    let place = Place::new();
    for round in 0..12 {
        let name = place.text(&format!("image{round}"));
        let start = || {
            command(["mkfs", "--sparse", "--size", SIZE, &name]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let all: Vec<_> = (0..4).map(|_| start().unwrap()).collect();
        let all: Vec<Out> = all.into_iter().map(|child| Out::of(child.wait_with_output().unwrap())).collect();
        let made: Vec<&Out> = all.iter().filter(|out| out.code == 0).collect();
        assert_eq!(made.len(), 1, "{all:?}");
        let uuid = made[0].stdout.split_once("volume ").unwrap().1.split(',').next().unwrap();
        let info = nenrin(["info", &name]).ok();
        assert!(info.contains(uuid), "{info}");
        fs::remove_file(&name).unwrap();
    }
}

/// Where the host reserves no space, too.
#[test]
fn a_refusal_cuts_nothing_where_nothing_is_reserved() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::new();
    place.sub("ram");
    let script = "
        mount -t ramfs none ram
        truncate -s 32M ram/there
        printf mark | dd of=ram/there bs=1 seek=20000000 conv=notrunc status=none
        $NENRIN mkfs --force --size 16M ram/there none/new && exit 9
        stat -c %s ram/there
        dd if=ram/there bs=1 skip=20000000 count=4 status=none";
    let out = Out::of(in_own_mounts(place.dir(), script).output().unwrap());
    assert!(out.stderr.contains("none/new: No such file"), "{out:?}");
    assert_eq!(out.ok(), "33554432\nmark");
}
