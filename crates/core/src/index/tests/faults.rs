//! Damaged and forged nodes: errors, never panics, loops or wrong answers.

use nenrin_format::node::NODE_MAGIC;
use nenrin_format::{NODE_BYTES, own_crc};

use super::*;

/// Builds a tree of `items` small items on disk.
fn built(items: u64) -> Volume {
    let mut v = Volume::new(1 << 20);
    for i in 0..items {
        v.insert(key(i), value(100, i));
    }
    v.checkpoint();
    v
}

/// Uses every call on the tree below `root`; returns whether all went well.
fn use_all(disk: &Arc<Disk>, root: &TreeRoot, items: u64) -> bool {
    let cache = NodeCache::new(disk.clone(), 1 << 20);
    let mut tree = Tree::open(root);
    let mut good = true;
    for i in (0..items).step_by(37) {
        good &= tree.get(&cache, &key(i)).is_ok();
        good &= tree.next(&cache, &key(i)).is_ok();
        good &= tree.prev(&cache, &key(i)).is_ok();
    }
    let mut last = None;
    let mut each = |k: &Key, _: &Value| {
        assert!(last.is_none_or(|l| l < *k), "out of order");
        last = Some(*k);
        ControlFlow::Continue(())
    };
    good &= tree.scan(&cache, &key(0), &last_key(), &mut each).is_ok();
    for i in (0..items).step_by(11) {
        good &= tree.touch(&cache, (i % 4) as u8, &key(i), root.ptr.unwrap().copies[0]).is_ok();
        good &= tree.insert(&cache, key(i), value((i * 7 % 4600) as usize, i)).is_ok();
        good &= tree.insert(&cache, key(i).died(i), value(9, i)).is_ok();
        good &= tree.remove(&cache, &key(i + 1)).is_ok();
    }
    for i in 0..items {
        good &= tree.remove(&cache, &key(i)).is_ok();
    }
    // Whatever is left must be possible to write.
    let mut end = 1 << 40;
    let wrote = tree.freeze().write(9, &mut |bytes, _, _| {
        assert_eq!(bytes.len(), NODE_BYTES);
        end += 8;
        Ok([Addr(end), Addr(end + 4)])
    });
    wrote.unwrap();
    tree.settle(&cache);
    tree.unload(&cache);
    good
}

#[test]
fn one_bad_copy_does_no_harm_and_two_are_an_error() {
    let v = built(2000);
    let (root, all) = (v.durable.0.clone(), v.versions());
    assert!(use_all(&v.disk, &root, 2000));
    let damage = |a: Addr| v.disk.blocks.lock().unwrap().get_mut(&a.0).unwrap()[5000] ^= 1;
    // What a source compares is the stored checksum; the rest is ours to see.
    for (_, _, ptr) in &all {
        damage(ptr.copies[0]);
        assert!(!use_all(&v.disk, &root, 2000));
        v.disk.blocks.lock().unwrap().get_mut(&ptr.copies[0].0).unwrap()[4] ^= 1;
        assert!(use_all(&v.disk, &root, 2000));
    }
    let cache = NodeCache::new(v.disk.clone(), 0);
    damage(all[0].2.copies[0]);
    v.disk.blocks.lock().unwrap().remove(&all[0].2.copies[0].0);
    v.disk.blocks.lock().unwrap().remove(&all[0].2.copies[1].0);
    let tree = Tree::open(&root);
    assert!(matches!(tree.get(&cache, &all[0].1), Err(Error::Damaged(a, _)) if a == all[0].2.copies[0]));
}

/// An error in the middle of a change leaves the items as they were.
#[test]
fn errors_change_nothing() {
    let mut v = built(5000);
    let lost: Vec<_> = v.versions().into_iter().filter(|n| n.0 == 0).step_by(3).collect();
    let kept = v.disk.blocks.lock().unwrap().clone();
    for (_, _, ptr) in &lost {
        ptr.copies.iter().for_each(|a| drop(v.disk.blocks.lock().unwrap().remove(&a.0)));
    }
    v.tree = Tree::open(&v.durable.0);
    v.cache = NodeCache::new(v.disk.clone(), 0);
    let (mut bad, mut random) = (0, Random(2));
    for _ in 0..20_000 {
        let (k, new) = (key(random.below(6000)), value(random.below(200) as usize, 3));
        if random.below(2) == 0 {
            match v.tree.insert(&v.cache, k, new.clone()) {
                Ok(old) => assert_eq!(old, v.model.insert(k, new)),
                Err(_) => bad += 1,
            }
        } else {
            match v.tree.remove(&v.cache, &k) {
                Ok(old) => assert_eq!(old, v.model.remove(&k)),
                Err(_) => bad += 1,
            }
        }
    }
    assert!(bad > 0);
    *v.disk.blocks.lock().unwrap() = kept;
    v.check_all();
    v.check_shape();
    v.checkpoint();
}

/// Stores forged bytes with a true checksum and returns the pointer to them.
fn forge(disk: &Disk, at: u64, mut bytes: Vec<u8>) -> NodePtr {
    let sum = own_crc(&bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    let copies = [Addr(at), Addr(at + 4)];
    copies.iter().for_each(|a| drop(disk.blocks.lock().unwrap().insert(a.0, bytes.clone())));
    NodePtr { copies, crc: sum }
}

fn forged_root(level: u8, ptr: NodePtr) -> TreeRoot {
    TreeRoot { level, ptr: Some(ptr), items: 0, nodes: u64::MAX, ..no_root() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any bytes of any node changed, with checksums made to fit up to the root.
    #[test]
    fn forged_nodes(which in any::<usize>(), at_root in any::<bool>(),
                    edits in prop::collection::vec((any::<usize>(), any::<u8>(), any::<bool>()), 1..8)) {
        let v = built(1200);
        let root = v.durable.0.clone();
        let bytes_of = |p: &NodePtr| v.disk.blocks.lock().unwrap()[&p.copies[0].0].clone();
        let edit = |bytes: &mut Vec<u8>| {
            for (at, to, in_header) in &edits {
                let n = if *in_header { 120 } else { NODE_BYTES };
                bytes[at % n] = *to;
            }
            bytes[..4].copy_from_slice(&NODE_MAGIC.to_le_bytes());
        };
        let mut top = bytes_of(&root.ptr.unwrap());
        if at_root {
            edit(&mut top);
        } else {
            let (_, Entries::Inner(mut entries)) = node::decode(TreeId::LIVE, &top).unwrap() else { unreachable!() };
            let i = which % entries.len();
            let mut bytes = bytes_of(&entries[i].1);
            edit(&mut bytes);
            entries[i].1 = forge(&v.disk, 1 << 30, bytes);
            top = node::encode(TreeId::LIVE, root.level, 1, &Entries::Inner(entries));
        }
        let ptr = forge(&v.disk, 1 << 31, top);
        use_all(&v.disk, &forged_root(root.level, ptr), 1200);
        use_all(&v.disk, &forged_root(root.level.wrapping_add(which as u8), ptr), 100);
    }
}

#[test]
fn impossible_trees() {
    let disk = Arc::new(Disk::default());
    let leaf = |keys: &[u64]| {
        let v = keys.iter().map(|k| (Key::new(Ino(1), Kind::Extent, 0, *k), value(3, *k))).collect();
        node::encode(TreeId::LIVE, 0, 1, &Entries::Leaf(v))
    };
    let inner = |level, v: Vec<(u64, NodePtr)>| {
        let v = v.into_iter().map(|(k, p)| (Key::new(Ino(1), Kind::Extent, 0, k), p)).collect();
        node::encode(TreeId::LIVE, level, 1, &Entries::Inner(v))
    };
    let refused = |level, ptr| {
        let tree = Tree::open(&forged_root(level, ptr));
        let cache = NodeCache::new(disk.clone(), 1 << 20);
        let mut each = |_: &Key, _: &Value| ControlFlow::Continue(());
        assert!(tree.scan(&cache, &key(0), &last_key(), &mut each).is_err());
        use_all(&disk, &forged_root(level, ptr), 50);
    };
    let good = forge(&disk, 8, leaf(&[10, 20]));

    // Without entries.
    refused(0, forge(&disk, 16, leaf(&[])));
    refused(1, forge(&disk, 24, inner(1, vec![])));
    // Levels that do not fall.
    refused(2, forge(&disk, 32, inner(2, vec![(1, good)])));
    refused(1, forge(&disk, 40, inner(1, vec![(1, forge(&disk, 48, inner(1, vec![(1, good)])))])));
    // Keys outside the parent's range, below and above.
    refused(1, forge(&disk, 56, inner(1, vec![(11, good)])));
    refused(1, forge(&disk, 64, inner(1, vec![(1, good), (20, forge(&disk, 72, leaf(&[30])))])));
    // Another tree's node.
    let mut other = leaf(&[1]);
    other[8] = 2;
    refused(0, forge(&disk, 80, other));
    // More than could be split in two, thanks to the prefix.
    let too_many = inner(1, (0..400).map(|i| (i, good)).collect());
    let ptr = forge(&disk, 88, too_many.clone());
    assert!(matches!(Node::decode(TreeId::LIVE, &ptr, &too_many), Err(Error::Damaged(_, Invalid::Bounds))));
    let long = Entries::Leaf(vec![(key(1), value(VALUE_BYTES_MAX + 1, 0))]);
    refused(0, forge(&disk, 96, node::encode(TreeId::LIVE, 0, 1, &long)));
    // A root higher than any tree.
    refused(255, good);

    // A thin chain is odd but harmless.
    let mut ptr = good;
    for level in 1..=30 {
        ptr = forge(&disk, 100 + u64::from(level) * 8, inner(level, vec![(1, ptr)]));
    }
    assert!(use_all(&disk, &forged_root(30, ptr), 50));
}
