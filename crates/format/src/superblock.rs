//! The fixed-place root slots: the only blocks ever overwritten.
//!
//! Every device begins and ends with an area of [`AREA_BLOCKS`] blocks that
//! hold [`SLOTS_PER_AREA`] slots each. Generation g is written to slot
//! g mod [`SLOTS_PER_AREA`] of *both* areas, so that a rotten slot has a twin.

use crate::band::decode_bands;
pub use crate::band::{
    BANDS_MAX, Band, BandDisk, NUMBERS_UNUSED_MAX, UNIT_BLOCKS, cells_of_segment, rows, segment_units,
};
use crate::disk_struct;
use crate::features;
use crate::layout::le::{I64, U16, U32, U64};
use crate::{Addr, BLOCK_BYTES, COUNTER_MAX, Epoch, Generation, Invalid, SegmentNo, Seq, Time};

/// State of an entry of the device table without a device.
const REMOVED: u8 = 2;

/// "NENRIN年" in UTF-8 without the last byte: eight bytes.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"NENRIN\xe5\xb9";
/// Blocks at the start and at the end of every device that hold no segments.
pub const AREA_BLOCKS: u64 = 16;
/// Root slots in each area.
pub const SLOTS_PER_AREA: u64 = 4;
/// Block of slot 0 within an area. Blocks 0 to 3 stay free for boot loaders;
/// blocks 8 to 15 for multi-mount protection and what comes later.
pub const SLOT_BLOCK: u64 = 4;
/// Devices a volume may have.
pub const DEVICES_MAX: usize = 32;
/// Longest label in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

disk_struct! {
    /// One device of a volume, as every slot lists it.
    pub struct DeviceDisk [48] {
        /// Identity of the device within the volume.
        pub uuid: [u8; 16],
        /// Blocks of the device: the tail area ends there.
        pub blocks: U64,
        /// Number of the change of the device table that last changed this entry.
        pub member_generation: U64,
        /// 0 absent, 1 active, 2 no device: the entry is not used, or its device was removed.
        pub state: u8,
        /// Number of the change by which the place became what `state` and `uuid` say of it; 0 for `member_generation`.
        pub stands_since: [u8; 7],
        /// Blocks that it shall have: fewer than `blocks` while it is being emptied from there on, 0 before it is removed.
        pub target_blocks: U64,
    }
}

disk_struct! {
    /// What a device has done wrong while it was a member; 65,535 for more than that. Kept for people: nothing is decided by it.
    pub struct TroubleDisk [6] {
        /// Reads that it failed as one of several.
        pub unread: U16,
        /// Blocks that it gave otherwise than they were written, and that others had right.
        pub wrong: U16,
        /// Writes and flushes that it failed.
        pub failed: U16,
    }
}

disk_struct! {
    /// What the last scrub found and left that looked at everything. Kept for people: nothing is decided by it.
    pub struct ScrubDisk [24] {
        /// When it ended; 0 where none is known.
        pub ended_at: I64,
        /// Pieces of content without a right copy.
        pub content: U32,
        /// Index nodes without a right copy.
        pub nodes: U32,
        /// Damaged copies of what has another, that could not be written anew.
        pub copies: U32,
        /// Must be zero.
        pub reserved: U32,
    }
}

disk_struct! {
    /// A root slot.
    pub struct SlotDisk [4096] {
        /// [`SUPERBLOCK_MAGIC`].
        pub magic: [u8; 8],
        /// CRC32C of the slot with this field zero.
        pub crc: U32,
        /// Format version.
        pub version: U16,
        /// Index of the device that holds this slot.
        pub device_index: U16,
        /// Identity of the volume.
        pub uuid: [u8; 16],
        /// Features that old programs may ignore.
        pub compat: U64,
        /// Features that old programs may only read with.
        pub ro_compat: U64,
        /// Features that old programs must refuse.
        pub incompat: U64,
        /// Generation of this root.
        pub generation: U64,
        /// Epoch of the mount that wrote it.
        pub epoch: U64,
        /// Blocks in a segment, on each of its devices.
        pub segment_blocks: U32,
        /// log2 of the block size.
        pub block_shift: u8,
        /// 1 single, 2 stripe, 3 mirror, 4 parity.
        pub profile: u8,
        /// Devices in the table.
        pub device_count: U16,
        /// 1 after a clean unmount.
        pub clean: u8,
        /// Length of the label.
        pub label_bytes: u8,
        /// log2 of a unit in bytes: 16.
        pub stripe_shift: u8,
        /// Must be zero.
        pub reserved: [u8; 5],
        /// Key of the hash of names.
        pub hash_key: [u8; 16],
        /// When the volume was made.
        pub made_at: I64,
        /// When this root was written.
        pub written_at: I64,
        /// Nanoseconds the volume was mounted in all its life.
        pub mounted_nanos: U64,
        /// Address of the root partial, first copy.
        pub root_first: U64,
        /// Address of the root partial, second copy.
        pub root_second: U64,
        /// Blocks of the root partial.
        pub root_blocks: U32,
        /// Summary CRC of the root partial (its first copy; each copy states its own address).
        pub root_crc_first: U32,
        /// The same of the second copy.
        pub root_crc_second: U32,
        /// Block in the chain segment where the next partial is expected.
        pub chain_block: U32,
        /// Segment of the chain in which the next partial is expected.
        pub chain_segment: U64,
        /// The segment the chain goes on in when that one is full; all ones for none.
        pub chain_next: U64,
        /// Sequence of the last partial this root contains.
        pub chain_seq: U64,
        /// Address of that partial.
        pub chain_last: U64,
        /// Summary CRC of that partial.
        pub chain_crc: U32,
        /// Must be zero.
        pub reserved2: U32,
        /// Label, padded with zeros.
        pub label: [u8; 64],
        /// Identity of the mount that wrote it: a number that nobody knows who does not read the device.
        pub mount_id: U64,
        /// What the devices of the table have done wrong, in the same order.
        pub troubles: [TroubleDisk; 32],
        /// What the last scrub found.
        pub scrubbed: ScrubDisk,
        /// Must be zero.
        pub reserved3: [u8; 24],
        /// The device table; entries from `device_count` on are zero.
        pub devices: [DeviceDisk; 32],
        /// Where segments lie; the first entry without segments ends it.
        pub bands: [BandDisk; 8],
    }
}

/// What every program can read of a slot, whichever wrote it: these fields keep their places in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHead {
    /// Format version.
    pub version: u16,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Feature bits: compat, ro_compat, incompat.
    pub features: [u64; 3],
    /// Generation of this root.
    pub generation: Generation,
}

impl SlotHead {
    /// Verifies a slot block, of any version.
    ///
    /// # Errors
    /// [`Invalid::Magic`] when it is no slot at all, then checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        Self::with_slot(bytes).map(|(head, _)| head)
    }

    fn with_slot(bytes: &[u8]) -> Result<(Self, SlotDisk), Invalid> {
        let (d, _) = SlotDisk::read_prefix(bytes)?;
        if d.magic != SUPERBLOCK_MAGIC {
            return Err(Invalid::Magic);
        }
        let mut unsummed = d;
        unsummed.crc.set(0);
        if crate::crc(unsummed.bytes()) != d.crc.get() {
            return Err(Invalid::Checksum);
        }
        let features = [d.compat.get(), d.ro_compat.get(), d.incompat.get()];
        let head =
            Self { version: d.version.get(), uuid: d.uuid, features, generation: Generation(d.generation.get()) };
        Ok((head, d))
    }

    /// Why this program must leave the volume alone.
    #[must_use]
    pub const fn refused(&self) -> Option<Invalid> {
        if self.version > features::VERSION {
            return Some(Invalid::Version(self.version));
        }
        match features::access(self.features[1], self.features[2]) {
            features::Access::Refuse(bits) => Some(Invalid::Feature(bits)),
            features::Access::ReadWrite | features::Access::ReadOnly(_) => None,
        }
    }
}

/// How a segment number is written.
#[must_use]
pub const fn encode_segment(segment: Option<SegmentNo>) -> u64 {
    match segment {
        Some(s) => s.0,
        None => u64::MAX,
    }
}

/// The segment that a number means; all ones mean none.
#[must_use]
pub const fn decode_segment(number: u64) -> Option<SegmentNo> {
    if number == u64::MAX { None } else { Some(SegmentNo(number)) }
}

/// How data is laid over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Profile {
    /// Each segment on one device.
    Single = 1,
    /// Each segment over all devices.
    Stripe = 2,
    /// Everything on two devices.
    Mirror = 3,
    /// Data in rows with parity.
    Parity = 4,
}

impl Profile {
    /// From its number.
    ///
    /// # Errors
    /// [`Invalid::Kind`] for a number without meaning.
    pub const fn from_u8(v: u8) -> Result<Self, Invalid> {
        Ok(match v {
            1 => Self::Single,
            2 => Self::Stripe,
            3 => Self::Mirror,
            4 => Self::Parity,
            _ => return Err(Invalid::Kind(v)),
        })
    }
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Stripe => "stripe",
            Self::Mirror => "mirror",
            Self::Parity => "parity",
        }
    }
}

/// What a device has done wrong while it was a member; [`u16::MAX`] for more than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Reads that it failed as one of several.
    pub unread: u16,
    /// Blocks that it gave otherwise than they were written, and that others had right.
    pub wrong: u16,
    /// Writes and flushes that it failed.
    pub failed: u16,
}

/// What a scrub found and left that looked at everything; [`u32::MAX`] for more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// When it ended.
    pub ended_at: Time,
    /// Pieces of content without a right copy.
    pub content: u32,
    /// Index nodes without a right copy.
    pub nodes: u32,
    /// Damaged copies of what has another, that could not be written anew.
    pub copies: u32,
}

impl Scrubbed {
    /// Whether it left no damage.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.content == 0 && self.nodes == 0 && self.copies == 0
    }

    fn encode(&self, d: &mut ScrubDisk) {
        d.ended_at.set(self.ended_at.0);
        d.content.set(self.content);
        d.nodes.set(self.nodes);
        d.copies.set(self.copies);
    }

    fn decode(d: &ScrubDisk) -> Option<Self> {
        let (content, nodes, copies) = (d.content.get(), d.nodes.get(), d.copies.get());
        (d.ended_at.get() != 0).then(|| Self { ended_at: Time(d.ended_at.get()), content, nodes, copies })
    }
}

/// One device of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Identity of the device within the volume.
    pub uuid: [u8; 16],
    /// Blocks of the device: the tail area ends there.
    pub blocks: u64,
    /// Number of the change of the device table that last changed this entry.
    pub member_generation: u64,
    /// Number of the change by which it became what it is: active, absent, removed, this very device. What else changes it leaves
    /// that: a table without that change is older, and one in which another change has the number is of another line.
    pub stands_since: u64,
    /// Everything was written to it; else it misses what was written since `stands_since`.
    pub active: bool,
    /// There is no device any more, or not yet.
    pub removed: bool,
    /// Blocks that it shall have: fewer than `blocks` while it is being emptied from there on, 0 before it is removed.
    pub target_blocks: u64,
}

impl DeviceEntry {
    /// A member that has everything and stays as it is.
    #[must_use]
    pub const fn active(uuid: [u8; 16], blocks: u64, member_generation: u64) -> Self {
        let stands_since = member_generation;
        Self { uuid, blocks, member_generation, stands_since, active: true, removed: false, target_blocks: blocks }
    }
    /// It becomes active, or absent, by the change with this number.
    pub const fn stand(&mut self, active: bool, number: u64) {
        (self.active, self.member_generation, self.stands_since) = (active, number, number);
    }
    /// Whether it is to be removed.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        !self.removed && self.target_blocks == 0
    }
}

/// A decoded root slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Index of the device that holds this slot.
    pub device_index: u16,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Feature bits: compat, ro_compat, incompat.
    pub features: [u64; 3],
    /// Generation of this root.
    pub generation: Generation,
    /// Epoch of the mount that wrote it.
    pub epoch: Epoch,
    /// Blocks in a segment on each device.
    pub segment_blocks: u32,
    /// How data is laid over devices.
    pub profile: Profile,
    /// log2 of the stripe unit in bytes.
    pub stripe_shift: u8,
    /// After a clean unmount.
    pub clean: bool,
    /// Key of the hash of names.
    pub hash_key: [u8; 16],
    /// When the volume was made.
    pub made_at: Time,
    /// When this root was written.
    pub written_at: Time,
    /// Nanoseconds the volume was mounted in all its life.
    pub mounted_nanos: u64,
    /// The root partial's copies: where, and their summary CRCs.
    pub root: [(Addr, u32); 2],
    /// Blocks of the root partial.
    pub root_blocks: u32,
    /// Segment and block where the next chain partial is expected.
    pub chain: (SegmentNo, u32),
    /// Where the chain goes on after that segment.
    pub chain_next: Option<SegmentNo>,
    /// Sequence of the last partial this root contains.
    pub chain_seq: Seq,
    /// Address of that partial.
    pub chain_last: Addr,
    /// Summary CRC of that partial.
    pub chain_crc: u32,
    /// Identity of the mount that wrote it: a number that nobody knows who does not read the device.
    pub mount_id: u64,
    /// Label, UTF-8 as given.
    pub label: Vec<u8>,
    /// Devices.
    pub devices: Vec<DeviceEntry>,
    /// What they have done wrong, by index.
    pub troubles: [Trouble; DEVICES_MAX],
    /// What the last scrub found, if one is known.
    pub scrubbed: Option<Scrubbed>,
    /// Where segments lie, in the order of their numbers.
    pub bands: Vec<Band>,
}

impl Superblock {
    /// Segments of the volume.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.bands.iter().fold(0, |n, b| n.saturating_add(b.segments))
    }

    /// The numbers of its segments, in order.
    pub fn numbers(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.bands.iter().flat_map(|b| b.first.0..b.end()).map(SegmentNo)
    }

    /// The block where an address lies on the only device of the volume.
    #[must_use]
    pub fn block_alone(&self, addr: Addr) -> Option<u64> {
        let segment = addr.segment().0;
        let band = self.bands.iter().find(|b| (b.first.0..b.end()).contains(&segment))?;
        let [(device, start)] = band.members[..] else { return None };
        let before = (segment - band.first.0).checked_mul(u64::from(self.segment_blocks))?;
        let block = AREA_BLOCKS + u64::from(start) * u64::from(UNIT_BLOCKS) + before + u64::from(addr.block());
        (u16::from(device) == self.device_index).then_some(block)
    }

    /// Devices that are members, absent ones included.
    #[must_use]
    pub fn members(&self) -> usize {
        self.devices.iter().filter(|d| !d.removed).count()
    }

    /// Number of the last change of the device table.
    #[must_use]
    pub fn table_generation(&self) -> u64 {
        self.devices.iter().map(|d| d.member_generation).max().unwrap_or(0)
    }

    /// Blocks that the volume needs of a device: both areas and what the bands take.
    #[must_use]
    pub fn blocks_needed(&self, device: u16) -> u64 {
        let on = |b: &Band| {
            let column = b.members.iter().position(|m| u16::from(m.0) == device);
            column.map_or(AREA_BLOCKS, |c| match b.members.len() {
                // A device alone holds whole segments, of any length.
                1 => segment_block(0, 0).saturating_add(
                    u64::from(b.members[0].1) * u64::from(UNIT_BLOCKS) + b.segments * u64::from(self.segment_blocks),
                ),
                _ => b.end_block(c, self.segment_blocks),
            })
        };
        self.bands.iter().map(on).max().unwrap_or(AREA_BLOCKS).saturating_add(AREA_BLOCKS)
    }

    /// One block with the slot at its start.
    ///
    /// # Panics
    /// When the label, the device table or the bands are longer than the format allows:
    /// mkfs checks them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.label.len() <= LABEL_BYTES_MAX && self.devices.len() <= DEVICES_MAX);
        assert!(self.bands.len() <= BANDS_MAX && self.bands.iter().all(|b| b.members.len() <= DEVICES_MAX));
        let mut d = SlotDisk::zeroed();
        d.magic = SUPERBLOCK_MAGIC;
        d.version.set(features::VERSION);
        d.device_index.set(self.device_index);
        d.uuid = self.uuid;
        d.compat.set(self.features[0]);
        d.ro_compat.set(self.features[1]);
        d.incompat.set(self.features[2]);
        d.generation.set(self.generation.0);
        d.epoch.set(self.epoch.0);
        d.segment_blocks.set(self.segment_blocks);
        d.block_shift = BLOCK_BYTES.trailing_zeros() as u8;
        d.profile = self.profile as u8;
        d.device_count.set(self.devices.len() as u16);
        d.clean = u8::from(self.clean);
        d.label_bytes = self.label.len() as u8;
        d.stripe_shift = self.stripe_shift;
        d.hash_key = self.hash_key;
        d.mount_id.set(self.mount_id);
        d.made_at.set(self.made_at.0);
        d.written_at.set(self.written_at.0);
        d.mounted_nanos.set(self.mounted_nanos);
        d.root_first.set(self.root[0].0.0);
        d.root_second.set(self.root[1].0.0);
        d.root_blocks.set(self.root_blocks);
        d.root_crc_first.set(self.root[0].1);
        d.root_crc_second.set(self.root[1].1);
        d.chain_block.set(self.chain.1);
        d.chain_segment.set(self.chain.0.0);
        d.chain_next.set(encode_segment(self.chain_next));
        d.chain_seq.set(self.chain_seq.0);
        d.chain_last.set(self.chain_last.0);
        d.chain_crc.set(self.chain_crc);
        d.label[..self.label.len()].copy_from_slice(&self.label);
        for (slot, e) in d.devices.iter_mut().zip(&self.devices) {
            slot.uuid = e.uuid;
            slot.blocks.set(e.blocks);
            slot.member_generation.set(e.member_generation);
            slot.state = if e.removed { REMOVED } else { u8::from(e.active) };
            slot.stands_since.copy_from_slice(&e.stands_since.to_le_bytes()[..7]);
            slot.target_blocks.set(e.target_blocks);
        }
        for (slot, trouble) in d.troubles.iter_mut().zip(&self.troubles) {
            slot.unread.set(trouble.unread);
            slot.wrong.set(trouble.wrong);
            slot.failed.set(trouble.failed);
        }
        if let Some(scrubbed) = &self.scrubbed {
            scrubbed.encode(&mut d.scrubbed);
        }
        for (slot, band) in d.bands.iter_mut().zip(&self.bands) {
            *slot = band.encode();
        }
        d.crc.set(crate::crc(d.bytes()));
        let mut out = d.bytes().to_vec();
        out.resize(BLOCK_BYTES, 0);
        out
    }

    /// Verifies and decodes a slot block.
    ///
    /// # Errors
    /// [`Invalid::Magic`] when it is no slot at all, then checksum, version,
    /// incompatible features, and bounds, in this order; counters beyond their
    /// limit are out of bounds too, and what [`Superblock::validate`] refuses.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let (head, d) = SlotHead::with_slot(bytes)?;
        if let Some(why) = head.refused() {
            return Err(why);
        }
        let segment_blocks = d.segment_blocks.get();
        let count = usize::from(d.device_count.get());
        let label_bytes = usize::from(d.label_bytes);
        if usize::from(d.block_shift) != BLOCK_BYTES.trailing_zeros() as usize
            || !(8..=1 << 16).contains(&segment_blocks)
            || !(1..=DEVICES_MAX).contains(&count)
            || label_bytes > LABEL_BYTES_MAX
            || usize::from(d.device_index.get()) >= count
        {
            return Err(Invalid::Bounds);
        }
        let counters = [d.generation.get(), d.epoch.get(), d.chain_seq.get(), d.mounted_nanos.get() >> 8];
        if counters.iter().any(|n| *n > COUNTER_MAX) {
            return Err(Invalid::Bounds);
        }
        let far = |e: &DeviceDisk| {
            let last = e.member_generation.get();
            last > COUNTER_MAX || stands_since(e) > last || e.target_blocks.get() > e.blocks.get()
        };
        if d.devices[..count].iter().any(far) {
            return Err(Invalid::Bounds);
        }
        let this = Self {
            device_index: d.device_index.get(),
            uuid: d.uuid,
            features: [d.compat.get(), d.ro_compat.get(), d.incompat.get()],
            generation: Generation(d.generation.get()),
            epoch: Epoch(d.epoch.get()),
            segment_blocks,
            profile: Profile::from_u8(d.profile)?,
            stripe_shift: d.stripe_shift,
            clean: d.clean == 1,
            hash_key: d.hash_key,
            mount_id: d.mount_id.get(),
            made_at: Time(d.made_at.get()),
            written_at: Time(d.written_at.get()),
            mounted_nanos: d.mounted_nanos.get(),
            root: [
                (Addr(d.root_first.get()), d.root_crc_first.get()),
                (Addr(d.root_second.get()), d.root_crc_second.get()),
            ],
            root_blocks: d.root_blocks.get(),
            chain: (decode_segment(d.chain_segment.get()).ok_or(Invalid::Bounds)?, d.chain_block.get()),
            chain_next: decode_segment(d.chain_next.get()),
            chain_seq: Seq(d.chain_seq.get()),
            chain_last: Addr(d.chain_last.get()),
            chain_crc: d.chain_crc.get(),
            label: d.label[..label_bytes].to_vec(),
            devices: d.devices[..count]
                .iter()
                .map(|e| DeviceEntry {
                    uuid: e.uuid,
                    blocks: e.blocks.get(),
                    member_generation: e.member_generation.get(),
                    stands_since: stands_since(e),
                    active: e.state == 1,
                    removed: e.state == REMOVED,
                    target_blocks: e.target_blocks.get(),
                })
                .collect(),
            troubles: d.troubles.map(|t| Trouble {
                unread: t.unread.get(),
                wrong: t.wrong.get(),
                failed: t.failed.get(),
            }),
            scrubbed: Scrubbed::decode(&d.scrubbed),
            bands: decode_bands(&d.bands, count, segment_blocks)?,
        };
        this.validate()?;
        Ok(this)
    }
}

/// A program that did not know it left zeros: what it changed last may have been anything.
fn stands_since(e: &DeviceDisk) -> u64 {
    let mut bytes = [0; 8];
    bytes[..7].copy_from_slice(&e.stands_since);
    match u64::from_le_bytes(bytes) {
        0 => e.member_generation.get(),
        number => number,
    }
}

/// Blocks that the areas and `segments` segments take on a device.
#[must_use]
pub const fn device_blocks(segments: u64, segment_blocks: u32) -> u64 {
    segments.saturating_mul(segment_blocks as u64).saturating_add(2 * AREA_BLOCKS)
}

/// Segments that fit on a device of `blocks` blocks.
#[must_use]
pub const fn segments_on(blocks: u64, segment_blocks: u32) -> u64 {
    blocks.saturating_sub(2 * AREA_BLOCKS) / segment_blocks as u64
}

/// First block of device segment `segment`.
#[must_use]
pub const fn segment_block(segment: u32, segment_blocks: u32) -> u64 {
    AREA_BLOCKS + segment as u64 * segment_blocks as u64
}

/// The two blocks of the slot of `generation` on a device of `blocks` blocks.
/// The tail area ends at the last whole block of the device.
#[must_use]
pub const fn slot_blocks(generation: Generation, blocks: u64) -> [u64; 2] {
    let slot = generation.0 % SLOTS_PER_AREA;
    [SLOT_BLOCK + slot, blocks - AREA_BLOCKS + SLOT_BLOCK + slot]
}
