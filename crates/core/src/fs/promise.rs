//! Space that fallocate has reserved and nothing was written to yet.
//!
//! What is promised: the first write to each such block finds room, whatever
//! others do meanwhile, across unmounting and crashes. In a log every later
//! write to the same block needs room of its own, which is not promised.
//!
//! Invariants
//! 1. [`Inner::promised`] is what a commit of everything now would leave
//!    reserved, or more: less is never kept back than was promised.
//! 2. Content, records and removing leave what is promised alone; what makes
//!    room may use it for a while, since it gives back more than it takes.

use super::growth::Tried;
use super::guard::Guard;
use super::space::Room;
use super::write::Writer;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Content, Over};
use crate::{At, Error, Result};
use nenrin_format::items::{EXTENT_UNWRITTEN, Extent};
use nenrin_format::key::Key;
use nenrin_format::{Addr, BLOCK_BYTES, Cno, EXTENT_BLOCKS_MAX, Ino};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Extents looked at to learn what a change of content takes back at once; what
/// lies behind them is kept back until the change is committed.
const EXTENTS_MAX: usize = 16_384;
/// File blocks looked at in one piece by who reserves: no more than can be as many extents, since what is overlooked of what is
/// reserved would be reserved once more.
const WINDOW_BLOCKS: u64 = EXTENTS_MAX as u64;
/// File blocks reserved under one hold of the lock, 4 GiB, and uncommitted ranges of a file from which on it is committed in between.
const STEP_BLOCKS: u64 = 1 << 20;
const RESERVED_RANGES_MAX: usize = 4096;

/// Segments that are not filled when a mount or a crash comes between.
const BROKEN_SEGMENTS: u64 = 2;

/// Ranges of file blocks that are looked for, of an extent of the live tree.
pub(super) type Finds<'a> = dyn Fn(&Key, &Extent) -> Result<Vec<(u64, u64)>> + 'a;

/// Where a piece of the file blocks `[at, to)` ends that who reserves looks at.
fn window_end(at: u64, to: u64) -> u64 {
    let blocks = if broken(Break::PiecesOverlooked) { 4 * WINDOW_BLOCKS } else { WINDOW_BLOCKS };
    at.saturating_add(blocks).min(to)
}

impl Inner {
    /// Blocks that are reserved and not written yet, of all files.
    pub(super) fn promised(&self) -> u64 {
        if broken(Break::PromisesTaken) {
            return 0;
        }
        self.state.promised_blocks.saturating_add_signed(self.promised_here)
    }

    /// Ranges of file blocks within `[from, to)` that are reserved and not written yet.
    pub(super) fn promises(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        if self.promised() == 0 {
            return Ok(Vec::new());
        }
        let all = |off: u64, e: &Extent| match e.promised_blocks() {
            0 => Vec::new(),
            _ => vec![(off, off + u64::from(e.blocks))],
        };
        self.ranges_not_written(ino, from, to, &|key, e| Ok(all(key.off, e)), &|e| e.promised_blocks() > 0)
    }

    /// Ranges of file blocks within `[from, to)` that `committed` finds in extents of the live tree, or `waiting` picks among those
    /// that wait for their commit, and that nothing is to be written over.
    pub(super) fn ranges_not_written(
        &self,
        ino: Ino,
        from: u64,
        to: u64,
        committed: &Finds<'_>,
        waiting: &dyn Fn(&Extent) -> bool,
    ) -> Result<Vec<(u64, u64)>> {
        let content = self.files.get(&ino).and_then(|f| f.content.as_ref());
        let mut out = Vec::new();
        let inode = self.state.inode(ino)?.filter(|i| i.blocks > 0 && content.is_none_or(|c| !c.replaced));
        if let Some(inode) = inode {
            for (key, e) in self.state.extents(ino, inode.fork, from, to, EXTENTS_MAX)? {
                for (first, end) in committed(&key, &e)? {
                    let (first, end) = (first.max(from), end.min(to));
                    let mut at = first;
                    for (start, stop, _) in content.iter().flat_map(|c| c.overlay.overlapping(first, end)) {
                        if start > at {
                            out.push((at, start));
                        }
                        at = stop.max(at);
                    }
                    if at < end {
                        out.push((at, end));
                    }
                }
            }
        }
        let Some(content) = content else { return Ok(out) };
        for (start, stop, over) in content.overlay.overlapping(from, to).take(EXTENTS_MAX) {
            if over.extent().is_some_and(waiting) {
                out.push((start.max(from), stop.min(to)));
            }
        }
        if content.pages.range(from..to).next().is_none() {
            return Ok(out);
        }
        let mut free = Vec::with_capacity(out.len());
        for (mut at, end) in out {
            for page in content.pages.range(at..end).map(|(b, _)| *b) {
                if page > at {
                    free.push((at, page));
                }
                at = page + 1;
            }
            if at < end {
                free.push((at, end));
            }
        }
        Ok(free)
    }

    /// How many of the file blocks `[from, to)` are reserved and not written yet.
    pub(super) fn promised_in(&self, ino: Ino, from: u64, to: u64) -> Result<u64> {
        Ok(self.promises(ino, from, to)?.iter().map(|(a, b)| b - a).sum())
    }

    /// How many of the file blocks `[from, to)` are in memory, and so have their room.
    pub(super) fn pages_in(&self, ino: Ino, from: u64, to: u64) -> u64 {
        let content = self.files.get(&ino).and_then(|f| f.content.as_ref());
        content.map_or(0, |c| c.pages.range(from..to).count() as u64)
    }

    /// Uncommitted content of a file reserves so many blocks more.
    pub(super) fn promise(&mut self, ino: Ino, blocks: i64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if blocks > 0 {
            file.reserves_nothing.set(false);
        }
        if let Some(c) = &mut file.content {
            c.promised += blocks;
            self.promised_here += blocks;
        }
    }

    /// File blocks `[from, to)` are about to be written, or to be nothing any
    /// more. The file has uncommitted content.
    pub(super) fn promise_ends(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let gone = self.promised_in(ino, from, to)?;
        self.promise(ino, -(gone as i64));
        Ok(())
    }

    /// Ranges of file blocks within a window, see [`window_end`], that hold nothing and are not reserved.
    fn holes(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let mut taken = self.promises(ino, from, to)?;
        taken.sort_unstable();
        let mut taken = taken.into_iter().peekable();
        let mut out = Vec::new();
        for (mut start, end) in self.zeros(At::Live, ino, from, to)? {
            while let Some((a, b)) = taken.peek().copied().filter(|(a, _)| *a < end) {
                if a > start {
                    out.push((start, a));
                }
                start = start.max(b.min(end));
                if b > end {
                    break;
                }
                taken.next();
            }
            if start < end {
                out.push((start, end));
            }
        }
        Ok(out)
    }

    /// How many of the file blocks `[from, to)` hold nothing and are not
    /// reserved; not counted on beyond `most`.
    pub(super) fn blocks_to_reserve(&self, ino: Ino, from: u64, to: u64, most: u64) -> Result<u64> {
        let (mut at, mut blocks) = (from, 0);
        while at < to && blocks <= most {
            let end = window_end(at, to);
            blocks += self.holes(ino, at, end)?.iter().map(|(a, b)| b - a).sum::<u64>();
            at = end;
        }
        Ok(blocks)
    }
}

impl Inner {
    /// Reserves what holds nothing of the file blocks `[from, last)`, or of the first of them where that is much; up to which.
    fn reserve_some(&mut self, fs: &Fs, ino: Ino, from: u64, last: u64) -> Result<u64> {
        let at_once = broken(Break::ReservedAtOnce);
        let (mut at, stop) = (from, if at_once { last } else { (from + STEP_BLOCKS).min(last) });
        let before = self.content_mut(fs, ino)?.overlay.ranges();
        while at < stop {
            let to = window_end(at, stop);
            for (from, to) in self.holes(ino, at, to)? {
                self.content_mut(fs, ino)?.reserve_hole(from, to);
                self.promise(ino, (to - from) as i64);
            }
            at = to;
            let content = self.content_mut(fs, ino)?;
            content.version += 1;
            if content.overlay.ranges() > before + RESERVED_RANGES_MAX && !at_once {
                break;
            }
        }
        Ok(at)
    }
}

impl Fs {
    /// Blocks kept back for so many promised ones: themselves, summaries, their
    /// share of leaves, and what a mount in between leaves unused.
    pub(super) fn kept_for(&self, promised: u64) -> u64 {
        let broken = if promised > 0 { BROKEN_SEGMENTS * u64::from(self.storage.segment_blocks) } else { 0 };
        promised + promised / 8 + broken
    }

    /// Reserves space for the blocks of `[offset, end)` that hold nothing. Much is reserved in steps, with a commit after each: where
    /// others take meanwhile what is left, what was reserved stays.
    pub(super) fn reserve(&self, writer: Writer, ino: Ino, offset: u64, end: u64, grow: bool) -> Result<()> {
        let mut inner = self.reserve_blocks(ino, offset / BLOCK, end.div_ceil(BLOCK))?;
        let wall = self.clock.wall();
        let content = inner.content_mut(self, ino)?;
        if grow && end > content.size {
            content.size = end;
            writer.note_times(content, wall);
        } else if !writer.keeps_times {
            content.ctime = wall;
        }
        content.version += 1;
        drop(inner);
        self.hold_scattered(ino)
    }

    /// Reserves what holds nothing of the file blocks `[at, last)`; the lock, under which the last of it was.
    pub(super) fn reserve_blocks(&self, ino: Ino, mut at: u64, last: u64) -> Result<Guard<'_>> {
        // All of it is refused before any is reserved.
        let mut inner = self.room_to_reserve(ino, at, last)?;
        loop {
            at = inner.reserve_some(self, ino, at, last)?;
            if at == last {
                return Ok(inner);
            }
            drop(inner);
            self.hold_ranges(ino, RESERVED_RANGES_MAX)?;
            inner = self.room_to_reserve(ino, at, (at + STEP_BLOCKS).min(last))?;
        }
    }

    /// The lock, with room to reserve what holds nothing of the file blocks `[first, last)`.
    fn room_to_reserve(&self, ino: Ino, first: u64, last: u64) -> Result<Guard<'_>> {
        let (mut asked, mut tried) = (None, Tried::default());
        loop {
            let mut inner = match asked {
                None => self.lock_with_nodes()?,
                Some(0) => self.room_to_remove()?,
                Some(blocks) => self.room(Room::Promise(blocks))?,
            };
            if inner.settling.contains_key(&ino) && !broken(Break::ChangedWhileSettling) {
                inner.counters.held_by_own_sync += 1;
                drop(self.wait_idle(inner));
                continue;
            }
            inner.takes_content(ino)?;
            // Who asks for more than there is must not cost anybody's past.
            let most = inner.usage(self).available_blocks;
            let needed = inner.blocks_to_reserve(ino, first, last, most)?;
            let promised = inner.promised();
            if self.kept_for(promised + needed) - self.kept_for(promised) > most {
                if self.find_available(inner, &mut tried)? {
                    continue;
                }
                return Err(Error::NoSpace);
            }
            if asked.is_some_and(|blocks| needed <= blocks) {
                // Not before: who is refused leaves nothing to be committed.
                inner.content_mut(self, ino)?;
                return Ok(inner);
            }
            asked = Some(needed);
        }
    }
}

impl Content {
    pub(super) fn reserve_hole(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let window = u64::from(EXTENT_BLOCKS_MAX) - at % u64::from(EXTENT_BLOCKS_MAX);
            let end = (at + window).min(to);
            let extent = Extent {
                birth: Cno(0),
                addr: Addr::NONE,
                blocks: (end - at) as u32,
                flags: EXTENT_UNWRITTEN,
                granule_shift: 0,
                lead: 0,
                tail: 0,
                crcs: Vec::new(),
            };
            self.overlay.set(at, end, Over::Extent(extent));
            at = end;
        }
    }
}
