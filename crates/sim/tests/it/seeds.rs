//! Seeds that found something, kept: each line of `seeds.txt` is run again
//! with all its cuts. What a seed does changes with the workloads; a line that
//! must keep its meaning becomes a test of its own in `found.rs`.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_sim::cli::{Arguments, Core, run};

#[test]
fn seeds_that_found_something() {
    let lines = include_str!("seeds.txt").lines().map(str::trim);
    let mut seen = 0;
    for line in lines.filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        let arguments = Arguments::parse(lexopt::Parser::from_args(words)).unwrap_or_else(|e| panic!("{line}: {e}"));
        let tally = run::<Core>(&arguments).unwrap_or_else(|e| panic!("{line}\n{e}\n{}", e.detail));
        assert_eq!(tally.workloads, 1, "{line}");
        seen += 1;
    }
    assert!(seen > 0);
}
