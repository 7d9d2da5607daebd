//! Devices that lie about a write (promise P4), and worlds that panic.

use nenrin_core::Order;
use nenrin_format::superblock::Profile;
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Tally, guarded};
use nenrin_sim::lie::{Kind, Lie, Noticed, lies, run_with_lie};
use nenrin_sim::members::Members;

#[test]
fn every_early_lie_is_noticed_or_needed_by_nobody() {
    let mut tally = Tally::default();
    for seed in 0..6 {
        let config = Config { steps: 80, ..Config::of_seed(seed) };
        for kind in [Kind::Lost, Kind::Misdirected, Kind::Astray] {
            for number in 1..40 {
                run_with_lie::<Core>(&config, Lie { kind, number }, &mut tally).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
    println!("{:?}", tally.faults);
    for kind in ["Lost", "Misdirected", "Astray"] {
        let of = |what: &str| tally.faults.get(&format!("Write {kind}: {what}")).copied().unwrap_or(0);
        assert!(of("InLife") + of("Error") + of("Damage") >= 10, "{:?}", tally.faults);
    }
}

/// The mark that proved the last commit lay upon it, and neither was seen.
#[test]
fn a_mark_upon_what_it_proves_is_still_a_proof() {
    let config = Config { order: Order::Relaxed, ..Config::of_seed(387) };
    let lie = Lie { kind: Kind::Misdirected, number: 5 };
    let noticed = run_with_lie::<Core>(&config, lie, &mut Tally::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(noticed, Noticed::Damage);
}

/// What a read returns wrongly is never data, is mended where a second copy exists, and stays off the device.
#[test]
fn every_early_read_comes_back_wrong_once_or_for_ever() {
    let mut tally = Tally::default();
    for seed in 0..8 {
        let config = Config { steps: 120, ..Config::of_seed(seed) };
        for kind in [Kind::Flipped, Kind::Stuck] {
            for number in 1..40 {
                run_with_lie::<Core>(&config, Lie { kind, number }, &mut tally).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
    println!("{:?}", tally.faults);
    for kind in ["Flipped", "Stuck"] {
        let of = |what: &str| tally.faults.get(&format!("Read {kind}: {what}")).copied().unwrap_or(0);
        assert!(of("InLife") >= 10 && of("Mended") >= 10, "{:?}", tally.faults);
    }
}

/// One device of several lies once: what it has wrong is had from the others, with it and without it.
#[test]
fn where_others_stand_in_the_lie_of_one_device_changes_nothing() {
    let mut tally = Tally::default();
    for (seed, members) in [(0, Members::new(2, Profile::Mirror)), (1, Members::new(4, Profile::Parity))] {
        for seed in [seed, seed + 2, seed + 4] {
            let config = Config { steps: 80, ..Config::of_seed(seed) }.on(members);
            for kind in [Kind::Lost, Kind::Misdirected, Kind::Astray, Kind::Flipped, Kind::Stuck] {
                for number in 1..20 {
                    run_with_lie::<Core>(&config, Lie { kind, number }, &mut tally).unwrap_or_else(|e| panic!("{e}"));
                }
            }
        }
    }
    println!("{:?}", tally.faults);
    for what in ["Write Lost", "Write Misdirected", "Write Astray", "Read Flipped", "Read Stuck"] {
        let mended = tally.faults.get(&format!("{what}: Mended")).copied().unwrap_or(0);
        assert!(mended >= 20, "{what}: {:?}", tally.faults);
    }
}

#[test]
fn a_lie_is_named_and_found_again() {
    for lie in lies(7, 1000, 20) {
        let text = lie.argument();
        assert_eq!(Lie::parse(text.trim_start_matches("--lie ")), Some(lie));
    }
    let kinds: std::collections::BTreeSet<_> =
        (0..3).flat_map(|seed| lies(seed, 1000, 2)).map(|l| format!("{:?}", l.kind)).collect();
    assert_eq!(kinds.len(), 5, "every kind is drawn: {kinds:?}");
    assert_eq!(Lie::parse("lost"), None);
    assert_eq!(Lie::parse("found:1"), None);
}

#[test]
fn a_panic_is_a_failure_with_its_line() {
    let config = Config::of_seed(77);
    let failure = guarded::<()>(&config, || panic!("on purpose")).unwrap_err();
    assert!(failure.what.contains("a panic: on purpose") && failure.replay.contains("--seed 77"), "{failure}");
}
