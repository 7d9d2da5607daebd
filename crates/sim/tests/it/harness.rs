//! The harness on the toy: silent when the toy is right, and not when it is
//! wrong in any of the ways it can be.

use nenrin_core::{Barrier, Order};
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Plan, Tally, record};
use nenrin_sim::toy::{Toy, broken};

const PLAN: Plan = Plan { choices: 6, deep_every: 10, second_cuts: 6, images_max: 150 };

fn cut<const WRONG: u8>(config: &Config, tally: &mut Tally) -> Result<(), String> {
    let recorded = record::<Toy<WRONG>>(config, false).map_err(|f| f.to_string())?;
    recorded.cut_all::<Toy<WRONG>>(&PLAN, tally).map_err(|f| format!("{f}\n{}", f.detail))
}

fn caught<const WRONG: u8>(order: Order) {
    let mut said = Vec::new();
    for seed in 0..24 {
        let config = Config { order, barrier: Barrier::Sync, ..Config::of_seed(seed) };
        if let Err(e) = cut::<WRONG>(&config, &mut Tally::default()) {
            said.push(e.lines().next().unwrap_or_default().to_owned());
        }
    }
    assert!(!said.is_empty(), "nothing was noticed");
    said.sort();
    said.dedup_by_key(|s| s.chars().filter(|c| !c.is_ascii_digit()).collect::<String>());
    println!("{}", said.join("\n"));
}

#[test]
fn a_right_toy_passes() {
    let mut tally = Tally::default();
    for seed in 0..40 {
        cut::<{ broken::NOT }>(&Config::of_seed(seed), &mut tally).unwrap_or_else(|e| panic!("{e}"));
    }
    println!("{tally:?}");
    assert!(tally.distinct > 1000);
}

macro_rules! wrong {
    ($($test:ident $wrong:ident $order:ident;)*) => {$(
        #[test]
        fn $test() {
            caught::<{ broken::$wrong }>(Order::$order);
        }
    )*};
}

wrong! {
    a_missing_flush_is_noticed NO_FLUSH Relaxed;
    a_mixed_content_is_noticed MIXED Relaxed;
    a_namespace_out_of_order_is_noticed NAMESPACE_ORDER Relaxed;
    a_truncation_not_held_back_is_noticed NO_HOLD Relaxed;
    a_rename_without_content_is_noticed NO_CARRY Relaxed;
    a_changing_past_is_noticed PAST_IS_PRESENT Relaxed;
    relaxed_instead_of_strict_is_noticed NOT_STRICT Strict;
    a_single_slot_is_noticed ONE_SLOT Relaxed;
    a_torn_state_is_noticed TORN Relaxed;
    a_forgotten_attribute_is_noticed FORGETFUL Relaxed;
}
