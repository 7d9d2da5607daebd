//! docs/FINDINGS.md lists every number that check and repair say. `NENRIN_GOLDEN=write cargo test -p nenrin-core
//! --test it findings` writes it; its diff is read: a number never means something else.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use nenrin_core::check::{Severity, What};
use nenrin_core::repair::{LossKind, MendKind};
use std::fmt::Write as _;
use std::path::Path;

fn document() -> String {
    let mut out = String::from(
        "# What check and repair say\n\nEvery number that `nenrin check`, `check --repair` and `scrub` print, and what it means. A number and its name \
         never come to mean\nsomething else. Errors make `check` end with 4, notes do not. Kept in step with the code by a test.\n",
    );
    let mut table = |title: &str, rows: Vec<(u16, &str, &str, &str)>| {
        let _ = write!(out, "\n## {title}\n\n| number | name | | meaning |\n|---|---|---|---|\n");
        for (number, name, kind, meaning) in rows {
            let _ = writeln!(out, "| {number} | `{name}` | {kind} | {meaning} |");
        }
    };
    let severity = |w: What| if w.severity() == Severity::Error { "error" } else { "note" };
    let of = |hundred: u16| {
        let these = What::ALL.iter().filter(|w| w.number() / 100 == hundred);
        these.map(|w| (w.number(), w.name(), severity(*w), w.meaning())).collect::<Vec<_>>()
    };
    let titles = [
        "Superblocks, roots and log",
        "Index",
        "Names",
        "Inodes and content",
        "Space",
        "History and checkpoints",
        "Bytes of content",
    ];
    for (hundred, title) in (1..).zip(titles) {
        table(title, of(hundred));
    }
    assert!(What::ALL.iter().all(|w| (1..=7).contains(&(w.number() / 100))));
    table(
        "What a repair could not bring back",
        LossKind::ALL.iter().map(|k| (k.number(), k.name(), "loss", k.meaning())).collect(),
    );
    table(
        "What a repair mended without loss",
        MendKind::ALL.iter().map(|k| (k.number(), k.name(), "mended", k.meaning())).collect(),
    );
    out
}

#[test]
fn the_document_lists_every_number() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FINDINGS.md");
    let wanted = document();
    if std::env::var_os("NENRIN_GOLDEN").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    let differs = wanted.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert_eq!(differs, None, "docs/FINDINGS.md is not what the code says");
    assert_eq!(wanted.lines().count(), found.lines().count());
}

/// A line of a test that holds a check or a repair to this number, by itself or by name.
fn is_held(line: &str, number: u16, variant: &str, name: &str) -> bool {
    let asserts = ["assert_finds(", "assert_said(", "contains(&", "].into())"].iter().any(|a| line.contains(a));
    let by_number = line.split(|c: char| !c.is_ascii_digit()).any(|word| word == number.to_string());
    let ended = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric());
    let by_variant = ["What::", "LossKind::", "MendKind::"]
        .iter()
        .any(|of| line.split(&format!("{of}{variant}")).skip(1).any(ended));
    asserts && by_number || by_variant || line.contains(&format!("\"{name}\""))
}

/// Each number is produced by a test that asks for it.
#[test]
fn a_test_asks_for_every_number() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src/check", "src/repair", "tests/it", "../cli/tests/it"] {
        files.extend(std::fs::read_dir(core.join(dir)).unwrap().map(|e| e.unwrap().path()));
    }
    let is_test = |p: &&std::path::PathBuf| {
        let name = p.file_name().unwrap().to_str().unwrap();
        // Not this one, and not the one that only lists the names.
        p.is_file() && name.ends_with("tests.rs")
            || p.is_file() && p.parent().unwrap().ends_with("it") && !["findings.rs", "check.rs"].contains(&name)
    };
    let text: String = files.iter().filter(is_test).map(|p| std::fs::read_to_string(p).unwrap()).collect();
    let found = What::ALL.iter().map(|w| (w.number(), format!("{w:?}"), w.name()));
    let lost = LossKind::ALL.iter().map(|k| (k.number(), format!("{k:?}"), k.name()));
    let mended = MendKind::ALL.iter().map(|k| (k.number(), format!("{k:?}"), k.name()));
    let missing: Vec<u16> = found
        .chain(lost)
        .chain(mended)
        .filter(|(number, variant, name)| !text.lines().any(|line| is_held(line, *number, variant, name)))
        .map(|(number, ..)| number)
        .collect();
    assert_eq!(missing, Vec::<u16>::new(), "no test asks for these numbers");
}
