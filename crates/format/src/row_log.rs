//! The row log: copies of what lies in rows that have no parity yet.
//!
//! Each device of a volume with parity begins with [`ROW_LOG_UNITS`] units for it: one with a claim for each slot,
//! then two for the entries of each slot. What an entry holds starts behind its own block.

use crate::disk_struct;
use crate::layout::le::{U32, U64};
use crate::superblock::UNIT_BLOCKS;
use crate::{BLOCK_BYTES, COUNTER_MAX, Invalid, SegmentNo};

/// "NROW" in ASCII, as a little-endian number.
pub const ROW_LOG_MAGIC: u32 = u32::from_le_bytes(*b"NROW");
/// Rows that can have copies at one time.
pub const ROW_SLOTS: u32 = 16;
/// Units of the row log at the start of each device.
pub const ROW_LOG_UNITS: u32 = 1 + 2 * ROW_SLOTS;

disk_struct! {
    /// A claim, or the head of an entry, of the row log: the start of a block.
    pub struct RowLogDisk [80] {
        /// [`ROW_LOG_MAGIC`].
        pub magic: U32,
        /// CRC32C of this with the field zero.
        pub crc: U32,
        /// Identity of the volume.
        pub uuid: [u8; 16],
        /// Number of the use of the slot: higher with each.
        pub number: U64,
        /// Segment of the row; all ones in a claim that ends a use.
        pub segment: U64,
        /// The row within it.
        pub row: U32,
        /// CRC32C of the blocks that follow; 0 in a claim.
        pub payload_crc: U32,
        /// The slot.
        pub slot: u8,
        /// 1 in a claim, 2 in an entry.
        pub kind: u8,
        /// Unit of the row whose blocks follow; 0 in a claim.
        pub unit: u8,
        /// First of these blocks within the unit; 0 in a claim.
        pub block: u8,
        /// How many; 0 in a claim.
        pub blocks: u8,
        /// Must be zero.
        pub reserved: [u8; 27],
    }
}

/// A claim or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLog {
    /// Number of the use of the slot.
    pub number: u64,
    /// The row; `None` in a claim that ends a use.
    pub row: Option<(SegmentNo, u32)>,
    /// The slot.
    pub slot: u8,
    /// What follows, in an entry.
    pub entry: Option<RowEntry>,
}

/// Blocks that an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowEntry {
    /// Unit of the row.
    pub unit: u8,
    /// First block within it.
    pub block: u8,
    /// How many.
    pub blocks: u8,
    /// Their checksum.
    pub payload_crc: u32,
}

impl RowLog {
    /// One block.
    #[must_use]
    pub fn encode(&self, uuid: [u8; 16]) -> Vec<u8> {
        let mut d = RowLogDisk::zeroed();
        d.magic.set(ROW_LOG_MAGIC);
        d.uuid = uuid;
        d.number.set(self.number);
        let (segment, row) = self.row.map_or((u64::MAX, 0), |(s, r)| (s.0, r));
        d.segment.set(segment);
        d.row.set(row);
        d.slot = self.slot;
        d.kind = 1;
        if let Some(e) = self.entry {
            (d.kind, d.unit, d.block, d.blocks) = (2, e.unit, e.block, e.blocks);
            d.payload_crc.set(e.payload_crc);
        }
        d.crc.set(crate::crc(d.bytes()));
        let mut out = d.bytes().to_vec();
        out.resize(BLOCK_BYTES, 0);
        out
    }

    /// What a block says.
    ///
    /// # Errors
    /// What is wrong with it; [`Invalid::Bounds`] too when it is of another volume.
    pub fn decode(bytes: &[u8], uuid: [u8; 16]) -> Result<Self, Invalid> {
        let (mut d, _) = RowLogDisk::read_prefix(bytes)?;
        if d.magic.get() != ROW_LOG_MAGIC {
            return Err(Invalid::Magic);
        }
        let stated = d.crc.get();
        d.crc.set(0);
        if crate::crc(d.bytes()) != stated {
            return Err(Invalid::Checksum);
        }
        let whole = u32::from(d.block) + u32::from(d.blocks) <= UNIT_BLOCKS && d.blocks > 0;
        let entry = match d.kind {
            1 => None,
            2 if whole && d.segment.get() != u64::MAX => {
                Some(RowEntry { unit: d.unit, block: d.block, blocks: d.blocks, payload_crc: d.payload_crc.get() })
            }
            _ => return Err(Invalid::Bounds),
        };
        if d.uuid != uuid || u32::from(d.slot) >= ROW_SLOTS || d.number.get() > COUNTER_MAX {
            return Err(Invalid::Bounds);
        }
        let row = (d.segment.get() != u64::MAX).then(|| (SegmentNo(d.segment.get()), d.row.get()));
        Ok(Self { number: d.number.get(), row, slot: d.slot, entry })
    }

    /// Where, in blocks from the start of the row log, the claim of a slot is.
    #[must_use]
    pub const fn claim_block(slot: u8) -> u64 {
        slot as u64
    }

    /// The same for the entry that begins with this block of a unit. No two entries of one unit overlap.
    #[must_use]
    pub const fn entry_block(slot: u8, block: u8) -> u64 {
        UNIT_BLOCKS as u64 * (1 + 2 * slot as u64) + 2 * block as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let entry = RowEntry { unit: 2, block: 3, blocks: 13, payload_crc: 77 };
        for (row, entry) in [(None, None), (Some((SegmentNo(9), 4)), None), (Some((SegmentNo(9), 4)), Some(entry))] {
            let log = RowLog { number: 5, row, slot: 15, entry };
            let mut bytes = log.encode([7; 16]);
            assert_eq!(RowLog::decode(&bytes, [7; 16]), Ok(log));
            assert!(RowLog::decode(&bytes, [8; 16]).is_err());
            bytes[40] ^= 1;
            assert!(RowLog::decode(&bytes, [7; 16]).is_err());
        }
    }

    #[test]
    fn entries_stay_in_their_slot() {
        assert_eq!(RowLog::claim_block(15), 15);
        for slot in 0..ROW_SLOTS as u8 {
            let end = RowLog::entry_block(slot, 15) + 2;
            assert_eq!(
                end,
                if slot == 15 { u64::from(ROW_LOG_UNITS * UNIT_BLOCKS) } else { RowLog::entry_block(slot + 1, 0) }
            );
        }
    }
}
