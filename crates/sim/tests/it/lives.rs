//! What one life of a volume left on the device must not come back in a later one.

use nenrin_sim::config::Config;
use nenrin_sim::driver::Tally;
use nenrin_sim::life::{self, Life};
use nenrin_sim::scenario::Scenario;

fn lives(life: Life, scenario: Option<Scenario>, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let config = Config { scenario, ..life.config(seed) };
        life::carry_out(&config, None, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    tally
}

#[test]
fn a_commit_of_an_earlier_life_that_lands_late_stays_out() {
    lives(Life::LateWrite, None, 8);
}

#[test]
fn a_life_that_is_lost_with_its_root_is_missed() {
    lives(Life::LostRoot, None, 8);
}

/// "Cut, mount, write the same length, cut again, reordered": no zombie tail.
#[test]
fn the_same_length_written_again_after_a_cut_shows_nothing_of_the_first() {
    let tally = lives(Life::SameLength, None, 8);
    println!("{tally:?}");
    assert!(tally.distinct > 500, "{tally:?}");
}

#[test]
fn a_torn_newest_slot_leads_to_the_root_before_it() {
    lives(Life::TornSlot, None, 20);
}

#[test]
fn a_torn_newest_slot_after_cleaning_leads_to_the_root_before_it() {
    lives(Life::TornSlot, Some(Scenario::Clean), 6);
}
