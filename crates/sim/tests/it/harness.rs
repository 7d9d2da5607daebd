//! The harness on the toy: silent when the toy is right, and not when it is
//! wrong in any of the ways it can be.

use nenrin_core::{Barrier, Order};
use nenrin_device::OpKind;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Cut, Plan, Tally, record};
use nenrin_sim::fault::{FaultPlan, run_with_fault};
use nenrin_sim::scenario::Scenario;
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

#[test]
fn a_failed_write_that_is_ignored_is_noticed() {
    let mut noticed = 0;
    for number in 1..40 {
        let plan = FaultPlan { kind: OpKind::Write, number, for_good: number % 2 == 0 };
        let config = plain(number, 60);
        run_with_fault::<Toy<{ broken::NOT }>>(&config, plan, &mut Tally::default()).unwrap_or_else(|e| panic!("{e}"));
        noticed += u32::from(run_with_fault::<Toy<{ broken::DEAF }>>(&config, plan, &mut Tally::default()).is_err());
    }
    assert!(noticed > 10, "{noticed}");
}

/// P1: half a minute is the longest that a truncation is held back.
#[test]
fn a_truncation_held_back_for_ever_is_noticed() {
    let scenario = Some(Scenario::TruncateBesideFsync);
    let of = |seed| Config { scenario, ..plain(seed, 0) };
    for seed in 0..6 {
        cut::<{ broken::NOT }>(&of(seed), &mut Tally::default()).unwrap_or_else(|e| panic!("{e}"));
        let said = cut::<{ broken::HOLDS_FOREVER }>(&of(seed), &mut Tally::default()).unwrap_err();
        // The old content, after a cut or in a checkpoint.
        assert!(said.contains("was promised") || said.contains("not that of its moment"), "{said}");
    }
}

/// A seed whose workload goes on to its end in one mount, and is not closed.
fn plain(seed: u64, steps: usize) -> Config {
    let config = Config { order: Order::Relaxed, barrier: Barrier::Sync, ..Config::of_seed(seed) };
    Config { steps, remounts: false, ..config }
}

#[test]
fn a_panic_in_recovery_names_the_cut() {
    let config = plain(7, 200);
    let recorded = record::<Toy<{ broken::PANICS }>>(&config, false).unwrap_or_else(|f| panic!("{f}"));
    let failure = recorded.cut_all::<Toy<{ broken::PANICS }>>(&PLAN, &mut Tally::default()).unwrap_err();
    assert!(failure.what.contains("the toy panics at state"), "{failure}");
    let word = |name: &str| {
        let mut words = failure.replay.split_whitespace().skip_while(|w| *w != name);
        words.nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} in {failure}"))
    };
    let cut = Cut { at: word("--cut") as usize, choice: word("--choice") };
    let again = recorded.replay::<Toy<{ broken::PANICS }>>(cut, None, &PLAN).unwrap_err();
    assert_eq!((again.what, again.replay), (failure.what.clone(), failure.replay.clone()));
}

#[test]
fn a_long_workload_is_cut_from_its_beginning_to_its_end() {
    let recorded = record::<Toy<{ broken::NOT }>>(&plain(9, 700), false).unwrap_or_else(|f| panic!("{f}"));
    for images_max in [10, 40, 1_000_000] {
        let plan = Plan { deep_every: 0, images_max, ..PLAN };
        let places = recorded.places(&plan);
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert_eq!((places.first(), places.last()), (Some(&recorded.first_cut()), Some(&recorded.last_cut())));
        let mut tally = Tally::default();
        recorded.cut_all::<Toy<{ broken::NOT }>>(&plan, &mut tally).unwrap_or_else(|f| panic!("{f}"));
        assert!(tally.images >= places.len() as u64, "each place is tried: {places:?}, {tally:?}");
        if images_max < 1000 {
            assert!(tally.distinct <= images_max + 2 && tally.distinct >= images_max / 2, "{tally:?}");
            let middle = (recorded.first_cut() + recorded.last_cut()) / 2;
            let late = places.iter().filter(|at| **at > middle).count();
            assert!(late * 3 > places.len() && late * 3 < places.len() * 2, "{places:?}");
            let kinds = tally.by_choice.values().filter(|n| **n > 0).count();
            assert!(images_max < 40 || kinds >= 3, "{tally:?}");
        } else {
            assert_eq!(places.len(), recorded.last_cut() - recorded.first_cut() + 1);
        }
    }
}
