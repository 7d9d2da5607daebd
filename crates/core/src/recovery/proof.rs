//! What headers behind the end of a walk prove, and how places are passed over that no device gives: each may take a device seconds.
//!
//! Invariants
//! 1. What can be read behind the end is looked at, but for what lies among many places that cannot be: there some of them are asked for, so
//!    that no stretch is missed of [`STEP`] blocks that can be read.
//! 2. Where some were passed over, and what lies where the next partial belongs looks like one, that is damage: what proves it may be there.

use super::walk::{Walk, proves};
use crate::breaks::{Break, broken};
use crate::{Error, Result};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::{Addr, SegmentNo, Seq};

/// Each place that is asked for in vain counts two, and one that is given takes one back.
const PATIENCE: u32 = 16;
/// The distance at which places are asked for among those: less than a unit.
const STEP: u32 = 14;
/// Who gives so much at once is asked for everything again.
const RESTORES: u32 = 8;

/// Places that no device gives, of late.
#[derive(Clone, Copy, Default)]
pub(super) struct Vain {
    count: u32,
    /// The last of them.
    last: Option<Addr>,
    /// The first behind which others were passed over.
    pub passed: Option<Addr>,
}

impl Vain {
    /// Elsewhere they may be given.
    pub fn anew(&mut self) {
        *self = Self { passed: self.passed, ..Self::default() };
    }

    /// So many blocks were read by one request.
    pub fn given(&mut self, blocks: u32) {
        if blocks >= RESTORES {
            self.anew();
        }
        self.count = self.count.min(PATIENCE).saturating_sub(1);
    }

    /// A request was in vain: for one place, or for more that it reads ahead.
    pub fn failed(&mut self, place: Option<Addr>) {
        self.count += if place.is_some() { 2 } else { 1 };
        self.last = place.or(self.last);
    }

    fn is_at_end(&self) -> bool {
        self.count >= PATIENCE && !broken(Break::EachBadPlaceAsked)
    }
}

/// What headers behind the end of a walk prove to have been durable.
#[derive(Clone, Copy, Default)]
pub(super) struct Proof {
    /// Those of the epoch where it ended, and of later ones.
    pub of_any: Seq,
    /// Those of that epoch alone: only they speak of what the walk followed.
    pub of_epoch: Seq,
}

impl Walk<'_> {
    /// The highest durable sequence that a header behind the end proves, when it is higher than where the walk stopped:
    /// whichever device has that header.
    pub(super) fn proof_behind(&mut self) -> Result<Proof> {
        let mut proof = Proof::default();
        let mut places = vec![(self.at.segment, self.at.block)];
        places.extend(self.at.next.map(|s| (s, 0)));
        for (segment, first) in places {
            self.each_way(segment, first, &mut |walk| {
                let found = walk.proof_in(segment, first)?;
                proof = Proof { of_any: proof.of_any.max(found.of_any), of_epoch: proof.of_epoch.max(found.of_epoch) };
                Ok(())
            })?;
        }
        Ok(proof)
    }

    /// What headers in this segment prove, from this block on. What a header says is as true
    /// where a device misplaced it: perhaps just there because it lies on what it proves.
    fn proof_in(&mut self, segment: SegmentNo, first: u32) -> Result<Proof> {
        let (mut proof, mut block) = (Proof::default(), first);
        let (epoch, seq, mounts) = (self.at.epoch, self.at.seq, self.mounts.clone());
        let comes_later = |h: &Header| h.epoch > epoch || h.epoch == epoch && h.seq > seq;
        let counts = |h: &Header| comes_later(h) && proves(&mounts, h);
        let end = self.storage.segment_blocks;
        self.vain.anew();
        while block < end {
            let addr = Addr::new(segment, block);
            let Some((h, ..)) = self.of_chain(addr, counts)? else {
                block = self.next_place(addr, end)?;
                continue;
            };
            block += 1;
            let at_home = h.addr == addr;
            if at_home || !broken(Break::AstrayUnread) {
                proof.of_any = proof.of_any.max(h.durable_seq);
                if h.epoch == epoch || broken(Break::LaterVouches) {
                    proof.of_epoch = proof.of_epoch.max(h.durable_seq);
                }
                block += if at_home { h.total_blocks().max(1) - 1 } else { 0 };
            }
        }
        Ok(proof)
    }

    /// The block to look at behind this one, and before `end`: the next; or, where it could not be read, and many before it, the first
    /// that can be, by what is asked for of those in between.
    pub(super) fn next_place(&mut self, place: Addr, end: u32) -> Result<u32> {
        let mut low = place.block();
        if self.vain.last != Some(place) || !self.vain.is_at_end() || low + 1 >= end {
            return Ok(low + 1);
        }
        let at = |block| Addr::new(place.segment(), block);
        self.vain.passed = self.vain.passed.or(Some(place));
        loop {
            let step = if broken(Break::IslandsPassed) { 256 } else { STEP };
            let mut high = (low + step).min(end - 1);
            if self.is_given(at(high))? {
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if self.is_given(at(middle))? { high = middle } else { low = middle }
                }
                return Ok(high);
            }
            if high + 1 >= end {
                return Ok(end);
            }
            low = high;
        }
    }

    /// Why the next partial may have been durable although nothing proves that: it looks as if it had been there, and what may prove it was
    /// passed over.
    pub(super) fn doubt(&mut self) -> Result<Option<String>> {
        let Some(passed) = self.vain.passed.filter(|_| !self.closed && !broken(Break::PassedIsNothing)) else {
            return Ok(None);
        };
        let at = self.at.clone();
        let is_like =
            |h: &Header| h.kind == PartialKind::Chain && h.uuid == at.uuid && h.epoch == at.epoch && h.seq > at.seq;
        let here = Some((at.segment, at.block)).filter(|(_, block)| *block < self.storage.segment_blocks);
        for (segment, block) in here.into_iter().chain(at.next.map(|segment| (segment, 0))) {
            let addr = Addr::new(segment, block);
            let first = self.readable(addr, 1)?;
            if first.is_some_and(|first| Header::peek(first).is_ok_and(|h| is_like(&h))) {
                return Ok(Some(format!(
                    "the log is damaged: what lies at {addr} was partial {}, or one behind it, and cannot be read; what may prove that it was \
                     durable the device does not give, from {passed} on",
                    at.seq.next()
                )));
            }
        }
        Ok(None)
    }

    fn is_given(&mut self, place: Addr) -> Result<bool> {
        match self.blocks(place, 1) {
            Ok(given) => Ok(given.is_some()),
            Err(Error::Device(_)) => {
                self.vain.failed(Some(place));
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }
}
