//! Promise P8 is defended by hostile images: with numbers on the device
//! believed, they must show it. Without the feature `breaks` there is nothing to test.
#![cfg(feature = "breaks")]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests count as tests

use nenrin_core::breaks::{Break, with};
use nenrin_fuzz::{runner, target};

/// Few images show it; the first that is known to is number 9,980. When images are made otherwise, the hunt is longer.
const FIRST: u64 = 9_900;

#[test]
fn believed_numbers_are_noticed() {
    runner::quiet_panics();
    let target = target("image").unwrap();
    for number in FIRST..FIRST + 30_000 {
        let case = runner::case("image", 5, number);
        if let Err(failure) = with(Break::BelieveNumbers, || runner::one(target, &case)) {
            runner::one(target, &case).unwrap_or_else(|e| panic!("without it too: {e}"));
            let what: String = failure.what.chars().take(110).collect();
            println!("P8    BelieveNumbers     noticed after {:>6} images: {what}", number - FIRST);
            return;
        }
    }
    panic!("it went unnoticed");
}
