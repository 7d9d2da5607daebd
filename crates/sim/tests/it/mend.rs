//! A repair is cut after every write and every flush.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::{Barrier, Order};
use nenrin_sim::config::Config;
use nenrin_sim::driver::Tally;
use nenrin_sim::mend::{self, Damage};

fn cut(damage: Damage, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let config = Config { barrier: Barrier::Sync, order: Order::Relaxed, remounts: false, ..Config::of_seed(seed) };
        mend::repair_cuts(&config, damage, &mut tally)
            .unwrap_or_else(|e| panic!("seed {seed}: {}\n{}", e.what, e.replay));
    }
    println!("{} images of {} workloads", tally.distinct, tally.workloads);
    tally
}

#[test]
fn a_repair_that_is_cut_leaves_the_old_state_or_the_repaired_one() {
    assert!(cut(Damage::Leaf, 24).distinct > 500);
}

/// No root is left: the live state is found whole, and a cut changes nothing about that.
#[test]
fn a_salvage_that_is_cut_finds_the_same_again() {
    assert!(cut(Damage::Roots, 16).distinct > 300);
}
