//! Two hosts on one device: two loop devices over one image. Without its name they have locks of their own.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::*;
use std::fs;
use std::process::Command;
use std::time::Instant;

/// A command as another host runs it: it shares the devices, and not the sockets.
fn on(host: &str, place: &Place, args: &[&str]) -> Out {
    let mut command: Command = command(args);
    command.env("XDG_RUNTIME_DIR", place.sub(host));
    Out::of(command.output().unwrap())
}

#[test]
fn a_second_host_is_refused_and_a_host_that_was_asleep_stops() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (Some(a), Some(b)) = (Loop::over(&place.image()), Loop::over(&place.image())) else { return };
    fs::remove_file(place.image()).unwrap();
    let (mnt_a, mnt_b) = (place.sub("mnt-a"), place.sub("mnt-b"));
    let begin = Instant::now();
    on("a", &place, &["mount", "-o", "mmp", &a.0, &mnt_a]).ok();
    let took = begin.elapsed().as_secs_f64();
    assert!((5.0..10.0).contains(&took), "{took} s");
    fs::write(place.path("mnt-a/first"), "first").unwrap();
    on("a", &place, &["checkpoint", "create", &mnt_a]).ok();
    let node = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let node = node.trim();
    let shown = on("a", &place, &["info", &mnt_a]).ok();
    assert!(shown.contains(&format!("other hosts are shown every 2 seconds that {node} has the volume")), "{shown}");
    // The other one is told, whether it asks for protection or not, and by repair.
    for options in ["mmp", "noatime"] {
        let parts = [&format!("in use on host {node}"), "within the last 5 seconds", "unmount it there first"];
        on("b", &place, &["mount", "-o", options, &b.0, &mnt_b]).fails(1, &parts.map(|p| p as &str));
    }
    let info = on("b", &place, &["info", "--json", &b.0]).json();
    assert_eq!((info["mmp"]["in_use"].as_bool(), info["mmp"]["node"].as_str()), (Some(true), Some(node)));
    // The first host falls asleep, and the other one takes the volume.
    let pid = on("a", &place, &["info", "--json", &mnt_a]).json()["pid"].as_i64().unwrap();
    signal(pid, "STOP");
    let mounted = on("b", &place, &["mount", "-o", "mmp", &b.0, &mnt_b]);
    let seen = fs::read_to_string(place.path("mnt-b/first"));
    signal(pid, "CONT");
    mounted.ok();
    assert_eq!(seen.unwrap(), "first");
    fs::write(place.path("mnt-b/second"), "second").unwrap();
    wait_until("the first host has stopped writing", || {
        fs::write(place.path("mnt-a/late"), "late")
            .and_then(|()| fs::File::open(place.path("mnt-a"))?.sync_all())
            .is_err()
    });
    let info = on("a", &place, &["info", "--json", &mnt_a]).json();
    assert!(info["problems"].to_string().contains(&format!("in use on host {node}, too")), "{}", info["problems"]);
    let _ = on("a", &place, &["umount", &mnt_a]);
    on("b", &place, &["umount", &mnt_b]).ok();
    let info = on("b", &place, &["info", "--json", &b.0]).json();
    assert_eq!(info["mmp"]["in_use"].as_bool(), Some(false));
    on("b", &place, &["check", "--data", &b.0]).ok();
    on("b", &place, &["mount", &b.0, &mnt_b]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt-b/second")).unwrap(), "second");
    assert!(!place.path("mnt-b/late").exists());
    on("b", &place, &["umount", &mnt_b]).ok();
}

/// Who makes a volume, or adds a device, looks who has it before anything is overwritten.
#[test]
fn what_another_host_has_is_neither_made_anew_nor_added() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (Some(a), Some(b)) = (Loop::over(&place.image()), Loop::over(&place.image())) else { return };
    fs::remove_file(place.image()).unwrap();
    let own = place.text("own");
    nenrin(["mkfs", "--size", SIZE, &own]).ok();
    let (mnt_a, mnt_own) = (place.sub("mnt-a"), place.sub("mnt-own"));
    on("a", &place, &["mount", "-o", "mmp", &a.0, &mnt_a]).ok();
    fs::write(place.path("mnt-a/first"), vec![1; 3 << 20]).unwrap();
    on("b", &place, &["mount", &own, &mnt_own]).ok();
    on("b", &place, &["mkfs", "--force", &b.0]).fails(1, &["in use on host", "unmount it there first"]);
    on("b", &place, &["device", "add", "--force", &mnt_own, &b.0]).fails(1, &["in use on host"]);
    on("b", &place, &["device", "replace", "--force", &mnt_own, "1", &b.0]).fails(1, &["in use on host"]);
    fs::write(place.path("mnt-a/second"), vec![2; 3 << 20]).unwrap();
    on("a", &place, &["umount", &mnt_a]).ok();
    on("b", &place, &["umount", &mnt_own]).ok();
    on("b", &place, &["check", "--data", &b.0]).ok();
}
