//! A frozen state of a tree on its way to disk, and what follows when it is there.
//!
//! Invariants
//! 1. Children are placed before their parents: a pointer has its child's checksum.
//! 2. A version superseded in generation `g` is free once a root of generation
//!    `g` or later is written: that root was frozen after the version had left.
//! 3. What is superseded between freeze and settle is of a later generation than
//!    the frozen one, and so stays until the next settle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nenrin_format::key::Key;
use nenrin_format::node::{NodePtr, TreeId, stored_crc};
use nenrin_format::root::TreeRoot;
use nenrin_format::{Addr, SegmentNo};

use super::node::{Body, Child, Node};
use super::{NodeCache, Tree};
use crate::{Error, Result};

/// A frozen state of a tree, to be written, possibly by another thread while the
/// tree itself goes on. Frozen states of one tree are written one after another,
/// in the order they were frozen.
#[derive(Debug)]
pub struct Frozen {
    pub(super) id: TreeId,
    pub(super) root: Option<Child>,
    pub(super) level: u8,
    pub(super) items: u64,
    pub(super) nodes: u64,
    pub(super) dirty: usize,
    pub(super) generation: u64,
    /// Newest generation whose root was written; shared with the tree.
    pub(super) written: Arc<AtomicU64>,
}

/// Says where both copies of an encoded 16 KiB node go, given its level and first key.
pub type Place<'a> = &'a mut dyn FnMut(&[u8], u8, &Key) -> Result<[Addr; 2]>;

impl Frozen {
    /// Nodes that [`Frozen::write`] writes, if all earlier frozen states were written.
    #[must_use]
    pub fn dirty_nodes(&self) -> usize {
        self.dirty
    }

    /// Writes all dirty nodes bottom-up: `place` is called with each encoded 16
    /// KiB node, its level and its first key, and says where both copies go. The
    /// deaths and the seal of the returned root are for the caller to fill in.
    ///
    /// # Errors
    /// Those of `place`. The tree must not be used to write any further then.
    pub fn write(&self, generation: u64, place: Place<'_>) -> Result<TreeRoot> {
        let ptr = match &self.root {
            None => None,
            Some(Child::Disk(ptr)) => Some(*ptr),
            Some(Child::Mem(node)) => Some(write_node(node, generation, place)?),
        };
        self.written.fetch_max(self.generation, Ordering::Release);
        Ok(TreeRoot {
            tree: self.id,
            level: self.level,
            ptr,
            items: self.items,
            nodes: self.nodes,
            deaths: Default::default(),
            sealed: false,
        })
    }
}

/// Writes a node after its children, unless it is on disk already.
fn write_node(node: &Node, generation: u64, place: Place<'_>) -> Result<NodePtr> {
    if let Some(ptr) = node.written.get() {
        return Ok(*ptr);
    }
    if let Body::Inner(v) = &node.body {
        for (_, child) in v {
            if let Child::Mem(child) = child {
                write_node(child, generation, place)?;
            }
        }
    }
    let lost = || Error::Corrupt("index: a node to be written is incomplete".into());
    let bytes = node.encode(generation).ok_or_else(lost)?;
    let first = node.body.first_key().ok_or_else(lost)?;
    let copies = place(&bytes, node.level, &first)?;
    let crc = stored_crc(&bytes).ok_or_else(lost)?;
    Ok(*node.written.get_or_init(|| NodePtr { copies, crc }))
}

impl Tree {
    /// Marks everything so far as frozen and returns a view of it to be written.
    /// Later changes copy.
    pub fn freeze(&mut self) -> Frozen {
        let frozen = Frozen {
            id: self.id,
            root: self.root.clone(),
            level: self.level,
            items: self.items,
            nodes: self.book.nodes,
            dirty: self.book.dirty,
            generation: self.book.generation,
            written: self.written.clone(),
        };
        self.book.generation += 1;
        self.book.dirty = 0;
        frozen
    }

    /// To be called once after each successful [`Frozen::write`]: returns the
    /// node versions that the newest written root does not need and that no
    /// earlier call returned. Each pointer stands for two copies.
    pub fn settle(&mut self, cache: &NodeCache) -> Vec<NodePtr> {
        let written = self.written.load(Ordering::Acquire);
        let n = self.book.superseded.partition_point(|(g, _)| *g <= written);
        let freed: Vec<_> = self.book.superseded.drain(..n).filter_map(|(_, old)| old.ptr()).collect();
        for ptr in &freed {
            cache.forget(ptr);
        }
        // Until the next call a version on disk is nothing but its place.
        for (_, old) in &mut self.book.superseded {
            old.let_node_go();
        }
        freed
    }

    /// Copies of node versions in a segment that left the tree, and count there until the next root is written.
    pub fn replaced_in(&self, segment: SegmentNo) -> u64 {
        let replaced = self.book.superseded.iter().filter_map(|(_, old)| old.ptr());
        replaced.flat_map(|ptr| ptr.copies).filter(|copy| copy.segment() == segment).count() as u64
    }

    /// To be called once the device has what [`Frozen::write`] placed: moves the
    /// nodes that are clean now into the cache, which may drop and read them again.
    pub fn unload(&mut self, cache: &NodeCache) {
        let written = self.written.load(Ordering::Acquire);
        if let Some(root) = &mut self.root {
            unload_child(root, written, self.book.generation, cache);
        }
    }
}

/// Replaces clean nodes in memory at and below `child` by pointers.
fn unload_child(child: &mut Child, written: u64, current: u64, cache: &NodeCache) {
    let Child::Mem(node) = child else { return };
    if node.generation <= written {
        if let Some(ptr) = stash(node, cache) {
            *child = Child::Disk(ptr);
        }
        return;
    }
    // A generation between the two belongs to a frozen state still to be written.
    let has_mem = |v: &[(Key, Child)]| v.iter().any(|(_, c)| matches!(c, Child::Mem(_)));
    if node.generation == current && matches!(&node.body, Body::Inner(v) if has_mem(v)) {
        if let Body::Inner(v) = &mut Arc::make_mut(node).body {
            for (_, child) in v {
                unload_child(child, written, current, cache);
            }
        }
    }
}

/// Puts a written node and what is below it into the cache.
fn stash(node: &Arc<Node>, cache: &NodeCache) -> Option<NodePtr> {
    let ptr = *node.written.get()?;
    let clean = match &node.body {
        Body::Inner(v) if v.iter().any(|(_, c)| matches!(c, Child::Mem(_))) => {
            let mut children = Vec::with_capacity(v.len());
            for (key, child) in v {
                let child = match child {
                    Child::Disk(ptr) => *ptr,
                    Child::Mem(node) => stash(node, cache)?,
                };
                children.push((*key, Child::Disk(child)));
            }
            let clean = Node::new(node.tree, node.level, node.generation, Body::Inner(children));
            let _ = clean.written.set(ptr);
            Arc::new(clean)
        }
        _ => node.clone(),
    };
    cache.put(ptr, clean);
    Some(ptr)
}
