//! A cleaner for want of room: moves what is left of nearly empty segments
//! together, so that they become free. It runs when a writer would otherwise
//! be refused; it does not run in the background yet.
//!
//! Invariants
//! 1. Blocks are copied first, verified on the way; a conditional MOVE record
//!    names the copy only if the item still holds what was copied.
//! 2. It needs no more room than the reserve leaves it.

use super::{Fs, Inner};
use crate::Result;
use crate::index::{NodeCache, Tree};
use crate::segments::{KIND_INDEX, SegmentState};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{self, Entries, NodeHeader, TreeId};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, Ino, NODE_BLOCKS, NODE_BYTES, SegmentNo};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Segments emptied in one round.
const VICTIMS_MAX: usize = 32;
/// Sparse index segments from which on they are tidied.
const SPARSE_MAX: usize = 4;
/// Bytes of index segments read for tidying by one index checkpoint.
const TIDY_BYTES: usize = 8 << 20;

/// An extent to move: its tree and key, and what it held when it was found.
struct Move {
    tree: TreeId,
    key: Key,
    extent: Extent,
}

impl Fs {
    /// Moves what is left of the emptiest segments; whether anything moved.
    pub(super) fn clean_for_room(&self) -> Result<bool> {
        let inner = self.lock_to_change()?;
        let (data, index) = inner.victims(self);
        let trees: Vec<Tree> =
            [inner.state.live.clone()].into_iter().chain(inner.state.history.iter().map(|t| t.tree.clone())).collect();
        let cache = inner.state.cache.clone();
        let generation = inner.generation();
        drop(inner);
        if data.is_empty() && index.is_empty() {
            return Ok(false);
        }
        let moves = match moves_from(&trees, &cache, &data) {
            Ok(moves) => moves,
            // Index checkpoints since then may have used the places of old nodes again.
            Err(_) if self.lock().generation() != generation => return Ok(false),
            Err(e) => return Err(e),
        };
        drop(trees);
        let mut moved = 0;
        for m in &moves {
            if !self.may_move()? {
                break;
            }
            moved += self.move_extent(m)?;
        }
        let mut touched = 0;
        for segment in index {
            if !self.may_move()? {
                break;
            }
            touched += self.touch_nodes(segment)?;
        }
        if moved + touched == 0 {
            return Ok(false);
        }
        self.sync_received(false)?;
        self.index_checkpoint(false)?;
        self.index_checkpoint(false)?;
        Ok(true)
    }

    /// Whether the index checkpoint that ends a round still fits after one more step.
    fn may_move(&self) -> Result<bool> {
        let inner = self.lock_to_change()?;
        Ok(inner.state.segments.free_count() > inner.floor_segments(self))
    }

    /// Copies one extent's blocks and logs the move; how many blocks moved.
    fn move_extent(&self, m: &Move) -> Result<u64> {
        // Pinned, the old place cannot get other blocks that look like the same item.
        let old = m.extent.addr.segment();
        let mut inner = self.lock_to_change()?;
        let current = match inner.tree(m.tree) {
            Some(tree) => tree.get(&inner.state.cache, &m.key)?,
            None => None,
        };
        if current.and_then(|v| Extent::decode(&v).ok()).as_ref() != Some(&m.extent) {
            return Ok(0);
        }
        inner.segments().pin(old);
        drop(inner);
        let moved = self.move_pinned(m);
        self.lock().segments().unpin(old);
        moved
    }

    /// What cannot be read stays where it is: scrubbing reports it.
    fn move_pinned(&self, m: &Move) -> Result<u64> {
        let e = &m.extent;
        let first = Addr(e.addr.0.saturating_sub(u64::from(e.lead)));
        let Ok(bytes) = self.storage.read(first, e.lead + e.blocks + e.tail) else { return Ok(0) };
        if super::verify(e, &bytes).is_err() {
            return Ok(0);
        }
        let start = e.lead as usize * BLOCK_BYTES;
        let mut buf = AlignedBuf::unset(e.blocks as usize * BLOCK_BYTES);
        buf.copy_from_slice(&bytes[start..start + e.blocks as usize * BLOCK_BYTES]);
        let crcs: Vec<u32> = buf.chunks_exact(BLOCK_BYTES).map(nenrin_format::crc).collect();
        let mut done = 0;
        let mut inner = self.lock_to_change()?;
        let owner = (Ino(m.key.ino), m.key.fork, m.key.off);
        let (addr, blocks) = match inner.allocate_data(self, owner, e.blocks) {
            Ok(got) => got,
            Err(crate::Error::NoSpace) => return Ok(0),
            Err(e) => return Err(e),
        };
        // A copy that does not fit in one piece is not worth splitting an item for.
        if blocks == e.blocks {
            inner.data.describe(addr, 0, &crcs);
            let new = Extent { addr, granule_shift: 0, lead: 0, tail: 0, crcs, ..e.clone() };
            inner.segments().pin(addr.segment());
            drop(inner);
            let written = self.storage.write(addr, Arc::new(buf));
            inner = self.lock();
            inner.segments().unpin(addr.segment());
            if let Err(e) = written {
                inner.fail(&e.to_string());
                return Err(e);
            }
            inner.check_alive()?;
            inner.log(&Record::Move { tree: m.tree, key: m.key, old: e.addr, new }, self.clock.monotonic_nanos())?;
            inner.batch.moved_blocks += u64::from(blocks);
            inner.counters.moved_blocks += u64::from(blocks);
            done = u64::from(blocks);
        }
        Ok(done)
    }

    /// Makes the nodes in an index segment dirty, so that the next index
    /// checkpoint writes them elsewhere; how many were.
    fn touch_nodes(&self, segment: SegmentNo) -> Result<u64> {
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

    /// Empties index segments that hold few nodes, when there are many of them:
    /// else nodes that never change would each keep a segment for themselves.
    pub(super) fn tidy_index(&self) -> Result<()> {
        let inner = self.lock_to_change()?;
        let blocks = self.storage.segment_blocks;
        let mut sparse: Vec<(u32, SegmentNo)> = inner
            .state
            .segments
            .iter()
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
        for (_, segment) in sparse.into_iter().take((TIDY_BYTES / segment_bytes).max(2)) {
            let inner = self.lock_to_change()?;
            // The checkpoint that follows must still fit.
            if inner.state.segments.free_count() <= inner.checkpoint_segments(self) {
                break;
            }
            drop(inner);
            self.touch_nodes(segment)?;
        }
        Ok(())
    }

    fn touch_node(&self, addr: Addr, bytes: &[u8]) -> Result<u64> {
        let Ok((head, _)) = NodeHeader::read_prefix(bytes) else { return Ok(0) };
        let tree = TreeId(head.tree.get());
        let Ok((head, entries)) = node::decode(tree, bytes) else { return Ok(0) };
        let first = match &entries {
            Entries::Leaf(v) => v.first().map(|(k, _)| *k),
            Entries::Inner(v) => v.first().map(|(k, _)| *k),
        };
        let Some(key) = first else { return Ok(0) };
        let mut inner = self.lock_to_change()?;
        let state = &mut inner.state;
        let cache = state.cache.clone();
        let tree = match tree {
            TreeId::LIVE => Some(&mut state.live),
            TreeId::SPACE => Some(&mut state.space),
            id => state.history.iter_mut().map(|t| &mut t.tree).find(|t| t.id() == id),
        };
        Ok(match tree {
            Some(t) => u64::from(t.touch(&cache, head.level, &key, addr)?),
            None => 0,
        })
    }
}

/// The extents of these trees that lie in these segments.
fn moves_from(trees: &[Tree], cache: &NodeCache, segments: &BTreeSet<SegmentNo>) -> Result<Vec<Move>> {
    let mut moves = Vec::new();
    for tree in trees.iter().filter(|_| !segments.is_empty()) {
        tree.scan(cache, &super::background::first_key(), &last_key(), &mut |k, v| {
            if k.kind == Kind::Extent {
                if let Ok(extent) = Extent::decode(v) {
                    if !extent.is_unwritten() && !extent.is_shared() && segments.contains(&extent.addr.segment()) {
                        moves.push(Move { tree: tree.id(), key: *k, extent });
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(moves)
}

pub(super) const fn last_key() -> Key {
    Key { ino: u64::MAX, kind: Kind::Extent, fork: u32::MAX, off: u64::MAX, death: u64::MAX }
}

impl Inner {
    /// The emptiest sealed segments that fit the room there is: of content, and of nodes.
    fn victims(&self, fs: &Fs) -> (BTreeSet<SegmentNo>, Vec<SegmentNo>) {
        let blocks = fs.storage.segment_blocks;
        let mut data = Vec::new();
        let mut index = Vec::new();
        for (no, s) in self.state.segments.iter() {
            if s.state != SegmentState::Sealed || s.chain_held || s.pins > 0 {
                continue;
            }
            let used = s.used_blocks();
            if used > 0 && used < blocks / 16 * 15 {
                data.push((used, no));
            } else if s.item.kind == KIND_INDEX && used == 0 && s.node_blocks() < blocks / 2 {
                index.push((s.node_blocks(), no));
            }
        }
        data.sort_unstable();
        index.sort_unstable();
        let room = self.state.segments.free_count().saturating_sub(self.floor_segments(fs)).max(1) * u64::from(blocks);
        let mut total = 0;
        let mut take = |list: Vec<(u32, SegmentNo)>| -> Vec<SegmentNo> {
            list.into_iter()
                .take(VICTIMS_MAX)
                .take_while(|(used, _)| {
                    total += u64::from(*used);
                    total <= room
                })
                .map(|(_, no)| no)
                .collect()
        };
        let index = take(index);
        (take(data).into_iter().collect(), index)
    }
}
