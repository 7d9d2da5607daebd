//! A user of a mount with `allow_other` who did not mount it, nor is root: what he sees of the past, and what not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::history::Hours;
use nenrin_core::format::Ino;
use nenrin_core::{Fs, MountOptions, NewInode};
use nenrin_device::{BlockDevice, FileDevice, OpenMode};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::sync::Arc;

/// A volume that root mounted for all, with a directory of nobody's.
fn shared_place() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::with_volume();
    place.mount("allow_other,checkpoint=0").ok();
    fs::create_dir(place.path("mnt/his")).unwrap();
    chown(place.path("mnt/his"), Some(65534), Some(65534)).unwrap();
    // Where nobody can run anything.
    as_nobody(&place, "true").map(|_| place)
}

fn checkpoint(place: &Place) -> u64 {
    nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].as_u64().unwrap()
}

/// Writes a file of nobody's.
fn write(place: &Place, name: &str, content: &str) {
    fs::write(place.path(name), content).unwrap();
    chown(place.path(name), Some(65534), Some(65534)).unwrap();
}

/// Of a row of `history`: the checkpoints, what changed, bytes, and whether it is so now.
type Row = (Option<u64>, Option<u64>, String, Option<u64>, bool);

fn rows_of(history: &serde_json::Value) -> Vec<Row> {
    let change = |r: &serde_json::Value| r["change"].as_str().unwrap().to_owned();
    let row = |r: &serde_json::Value| {
        (r["cno"].as_u64(), r["last_cno"].as_u64(), change(r), r["size"].as_u64(), r["is_now"] == true)
    };
    history.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn his_history_is_what_the_states_show_him() {
    let Some(place) = shared_place() else { return };
    write(&place, "mnt/his/f", "a");
    let (first, second) = (checkpoint(&place), checkpoint(&place));
    write(&place, "mnt/his/f", "bb");
    let third = checkpoint(&place);
    fs::remove_file(place.path("mnt/his/f")).unwrap();
    let fourth = checkpoint(&place);
    write(&place, "mnt/his/f", "ccc");
    let asked = |script: &str| as_nobody(&place, script).unwrap();
    let rows = rows_of(&asked("./nenrin history --json mnt/his/f").json());
    assert_eq!(
        rows,
        [
            (Some(first), Some(second), "made".to_owned(), Some(1), false),
            (Some(third), Some(third), "content".to_owned(), Some(2), false),
            (Some(fourth), Some(fourth), "removed".to_owned(), None, false),
            (None, None, "made".to_owned(), Some(3), true),
        ]
    );
    // The same rows as root gets, but for what only the owner knows.
    assert_eq!(rows, rows_of(&nenrin(["history", "--json", &place.text("mnt/his/f")]).json()));
    let told = asked("./nenrin history mnt/his/f");
    assert!(told.stderr.contains("mounted by another user") && told.stdout.contains("removed"), "{told:?}");
    asked("./nenrin history mnt/his/never").fails(1, &["mnt/his/never", "nothing of this name is known"]);
    asked("./nenrin history mnt/his/f/below").fails(1, &["nothing of this name"]);
}

#[test]
fn he_brings_back_what_was_his() {
    let Some(place) = shared_place() else { return };
    write(&place, "mnt/his/f", "before");
    fs::create_dir(place.path("mnt/his/d")).unwrap();
    write(&place, "mnt/his/d/g", "below");
    chown(place.path("mnt/his/d"), Some(65534), Some(65534)).unwrap();
    let cno = checkpoint(&place);
    fs::remove_file(place.path("mnt/his/f")).unwrap();
    fs::remove_dir_all(place.path("mnt/his/d")).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "after"]).ok();
    let asked = |script: &str| as_nobody(&place, script).unwrap();
    let gone = asked("./nenrin restore --json --list-deleted mnt/his").json();
    let gone: Vec<_> =
        gone.as_array().unwrap().iter().map(|g| (g["name"].as_str().unwrap(), g["cno"].as_u64().unwrap())).collect();
    assert_eq!(gone, [("d", cno), ("f", cno)]);
    asked(&format!("./nenrin restore mnt/his/f --at {cno}")).ok();
    asked(&format!("./nenrin restore mnt/his/d --at {cno} --force")).ok();
    assert_eq!(fs::read(place.path("mnt/his/f")).unwrap(), b"before");
    assert_eq!(fs::read(place.path("mnt/his/d/g")).unwrap(), b"below");
    asked(&format!("./nenrin restore mnt/his/f --at {cno} --to off")).ok();
    assert_eq!(fs::read(place.path("off")).unwrap(), b"before");
    assert!(asked("./nenrin restore --list-deleted mnt/his").ok().lines().count() <= 1, "all of it is back");
    // What only the owner can do, and what there is not.
    write(&place, "mnt/his/f", "now");
    let fails = |arguments: &str, parts: &[&str]| asked(&format!("./nenrin restore {arguments}")).fails(1, parts);
    fails(&format!("mnt/his/f --at {cno}"), &["mnt/his/f", "--force"]);
    fails(
        &format!("mnt/his/f --at {cno} --force"),
        &["mnt/his/f", "has to go to a checkpoint before", "only root and the user who mounted"],
    );
    fails("mnt/his/f --at after", &["mnt/his/f", "was not there in checkpoint"]);
    fails("mnt/his/f --at 77", &["there is no state \"77\"", ".nenrin/at"]);
    fails("mnt/his/f --at ../../his", &["there is no state"]);
    fails("mnt/his/f --at ..", &["there is no state"]);
    assert_eq!(fs::read(place.path("mnt/his/f")).unwrap(), b"now");
    assert_eq!(fs::read_dir(place.path("mnt/his")).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn what_he_may_not_see_stays_so() {
    let Some(place) = shared_place() else { return };
    let mode = |name: &str, mode| fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    fs::write(place.path("mnt/secret"), "root's").unwrap();
    mode("mnt/secret", 0o600);
    fs::create_dir(place.path("mnt/closed")).unwrap();
    mode("mnt/closed", 0o700);
    fs::write(place.path("mnt/closed/name"), "").unwrap();
    let cno = checkpoint(&place);
    fs::remove_file(place.path("mnt/closed/name")).unwrap();
    mode("mnt/closed", 0o755);
    let asked = |script: &str| as_nobody(&place, script).unwrap();
    asked(&format!("./nenrin restore mnt/secret --at {cno} --to mnt/his/mine"))
        .fails(1, &["secret", "ermission denied"]);
    assert_eq!(fs::read_dir(place.path("mnt/his")).unwrap().count(), 0);
    // It was closed when it had that name.
    asked("./nenrin restore --list-deleted mnt/closed").fails(1, &["mnt/closed", "1 states could not be looked into"]);
    asked("./nenrin history mnt/closed/name").fails(1, &["1 states could not be looked into"]);
    // All else is for who mounted it.
    asked("./nenrin info mnt").fails(1, &["mounted by another user"]);
    asked(&format!("./nenrin diff mnt {cno}")).fails(1, &["mounted by another user"]);
    asked("./nenrin checkpoint create mnt").fails(1, &["mounted by another user"]);
    nenrin(["restore", "--list-deleted", &place.text("mnt/closed")]).ok();
}

/// The attribute that tells which checkpoint a WHEN means is there for who asks, and in no list.
#[test]
fn a_state_tells_which_checkpoint_it_is() {
    let Some(place) = shared_place() else { return };
    // Its root may be entered, and not read.
    fs::set_permissions(place.path("mnt"), fs::Permissions::from_mode(0o711)).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "first"]).ok();
    let told = |name: &str| {
        let mut bytes = [0; 4096];
        let length = rustix::fs::lgetxattr(place.path(name), "system.nenrin.checkpoint", bytes.as_mut_slice())?;
        Ok::<serde_json::Value, rustix::io::Errno>(serde_json::from_slice(&bytes[..length]).unwrap())
    };
    let list = nenrin(["checkpoint", "list", "--json", &place.text("mnt")]).json();
    assert_eq!(told("mnt/.nenrin/at/first").unwrap()["nanos"], list[0]["nanos"]);
    assert_eq!(told("mnt/.nenrin/at/first").unwrap()["name"], "first");
    assert_eq!(told("mnt/.nenrin/at/1").unwrap()["cno"], 1);
    for other in ["mnt", "mnt/his", "mnt/.nenrin", "mnt/.nenrin/at", "mnt/.nenrin/at/1/his"] {
        assert_eq!(told(other).unwrap_err(), rustix::io::Errno::OPNOTSUPP, "{other}");
    }
    let mut names = [0_u8; 4096];
    assert_eq!(rustix::fs::llistxattr(place.path("mnt/.nenrin/at/1"), names.as_mut_slice()).unwrap(), 0);
    let set =
        rustix::fs::lsetxattr(place.path("mnt"), "system.nenrin.checkpoint", b"x", rustix::fs::XattrFlags::empty());
    assert_eq!(set.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    as_nobody(&place, "./nenrin history mnt/his").unwrap().ok();
}

/// What a volume has of its own under the name that leads to the past is told as that, whatever it is: as a mount does not let it be made,
/// it is made without one.
#[test]
fn what_hides_the_past_is_told() {
    let Some(place) = shared_place() else { return };
    write(&place, "mnt/his/f", "a");
    let history = || as_nobody(&place, "./nenrin history mnt/his/f").unwrap();
    for (own, kinds) in [("file", &[0o100_644][..]), ("empty", &[0o040_755]), ("full", &[0o040_755, 0o040_755])] {
        place.umount().ok();
        let volume: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(place.image(), OpenMode::OWNER).unwrap());
        let fs = Fs::open(vec![volume], Arc::new(Hours::default()), MountOptions::default()).unwrap();
        let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
        kinds
            .iter()
            .zip([&b".nenrin"[..], b"at"])
            .fold(Ino::ROOT, |dir, (mode, name)| fs.create(dir, name, &new(*mode)).unwrap().ino);
        fs.close().unwrap();
        drop(fs);
        place.mount("allow_other,checkpoint=0").ok();
        history().fails(1, &["mnt/.nenrin: is the volume's own, and hides the past; rename it"]);
        fs::rename(place.path("mnt/.nenrin"), place.path("mnt").join(own)).unwrap();
        history().ok();
    }
}

/// A file of another's that lets who mounted the volume write to it: he could have emptied it, and not given it what it was.
#[test]
fn a_file_of_another_is_not_restored_in_place() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (open, his) = (place.path("mnt/open"), place.path("mnt/his"));
    for file in [&open, &his] {
        fs::write(file, "then").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    }
    nenrin(["snapshot", "create", &place.text("mnt"), "then"]).ok();
    for (file, user) in [(&open, 65533), (&his, 65534)] {
        fs::write(file, "now").unwrap();
        chown(file, Some(user), None).unwrap();
    }
    chown(place.path("mnt"), Some(65534), Some(65534)).unwrap();
    place.umount().ok();
    for path in ["image", "mnt"] {
        chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    let script = "
        $NENRIN mount image mnt
        $NENRIN restore mnt/open --at then --in-place && exit 9
        $NENRIN restore mnt/his --at then --in-place >/dev/null
        cat mnt/open mnt/his
        $NENRIN umount mnt";
    let Some(out) = as_nobody(&place, script) else { return };
    assert!(out.stderr.contains("mnt/open: belongs to user 65533, and only that user and root"), "{out:?}");
    assert_eq!(out.ok(), "nowthen");
    // Root may.
    place.mount("checkpoint=0").ok();
    nenrin(["restore", &place.text("mnt/open"), "--at", "then", "--in-place"]).ok();
    assert_eq!(fs::read_to_string(&open).unwrap(), "then");
}

/// He is not in the group that his file has, and had: what it is granted stays, since nobody else gets it by that.
#[test]
fn in_place_a_file_keeps_what_its_group_may() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    // The group of the second one has changed since, and he may not give the old one back.
    for (name, since) in [("same", 5), ("other", 7)] {
        let file = place.path(&format!("mnt/{name}"));
        fs::write(&file, "then").unwrap();
        chown(&file, Some(65534), Some(5)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
        nenrin(["snapshot", "create", &place.text("mnt"), name]).ok();
        fs::write(&file, "now").unwrap();
        chown(&file, Some(65534), Some(since)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    }
    chown(place.path("mnt"), Some(65534), Some(65534)).unwrap();
    place.umount().ok();
    for path in ["image", "mnt"] {
        chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    let script = "
        $NENRIN mount image mnt
        for name in same other; do
            $NENRIN restore --json mnt/$name --at $name --in-place | sed -n '/_lost/p'
            stat -c '%u %g %a' mnt/$name
        done
        cat mnt/same mnt/other
        $NENRIN umount mnt";
    let Some(out) = as_nobody(&place, script) else { return };
    let told: Vec<String> = out.ok().lines().map(|l| l.trim().trim_end_matches(',').replace('"', "")).collect();
    let same = ["owners_lost: 0", "permissions_lost: 0", "links_lost: 0", "65534 5 664"];
    let other = ["owners_lost: 1", "permissions_lost: 1", "links_lost: 0", "65534 7 644", "thenthen"];
    assert_eq!(told, [&same[..], &other[..]].concat());
}

/// What the group of then was granted another group is not.
#[test]
fn another_group_is_granted_no_more_than_others() {
    let Some(place) = shared_place() else { return };
    write(&place, "mnt/his/f", "f");
    chown(place.path("mnt/his/f"), None, Some(5)).unwrap();
    fs::set_permissions(place.path("mnt/his/f"), fs::Permissions::from_mode(0o664)).unwrap();
    // What is made there is of a group that is not his.
    fs::create_dir(place.path("mnt/his/d")).unwrap();
    chown(place.path("mnt/his/d"), Some(65534), Some(5)).unwrap();
    fs::set_permissions(place.path("mnt/his/d"), fs::Permissions::from_mode(0o2755)).unwrap();
    fs::write(place.path("mnt/his/g"), "g").unwrap();
    chown(place.path("mnt/his/g"), Some(65533), Some(65534)).unwrap();
    fs::set_permissions(place.path("mnt/his/g"), fs::Permissions::from_mode(0o640)).unwrap();
    let cno = checkpoint(&place);
    let restored = |from: &str, to: &str| {
        let told = as_nobody(&place, &format!("./nenrin restore --json {from} --at {cno} --to {to}")).unwrap().json();
        let meta = fs::metadata(place.path(to)).unwrap();
        let lost = ["owners_lost", "permissions_lost"].map(|lost| told[lost].as_u64().unwrap());
        (meta.uid(), meta.gid(), meta.mode() & 0o7777, lost)
    };
    assert_eq!(restored("mnt/his/f", "mnt/his/f2"), (65534, 65534, 0o644, [1, 1]));
    // His own group it gets, although not the owner.
    assert_eq!(restored("mnt/his/g", "mnt/his/d/g2"), (65534, 65534, 0o640, [1, 0]));
}

/// By the device root is told where another user has mounted it, and unmounts it by the directory; also where its program has ended.
#[test]
fn root_is_told_where_another_mounted_a_device() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::with_volume();
    place.sub("mnt");
    for path in ["image", "mnt"] {
        chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    let script = "
        told() { if \"$@\" 2>>said; then exit 9; fi; }
        $NOBODY $NENRIN mount image mnt
        mkdir -p other
        told $NENRIN mount image other
        told $NENRIN snapshot create image first
        told $NENRIN umount image
        grep -q \" $PWD/mnt \" /proc/self/mountinfo
        $NENRIN snapshot create mnt first
        $NENRIN umount mnt
        if grep \" $PWD/mnt \" /proc/self/mountinfo; then exit 9; fi
        flock -n -x image true
        $NENRIN snapshot list image
        $NOBODY $NENRIN mount image mnt
        pid=$($NENRIN info --json mnt | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p')
        # An older kernel does not tell who is behind a mount.
        grep -qs fuse_connection: /proc/$pid/fdinfo/* || { $NENRIN umount mnt; exit 7; }
        kill -9 $pid
        until flock -n -x image true; do sleep 0.05; done
        told $NENRIN umount image
        $NENRIN umount mnt
        if grep \" $PWD/mnt \" /proc/self/mountinfo; then exit 9; fi
        cat said";
    let Some(out) = with_nobody(&place, script) else { return };
    if out.code == 7 {
        return;
    }
    assert!(out.code == 0 && out.stdout.contains("first"), "{out:?}");
    let said: Vec<&str> = out.stdout.lines().filter(|l| l.contains("image: ")).collect();
    let at = format!("; mounted at {} by user 65534; ", place.text("mnt"));
    assert!(said.len() == 4 && said.iter().all(|l| l.contains(&at) && !l.contains("as root")), "{out:?}");
    assert!(said[0].contains("in use by nenrin") && said[1].contains("in use by nenrin"), "{out:?}");
    let help = [("by that directory root reaches it:", ""), ("the program behind it has ended;", " clears it")];
    for (said, (before, after)) in said[2..].iter().zip(help) {
        let line = format!("{before} nenrin umount {}{after}", place.text("mnt"));
        assert!(said.contains("nothing is mounted here") && said.ends_with(&line), "{out:?}");
    }
    assert!(out.stderr.contains("had ended; the mount is cleared"), "{out:?}");
}

/// Others are told where it is, and who can do it.
#[test]
fn of_a_device_that_another_mounted_he_is_told_where() {
    let Some(place) = shared_place() else { return };
    let at = format!("mounted at {} by root; ask as root", place.text("mnt"));
    for script in ["./nenrin umount image", "./nenrin info image", "./nenrin snapshot create image x"] {
        as_nobody(&place, script).unwrap().fails(1, &["image: ", &at]);
    }
    // A user that is neither.
    place.umount().ok();
    if !has("fusermount3") {
        return;
    }
    for path in ["image", "mnt"] {
        chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    let script = "
        $NOBODY $NENRIN mount image mnt
        code=0
        setpriv --reuid=65533 --regid=65533 --clear-groups $NENRIN umount image || code=$?
        if setpriv --reuid=65533 --regid=65533 --clear-groups $NENRIN info mnt 2>told; then exit 9; fi
        grep -q 'mounted by another user; ask as that user or as root$' told
        $NOBODY $NENRIN umount image
        exit $code";
    let at = format!("mounted at {} by user 65534; ask as that user or as root", place.text("mnt"));
    with_nobody(&place, script).unwrap().fails(1, &["image: ", &at]);
}

/// Whatever directory for its sockets an environment names, who has another environment finds the owner.
#[test]
fn an_owner_is_found_from_another_environment() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::with_volume();
    for name in ["run", "mnt"] {
        chown(place.sub(name), Some(65534), Some(65534)).unwrap();
    }
    chown(place.image(), Some(65534), Some(65534)).unwrap();
    let script = "
        $NOBODY env XDG_RUNTIME_DIR=$PWD/run $NENRIN mount image mnt
        $NENRIN checkpoint create mnt
        $NOBODY $NENRIN checkpoint create mnt
        $NOBODY $NENRIN checkpoint create image
        $NOBODY env XDG_RUNTIME_DIR=$PWD/run $NENRIN checkpoint create mnt
        $NOBODY env XDG_RUNTIME_DIR=$PWD $NENRIN umount mnt";
    let Some(out) = with_nobody(&place, script) else { return };
    assert_eq!(out.ok().lines().count(), 4);
}

/// Whoever has mounted something may say that he has root's device, too, and have it open so that he can do nothing with it: root does not
/// ask him, nor take his mount for that of the device.
#[test]
fn who_only_says_that_he_has_a_device_is_not_believed() {
    if !can_mount() || !has("fusermount3") || !has("python3") {
        return;
    }
    let place = Place::with_volume();
    nenrin(["mkfs", "--size", SIZE, &place.text("other")]).ok();
    for name in [place.text("other"), place.sub("mnt")] {
        chown(name, Some(65534), Some(65534)).unwrap();
    }
    let says = "
import json, os, socket, sys
image, point, number = sys.argv[1:]
is_it = os.stat(image)
mount = {'directory': point, 'device': number, 'checkpoint': None}
hello = {'identities': [f'file {is_it.st_dev} {is_it.st_ino}'], 'pid': os.getpid(), 'read_only': False, 'closing': False, 'mounts': [mount]}
has = os.open(image, os.O_PATH)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f'/tmp/nenrin-65534/{os.getpid()}.sock')
listener.listen(64)
open('ready', 'w').close()
while True:
    stream, _ = listener.accept()
    try:
        stream.recv(1 << 16)
        stream.sendall(json.dumps({'ok': hello}).encode() + b'\\n')
        open('asked', 'w').close()
    except OSError:
        # Who asks others, too, may have heard enough.
        pass
    stream.close()
";
    fs::write(place.path("says.py"), says).unwrap();
    let script = "
        $NOBODY $NENRIN mount other mnt
        number=$(awk -v at=$PWD/mnt '$5 == at { print $3 }' /proc/self/mountinfo)
        $NOBODY env PATH=/usr/bin:/bin python3 says.py $PWD/image $PWD/mnt $number &
        says=$!
        trap 'kill $says; rm -f /tmp/nenrin-65534/$says.sock' EXIT
        until [ -e ready ]; do kill -0 $says; sleep 0.05; done
        code=0
        $NENRIN umount image || code=$?
        if [ -e asked ]; then exit 9; fi
        grep -q \" $PWD/mnt \" /proc/self/mountinfo
        kill $says
        rm /tmp/nenrin-65534/$says.sock
        trap - EXIT
        $NOBODY $NENRIN umount mnt
        exit $code";
    with_nobody(&place, script).unwrap().fails(1, &["image: nothing is mounted here"]);
}
