//! Parity that is not what it should be, at the end of a scrub.
//!
//! Invariants
//! 1. Parity is made of a row only where all that the trees name in it, at that moment, is right where it lies: of what is not the parity
//!    is the only right copy. Where all trees are walked for it that is a moment as long as the walk, in which a copy may escape it (0023).
//! 2. Nothing is written to a row from when that is looked at until its parity is.

use super::super::{Fs, Inner};
use super::{NODES_AT_ONCE, ROOTS_USABLE, Scrub, ScrubFinding};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::covered;
use crate::devices::RowId;
use crate::index::Tree;
use crate::segments::SegmentState;
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS, SegmentNo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Segments for whose rows all trees are walked at a time: nothing of them is made free meanwhile.
const TOGETHER_MAX: usize = 64;

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

/// Segments with rows whose parity differs.
#[derive(Default)]
pub(super) struct RowsLeft {
    /// They are looked at one by one.
    alone: VecDeque<SegmentNo>,
    /// All trees are walked for these.
    together: VecDeque<SegmentNo>,
}

impl Fs {
    /// All that is needed was read, and mended where it was wrong: where parity is still another, it is the parity that is wrong. But for
    /// rows with something that is still wrong: of that their parity is the only right copy. A piece of that; what is left of it.
    pub(super) fn scrub_rows(&self, scrub: &mut Scrub, left: Option<RowsLeft>) -> Result<Option<RowsLeft>> {
        let mut left = match left {
            Some(left) => left,
            None => self.rows_to_look_at(scrub)?,
        };
        let segment_bytes = u64::from(self.storage.segment_blocks) * BLOCK_BYTES as u64;
        if let Some(segment) = left.alone.pop_front() {
            scrub.bytes += segment_bytes;
            if !self.segment_is_looked_at(scrub, segment)? {
                left.together.push_back(segment);
            }
        } else {
            let some: Vec<SegmentNo> = left.together.drain(..left.together.len().min(TOGETHER_MAX)).collect();
            scrub.bytes += segment_bytes * some.len() as u64;
            let at_rest = self.at_rest(&some);
            let rows = scrub.rows_in(&at_rest.segments);
            let needed = self.rows_with_wrong(&rows)?;
            self.mend_others(scrub, &rows, &needed)?;
        }
        Ok(Some(left).filter(|left| !left.alone.is_empty() || !left.together.is_empty()))
    }

    fn rows_to_look_at(&self, scrub: &Scrub) -> Result<RowsLeft> {
        // What is lost of a node or of the log only its row has: first no root that may be used needs either.
        if self.may_mend() && !scrub.rows_unlike.is_empty() && !broken(Break::ParityUnverified) {
            (0..ROOTS_USABLE).try_for_each(|_| self.index_checkpoint(false))?;
        }
        let mut segments: Vec<SegmentNo> = scrub.rows_unlike.iter().map(|row| row.0).collect();
        segments.dedup();
        Ok(RowsLeft { alone: segments.into(), together: VecDeque::new() })
    }

    /// Looks at the rows of a segment with content; false where it has nodes, or not all that is named in it is found that way.
    fn segment_is_looked_at(&self, scrub: &mut Scrub, segment: SegmentNo) -> Result<bool> {
        let at_rest = self.at_rest(&[segment]);
        if at_rest.segments.is_empty() {
            return Ok(true);
        }
        let rows = scrub.rows_in(&at_rest.segments);
        let has_nodes = self.lock().state.segments.get(segment).is_some_and(|s| s.nodes > 0);
        // Nor is anything claimed of a volume that is only read.
        if (has_nodes || self.options.read_only) && !broken(Break::RowsBelieved) {
            return Ok(false);
        }
        let named = if broken(Break::RowsBelieved) { Some(Vec::new()) } else { self.named_in(segment)? };
        let Some(named) = named else { return Ok(false) };
        let mut wrong = BTreeSet::new();
        for extent in &named {
            self.breathe();
            let (first, blocks) = covered::place(extent);
            let here = || self.storage.rows_of(first, blocks).into_iter().filter(|row| rows.contains(row));
            if here().next().is_some() && !self.is_right_extent(extent) {
                wrong.extend(here());
            }
        }
        self.mend_others(scrub, &rows, &wrong).map(|()| true)
    }

    /// Makes the parity of these rows anew but for those that are needed as they are.
    fn mend_others(&self, scrub: &mut Scrub, rows: &BTreeSet<RowId>, needed: &BTreeSet<RowId>) -> Result<()> {
        let may_mend = self.may_mend();
        for row in rows {
            if needed.contains(row) {
                scrub.report.copies_damaged += 1;
                let text =
                    "parity differs from what is in its row, which is not all right, or not all known: it stays".into();
                let addr = self.storage.row_begin(*row).unwrap_or_default();
                scrub.note(ScrubFinding { text, ino: None, path: None, offset: None, addr });
                continue;
            }
            let mended = match may_mend {
                true => self.owns_to_write().and_then(|()| self.storage.mend_parity(*row))?,
                false => self.storage.parity_is_wrong(*row).then_some(false),
            };
            if let Some(mended) = mended {
                scrub.report.copies_damaged += 1;
                scrub.report.copies_mended += u64::from(mended);
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

    /// Those of these rows in which something that a tree names is not right where it lies; all of a segment of which it is not known what
    /// they name.
    fn rows_with_wrong(&self, rows: &BTreeSet<RowId>) -> Result<BTreeSet<RowId>> {
        let mut wrong = BTreeSet::new();
        let mut copies: BTreeMap<SegmentNo, BTreeSet<Addr>> = rows.iter().map(|row| (row.0, BTreeSet::new())).collect();
        let mut is_wrong = |addr: Addr, blocks: u32, is_right: &dyn Fn() -> bool| {
            let here = || self.storage.rows_of(addr, blocks).into_iter().filter(|row| rows.contains(row));
            if here().next().is_some() && !is_right() {
                wrong.extend(here());
            }
        };
        // Nodes that were written meanwhile lie elsewhere, whichever tree has them.
        let trees: Vec<TreeId> = self.lock().trees().map(Tree::id).collect();
        for id in trees {
            self.each_copy(id, &mut |addr, is_right| {
                if let Some(here) = copies.get_mut(&addr.segment()) {
                    here.insert(addr);
                    is_wrong(addr, NODE_BLOCKS, is_right);
                }
            })?;
        }
        let inner = self.lock();
        let of = |no: &SegmentNo| inner.state.segments.get(*no).map_or((0, 0), |s| (s.nodes as usize, s.used_blocks()));
        let lost: BTreeSet<SegmentNo> = copies.iter().filter(|(no, c)| c.len() < of(no).0).map(|(no, _)| *no).collect();
        let content: BTreeSet<SegmentNo> = copies.keys().filter(|no| of(no).1 > 0).copied().collect();
        drop(inner);
        let mut is_known = true;
        if !content.is_empty() {
            let mut look = |extent: &Extent| {
                let (first, blocks) = covered::place(extent);
                if content.contains(&first.segment()) {
                    is_wrong(first, blocks, &|| self.is_right_extent(extent));
                }
            };
            is_known = self.each_content(TreeId::LIVE, &mut look);
            for id in self.history_ids() {
                is_known &= self.each_content(id, &mut look);
            }
        }
        // A repair may find what a lost leaf named.
        let unknown = |no: &SegmentNo| lost.contains(no) || !is_known && content.contains(no);
        wrong.extend(rows.iter().filter(|row| unknown(&row.0)));
        Ok(wrong)
    }

    fn is_right_extent(&self, extent: &Extent) -> bool {
        let (first, blocks) = covered::place(extent);
        self.are_right(first, blocks, |bytes| covered::verify(extent, bytes).is_ok())
    }

    /// Calls `look` with each copy of a node of a tree.
    fn each_copy(&self, id: TreeId, look: &mut dyn FnMut(Addr, &dyn Fn() -> bool)) -> Result<()> {
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
                    look(copy, &|| self.is_right_copy(n, copy));
                }
            }
        }
        Ok(())
    }

    /// Calls `look` with all content that a tree names, where it lies; false where some of the tree could not be read.
    fn each_content(&self, id: TreeId, look: &mut dyn FnMut(&Extent)) -> bool {
        let (mut from, mut is_known) = (Some(Key::first()), true);
        while let Some(key) = from {
            self.breathe();
            let piece = self.extents_from(id, &key);
            if piece.is_old {
                continue;
            }
            piece.extents.iter().for_each(|(_, extent)| look(extent));
            is_known &= !piece.is_lost;
            from = piece.next;
        }
        is_known
    }
}

impl Scrub {
    /// Rows in these segments whose parity differs.
    fn rows_in(&self, segments: &BTreeSet<SegmentNo>) -> BTreeSet<RowId> {
        self.rows_unlike.iter().filter(|row| segments.contains(&row.0)).copied().collect()
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
