//! Changes: insert, remove and touch, copying each node at most once per freeze.
//!
//! Invariants
//! 1. Only nodes of the current generation are changed, and only after every
//!    node above them belongs to it too.
//! 2. A node version that leaves the tree is noted as superseded, unless it is of
//!    the current generation and thus never was nor will be on disk.
//! 3. An error leaves the items as they were. Nodes on the way may have become
//!    dirty, which costs a write and nothing else.

use std::mem;
use std::sync::Arc;

use nenrin_format::key::Key;
use nenrin_format::node::{INNER_ENTRY_BYTES, NodePtr, TreeId};
use nenrin_format::packed::{entry_bytes, takes_as_many};

use super::node::{Body, CAPACITY, Child, Expect, Fill, Node, child_index, rebased};
use super::{NodeCache, Value};
use crate::breaks::{Break, broken};
use crate::{Error, Result};

/// A node version that is no longer part of the tree.
#[derive(Debug)]
pub(super) enum Old {
    /// On disk already.
    Disk(NodePtr),
    /// Frozen and not written when it was superseded; by now it may be.
    Mem(Arc<Node>),
}

impl Old {
    /// Where the version is on disk, if it ever got there.
    pub fn ptr(&self) -> Option<NodePtr> {
        match self {
            Self::Disk(ptr) => Some(*ptr),
            Self::Mem(node) => node.written.get().copied(),
        }
    }

    /// Keeps no more than the place of a version that has one by now.
    pub fn let_node_go(&mut self) {
        if let Some(ptr) = self.ptr() {
            *self = Self::Disk(ptr);
        }
    }
}

/// What is counted about a tree while it changes.
#[derive(Debug)]
pub(super) struct Book {
    /// Freeze counter: nodes of an older generation are frozen.
    pub generation: u64,
    /// Nodes in the tree.
    pub nodes: u64,
    /// Nodes of the current generation.
    pub dirty: usize,
    /// What left the tree and in which generation, oldest first.
    pub superseded: Vec<(u64, Old)>,
}

impl Book {
    fn supersede(&mut self, old: Old) {
        self.superseded.push((self.generation, old));
    }
    fn add_node(&mut self) {
        // The count comes from disk; a wrong one must not stop the volume.
        self.nodes = self.nodes.saturating_add(1);
        self.dirty += 1;
    }
    /// A node of the current generation leaves the tree.
    fn drop_node(&mut self) {
        self.nodes = self.nodes.saturating_sub(1);
        self.dirty -= 1;
    }
}

/// One change of one tree.
pub(super) struct Change<'a> {
    pub cache: &'a NodeCache,
    pub tree: TreeId,
    pub book: &'a mut Book,
}

/// What an insert did to a node.
struct Inserted {
    replaced: Option<Value>,
    /// A new right neighbour for the parent to take in.
    right: Option<(Key, Node)>,
    /// See [`became_small`].
    small: bool,
}

/// Whether a change took a node below the smallest size. A node made small, for
/// a run to go on in, is left in peace by all changes but the one that empties it.
fn became_small(fill: Fill, bytes_before: usize, node: &Node) -> bool {
    bytes_before >= fill.bytes_min() && node.bytes < fill.bytes_min()
}

impl Change<'_> {
    /// A node of the current generation leaves the tree.
    pub(super) fn drop_node(&mut self) {
        self.book.drop_node();
    }

    /// Makes a child changeable: loads it, or copies it if it is frozen.
    pub(super) fn own<'c>(&mut self, child: &'c mut Child, expect: &Expect) -> Result<&'c mut Node> {
        let generation = self.book.generation;
        let copy = match child {
            Child::Mem(node) if node.generation == generation => None,
            Child::Mem(node) => {
                self.book.supersede(match node.written.get() {
                    Some(ptr) => Old::Disk(*ptr),
                    None => Old::Mem(node.clone()),
                });
                Some(node.fork(generation))
            }
            Child::Disk(ptr) => {
                let node = self.cache.take(self.tree, ptr, expect)?;
                self.book.supersede(Old::Disk(*ptr));
                Some(Node::fork_from(node, generation))
            }
        };
        if let Some(copy) = copy {
            self.book.dirty += 1;
            *child = Child::Mem(Arc::new(copy));
        }
        match child {
            // Copies once more if a clone of the tree shares the node.
            Child::Mem(node) => Ok(Arc::make_mut(node)),
            Child::Disk(_) => Err(Error::Corrupt("index: a node is not in memory".into())),
        }
    }

    /// Inserts or replaces an item below the root and grows the tree if the root splits.
    pub fn insert_root(&mut self, root: &mut Child, level: &mut u8, key: Key, value: Value) -> Result<Option<Value>> {
        let done = self.insert(root, Expect::root(*level), key, value, true)?;
        if let Some((right_key, right)) = done.right {
            let left_key = match root {
                Child::Mem(node) => node.body.first_key().unwrap_or(key),
                Child::Disk(_) => key,
            };
            self.book.add_node();
            let right = Child::Mem(Arc::new(right));
            let left = mem::replace(root, Child::Disk(NO_NODE));
            *level += 1;
            let body = Body::Inner(vec![(left_key, left), (right_key, right)]);
            *root = Child::Mem(Arc::new(Node::new(self.tree, *level, self.book.generation, body)));
            self.book.add_node();
        } else {
            self.shrink(root, level);
        }
        Ok(done.replaced)
    }

    fn insert(
        &mut self,
        child: &mut Child,
        expect: Expect,
        key: Key,
        value: Value,
        rightmost: bool,
    ) -> Result<Inserted> {
        let fill = self.cache.fill();
        let node = self.own(child, &expect)?;
        let before = node.bytes;
        match &mut node.body {
            Body::Leaf(v) => {
                let base = v.first().map_or(key, |e| e.0);
                let found = match v.last() {
                    Some(last) if last.0 < key => Err(v.len()),
                    _ => v.binary_search_by(|e| e.0.cmp(&key)),
                };
                let (replaced, inserted) = match found {
                    Ok(i) => {
                        let old = mem::replace(&mut v[i].1, value);
                        let new = &v[i].1;
                        if !takes_as_many(&key, new, &old) {
                            node.bytes = node.bytes + entry_bytes(&base, &key, new) - entry_bytes(&base, &key, &old);
                        }
                        (Some(old), None)
                    }
                    Err(i) => {
                        if i == 0 {
                            node.bytes = rebased(v, &base, &key, node.bytes);
                        }
                        node.bytes += entry_bytes(&base.min(key), &key, &value);
                        v.insert(i, (key, value));
                        node.note_insert(i);
                        (None, Some(i))
                    }
                };
                let small = became_small(fill, before, node);
                Ok(Inserted { replaced, right: node.split(inserted, rightmost, fill), small })
            }
            Body::Inner(v) => {
                if let Some(first) = v.first_mut().filter(|e| key < e.0) {
                    first.0 = key;
                }
                let i = child_index(v, &key);
                let below = expect.child(v, i);
                let last = i + 1 == v.len();
                let done = self.insert(&mut v[i].1, below, key, value, rightmost && last)?;
                let mut right = None;
                if let Some((right_key, new)) = done.right {
                    self.book.add_node();
                    v.insert(i + 1, (right_key, Child::Mem(Arc::new(new))));
                    let new_at = if self.fill_left(v, i) { i } else { i + 1 };
                    node.bytes = v.len() * INNER_ENTRY_BYTES;
                    node.note_insert(new_at);
                    right = node.split(Some(new_at), rightmost, fill);
                    if node.level > 1 && broken(Break::UpperHalfLost) {
                        right = None;
                    }
                } else if done.small {
                    self.tend(v, i, done.small, &expect);
                    node.bytes = v.len() * INNER_ENTRY_BYTES;
                }
                let small = became_small(fill, before, node);
                Ok(Inserted { replaced: done.replaced, right, small })
            }
        }
    }

    /// Removes an item known to exist and lowers the tree as far as it can.
    pub fn remove_root(&mut self, root: &mut Option<Child>, level: &mut u8, key: &Key) -> Result<Option<Value>> {
        let Some(child) = root else { return Ok(None) };
        let (removed, _) = self.remove(child, Expect::root(*level), key)?;
        self.shrink(child, level);
        if matches!(child, Child::Mem(node) if node.body.len() == 0) {
            self.book.drop_node();
            *root = None;
            *level = 0;
        }
        Ok(removed)
    }

    fn remove(&mut self, child: &mut Child, expect: Expect, key: &Key) -> Result<(Option<Value>, bool)> {
        let fill = self.cache.fill();
        let node = self.own(child, &expect)?;
        let before = node.bytes;
        match &mut node.body {
            Body::Leaf(v) => {
                let Ok(i) = v.binary_search_by(|e| e.0.cmp(key)) else { return Ok((None, false)) };
                let base = v.first().map_or(*key, |e| e.0);
                let (_, value) = v.remove(i);
                node.bytes -= entry_bytes(&base, key, &value);
                if let Some((first, _)) = v.first().filter(|_| i == 0) {
                    node.bytes = rebased(v, &base, first, node.bytes);
                }
                Ok((Some(value), became_small(fill, before, node)))
            }
            Body::Inner(v) => {
                let i = child_index(v, key);
                let below = expect.child(v, i);
                let (removed, small) = self.remove(&mut v[i].1, below, key)?;
                self.tend(v, i, small, &expect);
                node.bytes = v.len() * INNER_ENTRY_BYTES;
                Ok((removed, became_small(fill, before, node)))
            }
        }
    }

    /// Removes child `i` if it became empty; joins it with a neighbour if it
    /// became small. A neighbour that cannot be read is left alone: the node
    /// stays small, and whoever needs the neighbour will be told.
    fn tend(&mut self, entries: &mut Vec<(Key, Child)>, i: usize, small: bool, expect: &Expect) {
        let Some((_, Child::Mem(node))) = entries.get(i) else { return };
        if node.body.len() == 0 {
            entries.remove(i);
            self.book.drop_node();
            return;
        }
        if !small || entries.len() < 2 {
            return;
        }
        let in_memory = |i: usize| matches!(entries.get(i), Some((_, Child::Mem(_))));
        let left = match i {
            0 => 0,
            _ if i + 1 == entries.len() || in_memory(i - 1) || !in_memory(i + 1) => i - 1,
            _ => i,
        };
        self.join(entries, left, expect);
    }

    /// Makes one node of children `l` and `l + 1`, or two of even size.
    fn join(&mut self, entries: &mut Vec<(Key, Child)>, l: usize, expect: &Expect) {
        let (left_expect, right_expect) = (expect.child(entries, l), expect.child(entries, l + 1));
        let (head, tail) = entries.split_at_mut(l + 1);
        let (Some((_, left)), Some((right_key, right))) = (head.last_mut(), tail.first_mut()) else { return };
        let Ok(left) = self.own(left, &left_expect) else { return };
        let Ok(right) = self.own(right, &right_expect) else { return };
        let (kept, bytes) = (left.body.len(), left.bytes + right.bytes);
        left.body.append(mem::replace(&mut right.body, Body::Leaf(Vec::new())));
        left.bytes = left.body.bytes();
        left.run = 0;
        if left.bytes <= self.cache.fill().join_bytes_max() {
            entries.remove(l + 1);
            self.book.drop_node();
            return;
        }
        // Where they take much more beside the first key of the left one they stay as they were.
        let as_they_were = left.bytes > bytes + CAPACITY / 8;
        right.body = left.body.split_off(if as_they_were { kept } else { left.body.middle() });
        right.bytes = right.body.bytes();
        right.run = 0;
        left.bytes = left.body.bytes();
        if let Some(first) = right.body.first_key() {
            *right_key = first;
        }
    }

    /// A run that has cut child `i` off behind it leaves a node that grows no
    /// more: what fits goes to the left neighbour. True when the child is gone.
    fn fill_left(&mut self, entries: &mut Vec<(Key, Child)>, i: usize) -> bool {
        let (generation, fill) = (self.book.generation, self.cache.fill());
        let filled = fill.filled_bytes();
        let [.., (_, Child::Mem(left)), (key, Child::Mem(node))] = &mut entries[..=i] else { return false };
        if left.generation != generation || !node.ends_a_run() || left.bytes > filled - fill.bytes_min() / 4 {
            return false;
        }
        let (left, node) = (Arc::make_mut(left), Arc::make_mut(node));
        let Some(base) = left.body.first_key() else { return false };
        let rest = node.body.split_off(node.body.fitting(&base, filled - left.bytes));
        left.body.append(mem::replace(&mut node.body, rest));
        left.bytes = left.body.bytes();
        node.bytes = node.body.bytes();
        match node.body.first_key() {
            Some(first) => *key = first,
            None => {
                entries.remove(i);
                self.book.drop_node();
                return true;
            }
        }
        false
    }

    /// Replaces a root that has one child by that child.
    pub(super) fn shrink(&mut self, root: &mut Child, level: &mut u8) {
        loop {
            let only = match root {
                Child::Mem(node) if node.generation == self.book.generation => match &node.body {
                    Body::Inner(v) if v.len() == 1 => v.first().map(|e| e.1.clone()),
                    _ => None,
                },
                _ => None,
            };
            let Some(only) = only else { return };
            *root = only;
            *level = level.saturating_sub(1);
            self.book.drop_node();
        }
    }

    /// Makes all nodes down to the one at `level` that has `key` dirty.
    pub fn touch(&mut self, root: &mut Child, root_level: u8, level: u8, key: &Key) -> Result<bool> {
        let (mut child, mut expect) = (root, Expect::root(root_level));
        loop {
            let node = self.own(child, &expect)?;
            if expect.level == level {
                return Ok(true);
            }
            let Body::Inner(v) = &mut node.body else { return Ok(false) };
            let i = child_index(v, key);
            expect = expect.child(v, i);
            child = &mut v[i].1;
        }
    }
}

/// Stands in for a moment while a root is being wrapped; never looked up.
const NO_NODE: NodePtr = NodePtr { copies: [nenrin_format::Addr(u64::MAX); 2], crc: 0 };
