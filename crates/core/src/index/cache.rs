//! Clean nodes kept in memory, bounded in bytes, shared by all trees.
//!
//! Invariants
//! 1. An entry answers only for the very pointer it was stored with: an address
//!    that is used again for another node misses.
//! 2. No lock is held while the device is read.
//! 3. A shard holds at most its share of the bytes, or one node.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nenrin_format::NODE_BYTES;
use nenrin_format::key::Key;
use nenrin_format::node::{NodePtr, TreeId};

use super::node::{Expect, Fill, Node};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::fs::guard::is_held;
use crate::numbers::NumberHasher;

/// Reads nodes from the device.
pub trait NodeSource: Send + Sync {
    /// The 16 KiB of a node whose stored checksum equals `ptr.crc`, from copy 0
    /// or else from copy 1. Called without locks of the index.
    ///
    /// # Errors
    /// Both copies failed to read or to verify.
    fn read_node(&self, ptr: &NodePtr) -> Result<Vec<u8>>;
}

/// What the cache did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Look-ups answered from memory.
    pub hits: u64,
    /// Look-ups that read the device.
    pub misses: u64,
    /// Nodes dropped to stay within the bound.
    pub evictions: u64,
    /// Nodes held now.
    pub nodes: u64,
    /// Estimate of the memory held now.
    pub bytes: u64,
}

/// A bounded cache of clean decoded nodes, with the source behind it.
pub struct NodeCache {
    source: Arc<dyn NodeSource>,
    shards: Box<[Mutex<Shard>]>,
    /// A node could not be read, or was damaged.
    met_damage: AtomicBool,
    /// The same of nodes that somebody read without the lock of the volume: of a state that may be past, with other nodes in their places.
    suspects: Mutex<Vec<Suspect>>,
    fill: Fill,
}

/// A node that could not be read, or was damaged, and perhaps is none any more.
pub struct Suspect {
    pub tree: TreeId,
    pub level: u8,
    /// A key of its range.
    pub key: Key,
    pub ptr: NodePtr,
}

/// Suspects that are remembered; of more it is believed.
const SUSPECTS_MAX: usize = 64;

struct Slot {
    ptr: NodePtr,
    node: Arc<Node>,
    bytes: usize,
    /// Looked up since the hand passed.
    used: bool,
}

/// One lock's worth of the cache: a clock over slots.
#[derive(Default)]
struct Shard {
    bytes_max: usize,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    by_addr: HashMap<u64, usize, BuildHasherDefault<NumberHasher>>,
    hand: usize,
    counters: CacheCounters,
}

impl Shard {
    fn get(&mut self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let slot = self.by_addr.get(&ptr.copies[0].0).and_then(|i| self.slots.get_mut(*i)?.as_mut());
        match slot {
            Some(slot) if slot.ptr == *ptr => {
                slot.used = true;
                self.counters.hits += 1;
                Some(slot.node.clone())
            }
            _ => {
                self.counters.misses += 1;
                None
            }
        }
    }

    /// Empties a slot and returns what was in it.
    fn clear(&mut self, i: usize) -> Option<Arc<Node>> {
        let slot = self.slots.get_mut(i)?.take()?;
        self.by_addr.remove(&slot.ptr.copies[0].0);
        self.free.push(i);
        self.counters.bytes -= slot.bytes as u64;
        self.counters.nodes -= 1;
        Some(slot.node)
    }

    fn remove(&mut self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let i = *self.by_addr.get(&ptr.copies[0].0)?;
        self.clear(i)
    }

    /// Stores a node; what had to go for it is returned, to be freed without the lock.
    fn put(&mut self, ptr: NodePtr, node: Arc<Node>) -> Vec<Arc<Node>> {
        let mut gone: Vec<_> = self.remove(&ptr).into_iter().collect();
        let bytes = node.memory_bytes();
        while self.counters.nodes > 0 && self.counters.bytes as usize + bytes > self.bytes_max {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            match self.slots.get_mut(self.hand) {
                Some(Some(slot)) if slot.used => slot.used = false,
                Some(Some(_)) => {
                    gone.extend(self.clear(self.hand));
                    self.counters.evictions += 1;
                }
                _ => {}
            }
        }
        // A first look-up is no reason to stay: scans pass through.
        let slot = Some(Slot { ptr, node, bytes, used: false });
        let i = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[i] = slot;
        self.by_addr.insert(ptr.copies[0].0, i);
        self.counters.bytes += bytes as u64;
        self.counters.nodes += 1;
        gone
    }
}

impl NodeCache {
    /// A cache that holds about `bytes_max` bytes of nodes read from `source`.
    #[must_use]
    pub fn new(source: Arc<dyn NodeSource>, bytes_max: usize) -> Self {
        let count = if bytes_max >= 64 << 20 { 16 } else { 1 };
        let shard = || Mutex::new(Shard { bytes_max: bytes_max / count, ..Shard::default() });
        let shards = (0..count).map(|_| shard()).collect();
        Self {
            source,
            shards,
            met_damage: AtomicBool::new(false),
            suspects: Mutex::default(),
            fill: Fill::upto(NODE_BYTES),
        }
    }

    /// Trees that are changed by way of it get nodes of so many bytes at most, where that many fit.
    #[must_use]
    pub fn filling(self, node_bytes_max: usize) -> Self {
        Self { fill: Fill::upto(node_bytes_max), ..self }
    }

    /// How full nodes become.
    pub(super) const fn fill(&self) -> Fill {
        self.fill
    }

    /// What the cache did so far.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            let c = lock(shard).counters;
            sum.hits += c.hits;
            sum.misses += c.misses;
            sum.evictions += c.evictions;
            sum.nodes += c.nodes;
            sum.bytes += c.bytes;
        }
        sum
    }

    /// Drops the node at this address: nothing needs it any more.
    pub fn forget(&self, ptr: &NodePtr) {
        let gone = self.shard(ptr).remove(ptr);
        drop(gone);
    }

    /// The node at `ptr`, checked against what its parent knows.
    pub(super) fn load(&self, tree: TreeId, ptr: &NodePtr, expect: &Expect) -> Result<Arc<Node>> {
        let found = self.shard(ptr).get(ptr);
        if let Some(node) = found {
            node.check(tree, ptr, expect)?;
            return Ok(node);
        }
        let read = self.read(tree, ptr, expect);
        match &read {
            Ok(node) => self.put(*ptr, node.clone()),
            Err(_) => self.note_damage(tree, ptr, expect),
        }
        read
    }

    fn read(&self, tree: TreeId, ptr: &NodePtr, expect: &Expect) -> Result<Arc<Node>> {
        let node = Node::decode(tree, ptr, &self.source.read_node(ptr)?)?;
        node.check(tree, ptr, expect)?;
        Ok(Arc::new(node))
    }

    fn note_damage(&self, tree: TreeId, ptr: &NodePtr, expect: &Expect) {
        if !is_held() && !broken(Break::StaleIsDamage) {
            let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
            if suspects.iter().any(|s| s.ptr == *ptr) {
                return;
            }
            if suspects.len() < SUSPECTS_MAX {
                let key = expect.low.unwrap_or(Key::first());
                suspects.push(Suspect { tree, level: expect.level, key, ptr: *ptr });
                return;
            }
        }
        self.meets_damage();
    }

    /// Nodes that could not be read by who held no lock, since that was last asked: who holds it finds out whether they still are some, and
    /// says so.
    pub fn take_suspects(&self) -> Vec<Suspect> {
        std::mem::take(&mut *self.suspects.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A node of what there is now cannot be read, or is damaged.
    pub fn meets_damage(&self) {
        self.met_damage.store(true, Ordering::Relaxed);
    }

    /// Whether some node could not be read, or was damaged, so that others are better looked at before they are needed.
    #[must_use]
    pub fn met_damage(&self) -> bool {
        self.met_damage.load(Ordering::Relaxed)
    }

    /// As [`NodeCache::load`], for a node about to be replaced: it leaves the cache.
    pub(super) fn take(&self, tree: TreeId, ptr: &NodePtr, expect: &Expect) -> Result<Arc<Node>> {
        let node = self.load(tree, ptr, expect)?;
        self.forget(ptr);
        Ok(node)
    }

    /// Stores a clean node.
    pub(super) fn put(&self, ptr: NodePtr, node: Arc<Node>) {
        let gone = self.shard(&ptr).put(ptr, node);
        drop(gone);
    }

    fn shard(&self, ptr: &NodePtr) -> MutexGuard<'_, Shard> {
        let mut h = NumberHasher::default();
        h.write_u64(ptr.copies[0].0);
        // The map uses the low and the topmost bits; shards those between.
        lock(&self.shards[(h.finish() >> 40) as usize % self.shards.len()])
    }
}

/// A shard is consistent between statements, so a panicked holder spoils nothing.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
