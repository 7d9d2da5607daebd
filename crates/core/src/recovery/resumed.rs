//! Where a later mount went on with the log: it had found that the log ended there, and dropped what else followed.
//!
//! Invariants
//! 1. Where a later mount is known to have gone on, nothing of the epoch before is followed: it was never acknowledged, or is of a life
//!    that recovery cut off.

use super::walk::{Found, Walk, is_possible, proves};
use crate::Result;
use crate::breaks::{Break, broken};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};

impl Walk<'_> {
    /// The partial with which a later mount went on from here. That mount
    /// decided that the log ended here, so nothing else that follows counts,
    /// even if it fits: it was dropped then.
    pub(super) fn resumed(&mut self) -> Result<Option<Found>> {
        let Some(segment) = self.at.next else { return Ok(None) };
        let first = Addr::new(segment, 0);
        if self.beyond.as_ref().is_none_or(|(of, _)| *of != segment) {
            self.beyond = Some((segment, self.heads(first)));
        }
        match &self.beyond {
            Some((_, heads)) if heads.iter().any(|h| self.resumes(h)) => self.following(first, true, 0),
            _ => Ok(None),
        }
    }

    /// What this block says as the first of a partial, on each device that has it.
    fn heads(&mut self, first: Addr) -> Vec<Header> {
        let ways = self.storage.ways_around(first, 1);
        let reads = if ways.is_empty() {
            vec![self.storage.read(first, 1)]
        } else {
            ways.into_iter().map(|avoid| self.storage.read_rather_around(first, 1, avoid)).collect()
        };
        self.bytes_read += (reads.len() * BLOCK_BYTES) as u64;
        self.requests += reads.len() as u64;
        // What cannot be read is missed when the walk comes there.
        reads.into_iter().flatten().filter_map(|bytes| Header::peek(&bytes).ok()).collect()
    }

    /// Whether a later mount went on with this partial from here.
    fn resumes(&self, h: &Header) -> bool {
        h.epoch > self.at.epoch && h.prev_addr == self.at.last_addr && h.prev_crc == self.at.last_crc && is_possible(h)
    }

    /// Whether a later mount is known to have gone on from here, wherever that led: by a root of it, or by what is left of its first
    /// partial. What else follows here it dropped.
    pub(super) fn is_left_behind(&self) -> bool {
        let at = &self.at;
        let by_root = self.storage.mounts().points().iter().any(|p| {
            let is_here = (p.uuid, p.seq, p.last_addr, p.last_crc) == (at.uuid, at.seq, at.last_addr, at.last_crc);
            is_here && p.epoch > at.epoch
        });
        let is_first = |h: &Header| {
            let is_chain = h.kind == PartialKind::Chain && h.uuid == at.uuid && h.addr.block() == 0;
            is_chain && h.seq == at.seq.next() && self.resumes(h) && proves(&self.mounts, h)
        };
        let is_known = by_root || self.beyond.iter().flat_map(|(_, heads)| heads).any(is_first);
        is_known && !broken(Break::CutOffFollowed)
    }

    /// The same as [`Walk::resumed`], where the log of before names no segment, and both copies of the root are lost that may have: a
    /// nearly full volume has none to spare.
    pub(super) fn resumed_anywhere(&mut self) -> Result<Option<Found>> {
        let is_lost = self.at.next.is_none() && self.storage.mounts().lack_a_root();
        if !is_lost || broken(Break::UnnamedUnsought) {
            return Ok(None);
        }
        let firsts = match self.firsts.take() {
            Some(firsts) => firsts,
            None => {
                let (mut firsts, epoch) = (Vec::new(), self.at.epoch);
                for first in self.storage.numbers().into_iter().flatten().map(|n| Addr::new(SegmentNo(n), 0)) {
                    let is_later = |h: &Header| h.addr == first && h.kind == PartialKind::Chain && h.epoch > epoch;
                    firsts.extend(self.heads(first).into_iter().filter(is_later));
                }
                firsts
            }
        };
        let found = firsts.iter().find(|h| self.resumes(h)).map(|h| h.addr);
        self.firsts = Some(firsts);
        found.map_or(Ok(None), |first| self.following(first, true, 0))
    }
}
