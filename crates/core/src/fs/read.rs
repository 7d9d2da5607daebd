//! Reading content: pages, overlay, index, and verified blocks.

use super::beside::giving_way;
use super::submit::{Ahead, readable};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Content, ReadBytes};
use crate::covered;
use crate::state::bad_item;
use crate::{At, Error, Result, Seek, Standing};
use nenrin_device::{AlignedBuf, Ticket};
use nenrin_format::items::{self, Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, BLOCK_BYTES, Ino, Invalid, SegmentNo};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// File blocks that a seek looks at under one hold of the lock.
const SEEK_BLOCKS: u64 = 4096;

/// Where one run of file blocks comes from.
pub(super) enum Source {
    /// Zeros.
    Zero,
    /// Nobody knows any more.
    Lost,
    /// These bytes, whole blocks.
    Memory(Vec<u8>),
    /// Blocks of the volume.
    Disk(Extent),
}

/// Consecutive file blocks of one source.
pub(super) struct Piece {
    pub blocks: u64,
    pub source: Source,
}

/// What file blocks are, while pieces are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Zero,
    Lost,
    Inline,
    Page,
    Extent(usize),
}

/// What each file block of a range is: runs of equal ones, of which only beginnings are kept.
struct Cells {
    /// In order; the first begins where the range does.
    runs: Vec<(u64, Cell)>,
    to: u64,
}

impl Cells {
    /// All of them zeros.
    fn new(from: u64, to: u64) -> Self {
        Self { runs: vec![(from, Cell::Zero)], to }
    }
    /// Blocks `[start, end)` are `cell`, whatever they were; those outside the range do not matter.
    fn fill(&mut self, start: u64, end: u64, cell: Cell) {
        let from = self.runs.first().map_or(self.to, |r| r.0);
        let (start, end) = (start.max(from), end.min(self.to));
        if start >= end {
            return;
        }
        let first = self.runs.partition_point(|r| r.0 < start);
        let last = self.runs.partition_point(|r| r.0 <= end);
        let goes_on = self.runs.get(last.wrapping_sub(1)).map(|r| (end, r.1)).filter(|_| end < self.to);
        let joins = first.checked_sub(1).and_then(|i| self.runs.get(i)).is_some_and(|r| r.1 == cell);
        let begins = (!joins).then_some((start, cell));
        self.runs.splice(first..last, begins.into_iter().chain(goes_on));
    }
    /// The runs: where each begins and ends, and what its blocks are.
    fn runs(&self) -> impl Iterator<Item = (u64, u64, Cell)> + '_ {
        let equal = self.runs.chunk_by(|a, b| a.1 == b.1);
        equal.scan(0usize, move |at, run| {
            *at += run.len();
            let end = self.runs.get(*at).map_or(self.to, |next| next.0);
            run.first().map(|(start, cell)| (*start, end, *cell))
        })
    }
}

/// What file blocks are, and what was found of them.
struct Found {
    cells: Cells,
    /// With the file block of each.
    extents: Vec<(u64, Extent)>,
    inline: Option<Vec<u8>>,
}

impl Inner {
    /// The inode with the size and times of its uncommitted content.
    pub(super) fn current_inode(&self, at: At, ino: Ino) -> Result<Inode> {
        let view = self.state.view(at)?;
        let mut inode = view.inode(ino)?;
        if at == At::Live {
            if let Some(c) = self.files.get(&ino).and_then(|f| f.content.as_ref()) {
                inode.size = c.size;
                inode.mtime = c.mtime;
                inode.ctime = c.ctime;
            }
            if let Some(atime) = self.accesses.get(ino) {
                inode.atime = atime;
            }
        }
        Ok(inode)
    }

    /// [`Inner::look`], to be read by [`Fs::fetch`]: segments of pieces on disk are pinned until then.
    pub(super) fn pieces(&mut self, at: At, ino: Ino, from: u64, to: u64) -> Result<Vec<Piece>> {
        let pieces = self.look(at, ino, from, to)?;
        for p in &pieces {
            if let Source::Disk(e) = &p.source {
                self.state.segments.pin(e.addr.segment());
            }
        }
        Ok(pieces)
    }

    /// The uncommitted content of a file, where that is asked for.
    fn content_at(&self, at: At, ino: Ino) -> Option<&Content> {
        match at {
            At::Live => self.files.get(&ino).and_then(|f| f.content.as_ref()),
            At::Past(_) => None,
        }
    }

    /// What file blocks `[from, to)` are. Copies no content.
    fn find(&self, at: At, ino: Ino, from: u64, to: u64) -> Result<Found> {
        let view = self.state.view(at)?;
        let inode = view.inode(ino)?;
        let content = self.content_at(at, ino);
        let mut cells = Cells::new(from, to);
        let mut extents: Vec<(u64, Extent)> = Vec::new();
        let mut inline = None;
        if content.is_none_or(|c| !c.replaced) {
            if inode.blocks > 0 {
                extents = view.extents(ino, inode.fork, from, to)?;
            }
            for (i, (start, e)) in extents.iter().enumerate() {
                let cell = match (e.is_lost(), e.is_unwritten()) {
                    (true, _) => Cell::Lost,
                    (_, true) => Cell::Zero,
                    _ => Cell::Extent(i),
                };
                cells.fill(*start, start + u64::from(e.blocks), cell);
            }
            if from == 0 && inode.blocks == 0 {
                let key = Key::new(ino, Kind::Inline, 0, 0);
                if let Some(value) = view.get(&key)? {
                    let bytes = small_content(&key, &value)?;
                    inline = Some(bytes.to_vec());
                    cells.fill(0, 1, Cell::Inline);
                }
            }
        }
        if let Some(c) = content {
            for (start, end, over) in c.overlay.overlapping(from, to) {
                match over.extent() {
                    Some(e) if !e.is_unwritten() => {
                        cells.fill(start, end, Cell::Extent(extents.len()));
                        extents.push((start, e.clone()));
                    }
                    _ => cells.fill(start, end, Cell::Zero),
                }
            }
            let mut pages = c.pages.range(from..to).map(|(b, _)| *b).peekable();
            while let Some(first) = pages.next() {
                let mut end = first + 1;
                while pages.next_if_eq(&end).is_some() {
                    end += 1;
                }
                cells.fill(first, end, Cell::Page);
            }
        }
        Ok(Found { cells, extents, inline })
    }

    /// Which of the file blocks `[from, to)` are zeros that lie nowhere, reserved or not: ranges, in order.
    pub(super) fn zeros(&self, at: At, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let found = self.find(at, ino, from, to)?;
        let zeros = found.cells.runs().filter(|(_, _, cell)| *cell == Cell::Zero);
        Ok(zeros.map(|(first, end, _)| (first, end)).collect())
    }

    /// Where file blocks `[from, to)` come from. What lies on disk may have been moved when the lock is let go.
    pub(super) fn look(&self, at: At, ino: Ino, from: u64, to: u64) -> Result<Vec<Piece>> {
        let Found { cells, extents, inline } = self.find(at, ino, from, to)?;
        let content = self.content_at(at, ino);
        let mut out = Vec::with_capacity(cells.runs.len());
        for (first, end, cell) in cells.runs() {
            let run = end - first;
            let source = match cell {
                Cell::Zero => Source::Zero,
                Cell::Lost => Source::Lost,
                Cell::Page => {
                    let mut bytes = Vec::with_capacity(run as usize * BLOCK_BYTES);
                    if let Some(c) = content {
                        for (_, page) in c.pages.range(first..end) {
                            bytes.extend_from_slice(&page[..]);
                        }
                    }
                    Source::Memory(bytes)
                }
                Cell::Inline => {
                    let mut bytes = inline.clone().unwrap_or_default();
                    bytes.resize(BLOCK_BYTES, 0);
                    Source::Memory(bytes)
                }
                Cell::Extent(e) => {
                    let (start, extent) = &extents[e];
                    Source::Disk(extent.slice((first - start) as u32, run as u32))
                }
            };
            out.push(Piece { blocks: run, source });
        }
        // Nothing is under way most of the time.
        if self.inflight.is_empty() || broken(Break::ReadTooEarly) {
            return Ok(out);
        }
        let mut settled = Vec::with_capacity(out.len());
        for p in out {
            match p.source {
                Source::Disk(e) => self.split(e, &mut settled),
                _ => settled.push(p),
            }
        }
        Ok(settled)
    }

    /// Pieces of an extent: what is still on its way to the device comes from memory. One extent may be of several
    /// writes that lie together, of which some have arrived; its granules are of one write each.
    fn split(&self, e: Extent, out: &mut Vec<Piece>) {
        let on_disk = |from: u64, to: u64| {
            let slice = e.slice((from - e.addr.0) as u32, (to - from) as u32);
            Piece { blocks: to - from, source: Source::Disk(slice) }
        };
        let (mut at, end) = (e.addr.0, e.addr.0 + u64::from(e.blocks));
        let before = self.inflight.range(..=e.addr).next_back().map_or(e.addr, |(start, _)| *start);
        for (start, buf) in self.inflight.range(before..Addr(end)) {
            let from = start.0.max(at);
            let to = end.min(start.0 + (buf.len() / BLOCK_BYTES) as u64);
            if from >= to {
                continue;
            }
            if at < from {
                out.push(on_disk(at, from));
            }
            let bytes = (from - start.0) as usize * BLOCK_BYTES..(to - start.0) as usize * BLOCK_BYTES;
            out.push(Piece { blocks: to - from, source: Source::Memory(buf[bytes].to_vec()) });
            at = to;
        }
        if at < end {
            out.push(on_disk(at, end));
        }
    }

    /// Whether some of what this extent's checksums cover is on its way to the device.
    pub(super) fn is_on_its_way(&self, e: &Extent) -> bool {
        let first = e.addr.0.saturating_sub(u64::from(e.lead));
        let end = Addr(e.addr.0 + u64::from(e.blocks + e.tail));
        let before = self.inflight.range(..end).next_back();
        before.is_some_and(|(start, bytes)| start.0 + (bytes.len() / BLOCK_BYTES) as u64 > first)
    }
}

/// What one read gets.
enum Run {
    /// One piece that is not on the device.
    One,
    /// Pieces that lie next to each other on the device.
    Disk { first: Addr, blocks: u32, pieces: usize },
}

/// Most blocks that pieces are joined to one read for.
const RUN_BLOCKS_MAX: u32 = 256;

/// Pieces in order, those next to each other on the device as one read.
fn runs(pieces: &[Piece]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::with_capacity(pieces.len());
    // Checksums that reach over the end of a piece end a run.
    let mut joins = false;
    for p in pieces {
        let Source::Disk(e) = &p.source else {
            out.push(Run::One);
            joins = false;
            continue;
        };
        let covered = covered::place(e).1;
        match out.last_mut() {
            Some(Run::Disk { first, blocks, pieces })
                if joins
                    && e.lead == 0
                    && first.segment() == e.addr.segment()
                    && first.0 + u64::from(*blocks) == e.addr.0
                    && *blocks + covered <= RUN_BLOCKS_MAX =>
            {
                *blocks += covered;
                *pieces += 1;
            }
            _ => {
                let first = Addr(e.addr.0.saturating_sub(u64::from(e.lead)));
                out.push(Run::Disk { first, blocks: covered, pieces: 1 });
            }
        }
        joins = e.tail == 0;
    }
    out
}

/// Pieces under way from the devices. Dropping it lets go of their segments; what still comes goes nowhere.
pub(super) struct Fetch<'a> {
    fs: &'a Fs,
    at: At,
    ino: Ino,
    /// The file block that is waited for.
    block: u64,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    /// One for each run that is on the device, in their order.
    tickets: VecDeque<Result<Ticket>>,
    pinned: Vec<SegmentNo>,
}

/// A part of a file under way.
pub(super) struct Reading<'a> {
    fetch: Fetch<'a>,
    skip: usize,
    bytes: usize,
    _ahead: Ahead<'a>,
}

impl Reading<'_> {
    /// Content, verified.
    pub fn wait(self) -> Result<ReadBytes> {
        let mut out = match self.fetch.wait() {
            Err(Error::Device(_)) if broken(Break::UnreadableIsZeros) => {
                let mut zeros = ReadBytes::default();
                zeros.push_zeros(self.bytes);
                return Ok(zeros);
            }
            other => other?,
        };
        out.trim(self.skip, self.bytes);
        Ok(out)
    }
    /// Whether the devices have answered.
    pub fn is_done(&self) -> bool {
        self.fetch.tickets.iter().all(|t| t.as_ref().map_or(true, Ticket::is_done))
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        if self.pinned.is_empty() {
            return;
        }
        let mut inner = self.fs.lock();
        for segment in self.pinned.drain(..) {
            inner.segments().unpin(segment);
        }
    }
}

impl Fetch<'_> {
    fn wait(mut self) -> Result<ReadBytes> {
        let read = self.all();
        read.inspect_err(|why| self.fs.note_damage(self.at, self.ino, Some(self.block * BLOCK), why))
    }

    /// What all pieces are, in order.
    fn all(&mut self) -> Result<ReadBytes> {
        let mut out = ReadBytes::default();
        let mut pieces = std::mem::take(&mut self.pieces).into_iter();
        for run in std::mem::take(&mut self.runs) {
            match run {
                Run::One => {
                    let Some(Piece { blocks, source }) = pieces.next() else { continue };
                    match source {
                        Source::Memory(bytes) => out.push_memory(bytes),
                        Source::Lost => return Err(Error::Corrupt("this content was lost to damage".into())),
                        _ => out.push_zeros(blocks as usize * BLOCK_BYTES),
                    }
                    self.block += blocks;
                }
                Run::Disk { pieces: count, .. } => {
                    let Some(ticket) = self.tickets.pop_front() else { continue };
                    let (buf, range) = self.verified(ticket?.wait()?, pieces.by_ref().take(count))?;
                    out.push_device(buf, range);
                }
            }
        }
        Ok(out)
    }

    /// What came for pieces that lie together, mended where another copy can, and which part of it they are.
    fn verified(
        &mut self,
        mut buf: AlignedBuf,
        pieces: impl Iterator<Item = Piece>,
    ) -> Result<(AlignedBuf, Range<usize>)> {
        let (mut start, mut end) = (None, 0);
        for p in pieces {
            let Source::Disk(e) = p.source else { continue };
            let covered = covered::place(&e).1 as usize * BLOCK_BYTES;
            let place = end..end + covered;
            // Looked at as it came: to ask for it to be changed may cost a copy.
            if let Err(why) = covered::verify(&e, buf.get(place.clone()).ok_or(bounds(&e))?) {
                let right = covered::read_elsewhere(&self.fs.storage, &e, why).inspect_err(|why| {
                    if let Error::Damaged(addr, _) = why {
                        self.block += addr.0.saturating_sub(e.addr.0);
                    }
                })?;
                buf.get_mut(place).ok_or(bounds(&e))?.copy_from_slice(&right);
                self.fs.mend_copies(&e);
            } else {
                // A device did not give it, which may when it is written to.
                let (first, blocks) = covered::place(&e);
                if self.fs.storage.take_unread(first, blocks) {
                    self.fs.mend_copies(&e);
                }
            }
            start.get_or_insert(e.lead as usize * BLOCK_BYTES);
            end += covered - e.tail as usize * BLOCK_BYTES;
            self.block += p.blocks;
        }
        Ok((buf, start.unwrap_or(0)..end))
    }
}

impl Fs {
    /// Content of a file, short at its end.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a block is not what was written there.
    pub fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.read_bytes(at, ino, offset, bytes).map(ReadBytes::into_vec)
    }

    /// [`Fs::read`], without copying what comes from the device.
    ///
    /// # Errors
    /// As there.
    pub fn read_bytes(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<ReadBytes> {
        self.submit_read(at, ino, offset, bytes).wait()
    }

    /// Starts reading content: the requests of all its pieces, to all devices that have some.
    pub(super) fn begin_read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Reading<'_>> {
        self.noting(at, ino, self.begin_known(at, ino, offset, bytes))
    }

    /// The same, once it is known where that content is.
    fn begin_known(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Reading<'_>> {
        let mut inner = self.lock();
        let inode = inner.current_inode(at, ino)?;
        readable(inode.mode)?;
        inner.state.view(at)?.content_is_known(ino)?;
        let end = inode.size.min(offset.saturating_add(bytes as u64));
        if offset >= end {
            let fetch = self.begin_fetch(at, ino, 0, Vec::new());
            return Ok(Reading { fetch, skip: 0, bytes: 0, _ahead: self.ahead(0) });
        }
        let (from, to) = (offset / BLOCK, end.div_ceil(BLOCK));
        let pieces = if at != At::Live && broken(Break::PastNeedsAll) && self.lacks_a_device() {
            vec![Piece { blocks: to - from, source: Source::Zero }]
        } else {
            inner.pieces(at, ino, from, to)?
        };
        drop(inner);
        let (skip, bytes) = ((offset - from * BLOCK) as usize, (end - offset) as usize);
        let ahead = self.ahead(bytes);
        Ok(Reading { fetch: self.begin_fetch(at, ino, from, pieces), skip, bytes, _ahead: ahead })
    }

    fn lacks_a_device(&self) -> bool {
        self.storage.health().iter().any(|d| d.standing != Standing::Active)
    }

    fn ahead(&self, bytes: usize) -> Ahead<'_> {
        Ahead::new(&self.reads_ahead, bytes)
    }

    /// The bytes of pieces of a file as it is, from `block` on, verified; unpins their segments.
    pub(super) fn fetch(&self, ino: Ino, block: u64, pieces: Vec<Piece>) -> Result<ReadBytes> {
        self.begin_fetch(At::Live, ino, block, pieces).wait()
    }

    /// Starts fetching such pieces, whose segments are pinned.
    fn begin_fetch(&self, at: At, ino: Ino, block: u64, pieces: Vec<Piece>) -> Fetch<'_> {
        let on_disk = |p: &Piece| if let Source::Disk(e) = &p.source { Some(e.addr.segment()) } else { None };
        let pinned = pieces.iter().filter_map(on_disk).collect();
        let runs = runs(&pieces);
        let mut tickets = VecDeque::with_capacity(runs.len());
        for run in &runs {
            if let Run::Disk { first, blocks, .. } = run {
                tickets.push_back(self.storage.submit_read(*first, *blocks));
            }
        }
        Fetch { fs: self, at, ino, block, pieces, runs, tickets, pinned }
    }

    /// The next content or hole from `offset` on.
    ///
    /// # Errors
    /// [`Error::NoSuchOffset`] at or behind the end, or when no data follows.
    pub fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let mut block = offset / BLOCK;
        let mut way = None;
        loop {
            // A window at a time: of a large file there are many, and others wait for the lock.
            let inner = self.lock();
            let size = inner.current_inode(at, ino)?.size;
            if offset >= size {
                return Err(Error::NoSuchOffset);
            }
            match inner.seek_within(at, ino, block, size.div_ceil(BLOCK), what)? {
                ControlFlow::Break(Some(block)) => return Ok((block * BLOCK).max(offset)),
                ControlFlow::Break(None) if what == Seek::Hole => return Ok(size),
                ControlFlow::Break(None) => return Err(Error::NoSuchOffset),
                ControlFlow::Continue(next) => block = next,
            }
            drop(inner);
            way.get_or_insert_with(giving_way);
        }
    }
}

impl Inner {
    /// Looks for a hole, or for what is none, in one window from `block` on: where it is, that there is none up to the end of the file,
    /// or where to go on.
    fn seek_within(&self, at: At, ino: Ino, block: u64, end: u64, what: Seek) -> Result<ControlFlow<Option<u64>, u64>> {
        if block >= end {
            return Ok(ControlFlow::Break(None));
        }
        let to = if broken(Break::SeeksLocked) { end } else { (block + SEEK_BLOCKS).min(end) };
        let zeros = self.zeros(at, ino, block, to)?;
        let found = match (what, zeros.first()) {
            (Seek::Hole, first) => first.map(|(from, _)| *from),
            // What begins with zeros is followed by something else where they end.
            (Seek::Data, Some((from, behind))) if *from == block => (*behind < to).then_some(*behind),
            (Seek::Data, _) => Some(block),
        };
        Ok(match (found, what) {
            (Some(found), _) => ControlFlow::Break(Some(found)),
            (None, Seek::Hole) => ControlFlow::Continue(to),
            (None, Seek::Data) => ControlFlow::Continue(self.next_data(at, ino, to)?.unwrap_or(end).max(to)),
        })
    }

    /// First file block at or behind `block` that may hold content: skips large holes.
    pub(super) fn next_data(&self, at: At, ino: Ino, block: u64) -> Result<Option<u64>> {
        let view = self.state.view(at)?;
        let inode = view.inode(ino)?;
        let mut found: Option<u64> = None;
        if inode.blocks > 0 {
            let first = Key::new(ino, Kind::Extent, inode.fork, block & !255);
            let last = Key::new(ino, Kind::Extent, inode.fork, u64::MAX);
            // As much of the past as is looked at under one hold of the lock: more of what it does not show may follow.
            let go_on = view.scan_some(&first, &last, &mut |k, v| {
                match Extent::decode(v) {
                    Ok(e) if k.off.saturating_add(u64::from(e.blocks)) > block => found = Some(k.off.max(block)),
                    Ok(_) => return ControlFlow::Continue(()),
                    Err(_) => found = Some(block),
                }
                ControlFlow::Break(())
            })?;
            found = found.or(go_on.map(|key| key.off.max(block)));
        } else if block == 0 && view.get(&Key::new(ino, Kind::Inline, 0, 0))?.is_some() {
            found = Some(0);
        }
        if let Some(c) = self.content_at(at, ino) {
            let page = c.pages.range(block..).next().map(|(b, _)| *b);
            let mut over = c.overlay.overlapping(block, u64::MAX).filter(|(_, _, o)| o.extent().is_some());
            let over = over.next().map(|(s, _, _)| s.max(block));
            found = [found, page, over].into_iter().flatten().min();
        }
        Ok(found)
    }
}

/// The bytes of a file that has no blocks.
pub(super) fn small_content<'a>(key: &Key, value: &'a [u8]) -> Result<&'a [u8]> {
    match items::decode_bytes(value) {
        Err(_) if broken(Break::GarbledIsZeros) => Ok(&[]),
        bytes => bytes.map_err(|why| bad_item(key, why)),
    }
}

fn bounds(e: &Extent) -> Error {
    Error::Damaged(e.addr, Invalid::Bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an array of all blocks would have it.
    #[test]
    fn runs_of_blocks_are_what_was_filled_last() {
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let (from, blocks) = (draw(50), 1 + draw(40));
            let to = from + blocks;
            let (mut cells, mut plain) = (Cells::new(from, to), vec![Cell::Zero; blocks as usize]);
            for n in 0..draw(12) {
                let start = draw(100);
                let end = start + draw(30);
                let cell = [Cell::Zero, Cell::Page, Cell::Page, Cell::Extent(n as usize)][draw(4) as usize];
                cells.fill(start, end, cell);
                for block in start.max(from)..end.min(to) {
                    plain[(block - from) as usize] = cell;
                }
            }
            let mut at = from;
            let mut before = None;
            for (start, end, cell) in cells.runs() {
                assert!(start == at && end > start && before != Some(cell), "{:?}", cells.runs);
                assert!(plain[(start - from) as usize..(end - from) as usize].iter().all(|c| *c == cell));
                (at, before) = (end, Some(cell));
            }
            assert_eq!(at, to);
        }
    }
}
