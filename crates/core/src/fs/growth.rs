//! Nothing grows where df says 0.
//!
//! df leaves a sixteenth of the volume out, which cleaning needs. Were it given to whoever writes on, cleaning would cost the
//! more the less there is left, most overwrites would be refused in the end, and what is removed then would make up for
//! that sixteenth before df shows any of it. So what would make the volume hold more than df has available is refused:
//! blocks of files that hold nothing yet, and new records. Overwriting goes on, and so does all that removes.
//!
//! Invariants
//! 1. Who is refused has made no room: nothing was cleaned for it, and no past was let go.
//! 2. What was removed and not reaped yet, and what snapshots keep and was not counted yet, is seen to before anybody
//!    is refused.
//! 3. What df has is counted with each call only where little of it is left; see [`Grant`].

use super::guard::Guard;
use super::space::Room;
use super::{Fs, Inner};
use crate::Result;
use crate::breaks::{Break, broken};
use nenrin_format::NODE_BLOCKS;
use nenrin_format::key::Kind;

/// The part of what was available that may be taken before it is counted again.
const GRANTED: u64 = 16;
/// For so long: what others do, to snapshots for example, takes some of it, too.
const GRANT_NANOS: u64 = 1_000_000_000;

/// Blocks that may be taken before what is available is counted again: it takes a look at each file that waits to be committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    blocks: u64,
    until: u64,
}

impl Inner {
    /// Blocks that are available at least, from what is free alone: nothing is looked at for it.
    fn available_at_least(&self, fs: &Fs) -> u64 {
        let segments = &self.state.segments;
        let occupied = (segments.count() - segments.free_count()) * u64::from(fs.storage.segment_blocks);
        let waiting = self.pages + self.dirty_nodes() * 2 * u64::from(NODE_BLOCKS);
        let usable = self.usable_blocks(fs, self.segments_meant());
        usable.saturating_sub(occupied + waiting + fs.kept_for(self.promised()))
    }

    /// Blocks by which this makes the volume hold more, at most.
    const fn growth_at_most(room: Room) -> u64 {
        match room {
            Room::Content(blocks) => blocks,
            Room::Write(_, from, to) => to - from,
            // What is reserved asks for itself; see `promise`.
            Room::Promise(_) | Room::Passing(_) | Room::Removal => 0,
        }
    }

    /// Whether so much may be added without counting.
    fn may_grow_unlooked(&self, fs: &Fs, blocks: u64) -> bool {
        let granted = || self.grant.blocks >= blocks && fs.clock.monotonic_nanos() < self.grant.until;
        blocks == 0 || self.available_at_least(fs) >= blocks || granted()
    }

    /// Blocks that this adds and blocks that are available, where there are too few.
    fn growth_and_available(&self, fs: &Fs, room: Room) -> (u64, u64) {
        let blocks = match room {
            // An index that cannot be read is told of by the write itself.
            Room::Write(ino, from, to) => self.blocks_to_reserve(ino, from, to, u64::MAX).unwrap_or(0),
            other => Self::growth_at_most(other),
        };
        (blocks, if blocks == 0 { 0 } else { self.usage(fs).available_blocks })
    }

    /// Whether df has what this adds.
    pub(super) fn may_grow(&self, fs: &Fs, room: Room) -> bool {
        if broken(Break::GrowsBeyondDf) || broken(Break::NoReserve) {
            return true;
        }
        self.may_grow_unlooked(fs, Self::growth_at_most(room)) || {
            let (blocks, available) = self.growth_and_available(fs, room);
            blocks <= available
        }
    }

    /// This is about to be added.
    pub(super) fn note_growth(&mut self, fs: &Fs, room: Room) {
        let most = Self::growth_at_most(room);
        if most == 0 || self.available_at_least(fs) >= most {
            return;
        }
        if self.may_grow_unlooked(fs, most) {
            self.grant.blocks -= most;
            return;
        }
        let (blocks, available) = self.growth_and_available(fs, room);
        if blocks > 0 {
            let until = fs.clock.monotonic_nanos().saturating_add(GRANT_NANOS);
            self.grant = Grant { blocks: available.saturating_sub(blocks) / GRANTED, until };
        }
    }
}

impl Fs {
    /// Does a part of what makes more available without costing anybody's past: reaps what was removed, or counts what snapshots keep.
    /// False when there is nothing of that kind.
    pub(super) fn find_available(&self, inner: Guard<'_>) -> Result<bool> {
        if !inner.state.pending_reaps(Kind::Reap, 1)?.is_empty() && !broken(Break::GrowthReapsNothing) {
            if inner.nodes_to_spare(self) == 0 {
                drop(inner);
                self.sync_received(false)?;
                self.index_checkpoint(false)?;
                self.index_checkpoint(false)?;
            } else {
                drop(inner);
            }
            return self.reap_step();
        }
        let now = self.clock.monotonic_nanos();
        let uncounted = !inner.state.past.counted && now >= inner.named_rest_until;
        drop(inner);
        if !uncounted || broken(Break::GrowthCountsNothing) {
            return Ok(false);
        }
        while self.count_named_or_rest(now) {}
        let counted = self.lock().state.past.counted;
        Ok(counted)
    }
}
