//! The chain: partial segments that carry records, in sequence.
//!
//! Invariants
//! 1. A partial lies within one segment, right behind the one before it, or at
//!    the start of the segment that the one before it names as next.
//! 2. A logical segment is a run of partials from one with LOGICAL_BEGIN to
//!    one with LOGICAL_END.

use crate::content::Page;
use crate::segments::{KIND_CHAIN, Segments};
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::partial::{DATA_FLUSHED, Header, LOGICAL_BEGIN, LOGICAL_END, PartialKind, summary_blocks};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Epoch, Ino, SegmentNo, Seq, Time};
use std::collections::VecDeque;

/// Most blocks of one chain partial.
const PARTIAL_BLOCKS_MAX: u32 = 256;

/// Where the chain stands.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch of this mount.
    pub epoch: Epoch,
    /// Segment being filled.
    pub segment: SegmentNo,
    /// Next block in it.
    pub block: u32,
    /// Blocks of it that are laid out.
    pub filled: u32,
    /// Segment after it.
    pub next: Option<SegmentNo>,
    /// Sequence of the last partial.
    pub seq: Seq,
    /// Its address.
    pub last_addr: Addr,
    /// Its summary CRC.
    pub last_crc: u32,
}

/// A step of content in a form that owns what it names.
#[derive(Clone, Debug)]
pub enum OwnedOp {
    /// See [`ContentOp::Hole`].
    Hole(u64, u64),
    /// See [`ContentOp::Extent`].
    Extent(u64, Extent),
    /// See [`ContentOp::Inline`].
    Inline(Vec<u8>),
    /// See [`ContentOp::NewFork`].
    NewFork,
}

/// What must stand in one partial together.
pub enum Unit {
    /// A record that was applied already.
    Applied(Vec<u8>),
    /// A record to apply when its place is known.
    Late(Vec<u8>),
    /// A content record and the pages it names by payload index.
    Content {
        /// The file.
        ino: Ino,
        /// Its size.
        size: u64,
        /// Its times.
        times: (Time, Time),
        /// Who wrote.
        editor_uid: u32,
        /// What changed; payload indices count from 0 within this unit.
        ops: Vec<OwnedOp>,
        /// The payload.
        pages: Vec<Page>,
    },
}

impl Unit {
    fn encode_into(&self, out: &mut Vec<u8>, payload_index: u32) {
        match self {
            Self::Applied(bytes) | Self::Late(bytes) => out.extend_from_slice(bytes),
            Self::Content { ino, size, times, editor_uid, ops, .. } => {
                let ops = ops
                    .iter()
                    .map(|op| match op {
                        OwnedOp::Hole(a, b) => ContentOp::Hole(*a, *b),
                        OwnedOp::Extent(off, e) => {
                            let mut e = e.clone();
                            if e.addr.is_payload() && !e.is_unwritten() {
                                e.addr = e.addr.add(payload_index);
                            }
                            ContentOp::Extent(*off, e)
                        }
                        OwnedOp::Inline(b) => ContentOp::Inline(b),
                        OwnedOp::NewFork => ContentOp::NewFork,
                    })
                    .collect();
                Record::Content {
                    ino: *ino,
                    size: *size,
                    mtime: times.0,
                    ctime: times.1,
                    editor_uid: *editor_uid,
                    ops,
                }
                .encode_into(out);
            }
        }
    }
    fn pages(&self) -> &[Page] {
        match self {
            Self::Content { pages, .. } => pages,
            _ => &[],
        }
    }
    const fn is_late(&self) -> bool {
        !matches!(self, Self::Applied(_))
    }
}

/// One partial, ready to be written.
pub struct Sealed {
    /// Where.
    pub addr: Addr,
    /// What: summary and payload.
    pub bytes: AlignedBuf,
    /// Address of its first payload block.
    pub base: Addr,
    /// Records in it that are still to be applied.
    pub late: Vec<Vec<u8>>,
}

/// What all partials of a logical segment say.
#[derive(Clone, Copy)]
pub struct Stamp {
    /// Highest sequence known to be flushed.
    pub durable_seq: Seq,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// Now.
    pub now: Time,
    /// Everything named outside was flushed.
    pub data_flushed: bool,
}

impl Chain {
    /// Takes units from the queue for the next partial and lays it out.
    /// `first` and what is left in the queue decide the logical flags.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the chain cannot go on; [`Error::TooLarge`] for a unit that fits no segment.
    pub fn seal(
        &mut self,
        queue: &mut VecDeque<Unit>,
        first: bool,
        stamp: Stamp,
        storage: &Storage,
        segments: &mut Segments,
    ) -> Result<Sealed> {
        loop {
            let room = (storage.segment_blocks - self.block).min(PARTIAL_BLOCKS_MAX);
            let (records, late, pages, count) = gather(queue, room);
            if count > 0 {
                if self.next.is_none() && self.block > 0 {
                    // On a full volume none was to be had when this segment was begun. Only a partial in it can name one.
                    self.next = segments.allocate(KIND_CHAIN, stamp.now);
                }
                let units: Vec<Unit> = queue.drain(..count).collect();
                let end = queue.is_empty();
                return Ok(self.lay_out(&records, late, &units, pages, (first, end), stamp, segments));
            }
            if self.block == 0 {
                return Err(Error::TooLarge);
            }
            let (old, filled) = (self.segment, self.filled);
            self.advance(segments, stamp.now)?;
            storage.end_segment(old, filled);
            storage.begin_segment(self.segment);
        }
    }

    fn advance(&mut self, segments: &mut Segments, now: Time) -> Result<()> {
        let next = self.next.take().ok_or(Error::NoSpace)?;
        segments.seal(self.segment);
        self.segment = next;
        (self.block, self.filled) = (0, 0);
        self.next = segments.allocate(KIND_CHAIN, now);
        Ok(())
    }

    fn lay_out(
        &mut self,
        records: &[u8],
        late: Vec<Vec<u8>>,
        units: &[Unit],
        pages: u32,
        (begin, end): (bool, bool),
        stamp: Stamp,
        segments: &mut Segments,
    ) -> Sealed {
        let addr = Addr::new(self.segment, self.block);
        let summary = summary_blocks(records.len(), 0);
        let mut bytes = AlignedBuf::zeroed((summary + pages) as usize * BLOCK_BYTES);
        let mut at = summary as usize * BLOCK_BYTES;
        for page in units.iter().flat_map(Unit::pages) {
            bytes[at..at + BLOCK_BYTES].copy_from_slice(&page[..]);
            at += BLOCK_BYTES;
        }
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let header = Header {
            kind: PartialKind::Chain,
            flags: flag(begin, LOGICAL_BEGIN) | flag(end, LOGICAL_END) | flag(stamp.data_flushed, DATA_FLUSHED),
            summary_blocks: summary,
            uuid: self.uuid,
            epoch: self.epoch,
            seq: self.seq.next(),
            addr,
            prev_addr: self.last_addr,
            prev_crc: self.last_crc,
            payload_crc: nenrin_format::crc(&bytes[summary as usize * BLOCK_BYTES..]),
            durable_seq: stamp.durable_seq,
            open_cno: stamp.open_cno,
            written_at: stamp.now,
            record_bytes: records.len() as u32,
            map_count: 0,
            payload_blocks: pages,
            next: self.next,
        };
        let (head, crc) = header.encode(records, &[]);
        bytes[..head.len()].copy_from_slice(&head);
        self.seq = header.seq;
        self.last_addr = addr;
        self.last_crc = crc;
        self.block += summary + pages;
        self.filled = self.block;
        segments.chain_written(self.segment, self.seq);
        Sealed { addr, bytes, base: addr.add(summary), late }
    }
}

/// As many units from the front as fit `room` blocks: their records, those to
/// apply late, the payload blocks, and how many units.
fn gather(queue: &VecDeque<Unit>, room: u32) -> (Vec<u8>, Vec<Vec<u8>>, u32, usize) {
    let mut records = Vec::new();
    let mut late = Vec::new();
    let (mut pages, mut count) = (0, 0);
    for unit in queue {
        let before = records.len();
        unit.encode_into(&mut records, pages);
        let with = pages + unit.pages().len() as u32;
        if summary_blocks(records.len(), 0) + with > room {
            records.truncate(before);
            break;
        }
        if unit.is_late() {
            late.push(records[before..].to_vec());
        }
        pages = with;
        count += 1;
    }
    (records, late, pages, count)
}
