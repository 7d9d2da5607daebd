//! `nenrin restore` brings back permissions as they were, tells what goes with what it replaces, and which state of a directory is
//! not one that was cut while it was being removed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

fn cut(place: &Place) -> String {
    nenrin(["checkpoint", "create", "--json", &place.text("mnt")]).json()["cno"].to_string()
}

fn mode(place: &Place, name: &str) -> u32 {
    fs::metadata(place.path(name)).unwrap().mode() & 0o7777
}

fn acl(place: &Place, name: &str) -> String {
    run("getfacl", &["-cpn", &place.text(name)]).ok()
}

/// What is granted now narrows what is seen of the past, and not what comes back.
#[test]
fn permissions_that_were_taken_away_since() {
    if !can_mount() || !has("setfacl") || !has("getfacl") {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0,allow_other").ok();
    fs::create_dir_all(place.path("mnt/site/css")).unwrap();
    for (name, mode) in [("site/page", 0o644), ("site/run", 0o755), ("site/css/a", 0o664)] {
        fs::write(place.path("mnt").join(name), name).unwrap();
        fs::set_permissions(place.path("mnt").join(name), Permissions::from_mode(mode)).unwrap();
    }
    run("setfacl", &["-m", "u:1234:rw", &place.text("mnt/site/page")]).ok();
    let list = acl(&place, "mnt/site/page");
    assert!(list.contains("user:1234:rw-"), "{list}");
    let cno = cut(&place);
    run("setfacl", &["-b", &place.text("mnt/site/page")]).ok();
    run("chmod", &["-R", "go=", &place.text("mnt/site")]).ok();
    // Seen is what both grant.
    assert_eq!(mode(&place, &format!("mnt/.nenrin/at/{cno}/site/run")), 0o700);
    let told = nenrin(["restore", "--json", &place.text("mnt/site"), "--at", &cno, "--force"]).json();
    assert_eq!((told["files"].as_u64(), told["permissions_lost"].as_u64()), (Some(3), Some(0)));
    assert_eq!(told["permissions_back"], 5);
    let modes = ["site", "site/css", "site/css/a", "site/run"].map(|name| mode(&place, &format!("mnt/{name}")));
    assert_eq!(modes, [0o755, 0o755, 0o664, 0o755].map(|m: u32| m));
    assert_eq!(acl(&place, "mnt/site/page"), list);
    // A past that is seen as it was.
    let again = cut(&place);
    nenrin(["restore", &place.text("mnt/site/page"), "--at", &again, "--to", &place.text("mnt/beside")]).ok();
    assert_eq!(acl(&place, "mnt/beside"), list);
}

/// The owner gets his own; who is not gets what everybody has, and is told.
#[test]
fn permissions_for_who_did_not_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("allow_other,checkpoint=0").ok();
    fs::create_dir(place.path("mnt/his")).unwrap();
    for (name, owner, mode) in [("his/own", 65534, 0o664), ("his/roots", 0, 0o664)] {
        fs::write(place.path("mnt").join(name), name).unwrap();
        chown(place.path("mnt").join(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(place.path("mnt").join(name), Permissions::from_mode(mode)).unwrap();
    }
    chown(place.path("mnt/his"), Some(65534), Some(65534)).unwrap();
    let cno = cut(&place);
    for (name, mode) in [("his/own", 0o000), ("his/roots", 0o604)] {
        fs::set_permissions(place.path("mnt").join(name), Permissions::from_mode(mode)).unwrap();
    }
    let asked = |name: &str| {
        as_nobody(&place, &format!("./nenrin restore --json mnt/his/{name} --at {cno} --to mnt/his/{name}.back"))
    };
    let Some(told) = asked("own") else { return };
    assert_eq!(told.json()["permissions_lost"], 0);
    assert_eq!(mode(&place, "mnt/his/own.back"), 0o664, "he could give them to himself");
    let told = asked("roots").unwrap();
    assert_eq!(told.json()["permissions_lost"], 1);
    assert_eq!(mode(&place, "mnt/his/roots.back"), 0o604);
}

#[test]
fn a_state_that_was_cut_while_a_directory_was_removed() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    for name in ["thesis/a/1", "thesis/a/2", "thesis/b/3", "whole/4", "moved/5", "moved/6"] {
        let path = mnt.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let all = cut(&place);
    fs::remove_file(mnt.join("thesis/a/1")).unwrap();
    // Nothing of it is gone.
    fs::rename(mnt.join("moved/5"), mnt.join("five")).unwrap();
    fs::write(mnt.join("moved/new"), "").unwrap();
    cut(&place);
    fs::remove_dir_all(mnt.join("thesis/a")).unwrap();
    let last = cut(&place);
    for name in ["thesis", "whole", "moved"] {
        fs::remove_dir_all(mnt.join(name)).unwrap();
    }
    cut(&place);
    let root = place.text("mnt");
    let gone = nenrin(["restore", "--json", "--list-deleted", &root]).json();
    let of = |name: &str| {
        let entry = gone.as_array().unwrap().iter().find(|e| e["name"] == name).unwrap();
        (entry["cno"].to_string(), entry["fuller_cno"].to_string())
    };
    assert_eq!(of("thesis"), (last.clone(), all.clone()));
    assert_eq!(of("whole"), (last.clone(), "null".into()));
    assert_eq!(of("moved"), (last, "null".into()));
    let text = nenrin(["restore", "--list-deleted", &root]).ok();
    let line = text.lines().find(|l| l.starts_with("thesis/")).unwrap();
    assert!(line.ends_with(&format!("removed; checkpoint {all} has more of it")), "{line}");
    nenrin(["restore", &place.text("mnt/thesis"), "--at", &all]).ok();
    assert_eq!(fs::read_to_string(mnt.join("thesis/a/1")).unwrap(), "thesis/a/1");
}

#[test]
fn what_goes_with_a_directory_that_is_replaced_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::create_dir_all(mnt.join("d/sub")).unwrap();
    fs::write(mnt.join("d/sub/old"), "").unwrap();
    let cno = cut(&place);
    fs::create_dir_all(mnt.join("d/more/below")).unwrap();
    fs::write(mnt.join("d/sub/new"), "").unwrap();
    let path = place.text("mnt/d");
    let out = nenrin(["restore", "--json", &path, "--at", &cno, "--force"]);
    let said = out.stderr.clone();
    let told = out.json();
    assert_eq!((told["went_count"].as_u64(), &told["went"]), (Some(2), &serde_json::json!(["more", "sub/new"])));
    let kept = told["replaced_kept_in"].to_string();
    assert!(said.contains("more, sub/new") && said.contains(&format!("checkpoint {kept} has")), "{said}");
    assert!(mnt.join(".nenrin/at").join(&kept).join("d/sub/new").exists());
    let told = nenrin(["restore", "--json", &path, "--at", &cno, "--force"]).json();
    assert_eq!((told["went_count"].as_u64(), told["went"].as_array().map(Vec::len)), (Some(0), Some(0)));
    // What was a file then is a directory now.
    fs::write(mnt.join("kind"), "").unwrap();
    let cno = cut(&place);
    fs::remove_file(mnt.join("kind")).unwrap();
    fs::create_dir(mnt.join("kind")).unwrap();
    fs::write(mnt.join("kind/in"), "").unwrap();
    let told = nenrin(["restore", "--json", &place.text("mnt/kind"), "--at", &cno, "--force"]).json();
    assert_eq!((told["went_count"].as_u64(), &told["went"]), (Some(1), &serde_json::json!(["in"])));
}

/// A path that ends in a slash means what a link leads to, as for all programs; without it, the link.
#[test]
fn a_directory_that_is_named_by_way_of_a_link() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("d")).unwrap();
    fs::write(mnt.join("d/f"), "old").unwrap();
    std::os::unix::fs::symlink("d", mnt.join("link")).unwrap();
    let cno = cut(&place);
    for end in ["/", "/."] {
        fs::write(mnt.join("d/f"), "new").unwrap();
        nenrin(["restore", &format!("{}{end}", place.text("mnt/link")), "--at", &cno, "--force"]).ok();
        assert!(fs::symlink_metadata(mnt.join("link")).unwrap().is_symlink(), "{end}");
        assert_eq!(fs::read_to_string(mnt.join("d/f")).unwrap(), "old", "{end}");
    }
}

/// What cannot be written for a limit of the shell leaves nothing behind.
#[test]
fn a_limit_on_the_length_of_files() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    // The limit of who mounts is not that of the volume.
    place.sub("mnt");
    shell(&format!("ulimit -S -f 1024; $NENRIN mount -o checkpoint=0 {} mnt", place.image()), place.dir()).ok();
    let big = place.path("mnt/big");
    fs::write(&big, vec![7; 4 << 20]).unwrap();
    let cno = cut(&place);
    place.sub("other");
    let script = format!("ulimit -f 1024; $NENRIN restore mnt/big --at {cno} --to other/big");
    shell(&script, place.dir()).fails(1, &["other/big", "too large"]);
    assert_eq!(fs::read_dir(place.path("other")).unwrap().count(), 0);
    shell("ulimit -f 1024; $NENRIN mkfs --size 64M other/image", place.dir()).fails(1, &["other/image"]);
    assert_eq!(fs::read_dir(place.path("other")).unwrap().count(), 0);
}

/// As deep as a path may lead, with fewer descriptors than directories: copied, replaced, and what was replaced removed.
#[test]
fn a_deep_tree_needs_few_descriptors() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let script = "
        deep=$(printf 'd/%.0s' $(seq 1500))
        mkdir -p mnt/$deep
        echo then >mnt/${deep}f
        $NENRIN snapshot create mnt then
        ulimit -n 256
        mv mnt/d mnt/away
        $NENRIN restore mnt/d --at then
        cat mnt/${deep}f
        echo now >mnt/${deep}f
        $NENRIN restore --force mnt/d --at then
        cat mnt/${deep}f
        $NENRIN restore mnt/d --at then --to off
        cat off/${deep#d/}f
        echo there:
        ls -A mnt";
    let out = shell(script, place.dir());
    let is_usual = |l: &&str| !l.contains("could not be removed") && (l.contains("restored") || l.contains("keep"));
    assert_eq!(out.stderr.lines().filter(|l| !is_usual(l)).count(), 0, "{out:?}");
    let said = out.ok();
    let (before, there) = said.split_once("there:\n").unwrap();
    assert_eq!(there.lines().collect::<Vec<_>>(), ["away", "d"]);
    let read: Vec<&str> = before.lines().filter(|l| ["then", "now"].contains(l)).collect();
    assert_eq!(read, ["then"; 3], "{before}");
    run("rm", &["-rf", &place.text("off")]).ok();
}
