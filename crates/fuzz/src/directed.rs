//! Images that each put one number where it does the most harm: what a random change finds once in thousands of
//! images. Made of a volume in the middle of work, so that recovery has something to replay.

use crate::{alter, forge, volume};
use nenrin_device::{AlignedBuf, BlockDevice, CrashDisk, Image};
use nenrin_format::node::{self, NODE_MAGIC};
use nenrin_format::partial::{Header, PartialHeader};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use nenrin_format::{BLOCK_BYTES, NODE_BYTES};
use std::sync::Arc;

/// Segments that a superblock of [`more_segments_than_room`] states.
const SEGMENTS: u64 = 1 << 21;
/// Where a Content record has its first step: type, inode, size, two times, editor, count.
const FIRST_STEP: usize = 1 + 4 * 8 + 2 * 4;

/// The volume that is changed.
fn disk() -> CrashDisk {
    let image = volume::volumes().get(1).cloned().unwrap_or_else(|| Image::zeroed(0));
    CrashDisk::from_image(image).without_history()
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
    for place in alter::places(&disk) {
        let alter::Place::Slot(block) = place else { continue };
        let Ok(mut slot) = Superblock::decode(&read(&disk, block, 1)) else { continue };
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
