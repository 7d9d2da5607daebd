//! The program by its other names, as mount(8), mkfs(8) and fsck(8) call it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Runs the program under another name.
fn helper(place: &Place, name: &str, args: &[&str]) -> Out {
    let link = place.path(name);
    let _ = symlink(env!("CARGO_BIN_EXE_nenrin"), &link);
    run(link.to_str().unwrap(), args)
}

#[test]
fn mkfs_and_fsck() {
    let place = Place::new();
    let image = place.image();
    helper(&place, "mkfs.nenrin", &["--size", SIZE, &image]).ok();
    assert!(helper(&place, "fsck.nenrin", &["-a", &image]).ok().contains(": clean"));
    helper(&place, "fsck.nenrin", &["-p", "-C0", &image]).ok();
    helper(&place, "fsck.nenrin", &["-n", &image]).ok();
    helper(&place, "fsck.nenrin", &["-y", "-f", &image]).ok();
    helper(&place, "fsck.nenrin", &[]).fails(16, &["a device is needed"]);
    helper(&place, "fsck.nenrin", &["-a", "/no/such/device"]).fails(8, &["no such file or device"]);
    fs::write(place.path("other"), vec![0; 8 << 20]).unwrap();
    helper(&place, "fsck.nenrin", &["-a", &place.text("other")]).fails(8, &["not a nenrin volume"]);
    helper(&place, "mkfs.nenrin", &[&image]).fails(1, &["a nenrin volume"]);
}

#[test]
fn mount_helper() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    let mount = |name: &str, args: &[&str]| helper(&place, name, args);
    mount("mount.nenrin", &[&image, &mnt, "-o", "rw,nofail,x-systemd.automount,user,commit=2"]).ok();
    assert_eq!(place.info()["options"]["commit"], "2");
    fs::write(place.path("mnt/note"), b"kept").unwrap();

    // A remount gets the whole old list, and changes the mount and nothing else.
    let pid = place.pid();
    mount("mount.nenrin", &[&image, &mnt, "-o", "ro,commit=2,remount"]).ok();
    assert_eq!(fs::write(place.path("mnt/note"), b"x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(place.pid(), pid);
    mount("mount.nenrin", &[&image, &mnt, "-o", "rw,remount"]).ok();
    fs::write(place.path("mnt/note"), b"again").unwrap();
    place.umount().ok();
    mount("mount.nenrin", &[&image, &mnt, "-o", "rw,remount"]).fails(32, &["nothing can be remounted"]);

    mount("mount.fuse.nenrin", &[&image, &mnt, "-n", "-s", "-v", "-o", "ro"]).ok();
    assert_eq!(fs::read(place.path("mnt/note")).unwrap(), b"again");
    place.umount().ok();
    mount("mount.nenrin", &[&image, &mnt, "-r"]).ok();
    assert_eq!(fs::write(place.path("mnt/note"), b"x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    place.umount().ok();
    mount("mount.nenrin", &[&image, &mnt, "-o", "ro", "-w"]).ok();
    fs::write(place.path("mnt/note"), b"again").unwrap();
    place.umount().ok();
    // -f is fake here, as mount(8) means it.
    mount("mount.nenrin", &["-f", &image, &mnt]).ok();
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&mnt));
    mount("mount.nenrin", &[&image]).fails(1, &["a device and a directory are needed"]);
    mount("mount.nenrin", &[&image, &mnt, "-o", "frobnicate"]).fails(1, &["unknown mount option \"frobnicate\""]);
    mount("mount.nenrin", &["/no/such/image", &mnt]).fails(32, &["no such file or device"]);
    mount("umount.nenrin", &[&mnt]).fails(32, &["nothing is mounted here"]);
    mount("umount.nenrin", &[]).fails(1, &["a directory is needed"]);
    // What is printed of a state of the past, and cannot be, is no wrong call.
    place.mount("").ok();
    let cno = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    let mut past = Command::new(place.path("mount.nenrin"));
    past.args([&image, &place.sub("past"), "-o", &format!("ro,cp={cno}")]);
    past.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()).stderr(std::process::Stdio::piped());
    Out::of(past.output().unwrap()).fails(32, &["standard output", "No space left"]);
}

/// A volume that failed cannot be written to, whatever its mount says (P5).
#[test]
fn a_volume_that_failed_is_not_remounted_writable() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.sub("host");
    run("mount", &["-t", "tmpfs", "-o", "size=12M", "none", &host]).ok();
    let (image, mnt) = (place.text("host/image"), place.sub("mnt"));
    nenrin(["mkfs", "--sparse", "--size", "64M", &image]).ok();
    let mount = |options: &str| helper(&place, "mount.nenrin", &[&image, &mnt, "-o", options]);
    mount("rw").ok();
    let write = |n: usize| {
        let mut file = fs::File::create(place.path("mnt").join(n.to_string()))?;
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20])?;
        file.sync_all()
    };
    assert!((0..60).any(|n| write(n).is_err()), "64 MiB went into 12");
    wait_until("it failed", || place.info()["problems"].to_string().contains("a write failed"));
    mount("ro,remount").fails(32, &["mnt: is read-only now, but what was written", "a write failed"]);
    mount("rw,remount").fails(32, &["mnt: a write failed, so the volume is read-only", "No space left", "mount again"]);
    assert_eq!(place.umount().code, 1);
}

/// A remount says yes to what it did, and to nothing else.
#[test]
fn what_a_remount_cannot_change_it_refuses() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    let mount = |options: &str| helper(&place, "mount.nenrin", &[&image, &mnt, "-o", options]);
    let shown = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().find(|l| l.contains(&mnt)).unwrap().split(' ').nth(3).unwrap().to_owned()
    };
    mount("ro").ok();
    mount("rw,remount").fails(32, &["mnt: the volume was opened read-only", "unmount it"]);
    assert!(shown().starts_with("ro,"));
    mount("ro,noexec,remount").ok();
    mount("nosuid,remount").ok();
    assert!(shown().starts_with("ro,nosuid,nodev,noexec,"), "{}", shown());
    place.umount().ok();

    mount("rw,suid,dev,commit=5").ok();
    let flags = |options: &str| {
        mount(options).ok();
        let shown = shown();
        ["ro", "nosuid", "nodev", "noexec"].map(|flag| shown.split(',').any(|o| o == flag))
    };
    assert_eq!(flags("ro,commit=5,relatime,user_id=0,default_permissions,remount"), [true, false, false, false]);
    assert_eq!(flags("rw,nodev,noexec,remount"), [false, false, true, true]);
    assert_eq!(flags("exec,remount"), [false, false, true, false]);
    for other in ["commit=30", "cache=writeback", "noatime", "allow_other", "own_check"] {
        mount(&format!("rw,{other},remount")).fails(32, &["mnt: ", other, "a remount changes only ro"]);
    }
    mount("ro,cp=1,remount").fails(32, &["mnt: "]);
    assert_eq!(place.info()["options"]["commit"], "5");

    fs::write(place.path("mnt/note"), b"kept").unwrap();
    let cno = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    fs::write(place.path("mnt/note"), b"new").unwrap();
    let later = nenrin(["checkpoint", "create", "--json", &mnt]).json()["cno"].to_string();
    let past = place.sub("past");
    let of_past = |options: &str| helper(&place, "mount.nenrin", &[&image, &past, "-o", options]);
    of_past(&format!("ro,cp={cno}")).ok();
    of_past("rw,remount").fails(32, &["past: shows a state of the past"]);
    of_past(&format!("ro,noexec,cp={cno},remount")).ok();
    of_past(&format!("ro,cp={later},remount")).fails(32, &["past: what it shows: a remount changes only ro"]);
    // As mount(8) says what is in fstab without ro.
    of_past(&format!("rw,nosuid,cp={cno},remount")).ok();
    of_past(&format!("rw,cp={later},remount")).fails(32, &["past: what it shows: a remount changes only ro"]);
    let shown = fs::read_to_string("/proc/self/mounts").unwrap();
    let shown = shown.lines().find(|l| l.contains(&past)).unwrap().split(' ').nth(3).unwrap();
    assert!(shown.starts_with("ro,nosuid,"), "{shown}");
    assert_eq!(fs::read(place.path("past/note")).unwrap(), b"kept");
}

/// Of a bind mount the kernel does not say that the volume as a whole is read-only; a remount there leaves it so.
#[test]
fn a_remount_of_a_bind_mount_leaves_the_volume_read_only() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let (image, mnt, other) = (place.image(), place.text("mnt"), place.sub("other"));
    run("mount", &["--bind", &mnt, &other]).ok();
    let remount = |dir: &str, options: &str| helper(&place, "mount.nenrin", &[&image, dir, "-o", options]).ok();
    let is_writable = || {
        let listed = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut ours = listed.lines().filter(|l| l.contains(&mnt) || l.contains(&other));
        ours.all(|l| l.split(" - ").nth(1).unwrap().split(' ').nth(2).unwrap().starts_with("rw,"))
    };
    assert!(is_writable());
    remount(&mnt, "ro,remount");
    assert!(!is_writable());
    remount(&other, "nosuid,remount");
    assert!(!is_writable());
    remount(&other, "rw,remount");
    assert!(is_writable());
}

/// mount(8) itself, with the helper where it looks for it, in a mount name space of its own.
#[test]
fn mount_8_finds_the_helper() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    place.sub("mnt");
    place.sub("sbin");
    let script = "
        ln -s $NENRIN sbin/mount.nenrin
        ln -s $NENRIN sbin/mount.fuse.nenrin
        ln -s $NENRIN sbin/umount.fuse.nenrin
        cp -a /sbin/. sbin/ 2>/dev/null || true
        mount --bind sbin /sbin
        mount -t nenrin $PWD/image mnt
        grep -q \"^$PWD/image $PWD/mnt fuse.nenrin rw\" /proc/mounts
        echo kept > mnt/note
        mount -o remount,ro mnt
        grep -q \"$PWD/mnt fuse.nenrin ro\" /proc/mounts
        ! touch mnt/note 2>/dev/null
        mount -o remount,rw mnt
        touch mnt/note
        mkdir past
        cno=$($NENRIN checkpoint create --json mnt | sed -n \"s/.*cno.: \\([0-9]*\\).*/\\1/p\")
        echo \"$PWD/image $PWD/past nenrin cp=$cno 0 0\" >fstab
        mount -T fstab past >/dev/null
        mount -T fstab -o remount,noexec past
        grep -q \"$PWD/past fuse.nenrin ro.*noexec\" /proc/mounts
        umount past
        umount mnt
        # By the helper, so the owner has ended already.
        flock -n -x image true
        mount -t fuse.nenrin -o ro $PWD/image mnt
        cat mnt/note
        umount -l mnt";
    let output = in_own_mounts(place.dir(), script).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kept\n");
}

#[test]
fn help_and_version() {
    let text = nenrin(["help"]).ok();
    for command in ["mkfs", "mount", "umount", "info", "checkpoint", "snapshot", "check", "segments", "dump"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is missing in:\n{text}");
        let help = nenrin(["help", command]).ok();
        assert!(help.contains("examples:") && help.starts_with("usage: nenrin "), "{help}");
        assert_eq!(nenrin([command, "--help"]).ok(), help);
    }
    assert!(nenrin(["--version"]).ok().starts_with("nenrin "));
    nenrin(["frobnicate"]).fails(2, &["unknown command \"frobnicate\"", "nenrin help"]);
    nenrin(["help", "frobnicate"]).fails(2, &["unknown command"]);
    assert_eq!(nenrin(Vec::<&str>::new()).code, 2);
}

/// mount(8) and umount(8) with -N leave it to the helper to go to another mount name space, which it says that it does not.
#[test]
fn nothing_is_done_in_another_name_space_than_is_asked_for() {
    if !can_mount() || !has("unshare") {
        return;
    }
    let place = Place::with_volume();
    let (image, mnt) = (place.image(), place.sub("mnt"));
    let mut sleeper = in_own_mounts(place.dir(), "exec sleep 300").spawn().unwrap();
    let other = format!("/proc/{}/ns/mnt", sleeper.id());
    let space = |path: &str| fs::read_link(path).unwrap();
    wait_until("it is in a name space of its own", || space(&other) != space("/proc/self/ns/mnt"));
    let told = [&*other, "nothing is done in another mount name space", "nsenter --mount="];
    helper(&place, "mount.nenrin", &[&image, &mnt, "-N", &other]).fails(32, &told);
    helper(&place, "mount.nenrin", &[&image, &mnt, "-N", &sleeper.id().to_string()]).fails(32, &told[1..]);
    helper(&place, "mount.nenrin", &[&image, &mnt, "-N", "/no/such"]).fails(32, &["/no/such"]);
    place.umount().fails(1, &["nothing is mounted here"]);
    helper(&place, "mount.nenrin", &[&image, &mnt, "-N", "/proc/self/ns/mnt"]).ok();
    helper(&place, "umount.nenrin", &[&mnt, "-N", &other]).fails(32, &told);
    assert!(place.info()["pid"].is_number());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    helper(&place, "umount.nenrin", &[&mnt, "-N", "/proc/self/ns/mnt"]).ok();
}
