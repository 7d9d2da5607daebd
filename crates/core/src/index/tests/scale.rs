//! How full nodes get, how many are touched, and that a million items work.

use std::time::Instant;

use nenrin_format::NODE_BYTES;
use nenrin_format::packed::entry_bytes;

use super::*;

fn seq(i: u64) -> Key {
    Key::new(Ino(1000), Kind::Extent, 0, i)
}

/// Leaf bytes used of what the leaves could hold.
fn fill(v: &Volume) -> f64 {
    let (mut used, mut leaves) = (0, 0);
    for (level, _, ptr) in v.versions() {
        if level == 0 {
            let bytes = v.disk.blocks.lock().unwrap().get(&ptr.copies[0].0).unwrap().clone();
            let (_, Entries::Leaf(entries)) = node::decode(TreeId::LIVE, &bytes).unwrap() else { unreachable!() };
            used += entries.iter().map(|e| entry_bytes(&entries[0].0, &e.0, &e.1)).sum::<usize>();
            leaves += 1;
        }
    }
    used as f64 / (leaves * NODE_BYTES) as f64
}

#[test]
fn runs_fill_nodes() {
    // At the right edge of the tree.
    let mut v = Volume::new(1 << 20);
    (0..20_000).for_each(|i| v.insert(seq(i), value(50, i)));
    v.checkpoint();
    assert!(fill(&v) > 0.98, "append: {}", fill(&v));

    // In front of other items, upwards.
    let mut v = Volume::new(1 << 20);
    v.insert(Key::new(Ino(5000), Kind::Inode, 0, 0), value(50, 0));
    (0..20_000).for_each(|i| v.insert(seq(i), value(50, i)));
    v.checkpoint();
    assert!(fill(&v) > 0.95, "run in the middle: {}", fill(&v));

    // Two runs in turns.
    let mut v = Volume::new(1 << 20);
    for i in 0..10_000 {
        v.insert(seq(i), value(50, i));
        v.insert(Key::new(Ino(5000), Kind::Extent, 0, i), value(50, i));
    }
    v.checkpoint();
    assert!(fill(&v) > 0.95, "two runs: {}", fill(&v));

    // Downwards, behind a full node: never a node for each item.
    let mut v = Volume::new(1 << 20);
    (0..20_000).for_each(|i| v.insert(seq(i), value(50, i)));
    (0..20_000).rev().for_each(|i| v.insert(Key::new(Ino(5000), Kind::Extent, 0, i), value(50, i)));
    v.checkpoint();
    assert!(fill(&v) > 0.6, "downwards: {}", fill(&v));

    // Upwards with replacements in between, in front of other items, from a
    // node that holds others before and after.
    let mut v = Volume::new(1 << 20);
    (0..200).for_each(|i| v.insert(Key::new(Ino(900 + i % 2 * 500), Kind::Extent, 0, i), value(50, i)));
    for i in 0..20_000 {
        v.insert(seq(i), value(50, i));
        v.insert(seq(i), value(50, i + 1));
        if i % 3000 == 0 {
            v.checkpoint();
        }
    }
    v.checkpoint();
    assert!(fill(&v) > 0.93, "run with replacements: {}", fill(&v));

    // Upwards over short items that make place for long ones, as writing a
    // file does whose space was reserved; checkpoints in between.
    let mut v = Volume::new(1 << 20);
    (0..8000).for_each(|i| v.insert(seq(4 * i), value(24, i)));
    for i in 0..8000 {
        v.remove(&seq(4 * i));
        v.insert(seq(4 * i), value(280, i));
        if i % 6 == 0 {
            v.insert(seq(4 * i + 1), value(24, i));
            v.remove(&seq(4 * i + 1));
            v.insert(seq(4 * i + 1), value(100, i));
        }
        if i % 2500 == 0 {
            v.checkpoint();
        }
        if i % 100 == 0 {
            v.check_shape();
        }
    }
    v.checkpoint();
    v.check_all();
    assert!(fill(&v) > 0.8, "reserved, then written: {}", fill(&v));

    // Random, then thinned out.
    let mut v = Volume::new(1 << 20);
    let mut random = Random(3);
    (0..20_000).for_each(|i| v.insert(seq(random.below(1 << 40)), value(50, i)));
    v.checkpoint();
    assert!(fill(&v) > 0.6, "random: {}", fill(&v));
    let keys: Vec<_> = v.model.keys().copied().collect();
    keys.iter().filter(|_| random.below(10) > 0).for_each(|k| v.remove(k));
    v.checkpoint();
    assert!(fill(&v) > 0.3, "thinned out: {}", fill(&v));
    keys.iter().for_each(|k| v.remove(k));
    v.checkpoint();
    assert_eq!((v.tree.nodes(), v.tree.height(), v.space.placed.len()), (0, 0, 0));
}

/// Inner nodes split, join and share too: values so long that a few thousand
/// items make three levels.
#[test]
fn inner_nodes_split_and_join() {
    let (mut v, mut random) = (Volume::new(8 << 20), Random(21));
    let mut high = 0;
    for (round, inserts) in [9u64, 9, 1, 9, 2, 1, 0].into_iter().enumerate() {
        for i in 0..4000 {
            let k = key(random.below(6000));
            if random.below(10) < inserts {
                v.insert(k, value(3000, i))
            } else {
                v.remove(&k)
            }
            if i % 500 == 0 {
                v.check_shape();
            }
        }
        high = high.max(v.tree.height());
        if round % 2 == 0 {
            v.reopen()
        } else {
            v.checkpoint()
        }
        v.check_shape();
        v.check_all();
    }
    assert_eq!(high, 3);
}

/// Each look-up touches one node for each level; the first change after a
/// freeze copies one for each level, and all others in that leaf none.
#[test]
fn a_million_items() {
    const N: u64 = 1_000_000;
    let disk = Arc::new(Disk::default());
    let cache = NodeCache::new(disk.clone(), 512 << 20);
    let (mut tree, mut space) = (Tree::empty(TreeId::LIVE), Space::default());
    let item = value(48, 0);
    let rate = |what: &str, start: Instant, n: u64| {
        println!("{what}: {:.0}/s", n as f64 / start.elapsed().as_secs_f64());
    };

    let start = Instant::now();
    for i in 0..N {
        tree.insert(&cache, seq(i), item.clone()).unwrap();
    }
    rate("sequential inserts", start, N);
    assert_eq!((tree.items(), tree.height()), (N, 3));
    assert_eq!(cache.counters().hits + cache.counters().misses, 0, "dirty nodes need no look-up");

    let start = Instant::now();
    let nodes = tree.dirty_nodes() as u64;
    let root = tree.freeze().write(1, &mut |bytes, _, _| Ok(space.place(&disk, bytes))).unwrap();
    rate("nodes written", start, nodes);
    let start = Instant::now();
    assert!(tree.settle(&cache).is_empty());
    tree.unload(&cache);
    rate("nodes settled", start, nodes);
    assert!(nodes < N * 79 / 16_000, "{nodes} nodes");

    let mut random = Random(9);
    for (what, tree) in [("random gets, warm", &tree), ("random gets again", &Tree::open(&root))] {
        let (start, before) = (Instant::now(), cache.counters());
        for _ in 0..N {
            assert!(tree.get(&cache, &seq(random.below(N))).unwrap().is_some());
        }
        rate(what, start, N);
        let after = cache.counters();
        assert_eq!(after.hits + after.misses - before.hits - before.misses, 3 * N, "one node for each level");
    }

    let cold = NodeCache::new(disk.clone(), 512 << 20);
    let (start, mut count) = (Instant::now(), 0);
    let mut each = |_: &Key, _: &Value| {
        count += 1;
        ControlFlow::Continue(())
    };
    tree.scan(&cold, &seq(0), &last_key(), &mut each).unwrap();
    rate("items scanned, cold", start, N);
    assert_eq!((count, cold.counters().misses, cold.counters().hits), (N, nodes, 0));

    let (start, mut most) = (Instant::now(), 0);
    for _ in 0..N / 4 {
        let (dirty, before) = (tree.dirty_nodes(), cache.counters());
        tree.insert(&cache, Key { death: 1, ..seq(random.below(N)) }, item.clone()).unwrap();
        let after = cache.counters();
        most = most.max(after.hits + after.misses - before.hits - before.misses);
        assert!(tree.dirty_nodes() - dirty <= 2 * 3);
    }
    rate("random inserts", start, N / 4);
    assert!(most <= 3, "{most} look-ups for an insert");

    let start = Instant::now();
    for i in 0..N {
        assert!(tree.remove(&cache, &seq(i)).unwrap().is_some());
    }
    rate("sequential removes", start, N);
    let last = tree.freeze().write(2, &mut |bytes, _, _| Ok(space.place(&disk, bytes))).unwrap();
    space.release(&disk, &tree.settle(&cache));
    tree.unload(&cache);
    assert_eq!(last.nodes, space.placed.len() as u64);
}
