//! Index nodes: what is encoded decodes to the same, and nothing else decodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use nenrin_format::items::{EXTENT_UNWRITTEN, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{
    self, Entries, INNER_ENTRY_BYTES, NODE_ROOM_BYTES, NodeHeader, NodePtr, TreeId, VALUE_BYTES_MAX,
};
use nenrin_format::packed::{LEAF_ENTRY_EXTRA, entry_bytes};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::{Addr, Cno, Epoch, Invalid, NODE_BYTES, Seq, Time};
use proptest::prelude::*;

const KINDS: [Kind; 5] = [Kind::Inode, Kind::Extent, Kind::Segment, Kind::Orphan, Kind::Reap];

/// Keys that share anything from no byte to almost all.
fn key() -> impl Strategy<Value = Key> {
    let number = || prop_oneof![0u64..4, any::<u64>(), Just(u64::MAX)];
    (number(), 0usize..KINDS.len(), 0u32..3, number(), prop_oneof![Just(0), number()])
        .prop_map(|(ino, kind, fork, off, death)| Key { ino, kind: KINDS[kind], fork, off, death })
}

/// Extents of all forms, some of which no writer makes.
fn extent() -> impl Strategy<Value = Extent> {
    let addr = prop_oneof![3 => 0u64..1 << 62, 2 => 0u64..1 << 32, 1 => any::<u64>(), 1 => Just(Addr::NONE.0)];
    let shape = (1u32..=256, prop_oneof![2 => Just(0u8), 1 => 0u8..16], 0u8..6, 0u32..20, 0u32..20, any::<bool>());
    (prop_oneof![0u64..1000, any::<u64>()], addr, shape, any::<u32>()).prop_map(|(birth, addr, shape, crc)| {
        let (blocks, flags, granule_shift, lead, tail, single) = shape;
        let (birth, addr) = (Cno(birth), Addr(addr));
        if single {
            return Extent { birth, addr, blocks: 1, flags: 0, granule_shift: 0, lead: 0, tail: 0, crcs: vec![crc] };
        }
        let count = if flags & EXTENT_UNWRITTEN != 0 { 0 } else { (lead + blocks + tail) >> granule_shift };
        Extent { birth, addr, blocks, flags, granule_shift, lead, tail, crcs: vec![crc; count as usize] }
    })
}

fn entries() -> impl Strategy<Value = (u8, Entries)> {
    let value = || {
        prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..100),
            3 => extent().prop_map(|e| e.encode()),
            1 => prop::collection::vec(any::<u8>(), 0..=VALUE_BYTES_MAX)
        ]
    };
    let leaf = prop::collection::btree_map(key(), value(), 0..80).prop_map(|map| {
        let mut bytes = 0;
        let base = map.first_key_value().map(|(k, _)| *k);
        let fits = |(k, v): &(Key, Vec<u8>)| {
            bytes += entry_bytes(base.as_ref().unwrap_or(k), k, v);
            bytes <= NODE_ROOM_BYTES
        };
        let v = map.into_iter().take_while(fits).map(|(k, v)| (k, Arc::from(v)));
        (0, Entries::Leaf(v.collect()))
    });
    let ptr =
        (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(a, b, crc)| NodePtr { copies: [Addr(a), Addr(b)], crc });
    let most = (NODE_BYTES - NodeHeader::BYTES) / INNER_ENTRY_BYTES;
    let inner = (1u8.., prop::collection::btree_map(key(), ptr, 0..=most))
        .prop_map(|(level, map): (u8, BTreeMap<_, _>)| (level, Entries::Inner(map.into_iter().collect())));
    prop_oneof![leaf, inner]
}

proptest! {
    #[test]
    fn round_trip((level, entries) in entries(), tree in any::<u32>(), generation in any::<u64>()) {
        let bytes = node::encode(TreeId(tree), level, generation, &entries);
        prop_assert_eq!(bytes.len(), NODE_BYTES);
        let (h, back) = node::decode(TreeId(tree), &bytes).unwrap();
        prop_assert_eq!((h.level, h.generation.get(), h.tree.get()), (level, generation, tree));
        prop_assert_eq!(Some(h.crc.get()), node::stored_crc(&bytes));
        let first = match &entries {
            Entries::Leaf(v) => v.first().map(|e| e.0),
            Entries::Inner(v) => v.first().map(|e| e.0),
        };
        prop_assert_eq!(node::first_key(&bytes).map(|(h, key)| (h.level, key)), Ok((level, first)));
        prop_assert_eq!(back, entries);
        prop_assert!(node::decode(TreeId(tree ^ 1), &bytes).is_err());
    }

    /// A changed byte is seen by the checksum; with a checksum made to fit,
    /// what decodes has keys in order, and nothing panics.
    #[test]
    fn changed_bytes((level, entries) in entries(), edits in prop::collection::vec((0usize..NODE_BYTES, any::<bool>(), 1u8..), 1..6)) {
        let mut bytes = node::encode(TreeId::LIVE, level, 1, &entries);
        let kept = bytes.clone();
        for (at, near, x) in edits {
            bytes[if near { at % 100 } else { at }] ^= x;
        }
        if bytes != kept {
            prop_assert!(node::decode(TreeId::LIVE, &bytes).is_err());
            prop_assert!(node::first_key(&bytes).is_err());
        }
        let crc = nenrin_format::own_crc(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        match node::decode(TreeId::LIVE, &bytes) {
            Ok((_, Entries::Leaf(v))) => prop_assert!(v.is_sorted_by(|a, b| a.0 < b.0)),
            Ok((_, Entries::Inner(v))) => prop_assert!(v.is_sorted_by(|a, b| a.0 < b.0)),
            Err(_) => {}
        }
    }

    /// Byte order is key order.
    #[test]
    fn keys((a, b) in (key(), key())) {
        prop_assert_eq!(a.cmp(&b), a.encode().cmp(&b.encode()));
        prop_assert_eq!(Key::decode(&a.encode()), Ok(a));
        if let Some(next) = a.successor() {
            prop_assert!(a < next && (b <= a || next <= b || (b.ino, b.kind, b.fork) > (a.ino, a.kind, a.fork)));
        }
    }
}

#[test]
fn sizes_are_what_entries_take() {
    let used = |entries: Vec<(Key, Arc<[u8]>)>| {
        let bytes: usize = entries.iter().map(|(k, v)| entry_bytes(&entries[0].0, k, v)).sum();
        let (h, back) =
            node::decode(TreeId::LIVE, &node::encode(TreeId::LIVE, 0, 1, &Entries::Leaf(entries.clone()))).unwrap();
        assert_eq!(back, Entries::Leaf(entries));
        assert_eq!(h.used_bytes.get() as usize, NodeHeader::BYTES + Key::BYTES + bytes);
        bytes
    };
    let (low, high) =
        (Key::space(Kind::Inode, 0, 0), Key { ino: u64::MAX, ..Key::space(Kind::last(), u32::MAX, u64::MAX) });
    let (short, long): (Arc<[u8]>, Arc<[u8]>) = ([1; 10].into(), [2; VALUE_BYTES_MAX].into());
    let most = used(vec![(low, short.clone()), (high.died(u64::MAX), long.clone())]) - 13;
    assert_eq!(most, LEAF_ENTRY_EXTRA + VALUE_BYTES_MAX, "an entry that shares nothing with the first");
    // Three of the longest values fit in any leaf.
    assert!(3 * most <= NODE_ROOM_BYTES);
    // One block of a large file on a large volume: form, offset, birth, segment and block, checksum.
    let extent = |off| {
        let key = Key::new(nenrin_format::Ino(77), Kind::Extent, 2, off);
        let addr = Addr((60_000 << Addr::BLOCK_BITS) | 4000);
        let e =
            Extent { birth: Cno(9000), addr, blocks: 1, flags: 0, granule_shift: 0, lead: 0, tail: 0, crcs: vec![7] };
        (key, Arc::from(e.encode()))
    };
    assert_eq!(used(vec![extent(1 << 40)]), 1 + 1 + 2 + 5 + 4);
    assert_eq!(used(vec![extent(1 << 40), extent((1 << 40) + 10_000)]), 13 + 14);
}

#[test]
fn each_check_has_its_verdict() {
    let good = node::encode(TreeId::LIVE, 0, 1, &Entries::Leaf(vec![(Key::space(Kind::Inode, 1, 1), [7; 3].into())]));
    let verdict = |at: usize, to: u8, seal: bool| {
        let mut b = good.clone();
        b[at] = to;
        if seal {
            let crc = nenrin_format::own_crc(&b);
            b[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        node::decode(TreeId::LIVE, &b).map(|_| ())
    };
    assert_eq!(verdict(0, 0, true), Err(Invalid::Magic));
    assert_eq!(verdict(16000, 1, false), Err(Invalid::Checksum));
    assert_eq!(verdict(8, 9, true), Err(Invalid::Kind(9)));
    assert_eq!(verdict(15, 30, true), Err(Invalid::Bounds), "prefix");
    assert_eq!(verdict(15, 28, true), Err(Invalid::Bounds), "a leaf without its first key");
    assert_eq!(verdict(17, 0xff, true), Err(Invalid::Bounds), "used");
    assert_eq!(verdict(12, 0, true), Err(Invalid::Bounds), "count too small");
    assert_eq!(verdict(12, 2, true), Err(Invalid::Short), "count too large");
    let entry = NodeHeader::BYTES + Key::BYTES;
    assert_eq!(verdict(entry, 0x21, true), Err(Invalid::Bounds), "a form that means nothing");
    assert_eq!(verdict(entry, 0x05, true), Err(Invalid::Kind(1)), "an extent under the key of an inode");
    assert_eq!(verdict(entry, 0x09, true), Err(Invalid::Bounds), "parts of an extent, and none");
    assert_eq!(
        verdict(entry + 1, 1, true),
        Err(Invalid::Order),
        "the first entry has another key than the leaf begins with"
    );
    let mut long = good.clone();
    long[entry + 1..entry + 3].copy_from_slice(&[0x80, 0]);
    let crc = nenrin_format::own_crc(&long);
    long[4..8].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(
        node::decode(TreeId::LIVE, &long).map(|_| ()),
        Err(Invalid::Bounds),
        "a number in more bytes than it takes"
    );
    assert_eq!(node::decode(TreeId::LIVE, &good[1..]).map(|_| ()), Err(Invalid::Short));
}

/// What a row with parity gives in place of a missing unit while it is being written anew: it must seem to be nothing.
#[test]
fn three_of_them_together_are_none() {
    let together =
        |[a, b, c]: [Vec<u8>; 3]| -> Vec<u8> { a.iter().zip(&b).zip(&c).map(|((a, b), c)| a ^ b ^ c).collect() };
    let one =
        |n: u64| node::encode(TreeId::LIVE, 0, n, &Entries::Leaf(vec![(Key::space(Kind::Inode, 1, n), [7; 3].into())]));
    assert!(!node::verify(&together([1, 2, 4].map(one))));
    let summary = |seq: u64| {
        let header = Header {
            kind: PartialKind::Chain,
            flags: 0,
            summary_blocks: 1,
            uuid: [5; 16],
            epoch: Epoch(3),
            seq: Seq(seq),
            addr: Addr(seq),
            prev_addr: Addr(seq - 1),
            prev_crc: seq as u32,
            payload_crc: 0,
            durable_seq: Seq(seq - 1),
            open_cno: Cno(1),
            written_at: Time(seq as i64),
            record_bytes: 0,
            map_count: 0,
            payload_blocks: 0,
            left_out: 0,
            next: None,
            mount_id: 0,
        };
        header.encode(&[], &[]).0
    };
    let three = together([8, 16, 32].map(summary));
    assert_eq!(Header::peek(&three).map(|h| h.seq), Ok(Seq(56)));
    assert_eq!(Header::decode(&three).map(drop), Err(Invalid::Checksum));
}

#[test]
fn mixed_is_undone() {
    for x in [0, 1, 0xdead_beef, u32::MAX, 0x8000_0000] {
        assert_eq!(nenrin_format::unmixed(nenrin_format::mixed(x)), x);
    }
}
