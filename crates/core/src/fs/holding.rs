//! What uncommitted content keeps from others: what a truncation that is held back will free, and segments of what was written ahead.
//!
//! Invariants
//! 1. A segment is held for content as long as the content has a block in it, and no longer than until room is short.
//! 2. A truncation is held back for half a minute at most, against a power cut; what goes from history is gone for ever. So history stays
//!    while what is held back frees enough by itself, and no second part of it goes while that frees anything.
//! 3. Ranges of a file that wait for a commit are bounded, whatever made them: they take memory beside what is counted as content, and
//!    all of them go to the log, and into the index, with one commit, for which there is room.

use super::nodes::ITEMS_IN_NEW_NODE;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::Content;
use crate::{Error, Result};
use nenrin_format::{Ino, NODE_BLOCKS, SegmentNo};
use std::collections::BTreeSet;

/// Uncommitted ranges of a file above which it is committed.
pub(super) const RANGES_MAX: usize = 32 << 10;
/// Items that a file whose truncation is held back adds to the index at most, with those of others: then the hold ends early. No more than
/// as many nodes hold as memory may have changed ones of, either. Who writes a file anew from its begin to its end has one for each MiB, or for
/// what is between two holes; a copy has twice as many as its source.
pub(super) const HELD_ITEMS_MAX: u64 = 1 << 18;
/// What such an item takes of the log, about: a single block 36 bytes.
pub(super) const ITEM_RECORD_BYTES: u64 = 40;
/// What a range takes in memory, about.
const RANGE_BYTES: usize = 128;

/// Truncations of files of at least so many blocks end where nothing else makes room.
const HELD_BLOCKS_MIN: u64 = 16;

/// Blocks that others can have when this content is committed, where its truncation is held back: nodes take about half of what is kept.
fn held_blocks(content: &Content) -> u64 {
    let for_nodes = content.overlay.items() / ITEMS_IN_NEW_NODE * u64::from(NODE_BLOCKS);
    let blocks = || content.held_blocks().saturating_add(content.garbage()).saturating_add(for_nodes);
    if content.held_since.is_some() { blocks() } else { 0 }
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
    /// Whether a file has more uncommitted ranges than this, or than may be held back; and whether its truncation is.
    fn has_too_many_ranges(&self, fs: &Fs, ino: Ino, most: usize) -> (bool, bool) {
        let Some(content) = self.files.get(&ino).and_then(|f| f.content.as_ref()) else { return (false, false) };
        let is_held = content.held_since.is_some() && !broken(Break::RangesEndHolds);
        let (ranges, items) = (content.overlay.ranges(), content.overlay.items());
        if !is_held {
            return (ranges > most || items > HELD_ITEMS_MAX, false);
        }
        // Those of others take of it.
        let others = self.items.saturating_sub(content.items);
        let in_memory = (fs.options.dirty_bytes_max / 2 / RANGE_BYTES) as u64;
        let in_index = items > fs.held_items_max().saturating_sub(others) && !broken(Break::HeldItemsUnbounded);
        (in_index || ranges > most && ranges as u64 > in_memory.saturating_sub(others), true)
    }

    /// What a file adds to the index is counted anew: its uncommitted content has changed.
    pub(super) fn count_placed(&mut self, ino: Ino) {
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return };
        let again = if broken(Break::RewrittenCountsAgain) { content.items } else { 0 };
        let (placed, items) = (content.overlay.extents() + content.cut_leaves, content.overlay.items() + again);
        self.placed = self.placed + placed - content.placed;
        self.items = self.items + items - content.items;
        (content.placed, content.items) = (placed, items);
    }

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
    /// Items that may wait for the index in files whose truncations are held back: memory has room for the nodes.
    pub(super) fn held_items_max(&self) -> u64 {
        HELD_ITEMS_MAX.min(2 * self.options.dirty_nodes_max * ITEMS_IN_NEW_NODE)
    }

    /// Files that were emptied and are being written anew by who has not closed them: what is cut now has what they had before.
    #[must_use]
    pub fn held_back(&self) -> Vec<Ino> {
        let inner = self.lock();
        let is_held = |c: &Content| c.held_since.is_some();
        inner.files.iter().filter(|(_, f)| f.content.as_ref().is_some_and(is_held)).map(|(ino, _)| *ino).collect()
    }

    /// Commits a file that has more uncommitted ranges than this; one whose truncation is held back only where they are very many.
    pub(super) fn hold_ranges(&self, ino: Ino, most: usize) -> Result<()> {
        let inner = self.lock();
        if !inner.has_too_many_ranges(self, ino, most).0 {
            return Ok(());
        }
        drop(inner);
        self.fsync_wait(ino)
    }

    /// The same for who writes here and there, of [`RANGES_MAX`]: nobody has asked for a sync, so what waits is committed as it would be a
    /// little later.
    pub(super) fn hold_scattered(&self, ino: Ino) -> Result<()> {
        let mut inner = self.lock();
        let (is_much, is_held) = inner.has_too_many_ranges(self, ino, RANGES_MAX);
        if !is_much || broken(Break::RangesUnbounded) {
            return Ok(());
        }
        inner.counters.held_for_memory += 1;
        drop(inner);
        // What was asked for was done: who cannot commit it now for another reason does so later.
        match if is_held { self.fsync_wait(ino) } else { self.sync_received(false) } {
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => Err(e),
            _ => Ok(()),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::background::leaving_room_for;
    use crate::testing::{create, device, mount};
    use crate::{AllocateMode, At, MountOptions, SetAttr};
    use std::sync::Arc;

    /// Ranges that may wait of a file whose truncation is held back, with so little memory for content.
    const HELD: usize = 40_000;

    fn volume() -> Arc<Fs> {
        let dirty_bytes_max = HELD * 2 * RANGE_BYTES;
        mount(&device(400, 64), MountOptions { checkpoint_nanos: 0, dirty_bytes_max, ..MountOptions::default() })
    }

    /// Ranges of a file that wait, and whether its truncation is held back.
    fn waiting(fs: &Fs, ino: Ino) -> (usize, bool) {
        let inner = fs.lock();
        let content = inner.files.get(&ino).and_then(|f| f.content.as_ref());
        content.map_or((0, false), |c| (c.overlay.ranges(), c.held_since.is_some()))
    }

    /// A file of 4 KiB, emptied and not closed.
    fn emptied(fs: &Fs) -> Ino {
        let ino = create(fs, "f");
        assert_eq!(fs.write(ino, 0, &[1; 4096], 0).unwrap(), 4096);
        fs.sync_all().unwrap();
        fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        ino
    }

    /// The most ranges of a file that waited while single blocks of it were written with holes between.
    fn most_waiting(held: bool) -> usize {
        let fs = volume();
        let ino = if held { emptied(&fs) } else { create(&fs, "f") };
        let mut most = 0;
        for n in 0..50_000 {
            assert_eq!(fs.write(ino, n * 8192, &[2; 4096], 0).unwrap(), 4096);
            let (ranges, is_held) = waiting(&fs, ino);
            most = most.max(ranges);
            assert!(is_held == held || ranges < RANGES_MAX, "a hold ends early");
        }
        fs.flush(ino).unwrap();
        fs.sync_all().unwrap();
        assert_eq!(fs.getattr(At::Live, ino).unwrap().blocks_512, 50_000 * 8);
        fs.close().unwrap();
        most
    }

    #[test]
    fn ranges_that_wait_are_bounded() {
        for (held, max) in [(false, RANGES_MAX), (true, HELD)] {
            let most = most_waiting(held);
            let usual = max - max / 8..max + 2048;
            assert!(usual.contains(&most), "{most} ranges wait, held: {held}");
        }
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn ranges_without_end_are_noticed() {
        for (held, max) in [(false, RANGES_MAX), (true, HELD)] {
            let most = crate::breaks::with(Break::RangesUnbounded, || most_waiting(held));
            assert!(most > max + 2048, "{most}");
        }
    }

    /// Holes and reservations are ranges as well.
    #[test]
    fn holes_and_reservations_that_wait_are_bounded() {
        let fs = volume();
        let [f, g] = ["f", "g"].map(|name| create(&fs, name));
        let mut most = [0; 2];
        for n in 0..RANGES_MAX as u64 + 4000 {
            fs.allocate(f, AllocateMode::Punch, n * 8192, 4096).unwrap();
            fs.allocate(g, AllocateMode::ReserveKeepSize, n * 8192, 4096).unwrap();
            most = [most[0].max(waiting(&fs, f).0), most[1].max(waiting(&fs, g).0)];
        }
        assert!(most.iter().all(|most| (RANGES_MAX - 4000..=RANGES_MAX + 1).contains(most)), "{most:?}");
        fs.close().unwrap();
    }

    /// What recovery reads stays bounded when a hold ends: an index checkpoint is due before.
    #[test]
    fn the_log_has_room_for_what_is_held_back() {
        let fs = volume();
        let due = |window_bytes, items| {
            let mut inner = fs.lock();
            (inner.window_bytes, inner.items) = (window_bytes, items);
            fs.checkpoint_is_due(&inner)
        };
        assert!(!due(22 << 20, 0) && !due(1 << 20, u64::MAX));
        (fs.lock().window_bytes, fs.lock().items) = (0, 0);
        let left = |items| leaving_room_for(items) >> 20;
        assert_eq!((left(0), left(1 << 17), left(HELD_ITEMS_MAX), left(u64::MAX)), (56, 51, 46, 46));
    }

    /// The log takes no more for each item than is counted on.
    #[test]
    fn a_range_takes_so_much_of_the_log() {
        let fs = volume();
        let ino = emptied(&fs);
        (0..20_000).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[2; 4096], 0).unwrap(), 4096));
        let before = fs.counters().chain_blocks;
        fs.fsync_wait(ino).unwrap();
        let bytes = (fs.counters().chain_blocks - before) * 4096;
        assert!(bytes < 20_000 * ITEM_RECORD_BYTES && bytes > 20_000 * (ITEM_RECORD_BYTES / 2), "{bytes}");
    }

    /// What other files that are held back have waiting takes of what one may have.
    #[test]
    fn all_that_is_held_back_is_bounded() {
        let fs = volume();
        let one = emptied(&fs);
        fs.lock().items += HELD as u64;
        for n in 0..RANGES_MAX as u64 + 2000 {
            assert_eq!(fs.write(one, n * 8192, &[2; 4096], 0).unwrap(), 4096);
        }
        assert!(!waiting(&fs, one).1);
    }

    /// A file of 1,000 extents.
    fn source(fs: &Fs) -> Ino {
        let from = create(fs, "from");
        (0..1000).for_each(|n| assert_eq!(fs.write(from, n * 8192, &[2; 4096], 0).unwrap(), 4096));
        from
    }

    /// Copies one over another so many times, one copy behind the other.
    fn copied_over(fs: &Fs, from: Ino, to: Ino, copies: u64, after_each: &mut dyn FnMut()) -> Result<()> {
        const BYTES: u64 = 1000 * 8192;
        for copy in 0..copies {
            let mut done = 0;
            while done < BYTES - 4096 {
                done += fs.copy_range(from, done, to, copy * BYTES + done, BYTES - done, 0)?;
            }
            after_each();
        }
        Ok(())
    }

    /// The most items that wait for the index while 100,000 extents are copied over a file that was emptied, and how many may.
    fn waiting_of_copies() -> (u64, u64) {
        let device = device(512, 256);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, dirty_nodes_max: 300, ..MountOptions::default() });
        let from = source(&fs);
        let to = emptied(&fs);
        let mut most = 0;
        copied_over(&fs, from, to, 100, &mut || {
            let inner = fs.lock();
            most = most.max(inner.files.get(&to).and_then(|f| f.content.as_ref()).map_or(0, |c| c.overlay.items()));
        })
        .unwrap();
        fs.flush(to).unwrap();
        fs.close().unwrap();
        (most, fs.held_items_max())
    }

    #[test]
    fn a_copy_that_is_held_back_adds_few_nodes() {
        let (most, max) = waiting_of_copies();
        assert!(most <= max && most > max - max / 8, "{most} {max}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn a_copy_that_adds_many_is_noticed() {
        let (most, max) = crate::breaks::with(Break::HeldItemsUnbounded, waiting_of_copies);
        assert!(most > max + max / 8, "{most} {max}");
    }

    /// Blocks that there is room for while 100,000 extents that were copied wait, and when they are committed.
    fn room_around_a_commit() -> [u64; 2] {
        let fs = mount(&device(512, 256), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let from = source(&fs);
        let to = emptied(&fs);
        copied_over(&fs, from, to, 100, &mut || {}).unwrap();
        let room = || fs.lock().room_blocks(&fs);
        let before = room();
        assert!(waiting(&fs, to).1, "the hold ended");
        fs.flush(to).unwrap();
        fs.sync_all().unwrap();
        let after = room();
        fs.close().unwrap();
        [before, after]
    }

    #[test]
    fn what_was_copied_keeps_room_for_its_nodes() {
        let [before, after] = room_around_a_commit();
        assert!(before <= after && before > after - after / 8, "{before} {after}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn nodes_without_room_are_noticed() {
        let [before, after] = crate::breaks::with(Break::NewNodesUnreserved, room_around_a_commit);
        assert!(before > after, "{before} {after}");
    }

    /// Items that count as waiting, and those that there are, where the same blocks of a file that was emptied are written again and again.
    fn written_again() -> (u64, u64) {
        let fs = volume();
        let ino = emptied(&fs);
        for round in 0..100 {
            (0..300).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[round; 4096], 0).unwrap(), 4096));
            fs.lock().write_behind(&fs, ino).unwrap();
        }
        let inner = fs.lock();
        let items = inner.files.get(&ino).and_then(|f| f.content.as_ref()).map_or(0, |c| c.overlay.items());
        (inner.items, items)
    }

    #[test]
    fn what_is_written_again_waits_once() {
        let (waiting, items) = written_again();
        assert!(items > 250 && waiting == items, "{waiting} {items}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn what_counts_again_is_noticed() {
        let (waiting, items) = crate::breaks::with(Break::RewrittenCountsAgain, written_again);
        assert!(waiting > items, "{waiting} {items}");
    }

    /// What is emptied once more waits no longer.
    #[test]
    fn what_is_emptied_again_counts_no_more() {
        let fs = volume();
        let ino = emptied(&fs);
        (0..2000).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[2; 4096], 0).unwrap(), 4096));
        fs.lock().write_behind(&fs, ino).unwrap();
        assert!(fs.lock().items > 1000);
        fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        let inner = fs.lock();
        assert_eq!((inner.items, inner.placed, inner.owners_leaves), (0, 0, 0));
    }
}
