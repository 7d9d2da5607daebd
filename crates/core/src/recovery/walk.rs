//! Follows the chain on the device and decides where it ends.

use super::durable::Before;
use super::proof::{Proof, Vain};
use crate::breaks::{Break, broken};
use crate::covered;
use crate::log::chain::Chain;
use crate::mounts::Mounts;
use crate::storage::{Storage, Turn};
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::partial::{DATA_FLUSHED, Header, LOGICAL_BEGIN, LOGICAL_END, Newer, PartialKind, Summary};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, COUNTER_MAX, Epoch, SegmentNo, Seq};
use std::collections::BTreeSet;

/// Blocks read at once: first, and at most. Each read is twice as long as the one before, since most logs are short.
const READ_BLOCKS_FIRST: u32 = 16;
const READ_BLOCKS_MAX: u32 = 256;

/// A row of the decision table that applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next partial, linked and intact.
    Accept,
    /// Above the durable mark, and its own payload is not there.
    PayloadMissing,
    /// Above the durable mark, and data that it names elsewhere is not there.
    DataMissing,
    /// Intact, but the end of its logical segment is missing.
    Unfinished,
    /// Nothing more, and nothing proves that there was.
    Ends,
    /// Nothing more, and a later header proves that there was.
    Damage,
}

impl Verdict {
    /// All rows.
    pub const ALL: [Self; 6] =
        [Self::Accept, Self::PayloadMissing, Self::DataMissing, Self::Unfinished, Self::Ends, Self::Damage];

    /// What was decided, for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "partials accepted",
            Self::PayloadMissing => "cut before missing payload",
            Self::DataMissing => "cut before missing data",
            Self::Unfinished => "unfinished logical segment dropped",
            Self::Ends => "the log ends",
            Self::Damage => "damage proven",
        }
    }
}

/// A chain partial that fits.
pub(crate) struct Found {
    pub header: Header,
    pub crc: u32,
    pub records: Vec<u8>,
    payload: There,
}

/// Whether what a partial needs is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Intact,
    Wrong,
    /// It may be, and no device gives this.
    Unread(Addr),
}

impl Found {
    fn is_whole(&self) -> bool {
        self.payload == There::Intact
    }

    /// Whether it counts rather than another that a device has in the same place.
    pub(super) fn is_better(&self, other: &Self) -> bool {
        self.header.is_newer(&other.header)
            || !other.header.is_newer(&self.header) && self.is_whole() && !other.is_whole()
    }
}

/// Blocks that count although nothing proves that they were flushed, on every device that has them.
pub(crate) enum Unproven {
    /// A partial of the chain, and its summary CRC.
    Partial(Header, u32),
    /// Content that one names outside itself.
    Content(Extent),
}

impl Unproven {
    /// The first block, and how many.
    pub fn place(&self) -> (Addr, u32) {
        match self {
            Self::Partial(header, _) => (header.addr, header.total_blocks()),
            Self::Content(e) => covered::place(e),
        }
    }
    /// [`Storage::write_anew`] of each part that has a checksum: one device may have this part, and another that.
    ///
    /// # Errors
    /// As there.
    pub fn write_anew(&self, storage: &Storage, turn: Turn) -> Result<u64> {
        match self {
            Self::Partial(header, crc) => {
                let is_summary = |bytes: &[u8]| Header::decode(bytes).is_ok_and(|s| s.crc == *crc);
                let is_payload = |bytes: &[u8]| nenrin_format::crc(bytes) == header.payload_crc;
                let anew = |addr, blocks, right: &dyn Fn(&[u8]) -> bool| match broken(Break::UnflushedBelieved) {
                    true => storage.equalize(addr, blocks, right),
                    false => storage.write_anew(addr, blocks, turn, right),
                };
                let summary = header.summary_blocks as usize * BLOCK_BYTES;
                let payload = |bytes: &[u8]| bytes.get(summary..).is_none_or(|p| p.is_empty() || is_payload(p));
                let is_whole = |bytes: &[u8]| is_summary(bytes) && payload(bytes);
                match anew(header.addr, header.total_blocks(), &is_whole) {
                    Err(Error::Damaged(..)) if !broken(Break::PartialsWhole) => {}
                    done => return done,
                }
                let summary = anew(header.addr, header.summary_blocks, &is_summary)?;
                let (payload, blocks) = (header.payload_addr(), header.payload_blocks);
                Ok(summary + if blocks == 0 { 0 } else { anew(payload, blocks, &is_payload)? })
            }
            Self::Content(e) if broken(Break::UnflushedBelieved) => covered::equalize(storage, e),
            Self::Content(e) => covered::write_anew(storage, e, turn),
        }
    }
}

/// Where the chain ends, and what was on the way.
pub(crate) struct Outcome {
    pub accepted: Vec<Found>,
    pub dropped: u64,
    /// The highest sequence that anything proves to have been durable.
    pub durable_seq: Seq,
    /// Up to here what was accepted was durable: that a later mount went on, without the walk going along, proves nothing of what that
    /// mount may have dropped.
    pub vouched: Seq,
    pub damage: Option<String>,
    /// A newer program went on with the log.
    pub is_newer: bool,
    /// The epoch of a mount that is known to have gone on where the walk ended, and could not be followed, and where it began.
    pub left: Option<(Epoch, Seq)>,
    /// Behind its end many places cannot be read, from this one on: what they prove was asked for at some of them.
    pub passed: Option<Addr>,
    /// Nothing but a search of all segments led to a part of it.
    pub sought: bool,
    /// Sequence and epoch of the last partial that counts.
    pub stopped: (Seq, Epoch),
    /// Where content begins that is wrong, and was durable before what names it.
    wrong_before: BTreeSet<Addr>,
    pub verdicts: Vec<Verdict>,
    pub bytes_read: u64,
    pub requests: u64,
}

/// These partials, and the content that they name.
pub(crate) fn unproven_of<'a>(partials: impl Iterator<Item = &'a Found>) -> Vec<Unproven> {
    let mut out = Vec::new();
    for f in partials {
        out.push(Unproven::Partial(f.header.clone(), f.crc));
        if f.header.flags & DATA_FLUSHED == 0 {
            out.extend(named(f).unwrap_or_default().into_iter().map(Unproven::Content));
        }
    }
    out
}

impl Outcome {
    /// What counts although nothing proves that it was flushed: where a device may lack its copy.
    pub fn unproven(&self) -> Vec<Unproven> {
        let all = unproven_of(self.accepted.iter().filter(|f| f.header.seq > self.vouched));
        let was_wrong = |u: &Unproven| matches!(u, Unproven::Content(e) if self.wrong_before.contains(&e.addr));
        all.into_iter().filter(|u| !was_wrong(u)).collect()
    }

    /// The last partial that counts, or that a later one proves to have been durable.
    pub fn proves(&self) -> Seq {
        self.accepted.last().map_or(self.durable_seq, |f| f.header.seq.max(self.durable_seq))
    }
}

/// A walk from where a root says the chain goes on.
pub(crate) struct Walk<'a> {
    pub(super) storage: &'a Storage,
    pub(super) at: Chain,
    buffer: Option<(Addr, AlignedBuf)>,
    /// Blocks read next.
    ahead: u32,
    /// What was asked for in vain.
    pub(super) vain: Vain,
    /// The device whose copies are not read.
    avoid: Option<u16>,
    /// What follows is read without that device, too.
    scans: bool,
    /// The last payload that no read gave as it should be, its checksum, and whether it could be put together: of all copies, so that
    /// it need not be tried again without each device.
    put_together: Option<(Addr, u32, There)>,
    /// The root says that nothing was written behind it.
    pub(super) closed: bool,
    /// What the root has, where it is known.
    pub(super) before: Option<Before<'a>>,
    pub(super) wrong_before: BTreeSet<Addr>,
    /// Where something may belong that was asked for last, and that could not be read.
    unread: Option<Addr>,
    /// Mounts whose partials prove something.
    pub(super) mounts: Mounts,
    /// Where a newer program wrote to the log, and its version.
    newer: Option<(Addr, u16)>,
    /// The segment after this one, and what its first block says, on each device that has it.
    pub(super) beyond: Option<(SegmentNo, Vec<Header>)>,
    /// What the first blocks of all segments say of later epochs, once that was looked for.
    pub(super) firsts: Option<Vec<Header>>,
    /// It looks in all segments where the log names none to go on in.
    pub(super) seeks: bool,
    /// Something was found so.
    pub(super) sought: bool,
    pub(super) bytes_read: u64,
    pub(super) requests: u64,
}

impl<'a> Walk<'a> {
    pub fn new(storage: &'a Storage, chain: &Chain) -> Self {
        let mut mounts = storage.mounts().clone();
        mounts.add(chain.mount_id);
        Self {
            storage,
            at: chain.clone(),
            buffer: None,
            ahead: READ_BLOCKS_FIRST,
            vain: Vain::default(),
            avoid: None,
            scans: false,
            closed: false,
            before: None,
            wrong_before: BTreeSet::new(),
            unread: None,
            newer: None,
            beyond: None,
            firsts: None,
            seeks: false,
            sought: false,
            put_together: None,
            mounts,
            bytes_read: 0,
            requests: 0,
        }
    }

    /// Partials of mounts that no root names any more count, too: for who looks for all there is.
    pub fn of_any_mount(mut self) -> Self {
        self.mounts = Mounts::any();
        self
    }

    /// Whether the root says that nothing was written behind it: then nothing is missed there.
    pub fn closed(mut self, closed: bool) -> Self {
        self.closed = closed;
        self
    }

    /// Reads `blocks` blocks at `addr`, and ahead; false where they do not fit the segment.
    fn fill(&mut self, addr: Addr, blocks: u32) -> Result<bool> {
        if !self.storage.contains(addr, blocks) {
            return Ok(false);
        }
        let held = self.buffer.as_ref().is_some_and(|(start, buf)| {
            start.segment() == addr.segment()
                && *start <= addr
                && addr.0 + u64::from(blocks) <= start.0 + (buf.len() / BLOCK_BYTES) as u64
        });
        if !held {
            let rest = self.storage.segment_blocks - addr.block();
            let ahead = if self.avoid.is_none() || self.scans { self.ahead } else { 0 };
            let count = blocks.max(ahead).min(rest);
            // Ahead of what is asked for only what is there without the device: else what it has in all of that is taken.
            let read = match self.avoid.filter(|_| count > blocks) {
                Some(avoid) => self.storage.read_around(addr, count, avoid),
                None => self.read(addr, count),
            };
            let buf = match read {
                Ok(buf) => {
                    self.ahead = (self.ahead * 2).min(READ_BLOCKS_MAX);
                    self.vain.given(count);
                    buf
                }
                // Perhaps it is what follows that cannot be read.
                Err(Error::Device(_)) if count > blocks => {
                    self.ahead = 1;
                    self.vain.failed(None);
                    self.read(addr, blocks)?
                }
                Err(e) => return Err(e),
            };
            self.bytes_read += buf.len() as u64;
            self.requests += 1;
            self.buffer = Some((addr, buf));
        }
        Ok(true)
    }

    fn read(&self, addr: Addr, blocks: u32) -> Result<AlignedBuf> {
        match self.avoid {
            None => self.storage.read(addr, blocks),
            Some(avoid) => self.storage.read_rather_around(addr, blocks, avoid),
        }
    }

    /// Blocks that were filled.
    fn filled(&self, addr: Addr, blocks: u32) -> Option<&[u8]> {
        self.buffer.as_ref().map(|(start, buf)| {
            let from = (addr.0 - start.0) as usize * BLOCK_BYTES;
            &buf[from..from + blocks as usize * BLOCK_BYTES]
        })
    }

    /// `blocks` blocks at `addr`, read ahead; `None` where they do not fit the segment.
    pub(super) fn blocks(&mut self, addr: Addr, blocks: u32) -> Result<Option<&[u8]>> {
        Ok(if self.fill(addr, blocks)? { self.filled(addr, blocks) } else { None })
    }

    /// The same; `None`, which is noted, where they cannot be read, too.
    pub(super) fn readable(&mut self, addr: Addr, blocks: u32) -> Result<Option<&[u8]>> {
        match self.fill(addr, blocks) {
            Err(Error::Device(_)) => {
                self.vain.failed(Some(addr));
                self.unread = self.unread.or(Some(addr).filter(|_| self.avoid.is_none()));
                Ok(None)
            }
            filled => Ok(if filled? { self.filled(addr, blocks) } else { None }),
        }
    }

    /// The intact chain partial at `addr`, whatever it is linked to.
    pub(super) fn partial(&mut self, addr: Addr) -> Result<Option<(Header, u32, Vec<u8>)>> {
        self.of_chain(addr, |head| head.addr == addr)
    }

    /// What lies at `addr` and is an intact summary of this volume's chain, even if it belongs elsewhere, with a header that fits.
    pub(super) fn of_chain(
        &mut self,
        addr: Addr,
        fits: impl Fn(&Header) -> bool,
    ) -> Result<Option<(Header, u32, Vec<u8>)>> {
        let uuid = self.at.uuid;
        let Some(first) = self.readable(addr, 1)? else { return Ok(None) };
        let head = match (Header::peek(first), Header::newer(first)) {
            (Ok(head), _) => head,
            (Err(_), newer) => {
                self.note_newer(addr, newer)?;
                return Ok(None);
            }
        };
        if head.uuid != uuid || head.kind != PartialKind::Chain || !fits(&head) {
            return Ok(None);
        }
        self.summary(addr, &head, |s| (s.header, s.crc, s.records.to_vec()))
    }

    /// A newer program went on with the log here: an intact summary of this volume and epoch, or a later one.
    fn note_newer(&mut self, addr: Addr, newer: Option<Newer>) -> Result<()> {
        let is_ours = |n: &Newer| self.mounts.has(n.mount_id) || broken(Break::ContentProves);
        let of_log = |n: &Newer| n.addr == addr && n.uuid == self.at.uuid && n.epoch >= self.at.epoch && is_ours(n);
        let Some(newer) = newer.filter(of_log).filter(|_| !broken(Break::NewerIsEnd)) else { return Ok(()) };
        let Some(summary) = self.readable(addr, newer.summary_blocks)? else { return Ok(()) };
        if nenrin_format::own_crc(summary) == newer.crc {
            self.newer = self.newer.or(Some((addr, newer.version)));
        }
        Ok(())
    }

    /// What there is of the intact summary with this header, which may lie in parts here and there; `None`: it is not intact. Where another
    /// device has another one, that is not it: nobody has looked whether it fits.
    fn summary<T>(&mut self, addr: Addr, head: &Header, take: impl Fn(Summary<'_>) -> T) -> Result<Option<T>> {
        let (storage, blocks) = (self.storage, head.summary_blocks);
        let Some(bytes) = self.readable(addr, blocks)? else { return Ok(None) };
        let is_it = |s: &Summary<'_>| s.header == *head || broken(Break::AnySummary);
        let decoded = |bytes: &[u8]| Header::decode(bytes).ok().filter(is_it).map(&take);
        let found = decoded(bytes);
        if found.is_some() || blocks == 1 {
            return Ok(found);
        }
        let right = |bytes: &[u8]| Header::decode(bytes).is_ok_and(|s| is_it(&s));
        Ok(storage.read_right(addr, blocks, right).ok().and_then(|bytes| decoded(&bytes)))
    }

    /// The header of an intact partial of any kind at `addr`.
    pub(super) fn intact(&mut self, addr: Addr) -> Result<Option<Header>> {
        let uuid = self.at.uuid;
        let Some(first) = self.readable(addr, 1)? else { return Ok(None) };
        let Ok(head) = Header::peek(first) else { return Ok(None) };
        if head.addr != addr || head.uuid != uuid {
            return Ok(None);
        }
        self.summary(addr, &head, |s| s.header)
    }

    /// A partial with what its payload is worth.
    pub(super) fn found(&mut self, header: Header, crc: u32, records: Vec<u8>) -> Result<Found> {
        let (addr, blocks) = (header.payload_addr(), header.payload_blocks);
        let right = |payload: &[u8]| nenrin_format::crc(payload) == header.payload_crc;
        let payload = match self.blocks(addr, blocks) {
            _ if blocks == 0 => There::Intact,
            Ok(Some(payload)) if right(payload) => There::Intact,
            Ok(None) => There::Wrong,
            // Parts of it may be right here and there.
            Ok(Some(_)) | Err(Error::Device(_)) => {
                let known = self.put_together.filter(|(at, of, _)| (*at, *of) == (addr, header.payload_crc));
                let look = || match self.storage.read_right(addr, blocks, right) {
                    Ok(bytes) if right(&bytes) => There::Intact,
                    Err(Error::Device(_)) if !broken(Break::UnreadIsMissing) => There::Unread(addr),
                    _ => There::Wrong,
                };
                let payload = known.map_or_else(look, |(.., payload)| payload);
                self.put_together = Some((addr, header.payload_crc, payload));
                if payload == There::Intact && broken(Break::WalkReadsElsewhere) { There::Wrong } else { payload }
            }
            Err(e) => return Err(e),
        };
        Ok(Found { header, crc, records, payload })
    }

    /// The first partial that was perhaps never acknowledged and whose payload or
    /// data is not there, or not read; and the durable sequence, which may be proven by a
    /// header that a device misplaced onto that payload or data.
    pub(super) fn first_unproven(&mut self, found: &[Found], durable_seq: Seq) -> Result<(Option<usize>, Seq)> {
        let (first, durable_seq) = self.first_without(found, durable_seq)?;
        Ok((first.map(|(i, _)| i), durable_seq))
    }

    /// The same, and what became of what it needs.
    fn first_without(&mut self, found: &[Found], mut durable_seq: Seq) -> Result<(Option<(usize, There)>, Seq)> {
        let last = found.last().map_or(Epoch(0), |f| f.header.epoch);
        for (i, f) in found.iter().enumerate() {
            if f.header.seq <= durable_seq {
                continue;
            }
            let there = if f.is_whole() { self.data_of(found, i)? } else { f.payload };
            if there == There::Intact {
                continue;
            }
            let proof = if broken(Break::AstrayUnread) { Seq(0) } else { self.astray_on(f, last)? };
            if proof < f.header.seq {
                return Ok((Some((i, there)), durable_seq));
            }
            durable_seq = durable_seq.max(proof);
        }
        Ok((None, durable_seq))
    }

    /// The highest durable sequence that a later header proves which lies in the payload or data of this partial, and is of no later
    /// epoch than the last that was found.
    fn astray_on(&mut self, f: &Found, last: Epoch) -> Result<Seq> {
        let payload = (f.header.payload_addr(), f.header.payload_blocks);
        let data = named(f).unwrap_or_default();
        let mut proof = Seq(0);
        let mounts = self.mounts.clone();
        let epochs = f.header.epoch..=last;
        let counts = |h: &Header| epochs.contains(&h.epoch) && h.seq > f.header.seq && proves(&mounts, h);
        for (first, blocks) in std::iter::once(payload).chain(data.iter().map(covered::place)) {
            let end = first.block().saturating_add(blocks).min(self.storage.segment_blocks);
            let mut block = first.block();
            self.vain.anew();
            while block < end {
                let addr = Addr::new(first.segment(), block);
                match self.of_chain(addr, |h| h.addr != addr && counts(h)) {
                    Ok(Some((h, ..))) => proof = proof.max(h.durable_seq),
                    Ok(None) | Err(Error::Device(_)) => {}
                    Err(e) => return Err(e),
                }
                block = self.next_place(addr, end)?;
            }
        }
        Ok(proof)
    }

    /// The partial at `addr` if it follows the last accepted one: the copy that is whole, if one is.
    /// `left_out`: how many blocks it says that it left out.
    pub(super) fn following(&mut self, addr: Addr, new_segment: bool, left_out: u32) -> Result<Option<Found>> {
        let mut best = self.following_here(addr, new_segment, left_out)?;
        if best.as_ref().is_some_and(Found::is_whole) {
            return Ok(best);
        }
        let blocks = best.as_ref().map_or(1, |f| f.header.total_blocks());
        for avoid in self.storage.ways_around(addr, blocks) {
            match self.around(avoid, |walk| walk.following_here(addr, new_segment, left_out)) {
                Ok(Some(f)) if f.is_whole() => return Ok(Some(f)),
                Ok(f) => best = best.or(f),
                Err(Error::Device(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(best)
    }

    fn following_here(&mut self, addr: Addr, new_segment: bool, left_out: u32) -> Result<Option<Found>> {
        let at = self.at.clone();
        let fits = |header: &Header| {
            let epoch_fits =
                header.epoch == at.epoch || new_segment && header.epoch > at.epoch || broken(Break::ForgetEpoch);
            let linked =
                header.seq == at.seq.next() && header.prev_addr == at.last_addr && header.prev_crc == at.last_crc;
            header.addr == addr
                && epoch_fits
                && is_possible(header)
                && header.left_out == left_out
                && (linked || broken(Break::PastHole) && header.seq > at.seq)
        };
        let Some((header, crc, records)) = self.of_chain(addr, fits)? else { return Ok(None) };
        self.found(header, crc, records).map(Some)
    }

    /// The partial that follows the last accepted one at this block of a segment, or behind units that were left out there.
    fn following_from(&mut self, segment: SegmentNo, block: u32) -> Result<Option<Found>> {
        let right_there = self.following(Addr::new(segment, block), block == 0, 0)?;
        if right_there.is_some() || broken(Break::LeftOutUnseen) {
            return Ok(right_there);
        }
        for start in self.storage.jumps(segment, block) {
            let behind = self.following(Addr::new(segment, start), false, start - block)?;
            if behind.is_some() {
                return Ok(behind);
            }
        }
        Ok(None)
    }

    /// Where it is: behind the last partial that followed.
    pub fn at(&self) -> &Chain {
        &self.at
    }

    /// The next partial that follows.
    pub fn step(&mut self) -> Result<Option<Found>> {
        self.unread = None;
        let mut next = self.resumed()?;
        if next.is_none() {
            next = match self.left_behind() {
                Some(epoch) => self.gone_on(epoch)?,
                None => self.right_behind()?,
            };
        }
        if next.is_none() {
            next = self.resumed_anywhere()?;
        }
        if let Some(f) = &next {
            self.at.epoch = f.header.epoch;
            self.at.mount_id = f.header.mount_id;
            self.mounts.add(f.header.mount_id);
            self.at.segment = f.header.addr.segment();
            self.at.block = f.header.addr.block() + f.header.total_blocks();
            self.at.next = f.header.next;
            self.at.seq = f.header.seq;
            self.at.last_addr = f.header.addr;
            self.at.last_crc = f.crc;
        }
        Ok(next)
    }

    /// What follows here, or in the next segment.
    fn right_behind(&mut self) -> Result<Option<Found>> {
        let mut next = None;
        if self.at.block < self.storage.segment_blocks {
            next = self.following_from(self.at.segment, self.at.block)?;
        }
        match self.at.next.filter(|_| next.is_none()) {
            Some(segment) => self.following_from(segment, 0),
            None => Ok(next),
        }
    }

    /// Walks to the end.
    pub fn run(mut self) -> Result<Outcome> {
        self.seeks = true;
        let mut found: Vec<Found> = Vec::new();
        let mut durable_seq = self.at.seq;
        let begin = (self.at.seq, self.at.epoch);
        while let Some(f) = self.step()? {
            durable_seq = durable_seq.max(f.header.durable_seq);
            found.push(f);
        }
        let unread = self.unread.filter(|_| !self.closed && !broken(Break::UnreadIsEnd));
        let proof = if broken(Break::DamageIsEnd) { Proof::default() } else { self.proof_behind()? };
        let left = self.left_behind().map(|epoch| (epoch, self.at.seq.next()));
        if left.is_some() {
            durable_seq = durable_seq.max(self.at.seq);
        }
        durable_seq = durable_seq.max(proof.of_epoch);
        let total = found.len();
        let (unproven, vouched) = self.first_without(&found, durable_seq)?;
        // Behind the first that lacks something, a later life may have gone on.
        let first = unproven.and_then(|(i, _)| found.get(i)).map(|f| &f.header);
        let reached = first.map_or((self.at.last_addr, self.at.seq), |h| (h.prev_addr, Seq(h.seq.0.saturating_sub(1))));
        let damage = self.damage(proof.of_any, reached, unread).or_else(|| self.unread_in(&found, unproven));
        let damage = if damage.is_some() { damage } else { self.doubt()? };
        let mut verdicts = vec![if damage.is_some() { Verdict::Damage } else { Verdict::Ends }];
        let end = Self::end(&found, unproven.map(|(i, _)| i), &mut verdicts);
        found.truncate(end);
        if end > 0 {
            verdicts.push(Verdict::Accept);
        }
        Ok(Outcome {
            dropped: (total - end) as u64,
            stopped: found.last().map_or(begin, |f| (f.header.seq, f.header.epoch)),
            accepted: found,
            durable_seq: vouched.max(proof.of_any),
            vouched,
            damage,
            wrong_before: self.wrong_before,
            is_newer: self.newer.is_some(),
            left,
            passed: self.vain.passed,
            sought: self.sought,
            verdicts,
            bytes_read: self.bytes_read,
            requests: self.requests,
        })
    }

    /// Why more was committed than was found, or may have been: behind this partial.
    fn damage(&self, proof: Seq, (last, reached): (Addr, Seq), unread: Option<Addr>) -> Option<String> {
        let (end, next) = (self.at.last_addr, self.at.seq.next());
        if let Some((addr, version)) = self.newer {
            return Some(format!(
                "the log behind {end} has format version {version} at {addr}, newer than this program; update nenrin"
            ));
        }
        match unread {
            _ if proof > reached => Some(format!(
                "the log is damaged {}: partial {} was durable (a later one proves {proof}) and cannot be read",
                where_behind(last),
                reached.next()
            )),
            Some(addr) => Some(format!(
                "the log is damaged {}: the device does not give {addr}, where partial {next} may have been",
                where_behind(end)
            )),
            None => None,
        }
    }

    /// Why a partial may have been acknowledged that does not count: what it needs is perhaps there.
    fn unread_in(&self, found: &[Found], unproven: Option<(usize, There)>) -> Option<String> {
        let (f, there) = unproven.and_then(|(i, there)| Some((found.get(i)?, there)))?;
        let There::Unread(addr) = there else { return None };
        Some(format!(
            "the log is damaged {}: the device does not give {addr}, which partial {} needs, and which may have been durable",
            where_behind(f.header.prev_addr),
            f.header.seq
        ))
    }

    /// Looks through the rest of a segment, and again without each device that has some of it which others have, too.
    pub(super) fn each_way(
        &mut self,
        segment: SegmentNo,
        first: u32,
        look: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        look(self)?;
        let rest = self.storage.segment_blocks.saturating_sub(first);
        let ways = self.storage.ways_around(Addr::new(segment, first), rest);
        self.scans = true;
        let looked = ways
            .into_iter()
            .filter(|_| !broken(Break::OneWayBehind))
            .try_for_each(|avoid| self.around(avoid, |walk| look(walk)));
        self.scans = false;
        looked
    }

    /// Looks for something without what a device has.
    fn around<T>(&mut self, avoid: u16, look: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let buffer = self.buffer.take();
        // The others may give what this one does not.
        let vain = std::mem::take(&mut self.vain);
        self.avoid = Some(avoid);
        let found = look(self);
        self.avoid = None;
        self.buffer = buffer;
        let here = std::mem::replace(&mut self.vain, vain);
        self.vain.passed = self.vain.passed.or(here.passed);
        found
    }

    /// How many of the found partials count, if this is the first that has not all it needs.
    fn end(found: &[Found], unproven: Option<usize>, verdicts: &mut Vec<Verdict>) -> usize {
        let mut end = found.len();
        if let Some(first) = unproven.filter(|_| !broken(Break::TornPayload)) {
            let missing = if found[first].is_whole() { Verdict::DataMissing } else { Verdict::PayloadMissing };
            verdicts.push(missing);
            end = first;
        }
        // Only whole logical segments count.
        while !broken(Break::HalfLogical) && end > 0 && found[end - 1].header.flags & LOGICAL_END == 0 {
            end -= 1;
            verdicts.push(Verdict::Unfinished);
        }
        verdicts.dedup();
        // A root is written between logical segments, so the chain behind it begins one.
        if found.first().is_some_and(|f| f.header.flags & LOGICAL_BEGIN == 0) {
            end = 0;
        }
        end
    }

    /// Whether the data that a partial names outside itself is there, but for what was durable before.
    fn data_of(&mut self, found: &[Found], i: usize) -> Result<There> {
        let Some(f) = found.get(i) else { return Ok(There::Wrong) };
        if f.header.flags & DATA_FLUSHED != 0 {
            return Ok(There::Intact);
        }
        let Some(extents) = named(f) else { return Ok(There::Wrong) };
        let mut there = There::Intact;
        for e in &extents {
            match covered::read(self.storage, e) {
                Ok(_) => {}
                Err(Error::Damaged(..) | Error::Device(_)) if self.was_durable(found, i, e) => {}
                Err(Error::Device(_)) if !broken(Break::UnreadIsMissing) => there = There::Unread(e.addr),
                // What is wrong was never acknowledged, whatever else cannot be read.
                Err(Error::Damaged(..) | Error::Device(_)) => return Ok(There::Wrong),
                Err(e) => return Err(e),
            }
        }
        Ok(there)
    }
}

/// Whether a header says nothing that no counting leads to.
pub(super) fn is_possible(header: &Header) -> bool {
    header.epoch.0 < COUNTER_MAX || broken(Break::CountersBelieved)
}

/// Where a log goes wrong whose last good partial is this.
fn where_behind(last: Addr) -> String {
    if last == Addr::NONE { "where it begins".to_owned() } else { format!("behind {last}") }
}

/// Whether what a header says of the log counts: that of content that looks like one does not.
pub(super) fn proves(mounts: &Mounts, header: &Header) -> bool {
    mounts.has(header.mount_id) || broken(Break::ContentProves)
}

/// The extents outside a partial that its records name; `None` where they cannot be read.
fn named(f: &Found) -> Option<Vec<Extent>> {
    let mut out = Vec::new();
    let mut r = Reader::new(&f.records);
    while !r.is_empty() {
        match Record::decode(&mut r).ok()? {
            Record::Content { ops, .. } => {
                out.extend(
                    ops.into_iter().filter_map(|op| if let ContentOp::Extent(_, e) = op { Some(e) } else { None }),
                );
            }
            Record::Move { new, .. } => out.push(new),
            _ => {}
        }
    }
    out.retain(|e| !e.is_unwritten() && !e.addr.is_payload());
    Some(out)
}
