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
        assert!(told.contains("in another mount name space") && told.contains(&there), "{n}: {told}");
        assert_eq!(told.contains(&format!(".nenrin/at/{cno}")), n <= 2, "{n}: {told}");
    }
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&past));
    assert_eq!(place.info()["devices"].as_array().unwrap().len(), 1);
    place.umount().ok();
    assert!(fs::read(place.path("hidden/new")).unwrap() == other, "what has that name there was overwritten");
}
