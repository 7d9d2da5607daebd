//! The chain: partial segments that carry records, in sequence.
//!
//! Invariants
//! 1. A partial lies within one segment, right behind the one before it, or at
//!    the start of the segment that the one before it names as next; or at one
//!    of the places behind either where what leaves out slow devices may begin.
//! 2. A logical segment is a run of partials from one with LOGICAL_BEGIN to
//!    one with LOGICAL_END.

use crate::content::Page;
use crate::devices::Avoided;
use crate::log::SparePartials;
use crate::segments::{KIND_CHAIN, Segments};
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::partial::{
    DATA_FLUSHED, Header, LOGICAL_BEGIN, LOGICAL_END, PartialHeader, PartialKind, summary_blocks,
};
use nenrin_format::records::{self, ContentOp};
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Epoch, Ino, SegmentNo, Seq, Time};
use std::collections::VecDeque;
use std::ops::Range;

/// Most blocks of one chain partial.
const PARTIAL_BLOCKS_MAX: u32 = 256;

/// Bytes of records for which there is room at first while a partial is laid out.
const RECORDS_BYTES: usize = 512;

/// Where the chain stands.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch of this mount.
    pub epoch: Epoch,
    /// Identity of this mount.
    pub mount_id: u64,
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
    /// The next partial is the first of its epoch: it stands at block 0, where a walk from an older root looks for it.
    pub begins_epoch: bool,
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

impl OwnedOp {
    /// The checksum of each block in the payload that it names.
    fn payload_crcs(&self) -> Option<&Vec<u32>> {
        match self {
            Self::Extent(_, e) if names_payload(e) => Some(&e.crcs),
            _ => None,
        }
    }
}

/// Whether an extent's blocks are in the payload of the partial that names it.
const fn names_payload(extent: &Extent) -> bool {
    extent.addr.is_payload() && !extent.is_unwritten()
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
                records::put_content(out, *ino, *size, *times, *editor_uid, ops.len());
                for op in ops {
                    match op {
                        OwnedOp::Hole(from, blocks) => ContentOp::Hole(*from, *blocks).encode_into(out),
                        OwnedOp::Extent(off, e) => {
                            let addr = if names_payload(e) { e.addr.add(payload_index) } else { e.addr };
                            records::put_extent(out, *off, e, addr);
                        }
                        OwnedOp::Inline(bytes) => ContentOp::Inline(bytes).encode_into(out),
                        OwnedOp::NewFork => ContentOp::NewFork.encode_into(out),
                    }
                }
            }
        }
    }
    fn pages(&self) -> &[Page] {
        match self {
            Self::Content { pages, .. } => pages,
            _ => &[],
        }
    }
    /// The checksum of each of its pages.
    fn page_crcs(&self) -> impl Iterator<Item = &u32> {
        let ops: &[OwnedOp] = match self {
            Self::Content { ops, .. } => ops,
            _ => &[],
        };
        ops.iter().filter_map(OwnedOp::payload_crcs).flatten()
    }
    /// Its pages, when they are laid out.
    pub fn into_pages(self) -> Vec<Page> {
        match self {
            Self::Content { pages, .. } => pages,
            _ => Vec::new(),
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
    /// Its records.
    pub records: Vec<u8>,
    /// Where those are of them that are still to be applied.
    pub late: Vec<Range<usize>>,
    /// What was laid out.
    pub units: Vec<Unit>,
}

/// What all partials of a logical segment say.
#[derive(Clone, Copy)]
pub struct Stamp {
    /// Highest sequence known to be durable.
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
        slow: Avoided,
        storage: &Storage,
        segments: &mut Segments,
        spare: &mut SparePartials,
    ) -> Result<Sealed> {
        let mut avoided = slow;
        loop {
            if let Some((start, gathered)) = self.fitting(queue, (self.segment, self.block), avoided, storage) {
                if self.next.is_none() && self.block > 0 {
                    // On a full volume none was to be had when this segment was begun. Only a partial in it can name one.
                    self.next = self.allocate_next(storage, segments, stamp.now);
                }
                // Nobody goes on where no partial says so: it is named anew only by one that is laid out now.
                self.leave_next(slow, stamp.now, storage, segments);
                let (count, all) = (gathered.count, gathered.count == queue.len());
                let mut sealed = self.lay_out(start, gathered, queue, (first, all), stamp, segments, spare);
                sealed.units.extend(queue.drain(..count));
                return Ok(sealed);
            }
            let goes_on = |next| self.fitting(queue, (next, 0), avoided, storage).is_some();
            if !avoided.is_empty() && !self.next.is_some_and(goes_on) {
                // What fits nowhere else goes where it would have gone.
                avoided = Avoided::NONE;
                continue;
            }
            if self.block == 0 && avoided.is_empty() {
                return Err(Error::TooLarge);
            }
            let (old, filled) = (self.segment, self.filled);
            self.advance(storage, segments, stamp.now)?;
            storage.end_segment(old, filled);
            storage.begin_segment(self.segment);
        }
    }

    /// Where from `block` of a segment on a partial may begin, and what goes into it.
    fn fitting(
        &self,
        queue: &VecDeque<Unit>,
        (segment, block): (SegmentNo, u32),
        avoided: Avoided,
        storage: &Storage,
    ) -> Option<(u32, Gathered)> {
        let fixed = avoided.is_empty() || self.begins_epoch && segment == self.segment;
        let avoided = if fixed { Avoided::NONE } else { avoided };
        let others = (!fixed).then(|| storage.jumps(segment, block)).into_iter().flatten();
        let places = std::iter::once(block).chain(others).filter_map(|start| {
            let room = storage.free_run(segment, start, avoided).min(PARTIAL_BLOCKS_MAX);
            (room > 0).then(|| (start, gather(queue, room)))
        });
        // One partial is one write to fewer devices than two: a place that takes everything comes before the first that takes something.
        let mut first = None;
        for (start, gathered) in places.filter(|(_, gathered)| gathered.count > 0) {
            if gathered.count == queue.len() {
                return Some((start, gathered));
            }
            first = first.or(Some((start, gathered)));
        }
        first
    }

    fn advance(&mut self, storage: &Storage, segments: &mut Segments, now: Time) -> Result<()> {
        let next = self.next.take().ok_or(Error::NoSpace)?;
        segments.seal(self.segment);
        self.segment = next;
        (self.block, self.filled) = (0, 0);
        self.next = self.allocate_next(storage, segments, now);
        Ok(())
    }

    /// A segment to go on in: on another device, so that the chain can leave this one at once.
    pub fn allocate_next(&self, storage: &Storage, segments: &mut Segments, now: Time) -> Option<SegmentNo> {
        let apart = storage.numbers_apart(self.segment);
        let better = if apart.is_empty() { None } else { segments.allocate_better(&apart, KIND_CHAIN, now) };
        better.or_else(|| segments.allocate(KIND_CHAIN, now))
    }

    /// Names another segment as next where that lies on avoided devices. Nothing was written to it.
    fn leave_next(&mut self, avoided: Avoided, now: Time, storage: &Storage, segments: &mut Segments) {
        let Some(old) = self.next.filter(|next| storage.is_avoided(*next, avoided)) else { return };
        if let Some(new) = segments.allocate_better(&storage.numbers_apart(self.segment), KIND_CHAIN, now) {
            segments.take_back(old);
            self.next = Some(new);
        }
    }

    fn lay_out(
        &mut self,
        start: u32,
        gathered: Gathered,
        queue: &VecDeque<Unit>,
        (begin, end): (bool, bool),
        stamp: Stamp,
        segments: &mut Segments,
        spare: &mut SparePartials,
    ) -> Sealed {
        let Gathered { records, late, pages, count } = gathered;
        let addr = Addr::new(self.segment, start);
        let summary = summary_blocks(records.len(), 0);
        let payload = || queue.iter().take(count).flat_map(Unit::pages).map(|page| &page[..]);
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
            payload_crc: payload_crc(queue, count),
            durable_seq: stamp.durable_seq,
            open_cno: stamp.open_cno,
            written_at: stamp.now,
            record_bytes: records.len() as u32,
            map_count: 0,
            payload_blocks: pages,
            left_out: start - self.block,
            next: self.next,
            mount_id: self.mount_id,
        };
        let summary_bytes = summary as usize * BLOCK_BYTES;
        let (mut filling, zeros_from) = spare.take(summary_bytes + pages as usize * BLOCK_BYTES, summary_bytes);
        filling.put(header.head(records.len(), 0).bytes());
        filling.put(&records);
        filling.zeros_to(zeros_from);
        filling.keep_to(summary_bytes);
        payload().for_each(|page| filling.put(page));
        let mut bytes = filling.finish();
        debug_assert!(
            bytes[PartialHeader::BYTES + records.len()..summary_bytes].iter().all(|b| *b == 0),
            "left behind"
        );
        let crc = nenrin_format::set_own_crc(&mut bytes[..summary_bytes]);
        self.seq = header.seq;
        self.last_addr = addr;
        self.last_crc = crc;
        self.block = start + summary + pages;
        self.filled = self.block;
        self.begins_epoch = false;
        segments.chain_written(self.segment, self.seq);
        Sealed { addr, bytes, base: addr.add(summary), records, late, units: Vec::with_capacity(count) }
    }
}

/// The checksum of what units from the front of the queue have, by those of its blocks.
fn payload_crc(queue: &VecDeque<Unit>, count: usize) -> u32 {
    let units = || queue.iter().take(count);
    let crc = nenrin_format::crc_of_blocks(units().flat_map(Unit::page_crcs).copied());
    debug_assert_eq!(
        crc,
        units().flat_map(Unit::pages).fold(0, |crc, page| nenrin_format::crc_append(crc, &page[..])),
        "pages and their checksums differ"
    );
    crc
}

/// Units from the front of the queue.
struct Gathered {
    records: Vec<u8>,
    /// Where those are that are to be applied late.
    late: Vec<Range<usize>>,
    /// Payload blocks.
    pages: u32,
    /// How many units.
    count: usize,
}

/// As many units from the front as fit `room` blocks.
fn gather(queue: &VecDeque<Unit>, room: u32) -> Gathered {
    // A record or two of usual length: they are encoded field by field.
    let mut records = Vec::with_capacity(RECORDS_BYTES);
    let mut late = Vec::with_capacity(queue.len());
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
            late.push(before..records.len());
        }
        pages = with;
        count += 1;
    }
    Gathered { records, late, pages, count }
}
