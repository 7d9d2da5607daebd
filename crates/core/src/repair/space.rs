//! The space tree, and all counters by recount.
//!
//! Invariants
//! 1. Nothing that is counted is believed.
//! 2. A segment that any usable root may need and the repaired state does not is
//!    pending, not free, until the roots of before are overwritten.
//! 3. Memory: two bits for each block of the volume, and two counters for each segment.

use super::losses::{About, LossKind, MendKind};
use super::mender::Mender;
use super::owners::Owners;
use crate::breaks::{Break, broken};
use crate::log::index::NODES_MAX;
use crate::per_segment::PerSegment;
use crate::segments::{KIND_CHAIN, KIND_DATA, Segments};
use crate::state::{REST_FORK, State, is_space_key};
use crate::{Error, Result};
use nenrin_format::items::{BackrefDisk, Checkpoint, Extent, Forget, Landmark, Reap, Segment, Shed};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{NodePtr, TreeId};
use nenrin_format::partial::summary_blocks;
use nenrin_format::root::{Past, Root, TreeRoot};
use nenrin_format::superblock::SLOTS_PER_AREA;
use nenrin_format::{Generation, Ino, NODE_BLOCKS, SegmentNo};
use std::collections::BTreeMap;

/// Nodes looked for at once.
const NODES_AT_ONCE: usize = 256;

/// Segments that the chain takes when an epoch begins: its own and the next.
const CHAIN_SEGMENTS: u64 = 2;

impl Mender {
    /// Items of the space tree that mean nothing, or contradict the inodes, go. What says that an inode is to be forgotten is written anew: its
    /// key names that.
    pub(super) fn space_items(&mut self) -> Result<()> {
        let (mut wrong, mut anew, mut told) = (Vec::new(), Vec::new(), 0u64);
        let state = &self.state;
        state.space.walk(&state.cache, &mut |key, value| {
            let misplaced =
                !is_space_key(key) || key.kind == Kind::Segment && state.segments.get(SegmentNo(key.off)).is_none();
            let right = match key.kind {
                Kind::Segment => Segment::decode(value).is_ok(),
                Kind::Checkpoint => {
                    Checkpoint::decode(value).is_ok() && state.kept.contains_key(&nenrin_format::Cno(key.off))
                }
                Kind::Landmark => {
                    Landmark::decode(value).is_ok() && state.landmarks.has(nenrin_format::Cno(key.off), key.fork)
                }
                Kind::Backref => BackrefDisk::read_prefix(value).is_ok(),
                Kind::Orphan => match state.inode(Ino(key.off))? {
                    Some(i) => Reap::decode(value).is_ok_and(|r| r.death <= state.open_cno) && i.nlink == 0,
                    None => false,
                },
                Kind::Shed => Shed::decode(value).is_ok_and(|s| state.shed.has(Ino(key.off), s.upto, key.fork)),
                Kind::Forget => match (Forget::decode(value), state.inode(Ino(key.off))?) {
                    (Err(_), None) if !misplaced && !broken(Break::BadForgetGoes) => {
                        anew.push(*key);
                        true
                    }
                    (said, inode) => said.is_ok() && inode.is_none(),
                },
                _ => Reap::decode(value).is_ok_and(|r| {
                    let inode = state.inode(Ino(key.off)).ok().flatten();
                    let idle = if r.whole { inode.is_none() } else { inode.is_none_or(|i| i.fork > r.fork) };
                    let placed = if r.whole { [0, REST_FORK].contains(&key.fork) } else { r.fork == key.fork };
                    idle && placed && r.death <= state.open_cno
                }),
            };
            if misplaced || !right {
                wrong.push(*key);
                told += u64::from(key.kind == Kind::Checkpoint);
            }
            Ok(())
        })?;
        for key in &wrong {
            self.state.space.remove(&self.state.cache, key)?;
        }
        for key in &anew {
            let value = Forget { begun: self.now }.encode();
            self.state.space.insert(&self.state.cache, *key, value.into())?;
        }
        if told > 0 {
            let text = format!("{told} checkpoints could not be understood");
            self.losses.add(LossKind::CheckpointsLost, About::Volume, text);
        }
        Ok(())
    }

    /// Extents that say they are shared have a back reference, and nothing else has one.
    pub(super) fn sharing(&mut self) -> Result<()> {
        let mended = self.state.mend_backrefs()?;
        self.losses.mended(MendKind::SharingRestored, mended);
        Ok(())
    }

    /// Behind an older root content may have come into segments in which its nodes lie: they are written elsewhere, and where they were
    /// is theirs no more.
    pub(super) fn nodes_apart(&mut self) -> Result<()> {
        if broken(Break::NodesNotApart) {
            return Ok(());
        }
        let state = &mut self.state;
        let cache = state.cache.clone();
        let mut content: PerSegment<bool> = PerSegment::of(self.storage.numbers());
        for tree in std::iter::once(&state.live).chain(state.history.iter().map(|t| &t.tree)) {
            tree.walk(&cache, &mut |key, value| {
                if let Some(e) = written(key, value) {
                    content.change(e.addr.segment(), |has| *has = true);
                }
                Ok(())
            })?;
        }
        let is_mixed = |ptr: &NodePtr| ptr.copies.iter().any(|a| content.get(a.segment()));
        let mut touched = 0;
        for tree in [&mut state.live, &mut state.space].into_iter().chain(state.history.iter_mut().map(|t| &mut t.tree))
        {
            let (mut nodes, mut from) = (Vec::new(), Some(Key::first()));
            while let Some(key) = from {
                let known = nodes.len();
                from = tree.nodes_from(&cache, &key, known + NODES_AT_ONCE, &mut nodes)?;
                let some = nodes.split_off(known);
                nodes.extend(some.into_iter().filter(|n| is_mixed(&n.ptr)));
            }
            for n in &nodes {
                touched += u64::from(tree.touch(&cache, n.level, &n.key, n.ptr.copies[0])?);
            }
            if !broken(Break::SupersededCounts) {
                tree.drop_superseded(&is_mixed);
            }
        }
        self.losses.mended(MendKind::NodesRewritten, touched);
        Ok(())
    }

    /// Counts everything. `generation`: the next to be written.
    pub(super) fn recount(&mut self, generation: Generation) -> Result<()> {
        let none: PerSegment<u32> = PerSegment::of(self.storage.numbers());
        let (mut nodes, mut live, mut history) = (none.clone(), none.clone(), none);
        let cache = self.state.cache.clone();
        let mut placed = |ptr: &nenrin_format::node::NodePtr| {
            for addr in ptr.copies {
                nodes.change(addr.segment(), |n| *n += 1);
            }
        };
        self.state.history.retain(|t| t.tree.height() > 0 || !t.sealed);
        let state = &mut self.state;
        for tree in [&mut state.live, &mut state.space].into_iter().chain(state.history.iter_mut().map(|t| &mut t.tree))
        {
            tree.recount(&cache, &mut placed)?;
        }
        let (mut inodes, mut live_blocks, mut history_blocks) = (0, 0, 0);
        let mut next_ino = state.next_ino;
        let (mut named_blocks, mut promised_blocks) = (0, 0);
        let mut owners = Owners::new(&self.storage);
        state.live.walk(&cache, &mut |key, value| {
            inodes += u64::from(key.kind == Kind::Inode);
            next_ino = next_ino.max(Ino(key.ino).next());
            promised_blocks += promised(key, value);
            if let Some(e) = written(key, value) {
                let fresh = owners.claim(&e).unwrap_or(0);
                named_blocks += u64::from(e.blocks);
                live_blocks += u64::from(fresh);
                live.change(e.addr.segment(), |n| *n += fresh);
            }
            Ok(())
        })?;
        for t in &state.history {
            t.tree.walk(&cache, &mut |key, value| {
                if let Some(e) = written(key, value) {
                    let fresh = owners.claim(&e).unwrap_or(0);
                    history_blocks += u64::from(fresh);
                    history.change(e.addr.segment(), |n| *n += fresh);
                }
                Ok(())
            })?;
        }
        (state.inodes, state.live_blocks, state.history_blocks) = (inodes, live_blocks, history_blocks);
        (state.named_blocks, state.promised_blocks) = (named_blocks, promised_blocks);
        state.next_ino = next_ino;
        let mut segments = Segments::new(&self.storage.numbers(), self.storage.segment_blocks, generation);
        for (no, live_blocks) in live.iter() {
            let (history_blocks, nodes) = (history.get(no), nodes.get(no));
            let old = self.segment_items.get(&no.0).copied().unwrap_or_default();
            let content = live_blocks + history_blocks > 0;
            let unused = !content && nodes == 0;
            let item = Segment {
                live_blocks,
                history_blocks,
                emptied_generation: if unused && self.held.get(no) && !broken(Break::RepairOverOld) {
                    generation.0
                } else {
                    0
                },
                chain_seq: nenrin_format::Seq(0),
                written_at: old.written_at,
                kind: match old.kind {
                    KIND_CHAIN | KIND_DATA => old.kind,
                    _ if content => KIND_DATA,
                    kind => kind,
                },
            };
            segments.load(no, item);
            if nodes > 0 {
                segments.load_nodes(no, nodes, generation);
            }
        }
        self.store(segments)
    }

    /// Puts the counts in place; segments whose items differ are written with the next checkpoint.
    fn store(&mut self, mut segments: Segments) -> Result<()> {
        let mut stored: BTreeMap<u64, Segment> = BTreeMap::new();
        self.state.space.walk(&self.state.cache, &mut |key, value| {
            if key.kind == Kind::Segment && is_space_key(key) {
                stored.extend(Segment::decode(value).ok().map(|s| (key.off, s)));
            }
            Ok(())
        })?;
        let mut changed = 0;
        let wanted = segments.kept_items();
        for (no, item) in wanted {
            if stored.get(&no.0).copied() != item {
                segments.note_changed(no);
                changed += 1;
            }
        }
        self.losses.mended(MendKind::SpaceRecounted, changed);
        self.state.segments = segments;
        Ok(())
    }
}

/// The extent of an item that has blocks on the device.
pub(super) fn written(key: &Key, value: &[u8]) -> Option<Extent> {
    if key.kind != Kind::Extent {
        return None;
    }
    Extent::decode(value).ok().filter(|e| !e.is_unwritten())
}

/// Blocks that an item of the live tree reserves.
fn promised(key: &Key, value: &[u8]) -> u64 {
    let extent = (key.kind == Kind::Extent).then(|| Extent::decode(value).ok()).flatten();
    extent.map_or(0, |e| u64::from(e.promised_blocks()))
}

/// Segments that one copy of the index fills, when checkpoint after checkpoint
/// writes so many nodes and a root, packed as the index log packs them.
fn packed(writes: &[u64], root_blocks: u32, segment_blocks: u32) -> u64 {
    // Where the next partial goes; the first one takes a fresh segment.
    let (mut segments, mut block) = (0, segment_blocks);
    for nodes in writes {
        let mut in_partial = 0;
        for _ in 0..*nodes {
            let head = u32::from(in_partial == 0);
            if block + head + NODE_BLOCKS > segment_blocks {
                (segments, block, in_partial) = (segments + 1, 1, 0);
            } else {
                block += head;
            }
            block += NODE_BLOCKS;
            in_partial = (in_partial + 1) % NODES_MAX;
        }
        if block + 1 + root_blocks > segment_blocks {
            (segments, block) = (segments + 1, 0);
        }
        block += root_blocks;
    }
    segments
}

/// What a repaired state takes, at most: nodes that its first index checkpoint
/// writes, and free segments for that one, for the small ones that bring the
/// other slots after it, and for the chain. The items of segments are stored
/// here, as that checkpoint would, so that what they make dirty is counted.
pub(super) fn room(state: &mut State, segment_blocks: u32) -> Result<(u64, u64)> {
    state.store_segments()?;
    let trees = [&state.live, &state.space].into_iter().chain(state.history.iter().map(|t| &t.tree));
    let nodes: u64 = trees.map(|t| t.dirty_nodes() as u64).sum();
    // After it, only items of segments change: of those it emptied, and of those that become free.
    let changed = 2 * nodes + state.segments.pending_count() + CHAIN_SEGMENTS;
    let small = (u64::from(state.space.height().max(1)) * changed).min(state.space.nodes() + 1);
    let mut writes = vec![small; SLOTS_PER_AREA as usize];
    writes[0] = nodes;
    let mut root = Root {
        next_ino: state.next_ino,
        open_cno: state.open_cno,
        last_cno: state.last_cno,
        next_tree: state.next_tree,
        inodes: state.inodes,
        live_blocks: state.live_blocks,
        history_blocks: state.history_blocks,
        named_blocks: state.named_blocks,
        promised_blocks: state.promised_blocks,
        retention: state.retention.clone(),
        // The next mount counts it.
        past: Some(Past { blocks: 0, bytes: 0, all_bytes: 0 }),
        trees: Vec::new(),
        index_segments: state.segments.index_segments(Generation(0)),
    };
    let any = TreeRoot {
        tree: TreeId::LIVE,
        level: 0,
        ptr: None,
        items: 0,
        nodes: 0,
        deaths: Default::default(),
        sealed: false,
    };
    root.trees.resize(state.history.len() + 2, any);
    if Root::decode(&root.encode()).is_err() {
        return Err(Error::Open(
            "a counter is beyond what a root can state, which this version cannot repair; nothing was changed".into(),
        ));
    }
    let root_blocks = |root: &Root| summary_blocks(root.encode().len(), 0);
    // The root names the segments that are filled now, too.
    let first = packed(&writes, root_blocks(&root), segment_blocks);
    let named = root.index_segments.len() + 2 * first as usize + 2;
    root.index_segments.resize(named, (SegmentNo(0), 0));
    Ok((nodes, 2 * packed(&writes, root_blocks(&root), segment_blocks) + CHAIN_SEGMENTS))
}

/// Segments that a plan needs free: an error that says so.
pub(super) fn no_room(needed: u64, free: u64) -> Error {
    Error::Open(format!(
        "the repair needs {needed} free segments and there are {free}; nothing was changed. \
         mount it with -o ro to copy what can be read"
    ))
}
