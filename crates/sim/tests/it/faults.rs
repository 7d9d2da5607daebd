//! Requests of the device fail (promise P5).

use nenrin_device::OpKind;
use nenrin_format::superblock::Profile;
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Tally, record};
use nenrin_sim::fault::{FaultPlan, plans, run_with_fault};
use nenrin_sim::members::Members;

#[test]
fn after_a_failed_request_nothing_more_is_acknowledged_and_nothing_is_lost() {
    let mut tally = Tally::default();
    for seed in 0..60 {
        let config = Config::of_seed(seed);
        let config = Config { steps: config.steps.min(100), ..config };
        let recorded = record::<Core>(&config, false).unwrap_or_else(|e| panic!("{e}"));
        for plan in plans(seed, recorded.last_cut() - recorded.first_cut(), 12) {
            run_with_fault::<Core>(&config, plan, &mut tally).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    println!("{:?}", tally.faults);
    for kind in ["Write", "Flush", "Read"] {
        let reported = tally.faults.get(&format!("{kind} fails: Reported")).copied().unwrap_or(0);
        assert!(reported >= 20, "{kind}: {:?}", tally.faults);
    }
}

#[test]
fn every_early_request_fails_once() {
    let mut tally = Tally::default();
    let config = Config { steps: 60, ..Config::of_seed(4) };
    for kind in [OpKind::Write, OpKind::Flush] {
        for number in 1..40 {
            for for_good in [false, true] {
                let plan = FaultPlan { kind, number, for_good };
                run_with_fault::<Core>(&config, plan, &mut tally).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Runs the plans of these seeds on several devices, of which one fails.
fn on_one_of(members: Members, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let config = Config::of_seed(seed).on(members);
        let config = Config { steps: config.steps.min(100), ..config };
        let recorded = record::<Core>(&config, false).unwrap_or_else(|e| panic!("{e}"));
        for plan in plans(seed, (recorded.last_cut() - recorded.first_cut()) / usize::from(members.count), 12) {
            run_with_fault::<Core>(&config, plan, &mut tally).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    println!("{:?}", tally.faults);
    tally
}

/// Whoever uses the volume does not notice, and is told that the device is not well; what was acknowledged then is there without it.
#[test]
fn where_others_stand_in_a_failed_request_of_one_device_is_borne() {
    for members in [Members::new(2, Profile::Mirror), Members::new(4, Profile::Parity)] {
        let tally = on_one_of(members, 0..16);
        // Few reads are made by who has just written.
        for (kind, least) in [("Write", 10), ("Flush", 10), ("Read", 2)] {
            let mended = tally.faults.get(&format!("{kind} fails: Mended")).copied().unwrap_or(0);
            assert!(mended >= least, "{kind}: {:?}", tally.faults);
        }
        let borne = |what: &str| ["Mended", "NotReached", "Unneeded"].iter().any(|ending| what.ends_with(ending));
        assert!(tally.faults.keys().all(|what| borne(what)), "{:?}", tally.faults);
    }
}

/// On one of two devices that need each other it is as on one device.
#[test]
fn where_none_stands_in_a_failed_request_of_one_device_is_told() {
    let tally = on_one_of(Members::new(2, Profile::Stripe), 0..16);
    for kind in ["Write", "Flush"] {
        let reported = tally.faults.get(&format!("{kind} fails: Reported")).copied().unwrap_or(0);
        assert!(reported >= 10, "{kind}: {:?}", tally.faults);
    }
}

#[test]
fn a_plan_is_named_and_found_again() {
    for plan in plans(7, 1000, 20) {
        let text = plan.argument();
        assert_eq!(FaultPlan::parse(text.trim_start_matches("--fault ")), Some(plan));
    }
    assert_eq!(FaultPlan::parse("write"), None);
    assert_eq!(FaultPlan::parse("sync:1"), None);
}
