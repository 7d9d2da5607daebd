//! Power cuts against the real core, bounded for `make test`. Longer runs:
//! `cargo run --release -p nenrin-sim -- run --minutes 60`.

use nenrin_core::{Barrier, Order};
use nenrin_sim::cli::Core;
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Plan, Tally, record};
use nenrin_sim::members::Members;
use nenrin_sim::workload::Profile;

/// Fewest distinct crash images of random workloads that are recovered and checked here.
const IMAGES_MIN: u64 = 4000;

fn cut(config: &Config, plan: &Plan, tally: &mut Tally) {
    let done = record::<Core>(config, false).and_then(|r| r.cut_all::<Core>(plan, tally));
    if let Err(failure) = done {
        panic!("{failure}\n{}", failure.detail);
    }
}

#[test]
fn crash_images_of_random_workloads() {
    let plan = Plan { images_max: 400, ..Plan::default() };
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.distinct < IMAGES_MIN {
        cut(&Config::of_seed(seed), &plan, &mut tally);
        seed += 1;
    }
    println!("{tally:?}");
    assert!(tally.second_images > 100, "recovery was cut too");
    assert!(tally.past_states > 200, "checkpoints were compared too");
}

#[test]
fn every_order_and_barrier() {
    let plan = Plan { images_max: 100, deep_every: 30, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 500..512 {
        for order in [Order::Relaxed, Order::Strict] {
            for barrier in [Barrier::Sync, Barrier::Checkpoint, Barrier::None] {
                let base = Config::of_seed(seed);
                cut(&Config { order, barrier, steps: base.steps.min(80), ..base }, &plan, &mut tally);
            }
        }
    }
    assert!(tally.distinct > 1500, "{tally:?}");
}

/// "Create a file, append 4 KiB blocks, fsync, crash at once": the first crash
/// test of the file-level journaling paper (SEEDS 4).
#[test]
fn append_blocks_fsync_cut() {
    let plan = Plan { images_max: 500, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 0..4 {
        let profile = Some(Profile::AppendFsync);
        let config = Config { profile, steps: 120, barrier: Barrier::Sync, ..Config::of_seed(seed) };
        cut(&config, &plan, &mut tally);
    }
    assert!(tally.distinct > 500, "{tally:?}");
}

/// "Random mkdir, create, write, truncate on random objects, fsync, crash":
/// the second crash test of that paper.
#[test]
fn random_tree_fsync_cut() {
    let plan = Plan { images_max: 500, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 0..6 {
        let profile = Some(Profile::TreeFsync);
        let config = Config { profile, steps: 120, barrier: Barrier::Sync, ..Config::of_seed(seed) };
        cut(&config, &plan, &mut tally);
    }
    assert!(tally.distinct > 400, "{tally:?}");
}

#[test]
fn a_seed_means_the_same_every_time() {
    let plan = Plan { images_max: 150, deep_every: 10, ..Plan::default() };
    let run = |seed| {
        let mut tally = Tally::default();
        cut(&Config::of_seed(seed), &plan, &mut tally);
        tally
    };
    let mut digests = Vec::new();
    // In two of them many files wait to be written at the same time: in which order must not be left to chance.
    for seed in [1, 2, 3, 36, 66] {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        digests.push(first.digest);
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 5, "and another seed means something else");
}

/// Threads and the order in which requests complete are of the seed, too.
#[test]
fn a_seed_with_other_clients_means_the_same_every_time() {
    let plan = Plan { images_max: 100, deep_every: 10, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 0..20 {
        let config = Config { clients: true, queued: true, barrier: Barrier::Sync, ..Config::of_seed(seed) };
        let mut first = Tally::default();
        let mut second = Tally::default();
        cut(&config, &plan, &mut first);
        cut(&config, &plan, &mut second);
        assert_eq!(first, second, "seed {seed}");
        tally.add(first);
    }
    for what in ["calls interrupted by others", "requests that overtook others"] {
        assert!(tally.activity.get(what).is_some_and(|n| *n > 20), "{what}: {:?}", tally.activity);
    }
    let beside = tally.activity.get("commits begun beside others");
    assert!(beside.is_some_and(|n| *n > 2), "{:?}", tally.activity);
    for call in ["scrub", "clean", "set_retention", "checkpoint_drop", "fsync_beside"] {
        assert!(tally.by_call.get(call).is_some_and(|n| *n > 0), "{call}: {:?}", tally.by_call);
    }
}

/// Under barrier=checkpoint what was acknowledged before an index checkpoint is there after it.
#[test]
fn barrier_checkpoint_keeps_what_a_root_has() {
    let plan = Plan { images_max: 150, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 300..330 {
        cut(&Config { barrier: Barrier::Checkpoint, ..Config::of_seed(seed) }, &plan, &mut tally);
    }
    assert!(tally.distinct > 1500, "{tally:?}");
    assert!(tally.activity.get("index checkpoints").is_some_and(|n| *n > 50), "{:?}", tally.activity);
}

/// Worlds in which a kernel keeps what is written: whole pages, out of order, and its own times.
#[test]
fn cache_writeback_keeps_what_was_synced() {
    let plan = Plan { images_max: 150, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 400..430 {
        let config = Config { writeback: true, order: Order::Relaxed, ..Config::of_seed(seed) };
        cut(&config, &plan, &mut tally);
    }
    assert!(tally.distinct > 1500, "{tally:?}");
    assert!(tally.by_call.get("write_pages").is_some_and(|n| *n > 200), "{:?}", tally.by_call);
    assert!(!tally.by_call.contains_key("write"), "programs do not reach the file system: {:?}", tally.by_call);
}

/// Nodes so small that the index has three levels and more, and index checkpoints that write those above.
#[test]
fn a_deep_index_is_cut_like_any_other() {
    let plan = Plan { images_max: 60, deep_every: 30, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 0..6 {
        let profile = Some(Profile::Wide);
        cut(&Config { profile, barrier: Barrier::Sync, ..Config::of_seed(seed) }.sized(), &plan, &mut tally);
    }
    assert!(tally.distinct > 200, "{tally:?}");
    assert!(tally.activity.get("index nodes above inner ones").is_some_and(|n| *n > 50), "{:?}", tally.activity);
}

/// Directories of several people: lists, listings in pieces while others change them, large writes given away; and
/// where it can be had, names that collide.
#[test]
fn what_several_people_share_is_cut_like_any_other() {
    let plan = Plan { images_max: 60, deep_every: 30, ..Plan::default() };
    let mut tally = Tally::default();
    for seed in 600..640 {
        let base = Config::of_seed(seed);
        let members = Members { collides: true, ..Members::default() };
        let profile = [Profile::Names, Profile::General, Profile::Past][seed as usize % 3];
        let config = Config { profile: Some(profile), barrier: Barrier::Sync, ..base };
        cut(&config.on(members), &plan, &mut tally);
    }
    for call in ["create_with", "list_on"] {
        assert!(tally.by_call.get(call).is_some_and(|n| *n > 10), "{call}: {:?}", tally.by_call);
    }
    assert!(tally.activity.get("writes of bytes given away").is_some_and(|n| *n > 2), "{:?}", tally.activity);
}
