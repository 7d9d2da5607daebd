//! Promise P8 is defended by hostile images: with numbers on the device
//! believed, they must show it. Without the feature `breaks` there is nothing to test.
#![cfg(feature = "breaks")]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::breaks::{Break, with};
use nenrin_fuzz::{runner, target};

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
