//! Commands in another mount name space than that of who has the volume, where a path is another's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// Nothing is mounted, and no device taken, by a path that is something else where the owner is.
#[test]
fn what_a_path_means_here_is_done_nowhere_else() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let (mnt, past) = (place.text("mnt"), place.sub("past"));
    let cno = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    place.sub("hidden");
    let other = vec![7; 64 << 20];
    fs::write(place.path("hidden/new"), &other).unwrap();
    let script = "
        mount -t tmpfs none hidden
        truncate -s 64M hidden/new
        ln -s $NENRIN mount.nenrin
        tells() {
            n=$1 code=0
            shift
            said=$(\"$@\" 2>&1) || code=$?
            echo \"$code $said\" >told.$n
        }
        tells 1 $NENRIN mount -o cp=$1 image past
        tells 2 ./mount.nenrin $PWD/image $PWD/past -o ro,cp=$1
        tells 3 $NENRIN device add --force mnt hidden/new
        tells 4 $NENRIN device replace --force mnt 1 hidden/new";
    let mut inside = in_own_mounts(place.dir(), script);
    Out::of(inside.args(["sh", &cno]).output().unwrap()).ok();
    let pid = place.pid();
    let there = format!("nsenter --mount=/proc/{pid}/ns/mnt");
    for (n, code) in [(1, 1), (2, 32), (3, 1), (4, 1)] {
        let told = fs::read_to_string(place.path(&format!("told.{n}"))).unwrap();
        assert!(told.starts_with(&format!("{code} ")) && told.lines().count() == 1, "{n}: {told}");
        assert!(
            told.contains("in another mount name space or under another root") && told.contains(&there),
            "{n}: {told}"
        );
        assert_eq!(told.contains(&format!(".nenrin/at/{cno}")), n <= 2, "{n}: {told}");
    }
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&past));
    assert_eq!(place.info()["devices"].as_array().unwrap().len(), 1);
    place.umount().ok();
    assert!(fs::read(place.path("hidden/new")).unwrap() == other, "what has that name there was overwritten");
}

/// Under another root in the same name space the same is so; and where a path is the same in another name space, it is taken.
#[test]
fn what_a_path_means_is_asked_of_what_is_there() {
    if !can_mount() || !has("unshare") || !has("chroot") {
        return;
    }
    let place = Place::with_volume();
    place.sub("hidden");
    place.sub("root");
    place.sub("mnt");
    let other = vec![7; 64 << 20];
    fs::write(place.path("hidden/new"), &other).unwrap();
    let script = "
        $NENRIN mount image mnt
        mount --rbind / root
        mount -t tmpfs none root$PWD/hidden
        truncate -s 64M root$PWD/hidden/new
        code=0
        chroot root sh -c \"cd $PWD && $NENRIN device add --force mnt hidden/new\" >told.1 2>&1 || code=$?
        echo $code >code.1
        umount -l root
        cp hidden/new kept
        code=0
        unshare -m $NENRIN device add --force mnt hidden/new >told.2 2>&1 || code=$?
        echo $code >code.2
        $NENRIN umount mnt";
    let mut inside = in_own_mounts(place.dir(), script);
    Out::of(inside.output().unwrap()).ok();
    let told = |n: u32| fs::read_to_string(place.path(&format!("told.{n}"))).unwrap();
    let code = |n: u32| fs::read_to_string(place.path(&format!("code.{n}"))).unwrap().trim().parse::<i32>().unwrap();
    assert!(code(1) == 1 && told(1).contains("under another root"), "{}", told(1));
    assert!(fs::read(place.path("kept")).unwrap() == other, "what has that name under the other root was overwritten");
    assert_eq!(code(2), 0, "{}", told(2));
}
