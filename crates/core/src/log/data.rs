//! Data partials: content written ahead of the records that name it.
//!
//! Invariants
//! 1. The summary block of a partial comes first and is written last, so a
//!    partial may be as long as its segment.
//! 2. Nothing here is sequenced: until a record names a block, it is garbage.

use crate::segments::{KIND_DATA, Segments};
use crate::storage::Storage;
use nenrin_device::AlignedBuf;
use nenrin_format::layout::le::{U32, U64};
use nenrin_format::partial::{Header, MapEntry, PartialKind, map_capacity};
use nenrin_format::{Addr, Cno, Epoch, Ino, SegmentNo, Seq, Time};

/// Where the next data block goes.
#[derive(Debug, Default)]
pub struct DataLog {
    segment: Option<SegmentNo>,
    block: u32,
    start: u32,
    map: Vec<MapEntry>,
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

impl DataLog {
    /// Up to `blocks` consecutive blocks for file blocks from `off` on of a
    /// fork; fewer where the segment ends. Summaries of partials that had to
    /// be closed on the way are appended to `closed`. `None`: no segment left.
    pub fn allocate(
        &mut self,
        (ino, fork, off): (Ino, u32, u64),
        blocks: u32,
        crc: u32,
        stamp: DataStamp,
        storage: &Storage,
        segments: &mut Segments,
        closed: &mut Vec<DataSummary>,
    ) -> Option<(Addr, u32)> {
        if self.map.len() >= map_capacity(1) {
            closed.extend(self.close(stamp));
        }
        let needs = if self.map.is_empty() { 2 } else { 1 };
        let segment = match self.segment {
            Some(s) if self.block + needs <= storage.segment_blocks => s,
            _ => {
                closed.extend(self.finish(stamp, segments));
                let s = segments.allocate(KIND_DATA, stamp.now)?;
                self.segment = Some(s);
                self.block = 0;
                s
            }
        };
        if self.map.is_empty() {
            self.start = self.block;
            self.block += 1;
        }
        let blocks = blocks.min(storage.segment_blocks - self.block);
        let addr = Addr::new(segment, self.block);
        self.block += blocks;
        self.map.push(MapEntry {
            ino: U64::new(ino.0),
            off: U64::new(off),
            fork: U32::new(fork),
            blocks: U32::new(blocks),
            crc: U32::new(crc),
            level: 0,
            kind: 0,
            reserved: [0; 2],
        });
        Some((addr, blocks))
    }

    /// Ends the current partial: its summary is known now.
    pub fn close(&mut self, stamp: DataStamp) -> Option<DataSummary> {
        let segment = self.segment?;
        if self.map.is_empty() {
            return None;
        }
        let map = std::mem::take(&mut self.map);
        let addr = Addr::new(segment, self.start);
        let header = Header {
            kind: PartialKind::Data,
            flags: 0,
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
            next: None,
        };
        let (bytes, _) = header.encode(&[], &map);
        Some(DataSummary { addr, bytes: AlignedBuf::padded(&bytes) })
    }

    /// Ends the current segment.
    pub fn finish(&mut self, stamp: DataStamp, segments: &mut Segments) -> Option<DataSummary> {
        let summary = self.close(stamp);
        if let Some(s) = self.segment.take() {
            segments.seal(s);
        }
        summary
    }
}
