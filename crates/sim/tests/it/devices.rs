//! Power cuts on several devices, and devices that are lost with the power or before. Longer runs:
//! `nenrin-sim run --devices 3 --layout mirror --deaths`.

use nenrin_core::Barrier;
use nenrin_format::superblock::Profile;
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Plan, Tally, record};
use nenrin_sim::members::{Joins, Members};

fn cut(config: &Config, plan: &Plan, tally: &mut Tally) {
    let done = record::<Core>(config, false).and_then(|r| r.cut_all::<Core>(plan, tally));
    if let Err(failure) = done {
        panic!("{failure}\n{}", failure.detail);
    }
}

fn worlds(members: impl Fn(u64) -> Members, seeds: std::ops::Range<u64>) -> Tally {
    let plan = Plan { images_max: 120, deep_every: 20, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in seeds {
        let base = Config::of_seed(seed);
        cut(&Config { steps: base.steps.min(120), ..base }.on(members(seed)), &plan, &mut tally);
    }
    assert!(tally.distinct > 500 && tally.second_images > 50, "{tally:?}");
    tally
}

#[test]
fn a_cut_hits_all_devices_of_a_stripe() {
    worlds(|seed| Members::new(2 + (seed % 3) as u8, Profile::Stripe), 0..12);
}

#[test]
fn a_cut_hits_all_devices_one_after_the_other() {
    worlds(|_| Members::new(2, Profile::Single), 0..8);
}

/// Every image is recovered from all devices, in another order, and without one that the cut took along.
#[test]
fn a_mirror_survives_a_cut_and_the_loss_of_a_device() {
    worlds(|seed| Members::new(2 + (seed % 3) as u8, Profile::Mirror), 0..16);
}

/// A device dies in the middle of the work; then it is gone, or comes back and misses what came after.
#[test]
fn a_mirror_survives_a_device_that_dies_before_the_cut() {
    let members = |seed: u64| {
        let count = 2 + (seed % 3) as u8;
        let dies = Some(((seed % u64::from(count)) as u8, 5 + seed * 13 % 150));
        Members { dies, ..Members::new(count, Profile::Mirror) }
    };
    worlds(members, 100..116);
}

/// Rows with parity: every image also without a device that the cut took along, so whatever is in flight was half written.
#[test]
fn parity_survives_a_cut_and_the_loss_of_a_device() {
    worlds(|seed| Members::new(3 + (seed % 3) as u8, Profile::Parity), 400..412);
}

#[test]
fn parity_survives_a_device_that_dies_before_the_cut() {
    let members = |seed: u64| {
        let count = 3 + (seed % 3) as u8;
        let dies = Some(((seed % u64::from(count)) as u8, 5 + seed * 13 % 150));
        Members { dies, ..Members::new(count, Profile::Parity) }
    };
    worlds(members, 500..510);
}

#[test]
fn a_device_of_rows_with_parity_joins_or_is_replaced_under_load() {
    let members = |seed: u64| {
        let count = 3 + (seed % 2) as u8;
        let index = (seed % u64::from(count)) as u8;
        let joins = [Joins::Back(index), Joins::Takes(index), Joins::TakesDead(index)][seed as usize % 3];
        Members { joins: Some(joins), ..Members::new(count, Profile::Parity) }
    };
    let tally = worlds(members, 600..612);
    assert!(tally.activity["devices brought up to date"] > 6, "{:?}", tally.activity);
}

/// The lazier ways to flush, where the loss of a device must not take back what a checkpoint made durable.
#[test]
fn other_barriers() {
    let plan = Plan { images_max: 60, deep_every: 20, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 0..6 {
        for barrier in [Barrier::Checkpoint, Barrier::None] {
            for profile in [Profile::Stripe, Profile::Mirror, Profile::Parity] {
                let count = if profile == Profile::Parity { 3 } else { 2 };
                let base = Config::of_seed(seed);
                let config = Config { barrier, steps: base.steps.min(60), ..base };
                cut(&config.on(Members::new(count, profile)), &plan, &mut tally);
            }
        }
    }
    assert!(tally.distinct > 300, "{tally:?}");
}

/// A device is brought up to date while the work goes on; then any one of them may go.
#[test]
fn a_device_joins_under_load() {
    let members = |seed: u64| {
        let count = 2 + (seed % 3) as u8;
        Members { joins: Some(Joins::Back((seed % u64::from(count)) as u8)), ..Members::new(count, Profile::Mirror) }
    };
    let tally = worlds(members, 200..212);
    assert!(tally.activity["devices brought up to date"] > 6, "{:?}", tally.activity);
}

/// Another device takes the place of one that works, or of one that is gone.
#[test]
fn a_device_is_replaced_under_load() {
    let members = |seed: u64| {
        let (count, profile) =
            [(1, Profile::Single), (2, Profile::Stripe), (2, Profile::Mirror), (3, Profile::Mirror)][seed as usize % 4];
        let index = (seed / 4 % u64::from(count)) as u8;
        let dead = profile == Profile::Mirror && seed % 8 >= 4;
        let joins = Some(if dead { Joins::TakesDead(index) } else { Joins::Takes(index) });
        Members { joins, ..Members::new(count, profile) }
    };
    let tally = worlds(members, 300..316);
    assert!(tally.activity["devices brought up to date"] > 8, "{:?}", tally.activity);
}

/// Decision 0026: what is new leaves devices that are slow now and then, in worlds of two to five.
#[test]
fn slow_devices_are_left() {
    let members = |seed: u64| {
        let profile = if seed % 3 == 0 { Profile::Single } else { Profile::Stripe };
        Members { slow: true, ..Members::new(2 + (seed % 4) as u8, profile) }
    };
    let tally = worlds(members, 400..424);
    assert!(tally.activity["partials of the log beside a slow device"] > 8, "{:?}", tally.activity);
}

/// And nothing is wrong when they also come and go, or when one of them dies.
#[test]
fn slow_devices_come_and_go_or_die() {
    let changing = |seed: u64| Members { slow: true, changes: true, ..Members::new(3, profile_of(seed)) };
    worlds(changing, 430..438);
    let dying =
        |seed: u64| Members { slow: true, dies: Some((1, 40 + seed % 60)), ..Members::new(3, profile_of(seed)) };
    worlds(dying, 440..448);
}

fn profile_of(seed: u64) -> Profile {
    if seed % 2 == 0 { Profile::Single } else { Profile::Stripe }
}

/// Devices are added, removed and resized between the calls, and that is cut anywhere.
fn changing(profile: Profile, seeds: std::ops::Range<u64>) {
    let members = |seed: u64| {
        let count = match profile {
            Profile::Single => 2 + seed % 3,
            Profile::Stripe | Profile::Mirror => 3 + seed % 2,
            Profile::Parity => 4 + seed % 2,
        };
        Members { changes: true, ..Members::new(count as u8, profile) }
    };
    let tally = worlds(members, seeds);
    let moved = ["devices added", "devices removed", "segments laid"].map(|what| tally.activity.get(what).copied());
    assert!(moved.iter().all(|n| n.is_some_and(|n| n > 3)), "{:?}", tally.activity);
}

#[test]
fn devices_of_a_stripe_come_and_go() {
    changing(Profile::Stripe, 0..10);
}

#[test]
fn devices_one_after_the_other_come_and_go() {
    changing(Profile::Single, 0..10);
}

/// Every image also without a device that the cut took along.
#[test]
fn devices_of_a_mirror_come_and_go() {
    changing(Profile::Mirror, 0..10);
}

/// The same for rows with parity.
#[test]
fn devices_of_rows_with_parity_come_and_go() {
    changing(Profile::Parity, 0..16);
}
