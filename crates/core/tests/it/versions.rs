//! What many versions of one file take.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::versions::Versions;

/// 250 versions of 2.5 MiB, a quarter of the figure that is promised for 1,000 of 10 MiB: at most 2 MiB beyond the file, what is not worth
/// cleaning, the open segments and the reserve for the log included.
#[test]
fn a_version_takes_what_it_changed() {
    let mut v = Versions::new(96 << 20, 5 << 19);
    for _ in 0..250 {
        v.add();
    }
    v.clean();
    let taken = v.taken();
    assert!(taken.history == 250 * 4096, "{taken:?}");
    assert!(taken.history + taken.nodes <= 2 << 20, "{taken:?}");
    // Segments are 256 KiB here: open ones and the log are some of them.
    assert!(taken.beyond <= (2 << 20) + 8 * (256 << 10), "{taken:?}");
    v.verify();
}
