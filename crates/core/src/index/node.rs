//! A node in memory: sorted entries, the bytes they will take, and how a child
//! is reached.
//!
//! Invariants
//! 1. A node other than one being changed has at least one entry.
//! 2. The level falls by exactly one from a node to its children, so that no
//!    walk can loop, whatever the bytes on disk say.
//! 3. The keys of a child are in `low..high`: from the key its parent has for
//!    it, below the key the parent has for the next child.
//! 4. `bytes` is what the entries of a leaf take when it is encoded, and bounds it for inner nodes: it ignores their common
//!    prefix.

use std::sync::{Arc, OnceLock};

use nenrin_format::Invalid;
use nenrin_format::key::Key;
use nenrin_format::node::{self, Entries, INNER_ENTRY_BYTES, NODE_ROOM_BYTES, NodePtr, TreeId, VALUE_BYTES_MAX};
use nenrin_format::packed::entry_bytes;

use super::Value;
use crate::{Error, Result};

/// Bytes that entries of one node may take.
pub(super) const CAPACITY: usize = NODE_ROOM_BYTES;
/// A tree higher than this cannot come from honest inserts.
pub(super) const LEVEL_MAX: u8 = 32;
/// Inserts, each right behind the one before, after which a node counts as having a run.
const RUN_MIN: u16 = 8;
/// Longer runs are no surer.
const RUN_MAX: u16 = 64;
/// Entries from which on a node is split that is larger than wanted, and would fit.
const SPLIT_ENTRIES_MIN: usize = 4;

/// How full nodes become: [`CAPACITY`], or less where trees are to be deep although they hold little.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    bytes_max: usize,
}

impl Fill {
    /// Up to so many bytes, as far as they fit.
    pub fn upto(bytes_max: usize) -> Self {
        Self { bytes_max: bytes_max.min(CAPACITY) }
    }
    /// A node with fewer bytes than this is joined with a neighbour.
    pub const fn bytes_min(self) -> usize {
        self.bytes_max / 4
    }
    /// Two neighbours become one node up to this size; above it they share evenly.
    /// The distance to what fits keeps the next insert from splitting again.
    pub const fn join_bytes_max(self) -> usize {
        self.bytes_max / 4 * 3
    }
    /// A node that a run fills later is filled up to here.
    pub const fn filled_bytes(self) -> usize {
        self.bytes_max / 16 * 15
    }
    /// A run takes entries that follow it along from node to node up to this size.
    const fn carried_bytes_max(self) -> usize {
        self.bytes_max / 16
    }
    /// Whether a node is to be split.
    const fn is_over(self, bytes: usize, entries: usize) -> bool {
        bytes > CAPACITY || bytes > self.bytes_max && entries >= SPLIT_ENTRIES_MIN
    }
}

/// How a parent reaches a child.
#[derive(Clone, Debug)]
pub(super) enum Child {
    /// Changed since it was last written, or not yet settled.
    Mem(Arc<Node>),
    /// Clean: to be looked up in the cache.
    Disk(NodePtr),
}

/// Entries of a node, sorted by key.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// Level 0.
    Leaf(Vec<(Key, Value)>),
    /// Above: for each child a key that none of its keys is below.
    Inner(Vec<(Key, Child)>),
}

/// A node in memory.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub tree: TreeId,
    pub level: u8,
    /// Freeze counter of the tree when this version was made; 0 when loaded.
    pub generation: u64,
    /// Where this version is on disk, once it is.
    pub written: OnceLock<NodePtr>,
    /// Index of the last insert, and how many before it each went right behind
    /// the one before. Only hints for splitting.
    pub last_insert: usize,
    pub run: u16,
    /// See invariant 4.
    pub bytes: usize,
    pub body: Body,
}

/// What a parent knows about a child, to be checked when it is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expect {
    pub level: u8,
    /// No key is below.
    pub low: Option<Key>,
    /// All keys are below.
    pub high: Option<Key>,
}

impl Expect {
    /// Expectation for the root.
    pub const fn root(level: u8) -> Self {
        Self { level, low: None, high: None }
    }
    /// Expectation for child `i` of a node that had to meet this one.
    pub fn child(&self, entries: &[(Key, Child)], i: usize) -> Self {
        Self {
            level: self.level.saturating_sub(1),
            low: entries.get(i).map(|e| e.0),
            high: entries.get(i + 1).map(|e| e.0).or(self.high),
        }
    }
}

/// The same for who only reads: the keys stay in the nodes above.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    level: u8,
    low: Option<&'a Key>,
    high: Option<&'a Key>,
}

impl<'a> Way<'a> {
    /// To the root.
    pub const fn root(level: u8) -> Self {
        Self { level, low: None, high: None }
    }
    /// To child `i` of the node that this leads to.
    pub fn child(self, entries: &'a [(Key, Child)], i: usize) -> Self {
        Self {
            level: self.level.saturating_sub(1),
            low: entries.get(i).map(|e| &e.0),
            high: entries.get(i + 1).map(|e| &e.0).or(self.high),
        }
    }
    /// Where the keys of the node end that this leads to, if anything is behind it.
    pub fn end(self) -> Option<Key> {
        self.high.copied()
    }
    /// What the node that this leads to has to meet.
    pub fn expect(self) -> Expect {
        Expect { level: self.level, low: self.low.copied(), high: self.high.copied() }
    }
}

/// What these entries of a leaf take beside the first key `new`, where it was `bytes` beside `old`. Both are not greater than
/// any of them. Of those with the same inode, kind and fork only the distances change, and they come first, in order.
pub(super) fn rebased(entries: &[(Key, Value)], old: &Key, new: &Key, bytes: usize) -> usize {
    let group = |k: &Key| (k.ino, k.kind, k.fork);
    if group(old) != group(new) {
        return entries.iter().map(|(k, v)| entry_bytes(new, k, v)).sum();
    }
    let near = &entries[..entries.partition_point(|(k, _)| group(k) == group(new))];
    bytes + distance_bytes(near, new) - distance_bytes(near, old)
}

/// What the distances of these entries, which are in order, to `base` take beyond one byte each.
fn distance_bytes(near: &[(Key, Value)], base: &Key) -> usize {
    let longer = |bits: u32| near.len() - near.partition_point(|(k, _)| (k.off - base.off) >> bits == 0);
    (7..64).step_by(7).map(longer).sum()
}

/// Index of the child whose range has `key`; the first one for smaller keys.
pub(super) fn child_index(entries: &[(Key, Child)], key: &Key) -> usize {
    entries.partition_point(|e| e.0 <= *key).saturating_sub(1)
}

impl Body {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::Leaf(v) => v.len(),
            Self::Inner(v) => v.len(),
        }
    }
    /// Smallest and largest key.
    fn ends(&self) -> Option<(Key, Key)> {
        match self {
            Self::Leaf(v) => v.first().zip(v.last()).map(|(a, b)| (a.0, b.0)),
            Self::Inner(v) => v.first().zip(v.last()).map(|(a, b)| (a.0, b.0)),
        }
    }
    /// Smallest key.
    pub fn first_key(&self) -> Option<Key> {
        self.ends().map(|(a, _)| a)
    }
    /// See invariant 4 of the module.
    pub fn bytes(&self) -> usize {
        let Some(base) = self.first_key() else { return 0 };
        (0..self.len()).map(|i| self.entry_bytes_behind(&base, i)).sum()
    }
    fn entry_bytes(&self, i: usize) -> usize {
        self.first_key().map_or(0, |base| self.entry_bytes_behind(&base, i))
    }
    /// What entry `i` takes in a node that begins with this key.
    fn entry_bytes_behind(&self, base: &Key, i: usize) -> usize {
        match self {
            Self::Leaf(v) => v.get(i).map_or(0, |(k, v)| entry_bytes(base, k, v)),
            Self::Inner(_) => INNER_ENTRY_BYTES,
        }
    }
    /// Index at which the bytes before and after are most nearly equal, with
    /// entries on both sides.
    pub fn middle(&self) -> usize {
        self.middle_of(self.bytes()).0
    }
    /// The same where it is known how many bytes there are; and how many come before.
    fn middle_of(&self, bytes: usize) -> (usize, usize) {
        let Some(base) = self.first_key() else { return (1, 0) };
        let half = bytes / 2;
        let most = self.len().saturating_sub(1).max(1);
        let (mut at, mut sum) = (0, 0);
        while at < most {
            let next = sum + self.entry_bytes_behind(&base, at);
            // Take the entry that straddles the middle to the emptier side.
            if at > 0 && next > half && next - half > half - sum.min(half) {
                break;
            }
            sum = next;
            at += 1;
        }
        (at, sum)
    }
    /// How many entries from the first on fit `bytes` of a node that begins with this key.
    pub fn fitting(&self, base: &Key, bytes: usize) -> usize {
        let mut left = bytes;
        (0..self.len())
            .take_while(|i| {
                let bytes = self.entry_bytes_behind(base, *i);
                let fits = bytes <= left;
                left = left.saturating_sub(bytes);
                fits
            })
            .count()
    }
    /// Where to split so that both sides fit a node: in the middle, or before it where entries take more beside the first
    /// key than beside a later one.
    fn middle_that_fits(&self, bytes: usize) -> usize {
        let Some(base) = self.first_key() else { return 0 };
        let (at, before) = self.middle_of(bytes);
        if before <= CAPACITY { at } else { self.fitting(&base, CAPACITY).max(1) }
    }
    /// Moves the entries from `at` on into a new body.
    pub fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Leaf(v) => Self::Leaf(v.split_off(at)),
            Self::Inner(v) => Self::Inner(v.split_off(at)),
        }
    }
    /// Appends all entries of a right neighbour of the same level.
    pub fn append(&mut self, right: Self) {
        match (self, right) {
            (Self::Leaf(a), Self::Leaf(mut b)) => a.append(&mut b),
            (Self::Inner(a), Self::Inner(mut b)) => a.append(&mut b),
            // Levels are checked when a node is loaded.
            _ => debug_assert!(false, "neighbours of different level"),
        }
    }
}

impl Node {
    /// A new, unwritten node.
    pub fn new(tree: TreeId, level: u8, generation: u64, body: Body) -> Self {
        let bytes = body.bytes();
        Self { tree, level, generation, written: OnceLock::new(), last_insert: 0, run: 0, bytes, body }
    }

    /// The version of this node that `generation` may change.
    pub fn fork(&self, generation: u64) -> Self {
        Self { generation, written: OnceLock::new(), body: self.body.clone(), ..*self }
    }

    /// As [`Node::fork`], without copying when nobody else has this one.
    pub fn fork_from(this: Arc<Self>, generation: u64) -> Self {
        match Arc::try_unwrap(this) {
            Ok(node) => Self { generation, written: OnceLock::new(), ..node },
            Err(shared) => shared.fork(generation),
        }
    }

    /// Notes where an insert went, to tell runs of ascending keys from the rest.
    pub fn note_insert(&mut self, index: usize) {
        self.run = if index == self.last_insert + 1 {
            (self.run + 1).min(RUN_MAX)
        } else if index == self.last_insert {
            // The rest of an item that was cut makes place for what follows. Only
            // a descending run has nothing but such inserts, and soon counts as none.
            self.run - self.run.div_ceil(4)
        } else {
            0
        };
        self.last_insert = index;
    }

    /// Whether a run went on at its end until it was cut off there.
    pub fn ends_a_run(&self) -> bool {
        self.run >= RUN_MIN && self.last_insert + 1 == self.body.len()
    }

    /// Splits off a right neighbour if the node is too large, where
    /// [`Node::run_split`] says or else in halves.
    pub fn split(&mut self, inserted: Option<usize>, rightmost: bool, fill: Fill) -> Option<(Key, Self)> {
        if !fill.is_over(self.bytes, self.body.len()) {
            return None;
        }
        let at_run = inserted.and_then(|i| self.run_split(i, rightmost, fill)).filter(|at| *at > 0);
        let at = at_run.unwrap_or_else(|| self.body.middle_that_fits(self.bytes));
        let mut right = self.split_off(at);
        // The run goes on at the end of the left node or at the start of the right one.
        let run = std::mem::replace(&mut self.run, 0);
        match at_run.and(inserted) {
            Some(i) if i < at => self.run = run,
            Some(_) => right.run = run,
            None => {}
        }
        let key = right.body.first_key()?;
        Some((key, right))
    }

    /// The entries from `at` on, as a node of their own.
    fn split_off(&mut self, at: usize) -> Self {
        debug_assert_eq!(self.bytes, self.body.bytes(), "a node that does not know what its entries take");
        let base = self.body.first_key();
        let body = self.body.split_off(at);
        let left = self.body.bytes();
        let bytes = match (&body, base, body.first_key()) {
            // What they took beside the first key of all is known.
            (Body::Leaf(v), Some(old), Some(new)) => rebased(v, &old, &new, self.bytes - left),
            _ => body.bytes(),
        };
        debug_assert_eq!(bytes, body.bytes(), "a part of a node that does not know what its entries take");
        self.bytes = left;
        let written = OnceLock::new();
        Self { written, last_insert: 0, run: 0, bytes, body, ..*self }
    }

    /// Where to split so that a run of ascending keys fills nodes: before the
    /// entry inserted last, at `i`, if little follows it, or behind it, to have
    /// what follows out of the way. At the right edge of the tree a single insert
    /// at the end counts as a run. Elsewhere it proves nothing: a descending run
    /// in front of an existing key makes such only, and must not get a node each.
    fn run_split(&self, i: usize, rightmost: bool, fill: Fill) -> Option<usize> {
        if self.run < RUN_MIN && !(rightmost && i + 1 == self.body.len()) {
            return None;
        }
        let after: usize = (i + 1..self.body.len()).map(|i| self.body.entry_bytes(i)).sum();
        let upto = self.bytes - after;
        if after > fill.carried_bytes_max() && upto <= CAPACITY {
            (upto >= fill.bytes_min()).then_some(i + 1)
        } else {
            Some(i)
        }
    }

    /// Encodes the node; `None` when a child is not on disk yet.
    pub fn encode(&self, generation: u64) -> Option<Vec<u8>> {
        let entries = match &self.body {
            Body::Leaf(v) => Entries::Leaf(v.clone()),
            Body::Inner(v) => {
                Entries::Inner(v.iter().map(|(k, c)| c.ptr().map(|p| (*k, p))).collect::<Option<Vec<_>>>()?)
            }
        };
        Some(node::encode(self.tree, self.level, generation, &entries))
    }

    /// Verifies what was read for `ptr`.
    pub fn decode(tree: TreeId, ptr: &NodePtr, bytes: &[u8]) -> Result<Self> {
        let damaged = |why| Error::Damaged(ptr.copies[0], why);
        let (header, entries) = node::decode(tree, bytes).map_err(damaged)?;
        if header.crc.get() != ptr.crc {
            return Err(damaged(Invalid::Checksum));
        }
        let body = match entries {
            Entries::Leaf(v) => Body::Leaf(v),
            Entries::Inner(v) => Body::Inner(v.into_iter().map(|(k, p)| (k, Child::Disk(p))).collect()),
        };
        // No writer packs more than fits without the prefix: then any node can be split in two.
        let long = |v: &[(Key, Value)]| v.iter().any(|e| e.1.len() > VALUE_BYTES_MAX);
        if body.len() == 0 || body.bytes() > CAPACITY || matches!(&body, Body::Leaf(v) if long(v)) {
            return Err(damaged(Invalid::Bounds));
        }
        let node = Self::new(tree, header.level, 0, body);
        let _ = node.written.set(*ptr);
        Ok(node)
    }

    /// Checks a clean node against what its parent knows.
    pub fn check(&self, tree: TreeId, ptr: &NodePtr, expect: &Expect) -> Result<()> {
        let damaged = |why| Err(Error::Damaged(ptr.copies[0], why));
        if self.tree != tree {
            return damaged(Invalid::Kind(self.tree.0 as u8));
        }
        if self.level != expect.level {
            return damaged(Invalid::Bounds);
        }
        let Some((first, last)) = self.body.ends() else {
            return damaged(Invalid::Bounds);
        };
        if expect.low.is_some_and(|low| first < low) || expect.high.is_some_and(|high| last >= high) {
            return damaged(Invalid::Order);
        }
        Ok(())
    }

    /// Estimate of the memory a clean node takes.
    pub fn memory_bytes(&self) -> usize {
        const ALLOCATION: usize = 16;
        let entries = match &self.body {
            Body::Leaf(v) => {
                // Each value is an allocation of its own with two counters.
                let values: usize = v.iter().map(|(_, v)| v.len()).sum();
                v.capacity() * size_of::<(Key, Value)>() + values + v.len() * (16 + ALLOCATION)
            }
            Body::Inner(v) => v.capacity() * size_of::<(Key, Child)>(),
        };
        size_of::<Self>() + 2 * ALLOCATION + entries
    }
}

impl Child {
    /// Where the child is on disk, if it is there.
    pub fn ptr(&self) -> Option<NodePtr> {
        match self {
            Self::Disk(ptr) => Some(*ptr),
            Self::Mem(node) => node.written.get().copied(),
        }
    }
}
