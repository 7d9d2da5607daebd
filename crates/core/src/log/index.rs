//! Index partials: nodes, each in two segments, and the root partial.
//!
//! Invariants
//! 1. The two copies of a node, and of a root, never share a segment.
//! 2. A partial ends where a slow device begins, and the next one begins behind that.

use crate::devices::Avoided;
use crate::storage::Storage;
use nenrin_device::AlignedBuf;
use nenrin_format::key::Key;
use nenrin_format::layout::le::{U32, U64};
use nenrin_format::node::TreeId;
use nenrin_format::partial::{Header, MapEntry, PartialKind};
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Epoch, NODE_BLOCKS, NODE_BYTES, SegmentNo, Seq, Time};

/// Nodes in one index partial.
pub(crate) const NODES_MAX: usize = 64;

/// Where the next node of one copy goes.
#[derive(Debug, Default)]
pub struct IndexLog {
    /// Segment being filled.
    pub segment: Option<SegmentNo>,
    /// Next block in it.
    pub block: u32,
    pending: Vec<u8>,
    map: Vec<MapEntry>,
    start: u32,
    /// Blocks that were left out before it.
    before: u32,
}

/// What index partials say besides their nodes.
#[derive(Clone, Copy)]
pub struct IndexStamp {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch of this mount.
    pub epoch: Epoch,
    /// Sequence of the chain's last partial in this checkpoint.
    pub seq: Seq,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// Now.
    pub now: Time,
}

impl IndexLog {
    /// Goes on behind a root of so many blocks.
    pub fn behind(root: Addr, blocks: u32) -> Self {
        Self { segment: Some(root.segment()), block: root.block() + blocks, ..Self::default() }
    }
    /// Where a partial of one more node, or of `blocks`, goes on or begins, if it fits the segment.
    fn place(&self, blocks: u32, storage: &Storage, avoided: Avoided) -> Option<u32> {
        let segment = self.segment?;
        if self.map.is_empty() {
            return storage.place_of(segment, self.block, 1 + blocks, avoided);
        }
        (storage.free_run(segment, self.block, avoided) >= blocks).then_some(self.block)
    }
    /// Whether it fits.
    pub fn has_room(&self, blocks: u32, storage: &Storage, avoided: Avoided) -> bool {
        self.place(blocks, storage, avoided).is_some()
    }
    /// Nodes that still fit the segment.
    pub fn nodes_that_fit(&self, segment_blocks: u32) -> u64 {
        let header = u32::from(self.map.is_empty());
        let left = segment_blocks.saturating_sub(self.block + header);
        if self.segment.is_some() { u64::from(left / NODE_BLOCKS) } else { 0 }
    }
    /// Nodes that fit a fresh segment.
    pub fn nodes_in_segment(segment_blocks: u32) -> u64 {
        // Each partial has a header.
        let headers = 1 + segment_blocks / (NODES_MAX as u32 * NODE_BLOCKS);
        u64::from(segment_blocks.saturating_sub(headers) / NODE_BLOCKS).max(1)
    }
    /// Whether the current partial should be written before more is added.
    pub fn is_full(&self) -> bool {
        self.map.len() >= NODES_MAX
    }
    /// Goes on in a fresh segment; the current partial must have been taken.
    pub fn start_segment(&mut self, segment: SegmentNo) {
        debug_assert!(self.map.is_empty());
        self.segment = Some(segment);
        self.block = 0;
    }
    /// Goes on in another segment next time; the one that was being filled. Between checkpoints only.
    pub fn leave(&mut self) -> Option<SegmentNo> {
        debug_assert!(self.map.is_empty());
        self.segment.take()
    }
    /// Adds a node; its address.
    pub fn push(
        &mut self,
        tree: TreeId,
        level: u8,
        first: &Key,
        node: &[u8],
        (storage, avoided): (&Storage, Avoided),
    ) -> Option<Addr> {
        let segment = self.segment?;
        if self.map.is_empty() {
            self.begin(NODE_BLOCKS, storage, avoided)?;
            self.block += 1;
        }
        let addr = Addr::new(segment, self.block);
        self.block += NODE_BLOCKS;
        self.pending.extend_from_slice(node);
        self.map.push(MapEntry {
            ino: U64::new(first.ino),
            off: U64::new(first.off),
            fork: U32::new(tree.0),
            blocks: U32::new(NODE_BLOCKS),
            crc: U32::new(nenrin_format::node::stored_crc(node).unwrap_or(0)),
            level,
            kind: first.kind as u8,
            reserved: [0; 2],
        });
        Some(addr)
    }
    /// Begins a partial with so many blocks behind its header.
    fn begin(&mut self, blocks: u32, storage: &Storage, avoided: Avoided) -> Option<()> {
        self.start = self.place(blocks, storage, avoided)?;
        self.before = self.start - self.block;
        self.block = self.start;
        Some(())
    }
    /// The current partial, to be written; `None` when nothing waits.
    pub fn take(&mut self, stamp: IndexStamp) -> Option<(Addr, AlignedBuf)> {
        let segment = self.segment?;
        if self.map.is_empty() {
            return None;
        }
        let map = std::mem::take(&mut self.map);
        let nodes = &self.pending;
        let addr = Addr::new(segment, self.start);
        let header = self.header(PartialKind::Index, addr, stamp, (nodes.len() / BLOCK_BYTES) as u32);
        let (head, _) = header.encode(&[], &map);
        debug_assert!(head.len() == BLOCK_BYTES && nodes.len() % NODE_BYTES == 0);
        let bytes = AlignedBuf::gathered(head.len() + nodes.len(), [&head[..], &nodes[..]].into_iter());
        self.pending.clear();
        Some((addr, bytes))
    }
    /// Lays out a root partial; its address, bytes and summary CRC. The room was checked.
    pub fn root(
        &mut self,
        root: &[u8],
        blocks: u32,
        stamp: IndexStamp,
        (storage, avoided): (&Storage, Avoided),
    ) -> Option<(Addr, AlignedBuf, u32)> {
        self.begin(blocks, storage, avoided)?;
        let addr = Addr::new(self.segment?, self.block);
        let header = self.header(PartialKind::Root, addr, stamp, 0);
        let (bytes, crc) = header.encode(root, &[]);
        self.block += (bytes.len() / BLOCK_BYTES) as u32;
        Some((addr, AlignedBuf::padded(&bytes), crc))
    }
    fn header(&self, kind: PartialKind, addr: Addr, stamp: IndexStamp, payload_blocks: u32) -> Header {
        Header {
            kind,
            flags: 0,
            summary_blocks: 1,
            uuid: stamp.uuid,
            epoch: stamp.epoch,
            seq: stamp.seq,
            addr,
            prev_addr: Addr::NONE,
            prev_crc: 0,
            payload_crc: 0,
            durable_seq: Seq(0),
            open_cno: stamp.open_cno,
            written_at: stamp.now,
            record_bytes: 0,
            map_count: 0,
            payload_blocks,
            left_out: self.before,
            next: None,
            mount_id: 0,
        }
    }
}
