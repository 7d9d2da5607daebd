//! The bytes of a nenrin volume, and nothing else: pure conversions between
//! bytes and types. No I/O, no allocation policy, no clock.
//!
//! `docs/FORMAT.md` is the only description of these bytes; a test in this
//! crate fails when the tables there and the structs here move apart.
//!
//! Invariants
//! 1. Every integer on disk is little-endian and unaligned-safe.
//! 2. Decoding untrusted bytes never panics and never allocates more than the
//!    input justifies: bounds are checked before arithmetic.
//! 3. Reserved fields are written as zero. A decoder ignores them, because a
//!    feature bit announces every use of them, but of a field whose zeros mean
//!    that a program did not know it.
#![forbid(unsafe_code)]

mod band;
pub mod features;
pub mod heartbeat;
pub mod items;
mod keep;
pub mod key;
pub mod layout;
pub mod node;
pub mod packed;
pub mod partial;
pub mod records;
pub mod root;
pub mod row_log;
mod space_items;
pub mod superblock;
pub mod units;
mod validate;
pub mod wire;

pub use units::*;
pub use validate::SEGMENTS_MAX;

/// Every disk struct, in the order of `docs/FORMAT.md`.
#[must_use]
pub const fn layouts() -> &'static [layout::Layout] {
    &[
        superblock::SlotDisk::LAYOUT,
        superblock::DeviceDisk::LAYOUT,
        superblock::TroubleDisk::LAYOUT,
        superblock::ScrubDisk::LAYOUT,
        superblock::BandDisk::LAYOUT,
        heartbeat::HeartbeatDisk::LAYOUT,
        row_log::RowLogDisk::LAYOUT,
        partial::PartialHeader::LAYOUT,
        partial::MapEntry::LAYOUT,
        node::NodeHeader::LAYOUT,
        node::NodePtrDisk::LAYOUT,
        items::InodeDisk::LAYOUT,
        items::DirentDisk::LAYOUT,
        items::XattrDisk::LAYOUT,
        items::ExtentDisk::LAYOUT,
        items::SegmentDisk::LAYOUT,
        items::CheckpointDisk::LAYOUT,
        items::ReapDisk::LAYOUT,
        items::LandmarkDisk::LAYOUT,
        items::ForgetDisk::LAYOUT,
        items::ShedDisk::LAYOUT,
        items::BackrefDisk::LAYOUT,
        root::RootDisk::LAYOUT,
        root::TreeDisk::LAYOUT,
        root::IndexSegmentDisk::LAYOUT,
        root::PastDisk::LAYOUT,
    ]
}

/// CRC32C (Castagnoli) of `bytes`: the checksum of everything on disk.
#[must_use]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C continued over a further piece of the same message.
#[must_use]
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC32C of blocks one behind the other, from that of each.
#[must_use]
pub fn crc_of_blocks(crcs: impl Iterator<Item = u32>) -> u32 {
    crcs.fold(crc(&[]), |all, one| behind_a_block(all) ^ one)
}

/// What a CRC becomes by a block of zeros behind the bytes it is of, but for what those give by themselves: linear, so bit by bit.
fn behind_a_block(mut crc: u32) -> u32 {
    let mut out = 0;
    while crc != 0 {
        out ^= BLOCK_OF_ZEROS[crc.trailing_zeros() as usize];
        crc &= crc - 1;
    }
    out
}

/// The same of each single bit: x to the power of 8 for each byte, modulo the polynomial.
const BLOCK_OF_ZEROS: [u32; 32] = {
    // CRC32C's polynomial, the lowest power in the highest bit.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut columns = [0; 32];
    let mut bit = 0;
    // One zero bit.
    while bit < 32 {
        let crc = 1u32 << bit;
        columns[bit] = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        bit += 1;
    }
    // Twice as many each time, until they are the bits of a block.
    let mut bits = 1;
    while bits < 8 * BLOCK_BYTES {
        let before = columns;
        bit = 0;
        while bit < 32 {
            let (mut rest, mut out) = (before[bit], 0);
            while rest != 0 {
                out ^= before[rest.trailing_zeros() as usize];
                rest &= rest - 1;
            }
            columns[bit] = out;
            bit += 1;
        }
        bits *= 2;
    }
    columns
};

/// The checksum that a summary or a node carries in its bytes 4 to 7, which count as zero: CRC32C, [`mixed`].
#[must_use]
pub fn own_crc(bytes: &[u8]) -> u32 {
    let head = crc(bytes.get(..4).unwrap_or(bytes));
    mixed(crc_append(crc_append(head, &[0; 4]), bytes.get(8..).unwrap_or(&[])))
}

/// Sets that checksum in a summary or a node that is complete but for it, and gives it.
pub fn set_own_crc(bytes: &mut [u8]) -> u32 {
    let crc = own_crc(bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Another number for each number. CRC32C alone is linear: the exclusive or of three structures of the same length, as a row that
/// is being written anew gives it in place of a missing unit, would carry a checksum that fits. Of these numbers it does not.
#[must_use]
pub const fn mixed(crc: u32) -> u32 {
    // The last step of MurmurHash3.
    let x = (crc ^ crc >> 16).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

/// The number whose [`mixed`] this is.
#[must_use]
pub const fn unmixed(mixed: u32) -> u32 {
    let x = (mixed ^ mixed >> 16).wrapping_mul(0x7ed1_b41d);
    let x = (x ^ x >> 13 ^ x >> 26).wrapping_mul(0xa5cb_9243);
    x ^ x >> 16
}

/// Why bytes were not what they claim to be. One variant for each check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Fewer bytes than the structure needs.
    Short,
    /// The magic number is another one.
    Magic,
    /// A checksum does not match.
    Checksum,
    /// The format version is newer than this program.
    Version(u16),
    /// An incompatible feature bit is set that this program does not know.
    Feature(u64),
    /// A length, count or offset points outside its container.
    Bounds,
    /// More segments than a volume may have.
    Segments(u64),
    /// A discriminant has no meaning.
    Kind(u8),
    /// Keys are out of order, or a name has an impossible length.
    Order,
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short => f.write_str("too short"),
            Self::Magic => f.write_str("wrong magic number"),
            Self::Checksum => f.write_str("checksum mismatch"),
            Self::Version(v) => write!(f, "format version {v} is newer than this program"),
            Self::Feature(bits) => write!(f, "unknown incompatible feature bits {bits:#x}"),
            Self::Bounds => f.write_str("a length or address is out of bounds"),
            Self::Segments(n) => write!(f, "{n} segments, and a volume has at most {SEGMENTS_MAX}"),
            Self::Kind(k) => write!(f, "unknown kind {k}"),
            Self::Order => f.write_str("entries out of order"),
        }
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_of_blocks_is_that_of_their_bytes() {
        let bytes: Vec<u8> = (0..5 * BLOCK_BYTES).map(|i| (i * i / 7 % 251) as u8).collect();
        for blocks in 0..=5 {
            let bytes = &bytes[..blocks * BLOCK_BYTES];
            let crcs: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(crc).collect();
            assert_eq!(crc_of_blocks(crcs.iter().copied()), crc(bytes), "{blocks}");
            assert!(blocks < 2 || crc_of_blocks(crcs.into_iter().rev()) != crc(bytes), "their order counts");
        }
    }
}
