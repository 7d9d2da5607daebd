//! Hostile bytes as properties, bounded by count: no panic, no hang, no memory
//! beyond the limit, no change outside the volume. Built with overflow checks.
//! Longer: `cargo run --profile test -p nenrin-fuzz -- run --seconds 600 --jobs 2`.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_fuzz::{TARGETS, directed, image, is_of_images, memory, repair, runner, target};
use std::path::Path;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

/// `NENRIN_FUZZ_SEED` chooses other cases.
fn seed() -> u64 {
    std::env::var("NENRIN_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_121)
}

fn cases(name: &str, count: u64) {
    let target = target(name).unwrap();
    println!("{name}: {count} cases of seed {}", seed());
    let mut first = None;
    let mut fails = |failure: runner::Failure| {
        first = Some(failure);
        false
    };
    let done = runner::many(target, seed(), 0..count, &|| false, &mut fails);
    if let Some(failure) = first {
        panic!("{failure}");
    }
    assert_eq!(done, count);
}

#[test]
fn every_decoder() {
    for (name, _) in TARGETS.iter().filter(|t| !is_of_images(t.0)) {
        cases(name, 40_000);
    }
}

#[test]
fn whole_images() {
    cases("image", 1200);
}

#[test]
fn images_that_are_repaired() {
    cases("repair", 800);
}

/// What was found once, and real structures to begin with, stay right.
#[test]
fn the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut seen = 0;
    for target in TARGETS {
        for file in std::fs::read_dir(corpus.join(target.0)).unwrap() {
            let path = file.unwrap().path();
            runner::one(*target, &std::fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen} files");
}

/// A case that changes nothing: the volumes themselves are in order, and the
/// memory they take is far from the limit.
#[test]
fn the_volumes_to_begin_with() {
    let all = nenrin_fuzz::volume::volumes();
    assert_eq!(all.len(), 3);
    for image in all {
        let disk = std::sync::Arc::new(nenrin_device::CrashDisk::from_image(image.clone()));
        let options = nenrin_core::CheckOptions { data: true };
        let report = nenrin_core::check(&[disk], &options, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
    let (_, said) = image::altered(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert!(!said.is_empty());
}

/// The changes get behind the first checksum: most images mount all the same.
#[test]
fn most_changed_images_still_mount() {
    let mut mounted = 0;
    for number in 0..100 {
        let (image, _) = image::altered(&runner::case("image", seed(), number)).unwrap();
        let disk = std::sync::Arc::new(nenrin_device::CrashDisk::from_image(image));
        let clock = std::sync::Arc::new(nenrin_fuzz::volume::Steps::default());
        let options = nenrin_core::MountOptions { read_only: true, ..nenrin_fuzz::volume::options() };
        mounted += u32::from(nenrin_core::Fs::open(vec![disk], clock, options).is_ok());
    }
    assert!(mounted >= 50, "{mounted} of 100");
}

/// Single numbers where they do the most harm.
#[test]
fn directed_images() {
    let all = [
        directed::more_segments_than_room,
        directed::no_leaf_is_right,
        directed::extents_behind_every_file,
        directed::empty_ranges,
    ];
    for image in all.map(|made| made()) {
        assert_ne!(image.to_vec(), untouched().to_vec());
        image::within_memory(&image, image::try_all).unwrap();
    }
}

fn untouched() -> nenrin_device::Image {
    nenrin_fuzz::volume::volumes()[1].clone()
}

/// Counters at their limits, or beyond them: what can be mounted can be after it was.
#[test]
fn counters_without_end() {
    let mut all = directed::counters_at_their_limits();
    all.extend([directed::an_epoch_beyond_all(), directed::an_inode_beyond_all(), untouched()]);
    for (n, image) in all.iter().enumerate() {
        assert!(image.to_vec() != untouched().to_vec() || n + 1 == all.len(), "image {n} is as it was");
        image::mounts_again(image).unwrap_or_else(|e| panic!("image {n}: {e}"));
        image::within_memory(image, image::try_all).unwrap();
    }
}

/// Memory goes by how many segments there are, not by their numbers.
#[test]
fn numbers_of_segments_far_apart() {
    let image = directed::numbers_far_apart();
    image::within_memory(&image, image::try_all).unwrap();
    image::within_memory(&image, repair::try_repair).unwrap();
}
