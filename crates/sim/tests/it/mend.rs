//! A repair is cut after every write and every flush.

use nenrin_sim::cli::{self, Arguments, Core};
use nenrin_sim::driver::Tally;
use nenrin_sim::life::{self, Life};
use nenrin_sim::mend::Damage;

fn cut(damage: Damage, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    let life = Life::Repair(damage);
    for seed in 0..seeds {
        life::carry_out(&life.config(seed), None, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    println!("{damage:?}: {} images of {} workloads", tally.distinct, tally.workloads);
    tally
}

#[test]
fn a_repair_that_is_cut_leaves_the_old_state_or_the_repaired_one() {
    assert!(cut(Damage::Leaf, 24).distinct > 500);
}

/// The log changes a leaf that is lost: a mount shows what was before that, a repair takes in all of the log.
#[test]
fn a_repair_of_a_leaf_that_the_log_changes_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Behind, 24).distinct > 500);
}

/// No root is left: the live state is found whole, and a cut changes nothing about that.
#[test]
fn a_salvage_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Roots, 16).distinct > 300);
}

#[test]
fn a_repair_of_a_hole_in_the_log_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Log, 12).distinct > 200);
}

#[test]
fn a_repair_of_impossible_items_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Items, 12).distinct > 200);
}

#[test]
fn a_repair_of_back_references_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Shared, 48).distinct > 150);
}

/// A leaf that the log changes is lost: the repair that is cut behind its root finds the same again.
#[test]
fn a_repair_of_what_the_log_changes_that_is_cut_finds_the_same_again() {
    let life = Life::Repair(Damage::Behind);
    let mut tally = Tally::default();
    for seed in 440..560 {
        life::carry_out(&life.config(seed), None, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    assert!(tally.workloads > 0 && tally.distinct > 10, "{tally:?}");
}

/// The line that a failure of a repair prints means that repair, and the cut in it.
#[test]
fn one_cut_of_a_repair_can_be_replayed() {
    let config = Life::Repair(Damage::Leaf).config(3);
    let replay = |more: &str| {
        let line = format!("{}{more}", config.arguments());
        let words = line.split_whitespace();
        let arguments = Arguments::parse(lexopt::Parser::from_args(words)).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(arguments.config(3), config, "{line}");
        cli::replay::<Core>(&arguments).unwrap_or_else(|e| panic!("{e}"))
    };
    let all = replay("");
    let one = replay(" --cut 2 --choice 1");
    assert_eq!((one.images, one.workloads), (1, 1));
    assert!(all.images > 10, "{all:?}");
}
