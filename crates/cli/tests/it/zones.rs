//! Commands where clocks show another time than where the volume was mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

/// Eight hours behind UTC, said so that no data base of zones is needed.
const WEST: &str = "XYZ8";

/// A command in the west.
fn west<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Out {
    Out::of(command(args).env("TZ", WEST).output().unwrap())
}

/// What clocks in the west show.
fn shown(secs: i64, form: &str) -> String {
    let mut date = std::process::Command::new("date");
    let out = Out::of(date.env("TZ", WEST).arg(format!("--date=@{secs}")).arg(format!("+{form}")).output().unwrap());
    out.ok().trim().to_owned()
}

#[test]
fn times_are_those_of_who_says_and_reads_them() {
    if !can_mount() {
        return;
    }
    let place = Place::with_volume();
    let (mnt, past) = (place.sub("mnt"), place.sub("past"));
    let mut mount = command(["mount", "-o", "checkpoint=0", &place.image(), &mnt]);
    Out::of(mount.env("TZ", "UTC0").output().unwrap()).ok();
    let file = place.text("mnt/f");
    let cut = |content: &str| {
        fs::write(&file, content).unwrap();
        let made = nenrin(["checkpoint", "create", "--json", &mnt]).json();
        (made["cno"].to_string(), made["nanos"].as_i64().unwrap())
    };
    let (first, nanos) = cut("first");
    // Not in the same second.
    std::thread::sleep(Duration::from_millis(1100));
    cut("second");
    let secs = nanos / 1_000_000_000;
    let when = shown(secs, "%Y-%m-%d %H:%M:%S");

    let told = west(["restore", &file, "--at", &when, "--to", &place.text("mnt/back")]).ok();
    assert!(told.contains(&format!("from checkpoint {first} of {}", shown(secs, "%Y-%m-%d %H:%M:%S"))), "{told}");
    assert_eq!(fs::read_to_string(place.path("mnt/back")).unwrap(), "first");
    let found = west(["diff", "--json", &mnt, &when, "0 seconds ago"]).json();
    assert_eq!((found["from"]["cno"].to_string(), &found["differences"][0]["path"]), (first.clone(), &"f".into()));
    let found = west(["diff", "--json", &mnt, "0 seconds ago", &when]).json();
    assert_eq!(found["to"]["cno"].to_string(), first);
    let told = west(["mount", "-o", &format!("at={when}"), &place.image(), &past]).ok();
    assert!(told.starts_with(&format!("checkpoint {first} of ")), "{told}");
    assert_eq!(fs::read_to_string(place.path("past/f")).unwrap(), "first");
    nenrin(["umount", &past]).ok();

    // Until when a state is kept.
    let states = west(["history", "--json", &file]).json();
    let until = states[0]["kept_until_nanos"].as_i64().expect("not for ever") / 1_000_000_000;
    assert!(states[0]["kept_until"].as_str().unwrap().ends_with("+00:00"), "{states}");
    let text = west(["history", &file]).ok();
    // A moment passes between the two calls.
    let minutes = [until, until + 59].map(|secs| shown(secs, "%Y-%m-%d %H:%M"));
    let row = text.lines().nth(1).unwrap();
    assert!(minutes.iter().any(|m| row.contains(m.as_str())), "{minutes:?}: {text}");

    // The owner's words say where its times are meant.
    west(["restore", &file, "--at", "1990-01-01", "--force"])
        .fails(1, &["no state as old as 1990-01-02 07:59:59 +00:00"]);
    west(["diff", &mnt, "10 months ago"]).fails(2, &["say it as in"]);
}
