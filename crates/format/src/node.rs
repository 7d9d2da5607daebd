//! Index nodes: 16 KiB, sorted entries, checksummed by the pointer to them and
//! by themselves.
//!
//! Layout: [`NodeHeader`], a key or a part of one, then the entries in order. A
//! leaf has its first key there, and [`crate::packed`] entries. An inner node has
//! the prefix common to all its keys; an entry is `key suffix | NodePtr`, where
//! the key is the smallest of the child. Key bytes are big-endian
//! ([`Key::encode`]), so comparing bytes compares keys.

use std::sync::Arc;

use crate::disk_struct;
use crate::key::Key;
use crate::layout::le::{U16, U32, U64};
use crate::wire::Reader;
use crate::{Addr, Invalid, NODE_BYTES, packed};

/// "NNOD".
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"NNOD");

disk_struct! {
    /// Start of every index node.
    pub struct NodeHeader [40] {
        /// [`NODE_MAGIC`].
        pub magic: U32,
        /// Checksum of the whole node, mixed.
        pub crc: U32,
        /// Which tree: see [`TreeId`].
        pub tree: U32,
        /// Entries in the node.
        pub count: U16,
        /// 0 for a leaf.
        pub level: u8,
        /// Bytes of the common key prefix; of a leaf the whole first key.
        pub prefix_bytes: u8,
        /// Bytes used, header included.
        pub used_bytes: U32,
        /// Must be zero.
        pub reserved: U32,
        /// Generation of the index checkpoint that wrote it.
        pub generation: U64,
        /// Must be zero.
        pub reserved2: U64,
    }
}

disk_struct! {
    /// Pointer to an index node: both copies and the checksum they must have.
    pub struct NodePtrDisk [24] {
        /// Address of the first copy.
        pub first: U64,
        /// Address of the second copy, in another segment.
        pub second: U64,
        /// The checksum that the node carries.
        pub crc: U32,
        /// Must be zero.
        pub reserved: U32,
    }
}

/// Which tree a node belongs to: 1 live, 2 space, from 16 on history trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(pub u32);

impl TreeId {
    /// The live tree.
    pub const LIVE: Self = Self(1);
    /// The space tree.
    pub const SPACE: Self = Self(2);
    /// The first history tree.
    pub const HISTORY: Self = Self(16);
}

/// Pointer to an index node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodePtr {
    /// The two copies, in different segments.
    pub copies: [Addr; 2],
    /// The checksum that it carries, equal for both.
    pub crc: u32,
}

impl NodePtr {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> NodePtrDisk {
        let mut d = NodePtrDisk::zeroed();
        d.first.set(self.copies[0].0);
        d.second.set(self.copies[1].0);
        d.crc.set(self.crc);
        d
    }
    /// From bytes.
    #[must_use]
    pub fn decode(d: &NodePtrDisk) -> Self {
        Self { copies: [Addr(d.first.get()), Addr(d.second.get())], crc: d.crc.get() }
    }
}

/// The entries of a decoded node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Level 0: keys and values.
    Leaf(Vec<(Key, Arc<[u8]>)>),
    /// Above: smallest key of each child and where it is.
    Inner(Vec<(Key, NodePtr)>),
}

/// Bytes that the entries of a node may take.
pub const NODE_ROOM_BYTES: usize = NODE_BYTES - NodeHeader::BYTES - Key::BYTES;

/// Encoded size of an inner entry, ignoring the prefix.
pub const INNER_ENTRY_BYTES: usize = Key::BYTES + NodePtrDisk::BYTES;

/// Longest value an item may have, so that every leaf holds at least three.
pub const VALUE_BYTES_MAX: usize = 4600;

fn common_prefix(a: &[u8; Key::BYTES], b: &[u8; Key::BYTES]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Encodes a node of `tree` and returns its 16 KiB with the checksum set.
///
/// # Panics
/// When the entries do not fit: the caller splits nodes before that.
#[must_use]
pub fn encode(tree: TreeId, level: u8, generation: u64, entries: &Entries) -> Vec<u8> {
    let mut out = vec![0; NodeHeader::BYTES];
    out.reserve_exact(NODE_BYTES - NodeHeader::BYTES);
    let (prefix, count) = match entries {
        Entries::Leaf(v) => {
            let base = v.first().map(|(k, _)| *k);
            out.extend(base.into_iter().flat_map(|k| k.encode()));
            for (k, val) in v {
                packed::put_entry(&mut out, base.as_ref().unwrap_or(k), k, val);
            }
            (if v.is_empty() { 0 } else { Key::BYTES }, v.len())
        }
        Entries::Inner(v) => {
            // Sorted keys share what the first and the last share.
            let ends = v.first().zip(v.last()).map(|(a, b)| (a.0.encode(), b.0.encode()));
            let prefix = ends.map_or(0, |(a, b)| common_prefix(&a, &b));
            out.extend(ends.into_iter().flat_map(|(a, _)| a).take(prefix));
            for (k, p) in v {
                out.extend_from_slice(&k.encode()[prefix..]);
                out.extend_from_slice(p.encode().bytes());
            }
            (prefix, v.len())
        }
    };
    assert!(out.len() <= NODE_BYTES, "node overflow: {} bytes", out.len());
    let mut h = NodeHeader::zeroed();
    h.magic.set(NODE_MAGIC);
    h.tree.set(tree.0);
    h.count.set(count as u16);
    h.level = level;
    h.prefix_bytes = prefix as u8;
    h.used_bytes.set(out.len() as u32);
    h.generation.set(generation);
    out.resize(NODE_BYTES, 0);
    out[..NodeHeader::BYTES].copy_from_slice(h.bytes());
    crate::set_own_crc(&mut out);
    out
}

/// The checksum a node carries, as its pointers must have it.
#[must_use]
pub fn stored_crc(bytes: &[u8]) -> Option<u32> {
    let b: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
    Some(u32::from_le_bytes(b))
}

/// Whether the node's bytes have the checksum they carry.
#[must_use]
pub fn verify(bytes: &[u8]) -> bool {
    if bytes.len() != NODE_BYTES {
        return false;
    }
    stored_crc(bytes) == Some(crate::own_crc(bytes))
}

/// The header of a node and its smallest key, if it has any, without its entries: for who looks for the node in a tree.
///
/// # Errors
/// [`Invalid`]: size, magic, checksum, bounds, the key.
pub fn first_key(bytes: &[u8]) -> Result<(NodeHeader, Option<Key>), Invalid> {
    let (h, mut r) = open(bytes)?;
    if h.count.get() == 0 {
        return Ok((h, None));
    }
    // A leaf has it in one piece, an inner node as what all keys share and what its first entry adds.
    Ok((h, Some(Key::decode(r.take(Key::BYTES)?.try_into().map_err(|_| Invalid::Bounds)?)?)))
}

/// The header of a node whose checksum is right, and what comes behind it.
fn open(bytes: &[u8]) -> Result<(NodeHeader, Reader<'_>), Invalid> {
    if bytes.len() != NODE_BYTES {
        return Err(Invalid::Short);
    }
    let (h, _) = NodeHeader::read_prefix(bytes)?;
    if h.magic.get() != NODE_MAGIC {
        return Err(Invalid::Magic);
    }
    if !verify(bytes) {
        return Err(Invalid::Checksum);
    }
    let used = h.used_bytes.get() as usize;
    if used > NODE_BYTES || usize::from(h.prefix_bytes) > Key::BYTES {
        return Err(Invalid::Bounds);
    }
    Ok((h, Reader::new(bytes.get(NodeHeader::BYTES..used).ok_or(Invalid::Bounds)?)))
}

/// Verifies and decodes a node.
///
/// # Errors
/// One [`Invalid`] for each check: size, magic, checksum, tree, bounds, order.
pub fn decode(tree: TreeId, bytes: &[u8]) -> Result<(NodeHeader, Entries), Invalid> {
    let (h, mut r) = open(bytes)?;
    if h.tree.get() != tree.0 {
        return Err(Invalid::Kind(h.tree.get() as u8));
    }
    let prefix_bytes = usize::from(h.prefix_bytes);
    let mut key_bytes = [0; Key::BYTES];
    key_bytes[..prefix_bytes].copy_from_slice(r.take(prefix_bytes)?);
    // The count is bounded by the bytes: each entry takes at least two.
    let count = usize::from(h.count.get()).min(NODE_BYTES / 2);
    let follows =
        |last: Option<&Key>, k: &Key| if last.is_some_and(|last| last >= k) { Err(Invalid::Order) } else { Ok(()) };
    let entries = if h.level == 0 {
        if prefix_bytes != if count == 0 { 0 } else { Key::BYTES } {
            return Err(Invalid::Bounds);
        }
        let base = if count == 0 { Key::first() } else { Key::decode(&key_bytes)? };
        let mut v: Vec<(Key, Arc<[u8]>)> = Vec::with_capacity(count);
        for _ in 0..count {
            let (k, value) = packed::take_entry(&mut r, &base)?;
            follows(v.last().map(|e| &e.0), &k)?;
            v.push((k, value));
        }
        if v.first().is_some_and(|(first, _)| *first != base) {
            return Err(Invalid::Order);
        }
        Entries::Leaf(v)
    } else {
        let mut v: Vec<(Key, NodePtr)> = Vec::with_capacity(count);
        for _ in 0..count {
            key_bytes[prefix_bytes..].copy_from_slice(r.take(Key::BYTES - prefix_bytes)?);
            let k = Key::decode(&key_bytes)?;
            follows(v.last().map(|e| &e.0), &k)?;
            let (d, _) = NodePtrDisk::read_prefix(r.take(NodePtrDisk::BYTES)?)?;
            v.push((k, NodePtr::decode(&d)));
        }
        Entries::Inner(v)
    };
    if !r.is_empty() {
        return Err(Invalid::Bounds);
    }
    Ok((h, entries))
}
