//! Bounded-exhaustive sequences, named scenarios, and rot, bounded for `make test`.

use nenrin_sim::cli::{self, Arguments, Core};
use nenrin_sim::driver::Tally;

fn arguments(line: &str) -> Arguments {
    Arguments::parse(lexopt::Parser::from_args(line.split_whitespace())).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn done(result: Result<Tally, Box<nenrin_sim::driver::Failure>>) -> Tally {
    result.unwrap_or_else(|e| panic!("{e}\n{}", e.detail))
}

/// Every operation with every way to sync, in every mode.
#[test]
fn every_sequence_of_one_operation() {
    for modes in ["", "--order strict", "--barrier checkpoint", "--order strict --barrier none"] {
        let tally = done(cli::exhaustive::<Core>(&arguments(&format!("--length 1 {modes}"))));
        assert_eq!(tally.workloads, 280);
        assert!(tally.distinct > 1000, "{modes}: {tally:?}");
    }
}

#[test]
fn a_sample_of_longer_sequences() {
    let mut total = Tally::default();
    for length in [2, 3] {
        total.add(done(cli::exhaustive::<Core>(&arguments(&format!("--length {length} --sample 400")))));
    }
    println!("{total:?}");
    assert!(total.distinct > 10_000, "{total:?}");
}

#[test]
fn the_named_scenarios() {
    let tally = done(cli::scenarios::<Core>(&arguments("")));
    println!("{tally:?}");
    assert!(tally.distinct > 10_000, "{tally:?}");
    assert!(tally.activity.get("blocks moved").is_some_and(|n| *n > 1000), "cleaning took place");
    assert!(tally.refused > 100, "the volume was full");
    for row in nenrin_core::Verdict::ALL.iter().filter(|v| **v != nenrin_core::Verdict::Damage) {
        assert!(tally.verdicts.contains_key(row.name()), "recovery never decided: {}", row.name());
    }
}

/// Promise P4, for every block of several volumes.
#[test]
fn one_bit_of_every_block_in_turn() {
    let tally = done(cli::run::<Core>(&arguments("--seeds 0..12 --flips 1 --images 1000000 --choices 1 --faults 0")));
    println!("{:?}", tally.faults);
    for what in ["Same", "Error", "Damage"] {
        assert!(tally.faults.get(&format!("Bit flipped: {what}")).is_some_and(|n| *n > 50), "{:?}", tally.faults);
    }
    assert!(tally.verdicts.contains_key(nenrin_core::Verdict::Damage.name()), "{:?}", tally.verdicts);
}

/// The number of threads changes nothing about what is found and counted.
#[test]
fn worlds_do_not_see_each_other() {
    let one = done(cli::run::<Core>(&arguments("--seeds 40..52 --faults 2")));
    let two = done(cli::run::<Core>(&arguments("--seeds 40..52 --faults 2 --jobs 2")));
    assert_eq!(one, two);
}
