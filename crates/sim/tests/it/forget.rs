//! Forgetting under power cuts, on one device and on several.

use nenrin_format::superblock::Profile;
use nenrin_sim::config::Config;
use nenrin_sim::driver::Tally;
use nenrin_sim::life::{self, Life};
use nenrin_sim::members::Members;

fn forgotten(seeds: std::ops::Range<u64>, on: impl Fn(Config) -> Config) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let config = on(Life::Forget.config(seed));
        life::carry_out(&config, None, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    println!("{tally:?}");
    tally
}

#[test]
fn nothing_of_a_secret_is_left_wherever_forgetting_is_cut() {
    let tally = forgotten(0..2, |c| c);
    assert!(tally.distinct > 80, "{tally:?}");
}

#[test]
fn on_two_devices_with_two_copies_neither() {
    forgotten(0..1, |c| c.on(Members::new(2, Profile::Mirror)));
    forgotten(0..1, |c| c.on(Members::new(3, Profile::Parity)));
}

#[test]
fn on_three_devices_in_stripes_neither() {
    forgotten(1..2, |c| c.on(Members::new(3, Profile::Stripe)));
}
