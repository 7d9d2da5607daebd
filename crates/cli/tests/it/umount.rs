//! `nenrin umount`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

#[test]
fn it_returns_when_the_device_is_free() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("commit=60").ok();
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    let pid = place.pid();
    place.umount().ok();
    assert!(!std::path::Path::new(&format!("/proc/{pid}/fd/0")).exists(), "the owner still runs");
    // Nobody holds the lock, so that another program could use the device at once.
    let mut flock = std::process::Command::new("flock");
    assert!(flock.args(["-n", "-x", &place.image(), "true"]).status().unwrap().success());
    let info = nenrin(["info", "--json", &place.image()]).json();
    assert_eq!(info["recovery"]["clean"], true);
    assert_eq!(info["inodes"], 2);
}

#[test]
fn a_path_below_or_a_link_names_what_it_names() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::create_dir(place.path("mnt/sub")).unwrap();
    nenrin(["umount", &place.text("mnt/sub")]).fails(1, &["nothing is mounted here"]);
    std::os::unix::fs::symlink(place.path("mnt"), place.path("link")).unwrap();
    nenrin(["umount", &place.text("link")]).ok();
}

#[test]
fn who_uses_it_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mut sleeper = std::process::Command::new("sleep").arg("60").current_dir(place.path("mnt")).spawn().unwrap();
    place.umount().fails(1, &["in use by sleep (pid", "close it"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    place.umount().ok();
    // Who asks for it may have been started there.
    place.mount("").ok();
    Out::of(command(["umount", "."]).current_dir(place.path("mnt")).output().unwrap()).ok();
}

/// A mount that is shown elsewhere, too, goes on there: the command returns, and tells where.
#[test]
fn what_is_shown_elsewhere_goes_on_there() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let (mnt, other) = (place.text("mnt"), place.sub("other"));
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    run("mount", &["--bind", &mnt, &other]).ok();
    let umount = |dir: &str| {
        let out = run("timeout", &["10", env!("CARGO_BIN_EXE_nenrin"), "umount", dir]);
        assert_eq!((out.code, out.stdout.as_str()), (0, ""), "{out:?}");
        out.stderr
    };
    let said = umount(&mnt);
    assert!(said.contains("stays in use: also mounted at") && said.contains(&other), "{said}");
    assert_eq!(fs::read(place.path("other/note")).unwrap(), b"kept");
    assert_eq!(nenrin(["info", "--json", &other]).json()["mounts"][0]["directory"], other);
    nenrin(["mount", &place.image(), &mnt]).fails(1, &["mounted at", &other, "nenrin umount", "releases it"]);
    assert_eq!(umount(&other), "");
    assert_eq!(nenrin(["info", "--json", &place.image()]).json()["recovery"]["clean"], true);
    // The second first: then it is the other that goes on.
    place.mount("").ok();
    run("mount", &["--bind", &mnt, &other]).ok();
    assert!(umount(&other).contains(&mnt));
    assert_eq!(umount(&mnt), "");
}

/// The same in another mount name space, of which somebody who is there is named.
#[test]
fn what_another_name_space_shows_goes_on_there() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mut inside = in_own_mounts(place.dir(), "exec sleep 100").spawn().unwrap();
    wait_until("it has a name space of its own", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", inside.id())).unwrap();
        comm.trim_end() == "sleep"
    });
    let out = run("timeout", &["20", env!("CARGO_BIN_EXE_nenrin"), "umount", &place.text("mnt")]);
    let again = place.mount("");
    inside.kill().unwrap();
    inside.wait().unwrap();
    let holder = format!("still used by sleep (pid {})", inside.id());
    assert_eq!((out.code, out.stderr.contains(&holder)), (0, true), "{out:?}");
    again.fails(1, &["detached from", &holder]);
    // With the last process the name space goes, and with it the mount.
    place.mount("").ok();
    place.umount().ok();
}

/// Who unmounts it in a name space of his own does so there, and the owner's mount stays.
#[test]
fn it_is_unmounted_where_the_command_runs() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    let script = "
        $NENRIN umount mnt
        ! grep -q \" $PWD/mnt \" /proc/self/mountinfo
        ! $NENRIN umount mnt";
    let out = Out::of(in_own_mounts(place.dir(), script).output().unwrap());
    assert_eq!(out.code, 0, "{out:?}");
    let said: Vec<&str> = out.stderr.lines().collect();
    assert!(said[0].contains("stays in use: also mounted at") && said[0].contains(&mnt), "{said:?}");
    assert!(said[0].contains("in the mount name space of its owner"), "{said:?}");
    assert!(said[1].contains("nothing is mounted here"), "{said:?}");
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
    assert!(nenrin(["info", "--json", &mnt]).json()["mounts"][0]["detached"].is_null());
    // Where it is mounted nowhere else any more, it returns when the device is free.
    run("mkfifo", &[&place.text("go")]).ok();
    let mut inside = in_own_mounts(place.dir(), "touch ready; read _ <go; exec $NENRIN umount mnt");
    let inside = inside.stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("it has a name space of its own", || place.path("ready").exists());
    let pid = place.pid();
    run("umount", &[&mnt]).ok();
    fs::write(place.path("go"), "\n").unwrap();
    let out = Out::of(inside.wait_with_output().unwrap());
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    assert!(!std::path::Path::new(&format!("/proc/{pid}/fd/0")).exists(), "the owner still runs");
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    let dir = place.sub("dir");
    nenrin(["umount"]).fails(2, &["a directory is needed", "usage: nenrin umount [--force] DIR"]);
    nenrin(["umount", &dir]).fails(1, &["nothing is mounted here"]);
    nenrin(["umount", "/no/such/dir"]).fails(1, &["/no/such/dir", "No such file"]);
    nenrin(["umount", "/proc"]).fails(1, &["proc is mounted here, not a nenrin volume"]);
}

/// What others wrote through another mount while it was being unmounted is durable when the command returns, as what came before is.
#[test]
fn what_came_until_it_left_is_durable() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("commit=60,checkpoint=0").ok();
    let (mnt, other) = (place.text("mnt"), place.sub("other"));
    fs::create_dir(place.path("mnt/sub")).unwrap();
    run("mount", &["--bind", &mnt, &other]).ok();
    // In its way, and no program: it is tried for a while.
    run("mount", &["-t", "tmpfs", "none", &place.text("mnt/sub")]).ok();
    let umount = command(["umount", &mnt]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    fs::write(place.path("other/late"), "late").unwrap();
    run("umount", &[&place.text("mnt/sub")]).ok();
    let out = Out::of(umount.wait_with_output().unwrap());
    assert!(out.code == 0 && out.stderr.contains("stays in use"), "{out:?}");
    let pid = nenrin(["info", "--json", &other]).json()["pid"].to_string();
    signal(&pid, "KILL");
    wait_until("the process has ended", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    nenrin(["umount", &other]);
    place.mount("").ok();
    assert_eq!(fs::read_to_string(place.path("mnt/late")).unwrap(), "late");
}
