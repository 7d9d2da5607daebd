//! Copies extents to the data segment of what is cold, and logs where they are.
//!
//! Invariants
//! 1. What is copied was verified; a Move is logged only while the item is
//!    still what was copied, with its segment pinned since it was found.
//! 2. A Move is logged after its copy has been written, and flushed where the
//!    barrier mode flushes syncs.
//! 3. A step opens at most one segment, and none below the floor.

use super::super::beside::FewWrites;
use super::super::{Fs, Inner};
use super::{Job, Move, Stage};
use crate::breaks::{Break, broken};
use crate::covered;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, EXTENT_BLOCKS_MAX, Ino, SegmentNo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most blocks copied in one step: 4 MiB, for one flush.
const STEP_BLOCKS: u32 = 1024;
/// Moves compared and logged under one hold of the lock.
const MOVES_AT_ONCE: usize = 64;
/// Most blocks of one device write.
const WRITE_BLOCKS: usize = 512;
/// Most blocks of one read, and the gap of unneeded blocks that is read over.
const READ_BLOCKS: (u32, u32) = (256, 8);

/// What a read delays others by at least, in blocks.
const READ_COST_BLOCKS: u32 = 8;

/// Extents with the verified bytes of their blocks.
type Verified = Vec<(Move, AlignedBuf)>;

/// An extent, the bytes of its blocks, and where they go.
struct Copied {
    what: Move,
    bytes: AlignedBuf,
    /// In order; more than one where a segment ended. Without the last when room did.
    pieces: Vec<Extent>,
}

impl Copied {
    /// Each piece with the blocks of the extent before it.
    fn places(&self) -> impl Iterator<Item = (u32, &Extent)> {
        let mut skip = 0;
        self.pieces.iter().map(move |e| {
            let before = skip;
            skip += e.blocks;
            (before, e)
        })
    }
    fn bytes_of(&self, skip: u32, blocks: u32) -> &[u8] {
        &self.bytes[skip as usize * BLOCK_BYTES..(skip + blocks) as usize * BLOCK_BYTES]
    }
}

impl Fs {
    /// Extents that may be moved before an index checkpoint, which must still
    /// fit then: each may make a leaf dirty.
    pub(super) fn moves_to_spare(&self) -> Result<u64> {
        let inner = self.lock_to_change()?;
        // A step may take a segment for the copies.
        let segment = u64::from(inner.cold.needs_segment(&self.storage));
        Ok(if inner.state.segments.free_count() > inner.floor_beside_pages(self) + segment {
            inner.nodes_to_move(self)
        } else {
            0
        })
    }

    /// Whether the index checkpoint that ends a round still fits after one more step.
    pub(super) fn may_move(&self) -> Result<bool> {
        Ok(self.moves_to_spare()? > 0)
    }

    /// Moves the next extents of the job, up to `blocks` blocks; how many were
    /// copied, or `None` when there is no room to go on.
    pub(super) fn move_some(&self, job: &mut Job, blocks: u64) -> Result<Option<u64>> {
        let Stage::Moves { at } = &mut job.stage else { return Ok(Some(0)) };
        if *at >= job.moves.len() {
            job.stage = Stage::Shared { at: 0 };
            return Ok(Some(0));
        }
        let moves = self.moves_to_spare()?;
        if moves == 0 {
            return Ok(None);
        }
        let most = STEP_BLOCKS.min(self.storage.segment_blocks / 2).min(u32::try_from(blocks).unwrap_or(u32::MAX));
        let mut total = 0;
        let mut end = *at;
        for m in &job.moves[*at..] {
            if end > *at && total + m.extent.blocks > most || (end - *at) as u64 >= moves {
                break;
            }
            total += m.extent.blocks;
            end += 1;
        }
        let step = &job.moves[*at..end];
        let done = self.copy(step).and_then(|(copied, unread)| Ok((self.relocate(copied, job.order)?, unread)));
        let done = done.or_else(|e| {
            self.bear(e)?;
            Ok::<_, Error>(((0, step.iter().map(|m| m.extent.addr.segment()).collect()), Vec::new()))
        });
        let ((moved, stuck), unread) = done?;
        job.unreadable.extend(stuck.into_iter().chain(unread));
        *at = end;
        job.moved += moved;
        Ok(Some(u64::from(total)))
    }

    /// The verified bytes of these extents, and the segments of those that cannot be had.
    /// What is damaged stays where it is: scrubbing reports it.
    fn copy(&self, moves: &[Move]) -> Result<(Verified, Vec<SegmentNo>)> {
        let mut reads: Vec<(Addr, u32)> = moves.iter().map(|m| covered::place(&m.extent)).collect();
        reads.sort_unstable();
        let reads = joined(&reads);
        let mut pieces: BTreeMap<Addr, AlignedBuf> = BTreeMap::new();
        let mut rest = &reads[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(few(rest, self.background_blocks()));
            let tickets =
                now.iter().map(|(addr, n)| self.storage.submit_read(*addr, *n)).collect::<Result<Vec<_>>>()?;
            for ((addr, _), ticket) in now.iter().zip(tickets) {
                if let Ok(bytes) = ticket.wait() {
                    pieces.insert(*addr, bytes);
                }
            }
            rest = later;
        }
        let (mut copied, mut unread) = (Vec::with_capacity(moves.len()), Vec::new());
        for m in moves {
            self.breathe();
            let (first, count) = covered::place(&m.extent);
            let sound = |bytes: &[u8]| covered::verify(&m.extent, bytes).is_ok();
            let joined = pieces.range(..=first).next_back().and_then(|(start, piece)| {
                let from = (first.0 - start.0) as usize * BLOCK_BYTES;
                piece.get(from..from + count as usize * BLOCK_BYTES).filter(|b| sound(b))
            });
            // What was read with it may be what cannot be read, and others may have a copy that is right.
            let again = || covered::read(&self.storage, &m.extent).ok();
            let alone = if joined.is_none() && !broken(Break::CopiesUntried) { again() } else { None };
            match joined.or(alone.as_deref()) {
                Some(bytes) => {
                    let from = m.extent.lead as usize * BLOCK_BYTES;
                    let mut buf = AlignedBuf::unset(m.extent.blocks as usize * BLOCK_BYTES);
                    let len = buf.len();
                    buf.copy_from_slice(&bytes[from..from + len]);
                    copied.push((m.clone(), buf));
                }
                None => unread.push(m.extent.addr.segment()),
            }
        }
        Ok((copied, unread))
    }

    /// Writes copies to their new places, `in_order` at units of stripes, and logs the moves; how many blocks moved, and out of which
    /// segments some did not, since the index cannot be read where they belong.
    fn relocate(&self, copied: Verified, in_order: bool) -> Result<(u64, Vec<SegmentNo>)> {
        let mut pinned = Vec::new();
        let placed = self.place(copied, in_order, &mut pinned);
        let result = placed.and_then(|placed| {
            self.write_copies(&placed).inspect_err(|e| self.lock().fail(&e.to_string()))?;
            self.log_moves(&placed)
        });
        let mut inner = self.lock();
        for segment in pinned {
            inner.segments().unpin(segment);
            self.storage.let_go_of_segment(segment);
        }
        result
    }

    /// Gives each copy a place; those that find none are left out.
    fn place(&self, copied: Verified, in_order: bool, pinned: &mut Vec<SegmentNo>) -> Result<Vec<Copied>> {
        let mut placed = Vec::with_capacity(copied.len());
        for chunk in in_chunks(copied) {
            let mut inner = self.lock_to_change()?;
            for run in in_runs(chunk) {
                let (blocks, got) = (blocks_of(&run), inner.place_cold(self, run, in_order, pinned)?);
                let whole = got.iter().flat_map(|c| &c.pieces).map(|e| e.blocks).sum::<u32>() == blocks;
                placed.extend(got);
                if !whole {
                    return Ok(placed);
                }
            }
        }
        Ok(placed)
    }

    /// Writes copies, those next to each other at once, and waits.
    fn write_copies(&self, placed: &[Copied]) -> Result<()> {
        let pieces: Vec<(Addr, &[u8])> =
            placed.iter().flat_map(|c| c.places().map(|(skip, e)| (e.addr, c.bytes_of(skip, e.blocks)))).collect();
        let mut writes = FewWrites::default();
        let most = WRITE_BLOCKS.min(self.background_blocks() as usize);
        let mut rest = &pieces[..];
        while let Some((start, _)) = rest.first() {
            let (mut run, mut blocks) = (0, 0);
            for (addr, bytes) in rest {
                let follows = *addr == start.add(blocks as u32);
                let count = bytes.len() / BLOCK_BYTES;
                if !follows || run > 0 && blocks + count > most {
                    break;
                }
                blocks += count;
                run += 1;
            }
            let mut buf = AlignedBuf::unset(blocks * BLOCK_BYTES);
            let mut at = 0;
            for (_, bytes) in &rest[..run] {
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
            self.owns_to_write()?;
            writes.push(self.storage.submit_write(*start, Arc::new(buf))?, blocks as u32);
            self.hold_background(&mut writes)?;
            rest = &rest[run..];
        }
        writes.wait(&self.storage)?;
        if !pieces.is_empty() && super::super::flushes(self.options.barrier) { self.flush_device() } else { Ok(()) }
    }

    fn log_moves(&self, placed: &[Copied]) -> Result<(u64, Vec<SegmentNo>)> {
        let flushed = super::super::flushes(self.options.barrier);
        let now = self.clock.monotonic_nanos();
        let (mut moved, mut stuck) = (0, Vec::new());
        for chunk in placed.chunks(MOVES_AT_ONCE) {
            let mut inner = self.lock_to_change()?;
            for c in chunk {
                match inner.log_move(c, flushed, now) {
                    Ok(blocks) => moved += blocks,
                    Err(e) => {
                        inner.check_alive()?;
                        if broken(Break::BatchStuck) {
                            return Err(e);
                        }
                        stuck.push(c.what.extent.addr.segment());
                    }
                }
            }
            drop(inner);
        }
        self.lock().counters.moved_blocks += moved;
        Ok((moved, stuck))
    }
}

impl Inner {
    /// Logs where an extent lies now, if it still is what was copied; how many blocks moved.
    fn log_move(&mut self, c: &Copied, flushed: bool, now: u64) -> Result<u64> {
        if !self.still_holds(&c.what)? && !broken(Break::MoveBlind) {
            return Ok(0);
        }
        let (Move { tree, key, extent }, mut moved) = (&c.what, 0);
        for (skip, new) in c.places() {
            let key = Key { off: key.off + u64::from(skip), ..*key };
            let old = extent.addr.add(skip);
            self.state.relocate_ahead(*tree, &key, new)?;
            self.log(&Record::Move { tree: *tree, key, old, new: new.clone() }, now)?;
            moved += u64::from(new.blocks);
            if !flushed {
                self.batch.moved_blocks += u64::from(new.blocks);
            }
        }
        Ok(moved)
    }

    /// Whether the item is still what was found.
    fn still_holds(&self, m: &Move) -> Result<bool> {
        let current = match self.tree(m.tree) {
            Some(tree) => tree.get(&self.state.cache, &m.key)?,
            None => None,
        };
        Ok(current.and_then(|v| Extent::decode(&v).ok()).as_ref() == Some(&m.extent))
    }

    /// Places for consecutive file blocks in the segment of what is cold, next to each other; too few when room ends.
    fn place_cold(
        &mut self,
        fs: &Fs,
        run: Verified,
        in_order: bool,
        pinned: &mut Vec<SegmentNo>,
    ) -> Result<Vec<Copied>> {
        let wanted = blocks_of(&run);
        let mut copies: Vec<Copied> =
            run.into_iter().map(|(what, bytes)| Copied { what, bytes, pieces: Vec::new() }).collect();
        let Some(first) = copies.first().map(|c| c.what.key) else { return Ok(copies) };
        let mut done = 0;
        while done < wanted {
            if self.cold.needs_segment(&fs.storage) && self.state.segments.free_count() <= self.floor_beside_pages(fs) {
                break;
            }
            let owner = (Ino(first.ino), first.fork, first.off + u64::from(done));
            let (addr, blocks) = match self.allocate_cold(fs, owner, wanted - done, in_order) {
                Ok(got) => got,
                Err(Error::NoSpace) => break,
                Err(e) => {
                    self.fail(&e.to_string());
                    return Err(e);
                }
            };
            self.give(&mut copies, addr, done, blocks);
            // Until a record names the copy nothing else keeps its segment.
            if pinned.last() != Some(&addr.segment()) {
                self.state.segments.pin(addr.segment());
                fs.storage.hold_segment(addr.segment());
                pinned.push(addr.segment());
            }
            done += blocks;
        }
        copies.retain(|c| !c.pieces.is_empty());
        Ok(copies)
    }

    /// Blocks `from` to `from + blocks` of copies that follow each other get their place.
    fn give(&mut self, copies: &mut [Copied], addr: Addr, from: u32, blocks: u32) {
        let (mut begins, mut shift, mut all) = (0, 0, Vec::new());
        for c in copies {
            let (first, end) = (begins, begins + c.what.extent.blocks);
            begins = end;
            let (start, stop) = (first.max(from), end.min(from + blocks));
            if start >= stop {
                continue;
            }
            let piece = c.what.extent.slice(start - first, stop - start);
            // A run has one kind: what had been cut joined others as fine, also where a piece of it is whole again.
            let whole = |e: &Extent| e.lead + e.tail == 0;
            let (granule_shift, crcs) = if whole(&piece) && whole(&c.what.extent) {
                (piece.granule_shift, piece.crcs)
            } else {
                let bytes = c.bytes_of(start - first, stop - start);
                (0, bytes.chunks_exact(BLOCK_BYTES).map(nenrin_format::crc).collect())
            };
            shift = granule_shift;
            all.extend_from_slice(&crcs);
            let addr = addr.add(start - from);
            let blocks = stop - start;
            c.pieces.push(Extent { addr, blocks, granule_shift, lead: 0, tail: 0, crcs, ..c.what.extent.clone() });
        }
        self.cold.describe(addr, shift, &all);
    }
}

fn blocks_of(run: &Verified) -> u32 {
    run.iter().map(|(m, _)| m.extent.blocks).sum()
}

/// The copies, those of consecutive blocks of a file together: as one run of the payload map they need no summary for each
/// hundred of them. Those with coarse checksums stay alone, since a run has one kind.
fn in_runs(copied: Verified) -> Vec<Verified> {
    let fine = |m: &Move| m.extent.granule_shift == 0 || m.extent.lead + m.extent.tail > 0 || broken(Break::KindsMixed);
    let mut runs: Vec<Verified> = Vec::new();
    for (what, bytes) in copied {
        let follows = |run: &&mut Verified| {
            let last = run.last().map(|(m, _)| m);
            let next = last
                .filter(|m| m.tree == what.tree && fine(m) && fine(&what))
                .map(|m| Key { off: m.key.off + u64::from(m.extent.blocks), ..m.key });
            next == Some(what.key) && blocks_of(run) + what.extent.blocks <= EXTENT_BLOCKS_MAX
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.push((what, bytes)),
            None => runs.push(vec![(what, bytes)]),
        }
    }
    runs
}

/// How many of these reads may be under way together: at least one, and a block or a request counts as it delays others.
fn few(reads: &[(Addr, u32)], blocks_max: u32) -> usize {
    let mut sum = 0;
    let fits = reads.iter().take_while(|(_, blocks)| {
        sum += blocks.max(&READ_COST_BLOCKS);
        sum <= blocks_max
    });
    fits.count().max(1)
}

/// Sorted places, those near each other as one read.
fn joined(places: &[(Addr, u32)]) -> Vec<(Addr, u32)> {
    let (most, gap) = READ_BLOCKS;
    let mut out: Vec<(Addr, u32)> = Vec::new();
    for (addr, blocks) in places {
        if let Some((start, count)) = out.last_mut() {
            let end = start.0 + u64::from(*count);
            let both = (addr.0 + u64::from(*blocks)).max(end) - start.0;
            if start.segment() == addr.segment() && addr.0 <= end + u64::from(gap) && both <= u64::from(most) {
                *count = both as u32;
                continue;
            }
        }
        out.push((*addr, *blocks));
    }
    out
}

/// The items in groups of [`MOVES_AT_ONCE`].
fn in_chunks<T>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        items.peek()?;
        Some(items.by_ref().take(MOVES_AT_ONCE).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::Cno;
    use nenrin_format::key::Kind;
    use nenrin_format::node::TreeId;

    #[test]
    fn few_reads_are_under_way_together() {
        let reads = |blocks: &[u32]| -> Vec<_> { blocks.iter().map(|b| (Addr::new(SegmentNo(3), 0), *b)).collect() };
        assert_eq!(few(&reads(&[100, 28, 1]), 128), 2);
        assert_eq!(few(&reads(&[1; 40]), 128), 16);
        assert_eq!(few(&reads(&[200, 1]), 128), 1);
    }

    #[test]
    fn places_near_each_other_are_read_at_once() {
        let at = |block| Addr::new(SegmentNo(3), block);
        let other = Addr::new(SegmentNo(4), 0);
        let got = joined(&[(at(0), 4), (at(4), 4), (at(10), 1), (at(12), 250), (at(400), 2), (at(401), 1), (other, 1)]);
        assert_eq!(got, vec![(at(0), 11), (at(12), 250), (at(400), 2), (other, 1)]);
    }

    /// Lengths of the runs that 32 blocks of a file become: with a checksum for each, for each sixteen, a piece of such, and again for each.
    fn runs_of_kinds() -> Vec<usize> {
        let pieces = [(0, 4, 0, 0), (4, 4, 0, 0), (8, 16, 4, 0), (24, 4, 4, 2), (28, 4, 0, 0), (40, 4, 0, 0)];
        let copied = pieces.map(|(off, blocks, granule_shift, lead)| {
            let addr = Addr::new(SegmentNo(3), 100 + off as u32);
            let extent =
                Extent { addr, blocks, flags: 0, granule_shift, lead, tail: 0, birth: Cno(1), crcs: Vec::new() };
            let key = Key { ino: 7, kind: Kind::Extent, fork: 1, off, death: 0 };
            (Move { tree: TreeId::LIVE, key, extent }, AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES))
        });
        in_runs(copied.into()).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_run_has_checksums_of_one_kind() {
        assert_eq!(runs_of_kinds(), [2, 1, 2, 1]);
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn checksums_of_two_kinds_in_a_run_are_noticed() {
        assert_ne!(crate::breaks::with(Break::KindsMixed, runs_of_kinds), [2, 1, 2, 1]);
    }
}
