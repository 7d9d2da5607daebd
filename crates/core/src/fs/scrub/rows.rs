//! Parity that is not what it should be, at the end of a scrub.
//!
//! Invariants
//! 1. Parity is made of a row only where all that the trees name in it, at that moment, is right where it lies: of what is not the parity
//!    is the only right copy.
//! 2. Nothing is written to a row from when that is looked at until its parity is.

use super::super::{Fs, Inner};
use super::{NODES_AT_ONCE, Scrub};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::covered;
use crate::devices::RowId;
use crate::segments::SegmentState;
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, NODE_BLOCKS, SegmentNo};
use std::collections::BTreeSet;

/// Segments whose rows are looked at together: each time all trees are walked.
const SEGMENTS_AT_ONCE: usize = 256;

/// Told of blocks, how many they are, and whether they are right.
type Look<'a> = &'a mut dyn FnMut(Addr, u32, &dyn Fn() -> bool);

/// Segments in which nothing is written, and which stay as they are while this is there.
struct AtRest<'a> {
    fs: &'a Fs,
    segments: BTreeSet<SegmentNo>,
}

impl Drop for AtRest<'_> {
    fn drop(&mut self) {
        let mut inner = self.fs.lock();
        self.segments.iter().for_each(|segment| inner.segments().unpin(*segment));
    }
}

impl Fs {
    /// All that is needed was read, and mended where it was wrong: where parity is still another, it is the parity that is wrong.
    /// But for rows with something that is still wrong: of that their parity is the only right copy.
    pub(super) fn mend_rows(&self, scrub: &mut Scrub, may_mend: bool) -> Result<()> {
        let unlike = std::mem::take(&mut scrub.rows_unlike);
        let mut segments: Vec<SegmentNo> = unlike.iter().map(|row| row.0).collect();
        segments.dedup();
        for some in segments.chunks(SEGMENTS_AT_ONCE) {
            let at_rest = self.at_rest(some);
            let rows = unlike.iter().filter(|row| at_rest.segments.contains(&row.0)).copied().collect();
            let needed = self.rows_with_wrong(&rows)?;
            for row in rows {
                if needed.contains(&row) {
                    scrub.report.copies_damaged += 1;
                    continue;
                }
                let mended = match may_mend {
                    true => self.owns_to_write().and_then(|()| self.storage.mend_parity(row))?,
                    false => self.storage.parity_is_wrong(row).then_some(false),
                };
                if let Some(mended) = mended {
                    scrub.report.copies_damaged += 1;
                    scrub.report.copies_mended += u64::from(mended);
                }
            }
        }
        Ok(())
    }

    /// Those of these segments that nobody writes to. Others are written anew meanwhile, or may be: that is for the next scrub.
    fn at_rest(&self, segments: &[SegmentNo]) -> AtRest<'_> {
        let mut inner = self.lock();
        let ahead = inner.written_ahead();
        let is_at_rest = |s: &&SegmentNo| !ahead.contains(s) && inner.is_at_rest(**s);
        let segments: BTreeSet<SegmentNo> = segments.iter().filter(is_at_rest).copied().collect();
        segments.iter().for_each(|segment| inner.segments().pin(*segment));
        drop(inner);
        AtRest { fs: self, segments }
    }

    /// Those of these rows in which something that a tree names is not right where it lies; all where it is not known what they name.
    fn rows_with_wrong(&self, rows: &BTreeSet<RowId>) -> Result<BTreeSet<RowId>> {
        let mut wrong = BTreeSet::new();
        if rows.is_empty() || broken(Break::RowsBelieved) {
            return Ok(wrong);
        }
        let segments: BTreeSet<SegmentNo> = rows.iter().map(|row| row.0).collect();
        let mut look = |addr: Addr, blocks: u32, is_right: &dyn Fn() -> bool| {
            let here = || self.storage.rows_of(addr, blocks).into_iter().filter(|row| rows.contains(row));
            if segments.contains(&addr.segment()) && here().next().is_some() && !is_right() {
                wrong.extend(here());
            }
        };
        let ids = |inner: &Inner| inner.trees().map(|t| t.id()).collect::<Vec<_>>();
        // Nodes that were written meanwhile lie elsewhere, whichever tree has them.
        let trees = ids(&self.lock());
        for id in trees {
            self.each_copy(id, &mut look)?;
        }
        let mut is_known = self.each_content(TreeId::LIVE, &mut look);
        for id in self.history_ids() {
            is_known &= self.each_content(id, &mut look);
        }
        // A repair may find what a lost leaf named.
        Ok(if is_known { wrong } else { rows.clone() })
    }

    /// Calls `look` with each copy of a node of a tree.
    fn each_copy(&self, id: TreeId, look: Look<'_>) -> Result<()> {
        let mut from = Some(Key::first());
        while let Some(key) = from {
            self.breathe();
            let inner = self.lock();
            let Some(tree) = inner.tree(id).cloned() else { break };
            let cache = inner.state.cache.clone();
            drop(inner);
            let mut nodes = Vec::new();
            from = tree.nodes_from(&cache, &key, NODES_AT_ONCE, &mut nodes)?;
            for n in &nodes {
                for copy in n.ptr.copies {
                    look(copy, NODE_BLOCKS, &|| self.is_right_copy(n, copy));
                }
            }
        }
        Ok(())
    }

    /// Calls `look` with all content that a tree names, where it lies; false where some of the tree could not be read.
    fn each_content(&self, id: TreeId, look: Look<'_>) -> bool {
        let (mut from, mut is_known) = (Some(Key::first()), true);
        while let Some(key) = from {
            self.breathe();
            let piece = self.extents_from(id, &key);
            if piece.is_old {
                continue;
            }
            for (_, extent) in &piece.extents {
                let (first, blocks) = covered::place(extent);
                look(first, blocks, &|| self.are_right(first, blocks, |bytes| covered::verify(extent, bytes).is_ok()));
            }
            is_known &= !piece.is_lost;
            from = piece.next;
        }
        is_known
    }
}

impl Inner {
    /// Whether nothing is written to a segment, and recovery reads no root and no log in it, which scrubbing does not verify.
    fn is_at_rest(&self, segment: SegmentNo) -> bool {
        let has_root = self.superblock.root.iter().any(|(addr, _)| addr.segment() == segment);
        let is_log = |held: bool| held && !broken(Break::ParityUnverified);
        let here = self.state.segments.get(segment).filter(|s| s.state == SegmentState::Sealed);
        here.is_some_and(|s| !has_root && !is_log(s.chain_held))
    }

    /// Segments with content that no tree names yet.
    fn written_ahead(&self) -> BTreeSet<SegmentNo> {
        let here = self.files.values().filter_map(|f| f.content.as_ref());
        let aside = self.batch.aside.iter().map(|(_, content)| content);
        here.chain(aside).flat_map(|content| content.pins.iter().copied()).collect()
    }
}
