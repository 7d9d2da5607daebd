//! `nenrin restore` by root where somebody else is at work, and of what only root can make.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whose the directory is puts a link to another in its place, and that back, all the time.
#[test]
fn a_link_that_is_put_in_place_of_the_directory_leads_root_nowhere() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (his, link, victim) = (place.path("mnt/d"), place.path("mnt/link"), place.path("mnt/victim"));
    for made in [&his, &victim] {
        fs::create_dir(made).unwrap();
    }
    symlink(&victim, &link).unwrap();
    for name in ["new", "there", "same"] {
        fs::write(his.join(name), "his").unwrap();
    }
    let cno = cut(&place);
    fs::remove_file(his.join("new")).unwrap();
    for name in ["there", "same"] {
        fs::write(victim.join(name), "root's").unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, &his, CWD, &link, RenameFlags::EXCHANGE);
                thread::sleep(Duration::from_micros(500));
            }
        });
        let ask = |name: &str, how: &[&str]| {
            restore(&[&[&place.text(&format!("mnt/d/{name}")), "--at", &cno[..]], how].concat()).code == 0
        };
        let mut worked = 0;
        for _ in 0..40 {
            worked += u32::from(ask("new", &[]));
            worked += u32::from(ask("there", &["--force"]));
            worked += u32::from(ask("same", &["--in-place"]));
        }
        assert!(worked > 0, "nothing was restored to where it was, either");
        done.store(true, Ordering::Relaxed);
    });
    let there = |name: &str| fs::read_to_string(victim.join(name)).ok();
    let root = Some("root's".to_owned());
    assert_eq!((there("new"), there("there"), there("same")), (None, root.clone(), root));
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 2, "nothing is left there");
}

/// A directory of somebody's that is called much as those of a restore.
#[test]
fn a_name_that_is_nearly_one_of_ours_comes_back() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let own = place.path("mnt/d/.restoring-1999");
    fs::create_dir_all(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(own.join("photo"), "1999").unwrap();
    let cno = cut(&place);
    let listed = place.path("mnt/.nenrin/at").join(&cno).join("d");
    assert_eq!(fs::read_dir(listed).unwrap().count(), 1, "in the past");
    restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &place.text("mnt/again")]).ok();
    restore(&[&place.text("mnt/d"), "--at", &cno, "--force"]).ok();
    for tree in ["mnt/again", "mnt/d"] {
        let path = place.path(tree).join(".restoring-1999/photo");
        assert_eq!(fs::read_to_string(path).ok().as_deref(), Some("1999"), "{tree}");
    }
}

/// A device node, which who restores may not make, keeps nothing else from coming back.
#[test]
fn a_device_node_is_left_out_and_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0,allow_other").ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    run("mknod", &["-m", "666", &place.text("mnt/d/null"), "c", "1", "3"]).ok();
    for name in ["mnt/d/a", "mnt/d/z"] {
        fs::write(place.path(name), name).unwrap();
        chown(place.path(name), Some(65534), Some(65534)).unwrap();
    }
    let cno = cut(&place);
    let out = restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &place.text("mnt/d2")]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""), "nothing had been changed");
    assert_eq!(fs::metadata(place.path("mnt/d2/null")).unwrap().mode() & 0o777, 0o666);
    let asked = |rest: &str| as_nobody(&place, &format!("./nenrin restore mnt/d{rest} --at {cno} --to ./mine"));
    let Some(out) = asked("") else { return };
    assert!(out.code == 1 && out.stderr.contains("mnt/d/null is a device node (only root may make one)"), "{out:?}");
    assert_eq!(fs::read_dir(place.path("mine")).unwrap().count(), 2);
    fs::remove_dir_all(place.path("mine")).unwrap();
    let out = asked(" --json").unwrap();
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["left_out"], serde_json::json!([{ "path": "mnt/d/null", "why": "device" }]), "{told}");
    fs::remove_dir_all(place.path("mine")).unwrap();
    asked("/null").unwrap().fails(1, &["mnt/d/null", "is a device node (only root may make one)"]);
    assert!(!place.path("mine").exists());
}

/// Who mounted the volume may have it say anything of its nodes.
#[test]
fn root_makes_no_device_node_that_a_user_tells_of() {
    if !can_mount() || !has("fusermount3") || !has("setpriv") || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    run("mknod", &["-m", "666", &place.text("mnt/d/null"), "c", "1", "3"]).ok();
    fs::write(place.path("mnt/d/f"), "f").unwrap();
    let cno = cut(&place);
    restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &place.text("rooted")]).ok();
    assert!(fs::metadata(place.path("rooted/null")).unwrap().file_type().is_char_device(), "root's own volume");
    place.umount().ok();
    for path in ["", "image", "mnt"] {
        chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    run("cp", &[env!("CARGO_BIN_EXE_nenrin"), &place.text("nenrin")]).ok();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "mount -t tmpfs none /dev
        for d in 'null c 1 3' 'zero c 1 5' 'urandom c 1 9' 'fuse c 10 229'; do mknod -m 666 /dev/$d; done
        echo user_allow_other >conf
        touch /etc/fuse.conf && mount --bind conf /etc/fuse.conf
        nobody() {{ setpriv --reuid=65534 --regid=65534 --clear-groups env -u XDG_RUNTIME_DIR \"$@\"; }}
        nobody ./nenrin mount -o allow_other image mnt
        trap 'nobody ./nenrin umount mnt' EXIT
        code=0
        $NENRIN restore mnt/d --at {cno} --to ./back || code=$?
        said=$($NENRIN restore mnt/d --at {cno} --to mnt/beside 2>&1) && exit 9
        echo \"$said\" >&2
        [ ! -e mnt/beside ] || exit 8
        exit $code"
    );
    let out = Out::of(in_own_mounts(place.dir(), &script).output().unwrap());
    let told = "mnt/d/null is a device node (none is made of a volume that a user mounted)";
    assert!(out.code == 1 && out.stderr.contains(told), "{out:?}");
    assert!(out.stderr.contains("user 65534 serves, and root writes nothing there"), "{out:?}");
    assert_eq!(fs::read(place.path("back/f")).unwrap(), b"f");
    assert!(fs::symlink_metadata(place.path("back/null")).is_err());
    assert_eq!(fs::metadata(place.path("back")).unwrap().uid(), 0);
}

/// A restore of mnt/d that makes its copy, and is stopped: the state that it brings back, how many files it has there, and its process.
/// Where it was done before it could be stopped, it is given more to do.
fn stopped_while_it_copies(place: &Place) -> (String, usize, Child) {
    let (dir, text) = (place.path("mnt/d"), place.text("mnt/d"));
    for count in (0..6).map(|n| 1000 << n) {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        for n in 0..count {
            fs::write(dir.join(n.to_string()), "then").unwrap();
        }
        let cno = cut(place);
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("new"), "now").unwrap();
        let mut command = command(["restore", "--json", &text, "--at", &cno, "--force"]);
        let mut restore = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let names = || fs::read_dir(place.path("mnt")).unwrap().map(|e| e.unwrap().file_name());
        let copies = || names().any(|n| n.as_encoded_bytes().starts_with(b".restoring-"));
        let has_ended = |restore: &mut Child| restore.try_wait().unwrap().is_some();
        wait_until("it copies", || copies() || has_ended(&mut restore));
        if !has_ended(&mut restore) {
            signal(restore.id(), "STOP");
        }
        // What it has asked the volume for is done by then.
        let stat = format!("/proc/{}/stat", restore.id());
        let state = || fs::read_to_string(&stat).unwrap_or_default().rsplit(") ").next().unwrap_or_default().to_owned();
        wait_until("it stands still", || state().starts_with(['T', 'Z']) || has_ended(&mut restore));
        if !has_ended(&mut restore) && fs::read_dir(&dir).unwrap().count() == 1 && copies() {
            return (cno, count, restore);
        }
        signal(restore.id(), "CONT");
        restore.wait().unwrap();
    }
    panic!("it was always done too soon");
}

/// The checkpoint that was made to keep what is replaced is deleted while the copy is made: another one has it.
#[test]
fn a_checkpoint_that_goes_during_the_copy_is_made_anew() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let kept = || -> Vec<u64> {
        let all = nenrin(["checkpoint", "list", "--json", &place.text("mnt")]).json();
        all.as_array().unwrap().iter().map(|c| c["cno"].as_u64().unwrap()).collect()
    };
    let (cno, count, restore) = stopped_while_it_copies(&place);
    let first = *kept().last().unwrap();
    // Who has it open keeps the rule from thinning it.
    let state = place.path(&format!("mnt/.nenrin/at/{first}"));
    let mut open = fs::read_dir(format!("/proc/{}/fd", restore.id())).unwrap();
    assert!(open.any(|fd| fs::read_link(fd.unwrap().path()).is_ok_and(|leads| leads == state)), "it is not in use");
    nenrin(["checkpoint", "delete", &place.text("mnt"), &first.to_string()]).ok();
    assert!(!kept().contains(&first));
    signal(restore.id(), "CONT");
    let out = Out::of(restore.wait_with_output().unwrap());
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let keeper = told["replaced_kept_in"].as_u64().unwrap();
    assert!(out.code == 0 && keeper > first && kept().contains(&keeper), "{first}: {out:?}");
    let old = place.path(&format!("mnt/.nenrin/at/{keeper}/d/new"));
    assert_eq!(fs::read_to_string(old).unwrap(), "now");
    assert_eq!(fs::read_dir(place.path("mnt/d")).unwrap().count(), count);
    // The rule says until when it has that, and is told.
    assert!(told["replaced_kept_until"].as_str().unwrap().starts_with("20"), "{told}");
    let told = nenrin(["restore", &place.text("mnt/d/7"), "--at", &cno, "--force"]).ok();
    assert!(told.contains(" has what was there, and is kept until 20"), "{told}");
    nenrin(["retention", "set", &place.text("mnt"), "forever:all"]).ok();
    let told = nenrin(["restore", "--json", &place.text("mnt/d/8"), "--at", &cno, "--force"]).json();
    assert_eq!(told["replaced_kept_until"], "forever", "{told}");
}
