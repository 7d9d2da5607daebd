//! `nenrin diff`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

/// Exit code and what was printed, without the line that names the states.
fn told(args: &[&str]) -> (i32, Vec<String>) {
    let out = command([&["diff"], args].concat()).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    (out.status.code().unwrap(), text.lines().map(str::to_owned).collect())
}

#[test]
fn what_came_went_changed_and_moved() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    for d in ["kept", "moved/deep", "gone"] {
        fs::create_dir_all(mnt.join(d)).unwrap();
    }
    for f in ["same", "changed", "mode", "old name", "kept/f", "moved/deep/f", "moved/deep/g", "gone/f"] {
        fs::write(mnt.join(f), f).unwrap();
    }
    nenrin(["snapshot", "create", &root, "before"]).ok();
    assert_eq!(told(&[&root, "before"]), (0, vec![]));
    fs::write(mnt.join("changed"), "other").unwrap();
    fs::set_permissions(mnt.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(mnt.join("old name"), mnt.join("kept/new name")).unwrap();
    fs::rename(mnt.join("moved"), mnt.join("elsewhere")).unwrap();
    fs::write(mnt.join("elsewhere/deep/g"), "changed, too").unwrap();
    fs::remove_dir_all(mnt.join("gone")).unwrap();
    fs::create_dir(mnt.join("new")).unwrap();
    fs::write(mnt.join("new/f"), "").unwrap();
    // Another file under the same name.
    fs::remove_file(mnt.join("kept/f")).unwrap();
    fs::write(mnt.join("kept/f"), "kept/f").unwrap();
    // Reading changes nothing.
    fs::read(mnt.join("same")).unwrap();
    let want = [
        "M changed",
        "R moved/ -> elsewhere/",
        "M elsewhere/deep/g",
        "- gone/",
        "- gone/f",
        "M kept/",
        "M kept/f (attributes)",
        "R old name -> kept/new name",
        "M mode (attributes)",
        "+ new/",
        "+ new/f",
    ];
    let (code, mut lines) = told(&[&root, "before"]);
    let mut want: Vec<String> = want.iter().map(|l| (*l).to_owned()).collect();
    lines.sort();
    want.sort();
    assert_eq!((code, lines), (0, want.clone()));
    // Between two states of the past, of a part, and backwards.
    nenrin(["snapshot", "create", &root, "after"]).ok();
    fs::write(mnt.join("later"), "").unwrap();
    let (code, mut lines) = told(&[&root, "before", "after"]);
    lines.sort();
    assert_eq!((code, lines), (0, want));
    let kept = mnt.join("kept").to_str().unwrap().to_owned();
    assert_eq!(told(&[&kept, "before", "after"]).1, ["M f (attributes)", "+ new name"]);
    assert_eq!(
        told(&[&root, "after", "before"]).1.iter().filter(|l| l.starts_with("R elsewhere/ -> moved/")).count(),
        1
    );
    // Of a directory that one state lacks.
    let new = mnt.join("new").to_str().unwrap().to_owned();
    assert_eq!(told(&[&new, "before", "after"]), (0, vec!["+ f".into()]));
    let json = command(["diff", "--json", &new, "before"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["differences"][0]["change"], "+");
    assert_eq!(json["from"]["name"], "before");
}

/// What came back as it was is not modified, whatever its inodes are by now.
#[test]
fn what_was_restored_differs_in_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root, dir) = (place.path("mnt"), place.text("mnt"), place.text("mnt/d"));
    fs::create_dir_all(mnt.join("d/e")).unwrap();
    fs::write(mnt.join("d/large"), vec![7; 3 << 20]).unwrap();
    fs::write(mnt.join("d/e/small"), "small").unwrap();
    std::os::unix::fs::symlink("large", mnt.join("d/link")).unwrap();
    rustix::fs::setxattr(mnt.join("d/large"), c"user.a", b"v", rustix::fs::XattrFlags::empty()).unwrap();
    nenrin(["snapshot", "create", &root, "then"]).ok();
    fs::remove_dir_all(mnt.join("d")).unwrap();
    nenrin(["restore", &dir, "--at", "then"]).ok();
    assert_eq!(told(&[&dir, "then"]), (0, vec![]));
    assert_eq!(told(&[&root, "then"]), (0, vec![]));
    // One byte of what is shared, a byte that is the same, a time, an attribute.
    let copy = |name: &str| {
        fs::copy(mnt.join("d/large"), mnt.join(name)).unwrap();
        run("touch", &["-r", mnt.join("d/large").to_str().unwrap(), mnt.join(name).to_str().unwrap()]).ok();
        rustix::fs::setxattr(mnt.join(name), c"user.a", b"v", rustix::fs::XattrFlags::empty()).unwrap();
        fs::rename(mnt.join(name), mnt.join("d/large")).unwrap();
    };
    copy("tmp");
    assert_eq!(told(&[&dir, "then"]).1, Vec::<String>::new(), "copied and renamed");
    let time = fs::metadata(mnt.join("d/large")).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(mnt.join("d/large")).unwrap();
    let write = |byte: u8| {
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte], 2 << 20).unwrap();
        file.set_modified(time).unwrap();
    };
    write(8);
    assert_eq!(told(&[&dir, "then"]).1, ["M large"]);
    write(7);
    assert_eq!(told(&[&dir, "then"]).1, Vec::<String>::new(), "the same byte again");
    file.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(told(&[&dir, "then"]).1, ["M large (attributes)"]);
    let json = nenrin(["diff", "--json", &dir, "then"]).json();
    assert_eq!(
        (&json["differences"][0]["attributes_only"], &json["differences"][0]["replaced"]),
        (&true.into(), &true.into())
    );
    file.set_modified(time).unwrap();
    rustix::fs::setxattr(mnt.join("d/large"), c"user.a", b"w", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(told(&[&dir, "then"]).1, ["M large (attributes)"]);
}

/// Answers with more than fits a part of them, and a large directory that was renamed.
#[test]
fn very_many_differences() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    nenrin(["snapshot", "create", &root, "before"]).ok();
    fs::create_dir(mnt.join("many")).unwrap();
    let mut want = vec!["+ many/".to_owned()];
    for n in 0..2500 {
        fs::write(mnt.join(format!("many/{n:04}")), "").unwrap();
        want.push(format!("+ many/{n:04}"));
    }
    assert_eq!(told(&[&root, "before"]), (0, want));
    nenrin(["snapshot", "create", &root, "full"]).ok();
    fs::rename(mnt.join("many"), mnt.join("other")).unwrap();
    fs::write(mnt.join("other/0005"), "changed").unwrap();
    fs::rename(mnt.join("other/0007"), mnt.join("other/seven")).unwrap();
    fs::rename(mnt.join("other/0009"), mnt.join("moved out")).unwrap();
    let want = ["R many/0009 -> moved out", "R many/ -> other/", "M other/0005", "R many/0007 -> other/seven"];
    assert_eq!(told(&[&root, "full"]), (0, want.map(str::to_owned).to_vec()));
    nenrin(["snapshot", "create", &root, "renamed"]).ok();
    let other = place.text("mnt/other");
    run("sh", &["-c", "rm \"$0\"/*", &other]).ok();
    let gone = nenrin(["restore", "--json", "--list-deleted", &other]).json();
    let names: Vec<&str> = gone.as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    // Also those that went from it before it was renamed.
    assert!(names.len() == 2500 + 1 && names.is_sorted(), "{} names", names.len());
}

#[test]
fn what_changed_in_files() {
    if !can_mount() || !has("patch") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    fs::create_dir(mnt.join("src")).unwrap();
    let lines = |changed: &str| {
        (0..40).map(|n| if n == 20 { format!("{changed}\n") } else { format!("line {n}\n") }).collect::<String>()
    };
    fs::write(mnt.join("src/a"), lines("old")).unwrap();
    fs::write(mnt.join("src/binary"), [0, 1, 2]).unwrap();
    fs::write(mnt.join("src/gone"), "gone\n").unwrap();
    fs::write(mnt.join("src/mode"), "same\n").unwrap();
    nenrin(["snapshot", "create", &root, "s"]).ok();
    let kept = place.sub("kept");
    run("cp", &["-a", mnt.join("src").to_str().unwrap(), &kept]).ok();
    fs::write(mnt.join("src/a"), lines("new")).unwrap();
    fs::write(mnt.join("src/binary"), [0, 1, 3]).unwrap();
    fs::remove_file(mnt.join("src/gone")).unwrap();
    fs::write(mnt.join("src/come"), "come\n").unwrap();
    run("chmod", &["600", mnt.join("src/mode").to_str().unwrap()]).ok();
    let text = nenrin(["diff", "--content", mnt.join("src").to_str().unwrap(), "s"]).ok();
    assert!(text.contains("M a\n--- a/a\n+++ b/a\n@@ ") && text.contains("\n-old\n+new\n line 21\n"), "{text}");
    assert!(text.contains("a/binary and b/binary differ, and are no text\n"), "{text}");
    assert!(text.contains("+ come\n--- /dev/null\n+++ b/come\n") && text.contains("M mode (attributes)\n"), "{text}");
    // What patch(1) makes of it is what there is.
    fs::write(place.path("patch"), &text).unwrap();
    shell("cd kept/src && patch -s -p1 <../../patch && cp ../../mnt/src/binary . && chmod 600 mode", place.dir()).ok();
    run("diff", &["-r", &place.text("kept/src"), mnt.join("src").to_str().unwrap()]).ok();
    let json = nenrin(["diff", "--json", "--content", mnt.join("src").to_str().unwrap(), "s"]).json();
    assert!(json["differences"][0]["content"].as_str().unwrap().contains("+new"));
}

/// Names that a header has to bear as patch(1) reads them.
#[test]
fn names_with_blanks_and_worse() {
    if !can_mount() || !has("patch") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    let names = [
        "two words",
        "tail ",
        " head",
        "line\nbreak",
        "tab\there",
        "\"quoted\"",
        "back\\slash",
        "\u{1b}[31m",
        "\u{5e74} \u{8f2a}",
    ];
    for name in names {
        fs::write(mnt.join(name), "old\n").unwrap();
    }
    fs::write(mnt.join("no\ttext"), [0]).unwrap();
    nenrin(["snapshot", "create", &root, "s"]).ok();
    let kept = place.sub("kept");
    run("cp", &["-a", &format!("{root}/."), &kept]).ok();
    for name in names {
        fs::write(mnt.join(name), "new\n").unwrap();
    }
    fs::remove_file(mnt.join("no\ttext")).unwrap();
    fs::write(mnt.join("come too"), "come\n").unwrap();
    let text = nenrin(["diff", "--content", &root, "s"]).ok();
    assert!(text.contains("M two words\n--- a/two words\t\n+++ b/two words\t\n@@ "), "{text}");
    assert!(text.contains("--- \"a/line\\nbreak\"\n+++ \"b/line\\nbreak\"\n@@ "), "{text}");
    assert!(text.contains("+ come too\n--- /dev/null\n+++ b/come too\t\n"), "{text}");
    assert!(text.contains("\"a/no\\ttext\" and /dev/null differ, and are no text\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    fs::write(place.path("patch"), &text).unwrap();
    shell("cd kept && patch -s -p1 <../patch && rm no*text", place.dir()).ok();
    for name in names {
        assert_eq!(fs::read_to_string(place.path("kept").join(name)).unwrap(), "new\n", "{name:?}");
    }
    assert_eq!(fs::read_to_string(place.path("kept/come too")).unwrap(), "come\n");
    assert_eq!(fs::read_dir(&kept).unwrap().count(), names.len() + 1);
}

/// Names from before UTF-8 are bytes, and files like any other.
#[test]
fn names_that_are_no_text() {
    if !can_mount() || !has("patch") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    let latin = |bytes: &[u8]| mnt.join(std::ffi::OsStr::from_bytes(bytes));
    fs::create_dir(latin(b"stra\xdfe")).unwrap();
    fs::write(latin(b"stra\xdfe/gr\xfcn"), "old\n").unwrap();
    fs::write(latin(b"weg\xe4"), "gone\n").unwrap();
    nenrin(["snapshot", "create", &root, "s"]).ok();
    let kept = place.sub("kept");
    run("cp", &["-a", &format!("{root}/."), &kept]).ok();
    fs::write(latin(b"stra\xdfe/gr\xfcn"), "new\n").unwrap();
    fs::remove_file(latin(b"weg\xe4")).unwrap();
    fs::write(latin(b"m\xf6glich"), "come\n").unwrap();
    let out = nenrin(["diff", "--content", &root, "s"]);
    assert_eq!(out.stderr.lines().count(), 1, "{}", out.stderr);
    let text = out.ok();
    let name = r"stra\337e/gr\374n";
    assert!(text.contains(&format!("--- \"a/{name}\"\n+++ \"b/{name}\"\n@@ -1 +1 @@\n-old\n+new\n")), "{text}");
    fs::write(place.path("patch"), &text).unwrap();
    shell("cd kept && patch -s -p1 <../patch", place.dir()).ok();
    run("diff", &["-r", &kept, &root]).ok();
    // A directory that was renamed, with what came along.
    fs::rename(latin(b"stra\xdfe"), latin(b"stra\xdfen")).unwrap();
    let json = nenrin(["diff", "--json", "--content", &root, "s"]).json();
    let all = json["differences"].as_array().unwrap();
    let came_along = all.iter().find(|d| d["path"].as_str().unwrap().ends_with("/gr\u{fffd}n")).unwrap();
    let bytes = |of: &str| serde_json::from_value::<Vec<u8>>(came_along[of].clone()).unwrap();
    assert_eq!(bytes("path_bytes"), b"stra\xdfen/gr\xfcn");
    assert_eq!(bytes("from_bytes"), b"stra\xdfe/gr\xfcn");
    assert!(came_along["content"].as_str().unwrap().ends_with("-old\n+new\n"));
}

/// Where a file was is known also when only its directory was renamed.
#[test]
fn what_changed_in_files_that_came_along() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let dir = place.path("mnt/E");
    let root = place.text("mnt/E");
    fs::create_dir_all(dir.join("a/deep")).unwrap();
    fs::write(dir.join("a/f"), "1\n").unwrap();
    fs::write(dir.join("a/deep/g"), "1\n").unwrap();
    nenrin(["snapshot", "create", &root, "e0"]).ok();
    fs::rename(dir.join("a"), dir.join("b")).unwrap();
    fs::write(dir.join("b/f"), "2\n").unwrap();
    fs::write(dir.join("b/deep/g"), "2\n").unwrap();
    let content = "@@ -1 +1 @@\n-1\n+2\n";
    let want = format!(
        "R a/ -> b/\nM b/deep/g\n--- a/a/deep/g\n+++ b/b/deep/g\n{content}M b/f\n--- a/a/f\n+++ b/b/f\n{content}"
    );
    assert_eq!(nenrin(["diff", "--content", &root, "e0"]).ok(), want);
    let json = nenrin(["diff", "--json", "--content", &root, "e0"]).json();
    let last = &json["differences"][2];
    assert_eq!((last["change"].as_str(), last["from"].as_str()), (Some("M"), Some("a/f")));
    assert_eq!(last["content"], format!("--- a/a/f\n+++ b/b/f\n{content}"));
}

/// A file that was listed and cannot be read any more keeps nobody from the others. A mount over its directory
/// hides it from the program, but not from the volume's own listing.
#[test]
fn files_that_go_while_they_are_compared() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    fs::create_dir(mnt.join("d")).unwrap();
    for f in ["a", "d/b", "d/pipe", "e"] {
        fs::write(mnt.join(f), "1\n").unwrap();
    }
    nenrin(["snapshot", "create", &root, "s"]).ok();
    for f in ["a", "d/b", "d/pipe", "e"] {
        fs::write(mnt.join(f), "2\n").unwrap();
    }
    let over = place.text("mnt/d");
    run("mount", &["-t", "tmpfs", "none", &over]).ok();
    run("mkfifo", &[&format!("{over}/pipe")]).ok();
    let out = nenrin(["diff", "--content", &root, "s"]);
    let json = nenrin(["diff", "--json", "--content", &root, "s"]);
    run("umount", &[&over]).ok();
    let notes: Vec<&str> = out.stderr.lines().skip(1).collect();
    assert_eq!(notes.len(), 2, "{}", out.stderr);
    assert!(notes[0].ends_with("/d/b: went while it was compared"), "{}", notes[0]);
    assert!(notes[1].ends_with("/d/pipe: went while it was compared"), "{}", notes[1]);
    let content = |f: &str| format!("M {f}\n--- a/{f}\n+++ b/{f}\n@@ -1 +1 @@\n-1\n+2\n");
    assert_eq!(out.ok(), format!("{}M d/b\nM d/pipe\n{}", content("a"), content("e")));
    assert!(json.stderr.lines().count() == 2 && json.json()["differences"][3]["content"].is_string());
}

/// More entries than are read at once.
#[test]
fn a_large_directory() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (mnt, root) = (place.path("mnt"), place.text("mnt"));
    for n in 0..2500 {
        fs::write(mnt.join(format!("f{n}")), "").unwrap();
    }
    nenrin(["snapshot", "create", &root, "s"]).ok();
    assert_eq!(told(&[&root, "s"]), (0, vec![]));
    fs::remove_file(mnt.join("f2499")).unwrap();
    assert_eq!(told(&[&root, "s"]), (0, vec!["- f2499".into()]));
    fs::remove_dir_all(&mnt).unwrap_err();
    assert_eq!(told(&[&root, "s"]).1.len(), 2500);
}

#[test]
fn what_cannot_be_compared() {
    nenrin(["diff"]).fails(2, &["a directory and a state"]);
    nenrin(["diff", "/proc", "5"]).fails(1, &["/proc", "not on a nenrin volume"]);
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("").ok();
    let mnt = place.text("mnt");
    nenrin(["snapshot", "create", &mnt, "s"]).ok();
    fs::write(place.path("mnt/f"), "").unwrap();
    nenrin(["diff", &format!("{mnt}/f"), "s"]).fails(1, &["f: is not a directory", "nenrin history"]);
    nenrin(["diff", &mnt, "1000000"]).fails(1, &["no checkpoint 1000000"]);
    nenrin(["diff", &mnt, "monday"]).fails(1, &["no snapshot \"monday\""]);
    nenrin(["diff", &format!("{mnt}/never"), "s"]).fails(1, &["never: neither of the two states has such a directory"]);
}

/// What a name holds does not steer a terminal.
#[test]
fn names_are_shown_without_what_steers_a_terminal() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.text("mnt");
    nenrin(["snapshot", "create", &mnt, "one"]).ok();
    fs::write(place.path("mnt/a\u{1b}[2Jb\nc"), "x").unwrap();
    let shown = nenrin(["diff", &mnt, "one"]).ok();
    assert!(shown.contains("+ a\u{fffd}[2Jb\u{fffd}c\n"), "{shown:?}");
}
