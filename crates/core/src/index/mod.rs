//! The index: functional B+trees of 16 KiB nodes.
//!
//! A tree in memory is a root plus the nodes changed since they were last
//! written; everything clean is a pointer and comes through the [`NodeCache`].
//! Changes copy a node once after each freeze and then work in place, so a
//! frozen state, or a clone of the tree, stays what it was while another thread
//! reads or writes it.
//!
//! The cycle of a checkpoint: [`Tree::freeze`], [`Frozen::write`] (on any
//! thread, while the tree changes further), [`Tree::settle`], and when the
//! device has the nodes [`Tree::unload`].
//!
//! Invariants (those of the parts are stated there)
//! 1. After `freeze`, `write`, `settle`: the node versions ever placed, without
//!    those ever returned by `settle`, are exactly those the written root reaches.
//! 2. A look-up reads at most one node for each level, a change at most three.
//! 3. Damaged nodes are errors: they never cause a panic, a loop or a wrong order.

mod audit;
mod cache;
mod change;
mod mend;
mod node;
mod scrub;
#[cfg(test)]
mod tests;
mod write;

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nenrin_format::Addr;
use nenrin_format::key::Key;
use nenrin_format::node::{NodePtr, TreeId, VALUE_BYTES_MAX};
use nenrin_format::root::TreeRoot;

pub use audit::{Unverified, Verified};
pub use cache::{CacheCounters, NodeCache, NodeSource};
pub use mend::{LostRange, Survey, TreeCount};
pub use scrub::NodeAt;
pub use write::{Frozen, Place};

use self::change::{Book, Change};
use self::node::{Body, Child, Expect, LEVEL_MAX, Node, Way, child_index};
use crate::breaks::{Break, broken};
use crate::{Error, Result};

/// Value of an item.
pub type Value = Arc<[u8]>;

/// A tree. A clone is cheap and an independent view of the state it was made
/// from; only one of the two may go on to be changed and written, because
/// what `settle` is to free stays with the original.
///
/// A view reads clean nodes from where they were: whoever uses the space of node
/// versions again that `settle` returned must first see to the views made before.
#[derive(Debug)]
pub struct Tree {
    id: TreeId,
    /// `None` when the tree has no items.
    root: Option<Child>,
    /// Level of the root.
    level: u8,
    items: u64,
    book: Book,
    written: Arc<AtomicU64>,
}

impl Clone for Tree {
    fn clone(&self) -> Self {
        let Book { generation, nodes, dirty, .. } = self.book;
        Self {
            id: self.id,
            root: self.root.clone(),
            level: self.level,
            items: self.items,
            book: Book { generation, nodes, dirty, superseded: Vec::new() },
            written: self.written.clone(),
        }
    }
}

/// A node being read: part of the tree, or shared with the cache.
enum NodeRef<'a> {
    Mem(&'a Node),
    Clean(Arc<Node>),
}

impl Deref for NodeRef<'_> {
    type Target = Node;
    fn deref(&self) -> &Node {
        match self {
            Self::Mem(node) => node,
            Self::Clean(node) => node,
        }
    }
}

impl Tree {
    /// A tree without items.
    #[must_use]
    pub fn empty(id: TreeId) -> Self {
        Self::new(id, None, 0, 0, 0)
    }

    /// The tree below a root on disk. Nothing is read yet.
    #[must_use]
    pub fn open(root: &TreeRoot) -> Self {
        let level = if root.ptr.is_some() { root.level } else { 0 };
        Self::new(root.tree, root.ptr.map(Child::Disk), level, root.items, root.nodes)
    }

    fn new(id: TreeId, root: Option<Child>, level: u8, items: u64, nodes: u64) -> Self {
        let book = Book { generation: 1, nodes, dirty: 0, superseded: Vec::new() };
        Self { id, root, level, items, book, written: Arc::new(AtomicU64::new(0)) }
    }

    /// Which tree this is.
    #[must_use]
    pub fn id(&self) -> TreeId {
        self.id
    }
    /// Items in the tree.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }
    /// Nodes in the tree.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.book.nodes
    }
    /// Levels of the tree: 0 when it is empty, 1 when it is one leaf.
    #[must_use]
    pub fn height(&self) -> u8 {
        if self.root.is_some() { self.level.saturating_add(1) } else { 0 }
    }
    /// Nodes changed since the last freeze, thus what the next one has to write.
    #[must_use]
    pub fn dirty_nodes(&self) -> usize {
        self.book.dirty
    }

    /// Refuses a height that only damage explains, which also bounds recursion.
    fn check_level(&self) -> Result<()> {
        match &self.root {
            Some(Child::Disk(_)) if self.level > LEVEL_MAX => {
                Err(Error::Corrupt(format!("index: tree {} claims a root at level {}", self.id.0, self.level)))
            }
            _ => Ok(()),
        }
    }

    fn root_node(&self, cache: &NodeCache) -> Result<Option<(NodeRef<'_>, Way<'_>)>> {
        self.check_level()?;
        let Some(root) = &self.root else { return Ok(None) };
        let way = Way::root(self.level);
        Ok(Some((self.node_on(cache, root, way)?, way)))
    }

    fn node_on<'a>(&self, cache: &NodeCache, child: &'a Child, way: Way<'_>) -> Result<NodeRef<'a>> {
        match child {
            Child::Mem(node) => Ok(NodeRef::Mem(node)),
            Child::Disk(ptr) => cache.load(self.id, ptr, &way.expect()).map(NodeRef::Clean),
        }
    }

    fn node<'a>(&self, cache: &NodeCache, child: &'a Child, expect: &Expect) -> Result<NodeRef<'a>> {
        match child {
            Child::Mem(node) => Ok(NodeRef::Mem(node)),
            Child::Disk(ptr) => cache.load(self.id, ptr, expect).map(NodeRef::Clean),
        }
    }

    fn change<'a>(&'a mut self, cache: &'a NodeCache) -> (&'a mut Option<Child>, &'a mut u8, Change<'a>) {
        let change = Change { cache, tree: self.id, book: &mut self.book };
        (&mut self.root, &mut self.level, change)
    }

    /// The value of an item.
    ///
    /// # Errors
    /// A node cannot be read or is damaged; so for all look-ups.
    pub fn get(&self, cache: &NodeCache, key: &Key) -> Result<Option<Value>> {
        self.look(cache, key, Value::clone)
    }

    /// What `read` says of the value of an item, which stays where it is.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn look<R>(&self, cache: &NodeCache, key: &Key, read: impl FnOnce(&Value) -> R) -> Result<Option<R>> {
        match self.root_node(cache)? {
            Some((node, way)) => self.look_below(cache, &node, way, key, read),
            None => Ok(None),
        }
    }

    fn look_below<R>(
        &self,
        cache: &NodeCache,
        node: &Node,
        way: Way<'_>,
        key: &Key,
        read: impl FnOnce(&Value) -> R,
    ) -> Result<Option<R>> {
        match &node.body {
            Body::Leaf(v) => {
                let found = v.binary_search_by(|e| e.0.cmp(key)).ok();
                Ok(found.and_then(|i| v.get(i)).map(|e| read(&e.1)))
            }
            Body::Inner(v) => {
                let i = child_index(v, key);
                let below = way.child(v, i);
                let Some((_, child)) = v.get(i).filter(|e| e.0 <= *key) else { return Ok(None) };
                self.look_below(cache, &*self.node_on(cache, child, below)?, below, key, read)
            }
        }
    }

    /// Inserts an item and returns the value it replaced.
    ///
    /// # Errors
    /// As look-ups, and [`Error::TooLarge`] for a value no node could hold. The
    /// items are unchanged then.
    pub fn insert(&mut self, cache: &NodeCache, key: Key, value: Value) -> Result<Option<Value>> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.check_level()?;
        let id = self.id;
        let (root, level, mut change) = self.change(cache);
        let replaced = match root {
            Some(root) => change.insert_root(root, level, key, value)?,
            None => {
                let leaf = Node::new(id, 0, change.book.generation, Body::Leaf(vec![(key, value)]));
                *root = Some(Child::Mem(Arc::new(leaf)));
                change.book.nodes = 1;
                change.book.dirty = 1;
                None
            }
        };
        // The counts come from disk; wrong ones must not stop the volume.
        self.items = self.items.saturating_add(u64::from(replaced.is_none()));
        Ok(replaced)
    }

    /// Removes an item and returns its value. Without such an item nothing
    /// becomes dirty.
    ///
    /// # Errors
    /// As look-ups. The items are unchanged then.
    pub fn remove(&mut self, cache: &NodeCache, key: &Key) -> Result<Option<Value>> {
        if self.look(cache, key, |_| ())?.is_none() {
            return Ok(None);
        }
        let (root, level, mut change) = self.change(cache);
        let removed = change.remove_root(root, level, key)?;
        self.items = self.items.saturating_sub(u64::from(removed.is_some()));
        Ok(removed)
    }

    /// The item with the smallest key not below `from`.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn next(&self, cache: &NodeCache, from: &Key) -> Result<Option<(Key, Value)>> {
        match self.root_node(cache)? {
            Some((node, way)) => self.next_below(cache, &node, way, from),
            None => Ok(None),
        }
    }

    /// The item with the smallest key from `from` to `to`. No leaf is read that has only larger ones.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn next_within(&self, cache: &NodeCache, from: &Key, to: &Key) -> Result<Option<(Key, Value)>> {
        if broken(Break::NextLeafNeeded) {
            return Ok(self.next(cache, from)?.filter(|(key, _)| key <= to));
        }
        let mut found = None;
        self.scan(cache, from, to, &mut |key, value| {
            found = Some((*key, value.clone()));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    fn next_below(&self, cache: &NodeCache, node: &Node, way: Way<'_>, from: &Key) -> Result<Option<(Key, Value)>> {
        match &node.body {
            Body::Leaf(v) => Ok(v.get(v.partition_point(|e| e.0 < *from)).cloned()),
            Body::Inner(v) => {
                // The child after the one that may have `from` has a larger key for sure.
                for (i, (_, child)) in v.iter().enumerate().skip(child_index(v, from)) {
                    let below = way.child(v, i);
                    let found = self.next_below(cache, &*self.node_on(cache, child, below)?, below, from)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
        }
    }

    /// The item with the largest key not above `upto`.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn prev(&self, cache: &NodeCache, upto: &Key) -> Result<Option<(Key, Value)>> {
        match self.root_node(cache)? {
            Some((node, way)) => self.prev_below(cache, &node, way, upto),
            None => Ok(None),
        }
    }

    fn prev_below(&self, cache: &NodeCache, node: &Node, way: Way<'_>, upto: &Key) -> Result<Option<(Key, Value)>> {
        match &node.body {
            Body::Leaf(v) => Ok(v.partition_point(|e| e.0 <= *upto).checked_sub(1).and_then(|i| v.get(i)).cloned()),
            Body::Inner(v) => {
                // The key of a child may be below all the child still has.
                for i in (0..v.partition_point(|e| e.0 <= *upto)).rev() {
                    let (below, child) = (way.child(v, i), &v[i].1);
                    let found = self.prev_below(cache, &*self.node_on(cache, child, below)?, below, upto)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
        }
    }

    /// Calls `each` for all items from `from` to `to`, both inclusive, in order,
    /// until it breaks.
    ///
    /// # Errors
    /// As [`Tree::get`]; items before the damage were delivered.
    pub fn scan(
        &self,
        cache: &NodeCache,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut why = None;
        self.scan_over(cache, (from, to), each, &mut |e, _| {
            why = Some(e);
            ControlFlow::Break(())
        });
        why.map_or(Ok(()), Err)
    }

    /// [`Tree::scan`] that goes on behind what cannot be read; the first such error. What it did not deliver may be there
    /// all the same.
    pub fn scan_readable(
        &self,
        cache: &NodeCache,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
    ) -> Option<Error> {
        let mut first = None;
        self.scan_over(cache, (from, to), each, &mut |e, _| {
            first.get_or_insert(e);
            ControlFlow::Continue(())
        });
        first
    }

    /// [`Tree::scan`] in which `lost` is told of each node that cannot be read, with where what lies behind it begins if
    /// anything does, and may go on there.
    pub fn scan_over(
        &self,
        cache: &NodeCache,
        range: (&Key, &Key),
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
        lost: &mut dyn FnMut(Error, Option<Key>) -> ControlFlow<()>,
    ) {
        let _ = match (self.check_level(), &self.root) {
            (Err(e), _) => lost(e, None),
            (Ok(()), Some(root)) if range.0 <= range.1 => {
                self.scan_child(cache, root, Way::root(self.level), range, each, lost)
            }
            (Ok(()), _) => ControlFlow::Continue(()),
        };
    }

    fn scan_child(
        &self,
        cache: &NodeCache,
        child: &Child,
        way: Way<'_>,
        range: (&Key, &Key),
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
        lost: &mut dyn FnMut(Error, Option<Key>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (from, to) = range;
        let node = match self.node_on(cache, child, way) {
            Ok(node) => node,
            Err(e) => return lost(e, way.end()),
        };
        match &node.body {
            Body::Leaf(v) => {
                for (key, value) in v.iter().skip(v.partition_point(|e| e.0 < *from)) {
                    if key > to {
                        return ControlFlow::Break(());
                    }
                    each(key, value)?;
                }
            }
            Body::Inner(v) => {
                for (i, (low, child)) in v.iter().enumerate().skip(child_index(v, from)) {
                    if low > to {
                        return ControlFlow::Break(());
                    }
                    self.scan_child(cache, child, way.child(v, i), range, each, lost)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads all that inserting or removing an item at `key` needs. Neighbours that it would join are left alone where they
    /// cannot be read.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn reach(&self, cache: &NodeCache, key: &Key) -> Result<()> {
        self.leaf_of(cache, key).map(drop)
    }

    /// That all leaves which may have items from `from` to `to` can be read; how many these are. What the items say is not looked at.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn reach_all(&self, cache: &NodeCache, from: &Key, to: &Key) -> Result<u64> {
        let (mut leaves, mut at) = (0, Some(*from));
        while let Some(key) = at.filter(|key| key <= to) {
            let Some((leaf, expect)) = self.child_at(cache, 0, &key)? else { break };
            drop(self.node(cache, &leaf, &expect)?);
            leaves += 1;
            at = expect.high;
        }
        Ok(leaves)
    }

    /// Makes the node that starts at `key` on `level`, and the path to it, dirty
    /// if it still is the version with a copy at `copy`; returns whether it was. So the next
    /// checkpoint moves it elsewhere, for cleaning index segments.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn touch(&mut self, cache: &NodeCache, level: u8, key: &Key, copy: Addr) -> Result<bool> {
        self.check_level()?;
        if !self.version_at(cache, level, key)?.is_some_and(|ptr| ptr.copies.contains(&copy)) {
            return Ok(false);
        }
        let (root, root_level, mut change) = self.change(cache);
        match root {
            Some(root) => change.touch(root, *root_level, level, key),
            None => Ok(false),
        }
    }

    /// How many leaves that are not dirty would become so by changing the items
    /// at these keys. Keys in order are counted right, others leaf by leaf.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn clean_leaves<'k>(&self, cache: &NodeCache, keys: impl Iterator<Item = &'k Key>) -> Result<u64> {
        let mut count = 0;
        let mut last = None;
        for key in keys {
            if let Some((first, dirty)) = self.leaf_of(cache, key)? {
                count += u64::from(!dirty && last != Some(first));
                last = Some(first);
            }
        }
        Ok(count)
    }

    /// Where the leaf ends that changing the item at `key` makes dirty, which names it; none where it is dirty already. The leaf itself
    /// is not read.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn clean_leaf(&self, cache: &NodeCache, key: &Key) -> Result<Option<Key>> {
        let (end, dirty) = self.leaf_end(cache, key)?;
        Ok((!dirty).then(|| end.unwrap_or(Key::last())))
    }

    /// [`Tree::clean_leaves`] where a leaf that cannot be read counts as one.
    pub fn clean_leaves_about<'k>(&self, cache: &NodeCache, keys: impl Iterator<Item = &'k Key>) -> u64 {
        let (mut count, mut last) = (0, None);
        for key in keys {
            let (first, dirty) = match self.leaf_of(cache, key) {
                Ok(Some((first, dirty))) => (Some(first), dirty),
                Ok(None) => continue,
                Err(_) => (None, false),
            };
            count += u64::from(!dirty && (last != Some(first)));
            last = Some(first);
        }
        count
    }

    /// First key of the leaf that would have `key`, and whether the leaf is dirty.
    fn leaf_of(&self, cache: &NodeCache, key: &Key) -> Result<Option<(Key, bool)>> {
        let Some((leaf, expect)) = self.child_at(cache, 0, key)? else { return Ok(None) };
        let first = self.node(cache, &leaf, &expect)?.body.first_key();
        Ok(first.map(|first| (first, self.is_dirty(&leaf))))
    }

    /// Where the leaf ends that would have `key`, unless it is the last one, and whether it is dirty. The leaf itself is not read.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn leaf_end(&self, cache: &NodeCache, key: &Key) -> Result<(Option<Key>, bool)> {
        let leaf = self.child_at(cache, 0, key)?;
        Ok(leaf.map_or((None, false), |(leaf, expect)| (expect.high, self.is_dirty(&leaf))))
    }

    fn is_dirty(&self, child: &Child) -> bool {
        matches!(child, Child::Mem(n) if n.generation == self.book.generation)
    }

    /// Whether the node on `level` whose range has `key` is this version.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn is_at(&self, cache: &NodeCache, level: u8, key: &Key, ptr: &NodePtr) -> Result<bool> {
        self.check_level()?;
        Ok(self.version_at(cache, level, key)?.is_some_and(|p| p == *ptr))
    }

    /// Where the node on `level` whose range has `key` is on disk.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub fn version_at(&self, cache: &NodeCache, level: u8, key: &Key) -> Result<Option<NodePtr>> {
        Ok(self.child_at(cache, level, key)?.and_then(|(child, _)| child.ptr()))
    }

    /// The node on `level` whose range has `key`, as its parent knows it.
    fn child_at(&self, cache: &NodeCache, level: u8, key: &Key) -> Result<Option<(Child, Expect)>> {
        self.check_level()?;
        let Some(root) = self.root.as_ref().filter(|_| level <= self.level) else { return Ok(None) };
        let (mut child, mut expect) = (root.clone(), Expect::root(self.level));
        while expect.level > level {
            let next = match &self.node(cache, &child, &expect)?.body {
                Body::Leaf(_) => return Ok(None),
                Body::Inner(v) => {
                    let i = child_index(v, key);
                    let Some((_, next)) = v.get(i) else { return Ok(None) };
                    (next.clone(), expect.child(v, i))
                }
            };
            (child, expect) = next;
        }
        Ok(Some((child, expect)))
    }
}
