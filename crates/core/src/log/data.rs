//! Data partials: content written ahead of the records that name it.
//!
//! Invariants
//! 1. The summary block of a partial comes first and is written last, so a
//!    partial may be as long as its segment.
//! 2. Nothing here is sequenced: until a record names a block, it is garbage.
//! 3. The map says of every run what checksums its blocks have, so that salvage
//!    can tell them from garbage without any index: who allocates a run calls
//!    [`DataLog::describe`] before its partial is closed.
//! 4. Blocks that are left out within a partial are in the map, as blocks of no inode: so that a run begins at a unit, or
//!    on no slow device. What is left out before a partial is in its header.

use crate::devices::Avoided;
use crate::segments::{KIND_DATA, Segments};
use crate::storage::Storage;
use nenrin_device::AlignedBuf;
use nenrin_format::layout::le::{U32, U64};
use nenrin_format::partial::{DATA_MOVED, Header, MapEntry, PartialKind, map_capacity};
use nenrin_format::superblock::UNIT_BLOCKS;
use nenrin_format::{Addr, Cno, Epoch, Ino, SegmentNo, Seq, Time};

/// What is left of a segment is filled in multiples of this, so that runs stay aligned.
const ALIGNED_BLOCKS: u32 = 4;

/// Where the next data block goes.
#[derive(Debug, Default)]
pub struct DataLog {
    /// What is written here was moved by the cleaner.
    moved: bool,
    segment: Option<SegmentNo>,
    block: u32,
    /// The rest of the segment is too short for what came: it stays unused.
    ended: bool,
    start: u32,
    /// Blocks that were left out before it.
    before: u32,
    /// Blocks of the segment that were left out.
    left_out: u32,
    map: Vec<MapEntry>,
    /// Where the runs of the map lie.
    addrs: Vec<Addr>,
}

/// A partial's summary, to be written.
pub struct DataSummary {
    /// Where.
    pub addr: Addr,
    /// What.
    pub bytes: AlignedBuf,
}

/// What the summary says besides its map.
#[derive(Clone, Copy)]
pub struct DataStamp {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Epoch of this mount.
    pub epoch: Epoch,
    /// The chain's last sequence.
    pub seq: Seq,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// Now.
    pub now: Time,
}

/// Consecutive blocks of content that need a place.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Whose.
    pub ino: Ino,
    /// Its fork.
    pub fork: u32,
    /// The first file block.
    pub off: u64,
    /// How many.
    pub blocks: u32,
    /// So many blocks of a segment may be left out so that whole units of content lie in whole units of devices.
    pub left_out_max: u32,
    /// And any number that lie on these devices.
    pub avoided: Avoided,
}

/// The place that they got.
#[derive(Clone, Copy)]
pub struct Got {
    /// Where the first is.
    pub addr: Addr,
    /// How many of them.
    pub blocks: u32,
    /// Blocks that were left out before the first, within the segment.
    pub left_out: u32,
}

impl DataLog {
    /// The log of what the cleaner moves.
    pub fn of_cleaner() -> Self {
        Self { moved: true, ..Self::default() }
    }

    /// Up to so many consecutive blocks as wanted; fewer where the segment ends, in whole granules if it can be, so
    /// that a long run is not cut where coarse checksums cannot follow. Summaries of partials that had to
    /// be closed on the way are appended to `closed`. `None`: no segment left.
    pub fn allocate(
        &mut self,
        wanted: Wanted,
        stamp: DataStamp,
        storage: &Storage,
        segments: &mut Segments,
        closed: &mut Vec<DataSummary>,
    ) -> Option<Got> {
        let avoided = self.avoided_in(wanted.avoided, storage, segments);
        if self.map_is_full(avoided) {
            closed.extend(self.close(stamp));
        }
        let segment = match self.segment {
            Some(s) if self.has_room(storage, avoided) => s,
            _ => {
                closed.extend(self.finish(stamp, storage, segments));
                let s = segments.allocate(KIND_DATA, stamp.now)?;
                storage.begin_segment(s);
                self.segment = Some(s);
                self.block = 0;
                self.ended = false;
                self.left_out = 0;
                s
            }
        };
        // A segment that was begun just now may lie on other devices.
        let avoided = if storage.is_avoided(segment, avoided) { Avoided::NONE } else { avoided };
        let from = self.block;
        if self.map.is_empty() {
            self.start = storage.place_of(segment, from, 2, avoided).unwrap_or(from);
            self.before = self.start - from;
            self.block = self.start + 1;
        }
        let first = self.block;
        self.go_to_unit(wanted, segment, storage, avoided);
        self.go_past_avoided(segment, storage, avoided);
        let left_out = self.block - first + self.before * u32::from(first == self.start + 1);
        let blocks = wanted.blocks;
        let left = storage.segment_blocks - self.block;
        let blocks = if blocks > left && left > ALIGNED_BLOCKS && avoided.is_empty() {
            self.ended = true;
            left - left % ALIGNED_BLOCKS
        } else {
            blocks.min(storage.free_run(segment, self.block, avoided)).max(1)
        };
        let addr = self.take(segment, (wanted.ino, wanted.fork, wanted.off), blocks);
        Some(Got { addr, blocks, left_out })
    }

    /// The next blocks, as a run of the map.
    fn take(&mut self, segment: SegmentNo, (ino, fork, off): (Ino, u32, u64), blocks: u32) -> Addr {
        let addr = Addr::new(segment, self.block);
        self.block += blocks;
        self.map.push(MapEntry {
            ino: U64::new(ino.0),
            off: U64::new(off),
            fork: U32::new(fork),
            blocks: U32::new(blocks),
            crc: U32::new(0),
            level: 0,
            kind: 0,
            reserved: [0; 2],
        });
        self.addrs.push(addr);
        addr
    }

    /// Leaves blocks out so that whole units are not cut in two: then a granule, or a short run, is one request to one device.
    fn go_to_unit(&mut self, wanted: Wanted, segment: SegmentNo, storage: &Storage, avoided: Avoided) {
        let behind = self.block % UNIT_BLOCKS;
        let skipped = (UNIT_BLOCKS - behind) % UNIT_BLOCKS;
        let whole = wanted.blocks >= UNIT_BLOCKS && wanted.off % u64::from(UNIT_BLOCKS) == 0;
        let to = self.block + skipped;
        let fits = to + UNIT_BLOCKS <= storage.segment_blocks && self.map.len() + 2 <= map_capacity(1);
        let fits = fits && storage.place_of(segment, to, 1, avoided).is_some();
        if skipped > 0 && whole && fits && self.left_out + skipped <= wanted.left_out_max {
            self.left_out += skipped;
            self.take(segment, (Ino(0), 0, 0), skipped);
        }
    }

    /// Leaves out what lies on avoided devices, if there is anything behind it.
    fn go_past_avoided(&mut self, segment: SegmentNo, storage: &Storage, avoided: Avoided) {
        let to = storage.place_of(segment, self.block, 1, avoided).unwrap_or(self.block);
        if to > self.block {
            self.take(segment, (Ino(0), 0, 0), to - self.block);
        }
    }

    /// What is avoided in the segment being filled: nothing, where all of it lies there and no other is to be had.
    fn avoided_in(&self, avoided: Avoided, storage: &Storage, segments: &Segments) -> Avoided {
        let all = self.segment.is_some_and(|s| storage.is_avoided(s, avoided));
        if all && !segments.has_better() { Avoided::NONE } else { avoided }
    }

    /// Whether the map has no room for one more run, and for what may be left out before it.
    fn map_is_full(&self, avoided: Avoided) -> bool {
        self.map.len() + if avoided.is_empty() { 1 } else { 3 } > map_capacity(1)
    }

    /// Blocks that the next [`DataLog::allocate`] can give in one piece without beginning a segment.
    pub fn room_in_one(&self, storage: &Storage) -> u32 {
        let open = !self.map.is_empty() && self.map.len() < map_capacity(1);
        let begins = self.segment.is_none() || self.ended;
        if begins { 0 } else { storage.segment_blocks.saturating_sub(self.block + u32::from(!open)) }
    }

    /// The next [`DataLog::allocate`] begins a segment.
    pub fn end_segment(&mut self) {
        self.ended = true;
    }

    /// Whether one more block fits the segment being filled.
    fn has_room(&self, storage: &Storage, avoided: Avoided) -> bool {
        let needs = if self.map.is_empty() { 2 } else { 1 };
        let place = |s| storage.place_of(s, self.block, needs, avoided);
        !self.ended && self.segment.and_then(place).is_some()
    }

    /// Whether the next [`DataLog::allocate`] begins a segment.
    pub fn needs_segment(&self, storage: &Storage) -> bool {
        let open = !self.map.is_empty() && self.map.len() < map_capacity(1);
        self.segment.is_none() || self.ended || self.block + if open { 1 } else { 2 } > storage.segment_blocks
    }

    /// Whether the next [`DataLog::allocate`] closes the current partial.
    pub fn is_full(&self, storage: &Storage, avoided: Avoided, segments: &Segments) -> bool {
        let avoided = self.avoided_in(avoided, storage, segments);
        !self.map.is_empty() && (self.map_is_full(avoided) || !self.has_room(storage, avoided))
    }

    /// Notes the checksums of the run at `addr`, for each granule of
    /// `1 << granule_shift` blocks one.
    pub fn describe(&mut self, addr: Addr, granule_shift: u8, crcs: &[u32]) {
        if let Some(i) = self.addrs.iter().rposition(|a| *a == addr) {
            self.map[i].crc.set(run_crc(crcs));
            self.map[i].level = granule_shift;
        }
    }

    /// Ends the current partial: its summary is known now.
    pub fn close(&mut self, stamp: DataStamp) -> Option<DataSummary> {
        let segment = self.segment?;
        if self.map.is_empty() {
            return None;
        }
        let map = std::mem::take(&mut self.map);
        self.addrs.clear();
        let addr = Addr::new(segment, self.start);
        let header = Header {
            kind: PartialKind::Data,
            flags: if self.moved { DATA_MOVED } else { 0 },
            summary_blocks: 1,
            uuid: stamp.uuid,
            epoch: stamp.epoch,
            seq: stamp.seq,
            addr,
            prev_addr: Addr::NONE,
            prev_crc: 0,
            payload_crc: 0,
            durable_seq: Seq(0),
            open_cno: stamp.open_cno,
            written_at: stamp.now,
            record_bytes: 0,
            map_count: map.len() as u32,
            payload_blocks: self.block - self.start - 1,
            left_out: self.before,
            next: None,
            mount_id: 0,
        };
        let (bytes, _) = header.encode(&[], &map);
        Some(DataSummary { addr, bytes: AlignedBuf::padded(&bytes) })
    }

    /// The segment being filled.
    pub fn segment(&self) -> Option<SegmentNo> {
        self.segment
    }

    /// Ends the current segment.
    pub fn finish(&mut self, stamp: DataStamp, storage: &Storage, segments: &mut Segments) -> Option<DataSummary> {
        let summary = self.close(stamp);
        if let Some(s) = self.segment.take() {
            storage.end_segment(s, self.block);
            segments.seal(s);
        }
        summary
    }
}

/// Checksum of a run in a payload map: of its granules' checksums.
pub fn run_crc(crcs: &[u32]) -> u32 {
    crcs.iter().fold(0, |crc, c| nenrin_format::crc_append(crc, &c.to_le_bytes()))
}
