//! What an index checkpoint consists of besides nodes: the roots of all trees,
//! the counters, and the use of index segments. Carried as the records of a
//! partial segment of kind root.

use crate::disk_struct;
use crate::layout::le::{U32, U64};
use crate::node::{NodePtr, NodePtrDisk, TreeId};
use crate::wire::Reader;
use crate::{COUNTER_MAX, Cno, Ino, Invalid, SegmentNo};

disk_struct! {
    /// Fixed part of the root.
    pub struct RootDisk [80] {
        /// Next inode number to give.
        pub next_ino: U64,
        /// Checkpoint number that items are born in.
        pub open_cno: U64,
        /// Next number for a history tree.
        pub next_tree: U32,
        /// Trees that follow.
        pub tree_count: U32,
        /// Index segments that follow.
        pub segment_count: U32,
        /// Bytes of the retention rule after the index segments; 0 for the default rule.
        pub retention_bytes: U32,
        /// Inodes in the live tree.
        pub inodes: U64,
        /// Blocks of content in the live tree.
        pub live_blocks: U64,
        /// Blocks of content only history needs.
        pub history_blocks: U64,
        /// Blocks that extents of the live tree name, shared ones once for each owner.
        pub named_blocks: U64,
        /// Newest checkpoint ever made.
        pub last_cno: U64,
        /// Blocks that extents of the live tree reserve, with nothing written to them yet.
        pub promised_blocks: U64,
    }
}

disk_struct! {
    /// Root of one tree.
    pub struct TreeDisk [72] {
        /// [`TreeId`].
        pub tree: U32,
        /// Level of the root node.
        pub level: u8,
        /// 1 when the tree has no node at all.
        pub empty: u8,
        /// 1 when nothing may be added any more (history).
        pub sealed: u8,
        /// Must be zero.
        pub reserved: u8,
        /// The root node.
        pub ptr: NodePtrDisk,
        /// Items in the tree.
        pub items: U64,
        /// History: smallest death it may hold.
        pub death_low: U64,
        /// History: largest death it holds.
        pub death_high: U64,
        /// Nodes of the tree.
        pub nodes: U64,
        /// Must be zero.
        pub reserved2: U64,
    }
}

disk_struct! {
    /// Use of one index segment.
    pub struct IndexSegmentDisk [16] {
        /// The segment.
        pub segment: U64,
        /// Node copies in it that this root needs.
        pub nodes: U32,
        /// Must be zero.
        pub reserved: U32,
    }
}

disk_struct! {
    /// What snapshots keep of history, behind everything else, where it was counted.
    pub struct PastDisk [24] {
        /// Blocks of content that they keep; rather too much where blocks are shared.
        pub blocks: U64,
        /// Bytes of items that they keep, about.
        pub bytes: U64,
        /// Bytes of all items in the history trees that may hold such, about.
        pub all_bytes: U64,
    }
}

/// What snapshots keep of history. It is told to users, and history is shed by it; every mount counts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Blocks of content that they keep; rather too much where blocks are shared.
    pub blocks: u64,
    /// Bytes of items that they keep, about.
    pub bytes: u64,
    /// Bytes of all items in the history trees that may hold such, about.
    pub all_bytes: u64,
}

/// Root of one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    /// Which tree.
    pub tree: TreeId,
    /// Level of the root node.
    pub level: u8,
    /// The root node; `None` when the tree is empty.
    pub ptr: Option<NodePtr>,
    /// Items in the tree.
    pub items: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// History: deaths the tree covers, from and to, inclusive.
    pub deaths: (Cno, Cno),
    /// Nothing may be added any more.
    pub sealed: bool,
}

/// Everything an index checkpoint states besides its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Next inode number to give.
    pub next_ino: Ino,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// Newest checkpoint ever made.
    pub last_cno: Cno,
    /// Next number for a history tree.
    pub next_tree: u32,
    /// Inodes in the live tree.
    pub inodes: u64,
    /// Blocks of content in the live tree.
    pub live_blocks: u64,
    /// Blocks of content only history needs.
    pub history_blocks: u64,
    /// Blocks that extents of the live tree name, shared ones once for each owner.
    pub named_blocks: u64,
    /// Blocks that extents of the live tree reserve, with nothing written to them yet.
    pub promised_blocks: u64,
    /// All trees.
    pub trees: Vec<TreeRoot>,
    /// Use of index segments, in node copies.
    pub index_segments: Vec<(SegmentNo, u32)>,
    /// The retention rule as text; empty for the default.
    pub retention: Vec<u8>,
    /// What snapshots keep, where that was counted.
    pub past: Option<Past>,
}

impl Root {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = RootDisk::zeroed();
        d.next_ino.set(self.next_ino.0);
        d.open_cno.set(self.open_cno.0);
        d.last_cno.set(self.last_cno.0);
        d.next_tree.set(self.next_tree);
        d.tree_count.set(self.trees.len() as u32);
        d.segment_count.set(self.index_segments.len() as u32);
        d.retention_bytes.set(self.retention.len() as u32);
        d.inodes.set(self.inodes);
        d.live_blocks.set(self.live_blocks);
        d.history_blocks.set(self.history_blocks);
        d.named_blocks.set(self.named_blocks);
        d.promised_blocks.set(self.promised_blocks);
        let mut out = d.bytes().to_vec();
        for t in &self.trees {
            let mut e = TreeDisk::zeroed();
            e.tree.set(t.tree.0);
            e.level = t.level;
            e.empty = u8::from(t.ptr.is_none());
            e.sealed = u8::from(t.sealed);
            if let Some(p) = t.ptr {
                e.ptr = p.encode();
            }
            e.items.set(t.items);
            e.nodes.set(t.nodes);
            e.death_low.set(t.deaths.0.0);
            e.death_high.set(t.deaths.1.0);
            out.extend_from_slice(e.bytes());
        }
        for (s, n) in &self.index_segments {
            let mut e = IndexSegmentDisk::zeroed();
            e.segment.set(s.0);
            e.nodes.set(*n);
            out.extend_from_slice(e.bytes());
        }
        out.extend_from_slice(&self.retention);
        if let Some(past) = self.past {
            let mut e = PastDisk::zeroed();
            e.blocks.set(past.blocks);
            e.bytes.set(past.bytes);
            e.all_bytes.set(past.all_bytes);
            out.extend_from_slice(e.bytes());
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// Short input, bytes left over, counters beyond all reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let (d, rest) = RootDisk::read_prefix(bytes)?;
        let counters = [d.next_ino.get(), d.open_cno.get(), d.last_cno.get(), d.inodes.get()];
        let blocks = [d.live_blocks.get(), d.history_blocks.get(), d.named_blocks.get(), d.promised_blocks.get()];
        if counters.iter().chain(&blocks).any(|n| *n > COUNTER_MAX) {
            return Err(Invalid::Bounds);
        }
        let mut r = Reader::new(rest);
        let mut this = Self {
            next_ino: Ino(d.next_ino.get()),
            open_cno: Cno(d.open_cno.get()),
            last_cno: Cno(d.last_cno.get()),
            next_tree: d.next_tree.get(),
            inodes: d.inodes.get(),
            live_blocks: d.live_blocks.get(),
            history_blocks: d.history_blocks.get(),
            named_blocks: d.named_blocks.get(),
            promised_blocks: d.promised_blocks.get(),
            trees: Vec::new(),
            index_segments: Vec::new(),
            retention: Vec::new(),
            past: None,
        };
        for _ in 0..d.tree_count.get() {
            let (t, _) = TreeDisk::read_prefix(r.take(TreeDisk::BYTES)?)?;
            if t.nodes.get() > COUNTER_MAX {
                return Err(Invalid::Bounds);
            }
            this.trees.push(TreeRoot {
                tree: TreeId(t.tree.get()),
                level: t.level,
                ptr: (t.empty == 0).then(|| NodePtr::decode(&t.ptr)),
                items: t.items.get(),
                nodes: t.nodes.get(),
                deaths: (Cno(t.death_low.get()), Cno(t.death_high.get())),
                sealed: t.sealed == 1,
            });
        }
        for _ in 0..d.segment_count.get() {
            let (s, _) = IndexSegmentDisk::read_prefix(r.take(IndexSegmentDisk::BYTES)?)?;
            this.index_segments.push((SegmentNo(s.segment.get()), s.nodes.get()));
        }
        this.retention = r.take(d.retention_bytes.get() as usize)?.to_vec();
        if !r.is_empty() {
            let (e, _) = PastDisk::read_prefix(r.take(PastDisk::BYTES)?)?;
            let past = Past { blocks: e.blocks.get(), bytes: e.bytes.get(), all_bytes: e.all_bytes.get() };
            if [past.blocks, past.bytes, past.all_bytes].iter().any(|n| *n > COUNTER_MAX) {
                return Err(Invalid::Bounds);
            }
            this.past = Some(past);
        }
        if r.is_empty() { Ok(this) } else { Err(Invalid::Bounds) }
    }
}
