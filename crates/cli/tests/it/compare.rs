//! `nenrin compare`: what it refuses before anything is touched, and that it cleans up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::process::Stdio;

fn compare(args: &[&str]) -> Out {
    nenrin(std::iter::once(&"compare").chain(args))
}

/// Loop devices over files below the place.
fn attached(place: &Place) -> String {
    let out = run("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"]);
    let real = fs::canonicalize(place.dir()).unwrap();
    out.stdout.lines().filter(|l| l.contains(real.to_str().unwrap())).collect()
}

fn can_compare() -> bool {
    can_mount() && has("fio") && has("losetup") && has("mkfs.ext4")
}

#[test]
fn calls_that_do_not_fit() {
    compare(&[]).fails(2, &["--fs is needed", "usage"]);
    compare(&["--fs", "zfs"]).fails(2, &["zfs", "known are ext4"]);
    compare(&["--fs", "ext4", "--pattern", "/no/such/job"]).fails(2, &["/no/such/job", "neither seq"]);
    compare(&["--fs", "ext4", "--size", "lots"]).fails(2, &["--size", "512M"]);
    compare(&["--fs", "ext4", "--size", "1M"]).fails(2, &["at least 8M"]);
    compare(&["--fs", "ext4", "--runs", "0"]).fails(2, &["--runs", "1 to 100"]);
    compare(&["--fs", "ext4", "--device", "/dev/x", "--image", "y"]).fails(2, &["exclude each other"]);
    compare(&["--fs", "ext4", "more"]).fails(2, &["unexpected argument"]);
    assert!(compare(&["--help"]).ok().contains("Ctrl-C is safe"));
}

#[test]
fn what_is_missing() {
    if !is_root() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    // A program that is not there, in the order in which they are needed.
    let mut call = command(["compare", "--fs", "ext4"]);
    call.env("PATH", place.dir());
    let out = call.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.code() == Some(1) && said.contains("fio is missing") && said.contains("apt-get install fio"),
        "{said}"
    );
    if has("fio")
        && !fs::read_to_string("/proc/filesystems").unwrap().contains("nilfs2")
        && !(has("modprobe") && run("modprobe", &["-q", "nilfs2"]).code == 0)
    {
        compare(&["--fs", "nilfs2"])
            .fails(1, &["nilfs2", "this kernel has no such file system", "scripts/guest/compare.sh"]);
    }
}

#[test]
fn only_root_compares() {
    if !is_root() || !has("setpriv") {
        return;
    }
    let place = Place::new();
    // From a place where it may be run, whatever the build directory allows.
    let program = place.text("nenrin");
    fs::copy(env!("CARGO_BIN_EXE_nenrin"), &program).unwrap();
    run("chmod", &["-R", "a+rwx", place.dir().to_str().unwrap()]).ok();
    run("setpriv", &["--reuid=65534", "--clear-groups", &program, "compare", "--fs", "ext4"])
        .fails(1, &["only root may", "run it as root"]);
}

/// A device that is mounted is left alone, whatever was asked for.
#[test]
fn a_device_in_use() {
    if !can_compare() {
        return;
    }
    let place = Place::new();
    fs::File::create(place.path("disk")).unwrap().set_len(32 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", &place.text("disk")]).ok();
    let device = run("losetup", &["--find", "--show", &place.text("disk")]);
    if device.code != 0 {
        crate::common::left_out(format_args!("{}", device.stderr));
        return;
    }
    let device = device.stdout.trim().to_owned();
    let mount = place.sub("use");
    let mounted = run("mount", &[&device, &mount]);
    fs::write(std::path::Path::new(&mount).join("file"), "precious").unwrap();
    let out = compare(&["--fs", "ext4", "--destroy", "--device", &device]);
    let kept = fs::read_to_string(std::path::Path::new(&mount).join("file"));
    run("umount", &[&mount]);
    run("losetup", &["--detach", &device]);
    mounted.ok();
    assert_eq!(kept.unwrap(), "precious");
    out.fails(1, &[&device, "mounted at", "unmount it first"]);
}

#[test]
fn what_may_not_be_overwritten() {
    if !can_compare() {
        return;
    }
    let place = Place::with_volume();
    let before = fs::read(place.image()).unwrap();
    compare(&["--fs", "ext4", "--image", &place.image()]).fails(1, &["image", "holds a nenrin volume", "--destroy"]);
    let text = place.text("text");
    fs::write(&text, "precious").unwrap();
    compare(&["--fs", "ext4", "--image", &text]).fails(1, &["holds something that is not known", "--destroy"]);
    compare(&["--fs", "ext4", "--device", &text]).fails(1, &["not a block device", "--image"]);
    compare(&["--fs", "ext4", "--device", "/no/such"]).fails(1, &["/no/such"]);
    compare(&["--fs", "ext4", "--image", place.dir().to_str().unwrap()]).fails(1, &["not a file"]);
    compare(&["--fs", "ext4", "--image", &place.text("new"), "--image-size", "999T"]).fails(1, &["no room", "--size"]);
    assert!(!place.path("new").exists());
    place.mount("").ok();
    compare(&["--fs", "ext4", "--destroy", "--image", &place.image()]).fails(1, &["image", "umount"]);
    place.umount().ok();
    assert_eq!(fs::read(place.image()).unwrap().len(), before.len());
    assert_eq!(fs::read_to_string(text).unwrap(), "precious");
    assert_eq!(attached(&place), "");
}

/// Whether recording works here; says so when not.
fn recorded(out: Out) -> Option<String> {
    if out.stderr.contains("tracefs") || out.stderr.contains("tracepoint") {
        crate::common::left_out(format_args!("{}", out.stderr));
        return None;
    }
    Some(out.ok())
}

#[test]
fn two_file_systems() {
    if !can_compare() {
        return;
    }
    let place = Place::new();
    let (page, notes) = (place.text("page.html"), place.text("notes.md"));
    let args = [
        "--fs",
        "ext4,nenrin",
        "--pattern",
        "seq",
        "--size",
        "16M",
        "--image-size",
        "128M",
        "--json",
        "--html",
        &page,
        "--markdown",
        &notes,
        "--keep",
        &place.text("keep"),
        "--image",
        &place.text("new"),
    ];
    let Some(text) = recorded(compare(&args)) else { return };
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["data_bytes"], 16 << 20, "{row}");
        assert!(row["written_bytes"].as_u64().unwrap() >= 16 << 20, "{row}");
        assert_eq!(row["doubt"], serde_json::Value::Null, "{row}");
    }
    let html = fs::read_to_string(page).unwrap();
    assert!(
        html.contains("<h2>nenrin</h2>")
            && html.contains("writes least")
            && html.contains("least metadata first")
            && !html.contains("http")
    );
    let notes = fs::read_to_string(notes).unwrap();
    assert!(
        notes.contains("| ext4 | seq |")
            && notes.contains("| your work | writes least | ext4 | nenrin |")
            && notes.contains("--fallocate=native")
            && place.path("notes-nenrin.svg").exists()
    );
    assert!(nenrin(["trace", "report", &place.text("keep/nenrin.seq.0.trace")]).ok().contains("unmount"));
    assert!(!place.path("new").exists() && !place.path("keep/mnt").exists());
    assert_eq!(attached(&place), "");
}

#[test]
fn a_device_that_is_too_small() {
    if !can_compare() {
        return;
    }
    let place = Place::new();
    let out = compare(&[
        "--fs",
        "ext4",
        "--pattern",
        "seq",
        "--size",
        "256M",
        "--image-size",
        "64M",
        "--image",
        &place.text("new"),
    ]);
    if out.stderr.contains("tracefs") || out.stderr.contains("tracepoint") {
        return;
    }
    out.fails(1, &["ext4 (seq)", "too small", "--size"]);
    assert_eq!(attached(&place), "");
    assert!(!place.path("new").exists());
}

/// A signal in the middle leaves nothing mounted, attached or behind.
#[test]
fn interrupted() {
    if !can_compare() {
        return;
    }
    let place = Place::new();
    let image = place.text("new");
    let args =
        ["compare", "--fs", "nenrin", "--pattern", "seq", "--size", "8M", "--image-size", "64M", "--image", &image];
    let mut child = ended_by_signals(args).stderr(Stdio::piped()).env("TMPDIR", place.dir()).spawn().unwrap();
    let real = fs::canonicalize(place.dir()).unwrap();
    let mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(real.to_str().unwrap());
    wait_until("it is mounted, or has ended", || mounted() || child.try_wait().unwrap().is_some());
    if child.try_wait().unwrap().is_some() {
        // Nothing to interrupt where recording does not work.
        return;
    }
    signal(child.id(), "INT");
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted; everything is unmounted and detached"), "{said}");
    assert!(!mounted() && !place.path("new").exists());
    assert_eq!(attached(&place), "");
    let left: Vec<_> = fs::read_dir(place.dir()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}
