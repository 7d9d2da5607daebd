//! Copying a range of a file: whole blocks become shared, the rest is copied.
//!
//! A copy is content of its destination like any other, and is committed with
//! it: a stream that began with a truncation stays held back, and a crash shows
//! the content before the copy or behind it. What the source needs, the flag
//! and a back reference, is logged ahead by a record of its own.
//!
//! Invariants
//! 1. What is shared has been written to the device before the destination
//!    names it; what is still on its way is copied.
//! 2. Segments of blocks that the destination does not name yet are pinned.

use super::bursts::Who;
use super::cutting::{Cut, Off};
use super::holding::RANGES_MAX;
use super::read::{Piece, Source};
use super::space::Room;
use super::usage::{joined, run_of};
use super::write::{FILE_BYTES_MAX, WRITE_BEHIND_PAGES, Writer, copy_in};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Content, Over};
use crate::{At, Error, FileKind, Result};
use nenrin_format::items::{Checkpoint, EXTENT_SHARED, Extent};
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, EXTENT_BLOCKS_MAX, Ino};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes shared under one lock, so in one piece: 16 MiB.
const STEP_BYTES: u64 = 16 << 20;
/// Bytes that one call shares; the caller asks again.
const SHARED_BYTES_MAX: u64 = 1 << 30;
/// Bytes that one call copies by reading and writing, where nothing can be shared.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// Bytes copied in one piece.
const CHUNK_BYTES: u64 = 1 << 20;

/// From where to where a copy goes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    at: At,
    from: Ino,
    from_offset: u64,
    to: Ino,
    to_offset: u64,
    bytes: u64,
}

/// How a span is carried out.
#[derive(PartialEq, Eq)]
struct Plan {
    span: Span,
    /// File blocks of the source that are shared, from and to.
    whole: (u64, u64),
    /// Bytes before and behind them that are copied: where in the source, and how many.
    edges: [(u64, u64); 2],
}

impl Span {
    const fn advanced(self, by: u64) -> Self {
        let (from_offset, to_offset) = (self.from_offset + by, self.to_offset + by);
        Self { from_offset, to_offset, bytes: self.bytes - by, ..self }
    }
    /// Whether blocks of the source are blocks of the destination too.
    const fn is_congruent(self) -> bool {
        self.from_offset % BLOCK == self.to_offset % BLOCK
    }
    /// Where an offset of the source comes to lie.
    const fn target(self, offset: u64) -> u64 {
        offset - self.from_offset + self.to_offset
    }
}

impl Fs {
    /// Copies a range of bytes, as copy_file_range(2): shares whole blocks where
    /// both ranges lie on blocks in the same way, and copies the rest. Returns how
    /// many bytes were copied, fewer at the end of the source or when much was asked for.
    ///
    /// # Errors
    /// [`Error::BadArgument`] when the ranges overlap; what reading and writing say.
    pub fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        uid: u32,
    ) -> Result<u64> {
        self.copy_range_at(At::Live, from, from_offset, to, to_offset, bytes, uid.into())
    }

    /// [`Fs::copy_range`] of what the source was in a state of the past, too.
    ///
    /// # Errors
    /// As there.
    #[expect(clippy::too_many_arguments, reason = "as copy_file_range(2)")]
    pub fn copy_range_at(
        &self,
        at: At,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        writer: Writer,
    ) -> Result<u64> {
        let all = self.lock_to_change()?.copy_span(Span { at, from, from_offset, to, to_offset, bytes })?;
        let (mut done, mut copied) = (0, 0);
        while done < all.bytes.min(SHARED_BYTES_MAX) && copied < COPIED_BYTES_MAX {
            let rest = all.advanced(done);
            let step = if rest.is_congruent() {
                self.share_step(rest, writer)
            } else {
                let step = self.copy_step(rest, writer);
                copied += CHUNK_BYTES;
                step
            };
            match step {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies a piece by reading and writing.
    fn copy_step(&self, span: Span, writer: Writer) -> Result<u64> {
        let bytes = span.bytes.min(CHUNK_BYTES - span.to_offset % BLOCK);
        let data = self.read(span.at, span.from, span.from_offset, bytes as usize)?;
        self.accept_of(Who::Writes, span.to, span.to_offset, &data, writer).map(|a| a.bytes as u64)
    }

    /// Shares the whole blocks of a piece and copies its edges, in one change.
    fn share_step(&self, span: Span, writer: Writer) -> Result<u64> {
        let inner = self.lock_to_change()?;
        let data = inner.next_data(span.at, span.from, span.from_offset / BLOCK)?;
        drop(inner);
        let hole = data.map_or(u64::MAX, |block| block.saturating_mul(BLOCK)).saturating_sub(span.from_offset);
        if hole.min(span.bytes) > STEP_BYTES {
            let bytes = hole.min(span.bytes);
            return self.clear(writer, span.to, span.to_offset, span.to_offset + bytes, true).map(|()| bytes);
        }
        let bytes = span.bytes.min(STEP_BYTES - span.from_offset % BLOCK);
        let span = Span { bytes, ..span };
        if span.at == At::Live {
            self.await_writes_of(span.from)?;
        }
        let mut room = 4;
        loop {
            let plan = self.lock_to_change()?.copy_plan(span)?;
            // The source became shorter.
            if plan.span.bytes == 0 {
                return Ok(0);
            }
            let mut edges = Vec::with_capacity(2);
            for (offset, bytes) in plan.edges {
                edges.push((plan.span.target(offset), self.read(span.at, span.from, offset, bytes as usize)?));
            }
            let mut partial: Vec<u64> =
                edges.iter().filter(|(_, data)| !data.is_empty()).map(|(at, _)| at / BLOCK).collect();
            partial.dedup();
            // Behind the end there is nothing to read, as for a write.
            let within = |size: u64| partial.iter().copied().filter(|b| b * BLOCK < size).collect();
            let mut inner = self.room_and_pages(Room::Content(room), span.to, &within)?;
            if inner.copy_plan(span)? != plan {
                continue;
            }
            let pieces = inner.whole_pieces(&plan)?;
            if pieces.iter().any(|p| matches!(p.source, Source::Lost)) {
                inner.unpin_pieces(&pieces);
                return Err(Error::Corrupt("the content to be copied was lost to damage".into()));
            }
            let off = match inner.cut_by_copy(self, &plan, &pieces) {
                Ok(Some(off)) => off,
                // Much of the destination goes where the source has holes.
                Ok(None) => {
                    let step = first_step(&plan, &pieces);
                    inner.unpin_pieces(&pieces);
                    drop(inner);
                    return self.step_at_holes(span, step, writer);
                }
                Err(e) => {
                    inner.unpin_pieces(&pieces);
                    return Err(e);
                }
            };
            // Blocks that history has alone stop being room that can be made, but for those that a snapshot keeps anyway.
            let kept =
                |cno| inner.state.kept.get(&cno).is_some_and(Checkpoint::is_named) && !broken(Break::KeptCopiesGrow);
            let past = matches!(span.at, At::Past(cno) if !kept(cno));
            let needs = |p: &Piece| match p.source {
                Source::Memory(_) => p.blocks,
                Source::Disk(_) if past => p.blocks,
                _ => 0,
            };
            let needed = 4 + pieces.iter().map(needs).sum::<u64>() + pieces.len() as u64 / 2;
            if needed > room {
                inner.unpin_pieces(&pieces);
                room = needed;
                continue;
            }
            if let Err(e) = inner.prepare_copy(self, &plan, span, &pieces) {
                inner.unpin_pieces(&pieces);
                return Err(e);
            }
            inner.note_off(self, span.to, off)?;
            let to = plan.span;
            inner.note_owners(span.to, to.to_offset / BLOCK, (to.to_offset + to.bytes).div_ceil(BLOCK));
            inner.place_copy(self, &plan, pieces, &edges, writer)?;
            if inner.content_mut(self, span.to)?.pages.len() >= WRITE_BEHIND_PAGES {
                inner.write_behind(self, span.to)?;
            }
            let _ = self.hold_writer(inner, span.to, Who::Writes)?;
            self.hold_ranges(span.to, RANGES_MAX)?;
            return Ok(plan.span.bytes);
        }
    }

    /// A copy up to the first hole of the source, or of that hole alone, as holes are made: what is in the way goes in steps.
    fn step_at_holes(&self, span: Span, step: Step, writer: Writer) -> Result<u64> {
        match step {
            Step::UpTo(bytes) => self.share_step(Span { bytes, ..span }, writer),
            Step::Hole(bytes) => {
                self.clear(writer, span.to, span.to_offset, span.to_offset + bytes, true).map(|()| bytes)
            }
        }
    }

    /// Waits until the data writes of a file that were started are complete.
    fn await_writes_of(&self, ino: Ino) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        let elsewhere: Vec<u64> = inner.awaited.iter().filter(|(_, (of, _))| *of == ino).map(|(n, _)| *n).collect();
        let writes = inner.take_writes(|w| w.ino == ino);
        drop(inner);
        self.finish_writes(writes)?;
        self.wait_elsewhere(&elsewhere)
    }
}

impl Inner {
    /// The span, as far as the source reaches.
    fn copy_span(&self, span: Span) -> Result<Span> {
        let size_of = |at, ino| {
            let inode = self.current_inode(at, ino)?;
            match FileKind::from_mode(inode.mode) {
                FileKind::Regular => Ok(inode.size),
                FileKind::Directory => Err(Error::IsDirectory),
                _ => Err(Error::BadArgument("not a regular file")),
            }
        };
        size_of(At::Live, span.to)?;
        let size = size_of(span.at, span.from)?;
        let apart = span.from_offset.abs_diff(span.to_offset);
        if span.at == At::Live && span.from == span.to && apart < span.bytes {
            return Err(Error::BadArgument("the ranges overlap"));
        }
        let bytes = span.bytes.min(size.saturating_sub(span.from_offset));
        if bytes > 0 && span.to_offset.checked_add(bytes).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::TooLarge);
        }
        Ok(Span { bytes, ..span })
    }

    fn copy_plan(&self, span: Span) -> Result<Plan> {
        let span = self.copy_span(span)?;
        let (from, end) = (span.from_offset, span.from_offset + span.bytes);
        // The last block is whole when the file ends in it on both sides: what is behind is zero.
        let ends = end % BLOCK != 0
            && end == self.current_inode(span.at, span.from)?.size
            && span.target(end) >= self.current_inode(At::Live, span.to)?.size;
        let first = from.div_ceil(BLOCK);
        let last = if ends { end.div_ceil(BLOCK) } else { end / BLOCK };
        let (head, tail) = ((first * BLOCK).min(end), (last * BLOCK).max(from));
        let edges = if first > last {
            // All of it lies within one block.
            [(from, end - from), (end, 0)]
        } else {
            [(from, head - from), (tail.min(end), end.saturating_sub(tail))]
        };
        Ok(Plan { span, whole: (first, last.max(first)), edges })
    }

    /// What the whole blocks of a plan are. Segments of those on disk are pinned.
    fn whole_pieces(&mut self, plan: &Plan) -> Result<Vec<Piece>> {
        let (first, last) = plan.whole;
        if first < last { self.pieces(plan.span.at, plan.span.from, first, last) } else { Ok(Vec::new()) }
    }

    /// What of the destination goes with a copy that has holes; `None` where that is too much for one change.
    fn cut_by_copy(&self, fs: &Fs, plan: &Plan, pieces: &[Piece]) -> Result<Option<Off>> {
        if broken(Break::CopiedHolesUnasked) || !pieces.iter().any(|p| matches!(p.source, Source::Zero)) {
            return Ok(Some(Off::default()));
        }
        let first = plan.span.target(plan.whole.0 * BLOCK) / BLOCK;
        let blocks = plan.whole.1 - plan.whole.0;
        self.little_to_cut(fs, plan.span.to, Cut::Within(first, first + blocks), 0)
    }

    fn unpin_pieces(&mut self, pieces: &[Piece]) {
        for p in pieces {
            if let Source::Disk(e) = &p.source {
                self.state.segments.unpin(e.addr.segment());
            }
        }
    }

    /// Marks what these pieces, from file block `first` on, lie in as shared:
    /// what is committed by a record, what is not with its own commit. Refused where back references of them cannot be read, since
    /// the commit of the destination would end all writing.
    fn prepare_source(&mut self, fs: &Fs, span: Span, first: u64, pieces: &[Piece]) -> Result<()> {
        let ino = span.from;
        let run = |p: &Piece| if let Source::Disk(e) = &p.source { Some(run_of(e)) } else { None };
        for (from, to) in joined(pieces.iter().filter_map(run).collect()) {
            self.state.join_ahead(Addr(from), (to - from) as u32)?;
        }
        let mut committed: Option<(u64, u64)> = None;
        let mut block = first;
        for p in pieces {
            let (from, to) = (block, block + p.blocks);
            block = to;
            let Source::Disk(e) = &p.source else { continue };
            let content = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()).filter(|_| span.at == At::Live);
            match content.filter(|c| c.overlay.overlapping(from, to).next().is_some()) {
                Some(content) => {
                    content.overlay.share(from, to);
                    self.count_placed(ino);
                }
                None if !e.is_shared() => committed = Some((committed.map_or(from, |c| c.0), to)),
                None => {}
            }
        }
        let Some((from, to)) = committed else { return Ok(()) };
        let blocks = to - from;
        let record = match span.at {
            At::Live => {
                self.state.share_ahead(ino, from, blocks)?;
                Record::Share { ino, from, blocks }
            }
            At::Past(cno) => {
                self.state.share_past_ahead(ino, cno, from, blocks)?;
                Record::SharePast { ino, cno, from, blocks }
            }
        };
        self.log(&record, fs.clock.monotonic_nanos())
    }

    /// The destination has uncommitted content, the source is ready to be shared, and what was reserved in the range is no more: last, since
    /// a copy that is refused takes nothing away.
    fn prepare_copy(&mut self, fs: &Fs, plan: &Plan, span: Span, pieces: &[Piece]) -> Result<()> {
        let to = plan.span;
        self.content_mut(fs, to.to)?;
        let (from, end) = (to.to_offset / BLOCK, (to.to_offset + to.bytes).div_ceil(BLOCK));
        let changes = to.bytes > 0;
        if changes {
            self.content_ahead(to.to, from, end)?;
        }
        if changes && broken(Break::RefusedTakesPromise) {
            self.promise_ends(to.to, from, end)?;
        }
        self.prepare_source(fs, span, plan.whole.0, pieces)?;
        if changes && !broken(Break::RefusedTakesPromise) { self.promise_ends(to.to, from, end) } else { Ok(()) }
    }

    /// Makes pieces and edges content of the destination.
    fn place_copy(
        &mut self,
        fs: &Fs,
        plan: &Plan,
        pieces: Vec<Piece>,
        edges: &[(u64, Vec<u8>)],
        writer: Writer,
    ) -> Result<()> {
        let span = plan.span;
        let wall = fs.clock.wall();
        if broken(Break::CopyNotHeld) {
            self.unpin_pieces(&pieces);
        }
        let mut twice = Vec::new();
        let mut spare = std::mem::take(&mut self.spare);
        let content = self.content_mut(fs, span.to)?;
        let before = content.pages.len();
        for (at, data) in edges {
            copy_in(content, *at, data, &mut spare);
        }
        let mut block = plan.whole.0 - span.from_offset / BLOCK + span.to_offset / BLOCK;
        for p in pieces {
            let end = block + p.blocks;
            let mut rest = content.pages.split_off(&block);
            let mut behind = rest.split_off(&end);
            content.pages.append(&mut behind);
            match p.source {
                Source::Zero => content.overlay.set(block, end, Over::Hole),
                // Refused before anything was begun.
                Source::Lost => {}
                Source::Memory(bytes) => copy_in(content, block * BLOCK, &bytes, &mut spare),
                Source::Disk(e) => {
                    content.share_extent(block, &e);
                    // Who reads a piece holds its segment; from now on this content does, once.
                    if !broken(Break::CopyNotHeld) && !content.pins.insert(e.addr.segment()) {
                        twice.push(e.addr.segment());
                    }
                }
            }
            block = end;
        }
        content.size = content.size.max(span.to_offset + span.bytes);
        writer.note_times(content, wall);
        content.editor_uid = writer.uid;
        content.version += 1;
        let after = content.pages.len();
        self.pages = self.pages + after as u64 - before as u64;
        self.spare = spare;
        self.count_placed(span.to);
        twice.into_iter().for_each(|segment| self.state.segments.unpin(segment));
        self.unpin_dead(fs, span.to);
        Ok(())
    }
}

/// What is copied of a span that is too much for one change.
#[derive(Clone, Copy)]
enum Step {
    /// So many bytes, which have no holes.
    UpTo(u64),
    /// It begins with a hole of so many bytes.
    Hole(u64),
}

/// What comes first: up to a hole, or the hole itself.
fn first_step(plan: &Plan, pieces: &[Piece]) -> Step {
    let is_hole = |p: &&Piece| matches!(p.source, Source::Zero);
    let blocks = |count: usize| pieces.iter().take(count).map(|p| p.blocks).sum::<u64>();
    let before = blocks(pieces.iter().take_while(|p| !is_hole(p)).count());
    let start = plan.whole.0.saturating_add(before).saturating_mul(BLOCK);
    if start > plan.span.from_offset {
        return Step::UpTo((start - plan.span.from_offset).min(plan.span.bytes));
    }
    let hole = blocks(pieces.iter().take_while(is_hole).count());
    Step::Hole((hole * BLOCK).min(plan.span.bytes))
}

impl Content {
    /// An extent of another place becomes the content from `block` on, too.
    fn share_extent(&mut self, block: u64, e: &Extent) {
        let mut done = 0;
        while done < e.blocks {
            let at = block + u64::from(done);
            let window = EXTENT_BLOCKS_MAX - (at % u64::from(EXTENT_BLOCKS_MAX)) as u32;
            let blocks = window.min(e.blocks - done);
            let part = e.slice(done, blocks);
            let part = Extent { flags: part.flags | EXTENT_SHARED, ..part };
            self.overlay.set(at, at + u64::from(blocks), Over::Extent(part));
            done += blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{Still, create, device, mount};
    use nenrin_device::{Fault, Faulty, OpKind};
    use std::sync::Arc;

    /// What the index has at the place of its destination cannot be read.
    #[test]
    fn a_copy_that_is_refused_lets_go_of_its_source() {
        const PIECES: u64 = 6000;
        let memory = device(96, 64);
        let fs = mount(&memory, MountOptions::default());
        let to = create(&fs, "to");
        for n in 0..PIECES {
            assert!(fs.write(to, n * 2 * BLOCK, &[n as u8; BLOCK_BYTES], 0).unwrap() > 0);
        }
        fs.close().unwrap();
        drop(fs);
        let faulty = Arc::new(Faulty::new(memory));
        let few = MountOptions { cache_bytes: 1, ..MountOptions::default() };
        let fs = Fs::open(vec![faulty.clone()], Arc::new(Still), few).unwrap();
        let from = create(&fs, "from");
        assert_eq!(fs.write(from, 0, &[1; 1 << 20], 0).unwrap(), 1 << 20);
        fs.sync_all().unwrap();
        let pins = || fs.lock().state.segments.iter().map(|(_, s)| s.pins).sum::<u32>();
        let before = pins();
        // What the index has of others takes the place in memory of what it has of these.
        (0..PIECES).step_by(50).for_each(|n| drop(fs.read(At::Live, to, n * 2 * BLOCK, 1).unwrap()));
        faulty.faults().inject(Fault::Fail { kind: OpKind::Read, from: 1, times: u64::MAX / 2 });
        let refused = fs.copy_range(from, 0, to, PIECES * BLOCK, 1 << 20, 0);
        assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
        assert_eq!(pins(), before);
    }

    /// Whichever read fails: what was reserved where the copy was to go stays reserved, or the copy is there.
    fn each_read_fails() {
        let memory = device(96, 64);
        let fs = mount(&memory, MountOptions::default());
        for n in 0..600 {
            let ino = create(&fs, &format!("f{n}"));
            assert_eq!(fs.write(ino, 0, &[n as u8; 3 * BLOCK_BYTES], 0).unwrap(), 3 * BLOCK_BYTES);
        }
        let (from, to) = (create(&fs, "from"), create(&fs, "to"));
        assert_eq!(fs.write(from, 0, &[1; 1 << 20], 0).unwrap(), 1 << 20);
        fs.allocate(to, crate::AllocateMode::Reserve, 0, 1 << 20).unwrap();
        fs.close().unwrap();
        drop(fs);
        let faulty = Arc::new(Faulty::new(memory));
        let (mut refused, mut n) = (0, 0);
        loop {
            n += 1;
            let few = MountOptions { cache_bytes: 1, ..MountOptions::default() };
            let fs = Fs::open(vec![faulty.clone()], Arc::new(Still), few).unwrap();
            let before = fs.usage().reserved_blocks;
            assert_eq!(before, 256);
            faulty.faults().inject(Fault::Fail { kind: OpKind::Read, from: n, times: u64::MAX / 2 });
            let copied = fs.copy_range(from, 0, to, 0, 1 << 20, 0);
            faulty.faults().clear();
            match copied {
                Ok(_) => break,
                Err(_) => {
                    assert_eq!(fs.usage().reserved_blocks, before, "read {n}: a refused copy took what was reserved")
                }
            }
            refused += 1;
            drop(fs);
        }
        assert!(refused > 2, "{refused}");
    }

    #[test]
    fn a_copy_that_is_refused_leaves_what_is_reserved() {
        each_read_fails();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "a refused copy took what was reserved")]
    fn a_refused_copy_that_takes_it_is_noticed() {
        crate::breaks::with(Break::RefusedTakesPromise, each_read_fails);
    }

    /// The source becomes shorter between two steps: what is not copied changes nothing.
    #[test]
    fn a_copy_of_nothing_changes_nothing() {
        let fs = mount(&device(96, 64), MountOptions::default());
        let [from, to] = ["from", "to"].map(|name| create(&fs, name));
        assert_eq!(fs.write(from, 0, &[1; 1 << 20], 0).unwrap(), 1 << 20);
        let before = fs.getattr(At::Live, to).unwrap();
        let span = Span { at: At::Live, from, from_offset: 0, to, to_offset: 10 << 20, bytes: 1 << 20 };
        fs.setattr(from, &crate::SetAttr { size: Some(0), ..crate::SetAttr::default() }).unwrap();
        assert_eq!(fs.share_step(span, 0.into()).unwrap(), 0);
        let after = fs.getattr(At::Live, to).unwrap();
        assert_eq!((after.size, after.mtime), (before.size, before.mtime));
    }
}
