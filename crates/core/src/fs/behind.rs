//! Write-behind: content goes to data segments ahead of the records that name
//! it.
//!
//! Invariants
//! 1. A segment that holds blocks no record names yet is pinned by the content
//!    that will name them.
//! 2. Blocks under way can be read from memory until the device has them.

use super::commit::new_extent;
use super::space::with_summaries;
use super::{DataWrite, Fs, Inner, Request, SUMMARY};
use crate::breaks::{Break, broken};
use crate::content::{Over, Page};
use crate::devices::Avoided;
use crate::log::data::{DataLog, DataSummary, Wanted};
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::superblock::UNIT_BLOCKS;
use nenrin_format::{Addr, BLOCK_BYTES, EXTENT_BLOCKS_MAX, Ino};
use std::ops::Range;
use std::sync::Arc;

/// Granules of aligned runs, as powers of two, and the shortest run they are for: a checksum for every 64 KiB
/// of a large one costs a quarter of the metadata that one for every 16 KiB does.
const COARSE_GRANULES: [(u8, usize); 2] = [(4, 64), (2, 16)];
/// Blocks of one device write: 2 MiB, the largest buffer that is kept for reuse.
const GROUP_BLOCKS_MAX: usize = 512;

/// Whole blocks that a caller brought, where the device takes them from, and
/// checksummed before the lock is taken.
pub(super) struct Prepared {
    /// File block of the first.
    block: u64,
    bytes: Arc<AlignedBuf>,
    /// The granule of `crcs`, as a power of two.
    granule_shift: u8,
    crcs: Vec<u32>,
}

/// Blocks under one checksum of a run, as a power of two.
fn granule_shift(block: u64, blocks: usize) -> u8 {
    let fits = |shift: u8| (block | blocks as u64) % (1 << shift) == 0;
    COARSE_GRANULES.iter().find(|(shift, least)| blocks >= *least && fits(*shift)).map_or(0, |(shift, _)| *shift)
}

impl Prepared {
    pub(super) fn copied(block: u64, bytes: &[u8]) -> Self {
        let mut buf = AlignedBuf::unset(bytes.len());
        buf.copy_from_slice(bytes);
        Self::new(block, buf)
    }
    pub(super) fn new(block: u64, buf: AlignedBuf) -> Self {
        let granule_shift = granule_shift(block, buf.len() / BLOCK_BYTES);
        let crcs = buf.chunks_exact(BLOCK_BYTES << granule_shift).map(nenrin_format::crc).collect();
        Self { block, bytes: Arc::new(buf), granule_shift, crcs }
    }
}

impl Prepared {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whole blocks of content, wherever they are.
#[derive(Clone, Copy)]
enum Blocks<'a> {
    Pages(&'a [Page]),
    /// These blocks of what was prepared.
    Prepared(&'a Prepared, usize, usize),
}

impl Blocks<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Pages(p) => p.len(),
            Self::Prepared(_, from, to) => *to - *from,
        }
    }
    fn part(&self, from: usize, to: usize) -> Self {
        match self {
            Self::Pages(p) => Self::Pages(&p[from..to]),
            Self::Prepared(p, start, _) => Self::Prepared(p, start + from, start + to),
        }
    }
    fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Pages(p) => {
                for (page, to) in p.iter().zip(out.chunks_exact_mut(BLOCK_BYTES)) {
                    to.copy_from_slice(&page[..]);
                }
            }
            Self::Prepared(p, from, to) => out.copy_from_slice(&p.bytes[from * BLOCK_BYTES..to * BLOCK_BYTES]),
        }
    }
    /// Checksums of granules of these blocks, whose bytes are `bytes`.
    fn crcs(&self, shift: u8, bytes: &[u8]) -> Vec<u32> {
        if let Self::Prepared(p, from, to) = self {
            if shift == p.granule_shift && (from | to) % (1 << shift) == 0 {
                return p.crcs[from >> shift..to >> shift].to_vec();
            }
        }
        bytes.chunks_exact(BLOCK_BYTES << shift).map(nenrin_format::crc).collect()
    }
}

/// Consecutive file blocks and the place they got.
#[derive(Clone, Copy)]
struct Placed<'a> {
    block: u64,
    addr: Addr,
    bytes: Blocks<'a>,
}

/// The bytes of runs in one buffer: the prepared one, if it holds just them.
fn gathered(group: &[Placed<'_>], blocks: usize) -> Arc<AlignedBuf> {
    if let Some(Placed { bytes: Blocks::Prepared(p, 0, _), .. }) = group.first() {
        if p.bytes.len() == blocks * BLOCK_BYTES {
            return p.bytes.clone();
        }
    }
    let mut buf = AlignedBuf::unset(blocks * BLOCK_BYTES);
    let mut at = 0;
    for p in group {
        let end = at + p.bytes.len() * BLOCK_BYTES;
        p.bytes.copy_to(&mut buf[at..end]);
        at = end;
    }
    Arc::new(buf)
}

/// Which blocks share segments, since they are thought to die together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// Content that was not overwritten of late.
    New,
    /// Content that was.
    Hot,
    /// What the cleaner moves.
    Moved,
}

/// Room, in segments, that must be left when one is begun for hot content.
const HOT_SEGMENTS_MIN: u64 = 2;
/// Pages that are written behind under one hold of the lock: 4 MiB.
pub(super) const BEHIND_PAGES: usize = 1024;
/// Runs from so many blocks on are no random overwrites.
const SCATTERED_BLOCKS: usize = 16;

impl Inner {
    const fn log_of(&mut self, stream: Stream) -> &mut DataLog {
        match stream {
            Stream::New => &mut self.data,
            Stream::Hot => &mut self.hot,
            Stream::Moved => &mut self.cold,
        }
    }

    /// Whether these pages, which count as accepted no more, may go to two segments: the second one may be begun for few of
    /// them, and all that was accepted must have a place without it.
    fn may_set_hot_apart(&self, fs: &Fs, runs: &[(u64, Vec<Page>)]) -> bool {
        let blocks: u64 = runs.iter().map(|(_, run)| run.len() as u64).sum();
        let begins = blocks.div_ceil(u64::from(fs.storage.segment_blocks - 1)) + 1;
        !self.hot.needs_segment(&fs.storage) && with_summaries(blocks) <= u64::from(self.hot.room_in_one(&fs.storage))
            || self.room_segments(fs) >= begins + HOT_SEGMENTS_MIN
    }

    /// Starts writing all pages of a file to data segments; the overlay names
    /// them from now on. A failure ends all writing, since pages are gone.
    pub(super) fn write_behind(&mut self, fs: &Fs, ino: Ino) -> Result<()> {
        self.write_behind_of(fs, ino, 0..u64::MAX)
    }

    /// The same for the pages within a range of blocks.
    pub(super) fn write_behind_of(&mut self, fs: &Fs, ino: Ino, range: Range<u64>) -> Result<()> {
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return Ok(()) };
        let runs = content.take_runs(range);
        self.pages -= runs.iter().map(|(_, run)| run.len() as u64).sum::<u64>();
        let (live, apart) = (self.state.live_blocks, self.may_set_hot_apart(fs, &runs));
        let runs = runs.iter().map(|(start, run)| (*start, Blocks::Pages(run)));
        let is_hot = |(start, run): &(u64, Blocks<'_>)| {
            run.len() < SCATTERED_BLOCKS && self.recency.note(ino, *start, live) && apart
        };
        let (hot, others): (Vec<_>, Vec<_>) = runs.partition(is_hot);
        self.place_runs(fs, ino, &hot, Stream::Hot)
            .and_then(|()| self.place_runs(fs, ino, &others, Stream::New))
            .inspect_err(|e| self.fail(&e.to_string()))
    }

    /// The same for so many pages as should go at once: where the last ones were, and on from there.
    pub(super) fn write_some_behind(&mut self, fs: &Fs, ino: Ino) -> Result<()> {
        let at_once = self.behind_at_once(ino, fs.clock.monotonic_nanos());
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return Ok(()) };
        let from = content.hand;
        let last = content.pages.range(from..).nth(at_once - 1).map(|(block, _)| *block);
        content.hand = last.map_or(0, |block| block + 1);
        self.write_behind_of(fs, ino, from..last.map_or(u64::MAX, |block| block + 1))?;
        if last.is_none() && from > 0 {
            return self.write_some_behind(fs, ino);
        }
        Ok(())
    }

    /// Starts writing whole blocks that a caller brought, without making them
    /// pages first.
    pub(super) fn write_ahead(&mut self, fs: &Fs, ino: Ino, prepared: &Prepared) -> Result<()> {
        let blocks = prepared.bytes.len() / BLOCK_BYTES;
        let run = (prepared.block, Blocks::Prepared(prepared, 0, blocks));
        self.place_runs(fs, ino, &[run], Stream::New).inspect_err(|e| self.fail(&e.to_string()))
    }

    fn place_runs(&mut self, fs: &Fs, ino: Ino, runs: &[(u64, Blocks<'_>)], stream: Stream) -> Result<()> {
        let fork = self.state.inode(ino)?.map_or(0, |i| i.fork);
        let mut group: Vec<Placed<'_>> = Vec::new();
        let mut blocks = 0;
        for (start, run) in runs {
            let mut done = 0;
            while done < run.len() {
                let block = start + done as u64;
                let window = u64::from(EXTENT_BLOCKS_MAX) - block % u64::from(EXTENT_BLOCKS_MAX);
                let want = (run.len() - done).min(window as usize);
                let avoided = self.steer(fs);
                let Self { data, hot, cold, state, .. } = &*self;
                let log = [data, hot, cold][stream as usize];
                if log.is_full(&fs.storage, avoided, &state.segments) {
                    // The partial that is closed now says what it holds.
                    self.start_data_write(fs, ino, &group, stream)?;
                    group.clear();
                    blocks = 0;
                }
                let left_out_max = if want >= UNIT_BLOCKS as usize { self.left_out_max(fs) } else { 0 };
                let how = (avoided, left_out_max);
                let (addr, count) = self.allocate_in(fs, (ino, fork, block), want as u32, stream, how)?;
                let count = count as usize;
                let follows = group.last().is_some_and(|p| p.addr.add(p.bytes.len() as u32) == addr);
                if !follows || blocks + count > GROUP_BLOCKS_MAX {
                    self.start_data_write(fs, ino, &group, stream)?;
                    group.clear();
                    blocks = 0;
                }
                group.push(Placed { block, addr, bytes: run.part(done, done + count) });
                blocks += count;
                done += count;
            }
        }
        self.start_data_write(fs, ino, &group, stream)
    }

    /// Lets the segment of hot content be cleaned where room is too short to go on filling it.
    pub(super) fn end_hot_for_room(&mut self, fs: &Fs) -> Result<()> {
        if self.hot.segment().is_none() || self.room_segments(fs) > HOT_SEGMENTS_MIN {
            return Ok(());
        }
        let stamp = self.data_stamp(fs.clock.wall());
        let closed = self.hot.finish(stamp, &fs.storage, &mut self.state.segments);
        self.start_summaries(fs, closed)
    }

    /// Up to `want` consecutive blocks in the segment of what the cleaner moves; `in_order` from a unit of stripes on.
    pub(super) fn allocate_cold(
        &mut self,
        fs: &Fs,
        owner: (Ino, u32, u64),
        want: u32,
        in_order: bool,
    ) -> Result<(Addr, u32)> {
        let avoided = self.steer(fs);
        let left_out_max = if in_order && want >= UNIT_BLOCKS { self.left_out_max(fs) } else { 0 };
        self.allocate_in(fs, owner, want, Stream::Moved, (avoided, left_out_max))
    }

    /// Blocks there that lie together, on whichever devices.
    pub(super) fn allocate_cold_run(&mut self, fs: &Fs, owner: (Ino, u32, u64), want: u32) -> Result<(Addr, u32)> {
        self.allocate_in(fs, owner, want, Stream::Moved, (Avoided::NONE, 0))
    }

    fn allocate_in(
        &mut self,
        fs: &Fs,
        owner: (Ino, u32, u64),
        want: u32,
        stream: Stream,
        (avoided, left_out_max): (Avoided, u32),
    ) -> Result<(Addr, u32)> {
        let stamp = self.data_stamp(fs.clock.wall());
        let mut closed = Vec::new();
        let Self { data, hot, cold, state, .. } = self;
        let log = match stream {
            Stream::New => data,
            Stream::Hot => hot,
            Stream::Moved => cold,
        };
        let (ino, fork, off) = owner;
        let wanted = Wanted { ino, fork, off, blocks: want, left_out_max, avoided };
        let got = log.allocate(wanted, stamp, &fs.storage, &mut state.segments, &mut closed);
        let left_out = got.map_or(0, |got| got.left_out);
        self.counters.left_out_blocks += u64::from(left_out);
        self.start_summaries(fs, closed)?;
        if let Some(got) = got.filter(|_| left_out > 0 && fs.storage.has_parity() && !broken(Break::LeftOutUnwritten)) {
            // Nobody will write there, and parity is that of all that lies in a row.
            let first = Addr(got.addr.0 - u64::from(left_out));
            let zeros = AlignedBuf::zeroed(left_out as usize * BLOCK_BYTES);
            let ticket = fs.storage.submit_write(first, Arc::new(zeros))?;
            self.note_write(SUMMARY, first, left_out, Request::Begun(ticket));
        }
        got.map(|got| (got.addr, got.blocks)).ok_or(Error::NoSpace)
    }

    /// Starts writing summaries of data partials.
    pub(super) fn start_summaries(&mut self, fs: &Fs, closed: impl IntoIterator<Item = DataSummary>) -> Result<()> {
        for DataSummary { addr, bytes } in closed {
            let ticket = fs.storage.submit_write(addr, Arc::new(bytes))?;
            self.note_write(SUMMARY, addr, 1, Request::Begun(ticket));
        }
        Ok(())
    }

    /// One device write for runs that lie next to each other on the device.
    fn start_data_write(&mut self, fs: &Fs, ino: Ino, group: &[Placed<'_>], stream: Stream) -> Result<()> {
        let Some(first) = group.first().map(|p| p.addr) else { return Ok(()) };
        let blocks: usize = group.iter().map(|p| p.bytes.len()).sum();
        let buf = gathered(group, blocks);
        if self.files.get(&ino).is_none_or(|f| f.content.is_none()) {
            return Ok(());
        }
        let mut at = 0;
        let mut extents = Vec::with_capacity(group.len());
        for p in group {
            let count = p.bytes.len();
            let shift = granule_shift(p.block, count);
            let end = at + count * BLOCK_BYTES;
            let extent = new_extent(p.addr, count as u32, shift, p.bytes.crcs(shift, &buf[at..end]));
            self.log_of(stream).describe(p.addr, shift, &extent.crcs);
            extents.push((p.block, p.block + count as u64, extent));
            at = end;
        }
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return Ok(()) };
        for (from, to, extent) in extents {
            content.overlay.set(from, to, Over::Extent(extent));
        }
        if content.pins.insert(first.segment()) {
            self.state.segments.pin(first.segment());
        }
        self.count_placed(ino);
        self.unpin_dead(fs, ino);
        self.counters.data_blocks += blocks as u64;
        self.inflight.insert(first, buf.clone());
        let now = fs.clock.monotonic_nanos();
        let request = if self.joins_burst(fs, ino, now) {
            self.bursts.hold(blocks as u32);
            Request::Held(buf, now)
        } else {
            Request::Begun(fs.storage.submit_write(first, buf)?)
        };
        self.note_write(ino, first, blocks as u32, request);
        Ok(())
    }

    fn note_write(&mut self, ino: Ino, addr: Addr, blocks: u32, request: Request) {
        let number = self.writes_started;
        self.writes_started += 1;
        self.writes.push(DataWrite { number, ino, addr, blocks, request });
    }
}
