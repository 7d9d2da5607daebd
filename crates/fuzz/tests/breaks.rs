//! Promise P8 is defended by hostile images: with a check on the way from
//! bytes to the program taken away, they must show it. Without the feature
//! `breaks` there is nothing to test.
#![cfg(feature = "breaks")]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::breaks::{Break, with};
use nenrin_core::format::node::{self, NODE_MAGIC};
use nenrin_core::format::superblock::Superblock;
use nenrin_core::format::{BLOCK_BYTES, NODE_BYTES};
use nenrin_core::{SlotState, probe};
use nenrin_device::{AlignedBuf, BlockDevice, CrashDisk, Image};
use nenrin_fuzz::{image, memory, runner, target, volume};
use std::sync::Arc;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

#[test]
fn believed_numbers_are_noticed() {
    runner::quiet_panics();
    let target = target("image").unwrap();
    for number in 0..30_000 {
        let case = runner::case("image", 5, number);
        if let Err(failure) = with(Break::BelieveNumbers, || runner::one(target, &case)) {
            runner::one(target, &case).unwrap_or_else(|e| panic!("without it too: {e}"));
            let what: String = failure.what.chars().take(110).collect();
            println!("P8    BelieveNumbers     noticed after {number:>6} images: {what}");
            return;
        }
    }
    panic!("it went unnoticed");
}

/// Tries the image with a break and without it.
fn only_broken(what: Break, image: &Image, expected: &str) {
    image::within_memory(image, image::try_all).unwrap_or_else(|e| panic!("without it too: {e}"));
    let said = with(what, || image::within_memory(image, image::try_all)).unwrap_err();
    assert!(said.contains(expected), "{said}");
    println!("P8    {:<18} noticed after      1 images: {said}", format!("{what:?}"));
}

/// A volume of 24 MiB whose superblock says that it has a million segments.
#[test]
fn memory_for_a_size_that_is_believed_is_noticed() {
    let disk = CrashDisk::from_image(volume::volumes()[1].clone()).without_history();
    let found = probe(&disk).unwrap();
    for (block, state) in found.slots {
        if !matches!(state, SlotState::Valid(_)) {
            continue;
        }
        let at = block * BLOCK_BYTES as u64;
        let mut slot = Superblock::decode(&disk.read(at, BLOCK_BYTES).unwrap()).unwrap();
        slot.devices[0].segments = 1 << 21;
        disk.write(at, Arc::new(AlignedBuf::padded(&slot.encode()))).unwrap();
    }
    only_broken(Break::SizeBelieved, &disk.current(), "of memory were in use");
}

/// No copy of any leaf is right.
#[test]
fn reading_without_end_is_noticed() {
    let image = &volume::volumes()[1];
    let disk = CrashDisk::from_image(image.clone()).without_history();
    for block in 0..image.bytes() / BLOCK_BYTES as u64 - 4 {
        let at = block * BLOCK_BYTES as u64;
        let bytes = disk.read(at, NODE_BYTES).unwrap();
        if bytes[..4] == NODE_MAGIC.to_le_bytes() && bytes[14] == 0 && node::verify(&bytes) {
            disk.write(at + 8192, Arc::new(AlignedBuf::padded(&[0x5a; BLOCK_BYTES]))).unwrap();
        }
    }
    only_broken(Break::ReadAgain, &disk.current(), "it does not end");
}
