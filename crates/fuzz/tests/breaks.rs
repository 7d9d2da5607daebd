//! Promise P8 is defended by hostile images: with a check on the way from bytes to the program taken away, they
//! must show it. Memory and requests are counted, never time. Without the feature `breaks` there is nothing to test.
#![cfg(feature = "breaks")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::breaks::{Break, with};
use nenrin_device::Image;
use nenrin_fuzz::{directed, image, memory};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

/// What trying the image says, a panic included.
fn tried(image: &Image) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| image::within_memory(image, image::try_all))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// The image shows the break, and nothing without it.
fn noticed(what: Break, image: &Image, expected: &str) {
    assert_eq!(tried(image), Ok(()), "without it too");
    let said = with(what, || tried(image)).expect_err("it went unnoticed");
    assert!(said.contains(expected), "{said}");
    println!("P8    {:<18} noticed after      1 images: {said}", format!("{what:?}"));
}

#[test]
fn believed_numbers_are_noticed() {
    noticed(Break::BelieveNumbers, &directed::empty_ranges(), "a panic: ");
}

#[test]
fn memory_for_a_believed_size_is_noticed() {
    noticed(Break::SizeBelieved, &directed::more_segments_than_room(), "of memory were in use");
}

#[test]
fn believed_counters_are_noticed() {
    // The others are at their limits where nothing is added to them that a mount would refuse.
    let mut images = directed::counters_at_their_limits();
    images.drain(4..);
    images.extend([directed::an_epoch_beyond_all(), directed::an_inode_beyond_all()]);
    let mut unnoticed = Vec::new();
    for (n, image) in images.iter().enumerate() {
        assert_eq!(image::mounts_again(image), Ok(()), "without it too: image {n}");
        match with(Break::CountersBelieved, || image::mounts_again(image)) {
            Err(said) if said.contains("cannot be mounted any more") => {}
            said => unnoticed.push((n, said)),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
    println!("P8    CountersBelieved   noticed after      1 image, each of {}", images.len());
}

#[test]
fn reading_without_end_is_noticed() {
    noticed(Break::ReadAgain, &directed::no_leaf_is_right(), "it does not end");
}
