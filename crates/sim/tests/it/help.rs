//! `nenrin-sim --help`, wherever it stands.
use std::process::{Command, Output};

fn nenrin_sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nenrin-sim")).args(words).output().unwrap()
}

#[test]
fn help_is_given() {
    for words in [&["--help"][..], &["-h"], &[], &["run", "--help"], &["replay", "--seed", "3", "-h"]] {
        let out = nenrin_sim(words);
        assert!(out.status.success(), "{words:?}");
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.starts_with("nenrin-sim: ") && text.contains("For example: "), "{words:?}: {text}");
    }
    let out = nenrin_sim(&["walk"]);
    assert_eq!(out.status.code(), Some(2));
}

#[cfg(not(feature = "breaks"))]
#[test]
fn without_breaks_it_says_how_to_get_them() {
    for words in [&["breaks"][..], &["breaks", "NoFlush"]] {
        let out = nenrin_sim(words);
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(2) && text.contains("--features breaks"), "{text}");
    }
}
