//! Targets for every decoder of `nenrin-format`. Each is given the case as it
//! is, and once more with its checksums set right. What decodes must encode to
//! something that decodes to the same.

use crate::forge;
use nenrin_format::heartbeat::{HEARTBEAT_MAGIC, Heartbeat, HeartbeatDisk};
use nenrin_format::items::{self, Checkpoint, Dirent, Extent, Inode, Reap, Segment, XattrPiece};
use nenrin_format::key::Key;
use nenrin_format::node::{self, NODE_MAGIC, TreeId};
use nenrin_format::packed;
use nenrin_format::partial::{Header, PARTIAL_MAGIC};
use nenrin_format::records::Record;
use nenrin_format::root::Root;
use nenrin_format::row_log::{ROW_LOG_MAGIC, RowLog, RowLogDisk};
use nenrin_format::superblock::{SUPERBLOCK_MAGIC, SlotDisk, Superblock};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BYTES, SegmentNo};

type Done = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, first: &T, again: Result<T, nenrin_format::Invalid>) -> Done {
    match again {
        Ok(again) if again == *first => Ok(()),
        other => Err(format!("{what} decodes to {first:?}, and encoded again to {other:?}")),
    }
}

/// What has a fixed place on a device: root slots, heartbeats, the row log.
///
/// # Errors
/// What is wrong; so for all targets.
pub fn slot(case: &[u8]) -> Done {
    drop(Superblock::decode(case));
    let mut bytes = case.to_vec();
    bytes.resize(BLOCK_BYTES, 0);
    bytes[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    let crc = forge::checksum(&bytes[..SlotDisk::BYTES], 8);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    if let Ok(sb) = Superblock::decode(&bytes) {
        same("a slot", &sb, Superblock::decode(&sb.encode()))?;
    }
    heartbeat(case)?;
    row_log(case)
}

fn heartbeat(case: &[u8]) -> Done {
    drop(Heartbeat::decode(case));
    let mut bytes = case.to_vec();
    bytes.resize(BLOCK_BYTES, 0);
    bytes[..8].copy_from_slice(&HEARTBEAT_MAGIC);
    let crc = forge::checksum(&bytes[..HeartbeatDisk::BYTES], 8);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    match Heartbeat::decode(&bytes) {
        Ok(Some(beat)) => same("a heartbeat", &Some(beat.clone()), Heartbeat::decode(&beat.encode())),
        _ => Ok(()),
    }
}

fn row_log(case: &[u8]) -> Done {
    let mut bytes = case.to_vec();
    bytes.resize(BLOCK_BYTES, 0);
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[8..24]);
    let _ = RowLog::decode(case, uuid);
    bytes[..4].copy_from_slice(&ROW_LOG_MAGIC.to_le_bytes());
    let crc = forge::checksum(&bytes[..RowLogDisk::BYTES], 4);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    match RowLog::decode(&bytes, uuid) {
        Ok(log) => same("a block of the row log", &log, RowLog::decode(&log.encode(uuid), uuid)),
        Err(_) => Ok(()),
    }
}

/// Headers and summaries of partial segments.
///
/// # Errors
/// What is wrong.
pub fn partial(case: &[u8]) -> Done {
    drop(Header::peek(case));
    drop(Header::decode(case));
    let mut bytes = case.to_vec();
    bytes.resize(case.len().next_multiple_of(BLOCK_BYTES).clamp(BLOCK_BYTES, 64 * BLOCK_BYTES), 0);
    bytes[..4].copy_from_slice(&PARTIAL_MAGIC.to_le_bytes());
    bytes[8..10].copy_from_slice(&nenrin_format::features::VERSION.to_le_bytes());
    let blocks = (bytes.len() / BLOCK_BYTES) as u32;
    bytes[12..16].copy_from_slice(&blocks.to_le_bytes());
    let crc = nenrin_format::own_crc(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let Ok(summary) = Header::decode(&bytes) else { return Ok(()) };
    // What readers derive from it.
    let _ = (summary.header.total_blocks(), summary.header.payload_addr());
    all_records(summary.records)?;
    drop(Root::decode(summary.records));
    let (again, _) = summary.header.encode(summary.records, &summary.map);
    let header = Header::decode(&again).map(|s| Header { summary_blocks: blocks, ..s.header });
    same("a summary", &summary.header, header)
}

fn all_records(bytes: &[u8]) -> Done {
    let mut r = Reader::new(bytes);
    while !r.is_empty() {
        let Ok(record) = Record::decode(&mut r) else { return Ok(()) };
        let mut again = Vec::new();
        record.encode_into(&mut again);
        same("a record", &record, Record::decode(&mut Reader::new(&again)))?;
    }
    Ok(())
}

/// Records of the chain.
///
/// # Errors
/// What is wrong.
pub fn records(case: &[u8]) -> Done {
    all_records(case)
}

/// Roots of index checkpoints.
///
/// # Errors
/// What is wrong.
pub fn root(case: &[u8]) -> Done {
    match Root::decode(case) {
        Ok(root) => same("a root", &root, Root::decode(&root.encode())),
        Err(_) => Ok(()),
    }
}

/// Index nodes.
///
/// # Errors
/// What is wrong.
pub fn node(case: &[u8]) -> Done {
    if node::decode(TreeId::LIVE, case).is_ok() && node::first_key(case).is_err() {
        return Err("a node decodes, but its first key does not".to_owned());
    }
    let mut bytes = case.to_vec();
    bytes.resize(NODE_BYTES, 0);
    bytes[..4].copy_from_slice(&NODE_MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&TreeId::LIVE.0.to_le_bytes());
    let crc = nenrin_format::own_crc(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    if !node::verify(&bytes) {
        return Err("a node with its checksum set right does not verify".to_owned());
    }
    let Ok((header, entries)) = node::decode(TreeId::LIVE, &bytes) else { return Ok(()) };
    let first = match &entries {
        node::Entries::Leaf(v) => v.first().map(|e| e.0),
        node::Entries::Inner(v) => v.first().map(|e| e.0),
    };
    same("the first key of a node", &first, node::first_key(&bytes).map(|(_, key)| key))?;
    if let node::Entries::Leaf(v) = &entries {
        for (_, value) in v {
            items(value)?;
        }
    }
    // The index refuses what would not fit without the common prefix.
    let size: usize = match &entries {
        node::Entries::Leaf(v) => v.iter().map(|(k, value)| packed::entry_bytes(&v[0].0, k, value)).sum(),
        node::Entries::Inner(v) => v.len() * node::INNER_ENTRY_BYTES,
    };
    if size > node::NODE_ROOM_BYTES {
        return Ok(());
    }
    let again = node::encode(TreeId::LIVE, header.level, header.generation.get(), &entries);
    same("a node", &entries, node::decode(TreeId::LIVE, &again).map(|(_, e)| e))
}

/// Values and keys of items.
///
/// # Errors
/// What is wrong.
pub fn items(case: &[u8]) -> Done {
    if let Ok(v) = Inode::decode(case) {
        same("an inode", &v, Inode::decode(&v.encode()))?;
    }
    if let Ok(v) = Dirent::decode(case) {
        same("an entry", &v, Dirent::decode(&v.encode()))?;
    }
    if let Ok(v) = XattrPiece::decode(case) {
        same("an attribute", &v, XattrPiece::decode(&v.encode()))?;
    }
    if let Ok(v) = Extent::decode(case) {
        slices(&v)?;
        same("an extent", &v, Extent::decode(&v.encode()))?;
    }
    if let Ok(v) = Segment::decode(case) {
        same("a segment", &v, Segment::decode(&v.encode()))?;
    }
    if let Ok(v) = Checkpoint::decode(case) {
        same("a checkpoint", &v, Checkpoint::decode(&v.encode()))?;
    }
    if let Ok(v) = Reap::decode(case) {
        same("a reap item", &v, Reap::decode(&v.encode()))?;
    }
    let _ = (items::birth(case), items::decode_bytes(case));
    if let Some(Ok(key)) = case.first_chunk().map(Key::decode) {
        let _ = (key.successor(), key.successor_living());
        same("a key", &key, Key::decode(&key.encode()))?;
    }
    Ok(())
}

/// Every part of an extent can be had, and is an extent.
fn slices(e: &Extent) -> Done {
    let _ = e.addr.resolve(Addr::new(SegmentNo(3), 5));
    for skip in [0, 1, e.blocks / 2, e.blocks - 1] {
        for blocks in [1, (e.blocks - skip.min(e.blocks - 1)) / 2, e.blocks - skip.min(e.blocks - 1)] {
            if blocks > 0 && skip + blocks <= e.blocks {
                let part = e.slice(skip, blocks);
                same("a part of an extent", &part, Extent::decode(&part.encode()))?;
            }
        }
    }
    Ok(())
}
