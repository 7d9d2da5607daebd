//! Worlds that are mounted as users mount.

use nenrin_core::{Barrier, MountOptions, Order};
use nenrin_sim::cli::{Arguments, Core, run};
use nenrin_sim::config::{Config, Mounted};

fn config(line: &str, seed: u64) -> Config {
    let words = line.split_whitespace();
    Arguments::parse(lexopt::Parser::from_args(words)).unwrap_or_else(|e| panic!("{line}: {e}")).config(seed)
}

#[test]
fn what_is_not_named_is_as_a_mount_has_it_by_itself() {
    for seed in 0..40 {
        let usual = MountOptions::default();
        let options = config("--mounted defaults", seed).options();
        let limits = |o: &MountOptions| MountOptions {
            cache_bytes: usual.cache_bytes,
            dirty_bytes_max: usual.dirty_bytes_max,
            left_out_share: usual.left_out_share,
            history_tree_items: usual.history_tree_items,
            ..o.clone()
        };
        assert_eq!(format!("{:?}", limits(&options)), format!("{usual:?}"), "seed {seed}");
        let world = config("--mounted order=strict,barrier=none,checkpoint=0", seed);
        let options = world.options();
        let seen = (options.order, options.barrier, world.writeback, options.checkpoint_nanos);
        assert_eq!(seen, (Order::Strict, Barrier::None, false, 0), "seed {seed}");
        assert!(config("--mounted cache=writeback", seed).writeback);
    }
}

#[test]
fn the_line_of_a_failure_mounts_in_the_same_way() {
    for mounted in ["defaults", "order=strict", "barrier=checkpoint", "cache=writeback,checkpoint=0", "barrier=none"] {
        for seed in 0..40 {
            let first = config(&format!("--mounted {mounted}"), seed);
            assert_eq!(config(&first.arguments(), seed), first, "{}", first.arguments());
        }
    }
}

#[test]
fn what_the_file_system_does_not_do_is_refused() {
    for wrong in ["transport=uring", "order=loose", "checkpoint=never", "order=strict,cache=writeback", ""] {
        assert!(Mounted::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn every_way_to_mount_keeps_what_it_promises() {
    for mounted in ["defaults", "order=strict,checkpoint=0", "cache=writeback,barrier=checkpoint"] {
        let line = format!("--mounted {mounted} --seeds 0..2 --each 60 --faults 1 --lies 0");
        let arguments = Arguments::parse(lexopt::Parser::from_args(line.split_whitespace())).unwrap();
        let tally = run::<Core>(&arguments).unwrap_or_else(|e| panic!("{line}\n{e}\n{}", e.detail));
        assert!(tally.distinct > 50, "{line}: {tally:?}");
    }
}
