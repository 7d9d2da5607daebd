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

use nenrin_format::items::Extent;
use nenrin_format::{BLOCK_BYTES, SegmentNo, Time};
use std::collections::BTreeMap;

pub use bytes::ReadBytes;

/// One block of content in memory.
pub type Page = Box<[u8; BLOCK_BYTES]>;

/// A block of zeros.
pub fn zero_page() -> Page {
    Box::new([0; BLOCK_BYTES])
}

/// What an uncommitted range of file blocks is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing.
    Hole,
    /// Written already, or reserved; covers the range exactly.
    Extent(Extent),
}

/// Ranges of file blocks that differ from the live tree, without overlap.
#[derive(Debug, Default)]
pub struct Overlay {
    ranges: BTreeMap<u64, (u64, Over)>,
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
        for start in touched {
            let Some((end, over)) = self.ranges.remove(&start) else { continue };
            let part = |a: u64, b: u64| match &over {
                Over::Hole => Over::Hole,
                Over::Extent(e) => Over::Extent(e.slice((a - start) as u32, (b - a) as u32)),
            };
            if start < from {
                self.ranges.insert(start, (from, part(start, from)));
            }
            if end > to {
                self.ranges.insert(to, (end, part(to, end)));
            }
        }
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
                return;
            }
        }
        self.ranges.insert(from, (to, over));
    }
    /// The ranges that overlap `[from, to)`: start, end, what.
    pub fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, &Over)> {
        let first = match self.ranges.range(..=from).next_back() {
            Some((s, (e, _))) if *e > from => *s,
            _ => from,
        };
        self.ranges.range(first..to.max(first)).map(|(s, (e, o))| (*s, *e, o))
    }
    /// All ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Over)> {
        self.ranges.iter().map(|(s, (e, o))| (*s, *e, o))
    }
    /// Whether any content lies in it.
    pub fn has_extents(&self) -> bool {
        self.ranges.values().any(|(_, o)| matches!(o, Over::Extent(_)))
    }
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
    /// Segments that hold blocks of it which no record names yet, once for each write.
    pub pins: Vec<SegmentNo>,
}

impl Content {
    /// Nothing changed yet, of a file with this size and these times.
    pub fn new(size: u64, mtime: Time, ctime: Time, editor_uid: u32, now: u64) -> Self {
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
            pins: Vec::new(),
        }
    }

    /// Blocks of the file, `committed` of them in the live tree. What is written
    /// over counts once where the file has no holes; where it has some, the
    /// answer lies between what there was and what there can be.
    pub fn blocks_over(&self, committed: u64) -> u64 {
        let committed = if self.replaced { 0 } else { committed };
        let extents = self.overlay.iter().filter(|(.., over)| matches!(over, Over::Extent(_)));
        let here = self.pages.len() as u64 + extents.map(|(from, to, _)| to - from).sum::<u64>();
        let whole = self.size.div_ceil(BLOCK_BYTES as u64);
        committed.saturating_add(here).min(whole.max(committed).max(here))
    }

    /// Takes all pages out, in runs of consecutive blocks.
    pub fn take_runs(&mut self) -> Vec<(u64, Vec<Page>)> {
        let mut runs: Vec<(u64, Vec<Page>)> = Vec::new();
        for (block, page) in std::mem::take(&mut self.pages) {
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == block => run.push(page),
                _ => runs.push((block, vec![page])),
            }
        }
        runs
    }
}

/// A file that is in use or has uncommitted content.
#[derive(Debug, Default)]
pub struct File {
    /// Open handles and other uses.
    pub uses: u32,
    /// Uncommitted content.
    pub content: Option<Content>,
}
