//! The fixed-place root slots: the only blocks ever overwritten.
//!
//! Every device begins and ends with an area of [`AREA_BLOCKS`] blocks that
//! hold [`SLOTS_PER_AREA`] slots each. Generation g is written to slot
//! g mod [`SLOTS_PER_AREA`] of *both* areas, so that a rotten slot has a twin.

use crate::disk_struct;
use crate::features;
use crate::layout::le::{I64, U16, U32, U64};
use crate::{Addr, BLOCK_BYTES, COUNTER_MAX, Epoch, Generation, Invalid, SegmentNo, Seq, Time};

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
        /// Segments on the device.
        pub segments: U64,
        /// Raised before the first write that this member misses.
        pub member_generation: U64,
        /// 0 absent, 1 active, 2 leaving.
        pub state: u8,
        /// Must be zero.
        pub reserved: [u8; 15],
    }
}

disk_struct! {
    /// Where one segment lies on one device.
    pub struct MemberDisk [8] {
        /// Index in the device table.
        pub device: U16,
        /// Must be zero.
        pub reserved: U16,
        /// Segment on that device.
        pub segment: U32,
    }
}

disk_struct! {
    /// A segment together with where it lies, for use before the space tree
    /// can be read. Unused members have device 0xffff.
    pub struct SegmentRefDisk [24] {
        /// Segment number, or all ones for none.
        pub segment: U64,
        /// One member, two with mirroring.
        pub members: [MemberDisk; 2],
    }
}

disk_struct! {
    /// A root slot. The rest of its block is zero.
    pub struct SlotDisk [2048] {
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
        /// log2 of the stripe unit in bytes.
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
        /// Segments of the root partial's copies.
        pub root_segments: [SegmentRefDisk; 2],
        /// Segment of the chain in which the next partial is expected.
        pub chain_segment: SegmentRefDisk,
        /// The segment the chain goes on in when that one is full.
        pub chain_next: SegmentRefDisk,
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
        /// Must be zero.
        pub reserved3: [u8; 168],
        /// Devices.
        pub devices: [DeviceDisk; 32],
    }
}

/// A segment and the device segments it lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRef {
    /// The segment.
    pub segment: SegmentNo,
    /// Device index and segment on it; the second with mirroring.
    pub members: [Option<(u16, u32)>; 2],
}

impl SegmentRef {
    /// A segment with one member.
    #[must_use]
    pub const fn single(segment: SegmentNo, device: u16, device_segment: u32) -> Self {
        Self { segment, members: [Some((device, device_segment)), None] }
    }
    /// To bytes; `None` means no segment.
    #[must_use]
    pub fn encode(this: Option<Self>) -> SegmentRefDisk {
        let mut d = SegmentRefDisk::zeroed();
        d.segment.set(this.map_or(u64::MAX, |s| s.segment.0));
        for (i, m) in d.members.iter_mut().enumerate() {
            match this.and_then(|s| s.members[i]) {
                Some((device, segment)) => {
                    m.device.set(device);
                    m.segment.set(segment);
                }
                None => m.device.set(0xffff),
            }
        }
        d
    }
    /// From bytes.
    #[must_use]
    pub fn decode(d: &SegmentRefDisk) -> Option<Self> {
        if d.segment.get() == u64::MAX {
            return None;
        }
        let member = |i: usize| {
            let m = &d.members[i];
            (m.device.get() != 0xffff).then(|| (m.device.get(), m.segment.get()))
        };
        Some(Self { segment: SegmentNo(d.segment.get()), members: [member(0), member(1)] })
    }
}

/// How data is laid over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Profile {
    /// One device.
    Single = 1,
    /// Data striped, chain and index mirrored.
    Stripe = 2,
    /// Everything twice.
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

/// One device of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Identity of the device within the volume.
    pub uuid: [u8; 16],
    /// Segments on the device.
    pub segments: u64,
    /// Raised before the first write that this member misses.
    pub member_generation: u64,
    /// 0 absent, 1 active, 2 leaving.
    pub state: u8,
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
    pub root: [(SegmentRef, Addr, u32); 2],
    /// Blocks of the root partial.
    pub root_blocks: u32,
    /// Segment and block where the next chain partial is expected.
    pub chain: (SegmentRef, u32),
    /// Where the chain goes on after that segment.
    pub chain_next: Option<SegmentRef>,
    /// Sequence of the last partial this root contains.
    pub chain_seq: Seq,
    /// Address of that partial.
    pub chain_last: Addr,
    /// Summary CRC of that partial.
    pub chain_crc: u32,
    /// Label, UTF-8 as given.
    pub label: Vec<u8>,
    /// Devices.
    pub devices: Vec<DeviceEntry>,
}

impl Superblock {
    /// One block with the slot at its start.
    ///
    /// # Panics
    /// When the label or the device table is longer than the format allows:
    /// mkfs checks both.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.label.len() <= LABEL_BYTES_MAX && self.devices.len() <= DEVICES_MAX);
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
        d.made_at.set(self.made_at.0);
        d.written_at.set(self.written_at.0);
        d.mounted_nanos.set(self.mounted_nanos);
        d.root_first.set(self.root[0].1.0);
        d.root_second.set(self.root[1].1.0);
        d.root_blocks.set(self.root_blocks);
        d.root_crc_first.set(self.root[0].2);
        d.root_crc_second.set(self.root[1].2);
        d.chain_block.set(self.chain.1);
        d.root_segments = [SegmentRef::encode(Some(self.root[0].0)), SegmentRef::encode(Some(self.root[1].0))];
        d.chain_segment = SegmentRef::encode(Some(self.chain.0));
        d.chain_next = SegmentRef::encode(self.chain_next);
        d.chain_seq.set(self.chain_seq.0);
        d.chain_last.set(self.chain_last.0);
        d.chain_crc.set(self.chain_crc);
        d.label[..self.label.len()].copy_from_slice(&self.label);
        for (slot, e) in d.devices.iter_mut().zip(&self.devices) {
            slot.uuid = e.uuid;
            slot.segments.set(e.segments);
            slot.member_generation.set(e.member_generation);
            slot.state = e.state;
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
    /// limit are out of bounds too.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = SlotDisk::read_prefix(bytes)?;
        if d.magic != SUPERBLOCK_MAGIC {
            return Err(Invalid::Magic);
        }
        let mut unsummed = d;
        unsummed.crc.set(0);
        if crate::crc(unsummed.bytes()) != d.crc.get() {
            return Err(Invalid::Checksum);
        }
        if d.version.get() > features::VERSION {
            return Err(Invalid::Version(d.version.get()));
        }
        if let features::Access::Refuse(bits) = features::access(d.ro_compat.get(), d.incompat.get()) {
            return Err(Invalid::Feature(bits));
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
        let need = |r: &SegmentRefDisk| SegmentRef::decode(r).ok_or(Invalid::Bounds);
        Ok(Self {
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
            made_at: Time(d.made_at.get()),
            written_at: Time(d.written_at.get()),
            mounted_nanos: d.mounted_nanos.get(),
            root: [
                (need(&d.root_segments[0])?, Addr(d.root_first.get()), d.root_crc_first.get()),
                (need(&d.root_segments[1])?, Addr(d.root_second.get()), d.root_crc_second.get()),
            ],
            root_blocks: d.root_blocks.get(),
            chain: (need(&d.chain_segment)?, d.chain_block.get()),
            chain_next: SegmentRef::decode(&d.chain_next),
            chain_seq: Seq(d.chain_seq.get()),
            chain_last: Addr(d.chain_last.get()),
            chain_crc: d.chain_crc.get(),
            label: d.label[..label_bytes].to_vec(),
            devices: d.devices[..count]
                .iter()
                .map(|e| DeviceEntry {
                    uuid: e.uuid,
                    segments: e.segments.get(),
                    member_generation: e.member_generation.get(),
                    state: e.state,
                })
                .collect(),
        })
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
