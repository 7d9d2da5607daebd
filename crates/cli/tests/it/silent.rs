//! Commands of a volume whose process is stopped, or does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

/// Where nobody else sees the stopped process, who would wait for it. All at once, as each of them waits for some seconds; the limit is
/// there for who hangs, and none of them ends by it.
const SCRIPT: &str = "
    mount -t tmpfs none /run
    mkdir mnt
    $NENRIN mount image mnt
    mkdir mnt/d
    echo x >mnt/d/f
    ln -s \"$PWD/mnt/d\" link
    pid=$($NENRIN info --json mnt | tr -d ' ' | tr ',' '\\n' | sed -n 's/^\"pid\"://p')
    echo \"$pid\" >pid
    kill -STOP \"$pid\"
    trap 'kill -CONT $pid; $NENRIN umount mnt' EXIT
    ln -s $NENRIN mount.nenrin
    ln -s $NENRIN fsck.nenrin
    called() {
        n=$1
        shift
        code=0
        timeout -s KILL 60 \"$@\" >said.$n 2>&1 || code=$?
        echo \"$code $(cat said.$n)\" >told.$n
    }
    asked() {
        n=$1
        shift
        called $n $NENRIN \"$@\"
    }
    asked 1 info mnt &
    asked 2 info mnt/d/f &
    asked 3 info --json image &
    asked 4 info link &
    asked 5 history link/f &
    asked 6 diff mnt/d 1 &
    asked 7 restore mnt/d/f --at 1 &
    asked 8 restore --list-deleted mnt &
    asked 9 scrub mnt &
    asked 10 snapshot create mnt name &
    asked 11 device list mnt &
    asked 12 umount mnt &
    called 13 ./mount.nenrin image mnt/new &
    called 14 ./mount.nenrin image mnt -o remount,ro &
    called 15 ./fsck.nenrin -a mnt/new &
    asked 16 check mnt/new &
    (
        cd mnt
        code=0
        said=$(timeout -s KILL 60 $NENRIN info 2>&1) || code=$?
        cd ..
        echo \"$code $said\" >told.17
    ) &
    wait
    kill -CONT \"$pid\"
    $NENRIN info mnt | grep -q 'health       good'";

#[test]
fn a_process_that_is_stopped_is_named() {
    if !can_mount() || !has("timeout") || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    Out::of(in_own_mounts(place.dir(), SCRIPT).output().unwrap()).ok();
    let pid = fs::read_to_string(place.path("pid")).unwrap();
    let (said, way_out) = (format!("process {} is stopped", pid.trim()), format!("kill -CONT {}", pid.trim()));
    for n in 1..=17 {
        let told = fs::read_to_string(place.path(&format!("told.{n}"))).unwrap();
        // A scrub and a check that could not run end with 8, and what mount(8) calls with 32.
        let code = match n {
            9 | 15 | 16 => "8 ",
            13 | 14 => "32 ",
            _ => "1 ",
        };
        assert!(told.starts_with(code), "{n}: {told}");
        assert!(told.contains(&said) && told.contains("does not answer") && told.contains(&way_out), "{n}: {told}");
        assert_eq!(told.lines().count(), 1, "{n}: {told}");
    }
}

/// One that stops in the middle of something, and one that is killed, have not let go of the volume. Told are the code, how many
/// seconds that took from the signal on, and what was said: while the scrub rests, since it read what takes six seconds by its rate.
const IN_THE_MIDDLE: &str = "
    mount -t tmpfs none /run
    scrubbed() {
        how=$1
        mkdir $how
        $NENRIN mkfs --size 32M image.$how
        $NENRIN mount image.$how $how
        head -c 6291456 /dev/urandom >$how/f
        sync -f $how/f
        pid=$($NENRIN info --json $how | tr -d ' ' | tr ',' '\\n' | sed -n 's/^\"pid\"://p')
        code=0
        # Who rests for longer than what is killed may take to be told of.
        rate=1M
        [ $how = STOP ] || rate=256K
        timeout -s KILL 120 sh -c 'echo $$ >who.'$how'; exec $NENRIN scrub --rate '$rate' '$how >said.$how 2>&1 &
        scrub=$! n=0
        until [ -s who.$how ] && ls -l /proc/$(cat who.$how)/fd | grep -q socket:; do
            n=$((n + 1))
            [ $n -lt 600 ] || exit 1
            sleep .1
        done 2>/dev/null
        sleep 2
        kill -$how \"$pid\"
        begun=$(date +%s)
        wait $scrub || code=$?
        took=$(($(date +%s) - begun))
        echo \"$code $took $(cat said.$how)\" >told.$how
        [ $how = KILL ] || kill -CONT \"$pid\"
        $NENRIN umount $how
    }
    scrubbed STOP &
    scrubbed KILL &
    wait";

#[test]
fn a_process_that_stops_in_the_middle_has_not_unmounted() {
    if !can_mount() || !has("timeout") || !has("unshare") {
        return;
    }
    let place = Place::new();
    Out::of(in_own_mounts(place.dir(), IN_THE_MIDDLE).output().unwrap()).ok();
    for (how, why, most) in [("STOP", "is stopped; kill -CONT", 35), ("KILL", "went away", 15)] {
        let told = fs::read_to_string(place.path(&format!("told.{how}"))).unwrap();
        assert!(told.starts_with("8 ") && told.contains(why) && !told.contains("unmounted"), "{how}: {told}");
        let took: u64 = told.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(took <= most, "{how}: {told}");
    }
}
