//! What summaries vouch for, and what they claim of content: the blocks of a segment that have a checksum together.
//!
//! Invariants
//! 1. A claim proves nothing: of content a tree says what is true.
//! 2. What looks like a partial within another is content, unless it is what came later.
//! 3. Of what only a device has that was away, nothing counts that may be of an earlier life of the segment.

use crate::covered;
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::partial::{Header, PartialKind, Summary};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};

/// Blocks read at once.
const READ_BLOCKS: u32 = 256;

/// Blocks with one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vouched {
    pub addr: Addr,
    pub blocks: u32,
    sum: Sum,
}

/// How they are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Summary(u32),
    Payload(u32),
}

impl Vouched {
    /// Whether these are the bytes.
    pub fn is(&self, bytes: &[u8]) -> bool {
        match self.sum {
            Sum::Summary(crc) => Header::decode(bytes).is_ok_and(|s| s.crc == crc && s.header.addr == self.addr),
            Sum::Payload(crc) => nenrin_format::crc(bytes) == crc,
        }
    }

    /// The granules of an extent.
    pub fn of_extent(e: &Extent) -> impl Iterator<Item = Self> + '_ {
        let blocks = 1 << e.granule_shift;
        let first = covered::place(e).0;
        (0..).zip(&e.crcs).map(move |(i, crc)| Self { addr: first.add(i * blocks), blocks, sum: Sum::Payload(*crc) })
    }

    /// One past its last block.
    pub fn end(&self) -> Addr {
        self.addr.add(self.blocks)
    }
}

/// File blocks whose content may lie in the payload of a partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub ino: u64,
    pub from: u64,
    pub to: u64,
}

/// What a summary says of the payload behind it.
pub(crate) fn note_claims(summary: &Summary<'_>, claims: &mut Vec<Claim>) {
    let mut claim = |ino: u64, from: u64, blocks: u32| {
        claims.push(Claim { ino, from, to: from.saturating_add(u64::from(blocks)) });
    };
    match summary.header.kind {
        PartialKind::Data => {
            for run in summary.map.iter().filter(|run| run.ino.get() != 0) {
                claim(run.ino.get(), run.off.get(), run.blocks.get());
            }
        }
        PartialKind::Chain => {
            let mut records = Reader::new(summary.records);
            while !records.is_empty() {
                let Ok(record) = Record::decode(&mut records) else { return };
                let Record::Content { ino, ops, .. } = record else { continue };
                for op in ops {
                    match op {
                        ContentOp::Extent(off, e) if !e.is_unwritten() && e.addr.is_payload() => {
                            claim(ino.0, off, e.blocks);
                        }
                        _ => {}
                    }
                }
            }
        }
        PartialKind::Index | PartialKind::Root => {}
    }
}

/// A partial of which the summary is right.
struct Partial {
    header: Header,
    crc: u32,
    summary: Vouched,
    payload: Option<Vouched>,
    claims: Vec<Claim>,
}

impl Partial {
    fn new(summary: &Summary<'_>) -> Self {
        let header = &summary.header;
        let (addr, blocks) = (header.payload_addr(), header.payload_blocks);
        let of_summary = Vouched { addr: header.addr, blocks: header.summary_blocks, sum: Sum::Summary(summary.crc) };
        // Others are written after their payload: a summary of before may stand there until then.
        let has_payload = header.kind == PartialKind::Chain && blocks > 0;
        let payload = has_payload.then_some(Vouched { addr, blocks, sum: Sum::Payload(header.payload_crc) });
        let mut claims = Vec::new();
        note_claims(summary, &mut claims);
        Self { header: header.clone(), crc: summary.crc, summary: of_summary, payload, claims }
    }

    fn end(&self) -> Addr {
        self.header.addr.add(self.header.total_blocks())
    }
}

/// What is vouched for in a segment.
#[derive(Default)]
pub(crate) struct OfSegment {
    /// Of a segment of the chain summaries and payloads: by summaries alone, in order.
    pub ranges: Vec<Vouched>,
    /// Content that may lie in it: a claim proves nothing, a tree says what is true of it.
    pub claims: Vec<Claim>,
}

/// What the partials of a segment of this volume vouch for. `read` gives blocks as the devices have them that take part, and then in
/// other ways, with what a device still has that was away. `is_chain`: it is a segment of the chain.
pub(crate) fn in_segment(
    (segment, is_chain): (SegmentNo, bool),
    segment_blocks: u32,
    uuid: [u8; 16],
    read: impl Fn(Addr, u32) -> Vec<AlignedBuf>,
) -> OfSegment {
    let mut found: Vec<Vec<Partial>> = Vec::new();
    let mut block = 0;
    while block < segment_blocks {
        let count = READ_BLOCKS.min(segment_blocks - block);
        let first = Addr::new(segment, block);
        for (way, bytes) in read(first, count).iter().enumerate() {
            found.resize_with(found.len().max(way + 1), Vec::new);
            for (i, head) in (0..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                let addr = first.add(i);
                let Some(head) = Header::peek(head).ok().filter(|h| h.addr == addr && h.uuid == uuid) else { continue };
                let within = bytes.get(i as usize * BLOCK_BYTES..(i + head.summary_blocks) as usize * BLOCK_BYTES);
                let fits = addr.block() + head.summary_blocks <= segment_blocks;
                let longer = if within.is_none() && fits { read(addr, head.summary_blocks) } else { Vec::new() };
                let summary = within.or(longer.get(way).map(|l| &l[..]));
                let within = |p: &Partial| {
                    u64::from(addr.block()) + u64::from(p.header.total_blocks()) <= u64::from(segment_blocks)
                };
                let partial = summary.and_then(|s| Header::decode(s).ok()).map(|s| Partial::new(&s));
                found[way].extend(partial.filter(within));
            }
        }
        block += count;
    }
    let claims = found.iter().flatten().flat_map(|p| p.claims.clone()).collect();
    let mut ways = found.into_iter().map(outermost);
    let known = ways.next().unwrap_or_default();
    // The others have its payload.
    let is_known = |p: &Partial| p.payload.is_some_and(|v| read(v.addr, v.blocks).first().is_some_and(|b| v.is(b)));
    // Elsewhere summaries are written behind what they tell of, after a cut never: what stands there may be of an earlier life.
    let is_of_chain = |p: &Partial| is_chain && p.header.kind == PartialKind::Chain;
    let of_this_life = |p: &Partial| is_of_chain(p) && is_of_this_life(p, &known, &is_known);
    let more: Vec<Partial> = ways.flatten().filter(of_this_life).collect();
    let of = |p: Partial| [Some(p.summary), p.payload].into_iter().flatten();
    let all = known.into_iter().filter(is_of_chain).chain(more);
    let mut ranges: Vec<Vouched> = all.flat_map(of).collect();
    ranges.sort_by_key(|v| v.addr);
    ranges.dedup();
    OfSegment { ranges, claims }
}

/// Without what lies within others, or under what came later.
fn outermost(all: Vec<Partial>) -> Vec<Partial> {
    let mut out: Vec<Partial> = Vec::new();
    for p in all {
        match out.last() {
            Some(last) if p.header.addr < last.end() => {
                if p.header.is_newer(&last.header) {
                    out.pop();
                    out.push(p);
                }
            }
            _ => out.push(p),
        }
    }
    out
}

/// Whether a partial that only a device has which was away belongs among those that the others have.
fn is_of_this_life(p: &Partial, known: &[Partial], is_known: &dyn Fn(&Partial) -> bool) -> bool {
    let at = known.partition_point(|k| k.header.addr < p.header.addr);
    let (before, behind) = (at.checked_sub(1).and_then(|i| known.get(i)), known.get(at));
    let is_apart = before.is_none_or(|b| b.end() <= p.header.addr) && behind.is_none_or(|b| p.end() <= b.header.addr);
    let follows = before.is_some_and(|b| !b.header.is_newer(&p.header));
    let precedes = behind.is_none_or(|b| !p.header.is_newer(&b.header));
    let is_linked = behind.is_some_and(|b| b.header.prev_addr == p.header.addr && b.header.prev_crc == p.crc);
    is_apart && (is_linked || follows && precedes || before.is_none() && is_known(p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::{Cno, Epoch, Seq, Time};

    fn partial(block: u32, blocks: u32, seq: u64) -> Partial {
        let header = Header {
            kind: PartialKind::Data,
            flags: 0,
            summary_blocks: 1,
            uuid: [7; 16],
            epoch: Epoch(1),
            seq: Seq(seq),
            addr: Addr::new(SegmentNo(3), block),
            prev_addr: Addr(0),
            prev_crc: 0,
            payload_crc: 0,
            durable_seq: Seq(0),
            open_cno: Cno(1),
            written_at: Time(0),
            record_bytes: 0,
            map_count: 0,
            payload_blocks: blocks - 1,
            left_out: 0,
            next: None,
            mount_id: 0,
        };
        let summary = Vouched { addr: header.addr, blocks: 1, sum: Sum::Summary(block) };
        Partial { header, crc: block, summary, payload: None, claims: Vec::new() }
    }

    fn places(all: Vec<Partial>) -> Vec<u32> {
        outermost(all).iter().map(|p| p.header.addr.block()).collect()
    }

    #[test]
    fn what_lies_within_a_partial_is_content_unless_it_came_later() {
        assert_eq!(places(vec![partial(0, 8, 5), partial(3, 2, 4), partial(4, 9, 5), partial(8, 2, 6)]), [0, 8]);
        assert_eq!(places(vec![partial(0, 8, 5), partial(3, 2, 6), partial(8, 2, 7)]), [3, 8]);
        assert_eq!(places(vec![partial(0, 8, 5), partial(3, 9, 6), partial(8, 2, 5), partial(12, 1, 7)]), [3, 12]);
    }

    #[test]
    fn what_only_a_device_has_that_was_away_counts_if_it_is_of_this_life() {
        let known = [partial(4, 4, 10), partial(10, 2, 12)];
        let of = |block, blocks, seq, alike| is_of_this_life(&partial(block, blocks, seq), &known, &|_| alike);
        for (alike, seq, counts) in
            [(false, 10, true), (true, 11, true), (false, 12, true), (true, 9, false), (true, 13, false)]
        {
            assert_eq!(of(8, 2, seq, alike), counts, "between two: {seq}");
        }
        assert!(!of(8, 3, 11, true) && !of(7, 2, 11, true) && !of(4, 4, 10, true), "where others lie");
        assert!(of(12, 5, 12, false) && of(12, 5, 99, false) && !of(12, 5, 11, true), "behind all");
        assert!(of(0, 4, 9, true) && !of(0, 4, 9, false), "before all: if the others have what it vouches for");
        let linked = |prev_crc| {
            let mut next = partial(4, 4, 10);
            (next.header.prev_addr, next.header.prev_crc) = (Addr::new(SegmentNo(3), 2), prev_crc);
            is_of_this_life(&partial(2, 2, 9), &[next], &|_| false)
        };
        assert!(linked(2) && !linked(3), "the next one knows it");
        assert!(
            is_of_this_life(&partial(0, 4, 9), &[], &|_| true) && !is_of_this_life(&partial(0, 4, 9), &[], &|_| false)
        );
    }
}
