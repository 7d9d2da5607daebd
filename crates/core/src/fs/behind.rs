//! Write-behind: content goes to data segments ahead of the records that name
//! it.
//!
//! Invariants
//! 1. A segment that holds blocks no record names yet is pinned by the content
//!    that will name them.
//! 2. Blocks under way can be read from memory until the device has them.

use super::commit::new_extent;
use super::{DataWrite, Fs, Inner};
use crate::content::{Over, Page};
use crate::log::data::DataSummary;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::{Addr, BLOCK_BYTES, EXTENT_BLOCKS_MAX, Ino};
use std::sync::Arc;

/// Blocks under one checksum in large aligned extents, as a power of two.
const COARSE_GRANULE_SHIFT: u8 = 2;
/// Blocks of one device write.
const GROUP_BLOCKS_MAX: usize = 1024;

/// Whole blocks of content, wherever they are.
#[derive(Clone, Copy)]
enum Blocks<'a> {
    Pages(&'a [Page]),
    Flat(&'a [u8]),
}

impl Blocks<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Pages(p) => p.len(),
            Self::Flat(b) => b.len() / BLOCK_BYTES,
        }
    }
    fn part(&self, from: usize, to: usize) -> Self {
        match self {
            Self::Pages(p) => Self::Pages(&p[from..to]),
            Self::Flat(b) => Self::Flat(&b[from * BLOCK_BYTES..to * BLOCK_BYTES]),
        }
    }
    fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Pages(p) => {
                for (page, to) in p.iter().zip(out.chunks_exact_mut(BLOCK_BYTES)) {
                    to.copy_from_slice(&page[..]);
                }
            }
            Self::Flat(b) => out.copy_from_slice(b),
        }
    }
}

/// Consecutive file blocks and the place they got.
#[derive(Clone, Copy)]
struct Placed<'a> {
    block: u64,
    addr: Addr,
    bytes: Blocks<'a>,
}

impl Inner {
    /// Starts writing all pages of a file to data segments; the overlay names
    /// them from now on. A failure ends all writing, since pages are gone.
    pub(super) fn write_behind(&mut self, fs: &Fs, ino: Ino) -> Result<()> {
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return Ok(()) };
        let runs = content.take_runs();
        self.pages -= runs.iter().map(|(_, run)| run.len() as u64).sum::<u64>();
        let runs: Vec<(u64, Blocks<'_>)> = runs.iter().map(|(start, run)| (*start, Blocks::Pages(run))).collect();
        self.place_runs(fs, ino, &runs).inspect_err(|e| self.fail(&e.to_string()))
    }

    /// Starts writing whole blocks that a caller brought, without making them
    /// pages first.
    pub(super) fn write_ahead(&mut self, fs: &Fs, ino: Ino, block: u64, bytes: &[u8]) -> Result<()> {
        self.place_runs(fs, ino, &[(block, Blocks::Flat(bytes))]).inspect_err(|e| self.fail(&e.to_string()))
    }

    fn place_runs(&mut self, fs: &Fs, ino: Ino, runs: &[(u64, Blocks<'_>)]) -> Result<()> {
        let fork = self.state.inode(ino)?.map_or(0, |i| i.fork);
        let mut group: Vec<Placed<'_>> = Vec::new();
        let mut blocks = 0;
        for (start, run) in runs {
            let mut done = 0;
            while done < run.len() {
                let block = start + done as u64;
                let window = u64::from(EXTENT_BLOCKS_MAX) - block % u64::from(EXTENT_BLOCKS_MAX);
                let want = (run.len() - done).min(window as usize);
                let (addr, count) = self.allocate_data(fs, (ino, fork, block), want as u32)?;
                let count = count as usize;
                let follows = group.last().is_some_and(|p| p.addr.add(p.bytes.len() as u32) == addr);
                if !follows || blocks + count > GROUP_BLOCKS_MAX {
                    self.start_data_write(fs, ino, &group)?;
                    group.clear();
                    blocks = 0;
                }
                group.push(Placed { block, addr, bytes: run.part(done, done + count) });
                blocks += count;
                done += count;
            }
        }
        self.start_data_write(fs, ino, &group)
    }

    /// Up to `want` consecutive blocks in the data segment being filled.
    pub(super) fn allocate_data(&mut self, fs: &Fs, owner: (Ino, u32, u64), want: u32) -> Result<(Addr, u32)> {
        let stamp = self.data_stamp(fs.clock.wall());
        let mut closed = Vec::new();
        let got = self.data.allocate(owner, want, 0, stamp, &fs.storage, &mut self.state.segments, &mut closed);
        self.start_summaries(fs, closed)?;
        got.ok_or(Error::NoSpace)
    }

    /// Starts writing summaries of data partials.
    pub(super) fn start_summaries(&mut self, fs: &Fs, closed: impl IntoIterator<Item = DataSummary>) -> Result<()> {
        for DataSummary { addr, bytes } in closed {
            let ticket = fs.storage.submit_write(addr, Arc::new(bytes))?;
            self.writes.push(DataWrite { ino: Ino(0), addr, blocks: 1, ticket });
        }
        Ok(())
    }

    /// One device write for runs that lie next to each other on the device.
    fn start_data_write(&mut self, fs: &Fs, ino: Ino, group: &[Placed<'_>]) -> Result<()> {
        let Some(first) = group.first().map(|p| p.addr) else { return Ok(()) };
        let blocks: usize = group.iter().map(|p| p.bytes.len()).sum();
        let mut buf = AlignedBuf::zeroed(blocks * BLOCK_BYTES);
        let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) else { return Ok(()) };
        let mut at = 0;
        for p in group {
            let count = p.bytes.len();
            let out = &mut buf[at..at + count * BLOCK_BYTES];
            p.bytes.copy_to(out);
            let granule = 1usize << COARSE_GRANULE_SHIFT;
            let coarse = count >= 4 * granule && count % granule == 0 && p.block % granule as u64 == 0;
            let shift = if coarse { COARSE_GRANULE_SHIFT } else { 0 };
            let crcs = out.chunks_exact(BLOCK_BYTES << shift).map(nenrin_format::crc).collect();
            let extent = new_extent(p.addr, count as u32, shift, crcs);
            content.overlay.set(p.block, p.block + count as u64, Over::Extent(extent));
            at += count * BLOCK_BYTES;
        }
        content.pins.push(first.segment());
        self.state.segments.pin(first.segment());
        self.counters.data_blocks += blocks as u64;
        let buf = Arc::new(buf);
        self.inflight.insert(first, buf.clone());
        let ticket = fs.storage.submit_write(first, buf)?;
        self.writes.push(DataWrite { ino, addr: first, blocks: blocks as u32, ticket });
        Ok(())
    }
}
