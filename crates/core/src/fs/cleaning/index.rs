//! Index segments that hold few nodes: their nodes are made dirty, so that the
//! next index checkpoint writes them elsewhere.

use super::super::{Fs, Inner};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::index::Tree;
use crate::log::index::IndexLog;
use crate::segments::{KIND_INDEX, SegmentState, SegmentUse};
use nenrin_format::key::Key;
use nenrin_format::node::{self, TreeId};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS, NODE_BYTES, SegmentNo};

/// Sparse index segments from which on they are tidied.
const SPARSE_MAX: usize = 4;
/// Bytes of index segments read for tidying by one index checkpoint.
const TIDY_BYTES: usize = 8 << 20;
/// Of an index segment that is emptied to make room a quarter is garbage, or more.
const GARBAGE_PART: u32 = 4;
/// Where nothing else makes room, a sixteenth, as for content; df counts on it.
const LEAST_GARBAGE_PART: u32 = 16;
/// From so many segments on none is emptied that takes more than it gains.
const VICTIMS_MIN: u64 = 8;
/// Of each node there are so many, in segments that hold the same.
const COPIES: u64 = 2;
/// And there is so much more of it than could not be had, in segments.
const WORTH_SEGMENTS: u64 = 1;
/// A try gained something if it was this part of a segment,
const WORTH_PART: u64 = 4;
/// and more than the index checkpoints take that come with it.
const WORTH_BLOCKS: u64 = 64;
/// Nodes looked for under one clone of a tree.
const NODES_AT_ONCE: usize = 64;
/// Index segments emptied in one round of making room.
const VICTIMS_MAX: usize = 32;

impl Fs {
    /// Empties the sparsest index segments, as far as there is room; how many nodes were touched.
    pub(in super::super) fn touch_sparse(&self) -> Result<u64> {
        self.touch_emptier_than(GARBAGE_PART)
    }

    /// The same with those that are hardly sparse, unless a segment has been gained since index segments took `before` blocks. Where
    /// both together came to nothing, not until there is a segment more of garbage: what small partials take stays, and each who
    /// is refused would try.
    pub(super) fn empty_hardly_sparse(&self, before: u64) -> Result<()> {
        let segment_blocks = u64::from(self.storage.segment_blocks);
        let mut inner = self.lock_to_change()?;
        let (garbage, taken) = (inner.garbage_in_index(self), inner.blocks_for_index(self));
        inner.index_in_vain = inner.index_in_vain.min(garbage);
        let worth = garbage >= inner.index_in_vain + WORTH_SEGMENTS * segment_blocks;
        drop(inner);
        if !worth || taken + segment_blocks <= before || broken(Break::HardlySparseKept) {
            return Ok(());
        }
        if self.touch_emptier_than(LEAST_GARBAGE_PART)? == 0 {
            return Ok(());
        }
        self.finish_cleaning()?;
        let mut inner = self.lock();
        // Measured from the beginning, so that round after round there is less, or no further round.
        let gained = before.saturating_sub(inner.blocks_for_index(self));
        let gains = gained >= (segment_blocks / WORTH_PART).max(WORTH_BLOCKS) && !broken(Break::GainsInVain);
        inner.index_in_vain = if gains { 0 } else { inner.garbage_in_index(self) };
        Ok(())
    }

    /// Makes the nodes of index segments dirty of which more than one `part`th is garbage, as far as there is room, and of those with much
    /// garbage as long as that takes less than it gains; how many.
    fn touch_emptier_than(&self, part: u32) -> Result<u64> {
        let inner = self.lock_to_change()?;
        let (victims, before) = (inner.sparse_index_segments(self, part), inner.dirty_nodes());
        drop(inner);
        let per_segment = IndexLog::nodes_in_segment(self.storage.segment_blocks);
        let (mut touched, mut emptied) = (0, 0);
        for segment in victims.into_iter().take(VICTIMS_MAX) {
            let inner = self.lock_to_change()?;
            let nodes = inner.state.segments.get(segment).map_or(0, |s| s.nodes);
            let (dirty, spare) = (inner.dirty_nodes(), inner.nodes_to_spare(self));
            drop(inner);
            // The first one always fits above the floor, or nothing would ever come of it.
            if u64::from(nodes) > spare && touched > 0 || spare == 0 {
                break;
            }
            // With the nodes above them.
            let taken = COPIES * dirty.saturating_sub(before) / per_segment;
            if part == GARBAGE_PART && emptied >= VICTIMS_MIN && taken >= emptied {
                break;
            }
            touched += self.touch_nodes(segment)?;
            emptied += 1;
        }
        Ok(touched)
    }

    /// Makes the nodes in an index segment dirty, so that the next index
    /// checkpoint writes them elsewhere; how many were.
    pub(in super::super) fn touch_nodes(&self, segment: SegmentNo) -> Result<u64> {
        let mut touched = 0;
        let Ok(bytes) = self.storage.read(Addr::new(segment, 0), self.storage.segment_blocks) else { return Ok(0) };
        let mut block = 0;
        while block < self.storage.segment_blocks {
            let at = block;
            block += 1;
            let Ok(header) = Header::peek(&bytes[at as usize * BLOCK_BYTES..]) else { continue };
            if header.addr != Addr::new(segment, at) || at + header.total_blocks() > self.storage.segment_blocks {
                continue;
            }
            block = at + header.total_blocks().max(1);
            if header.kind == PartialKind::Index {
                for i in 0..header.payload_blocks / NODE_BLOCKS {
                    let first = (at + header.summary_blocks + i * NODE_BLOCKS) as usize * BLOCK_BYTES;
                    let node = &bytes[first..first + NODE_BYTES];
                    touched += self.touch_node(header.payload_addr().add(i * NODE_BLOCKS), node)?;
                }
            }
        }
        Ok(touched)
    }

    /// [`Fs::touch_nodes`], also of those whose partials cannot be read or found: the trees know where these are. For who must empty
    /// the segment.
    pub(in super::super) fn touch_all_nodes(&self, segment: SegmentNo) -> Result<u64> {
        let mut touched = self.touch_nodes(segment)?;
        let inner = self.lock_to_change()?;
        if inner.untouched_nodes(segment) == 0 || broken(Break::HeadersBelieved) {
            return Ok(touched);
        }
        let trees: Vec<TreeId> = inner.trees().map(Tree::id).collect();
        drop(inner);
        for tree in trees {
            touched += self.touch_nodes_of(tree, segment)?;
        }
        Ok(touched)
    }

    /// The same of one tree, without a look at the segment.
    fn touch_nodes_of(&self, id: TreeId, segment: SegmentNo) -> Result<u64> {
        let (mut touched, mut from) = (0, Some(Key::first()));
        while let Some(key) = from {
            self.breathe();
            let inner = self.lock_to_change()?;
            let Some(tree) = inner.tree(id).cloned() else { break };
            let cache = inner.state.cache.clone();
            drop(inner);
            let mut nodes = Vec::new();
            from = tree.nodes_from(&cache, &key, NODES_AT_ONCE, &mut nodes)?;
            for n in &nodes {
                for copy in n.ptr.copies.iter().filter(|copy| copy.segment() == segment) {
                    touched += self.touch(id, n.level, &n.key, *copy)?;
                }
            }
        }
        Ok(touched)
    }

    /// Empties index segments that hold few nodes, when there are many of them:
    /// else nodes that never change would each keep a segment for themselves.
    pub(in super::super) fn tidy_index(&self) -> Result<()> {
        let inner = self.lock_to_change()?;
        let blocks = self.storage.segment_blocks;
        let mut sparse: Vec<(u32, SegmentNo)> = inner
            .state
            .segments
            .of_index()
            .filter(|(_, s)| s.state == SegmentState::Sealed && s.nodes > 0 && s.node_blocks() <= blocks / 4)
            .filter(|(_, s)| s.used_blocks() == 0 && !s.chain_held)
            .map(|(no, s)| (s.nodes, no))
            .collect();
        drop(inner);
        if sparse.len() < SPARSE_MAX {
            return Ok(());
        }
        sparse.sort_unstable();
        let segment_bytes = blocks as usize * BLOCK_BYTES;
        for (nodes, segment) in sparse.into_iter().take((TIDY_BYTES / segment_bytes).max(2)) {
            let inner = self.lock_to_change()?;
            // The checkpoint that follows must still fit.
            if inner.nodes_to_spare(self) < u64::from(nodes) {
                break;
            }
            drop(inner);
            self.touch_nodes(segment)?;
        }
        Ok(())
    }

    fn touch_node(&self, addr: Addr, bytes: &[u8]) -> Result<u64> {
        // Most nodes of a sparse segment have been replaced: only the tree knows, and its key is enough to ask it.
        let Ok((head, Some(key))) = node::first_key(bytes) else { return Ok(0) };
        self.touch(TreeId(head.tree.get()), head.level, &key, addr)
    }

    /// Makes the node dirty that a tree has on `level` at `key`, if it has a copy at `addr`; how many were.
    fn touch(&self, tree: TreeId, level: u8, key: &Key, addr: Addr) -> Result<u64> {
        let mut inner = self.lock_to_change()?;
        let state = &mut inner.state;
        let cache = state.cache.clone();
        let tree = match tree {
            TreeId::LIVE => Some(&mut state.live),
            TreeId::SPACE => Some(&mut state.space),
            id => state.history.iter_mut().map(|t| &mut t.tree).find(|t| t.id() == id),
        };
        // A node that cannot be read, or that nothing leads to any more, stays where it is: index checkpoints go on without it.
        Ok(u64::from(tree.is_some_and(|t| matches!(t.touch(&cache, level, key, addr), Ok(true)))))
    }
}

impl Inner {
    /// Copies of nodes in a segment that stay there with the next index checkpoint.
    fn untouched_nodes(&self, segment: SegmentNo) -> u64 {
        let nodes = self.state.segments.get(segment).map_or(0, |s| u64::from(s.nodes));
        let replaced: u64 = self.trees().map(|t| t.replaced_in(segment)).sum();
        nodes.saturating_sub(replaced)
    }

    /// Index segments that cleaning empties, and those that what is in them and what is dirty takes.
    pub(super) fn index_after_cleaning(&self, fs: &Fs) -> (u64, u64) {
        let mut sparse = self.sparse_index_segments(fs, GARBAGE_PART);
        sparse.truncate(VICTIMS_MAX);
        let nodes: u64 = sparse.iter().filter_map(|no| self.state.segments.get(*no)).map(|s| u64::from(s.nodes)).sum();
        // Those in the segments are counted with their copies.
        (sparse.len() as u64, self.segments_for(fs, self.dirty_nodes() + nodes / 2))
    }

    /// Blocks that index segments take, with their garbage.
    pub(in super::super) fn blocks_for_index(&self, fs: &Fs) -> u64 {
        let blocks = fs.storage.segment_blocks;
        let held =
            |s: &&SegmentUse| s.item.kind == KIND_INDEX && matches!(s.state, SegmentState::Sealed | SegmentState::Open);
        let segments = self.state.segments.of_index().map(|(_, s)| s).filter(held).count() as u64;
        let open: u64 = self.index.iter().map(|log| log.nodes_that_fit(blocks) * u64::from(NODE_BLOCKS)).sum();
        segments * u64::from(blocks) - open
    }

    /// Blocks without a node in index segments that are hardly sparse.
    fn garbage_in_index(&self, fs: &Fs) -> u64 {
        let found = self.sparse_index_segments(fs, LEAST_GARBAGE_PART);
        let garbage =
            |no: &SegmentNo| self.state.segments.get(*no).map_or(0, |s| fs.storage.segment_blocks - s.node_blocks());
        found.iter().map(|no| u64::from(garbage(no))).sum()
    }

    /// Index segments of which more than one `part`th is garbage, the emptiest first.
    fn sparse_index_segments(&self, fs: &Fs, part: u32) -> Vec<SegmentNo> {
        let most = fs.storage.segment_blocks - fs.storage.segment_blocks / part;
        let mut found: Vec<(u32, SegmentNo)> = self
            .state
            .segments
            .of_index()
            .filter(|(_, s)| s.state == SegmentState::Sealed && !s.chain_held && s.pins == 0)
            .filter(|(_, s)| s.item.kind == KIND_INDEX && s.used_blocks() == 0 && s.node_blocks() < most)
            .map(|(no, s)| (s.node_blocks(), no))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, no)| no).collect()
    }
}
