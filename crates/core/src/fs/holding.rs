//! What uncommitted content keeps from others: what a truncation that is held back will free, and segments of what was written ahead.
//!
//! Invariants
//! 1. A segment is held for content as long as the content has a block in it, and no longer than until room is short.
//! 2. A truncation is held back for half a minute at most, against a power cut; what goes from history is gone for ever. So history stays
//!    while what is held back frees enough by itself, and no second part of it goes while that frees anything.

use super::{Fs, Inner};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::content::Content;
use nenrin_format::{Ino, SegmentNo};
use std::collections::BTreeSet;

/// Truncations of files of at least so many blocks end where nothing else makes room.
const HELD_BLOCKS_MIN: u64 = 16;

/// Blocks that others can have when this content is committed, where its truncation is held back.
fn held_blocks(content: &Content) -> u64 {
    if content.held_since.is_some() { content.held_blocks().saturating_add(content.garbage()) } else { 0 }
}

/// Extents of a file that are looked at to tell what it frees.
const EXTENTS_MAX: u64 = 4096;

/// Segments that content holds and has nothing in any more.
fn unneeded(content: &mut Content, fs: &Fs) -> BTreeSet<SegmentNo> {
    if broken(Break::DeadPinned) {
        return BTreeSet::new();
    }
    let mut unneeded = content.take_unneeded(fs.storage.segment_blocks);
    if broken(Break::NamedUnpinned) {
        unneeded.append(&mut content.pins);
    }
    unneeded
}

impl Inner {
    /// Whether truncations are held back that free a segment.
    pub(super) fn holds_back(&self, fs: &Fs) -> bool {
        let held = self.files.values().filter_map(|f| f.content.as_ref()).map(held_blocks);
        let blocks = held.filter(|blocks| *blocks >= HELD_BLOCKS_MIN).fold(0, u64::saturating_add);
        blocks >= u64::from(fs.storage.segment_blocks)
    }

    /// Those that free much are held back no longer.
    pub(super) fn end_holds(&mut self) {
        for c in self.files.values_mut().filter_map(|f| f.content.as_mut()) {
            if held_blocks(c) >= HELD_BLOCKS_MIN || broken(Break::SmallHoldsEnd) {
                c.held_since = None;
            }
        }
    }

    /// None is held back any longer.
    pub(super) fn end_all_holds(&mut self) {
        for c in self.files.values_mut().filter_map(|f| f.content.as_mut()) {
            self.changed_since_cut |= c.held_since.take().is_some();
        }
    }

    /// Blocks of a file that were written ahead went, or were written over, before any record named them: segments in which it has
    /// nothing any more are let go of when there may be some. Looking at all it has is worth it for as many blocks.
    pub(super) fn unpin_dead(&mut self, fs: &Fs, ino: Ino) {
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return };
        let least = u64::from(fs.storage.segment_blocks).max(content.overlay.ranges() as u64);
        if content.dead() >= least {
            let unneeded = unneeded(content, fs);
            unneeded.into_iter().for_each(|segment| self.state.segments.unpin(segment));
        }
    }

    /// The same for all files, where room is short.
    pub(super) fn unpin_all_dead(&mut self, fs: &Fs) {
        let contents = self.files.values_mut().filter_map(|f| f.content.as_mut()).filter(|c| c.dead() > 0);
        let unneeded: Vec<_> = contents.flat_map(|c| unneeded(c, fs)).collect();
        unneeded.into_iter().for_each(|segment| self.state.segments.unpin(segment));
    }

    /// Blocks that are free as soon as the truncation of a file is committed, where that is held back: history, snapshots and other
    /// files keep none of them. Of very many extents some are not counted, and none where they cannot be read.
    fn blocks_freed(&self, ino: Ino, content: &Content) -> u64 {
        if held_blocks(content) < HELD_BLOCKS_MIN {
            return 0;
        }
        let replaced = content.held_blocks() > 0;
        let committed = if replaced { self.state.blocks_unkept(ino, EXTENTS_MAX).unwrap_or(0) } else { 0 };
        committed + content.garbage()
    }

    /// Blocks that all truncations that are held back may free at most, without looking at any tree.
    fn held_at_most(&self) -> u64 {
        self.files.values().filter_map(|f| f.content.as_ref()).map(held_blocks).filter(|n| *n >= HELD_BLOCKS_MIN).sum()
    }

    /// Files whose truncations are held back and free much as soon as they are committed, and how much it is.
    fn holds_that_free(&self) -> (Vec<Ino>, u64) {
        let held = self.files.iter().filter_map(|(ino, f)| Some((*ino, f.content.as_ref()?)));
        let freed = held.map(|(ino, c)| (ino, self.blocks_freed(ino, c))).filter(|(_, n)| *n >= HELD_BLOCKS_MIN);
        freed.fold((Vec::new(), 0), |(mut inos, all), (ino, blocks)| {
            inos.push(ino);
            (inos, all + blocks)
        })
    }

    /// Whether checkpoints were let go for want of room since one of these files was emptied.
    fn has_shed_beside(&self, inos: &[Ino]) -> bool {
        let since = |ino| self.files.get(ino).and_then(|f| f.content.as_ref()).and_then(|c| c.held_since);
        let first = inos.iter().filter_map(since).min();
        self.shed_at.is_some_and(|shed| first.is_some_and(|first| shed >= first))
    }
}

impl Fs {
    /// Before history goes: has truncations held back no longer that free as much at once as there must be for `enough`, or a segment where
    /// some history went beside them already. Whether there were such.
    pub(super) fn end_holds_for(&self, enough: &dyn Fn(&Inner, u64) -> bool) -> Result<bool> {
        let mut inner = self.lock_to_change()?;
        if inner.held_at_most() < u64::from(self.storage.segment_blocks) {
            return Ok(false);
        }
        let (inos, blocks) = inner.holds_that_free();
        let is_worth_it = blocks >= u64::from(self.storage.segment_blocks)
            && (enough(&inner, blocks) || inner.has_shed_beside(&inos))
            && !broken(Break::HoldsOutlastHistory);
        if !is_worth_it {
            return Ok(false);
        }
        for ino in inos {
            if let Some(c) = inner.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
                c.held_since = None;
            }
        }
        drop(inner);
        self.sync_received(false).map(|()| true)
    }
}
