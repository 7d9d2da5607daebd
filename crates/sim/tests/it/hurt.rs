//! What goes wrong beside a cut: requests of the mount that recovers fail, or a bit is wrong in what was durable before.

use nenrin_format::superblock::Profile;
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Failure, Tally, hurt_cuts, rot_cuts};
use nenrin_sim::members::Members;

type Cuts = fn(&Config, Option<nenrin_sim::driver::Cut>, &mut Tally) -> Result<(), Box<Failure>>;

/// Cuts the worlds of these seeds on such devices.
fn cut(cuts: Cuts, members: Members, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let config = Config::of_seed(seed).on(members);
        let config = Config { steps: config.steps.min(100), ..config };
        cuts(&config, None, &mut tally).unwrap_or_else(|e| panic!("{e}\n{}", e.detail));
    }
    println!("{:?}", tally.faults);
    tally
}

fn least(tally: &Tally, what: &str, least: u64) {
    let seen = tally.faults.get(what).copied().unwrap_or(0);
    assert!(seen >= least, "{what}: {:?}", tally.faults);
}

#[test]
fn a_mount_that_meets_a_fault_loses_nothing() {
    let tally = cut(hurt_cuts::<Core>, Members::default(), 0..24);
    for came in ["Shown", "Unread", "Damage", "Refused"] {
        least(&tally, &format!("Read of a mount fails: {came}"), 10);
    }
    for kind in ["Write", "Flush"] {
        least(&tally, &format!("{kind} of a mount fails: Refused"), 10);
    }
}

#[test]
fn a_bit_that_rots_before_a_cut_damages_nothing_else() {
    let tally = cut(rot_cuts::<Core>, Members::default(), 0..24);
    for noticed in ["Same", "Unproven", "Error", "Damage"] {
        least(&tally, &format!("Cut, and a bit wrong: {noticed}"), 10);
    }
}

/// Rows of which the row log of a crash still has something, although their parity was durable: one seed in a dozen meets that.
#[cfg(feature = "breaks")]
#[test]
fn parity_that_is_made_anew_of_rot_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let parity = Members::new(3, Profile::Parity);
    let lost = || cut(rot_cuts::<Core>, parity, 20..32).faults.get("Cut, and a bit wrong: Error").copied().unwrap_or(0);
    let (sound, broken) = (lost(), with(Break::ParityOfUnknown, lost));
    assert!(sound < broken, "{sound} of what rotted was lost, and {broken} with the break");
}

/// Where others stand in nothing is to be seen of either; but a mount may be refused once where a device fails with which alone the
/// last commit was whole, and with parity something may be lost: see `driver/rot.rs`.
#[test]
fn where_others_stand_in_a_fault_of_a_mount_and_a_wrong_bit_are_borne() {
    for members in [Members::new(2, Profile::Mirror), Members::new(3, Profile::Parity)] {
        let tally = cut(hurt_cuts::<Core>, members, 0..6);
        least(&tally, "Read of a mount fails: Shown", 20);
        assert!(!tally.faults.keys().any(|k| k.ends_with("Damage") || k.ends_with("Unread")), "{:?}", tally.faults);
        let tally = cut(rot_cuts::<Core>, members, 0..6);
        least(&tally, "Cut, and a bit wrong: Same", 100);
        let borne = |k: &str| k.ends_with("Same") || members.profile == Profile::Parity && k.ends_with("Error");
        assert!(tally.faults.keys().all(|k| borne(k)), "{:?}", tally.faults);
    }
}
