//! What one life of a volume left on the device must not come back in a later one.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::{Barrier, Order};
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::Tally;
use nenrin_sim::life;
use nenrin_sim::scenario::Scenario;

fn config(seed: u64) -> Config {
    Config { barrier: Barrier::Sync, order: Order::Relaxed, remounts: false, ..Config::of_seed(seed) }
}

#[test]
fn a_commit_of_an_earlier_life_that_lands_late_stays_out() {
    for seed in 0..8 {
        life::late_write(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_life_that_is_lost_with_its_root_is_missed() {
    for seed in 0..8 {
        life::lost_root(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// "Cut, mount, write the same length, cut again, reordered": no zombie tail.
#[test]
fn the_same_length_written_again_after_a_cut_shows_nothing_of_the_first() {
    let mut tally = Tally::default();
    for seed in 0..8 {
        life::same_length_again::<Core>(seed, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    println!("{tally:?}");
    assert!(tally.distinct > 500, "{tally:?}");
}

#[test]
fn a_torn_newest_slot_leads_to_the_root_before_it() {
    for seed in 0..20 {
        life::newest_slot_torn::<Core>(&config(seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_torn_newest_slot_after_cleaning_leads_to_the_root_before_it() {
    for seed in 0..6 {
        let config = Config { scenario: Some(Scenario::Clean), ..config(seed) };
        life::newest_slot_torn::<Core>(&config).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
