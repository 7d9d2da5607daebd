//! `nenrin restore` of databases that lie in several files, and of what a program has open.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use crate::restore::{cut, restore};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const THEN: &str = "SQLite format 3\0then";
const NOW: &str = "SQLite format 3\0now";

/// Runs the command that a message ends with.
fn said_command(out: &Out) -> Out {
    let at = out.stderr.find(": nenrin restore ").unwrap_or_else(|| panic!("no command: {}", out.stderr)) + 2;
    let command = out.stderr[at..].trim().replacen("nenrin", "exec \"$NENRIN\"", 1);
    shell(&command, Path::new("/"))
}

/// Some of what a state had of a database may be in its log alone.
#[test]
fn a_log_of_then_that_is_missing_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    // A name that a shell takes for several words.
    let at = |name: &str| place.path("mnt").join(format!("my {name}"));
    for (suffix, what) in
        [("-wal", "changes that are not in the database yet"), ("-journal", "how to undo half of one")]
    {
        let [db, log, copy, its_log] =
            ["db".into(), format!("db{suffix}"), "copy".into(), format!("copy{suffix}")].map(|name: String| at(&name));
        fs::write(&db, THEN).unwrap();
        fs::write(&log, what).unwrap();
        let cno = cut(&place);
        fs::write(&db, NOW).unwrap();
        fs::remove_file(&log).unwrap();
        let path = db.to_str().unwrap();
        for (how, log, there) in [
            (&["--in-place"][..], &log, &db),
            (&["--force"], &log, &db),
            (&["--to", copy.to_str().unwrap()], &its_log, &copy),
        ] {
            let out = restore(&[&[path, "--at", &cno], how].concat());
            assert_eq!((out.code, out.stderr.lines().count()), (0, 1), "{out:?}");
            let told = format!("{} of then belongs to it, and is not there", log.display());
            assert!(out.stderr.contains(&told), "{}", out.stderr);
            assert_eq!(fs::read_to_string(there).unwrap(), THEN);
            said_command(&out).ok();
            assert_eq!(fs::read_to_string(log).unwrap(), what);
            // With the log of then nothing is told.
            let out = restore(&[&[path, "--at", &cno], how].concat());
            let is_there = how[0] == "--to";
            assert_eq!((out.code, out.stderr.is_empty()), (i32::from(is_there), !is_there), "{out:?}");
            // Another one is replaced by that of then.
            if !is_there {
                fs::write(log, "the log of something else").unwrap();
                let out = restore(&[&[path, "--at", &cno], how].concat());
                assert!(out.code == 0 && out.stderr.contains("belongs to what was there before"), "{out:?}");
                said_command(&out).ok();
                assert_eq!(fs::read_to_string(log).unwrap(), what);
                fs::remove_file(log).unwrap();
            }
        }
        for name in [&db, &copy, &its_log] {
            fs::remove_file(name).unwrap();
        }
    }
}

/// A program that has a file open until it goes.
struct Holder(Child);

impl Holder {
    fn of(path: &Path, writes: bool) -> Self {
        let file = fs::OpenOptions::new().read(true).write(writes).open(path).unwrap();
        let child =
            Command::new("sleep").arg("60").stdin(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        wait_until("it runs", || fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n"));
        Self(child)
    }
    fn name(&self) -> String {
        format!("sleep (pid {})", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whoever has it open goes on with what was there, and is named.
#[test]
fn who_has_a_file_open_that_is_replaced_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (file, path) = (place.path("mnt/f"), place.text("mnt/f"));
    fs::write(&file, "then").unwrap();
    fs::hard_link(&file, place.path("mnt/other")).unwrap();
    let cno = cut(&place);
    for (how, effect) in [
        ("--in-place", "what was read of it before may go on being used, and be written back"),
        ("--force", "what is open there is what was replaced, and what is written to it is lost"),
    ] {
        fs::write(&file, "now").unwrap();
        let out = restore(&[&path, "--at", &cno, "--to", &place.text(&format!("mnt/beside{how}"))]);
        assert_eq!((out.code, out.stderr.as_str()), (0, ""), "nothing is replaced");
        // By another name, as far as there is one.
        let holder = Holder::of(&place.path("mnt/other"), true);
        let out = restore(&[&path, "--at", &cno, how]);
        let told = format!("{path} was in use by {}: {effect}", holder.name());
        assert!(out.code == 0 && out.stderr.contains(&told), "{how}: {out:?}");
        drop(holder);
        assert_eq!(fs::read_to_string(&file).unwrap(), "then");
    }
}

/// What SQLite has of a database that it has open, and its log, would go into what came back.
#[test]
fn a_database_that_is_being_written_to_is_replaced_only_when_that_is_asked_for() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    let (db, path) = (place.path("mnt/db"), place.text("mnt/db"));
    fs::write(&db, THEN).unwrap();
    let cno = cut(&place);
    let set = || fs::write(&db, NOW).unwrap();
    set();
    // By the second it is another file.
    for how in ["--in-place", "--force"] {
        let holder = Holder::of(&db, true);
        let refused = [&path, "is a database that", &holder.name(), "--in-use", "--to DEST"];
        restore(&[&path, "--at", &cno, how]).fails(1, &refused);
        assert_eq!(fs::read_to_string(&db).unwrap(), NOW, "{how}");
        restore(&[&path, "--at", &cno, "--to", &place.text(&format!("mnt/beside{how}"))]).ok();
        let out = restore(&[&path, "--at", &cno, how, "--in-use"]);
        assert!(out.code == 0 && out.stderr.contains(&holder.name()), "{out:?}");
        assert_eq!(fs::read_to_string(&db).unwrap(), THEN, "{how}");
        drop(holder);
        set();
        // Who only reads it writes nothing into it.
        let holder = Holder::of(&db, false);
        let out = restore(&[&path, "--at", &cno, how]);
        assert!(out.code == 0 && out.stderr.contains(&holder.name()), "{out:?}");
        drop(holder);
        set();
        let out = restore(&[&path, "--at", &cno, how]);
        assert_eq!((out.code, out.stderr.as_str()), (0, ""), "nobody has it open");
        set();
    }
    restore(&[&path, "--at", &cno, "--in-use"]).fails(2, &["--in-use", "goes with --force or --in-place"]);
}
