//! `nenrin restore`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

pub(crate) fn cut(place: &Place) -> String {
    nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].to_string()
}

pub(crate) fn restore(args: &[&str]) -> Out {
    nenrin(["restore"].iter().chain(args))
}

#[test]
fn an_overwritten_file() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let file = place.path("mnt/report");
    let path = place.text("mnt/report");
    let first = vec![1; 3 << 20];
    fs::write(&file, &first).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    let cno = cut(&place);
    fs::write(&file, "spoilt").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    // It is there, so nothing happens without being told.
    restore(&[&path, "--at", &cno]).fails(1, &["report", "is there already", "--force", "--to"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "spoilt");
    let beside = place.text("mnt/report.old");
    let shared = || {
        let info = place.info();
        (info["live_bytes"].as_u64().unwrap(), info["shared_bytes"].as_u64().unwrap())
    };
    let before = shared();
    let told = restore(&[&path, "--at", &cno, "--to", &beside]).ok();
    assert!(told.contains(&format!("restored from checkpoint {cno} of 20")) && told.contains("3M"), "{told}");
    assert!(fs::read(&beside).unwrap() == first);
    let after = shared();
    assert_eq!(after.0, before.0 + (3 << 20), "what only history had is live again");
    let told = restore(&["--json", &path, "--at", &cno, "--force"]).json();
    assert_eq!((told["files"].as_u64(), told["bytes"].as_u64()), (Some(1), Some(3 << 20)));
    assert_eq!(told["from"]["cno"].to_string(), cno);
    assert!(fs::read(&file).unwrap() == first);
    let now = fs::metadata(&file).unwrap();
    assert_eq!((now.mode() & 0o7777, now.modified().unwrap()), (0o640, time));
    // What was replaced can be had back, although nobody had asked for a checkpoint.
    let states = nenrin(["history", "--json", &path]).json();
    let spoilt = states.as_array().unwrap().iter().find(|s| s["size"] == 6).expect("the replaced content");
    let gone = restore(&["--json", "--list-deleted", &place.text("mnt")]).json();
    assert_eq!(gone.as_array().unwrap().len(), 0, "nothing of the work is seen: {gone}");
    let at = place.path("mnt/.nenrin/at").join(spoilt["cno"].to_string()).join("report");
    assert_eq!(fs::read_to_string(at).unwrap(), "spoilt");
    // The old content of the file took a block inline or out of line; the second copy takes none.
    let twice = shared();
    assert_eq!(
        (twice.0.abs_diff(after.0) < 8192, twice.1),
        (true, 3 << 20),
        "two copies share their blocks: {twice:?}"
    );
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 2, "nothing is left behind");
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn a_removed_tree() {
    if !can_mount() || !has("setfattr") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    let dir = mnt.join("project");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("a/one"), "one").unwrap();
    fs::hard_link(dir.join("a/one"), dir.join("a/b/two")).unwrap();
    symlink("a/one", dir.join("link")).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    drop(sparse);
    fs::write(dir.join("a/closed"), "").unwrap();
    fs::set_permissions(dir.join("a/closed"), Permissions::from_mode(0o4400)).unwrap();
    run("setfattr", &["-n", "user.what", "-v", "kept", dir.join("a/one").to_str().unwrap()]).ok();
    run("mkfifo", &[dir.join("pipe").to_str().unwrap()]).ok();
    std::os::unix::fs::chown(dir.join("a/one"), Some(1234), Some(1235)).unwrap();
    let outside = place.sub("kept");
    run("cp", &["-a", dir.to_str().unwrap(), &outside]).ok();
    fs::write(mnt.join("elsewhere"), "").unwrap();
    let cno = cut(&place);
    fs::remove_dir_all(&dir).unwrap();
    fs::rename(mnt.join("elsewhere"), mnt.join("moved")).unwrap();

    let listed = restore(&["--list-deleted", &place.text("mnt")]).ok();
    assert!(listed.contains("project/") && listed.contains("removed") && listed.contains("moved to moved"), "{listed}");
    let listed = restore(&["--json", "--list-deleted", dir.to_str().unwrap()]).json();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "link", "pipe", "sparse"], "of a directory that is gone itself");
    assert_eq!(listed[0]["cno"].to_string(), cno);

    let told = restore(&[dir.to_str().unwrap(), "--at", &cno]).ok();
    assert!(told.contains("5 files and 3 directories"), "{told}");
    // Modes without set-id bits; everything else as it was.
    fs::set_permissions(place.path("kept/project/a/closed"), Permissions::from_mode(0o400)).unwrap();
    let compare = "cd kept/project && find . -printf '%P %y %m %U:%G %n %s %l %T@\\n' | grep -v '^ \\|/$' | sort > ../a
        cd ../../mnt/project && find . -printf '%P %y %m %U:%G %n %s %l %T@\\n' | grep -v '^ \\|/$' | sort > ../../kept/b
        cd ../.. && diff kept/a kept/b && diff -r --no-dereference -x pipe kept/project mnt/project";
    let differs = shell(&format!("{compare} >&2"), place.dir());
    // Directories' sizes are each file system's own matter.
    let lines: Vec<&str> = differs.stderr.lines().filter(|l| l.starts_with(['<', '>']) && !l.contains(" d ")).collect();
    assert!(lines.is_empty(), "{}", differs.stderr);
    assert_eq!(fs::metadata(dir.join("a/one")).unwrap().ino(), fs::metadata(dir.join("a/b/two")).unwrap().ino());
    assert!(fs::metadata(dir.join("sparse")).unwrap().blocks() < 64, "holes stay holes");
    let value = run("getfattr", &["--only-values", "-n", "user.what", dir.join("a/one").to_str().unwrap()]).ok();
    assert_eq!(value, "kept");
    // A single file out of it, below a directory that is there again; and elsewhere.
    restore(&[dir.join("a/one").to_str().unwrap(), "--at", &cno, "--to", &place.text("outside")]).ok();
    assert_eq!(fs::read_to_string(place.path("outside")).unwrap(), "one");
    // A tree over a tree, a file over a directory.
    fs::write(dir.join("new"), "").unwrap();
    restore(&[dir.to_str().unwrap(), "--at", &cno, "--force"]).ok();
    assert!(!dir.join("new").exists() && dir.join("a/one").exists());
    let (one, dir_text) = (dir.join("a/one").to_str().unwrap().to_owned(), dir.to_str().unwrap());
    restore(&[&one, "--at", &cno, "--as", dir_text]).fails(1, &["is there already", "--force"]);
    restore(&[&one, "--at", &cno, "--force", "--as", dir_text]).ok();
    assert_eq!(fs::read_to_string(&dir).unwrap(), "one");
    place.umount().ok();
    nenrin(["check", "--data", &place.image()]).ok();
}

#[test]
fn what_cannot_be_restored() {
    restore(&[]).fails(2, &["a path is needed"]);
    restore(&["x/y z"])
        .fails(2, &["--at says which state: nenrin history 'x/y z' shows", "--list-deleted x which one"]);
    restore(&["--list-deleted"]).fails(2, &["a directory is needed"]);
    restore(&["--list-deleted", "x", "--force"]).fails(2, &["--list-deleted restores nothing"]);
    restore(&["/proc/version", "--at", "1"]).fails(1, &["not on a nenrin volume"]);
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    let (f, root) = (place.text("mnt/f"), place.text("mnt"));
    restore(&[&f, "--at", "1"]).fails(1, &["no checkpoint 1", "no checkpoints yet"]);
    fs::write(mnt.join("f"), vec![1; 1 << 20]).unwrap();
    fs::create_dir(mnt.join("d")).unwrap();
    fs::write(mnt.join("d/in"), "in").unwrap();
    let cno = cut(&place);
    restore(&[&f, "--at", "999"]).fails(1, &["no checkpoint 999", &cno]);
    restore(&[&f, "--at", "1990-01-01"]).fails(1, &["no state as old as 1990"]);
    restore(&[&f, "--at", "nobody"]).fails(1, &["no snapshot \"nobody\""]);
    restore(&[&place.text("mnt/g"), "--at", &cno])
        .fails(1, &["mnt/g", "was not there in checkpoint", "nenrin history"]);
    restore(&[&place.text("mnt/f/x"), "--at", &cno]).fails(1, &["was not there in checkpoint"]);
    restore(&[&root, "--at", &cno]).fails(1, &["all of the volume", "--to"]);
    restore(&[&f, "--at", &cno, "--to", &place.text("mnt/no/f")]).fails(1, &["mnt/no", "is not there", "--to DEST"]);
    restore(&[&place.text("mnt/d"), "--at", &cno, "--to", &f]).fails(1, &["mnt/f", "is there already"]);
    fs::remove_dir_all(mnt.join("d")).unwrap();
    restore(&[&place.text("mnt/d/in"), "--at", &cno]).fails(1, &["mnt/d", "make or restore that directory"]);
    // Without room: to another, small file system.
    let small = place.sub("small");
    if run("mount", &["-t", "tmpfs", "-o", "size=64k", "none", &small]).code == 0 {
        let out = restore(&[&f, "--at", &cno, "--to", &place.text("small/f")]);
        let left = fs::read_dir(&small).unwrap().count();
        run("umount", &[&small]).ok();
        out.fails(1, &["small/f", "No space left"]);
        assert_eq!(left, 0, "nothing is left behind");
    }
    // Without permission.
    if is_root() && has("setpriv") {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_nenrin")]);
        let out = command.args(["restore", &f, "--at", &cno]).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&out.stderr).lines().count(), 1);
    }
    // Over a directory in which something is mounted, and over one that lies elsewhere.
    fs::create_dir_all(mnt.join("tree/inner")).unwrap();
    let cno_of_tree = cut(&place);
    let other = place.sub("other");
    fs::write(place.path("other/keep"), "keep").unwrap();
    if run("mount", &["--bind", &other, mnt.join("tree/inner").to_str().unwrap()]).code == 0 {
        let out = restore(&[&place.text("mnt/tree"), "--at", &cno_of_tree, "--force"]);
        run("umount", &[mnt.join("tree/inner").to_str().unwrap()]).ok();
        out.fails(1, &["tree/inner", "something is mounted there"]);
    }
    let out = restore(&[&place.text("mnt/tree"), "--at", &cno_of_tree, "--force", "--as", &other]);
    out.fails(1, &["other", "keeps no past of it", "move it away first"]);
    assert_eq!(fs::read_to_string(place.path("other/keep")).unwrap(), "keep");
    // So it is with files and links there: nothing would bring them back.
    let (keep, link) = (place.text("other/keep"), place.text("link"));
    symlink("other/keep", &link).unwrap();
    for to in [&keep, &link] {
        let out = restore(&[&f, "--at", &cno, "--force", "--to", to]);
        out.fails(1, &[to, "keeps no past of it", "move it away first"]);
    }
    // Nor is it told that --force would.
    let out = restore(&[&f, "--at", &cno, "--to", &keep]);
    assert!(!out.stderr.contains("--force"), "{out:?}");
    out.fails(1, &[&keep, "is there already", "keeps no past of it", "move it away first"]);
    assert_eq!(fs::read_to_string(&keep).unwrap(), "keep");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("other/keep"));
    restore(&[&f, "--at", &cno, "--force", "--to", &place.text("other/new")]).ok();
    assert!(fs::read(place.path("other/new")).unwrap() == vec![1; 1 << 20]);
    assert!(!fs::read_dir(place.dir()).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().starts_with(".rest")));
    // From a mount that is of the past itself.
    let past = place.sub("past");
    nenrin(["mount", "-o", &format!("cp={cno}"), &place.image(), &past]).ok();
    restore(&[&place.text("past/f"), "--at", &cno, "--to", &place.text("x")]).fails(1, &["shows a state of the past"]);
    nenrin(["umount", &past]).ok();
    // A directory that nobody may write to, by its owner.
    if is_root() && has("setpriv") {
        let user = |args: &[&str]| {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(args);
            let out = command.output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        fs::set_permissions(place.dir(), Permissions::from_mode(0o777)).unwrap();
        let (image, dir) = (place.text("user.img"), place.text("user"));
        let program = place.text("nenrin");
        fs::copy(env!("CARGO_BIN_EXE_nenrin"), &program).unwrap();
        // As on every machine that has udev.
        let open_to_all = fs::metadata("/dev/fuse").is_ok_and(|m| m.mode() & 0o006 == 0o006);
        if open_to_all && std::path::Path::new("/usr/bin/fusermount3").exists() {
            user(&[&program, "mkfs", "--size", SIZE, &image]);
            user(&["mkdir", &dir]);
            user(&[&program, "mount", &image, &dir]);
            let tree = place.text("user/tree");
            user(&["sh", "-c", &format!("mkdir -p {tree}/a && echo x >{tree}/a/f && chmod 555 {tree}/a {tree}")]);
            user(&[&program, "snapshot", "create", &dir, "s"]);
            for _ in 0..2 {
                user(&[&program, "restore", &tree, "--at", "s", "--force"]);
            }
            user(&[&program, "restore", &tree, "--at", "s", "--to", &place.text("user/again")]);
            user(&["sh", "-c", &format!("test $(ls -A {dir} | wc -l) = 2 && test $(stat -c %a {dir}/again) = 555")]);
            user(&[&program, "umount", &dir]);
        }
    }
    // What is mounted by another directory of it.
    let bound = place.sub("bound");
    fs::create_dir(mnt.join("e")).unwrap();
    fs::write(mnt.join("e/f"), "x").unwrap();
    let cno = cut(&place);
    if run("mount", &["--bind", mnt.join("e").to_str().unwrap(), &bound]).code == 0 {
        let out = restore(&[&place.text("bound/f"), "--at", &cno, "--force"]);
        run("umount", &[&bound]).ok();
        out.fails(1, &["only a directory of the volume is mounted here"]);
    }
}

/// A directory in what is replaced is another user's by now, who alone may empty it: the restore is done, and it is told what stays.
#[test]
fn what_cannot_be_removed_stays_beside() {
    if !can_mount() || !has("fusermount3") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let proj = place.path("mnt/proj");
    fs::create_dir_all(proj.join("out")).unwrap();
    fs::write(proj.join("f"), "then").unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "then"]).ok();
    fs::write(proj.join("f"), "now").unwrap();
    fs::write(proj.join("out/built"), "by root").unwrap();
    for path in [&place.path("mnt"), &proj, &proj.join("f")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    place.umount().ok();
    for path in ["image", "mnt"] {
        std::os::unix::fs::chown(place.path(path), Some(65534), Some(65534)).unwrap();
    }
    let script = "
        $NENRIN mount image mnt
        $NENRIN restore --json mnt/proj --at then --force && exit 9
        cat mnt/proj/f mnt/proj.kept-by-restore/proj/out/built
        $NENRIN umount mnt";
    let Some(out) = as_nobody(&place, script) else { return };
    let said = out.stderr.clone();
    let text = out.ok();
    assert!(text.contains("\"rest\": \"mnt/proj.kept-by-restore\"") && text.ends_with("thenby root"), "{text}");
    let parts = [
        "what was replaced could not be removed",
        "is in mnt/proj.kept-by-restore",
        "Permission denied",
        "mnt/proj is restored",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

/// What is replaced can be brought back, or is not replaced.
#[test]
fn what_keeps_less_history_is_not_lost() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (file, tree) = (place.text("mnt/f"), place.text("mnt/tree"));
    fs::create_dir(&tree).unwrap();
    let write = |content: &str| {
        fs::write(&file, content).unwrap();
        fs::write(format!("{tree}/a"), content).unwrap();
    };
    write("old");
    let cno = cut(&place);
    write("new");
    let read = || [&file, &format!("{tree}/a")].map(|p| fs::read_to_string(p).unwrap());
    let attribute = |value: &str, path: &str| {
        run("setfattr", &["-n", "user.nenrin.history", "-v", value, path]).ok();
    };
    if !has("setfattr") {
        return;
    }
    attribute("none", &file);
    attribute("daily", &format!("{tree}/a"));
    let way_out = ["would be lost", "nenrin snapshot create", "--to DEST"];
    restore(&[&file, "--at", &cno, "--force"]).fails(1, &[&["f: keeps less", "is none"], &way_out[..]].concat());
    restore(&[&tree, "--at", &cno, "--force"]).fails(1, &[&["tree/a: keeps less", "is daily"], &way_out[..]].concat());
    assert_eq!(read(), ["new", "new"]);
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 2);
    restore(&[&file, "--at", &cno, "--to", &place.text("mnt/beside")]).ok();
    fs::remove_file(place.path("mnt/beside")).unwrap();
    // A snapshot that shows something else helps nobody; one of now does.
    nenrin(["snapshot", "create", &place.text("mnt"), "before"]).ok();
    write("newer");
    restore(&[&file, "--at", &cno, "--force"]).fails(1, &way_out);
    let kept = nenrin(["snapshot", "create", "--json", &place.text("mnt"), "kept"]).json()["cno"].as_u64().unwrap();
    let told = restore(&[&file, "--at", &cno, "--force"]).ok();
    assert!(told.contains(&format!("snapshot {kept} has what was there, as far as that keeps less history")), "{told}");
    let told = restore(&["--json", &tree, "--at", &cno, "--force"]).json();
    assert_eq!((told["replaced_kept_in"].as_u64(), told["replaced_kept_in_snapshot"].as_u64()), (None, Some(kept)));
    assert_eq!(read(), ["old", "old"]);
    for path in [&file, &tree] {
        restore(&[path, "--at", "kept", "--to", &format!("{path}.back")]).ok();
    }
    assert_eq!(fs::read_to_string(format!("{file}.back")).unwrap(), "newer");
    assert_eq!(fs::read_to_string(format!("{tree}.back/a")).unwrap(), "newer");
    // In a state that shows it, "full" is what everything else has.
    attribute("full", &file);
    fs::write(&file, "last").unwrap();
    restore(&[&file, "--at", &cno, "--force"]).ok();
}

/// Under `cache=writeback` the kernel has its own times of a file, and two writes within a tick of its clock have the same: what counts is
/// what the volume has of it, in the snapshot and now.
#[test]
fn what_a_snapshot_shows_is_told_by_the_volume() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0,cache=writeback,barrier=none").ok();
    let path = place.text("mnt/f");
    fs::write(&path, "old").unwrap();
    let cno = cut(&place);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, c"user.nenrin.history", b"none", flags).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let write = |bytes: &[u8]| {
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
        let meta = file.metadata().unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    if !(0..10_000).any(|_| write(b"one") == write(b"two")) {
        crate::common::left_out(format_args!("the clock ticks faster than two writes"));
        return;
    }
    let way_out = ["would be lost", "nenrin snapshot create"];
    restore(&[&path, "--at", &cno, "--force"]).fails(1, &way_out);
    nenrin(["snapshot", "create", &place.text("mnt"), "kept"]).ok();
    restore(&[&path, "--at", &cno, "--force"]).ok();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    restore(&[&path, "--at", "kept", "--force"]).ok();
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
}

/// A program has emptied a file and writes it anew, and has it open still: that is kept as well when something takes its place. What
/// another program is writing is none of it.
#[test]
fn what_is_being_written_anew_is_kept() {
    if !can_mount() {
        return;
    }
    for options in ["checkpoint=0", "checkpoint=0,cache=writeback"] {
        let place = Place::with_volume();
        place.mount(options).ok();
        let (path, other) = (place.text("mnt/report"), place.text("mnt/other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "whole").unwrap();
        let cno = cut(&place);
        let [mut open, mut half] = [&path, &other].map(|path| fs::File::create(path).unwrap());
        open.write_all(b"the work of today").unwrap();
        half.write_all(b"ha").unwrap();
        restore(&[&path, "--at", &cno, "--force"]).ok();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(open);
        let states = nenrin(["history", "--json", &path]).json();
        let kept = states.as_array().unwrap().iter().find(|s| s["size"] == 17).expect("what was replaced");
        let at = place.path("mnt/.nenrin/at").join(kept["cno"].to_string());
        assert_eq!(fs::read_to_string(at.join("report")).unwrap(), "the work of today");
        assert_eq!(fs::read_to_string(at.join("other")).unwrap(), "whole", "{options}");
        drop(half);
        place.umount().ok();
    }
}

/// Of what keeps no history a state knows that it was there, and not what it was: the rest of a tree comes back without it.
#[test]
fn what_a_state_does_not_know_is_left_out() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let tree = place.path("mnt/d");
    fs::create_dir_all(tree.join("deep")).unwrap();
    for (name, content) in [("kept", "kept"), ("linked", "old")] {
        fs::write(tree.join(name), content).unwrap();
    }
    symlink("kept", tree.join("link")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(tree.join("linked"), c"user.nenrin.history", b"none", flags).unwrap();
    fs::hard_link(tree.join("linked"), tree.join("again")).unwrap();
    fs::hard_link(tree.join("linked"), tree.join("deep/third")).unwrap();
    fs::hard_link(tree.join("kept"), tree.join("deep/kept")).unwrap();
    let cno = cut(&place);
    fs::write(tree.join("linked"), "new").unwrap();
    cut(&place);
    let to = place.text("mnt/d2");
    let out = restore(&["--json", tree.to_str().unwrap(), "--at", &cno, "--to", &to]);
    assert_eq!((out.code, out.stderr.matches("and was left out").count()), (1, 3), "{}", out.stderr);
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let left_out = told["left_out"].as_array().unwrap();
    assert!(left_out.iter().all(|l| l["why"] == "unknown"), "{left_out:?}");
    let mut paths: Vec<_> = left_out.iter().map(|l| l["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    let want = ["again", "deep/third", "linked"].map(|name| format!("{}/{name}", tree.display()));
    assert_eq!(paths, want);
    assert_eq!((told["files"].as_u64(), told["directories"].as_u64()), (Some(2), Some(2)));
    let mut names: Vec<_> = fs::read_dir(&to).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["deep", "kept", "link"]);
    let ino = |name: &str| fs::metadata(format!("{to}/{name}")).unwrap().ino();
    assert_eq!(ino("kept"), ino("deep/kept"));
    // By itself it is no tree that could do without.
    let linked = tree.join("linked").to_str().unwrap().to_owned();
    restore(&[&linked, "--at", &cno, "--to", &place.text("mnt/e")]).fails(1, &["linked: is not known in that state"]);
    assert!(!place.path("mnt/e").exists());
}

/// A symbolic link that a state has where there is a directory now leads out of that state: to what is there now, or elsewhere.
#[test]
fn links_of_the_past_lead_nowhere() {
    if !can_mount() || !has("setfattr") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (dir, real, foreign) = (place.path("mnt/d"), place.path("mnt/real"), place.path("foreign"));
    let (file, mnt) = (place.text("mnt/d/f"), place.text("mnt"));
    for made in [&dir, &real, &foreign] {
        fs::create_dir(made).unwrap();
    }
    fs::write(&file, "old").unwrap();
    fs::write(foreign.join("f"), "foreign").unwrap();
    fs::create_dir(foreign.join("deep")).unwrap();
    let first = cut(&place);
    fs::remove_dir_all(&dir).unwrap();
    let as_link = |to: &Path| {
        symlink(to, &dir).unwrap();
        let cno = cut(&place);
        fs::remove_file(&dir).unwrap();
        cno
    };
    let (abroad, inner) = (as_link(&foreign), as_link(Path::new("real")));
    symlink(&real, &dir).unwrap();
    nenrin(["snapshot", "create", &mnt, "s"]).ok();
    fs::remove_file(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "now").unwrap();
    fs::hard_link(&file, real.join("f")).unwrap();

    for cno in [&abroad, &inner] {
        let not_there = ["mnt/d/f", "was not there in checkpoint", "nenrin history"];
        restore(&[&file, "--at", cno, "--force"]).fails(1, &not_there);
        restore(&[&file, "--at", cno, "--to", &place.text("out")]).fails(1, &not_there);
        restore(&[&place.text("mnt/d/deep"), "--at", cno]).fails(1, &["was not there in checkpoint"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "now");
    assert!(!place.path("out").exists());
    // The link itself is what there was.
    restore(&[&place.text("mnt/d"), "--at", &abroad, "--to", &place.text("mnt/link")]).ok();
    assert_eq!(fs::read_link(place.path("mnt/link")).unwrap(), foreign);
    // Nor does the snapshot have what its link leads to.
    run("setfattr", &["-n", "user.nenrin.history", "-v", "none", &file]).ok();
    restore(&[&file, "--at", &first, "--force"]).fails(1, &["would be lost", "nenrin snapshot create"]);
    nenrin(["snapshot", "create", &mnt, "kept"]).ok();
    restore(&[&file, "--at", &first, "--force"]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}

#[test]
fn where_nothing_is_restored_to() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let path = place.text("mnt/f");
    fs::write(&path, "f").unwrap();
    let cno = cut(&place);
    restore(&[&path, "--at", &cno, "--to", &format!("{path}/new")]).fails(1, &["f: is not a directory", "--to"]);
    restore(&["--list-deleted", &path]).fails(1, &["f: is not a directory", "nenrin history"]);
    let pipe = place.text("pipe");
    run("mkfifo", &[&pipe]).ok();
    restore(&[&path, "--at", &cno, "--to", &pipe, "--force"]).fails(1, &["pipe: is neither a file nor"]);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&fs::metadata(&pipe).unwrap().file_type()));
    // Where there was a directory once, what that had is told.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(format!("{path}/deep"), "").unwrap();
    cut(&place);
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "f").unwrap();
    assert!(restore(&["--list-deleted", &path]).ok().contains("deep"));
}

/// Who ends a restore while it copies finds nothing of it: not under the name, and not beside it.
#[test]
fn a_restore_that_is_ended_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let many = place.path("mnt/many");
    fs::create_dir(&many).unwrap();
    for i in 0..1500 {
        fs::write(many.join(i.to_string()), [7; 100]).unwrap();
    }
    let at = cut(&place);
    let from = many.to_str().unwrap();
    let to = place.text("mnt/again");
    let names = || -> Vec<_> { fs::read_dir(place.path("mnt")).unwrap().map(|e| e.unwrap().file_name()).collect() };
    // An owner that does not answer is still being asked meanwhile.
    let socket = Path::new("/run/nenrin").join(format!("silent-{}.sock", std::process::id()));
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    struct Removed(std::path::PathBuf);
    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }
    let _removed = Removed(socket);
    for _ in 0..60 {
        let args = ["restore", from, "--at", &at, "--to", &to];
        let mut child = ended_by_signals(args).stderr(Stdio::piped()).spawn().unwrap();
        // It listens before it makes anything.
        while names() == ["many"] && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        if child.try_wait().unwrap().is_none() {
            signal(child.id(), "INT");
        }
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        match out.status.code() {
            // It was done before the signal came, and perhaps about to leave.
            Some(0) | None => fs::remove_dir_all(place.path("mnt/again")).unwrap(),
            code => {
                assert_eq!((code, said.trim()), (Some(130), "nenrin: interrupted; nothing was restored"));
                assert_eq!(names(), ["many"]);
                return;
            }
        }
    }
    panic!("never hit it while it copied");
}

/// What a process left that was killed is not another restore's, whatever number that has.
#[test]
fn what_a_broken_restore_left_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/f"), "f").unwrap();
    let cno = cut(&place);
    // The shell becomes the program, and its number stays. The second is of a process that is there.
    let hex = "0123456789abcdef0123456789abcdef";
    let script = format!("mkdir .restoring-$$-{hex} .restoring-1-{hex}; exec $NENRIN restore f --at {cno} --to g");
    let out = shell(&script, &place.path("mnt"));
    let told: Vec<_> = out.stderr.lines().collect();
    assert!(out.code == 0 && place.path("mnt/g").exists(), "{out:?}");
    assert!(
        matches!(told[..], [one] if one.contains("left from a restore that was broken off: look into it")),
        "{told:?}"
    );
    assert!(told[0].contains(".restoring-") && !told[0].contains(".restoring-1-"), "{told:?}");
    // Of one that is gone.
    fs::create_dir(place.path(&format!("mnt/.restoring-4194305-{hex}"))).unwrap();
    let out = restore(&[&place.text("mnt/f"), "--at", &cno, "--to", &place.text("mnt/h")]);
    assert!(out.code == 0 && out.stderr.contains(".restoring-4194305-"), "{out:?}");
}

/// P4: what is damaged of a tree is named where it was, and all else comes back.
#[test]
fn what_is_damaged_is_left_out() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let tree = place.path("mnt/d");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("bad"), vec![0xb3; 100_000]).unwrap();
    fs::write(tree.join("good"), "good").unwrap();
    let cno = cut(&place);
    place.umount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.chunks(4096).rposition(|b| b.iter().all(|x| *x == 0xb3)).unwrap();
    place.patch(at as u64 * 4096, b"damage");
    place.mount("checkpoint=0").ok();
    let (tree, to) = (tree.to_str().unwrap(), place.text("elsewhere"));
    let out = restore(&["--json", tree, "--at", &cno, "--to", &to]);
    let said = format!("{tree}/bad is damaged and cannot be read in checkpoint {cno}");
    assert!(out.code == 1 && out.stderr.contains(&said), "{out:?}");
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["left_out"], serde_json::json!([{ "path": format!("{tree}/bad"), "why": "damaged" }]));
    let names: Vec<_> = fs::read_dir(&to).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["good"]);
    // By itself it is no tree that could do without.
    let bad = format!("{tree}/bad");
    restore(&[&bad, "--at", &cno, "--to", &place.text("e")])
        .fails(1, &[&format!("{bad}: is damaged and cannot be read")]);
    assert!(!place.path("e").exists());
}

/// Damages the last block of an image that is full of this byte, and of no other file.
pub(crate) fn spoil(place: &Place, byte: u8) {
    let image = fs::read(place.image()).unwrap();
    let at = image.chunks(4096).rposition(|b| b.iter().all(|x| *x == byte)).unwrap();
    place.patch(at as u64 * 4096, b"damage");
}

/// P4: blocks are read before they are shared, from the device: a copy is whole or is not made, and takes no good file's place.
#[test]
fn what_is_damaged_is_not_shared() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, tree) = (place.path("mnt"), place.path("mnt/d"));
    let (bad, seen) = (place.text("mnt/d/bad"), place.text("mnt/d/seen"));
    fs::create_dir(&tree).unwrap();
    for (path, byte) in [(&bad, 0xb3), (&seen, 0xb5)] {
        fs::write(path, vec![byte; 100_000]).unwrap();
    }
    fs::write(tree.join("good"), "good").unwrap();
    let cno = cut(&place);
    for path in [&bad, &seen] {
        fs::write(path, "now").unwrap();
    }
    place.umount().ok();
    spoil(&place, 0xb3);
    place.mount("checkpoint=0").ok();
    // This one rots while the kernel remembers what it was.
    assert_eq!(fs::read(mnt.join(format!(".nenrin/at/{cno}/d/seen"))).unwrap(), vec![0xb5; 100_000]);
    spoil(&place, 0xb5);

    for path in [&bad, &seen] {
        let damaged = format!("{path}: is damaged and cannot be read in that state");
        restore(&[path, "--at", &cno, "--force"]).fails(1, &[&damaged]);
        restore(&[path, "--at", &cno, "--to", &place.text("mnt/beside")]).fails(1, &[&damaged]);
    }
    let tree = tree.to_str().unwrap();
    restore(&[tree, "--at", &cno, "--force"]).fails(1, &["is damaged and cannot be read", "would be lost where it is"]);
    for path in [&bad, &seen] {
        assert_eq!(fs::read_to_string(path).unwrap(), "now");
    }
    let out = restore(&[tree, "--at", &cno, "--to", &place.text("mnt/d2")]);
    for path in [&bad, &seen] {
        let said = format!("{path} is damaged and cannot be read in checkpoint {cno}");
        assert!(out.code == 1 && out.stderr.contains(&said), "{out:?}");
    }
    assert!(out.stdout.contains("1 file and 1 directory, 4 bytes"), "{out:?}");
    let names: Vec<_> = fs::read_dir(mnt.join("d2")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["good"]);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2, "nothing is left behind");
}

/// A file of which most is a hole comes back in no time, and holes stay holes.
#[test]
fn holes_are_not_read() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (path, end) = (place.text("mnt/f"), 1 << 44);
    let file = fs::File::create(&path).unwrap();
    for at in [5, 1 << 43, end - 3] {
        file.write_all_at(b"end", at).unwrap();
    }
    drop(file);
    let cno = cut(&place);
    fs::write(&path, "now").unwrap();
    restore(&[&path, "--at", &cno, "--force"]).ok();
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.len() == end && meta.blocks() < 64, "{meta:?}");
    let mut bytes = [0; 4];
    fs::File::open(&path).unwrap().read_exact_at(&mut bytes, end - 4).unwrap();
    assert_eq!(&bytes, b"\0end");
}

/// More names of attributes than the kernel lists: what they belong to comes back without them.
#[test]
fn attributes_that_cannot_be_listed_are_left_out() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let tree = place.path("mnt/d");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("many"), "content").unwrap();
    fs::write(tree.join("one"), "").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for i in 0..300 {
        rustix::fs::setxattr(tree.join("many"), format!("user.{i:0240}"), b"v", flags).unwrap();
    }
    rustix::fs::setxattr(tree.join("one"), c"user.one", b"v", flags).unwrap();
    let cno = cut(&place);
    let tree = tree.to_str().unwrap();
    restore(&[tree, "--at", &cno, "--force"]).fails(1, &["many", "has more extended attributes than can be listed"]);
    fs::remove_dir_all(tree).unwrap();
    let out = restore(&["--json", tree, "--at", &cno]);
    assert!(out.code == 1 && out.stderr.contains("and these were left out"), "{out:?}");
    let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["left_out"], serde_json::json!([{ "path": format!("{tree}/many"), "why": "attributes" }]));
    assert_eq!(fs::read_to_string(format!("{tree}/many")).unwrap(), "content");
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(format!("{tree}/one"), c"user.one", value.as_mut_slice()).unwrap(), 1);
}
