//! Where a later mount went on with the log: it had found that the log ended there, and dropped what else followed.
//!
//! Invariants
//! 1. Where a later mount is known to have gone on, nothing of the epoch before is followed: it was never acknowledged, or is of a life
//!    that recovery cut off.

use super::walk::{Found, Walk, is_possible, proves};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::mounts::Point;
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::{Addr, BLOCK_BYTES, Epoch, SegmentNo};
use std::collections::BTreeSet;

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

    /// What roots of later mounts say that went on from here.
    fn points_here(&self) -> impl Iterator<Item = &Point> {
        let at = &self.at;
        let is_here =
            move |p: &&Point| (p.uuid, p.seq, p.last_addr, p.last_crc) == (at.uuid, at.seq, at.last_addr, at.last_crc);
        self.storage.mounts().points().iter().filter(is_here).filter(move |p| p.epoch > at.epoch)
    }

    /// The last mount that is known to have gone on from here, wherever that led: by a root of it, or by what is left of its first
    /// partial. What else follows here it dropped.
    pub(super) fn left_behind(&self) -> Option<Epoch> {
        let at = &self.at;
        let is_first = |h: &&Header| {
            let is_chain = h.kind == PartialKind::Chain && h.uuid == at.uuid && h.addr.block() == 0;
            is_chain && h.seq == at.seq.next() && self.resumes(h) && proves(&self.mounts, h)
        };
        let firsts = self.beyond.iter().flat_map(|(_, heads)| heads).filter(is_first);
        let known = self.points_here().map(|p| p.epoch).chain(firsts.map(|h| h.epoch)).max();
        known.filter(|_| !broken(Break::CutOffFollowed))
    }

    /// The first partial of that mount, or of one that went on after it: in the segment that the log names, in the very one where this
    /// mount began and wrote nothing, or where roots say. What cannot be read there is missed.
    pub(super) fn gone_on(&mut self, epoch: Epoch) -> Result<Option<Found>> {
        let mut places: BTreeSet<SegmentNo> = self.at.next.into_iter().collect();
        if !broken(Break::GoneOnByName) {
            places.extend(Some(self.at.segment).filter(|_| self.at.block == 0));
            let begins = |p: &Point| Some(p.chain.0).filter(|_| p.chain.1 == 0);
            places.extend(self.points_here().flat_map(|p| [begins(p), p.next]).flatten());
        }
        let mut newest: Option<Found> = None;
        for segment in places {
            let found = self.following(Addr::new(segment, 0), true, 0)?.filter(|f| f.header.epoch >= epoch);
            if found.as_ref().is_some_and(|f| newest.as_ref().is_none_or(|n| f.header.epoch > n.header.epoch)) {
                newest = found;
            }
        }
        Ok(newest)
    }

    /// The same as [`Walk::resumed`], where the log of before names no segment, and both copies of the root are lost that may have: a
    /// nearly full volume has none to spare. Of several mounts that went on from here the last.
    pub(super) fn resumed_anywhere(&mut self) -> Result<Option<Found>> {
        let is_lost = self.seeks && self.at.next.is_none() && self.storage.mounts().lack_a_root();
        if !is_lost || broken(Break::UnnamedUnsought) {
            return Ok(None);
        }
        let firsts = match self.firsts.take() {
            Some(firsts) => firsts,
            None => self.firsts_of_all(),
        };
        let last = self.left_behind();
        let resuming = firsts.iter().filter(|h| self.resumes(h) && Some(h.epoch) >= last);
        let mut places: Vec<(Epoch, Addr)> = resuming.map(|h| (h.epoch, h.addr)).collect();
        self.firsts = Some(firsts);
        places.sort_unstable();
        places.dedup();
        for (epoch, first) in places.into_iter().rev() {
            let found = self.following(first, true, 0)?.filter(|f| f.header.epoch >= epoch);
            if found.is_some() {
                self.sought = true;
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What the first blocks of all segments say of later epochs in the log.
    fn firsts_of_all(&mut self) -> Vec<Header> {
        let (mut firsts, epoch) = (Vec::new(), self.at.epoch);
        for first in self.storage.numbers().into_iter().flatten().map(|n| Addr::new(SegmentNo(n), 0)) {
            let is_later = |h: &Header| h.addr == first && h.kind == PartialKind::Chain && h.epoch > epoch;
            firsts.extend(self.heads(first).into_iter().filter(is_later));
        }
        firsts
    }
}
