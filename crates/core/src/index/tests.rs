//! The trees against a sorted map, and the bookkeeping of node versions against
//! what the written root really reaches.

mod faults;
mod scale;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{self, Entries, NodePtr, TreeId, VALUE_BYTES_MAX};
use nenrin_format::root::TreeRoot;
use nenrin_format::{Addr, Ino, Invalid};
use proptest::prelude::*;

use super::change::Old;
use super::node::{Body, CAPACITY, Child, Expect, Node};
use super::{Frozen, NodeCache, NodeSource, Tree, Value};
use crate::{Error, Result};

/// Node copies by address.
#[derive(Default)]
struct Disk {
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    reads: AtomicU64,
}

impl NodeSource for Disk {
    fn read_node(&self, ptr: &NodePtr) -> Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let blocks = self.blocks.lock().unwrap();
        let good = |a: &Addr| blocks.get(&a.0).filter(|b| node::stored_crc(b) == Some(ptr.crc)).cloned();
        ptr.copies.iter().find_map(good).ok_or(Error::Damaged(ptr.copies[0], Invalid::Checksum))
    }
}

/// Gives addresses, frees first, and stores what is placed.
#[derive(Default)]
struct Space {
    end: u64,
    free: Vec<u64>,
    placed: HashSet<NodePtr>,
}

impl Space {
    fn addr(&mut self) -> Addr {
        Addr(self.free.pop().unwrap_or_else(|| {
            self.end += 4;
            self.end
        }))
    }
    fn place(&mut self, disk: &Disk, bytes: &[u8]) -> [Addr; 2] {
        let copies = [self.addr(), self.addr()];
        for a in copies {
            disk.blocks.lock().unwrap().insert(a.0, bytes.to_vec());
        }
        assert!(self.placed.insert(NodePtr { copies, crc: node::stored_crc(bytes).unwrap() }));
        copies
    }
    fn release(&mut self, disk: &Disk, freed: &[NodePtr]) {
        for ptr in freed {
            assert!(self.placed.remove(ptr), "freed twice or never placed: {ptr:?}");
            for a in ptr.copies {
                disk.blocks.lock().unwrap().remove(&a.0);
                self.free.push(a.0);
            }
        }
    }
}

type Model = BTreeMap<Key, Value>;

struct Volume {
    disk: Arc<Disk>,
    cache: NodeCache,
    space: Space,
    tree: Tree,
    model: Model,
    /// Frozen and not written yet.
    frozen: Option<(Frozen, Model)>,
    /// Written and not settled yet.
    written: Option<(TreeRoot, Model)>,
    /// Settled.
    durable: (TreeRoot, Model),
}

fn no_root() -> TreeRoot {
    Tree::empty(TreeId::LIVE).freeze().write(0, &mut |_, _, _| Err(Error::NoSpace)).unwrap()
}

impl Volume {
    fn new(cache_bytes: usize) -> Self {
        let disk = Arc::new(Disk::default());
        Self {
            cache: NodeCache::new(disk.clone(), cache_bytes),
            disk,
            space: Space::default(),
            tree: Tree::empty(TreeId::LIVE),
            model: Model::new(),
            frozen: None,
            written: None,
            durable: (no_root(), Model::new()),
        }
    }
    fn insert(&mut self, k: Key, v: Value) {
        let old = self.tree.insert(&self.cache, k, v.clone()).unwrap();
        assert_eq!(old, self.model.insert(k, v));
        assert_eq!(self.tree.items(), self.model.len() as u64);
    }
    fn remove(&mut self, k: &Key) {
        let dirty = self.tree.dirty_nodes();
        let old = self.tree.remove(&self.cache, k).unwrap();
        assert_eq!(old, self.model.remove(k));
        assert!(old.is_some() || dirty == self.tree.dirty_nodes());
        assert_eq!(self.tree.items(), self.model.len() as u64);
    }
    fn freeze(&mut self) {
        if self.frozen.is_none() && self.written.is_none() {
            self.frozen = Some((self.tree.freeze(), self.model.clone()));
            assert_eq!(self.tree.dirty_nodes(), 0);
        }
    }
    fn write(&mut self) {
        let Some((frozen, model)) = self.frozen.take() else { return };
        let mut calls = 0;
        let root = frozen.write(7, &mut |bytes, level, first| {
            calls += 1;
            let (h, entries) = node::decode(TreeId::LIVE, bytes).unwrap();
            assert_eq!((h.level, h.generation.get()), (level, 7));
            let k = match &entries {
                Entries::Leaf(v) => v[0].0,
                Entries::Inner(v) => v[0].0,
            };
            assert_eq!(k, *first);
            Ok(self.space.place(&self.disk, bytes))
        });
        assert_eq!(calls, frozen.dirty_nodes(), "announced dirty nodes");
        self.written = Some((root.unwrap(), model));
    }
    fn settle(&mut self) {
        let Some(done) = self.written.take() else { return };
        self.durable = done;
        let freed = self.tree.settle(&self.cache);
        self.tree.unload(&self.cache);
        self.space.release(&self.disk, &freed);
        self.check_reach();
    }
    fn checkpoint(&mut self) {
        self.write();
        self.settle();
        self.freeze();
        self.write();
        self.settle();
    }
    /// The key invariant: placed without freed is what the root reaches.
    fn check_reach(&self) {
        let (root, model) = &self.durable;
        let (mut reached, mut items) = (HashSet::new(), Vec::new());
        if let Some(ptr) = root.ptr {
            self.reach(&ptr, root.level, &mut reached, &mut items);
        }
        assert_eq!(root.nodes, reached.len() as u64, "count of nodes");
        assert_eq!(root.items, model.len() as u64, "count of items");
        assert!(items.iter().map(|(k, v)| (k, v)).eq(model.iter()), "items on disk");
        let leaked: Vec<_> = self.space.placed.difference(&reached).collect();
        let early: Vec<_> = reached.difference(&self.space.placed).collect();
        assert!(leaked.is_empty() && early.is_empty(), "leaked {leaked:?}, freed early {early:?}");
    }
    fn reach(&self, ptr: &NodePtr, level: u8, reached: &mut HashSet<NodePtr>, items: &mut Vec<(Key, Value)>) {
        assert!(reached.insert(*ptr));
        let bytes = self.disk.blocks.lock().unwrap().get(&ptr.copies[1].0).unwrap().clone();
        let (h, entries) = node::decode(TreeId::LIVE, &bytes).unwrap();
        assert_eq!(h.level, level);
        match entries {
            Entries::Leaf(v) => items.extend(v),
            Entries::Inner(v) => v.iter().for_each(|(_, p)| self.reach(p, level - 1, reached, items)),
        }
    }
    /// Nodes of the durable root as touch wants them.
    fn versions(&self) -> Vec<(u8, Key, NodePtr)> {
        let mut todo: Vec<_> = self.durable.0.ptr.into_iter().collect();
        let mut out = Vec::new();
        while let Some(ptr) = todo.pop() {
            let bytes = self.disk.blocks.lock().unwrap().get(&ptr.copies[0].0).unwrap().clone();
            let (h, entries) = node::decode(TreeId::LIVE, &bytes).unwrap();
            match entries {
                Entries::Leaf(v) => out.push((h.level, v[0].0, ptr)),
                Entries::Inner(v) => {
                    out.push((h.level, v[0].0, ptr));
                    todo.extend(v.iter().map(|e| e.1));
                }
            }
        }
        out
    }
    fn reopen(&mut self) {
        self.checkpoint();
        self.tree = Tree::open(&self.durable.0);
        self.cache = NodeCache::new(self.disk.clone(), 1 << 20);
    }
    /// What the modules claim about nodes in memory.
    fn check_shape(&self) {
        let (mut nodes, mut dirty) = (0, 0);
        if let Some(root) = &self.tree.root {
            self.shape(root, Expect::root(self.tree.level), &mut nodes, &mut dirty);
        }
        assert_eq!((nodes, dirty), (self.tree.nodes(), self.tree.dirty_nodes()), "counts of nodes");
    }
    fn shape(&self, child: &Child, expect: Expect, nodes: &mut u64, dirty: &mut usize) {
        let node = &*self.tree.node(&self.cache, child, &expect).unwrap();
        *nodes += 1;
        *dirty += usize::from(node.generation == self.tree.book.generation && matches!(child, Child::Mem(_)));
        let ptr = NodePtr { copies: [Addr(0); 2], crc: 0 };
        node.check(TreeId::LIVE, &ptr, &expect).unwrap();
        assert!(node.bytes == node.body.bytes() && node.bytes <= CAPACITY);
        let alone = matches!(&node.body, Body::Inner(v) if v.len() == 1) && *nodes == 1;
        assert!(!alone || node.generation != self.tree.book.generation, "a root with one child");
        match &node.body {
            Body::Leaf(v) => assert!(v.is_sorted_by(|a, b| a.0 < b.0)),
            Body::Inner(v) => {
                assert!(v.is_sorted_by(|a, b| a.0 < b.0));
                for (i, (_, child)) in v.iter().enumerate() {
                    self.shape(child, expect.child(v, i), nodes, dirty);
                }
            }
        }
    }
    fn check_all(&self) {
        check_view(&self.tree, &self.cache, &self.model);
    }
}

fn check_view(tree: &Tree, cache: &NodeCache, model: &Model) {
    let mut all = Vec::new();
    let mut each = |k: &Key, v: &Value| {
        all.push((*k, v.clone()));
        ControlFlow::Continue(())
    };
    tree.scan(cache, &key(0), &last_key(), &mut each).unwrap();
    assert!(all.iter().map(|(k, v)| (k, v)).eq(model.iter()));
}

fn key(i: u64) -> Key {
    // Two inodes in three share a long prefix, the rest none.
    Key::new(Ino(i / 100 * if i % 3 == 0 { 1 << 50 } else { 1 }), Kind::Extent, (i % 2) as u32, i)
}

fn last_key() -> Key {
    Key { ino: u64::MAX, kind: Kind::last(), fork: u32::MAX, off: u64::MAX, death: u64::MAX }
}

fn value(len: usize, seed: u64) -> Value {
    (0..len).map(|i| (seed as usize + i) as u8).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, usize),
    InsertRun(u64, u64, usize, bool),
    Remove(u64),
    RemoveRun(u64, u64),
    Get(u64),
    Next(u64),
    Prev(u64),
    Scan(u64, u64, usize),
    Freeze,
    Write,
    Settle,
    Reopen,
    Touch(usize),
    View,
}

fn op() -> impl Strategy<Value = Op> {
    let k = || 0u64..4000;
    let len = || prop_oneof![4 => 0usize..120, 2 => 0usize..=VALUE_BYTES_MAX, 1 => Just(VALUE_BYTES_MAX)];
    prop_oneof![
        6 => (k(), len()).prop_map(|(k, l)| Op::Insert(k, l)),
        3 => (k(), 1u64..800, len(), any::<bool>()).prop_map(|(k, n, l, d)| Op::InsertRun(k, n, l, d)),
        4 => k().prop_map(Op::Remove),
        3 => (k(), 1u64..1500).prop_map(|(k, n)| Op::RemoveRun(k, n)),
        2 => k().prop_map(Op::Get),
        2 => k().prop_map(Op::Next),
        2 => k().prop_map(Op::Prev),
        2 => (k(), k(), 1usize..500).prop_map(|(a, b, n)| Op::Scan(a, b, n)),
        3 => Just(Op::Freeze),
        3 => Just(Op::Write),
        3 => Just(Op::Settle),
        1 => Just(Op::Reopen),
        2 => any::<usize>().prop_map(Op::Touch),
        2 => Just(Op::View),
    ]
}

fn apply(v: &mut Volume, views: &mut Vec<(Tree, Model)>, op: &Op, step: u64) {
    let pair = |(k, v): (&Key, &Value)| (*k, v.clone());
    match *op {
        Op::Insert(k, len) => v.insert(key(k), value(len, step)),
        Op::InsertRun(k, n, len, down) => {
            for i in 0..n {
                v.insert(key(k + if down { n - i } else { i }), value(len, step + i));
            }
        }
        Op::Remove(k) => v.remove(&key(k)),
        Op::RemoveRun(k, n) => (k..k + n).for_each(|k| v.remove(&key(k))),
        Op::Get(k) => assert_eq!(v.tree.get(&v.cache, &key(k)).unwrap().as_ref(), v.model.get(&key(k))),
        Op::Next(k) => {
            assert_eq!(v.tree.next(&v.cache, &key(k)).unwrap(), v.model.range(key(k)..).next().map(pair));
        }
        Op::Prev(k) => {
            assert_eq!(v.tree.prev(&v.cache, &key(k)).unwrap(), v.model.range(..=key(k)).next_back().map(pair));
        }
        Op::Scan(a, b, max) => {
            let (a, b) = (key(a), key(b));
            let mut got = Vec::new();
            let mut each = |k: &Key, v: &Value| {
                got.push((*k, v.clone()));
                if got.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            v.tree.scan(&v.cache, &a, &b, &mut each).unwrap();
            let want: Vec<_> = if a <= b { v.model.range(a..=b).take(max).map(pair).collect() } else { Vec::new() };
            assert_eq!(got, want);
        }
        Op::Freeze => v.freeze(),
        Op::Write => v.write(),
        Op::Settle => {
            // What a view needs may be freed and used again from here on.
            for (tree, model) in views.drain(..) {
                check_view(&tree, &v.cache, &model);
            }
            v.settle();
        }
        Op::Reopen => {
            views.clear();
            v.reopen();
        }
        Op::Touch(n) => {
            let all = v.versions();
            if let Some((level, first, ptr)) = all.get(n % all.len().max(1)) {
                let dirty = v.tree.dirty_nodes();
                let did = v.tree.touch(&v.cache, *level, first, ptr.copies[1]).unwrap();
                assert!(did == (v.tree.dirty_nodes() > dirty));
                assert!(!v.tree.touch(&v.cache, *level, first, ptr.copies[1]).unwrap());
            }
        }
        Op::View => views.push((v.tree.clone(), v.model.clone())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Any history of changes and checkpoints reads like a sorted map, and frees
    /// each node version when, and only when, the written root is without it.
    #[test]
    fn like_a_map(ops in prop::collection::vec(op(), 1..60), cache_bytes in prop_oneof![Just(0usize), Just(300_000), Just(100 << 20)]) {
        let mut v = Volume::new(cache_bytes);
        let mut views = Vec::new();
        for (step, op) in ops.iter().enumerate() {
            apply(&mut v, &mut views, op, step as u64);
            v.check_shape();
        }
        v.check_all();
        views.clear();
        v.checkpoint();
        v.check_all();
        v.reopen();
        v.check_all();
    }
}

/// A small xorshift: seeds, not luck.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The write runs on its own thread while the tree changes and readers read.
#[test]
fn writes_while_changing() {
    let mut v = Volume::new(1 << 20);
    let mut random = Random(11);
    for round in 0..40 {
        for _ in 0..500 {
            let k = key(random.below(20_000));
            if random.below(3) == 0 {
                v.remove(&k);
            } else {
                v.insert(k, value(random.below(300) as usize, round));
            }
        }
        let (frozen, model) = (v.tree.freeze(), v.model.clone());
        let view = v.tree.clone();
        let Volume { disk, cache, space, tree, model: live, .. } = &mut v;
        let root = std::thread::scope(|s| {
            let writer = s.spawn(|| frozen.write(round, &mut |bytes, _, _| Ok(space.place(disk, bytes))).unwrap());
            let reader = s.spawn(|| check_view(&view, cache, &model));
            for _ in 0..2000 {
                let k = key(random.below(20_000));
                if random.below(2) == 0 {
                    assert_eq!(tree.remove(cache, &k).unwrap(), live.remove(&k));
                } else {
                    let value = value(random.below(300) as usize, round);
                    assert_eq!(tree.insert(cache, k, value.clone()).unwrap(), live.insert(k, value));
                }
            }
            reader.join().unwrap();
            writer.join().unwrap()
        });
        v.written = Some((root, model));
        drop((view, frozen));
        v.settle();
        v.check_shape();
    }
    v.check_all();
}

/// Two frozen states under way at once: each settle frees what its root is without.
#[test]
fn overlapping_checkpoints() {
    let mut v = Volume::new(1 << 20);
    let mut random = Random(5);
    let mut pending: Option<(Frozen, Model)> = None;
    for _ in 0..60 {
        for _ in 0..300 {
            let k = key(random.below(3000));
            if random.below(2) == 0 { v.remove(&k) } else { v.insert(k, value(random.below(200) as usize, 0)) }
        }
        let next = (v.tree.freeze(), v.model.clone());
        if let Some((frozen, model)) = pending.replace(next) {
            let root = frozen.write(1, &mut |bytes, _, _| Ok(v.space.place(&v.disk, bytes))).unwrap();
            v.written = Some((root, model));
            for i in 0..50 {
                v.remove(&key(i * 7));
            }
            v.settle();
        }
    }
}

#[test]
fn too_long_values_are_refused() {
    let mut v = Volume::new(0);
    let long = value(VALUE_BYTES_MAX + 1, 0);
    assert!(matches!(v.tree.insert(&v.cache, key(1), long), Err(Error::TooLarge)));
    assert_eq!((v.tree.items(), v.tree.dirty_nodes(), v.tree.height()), (0, 0, 0));
}

#[test]
fn the_cache_is_bounded_and_knows_versions() {
    let mut v = Volume::new(200_000);
    for i in 0..20_000 {
        v.insert(key(i), value(40, i));
    }
    v.checkpoint();
    v.check_all();
    let c = v.cache.counters();
    assert!(c.bytes <= 200_000 && c.nodes > 3 && c.evictions > 0 && c.misses > 0, "{c:?}");
    // The same address with another checksum is another node.
    let ptr = v.durable.0.ptr.unwrap();
    let expect = Expect::root(v.durable.0.level);
    let node = v.cache.load(TreeId::LIVE, &ptr, &expect).unwrap();
    v.cache.put(ptr, node);
    let before = v.cache.counters();
    v.cache.load(TreeId::LIVE, &ptr, &expect).unwrap();
    assert_eq!(v.cache.counters().hits, before.hits + 1);
    let other = NodePtr { crc: ptr.crc ^ 1, ..ptr };
    assert!(v.cache.load(TreeId::LIVE, &other, &expect).is_err());
    // Nor does a node answer for another tree or place.
    assert!(v.cache.load(TreeId::SPACE, &ptr, &expect).is_err());
    assert!(v.cache.load(TreeId::LIVE, &ptr, &Expect::root(0)).is_err());
    let reads = v.disk.reads.load(Ordering::Relaxed);
    v.cache.forget(&ptr);
    v.cache.load(TreeId::LIVE, &ptr, &expect).unwrap();
    assert_eq!(v.disk.reads.load(Ordering::Relaxed), reads + 1);
}

/// Replacing a value by a longer one splits where it must, also where the last
/// insert went to the end.
#[test]
fn growing_values_split() {
    let mut v = Volume::new(0);
    for i in 0..100 {
        v.insert(key(i), value(130, i));
    }
    for i in 0..100 {
        v.insert(key(i), value(VALUE_BYTES_MAX, i));
        v.check_shape();
    }
    for i in 0..100 {
        v.insert(key(i), value(1, i));
        v.check_shape();
    }
    assert_eq!(v.tree.nodes(), 1, "short values let the nodes join again");
    v.checkpoint();
}

/// What entries take depends on the first key of their leaf: others come before it, it goes, and neighbours of other inodes join.
#[test]
fn leaves_fit_whatever_their_first_key_is() {
    // Small items that lie near the first key of their leaf, and take three times as much beside a far one.
    let near = |ino: u64, i: u64| Key { ino, kind: Kind::Extent, fork: 7, off: (1 << 60) + i, death: 0 };
    let far = |i: u64| Key { ino: i + 1, kind: Kind::Inode, fork: 0, off: 0, death: 0 };
    let mut v = Volume::new(1 << 20);
    for i in 0..4000 {
        v.insert(near(1 << 50, i), value(1, i));
    }
    (1..300).for_each(|i| v.remove(&near(1 << 50, i)));
    v.check_shape();
    let full = v.tree.nodes();
    // Before all of them, one at a time, downwards: the first leaf begins with another key each time.
    for i in (0..30).rev() {
        v.insert(far(i), value(3, i));
        v.check_shape();
    }
    assert!(v.tree.nodes() > full, "{} leaves and no more", v.tree.nodes());
    v.checkpoint();
    v.check_all();
    // Thinned out, so that leaves of far and of near ones join, from both sides.
    let mut random = Random(5);
    for round in 0..6 {
        for i in 0..30 {
            v.insert(far(i), value(3000, i));
        }
        v.check_shape();
        for i in 0..30 {
            if random.below(2) == 0 {
                v.remove(&far(i));
            }
        }
        let keys: Vec<_> = v.model.keys().copied().filter(|_| random.below(3) == 0).collect();
        keys.iter().for_each(|k| v.remove(k));
        v.check_shape();
        for i in 0..1000 {
            v.insert(near((1 << 50) - round % 2, random.below(9000)), value(1, i));
        }
        v.check_shape();
        v.checkpoint();
        v.check_all();
    }
    v.reopen();
    v.check_all();
    // The first item goes, and one comes that has less in front of it than the one that went: its leaf is joined, and is all there is.
    let mut v = Volume::new(1 << 20);
    (1..=4).for_each(|i| v.insert(far(i), value(4600, i)));
    (1..=300).for_each(|i| v.insert(near(1 << 50, i), value(1, i)));
    [1, 2, 4].iter().for_each(|i| v.remove(&far(*i)));
    v.insert(near(1 << 50, 0), value(1, 0));
    v.check_shape();
    // What goes first is not counted any more, so that nothing is split that fits.
    let mut v = Volume::new(1 << 20);
    v.insert(far(1), value(3, 1));
    (0..741).for_each(|i| v.insert(near(1 << 50, i), value(1, i)));
    v.remove(&far(1));
    (741..900).for_each(|i| v.insert(near(1 << 50, i), value(1, i)));
    v.check_shape();
    assert_eq!(v.tree.nodes(), 1);
    // Runs that go on from leaf to leaf, between others: what is left of one goes to the leaf before.
    let mut v = Volume::new(1 << 20);
    (0..300).for_each(|i| v.insert(far(i), value(50, i)));
    (0..300).for_each(|i| v.insert(near(1 << 60, i), value(50, i)));
    for i in 0..9000 {
        v.insert(near((1 << 50) + i / 700, i), value(1, i));
        v.check_shape();
    }
    v.reopen();
    v.check_all();
}

/// Memory: what left the tree while it was being written is kept until the next index checkpoint, but no node of it.
#[test]
fn a_version_on_disk_is_no_more_than_its_place() {
    let mut v = Volume::new(0);
    (0..2000).for_each(|i| v.insert(key(i), value(100, 1)));
    v.freeze();
    (0..2000).for_each(|i| v.insert(key(i), value(100, 2)));
    v.write();
    v.settle();
    let superseded = &v.tree.book.superseded;
    assert!(superseded.len() > 10 && superseded.iter().all(|(_, old)| matches!(old, Old::Disk(_))));
    v.checkpoint();
    v.check_all();
}
