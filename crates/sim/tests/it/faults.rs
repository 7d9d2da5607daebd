//! Requests of the device fail (promise P5).

use nenrin_device::OpKind;
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Tally, record};
use nenrin_sim::fault::{FaultPlan, plans, run_with_fault};

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

#[test]
fn a_plan_is_named_and_found_again() {
    for plan in plans(7, 1000, 20) {
        let text = plan.argument();
        assert_eq!(FaultPlan::parse(text.trim_start_matches("--fault ")), Some(plan));
    }
    assert_eq!(FaultPlan::parse("write"), None);
    assert_eq!(FaultPlan::parse("sync:1"), None);
}
