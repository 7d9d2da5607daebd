//! What files that are changed behind a gap in the log may have had in it. One that is longer behind the gap than before it
//! was written to in the gap, or has a hole there: nothing tells which. One that is shorter was cut off in the gap.
//!
//! | behind the gap the file is | what is done before the log goes on |
//! |---|---|
//! | longer | from the block in which it ended before nothing is known, unless the log behind the gap says it |
//! | shorter | what is behind its end goes; of the block in which it ends now nothing is known, unless the log says it |
//! | as long | nothing: it may mix two commits, which is told |
//!
//! Invariants
//! 1. What the log behind the gap writes, or makes a hole, is known.
//! 2. Nothing that was cut off in the gap comes back when the file grows.

use super::regain::each;
use crate::breaks::{Break, broken};
use crate::recovery::Found;
use crate::state::State;
use crate::{FileKind, Result};
use nenrin_format::items::{Extent, Inode};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::{Addr, BLOCK_BYTES, Ino};
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// File blocks of which nothing is known: inode, fork, from, to.
pub(super) type Hole = (u64, u32, u64, u64);

/// File blocks of which nothing is known, by inode: from, to.
#[derive(Default)]
pub(super) struct Unknown(BTreeMap<Ino, Vec<(u64, u64)>>);

impl Unknown {
    /// The file has this size in its first record behind a gap.
    pub fn begin(&mut self, state: &mut State, ino: Ino, size: u64) -> Result<()> {
        let regular = |i: &Inode| FileKind::from_mode(i.mode) == FileKind::Regular;
        let Some(inode) = state.inode(ino)?.filter(regular) else { return Ok(()) };
        if inode.size == size || broken(Break::GapReadsZeros) {
            return Ok(());
        }
        let (from, to) = (inode.size.min(size) / BLOCK, size.div_ceil(BLOCK));
        let grows = size > inode.size;
        let says = |e: &Extent| !e.is_unwritten() || e.is_lost();
        let is_unknown = grows || state.extents(ino, inode.fork, from, to, 1)?.iter().any(|(_, e)| says(e));
        // Content in the index is replaced by each record that changes it.
        if grows || inode.blocks > 0 {
            let blocks = if grows { to - from } else { u64::MAX };
            state.apply(&punched(ino, &inode, ContentOp::Hole(from, blocks)), Addr::NONE)?;
        }
        if is_unknown && from < to {
            self.0.entry(ino).or_default().push((from, to));
        }
        Ok(())
    }

    /// What these partials say is known.
    pub fn learn(&mut self, partials: &[Found]) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        each(partials, &mut |record| {
            let Record::Content { ino, ops, .. } = record else { return Ok(()) };
            let Some(ranges) = self.0.get_mut(ino) else { return Ok(()) };
            for op in ops {
                match op {
                    ContentOp::Hole(from, blocks) => cut(ranges, *from, from.saturating_add(*blocks)),
                    ContentOp::Extent(from, e) => cut(ranges, *from, from.saturating_add(u64::from(e.blocks))),
                    ContentOp::Inline(_) | ContentOp::NewFork => ranges.clear(),
                }
            }
            Ok(())
        })
    }

    /// All of it, of the forks that the files have in the end.
    pub fn holes(self, state: &State) -> Result<BTreeSet<Hole>> {
        let mut holes = BTreeSet::new();
        for (ino, ranges) in self.0 {
            if let Some(inode) = state.inode(ino)? {
                holes.extend(ranges.into_iter().map(|(from, to)| (ino.0, inode.fork, from, to)));
            }
        }
        Ok(holes)
    }
}

/// A record that changes nothing of a file but its content.
fn punched(ino: Ino, inode: &Inode, op: ContentOp<'static>) -> Record<'static> {
    let Inode { size, mtime, ctime, editor_uid, .. } = *inode;
    Record::Content { ino, size, mtime, ctime, editor_uid, ops: vec![op] }
}

/// What lies in `[from, to)` is not in the ranges any more.
fn cut(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    let left = ranges.iter().flat_map(|(a, b)| [(*a, (*b).min(from)), ((*a).max(to), *b)]);
    *ranges = left.filter(|(a, b)| a < b).collect();
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn what_is_known_is_cut_out() {
        let mut ranges = vec![(2, 10), (20, 30)];
        for (from, to) in [(0, 2), (10, 20), (4, 5), (8, 22), (29, u64::MAX)] {
            cut(&mut ranges, from, to);
        }
        assert_eq!(ranges, [(2, 4), (5, 8), (22, 29)]);
        cut(&mut ranges, 0, u64::MAX);
        assert!(ranges.is_empty());
    }
}
