//! Images that each put one number where it does the most harm: what a random change finds once in thousands of
//! images. Made of a volume in the middle of work, so that recovery has something to replay.

use crate::{alter, forge, volume};
use nenrin_device::{AlignedBuf, BlockDevice, CrashDisk, Image};
use nenrin_format::node::{self, NODE_MAGIC};
use nenrin_format::partial::{Header, LOGICAL_BEGIN, LOGICAL_END, PartialHeader, PartialKind};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::root::Root;
use nenrin_format::superblock::{Band, NUMBERS_UNUSED_MAX, Superblock, UNIT_BLOCKS};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, COUNTER_MAX, Ino, NODE_BYTES, SegmentNo, Time};
use std::sync::Arc;

/// Segments that a superblock of [`more_segments_than_room`] states.
const SEGMENTS: u64 = 1 << 21;
/// Where a Content record has its first step: type, inode, size, two times, editor, count.
const FIRST_STEP: usize = 1 + 4 * 8 + 2 * 4;

/// A number that no counting leads to.
const FAR: u64 = 1 << 60;

/// The volume that is changed.
fn disk() -> CrashDisk {
    let image = volume::volumes().get(1).cloned().unwrap_or_else(|| Image::zeroed(0));
    CrashDisk::from_image(image).without_history()
}

/// Its slots, each with the block where it lies.
fn slots(disk: &CrashDisk) -> Vec<(u64, Superblock)> {
    let slot = |place| match place {
        alter::Place::Slot(block) => Some((block, Superblock::decode(&read(disk, block, 1)).ok()?)),
        _ => None,
    };
    alter::places(disk).into_iter().filter_map(slot).collect()
}

/// The newest of them.
fn newest(disk: &CrashDisk) -> Option<Superblock> {
    slots(disk).into_iter().map(|(_, slot)| slot).max_by_key(|slot| slot.generation)
}

fn read(disk: &CrashDisk, block: u64, blocks: usize) -> Vec<u8> {
    disk.read(block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES).map_or_else(|_| Vec::new(), |bytes| bytes.to_vec())
}

fn write(disk: &CrashDisk, block: u64, bytes: &[u8]) {
    // These disks take every write within their length.
    drop(disk.write(block * BLOCK_BYTES as u64, Arc::new(AlignedBuf::padded(bytes))));
}

/// Every slot says that the volume has two million segments; the device has room for a hundred.
#[must_use]
pub fn more_segments_than_room() -> Image {
    let disk = disk();
    for (block, mut slot) in slots(&disk) {
        for band in &mut slot.bands {
            band.segments = SEGMENTS;
        }
        // As long as that takes: bands beyond their devices are refused before.
        for index in 0..slot.devices.len() {
            let blocks = slot.blocks_needed(index as u16);
            (slot.devices[index].blocks, slot.devices[index].target_blocks) = (blocks, blocks);
        }
        write(&disk, block, &slot.encode());
    }
    disk.current()
}

/// The last segment has a number far from those of the others, and what the log says is damaged.
#[must_use]
pub fn numbers_far_apart() -> Image {
    let disk = CrashDisk::from_image(extents_behind_every_file()).without_history();
    for (block, mut slot) in slots(&disk) {
        let Some(band) = slot.bands.first_mut() else { continue };
        band.segments -= 1;
        let units = band.segments as u32 * slot.segment_blocks / UNIT_BLOCKS;
        let members = band.members.iter().map(|(device, start)| (*device, start + units)).collect();
        let far = Band { first: SegmentNo(NUMBERS_UNUSED_MAX), segments: 1, members, ..band.clone() };
        slot.bands.push(far);
        write(&disk, block, &slot.encode());
    }
    disk.current()
}

/// A counter of the newest root is at its limit.
#[must_use]
pub fn counters_at_their_limits() -> Vec<Image> {
    let of_slots: [fn(&mut Superblock); 3] = [
        |slot| slot.generation.0 = COUNTER_MAX,
        |slot| slot.epoch.0 = COUNTER_MAX,
        |slot| slot.mounted_nanos = (COUNTER_MAX << 8) + 255,
    ];
    let of_roots: [fn(&mut Root); 5] = [
        |root| root.next_ino.0 = COUNTER_MAX,
        |root| root.open_cno.0 = COUNTER_MAX,
        |root| root.inodes = COUNTER_MAX,
        |root| root.live_blocks = COUNTER_MAX,
        |root| root.trees.iter_mut().for_each(|t| t.nodes = COUNTER_MAX),
    ];
    of_slots.into_iter().map(with_newest_slot).chain(of_roots.into_iter().map(with_newest_root)).collect()
}

fn with_newest_slot(change: fn(&mut Superblock)) -> Image {
    let disk = disk();
    let generation = newest(&disk).map(|slot| slot.generation);
    for (block, mut slot) in slots(&disk).into_iter().filter(|(_, slot)| Some(slot.generation) == generation) {
        change(&mut slot);
        write(&disk, block, &slot.encode());
    }
    disk.current()
}

fn with_newest_root(change: fn(&mut Root)) -> Image {
    let disk = disk();
    for (slot, (addr, crc)) in newest(&disk).iter().flat_map(|slot| slot.root.map(|root| (slot, root))) {
        let Some(block) = slot.block_alone(addr) else { continue };
        let mut bytes = read(&disk, block, slot.root_blocks as usize);
        let Some(mut root) = Header::decode(&bytes).ok().and_then(|s| Root::decode(s.records).ok()) else { continue };
        change(&mut root);
        let records = root.encode();
        bytes[PartialHeader::BYTES..PartialHeader::BYTES + records.len()].copy_from_slice(&records);
        forge::forge(&mut bytes, crc);
        write(&disk, block, &bytes);
    }
    disk.current()
}

/// The log goes on with a partial of an epoch that no root can state.
#[must_use]
pub fn an_epoch_beyond_all() -> Image {
    with_one_more(|header| header.epoch.0 = FAR, &Record::Mark)
}

/// The log goes on with an inode whose number no root can state.
#[must_use]
pub fn an_inode_beyond_all() -> Image {
    let record = Record::Create {
        parent: Ino::ROOT,
        ino: Ino(COUNTER_MAX),
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        rdev: 0,
        time: Time(0),
        name: b"far",
        target: b"",
    };
    with_one_more(|_| {}, &record)
}

/// The log with one more partial, in the segment that the last one names as next.
fn with_one_more(change: impl Fn(&mut Header), record: &Record<'_>) -> Image {
    let disk = disk();
    let chain = |place| match place {
        alter::Place::Summary(block, blocks) => {
            let bytes = read(&disk, block, blocks as usize);
            Header::decode(&bytes).ok().map(|s| (s.header, s.crc)).filter(|(h, _)| h.kind == PartialKind::Chain)
        }
        _ => None,
    };
    let all: Vec<(Header, u32)> = alter::places(&disk).into_iter().filter_map(chain).collect();
    let Some(slot) = newest(&disk) else { return disk.current() };
    let (mut at, mut last) = ((slot.chain_last, slot.chain_crc), None);
    while let Some((header, crc)) = all.iter().find(|(h, _)| (h.prev_addr, h.prev_crc) == at) {
        at = (header.addr, *crc);
        last = Some(header);
    }
    if let Some((last, next)) = last.and_then(|last| Some((last, last.next?))) {
        let addr = Addr::new(next, 0);
        let mut header = Header {
            flags: LOGICAL_BEGIN | LOGICAL_END,
            seq: last.seq.next(),
            addr,
            prev_addr: at.0,
            prev_crc: at.1,
            payload_crc: 0,
            payload_blocks: 0,
            left_out: 0,
            next: None,
            ..last.clone()
        };
        change(&mut header);
        let mut records = Vec::new();
        record.encode_into(&mut records);
        if let Some(block) = slot.block_alone(addr) {
            write(&disk, block, &header.encode(&records, &[]).0);
        }
    }
    disk.current()
}

/// No copy of any leaf has the checksum that its parent states.
#[must_use]
pub fn no_leaf_is_right() -> Image {
    let disk = disk();
    for place in alter::places(&disk) {
        let alter::Place::Node(block) = place else { continue };
        let mut bytes = read(&disk, block, NODE_BYTES / BLOCK_BYTES);
        if bytes.len() == NODE_BYTES && bytes[..4] == NODE_MAGIC.to_le_bytes() && bytes[14] == 0 && node::verify(&bytes)
        {
            bytes[NODE_BYTES - 1] ^= 1;
            write(&disk, block, &bytes);
        }
    }
    disk.current()
}

/// Every record of the log that places an extent places it behind the end of the largest file.
#[must_use]
pub fn extents_behind_every_file() -> Image {
    with_first_steps(|step| matches!(step, ContentOp::Extent(..)).then_some((0, u64::MAX - 3)))
}

/// Every record of the log that cuts a range out of a file says that the range has no blocks.
#[must_use]
pub fn empty_ranges() -> Image {
    with_first_steps(|step| matches!(step, ContentOp::Hole(..)).then_some((8, 0)))
}

/// The records of the log with another number in their first step where `change` gives one, behind the step's type.
fn with_first_steps(change: impl Fn(&ContentOp<'_>) -> Option<(usize, u64)>) -> Image {
    let disk = disk();
    for place in alter::places(&disk) {
        let alter::Place::Summary(block, blocks) = place else { continue };
        let mut bytes = read(&disk, block, blocks as usize);
        let Ok(found) = Header::decode(&bytes) else { continue };
        let (crc, used) = (found.crc, PartialHeader::BYTES + found.records.len() + found.map.len() * 32);
        let mut changes = Vec::new();
        let mut r = Reader::new(found.records);
        while !r.is_empty() {
            let start = found.records.len() - r.rest().len();
            let Ok(record) = Record::decode(&mut r) else { break };
            let Record::Content { ops, .. } = record else { continue };
            let changed = ops.first().and_then(&change);
            changes.extend(changed.map(|(at, number)| (PartialHeader::BYTES + start + FIRST_STEP + 1 + at, number)));
        }
        if !changes.is_empty() && used + 4 <= bytes.len() {
            for (at, number) in changes {
                bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            // The same checksum as before, so that the next partial still fits.
            forge::forge(&mut bytes, crc);
            write(&disk, block, &bytes);
        }
    }
    disk.current()
}
