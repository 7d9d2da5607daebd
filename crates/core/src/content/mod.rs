//! Content received but not yet committed, one stream for each file.
//!
//! Invariants
//! 1. What a reader sees of a block is: its page, else the overlay, else the
//!    live tree. So pages and overlay together are exactly what the next commit
//!    of the file will record.
//! 2. Bytes behind the end of the file within its last block are zero, in
//!    pages as on disk.
//! 3. A file whose content the index holds inline has block 0 as a page as
//!    soon as its content is touched.

mod bytes;

use nenrin_format::items::{EXTENT_SHARED, Extent};
use nenrin_format::{BLOCK_BYTES, SegmentNo, Time};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use bytes::ReadBytes;

/// One block of content in memory.
pub type Page = Box<[u8; BLOCK_BYTES]>;

/// A block of zeros.
pub fn zero_page() -> Page {
    Box::new([0; BLOCK_BYTES])
}

/// Pages that nobody needs any more, for those who write next: so many that programs which sync what they write find one.
#[derive(Debug, Default)]
pub struct SparePages(Vec<Page>);

/// Most that are kept.
const SPARE_PAGES_MAX: usize = 64;

impl SparePages {
    /// A block that has these bytes from `at` on, and zeros elsewhere. A whole block is written once.
    pub fn page_with(&mut self, at: usize, bytes: &[u8]) -> Page {
        if bytes.len() == BLOCK_BYTES {
            if let Some(mut page) = self.0.pop() {
                page.copy_from_slice(bytes);
                return page;
            }
            if let Ok(page) = Box::<[u8]>::from(bytes).try_into() {
                return page;
            }
        }
        let mut page = zero_page();
        page[at..at + bytes.len()].copy_from_slice(bytes);
        page
    }

    /// Keeps some of these.
    pub fn give(&mut self, pages: impl Iterator<Item = Page>) {
        pages.for_each(|page| {
            if self.0.len() < SPARE_PAGES_MAX {
                self.0.push(page);
            }
        });
    }
}

/// What an uncommitted range of file blocks is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing.
    Hole,
    /// Written already, or reserved; covers the range exactly.
    Extent(Extent),
}

impl Over {
    /// What was written or reserved.
    pub const fn extent(&self) -> Option<&Extent> {
        match self {
            Self::Hole => None,
            Self::Extent(e) => Some(e),
        }
    }
}

/// So many checksums are as large as an item of a single block, about.
const CRCS_OF_ITEM: u64 = 8;

/// Ranges of file blocks that differ from the live tree, without overlap.
#[derive(Debug, Default)]
pub struct Overlay {
    ranges: BTreeMap<u64, (u64, Over)>,
    counts: Counts,
    /// Written blocks that it has no more: cut off, or written over.
    dead: u64,
}

/// The extents in an overlay, and blocks of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    extents: u64,
    /// Their checksums.
    crcs: u64,
    /// Those that others may have, too: each gets a back reference.
    backrefs: u64,
    /// All blocks.
    blocks: u64,
    /// Those that are written, and that nobody else has.
    own: u64,
    /// Those that others may have, too.
    shared: u64,
}

impl Counts {
    /// Those that are written.
    const fn written(self) -> u64 {
        self.own + self.shared
    }
    fn of(from: u64, to: u64, over: &Over) -> Self {
        let blocks = to - from;
        match over.extent() {
            None => Self::default(),
            Some(e) => {
                let crcs = e.crcs.len() as u64;
                let all = Self { extents: 1, crcs, backrefs: 0, blocks, own: 0, shared: 0 };
                match (e.is_unwritten(), e.is_shared()) {
                    (true, _) => all,
                    (_, true) => Self { shared: blocks, backrefs: 1, ..all },
                    _ => Self { own: blocks, ..all },
                }
            }
        }
    }
}

impl Overlay {
    /// Removes what the overlay says of `[from, to)`; parts outside stay.
    pub fn cut(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = match self.ranges.range(..=from).next_back() {
            Some((s, (e, _))) if *e > from => *s,
            _ => from,
        };
        let touched: Vec<u64> = self.ranges.range(first..to).map(|(s, _)| *s).collect();
        let before = self.counts.written();
        for start in touched {
            let Some((end, over)) = self.ranges.remove(&start) else { continue };
            self.uncount(Counts::of(start, end, &over));
            let part = |a: u64, b: u64| match &over {
                Over::Hole => Over::Hole,
                Over::Extent(e) => Over::Extent(e.slice((a - start) as u32, (b - a) as u32)),
            };
            if start < from {
                self.put(start, from, part(start, from));
            }
            if end > to {
                self.put(to, end, part(to, end));
            }
        }
        self.dead += before - self.counts.written();
    }
    /// States what `[from, to)` is.
    pub fn set(&mut self, from: u64, to: u64, over: Over) {
        self.cut(from, to);
        if from >= to {
            return;
        }
        // Written in one go or in several: fewer items say the same.
        let before = self.ranges.range_mut(..from).next_back();
        if let (Some((start, (end, Over::Extent(first)))), Over::Extent(next)) = (before, &over) {
            if *end == from && first.join(*start, next) {
                *end = to;
                self.count(Counts { extents: 0, backrefs: 0, ..Counts::of(from, to, &over) });
                return;
            }
        }
        self.put(from, to, over);
    }
    fn put(&mut self, from: u64, to: u64, over: Over) {
        self.count(Counts::of(from, to, &over));
        self.ranges.insert(from, (to, over));
    }
    const fn count(&mut self, more: Counts) {
        self.counts.extents += more.extents;
        self.counts.crcs += more.crcs;
        self.counts.backrefs += more.backrefs;
        self.counts.blocks += more.blocks;
        self.counts.own += more.own;
        self.counts.shared += more.shared;
    }
    const fn uncount(&mut self, less: Counts) {
        self.counts.extents -= less.extents;
        self.counts.crcs -= less.crcs;
        self.counts.backrefs -= less.backrefs;
        self.counts.blocks -= less.blocks;
        self.counts.own -= less.own;
        self.counts.shared -= less.shared;
    }
    /// The ranges that overlap `[from, to)`: start, end, what.
    pub fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, &Over)> {
        let first = match self.ranges.range(..=from).next_back() {
            Some((s, (e, _))) if *e > from => *s,
            _ => from,
        };
        self.ranges.range(first..to.max(first)).map(|(s, (e, o))| (*s, *e, o))
    }
    /// What was written in `[from, to)`, and around it, gets other owners.
    pub fn share(&mut self, from: u64, to: u64) {
        let first = self.overlapping(from, to).next().map_or(from, |(start, ..)| start);
        for (start, (end, over)) in self.ranges.range_mut(first..to.max(first)) {
            let Over::Extent(e) = over else { continue };
            if !e.is_unwritten() && !e.is_shared() {
                e.flags |= EXTENT_SHARED;
                self.counts.backrefs += 1;
                self.counts.own -= *end - *start;
                self.counts.shared += *end - *start;
            }
        }
    }
    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }
    /// Number of extents.
    pub const fn extents(&self) -> u64 {
        self.counts.extents
    }
    /// What its extents add to the index with their back references, in items of the usual size: one with very many checksums counts as several.
    pub const fn items(&self) -> u64 {
        self.counts.extents + self.counts.backrefs + self.counts.crcs / CRCS_OF_ITEM
    }
    /// All ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Over)> {
        self.ranges.iter().map(|(s, (e, o))| (*s, *e, o))
    }
    /// Segments in which the blocks lie that are written.
    fn segments(&self) -> BTreeSet<SegmentNo> {
        let written = self.ranges.values().filter_map(|(_, o)| o.extent()).filter(|e| !e.is_unwritten());
        written.map(|e| e.addr.segment()).collect()
    }
    /// Whether any content lies in it.
    pub fn has_extents(&self) -> bool {
        self.ranges.values().any(|(_, o)| o.extent().is_some())
    }
}

/// What a commit does to what is stored, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// That come.
    pub more: u64,
    /// That go.
    pub less: u64,
    /// That are written in place of others.
    pub anew: u64,
}

/// The uncommitted content of one file.
#[derive(Debug)]
pub struct Content {
    /// Blocks in memory.
    pub pages: BTreeMap<u64, Page>,
    /// Ranges cut, reserved or written ahead.
    pub overlay: Overlay,
    /// Size in bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Who wrote last.
    pub editor_uid: u32,
    /// Everything before was cut off: the stream begins with a truncation to nothing.
    pub replaced: bool,
    /// Since when (monotonic) that truncation is held back.
    pub held_since: Option<u64>,
    /// Since when (monotonic) something waits.
    pub since: u64,
    /// Counts changes.
    pub version: u64,
    /// The version at the last close: of that nothing is missing.
    closed_version: Option<u64>,
    /// Segments that hold blocks of it which no record names yet.
    pub pins: BTreeSet<SegmentNo>,
    /// Blocks in these that it has no more, when that was last looked at.
    garbage: u64,
    /// Its extents, and leaves of what its holes cut off, as they were last counted: as many leaves may change by its commit.
    pub placed: u64,
    /// Items that its commit adds to the index, about, as they were last counted.
    pub items: u64,
    /// Of these, leaves of what its holes cut off.
    pub cut_leaves: u64,
    /// Leaves with back references of what is written over, at most.
    pub owners_leaves: u64,
    /// Extents of what is committed that its holes cut off, about.
    pub cut_extents: u64,
    /// Blocks of what is committed that its holes cut off, but for those that were written over before.
    pub cut_blocks: u64,
    /// Blocks that were written one after the other, up to the one written last.
    pub sequence: Range<u64>,
    /// Where writing behind some of the pages goes on.
    pub hand: u64,
    /// By how many blocks more is reserved in it than in what is committed of the file.
    pub promised: i64,
    /// Blocks that the file had before.
    pub before: u64,
    /// When it was changed before.
    changed_before: Time,
}

impl Content {
    /// Nothing changed yet, of a file with so many blocks, this size and these times.
    pub fn new(before: u64, size: u64, mtime: Time, ctime: Time, editor_uid: u32, now: u64) -> Self {
        Self {
            pages: BTreeMap::new(),
            overlay: Overlay::default(),
            size,
            mtime,
            ctime,
            editor_uid,
            replaced: false,
            held_since: None,
            since: now,
            version: 0,
            closed_version: None,
            pins: BTreeSet::new(),
            garbage: 0,
            placed: 0,
            items: 0,
            cut_leaves: 0,
            owners_leaves: 0,
            cut_extents: 0,
            cut_blocks: 0,
            sequence: 0..0,
            hand: 0,
            promised: 0,
            before,
            changed_before: ctime,
        }
    }

    /// The file was closed: a truncation is held back no longer, and nothing is missing.
    pub fn note_closed(&mut self) {
        self.held_since = None;
        self.closed_version = Some(self.version);
    }

    /// Whether there is something, and nothing was changed since the file was closed.
    pub fn is_whole(&self) -> bool {
        self.size > 0 && self.closed_version == Some(self.version)
    }

    /// Whether its time tells it from what there was before.
    pub fn is_told_apart(&self) -> bool {
        self.ctime != self.changed_before
    }

    /// Blocks of the file, `committed` of them in the live tree. What is written
    /// over counts once where the file has no holes; where it has some, the
    /// answer lies between what there was and what there can be.
    pub fn blocks_over(&self, committed: u64) -> u64 {
        let committed = if self.replaced { 0 } else { committed.saturating_sub(self.cut_blocks) };
        let here = self.blocks_here();
        let whole = self.size.div_ceil(BLOCK_BYTES as u64);
        committed.saturating_add(here).min(whole.max(committed).max(here))
    }

    /// Blocks in memory, reserved or written ahead.
    fn blocks_here(&self) -> u64 {
        self.pages.len() as u64 + self.overlay.counts.blocks
    }

    /// What its commit does to what is stored, about: blocks that come, that go, and that are written in place of others.
    /// What is reserved is stored by nobody. What is shared counts like all else here, though others may have it, too.
    pub fn change(&self) -> Change {
        let written = self.pages.len() as u64 + self.overlay.counts.own + self.overlay.counts.shared;
        if self.replaced {
            return Change { more: written, less: self.before, anew: 0 };
        }
        let grown = self.blocks_over(self.before).saturating_sub(self.before);
        let more = grown.saturating_add_signed(self.promised.saturating_neg()).min(written);
        Change { more, less: 0, anew: written - more }
    }

    /// Blocks that others may have, too.
    pub const fn shared(&self) -> u64 {
        self.overlay.counts.shared
    }

    /// Whether it may be too many ranges, or items of the index: somebody looks more closely then.
    pub fn has_many_ranges(&self, most: usize) -> bool {
        self.overlay.ranges() > most || self.held_since.is_some() && self.overlay.items() > (most / 4) as u64
    }

    /// Blocks in it that have a place already.
    pub const fn placed_blocks(&self) -> u64 {
        self.overlay.counts.own + self.overlay.counts.shared
    }

    /// Whether it shows other bytes where there were some, as far as it knows, in a file of that size: what is behind that hides nothing.
    pub fn hides_older(&self, size: u64) -> bool {
        let end = size.div_ceil(BLOCK_BYTES as u64);
        self.replaced
            || self.size < size
            || self.cut_blocks > 0
            || self.changed_from(0).is_some_and(|block| block < end)
    }

    /// Differs when what is shared in it differs.
    pub fn sharing(&self) -> [u64; 3] {
        [self.version, self.shared(), self.overlay.ranges() as u64]
    }

    /// Blocks that were written ahead and that it has had no more since [`Content::take_unneeded`].
    pub const fn dead(&self) -> u64 {
        self.overlay.dead
    }

    /// Blocks that it has no more in segments that it holds, at most.
    pub const fn garbage(&self) -> u64 {
        self.garbage + self.overlay.dead
    }

    /// Takes out of its pins, of segments of so many blocks, those in which it has nothing any more.
    pub fn take_unneeded(&mut self, segment_blocks: u32) -> BTreeSet<SegmentNo> {
        let needed = self.overlay.segments();
        let unneeded: BTreeSet<_> = self.pins.difference(&needed).copied().collect();
        self.pins.retain(|segment| needed.contains(segment));
        let most = self.pins.len() as u64 * u64::from(segment_blocks);
        let dead = self.garbage + std::mem::take(&mut self.overlay.dead);
        self.garbage = dead.min(most.saturating_sub(self.overlay.counts.written()));
        unneeded
    }

    /// Blocks that a truncation of it will free, where that is held back.
    pub fn held_blocks(&self) -> u64 {
        if self.held_since.is_some() && self.replaced { self.before } else { 0 }
    }

    /// The first block from `from` on that is in memory, cut, reserved or written ahead.
    pub fn changed_from(&self, from: u64) -> Option<u64> {
        let page = self.pages.range(from..).next().map(|(block, _)| *block);
        let over = self.overlay.overlapping(from, u64::MAX).next().map(|(start, ..)| start.max(from));
        page.into_iter().chain(over).min()
    }

    /// Takes the pages in `range` out, in runs of consecutive blocks.
    pub fn take_runs(&mut self, range: Range<u64>) -> Vec<(u64, Vec<Page>)> {
        let mut runs: Vec<(u64, Vec<Page>)> = Vec::new();
        let mut taken = |block, page| match runs.last_mut() {
            Some((start, run)) if *start + run.len() as u64 == block => run.push(page),
            _ => runs.push((block, vec![page])),
        };
        if range == (0..u64::MAX) {
            std::mem::take(&mut self.pages).into_iter().for_each(|(block, page)| taken(block, page));
        } else {
            let blocks: Vec<u64> = self.pages.range(range).map(|(block, _)| *block).collect();
            for block in blocks {
                if let Some(page) = self.pages.remove(&block) {
                    taken(block, page);
                }
            }
        }
        runs
    }

    /// What was written one after the other so far is on its way.
    pub const fn restart_sequence(&mut self) {
        self.sequence.start = self.sequence.end;
    }

    /// Notes that blocks were written; those of the sequence that they belong to.
    pub fn note_sequence(&mut self, from: u64, to: u64) -> Range<u64> {
        // The block in which the last write ended may be written on.
        let follows = from <= self.sequence.end && from + 1 >= self.sequence.end && to >= self.sequence.end;
        let start = if follows { self.sequence.start } else { from };
        self.sequence = start..to;
        self.sequence.clone()
    }
}

/// A file that is in use or has uncommitted content.
#[derive(Debug, Default)]
pub struct File {
    /// Open handles and other uses.
    pub uses: u32,
    /// Uncommitted content.
    pub content: Option<Content>,
    /// Blocks that it had when it was emptied a moment ago, and until when (monotonic) it may have them again.
    pub had: Option<(u64, u64)>,
    /// Nothing of it was found reserved, and nothing was reserved since.
    pub reserves_nothing: Cell<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::items::EXTENT_UNWRITTEN;
    use nenrin_format::{Addr, Cno, EXTENT_BLOCKS_MAX};

    fn extent(addr: u64, blocks: u32, shift: u8) -> Extent {
        let granules = blocks.div_ceil(1 << shift);
        let crcs = (0..u64::from(granules)).map(|i| (addr + (i << shift)) as u32).collect();
        Extent { birth: Cno(0), addr: Addr(addr), blocks, flags: 0, granule_shift: shift, lead: 0, tail: 0, crcs }
    }

    /// Blocks, and of each its address and the checksum it is under.
    fn blocks(overlay: &Overlay) -> BTreeMap<u64, Option<(u64, u32)>> {
        let mut out = BTreeMap::new();
        for (start, end, over) in overlay.iter() {
            for block in start..end {
                let i = (block - start) as u32;
                let Some(e) = over.extent() else {
                    out.insert(block, None);
                    continue;
                };
                assert!(e.fits(start) && u64::from(e.blocks) == end - start, "{start} {e:?}");
                assert_eq!(e.crcs.len() as u32, (e.lead + e.blocks + e.tail).div_ceil(1 << e.granule_shift));
                let crc = e.crcs[((e.lead + i) >> e.granule_shift) as usize];
                out.insert(block, Some((e.addr.0 + u64::from(i), crc)));
            }
        }
        out
    }

    #[test]
    fn writes_one_after_the_other_are_a_sequence() {
        let mut c = Content::new(0, 0, Time(0), Time(0), 0, 0);
        assert_eq!(c.note_sequence(5, 7), 5..7);
        assert_eq!(c.note_sequence(7, 7), 5..7, "within a block");
        assert_eq!(c.note_sequence(7, 9), 5..9, "the block was not full");
        c.restart_sequence();
        assert_eq!(c.note_sequence(9, 12), 9..12);
        assert_eq!(c.note_sequence(3, 4), 3..4);
        assert_eq!(c.note_sequence(6, 7), 6..7);
    }

    #[test]
    fn pages_of_a_range_are_taken_in_runs() {
        let mut c = Content::new(0, 0, Time(0), Time(0), 0, 0);
        for block in [1, 2, 3, 7, 8, 20] {
            c.pages.insert(block, zero_page());
        }
        let lengths = |runs: Vec<(u64, Vec<Page>)>| runs.iter().map(|(b, r)| (*b, r.len())).collect::<Vec<_>>();
        assert_eq!(lengths(c.take_runs(2..8)), [(2, 2), (7, 1)]);
        assert_eq!(lengths(c.take_runs(0..u64::MAX)), [(1, 1), (8, 1), (20, 1)]);
        assert!(c.pages.is_empty());
    }

    #[test]
    fn writes_in_a_row_are_one_range_in_each_window() {
        let mut overlay = Overlay::default();
        for i in 0..16 {
            overlay.set(i * 32, (i + 1) * 32, Over::Extent(extent(1000 + i * 32, 32, 2)));
        }
        assert_eq!(overlay.iter().count(), 512 / EXTENT_BLOCKS_MAX as usize);
        // Elsewhere on the device, under other granules, or not behind each other: each for itself.
        for (at, addr, blocks, shift) in [(512, 5000, 8, 2), (520, 6000, 8, 2), (528, 6008, 8, 0), (537, 6017, 8, 0)] {
            overlay.set(at, at + blocks, Over::Extent(extent(addr, blocks as u32, shift)));
        }
        assert_eq!(overlay.iter().count(), 2 + 4);
    }

    /// All blocks, own and shared ones are so many; and extents and checksums are as many as there are.
    fn counted(overlay: &Overlay, blocks: [u64; 3]) {
        let extents: Vec<&Extent> = overlay.ranges.values().filter_map(|(_, over)| over.extent()).collect();
        let crcs = extents.iter().map(|e| e.crcs.len() as u64).sum();
        let backrefs = extents.iter().filter(|e| e.is_shared()).count() as u64;
        let [blocks, own, shared] = blocks;
        assert_eq!(overlay.counts, Counts { extents: extents.len() as u64, crcs, backrefs, blocks, own, shared });
    }

    #[test]
    fn what_comes_goes_and_is_written_anew() {
        let is = |c: &Content, more, less, anew| assert_eq!(c.change(), Change { more, less, anew });
        let reserved =
            |blocks| Over::Extent(Extent { flags: EXTENT_UNWRITTEN, crcs: Vec::new(), ..extent(0, blocks, 0) });
        let mut c = Content::new(10, 10 << 12, Time(0), Time(0), 0, 0);
        is(&c, 0, 0, 0);
        c.pages.insert(3, zero_page());
        is(&c, 0, 0, 1);
        c.size = 20 << 12;
        c.overlay.set(10, 20, Over::Extent(extent(1000, 10, 0)));
        is(&c, 10, 0, 1);
        // Shared with others, twice over.
        c.overlay.share(12, 13);
        c.overlay.share(12, 13);
        counted(&c.overlay, [10, 0, 10]);
        is(&c, 10, 0, 1);
        // What another file had.
        c.size = 25 << 12;
        c.overlay.set(20, 25, Over::Extent(Extent { flags: EXTENT_SHARED, ..extent(2000, 5, 0) }));
        counted(&c.overlay, [15, 0, 15]);
        is(&c, 15, 0, 1);
        // What goes.
        c.overlay.set(12, 14, Over::Hole);
        counted(&c.overlay, [13, 0, 13]);
        is(&c, 14, 0, 0);
        // Reserved behind the end.
        let mut kept = Content::new(10, 10 << 12, Time(0), Time(0), 0, 0);
        kept.overlay.set(10, 40, reserved(30));
        kept.promised = 30;
        is(&kept, 0, 0, 0);
        // Of what was reserved some is written, some given back.
        let mut filled = Content::new(10, 10 << 12, Time(0), Time(0), 0, 0);
        filled.pages.insert(4, zero_page());
        filled.promised = -5;
        is(&filled, 1, 0, 0);
        // Emptied, and something else written.
        c.overlay.set(0, u64::MAX, Over::Hole);
        (c.replaced, c.size) = (true, 4 << 12);
        is(&c, 1, 10, 0);
        c.before = u64::MAX;
        is(&c, 1, u64::MAX, 0);
    }

    #[test]
    fn joining_changes_no_block() {
        let mut random = nenrin_device::Prng::new(7);
        for _ in 0..200 {
            let (mut overlay, mut model) = (Overlay::default(), BTreeMap::new());
            let (mut next, mut last) = (4096, 0);
            for _ in 0..60 {
                let blocks = 1 + random.below(40);
                // Often right behind the last.
                let from = if random.below(3) > 0 { last } else { random.below(600) };
                let to = (from + blocks).min(from / 256 * 256 + 256);
                last = to;
                if random.below(5) == 0 {
                    overlay.set(from, to, Over::Hole);
                    model.extend((from..to).map(|b| (b, None)));
                    continue;
                }
                next += if random.below(3) == 0 { 7 } else { 0 };
                let shift = if random.below(2) == 0 { 2 } else { 0 };
                overlay.set(from, to, Over::Extent(extent(next, (to - from) as u32, shift)));
                model.extend((from..to).map(|b| {
                    let i = b - from;
                    (b, Some((next + i, (next + (i >> shift << shift)) as u32)))
                }));
                next += to - from;
            }
            assert_eq!(blocks(&overlay), model);
            let here = model.values().filter(|b| b.is_some()).count() as u64;
            counted(&overlay, [here, here, 0]);
        }
    }
}
