//! Where the space of a volume is: each byte of it in one part.

use crate::size::show_bytes;
use nenrin_core::Usage;
use nenrin_format::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

/// The parts, in bytes; together they are all that the segments hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceData {
    /// What there is now, with its index.
    pub live: u64,
    /// History that snapshots keep, and nothing else.
    pub snapshots: u64,
    /// What fallocate reserved and nothing is written to yet.
    pub promised: u64,
    /// Other history: it goes when room is short.
    pub history: u64,
    /// What keeps the cleaner going, what blocks of summaries and the room between contents take, and what comes with what is promised.
    pub kept_free: u64,
    /// What can be written to without that any history goes.
    pub free: u64,
}

impl SpaceData {
    /// Where what is known does not go together, as where a volume is fuller than it may be, the first parts have it.
    pub fn of(u: &Usage) -> Self {
        let mut left = u.total_blocks;
        let mut take = |blocks: u64| {
            let taken = blocks.min(left);
            left -= taken;
            taken * BLOCK_BYTES as u64
        };
        let (live, snapshots) = (take(u.live_blocks), take(u.snapshot_blocks + u.snapshot_index_blocks));
        let promised = take(u.reserved_blocks);
        let all = u.history_blocks + u.history_index_blocks;
        let more = all.saturating_sub(u.snapshot_blocks + u.snapshot_index_blocks);
        let (history, free) = (take(more), take(u.available_blocks.saturating_sub(more)));
        Self { live, snapshots, promised, history, kept_free: take(u64::MAX), free }
    }

    /// A line for each: its name, and what it is.
    pub fn rows(&self, inodes: u64) -> [(&'static str, String); 6] {
        let all =
            [self.live, self.snapshots, self.promised, self.history, self.kept_free, self.free].iter().sum::<u64>();
        let size = |bytes: u64| {
            let percent = bytes.saturating_mul(100).checked_div(all).unwrap_or(0);
            format!("{} ({percent} %)", show_bytes(bytes))
        };
        [
            ("live", format!("{}, {inodes} inodes", size(self.live))),
            ("snapshots", format!("{}: history that they keep", size(self.snapshots))),
            ("promised", format!("{}: by fallocate, not written yet", size(self.promised))),
            ("history", format!("{}: shed when room is short", size(self.history))),
            ("kept free", format!("{}: for the cleaner, the index and what lies between", size(self.kept_free))),
            ("free", size(self.free)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_part() {
        let mut random = nenrin_device::Prng::new(7);
        for _ in 0..2000 {
            let mut some = || random.below(1200);
            let usage = Usage {
                total_blocks: 1000,
                live_blocks: some(),
                history_blocks: some(),
                snapshot_blocks: some(),
                history_index_blocks: some(),
                snapshot_index_blocks: some(),
                shared_blocks: some(),
                reserved_blocks: some(),
                available_blocks: some().min(1000),
                inodes: some(),
            };
            let s = SpaceData::of(&usage);
            let all = s.live + s.snapshots + s.promised + s.history + s.kept_free + s.free;
            assert_eq!(all, 1000 * BLOCK_BYTES as u64, "{usage:?}");
        }
    }
}
