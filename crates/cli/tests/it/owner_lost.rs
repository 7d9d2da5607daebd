//! What a command leaves as it is when nobody says what became of what it asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

/// Where somebody answers as the owner of a volume; taken away in the end.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Somebody who says to be the owner of the volume on an image, answers what adds a device with `answer`, and goes away with that.
fn owner(image: &str, number: usize, answer: &'static str) -> Socket {
    owner_who_answers(image, number, "device_add", answer)
}

/// The same, who answers so what is called `what`.
fn owner_who_answers(image: &str, number: usize, what: &'static str, answer: &'static str) -> Socket {
    let dir = PathBuf::from(format!("/tmp/nenrin-{}", fs::metadata("/proc/self").unwrap().uid()));
    let _ = fs::DirBuilder::new().mode(0o700).create(&dir);
    let socket = Socket(dir.join(format!("test-{}-{number}.sock", std::process::id())));
    let listener = UnixListener::bind(&socket.0).unwrap();
    let meta = fs::metadata(image).unwrap();
    let hello = serde_json::json!({ "ok": {
        "identities": [format!("file {} {}", meta.dev(), meta.ino())],
        "pid": 7, "read_only": false, "closing": false, "mounts": [],
    }});
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut asked = BufReader::new(stream.try_clone().unwrap());
            loop {
                let mut line = String::new();
                if asked.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                if line.contains(what) {
                    let _ = stream.write_all(answer.as_bytes());
                    return;
                }
                let _ = writeln!(stream, "{hello}");
            }
        }
    });
    socket
}

/// A file that is a device by now is not deleted because the answer was lost, or tells of what failed on the way.
#[test]
fn a_device_that_may_be_one_of_the_volume_stays() {
    let place = Place::with_volume();
    let (image, new) = (place.image(), place.text("new"));
    let add = || nenrin(["device", "add", "--size", "24M", "--sparse", &image, &new]);
    let failed = "{\"error\":{\"code\":1,\"message\":\"it failed\"}}\n";
    for (number, answer, why) in [(1, "", "went away"), (2, "{\"error\"", "went away"), (3, failed, "it failed")] {
        let _socket = owner(&image, number, answer);
        let may_be = "may be a device of the volume by now, and stays as it is";
        add().fails(1, &[why, &new, may_be, &format!("nenrin device list {image}")]);
        assert_eq!(fs::metadata(&new).unwrap().len(), 24 << 20, "{why}");
        fs::remove_file(&new).unwrap();
    }
    // Who had a file gets it back as it was only where it was refused.
    let _socket = owner(&image, 4, "{\"error\":{\"code\":1,\"message\":\"too many\",\"untouched\":true}}\n");
    let out = add();
    assert!(!out.stderr.contains("may be a device"), "{out:?}");
    out.fails(1, &["too many"]);
    assert!(!fs::exists(&new).unwrap());
}

/// Root asks the programs of other users, which may answer anything: that steers no terminal, and is one line.
#[test]
fn what_an_owner_answers_steers_no_terminal() {
    let place = Place::with_volume();
    let image = place.image();
    let answer = "{\"ok\":\"1h:all\\u001b[2J\\u009b31m\\r\\n0 problems\"}\n";
    for (number, json) in [(1, false), (2, true)] {
        let _socket = owner_who_answers(&image, 100 + number, "retention", answer);
        let out = nenrin([&["retention", "show", &image][..], if json { &["--json"] } else { &[] }].concat());
        assert!(out.stdout.contains("1h:all"), "{out:?}");
        assert!(out.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", out.stdout);
        if json {
            let told: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
            assert_eq!(told["retention"], "1h:all\u{1b}[2J\u{9b}31m\r\n0 problems");
        } else {
            assert_eq!(out.stdout.lines().count(), 1, "{:?}", out.stdout);
        }
    }
}
