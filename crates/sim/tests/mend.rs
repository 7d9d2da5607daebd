//! A repair is cut after every write and every flush.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::{Barrier, Order};
use nenrin_sim::config::Config;
use nenrin_sim::driver::Tally;
use nenrin_sim::mend;

#[test]
fn a_repair_that_is_cut_leaves_the_old_state_or_the_repaired_one() {
    let mut tally = Tally::default();
    for seed in 0..24 {
        let config = Config { barrier: Barrier::Sync, order: Order::Relaxed, remounts: false, ..Config::of_seed(seed) };
        mend::repair_cuts(&config, &mut tally).unwrap_or_else(|e| panic!("seed {seed}: {}\n{}", e.what, e.replay));
    }
    println!("{} images of {} workloads", tally.distinct, tally.workloads);
    assert!(tally.distinct > 500, "{}", tally.distinct);
}
