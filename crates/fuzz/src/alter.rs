//! Changes of an image that know its structures.
//!
//! A change hits a field of a slot, of the summary of a partial segment, of one
//! of its records, or of an index node or one of its items; then checksums are
//! set right, so that what points to the structure still fits.

use crate::choices::Choices;
use crate::forge;
use crate::volume::SEGMENT_BLOCKS;
use nenrin_device::{AlignedBuf, BlockDevice, CrashDisk};
use nenrin_format::key::{Key, Kind};
use nenrin_format::layout::Layout;
use nenrin_format::node::{Entries, NODE_MAGIC, NODE_ROOM_BYTES, NodeHeader, NodePtrDisk, TreeId};
use nenrin_format::packed::entry_bytes;
use nenrin_format::partial::{Header, PartialHeader, PartialKind};
use nenrin_format::records::Record;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA, SUPERBLOCK_MAGIC, SlotDisk};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS, NODE_BYTES, SegmentNo, items};

/// A structure on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A root slot in this block.
    Slot(u64),
    /// The summary of a partial segment: first block, blocks.
    Summary(u64, u32),
    /// An index node at this block.
    Node(u64),
    /// Any other block that is not all zeros.
    Block(u64),
}

fn read(disk: &CrashDisk, block: u64, blocks: usize) -> AlignedBuf {
    disk.read(block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES)
        .unwrap_or_else(|_| AlignedBuf::zeroed(blocks * BLOCK_BYTES))
}

/// The structures that lie on the device, slots first.
#[must_use]
pub fn places(disk: &CrashDisk) -> Vec<Place> {
    let blocks = disk.geometry().bytes / BLOCK_BYTES as u64;
    let (mut slots, mut known, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for area in [0, blocks - AREA_BLOCKS] {
        for block in area + SLOT_BLOCK..area + SLOT_BLOCK + SLOTS_PER_AREA {
            if read(disk, block, 1)[..8] == SUPERBLOCK_MAGIC {
                slots.push(Place::Slot(block));
            }
        }
    }
    for block in AREA_BLOCKS..blocks - AREA_BLOCKS {
        let bytes = read(disk, block, 1);
        let at = block - AREA_BLOCKS;
        let segment = u64::from(SEGMENT_BLOCKS);
        let here = Addr::new(SegmentNo(at / segment), (at % segment) as u32);
        match Header::peek(&bytes) {
            Ok(h) if h.addr == here => known.push(Place::Summary(block, h.summary_blocks)),
            _ if bytes[..4] == NODE_MAGIC.to_le_bytes() => known.push(Place::Node(block)),
            _ if bytes.iter().any(|b| *b != 0) => others.push(Place::Block(block)),
            _ => {}
        }
    }
    // Slots are few and everything hangs on them.
    slots.extend(known.iter().copied());
    slots.extend(others.into_iter().step_by(8));
    slots
}

/// Changes one structure as `c` chooses; says what it did.
pub fn change(disk: &CrashDisk, places: &[Place], c: &mut Choices<'_>) -> String {
    let Some(place) = pick(places, c) else { return String::new() };
    let (block, blocks) = match place {
        Place::Slot(b) | Place::Block(b) => (b, 1),
        Place::Summary(b, n) => (b, n as usize),
        Place::Node(b) => (b, NODE_BLOCKS as usize),
    };
    let mut bytes = read(disk, block, blocks).to_vec();
    let what = match place {
        Place::Slot(_) => slot(&mut bytes, c),
        Place::Summary(..) => summary(&mut bytes, c),
        Place::Node(_) => node(&mut bytes, c),
        Place::Block(_) => raw(&mut bytes, c),
    };
    // A place near the end of the device may not hold a whole node.
    drop(disk.write(block * BLOCK_BYTES as u64, std::sync::Arc::new(AlignedBuf::padded(&bytes))));
    format!("{place:?}: {what}")
}

/// Kinds of structure are chosen first, so that the few are hit as often as the many.
fn pick(places: &[Place], c: &mut Choices<'_>) -> Option<Place> {
    let wanted = c.byte() % 16;
    let kind = |p: &&Place| match p {
        Place::Slot(_) => wanted < 2,
        Place::Summary(..) => (2..8).contains(&wanted),
        Place::Node(_) => (8..15).contains(&wanted),
        Place::Block(_) => wanted == 15,
    };
    let these: Vec<&Place> = places.iter().filter(kind).collect();
    c.pick(&these).map(|p| **p)
}

/// Puts another number into `width` bytes at `at`.
fn number(bytes: &mut [u8], at: usize, width: usize, c: &mut Choices<'_>) -> String {
    let Some(field) = bytes.get_mut(at..at + width) else { return "nothing".to_owned() };
    let mut old = [0; 8];
    old[..width.min(8)].copy_from_slice(&field[..width.min(8)]);
    let new = c.number(u64::from_le_bytes(old));
    let n = width.min(8);
    field[..n].copy_from_slice(&new.to_le_bytes()[..n]);
    format!("{n} bytes at {at} are {new:#x}")
}

fn field_of(layout: &Layout, c: &mut Choices<'_>) -> (usize, usize) {
    c.pick(layout.fields).map_or((0, 1), |f| (f.offset, f.bytes))
}

/// A field of a struct at `start`. Composite fields are hit somewhere inside.
fn field(bytes: &mut [u8], start: usize, layout: &Layout, c: &mut Choices<'_>) -> String {
    let (offset, width) = field_of(layout, c);
    if width > 8 {
        let inside = c.below(width / 2) * 2;
        let narrow = [1, 2, 4, 8][c.below(4)];
        return number(bytes, start + offset + inside, narrow, c);
    }
    number(bytes, start + offset, width, c)
}

fn slot(bytes: &mut [u8], c: &mut Choices<'_>) -> String {
    let what = field(bytes, 0, &SlotDisk::LAYOUT, c);
    if c.byte() % 8 != 0 {
        let crc = forge::checksum(&bytes[..SlotDisk::BYTES], 8);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    what
}

fn summary(bytes: &mut [u8], c: &mut Choices<'_>) -> String {
    let before = bytes.to_vec();
    let Ok(found) = Header::decode(&before) else { return raw(bytes, c) };
    let used = PartialHeader::BYTES + found.records.len() + found.map.len() * 32;
    let what = match c.byte() % 8 {
        0 | 1 => field(bytes, 0, &PartialHeader::LAYOUT, c),
        _ if found.records.is_empty() => {
            let at = PartialHeader::BYTES + c.below(found.map.len() * 32 / 4) * 4;
            number(bytes, at, [4, 8][c.below(2)], c)
        }
        2 => number(bytes, PartialHeader::BYTES + c.below(found.records.len()), [1, 2, 4, 8][c.below(4)], c),
        _ => {
            // A record, and in it a place where a number may begin.
            let starts = record_starts(found.records);
            let start = c.pick(&starts).copied().unwrap_or(0);
            let at = PartialHeader::BYTES + start + 1 + c.below(24) * 4;
            number(bytes, at.min(bytes.len() - 8), [4, 8, 8, 2][c.below(4)], c)
        }
    };
    settle(bytes, used, found.crc, c);
    what
}

fn record_starts(records: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut r = Reader::new(records);
    while !r.is_empty() {
        starts.push(records.len() - r.rest().len());
        if Record::decode(&mut r).is_err() {
            break;
        }
    }
    starts
}

fn node(bytes: &mut [u8], c: &mut Choices<'_>) -> String {
    if bytes.len() < NODE_BYTES {
        return raw(bytes, c);
    }
    let Ok((head, _)) = NodeHeader::read_prefix(bytes) else { return raw(bytes, c) };
    let used_of = |head: &NodeHeader| (head.used_bytes.get() as usize).clamp(NodeHeader::BYTES + 64, NODE_BYTES);
    let mut used = used_of(&head);
    let what = match c.byte() % 8 {
        0 => field(bytes, 0, &NodeHeader::LAYOUT, c),
        1 => number(bytes, NodeHeader::BYTES + c.below(used - NodeHeader::BYTES - 8), [1, 2, 4, 8][c.below(4)], c),
        _ if head.level > 0 => pointer(bytes, &head, c),
        _ => {
            let what = item(bytes, &head, c);
            used = NodeHeader::read_prefix(bytes).map_or(used, |(head, _)| used_of(&head));
            what
        }
    };
    settle(bytes, used, head.crc.get(), c);
    what
}

/// A key or a pointer of a node above leaves.
fn pointer(bytes: &mut [u8], head: &NodeHeader, c: &mut Choices<'_>) -> String {
    let prefix = usize::from(head.prefix_bytes).min(Key::BYTES);
    let suffix = Key::BYTES - prefix;
    let entry = c.below(usize::from(head.count.get()));
    let at = NodeHeader::BYTES + prefix + entry * (suffix + NodePtrDisk::BYTES);
    if c.byte() % 3 == 0 && suffix > 0 {
        return number(bytes, at + c.below(suffix), 1, c);
    }
    field(bytes, at + suffix, &NodePtrDisk::LAYOUT, c)
}

/// An item of a leaf, which is packed anew.
fn item(bytes: &mut [u8], head: &NodeHeader, c: &mut Choices<'_>) -> String {
    let tree = TreeId(head.tree.get());
    let Ok((_, Entries::Leaf(mut all))) = nenrin_format::node::decode(tree, bytes) else { return raw(bytes, c) };
    if all.is_empty() {
        return "nothing".to_owned();
    }
    let at = c.below(all.len());
    let (mut key, mut value) = (all[at].0.encode(), all[at].1.to_vec());
    let kind = all[at].0.kind;
    let what =
        if c.byte() % 8 == 0 { number(&mut key, c.below(Key::BYTES), 1, c) } else { of_value(&mut value, kind, c) };
    all[at] = (Key::decode(&key).unwrap_or(all[at].0), value.into());
    if all.iter().map(|(k, v)| entry_bytes(&all[0].0, k, v)).sum::<usize>() > NODE_ROOM_BYTES {
        return "nothing".to_owned();
    }
    let again = nenrin_format::node::encode(tree, head.level, head.generation.get(), &Entries::Leaf(all));
    bytes[..NODE_BYTES].copy_from_slice(&again);
    format!("{kind:?}: {what}")
}

/// A field of the value of an item of this kind.
fn of_value(value: &mut [u8], kind: Kind, c: &mut Choices<'_>) -> String {
    let layout = match kind {
        Kind::Inode => items::InodeDisk::LAYOUT,
        Kind::Dirent | Kind::Link => items::DirentDisk::LAYOUT,
        Kind::Xattr => items::XattrDisk::LAYOUT,
        Kind::Extent => items::ExtentDisk::LAYOUT,
        Kind::Segment => items::SegmentDisk::LAYOUT,
        Kind::Checkpoint => items::CheckpointDisk::LAYOUT,
        Kind::Orphan | Kind::Reap => items::ReapDisk::LAYOUT,
        Kind::Landmark => items::LandmarkDisk::LAYOUT,
        Kind::Forget => items::ForgetDisk::LAYOUT,
        Kind::Shed => items::ShedDisk::LAYOUT,
        Kind::Inline | Kind::Symlink | Kind::Backref => return number(value, c.below(value.len()), 1, c),
    };
    field(value, 0, &layout, c)
}

/// Sets the checksum of a summary or node right: by padding, so that nothing
/// else changes, or else by storing the new one, which parts it from its links.
fn settle(bytes: &mut [u8], used: usize, crc: u32, c: &mut Choices<'_>) {
    if used + 4 <= bytes.len() && c.byte() % 8 != 0 {
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        forge::forge(bytes, crc);
    } else {
        let crc = nenrin_format::own_crc(bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn raw(bytes: &mut [u8], c: &mut Choices<'_>) -> String {
    let at = c.below(bytes.len());
    bytes[at] ^= 1 << (c.byte() % 8);
    format!("a bit of byte {at}")
}

/// Structures as they lie on the device, by the target that decodes them.
#[must_use]
pub fn samples(disk: &CrashDisk) -> Vec<(&'static str, Vec<u8>)> {
    let mut out = Vec::new();
    for place in places(disk) {
        match place {
            Place::Slot(block) => out.push(("slot", read(disk, block, 1)[..SlotDisk::BYTES].to_vec())),
            Place::Summary(block, blocks) => {
                let bytes = read(disk, block, blocks as usize).to_vec();
                if let Ok(found) = Header::decode(&bytes) {
                    let what = if found.header.kind == PartialKind::Root { "root" } else { "records" };
                    out.push((what, found.records.to_vec()));
                }
                out.push(("partial", bytes));
            }
            Place::Node(block) => out.push(("node", read(disk, block, NODE_BLOCKS as usize).to_vec())),
            Place::Block(_) => {}
        }
    }
    let items = out.iter().filter(|(what, _)| *what == "node").flat_map(|(_, node)| values(node)).collect::<Vec<_>>();
    out.extend(items.into_iter().map(|value| ("items", value)));
    out.retain(|(_, bytes)| !bytes.is_empty());
    out
}

/// The values of a leaf.
fn values(node: &[u8]) -> Vec<Vec<u8>> {
    let Ok((head, _)) = NodeHeader::read_prefix(node) else { return Vec::new() };
    match nenrin_format::node::decode(TreeId(head.tree.get()), node) {
        Ok((_, Entries::Leaf(v))) => v.iter().map(|(_, value)| value.to_vec()).collect(),
        _ => Vec::new(),
    }
}
