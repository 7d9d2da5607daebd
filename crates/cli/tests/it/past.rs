//! The past inside a live mount: `.nenrin/at` and `.snapshots`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs::{self, Permissions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn cut(place: &Place) -> u64 {
    nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].as_u64().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn states_are_there_and_are_listed_for_nobody() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/f"), "old").unwrap();
    symlink("dir/f", mnt.join("link")).unwrap();
    fs::hard_link(mnt.join("dir/f"), mnt.join("second")).unwrap();
    let cno = cut(&place);
    nenrin(["snapshot", "create", &place.text("mnt"), "monday"]).ok();
    fs::write(mnt.join("dir/f"), "new and longer").unwrap();
    fs::remove_file(mnt.join("link")).unwrap();

    assert_eq!(names(&mnt), ["dir", "second"], "nothing of it is listed");
    assert_eq!(names(&mnt.join(".nenrin")), ["at"]);
    let at = mnt.join(".nenrin/at");
    assert!(names(&at).contains(&"monday".to_owned()) && names(&at).contains(&cno.to_string()), "{:?}", names(&at));
    for when in [cno.to_string(), "monday".into(), "0 seconds ago".into()] {
        let root = at.join(&when);
        assert_eq!(fs::read_to_string(root.join("dir/f")).unwrap(), "old", "{when}");
        assert_eq!(names(&root), ["dir", "link", "second"]);
        assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("dir/f"));
        assert_eq!(fs::read_to_string(root.join("link")).unwrap(), "old");
        // Own inode numbers, the same for the same inode.
        let ino = |p: &str| fs::symlink_metadata(root.join(p)).unwrap().ino();
        assert_eq!(ino("dir/f"), ino("second"));
        assert_ne!(ino("dir/f"), fs::metadata(mnt.join("dir/f")).unwrap().ino());
        let listed = fs::read_dir(root.join("dir")).unwrap().next().unwrap().unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), ino("dir/f"));
    }
    assert_eq!(fs::read_to_string(mnt.join("dir/f")).unwrap(), "new and longer");
    for (when, no) in [("tuesday", libc::ENOENT), ("999999", libc::ENOENT), ("1990-01-01", libc::ENOENT)] {
        assert_eq!(errno(fs::metadata(at.join(when))), no, "{when}");
    }
    // The kernel keeps listings; one that was made before does not stay for ever.
    nenrin(["snapshot", "create", &place.text("mnt"), "listed later"]).ok();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(names(&at).contains(&"listed later".to_owned()), "{:?}", names(&at));
    // A snapshot that comes later is found, although it was asked for before.
    nenrin(["snapshot", "create", &place.text("mnt"), "tuesday"]).ok();
    assert_eq!(fs::read_to_string(at.join("tuesday/dir/f")).unwrap(), "new and longer");

    // As Samba spells it.
    let shelf = mnt.join(".snapshots");
    let first = names(&shelf)[0].clone();
    assert!(first.starts_with("@GMT-20") && first.len() == 24, "{first}");
    assert!(fs::metadata(shelf.join(&first)).unwrap().is_dir());
    assert!(fs::metadata(shelf.join("@GMT-1999.01.01-00.00.00")).is_err());

    // A past state has no past of its own.
    assert!(fs::metadata(at.join("monday/.nenrin")).is_err());
    place.umount().ok();
    nenrin(["mount", "-o", "at=monday", &place.image(), &place.text("mnt")]).ok();
    assert!(fs::metadata(mnt.join(".nenrin")).is_err());
}

#[test]
fn nothing_of_it_can_be_changed() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/f"), "old").unwrap();
    let root = mnt.join(".nenrin/at").join(cut(&place).to_string());
    let f = root.join("dir/f");
    let (read_only, not_permitted) = (libc::EROFS, libc::EPERM);
    assert_eq!(errno(fs::write(&f, "x")), read_only);
    assert_eq!(errno(fs::OpenOptions::new().append(true).open(&f)), read_only);
    assert_eq!(errno(fs::remove_file(&f)), read_only);
    assert_eq!(errno(fs::remove_dir(root.join("dir"))), read_only);
    assert_eq!(errno(fs::create_dir(root.join("new"))), read_only);
    assert_eq!(errno(fs::write(root.join("new"), "x")), read_only);
    assert_eq!(errno(symlink("x", root.join("new"))), read_only);
    assert_eq!(errno(fs::set_permissions(&f, Permissions::from_mode(0o777))), read_only);
    assert_eq!(errno(fs::rename(&f, root.join("g"))), read_only);
    assert_eq!(errno(fs::rename(&f, mnt.join("g"))), read_only);
    assert_eq!(errno(fs::rename(mnt.join("dir"), root.join("g"))), read_only);
    assert_eq!(errno(fs::hard_link(&f, mnt.join("g"))), libc::EXDEV);
    assert_eq!(errno(fs::hard_link(mnt.join("dir/f"), root.join("g"))), read_only);
    for made in [".nenrin", ".nenrin/at", ".snapshots"] {
        let dir = mnt.join(made);
        assert_eq!(errno(fs::write(dir.join("x"), "x")), read_only, "{made}");
        assert_eq!(errno(fs::create_dir(&dir)), libc::EEXIST, "{made}");
        let no = if made == ".nenrin/at" { read_only } else { not_permitted };
        assert_eq!(errno(fs::remove_dir(&dir)), no, "{made}");
        assert_eq!(errno(fs::rename(&dir, mnt.join("mine"))), no, "{made}");
        assert_eq!(errno(fs::rename(mnt.join("dir"), &dir)), no, "{made}");
    }
    assert_eq!(fs::read_to_string(&f).unwrap(), "old");
    // Copies are made, also by copy_file_range.
    fs::copy(&f, mnt.join("copy")).unwrap();
    run("cp", &["-a", root.join("dir").to_str().unwrap(), mnt.join("copied").to_str().unwrap()]).ok();
    assert_eq!(fs::read_to_string(mnt.join("copy")).unwrap(), "old");
    assert_eq!(fs::read_to_string(mnt.join("copied/f")).unwrap(), "old");
}

#[test]
fn permissions_are_those_of_then_and_now() {
    if !can_mount() || !is_root() || !has("setpriv") {
        return;
    }
    let place = Place::with_volume();
    fs::set_permissions(place.dir(), Permissions::from_mode(0o755)).unwrap();
    place.mount("checkpoint=0,allow_other").ok();
    let mnt = place.path("mnt");
    fs::set_permissions(&mnt, Permissions::from_mode(0o755)).unwrap();
    let with_mode = |name: &str, mode| {
        fs::write(mnt.join(name), name).unwrap();
        fs::set_permissions(mnt.join(name), Permissions::from_mode(mode)).unwrap();
    };
    with_mode("open", 0o644);
    with_mode("closed-later", 0o644);
    with_mode("opened-later", 0o600);
    with_mode("given-away", 0o604);
    with_mode("gone", 0o644);
    with_mode("gone-closed", 0o600);
    with_mode("program", 0o4755);
    with_mode("closed-and-replaced", 0o644);
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/f"), "in it").unwrap();
    let root = mnt.join(".nenrin/at").join(cut(&place).to_string());
    let can_read = |name: &str| {
        let path = root.join(name);
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]).arg(path);
        command.output().unwrap().status.success()
    };
    assert!(can_read("closed-later") && can_read("dir/f"), "before anything was closed");
    fs::set_permissions(mnt.join("closed-later"), Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(mnt.join("opened-later"), Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(mnt.join("dir"), Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(mnt.join("given-away"), Some(1), Some(1)).unwrap();
    fs::set_permissions(mnt.join("closed-and-replaced"), Permissions::from_mode(0o600)).unwrap();
    cut(&place);
    with_mode("new", 0o644);
    fs::rename(mnt.join("new"), mnt.join("closed-and-replaced")).unwrap();
    fs::remove_file(mnt.join("gone")).unwrap();
    fs::remove_file(mnt.join("gone-closed")).unwrap();
    // So long the kernel may believe what it was told.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let readable: Vec<&str> =
        "open closed-later opened-later given-away gone gone-closed program closed-and-replaced dir/f"
            .split(' ')
            .filter(|name| can_read(name))
            .collect();
    assert_eq!(readable, ["open", "gone", "program"]);
    assert_eq!(fs::metadata(root.join("program")).unwrap().mode() & 0o7777, 0o755, "no set-id bits of then");
    assert_eq!(fs::read_to_string(root.join("closed-later")).unwrap(), "closed-later", "root reads");
    // An access list that shuts somebody out counts for the past, too.
    if has("setfacl") {
        run("setfacl", &["-m", "u:65534:---", mnt.join("open").to_str().unwrap()]).ok();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(!can_read("open"));
        // A list that is the same means something else for another group.
        run("setfacl", &["-m", "u:1:r,g::r,o::-", mnt.join("program").to_str().unwrap()]).ok();
        std::os::unix::fs::chown(mnt.join("program"), None, Some(65534)).unwrap();
        let then = cut(&place);
        let program = mnt.join(".nenrin/at").join(then.to_string()).join("program");
        assert!(can_read(program.to_str().unwrap()), "by its group");
        std::os::unix::fs::chown(mnt.join("program"), None, Some(7)).unwrap();
        // Nor does it let its group in for another owner: of the bits that show, those of the group are the mask.
        with_mode("listed", 0o600);
        std::os::unix::fs::chown(mnt.join("listed"), Some(1), Some(65534)).unwrap();
        run("setfacl", &["-m", "u:7:r,g::-,m::r,o::-", mnt.join("listed").to_str().unwrap()]).ok();
        let then = cut(&place);
        let listed = mnt.join(".nenrin/at").join(then.to_string()).join("listed");
        assert!(!can_read(listed.to_str().unwrap()), "the list keeps its group out");
        std::os::unix::fs::chown(mnt.join("listed"), Some(2), None).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(!can_read(program.to_str().unwrap()));
        assert!(!can_read(mnt.join("listed").to_str().unwrap()) && !can_read(listed.to_str().unwrap()));
        assert_eq!(fs::metadata(&listed).unwrap().mode() & 0o777, 0o200, "a list lets nobody in who was the owner");
    }
}

/// Where device nodes count, a state of the past opens none: what is behind them is of today.
#[test]
fn no_device_is_opened_through_the_past() {
    if !can_mount() || !is_root() || !has("setpriv") {
        return;
    }
    let place = Place::with_volume();
    fs::set_permissions(place.dir(), Permissions::from_mode(0o755)).unwrap();
    place.mount("checkpoint=0,allow_other,dev").ok();
    let mnt = place.path("mnt");
    fs::set_permissions(&mnt, Permissions::from_mode(0o755)).unwrap();
    let node = mnt.join("null");
    run("mknod", &["-m", "666", node.to_str().unwrap(), "c", "1", "3"]).ok();
    let opens = |path: &Path, way: &str| {
        let script = format!(": {way} {}", path.display());
        let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", &script];
        std::process::Command::new("setpriv").args(nobody).output().unwrap().status.success()
    };
    assert!(opens(&node, ">") && opens(&node, "<"));
    let cno = cut(&place).to_string();
    let then = mnt.join(".nenrin/at").join(&cno).join("null");
    fs::set_permissions(&node, Permissions::from_mode(0o600)).unwrap();
    assert!(!opens(&node, ">") && !opens(&then, ">") && !opens(&then, "<"));
    fs::set_permissions(&node, Permissions::from_mode(0o666)).unwrap();
    fs::remove_file(&node).unwrap();
    assert!(!opens(&then, ">") && !opens(&then, "<"));
    // It comes back as it was.
    nenrin(["restore", node.to_str().unwrap(), "--at", &cno]).ok();
    assert_eq!(fs::metadata(&node).unwrap().mode(), libc::S_IFCHR | 0o666);
}

#[test]
fn what_is_looked_into_is_held_and_let_go() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::write(mnt.join("f"), vec![7; 100_000]).unwrap();
    let first = cut(&place);
    let mut open = fs::File::open(mnt.join(format!(".nenrin/at/{first}/f"))).unwrap();
    for _ in 0..5 {
        fs::write(mnt.join("f"), vec![8; 100_000]).unwrap();
        cut(&place);
    }
    // Thinned, but for what is looked into.
    nenrin(["retention", "set", &place.text("mnt"), "1s:all"]).ok();
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(bytes == vec![7; 100_000]);
    // Who deletes it means it: what is open says so, and nothing else happens.
    nenrin(["checkpoint", "delete", &place.text("mnt"), &first.to_string()]).ok();
    run("sh", &["-c", "echo 3 > /proc/sys/vm/drop_caches"]);
    open.seek(SeekFrom::Start(0)).unwrap();
    let again = open.read_to_end(&mut bytes);
    assert!(again.is_ok() || errno(again) == libc::ESTALE);
    assert!(fs::metadata(mnt.join(format!(".nenrin/at/{first}/f"))).is_err());
    drop(open);
    fs::write(mnt.join("f"), "on").unwrap();
    place.umount().ok();
}

/// Names of states are anybody's to make up: who asks for very many keeps nobody else from any state.
#[test]
fn names_beyond_number_leave_the_past_open() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::write(mnt.join("f"), "first").unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "first"]).ok();
    fs::write(mnt.join("f"), "second").unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "second"]).ok();
    let shelf = mnt.join(".snapshots");
    // A working directory in the past stays where it is.
    let before = fs::File::open(shelf.join("@GMT-2099.01.01-00.00.00")).unwrap();
    for n in 0..33_500 {
        let name = format!("@GMT-2099.01.{:02}-{:02}.{:02}.{:02}", 2 + n / 86_400, n / 3600 % 24, n / 60 % 60, n % 60);
        assert!(fs::symlink_metadata(shelf.join(&name)).unwrap().is_dir(), "{name}");
    }
    assert_eq!(fs::read_to_string(shelf.join("@GMT-2099.02.01-00.00.00/f")).unwrap(), "second");
    assert_eq!(fs::read_to_string(mnt.join(".nenrin/at/first/f")).unwrap(), "first");
    assert_eq!(fs::read_to_string(mnt.join(".nenrin/at/second/f")).unwrap(), "second");
    let inside = format!("/proc/self/fd/{}/f", std::os::fd::AsRawFd::as_raw_fd(&before));
    assert_eq!(fs::read_to_string(inside).unwrap(), "second");
    drop(before);
    place.umount().ok();
}

/// Beside a live mount its owner shows the past: what else was asked for would not be done.
#[test]
fn what_the_owner_does_not_do_is_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    nenrin(["snapshot", "create", &place.text("mnt"), "one"]).ok();
    let (image, past, log) = (place.image(), place.sub("past"), place.text("log"));
    for more in [&["-f"][..], &["--log", &log]] {
        let call = [&["mount"], more, &["-o", "at=one", &image, &past]].concat();
        nenrin(call).fails(2, &["image: the volume is mounted", "leave out -f, --log and log="]);
    }
    assert!(!place.path("log").exists());
    nenrin(["mount", "-o", "at=one", &image, &past]).ok();
}

/// What history shows of a time is what any command takes for it.
#[test]
fn a_state_is_had_by_the_time_that_is_shown() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (tt, mnt) = (place.text("mnt/tt"), place.text("mnt"));
    let mut cnos = Vec::new();
    for n in 1..=3 {
        fs::write(&tt, format!("state {n}")).unwrap();
        cnos.push(cut(&place));
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    let list = nenrin(["checkpoint", "list", "--json", &mnt]).json();
    let shown = nenrin(["history", &tt]).ok();
    for (n, cno) in (1..).zip(&cnos) {
        let exact = list.as_array().unwrap().iter().find(|c| c["cno"] == *cno).unwrap()["time"].as_str().unwrap();
        let second = exact[..19].replace('T', " ");
        assert!(shown.contains(&second), "{shown}");
        let content = format!("state {n}");
        for at in [exact, &second] {
            let to = place.text("mnt/restored");
            nenrin(["restore", &tt, "--at", at, "--to", &to]).ok();
            assert_eq!(fs::read_to_string(&to).unwrap(), content, "{at}");
            fs::remove_file(&to).unwrap();
            assert_eq!(fs::read_to_string(place.path("mnt/.nenrin/at").join(at).join("tt")).unwrap(), content, "{at}");
            let diff = nenrin(["diff", "--json", &mnt, at]).json();
            assert_eq!(diff["from"]["cno"], *cno, "{at}");
        }
    }
}

/// Whatever kind it is of, and however it is named.
#[test]
fn what_is_replaced_may_be_given_by_its_bare_name() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    for name in ["sl", "./sl", "$PWD/sl"] {
        let script = format!(
            "rm -rf sl file dir; echo 1 >file; ln -s file sl; mkdir dir
            cno=$($NENRIN checkpoint create .)
            ln -sfn other sl; echo 2 >file; touch dir/more
            for n in sl file dir; do
                $NENRIN restore $(echo {name} | sed s/sl/$n/) --at $cno --force
            done
            [ $(readlink sl) = file ] && [ $(cat file) = 1 ] && [ ! -e dir/more ]"
        );
        shell(&script, &place.path("mnt")).ok();
    }
}

/// The checkpoint that has what is replaced is older than the copy, unless something changes meanwhile.
#[test]
fn no_state_shows_the_copy_that_replaces_a_directory() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    for options in ["checkpoint=0", "checkpoint=0,cache=writeback"] {
        place.mount(options).ok();
        let script = "
            rm -rf d; mkdir -p d/sub; echo 1 >d/sub/f
            cno=$($NENRIN checkpoint create .)
            echo 2 >d/sub/f; echo 3 >d/new
            $NENRIN restore d --at $cno --force
            ls -A .nenrin/at/*/ | grep restoring && exit 1
            $NENRIN history . | grep restoring && exit 1
            [ $(cat d/sub/f) = 1 ] && [ ! -e d/new ]
            # What was replaced is there.
            for at in .nenrin/at/*; do cat $at/d/sub/f $at/d/new 2>/dev/null | tr '\\n' ' '; done | grep -q '2 3'";
        shell(script, &place.path("mnt")).ok();
        place.umount().ok();
    }
}

/// A name that another snapshot has by now shows that, and one that none has shows nothing, at once.
#[test]
fn a_snapshot_that_is_made_anew_is_seen_at_once() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, seen) = (place.text("mnt"), place.path("mnt/.nenrin/at/s/f"));
    for content in ["first", "second", "third"] {
        fs::write(place.path("mnt/f"), content).unwrap();
        nenrin(["snapshot", "create", &mnt, "s"]).ok();
        assert_eq!(fs::read_to_string(&seen).unwrap(), content);
        nenrin(["snapshot", "delete", &mnt, "s"]).ok();
    }
    assert_eq!(errno(fs::metadata(place.path("mnt/.nenrin/at/s"))), libc::ENOENT);
}
