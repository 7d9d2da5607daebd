//! Rot in every block, and that worlds are worlds of their own. Sequences of operations and named
//! scenarios are tried by scripts/crash.sh, with what is shipped.

use nenrin_sim::cli::{self, Arguments, Core};
use nenrin_sim::driver::Tally;

fn arguments(line: &str) -> Arguments {
    Arguments::parse(lexopt::Parser::from_args(line.split_whitespace())).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn done(result: Result<Tally, Box<nenrin_sim::driver::Failure>>) -> Tally {
    result.unwrap_or_else(|e| panic!("{e}\n{}", e.detail))
}

/// Promise P4, for every block of several volumes.
#[test]
fn one_bit_of_every_block_in_turn() {
    let tally = done(cli::run::<Core>(&arguments("--seeds 0..12 --flips 1 --images 1000000 --choices 1 --faults 0")));
    println!("{:?}", tally.faults);
    for what in ["Same", "Error", "Damage"] {
        assert!(tally.faults.get(&format!("Bit flipped: {what}")).is_some_and(|n| *n > 50), "{:?}", tally.faults);
    }
    assert!(tally.verdicts_of_wrong.contains_key(nenrin_core::Verdict::Damage.name()), "{:?}", tally.verdicts_of_wrong);
}

/// A device of a mirror, or of rows with parity, may rot: nobody notices, in the past neither.
#[test]
fn one_bit_of_every_block_of_several_devices_in_turn() {
    for devices in ["--devices 2 --layout mirror", "--devices 3 --layout parity"] {
        let line =
            format!("--seeds 0..2 --steps 40 --flips 1 --images 1000000 --each 10 --faults 0 --lies 0 {devices}");
        let tally = done(cli::run::<Core>(&arguments(&line)));
        let kinds: Vec<_> = tally.faults.iter().collect();
        assert!(matches!(kinds[..], [(what, n)] if what == "Bit flipped: Same" && *n > 100), "{kinds:?}");
    }
}

/// The number of threads changes nothing about what is found and counted.
#[test]
fn worlds_do_not_see_each_other() {
    let one = done(cli::run::<Core>(&arguments("--seeds 40..52 --faults 2")));
    let two = done(cli::run::<Core>(&arguments("--seeds 40..52 --faults 2 --jobs 2")));
    assert_eq!(one, two);
}

/// What was being written cannot be read after a power cut: all that was acknowledged is there, at once or after a repair; where others have
/// what is on a device nobody has to know.
#[test]
fn what_was_being_written_and_cannot_be_read() {
    let kinds = |tally: &Tally| -> Vec<(String, u64)> {
        let of = |what: &String| what.strip_prefix("Cut, and not read: ").map(ToOwned::to_owned);
        tally.faults.iter().filter_map(|(what, n)| Some((of(what)?, *n))).collect()
    };
    let line = |more: &str| format!("--unreads 1 --images 1000000 --each 1 --choices 1 --faults 0 --lies 0 {more}");
    let tally = done(cli::run::<Core>(&arguments(&line("--seeds 0..60"))));
    let kinds_of_one = kinds(&tally);
    for what in ["Mounted", "Repaired"] {
        assert!(kinds_of_one.iter().any(|(kind, n)| kind == what && *n > 20), "{kinds_of_one:?}");
    }
    for devices in ["--devices 2 --layout mirror", "--devices 3 --layout parity"] {
        let tally = done(cli::run::<Core>(&arguments(&line(&format!("--seeds 0..4 --steps 60 {devices}")))));
        let kinds = kinds(&tally);
        assert!(matches!(&kinds[..], [(what, n)] if what == "Mounted" && *n > 30), "{devices}: {kinds:?}");
    }
}
