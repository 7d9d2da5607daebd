//! `nenrin mount`, and the daemon behind it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn what_was_written_is_there_after_the_next_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    place.umount().ok();
    assert!(fs::read_dir(place.path("mnt")).unwrap().next().is_none());
    place.mount("").ok();
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
}

#[test]
fn mounts_show_device_type_and_flags() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("allow_other,dev,noexec,noatime").ok();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(&place.text("mnt"))).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!((fields[0], fields[2]), (place.image().as_str(), "fuse.nenrin"));
    let options: Vec<&str> = fields[3].split(',').collect();
    for wanted in ["rw", "nosuid", "noexec", "noatime", "allow_other", "default_permissions"] {
        assert!(options.contains(&wanted), "{wanted} is missing in {line}");
    }
    assert!(!options.contains(&"nodev"), "{line}");
}

#[test]
fn read_only() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    place.umount().ok();
    let before = fs::read(place.image()).unwrap();
    place.mount("ro").ok();
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
    assert_eq!(fs::write(place.path("mnt/note"), b"x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(place.info()["read_only"], true);
    place.umount().ok();
    assert!(fs::read(place.image()).unwrap() == before, "a read-only mount wrote to the image");
}

#[test]
fn a_killed_daemon_is_a_power_cut_and_no_more() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mut file = fs::File::create(place.path("mnt/note")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    place.kill();
    drop(file);
    assert!(fs::read(place.path("mnt/note")).is_err());
    let out = place.mount("");
    assert_eq!(out.code, 0, "{}", out.stderr);
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"synced");
    assert_eq!(place.info()["recovery"]["clean"], false);
    place.kill();
    let out = place.umount();
    assert!(out.stderr.contains("had ended"), "{}", out.stderr);
    out.ok();
    assert!(fs::read_dir(place.path("mnt")).unwrap().next().is_none());
}

#[test]
fn states_of_the_past_beside_the_live_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (image, past, other) = (place.image(), place.sub("past"), place.sub("other"));
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/note"), b"first").unwrap();
    let cno = nenrin(["checkpoint", "create", &place.text("mnt")]).ok().trim().to_owned();
    fs::write(place.path("mnt/note"), b"second").unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "two"]).ok();
    fs::write(place.path("mnt/note"), b"third").unwrap();

    let said = nenrin(["mount", "-o", &format!("cp={cno}"), &image, &past]).ok();
    assert!(said.starts_with(&format!("checkpoint {cno} of ")), "{said}");
    nenrin(["mount", "-o", "at=two", &image, &other]).ok();
    assert_eq!(fs::read(place.path("past/note")).unwrap(), b"first");
    assert_eq!(fs::read(place.path("other/note")).unwrap(), b"second");
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"third");
    assert_eq!(fs::write(place.path("past/new"), b"x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(place.info()["mounts"].as_array().unwrap().len(), 3);

    nenrin(["mount", "-o", "at=never", &image, &past]).fails(1, &["no snapshot \"never\""]);
    nenrin(["mount", "-o", "cp=99999", &image, &past]).fails(1, &["no checkpoint 99999"]);
    nenrin(["mount", "-o", "at=1999-12-31", &image, &past]).fails(1, &["no state as old as 1999-12-31"]);

    // The volume is released with the last of its mounts.
    let out = place.umount();
    assert!(out.stderr.contains("also mounted at"), "{}", out.stderr);
    out.ok();
    assert_eq!(fs::read(place.path("past/note")).unwrap(), b"first");
    nenrin(["umount", &past]).ok();
    nenrin(["umount", &other]).ok();
    // Without a live mount, and as the newest state that is not later.
    let log = place.text("log");
    let said = nenrin(["mount", "-o", "at=0 seconds ago", "--log", &log, &image, &past]).ok();
    assert_eq!(fs::read(place.path("past/note")).unwrap(), b"second");
    let shown = nenrin(["info", "--json", &past]).json()["mounts"][0]["checkpoint"].to_string();
    let named = |text: &str| text.contains(&format!("checkpoint {shown} of ")) && text.contains(", snapshot two");
    assert!(named(&said) && named(&fs::read_to_string(log).unwrap()), "{said}");
}

#[test]
fn a_local_time_that_never_was() {
    let mount = |when: &str| {
        let mut command = command(["mount", "-o", &format!("at={when}"), "/nowhere/image", "/nowhere/mnt"]);
        let out = command.env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").output().unwrap();
        String::from_utf8(out.stderr).unwrap()
    };
    let told = mount("2026-03-29 02:30");
    assert!(told.contains("never showed this time") && told.contains("2026-03-29T02:30:00+01:00"), "{told}");
    assert_eq!(told.lines().count(), 1);
    for there in ["2026-03-29 01:59:59", "2026-03-29 03:00", "2026-10-25 02:30", "2026-03-29T02:30:00+01:00"] {
        let told = mount(there);
        assert!(told.contains("/nowhere") && !told.contains("never"), "{told}");
    }
}

#[test]
fn a_mount_of_the_past_takes_no_snapshots() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    nenrin(["snapshot", "create", &place.text("mnt"), "first"]).ok();
    let past = place.sub("past");
    nenrin(["mount", "-o", "at=first", &place.image(), &past]).ok();
    nenrin(["snapshot", "create", &past, "second"]).fails(1, &["past", "shows checkpoint", "--of"]);
    let cno = nenrin(["snapshot", "list", "--json", &past]).json()[0]["cno"].to_string();
    nenrin(["snapshot", "create", "--of", &cno, &past, "second"]).fails(1, &["is the snapshot first already"]);
    nenrin(["umount", &past]).ok();
}

#[test]
fn in_the_foreground() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    let log = place.text("log");
    let mut child = command(["mount", "-f", "--log", &log, &image, &mnt])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt));
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("mounted at") && said.contains("released"), "{said}");
    let logged = fs::read_to_string(log).unwrap();
    assert!(logged.contains("mounted at") && logged.contains("released"), "{logged}");
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt));
    // SIGTERM was a clean end.
    place.mount("").ok();
    assert_eq!(place.info()["recovery"]["clean"], true);
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
}

#[test]
fn sigterm_ends_it_even_when_it_is_used() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mut file = fs::File::create(place.path("mnt/note")).unwrap();
    file.write_all(b"kept").unwrap();
    let pid = place.pid();
    signal(pid, "TERM");
    wait_until("it has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    drop(file);
    place.mount("").ok();
    assert_eq!(place.info()["recovery"]["clean"], true);
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"kept");
}

#[test]
fn the_next_mount_waits_for_an_owner_that_is_finishing() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    for round in 0..5 {
        place.mount("").ok();
        fs::write(place.path("mnt/note"), vec![round; 1 << 20]).unwrap();
        // umount(2) of a FUSE mount returns before the daemon has ended.
        run("umount", &[&place.text("mnt")]).ok();
        place.mount("").ok();
        assert_eq!(fs::read(place.path("mnt/note")).unwrap(), vec![round; 1 << 20]);
        place.umount().ok();
    }
}

/// A daemon that is stopped takes no connections, and those that wait fill its queue.
#[test]
fn an_owner_that_is_stopped_holds_up_no_other() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let new = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None).unwrap();
    // Several: in what order a directory is read nobody knows.
    let mut sockets = Vec::new();
    let paths: Vec<_> =
        (0..8).map(|n| Path::new("/run/nenrin").join(format!("{n}-{}.sock", std::process::id()))).collect();
    for path in &paths {
        let address = SocketAddrUnix::new(path).unwrap();
        let stopped = new(SocketFlags::empty());
        bind(&stopped, &address).unwrap();
        listen(&stopped, 0).unwrap();
        sockets.push(stopped);
        loop {
            let one = new(SocketFlags::NONBLOCK);
            if connect(&one, &address).is_err() {
                break;
            }
            sockets.push(one);
        }
    }
    // Who has the volume is looked for among all owners.
    let mut info = command(["info", &place.image()]).stdout(Stdio::null()).spawn().unwrap();
    let ended = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        info.try_wait().unwrap().is_some()
    });
    if !ended {
        info.kill().unwrap();
    }
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    assert!(ended, "info waits for who does not answer");
    assert!(info.wait().unwrap().success());
    place.umount().ok();
}

#[test]
fn options_reach_the_volume() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("order=strict,barrier=checkpoint,commit=0.25,checkpoint=60,cache-size=8M,discard").ok();
    let options = &place.info()["options"];
    for (name, value) in [
        ("order", "strict"),
        ("barrier", "checkpoint"),
        ("commit", "0.25"),
        ("checkpoint", "60"),
        ("cache-size", "8M"),
        ("discard", "true"),
    ] {
        assert_eq!(options[name], value, "{name}");
    }
    place.umount().ok();
    place.mount("cache=writeback").ok();
    fs::write(place.path("mnt/note"), b"kept").unwrap();
    place.umount().ok();
    place.mount("norecovery").ok();
    assert_eq!(place.info()["read_only"], true);
}

/// Under writeback the kernel accepts more than there is room for, and drops it when it is refused.
#[test]
fn what_found_no_room_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    nenrin(["mkfs", "--size", "32M", &place.image()]).ok();
    let log = place.text("log");
    nenrin(["mount", "-o", "cache=writeback", "--log", &log, &place.image(), &place.sub("mnt")]).ok();
    assert_eq!(place.info()["problems"].as_array().unwrap().len(), 0);
    let path = place.path("mnt/much");
    let file = fs::File::create(&path).unwrap();
    let bytes = vec![7; 1 << 20];
    // Some of what was taken is lost by then, and a write may be told that first.
    let is_told = (0..60).any(|_| (&file).write_all(&bytes).is_err());
    assert!(file.sync_all().is_err() || is_told);
    let problems = place.info()["problems"].to_string();
    assert!(problems.contains("found no room") && problems.contains("/much"), "{problems}");
    wait_until("the loss is logged", || fs::read_to_string(&log).is_ok_and(|text| text.contains("found no room")));
    drop(file);
    place.umount().ok();
}

#[test]
fn copies_of_an_image_are_different_volumes() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    fs::copy(place.image(), place.path("copy")).unwrap();
    place.mount("").ok();
    let other = place.sub("other");
    nenrin(["mount", &place.text("copy"), &other]).ok();
    fs::write(place.path("mnt/a"), b"a").unwrap();
    assert!(!place.path("other/a").exists());
    assert_eq!(nenrin(["info", "--json", &other]).json()["device"], place.text("copy"));
    assert_eq!(place.info()["device"], place.image());
    nenrin(["umount", &other]).ok();
    fs::write(place.path("mnt/b"), b"b").unwrap();
}

/// Who was killed leaves its socket, and every command would ask there.
#[test]
fn sockets_that_nobody_answers_at_are_taken_away() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    // Its directory is made by the first mount.
    place.mount("").ok();
    place.umount().ok();
    let socket = |name: &str| Path::new("/run/nenrin").join(format!("{name}-{}.sock", std::process::id()));
    let [left, fresh, alive] = ["left", "fresh", "alive"].map(socket);
    let listening = [&left, &fresh, &alive].map(|path| std::os::unix::net::UnixListener::bind(path).unwrap());
    for path in [&left, &alive] {
        run("touch", &["--date", "5 minutes ago", path.to_str().unwrap()]).ok();
    }
    let [gone, gone_now, _listens] = listening;
    drop((gone, gone_now));
    place.mount("").ok();
    let there = [&left, &fresh, &alive].map(|path| fs::remove_file(path).is_ok());
    place.umount().ok();
    assert_eq!(there, [false, true, true]);
}

/// As Ctrl-C, or a service manager that lost patience, ends `nenrin mount`.
#[test]
fn a_mount_that_nobody_waits_for_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    // A pipe of which nobody has the other end any more.
    let mut reader = std::process::Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let unread = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let mut daemon = command(["mount", "-f", "--report-start", "--", &image, &mnt])
        .stdout(unread)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the daemon has ended", || daemon.try_wait().unwrap().is_some());
    let why = "image: who asked for this mount did not wait for it, so nothing is mounted";
    Out::of(daemon.wait_with_output().unwrap()).fails(1, &[why]);
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt));
    place.mount("").ok();
}

/// nohup(1), and a shell for what runs in the background, mean it.
#[test]
fn a_signal_that_is_ignored_ends_no_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.sub("mnt");
    let script = format!("trap '' HUP; exec $NENRIN mount -f {} mnt", place.image());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(place.dir()).env("NENRIN", env!("CARGO_BIN_EXE_nenrin"));
    let mut child = shell.stdin(Stdio::null()).spawn().unwrap();
    wait_until("it is mounted", || nenrin(["info", &place.text("mnt")]).code == 0);
    for ignored in ["HUP", "USR1", "USR2", "XFSZ", "PROF", "ALRM"] {
        signal(child.id(), ignored);
    }
    std::thread::sleep(Duration::from_millis(300));
    fs::write(place.path("mnt/f"), "still there").unwrap();
    assert!(child.try_wait().unwrap().is_none());
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Logging out takes the directory of a user's sockets away.
#[test]
fn commands_reach_a_mount_whose_socket_was_removed() {
    if !can_mount() || !is_root() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let uuid = place.info()["uuid"].as_str().unwrap().to_owned();
    let sockets = || -> Vec<_> {
        let all = fs::read_dir("/run/nenrin").unwrap().flatten().map(|e| e.path());
        all.filter(|p| p.to_str().unwrap().contains(&uuid)).collect()
    };
    assert_eq!(sockets().len(), 1);
    fs::remove_file(&sockets()[0]).unwrap();
    wait_until("it answers at another socket", || nenrin(["info", &place.text("mnt")]).code == 0);
    assert_eq!(sockets().len(), 1);
    assert_eq!(place.info()["uuid"], uuid);
    place.umount().ok();
    assert_eq!(sockets().len(), 0);
}

/// What is written shortly before the end can be undone as what was written before.
#[test]
fn the_last_work_of_a_mount_has_a_state() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    for night in ["first", "second"] {
        place.mount("").ok();
        fs::write(place.path("mnt/db"), night).unwrap();
        place.umount().ok();
    }
    place.mount("").ok();
    fs::remove_file(place.path("mnt/db")).unwrap();
    let gone = nenrin(["restore", "--json", "--list-deleted", &place.text("mnt")]).json();
    let cno = gone[0]["cno"].to_string();
    nenrin(["restore", &place.text("mnt/db"), "--at", &cno]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/db")).unwrap(), "second");
}

/// Times that are farther than can be kept are kept as the nearest that can, as on ext4 and xfs, and no others.
#[test]
fn times_that_are_too_far() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let file = place.text("mnt/f");
    let seconds = || std::os::unix::fs::MetadataExt::mtime(&fs::metadata(&file).unwrap());
    for (said, kept) in [
        ("3000-01-01 00:00:00 UTC", i64::MAX / 1_000_000_000),
        ("2262-04-11 23:47:16 UTC", i64::MAX / 1_000_000_000),
        ("2262-04-11 23:47:15 UTC", i64::MAX / 1_000_000_000 - 1),
        ("1500-01-01 00:00:00 UTC", i64::MIN / 1_000_000_000 - 1),
        ("1700-01-01 00:00:00 UTC", -8_520_336_000),
    ] {
        run("touch", &["--date", said, &file]).ok();
        assert_eq!(seconds(), kept, "{said}");
        place.umount().ok();
        place.mount("").ok();
        assert_eq!(seconds(), kept, "{said}, mounted again");
    }
}
