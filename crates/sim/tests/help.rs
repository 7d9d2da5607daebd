//! `nenrin-sim --help`, wherever it stands.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use std::process::Command;

#[test]
fn help_is_given() {
    for words in [&["--help"][..], &["-h"], &[], &["run", "--help"], &["replay", "--seed", "3", "-h"]] {
        let out = Command::new(env!("CARGO_BIN_EXE_nenrin-sim")).args(words).output().unwrap();
        assert!(out.status.success(), "{words:?}");
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.starts_with("nenrin-sim: ") && text.contains("For example: "), "{words:?}: {text}");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_nenrin-sim")).arg("walk").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
}
