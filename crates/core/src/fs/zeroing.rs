//! FALLOC_FL_ZERO_RANGE: zeros whose room stays.
//!
//! What holds nothing is reserved, as by fallocate. What holds something becomes a reservation, too, in place of its content: for a
//! moment both count, so there must be room for it, or else zeros are written over it, as by who does not know the call.
//!
//! Invariants
//! 1. What holds something keeps its room, as a reservation or as zeros. Who is refused for the holes has changed nothing.
//! 2. No more is reserved than df has: what is kept back for it must not be what removing needs.

use super::bursts::Who;
use super::growth::Tried;
use super::write::{Keeps, Writer};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::{At, Error, Result};
use nenrin_format::{BLOCK_BYTES, Ino};
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// File blocks looked at, and made a reservation, in one piece.
const WINDOW_BLOCKS: u64 = 65_536;
/// Less than this is not reserved by itself.
const LEAST_BLOCKS: u64 = 256;
/// Bytes of zeros written at once.
const ZEROS_BYTES: usize = 1 << 20;
/// Uncommitted ranges of the file from which on it is committed in between.
const RANGES_MAX: usize = 4096;

impl Inner {
    /// So many blocks can be reserved now.
    pub(super) fn reservable(&self, fs: &Fs) -> u64 {
        let promised = self.promised();
        let most = self.usage(fs).available_blocks;
        // What the first one takes besides.
        let once = fs.kept_for(promised + 8) - fs.kept_for(promised) - 9;
        most.saturating_sub(once) / 9 * 8
    }

    /// Ranges of file blocks within `[from, to)` that hold something.
    fn filled(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let (mut at, mut filled) = (from, Vec::new());
        for (start, end) in self.zeros(At::Live, ino, from, to)?.into_iter().chain([(to, to)]) {
            if start > at {
                filled.push((at, start));
            }
            at = end;
        }
        Ok(filled)
    }
}

impl Fs {
    /// Makes `[offset, end)` read as zeros, and keeps room for all of its blocks.
    pub(super) fn zero_range(&self, writer: Writer, ino: Ino, offset: u64, end: u64, grow: bool) -> Result<()> {
        if broken(Break::ZeroedGivenAway) {
            return self.clear(writer, ino, offset, end, grow);
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        drop(self.reserve_blocks(ino, first, last)?);
        let mut at = first;
        while at < last {
            at = self.zero_some(writer, ino, at..last, offset..end)?;
        }
        let mut inner = self.reserve_blocks(ino, first, last)?;
        let wall = self.clock.wall();
        let content = inner.content_mut(self, ino)?;
        if grow {
            content.size = content.size.max(end);
        }
        writer.note_times(content, wall);
        content.version += 1;
        drop(inner);
        self.hold_scattered(ino)
    }

    /// Zeroes the first of these file blocks, as far as they are within these bytes; up to which.
    fn zero_some(&self, writer: Writer, ino: Ino, blocks: Range<u64>, bytes: Range<u64>) -> Result<u64> {
        let wanted = (blocks.end - blocks.start).min(WINDOW_BLOCKS);
        let fits = self.room_to_zero(wanted)?;
        let is_tight = fits < wanted.min(LEAST_BLOCKS);
        let stop = blocks.start + if is_tight { wanted } else { wanted.min(fits) };
        let inner = self.lock_to_accept()?;
        let (filled, now) = (inner.filled(ino, blocks.start, stop)?, inner.current_inode(At::Live, ino)?);
        drop(inner);
        let (Some((from, _)), Some((_, to))) = (filled.first(), filled.last()) else { return Ok(stop) };
        let within = |from: u64, to: u64| (from * BLOCK).max(bytes.start)..(to * BLOCK).min(bytes.end);
        if !is_tight {
            let piece = within(*from, *to);
            match self.clear_but(Keeps::All(to - from), writer, ino, piece.start, piece.end, false) {
                Ok(true) => {
                    self.hold_ranges(ino, RANGES_MAX)?;
                    return Ok(stop);
                }
                // Others took it meanwhile, or it is not to be had. What was cut off ahead has its room again before zeros are written,
                // which might be refused.
                Ok(false) | Err(Error::NoSpace) => drop(self.reserve_blocks(ino, blocks.start, stop)?),
                Err(e) => return Err(e),
            }
        }
        // The user is not noted, as with all that allocates.
        let writer = Writer { uid: now.editor_uid, ..writer };
        for (from, to) in filled {
            let piece = within(from, to);
            self.write_zeros(writer, ino, piece.start, piece.end.min(now.size))?;
        }
        Ok(stop)
    }

    /// How many of so many blocks can be reserved, once what waits was committed where that helps.
    fn room_to_zero(&self, wanted: u64) -> Result<u64> {
        let mut tried = Tried::default();
        loop {
            let inner = self.lock_with_nodes()?;
            let fits = inner.reservable(self);
            if fits >= wanted || !self.find_available(inner, &mut tried)? {
                return Ok(fits);
            }
        }
    }

    fn write_zeros(&self, writer: Writer, ino: Ino, mut at: u64, end: u64) -> Result<()> {
        let zeros = vec![0; ZEROS_BYTES];
        while at < end {
            let bytes = (end - at).min(ZEROS_BYTES as u64);
            let _accepted = self.accept_of(Who::Writes, ino, at, &zeros[..bytes as usize], writer)?;
            at += bytes;
        }
        Ok(())
    }
}
