//! What uncommitted content keeps from others: what a truncation that is held back will free, and segments of what was written ahead.
//!
//! Invariants
//! 1. A segment is held for content as long as the content has a block in it, and no longer than until room is short.
//! 2. A truncation is held back for half a minute at most, against a power cut; what goes from history is gone for ever. So history stays
//!    while what is held back frees enough by itself, and no second part of it goes while that frees anything.
//! 3. Ranges of a file that wait for a commit are bounded, whatever made them: they take memory beside what is counted as content, and
//!    all of them go to the log, and into the index, with one commit.

use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::Content;
use crate::{Error, Result};
use nenrin_format::{Ino, SegmentNo};
use std::collections::BTreeSet;

/// Uncommitted ranges of a file above which it is committed.
pub(super) const RANGES_MAX: usize = 32 << 10;
/// The same while its truncation is held back, which then ends early, and in half of the memory that content may take: 10 MB of the log.
/// Who writes a file anew from its begin to its end has one for each MiB, or for what is between two holes: he comes to that many
/// in half a minute where there are less than 60 KiB between, at 500 MB/s.
const HELD_RANGES_MAX: usize = 1 << 18;
/// The same of a copy, which has as many as its source and gets them in moments: 36 MB of the log.
pub(super) const HELD_COPY_RANGES_MAX: usize = 1 << 20;
/// What a range takes of the log, about.
pub(super) const RANGE_RECORD_BYTES: u64 = 36;
/// What a range takes in memory, about.
const RANGE_BYTES: usize = 128;

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
    /// Whether a file has more uncommitted ranges than this, or than may be held back; and whether its truncation is.
    fn has_too_many_ranges(&self, fs: &Fs, ino: Ino, most: usize) -> (bool, bool) {
        let Some(content) = self.files.get(&ino).and_then(|f| f.content.as_ref()) else { return (false, false) };
        let is_held = content.held_since.is_some() && !broken(Break::RangesEndHolds);
        if !is_held {
            return (content.overlay.ranges() > most, false);
        }
        let of_one = if content.shared() > 0 { HELD_COPY_RANGES_MAX } else { HELD_RANGES_MAX };
        // Those of others take of it.
        let others = usize::try_from(self.placed.saturating_sub(content.placed)).unwrap_or(usize::MAX);
        let of_all = (fs.options.dirty_bytes_max / 2 / RANGE_BYTES).saturating_sub(others);
        (content.overlay.ranges() > of_one.min(of_all).max(most), true)
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
        let due = |window_bytes, placed| {
            let mut inner = fs.lock();
            (inner.window_bytes, inner.placed) = (window_bytes, placed);
            fs.checkpoint_is_due(&inner)
        };
        assert!(due(22 << 20, HELD_COPY_RANGES_MAX as u64));
        assert!(!due(22 << 20, 0) && !due(1 << 20, u64::MAX));
        (fs.lock().window_bytes, fs.lock().placed) = (0, 0);
    }

    /// The log takes about as much for each range as is counted on.
    #[test]
    fn a_range_takes_so_much_of_the_log() {
        let fs = volume();
        let ino = emptied(&fs);
        (0..20_000).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[2; 4096], 0).unwrap(), 4096));
        let before = fs.counters().chain_blocks;
        fs.fsync_wait(ino).unwrap();
        let bytes = (fs.counters().chain_blocks - before) * 4096;
        assert!(bytes < 20_000 * (RANGE_RECORD_BYTES + 2) && bytes > 20_000 * (RANGE_RECORD_BYTES / 2), "{bytes}");
    }

    /// What other files that are held back have waiting takes of what one may have.
    #[test]
    fn all_that_is_held_back_is_bounded() {
        let fs = volume();
        let one = emptied(&fs);
        fs.lock().placed += HELD as u64;
        for n in 0..RANGES_MAX as u64 + 2000 {
            assert_eq!(fs.write(one, n * 8192, &[2; 4096], 0).unwrap(), 4096);
        }
        assert!(!waiting(&fs, one).1);
    }
}
