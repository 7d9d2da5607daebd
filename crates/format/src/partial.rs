//! Partial segments: one log write. A summary (header, records, payload map)
//! of whole blocks, then the payload.

use crate::disk_struct;
use crate::layout::le::{I64, U16, U32, U64};
use crate::superblock::{decode_segment, encode_segment};
use crate::{Addr, BLOCK_BYTES, Cno, Epoch, Invalid, SegmentNo, Seq, Time};

/// "NPRT".
pub const PARTIAL_MAGIC: u32 = u32::from_le_bytes(*b"NPRT");
/// Longest summary in blocks.
pub const SUMMARY_BLOCKS_MAX: u32 = 1024;

disk_struct! {
    /// Start of every partial segment.
    pub struct PartialHeader [160] {
        /// [`PARTIAL_MAGIC`].
        pub magic: U32,
        /// Checksum of the summary blocks, mixed.
        pub summary_crc: U32,
        /// Format version.
        pub version: U16,
        /// [`PartialKind`].
        pub kind: u8,
        /// [`flags`](self) below.
        pub flags: u8,
        /// Blocks of the summary: header, records and map.
        pub summary_blocks: U32,
        /// Identity of the volume.
        pub uuid: [u8; 16],
        /// Epoch in which it was written.
        pub epoch: U64,
        /// Sequence in the chain; for other kinds the chain's at that moment.
        pub seq: U64,
        /// Its own address.
        pub addr: U64,
        /// Address of the previous partial of the chain.
        pub prev_addr: U64,
        /// Summary CRC of the previous partial of the chain.
        pub prev_crc: U32,
        /// CRC32C of the payload.
        pub payload_crc: U32,
        /// Highest sequence known to be durable when this was written.
        pub durable_seq: U64,
        /// Checkpoint number that items written now are born in.
        pub open_cno: U64,
        /// When it was written.
        pub written_at: I64,
        /// Bytes of records after the header.
        pub record_bytes: U32,
        /// Entries of the payload map after the records.
        pub map_count: U32,
        /// Blocks of payload after the summary.
        pub payload_blocks: U32,
        /// Blocks before it that were left out, up to the end of the partial before it in the segment.
        pub left_out: U32,
        /// Segment in which the chain goes on when this one is full; all ones for none.
        pub next: U64,
        /// Of a partial of the chain: identity of the mount that wrote it; else 0.
        pub mount_id: U64,
        /// Must be zero.
        pub reserved: [u8; 32],
    }
}

disk_struct! {
    /// What a run of payload blocks is. For an index partial each entry is a
    /// node: `fork` is its tree, and `ino`, `kind` and `off` its first key.
    pub struct MapEntry [32] {
        /// Inode whose content it is.
        pub ino: U64,
        /// First file block.
        pub off: U64,
        /// Fork of the content.
        pub fork: U32,
        /// Blocks.
        pub blocks: U32,
        /// Index: the checksum that the node carries. Data: CRC32C of the run's granule checksums, each little-endian.
        pub crc: U32,
        /// Index: level of the node. Data: blocks under one checksum, as a power of two.
        pub level: u8,
        /// Kind of the first key of an index node; else 0.
        pub kind: u8,
        /// Must be zero.
        pub reserved: [u8; 2],
    }
}

/// What a partial segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartialKind {
    /// Records, and payload that they name. Sequenced.
    Chain = 1,
    /// File content. Not sequenced.
    Data = 2,
    /// Index nodes.
    Index = 3,
    /// Roots of an index checkpoint ([`crate::root::Root`] in the records).
    Root = 4,
}

impl PartialKind {
    /// From its number.
    ///
    /// # Errors
    /// [`Invalid::Kind`] for a number without meaning.
    pub const fn from_u8(v: u8) -> Result<Self, Invalid> {
        Ok(match v {
            1 => Self::Chain,
            2 => Self::Data,
            3 => Self::Index,
            4 => Self::Root,
            _ => return Err(Invalid::Kind(v)),
        })
    }
}

/// Flag: first partial of a logical segment.
pub const LOGICAL_BEGIN: u8 = 1;
/// Flag: last partial of a logical segment.
pub const LOGICAL_END: u8 = 2;
/// Flag: everything its records name outside its own payload was flushed before
/// it was written, so that recovery need not read that data.
pub const DATA_FLUSHED: u8 = 4;
/// Flag of a data partial: the cleaner moved its content here.
pub const DATA_MOVED: u8 = 8;

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it carries.
    pub kind: PartialKind,
    /// [`LOGICAL_BEGIN`], [`LOGICAL_END`], [`DATA_FLUSHED`], [`DATA_MOVED`].
    pub flags: u8,
    /// Blocks of the summary.
    pub summary_blocks: u32,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch in which it was written.
    pub epoch: Epoch,
    /// Sequence in the chain.
    pub seq: Seq,
    /// Its own address.
    pub addr: Addr,
    /// Address of the previous partial of the chain.
    pub prev_addr: Addr,
    /// Summary CRC of the previous partial of the chain.
    pub prev_crc: u32,
    /// CRC32C of the payload.
    pub payload_crc: u32,
    /// Highest sequence known to be durable.
    pub durable_seq: Seq,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// When it was written.
    pub written_at: Time,
    /// Bytes of records.
    pub record_bytes: u32,
    /// Entries of the payload map.
    pub map_count: u32,
    /// Blocks of payload.
    pub payload_blocks: u32,
    /// Blocks before it that were left out, up to the end of the partial before it in the segment.
    pub left_out: u32,
    /// Where the chain goes on.
    pub next: Option<SegmentNo>,
    /// Of a partial of the chain: identity of the mount that wrote it, as its roots have it.
    pub mount_id: u64,
}

impl Header {
    /// Summary and payload together, in blocks.
    #[must_use]
    pub const fn total_blocks(&self) -> u32 {
        self.summary_blocks + self.payload_blocks
    }

    /// Whether this block of its segment is one of those that it left out.
    #[must_use]
    pub const fn has_left_out(&self, block: u32) -> bool {
        let first = self.addr.block();
        block < first && first - block <= self.left_out
    }

    /// Whether it was written after that one, to the same segment: in a later life of that, where both lie over each other.
    #[must_use]
    pub fn is_newer(&self, than: &Self) -> bool {
        (self.epoch, self.seq) > (than.epoch, than.seq)
    }

    /// Address of the first payload block.
    #[must_use]
    pub const fn payload_addr(&self) -> Addr {
        self.addr.add(self.summary_blocks)
    }

    /// Lays out the summary: header, records and map, padded to whole blocks,
    /// with the checksum set. `summary_blocks`, `record_bytes` and `map_count`
    /// of `self` are ignored and computed; the summary CRC is returned too.
    #[must_use]
    pub fn encode(&self, records: &[u8], map: &[MapEntry]) -> (Vec<u8>, u32) {
        let bytes = summary_blocks(records.len(), map.len()) as usize * BLOCK_BYTES;
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(self.head(records.len(), map.len()).bytes());
        out.extend_from_slice(records);
        for m in map {
            out.extend_from_slice(m.bytes());
        }
        out.resize(bytes, 0);
        let crc = crate::set_own_crc(&mut out);
        (out, crc)
    }

    /// The first bytes of a summary with so many bytes of records and entries of the map behind them, in that order. The checksum
    /// is for [`crate::set_own_crc`]; what [`Header::encode`] ignores is ignored.
    #[must_use]
    pub fn head(&self, record_bytes: usize, map_count: usize) -> PartialHeader {
        let mut d = PartialHeader::zeroed();
        d.magic.set(PARTIAL_MAGIC);
        d.version.set(crate::features::VERSION);
        d.kind = self.kind as u8;
        d.flags = self.flags;
        d.summary_blocks.set(summary_blocks(record_bytes, map_count));
        d.uuid = self.uuid;
        d.epoch.set(self.epoch.0);
        d.seq.set(self.seq.0);
        d.addr.set(self.addr.0);
        d.prev_addr.set(self.prev_addr.0);
        d.prev_crc.set(self.prev_crc);
        d.payload_crc.set(self.payload_crc);
        d.durable_seq.set(self.durable_seq.0);
        d.open_cno.set(self.open_cno.0);
        d.written_at.set(self.written_at.0);
        d.record_bytes.set(record_bytes as u32);
        d.map_count.set(map_count as u32);
        d.payload_blocks.set(self.payload_blocks);
        d.left_out.set(self.left_out);
        d.next.set(encode_segment(self.next));
        d.mount_id.set(self.mount_id);
        d
    }

    /// Decodes the header at the start of `bytes` without verifying the
    /// summary: tells how long the summary claims to be, within bounds.
    ///
    /// # Errors
    /// Magic, version, kind, bounds.
    pub fn peek(bytes: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = PartialHeader::read_prefix(bytes)?;
        if d.magic.get() != PARTIAL_MAGIC {
            return Err(Invalid::Magic);
        }
        if d.version.get() > crate::features::VERSION {
            return Err(Invalid::Version(d.version.get()));
        }
        let this = Self {
            kind: PartialKind::from_u8(d.kind)?,
            flags: d.flags,
            summary_blocks: d.summary_blocks.get(),
            uuid: d.uuid,
            epoch: Epoch(d.epoch.get()),
            seq: Seq(d.seq.get()),
            addr: Addr(d.addr.get()),
            prev_addr: Addr(d.prev_addr.get()),
            prev_crc: d.prev_crc.get(),
            payload_crc: d.payload_crc.get(),
            durable_seq: Seq(d.durable_seq.get()),
            open_cno: Cno(d.open_cno.get()),
            written_at: Time(d.written_at.get()),
            record_bytes: d.record_bytes.get(),
            map_count: d.map_count.get(),
            payload_blocks: d.payload_blocks.get(),
            left_out: d.left_out.get(),
            next: decode_segment(d.next.get()),
            mount_id: d.mount_id.get(),
        };
        let blocks_max = 1 << Addr::BLOCK_BITS;
        let needed = PartialHeader::BYTES as u64
            + u64::from(this.record_bytes)
            + u64::from(this.map_count) * MapEntry::BYTES as u64;
        if this.summary_blocks == 0
            || this.summary_blocks > SUMMARY_BLOCKS_MAX
            || this.payload_blocks > blocks_max
            || needed > u64::from(this.summary_blocks) * BLOCK_BYTES as u64
        {
            return Err(Invalid::Bounds);
        }
        Ok(this)
    }

    /// What is there of a summary that a newer program wrote; its checksum is that of [`crate::own_crc`].
    #[must_use]
    pub fn newer(bytes: &[u8]) -> Option<Newer> {
        let (d, _) = PartialHeader::read_prefix(bytes).ok()?;
        let blocks = d.summary_blocks.get();
        let is_newer = d.magic.get() == PARTIAL_MAGIC && d.version.get() > crate::features::VERSION;
        (is_newer && (1..=SUMMARY_BLOCKS_MAX).contains(&blocks)).then(|| Newer {
            version: d.version.get(),
            crc: d.summary_crc.get(),
            summary_blocks: blocks,
            uuid: d.uuid,
            epoch: Epoch(d.epoch.get()),
            addr: Addr(d.addr.get()),
            mount_id: d.mount_id.get(),
        })
    }

    /// Verifies the whole summary and decodes it.
    ///
    /// # Errors
    /// Those of [`Header::peek`], short input, checksum.
    pub fn decode(bytes: &[u8]) -> Result<Summary<'_>, Invalid> {
        let header = Self::peek(bytes)?;
        let summary = bytes.get(..header.summary_blocks as usize * BLOCK_BYTES).ok_or(Invalid::Short)?;
        let stored = u32::from_le_bytes([summary[4], summary[5], summary[6], summary[7]]);
        let crc = crate::own_crc(summary);
        if crc != stored {
            return Err(Invalid::Checksum);
        }
        let records_end = PartialHeader::BYTES + header.record_bytes as usize;
        let records = &summary[PartialHeader::BYTES..records_end];
        let map_end = records_end + header.map_count as usize * MapEntry::BYTES;
        let map = summary[records_end..map_end]
            .chunks_exact(MapEntry::BYTES)
            .map(|b| MapEntry::read_prefix(b).map(|(m, _)| m))
            .collect::<Result<_, _>>()?;
        Ok(Summary { header, crc, records, map })
    }
}

/// What every program can read of a summary: these fields keep their places in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newer {
    /// Format version.
    pub version: u16,
    /// The checksum that it states.
    pub crc: u32,
    /// Blocks of the summary.
    pub summary_blocks: u32,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch in which it was written.
    pub epoch: Epoch,
    /// Its own address.
    pub addr: Addr,
    /// Identity of the mount that wrote it.
    pub mount_id: u64,
}

/// A verified summary.
#[derive(Clone, Debug)]
pub struct Summary<'a> {
    /// The header.
    pub header: Header,
    /// The checksum of the summary, which the next partial of the chain repeats.
    pub crc: u32,
    /// The bytes of the records.
    pub records: &'a [u8],
    /// The payload map.
    pub map: Vec<MapEntry>,
}

/// Blocks a summary takes.
#[must_use]
pub const fn summary_blocks(record_bytes: usize, map_count: usize) -> u32 {
    (PartialHeader::BYTES + record_bytes + map_count * MapEntry::BYTES).div_ceil(BLOCK_BYTES) as u32
}

/// Map entries that fit a summary of `blocks` blocks without records.
#[must_use]
pub const fn map_capacity(blocks: u32) -> usize {
    (blocks as usize * BLOCK_BYTES - PartialHeader::BYTES) / MapEntry::BYTES
}
