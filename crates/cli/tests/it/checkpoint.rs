//! `nenrin checkpoint` and `nenrin snapshot`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

#[test]
fn what_is_created_is_listed_and_survives() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    place.mount("checkpoint=0").ok();
    let one = nenrin(["checkpoint", "create", &mnt]).ok();
    let two = nenrin(["checkpoint", "create", "--json", &mnt]).json();
    assert_eq!(two["cno"].as_u64().unwrap(), one.trim().parse::<u64>().unwrap() + 1);
    assert_eq!((&two["asked"], &two["name"]), (&true.into(), &serde_json::Value::Null));
    // Acknowledged, so a power cut takes nothing away.
    place.kill();
    place.mount("checkpoint=0").ok();
    let list = nenrin(["checkpoint", "list", "--json", &mnt]).json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let text = nenrin(["checkpoint", "list", &mnt]).ok();
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().next().unwrap().contains("cno"), "{text}");
    place.umount().ok();
    // Listings need no mount.
    assert_eq!(nenrin(["checkpoint", "list", "--json", &place.image()]).json(), list);
    nenrin(["checkpoint", "create", &place.image()]).fails(1, &["not mounted", "mount it first"]);
}

#[test]
fn checkpoints_are_cut_while_something_changes() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0.2").ok();
    let count = || place.info()["checkpoints"].as_u64().unwrap();
    fs::write(place.path("mnt/a"), b"a").unwrap();
    wait_until("a checkpoint is cut", || count() >= 1);
    std::thread::sleep(std::time::Duration::from_millis(600));
    let before = count();
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert_eq!(count(), before, "nothing changed, and yet a checkpoint was cut");
    fs::write(place.path("mnt/b"), b"b").unwrap();
    wait_until("another checkpoint is cut", || count() > before);
}

#[test]
fn snapshots_have_names() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/note"), b"first").unwrap();
    let cno = nenrin(["checkpoint", "create", &mnt]).ok().trim().to_owned();
    fs::write(place.path("mnt/note"), b"second").unwrap();
    assert!(nenrin(["snapshot", "create", &mnt, "two"]).ok().ends_with(" two\n"));
    assert_eq!(nenrin(["snapshot", "create", "--of", &cno, &mnt, "one"]).ok(), format!("{cno} one\n"));
    // In the current directory, with a name and without one.
    shell("$NENRIN snapshot create three", &place.path("mnt")).ok();
    assert!(nenrin(["snapshot", "create", &mnt]).ok().contains(" at-20"));
    nenrin(["checkpoint", "create", &mnt]).ok();
    let list = nenrin(["snapshot", "list", "--json", &mnt]).json();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(names[..3], ["one", "two", "three"]);

    nenrin(["snapshot", "create", &mnt, "two"]).fails(1, &["a snapshot named two exists"]);
    for name in [".", ".."] {
        nenrin(["snapshot", "create", &mnt, name]).fails(2, &["a snapshot needs another one"]);
    }
    // The owner looks at names, too, whoever asks it.
    let socket = format!("/run/nenrin/{}.sock", place.info()["uuid"].as_str().unwrap());
    for request in
        [r#""checkpoint_create","name":"a/b""#.to_owned(), format!(r#""snapshot_name","cno":{cno},"name":"..""#)]
    {
        let stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        writeln!(&stream, r#"{{"do":{request}}}"#).unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert!(answer.starts_with(r#"{"error":{"code":2"#) && answer.contains("a snapshot"), "{answer}");
    }
    // A state has one name, and does not lose it by being given another.
    nenrin(["snapshot", "create", "--of", &cno, &mnt, "another"])
        .fails(1, &[&cno, "is the snapshot one already", "make a new"]);
    nenrin(["snapshot", "create", "--of", &cno, &mnt, "one"]).ok();
    let list = nenrin(["snapshot", "list", &mnt]).ok();
    assert!(list.contains(" one\n") && !list.contains("another"), "{list}");
    nenrin(["snapshot", "create", "--of", "4711", &mnt, "x"]).fails(1, &["no checkpoint 4711"]);
    nenrin(["snapshot", "delete", &mnt, "none"]).fails(1, &["no snapshot \"none\"", "snapshot list"]);
    let past = place.sub("past");
    nenrin(["mount", "-o", "at=one", &place.image(), &past]).ok();
    nenrin(["snapshot", "delete", &mnt, "one"]).fails(1, &["is mounted at", "unmount it first"]);
    nenrin(["umount", &past]).ok();
    nenrin(["snapshot", "delete", &mnt, "one"]).ok();
    nenrin(["mount", "-o", "at=one", &place.image(), &past]).fails(1, &["no snapshot \"one\""]);
    nenrin(["mount", "-o", &format!("cp={cno}"), &place.image(), &past]).fails(1, &["no checkpoint"]);
}

#[test]
fn wrong_calls() {
    let place = Place::new();
    let dir = place.sub("dir");
    for (args, code, part) in [
        (vec!["checkpoint"], 2, "list, create or delete is needed"),
        (vec!["checkpoint", "keep"], 2, "\"keep\" is not understood"),
        (vec!["checkpoint", "delete"], 2, "delete needs the number of a checkpoint"),
        (vec!["checkpoint", "delete", &dir, "7..3"], 2, "the first is behind the last"),
        (vec!["checkpoint", "delete", &dir, "1"], 1, "not on a nenrin volume"),
        (vec!["checkpoint", "list", &dir], 1, "not on a nenrin volume"),
        (vec!["snapshot"], 2, "create, list or delete is needed"),
        (vec!["snapshot", "keep"], 2, "is not understood"),
        (vec!["snapshot", "create", &dir, "2025-01-01"], 2, "must not look like a number or a time"),
        (vec!["snapshot", "create", &dir, "12"], 2, "must not look like a number or a time"),
        (vec!["snapshot", "create", &dir, "a/b"], 2, "no slash"),
        (vec!["snapshot", "create", &dir, "a\tb"], 2, "no control characters"),
        (vec!["snapshot", "create", "--of", "monday", &dir], 2, "number of a checkpoint"),
        (vec!["snapshot", "delete", &dir], 2, "the snapshot's name is needed"),
        (vec!["snapshot", "create", &dir, "monday"], 1, "not on a nenrin volume"),
    ] {
        let shown = format!("{args:?}");
        let out = nenrin(&args);
        assert!(out.stderr.contains(part), "{shown}: {}", out.stderr);
        out.fails(code, &[part]);
    }
}

#[test]
fn ranges_are_deleted_but_what_is_named_or_mounted_stays() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    place.mount("checkpoint=0").ok();
    let made: Vec<String> = (0..6)
        .map(|i| {
            fs::write(place.path("mnt/f"), format!("{i}")).unwrap();
            nenrin(["checkpoint", "create", &mnt]).ok().trim().to_owned()
        })
        .collect();
    nenrin(["snapshot", "create", "--of", &made[2], &mnt, "kept"]).ok();
    let past = place.sub("past");
    fs::create_dir_all(&past).unwrap();
    nenrin(["mount", "-o", &format!("cp={}", made[3]), &place.image(), &past]).ok();
    let text = nenrin(["checkpoint", "delete", &mnt, &format!("{}..{}", made[0], made[4])]).ok();
    assert!(
        text.starts_with("3 let go, 0") && text.ends_with("; 1 with a name and 1 that are mounted stay\n"),
        "{text}"
    );
    let left = nenrin(["checkpoint", "list", "--json", &mnt]).json();
    let left: Vec<String> = left.as_array().unwrap().iter().map(|c| c["cno"].to_string()).collect();
    // And one that was cut when an earlier one got its name.
    let with_name = (made[5].parse::<u64>().unwrap() + 1).to_string();
    assert_eq!(left, [made[2].clone(), made[3].clone(), made[5].clone(), with_name]);
    nenrin(["checkpoint", "delete", &mnt, &made[0]]).fails(1, &["no such checkpoint"]);
    nenrin(["checkpoint", "delete", &mnt, &made[2]]).fails(1, &["snapshot delete"]);
    nenrin(["checkpoint", "delete", &mnt, &made[3]]).fails(1, &["is mounted"]);
    nenrin(["checkpoint", "delete", &mnt, "9..3"]).fails(2, &["behind the last"]);
    nenrin(["umount", &past]).ok();
    let gone = nenrin(["checkpoint", "delete", "--json", &mnt, &made[3]]).json();
    assert_eq!(gone["deleted"], 1);
}

/// What people say for a time is no name: of the one it could not be told whether it means the other.
#[test]
fn words_for_times_are_no_names() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    place.mount("checkpoint=0").ok();
    let cno = nenrin(["checkpoint", "create", &mnt]).ok();
    let words = [
        "now",
        "Now",
        "latest",
        "newest",
        "oldest",
        "today",
        "yesterday",
        "@7",
        "@GMT-2026.01.31-14.00.00",
        "2 months ago",
    ];
    for word in words {
        nenrin(["snapshot", "create", &mnt, word]).fails(2, &[word, "snapshot's name", "choose another"]);
        nenrin(["snapshot", "create", "--of", cno.trim(), &mnt, word]).fails(2, &[word, "choose another"]);
    }
    for name in ["nowhere", "latest-build", "monday", "v2", "before now"] {
        nenrin(["snapshot", "create", &mnt, name]).ok();
    }
}

/// Who lets checkpoints go is kept from that by nobody who lets some of them go meanwhile.
#[test]
fn two_who_let_the_same_go_at_once() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let mnt = place.sub("mnt");
    place.mount("checkpoint=0").ok();
    let at_once = |args: &[&str]| {
        let both =
            [args, args].map(|args| command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        both.map(|one| Out::of(one.wait_with_output().unwrap()))
    };
    let create = |name: &[&str]| nenrin([&["snapshot", "create", &mnt], name].concat()).ok();
    for round in 0..10 {
        let cnos: Vec<u64> =
            (0..15).map(|_| nenrin(["checkpoint", "create", &mnt]).ok().trim().parse().unwrap()).collect();
        let range = format!("{}..{}", cnos[0], cnos[14]);
        let gone = at_once(&["checkpoint", "delete", "--json", &mnt, &range]).map(|out| out.json()["deleted"].as_u64());
        assert_eq!(gone.iter().flatten().sum::<u64>(), 15, "{gone:?}");
        let name = format!("round{round}");
        create(&[&name]);
        // Who comes later finds no such snapshot, or is told that it is gone.
        let all = at_once(&["snapshot", "delete", &mnt, &name]);
        assert!(all.iter().any(|out| out.code == 0), "{all:?}");
        let other = format!("there is no snapshot {name:?}");
        assert!(all.iter().all(|out| out.code == 0 || out.stderr.contains(&other)), "{all:?}");
    }
}

/// A file that a program has locked, or that nobody may read, stands for its volume as any other.
#[test]
fn a_file_stands_for_its_volume_whatever_is_done_with_it() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let script = "
        touch mnt/app.lock
        flock -x mnt/app.lock $NENRIN checkpoint create mnt/app.lock
        flock -x mnt/app.lock $NENRIN snapshot create mnt/app.lock x
        $NENRIN mkfs --sparse --size 16M mnt/inner >/dev/null
        $NENRIN info --json mnt/inner
        $NENRIN checkpoint create mnt/inner && exit 9
        flock -x mnt/inner $NENRIN info mnt/inner && exit 9
        # Mounted, it is an image whatever can be read of it.
        mkdir other
        $NENRIN mount mnt/inner other
        of() { $NENRIN info --json $1 | grep '\"pid\":'; }
        dd if=/dev/zero of=mnt/inner bs=1M count=1 conv=notrunc status=none
        dd if=/dev/zero of=mnt/inner bs=1M count=1 seek=15 conv=notrunc status=none
        [ \"$(of mnt/inner)\" = \"$(of other)\" ]
        kill -9 $(of other | tr -dc 0-9)
        $NENRIN umount other
        chown 65534 mnt
        $NENRIN umount mnt
        chown 65534 mnt image";
    let out = shell(script, place.dir());
    assert!(out.stderr.contains("inner: the volume is not mounted"), "{out:?}");
    assert!(out.stderr.contains("inner: in use by"), "{out:?}");
    assert!(out.ok().contains("\"pid\": null"));
    let script = "
        $NENRIN mount image mnt
        touch mnt/secret
        chmod 0 mnt/secret
        $NENRIN checkpoint create mnt/secret
        $NENRIN umount mnt";
    if has("fusermount3") {
        as_nobody(&place, script).map(Out::ok);
    }
}
