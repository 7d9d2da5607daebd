//! The trees against a sorted map, and the bookkeeping of node versions against
//! what the written root really reaches.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{self, Entries, NodePtr, TreeId, VALUE_BYTES_MAX};
use nenrin_format::root::TreeRoot;
use nenrin_format::{Addr, Ino, Invalid};
use proptest::prelude::*;

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
        let (mut calls, mut level_before) = (0, HashMap::new());
        let root = frozen.write(7, &mut |bytes, level, first| {
            calls += 1;
            let (h, entries) = node::decode(TreeId::LIVE, bytes).unwrap();
            assert_eq!((h.level, h.generation.get()), (level, 7));
            let k = match &entries {
                Entries::Leaf(v) => v[0].0,
                Entries::Inner(v) => v[0].0,
            };
            assert_eq!(k, *first);
            level_before.insert(level, calls);
            Ok(self.space.place(&self.disk, bytes))
        });
        assert_eq!(calls, frozen.dirty_nodes(), "announced dirty nodes");
        self.written = Some((root.unwrap(), model));
    }
    fn settle(&mut self) {
        let Some(done) = self.written.take() else { return };
        self.durable = done;
        let freed = self.tree.settle(&self.cache);
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
    Key { ino: u64::MAX, kind: Kind::Reap, fork: u32::MAX, off: u64::MAX, death: u64::MAX }
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
        1 => Just(Op::View),
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
                let did = v.tree.touch(&v.cache, *level, first, ptr).unwrap();
                assert!(did == (v.tree.dirty_nodes() > dirty));
                assert!(!v.tree.touch(&v.cache, *level, first, ptr).unwrap());
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
        }
        v.check_all();
        views.clear();
        v.checkpoint();
        v.check_all();
        v.reopen();
        v.check_all();
    }
}
