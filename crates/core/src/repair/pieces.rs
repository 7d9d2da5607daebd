//! Content of files of which nothing else is left: the payload maps of data
//! partials say whose each run of blocks was, and where in the file.
//!
//! Invariants
//! 1. A run counts only if what lies there, on any device that has a copy, has the checksum that the map states: the
//!    space may have been used again. Checksums of blocks are made of bytes that were compared with it, and of no others.
//! 2. Only files that may have been made where the log is missing, and of which neither index nor log know anything, get
//!    what is found, and no block that another has. It may be content that was written over or removed: each such
//!    file is told as found, never as whole.
//! 3. Memory: [`RUNS_MAX`] runs, and [`LOST_EXTENTS_MAX`] extents of nothing, however many files there are.

use super::base::Base;
use super::inodes::LOST_EXTENTS_MAX;
use super::losses::{About, LossKind, Losses};
use super::salvage::{hold, lost_extent};
use crate::log::data::run_crc;
use crate::recovery::{Walk, chain_of};
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::partial::{DATA_MOVED, Header, PartialKind};
use nenrin_format::{Addr, BLOCK_BYTES, COUNTER_MAX, EXTENT_BLOCKS_MAX, Epoch, Ino, Seq, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

const WINDOW: u64 = EXTENT_BLOCKS_MAX as u64;
/// Blocks of a file at most.
const FILE_BLOCKS_MAX: u64 = i64::MAX as u64 / BLOCK_BYTES as u64;
/// Runs that are put in order.
const RUNS_MAX: usize = 4 << 20;
/// Inode numbers that nobody has been given yet are left over.
const INO_MAX: u64 = COUNTER_MAX / 2;

/// Blocks that belonged to a file.
struct Run {
    ino: Ino,
    /// First block in the file.
    off: u64,
    addr: Addr,
    blocks: u32,
    sum: Sum,
    /// What the cleaner moved was written before, who knows when.
    written: (bool, Seq, Time),
}

/// What the map says that a run holds.
#[derive(Clone, Copy)]
struct Sum {
    granule_shift: u8,
    crc: u32,
}

impl Sum {
    fn fits(self, bytes: &[u8]) -> bool {
        let crcs: Vec<u32> = bytes.chunks(BLOCK_BYTES << self.granule_shift).map(nenrin_format::crc).collect();
        run_crc(&crcs) == self.crc
    }
}

/// Ranges of numbers that do not overlap: first, and first behind.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, begin: u64, end: u64) {
        for (from, to) in self.free(begin, end) {
            self.0.insert(from, to);
        }
    }

    /// What of a range is in none.
    fn free(&self, begin: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.0.range(..begin).next_back().map_or(0, |(_, end)| *end);
        let (mut at, mut out) = (begin.max(before), Vec::new());
        for (from, to) in self.0.range(begin..end) {
            if at < *from {
                out.push((at, *from));
            }
            at = at.max(*to);
        }
        if at < end {
            out.push((at, end));
        }
        out
    }
}

impl Run {
    /// File blocks that nobody else has, and of which the file has nothing yet.
    fn free(&self, owned: &Ranges, taken: &Ranges) -> Vec<(u64, u64)> {
        let places = owned.free(self.addr.0, self.addr.0 + u64::from(self.blocks));
        let of_file = places.into_iter().map(|(begin, end)| (self.off + (begin - self.addr.0), end - begin));
        of_file.flat_map(|(off, blocks)| taken.free(off, off + blocks)).collect()
    }
}

/// Gives inodes that nothing is known of the content that was theirs; how many there are. `told`: those that the log
/// tells of; what is not there of them was removed.
pub(super) fn find(base: &mut Base, epoch: Epoch, told: &BTreeSet<Ino>, losses: &mut Losses) -> Result<u64> {
    let Some(from) = base.gap_from else { return Ok(0) };
    let mut runs = runs(base, from, epoch, told)?;
    if runs.len() == RUNS_MAX {
        losses.add(LossKind::RangeLost, About::Volume, format!("only {RUNS_MAX} pieces of content were put in order"));
    }
    let mut owned = owned(base)?;
    runs.sort_by_key(|r| (r.ino, Reverse(r.written), r.off, Reverse(r.addr)));
    let (mut found, mut left) = (0, LOST_EXTENTS_MAX);
    for of_one in runs.chunk_by(|a, b| a.ino == b.ino) {
        let mut taken = Ranges::default();
        let (mut blocks, mut seqs) = (0, BTreeSet::new());
        for run in of_one {
            let free = run.free(&owned, &taken);
            let bytes = if free.is_empty() { None } else { right_bytes(&base.storage, run.addr, run.blocks, run.sum)? };
            let Some(bytes) = bytes else { continue };
            for (begin, end) in free {
                put(base, run, &bytes, begin, end)?;
                taken.add(begin, end);
                owned.add(run.addr.0 + (begin - run.off), run.addr.0 + (end - run.off));
                blocks += end - begin;
                seqs.insert(run.written.1);
            }
        }
        let Some(ino) = of_one.first().map(|r| r.ino).filter(|_| blocks > 0) else { continue };
        lose_between(base, ino, &taken, &mut left, losses)?;
        base.state.next_ino = base.state.next_ino.max(ino.next());
        let times = if seqs.len() > 1 { ", and of different times" } else { "" };
        let text = format!("{blocks} blocks were found by what segments say of them: perhaps removed before{times}");
        losses.add(LossKind::ContentFound, About::Inode(ino), text);
        found += 1;
    }
    Ok(found)
}

/// Blocks that a file has.
fn owned(base: &Base) -> Result<Ranges> {
    let mut out = Ranges::default();
    base.state.live.walk(&base.state.cache, &mut |key, value| {
        if let Some(e) = Extent::decode(value).ok().filter(|e| key.kind == Kind::Extent && e.stored_blocks() > 0) {
            out.add(e.addr.0, e.addr.0 + u64::from(e.blocks));
        }
        Ok(())
    })?;
    Ok(out)
}

/// All runs of such inodes that are what they say.
fn runs(base: &Base, from: Ino, epoch: Epoch, told: &BTreeSet<Ino>) -> Result<Vec<Run>> {
    let (storage, state) = (&base.storage, &base.state);
    let mut out = Vec::new();
    Walk::new(storage, &chain_of(&base.superblock)).each_partial(&mut |header| {
        if header.kind != PartialKind::Data || header.epoch > epoch || header.seq.0 >= COUNTER_MAX {
            return Ok(());
        }
        let right = |bytes: &[u8]| Header::decode(bytes).is_ok();
        let read = storage.read_right(header.addr, header.summary_blocks, right);
        let Some(bytes) = readable(read)? else { return Ok(()) };
        let Ok(summary) = Header::decode(&bytes) else { return Ok(()) };
        let mut addr = header.payload_addr();
        let mut left = header.payload_blocks;
        for entry in &summary.map {
            let (ino, off, blocks) = (Ino(entry.ino.get()), entry.off.get(), entry.blocks.get());
            if blocks > left || out.len() == RUNS_MAX {
                break;
            }
            let run_addr = addr;
            (addr, left) = (addr.add(blocks), left - blocks);
            let end = off.checked_add(u64::from(blocks)).filter(|end| *end <= FILE_BLOCKS_MAX);
            let possible = ino >= from && ino.0 < INO_MAX && end.is_some() && blocks > 0 && entry.level <= 4;
            if !possible || told.contains(&ino) || state.forgetting.contains(&ino) {
                continue;
            }
            let first = Key::new(ino, Kind::Inode, 0, 0);
            let known = state.live.next(&state.cache, &first)?.is_some_and(|(key, _)| key.ino == ino.0);
            let sum = Sum { granule_shift: entry.level, crc: entry.crc.get() };
            if !known && right_bytes(storage, run_addr, blocks, sum)?.is_some() {
                let written = (header.flags & DATA_MOVED == 0, header.seq, header.written_at);
                out.push(Run { ino, off, addr: run_addr, blocks, sum, written });
            }
        }
        Ok(())
    })?;
    Ok(out)
}

/// What was read; `None` where it is damaged.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Device(_) | Error::Damaged(..)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What lies there and fits, from whichever devices have it.
fn right_bytes(storage: &Storage, addr: Addr, blocks: u32, sum: Sum) -> Result<Option<AlignedBuf>> {
    let read = readable(storage.read_right(addr, blocks, |bytes| sum.fits(bytes)))?;
    Ok(read.filter(|bytes| sum.fits(bytes)))
}

/// Puts file blocks `begin` to `end` of a run, of which these are the bytes, into the live tree, with checksums of their own.
fn put(base: &mut Base, run: &Run, bytes: &[u8], begin: u64, end: u64) -> Result<()> {
    let mut at = begin;
    while at < end {
        let blocks = (end - at).min(WINDOW - at % WINDOW) as u32;
        let skipped = (at - run.off) as u32;
        let addr = run.addr.add(skipped);
        let of_run = bytes.chunks(BLOCK_BYTES).skip(skipped as usize).take(blocks as usize);
        let crcs = of_run.map(nenrin_format::crc).collect();
        let (birth, state) = (base.state.open_cno, &mut base.state);
        let extent = Extent { birth, addr, blocks, flags: 0, granule_shift: 0, lead: 0, tail: 0, crcs };
        state.live.insert(&state.cache, Key::new(run.ino, Kind::Extent, 0, at), extent.encode().into())?;
        hold(&mut base.held, addr);
        at += u64::from(blocks);
    }
    Ok(())
}

/// What lies between such parts of a file was something, too, for all that is known.
fn lose_between(base: &mut Base, ino: Ino, taken: &Ranges, left: &mut u64, losses: &mut Losses) -> Result<()> {
    let end = taken.0.last_key_value().map_or(0, |(_, end)| *end);
    for (begin, end) in taken.free(0, end) {
        let mut at = begin;
        while at < end && *left > 0 {
            let blocks = (end - at).min(WINDOW - at % WINDOW);
            let (birth, state) = (base.state.open_cno, &mut base.state);
            let lost = lost_extent(birth, blocks as u32);
            state.live.insert(&state.cache, Key::new(ino, Kind::Extent, 0, at), lost.encode().into())?;
            (at, *left) = (at + blocks, *left - 1);
        }
        let bytes = |block: u64| block * BLOCK_BYTES as u64;
        if begin < at {
            let range = Some((bytes(begin), bytes(at)));
            losses.add_range(LossKind::RangeLost, About::Inode(ino), range, "reading it is an error");
        }
        if at < end {
            let text = "too long to be marked: it reads as zeros";
            losses.add_range(LossKind::RangeLost, About::Inode(ino), Some((bytes(at), bytes(end))), text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_free_is_taken() {
        let mut taken = Ranges::default();
        taken.add(10, 15);
        taken.add(12, 20);
        taken.add(30, 35);
        for (range, free) in [
            ((0, 5), vec![(0, 5)]),
            ((0, 50), vec![(0, 10), (20, 30), (35, 50)]),
            ((12, 18), vec![]),
            ((15, 32), vec![(20, 30)]),
            ((10, 35), vec![(20, 30)]),
            ((19, 31), vec![(20, 30)]),
        ] {
            assert_eq!(taken.free(range.0, range.1), free, "{range:?}");
        }
    }
}
